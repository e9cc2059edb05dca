//! Copies of hot keys and ejection in virtual time: clients, upstreams that are slow, stop, die and come back, and an oracle that
//! knows each key's history. Nobody ever reads a value that was overwritten or deleted before his read began.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::history::{Asking, Heard, History};
use common::memcached::{Late, Memcached, Wire, requests};

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};
use mbal_proxy::{
    Action, ClientId, ConnId, Distribution, Event, KeyHash, Proxy, Replication, RingServer,
    Settings,
};
use mbal_random::Random;

const MS: u64 = 1_000_000;
const UPSTREAMS: usize = 4;
/// An upstream that answers has looked at all its connections by then.
const DOUBT: u64 = 4 * MS;
const CLIENTS: usize = 6;
const KEYS: u64 = 4;
const STEPS: usize = 6_000;
/// Then nothing fails any more: so many until all that had failed is back, and as many again.
const CALM: usize = 1_000;
/// In the calm no upstream rests for longer: a fourth of the time-out.
const PATIENCE: usize = 40;

#[derive(Debug, Default)]
struct Seen {
    hits: u64,
    copy_reads: u64,
    cache_hits: u64,
    cache_writes: u64,
    written_hits: u64,
    returns: u64,
    lost: u64,
    /// Requests that were executed when their connection was gone.
    late: u64,
    lingered: u64,
}

struct World {
    proxy: Proxy,
    now: u64,
    random: Random,
    upstreams: Vec<Memcached>,
    wires: Vec<Wire>,
    clients: Vec<Option<Asking>>,
    history: History,
    dialing: Vec<(ConnId, usize)>,
    /// Connections that are gone, of which the proxy has not heard: it does when it sends, or else later.
    broken: BTreeSet<u32>,
    seen: Seen,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let server =
            |at: usize| RingServer { host: format!("s{at}"), port: 1, weight: 1, name: None };
        let settings = Settings {
            servers: (0..UPSTREAMS).map(server).collect(),
            distribution: Distribution::Modula(KeyHash::Fnv1a64),
            conns_per_server: 1,
            timeout: Duration::from_nanos(20 * MS),
            eject: random.below(2) == 0,
            failures_max: 1,
            retry: Duration::from_nanos(30 * MS),
            limits: common::limits(seed % 2 == 1),
            replication: Some(Replication {
                interval: Duration::from_nanos(100 * MS),
                target: 1.05,
                sampling: 1.0,
            }),
            peers: None,
            doubt: Duration::from_nanos(DOUBT),
            pid: 1,
            started_at: 0,
            version: "1".into(),
            seed,
        };
        let mut proxy = Proxy::new(settings);
        proxy.start(Instant::from_nanos(1));
        for _ in 0..CLIENTS {
            proxy.open();
        }
        World {
            proxy,
            now: 1,
            random,
            upstreams: (0..UPSTREAMS).map(|_| Memcached::default()).collect(),
            wires: (0..2 * UPSTREAMS).map(|_| Wire::default()).collect(),
            clients: (0..CLIENTS).map(|_| None).collect(),
            history: History::strict(),
            dialing: Vec::new(),
            broken: BTreeSet::new(),
            seen: Seen::default(),
        }
    }

    /// The first stale read, if there is one.
    fn run(&mut self) -> Result<(), String> {
        self.carry_out()?;
        let mut timeouts = 0;
        for step in 0..STEPS + 2 * CALM {
            if step == STEPS {
                let calm = |one: &mut Memcached| (one.stopped_until, one.away_until) = (0, 0);
                self.upstreams.iter_mut().for_each(calm);
            } else if step == STEPS + CALM {
                timeouts = self.proxy.counters().upstream_timeouts;
            }
            self.now += self.random.below(MS / 4);
            if self.proxy.next_wake().is_some_and(|wake| wake.as_nanos() <= self.now) {
                self.event(Event::Woken)?;
            }
            self.execute_late()?;
            match self.random.below(40) {
                0..8 => self.ask()?,
                8..20 => {
                    let upstream = self.random.below(UPSTREAMS as u64) as usize;
                    self.execute(upstream);
                }
                20..36 => {
                    let upstream = self.random.below(UPSTREAMS as u64) as usize;
                    self.reply(upstream)?;
                }
                36..39 => self.connect()?,
                _ if step < STEPS => self.fault()?,
                _ => {}
            }
            if step >= STEPS && step % PATIENCE == 0 {
                for upstream in 0..UPSTREAMS {
                    self.execute(upstream);
                    self.reply(upstream)?;
                }
            }
        }
        let in_vain = self.proxy.counters().upstream_timeouts - timeouts;
        if in_vain > 0 {
            return Err(format!("upstreams answer, and {in_vain} times nobody heard them"));
        }
        let counters = self.proxy.counters();
        self.seen.copy_reads = counters.copy_reads;
        self.seen.cache_hits = counters.cache_hits;
        self.seen.cache_writes = counters.cache_writes;
        self.seen.written_hits = counters.written_hits;
        self.seen.returns = counters.returns;
        Ok(())
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
                        self.hear(client, &out)?;
                    }
                    Action::ToUpstream(conn) if self.broken.remove(&conn.0) => {
                        self.proxy.handle(Instant::from_nanos(self.now), Event::Lost { conn });
                    }
                    Action::ToUpstream(conn) => {
                        let out = self.proxy.conn_output(conn).to_vec();
                        self.proxy.conn_took(conn, out.len());
                        let wire = &mut self.wires[conn.0 as usize];
                        wire.requests.extend(requests(&String::from_utf8_lossy(&out)));
                    }
                    Action::Dial { conn, upstream } => self.dialing.push((conn, upstream)),
                    Action::HangUp(conn) => self.cut(conn.0 as usize),
                    Action::Abandon(conn) => self.abandon(conn),
                    Action::Close(_) | Action::CutOff(_) | Action::Pause(_) | Action::Resume(_) => {
                    }
                }
            }
        }
    }

    /// What was received over a connection that is gone may be executed all the same. What was not is lost, since connections are reset.
    fn cut(&mut self, conn: usize) {
        self.broken.remove(&(conn as u32));
        let mut requests = std::mem::take(&mut self.wires[conn]).requests;
        let received = self.random.below(requests.len() as u64 + 1) as usize;
        let rest = requests.split_off(received);
        let late = &mut self.upstreams[conn / 2].late;
        late.push(Late { client: conn, requests, from: 0, until: u64::MAX, lingers: false });
        if is_planted(Fault::ClosedInOrder) {
            // It comes when the way is there again, whatever was answered meanwhile.
            let from = self.now + self.random.below(60 * MS);
            late.push(Late { client: conn, requests: rest, from, until: from, lingers: false });
        }
        self.dialing.retain(|(other, _)| other.0 as usize != conn);
        self.seen.lost += 1;
    }

    /// Where all has been received the upstream closes the connection when it has executed it.
    fn abandon(&mut self, conn: ConnId) {
        if self.random.below(2) == 0 {
            return self.cut(conn.0 as usize);
        }
        let at = conn.0 as usize;
        let requests = std::mem::take(&mut self.wires[at]).requests;
        let late = Late { client: at, requests, from: 0, until: u64::MAX, lingers: true };
        self.upstreams[at / 2].late.push(late);
        self.seen.lingered += 1;
        self.proxy.handle(Instant::from_nanos(self.now), Event::Lingers { conn });
    }

    /// Upstreams execute what they have of connections that are gone: some of it, or all that is due.
    fn execute_late(&mut self) -> Result<(), String> {
        for at in 0..UPSTREAMS {
            let (count, ended) = self.upstreams[at].execute_late(self.now, 8, &mut self.random);
            self.seen.late += count;
            for conn in ended {
                self.event(Event::Ended { conn: ConnId(conn as u32), closed: true })?;
            }
        }
        Ok(())
    }

    /// An idle client asks for something.
    fn ask(&mut self) -> Result<(), String> {
        let client = self.random.below(CLIENTS as u64) as usize;
        if self.clients[client].is_some() {
            return Ok(());
        }
        // One key is far hotter than the others.
        let number = if self.random.below(4) > 0 { 0 } else { self.random.below(KEYS) };
        let key = format!("key{number}");
        let now = self.now;
        let (text, asking) = match self.random.below(100) {
            0..6 => {
                let value = self.history.new_value(&key);
                let text = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
                (text, self.history.write(vec![key], Some(&value), now))
            }
            6..8 => (format!("delete {key}\r\n"), self.history.write(vec![key], None, now)),
            8..30 => (format!("mg {key} v\r\n"), self.history.read(&key, now)),
            30..40 => (format!("get other {key}\r\n"), self.history.read(&key, now)),
            _ => (format!("get {key}\r\n"), self.history.read(&key, now)),
        };
        self.clients[client] = Some(asking);
        self.event(Event::Received { client: ClientId(client as u32), bytes: text.as_bytes() })
    }

    fn hear(&mut self, client: ClientId, bytes: &[u8]) -> Result<(), String> {
        let asking = &mut self.clients[client.0 as usize];
        let heard = asking.as_mut().ok_or("a reply that nobody waits for")?;
        let heard = self.history.hear(heard, bytes, self.now)?;
        self.seen.hits += u64::from(heard == Heard::Hit);
        if heard != Heard::NotAll {
            *asking = None;
        }
        Ok(())
    }

    /// An upstream executes what one of its connections has brought.
    fn execute(&mut self, upstream: usize) {
        let conn = 2 * upstream;
        let upstream = &mut self.upstreams[upstream];
        if self.now < upstream.stopped_until {
            return;
        }
        let count = 1 + self.random.below(4);
        if !self.wires[conn].requests.is_empty() {
            upstream.late_until(conn, self.now + self.random.below(DOUBT));
        }
        upstream.turn(&mut self.wires[conn], count);
    }

    fn reply(&mut self, upstream: usize) -> Result<(), String> {
        let conn = 2 * upstream;
        let count = 1 + self.random.below(4) as usize;
        if self.broken.remove(&(conn as u32)) {
            return self.event(Event::Lost { conn: ConnId(conn as u32) });
        }
        let wire = &mut self.wires[conn];
        let count = count.min(wire.replies.len());
        let replies: String = wire.replies.drain(..count).collect();
        if replies.is_empty() {
            return Ok(());
        }
        self.event(Event::Replied { conn: ConnId(conn as u32), bytes: replies.as_bytes() })
    }

    fn connect(&mut self) -> Result<(), String> {
        let Some((conn, upstream)) = self.dialing.pop() else { return Ok(()) };
        if self.now < self.upstreams[upstream].away_until {
            return self.event(Event::Lost { conn });
        }
        self.wires[conn.0 as usize].up = true;
        self.event(Event::Connected { conn })
    }

    fn fault(&mut self) -> Result<(), String> {
        if self.random.below(3) > 0 {
            return Ok(());
        }
        let at = self.random.below(UPSTREAMS as u64) as usize;
        match self.random.below(3) {
            0 => self.upstreams[at].stopped_until = self.now + self.random.below(60 * MS),
            1 => self.upstreams[at].away_until = self.now + self.random.below(60 * MS),
            _ => {
                let was_up = self.wires[2 * at].up || self.broken.contains(&(2 * at as u32));
                self.cut(2 * at);
                if self.random.below(2) == 0 {
                    for late in std::mem::take(&mut self.upstreams[at]).late {
                        if late.lingers {
                            let conn = ConnId(late.client as u32);
                            self.event(Event::Ended { conn, closed: true })?;
                        }
                    }
                }
                if was_up {
                    self.broken.insert(2 * at as u32);
                }
            }
        }
        Ok(())
    }
}

fn run(seeds: std::ops::Range<u64>) -> Result<Seen, String> {
    let mut all = Seen::default();
    for seed in seeds {
        let mut world = World::new(seed);
        world.run().map_err(|why| format!("seed {seed}: {why}"))?;
        let seen = world.seen;
        all.hits += seen.hits;
        all.copy_reads += seen.copy_reads;
        all.cache_hits += seen.cache_hits;
        all.cache_writes += seen.cache_writes;
        all.written_hits += seen.written_hits;
        all.returns += seen.returns;
        all.lost += seen.lost;
        all.late += seen.late;
        all.lingered += seen.lingered;
    }
    Ok(all)
}

#[test]
fn nobody_reads_what_was_overwritten() {
    let seen = run(0..common::seeds(300)).unwrap_or_else(|why| panic!("{why}"));
    let Seen { hits, copy_reads, cache_hits, cache_writes, written_hits, returns, lost, .. } = seen;
    let all = [hits, copy_reads, cache_hits, cache_writes, written_hits, returns, lost];
    let happened = all.iter().all(|count| *count > 0) && seen.late > 0 && seen.lingered > 0;
    assert!(happened, "something never happened: {seen:?}");
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use mbal_model::planted::plant;

    fn is_found(fault: Fault) {
        plant(Some(fault));
        let found = run(0..2_000);
        plant(None);
        assert!(found.is_err(), "{fault:?} was not found");
    }

    #[test]
    fn copies_outlive_writes() {
        is_found(Fault::CopiesOutliveWrites);
    }

    #[test]
    fn kept_though_overtaken() {
        is_found(Fault::KeptThoughOvertaken);
    }

    #[test]
    fn older_fill_taken() {
        is_found(Fault::OlderFillTaken);
    }

    #[test]
    fn doubt_forgotten() {
        is_found(Fault::DoubtForgotten);
    }

    #[test]
    fn late_writes_forgotten() {
        is_found(Fault::LateWritesForgotten);
    }

    #[test]
    fn closed_in_order() {
        is_found(Fault::ClosedInOrder);
    }

    #[test]
    fn serves_unflushed() {
        is_found(Fault::ServesUnflushed);
    }

    #[test]
    fn all_keys_move() {
        is_found(Fault::AllKeysMove);
    }
}
