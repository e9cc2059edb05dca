//! The generator's sending half: what is drawn next, which connection has room for it, and when.

use mbal_replica::Choice;

use crate::connection::How;
use crate::generator::{Generator, Phase};
use crate::load::{Busy, Load};
use crate::mix::Op;
use crate::request::ByLease;
use crate::source::Ask;

impl Generator<'_> {
    /// Open loop: sends what is due, as far as connections have room. A request whose worker has no room holds
    /// up those behind it: a client that waits for a slow worker waits with all it has.
    pub fn issue_due(&mut self) -> Result<(), String> {
        if self.schedule.is_none() {
            return Ok(());
        }
        let now = self.now_ns();
        while self.due(now) {
            let Some(ask) = self.drawn.or_else(|| self.draw()) else { break };
            let Some((index, by_lease)) = self.next_with_room(ask, now) else {
                (self.drawn, self.starved) = (Some(ask), true);
                return self.flush();
            };
            self.drawn = None;
            let schedule = self.schedule.as_mut().expect("checked above");
            let due = schedule.due_ns();
            schedule.advance();
            if self.phase == Phase::Measured && !self.starved {
                self.tally.lag.saturating_record(now - due);
                if self.timeline.is_some() {
                    self.part.late(now - due);
                }
            }
            self.send(index, ask, (due, now), by_lease);
        }
        self.starved = false;
        self.flush()
    }

    /// The next request; its keys are in `keys`.
    fn draw(&mut self) -> Option<Ask> {
        let Load { source, wording, keys_per_get, .. } = &mut self.load;
        let routes = self.routes.as_ref();
        let worker = |key| routes.map(|routes| routes.worker(wording.hash(key)));
        let fits = |first, key| worker(first) == worker(key);
        let ask = source.next(*keys_per_get, fits, &mut self.keys);
        self.source_ended = ask.is_none();
        if let Some(Busy { share, .. }) = self.load.busy {
            self.next_is_busy = self.random.unit() <= share;
        }
        ask
    }

    /// Which of a client's connections the drawn request goes by.
    fn worker(&self, ask: Ask) -> usize {
        let hash = |key| self.load.wording.hash_of(key, ask.op == Op::Incr);
        self.routes.as_ref().map_or(0, |routes| routes.worker(hash(self.keys[0])))
    }

    /// The same for this client, which may have a lease: then with what it has seen of the key.
    fn way(&mut self, client: usize, ask: Ask, owner: usize, now: u64) -> (usize, ByLease) {
        let (Some(leasing), Some(routes)) = (&mut self.leasing, &self.routes) else {
            return (owner, None);
        };
        let (key, wording) = (self.keys[0], &self.load.wording);
        if ask.op != Op::Get || self.keys.len() > 1 {
            return (owner, None);
        }
        let Choice::Copy { suffix, seen } = leasing.route(client, || wording.hash(key), now) else {
            return (owner, None);
        };
        let copy = wording.with_name(key, false, |name| routes.copy(&name, suffix));
        copy.map_or((owner, None), |worker| (worker, Some(seen)))
    }

    /// Clients take turns, so that every worker of the server gets its share.
    fn next_with_room(&mut self, ask: Ask, now: u64) -> Option<(usize, ByLease)> {
        let owner = self.worker(ask);
        if self.in_flight >= self.connections.len() * self.load.depth {
            return None;
        }
        for _ in 0..self.clients {
            self.turn = (self.turn + 1) % self.clients;
            let of_its_kind = match self.load.busy {
                Some(Busy { every, .. }) => (self.turn % every == 0) == self.next_is_busy,
                None => true,
            };
            if !of_its_kind {
                continue;
            }
            let (worker, by_lease) = self.way(self.turn, ask, owner, now);
            let index = self.turn * self.width + worker;
            if self.connections[index].in_flight < self.load.depth {
                return Some((index, by_lease));
            }
        }
        None
    }

    /// Closed loop: tops the client up, as far as the workers of its next keys have room.
    pub fn refill(&mut self, client: usize, now: u64) {
        let first = client * self.width;
        while self.phase != Phase::Drain && self.budget > 0 {
            let ask = match self.held_up[client].take() {
                Some((ask, keys)) => {
                    self.keys = keys;
                    ask
                }
                None if self.source_ended => return,
                None => {
                    let own = &self.connections[first..first + self.width];
                    if own.iter().all(|connection| connection.in_flight >= self.load.depth) {
                        return;
                    }
                    let Some(ask) = self.draw() else { return };
                    ask
                }
            };
            let (worker, by_lease) = self.way(client, ask, self.worker(ask), now);
            let index = first + worker;
            if self.connections[index].in_flight >= self.load.depth {
                self.held_up[client] = Some((ask, self.keys.clone()));
                return;
            }
            self.send(index, ask, (now, now), by_lease);
        }
    }

    fn send(
        &mut self,
        index: usize,
        ask: Ask,
        (intended_ns, asked_ns): (u64, u64),
        by_lease: ByLease,
    ) {
        if self.phase == Phase::Measured {
            self.budget -= 1;
        }
        let vbucket = self.vbucket(self.keys[0], ask.op == Op::Incr);
        let (connection, wording) = (&mut self.connections[index], &self.load.wording);
        let how = How { intended_ns, asked_ns, vbucket, by_lease };
        connection.ask(wording, ask, &self.keys, how);
        self.asked(index);
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
                self.connections[index].flush(&self.epoll)?;
            }
        }
        self.touched.clear();
        Ok(())
    }
}
