//! Upstreams that leave the pool and come back, in virtual time: requests to them are answered, and nobody reads what was
//! overwritten before his read began.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::history::{Asking, Heard, History};
use common::memcached::{Memcached, Wire, requests};
use common::{KETAMA, MS, replication, server};
use mbal_model::Instant;
use mbal_proxy::{Action, ClientId, ConnId, Event, Proxy, Settings, UpstreamState};
use mbal_testkit::{Failed, Met, Seeds, Sim, planted};

const UPSTREAMS: usize = 3;
const CONNS_EACH: usize = 4;
const CLIENTS: usize = 6;
const KEYS: u64 = 12;
const STEPS: usize = 8_000;

struct World {
    proxy: Proxy,
    sim: Sim<()>,
    upstreams: Vec<Memcached>,
    wires: BTreeMap<usize, Wire>,
    dialing: Vec<usize>,
    clients: Vec<Option<Asking>>,
    history: History,
}

fn settings(seed: u64) -> Settings {
    Settings {
        distribution: KETAMA,
        conns_per_server: CONNS_EACH / 2,
        timeout: Duration::from_secs(1000),
        retry: Duration::from_millis(1),
        seed,
        ..common::settings(UPSTREAMS)
    }
}

impl World {
    fn new(seed: u64, tells: bool) -> World {
        let mut sim = Sim::new(seed, tells);
        sim.now = 1;
        let replication = replication(150, 1.05).filter(|_| seed % 2 == 0);
        let mut proxy = Proxy::new(Settings { replication, ..settings(seed) });
        proxy.start(Instant::from_nanos(1));
        for _ in 0..CLIENTS {
            proxy.open();
        }
        World {
            proxy,
            sim,
            upstreams: (0..UPSTREAMS).map(|_| Memcached::default()).collect(),
            wires: BTreeMap::new(),
            dialing: Vec::new(),
            clients: (0..CLIENTS).map(|_| None).collect(),
            history: History::strict(),
        }
    }

    fn run(mut self) -> Result<Met, Failed> {
        self.steps().map_err(|why| Failed::new(3, why))?;
        Ok(self.sim.met)
    }

    /// One upstream leaves, and comes back; it does not leave again: a key that returns to where it was has stayed there.
    fn steps(&mut self) -> Result<(), String> {
        self.carry_out()?;
        let leaver = self.sim.random.below(UPSTREAMS as u64) as usize;
        let leaves = self.sim.random.below(STEPS as u64 - 200) as usize;
        let returns = leaves + self.sim.random.below(200) as usize;
        for step in 0..STEPS {
            self.sim.now += self.sim.random.below(MS / 4);
            if self.proxy.next_wake().is_some_and(|wake| wake.as_nanos() <= self.sim.now) {
                self.event(Event::Woken)?;
            }
            if step == leaves {
                let first = leaver * CONNS_EACH;
                let owed = (first..first + CONNS_EACH).filter_map(|conn| self.wires.get(&conn));
                let owed = owed.map(|wire| (wire.requests.len() + wire.replies.len()) as u64).sum();
                self.sim.met.count_all("on its way when its upstream leaves", owed);
                self.change(|at| at != leaver)?;
            }
            if step == returns {
                self.change(|_| true)?;
            }
            match self.sim.random.below(10) {
                0..3 => self.ask()?,
                3..6 => self.execute(),
                6..9 => self.reply()?,
                _ => self.connect()?,
            }
        }
        let counters = self.proxy.counters();
        self.sim.met.count_all("upstreams changed", counters.pool_changes);
        self.sim.met.count_all("an upstream returned", counters.returns);
        self.sim.met.count_all("read from a copy", counters.copy_reads);
        // All that was asked is answered.
        for _ in 0..20 * STEPS {
            self.sim.now += self.sim.random.below(MS / 4);
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
        let servers: Vec<_> = (0..UPSTREAMS).filter(|at| is_member(*at)).map(server).collect();
        let expected: Vec<usize> = (0..UPSTREAMS).filter(|at| is_member(*at)).collect();
        let numbers = self.proxy.change(Instant::from_nanos(self.sim.now), servers, |_, _| true);
        assert_eq!(numbers, expected, "upstreams keep their numbers");
        self.carry_out()
    }

    fn event(&mut self, event: Event<'_>) -> Result<(), String> {
        self.proxy.handle(Instant::from_nanos(self.sim.now), event);
        self.carry_out()
    }

    fn carry_out(&mut self) -> Result<(), String> {
        while let Some(actions) = common::actions(&mut self.proxy) {
            for action in actions {
                match action {
                    Action::ToClient(client) => {
                        let out = common::to_client(&mut self.proxy, client);
                        self.hear(client, &out)?;
                    }
                    Action::ToUpstream(conn) => {
                        let out = common::to_upstream(&mut self.proxy, conn);
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
                        self.sim.met.count("hung up");
                    }
                    Action::Switch => unreachable!("nobody switches"),
                    Action::Close(_) | Action::CutOff(_) | Action::Pause(_) | Action::Resume(_) => {
                    }
                }
            }
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<(), String> {
        let client = self.sim.random.below(CLIENTS as u64) as usize;
        if self.clients[client].is_some() {
            return Ok(());
        }
        // One key is far hotter than the others.
        let number = if self.sim.one_in(2) { 0 } else { self.sim.random.below(KEYS) };
        let (key, now) = (format!("k{number}"), self.sim.now);
        let (text, asking) = match self.sim.one_in(10) {
            true => self.history.set(key, now),
            false => self.history.read(&format!("get {key}"), &key, now),
        };
        self.clients[client] = Some(asking);
        self.event(Event::Received { client: ClientId(client as u32), bytes: text.as_bytes() })
    }

    fn hear(&mut self, client: ClientId, bytes: &[u8]) -> Result<(), String> {
        let waits = &mut self.clients[client.0 as usize];
        match self.history.hear_for(waits, bytes, self.sim.now)? {
            Heard::Hit => self.sim.met.count("hit"),
            Heard::Miss => self.sim.met.count("miss"),
            Heard::Done => {}
            Heard::NotAll | Heard::Error => {
                return Err(format!("heard {:?}", String::from_utf8_lossy(bytes)));
            }
        }
        Ok(())
    }

    fn a_wire(&mut self) -> Option<usize> {
        let conns: Vec<usize> = self.wires.keys().copied().collect();
        let at = self.sim.random.below(conns.len().max(1) as u64) as usize;
        conns.get(at).copied()
    }

    fn execute(&mut self) {
        let Some(conn) = self.a_wire() else { return };
        let wire = self.wires.get_mut(&conn).expect("it is listed");
        self.upstreams[conn / CONNS_EACH].turn(wire, 1 + self.sim.random.below(3));
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

static CHANGES: Seeds = Seeds {
    name: "PROXY",
    test: "cargo test -p mbal-proxy --test changes",
    usual: 60,
    complete: 60,
    to_meet: &[
        "hit",
        "miss",
        "upstreams changed",
        "an upstream returned",
        "hung up",
        "on its way when its upstream leaves",
        "read from a copy",
    ],
    run: |seed, tells| World::new(seed, tells).run(),
};

#[test]
fn nobody_loses_a_request_or_reads_what_is_stale_when_upstreams_change() {
    CHANGES.hold();
}

planted! {
    CHANGES up to 500:
    returns_unflushed: ReturnsUnflushed breaks 3,
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
    assert_eq!(names, ["s1:11211", "s3:11211"]);
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
