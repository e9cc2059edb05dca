//! The generator's sending half: what is drawn next, which connections have room for it, and when.

use mbal_model::ReplicaVersion;

use crate::connection::How;
use crate::generator::{Generator, Phase};
use crate::load::{Busy, Load};
use crate::mix::Op;
use crate::parts::{BatchRead, parts, sort_by_target};
use crate::request::Read;
use crate::source::Ask;

/// The request that is sent next.
#[derive(Default)]
pub struct Next {
    /// Open loop: what `keys` is drawn for, and has to wait until its workers have room.
    ask: Option<Ask>,
    keys: Vec<u64>,
    /// Whom a client asks for each of the keys: its own connection to this worker.
    reads: Vec<BatchRead<usize>>,
    /// Those of them that leave together.
    part: Vec<Read>,
    /// Which connections of an open loop it is for.
    is_busy: bool,
}

impl Generator<'_> {
    /// Open loop: sends what is due, as far as connections have room. A request whose workers have no room holds
    /// up those behind it: a client that waits for a slow worker waits with all it has.
    pub fn issue_due(&mut self) -> Result<(), String> {
        if self.schedule.is_none() {
            return Ok(());
        }
        let now = self.now_ns();
        while self.due(now) {
            let Some(ask) = self.next.ask.or_else(|| self.draw()) else { break };
            let Some(client) = self.client_with_room(ask, now) else {
                (self.next.ask, self.starved) = (Some(ask), true);
                return self.flush();
            };
            self.next.ask = None;
            let schedule = self.schedule.as_mut().expect("checked above");
            let due = schedule.due_ns();
            schedule.advance();
            if self.phase == Phase::Measured && !self.starved {
                self.tally.lag.saturating_record(now - due);
                if self.timeline.is_some() {
                    self.part.late(now - due);
                }
            }
            self.send(client, ask, (due, now));
        }
        self.starved = false;
        self.flush()
    }

    /// The next request; its keys are in `next`.
    fn draw(&mut self) -> Option<Ask> {
        let Load { source, keys_per_get, .. } = &mut self.load;
        let ask = source.next(*keys_per_get, &mut self.next.keys);
        self.source_ended = ask.is_none();
        if let Some(Busy { share, .. }) = self.load.busy {
            self.next.is_busy = self.random.unit() <= share;
        }
        ask
    }

    /// Puts down whom this client asks for each of the keys: the owner, or a copy of which it has a lease.
    fn place(&mut self, client: usize, ask: Ask, now: u64) {
        let mut reads = std::mem::take(&mut self.next.reads);
        reads.clear();
        for at in 0..self.next.keys.len() {
            let key = self.next.keys[at];
            let copy = self.copy(client, ask, key, now);
            let (target, seen) = match copy {
                Some((target, seen)) => (target, Some(seen)),
                None => (self.owner(ask, key), None),
            };
            reads.push(BatchRead { target, at, seen });
        }
        self.next.reads = reads;
    }

    fn copy(
        &mut self,
        client: usize,
        ask: Ask,
        key: u64,
        now: u64,
    ) -> Option<(usize, ReplicaVersion)> {
        let leasing = self.leasing.as_mut().filter(|_| ask.op == Op::Get)?;
        let (routes, wording) = (self.routes.as_ref()?, &self.load.wording);
        let place = |suffix| wording.with_name(key, false, |name| routes.copy(&name, suffix));
        leasing.copy(client, || wording.hash(key), now, place)
    }

    /// Which of a client's connections leads to the owner.
    fn owner(&self, ask: Ask, key: u64) -> usize {
        let hash = || self.load.wording.hash_of(key, ask.op == Op::Incr);
        self.routes.as_ref().map_or(0, |routes| routes.worker(hash()))
    }

    /// Has each worker that this client would ask room for it?
    fn has_room(&self, client: usize) -> bool {
        let own = &self.connections[client * self.width..];
        self.next.reads.iter().all(|read| own[read.target].in_flight < self.load.depth)
    }

    /// Is there a worker that has room for this client?
    fn has_any_room(&self, client: usize) -> bool {
        let first = client * self.width;
        let own = &self.connections[first..first + self.width];
        own.iter().any(|connection| connection.in_flight < self.load.depth)
    }

    /// Clients take turns, so that every worker of the server gets its share.
    fn client_with_room(&mut self, ask: Ask, now: u64) -> Option<usize> {
        if self.in_flight >= self.connections.len() * self.load.depth {
            return None;
        }
        for _ in 0..self.clients {
            self.turn = (self.turn + 1) % self.clients;
            let client = self.turn;
            let of_its_kind = match self.load.busy {
                Some(Busy { every, .. }) => (client % every == 0) == self.next.is_busy,
                None => true,
            };
            if !of_its_kind || !self.has_any_room(client) {
                continue;
            }
            self.place(client, ask, now);
            if self.has_room(client) {
                return Some(client);
            }
        }
        None
    }

    /// Closed loop: tops the client up, as far as the workers of its next keys have room.
    pub fn refill(&mut self, client: usize, now: u64) {
        while self.phase != Phase::Drain && self.budget > 0 {
            let ask = match self.held_up[client].take() {
                Some((ask, keys)) => {
                    self.next.keys = keys;
                    ask
                }
                None if self.source_ended || !self.has_any_room(client) => return,
                None => {
                    let Some(ask) = self.draw() else { return };
                    ask
                }
            };
            self.place(client, ask, now);
            if !self.has_room(client) {
                self.held_up[client] = Some((ask, self.next.keys.clone()));
                return;
            }
            self.send(client, ask, (now, now));
        }
    }

    /// Sends what is placed: one request to each worker that is asked.
    fn send(&mut self, client: usize, ask: Ask, (intended_ns, asked_ns): (u64, u64)) {
        if self.phase == Phase::Measured {
            self.budget -= 1;
        }
        let mut next = std::mem::take(&mut self.next);
        sort_by_target(&mut next.reads);
        let batch = self.batches.begin(parts(&next.reads).count());
        let how = How { intended_ns, asked_ns, batch };
        for reads in parts(&next.reads) {
            let read = |read: &BatchRead<usize>| {
                let key = next.keys[read.at];
                Read { key, vbucket: self.vbucket(key, ask.op == Op::Incr), by_lease: read.seen }
            };
            next.part.clear();
            next.part.extend(reads.iter().map(read));
            let index = client * self.width + reads[0].target;
            self.connections[index].ask(&self.load.wording, ask, &next.part, how);
            self.asked(index);
        }
        self.next = next;
    }

    pub fn asked(&mut self, index: usize) {
        self.reserve(index);
        self.touched.push(index);
    }

    pub fn reserve(&mut self, index: usize) {
        self.connections[index].in_flight += 1;
        self.in_flight += 1;
    }

    /// Sends what was asked since the last time.
    pub fn flush(&mut self) -> Result<(), String> {
        for &index in &self.touched {
            if !self.connections[index].out.is_empty() {
                let connection = &mut self.connections[index];
                connection.reopen(&self.load.target, &self.epoll)?;
                connection.flush(&self.epoll)?;
            }
        }
        self.touched.clear();
        Ok(())
    }
}
