//! Clients: they ask in bursts, read at their pace, leave and come back.

use mbal_model::{MapVersion, ReplicaVersion};

use super::compose::{Composed, Composer};
use super::connection::{Connection, InFlight};
use super::copies::{Copied, session_of};
use super::coverage::Sight;
use super::dice::Dice;
use super::history::{ALL_KEYS, Asks, History, Micros, NEVER, Observed, Op};
use super::letters::Letter;
use super::profile::Profile;
use super::replies::Form;
use super::stranger::noise;
use super::world::{Happening, World};

/// A client waits for answers before it asks more than this.
pub const UNANSWERED_MAX: usize = 60;
/// Of a connection that is found by its worker.
const NO_SLOT: usize = usize::MAX;
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
    pub host: usize,
    /// Its connections, by slot.
    pub connections: Vec<usize>,
    /// By key: the slot that it is asked on.
    pub routes: Vec<usize>,
    /// The ownership that it knows.
    pub version: MapVersion,
    /// It reads as slowly as this, per piece.
    pub pace: Micros,
    window: usize,
    /// By key: the cas that it saw last.
    pub seen: Vec<u64>,
    /// Of a smart one, where keys are hot.
    pub copied: Option<Copied>,
}

impl Client {
    pub fn new(dice: &mut Dice, profile: &Profile, kind: Kind, number: usize) -> Client {
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
            copied: (kind == Kind::Smart && profile.hot.is_some())
                .then(|| Copied::new(profile, number)),
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
            let up: Vec<usize> = self.up_hosts().collect();
            if up.is_empty() {
                return;
            }
            let host = self.dice.pick(&up);
            self.hosts[host].seats.start + self.dice.below(self.profile.workers)
        };
        if self.hosts[self.seats[seat].host].is_up {
            self.connect_to(client, slot, seat);
        }
    }

    /// The new connection is the last one.
    pub fn connect_to(&mut self, client: usize, slot: usize, seat: usize) {
        let smart = self.clients[client].kind == Kind::Smart;
        let host = self.seats[seat].host;
        let this = &mut self.clients[client];
        let connection = self.connections.len();
        self.connections.push(Connection::new(client, host, slot, connection, this.window));
        this.connections.truncate(this.connections.len().max(slot));
        match this.connections.get_mut(slot) {
            Some(place) => *place = connection,
            None => this.connections.push(connection),
        }
        self.post(seat, Letter::Adopt { connection, own_port: smart });
    }

    /// A connection beside those by slots, to a worker's own port.
    pub fn connect_by_name(&mut self, client: usize, seat: usize) -> usize {
        let (host, connection) = (self.seats[seat].host, self.connections.len());
        let window = self.clients[client].window;
        let session = session_of(client);
        self.connections.push(Connection::new(client, host, NO_SLOT, session, window));
        self.post(seat, Letter::Adopt { connection, own_port: true });
        connection
    }

    fn delay(&mut self) -> Micros {
        let longest = self.profile.delay;
        self.dice.skewed(1..=longest)
    }

    pub fn client_wakes(&mut self, client: usize) {
        if self.asked_all() {
            return;
        }
        if self.asks_for_hot(client) {
            // Some ask again before what was written has reached all copies.
            let think = self.profile.think / self.dice.pick(&[1, 20, 100]);
            let think = self.dice.skewed(1..=think);
            return self.after(think, Happening::Client { client });
        }
        let routes = &self.clients[client].routes;
        let slot = routes[self.dice.below(routes.len())];
        let think = self.profile.think;
        let Some(&connection) = self.clients[client].connections.get(slot) else {
            // Its server has not been there yet.
            let slot = self.clients[client].connections.len();
            self.connect(client, slot);
            return self.after(think, Happening::Client { client });
        };
        let is_gone = !self.connections[connection].open;
        if is_gone && self.clients[client].kind != Kind::Stranger {
            // Its server has died.
            self.connect(client, slot);
        } else if self.clients[client].kind == Kind::Stranger {
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
        let soon = self.profile.hot.is_some() && self.dice.percent(50);
        let think = self.profile.think / if soon { 50 } else { 1 };
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

    /// The client sees that its server has died: nobody knows what became of what it asked.
    pub fn broken_off(&mut self, connection: usize) {
        let this = &mut self.connections[connection];
        if !std::mem::take(&mut this.open) {
            return;
        }
        for asked in &this.asked {
            for op in asked.ops.0..asked.ops.0 + asked.ops.1 {
                self.history.ops[op].unordered = true;
            }
        }
        self.coverage.meet(Sight::ClientBroken);
    }

    /// Asks for every key, one after the other.
    pub fn read_all(&mut self, client: usize, connection: usize) {
        let mut bytes = Vec::new();
        for key in 0..self.profile.keys.len() {
            let keys = [key];
            let mut composer = Composer {
                dice: &mut self.dice,
                history: &mut self.history,
                profile: &self.profile,
                seen: &self.clients[client].seen,
                keys: &keys,
                version: None,
                out: &mut bytes,
            };
            let composed = composer.get(key, true);
            let now = (self.now, self.evictions, self.profile.stale());
            let this = &mut self.connections[connection];
            record(&mut self.history, this, now, connection, composed);
        }
        self.send_up(connection, &bytes);
    }

    fn burst(&mut self, client: usize, connection: usize) {
        let most = self.profile.burst_max;
        let requests = self.dice.skewed(1..=most);
        if requests > 1 {
            self.coverage.meet(Sight::RequestsTogether);
        }
        let this = &self.clients[client];
        let slot = self.connections[connection].slot;
        let routes = &this.routes;
        // A smart client asks for hot keys in another way.
        let is_apart = |key: &usize| {
            let hot = self.profile.hot.as_ref().filter(|_| this.copied.is_some());
            hot.is_some_and(|hot| hot.keys.contains(key))
        };
        let mut keys = Vec::with_capacity(routes.len());
        keys.extend((0..routes.len()).filter(|key| routes[*key] == slot && !is_apart(key)));
        if keys.is_empty() {
            return;
        }
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
                (self.now, self.evictions, self.profile.stale()),
                connection,
                composed,
            );
        }
        self.send_burst(connection, bytes);
    }

    /// Some requests for a hot key: by a lease of the client's, or to its home.
    pub fn burst_of_hot(
        &mut self,
        client: usize,
        connection: usize,
        key: usize,
        by_lease: Option<ReplicaVersion>,
    ) {
        let mut bytes = std::mem::take(&mut self.scratch);
        for _ in 0..self.dice.between(1..=2) {
            let mut composer = Composer {
                dice: &mut self.dice,
                history: &mut self.history,
                profile: &self.profile,
                seen: &self.clients[client].seen,
                keys: &[key],
                version: Some(self.clients[client].version),
                out: &mut bytes,
            };
            let composed = match by_lease {
                Some(seen) => composer.read_by_lease(key, seen),
                None => composer.hot(key),
            };
            let now = (self.now, self.evictions, self.profile.stale());
            let this = &mut self.connections[connection];
            record(&mut self.history, this, now, connection, composed);
        }
        self.send_burst(connection, bytes);
    }

    /// Sends what has been recorded.
    fn send_burst(&mut self, connection: usize, mut bytes: Vec<u8>) {
        let mut asked_now: Vec<usize> = Vec::new();
        for asked in &self.connections[connection].asked {
            let ops = asked.ops.0..asked.ops.0 + asked.ops.1;
            asked_now.extend(ops.filter(|op| self.history.ops[*op].asked == self.now));
        }
        // Whether servers agree at this moment.
        for op in asked_now {
            let Op { key, asks, .. } = self.history.ops[op];
            self.meet_hot(key, asks);
            if key == ALL_KEYS && self.profile.hot.is_some() {
                self.history.ops[op].is_forgotten = !self.agree_on_flushes();
            }
            if self.is_clustered() && key != ALL_KEYS {
                self.in_flux(key, self.now);
            }
        }
        // So that what wanted no answer is known to be done.
        bytes.extend_from_slice(b"mn\r\n");
        self.connections[connection].asked.push_back(InFlight {
            form: Form::Fence,
            ops: (0, 0),
            at: self.now,
        });
        self.send_up(connection, &bytes);
        bytes.clear();
        self.scratch = bytes;
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
}

fn record(
    history: &mut History,
    this: &mut Connection,
    (now, evictions, stale): (Micros, u64, Micros),
    connection: usize,
    Composed { form, asks }: Composed,
) {
    let ops = (history.ops.len(), asks.len());
    let quiet = matches!(form, Form::Silent | Form::QuietMeta { .. });
    // One may go home, and the next one to a copy whose lease lasts.
    let unordered = stale > 0 && matches!(form, Form::Copy { .. });
    for (key, asks) in asks {
        history.ops.push(Op {
            key,
            connection,
            place: this.next_place,
            session: this.session,
            stale: if asks == Asks::Read { stale } else { 0 },
            host: this.host,
            unordered,
            is_forgotten: false,
            asked: now,
            answered: NEVER,
            evictions: (evictions, u64::MAX),
            asks,
            told: Observed::Nothing,
            quiet,
        });
        this.next_place += 1;
    }
    this.asked.push_back(InFlight { form, ops, at: now });
}
