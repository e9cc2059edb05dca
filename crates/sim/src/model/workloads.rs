//! The three workloads of MBal (EuroSys 2015) Table 4.

use super::Popularity;

pub struct Workload {
    pub name: &'static str,
    pub keys: Popularity,
    /// Keeps the workloads' hot keys on different workers.
    pub salt: u64,
    pub write_share: f64,
}

const SLOTS: u32 = 16_000_000;

/// YCSB's 0.99 for workload A, whose hot keys can be replicated. In C nothing can split a key that is
/// written as often as read, and 0.99 would put 7% of all requests on one worker of thousands.
const READ_SKEW: f64 = 0.99;
const WRITE_SKEW: f64 = 0.4;

/// Keys per worker: many for A; so few for B and C that workers differ by a fifth to a quarter, as
/// the paper's workers do within a server.
const KEYS_PER_WORKER: [u32; 3] = [12_500, 250, 50];

pub fn workloads(workers: u32, seed: u64) -> [Workload; 3] {
    let made = |name, keys, salt, write_share| Workload { name, keys, salt, write_share };
    let [a, b, c] = KEYS_PER_WORKER.map(|keys| (keys * workers).min(SLOTS / 2));
    [
        made("A", Popularity::zipf(READ_SKEW, a, SLOTS, seed), 1 << 40, 0.0),
        made("B", hotspot(b, seed), 2 << 40, 0.05),
        made("C", Popularity::zipf(WRITE_SKEW, c, SLOTS, seed), 3 << 40, 0.5),
    ]
}

/// 95% of the requests go to 5% of the keys, evenly.
fn hotspot(keys: u32, seed: u64) -> Popularity {
    let hot = keys / 20;
    let per_hot = (f64::from(SLOTS) * 0.95 / f64::from(hot)).round() as u32;
    let cold = keys - hot;
    let per_cold = (f64::from(SLOTS) * 0.05 / f64::from(cold)).round() as u32;
    Popularity::from_counts([(hot, per_hot), (cold, per_cold)], seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_workload_b_a_twentieth_of_the_keys_gets_95_percent() {
        let [_, b, _] = workloads(80, 1);
        let counts = b.keys.counts();
        let hot: u32 = counts[..counts.len() / 20].iter().sum();
        let share = f64::from(hot) / f64::from(b.keys.requests());
        assert!((share - 0.95).abs() < 0.002, "{share}");
    }
}
