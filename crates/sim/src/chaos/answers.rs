//! Answers, as clients read them.

use mbal_model::{Hint, ServerId};

use super::connection::Connection;
use super::coverage::Sight;
use super::doubt::Doubt;
use super::history::{ALL_KEYS, Asks, NEVER, Observed, When};
use super::hosts::{host_of, id_of};
use super::replies::{Form, Reply, parse};
use super::world::World;

impl World {
    /// What a smart client learns of workers. A key changes its connection when nothing that it was
    /// asked on the old one is unanswered, so here: at once, and each request's order is its connection's.
    fn learn(&mut self, connection: usize, reply: &Reply) {
        let asked = &self.connections[connection].asked;
        let front = asked.iter().find(|asked| asked.form != Form::Silent).expect("it was parsed");
        let key = self.history.ops.get(front.ops.0).map(|op| op.key);
        let client = self.connections[connection].client;
        let host = self.connections[connection].host;
        if let (Some(hint), Some(key)) = (reply.hint, key) {
            let hash = self.profile.keys[key].hash();
            let told = match hint {
                Hint::Worker { version, worker } => {
                    self.coverage.meet(Sight::ToldOwner);
                    if host == self.clients[client].host {
                        self.clients[client].routes[key] = usize::from(worker.0);
                        self.clients[client].version = version.max(self.clients[client].version);
                    }
                    self.hosts[host].told(version, hash, worker)
                }
                // The client knows the workers of one server.
                Hint::Server { version, server, worker } => {
                    self.coverage.meet(Sight::ToldServer);
                    self.hosts[host_of(server)].told(version, hash, worker)
                }
                Hint::Newer { map } => self.hosts[host].knows(map),
            };
            self.broken = self.broken.take().or(told.err());
        }
        if front.form != Form::Config {
            return;
        }
        let Some(map) = &reply.map else { return self.coverage.meet(Sight::MapUnchanged) };
        self.coverage.meet(Sight::ToldMap);
        let here = if self.is_clustered() { id_of(host) } else { ServerId(0) };
        match self.hosts[host].told_all(here, map) {
            Ok(version) => self.clients[client].version = version,
            Err(violation) => self.broken = Some(violation),
        }
    }

    pub fn delivered(&mut self, connection: usize, bytes: &[u8]) {
        self.connections[connection].in_flight -= bytes.len();
        if !self.connections[connection].output.is_empty() {
            self.notify(connection);
        }
        if !self.connections[connection].open {
            return;
        }
        if self.is_stranger(self.connections[connection].client) {
            let errors = bytes.windows(5).any(|part| part == b"ERROR");
            if errors {
                self.coverage.meet(Sight::StrangerAnswered);
            }
            return;
        }
        self.connections[connection].read.extend_from_slice(bytes);
        let mut read = std::mem::take(&mut self.connections[connection].read);
        let mut used = 0;
        while used < read.len() && self.broken.is_none() {
            let asked = &self.connections[connection].asked;
            let Some(replied) = asked.iter().position(|asked| asked.form != Form::Silent) else {
                self.fail(6, "a reply that nobody waits for");
                break;
            };
            match parse(&asked[replied].form, &read[used..]) {
                Ok(None) => break,
                Ok(Some(reply)) => {
                    used += reply.bytes;
                    self.heed(connection, replied, &reply);
                    for _ in 0..replied {
                        self.settle(connection, vec![Observed::Quiet]);
                    }
                    self.learn(connection, &reply);
                    self.settle(connection, reply.told);
                }
                Err(what) => {
                    let op = &self.history.ops[asked[replied].ops.0];
                    self.fail(3, format!("connection {connection}: {what}, to {op:?}"));
                }
            }
        }
        read.drain(..used);
        self.connections[connection].read = read;
    }

    /// The oldest request of a connection is answered.
    fn settle(&mut self, connection: usize, told: Vec<Observed>) {
        let asked = self.connections[connection].asked.pop_front().expect("looked at before");
        let Connection { client, host, .. } = self.connections[connection];
        self.answered = self.now;
        if self.is_clustered() && self.is_gathered(asked.ops) {
            self.coverage.meet(Sight::Gathered);
        }
        let ops = asked.ops.0..asked.ops.0 + asked.ops.1;
        let doubts: Vec<Doubt> = ops.clone().map(|op| self.doubt(connection, op)).collect();
        // A server that was asked for several keys, one of which it does not have, tells of none.
        let any_moves = doubts.contains(&Doubt::Map);
        for ((op, told), doubt) in ops.zip(told).zip(doubts) {
            let doubt = match told {
                Observed::Absent if any_moves && !self.is_here(connection, op) => Doubt::Map,
                _ => doubt,
            };
            let has_failed = told == Observed::NoRoute;
            let told = if self.is_clustered() {
                let reads = self.history.ops[op].asks == Asks::Read
                    || matches!(asked.form, Form::Values { .. });
                self.told_by_cluster(connection, op, told, doubt, reads)
            } else {
                told
            };
            let op = &mut self.history.ops[op];
            (op.answered, op.evictions.1) = (self.now, self.evictions);
            if told == Observed::Nothing {
                op.unordered = true;
                // What is told as failed was executed by then, or never will be. A `flush_all` with a delay is told of later too.
                if !has_failed || op.key == ALL_KEYS {
                    op.answered = NEVER;
                }
            }
            op.told = told;
            if let Observed::Hit { cas, .. } | Observed::Done { cas } = op.told {
                if cas != 0 && op.key != ALL_KEYS {
                    self.clients[client].seen[op.key] = cas;
                }
            }
            if matches!(op.asks, Asks::Flush { .. }) && !self.hosts[host].splitting.is_empty() {
                self.coverage.meet(Sight::FlushInSplit);
            }
            match (op.asks, &op.told) {
                (Asks::Flush { delay: 0 }, Observed::Done { .. }) => {
                    self.coverage.meet(Sight::FlushAtOnce)
                }
                (Asks::Flush { .. }, Observed::Done { .. }) => {
                    self.coverage.meet(Sight::FlushLater)
                }
                (Asks::Store { when: When::Unchanged(_), .. }, Observed::Refused) => {
                    self.coverage.meet(Sight::CasFailed);
                }
                (Asks::Store { .. }, Observed::Error) => self.coverage.meet(Sight::ValueTooLarge),
                _ => {}
            }
        }
    }
}
