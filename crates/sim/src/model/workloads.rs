//! Demand: workload B of MBal (EuroSys 2015) Table 4, whose hot set can lie elsewhere; and an even one.

use super::Popularity;

pub struct Workload {
    pub keys: Popularity,
    /// Other keys, and so other cachelets, are hot by another one.
    pub salt: u64,
}

const SLOTS: u32 = 16_000_000;

/// Keys of a worker. With these, workers differ by a fifth to a quarter, as the paper's do within a server.
pub const MANY: u32 = 250;
/// With these, whole servers are too hot.
pub const FEW: u32 = 60;

/// 95% of the requests go to 5% of the keys, evenly. `place` says which these are.
pub fn hotspot_of(workers: u32, keys_per_worker: u32, seed: u64, place: u64) -> Workload {
    let keys = (keys_per_worker * workers).min(SLOTS / 2);
    let hot = keys / 20;
    let per_hot = (f64::from(SLOTS) * 0.95 / f64::from(hot)).round() as u32;
    let cold = keys - hot;
    let per_cold = (f64::from(SLOTS) * 0.05 / f64::from(cold)).round() as u32;
    let keys = Popularity::from_counts([(hot, per_hot), (cold, per_cold)], seed);
    Workload { keys, salt: seed << 8 | place << 40 }
}

/// Every key as often as every other, and many of them.
pub fn even(workers: u32, seed: u64) -> Workload {
    let keys = (100 * MANY * workers).min(SLOTS / 2);
    let keys = Popularity::from_counts([(keys, SLOTS / keys)], seed);
    Workload { keys, salt: seed << 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_workload_b_a_twentieth_of_the_keys_gets_95_percent() {
        let counts = hotspot_of(80, MANY, 1, 1).keys.counts();
        let hot: u32 = counts[..counts.len() / 20].iter().sum();
        let share = f64::from(hot) / f64::from(counts.iter().sum::<u32>());
        assert!((share - 0.95).abs() < 0.002, "{share}");
    }
}
