//! What has happened between two readings.

use std::collections::BTreeMap;

use crate::reading::{Cachelet, Key, Keys, Kind, Reading};

/// Counters whose sum is all requests for keys.
const REQUESTS: [&str; 11] = [
    "cmd_get",
    "cmd_set",
    "cmd_touch",
    "delete_hits",
    "delete_misses",
    "incr_hits",
    "incr_misses",
    "decr_hits",
    "decr_misses",
    // A proxy's: it does not tell their hits.
    "requests_delete",
    "requests_arithmetic",
];

/// Counters that the totals repeat as `stats` tells them.
pub const TOTALS: [&str; 14] = [
    "cmd_get",
    "cmd_set",
    "cmd_touch",
    "cmd_flush",
    "get_hits",
    "get_misses",
    "delete_hits",
    "delete_misses",
    "incr_hits",
    "incr_misses",
    "decr_hits",
    "decr_misses",
    "evictions",
    "total_items",
];

#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    pub server: String,
    pub version: String,
    pub kind: Kind,
    pub uptime: u64,
    /// Per second.
    pub requests: f64,
    pub gets: f64,
    pub sets: f64,
    pub evictions: f64,
    /// Of the gets; none without gets.
    pub hit_ratio: Option<f64>,
    /// Half of the requests, and 99 in 100, took no longer; none without requests.
    pub p50_p99_us: Option<[f64; 2]>,
    pub connections: u64,
    pub items: u64,
    pub bytes: u64,
    pub limit_bytes: u64,
    /// A proxy's, by state: up, down, ejected.
    pub upstreams: [u64; 3],
    pub workers: Vec<WorkerView>,
    /// The hottest first.
    pub cachelets: Vec<Cachelet>,
    pub keys: Vec<Key>,
    pub totals: Vec<(&'static str, u64)>,
    /// Requests whose time was taken, since the start.
    pub timed: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerView {
    /// The part of the time in which it was busy.
    pub busy: f64,
    /// Requests per second.
    pub requests: f64,
    /// The part of them that was for a neighbour's key.
    pub neighbour: f64,
}

impl View {
    pub fn between(server: &str, before: &Reading, now: &Reading, seconds: f64) -> View {
        let seconds = seconds.max(1e-3);
        let more = |name: &str| now.stat(name).saturating_sub(before.stat(name)) as f64;
        let (hits, misses) = (more("get_hits"), more("get_misses"));
        let requests = REQUESTS.iter().map(|name| more(name)).sum::<f64>() / seconds;
        let latency: BTreeMap<u64, u64> = now
            .latency
            .iter()
            .map(|(end, count)| (*end, count - before.latency.get(end).unwrap_or(&0).min(count)))
            .collect();
        let mut cachelets = now.cachelets.clone();
        cachelets.sort_by(|a, b| b.rate.cmp(&a.rate).then_with(|| a.cachelet.cmp(&b.cachelet)));
        View {
            server: server.to_owned(),
            version: now.stats.get("version").cloned().unwrap_or_default(),
            kind: now.kind,
            upstreams: [now.upstreams("up"), now.upstreams("down"), now.upstreams("ejected")],
            uptime: now.stat("uptime"),
            requests,
            gets: more("cmd_get") / seconds,
            sets: more("cmd_set") / seconds,
            evictions: more("evictions") / seconds,
            hit_ratio: (hits + misses > 0.0).then(|| hits / (hits + misses)),
            p50_p99_us: quantile_us(&latency, 0.5)
                .zip(quantile_us(&latency, 0.99))
                .map(|(p50, p99)| [p50, p99]),
            connections: now.stat("curr_connections"),
            items: now.stat("curr_items"),
            bytes: now.stat("bytes"),
            limit_bytes: now.stat("limit_maxbytes"),
            workers: workers(before, now, seconds),
            cachelets,
            keys: keys(&now.keys, requests),
            totals: TOTALS.iter().map(|name| (*name, now.stat(name))).collect(),
            timed: now.latency.values().sum(),
        }
    }
}

fn workers(before: &Reading, now: &Reading, seconds: f64) -> Vec<WorkerView> {
    let pairs = now.workers.iter().enumerate();
    let view = |(at, now): (usize, &crate::reading::Worker)| {
        let then = before.workers.get(at).copied().unwrap_or_default();
        let more = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let neighbour = more(now.neighbour, then.neighbour);
        let all = more(now.own, then.own) + neighbour + more(now.peer, then.peer);
        WorkerView {
            busy: (more(now.busy_us, then.busy_us) / 1e6 / seconds).min(1.0),
            requests: all / seconds,
            neighbour: if all > 0.0 { neighbour / all } else { 0.0 },
        }
    };
    pairs.map(view).collect()
}

/// The hottest first. Of what was watched the share is known, and with it the part of all requests.
fn keys(keys: &Keys, requests: f64) -> Vec<Key> {
    let watched = match keys {
        Keys::Told(told) => return told.clone(),
        Keys::Watched(watched) => watched,
    };
    let all: u64 = watched.values().map(|seen| seen.reads + seen.writes).sum();
    let part = |count: u64| (count as f64 / all.max(1) as f64 * requests).round() as u64;
    let mut hottest: Vec<_> = watched.iter().collect();
    hottest.sort_by_key(|(key, seen)| (std::cmp::Reverse(seen.reads + seen.writes), *key));
    let key = |(key, seen): (&String, &crate::watched::KeyCounts)| Key {
        key: key.clone(),
        reads: part(seen.reads),
        writes: part(seen.writes),
        value_bytes: Some(seen.value_bytes),
        copied: None,
    };
    hottest.into_iter().take(10).map(key).collect()
}

/// The time below which so much of the requests stayed; none without requests.
fn quantile_us(buckets: &BTreeMap<u64, u64>, share: f64) -> Option<f64> {
    let count: u64 = buckets.values().sum();
    let rank = (count as f64 * share).ceil() as u64;
    let mut below = 0;
    buckets.iter().find_map(|(end_ns, requests)| {
        below += requests;
        (below >= rank && count > 0).then_some(*end_ns as f64 / 1000.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Worker;
    use crate::watched::KeyCounts;

    fn reading(stats: &[(&str, u64)]) -> Reading {
        let stats = stats.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        Reading { stats: stats.collect(), ..Reading::default() }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let before = reading(&[("cmd_get", 100), ("get_hits", 50), ("get_misses", 50)]);
        let now =
            reading(&[("cmd_get", 140), ("get_hits", 80), ("get_misses", 60), ("cmd_set", 20)]);
        let view = View::between("x", &before, &now, 2.0);
        assert_eq!((view.requests, view.gets, view.hit_ratio), (30.0, 20.0, Some(0.75)));
        assert_eq!(view.p50_p99_us, None);
        // A server that was started anew counts from 0.
        assert_eq!(View::between("x", &now, &before, 1.0).requests, 0.0);
    }

    #[test]
    fn of_a_proxy_all_requests_and_upstreams_are_counted() {
        let counts = [("cmd_get", 10), ("requests_delete", 4), ("requests_arithmetic", 6)];
        let mut now = reading(&counts);
        for (name, state) in [("a:1", "up"), ("b:1", "down"), ("c:1", "up")] {
            now.stats.insert(format!("upstream:{name}:state"), state.into());
        }
        let view = View::between("x", &reading(&[]), &now, 2.0);
        assert_eq!((view.requests, view.upstreams), (10.0, [2, 1, 0]));
    }

    #[test]
    fn latencies_are_those_between_the_readings() {
        let mut before = reading(&[]);
        before.latency = BTreeMap::from([(1000, 1000), (9000, 10)]);
        let mut now = reading(&[]);
        now.latency = BTreeMap::from([(1000, 1000), (2000, 98), (9000, 12)]);
        let view = View::between("x", &before, &now, 1.0);
        assert_eq!(view.p50_p99_us, Some([2.0, 9.0]));
    }

    #[test]
    fn workers_are_busy_for_a_part_of_the_time() {
        let worker = |own, neighbour, busy_us| Worker { own, neighbour, peer: 0, busy_us };
        let before = Reading { workers: vec![worker(0, 0, 0)], ..reading(&[]) };
        let now = Reading { workers: vec![worker(30, 10, 500_000)], ..reading(&[]) };
        let view = View::between("x", &before, &now, 2.0);
        let expected = WorkerView { busy: 0.25, requests: 20.0, neighbour: 0.25 };
        assert_eq!(view.workers, [expected]);
    }

    #[test]
    fn watched_keys_share_in_all_requests() {
        let seen = |reads, writes| KeyCounts { reads, writes, value_bytes: 3 };
        let watched = [("a".to_owned(), seen(1, 0)), ("b".to_owned(), seen(2, 1))];
        let key = |key: &str, reads, writes| Key {
            key: key.into(),
            reads,
            writes,
            value_bytes: Some(3),
            ..Key::default()
        };
        let keys = keys(&Keys::Watched(BTreeMap::from(watched)), 400.0);
        assert_eq!(keys, [key("b", 200, 100), key("a", 100, 0)]);
    }
}
