//! `flush_all` of a cluster: what servers ask each other, and what has come of it.

use std::time::Duration;

use mbal_cachelet::Store;
use mbal_locks::{Mutex, ranks};
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, ServerId};
use mbal_wire::{Frame, Status};

/// What other servers answer to a `flush_all`.
const DONE: &[u8] = b"OK\r\n";

/// One request of all servers of a cluster.
pub(crate) struct Everywhere {
    /// The client's answer, if all have done it: nothing, if it wants none.
    pub done: Vec<u8>,
    /// The client speaks the binary protocol.
    pub frame: Option<Frame>,
    /// This one included.
    pub servers: usize,
    pub unanswered: usize,
    pub failed: usize,
}

impl Everywhere {
    pub fn fill(&mut self, reply: &[u8]) {
        self.unanswered -= 1;
        self.failed += usize::from(reply != DONE);
    }

    pub fn is_ready(&self) -> bool {
        self.unanswered == 0
    }

    pub fn push(&self, out: &mut Vec<u8>) {
        if self.failed == 0 || is_planted(Fault::FlushForgetsServers) {
            return out.extend_from_slice(&self.done);
        }
        let (failed, servers) = (self.failed, self.servers);
        let text = format!("flush_all did not reach {failed} of {servers} servers");
        match &self.frame {
            Some(frame) => frame.push(out, Status::TemporaryFailure, text.as_bytes(), 0),
            // `noreply`
            None if self.done.is_empty() => {}
            None => out.extend_from_slice(format!("SERVER_ERROR {text}\r\n").as_bytes()),
        }
    }
}

/// What another server is asked.
pub(crate) struct Flush {
    pub exptime: i32,
    /// It has this number on all servers.
    pub number: u32,
    /// All that are asked by who sends this. None: it tells of a flush that is to come.
    pub asked: Vec<ServerId>,
}

impl Flush {
    pub fn read(request: &[u8]) -> Option<Flush> {
        let words = request.strip_prefix(b"flush_all ")?.strip_suffix(b"\r\n")?;
        let mut words = std::str::from_utf8(words).ok()?.split(' ');
        let (exptime, number) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let asked = words.next().map_or(Some(Vec::new()), |ids| {
            ids.split(',').map(|id| Some(ServerId(id.parse().ok()?))).collect()
        })?;
        Some(Flush { exptime, number, asked })
    }

    pub fn request(&self) -> String {
        let ids: Vec<String> = self.asked.iter().map(|server| server.0.to_string()).collect();
        let ids = if ids.is_empty() { ids.concat() } else { format!(" {}", ids.join(",")) };
        format!("flush_all {} {}{ids}\r\n", self.exptime, self.number)
    }
}

/// The newest flush that this server knows of.
#[derive(Default)]
pub(crate) struct NewestFlush(Mutex<ranks::NewestFlush, Newest>);

#[derive(Default)]
struct Newest {
    number: u32,
    since: Instant,
    is_over: bool,
}

impl NewestFlush {
    /// Once a second. A flush that this server has heard of, and was not asked for, was before its process began; or it is about to be
    /// asked. When the link's timeout has passed nobody waits for its answer any more.
    pub fn look(&self, store: &Store, link_timeout: Duration, now: Instant) {
        let number = store.flushed();
        let mut newest = self.0.lock();
        if newest.number != number {
            *newest = Newest { number, since: now, is_over: false };
        }
        // Clocks run apart.
        let waits = link_timeout * 5 / 4;
        if !newest.is_over && newest.since + waits <= now {
            newest.is_over = true;
            store.flushes_are_over(number);
        }
    }
}
