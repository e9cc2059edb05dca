//! Commands that have no key, in text and binary.

use std::borrow::Cow;

use mbal_wire::{Admin, Frame, ReplyKind, Status};

use crate::backend::Backend;
use crate::encode::push_loud;
use crate::expect::Expect;
use crate::explaining::explain;
use crate::inflight::Hide;
use crate::insights::{hottest, latency_buckets};
use crate::ledger::Ledger;
use crate::stats::Stats;

pub(crate) const NOT_HERE: &[u8] = b"SERVER_ERROR not through a proxy\r\n";
/// What a server with items of its own has more to say of.
pub(crate) const NO_STATS: [&[u8]; 5] = [b"slabs", b"items", b"sizes", b"conns", b"detail"];

/// How a client asks for what all upstreams are to do.
#[derive(Clone, Copy)]
pub(crate) enum Voice<'a> {
    Text {
        noreply: bool,
    },
    /// `raw` is the whole request.
    Binary {
        frame: &'a Frame,
        raw: &'a [u8],
    },
}

impl Voice<'_> {
    pub fn is_binary(self) -> bool {
        matches!(self, Voice::Binary { .. })
    }

    /// What the client hears when all have done it.
    pub fn done(self) -> Vec<u8> {
        let mut done = Vec::new();
        match self {
            Voice::Text { .. } => done.extend_from_slice(b"OK\r\n"),
            Voice::Binary { frame, .. } if frame.quiet => {}
            Voice::Binary { frame, .. } => frame.push(&mut done, Status::Success, b"", 0),
        }
        done
    }

    pub fn refused(self, why: &[u8]) -> Vec<u8> {
        let mut error = Vec::new();
        match self {
            Voice::Text { .. } => error.extend_from_slice(why),
            Voice::Binary { frame, .. } => frame.push_error(&mut error, Status::TemporaryFailure),
        }
        error
    }

    pub fn push_flush(self, out: &mut Vec<u8>, exptime: i32) {
        match (self, exptime) {
            (Voice::Text { .. }, 0) => out.extend_from_slice(b"flush_all\r\n"),
            (Voice::Text { .. }, _) => {
                out.extend_from_slice(format!("flush_all {exptime}\r\n").as_bytes());
            }
            (Voice::Binary { frame, raw }, _) => push_loud(out, frame, raw),
        }
    }

    /// What a reply looks like, which one may come, and which is hidden.
    pub fn form(self) -> (ReplyKind, Expect, Hide) {
        match self {
            Voice::Text { .. } => (ReplyKind::Line, Expect::Ok, Hide::Nothing),
            Voice::Binary { frame, .. } => {
                let Frame { opcode, opaque, .. } = *frame;
                let expect = Expect::Binary { opcode: frame.loud(), opaque };
                let hide = Hide::Binary { opcode, opaque, status: Status::Success as u8 };
                (ReplyKind::Binary, expect, hide)
            }
        }
    }
}

/// What a command in text is answered with, `flush_all` apart. What is owned is said even to who wants no reply.
pub(crate) fn reply(
    command: &Admin<'_>,
    all: impl FnOnce() -> Stats,
    backend: &Backend,
    ledger: &Ledger,
) -> Cow<'static, [u8]> {
    let reply: &[u8] = match command {
        Admin::Stats(words) => match (words.get(1), words.get(2), words.count) {
            (_, _, 1) => return stats(&all(), backend, ledger).into(),
            (b"settings", ..) => return settings(ledger).into(),
            (b"latency", b"buckets", _) => return latency_buckets(&backend.upstreams).into(),
            (b"hot", count, ..=3) => return hottest(&backend.hot, count).into(),
            (b"reset", ..) => b"RESET\r\n",
            // Monitors ask for all of them, and wait for their end: a proxy has no items.
            (topic, ..) if NO_STATS.contains(&topic) => b"END\r\n",
            (b"explain", key, 3) => return explain(key, backend, ledger).into(),
            _ => NOT_HERE,
        },
        Admin::FlushAll { .. } => b"CLIENT_ERROR invalid exptime argument\r\n",
        Admin::Verbosity { .. } => b"OK\r\n",
        // memcached knows it in debug builds alone.
        Admin::DebugTime { .. } => b"ERROR\r\n",
        Admin::Shutdown(_) => b"SERVER_ERROR: shutdown not enabled\r\n",
        _ => NOT_HERE,
    };
    reply.into()
}

/// The reply to `stats`.
pub(crate) fn stats(all: &Stats, backend: &Backend, ledger: &Ledger) -> Vec<u8> {
    let mut out = Vec::new();
    let mut stat = |name: &str, value: &str| {
        out.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
    };
    let uptime = ledger.now.as_secs();
    stat("pid", &ledger.settings.pid.to_string());
    stat("uptime", &uptime.to_string());
    stat("time", &(ledger.settings.started_at + uptime).to_string());
    stat("version", &ledger.settings.version);
    stat("pointer_size", &usize::BITS.to_string());
    // memcached's names, for who expects all of them: items are the upstreams'.
    for name in ["curr_items", "total_items", "bytes", "limit_maxbytes", "evictions"] {
        stat(name, "0");
    }
    stat("curr_connections", &all.clients.to_string());
    for (name, value) in all.as_memcached() {
        stat(name, &value.to_string());
    }
    if let Some(state) = backend.switching.state() {
        stat("resize", state);
    }
    stat("leaving", &all.leaving.to_string());
    stat("hot_keys", &backend.hot.table.len().to_string());
    if let Some(peers) = backend.peering.peers() {
        let copies = match peers.silent(ledger.now) {
            None => "yes".to_owned(),
            Some((name, false)) => format!("no:{name}"),
            Some((name, true)) => format!("no:{name} is told otherwise"),
        };
        stat("copies", &copies);
        stat("promised_keys", &backend.peering.promised().to_string());
    }
    for (name, value) in all.counters.each() {
        stat(name, &value.to_string());
    }
    for (class, value) in all.requests.each() {
        stat(&format!("requests_{}", class.name()), &value.to_string());
    }
    for upstream in &all.upstreams {
        let name = &upstream.name;
        stat(&format!("upstream:{name}:state"), upstream.state.name());
        stat(&format!("upstream:{name}:connections"), &upstream.connections.to_string());
        stat(&format!("upstream:{name}:waiting"), &upstream.waiting.to_string());
        stat(&format!("upstream:{name}:failures_in_a_row"), &upstream.failures.to_string());
    }
    out.extend_from_slice(b"END\r\n");
    out
}

/// What the proxy itself enforces, as memcached names it.
pub(crate) fn settings(ledger: &Ledger) -> Vec<u8> {
    let mut out = Vec::new();
    let item_bytes_max = ledger.settings.limits.item_bytes_max;
    let told = [("item_size_max", item_bytes_max), ("client_flags_size", size_of::<u32>())];
    for (name, value) in told {
        out.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
    }
    out.extend_from_slice(b"END\r\n");
    out
}
