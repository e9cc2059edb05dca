//! What is asked for beyond memcached's `stats`: `stats hot` and `stats latency buckets`, in the words of `mbal serve`, by `mbal top`;
//! `stats distances` by `mbal pool autoscale`.

use std::str::from_utf8;
use std::time::Duration;

use mbal_wire::push_readable;

use crate::backend::Backend;
use crate::counting::Latency;
use crate::hot_keys::HotKeys;
use crate::ledger::Ledger;
use crate::upstreams::Upstreams;

/// Without a number, `stats hot` tells so many keys.
const KEYS: usize = 10;

/// How long all upstreams took to answer: for each power of two of a µs the replies that took less, and more than the one before.
pub(crate) fn latency_buckets(upstreams: &Upstreams) -> Vec<u8> {
    let mut all = Latency::default();
    upstreams.all().iter().for_each(|upstream| all.add(&upstream.latency));
    let line = |(end_ns, replies)| format!("STAT reply:{end_ns} {replies}\r\n");
    let lines: String = all.by_bucket().map(line).collect();
    (lines + "END\r\n").into_bytes()
}

const NO_DISTANCES: &[u8] = b"SERVER_ERROR stack distances are off: --stack-distances\r\n";

/// What an autoscaler reads: the pool, its reads and hits ever, the points of its curve, and how long missed keys took to be stored.
/// `pool_bytes` is what all its servers have, if who asks says it.
pub(crate) fn distances(backend: &Backend, ledger: &mut Ledger, pool_bytes: &[u8]) -> Vec<u8> {
    let Ledger { sampling: Some(sampling), settings, counters, now, .. } = ledger else {
        return NO_DISTANCES.to_vec();
    };
    let order = backend.placing.order().iter();
    let servers: Vec<String> = order.map(|at| settings.servers[*at].entry()).collect();
    let (hits, misses) = (counters.get_hits, counters.get_misses);
    let pool_bytes = from_utf8(pool_bytes).ok().and_then(|bytes| bytes.parse().ok());
    let curve = sampling.curve(pool_bytes, *now);
    let points: Vec<String> = curve.points().iter().map(u64::to_string).collect();
    let mut lines = Vec::new();
    let mut stat = |name: &str, value: &str| {
        lines.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
    };
    stat("servers", &servers.join(","));
    stat("resize", backend.switching.state().unwrap_or("none"));
    stat("reads", &(hits + misses).to_string());
    stat("hits", &hits.to_string());
    stat("counted", &format!("{:.1}", curve.requests()));
    stat("points", &points.join(","));
    stat("state_bytes", &sampling.state_bytes().to_string());
    for (end_ns, fills) in sampling.fills().by_bucket() {
        stat(&format!("fill:{end_ns}"), &fills.to_string());
    }
    lines.extend_from_slice(b"END\r\n");
    lines
}

/// Hot keys that this proxy coordinates, by requests per second of the interval before.
pub(crate) fn hottest(hot: &HotKeys, count: &[u8]) -> Vec<u8> {
    let count = from_utf8(count).ok().and_then(|count| count.parse().ok()).unwrap_or(KEYS);
    let interval =
        hot.control().map_or(Duration::from_secs(1), |control| control.replication.interval);
    let rate = |requests: u64| requests as f64 / interval.as_secs_f64();
    let mut reply = Vec::new();
    for (rank, hot) in hot.table.hottest(count).iter().enumerate() {
        let row = rank + 1;
        reply.extend_from_slice(format!("STAT {row}:key ").as_bytes());
        push_readable(&mut reply, &hot.key);
        let (reads, writes, state, copies) =
            (rate(hot.reads), rate(hot.writes), hot.state, hot.copies);
        let rest = format!(
            "\r\nSTAT {row}:reads {reads:.0}\r\nSTAT {row}:writes {writes:.0}\r\nSTAT {row}:state {state}\r\nSTAT {row}:copies {copies}\r\n"
        );
        reply.extend_from_slice(rest.as_bytes());
    }
    reply.extend_from_slice(b"END\r\n");
    reply
}
