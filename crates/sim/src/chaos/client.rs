//! Clients: they ask in bursts, read at their pace, leave and come back.

use std::ops::Range;

use mbal_model::{Hint, MapVersion, ServerId};

use super::compose::{Composed, Composer};
use super::connection::{Asked, Connection, End};
use super::coverage::Sight;
use super::dice::Dice;
use super::history::{ALL_KEYS, Asks, History, Micros, NEVER, Op, Told, When};
use super::hosts::{host_of, id_of};
use super::profile::Profile;
use super::replies::{Form, Reply, parse};
use super::seat::Letter;
use super::stranger::noise;
use super::world::{Happening, World};

/// A client waits for answers before it asks more than this.
const UNANSWERED_MAX: usize = 60;
const DEFAULT_WINDOW: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Knows nothing of workers.
    Ordinary,
    /// Has a connection to each worker's own port of one server, and asks it for what it owns.
    Smart,
    Stranger,
}

pub struct Client {
    pub kind: Kind,
    /// The server that a smart one is of.
    host: usize,
    /// Its connections, by slot.
    pub connections: Vec<usize>,
    /// By key: the slot that it is asked on.
    routes: Vec<usize>,
    /// The ownership that it knows.
    version: MapVersion,
    /// It reads as slowly as this, per piece.
    pace: Micros,
    window: usize,
    /// By key: the cas that it saw last.
    seen: Vec<u64>,
}

impl Client {
    pub fn new(dice: &mut Dice, profile: &Profile, kind: Kind) -> Client {
        let slow = dice.percent(20);
        Client {
            kind,
            host: match profile.servers {
                1 => 0,
                servers => dice.below(servers),
            },
            connections: Vec::new(),
            routes: vec![0; profile.keys.len()],
            version: MapVersion::default(),
            pace: if slow { 5_000 } else { 0 },
            window: if slow {
                dice.pick(&[300, 20_000]).max(profile.value_bytes_max as usize)
            } else {
                DEFAULT_WINDOW
            },
            seen: vec![0; profile.keys.len()],
        }
    }
}

impl World {
    /// A new connection of `client`: a smart one's to its own worker, others' to any.
    pub fn connect(&mut self, client: usize, slot: usize) {
        let smart = self.clients[client].kind == Kind::Smart;
        let seat = if smart {
            self.hosts[self.clients[client].host].seats.start + slot
        } else {
            self.dice.below(self.seats.len())
        };
        let host = self.seats[seat].host;
        let this = &mut self.clients[client];
        self.connections.push(Connection::new(client, host, slot, this.window));
        let connection = self.connections.len() - 1;
        this.connections.truncate(this.connections.len().max(slot));
        match this.connections.get_mut(slot) {
            Some(place) => *place = connection,
            None => this.connections.push(connection),
        }
        self.post(seat, Letter::Adopt { connection, own_port: smart });
    }

    fn delay(&mut self) -> Micros {
        let longest = self.profile.delay;
        self.dice.skewed(1..=longest)
    }

    pub fn client_wakes(&mut self, client: usize) {
        if self.asked_all() {
            return;
        }
        let routes = &self.clients[client].routes;
        let slot = routes[self.dice.below(routes.len())];
        let connection = self.clients[client].connections[slot];
        if self.clients[client].kind == Kind::Stranger {
            self.annoy(client, connection);
        } else if self.dice.below(300) == 0 {
            if !self.connections[connection].asked.is_empty() {
                self.coverage.meet(Sight::PeerLeft);
            }
            if self.dice.percent(50) {
                self.burst(client, connection);
                self.finish(connection);
            } else {
                self.leave(connection);
            }
            self.connect(client, slot);
        } else if self.connections[connection].asked.len() < UNANSWERED_MAX {
            self.burst(client, connection);
        }
        let think = self.profile.think;
        let think = self.dice.skewed(1..=think);
        self.after(think, Happening::Client { client });
    }

    fn annoy(&mut self, client: usize, connection: usize) {
        if !self.connections[connection].open || self.dice.percent(3) {
            self.leave(connection);
            return self.connect(client, 0);
        }
        if self.dice.percent(20) {
            self.coverage.meet(Sight::Stranger);
            let bytes = noise(&mut self.dice);
            self.send_up(connection, &bytes);
        }
    }

    fn leave(&mut self, connection: usize) {
        let this = &mut self.connections[connection];
        let at = this.last_up.max(self.now) + 1;
        this.last_up = at;
        if std::mem::take(&mut this.open) {
            self.at(at, Happening::Finished { connection, reset: false });
            // What is sent to one that has gone comes back as a break, at any time.
            if self.dice.percent(50) {
                self.coverage.meet(Sight::Reset);
                let at = at + self.delay();
                self.at(at, Happening::Finished { connection, reset: true });
            }
        }
    }

    /// The client sends no more, and reads until the server closes.
    fn finish(&mut self, connection: usize) {
        let this = &mut self.connections[connection];
        let at = this.last_up.max(self.now) + 1;
        (this.last_up, this.half_open) = (at, true);
        self.at(at, Happening::Finished { connection, reset: false });
    }

    /// The client sees that the server has closed.
    pub fn ended(&mut self, connection: usize) {
        let this = &mut self.connections[connection];
        this.open = false;
        if this.asked.is_empty() {
            return self.coverage.meet(Sight::HalfClosedEnds);
        }
        let op = self.history.ops.get(this.asked[0].ops.0);
        let what = format!("connection {connection} was closed with requests unanswered: {op:?}");
        self.fail(5, what);
    }

    fn burst(&mut self, client: usize, connection: usize) {
        let most = self.profile.burst_max;
        let requests = self.dice.skewed(1..=most);
        if requests > 1 {
            self.coverage.meet(Sight::RequestsTogether);
        }
        let this = &self.clients[client];
        let slot = self.connections[connection].slot;
        let keys: Vec<usize> =
            (0..this.routes.len()).filter(|key| this.routes[*key] == slot).collect();
        let mut bytes = std::mem::take(&mut self.scratch);
        for _ in 0..requests {
            let mut composer = Composer {
                dice: &mut self.dice,
                history: &mut self.history,
                profile: &self.profile,
                seen: &this.seen,
                keys: &keys,
                version: (this.kind == Kind::Smart).then_some(this.version),
                out: &mut bytes,
            };
            let composed = composer.compose();
            record(
                &mut self.history,
                &mut self.connections[connection],
                (self.now, self.evictions),
                connection,
                composed,
            );
        }
        // So that what wanted no answer is known to be done.
        bytes.extend_from_slice(b"mn\r\n");
        self.connections[connection].asked.push_back(Asked {
            form: Form::Fence,
            ops: (0, 0),
            at: self.now,
        });
        self.send_up(connection, &bytes);
        bytes.clear();
        self.scratch = bytes;
    }

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
                    self.clients[client].routes[key] = usize::from(worker.0);
                    self.clients[client].version = version.max(self.clients[client].version);
                    self.hosts[host].claims.told(version, hash, worker)
                }
                // The client knows the workers of one server.
                Hint::Server { version, server, worker } => {
                    self.coverage.meet(Sight::ToldServer);
                    self.hosts[host_of(server)].claims.told(version, hash, worker)
                }
                Hint::Newer { map } => self.hosts[host].claims.knows(map),
            };
            self.broken = self.broken.take().or(told.err());
        }
        if front.form != Form::Config {
            return;
        }
        let Some(map) = &reply.map else { return self.coverage.meet(Sight::MapUnchanged) };
        self.coverage.meet(Sight::ToldMap);
        let here = if self.is_clustered() { id_of(host) } else { ServerId(0) };
        match self.hosts[host].claims.told_all(here, map) {
            Ok(version) => self.clients[client].version = version,
            Err(violation) => self.broken = Some(violation),
        }
    }

    /// Sends in pieces of any size, none of which overtakes another.
    fn send_up(&mut self, connection: usize, bytes: &[u8]) {
        let mut rest = bytes;
        let pieces = if self.dice.percent(30) { self.dice.between(2..=4) } else { 1 };
        if pieces > 1 {
            self.coverage.meet(Sight::RequestInPieces);
        }
        for piece in 1..=pieces {
            let cut = if piece == pieces { rest.len() } else { self.dice.below(rest.len() + 1) };
            let (part, tail) = rest.split_at(cut);
            rest = tail;
            if part.is_empty() {
                continue;
            }
            let at = (self.now + self.delay()).max(self.connections[connection].last_up + 1);
            self.connections[connection].last_up = at;
            self.at(at, Happening::Arrival { connection, bytes: part.to_vec() });
        }
    }

    /// Bytes that the socket took are on their way to the client.
    pub fn send_down(&mut self, connection: usize, bytes: Vec<u8>) {
        let pace = self.clients[self.connections[connection].client].pace;
        let at = (self.now + self.delay()).max(self.connections[connection].last_down + 1 + pace);
        self.connections[connection].last_down = at;
        self.connections[connection].in_flight += bytes.len();
        self.at(at, Happening::Delivery { connection, bytes });
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
                    for _ in 0..replied {
                        self.settle(connection, vec![Told::Quiet]);
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
    fn settle(&mut self, connection: usize, told: Vec<Told>) {
        let asked = self.connections[connection].asked.pop_front().expect("looked at before");
        let Connection { client, host, .. } = self.connections[connection];
        self.answered = self.now;
        if self.is_clustered() && self.is_gathered(asked.ops) {
            self.coverage.meet(Sight::Gathered);
        }
        let ops = asked.ops.0..asked.ops.0 + asked.ops.1;
        let doubts: Vec<Doubt> =
            ops.clone().map(|op| self.doubt(connection, &self.history.ops[op])).collect();
        // A server that was asked for several keys, one of which it does not have, tells of none.
        let any_moves = doubts.contains(&Doubt::Map);
        for ((op, told), doubt) in ops.zip(told).zip(doubts) {
            let doubt = match told {
                Told::Absent if any_moves && !self.is_here(connection, op) => Doubt::Map,
                _ => doubt,
            };
            let told = if self.is_clustered() {
                let reads = self.history.ops[op].asks == Asks::Read
                    || matches!(asked.form, Form::Values { .. });
                self.told_by_cluster(connection, op, told, doubt, reads)
            } else {
                told
            };
            let op = &mut self.history.ops[op];
            (op.answered, op.evictions.1) = (self.now, self.evictions);
            op.unordered = doubt == Doubt::Map;
            if told == Told::Nothing {
                (op.answered, op.unordered) = (NEVER, true);
            }
            op.told = told;
            if let Told::Hit { cas, .. } | Told::Done { cas } = op.told {
                if cas != 0 && op.key != ALL_KEYS {
                    self.clients[client].seen[op.key] = cas;
                }
            }
            if matches!(op.asks, Asks::Flush { .. }) && !self.hosts[host].splitting.is_empty() {
                self.coverage.meet(Sight::FlushInSplit);
            }
            match (op.asks, &op.told) {
                (Asks::Flush { delay: 0 }, Told::Done { .. }) => {
                    self.coverage.meet(Sight::FlushAtOnce)
                }
                (Asks::Flush { .. }, Told::Done { .. }) => self.coverage.meet(Sight::FlushLater),
                (Asks::Store { when: When::Unchanged(_), .. }, Told::Refused) => {
                    self.coverage.meet(Sight::CasFailed);
                }
                (Asks::Store { .. }, Told::Error) => self.coverage.meet(Sight::ValueTooLarge),
                _ => {}
            }
        }
    }
}

/// What may have come between a request and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    None,
    /// The link to its key's owner was missing, or slower than its deadline.
    Link,
    /// Its key was on its way from server to server.
    Map,
}

impl World {
    fn doubt(&self, connection: usize, op: &Op) -> Doubt {
        if !self.is_clustered() {
            return Doubt::None;
        }
        if op.key == ALL_KEYS {
            // It is another request to each server, whose answers are looked at on their own.
            return if self.maps.is_changing(op.asked) { Doubt::Map } else { Doubt::None };
        }
        let hash = self.profile.keys[op.key].hash();
        if self.maps.moves(hash, op.asked) {
            return Doubt::Map;
        }
        let owner = self.maps.host(hash).expect("there are several servers");
        let mut seats = self.seats_of(connection, op.asked);
        let is_elsewhere = owner != self.connections[connection].host;
        match is_elsewhere && seats.any(|seat| self.was_missing(seat, owner, op.asked)) {
            true => Doubt::Link,
            false => Doubt::None,
        }
    }

    /// True if the key is one of the server's that was asked.
    fn is_here(&self, connection: usize, op: usize) -> bool {
        let hash = self.profile.keys[self.history.ops[op].key].hash();
        self.maps.host(hash) == Some(self.connections[connection].host)
    }

    /// The workers that may have served a connection since then.
    fn seats_of(&self, connection: usize, since: Micros) -> Range<usize> {
        let this = &self.connections[connection];
        match this.end {
            End::At { seat, .. } if this.came < since => seat..seat + 1,
            _ => self.hosts[this.host].seats.clone(),
        }
    }

    /// What an answer means where servers may not have reached each other; an answer that there may not be is a fault.
    fn told_by_cluster(
        &mut self,
        connection: usize,
        op: usize,
        told: Told,
        doubt: Doubt,
        reads: bool,
    ) -> Told {
        let this = &self.history.ops[op];
        let (asked, flushes) = (this.asked, this.key == ALL_KEYS);
        match told {
            Told::NotEverywhere { failed, servers } => {
                self.coverage.meet(Sight::NotEverywhere);
                let here = self.connections[connection].host;
                let seats = self.seats_of(connection, asked);
                let is_missed = |host: &usize| {
                    *host != here && seats.clone().any(|seat| self.was_missing(seat, *host, asked))
                };
                let missed = (0..self.hosts.len()).filter(is_missed).count();
                if !flushes || servers != self.hosts.len() || !(1..=missed).contains(&failed) {
                    let what = format!("{told:?}, where {missed} were missed: {this:?}");
                    self.fail(5, what);
                }
                told
            }
            Told::Done { .. } if flushes => {
                self.coverage.meet(Sight::Everywhere);
                told
            }
            Told::NoRoute if reads || flushes || doubt == Doubt::None => {
                let what = format!("no route: {this:?}");
                self.fail(5, what);
                told
            }
            Told::NoRoute => {
                self.coverage.meet(Sight::NoRoute);
                Told::Nothing
            }
            // It has missed, or nobody was asked.
            Told::Absent if reads && doubt != Doubt::None => {
                let mut seats = self.seats_of(connection, asked);
                if seats.any(|seat| self.counted_unreachable(seat, asked)) {
                    self.coverage.meet(Sight::Unreachable);
                    return Told::Nothing;
                }
                told
            }
            // Executed or not, or yet to be executed: what was on a link that broke may still arrive.
            Told::Quiet if doubt != Doubt::None => {
                self.coverage.meet(Sight::QuietInDoubt);
                Told::Nothing
            }
            Told::Error if doubt != Doubt::None => Told::Nothing,
            _ => told,
        }
    }

    /// True if its keys are of several servers.
    fn is_gathered(&self, (first, count): (usize, usize)) -> bool {
        let Some(map) = self.maps.newest() else { return false };
        let server = |op: &Op| map.at(self.profile.keys[op.key].hash()).1.server;
        self.history.ops[first..first + count]
            .windows(2)
            .any(|two| server(&two[0]) != server(&two[1]))
    }
}

fn record(
    history: &mut History,
    this: &mut Connection,
    (now, evictions): (Micros, u64),
    connection: usize,
    Composed { form, asks }: Composed,
) {
    let ops = (history.ops.len(), asks.len());
    let quiet = matches!(form, Form::Silent | Form::QuietMeta { .. });
    for (key, asks) in asks {
        history.ops.push(Op {
            key,
            connection,
            place: this.next_place,
            host: this.host,
            unordered: false,
            asked: now,
            answered: NEVER,
            evictions: (evictions, u64::MAX),
            asks,
            told: Told::Nothing,
            quiet,
        });
        this.next_place += 1;
    }
    this.asked.push_back(Asked { form, ops, at: now });
}
