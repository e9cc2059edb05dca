//! Splits a few balls among bins at the least cost, proven: dynamic programming over subsets.
//!
//! Layer b knows, for every set of balls, the least cost at which the first b bins hold exactly that set.
//! Without pruning that is 3^n steps a bin. A good solution known beforehand removes nearly all of them:
//! a subset is listed for a bin only if the other bins' cheapest subsets leave room for its cost, and a
//! set survives only if its cost, and the least that the remaining load must cost, stay below the best.

/// Sets of balls are bits of a u32; 2^20 of them are 8 MiB of sums.
pub const BALLS_MAX: usize = 20;

pub struct CoverBin {
    pub fixed: f64,
    pub bytes_fixed: u64,
    pub load_cap: f64,
    pub bytes_cap: u64,
    /// Balls that this bin may hold.
    pub allowed: u32,
    /// Balls that lie here already, so that holding them is no move.
    pub home: u32,
}

pub struct Cover<'a> {
    pub loads: Vec<f64>,
    pub bytes: Vec<u64>,
    pub bins: Vec<CoverBin>,
    pub move_price: f64,
    /// Cost of a bin at a load, without moves.
    pub cost: &'a dyn Fn(usize, f64) -> f64,
    /// The costs count at least | load − level |, so load that is left over costs something.
    pub level: Option<f64>,
}

pub enum Searched {
    /// Nothing is cheaper than the bound given.
    NothingBelow,
    /// For every bin its set of balls; no other split is cheaper.
    Best(Vec<u32>, f64),
    /// `steps_max` ran out.
    OutOfSteps,
}

struct Entry {
    cost: f64,
    set: u32,
}

/// The cheapest split that costs less than `below`. Deterministic; at most `steps_max` joins.
pub fn cover(cover: &Cover, below: f64, steps_max: u64) -> Searched {
    let all = ((1u64 << cover.loads.len()) - 1) as u32;
    let mut lists = match listed(cover, all, below) {
        Some(lists) => lists,
        None => return Searched::NothingBelow,
    };
    // Fewest choices first keeps the layers thin.
    let mut order: Vec<usize> = (0..lists.len()).collect();
    order.sort_by_key(|&bin| (lists[bin].len(), bin));

    let sums = sums(&cover.loads);
    let mut cheapest_rest = vec![0.0; order.len() + 1];
    let mut fixed_rest = vec![0.0; order.len() + 1];
    for (layer, &bin) in order.iter().enumerate().rev() {
        cheapest_rest[layer] = cheapest_rest[layer + 1] + lists[bin][0].cost;
        fixed_rest[layer] = fixed_rest[layer + 1] + cover.bins[bin].fixed;
    }
    let rest_cost = |layer: usize, used: u32| {
        let bins_left = (order.len() - layer) as f64;
        let leveled = cover.level.map_or(0.0, |level| {
            (sums[(all & !used) as usize] + fixed_rest[layer] - level * bins_left).abs()
        });
        leveled.max(cheapest_rest[layer])
    };

    let mut steps = 0;
    let mut layers: Vec<Vec<(u32, f64, u32)>> = vec![vec![(0, 0.0, 0)]];
    let mut best_at = vec![f64::INFINITY; all as usize + 1];
    let mut place = vec![0u32; all as usize + 1];
    for (layer, &bin) in order.iter().enumerate() {
        let last = layer + 1 == order.len();
        let mut next: Vec<(u32, f64, u32)> = Vec::new();
        for &(used, cost, _) in &layers[layer] {
            for entry in &lists[bin] {
                steps += 1;
                if cost + entry.cost + cheapest_rest[layer + 1] >= below {
                    break;
                }
                if entry.set & used != 0 || (last && entry.set | used != all) {
                    continue;
                }
                let joined = entry.set | used;
                let joined_cost = cost + entry.cost;
                if joined_cost >= best_at[joined as usize]
                    || joined_cost + rest_cost(layer + 1, joined) >= below
                {
                    continue;
                }
                if best_at[joined as usize].is_infinite() {
                    place[joined as usize] = next.len() as u32;
                    next.push((joined, joined_cost, entry.set));
                } else {
                    next[place[joined as usize] as usize] = (joined, joined_cost, entry.set);
                }
                best_at[joined as usize] = joined_cost;
            }
            if steps > steps_max {
                return Searched::OutOfSteps;
            }
        }
        for &(used, _, _) in &next {
            best_at[used as usize] = f64::INFINITY;
        }
        lists[bin] = Vec::new();
        layers.push(next);
    }

    let Some(&(mut used, cost, _)) = layers[order.len()].iter().find(|state| state.0 == all) else {
        return Searched::NothingBelow;
    };
    let mut sets = vec![0; order.len()];
    for layer in (1..layers.len()).rev() {
        let state = layers[layer].iter().find(|state| state.0 == used);
        let set = state.expect("every set was reached from the layer before").2;
        sets[order[layer - 1]] = set;
        used &= !set;
    }
    Searched::Best(sets, cost)
}

/// For every bin the sets that it may hold and that may be part of a split below the bound,
/// cheapest first; None if some bin has none.
fn listed(cover: &Cover, all: u32, below: f64) -> Option<Vec<Vec<Entry>>> {
    let sums = sums(&cover.loads);
    let bytes = byte_sums(&cover.bytes);
    let costs = |bin: usize| {
        let b = &cover.bins[bin];
        let (sums, bytes) = (&sums, &bytes);
        (0..=all).filter_map(move |set| {
            let load = b.fixed + sums[set as usize];
            let fits = set & !b.allowed == 0
                && load <= b.load_cap
                && b.bytes_fixed + bytes[set as usize] <= b.bytes_cap;
            let moves = f64::from((set & !b.home).count_ones()) * cover.move_price;
            fits.then(|| Entry { cost: (cover.cost)(bin, load) + moves, set })
        })
    };
    let cheapest: Vec<f64> = (0..cover.bins.len())
        .map(|bin| costs(bin).map(|entry| entry.cost).fold(f64::INFINITY, f64::min))
        .collect();
    let total: f64 = cheapest.iter().sum();
    let mut lists = Vec::with_capacity(cover.bins.len());
    for (bin, least) in cheapest.iter().enumerate() {
        let room = below - (total - least);
        let mut list: Vec<Entry> = costs(bin).filter(|entry| entry.cost < room).collect();
        if list.is_empty() {
            return None;
        }
        list.sort_by(|a, b| a.cost.total_cmp(&b.cost).then(a.set.cmp(&b.set)));
        lists.push(list);
    }
    Some(lists)
}

fn sums(loads: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; 1 << loads.len()];
    for set in 1..sums.len() {
        sums[set] = sums[set & (set - 1)] + loads[set.trailing_zeros() as usize];
    }
    sums
}

fn byte_sums(bytes: &[u64]) -> Vec<u64> {
    let mut sums = vec![0; 1 << bytes.len()];
    for set in 1..sums.len() {
        sums[set] = sums[set & (set - 1)] + bytes[set.trailing_zeros() as usize];
    }
    sums
}
