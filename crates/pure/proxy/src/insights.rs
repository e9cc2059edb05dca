//! What `mbal top` asks for beyond memcached's `stats`: `stats hot` and `stats latency buckets`, in the words of `mbal serve`.

use std::str::from_utf8;
use std::time::Duration;

use mbal_wire::push_readable;

use crate::counting::Latency;
use crate::hot_keys::HotKeys;
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
