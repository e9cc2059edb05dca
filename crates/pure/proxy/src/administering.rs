//! Commands that have no key, in text and binary.

use mbal_wire::{Admin, Frame, Status};

use crate::Nanos;
use crate::asking::NOT_HERE;
use crate::binary::push_loud;
use crate::client::Slot;
use crate::expect::Expect;
use crate::passing::End;
use crate::placing::DOWN;
use crate::proxy::Proxy;
use crate::reply::Kind;
use crate::upstream::{Health, Hide, InFlight, Who};

/// A longer exptime is a moment of the calendar.
const RELATIVE_SECONDS_MAX: u64 = 60 * 60 * 24 * 30;

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
    fn is_binary(self) -> bool {
        matches!(self, Voice::Binary { .. })
    }

    /// What the client hears when all have done it.
    fn done(self) -> Vec<u8> {
        let mut done = Vec::new();
        match self {
            Voice::Text { .. } => done.extend_from_slice(b"OK\r\n"),
            Voice::Binary { frame, .. } if frame.quiet => {}
            Voice::Binary { frame, .. } => frame.push(&mut done, Status::Success, b"", 0),
        }
        done
    }

    fn refused(self, why: &[u8]) -> Vec<u8> {
        let mut error = Vec::new();
        match self {
            Voice::Text { .. } => error.extend_from_slice(why),
            Voice::Binary { frame, .. } => frame.push_error(&mut error, Status::TemporaryFailure),
        }
        error
    }

    fn push_flush(self, out: &mut Vec<u8>, exptime: i32) {
        match (self, exptime) {
            (Voice::Text { .. }, 0) => out.extend_from_slice(b"flush_all\r\n"),
            (Voice::Text { .. }, _) => {
                out.extend_from_slice(format!("flush_all {exptime}\r\n").as_bytes());
            }
            (Voice::Binary { frame, raw }, _) => push_loud(out, frame, raw),
        }
    }
}

impl Proxy {
    pub(crate) fn administer(&mut self, client: u32, command: &Admin<'_>, noreply: bool) {
        let reply: &[u8] = match command {
            Admin::FlushAll { exptime: Some(exptime) } => {
                return self.flush(client, *exptime, Voice::Text { noreply });
            }
            Admin::FlushAll { exptime: None } => b"CLIENT_ERROR invalid exptime argument\r\n",
            Admin::Verbosity { .. } => b"OK\r\n",
            Admin::Stats(words) if words.count == 1 => {
                let mut reply = Vec::new();
                self.push_stats(&mut reply);
                return self.say(client, &reply);
            }
            Admin::Stats(words) if words.get(1) == b"settings" => {
                let mut reply = Vec::new();
                self.push_settings(&mut reply);
                return self.say(client, &reply);
            }
            Admin::Stats(words) if words.get(1) == b"latency" && words.get(2) == b"buckets" => {
                let reply = self.latency_buckets();
                return self.say(client, &reply);
            }
            Admin::Stats(words) if words.get(1) == b"hot" && words.count <= 3 => {
                let reply = self.hottest(words.get(2));
                return self.say(client, &reply);
            }
            Admin::Stats(words) if words.get(1) == b"reset" => b"RESET\r\n",
            // Monitors ask for all of them, and wait for their end: a proxy has no items.
            Admin::Stats(words) if NO_STATS.contains(&words.get(1)) => b"END\r\n",
            Admin::Stats(words) if words.get(1) == b"explain" && words.count == 3 => {
                let reply = self.explain(words.get(2));
                return self.say(client, &reply);
            }
            // memcached knows it in debug builds alone.
            Admin::DebugTime { .. } => b"ERROR\r\n",
            Admin::Shutdown(_) => b"SERVER_ERROR: shutdown not enabled\r\n",
            _ => NOT_HERE,
        };
        if !noreply {
            self.say(client, reply);
        }
    }

    /// `flush_all`, by all upstreams.
    pub(crate) fn flush(&mut self, client: u32, exptime: i32, voice: Voice<'_>) {
        self.end_all_copies();
        self.miss_all();
        self.clients[client as usize].is_fenced = false;
        if exptime != 0 {
            // Until everything is flushed, and everybody's clock says so; a moment of the calendar is not known here.
            let seconds = u64::try_from(exptime).unwrap_or(0);
            let until = if seconds > RELATIVE_SECONDS_MAX {
                Nanos::MAX
            } else {
                self.now + (seconds + 2) * 1_000_000_000
            };
            self.hot.suspended_until = self.hot.suspended_until.max(until);
        }
        let conns = self.settings.conns_per_server;
        let mut asked_of = Vec::new();
        let mut refusal = None;
        for upstream in 0..self.upstreams.len() {
            // A peer without a session has no copies of what this proxy may write.
            let takes = match self.end_of(upstream) {
                End::Server => true,
                End::Passed(place) => self.is_told_of_flushes(client, place),
                End::Promises(_) => false,
            };
            let this = &self.upstreams[upstream];
            // An upstream that is ejected is flushed when it comes back.
            if !takes || this.health != Health::Serves || this.cluster.is_some() {
                continue;
            }
            // Over each connection of its kind: it is in order with what was asked there before.
            let skipped = if voice.is_binary() { conns } else { 0 };
            let first = self.upstreams[upstream].first_conn + skipped;
            for conn in first..first + conns {
                match self.admit(conn) {
                    Ok(()) => asked_of.push(conn),
                    Err(why) => refusal = Some(why),
                }
            }
        }
        for found in self.flushes_of_clusters(voice.is_binary()) {
            match found {
                Ok(conn) => asked_of.push(conn),
                Err(why) => refusal = Some(why),
            }
        }
        if asked_of.is_empty() {
            let is_silent = matches!(voice, Voice::Text { noreply: true });
            return self.refuse(client, is_silent, &voice.refused(DOWN));
        }
        // Who wants no answer waits for it all the same: an upstream that is late would flush what the client has stored since.
        let silent = matches!(voice, Voice::Text { noreply: true });
        let error = refusal.map_or_else(Vec::new, |why| voice.refused(why));
        let (missing, done) = (asked_of.len(), voice.done());
        let slot = Slot::Everywhere { missing, error, done, silent };
        let this = &mut self.clients[client as usize];
        let number = this.push(slot);
        // A peer's requests come from many clients, and each of them waits there.
        this.flushing = !this.is_peer;
        let who = Who::Everywhere { client, number };
        let (kind, expect, hide) = match voice {
            Voice::Text { .. } => (Kind::Line, Expect::Ok, Hide::Nothing),
            Voice::Binary { frame, .. } => {
                let Frame { opcode, opaque, .. } = *frame;
                let expect = Expect::Binary { opcode: frame.loud(), opaque };
                let hide = Hide::Binary { opcode, opaque, status: Status::Success as u8 };
                (Kind::Binary, expect, hide)
            }
        };
        for conn in asked_of {
            let this = &mut self.conns[conn];
            voice.push_flush(&mut this.out.bytes, exptime);
            let at = self.now;
            this.ask(InFlight { who, kind, expect, hide, writes: false, renamed: false, at }, None);
            self.counters.forwarded += 1;
            self.tell_conn(conn);
        }
    }
}
