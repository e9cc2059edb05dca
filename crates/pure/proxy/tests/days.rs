//! Days of a pool in virtual time: upstreams that close idle connections, firewalls that forget them, ways that are cut, processes
//! that die and begin again, servers of a cluster that drain, pools that shrink and grow. Nothing is lost but what a dead process
//! had, nothing stale is read, and nobody who has something is flushed. `MBAL_PROXY_DAYS_SEEDS` says how many seeds, three days each.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::history::{Asking, Heard, History};
use common::memcached::{Memcached, requests};
use common::{KETAMA, MS, server};
use mbal_model::Instant;
use mbal_proxy::{
    Action, ClientId, ConnId, CopiedKey, Dialect, Event, PoolTold, Proxy, RingServer, Settings,
    Slots, UpstreamState,
};
use mbal_routing::ketama::Ring;
use mbal_testkit::{Failed, Met, Seeds, Sim, planted};

const SECOND: u64 = 1000 * MS;
const DAY: u64 = 86_400 * SECOND;
const SERVERS: usize = 3;
const CLIENTS: usize = 4;
const KEYS: u64 = 60;
const FILLED: &str = "mbal:filled";
/// After so long without a fault everything is as it was.
const CALM: u64 = 60 * SECOND;

/// What happens at a moment. A connection's are over with its life.
enum Happens {
    Arrives { conn: usize, life: u64, request: String },
    Replies { conn: usize, life: u64, reply: String },
    Connects { conn: usize, life: u64, process: u64 },
    Ends { conn: usize, life: u64 },
    Asks { client: usize },
    Fault,
    Heals { server: usize },
    Begins { server: usize },
    Lists,
    Unmarks { server: usize },
}

#[derive(Default)]
struct Conn {
    life: u64,
    /// Which process of the server has accepted it.
    process: Option<u64>,
    used_at: u64,
    /// What the machine sends when the way is there again.
    waits: Vec<String>,
}

struct Server {
    /// Of a cluster all have the first one's.
    items: Memcached,
    process: u64,
    is_away: bool,
    is_cut: bool,
    fault_at: u64,
}

/// What is known of a key beside its history.
#[derive(Default)]
struct Known {
    /// It was stored then, and has to be there.
    sure: Option<u64>,
    writing: usize,
    /// A write had no known outcome.
    doubt_at: Option<u64>,
}

/// What a client waits for.
struct Waiting {
    asking: Asking,
    is_write: bool,
    begun: u64,
    /// When it asked. A reply may come after an upstream has come back, and be that of its stand-in still.
    was_calm: bool,
    was_ejected: bool,
}

struct World {
    proxy: Proxy,
    sim: Sim<Happens>,
    is_cluster: bool,
    /// Of a cluster whose map the proxy is told: who has which keys.
    slots: Option<Slots>,
    has_firewall: bool,
    idle_timeout: u64,
    members: Vec<usize>,
    servers: Vec<Server>,
    conns: Vec<Conn>,
    clients: Vec<Option<Waiting>>,
    known: BTreeMap<String, Known>,
    history: History,
    /// The client's own `flush_all` that is under way, and the servers that were flushed by it.
    flushing: Option<(usize, Vec<usize>)>,
    ejections: u64,
}

fn ring(members: &[usize]) -> Ring {
    let servers: Vec<RingServer> = members.iter().map(|at| server(*at)).collect();
    Ring::new(Dialect::Twemproxy, None, &servers)
}

/// Each part of the hashes is any member's.
fn mapped(sim: &mut Sim<Happens>, members: usize) -> Slots {
    let seed = sim.random.word();
    Slots::new(|hash| (mbal_random::mix(seed ^ (hash >> 60)) % members as u64) as u16)
}

impl World {
    fn new(seed: u64, tells: bool) -> World {
        let mut sim = Sim::new(seed, tells);
        sim.now = 1;
        let conns_per_server = 1 + sim.random.below(2) as usize;
        let slots = (seed % 4 == 0).then(|| mapped(&mut sim, SERVERS));
        let settings = Settings {
            distribution: KETAMA,
            slots: slots.clone(),
            conns_per_server,
            timeout: Duration::from_millis(400),
            eject: !sim.one_in(4) && slots.is_none(),
            failures_max: 2,
            doubt: Duration::from_secs(5),
            seed,
            ..common::settings(SERVERS)
        };
        let mut proxy = Proxy::new(settings);
        proxy.start(Instant::from_nanos(1));
        for _ in 0..CLIENTS {
            proxy.open();
        }
        let new = |_| Server {
            items: Memcached::default(),
            process: 1,
            is_away: false,
            is_cut: false,
            fault_at: 0,
        };
        let mut world = World {
            proxy,
            is_cluster: seed % 2 == 0,
            slots,
            has_firewall: sim.one_in(2),
            idle_timeout: sim.one_of(&[u64::MAX, 60 * SECOND, 600 * SECOND]),
            sim,
            members: (0..SERVERS).collect(),
            servers: (0..SERVERS).map(new).collect(),
            conns: (0..2 * SERVERS * conns_per_server).map(|_| Conn::default()).collect(),
            clients: (0..CLIENTS).map(|_| None).collect(),
            known: BTreeMap::new(),
            history: History::strict(),
            flushing: None,
            ejections: 0,
        };
        (0..CLIENTS).for_each(|client| world.sim.after(SECOND, Happens::Asks { client }));
        world.sim.after(100 * SECOND, Happens::Fault);
        world
    }

    fn latency(&mut self) -> u64 {
        MS / 5 + self.sim.random.below(2 * MS)
    }

    fn server_of(&self, conn: usize) -> usize {
        conn / (self.conns.len() / SERVERS)
    }

    fn run(mut self) -> Result<Met, Failed> {
        self.days().map_err(|why| Failed::new(3, format!("{} s: {why}", self.sim.now / SECOND)))?;
        Ok(self.sim.met)
    }

    /// The first thing that must not be.
    fn days(&mut self) -> Result<(), String> {
        self.carry_out()?;
        while self.sim.now < 3 * DAY {
            let next = self.sim.next_at().unwrap_or(u64::MAX);
            let wake = self.proxy.next_wake().map_or(u64::MAX, Instant::as_nanos);
            if wake < next {
                self.sim.now = self.sim.now.max(wake);
                self.event(Event::Woken)?;
                continue;
            }
            let what = self.sim.advance().expect("clients ask");
            self.happen(what)?;
        }
        let counters = self.proxy.counters();
        self.sim.met.count_all("an upstream returned", counters.returns);
        self.sim.met.count_all("a server stood in", counters.failovers);
        self.sim.met.count_all("ejected", counters.ejections);
        Ok(())
    }

    fn happen(&mut self, what: Happens) -> Result<(), String> {
        match what {
            Happens::Arrives { conn, life, request } => self.arrives(conn, life, request),
            Happens::Replies { conn, life, reply } if self.conns[conn].life == life => {
                let conn = ConnId(conn as u32);
                self.event(Event::Replied { conn, bytes: reply.as_bytes() })
            }
            Happens::Connects { conn, life, process } if self.conns[conn].life == life => {
                self.conns[conn].process = Some(process);
                self.conns[conn].used_at = self.sim.now;
                self.event(Event::Connected { conn: ConnId(conn as u32) })
            }
            Happens::Ends { conn, life } if self.conns[conn].life == life => {
                self.conns[conn] = Conn { life: life + 1, ..Conn::default() };
                self.event(Event::Lost { conn: ConnId(conn as u32) })
            }
            Happens::Replies { .. } | Happens::Connects { .. } | Happens::Ends { .. } => Ok(()),
            Happens::Asks { client } => self.ask(client),
            Happens::Fault => self.fault(),
            Happens::Heals { server } => {
                self.servers[server].is_cut = false;
                self.servers[server].fault_at = self.sim.now;
                for conn in 0..self.conns.len() {
                    if self.server_of(conn) == server {
                        let life = self.conns[conn].life;
                        for request in std::mem::take(&mut self.conns[conn].waits) {
                            let time = 10 * MS;
                            self.sim.after(time, Happens::Arrives { conn, life, request });
                        }
                    }
                }
                Ok(())
            }
            Happens::Begins { server } => {
                self.servers[server].is_away = false;
                self.servers[server].fault_at = self.sim.now;
                Ok(())
            }
            Happens::Lists => self.list((0..SERVERS).collect()),
            Happens::Unmarks { server } => {
                self.servers[server].items.items.remove(FILLED);
                Ok(())
            }
        }
    }

    fn event(&mut self, event: Event<'_>) -> Result<(), String> {
        self.proxy.handle(Instant::from_nanos(self.sim.now), event);
        self.carry_out()
    }

    fn carry_out(&mut self) -> Result<(), String> {
        loop {
            let Some(actions) = common::actions(&mut self.proxy) else {
                return self.check_ejections();
            };
            for action in actions {
                match action {
                    Action::ToClient(client) => {
                        let out = common::to_client(&mut self.proxy, client);
                        self.hear(client.0 as usize, &out)?;
                    }
                    Action::ToUpstream(conn) => {
                        let out = common::to_upstream(&mut self.proxy, conn);
                        for request in requests(&String::from_utf8_lossy(&out)) {
                            self.send(conn.0 as usize, request);
                        }
                    }
                    Action::Dial { conn, upstream } => {
                        let at = conn.0 as usize;
                        let life = self.conns[at].life + 1;
                        self.conns[at] = Conn { life, ..Conn::default() };
                        let time = self.latency();
                        let Server { is_cut, is_away, process, .. } = self.servers[upstream];
                        match (is_cut, is_away) {
                            (true, _) => {}
                            (false, true) => self.sim.after(time, Happens::Ends { conn: at, life }),
                            (false, false) => {
                                self.sim.after(time, Happens::Connects { conn: at, life, process });
                            }
                        }
                    }
                    Action::HangUp(conn) | Action::Abandon(conn) => {
                        let life = self.conns[conn.0 as usize].life + 1;
                        self.conns[conn.0 as usize] = Conn { life, ..Conn::default() };
                    }
                    Action::Switch => unreachable!("nobody switches"),
                    Action::Close(_) | Action::CutOff(_) | Action::Pause(_) | Action::Resume(_) => {
                    }
                }
            }
        }
    }

    /// Nobody is left out who could be reached.
    fn check_ejections(&mut self) -> Result<(), String> {
        let ejections = self.proxy.counters().ejections;
        if ejections > self.ejections {
            self.ejections = ejections;
            let calm =
                |one: &Server| !one.is_cut && !one.is_away && one.fault_at + CALM < self.sim.now;
            if self.servers.iter().all(calm) {
                return Err("an upstream that is well was ejected".into());
            }
        }
        Ok(())
    }

    fn send(&mut self, conn: usize, request: String) {
        let at = self.server_of(conn);
        // A firewall has forgotten a connection that nobody has used for a quarter of an hour.
        let forgets = self.has_firewall && self.conns[conn].used_at + 900 * SECOND < self.sim.now;
        if forgets && self.conns[conn].process.is_some() {
            self.conns[conn].process = None;
            self.sim.met.count("a firewall forgot");
        }
        self.conns[conn].used_at = self.sim.now;
        if self.conns[conn].process.is_none() {
            return;
        }
        if self.servers[at].is_cut {
            return self.conns[conn].waits.push(request);
        }
        // What one connection brings stays in order.
        let life = self.conns[conn].life;
        self.sim.after(MS / 2, Happens::Arrives { conn, life, request });
    }

    fn arrives(&mut self, conn: usize, life: u64, request: String) -> Result<(), String> {
        let at = self.server_of(conn);
        let is_alive = self.conns[conn].life == life;
        let Server { is_cut, is_away, process, .. } = self.servers[at];
        if is_away || is_alive && self.conns[conn].process != Some(process) {
            return Ok(());
        }
        if is_cut {
            if is_alive {
                self.conns[conn].waits.push(request);
            }
            return Ok(());
        }
        if request == "flush_all\r\n" {
            match &mut self.flushing {
                Some((_, flushed)) => flushed.push(at),
                None => return Err(format!("s{at} was flushed, though nobody wanted it")),
            }
            self.sim.met.count("flushed");
        }
        let reply = match (&*request, self.is_cluster) {
            ("config get mbal servers\r\n", true) => {
                let line = |at| format!("server {at} link l{at}:1 client s{at}:1\n");
                let lines: String = (0..SERVERS).map(line).collect();
                let told = format!("cluster mbal\nversion 1.1\n{lines}");
                format!("CONFIG mbal 0 {}\r\n{told}\r\nEND\r\n", told.len())
            }
            (_, is_cluster) => {
                let items = if is_cluster { 0 } else { at };
                self.servers[items].items.execute(&request)
            }
        };
        if is_alive {
            self.sim.after(MS, Happens::Replies { conn, life, reply });
        }
        Ok(())
    }

    /// Connections that have been idle for too long are closed by their upstream.
    fn close_idle(&mut self) -> Result<(), String> {
        for conn in 0..self.conns.len() {
            let Conn { life, process, used_at, .. } = self.conns[conn];
            let is_idle = used_at.saturating_add(self.idle_timeout) < self.sim.now;
            if process.is_some() && is_idle && !self.servers[self.server_of(conn)].is_cut {
                self.sim.met.count("closed since it was idle");
                self.happen(Happens::Ends { conn, life })?;
            }
        }
        Ok(())
    }

    fn is_ejected(&self) -> bool {
        self.proxy.upstreams().any(|one| one.state == UpstreamState::Ejected)
    }

    fn is_calm(&self) -> bool {
        let calm = |one: &Server| !one.is_cut && !one.is_away && one.fault_at + CALM < self.sim.now;
        self.servers.iter().all(calm)
            && self.proxy.upstreams().all(|one| one.state == UpstreamState::Up)
    }

    fn ask(&mut self, client: usize) -> Result<(), String> {
        self.close_idle()?;
        if self.clients[client].is_some() || self.flushing.is_some() {
            self.sim.after(SECOND, Happens::Asks { client });
            return Ok(());
        }
        let key = format!("k{}", self.sim.random.below(KEYS));
        let now = self.sim.now;
        let mut is_write = true;
        let (text, asking) = match self.sim.random.below(100) {
            0..22 => self.history.set(key, now),
            22..25 => self.history.delete(key, now),
            25 if self.is_calm()
                && self.clients.iter().all(Option::is_none)
                && self.sim.random.below(10) == 0 =>
            {
                let keys: Vec<String> = (0..KEYS).map(|number| format!("k{number}")).collect();
                self.flushing = Some((client, Vec::new()));
                ("flush_all\r\n".to_owned(), self.history.write(keys, None, now))
            }
            _ => {
                is_write = false;
                self.history.read(&format!("get {key}"), &key, now)
            }
        };
        for key in asking.keys.iter().filter(|_| is_write) {
            let known = self.known.entry(key.clone()).or_default();
            known.sure = None;
            known.writing += 1;
        }
        let (was_calm, was_ejected) = (self.is_calm(), self.is_ejected());
        let waiting = Waiting { asking, is_write, begun: now, was_calm, was_ejected };
        self.clients[client] = Some(waiting);
        self.event(Event::Received { client: ClientId(client as u32), bytes: text.as_bytes() })
    }

    fn hear(&mut self, client: usize, bytes: &[u8]) -> Result<(), String> {
        let mut waiting = self.clients[client].take().ok_or("a reply that nobody waits for")?;
        let heard = self.history.hear(&mut waiting.asking, bytes, self.sim.now)?;
        if heard == Heard::NotAll {
            self.clients[client] = Some(waiting);
            return Ok(());
        }
        let Waiting { asking, is_write, begun, was_calm, was_ejected } = waiting;
        let is_calm = self.is_calm();
        if heard == Heard::Error {
            self.sim.met.count("error");
            if is_calm && !self.has_firewall {
                let said = String::from_utf8_lossy(bytes);
                return Err(format!("all is well, and a client hears {said:?}"));
            }
        }
        let is_set = is_write && bytes == b"STORED\r\n";
        for key in &asking.keys {
            let known = self.known.entry(key.clone()).or_default();
            if is_write {
                known.writing -= 1;
                match heard {
                    Heard::Error => known.doubt_at = Some(self.sim.now),
                    _ if was_calm
                        && is_calm
                        && known.writing == 0
                        && known.doubt_at.is_none_or(|at| at + CALM < begun) =>
                    {
                        known.doubt_at = None;
                        known.sure = is_set.then_some(self.sim.now);
                    }
                    _ => {}
                }
            } else if let Some(stored) = known.sure.filter(|at| *at < begun) {
                match heard {
                    Heard::Miss if !was_ejected => {
                        return Err(format!(
                            "{key} was stored at {stored}, and is lost at {}",
                            self.sim.now
                        ));
                    }
                    Heard::Hit => {
                        self.sim.met.count("hit of what has to be there");
                        if self.ejections > 0 {
                            self.sim.met.count("kept over an ejection");
                        }
                    }
                    _ => {}
                }
            }
        }
        if heard == Heard::Hit {
            self.sim.met.count("hit");
        }
        if let Some((_, flushed)) = self.flushing.take_if(|(by, _)| *by == client) {
            let each: BTreeSet<usize> = flushed.iter().copied().collect();
            if self.is_cluster && flushed.len() > 1 {
                return Err(format!("a cluster was flushed by {each:?}"));
            }
            if heard != Heard::Error && !self.is_cluster && each.len() < self.members.len() {
                return Err(format!("of the upstreams {each:?} alone were flushed"));
            }
        }
        let think = match self.sim.random.below(20) {
            0 => self.sim.random.below(2400 * SECOND),
            _ => self.sim.random.below(2 * SECOND),
        };
        self.sim.after(think, Happens::Asks { client });
        Ok(())
    }

    /// What a process had is gone with it.
    fn lose(&mut self, server: usize) {
        let (place, slots) = (ring(&self.members), self.slots.clone());
        let members = self.members.clone();
        let owner = |key: &str| {
            let place = match &slots {
                Some(slots) => slots.member(key.as_bytes()),
                None => place.owner(key.as_bytes()),
            };
            members[place]
        };
        for (key, known) in &mut self.known {
            if owner(key) == server {
                known.sure = None;
            }
        }
        if self.is_cluster {
            self.servers[0].items.items.retain(|key, _| owner(key) != server);
        } else {
            self.servers[server].items.items.clear();
        }
    }

    fn fault(&mut self) -> Result<(), String> {
        let again = 200 * SECOND + self.sim.random.below(3000 * SECOND);
        self.sim.after(again, Happens::Fault);
        // The network is as good as it is bad: one thing at a time.
        if !self.is_calm() {
            return Ok(());
        }
        let at = self.members[self.sim.random.below(self.members.len() as u64) as usize];
        let long = self.sim.random.below(30 * SECOND);
        match self.sim.random.below(4) {
            0 => {
                self.sim.met.count("cut");
                self.servers[at].is_cut = true;
                self.servers[at].fault_at = self.sim.now;
                self.sim.after(long, Happens::Heals { server: at });
            }
            1 | 2 => {
                // It dies, or is drained first.
                let drains = self.is_cluster && self.sim.random.below(3) > 0;
                match drains {
                    true => self.sim.met.count("drained"),
                    false => {
                        self.sim.met.count("died");
                        self.lose(at);
                    }
                }
                let server = &mut self.servers[at];
                (server.is_away, server.fault_at, server.process) =
                    (true, self.sim.now, server.process + 1);
                for conn in 0..self.conns.len() {
                    if self.server_of(conn) == at && self.conns[conn].process.is_some() {
                        let (life, time) = (self.conns[conn].life, self.latency());
                        self.sim.after(time, Happens::Ends { conn, life });
                    }
                }
                self.sim.after(long, Happens::Begins { server: at });
                // Its cluster tells that it has left.
                if drains && self.sim.random.below(2) == 0 {
                    self.list((0..SERVERS).filter(|one| *one != at).collect())?;
                    self.sim.after(long + SECOND, Happens::Lists);
                }
            }
            _ if !self.is_cluster && self.clients.iter().all(Option::is_none) => {
                let members = match self.members.len() {
                    SERVERS => (0..SERVERS).filter(|one| *one != at).collect(),
                    _ => (0..SERVERS).collect(),
                };
                self.resize(members)?;
            }
            _ if self.slots.is_some() => self.list(self.members.clone())?,
            _ => {}
        }
        Ok(())
    }

    fn list(&mut self, members: Vec<usize>) -> Result<(), String> {
        self.sim.met.count("listed");
        self.members = members;
        let servers: Vec<RingServer> = self.members.iter().map(|at| server(*at)).collect();
        let count = servers.len();
        if self.slots.is_some() {
            self.sim.met.count("mapped");
            self.slots = Some(mapped(&mut self.sim, count));
        }
        // All servers have what one has, so each answers any read.
        let copied = |number| CopiedKey {
            key: format!("k{number}").into_bytes(),
            members: (0..count as u16).collect(),
        };
        let copies = self.slots.iter().flat_map(|_| (0..KEYS / 4).map(copied)).collect();
        let pool = PoolTold { servers, slots: self.slots.clone(), copies };
        self.proxy.change(Instant::from_nanos(self.sim.now), pool, |_, _| true);
        self.carry_out()
    }

    /// As `mbal pool resize` does it, while nobody writes.
    fn resize(&mut self, members: Vec<usize>) -> Result<(), String> {
        let (old, new) = (ring(&self.members), ring(&members));
        let old_members = self.members.clone();
        for at in members.iter().filter(|at| !old_members.contains(at)) {
            self.servers[*at].items.items.clear();
            self.servers[*at].items.items.insert(FILLED.into(), "1".into());
            self.sim.after(3600 * SECOND, Happens::Unmarks { server: *at });
        }
        for from in old_members {
            for (key, value) in self.servers[from].items.items.clone() {
                let to = members[new.owner(key.as_bytes())];
                if self.members[old.owner(key.as_bytes())] == from && to != from && key != FILLED {
                    self.servers[to].items.items.insert(key, value);
                }
            }
        }
        self.list(members.clone())?;
        for at in &members {
            let is_its = |key: &str| members[new.owner(key.as_bytes())] == *at || key == FILLED;
            self.servers[*at].items.items.retain(|key, _| is_its(key));
        }
        // Connections to who comes are made.
        for at in members {
            self.servers[at].fault_at = self.sim.now;
        }
        Ok(())
    }
}

static DAYS: Seeds = Seeds {
    name: "PROXY_DAYS",
    test: "cargo test -p mbal-proxy --test days",
    usual: 20,
    complete: 20,
    to_meet: &[
        "hit",
        "hit of what has to be there",
        "error",
        "closed since it was idle",
        "a firewall forgot",
        "cut",
        "died",
        "drained",
        "listed",
        "mapped",
        "ejected",
        "an upstream returned",
        "a server stood in",
        "flushed",
        "kept over an ejection",
    ],
    run: |seed, tells| World::new(seed, tells).run(),
};

#[test]
fn nobody_loses_anything_in_three_days_but_what_a_dead_process_had() {
    DAYS.hold();
}

planted! {
    DAYS up to 40:
    flushed_on_return: FlushedOnReturn breaks 3,
    flushed_by_each: FlushedByEach breaks 3,
    idle_close_fails: IdleCloseFails breaks 3,
    serves_unflushed: ServesUnflushed breaks 3,
    filled_forgotten: FilledForgotten breaks 3,
}
