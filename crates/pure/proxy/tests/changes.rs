//! Upstreams that leave the pool and come back, in virtual time: requests to them are answered, and nobody reads what was
//! overwritten before his read began.

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mbal_model::Instant;
use mbal_proxy::{
    Action, ClientId, ConnId, Dialect, Distribution, Event, Limits, Proxy, Replication, RingServer,
    Settings, UpstreamState,
};
use mbal_random::Random;

const MS: u64 = 1_000_000;
const UPSTREAMS: usize = 3;
const CONNS_EACH: usize = 4;
const CLIENTS: usize = 6;
const KEYS: u64 = 12;
const STEPS: usize = 8_000;

struct Write {
    value: usize,
    begun: u64,
    ended: u64,
}

struct Asking {
    key: u64,
    write: Option<usize>,
    begun: u64,
}

/// A memcached, with what its connections bring and take.
#[derive(Default)]
struct Upstream {
    items: BTreeMap<String, String>,
}

#[derive(Default)]
struct Wire {
    requests: VecDeque<String>,
    replies: VecDeque<String>,
}

#[derive(Default, Debug)]
struct Seen {
    hits: u64,
    misses: u64,
    changes: u64,
    returns: u64,
    hung_up: u64,
    /// Requests on their way over connections of an upstream that leaves.
    owed: u64,
    copy_reads: u64,
}

struct World {
    proxy: Proxy,
    now: u64,
    random: Random,
    upstreams: Vec<Upstream>,
    wires: BTreeMap<usize, Wire>,
    dialing: Vec<usize>,
    clients: Vec<Option<Asking>>,
    writes: Vec<Vec<Write>>,
    seen: Seen,
}

fn server(at: usize) -> RingServer {
    RingServer { host: format!("s{at}"), port: 1, weight: 1, name: None }
}

fn settings(seed: u64) -> Settings {
    Settings {
        servers: (0..UPSTREAMS).map(server).collect(),
        distribution: Distribution::Ketama(Dialect::Twemproxy, None),
        conns_per_server: CONNS_EACH / 2,
        timeout: Duration::from_nanos(1_000_000 * MS),
        eject: false,
        failures_max: 1,
        retry: Duration::from_nanos(MS),
        limits: Limits::default(),
        replication: None,
        doubt: Duration::ZERO,
        pid: 1,
        started_at: 0,
        version: "1".into(),
        peers: None,
        seed,
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut settings = settings(seed);
        if seed % 2 == 0 {
            settings.replication = Some(Replication {
                interval: Duration::from_nanos(150 * MS),
                target: 1.05,
                sampling: 1.0,
            });
        }
        let mut proxy = Proxy::new(settings);
        proxy.start(Instant::from_nanos(1));
        for _ in 0..CLIENTS {
            proxy.open();
        }
        World {
            proxy,
            now: 1,
            random: Random::new(seed),
            upstreams: (0..UPSTREAMS).map(|_| Upstream::default()).collect(),
            wires: BTreeMap::new(),
            dialing: Vec::new(),
            clients: (0..CLIENTS).map(|_| None).collect(),
            writes: (0..KEYS).map(|_| Vec::new()).collect(),
            seen: Seen::default(),
        }
    }

    /// One upstream leaves, and comes back; it does not leave again: a key that returns to where it was has stayed there.
    fn run(&mut self) -> Result<(), String> {
        self.carry_out()?;
        let leaver = self.random.below(UPSTREAMS as u64) as usize;
        let leaves = self.random.below(STEPS as u64 - 200) as usize;
        let returns = leaves + self.random.below(200) as usize;
        for step in 0..STEPS {
            self.now += self.random.below(MS / 4);
            if self.proxy.next_wake().is_some_and(|wake| wake.as_nanos() <= self.now) {
                self.event(Event::Woken)?;
            }
            if step == leaves {
                let first = leaver * CONNS_EACH;
                let owed = (first..first + CONNS_EACH).filter_map(|conn| self.wires.get(&conn));
                self.seen.owed +=
                    owed.map(|wire| (wire.requests.len() + wire.replies.len()) as u64).sum::<u64>();
                self.change(|at| at != leaver)?;
            }
            if step == returns {
                self.change(|_| true)?;
            }
            match self.random.below(10) {
                0..3 => self.ask()?,
                3..6 => self.execute(),
                6..9 => self.reply()?,
                _ => self.connect()?,
            }
        }
        self.seen.changes = self.proxy.counters().pool_changes;
        self.seen.returns = self.proxy.counters().returns;
        self.seen.copy_reads = self.proxy.counters().copy_reads;
        // All that was asked is answered.
        for _ in 0..20 * STEPS {
            self.now += self.random.below(MS / 4);
            self.execute();
            self.reply()?;
            self.connect()?;
            let is_quiet = |wire: &Wire| wire.requests.is_empty() && wire.replies.is_empty();
            let waiting: usize = self.proxy.upstreams().map(|upstream| upstream.waiting).sum();
            if waiting + self.proxy.stats().leaving == 0
                && self.dialing.is_empty()
                && self.wires.values().all(is_quiet)
            {
                break;
            }
        }
        if let Some(at) = self.clients.iter().position(Option::is_some) {
            return Err(format!("client {at} waits for ever"));
        }
        let is_up = |upstream: mbal_proxy::UpstreamStats| upstream.state == UpstreamState::Up;
        if !self.proxy.upstreams().all(is_up) || self.proxy.stats().leaving > 0 {
            return Err("not all serve".into());
        }
        Ok(())
    }

    fn change(&mut self, is_member: impl Fn(usize) -> bool) -> Result<(), String> {
        let servers = (0..UPSTREAMS).filter(|at| is_member(*at)).map(server).collect();
        let expected: Vec<usize> = (0..UPSTREAMS).filter(|at| is_member(*at)).collect();
        let numbers = self.proxy.change(Instant::from_nanos(self.now), servers, |_, _| true);
        assert_eq!(numbers, expected, "upstreams keep their numbers");
        self.carry_out()
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
                return Ok(());
            }
            for action in &actions {
                match *action {
                    Action::ToClient(client) => {
                        let out = self.proxy.client_output(client).to_vec();
                        self.proxy.client_took(client, out.len());
                        self.hear(client, &String::from_utf8_lossy(&out))?;
                    }
                    Action::ToUpstream(conn) => {
                        let out = self.proxy.conn_output(conn).to_vec();
                        self.proxy.conn_took(conn, out.len());
                        let wire = self.wires.entry(conn.0 as usize).or_default();
                        wire.requests.extend(requests(&String::from_utf8_lossy(&out)));
                    }
                    Action::Dial { conn, .. } => self.dialing.push(conn.0 as usize),
                    Action::HangUp(conn) | Action::Abandon(conn) => {
                        let conn = conn.0 as usize;
                        self.dialing.retain(|other| *other != conn);
                        let wire = self.wires.remove(&conn).unwrap_or_default();
                        if !wire.requests.is_empty() || !wire.replies.is_empty() {
                            return Err(format!("connection {conn} ends before its replies"));
                        }
                        self.seen.hung_up += 1;
                    }
                    Action::Close(_) | Action::CutOff(_) | Action::Pause(_) | Action::Resume(_) => {
                    }
                }
            }
        }
    }

    fn ask(&mut self) -> Result<(), String> {
        let client = self.random.below(CLIENTS as u64) as usize;
        if self.clients[client].is_some() {
            return Ok(());
        }
        // One key is far hotter than the others.
        let key = if self.random.below(2) == 0 { 0 } else { self.random.below(KEYS) };
        let writes = &mut self.writes[key as usize];
        let (text, write) = if self.random.below(10) == 0 {
            let value = writes.len();
            writes.push(Write { value, begun: self.now, ended: u64::MAX });
            let text = value.to_string();
            (format!("set k{key} 0 0 {}\r\n{text}\r\n", text.len()), Some(value))
        } else {
            (format!("get k{key}\r\n"), None)
        };
        self.clients[client] = Some(Asking { key, write, begun: self.now });
        self.event(Event::Received { client: ClientId(client as u32), bytes: text.as_bytes() })
    }

    fn hear(&mut self, client: ClientId, heard: &str) -> Result<(), String> {
        let asking = self.clients[client.0 as usize].take().ok_or("nobody waits for a reply")?;
        let writes = &mut self.writes[asking.key as usize];
        if let Some(write) = asking.write {
            writes[write].ended = self.now;
            return if heard == "STORED\r\n" { Ok(()) } else { Err(format!("heard {heard:?}")) };
        }
        let value = match heard.lines().collect::<Vec<_>>()[..] {
            ["END"] => {
                self.seen.misses += 1;
                return Ok(());
            }
            [_, value, "END"] => value.parse::<usize>().expect("a number"),
            _ => return Err(format!("heard {heard:?}")),
        };
        self.seen.hits += 1;
        let read = writes.iter().find(|write| write.value == value).expect("it was written");
        let over = |other: &&Write| read.ended < other.begun && other.ended < asking.begun;
        match writes.iter().find(over) {
            Some(newer) => Err(format!("k{}: read {value} after {}", asking.key, newer.value)),
            None => Ok(()),
        }
    }

    fn a_wire(&mut self) -> Option<usize> {
        let conns: Vec<usize> = self.wires.keys().copied().collect();
        let at = self.random.below(conns.len().max(1) as u64) as usize;
        conns.get(at).copied()
    }

    fn execute(&mut self) {
        let Some(conn) = self.a_wire() else { return };
        let wire = self.wires.get_mut(&conn).expect("it is listed");
        for _ in 0..1 + self.random.below(3) {
            let Some(request) = wire.requests.pop_front() else { return };
            let reply = self.upstreams[conn / CONNS_EACH].execute(&request);
            wire.replies.push_back(reply);
        }
    }

    fn reply(&mut self) -> Result<(), String> {
        let Some(conn) = self.a_wire() else { return Ok(()) };
        let wire = self.wires.get_mut(&conn).expect("it is listed");
        let Some(reply) = wire.replies.pop_front() else { return Ok(()) };
        self.event(Event::Replied { conn: ConnId(conn as u32), bytes: reply.as_bytes() })
    }

    fn connect(&mut self) -> Result<(), String> {
        let Some(conn) = self.dialing.pop() else { return Ok(()) };
        self.wires.entry(conn).or_default();
        self.event(Event::Connected { conn: ConnId(conn as u32) })
    }
}

impl Upstream {
    fn execute(&mut self, request: &str) -> String {
        let (line, value) = request.split_once("\r\n").expect("a line");
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["get", key] => match self.items.get(key) {
                Some(value) => format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len()),
                None => "END\r\n".into(),
            },
            // A value to be copied.
            ["mg", key, "v", "f", "t"] => match self.items.get(key) {
                Some(value) => format!("VA {} f0 t-1\r\n{value}\r\n", value.len()),
                None => "EN\r\n".into(),
            },
            ["delete", key] => match self.items.remove(key) {
                Some(_) => "DELETED\r\n".into(),
                None => "NOT_FOUND\r\n".into(),
            },
            ["set", key, ..] => {
                self.items.insert(key.into(), value.trim_end().into());
                "STORED\r\n".into()
            }
            ["md", key] => match self.items.remove(key) {
                Some(_) => "HD\r\n".into(),
                None => "NF\r\n".into(),
            },
            ["config", "get", "mbal"] => "ERROR\r\n".into(),
            ["version"] => "VERSION 1\r\n".into(),
            ["flush_all"] => {
                self.items.clear();
                "OK\r\n".into()
            }
            _ => panic!("{request:?}"),
        }
    }
}

fn requests(mut text: &str) -> Vec<String> {
    let mut found = Vec::new();
    while !text.is_empty() {
        let line = text.find("\r\n").expect("whole requests leave") + 2;
        let has_value = text.starts_with("set ");
        let value = if has_value { text[line..].find("\r\n").expect("a value") + 2 } else { 0 };
        found.push(text[..line + value].to_owned());
        text = &text[line + value..];
    }
    found
}

fn run(seeds: std::ops::Range<u64>) -> Result<Seen, String> {
    let mut all = Seen::default();
    for seed in seeds {
        let mut world = World::new(seed);
        world.run().map_err(|why| format!("seed {seed}: {why}"))?;
        let seen = world.seen;
        all.hits += seen.hits;
        all.misses += seen.misses;
        all.changes += seen.changes;
        all.returns += seen.returns;
        all.hung_up += seen.hung_up;
        all.owed += seen.owed;
        all.copy_reads += seen.copy_reads;
    }
    Ok(all)
}

#[test]
fn nobody_loses_a_request_or_reads_what_is_stale_when_upstreams_change() {
    let seen = run(0..common::seeds(60)).unwrap_or_else(|why| panic!("{why}"));
    let all = [seen.hits, seen.misses, seen.changes, seen.returns, seen.hung_up, seen.owed];
    let happened = all.iter().all(|count| *count > 0) && seen.copy_reads > 0;
    assert!(happened, "something never happened: {seen:?}");
}

#[test]
fn upstreams_are_told_apart_by_where_they_are_dialed() {
    let mut proxy = Proxy::new(settings(1));
    proxy.start(Instant::from_nanos(1));
    assert_eq!(
        proxy.change(Instant::from_nanos(2), vec![server(1), server(3)], |_, _| true),
        [1, 3]
    );
    // The same name at another address is another upstream.
    assert_eq!(
        proxy.change(Instant::from_nanos(3), vec![server(1), server(3)], |number, _| number != 1),
        [4, 3]
    );
    let names: Vec<String> = proxy.upstreams().map(|upstream| upstream.name).collect();
    assert_eq!(names, ["s1:1", "s3:1"]);
}

#[test]
fn who_comes_is_flushed_when_more_upstreams_were_here_than_are_remembered() {
    let mut proxy = Proxy::new(settings(1));
    proxy.start(Instant::from_nanos(1));
    let state = |proxy: &Proxy| proxy.upstreams().next().expect("there is one").state;
    for at in 100..1121 {
        assert_eq!(proxy.change(Instant::from_nanos(2), vec![server(at)], |_, _| true), [at - 97]);
        assert_eq!(state(&proxy), UpstreamState::Down, "it is dialed, and has nothing older");
    }
    // The place of one that is forgotten.
    assert!(proxy.change(Instant::from_nanos(3), vec![server(2000)], |_, _| true)[0] < 1024);
    assert_eq!(state(&proxy), UpstreamState::Ejected);
}

#[cfg(feature = "planted")]
#[test]
fn planted_returns_unflushed() {
    use mbal_model::planted::{Fault, plant};
    plant(Some(Fault::ReturnsUnflushed));
    let found = run(0..500);
    plant(None);
    assert!(found.is_err(), "it was not found");
}
