//! The planner of both phases: which cachelet goes where, one after the other, as long as a step gains more than it costs.
//!
//! The worst worker decides how fast a closed loop turns. Σ capacity × (share / capacity)^4 sees it among a thousand, and is still
//! smooth: a step that only passes the burden on gains nothing.
//!
//! Keys that come in batches share turns. A worker that has a part of nearly every batch is spared the key alone if it gives a cachelet away, and who
//! has a part of few gets turns with it. A batch has a part for a worker with probability 1 − e^−λ, where λ is how many of its keys
//! are that worker's on average; what comes in a turn says λ.

use mbal_model::{CacheletLoad, Move, Owner, Snapshot, WorkerLoad};

/// The lightest workers that are tried as a cachelet's next place.
const TAKERS_TRIED: usize = 4;
/// Keys that cost as much as a turn (`worker/observing/load.rs`).
const TURN_KEYS: f64 = 20.0;
/// λ of who is asked for single keys.
const DEPTH_MIN: f64 = 1e-4;
const DEPTH_MAX: f64 = 100.0;

/// Of what a giver has above its part, what a taker has less than it at least, when a cachelet has come: else the burden is passed on.
const RELIEF_MIN: f64 = 0.2;

/// A step of a plan: a move, or the two of an exchange.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub moves: Vec<Move>,
    pub gain: f64,
}

/// What a plan may do, beside making things better.
pub(crate) trait Rules {
    /// What a cachelet's way costs a giver with so much of its part, of the capacity of all.
    fn price(&self, held: &CacheletLoad, quotient: f64) -> f64;
    /// Whether that worker, by its place in the demand, may take anything.
    fn may_take(&self, at: usize) -> bool;
}

/// Workers and what they have, while a plan is made. Loads are shares ([`crate::shares::Shares::demand`]).
pub(crate) struct Field {
    pub demand: Snapshot,
    /// By worker: all that it does.
    loads: Vec<f64>,
    /// By worker: λ; and of what was there from the beginning, λ for each load, and work for each λ.
    depths: Vec<f64>,
    depth_per_load: Vec<f64>,
    work_per_depth: Vec<f64>,
}

/// Work of a worker in units of a key for each batch.
fn work(depth: f64) -> f64 {
    TURN_KEYS * -(-depth).exp_m1() + depth
}

/// λ of so many keys in a turn: turns = 1 − e^−λ, keys = λ.
fn depth(keys_a_turn: f64) -> f64 {
    let (mut low, mut high) = (DEPTH_MIN, DEPTH_MAX);
    for _ in 0..40 {
        let middle = f64::sqrt(low * high);
        let is_less = middle / -(-middle).exp_m1() < keys_a_turn;
        (low, high) = if is_less { (middle, high) } else { (low, middle) };
    }
    low
}

impl Field {
    pub fn new(demand: Snapshot) -> Field {
        let loads: Vec<f64> = demand.workers.iter().map(WorkerLoad::load).collect();
        let movable = demand.workers.iter().zip(&loads).map(|(one, load)| load - one.fixed);
        let movable: Vec<f64> = movable.map(|load| load.max(0.0)).collect();
        let depth_of = |worker: &WorkerLoad| match worker.service.turns {
            0 => DEPTH_MIN,
            turns => depth(worker.service.keys as f64 / turns as f64),
        };
        let depths: Vec<f64> = demand.workers.iter().map(depth_of).collect();
        let depth_per_load =
            depths.iter().zip(&movable).map(|(depth, load)| depth / load.max(1e-9)).collect();
        let work_per_depth = depths.iter().map(|depth| work(*depth) / depth).collect();
        Field { demand, loads, depths, depth_per_load, work_per_depth }
    }

    pub fn workers(&self) -> &[WorkerLoad] {
        &self.demand.workers
    }

    /// Share of the work / share of the capacity.
    pub fn quotient(&self, at: usize) -> f64 {
        self.loads[at] / self.workers()[at].service.capacity
    }

    pub fn quotients(&self) -> Vec<f64> {
        (0..self.loads.len()).map(|at| self.quotient(at)).collect()
    }

    /// A worker's part in what is minimised, with so much more load.
    fn strain_of(&self, at: usize, more: f64) -> f64 {
        let capacity = self.workers()[at].service.capacity;
        capacity * ((self.loads[at] + more) / capacity).powi(4) / self.loads.len() as f64
    }

    /// What a cachelet spares its worker, and costs another one.
    fn change(&self, from: usize, held: &CacheletLoad, to: usize) -> (f64, f64) {
        let keys = held.load * self.depth_per_load[from];
        if keys <= 0.0 {
            return (held.load, held.load);
        }
        let (less, more) = (self.depths[from], self.depths[to]);
        let per_work = held.load / keys / self.work_per_depth[from];
        let spared = per_work * (work(less) - work((less - keys).max(0.0)));
        (spared, per_work * (work(more + keys) - work(more)))
    }

    /// The step from `source` that gains most beyond its price. O(workers + cachelets of the source), and where takers have no memory free
    /// times their cachelets.
    pub fn best_step(&self, source: usize, rules: &impl Rules) -> Option<Step> {
        let from = &self.workers()[source];
        let quotient = self.quotient(source);
        // Who has its part gives nothing, though all would have fewer turns.
        if quotient <= 1.0 {
            return None;
        }
        let most = quotient - RELIEF_MIN * (quotient - 1.0);
        // An exchange is two moves for one gain: only where nothing else helps.
        let (mut best, mut exchange): (Option<Step>, Option<Step>) = (None, None);
        let consider = |best: &mut Option<Step>, gain: f64, moves: &[Move]| {
            if gain > 0.0 && best.as_ref().is_none_or(|best| gain > best.gain) {
                *best = Some(Step { moves: moves.to_vec(), gain });
            }
        };
        let gain = |at: usize, less: f64, more: f64| {
            let now = self.strain_of(source, 0.0) + self.strain_of(at, 0.0);
            now - self.strain_of(source, -less) - self.strain_of(at, more)
        };
        for at in self.lightest(source, rules) {
            let to = &self.workers()[at];
            let to_bytes = to.bytes();
            for held in from.cachelets.iter().filter(|held| !held.pinned && held.load > 0.0) {
                let (spared, costs) = self.change(source, held, at);
                if self.loads[at] + costs > most * to.service.capacity {
                    continue;
                }
                let price = rules.price(held, quotient);
                let step = Move { cachelet: held.cachelet, from: from.at, to: to.at };
                if to_bytes + held.bytes <= to.bytes_max {
                    consider(&mut best, gain(at, spared, costs) - price, &[step]);
                    continue;
                }
                // Memory is full, as a cache's is: a lighter one of about as many bytes comes back.
                for back in to.cachelets.iter().filter(|one| !one.pinned && one.load < held.load) {
                    let fits = to_bytes + held.bytes <= room(to) + back.bytes
                        && from.bytes() + back.bytes <= room(from) + held.bytes;
                    if !fits {
                        continue;
                    }
                    let (less, more) = self.change(at, back, source);
                    let price = price + rules.price(back, self.quotient(at));
                    let returns = Move { cachelet: back.cachelet, from: to.at, to: from.at };
                    let gain = gain(at, spared - more, costs - less) - price;
                    consider(&mut exchange, gain, &[step, returns]);
                }
            }
        }
        best.or(exchange)
    }

    /// Whether a worker that may take a cachelet of `from` would have no more than so much of its part with it.
    pub fn has_place(
        &self,
        from: usize,
        held: &CacheletLoad,
        limit: f64,
        may_take: impl Fn(Owner) -> bool,
    ) -> bool {
        let fits = |at: usize| {
            let to = &self.workers()[at];
            let (_, costs) = self.change(from, held, at);
            may_take(to.at) && self.loads[at] + costs <= limit * to.service.capacity
        };
        (0..self.loads.len()).filter(|at| *at != from).any(fits)
    }

    fn lightest(&self, source: usize, rules: &impl Rules) -> Vec<usize> {
        let mut takers: Vec<(f64, usize)> = Vec::with_capacity(TAKERS_TRIED + 1);
        for at in 0..self.loads.len() {
            let now = self.quotient(at);
            let is_full = takers.len() == TAKERS_TRIED;
            let is_heavier = is_full && takers.last().is_some_and(|(most, _)| *most <= now);
            if at == source || is_heavier || !rules.may_take(at) {
                continue;
            }
            let place = takers.partition_point(|(other, _)| *other <= now);
            takers.insert(place, (now, at));
            takers.truncate(TAKERS_TRIED);
        }
        takers.into_iter().map(|(_, at)| at).collect()
    }

    /// Carries moves out; what has moved stays: nothing moves twice in a plan.
    pub fn take(&mut self, moves: &[Move]) {
        for step in moves {
            let place = |at: Owner| self.workers().iter().position(|worker| worker.at == at);
            let (from, to) = (place(step.from), place(step.to));
            let from = from.expect("a plan names workers of its demand");
            let to = to.expect("a plan names workers of its demand");
            let held = &mut self.demand.workers[from].cachelets;
            let index = held.iter().position(|held| held.cachelet == step.cachelet);
            let held = held.remove(index.expect("a plan moves what its source holds"));
            let (spared, costs) = self.change(from, &held, to);
            let keys = held.load * self.depth_per_load[from];
            self.depths[from] = (self.depths[from] - keys).max(0.0);
            self.depths[to] += keys;
            self.loads[from] -= spared;
            self.loads[to] += costs;
            self.demand.workers[to].cachelets.push(CacheletLoad { pinned: true, ..held });
        }
    }
}

/// Of a full server's memory, what an exchange may bring it above that.
const EXCHANGE_SLACK: f64 = 1.0 / 64.0;

fn room(worker: &WorkerLoad) -> u64 {
    let slack = (worker.bytes_max as f64 * EXCHANGE_SLACK) as u64;
    worker.bytes().max(worker.bytes_max.saturating_add(slack))
}

/// The heaviest of a worker's cachelets, if it would be too much for a worker alone.
pub(crate) fn too_heavy(worker: &WorkerLoad, limit: f64) -> Option<CacheletLoad> {
    let heaviest = worker.cachelets.iter().max_by(|a, b| a.load.total_cmp(&b.load))?;
    (heaviest.load > limit * worker.service.capacity).then_some(*heaviest)
}

#[cfg(test)]
mod tests {
    use mbal_model::{Prefix, ServerId, Service, WorkerId};

    use super::*;

    struct Free;

    impl Rules for Free {
        fn price(&self, _: &CacheletLoad, _: f64) -> f64 {
            0.0
        }

        fn may_take(&self, _: usize) -> bool {
            true
        }
    }

    /// By worker: its capacity, keys in a turn, its cachelets' loads.
    fn field(workers: &[(f64, f64, &[f64])]) -> Field {
        let mut number = 0;
        let mut worker = |at: usize, &(capacity, keys, loads): &(f64, f64, &[f64])| WorkerLoad {
            at: Owner { server: ServerId(at as u16), worker: WorkerId(0) },
            service: Service {
                capacity,
                keys: (keys * 1000.0) as u64,
                turns: 1000,
                ..Service::default()
            },
            fixed: 0.0,
            bytes_max: u64::MAX / 2,
            cachelets: loads
                .iter()
                .map(|&load| {
                    number += 1;
                    let cachelet = Prefix::nth(number - 1, 15);
                    CacheletLoad { cachelet, load, bytes: 1, pinned: false }
                })
                .collect(),
        };
        let workers = workers.iter().enumerate().map(|(at, one)| worker(at, one)).collect();
        Field::new(Snapshot { workers })
    }

    /// All steps from the first worker: cachelets and where they go.
    fn evened(mut field: Field) -> (Vec<(usize, u16)>, Vec<f64>) {
        let mut steps = Vec::new();
        while let Some(step) = field.best_step(0, &Free) {
            steps.extend(step.moves.iter().map(|one| (one.cachelet.place(), one.to.server.0)));
            field.take(&step.moves);
        }
        (steps, field.quotients())
    }

    #[test]
    fn the_worst_worker_gives_until_nothing_gains() {
        let (steps, quotients) = evened(field(&[(1.0, 1.0, &[0.5; 5]), (1.0, 1.0, &[0.5])]));
        assert!(steps.len() == 2 && quotients.iter().all(|one| (one - 1.5).abs() < 0.01));
        assert_eq!(evened(field(&[(1.0, 1.0, &[1.0]), (1.0, 1.0, &[0.9])])).0, []);
    }

    #[test]
    fn what_is_too_heavy_stays_and_the_others_go() {
        let (steps, quotients) = evened(field(&[(1.0, 1.0, &[3.0, 0.2, 0.2]), (1.0, 1.0, &[0.1])]));
        assert_eq!(steps, [(1, 1), (2, 1)]);
        assert!((quotients[0] - 3.0).abs() < 1e-3, "{quotients:?}");
        // Who can do much more takes it.
        let (steps, _) = evened(field(&[(1.0, 1.0, &[3.0, 0.2]), (4.0, 1.0, &[0.1])]));
        assert_eq!(steps[0], (0, 1));
    }

    #[test]
    fn who_can_do_more_gets_more() {
        let (_, quotients) =
            evened(field(&[(0.5, 1.0, &[0.1; 20]), (2.0, 1.0, &[]), (0.5, 1.0, &[])]));
        let even = |quotient: &f64| (quotient - 0.67).abs() < 0.15;
        assert!(quotients.iter().all(even), "{quotients:?}");
    }

    #[test]
    fn in_batches_a_cachelet_takes_keys_with_it_and_leaves_turns() {
        let mut deep = field(&[(1.0, 10.0, &[0.2; 10]), (1.0, 10.0, &[0.1; 10])]);
        let step = deep.best_step(0, &Free).expect("it gains");
        deep.take(&step.moves);
        let quotients = deep.quotients();
        // A tenth of its keys are a tenth of a third of its work.
        assert!((1.92..1.96).contains(&quotients[0]), "{quotients:?}");
        // Who is asked in few batches gets a turn with most keys: that costs all more than it helps one.
        let costs = |keys| {
            let mut field = field(&[(1.0, 10.0, &[0.2; 10]), (1.0, keys, &[0.1])]);
            let before = field.quotients();
            let step = Move {
                cachelet: Prefix::nth(0, 15),
                from: field.workers()[0].at,
                to: field.workers()[1].at,
            };
            field.take(&[step]);
            let after = field.quotients();
            (before[0] - after[0], after[1] - before[1])
        };
        let (spared, cost) = costs(1.1);
        assert!(cost > 5.0 * spared, "{spared} {cost}");
    }

    #[test]
    fn keys_in_a_turn_tell_how_many_of_a_batch_are_here() {
        for (keys, expected) in [(1.0, 0.0), (1.05, 0.1), (1.58, 1.0), (5.03, 5.0), (90.0, 90.0)] {
            assert!((depth(keys) - expected).abs() < 0.02 * expected.max(0.5), "{keys}");
        }
    }
}
