//! Several proxies in virtual time: they stop, die and start again, their links are late and are cut, their clocks differ. Nobody ever
//! reads a value that was overwritten, deleted or flushed before his read began, through whichever proxy.

mod common;

use std::time::Duration;

use common::history::{Asking, Heard, History};
use common::links::{Arrival, End, Link};
use common::memcached::{Late, Memcached, Wire, requests};
use mbal_model::Instant;
use mbal_proxy::{
    Action, ClientId, ConnId, Distribution, Event, KeyHash, Peers, Proxy, Replication, RingServer,
    Settings,
};
use mbal_random::Random;

const MS: u64 = 1_000_000;
const UPSTREAMS: usize = 3;
const CLIENTS: usize = 12;
const KEYS: u64 = 3;
const STEPS: usize = 16_000;
const LEASE: u64 = 60 * MS;
/// An upstream that answers has looked at all its connections by then.
const DOUBT: u64 = 4 * MS;

/// One proxy, or the place where it was.
struct Node {
    proxy: Option<Proxy>,
    life: u64,
    /// Its process does nothing until then.
    stopped_until: u64,
    /// It starts again then.
    starts_at: u64,
    /// Of its clock, in 1/1000 of true time.
    speed: u64,
    /// To upstreams, by connection.
    wires: Vec<Wire>,
    dialing: Vec<(ConnId, usize)>,
}

struct Client {
    node: usize,
    life: u64,
    /// As the proxy knows it.
    id: ClientId,
    asking: Option<Asking>,
}

#[derive(Default)]
struct Seen {
    hits: u64,
    copy_reads: u64,
    written_hits: u64,
    passed: u64,
    leases_ended: u64,
    flushed: u64,
    starts: u64,
    /// Requests that were executed when their connection was gone.
    late: u64,
}

struct World {
    now: u64,
    random: Random,
    nodes: Vec<Node>,
    links: Vec<Link>,
    upstreams: Vec<Memcached>,
    clients: Vec<Client>,
    history: History,
    hot: u64,
    /// One request in so many is the first of another hot key.
    stays_hot: u64,
    /// One step in so many has a fault.
    calm: u64,
    seen: Seen,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let count = 2 + random.below(2) as usize;
        let node = |speed| Node {
            proxy: None,
            life: 0,
            stopped_until: 0,
            starts_at: 0,
            speed,
            wires: Vec::new(),
            dialing: Vec::new(),
        };
        let nodes: Vec<Node> = (0..count).map(|_| node(955 + random.below(91))).collect();
        let client = |at| Client { node: at % count, life: 0, id: ClientId(0), asking: None };
        World {
            now: MS,
            nodes,
            links: Vec::new(),
            upstreams: (0..UPSTREAMS).map(|_| Memcached::default()).collect(),
            clients: (0..CLIENTS).map(client).collect(),
            history: History::default(),
            hot: 0,
            stays_hot: [300, 1500][random.below(2) as usize],
            calm: [60, 200, 600, 2000][random.below(4) as usize],
            seen: Seen::default(),
            random,
        }
    }

    fn settings(&mut self, at: usize) -> Settings {
        let server =
            |at: usize| RingServer { host: format!("s{at}"), port: 1, weight: 1, name: None };
        let names = (0..self.nodes.len()).map(|at| format!("p{at}")).collect();
        Settings {
            servers: (0..UPSTREAMS).map(server).collect(),
            distribution: Distribution::Modula(KeyHash::Fnv1a64),
            conns_per_server: 1,
            timeout: Duration::from_nanos(20 * MS),
            eject: false,
            failures_max: 1,
            retry: Duration::from_nanos(10 * MS),
            limits: common::limits(self.calm < 300),
            replication: Some(Replication {
                interval: Duration::from_nanos(60 * MS),
                target: 1.05,
                sampling: 1.0,
            }),
            peers: Some(
                Peers::new(names, &format!("p{at}"), Duration::from_nanos(LEASE)).expect("peers"),
            ),
            doubt: Duration::from_nanos(DOUBT),
            pid: 1,
            started_at: 0,
            version: "1".into(),
            seed: self.random.word(),
        }
    }

    fn start(&mut self, at: usize) -> Result<(), String> {
        let settings = self.settings(at);
        let mut proxy = Proxy::new(settings);
        proxy.start(Instant::from_nanos(self.clock(at)));
        let node = &mut self.nodes[at];
        node.life += 1;
        node.wires = (0..2 * UPSTREAMS).map(|_| Wire::default()).collect();
        node.dialing.clear();
        node.stopped_until = 0;
        for client in self.clients.iter_mut().filter(|client| client.node == at) {
            client.id = proxy.open();
            client.life = node.life;
        }
        node.proxy = Some(proxy);
        self.seen.starts += 1;
        self.carry_out(at)
    }

    /// What a proxy's clock says.
    fn clock(&self, at: usize) -> u64 {
        self.now * self.nodes[at].speed / 1000
    }

    fn runs(&self, at: usize) -> bool {
        self.nodes[at].proxy.is_some() && self.nodes[at].stopped_until <= self.now
    }

    /// The first stale read, if there is one.
    fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.now += self.random.below(MS / 8);
            for upstream in &mut self.upstreams {
                self.seen.late += upstream.execute_late(self.now, 300, &mut self.random).0;
            }
            let at = self.random.below(self.nodes.len() as u64) as usize;
            if self.nodes[at].proxy.is_none() && self.nodes[at].starts_at <= self.now {
                self.start(at)?;
            }
            if self.random.below(self.calm) == 0 {
                self.fault()?;
            }
            if self.runs(at) {
                let wake = self.nodes[at].proxy.as_ref().and_then(Proxy::next_wake);
                if wake.is_some_and(|wake| wake.as_nanos() <= self.clock(at)) {
                    self.event(at, Event::Woken)?;
                }
            }
            match self.random.below(32) {
                0..10 => self.ask()?,
                10..16 => self.execute(at),
                16..22 => self.reply(at)?,
                22..30 => self.arrive()?,
                _ => self.connect(at)?,
            }
        }
        (0..self.nodes.len()).for_each(|at| self.count(at));
        Ok(())
    }

    fn count(&mut self, at: usize) {
        let Some(proxy) = &self.nodes[at].proxy else { return };
        let counters = proxy.counters();
        self.seen.copy_reads += counters.copy_reads + counters.cache_hits;
        self.seen.written_hits += counters.written_hits;
        self.seen.passed += counters.passed;
        self.seen.leases_ended += counters.leases_ended;
    }

    fn event(&mut self, at: usize, event: Event<'_>) -> Result<(), String> {
        let clock = self.clock(at);
        self.nodes[at].proxy.as_mut().expect("it runs").handle(Instant::from_nanos(clock), event);
        self.carry_out(at)
    }

    fn carry_out(&mut self, at: usize) -> Result<(), String> {
        let mut actions = Vec::new();
        loop {
            let proxy = self.nodes[at].proxy.as_mut().expect("it runs");
            proxy.take_actions(&mut actions);
            if actions.is_empty() {
                return Ok(());
            }
            for action in &actions {
                let node = &mut self.nodes[at];
                let proxy = node.proxy.as_mut().expect("it runs");
                match *action {
                    Action::ToClient(client) => {
                        let out = proxy.client_output(client).to_vec();
                        proxy.client_took(client, out.len());
                        self.hear(at, client, out)?;
                    }
                    Action::ToUpstream(conn) => {
                        let out = proxy.conn_output(conn).to_vec();
                        proxy.conn_took(conn, out.len());
                        match node.wires.get_mut(conn.0 as usize) {
                            Some(wire) => {
                                wire.requests.extend(requests(&String::from_utf8_lossy(&out)));
                            }
                            None => {
                                if let Some(link) = self.link_of(at, conn) {
                                    link.there.push_back(out);
                                }
                            }
                        }
                    }
                    Action::Dial { conn, upstream } => node.dialing.push((conn, upstream)),
                    Action::HangUp(conn) | Action::Abandon(conn) => self.hang_up(at, conn),
                    Action::Close(client) | Action::CutOff(client) => {
                        let life = self.nodes[at].life;
                        let mut links = self.links.iter_mut();
                        let is_its = |link: &&mut Link| {
                            (link.serves.proxy, link.serves.life) == (at, life)
                                && link.client == Some(client)
                                && link.serves.is_open
                        };
                        if let Some(link) = links.find(is_its) {
                            link.serves.is_open = false;
                            self.event(at, Event::Closed { client })?;
                        }
                    }
                    Action::Pause(_) | Action::Resume(_) => {}
                }
            }
        }
    }

    fn link_of(&mut self, at: usize, conn: ConnId) -> Option<&mut Link> {
        let life = self.nodes[at].life;
        let is_its = |link: &&mut Link| {
            (link.asks.proxy, link.asks.life, link.conn) == (at, life, conn) && link.asks.is_open
        };
        self.links.iter_mut().find(is_its)
    }

    /// What was sent may be handled all the same.
    fn hang_up(&mut self, at: usize, conn: ConnId) {
        let place = conn.0 as usize;
        self.nodes[at].dialing.retain(|(other, _)| *other != conn);
        match self.nodes[at].wires.get_mut(place) {
            Some(wire) => {
                let wire = std::mem::take(wire);
                self.upstreams[place / 2].late.push(Late::of(at, wire));
            }
            None => {
                if let Some(link) = self.link_of(at, conn) {
                    link.asks.is_open = false;
                    link.back.clear();
                }
            }
        }
    }

    /// A proxy has said something to a client, or to a peer.
    fn hear(&mut self, at: usize, id: ClientId, bytes: Vec<u8>) -> Result<(), String> {
        let is_its = |client: &&mut Client| client.node == at && client.id == id;
        let Some(client) = self.clients.iter_mut().find(is_its) else {
            let life = self.nodes[at].life;
            let is_its = |link: &&mut Link| {
                (link.serves.proxy, link.serves.life, link.client) == (at, life, Some(id))
                    && link.serves.is_open
            };
            if let Some(link) = self.links.iter_mut().find(is_its) {
                link.back.push_back(bytes);
            }
            return Ok(());
        };
        let asking = client.asking.as_mut().ok_or("a reply that nobody waits for")?;
        let heard = self.history.hear(asking, &bytes, self.now)?;
        self.seen.hits += u64::from(heard == Heard::Hit);
        self.seen.flushed += u64::from(heard == Heard::Miss && asking.keys.len() > 1);
        if heard != Heard::NotAll {
            client.asking = None;
        }
        Ok(())
    }

    /// An idle client asks for something. One key is far hotter than the others, for a while.
    fn ask(&mut self) -> Result<(), String> {
        let at = self.random.below(CLIENTS as u64) as usize;
        let (node, now) = (self.clients[at].node, self.now);
        if self.random.below(self.stays_hot) == 0 {
            self.hot = self.random.below(KEYS);
        }
        if self.clients[at].asking.is_some() || !self.runs(node) {
            return Ok(());
        }
        let number = if self.random.below(8) > 0 { self.hot } else { self.random.below(KEYS) };
        let key = format!("key{number}");
        let (text, asking) = match self.random.below(1000) {
            0..40 => return self.set(at, key),
            40..50 => (format!("delete {key}\r\n"), self.history.write(vec![key], None, now)),
            50..52 => {
                let keys = (0..KEYS).map(|number| format!("key{number}")).collect();
                ("flush_all\r\n".into(), self.history.write(keys, None, now))
            }
            52..250 => (format!("mg {key} v\r\n"), self.history.read(&key, now)),
            250..350 => (format!("get other {key}\r\n"), self.history.read(&key, now)),
            _ => (format!("get {key}\r\n"), self.history.read(&key, now)),
        };
        self.send(at, &text, asking)
    }

    fn set(&mut self, client: usize, key: String) -> Result<(), String> {
        let value = self.history.new_value(&key);
        let text = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
        let asking = self.history.write(vec![key], Some(&value), self.now);
        self.send(client, &text, asking)
    }

    fn send(&mut self, client: usize, text: &str, asking: Asking) -> Result<(), String> {
        let client = &mut self.clients[client];
        client.asking = Some(asking);
        let (id, node) = (client.id, client.node);
        self.event(node, Event::Received { client: id, bytes: text.as_bytes() })
    }

    /// An upstream executes what a connection of proxy `at` has brought.
    fn execute(&mut self, at: usize) {
        for upstream in 0..UPSTREAMS {
            let this = &mut self.upstreams[upstream];
            let choice = self.random.below(6);
            if self.now < this.stopped_until || choice < 2 {
                continue;
            }
            if let Some(wire) = self.nodes[at].wires.get_mut(2 * upstream) {
                if !wire.requests.is_empty() {
                    // The proxy's clock may run fast.
                    this.late_until(at, self.now + self.random.below(DOUBT * 9 / 10));
                }
                this.turn(wire, choice);
            }
        }
    }

    fn reply(&mut self, at: usize) -> Result<(), String> {
        for conn in (0..UPSTREAMS).map(|upstream| 2 * upstream) {
            let count = self.random.below(6) as usize;
            if !self.runs(at) {
                return Ok(());
            }
            let wire = &mut self.nodes[at].wires[conn];
            let replies: String = wire.replies.drain(..count.min(wire.replies.len())).collect();
            if !replies.is_empty() {
                let conn = ConnId(conn as u32);
                self.event(at, Event::Replied { conn, bytes: replies.as_bytes() })?;
            }
        }
        Ok(())
    }

    /// Something arrives over one of the links.
    fn arrive(&mut self) -> Result<(), String> {
        let nodes = &self.nodes;
        let lives =
            |end: &End| nodes[end.proxy].life == end.life && nodes[end.proxy].proxy.is_some();
        for link in &mut self.links {
            link.asks.is_open &= lives(&link.asks);
            link.serves.is_open &= lives(&link.serves);
        }
        self.links.retain(|link| !link.is_over());
        if self.links.is_empty() {
            return Ok(());
        }
        let place = self.random.below(self.links.len() as u64) as usize;
        let there = self.random.below(2) == 0;
        let link = &mut self.links[place];
        let at = if there { link.serves.proxy } else { link.asks.proxy };
        let is_late = self.now < link.stalled_until;
        if is_late || !self.runs(at) {
            return Ok(());
        }
        let link = &mut self.links[place];
        let conn = link.conn;
        match link.next(there) {
            None => Ok(()),
            Some(Arrival::There(bytes)) => {
                let proxy = self.nodes[at].proxy.as_mut().expect("it runs");
                let client = *link.client.get_or_insert_with(|| proxy.open_peer());
                self.event(at, Event::Received { client, bytes: &bytes })
            }
            Some(Arrival::ThereEnds) => match link.client {
                Some(client) => self.event(at, Event::Closed { client }),
                None => Ok(()),
            },
            Some(Arrival::Back(bytes)) => self.event(at, Event::Replied { conn, bytes: &bytes }),
            Some(Arrival::BackEnds) => self.event(at, Event::Lost { conn }),
        }
    }

    fn connect(&mut self, at: usize) -> Result<(), String> {
        if !self.runs(at) {
            return Ok(());
        }
        let Some((conn, upstream)) = self.nodes[at].dialing.pop() else { return Ok(()) };
        let is_there = match upstream.checked_sub(UPSTREAMS) {
            None => self.upstreams[upstream].away_until <= self.now,
            Some(place) => {
                let others = self.nodes.len() - 1;
                let place = place % others;
                let to = place + usize::from(at <= place);
                let end = |proxy: usize| End { proxy, life: self.nodes[proxy].life, is_open: true };
                let link = Link {
                    asks: end(at),
                    conn,
                    serves: end(to),
                    client: None,
                    there: Default::default(),
                    back: Default::default(),
                    stalled_until: 0,
                };
                let is_there = self.nodes[to].proxy.is_some();
                if is_there {
                    self.links.push(link);
                }
                is_there
            }
        };
        if let Some(wire) = self.nodes[at].wires.get_mut(conn.0 as usize) {
            wire.up = is_there;
        }
        match is_there {
            true => self.event(at, Event::Connected { conn }),
            false => self.event(at, Event::Lost { conn }),
        }
    }
}

#[path = "common/faults.rs"]
mod faults;

fn run(seeds: std::ops::Range<u64>) -> Result<Seen, String> {
    let mut all = Seen::default();
    for seed in seeds {
        let mut world = World::new(seed);
        world.run().map_err(|why| format!("seed {seed}: {why}"))?;
        let seen = world.seen;
        all.hits += seen.hits;
        all.copy_reads += seen.copy_reads;
        all.written_hits += seen.written_hits;
        all.passed += seen.passed;
        all.leases_ended += seen.leases_ended;
        all.flushed += seen.flushed;
        all.starts += seen.starts;
        all.late += seen.late;
    }
    Ok(all)
}

fn nobody_reads_what_was_overwritten(seeds: std::ops::Range<u64>) {
    let seen = run(seeds).unwrap_or_else(|why| panic!("{why}"));
    let Seen { hits, copy_reads, written_hits, passed, leases_ended, flushed, late, .. } = seen;
    let all = [hits, copy_reads, written_hits, passed, leases_ended, flushed, late];
    println!("{all:?}, {} starts", seen.starts);
    assert!(all.iter().all(|count| *count > 0), "something never happened: {all:?}");
}

// Two tests, for two cores.
#[test]
fn nobody_reads_what_another_proxy_has_overwritten() {
    nobody_reads_what_was_overwritten(0..common::seeds(100) / 2);
}

#[test]
fn nobody_reads_what_another_proxy_has_overwritten_in_other_seeds() {
    nobody_reads_what_was_overwritten(common::seeds(100) / 2..common::seeds(100));
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use mbal_model::planted::{Fault, plant};

    fn is_found(fault: Fault) {
        plant(Some(fault));
        let found = run(0..common::seeds(20_000));
        plant(None);
        let why = found.err().unwrap_or_else(|| panic!("{fault:?} was not found"));
        println!("{fault:?}: {why}");
    }

    #[test]
    fn promised_in_flight() {
        is_found(Fault::PromisedInFlight);
    }

    #[test]
    fn promised_in_doubt() {
        is_found(Fault::PromisedInDoubt);
    }

    #[test]
    fn copies_outlive_leases() {
        is_found(Fault::CopiesOutliveLeases);
    }

    #[test]
    fn restart_forgets_promises() {
        is_found(Fault::RestartForgetsPromises);
    }

    #[test]
    fn flush_not_passed() {
        is_found(Fault::FlushNotPassed);
    }

    #[test]
    fn copies_outlive_writes() {
        is_found(Fault::CopiesOutliveWrites);
    }
}
