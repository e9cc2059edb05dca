//! The planners' model: what may move, what must hold, and what a placement costs.
//!
//! Equations (1) to (11) of MBal (EuroSys 2015, §3.3 and §3.4) share one shape: choose an owner
//! for every cachelet, keep each worker under its limits, minimise one of three objectives. The papers' (2), (3),
//! (5) and (9) are infeasible as soon as one cachelet is heavier than the limit, so here they are two
//! things: no worker that takes a cachelet may end above its limit, ever; and what stays
//! above the limit at the sources is *excess*, which outweighs everything else in the objective.

use mbal_model::{Move, Owner, Prefix, Snapshot};

/// Load above a limit costs this many times its amount of deviation, or moves: so much that cachelets of a thousandth of a
/// worker's time each are still worth their moves.
pub const EXCESS_WEIGHT: f64 = 1_000_000.0;

/// Less load than this above a limit is not worth one move: it counts as none (`mbal_balance::Thresholds::is_over`).
pub const EXCESS_MIN: f64 = 1.0 / EXCESS_WEIGHT;

/// Sums of the same loads in another order differ by less than this.
pub const LOAD_EPSILON: f64 = 1e-9;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// Equation (1): as few moves as bring every worker under its limit.
    FewestMoves,
    /// Equation (4): the smallest sum of | load − average |. A move must gain `move_price` of load.
    Evenest { average: f64, move_price: f64 },
    /// Equation (8): the smallest sum of | load of `source` − load of j | over the destinations j.
    Closest { source: usize },
}

/// A worker as its model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Bin {
    pub at: Owner,
    /// Load that stays.
    pub fixed: f64,
    /// T_j, the permissible load.
    pub limit: f64,
    /// M_j, bytes.
    pub bytes_max: u64,
    /// Bytes of what stays.
    pub bytes_fixed: u64,
    /// A plan may bring cachelets here.
    pub takes: bool,
}

/// A cachelet that may move. Those that may not are in their bin's `fixed` and `bytes_fixed`.
#[derive(Clone, Debug, PartialEq)]
pub struct Ball {
    pub cachelet: Prefix,
    pub home: usize,
    pub load: f64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub objective: Objective,
    pub bins: Vec<Bin>,
    pub balls: Vec<Ball>,
    too_heavy: Vec<Prefix>,
}

/// Moves, and how good they are, so that a bad plan can be seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub moves: Vec<Move>,
    /// The objective's value without this plan, and with it. Its unit is the objective's:
    /// moves for equation (1), load for (4) and (8).
    pub objective_before: f64,
    pub objective: f64,
    /// No plan can have a smaller objective than this.
    pub lower_bound: f64,
    /// Load above the permissible, summed over workers, that remains.
    pub excess: f64,
    /// Heavier than any worker may be: split them, or replicate their keys.
    pub too_heavy: Vec<Prefix>,
}

impl Plan {
    /// How far the objective may be from the best, in the objective's unit.
    pub fn gap(&self) -> f64 {
        self.objective - self.lower_bound
    }
}

/// For each ball of a model, the bin that owns it.
pub type Placement = Vec<u32>;

impl Model {
    /// Reads `workers` of a snapshot, by index. `limit` is T, `gives` and `takes` say which of them
    /// cachelets may leave and enter. A cachelet heavier than `limit` stays where it is and everything
    /// else is placed around it. O(cachelets).
    pub fn new(
        snapshot: &Snapshot,
        workers: &[usize],
        objective: Objective,
        limit: f64,
        gives: impl Fn(usize) -> bool,
        takes: impl Fn(usize) -> bool,
    ) -> Model {
        let mut bins = Vec::with_capacity(workers.len());
        let mut balls = Vec::new();
        let mut too_heavy = Vec::new();
        for (home, &index) in workers.iter().enumerate() {
            let worker = &snapshot.workers[index];
            let mut bin = Bin {
                at: worker.at,
                fixed: worker.fixed,
                limit,
                bytes_max: worker.bytes_max,
                bytes_fixed: 0,
                takes: takes(index),
            };
            for cachelet in &worker.cachelets {
                if cachelet.load > limit {
                    too_heavy.push(cachelet.cachelet);
                }
                if !gives(index) || cachelet.pinned || cachelet.load > limit {
                    bin.fixed += cachelet.load;
                    bin.bytes_fixed += cachelet.bytes;
                } else {
                    balls.push(Ball {
                        cachelet: cachelet.cachelet,
                        home,
                        load: cachelet.load,
                        bytes: cachelet.bytes,
                    });
                }
            }
            bins.push(bin);
        }
        Model { objective, bins, balls, too_heavy }
    }

    /// Everything may move everywhere: equation (4) over the whole snapshot.
    pub fn evenest(snapshot: &Snapshot, limit: f64, move_price: f64) -> Model {
        let workers: Vec<usize> = (0..snapshot.workers.len()).collect();
        let total: f64 = snapshot.workers.iter().map(|worker| worker.load()).sum();
        let average = total / workers.len().max(1) as f64;
        let objective = Objective::Evenest { average, move_price };
        Model::new(snapshot, &workers, objective, limit, |_| true, |_| true)
    }

    /// Where every cachelet is now.
    pub fn homes(&self) -> Placement {
        self.balls.iter().map(|ball| ball.home as u32).collect()
    }

    pub fn loads(&self, placement: &[u32]) -> Vec<f64> {
        let mut loads: Vec<f64> = self.bins.iter().map(|bin| bin.fixed).collect();
        for (ball, &bin) in self.balls.iter().zip(placement) {
            loads[bin as usize] += ball.load;
        }
        loads
    }

    pub fn bytes(&self, placement: &[u32]) -> Vec<u64> {
        let mut bytes: Vec<u64> = self.bins.iter().map(|bin| bin.bytes_fixed).collect();
        for (ball, &bin) in self.balls.iter().zip(placement) {
            bytes[bin as usize] += ball.bytes;
        }
        bytes
    }

    /// The most load that each worker may end with: its limit, or what it has if that is more.
    pub fn load_caps(&self) -> Vec<f64> {
        let loads = self.loads(&self.homes());
        self.bins
            .iter()
            .zip(loads)
            .map(|(bin, load)| if bin.takes { load.max(bin.limit) } else { load } + LOAD_EPSILON)
            .collect()
    }

    /// The same in bytes: equations (10) and (11).
    pub fn byte_caps(&self) -> Vec<u64> {
        let bytes = self.bytes(&self.homes());
        self.bins.iter().zip(bytes).map(|(bin, bytes)| bytes.max(bin.bytes_max)).collect()
    }

    /// Whether a placement breaks nothing: caps of load and memory, and who may take what.
    pub fn permits(&self, placement: &[u32]) -> bool {
        let within_load =
            self.loads(placement).iter().zip(self.load_caps()).all(|(load, cap)| *load <= cap);
        let within_bytes =
            self.bytes(placement).iter().zip(self.byte_caps()).all(|(bytes, cap)| *bytes <= cap);
        let taken = self
            .balls
            .iter()
            .zip(placement)
            .all(|(ball, &bin)| ball.home == bin as usize || self.bins[bin as usize].takes);
        within_load && within_bytes && taken
    }

    /// A worker's share of the cost at some load: what (1) and (4) sum over workers.
    pub fn bin_cost(&self, bin: usize, load: f64) -> f64 {
        let excess = EXCESS_WEIGHT * (load - self.bins[bin].limit).max(0.0);
        match self.objective {
            Objective::FewestMoves | Objective::Closest { .. } => excess,
            Objective::Evenest { average, .. } => excess + (load - average).abs(),
        }
    }

    pub fn move_price(&self) -> f64 {
        match self.objective {
            Objective::FewestMoves => 1.0,
            Objective::Evenest { move_price, .. } => move_price,
            Objective::Closest { .. } => 0.0,
        }
    }

    /// What planners minimise: excess first, then the objective.
    pub fn cost(&self, placement: &[u32]) -> f64 {
        let loads = self.loads(placement);
        let bins: f64 = loads.iter().enumerate().map(|(bin, &load)| self.bin_cost(bin, load)).sum();
        bins + self.closeness(&loads) + self.move_price() * self.moved(placement) as f64
    }

    /// Equation (8)'s sum, zero under the other objectives.
    pub fn closeness(&self, loads: &[f64]) -> f64 {
        match self.objective {
            Objective::Closest { source } => {
                loads.iter().map(|load| (loads[source] - load).abs()).sum()
            }
            _ => 0.0,
        }
    }

    pub fn moved(&self, placement: &[u32]) -> usize {
        self.balls.iter().zip(placement).filter(|(ball, bin)| ball.home != **bin as usize).count()
    }

    pub fn excess(&self, placement: &[u32]) -> f64 {
        let over = |(bin, load): (&Bin, f64)| (load - bin.limit).max(0.0);
        self.bins.iter().zip(self.loads(placement)).map(over).sum()
    }

    /// The objective alone, without excess and the price of moves.
    pub fn objective(&self, placement: &[u32]) -> f64 {
        match self.objective {
            Objective::FewestMoves => self.moved(placement) as f64,
            Objective::Evenest { average, .. } => {
                self.loads(placement).iter().map(|load| (load - average).abs()).sum()
            }
            Objective::Closest { .. } => self.closeness(&self.loads(placement)),
        }
    }

    /// No placement that permits less excess than `excess` is required; this bounds the objective.
    ///
    /// (1): the heaviest cachelets of an overloaded worker that together cover what it must lose.
    /// (4): what no move can level, with cachelets cut to any size (the linear relaxation): load that
    /// stays above the average, and average that workers which take nothing cannot reach. Cachelets
    /// heavier than the average are not cut: they lie above it wherever they lie.
    /// (8): zero. O(n log n).
    pub fn lower_bound(&self) -> f64 {
        match self.objective {
            Objective::FewestMoves => self.fewest_moves_bound() as f64,
            Objective::Evenest { average, .. } => self.evenest_bound(average),
            Objective::Closest { .. } => 0.0,
        }
    }

    fn fewest_moves_bound(&self) -> usize {
        let loads = self.loads(&self.homes());
        let mut bound = 0;
        for (bin, &load) in loads.iter().enumerate() {
            let mut over = load - self.bins[bin].limit;
            let mut own: Vec<f64> =
                self.balls.iter().filter(|ball| ball.home == bin).map(|ball| ball.load).collect();
            own.sort_by(|a, b| b.total_cmp(a));
            // Only what can be reached counts: the rest is excess, and costs no moves.
            for load in own {
                if over <= EXCESS_MIN {
                    break;
                }
                over -= load;
                bound += 1;
            }
            if over > EXCESS_MIN {
                return 0;
            }
        }
        bound
    }

    fn evenest_bound(&self, average: f64) -> f64 {
        let homes = self.loads(&self.homes());
        let heaviest = self.balls.iter().map(|ball| ball.load).fold(0.0, f64::max);
        let mut stays = 0.0;
        let mut free = 0.0;
        let mut room = 0.0;
        for (bin, worker) in self.bins.iter().enumerate() {
            let movable = homes[bin] - worker.fixed;
            if worker.takes {
                stays += (worker.fixed - average).max(0.0);
                room += (average - worker.fixed).max(0.0);
                free += movable;
            } else {
                stays += (worker.fixed - average).max(0.0);
                room += (average.min(homes[bin]) - worker.fixed).max(0.0);
                stays += (average - homes[bin]).max(0.0);
                free += movable;
            }
        }
        // All of `free` must lie somewhere: what finds no room lies above the average.
        let relaxed = stays + (free - room).abs();
        // The heaviest ball overshoots wherever it lies, and the rest must make up for it.
        let emptiest = self.bins.iter().map(|bin| bin.fixed).fold(f64::INFINITY, f64::min);
        let overshoot = (emptiest + heaviest - average).max(0.0);
        let surplus = homes.iter().sum::<f64>() - average * homes.len() as f64;
        // Each ball above the average takes its worker above it by as much, on top of what is fixed there;
        // and what lies above the average is missing below it.
        let above = |load: f64| (load - average).max(0.0);
        let heavy = self.balls.iter().map(|ball| above(ball.load)).sum::<f64>()
            + self.bins.iter().map(|bin| above(bin.fixed)).sum::<f64>();
        relaxed.max(overshoot + (surplus - overshoot).abs()).max(2.0 * heavy - surplus)
    }

    /// The placement as moves, in the order of cachelets, with what it is worth.
    pub fn plan(&self, placement: &[u32]) -> Plan {
        let homes = self.homes();
        let moves = self
            .balls
            .iter()
            .zip(placement)
            .filter(|(ball, bin)| ball.home != **bin as usize)
            .map(|(ball, &bin)| Move {
                cachelet: ball.cachelet,
                from: self.bins[ball.home].at,
                to: self.bins[bin as usize].at,
            })
            .collect();
        Plan {
            moves,
            objective_before: self.objective(&homes),
            objective: self.objective(placement),
            lower_bound: self.lower_bound(),
            excess: self.excess(placement),
            too_heavy: self.too_heavy.clone(),
        }
    }
}
