//! Days of a pool in virtual time: upstreams that close idle connections, firewalls that forget them, ways that are cut, processes
//! that die and begin again, servers of a cluster that drain, pools that shrink and grow. Nothing is lost but what a dead process
//! had, nothing stale is read, and nobody who has something is flushed. `MBAL_PROXY_DAYS` says how many seeds, three days each.

mod common;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use common::history::{Asking, Heard, History};
use common::memcached::{Memcached, requests};
use mbal_model::Instant;
#[cfg(feature = "planted")]
use mbal_model::planted::Fault;
use mbal_proxy::{
    Action, ClientId, ConnId, Dialect, Distribution, Event, Limits, Proxy, RingServer, Settings,
    UpstreamState,
};
use mbal_random::Random;
use mbal_routing::ketama::Ring;

const MS: u64 = 1_000_000;
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

#[derive(Default, Debug)]
struct Seen {
    hits: u64,
    sure_hits: u64,
    errors: u64,
    idle_closes: u64,
    forgotten: u64,
    cuts: u64,
    deaths: u64,
    drains: u64,
    lists: u64,
    ejections: u64,
    returns: u64,
    failovers: u64,
    flushes: u64,
    kept_over_ejection: u64,
}

struct World {
    proxy: Proxy,
    now: u64,
    random: Random,
    is_cluster: bool,
    has_firewall: bool,
    idle_timeout: u64,
    members: Vec<usize>,
    servers: Vec<Server>,
    conns: Vec<Conn>,
    clients: Vec<Option<Waiting>>,
    known: BTreeMap<String, Known>,
    history: History,
    happens: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, Happens>,
    number: u64,
    /// The client's own `flush_all` that is under way, and the servers that were flushed by it.
    flushing: Option<(usize, Vec<usize>)>,
    ejections: u64,
    seen: Seen,
}

fn server(at: usize) -> RingServer {
    RingServer { host: format!("s{at}"), port: 1, weight: 1, name: None }
}

fn ring(members: &[usize]) -> Ring {
    let servers: Vec<RingServer> = members.iter().map(|at| server(*at)).collect();
    Ring::new(Dialect::Twemproxy, None, &servers)
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let conns_per_server = 1 + random.below(2) as usize;
        let settings = Settings {
            servers: (0..SERVERS).map(server).collect(),
            distribution: Distribution::Ketama(Dialect::Twemproxy, None),
            conns_per_server,
            timeout: Duration::from_nanos(400 * MS),
            eject: random.below(4) > 0,
            failures_max: 2,
            retry: Duration::from_nanos(SECOND),
            limits: Limits::default(),
            replication: None,
            doubt: Duration::from_nanos(5 * SECOND),
            version: "1".into(),
            pid: 1,
            started_at: 0,
            peers: None,
            seed,
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
            now: 1,
            is_cluster: seed % 2 == 0,
            has_firewall: random.below(2) == 0,
            idle_timeout: [u64::MAX, 60 * SECOND, 600 * SECOND][random.below(3) as usize],
            random,
            members: (0..SERVERS).collect(),
            servers: (0..SERVERS).map(new).collect(),
            conns: (0..2 * SERVERS * conns_per_server).map(|_| Conn::default()).collect(),
            clients: (0..CLIENTS).map(|_| None).collect(),
            known: BTreeMap::new(),
            history: History::strict(),
            happens: BinaryHeap::new(),
            what: BTreeMap::new(),
            number: 0,
            flushing: None,
            ejections: 0,
            seen: Seen::default(),
        };
        (0..CLIENTS).for_each(|client| world.later(SECOND, Happens::Asks { client }));
        world.later(100 * SECOND, Happens::Fault);
        world
    }

    fn later(&mut self, time: u64, what: Happens) {
        self.number += 1;
        self.happens.push(Reverse((self.now + time, self.number)));
        self.what.insert(self.number, what);
    }

    fn latency(&mut self) -> u64 {
        MS / 5 + self.random.below(2 * MS)
    }

    fn server_of(&self, conn: usize) -> usize {
        conn / (self.conns.len() / SERVERS)
    }

    /// The first thing that must not be.
    fn run(&mut self, until: u64) -> Result<(), String> {
        self.carry_out()?;
        while self.now < until {
            let next = self.happens.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let wake = self.proxy.next_wake().map_or(u64::MAX, Instant::as_nanos);
            if wake < next {
                self.now = self.now.max(wake);
                self.event(Event::Woken)?;
                continue;
            }
            let Reverse((at, number)) = self.happens.pop().expect("clients ask");
            self.now = self.now.max(at);
            let what = self.what.remove(&number).expect("it has a number");
            self.happen(what)?;
        }
        let counters = self.proxy.counters();
        self.seen.returns = counters.returns;
        self.seen.failovers = counters.failovers;
        self.seen.ejections = counters.ejections;
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
                self.conns[conn].used_at = self.now;
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
                self.servers[server].fault_at = self.now;
                for conn in 0..self.conns.len() {
                    if self.server_of(conn) == server {
                        let life = self.conns[conn].life;
                        for request in std::mem::take(&mut self.conns[conn].waits) {
                            let time = 10 * MS;
                            self.later(time, Happens::Arrives { conn, life, request });
                        }
                    }
                }
                Ok(())
            }
            Happens::Begins { server } => {
                self.servers[server].is_away = false;
                self.servers[server].fault_at = self.now;
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
        self.proxy.handle(Instant::from_nanos(self.now), event);
        self.carry_out()
    }

    fn carry_out(&mut self) -> Result<(), String> {
        let mut actions = Vec::new();
        loop {
            self.proxy.take_actions(&mut actions);
            if actions.is_empty() {
                return self.check_ejections();
            }
            for action in &actions {
                match *action {
                    Action::ToClient(client) => {
                        let out = self.proxy.client_output(client).to_vec();
                        self.proxy.client_took(client, out.len());
                        self.hear(client.0 as usize, &out)?;
                    }
                    Action::ToUpstream(conn) => {
                        let out = self.proxy.conn_output(conn).to_vec();
                        self.proxy.conn_took(conn, out.len());
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
                            (false, true) => self.later(time, Happens::Ends { conn: at, life }),
                            (false, false) => {
                                self.later(time, Happens::Connects { conn: at, life, process });
                            }
                        }
                    }
                    Action::HangUp(conn) | Action::Abandon(conn) => {
                        let life = self.conns[conn.0 as usize].life + 1;
                        self.conns[conn.0 as usize] = Conn { life, ..Conn::default() };
                    }
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
            let calm = |one: &Server| !one.is_cut && !one.is_away && one.fault_at + CALM < self.now;
            if self.servers.iter().all(calm) {
                return Err("an upstream that is well was ejected".into());
            }
        }
        Ok(())
    }

    fn send(&mut self, conn: usize, request: String) {
        let at = self.server_of(conn);
        // A firewall has forgotten a connection that nobody has used for a quarter of an hour.
        let forgets = self.has_firewall && self.conns[conn].used_at + 900 * SECOND < self.now;
        if forgets && self.conns[conn].process.is_some() {
            self.conns[conn].process = None;
            self.seen.forgotten += 1;
        }
        self.conns[conn].used_at = self.now;
        if self.conns[conn].process.is_none() {
            return;
        }
        if self.servers[at].is_cut {
            return self.conns[conn].waits.push(request);
        }
        // What one connection brings stays in order.
        let life = self.conns[conn].life;
        self.later(MS / 2, Happens::Arrives { conn, life, request });
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
            self.seen.flushes += 1;
        }
        let reply = match (&*request, self.is_cluster) {
            ("config get mbal\r\n", true) => {
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
            self.later(MS, Happens::Replies { conn, life, reply });
        }
        Ok(())
    }

    /// Connections that have been idle for too long are closed by their upstream.
    fn close_idle(&mut self) -> Result<(), String> {
        for conn in 0..self.conns.len() {
            let Conn { life, process, used_at, .. } = self.conns[conn];
            let is_idle = used_at.saturating_add(self.idle_timeout) < self.now;
            if process.is_some() && is_idle && !self.servers[self.server_of(conn)].is_cut {
                self.seen.idle_closes += 1;
                self.happen(Happens::Ends { conn, life })?;
            }
        }
        Ok(())
    }

    fn is_ejected(&self) -> bool {
        self.proxy.upstreams().any(|one| one.state == UpstreamState::Ejected)
    }

    fn is_calm(&self) -> bool {
        let calm = |one: &Server| !one.is_cut && !one.is_away && one.fault_at + CALM < self.now;
        self.servers.iter().all(calm)
            && self.proxy.upstreams().all(|one| one.state == UpstreamState::Up)
    }

    fn ask(&mut self, client: usize) -> Result<(), String> {
        self.close_idle()?;
        if self.clients[client].is_some() || self.flushing.is_some() {
            self.later(SECOND, Happens::Asks { client });
            return Ok(());
        }
        let key = format!("k{}", self.random.below(KEYS));
        let now = self.now;
        let mut is_write = true;
        let (text, asking) = match self.random.below(100) {
            0..22 => {
                let value = self.history.new_value(&key);
                let text = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
                (text, self.history.write(vec![key.clone()], Some(&value), now))
            }
            22..25 => {
                (format!("delete {key}\r\n"), self.history.write(vec![key.clone()], None, now))
            }
            25 if self.is_calm()
                && self.clients.iter().all(Option::is_none)
                && self.random.below(10) == 0 =>
            {
                let keys: Vec<String> = (0..KEYS).map(|number| format!("k{number}")).collect();
                self.flushing = Some((client, Vec::new()));
                ("flush_all\r\n".to_owned(), self.history.write(keys, None, now))
            }
            _ => {
                is_write = false;
                (format!("get {key}\r\n"), self.history.read(&key, now))
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
        let heard = self.history.hear(&mut waiting.asking, bytes, self.now)?;
        if heard == Heard::NotAll {
            self.clients[client] = Some(waiting);
            return Ok(());
        }
        let Waiting { asking, is_write, begun, was_calm, was_ejected } = waiting;
        let is_calm = self.is_calm();
        if heard == Heard::Error {
            self.seen.errors += 1;
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
                    Heard::Error => known.doubt_at = Some(self.now),
                    _ if was_calm
                        && is_calm
                        && known.writing == 0
                        && known.doubt_at.is_none_or(|at| at + CALM < begun) =>
                    {
                        known.doubt_at = None;
                        known.sure = is_set.then_some(self.now);
                    }
                    _ => {}
                }
            } else if let Some(stored) = known.sure.filter(|at| *at < begun) {
                match heard {
                    Heard::Miss if !was_ejected => {
                        return Err(format!(
                            "{key} was stored at {stored}, and is lost at {}",
                            self.now
                        ));
                    }
                    Heard::Hit => {
                        self.seen.sure_hits += 1;
                        self.seen.kept_over_ejection += u64::from(self.ejections > 0);
                    }
                    _ => {}
                }
            }
        }
        self.seen.hits += u64::from(heard == Heard::Hit);
        if let Some((_, flushed)) = self.flushing.take_if(|(by, _)| *by == client) {
            let each: BTreeSet<usize> = flushed.iter().copied().collect();
            if self.is_cluster && flushed.len() > 1 {
                return Err(format!("a cluster was flushed by {each:?}"));
            }
            if heard != Heard::Error && !self.is_cluster && each.len() < self.members.len() {
                return Err(format!("of the upstreams {each:?} alone were flushed"));
            }
        }
        let think = match self.random.below(20) {
            0 => self.random.below(2400 * SECOND),
            _ => self.random.below(2 * SECOND),
        };
        self.later(think, Happens::Asks { client });
        Ok(())
    }

    /// What a process had is gone with it.
    fn lose(&mut self, server: usize) {
        let place = ring(&self.members);
        let owner = |key: &str| self.members[place.owner(key.as_bytes())];
        for (key, known) in &mut self.known {
            if owner(key) == server {
                known.sure = None;
            }
        }
        if self.is_cluster {
            let members = &self.members;
            let is_its = |key: &String| members[place.owner(key.as_bytes())] == server;
            self.servers[0].items.items.retain(|key, _| !is_its(key));
        } else {
            self.servers[server].items.items.clear();
        }
    }

    fn fault(&mut self) -> Result<(), String> {
        let again = 200 * SECOND + self.random.below(3000 * SECOND);
        self.later(again, Happens::Fault);
        // The network is as good as it is bad: one thing at a time.
        if !self.is_calm() {
            return Ok(());
        }
        let at = self.members[self.random.below(self.members.len() as u64) as usize];
        let long = self.random.below(30 * SECOND);
        match self.random.below(4) {
            0 => {
                self.seen.cuts += 1;
                self.servers[at].is_cut = true;
                self.servers[at].fault_at = self.now;
                self.later(long, Happens::Heals { server: at });
            }
            1 | 2 => {
                // It dies, or is drained first.
                let drains = self.is_cluster && self.random.below(3) > 0;
                match drains {
                    true => self.seen.drains += 1,
                    false => {
                        self.seen.deaths += 1;
                        self.lose(at);
                    }
                }
                let server = &mut self.servers[at];
                (server.is_away, server.fault_at, server.process) =
                    (true, self.now, server.process + 1);
                for conn in 0..self.conns.len() {
                    if self.server_of(conn) == at && self.conns[conn].process.is_some() {
                        let (life, time) = (self.conns[conn].life, self.latency());
                        self.later(time, Happens::Ends { conn, life });
                    }
                }
                self.later(long, Happens::Begins { server: at });
                // Its cluster tells that it has left.
                if drains && self.random.below(2) == 0 {
                    self.list((0..SERVERS).filter(|one| *one != at).collect())?;
                    self.later(long + SECOND, Happens::Lists);
                }
            }
            _ if !self.is_cluster && self.clients.iter().all(Option::is_none) => {
                let members = match self.members.len() {
                    SERVERS => (0..SERVERS).filter(|one| *one != at).collect(),
                    _ => (0..SERVERS).collect(),
                };
                self.resize(members)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn list(&mut self, members: Vec<usize>) -> Result<(), String> {
        self.seen.lists += 1;
        self.members = members;
        let servers = self.members.iter().map(|at| server(*at)).collect();
        self.proxy.change(Instant::from_nanos(self.now), servers, |_, _| true);
        self.carry_out()
    }

    /// As `mbal pool resize` does it, while nobody writes.
    fn resize(&mut self, members: Vec<usize>) -> Result<(), String> {
        let (old, new) = (ring(&self.members), ring(&members));
        let old_members = self.members.clone();
        for at in members.iter().filter(|at| !old_members.contains(at)) {
            self.servers[*at].items.items.clear();
            self.servers[*at].items.items.insert(FILLED.into(), "1".into());
            self.later(3600 * SECOND, Happens::Unmarks { server: *at });
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
            self.servers[at].fault_at = self.now;
        }
        Ok(())
    }
}

fn run(seeds: std::ops::Range<u64>) -> Result<Seen, String> {
    let mut all = Seen::default();
    for seed in seeds {
        let mut world = World::new(seed);
        world
            .run(3 * DAY)
            .map_err(|why| format!("seed {seed}, {} s: {why}", world.now / SECOND))?;
        let seen = world.seen;
        all.hits += seen.hits;
        all.sure_hits += seen.sure_hits;
        all.errors += seen.errors;
        all.idle_closes += seen.idle_closes;
        all.forgotten += seen.forgotten;
        all.cuts += seen.cuts;
        all.deaths += seen.deaths;
        all.drains += seen.drains;
        all.lists += seen.lists;
        all.ejections += seen.ejections;
        all.returns += seen.returns;
        all.failovers += seen.failovers;
        all.flushes += seen.flushes;
        all.kept_over_ejection += seen.kept_over_ejection;
    }
    Ok(all)
}

/// `MBAL_PROXY_DAYS`: how many seeds, or from which one to which (`291..292`).
fn seeds() -> std::ops::Range<u64> {
    let wanted = std::env::var("MBAL_PROXY_DAYS").unwrap_or("20".into());
    let (from, to) = wanted.split_once("..").unwrap_or(("0", &wanted));
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("MBAL_PROXY_DAYS={wanted}"));
    number(from)..number(to)
}

#[test]
fn nobody_loses_anything_in_three_days_but_what_a_dead_process_had() {
    let seen = run(seeds()).unwrap_or_else(|why| panic!("{why}"));
    println!("{seen:?}");
    let Seen { hits, sure_hits, errors, idle_closes, forgotten, cuts, deaths, drains, .. } = seen;
    let Seen { lists, ejections, returns, failovers, flushes, kept_over_ejection, .. } = seen;
    let first = [hits, sure_hits, errors, idle_closes, forgotten, cuts, deaths, drains];
    let rest = [lists, ejections, returns, failovers, flushes, kept_over_ejection];
    let happened = first.iter().chain(&rest).all(|count| *count > 0);
    assert!(happened, "something never happened: {seen:?}");
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_of_days_are_found() {
    use mbal_model::planted::plant;
    let mut unfound = Vec::new();
    for fault in [
        Fault::FlushedOnReturn,
        Fault::FlushedByEach,
        Fault::IdleCloseFails,
        Fault::ServesUnflushed,
        Fault::FilledForgotten,
    ] {
        plant(Some(fault));
        let found = run(0..40);
        plant(None);
        match found {
            Err(why) => println!("{fault:?}: {why}"),
            Ok(_) => unfound.push(fault),
        }
    }
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}
