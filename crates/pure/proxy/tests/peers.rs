//! Several proxies in virtual time: they stop, die and start again, their links are late and are cut, their clocks differ. Nobody ever
//! reads a value that was overwritten, deleted or flushed before his read began, through whichever proxy.

mod common;

use std::time::Duration;

use common::history::{Asking, Heard, History};
use common::links::{Arrival, End, Link};
use common::memcached::{Late, Memcached, Wire, requests};
use common::{MS, replication};
use mbal_model::Instant;
use mbal_proxy::{Action, ClientId, ConnId, Event, Peers, Proxy, Settings};
use mbal_testkit::{Failed, Met, Seeds, Sim, planted};

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

struct World {
    sim: Sim<()>,
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
}

impl World {
    fn new(seed: u64, tells: bool) -> World {
        let mut sim = Sim::new(seed, tells);
        sim.now = MS;
        let count = 2 + sim.random.below(2) as usize;
        let node = |speed| Node {
            proxy: None,
            life: 0,
            stopped_until: 0,
            starts_at: 0,
            speed,
            wires: Vec::new(),
            dialing: Vec::new(),
        };
        let nodes: Vec<Node> = (0..count).map(|_| node(955 + sim.random.below(91))).collect();
        let client = |at| Client { node: at % count, life: 0, id: ClientId(0), asking: None };
        World {
            nodes,
            links: Vec::new(),
            upstreams: (0..UPSTREAMS).map(|_| Memcached::default()).collect(),
            clients: (0..CLIENTS).map(client).collect(),
            history: History::default(),
            hot: 0,
            stays_hot: sim.one_of(&[300, 1500]),
            calm: sim.one_of(&[60, 200, 600, 2000]),
            sim,
        }
    }

    fn settings(&mut self, at: usize) -> Settings {
        let names = (0..self.nodes.len()).map(|at| format!("p{at}")).collect();
        let peers = Peers::new(names, &format!("p{at}"), Duration::from_nanos(LEASE));
        Settings {
            timeout: Duration::from_millis(20),
            retry: Duration::from_millis(10),
            limits: common::limits(self.calm < 300),
            replication: replication(60, 1.05),
            peers: Some(peers.expect("peers")),
            doubt: Duration::from_nanos(DOUBT),
            seed: self.sim.random.word(),
            ..common::settings(UPSTREAMS)
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
        self.sim.met.count("a proxy started");
        self.carry_out(at)
    }

    /// What a proxy's clock says.
    fn clock(&self, at: usize) -> u64 {
        self.sim.now * self.nodes[at].speed / 1000
    }

    fn runs(&self, at: usize) -> bool {
        self.nodes[at].proxy.is_some() && self.nodes[at].stopped_until <= self.sim.now
    }

    fn run(mut self) -> Result<Met, Failed> {
        self.steps().map_err(|why| Failed::new(3, why))?;
        Ok(self.sim.met)
    }

    /// The first stale read, if there is one.
    fn steps(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.sim.now += self.sim.random.below(MS / 8);
            for upstream in &mut self.upstreams {
                let count = upstream.execute_late(self.sim.now, 300, &mut self.sim.random).0;
                self.sim.met.count_all("executed late", count);
            }
            let at = self.sim.random.below(self.nodes.len() as u64) as usize;
            if self.nodes[at].proxy.is_none() && self.nodes[at].starts_at <= self.sim.now {
                self.start(at)?;
            }
            if self.sim.random.below(self.calm) == 0 {
                self.fault()?;
            }
            if self.runs(at) {
                let wake = self.nodes[at].proxy.as_mut().and_then(Proxy::next_wake);
                if wake.is_some_and(|wake| wake.as_nanos() <= self.clock(at)) {
                    self.event(at, Event::Woken)?;
                }
            }
            match self.sim.random.below(32) {
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
        for (what, times) in [
            ("read from a copy", counters.copy_reads + counters.cache_hits),
            ("answered by what was written", counters.written_hits),
            ("passed on", counters.passed),
            ("a lease ended", counters.leases_ended),
        ] {
            self.sim.met.count_all(what, times);
        }
    }

    fn event(&mut self, at: usize, event: Event<'_>) -> Result<(), String> {
        let clock = self.clock(at);
        self.nodes[at].proxy.as_mut().expect("it runs").handle(Instant::from_nanos(clock), event);
        self.carry_out(at)
    }

    fn carry_out(&mut self, at: usize) -> Result<(), String> {
        loop {
            let proxy = self.nodes[at].proxy.as_mut().expect("it runs");
            let Some(actions) = common::actions(proxy) else { return Ok(()) };
            for action in actions {
                let node = &mut self.nodes[at];
                let proxy = node.proxy.as_mut().expect("it runs");
                match action {
                    Action::ToClient(client) => {
                        let out = common::to_client(proxy, client);
                        self.hear(at, client, out)?;
                    }
                    Action::ToUpstream(conn) => {
                        let out = common::to_upstream(proxy, conn);
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
                    Action::Pause(_) | Action::Resume(_) | Action::Switch => {}
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
        let flushes = client.asking.as_ref().is_some_and(|asking| asking.keys.len() > 1);
        match self.history.hear_for(&mut client.asking, &bytes, self.sim.now)? {
            Heard::Hit => self.sim.met.count("hit"),
            Heard::Done if flushes => self.sim.met.count("flushed"),
            _ => {}
        }
        Ok(())
    }

    /// An idle client asks for something. One key is far hotter than the others, for a while.
    fn ask(&mut self) -> Result<(), String> {
        let at = self.sim.random.below(CLIENTS as u64) as usize;
        let (node, now) = (self.clients[at].node, self.sim.now);
        if self.sim.random.below(self.stays_hot) == 0 {
            self.hot = self.sim.random.below(KEYS);
        }
        if self.clients[at].asking.is_some() || !self.runs(node) {
            return Ok(());
        }
        let number =
            if self.sim.random.below(8) > 0 { self.hot } else { self.sim.random.below(KEYS) };
        let key = format!("key{number}");
        let (text, asking) = match self.sim.random.below(1000) {
            0..40 => return self.set(at, key),
            40..50 => self.history.delete(key, now),
            50..52 => {
                let keys = (0..KEYS).map(|number| format!("key{number}")).collect();
                ("flush_all\r\n".into(), self.history.write(keys, None, now))
            }
            52..250 => self.history.read(&format!("mg {key} v"), &key, now),
            250..350 => self.history.read(&format!("get other {key}"), &key, now),
            _ => self.history.read(&format!("get {key}"), &key, now),
        };
        self.send(at, &text, asking)
    }

    fn set(&mut self, client: usize, key: String) -> Result<(), String> {
        let (text, asking) = self.history.set(key, self.sim.now);
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
            let choice = self.sim.random.below(6);
            if self.sim.now < this.stopped_until || choice < 2 {
                continue;
            }
            if let Some(wire) = self.nodes[at].wires.get_mut(2 * upstream) {
                if !wire.requests.is_empty() {
                    // The proxy's clock may run fast.
                    this.late_until(at, self.sim.now + self.sim.random.below(DOUBT * 9 / 10));
                }
                this.turn(wire, choice);
            }
        }
    }

    fn reply(&mut self, at: usize) -> Result<(), String> {
        for conn in (0..UPSTREAMS).map(|upstream| 2 * upstream) {
            let count = self.sim.random.below(6) as usize;
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
        let place = self.sim.random.below(self.links.len() as u64) as usize;
        let there = self.sim.random.below(2) == 0;
        let link = &mut self.links[place];
        let at = if there { link.serves.proxy } else { link.asks.proxy };
        let is_late = self.sim.now < link.stalled_until;
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
            None => self.upstreams[upstream].away_until <= self.sim.now,
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

static PEERS: Seeds = Seeds {
    name: "PROXY",
    test: "cargo test -p mbal-proxy --test peers",
    usual: 100,
    complete: 100,
    to_meet: &[
        "hit",
        "read from a copy",
        "answered by what was written",
        "passed on",
        "a lease ended",
        "flushed",
        "a proxy started",
        "executed late",
    ],
    run: |seed, tells| World::new(seed, tells).run(),
};

#[test]
fn nobody_reads_what_another_proxy_has_overwritten() {
    PEERS.hold();
}

planted! {
    PEERS up to 20_000:
    promised_in_flight: PromisedInFlight breaks 3,
    promised_in_doubt: PromisedInDoubt breaks 3,
    copies_outlive_leases: CopiesOutliveLeases breaks 3,
    restart_forgets_promises: RestartForgetsPromises breaks 3,
    flush_not_passed: FlushNotPassed breaks 3,
    copies_outlive_writes: CopiesOutliveWrites breaks 3,
}
