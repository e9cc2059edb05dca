//! Servers' numbers, as one number of the cluster.

use std::collections::BTreeMap;

use mbal_control::{Overview, ServerOverview, WorkerOverview};

use crate::history::Point;

/// What is true of the cluster at `unix`.
pub fn point(unix: u32, overview: &Overview) -> Point {
    let mut point = Point { unix, ..Point::default() };
    let mut buckets: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut loads, mut busiest, mut workers) = (0.0, 0.0f64, 0usize);
    for server in &overview.servers {
        let [reads, hits, writes] = rates(server);
        point.reads += reads as f32;
        point.hits += hits as f32;
        point.writes += writes as f32;
        point.used += server.vitals.used_bytes as f32;
        point.memory += server.memory_bytes as f32;
        for (end_ns, requests) in &server.vitals.latency_ns {
            *buckets.entry(*end_ns).or_default() += requests;
        }
        for worker in &server.workers {
            (loads, workers) = (loads + worker.load, workers + 1);
            busiest = busiest.max(worker.load);
        }
    }
    [point.p50, point.p99, point.p999] = [0.5, 0.99, 0.999].map(|share| quantile(&buckets, share));
    point.load_mean = (loads / workers.max(1) as f64) as f32;
    point.load_max = busiest as f32;
    point
}

/// A second: keys read, keys found, keys written. Servers count them by epochs of their own, and say how many keys a second they were.
pub(crate) fn rates(server: &ServerOverview) -> [f64; 3] {
    let sum = |of: fn(&WorkerOverview) -> u64| server.workers.iter().map(of).sum::<u64>() as f64;
    let counts = [sum(|one| one.reads), sum(|one| one.hits), sum(|one| one.writes)];
    let keys = (counts[0] + counts[2]).max(1.0);
    counts.map(|count| server.requests * count / keys)
}

/// The end of the bucket, in ns, in which that share of all requests is reached; 0 if there were none.
pub(crate) fn quantile(buckets: &BTreeMap<u64, u64>, share: f64) -> f32 {
    let count: u64 = buckets.values().sum();
    let rank = ((count as f64 * share).ceil() as u64).max(1);
    let mut below = 0;
    let reached = buckets.iter().find(|(_, requests)| {
        below += **requests;
        below >= rank
    });
    reached.map_or(0.0, |(end_ns, _)| *end_ns as f32)
}

#[cfg(test)]
mod tests {
    use mbal_control::api::VitalsReport;

    use super::*;

    fn server(requests: f64, loads: &[f64], latency_ns: &[(u64, u64)]) -> ServerOverview {
        let worker = |load: &f64| WorkerOverview {
            load: *load,
            reads: 8,
            hits: 6,
            writes: 2,
            ..WorkerOverview::default()
        };
        ServerOverview {
            requests,
            workers: loads.iter().map(worker).collect(),
            memory_bytes: 100,
            vitals: VitalsReport { used_bytes: 40, latency_ns: latency_ns.to_vec() },
            ..ServerOverview::default()
        }
    }

    #[test]
    fn the_slowest_of_a_cluster_are_the_slowest_of_all_its_requests() {
        // The second server has one request of a hundred, and it is slow.
        let one = server(1000.0, &[0.5, 0.1], &[(1000, 50), (2000, 49)]);
        let other = server(10.0, &[0.0], &[(9000, 1)]);
        let overview = Overview { servers: vec![one, other], ..Overview::default() };
        let point = point(7, &overview);
        assert_eq!([point.p50, point.p99, point.p999], [1000.0, 2000.0, 9000.0]);
        assert_eq!((point.reads, point.hits, point.writes), (808.0, 606.0, 202.0));
        assert_eq!((point.used, point.memory), (80.0, 200.0));
        assert_eq!((point.load_mean, point.load_max), (0.2, 0.5));
    }

    #[test]
    fn nobody_asks_and_nobody_is_there() {
        assert_eq!(point(7, &Overview::default()), Point { unix: 7, ..Point::default() });
        let idle = Overview { servers: vec![server(0.0, &[], &[])], ..Overview::default() };
        let point = point(7, &idle);
        assert_eq!((point.reads, point.p999, point.load_mean), (0.0, 0.0, 0.0));
    }
}
