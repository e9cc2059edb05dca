//! Commands that have no key.

use mbal_wire::Admin;

use crate::Nanos;
use crate::asking::NOT_HERE;
use crate::client::Slot;
use crate::passing::End;
use crate::placing::DOWN;
use crate::proxy::Proxy;
use crate::reply::Kind;
use crate::upstream::{Asked, Health, Hide, Who};

/// A longer exptime is a moment of the calendar.
const RELATIVE_SECONDS_MAX: u64 = 60 * 60 * 24 * 30;

impl Proxy {
    pub(crate) fn administer(&mut self, client: u32, command: &Admin<'_>, noreply: bool) {
        let reply: &[u8] = match command {
            Admin::FlushAll { exptime: Some(exptime) } => {
                return self.flush(client, *exptime, noreply);
            }
            Admin::FlushAll { exptime: None } => b"CLIENT_ERROR invalid exptime argument\r\n",
            Admin::Verbosity { .. } => b"OK\r\n",
            Admin::Stats(words) if words.count == 1 => {
                let mut reply = Vec::new();
                self.push_stats(&mut reply);
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
            Admin::Stats(words) if words.get(1) == b"explain" && words.count == 3 => {
                let reply = self.explain(words.get(2));
                return self.say(client, &reply);
            }
            Admin::Shutdown(_) => b"SERVER_ERROR: shutdown not enabled\r\n",
            _ => NOT_HERE,
        };
        if !noreply {
            self.say(client, reply);
        }
    }

    /// `flush_all`, by all upstreams.
    fn flush(&mut self, client: u32, exptime: i32, noreply: bool) {
        self.end_all_copies();
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
        let mut refusal: &[u8] = b"";
        for upstream in 0..self.upstreams.len() {
            // A peer without a session has no copies of what this proxy may write.
            let takes = match self.end_of(upstream) {
                End::Server => true,
                End::Passed(place) => self.is_told_of_flushes(client, place),
                End::Promises(_) => false,
            };
            // An upstream that is ejected is flushed when it comes back.
            if !takes || self.upstreams[upstream].health != Health::Serves {
                continue;
            }
            // Over each connection: it is in order with what was asked there before.
            let first = self.upstreams[upstream].first_conn;
            for conn in first..first + conns {
                match self.admit(conn) {
                    Ok(()) => asked_of.push(conn),
                    Err(why) => refusal = why,
                }
            }
        }
        if asked_of.is_empty() {
            return self.refuse(client, noreply, DOWN);
        }
        let who = match noreply {
            true => Who::Nobody,
            false => {
                let slot = Slot::Everywhere(asked_of.len(), refusal.to_vec());
                let number = self.clients[client as usize].push(slot);
                Who::Everywhere { client, number }
            }
        };
        for conn in asked_of {
            let this = &mut self.conns[conn];
            if exptime == 0 {
                this.out.bytes.extend_from_slice(b"flush_all\r\n");
            } else {
                this.out.bytes.extend_from_slice(format!("flush_all {exptime}\r\n").as_bytes());
            }
            let (kind, hide) = (Kind::Line, Hide::Nothing);
            let at = self.now;
            this.ask(Asked { who, kind, hide, writes: false, renamed: false, at }, None);
            self.counters.forwarded += 1;
            self.tell_conn(conn);
        }
    }
}
