//! Copies of hot keys and ejection in virtual time: clients, upstreams that are slow, stop, die and come back, and an oracle that
//! knows each key's history. Nobody ever reads a value that was overwritten or deleted before his read began.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::history::{Asking, Heard, History};
use common::memcached::{Late, Memcached, Wire, requests};
use common::{MS, replication};
use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};
use mbal_proxy::{Action, ClientId, ConnId, Event, Proxy, Settings};
use mbal_testkit::{Failed, Met, Seeds, Sim, planted};

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

struct World {
    proxy: Proxy,
    sim: Sim<()>,
    upstreams: Vec<Memcached>,
    wires: Vec<Wire>,
    clients: Vec<Option<Asking>>,
    history: History,
    dialing: Vec<(ConnId, usize)>,
    /// Connections that are gone, of which the proxy has not heard: it does when it sends, or else later.
    broken: BTreeSet<u32>,
}

impl World {
    fn new(seed: u64, tells: bool) -> World {
        let mut sim = Sim::new(seed, tells);
        sim.now = 1;
        let settings = Settings {
            timeout: Duration::from_millis(20),
            eject: sim.one_in(2),
            retry: Duration::from_millis(30),
            limits: common::limits(seed % 2 == 1),
            replication: replication(100, 1.05),
            doubt: Duration::from_nanos(DOUBT),
            seed,
            ..common::settings(UPSTREAMS)
        };
        let mut proxy = Proxy::new(settings);
        proxy.start(Instant::from_nanos(1));
        for _ in 0..CLIENTS {
            proxy.open();
        }
        World {
            proxy,
            sim,
            upstreams: (0..UPSTREAMS).map(|_| Memcached::default()).collect(),
            wires: (0..2 * UPSTREAMS).map(|_| Wire::default()).collect(),
            clients: (0..CLIENTS).map(|_| None).collect(),
            history: History::strict(),
            dialing: Vec::new(),
            broken: BTreeSet::new(),
        }
    }

    fn run(mut self) -> Result<Met, Failed> {
        self.steps().map_err(|why| Failed::new(3, why))?;
        Ok(self.sim.met)
    }

    /// The first stale read, if there is one.
    fn steps(&mut self) -> Result<(), String> {
        self.carry_out()?;
        let mut timeouts = 0;
        for step in 0..STEPS + 2 * CALM {
            if step == STEPS {
                let calm = |one: &mut Memcached| (one.stopped_until, one.away_until) = (0, 0);
                self.upstreams.iter_mut().for_each(calm);
            } else if step == STEPS + CALM {
                timeouts = self.proxy.counters().upstream_timeouts;
            }
            self.sim.now += self.sim.random.below(MS / 4);
            if self.proxy.next_wake().is_some_and(|wake| wake.as_nanos() <= self.sim.now) {
                self.event(Event::Woken)?;
            }
            self.execute_late()?;
            match self.sim.random.below(40) {
                0..8 => self.ask()?,
                8..20 => {
                    let upstream = self.sim.random.below(UPSTREAMS as u64) as usize;
                    self.execute(upstream);
                }
                20..36 => {
                    let upstream = self.sim.random.below(UPSTREAMS as u64) as usize;
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
        for (what, times) in [
            ("read from a copy", counters.copy_reads),
            ("answered from memory", counters.cache_hits),
            ("kept in memory", counters.cache_writes),
            ("answered by what was written", counters.written_hits),
            ("an upstream returned", counters.returns),
        ] {
            self.sim.met.count_all(what, times);
        }
        Ok(())
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
                    Action::ToUpstream(conn) if self.broken.remove(&conn.0) => {
                        self.proxy.handle(Instant::from_nanos(self.sim.now), Event::Lost { conn });
                    }
                    Action::ToUpstream(conn) => {
                        let out = common::to_upstream(&mut self.proxy, conn);
                        let wire = &mut self.wires[conn.0 as usize];
                        wire.requests.extend(requests(&String::from_utf8_lossy(&out)));
                    }
                    Action::Dial { conn, upstream } => self.dialing.push((conn, upstream)),
                    Action::HangUp(conn) => self.cut(conn.0 as usize),
                    Action::Abandon(conn) => self.abandon(conn),
                    Action::Switch => unreachable!("nobody switches"),
                    Action::Close(_) | Action::CutOff(_) | Action::Pause(_) | Action::Resume(_) => {
                    }
                }
            }
        }
        Ok(())
    }

    /// What was received over a connection that is gone may be executed all the same. What was not is lost, since connections are reset.
    fn cut(&mut self, conn: usize) {
        self.broken.remove(&(conn as u32));
        let mut requests = std::mem::take(&mut self.wires[conn]).requests;
        let received = self.sim.random.below(requests.len() as u64 + 1) as usize;
        let rest = requests.split_off(received);
        let late = &mut self.upstreams[conn / 2].late;
        late.push(Late { client: conn, requests, from: 0, until: u64::MAX, lingers: false });
        if is_planted(Fault::ClosedInOrder) {
            // It comes when the way is there again, whatever was answered meanwhile.
            let from = self.sim.now + self.sim.random.below(60 * MS);
            late.push(Late { client: conn, requests: rest, from, until: from, lingers: false });
        }
        self.dialing.retain(|(other, _)| other.0 as usize != conn);
        self.sim.met.count("connection lost");
    }

    /// Where all has been received the upstream closes the connection when it has executed it.
    fn abandon(&mut self, conn: ConnId) {
        if self.sim.random.below(2) == 0 {
            return self.cut(conn.0 as usize);
        }
        let at = conn.0 as usize;
        let requests = std::mem::take(&mut self.wires[at]).requests;
        let late = Late { client: at, requests, from: 0, until: u64::MAX, lingers: true };
        self.upstreams[at / 2].late.push(late);
        self.sim.met.count("connection lingered");
        self.proxy.handle(Instant::from_nanos(self.sim.now), Event::Lingers { conn });
    }

    /// Upstreams execute what they have of connections that are gone: some of it, or all that is due.
    fn execute_late(&mut self) -> Result<(), String> {
        for at in 0..UPSTREAMS {
            let (count, ended) =
                self.upstreams[at].execute_late(self.sim.now, 8, &mut self.sim.random);
            self.sim.met.count_all("executed late", count);
            for conn in ended {
                self.event(Event::Ended { conn: ConnId(conn as u32), closed: true })?;
            }
        }
        Ok(())
    }

    /// An idle client asks for something.
    fn ask(&mut self) -> Result<(), String> {
        let client = self.sim.random.below(CLIENTS as u64) as usize;
        if self.clients[client].is_some() {
            return Ok(());
        }
        // One key is far hotter than the others.
        let number = if self.sim.random.below(4) > 0 { 0 } else { self.sim.random.below(KEYS) };
        let key = format!("key{number}");
        let now = self.sim.now;
        let (text, asking) = match self.sim.random.below(100) {
            0..6 => self.history.set(key, now),
            6..8 => self.history.delete(key, now),
            8..30 => self.history.read(&format!("mg {key} v"), &key, now),
            30..40 => self.history.read(&format!("get other {key}"), &key, now),
            _ => self.history.read(&format!("get {key}"), &key, now),
        };
        self.clients[client] = Some(asking);
        self.event(Event::Received { client: ClientId(client as u32), bytes: text.as_bytes() })
    }

    fn hear(&mut self, client: ClientId, bytes: &[u8]) -> Result<(), String> {
        let waits = &mut self.clients[client.0 as usize];
        if self.history.hear_for(waits, bytes, self.sim.now)? == Heard::Hit {
            self.sim.met.count("hit");
        }
        Ok(())
    }

    /// An upstream executes what one of its connections has brought.
    fn execute(&mut self, upstream: usize) {
        let conn = 2 * upstream;
        let upstream = &mut self.upstreams[upstream];
        if self.sim.now < upstream.stopped_until {
            return;
        }
        let count = 1 + self.sim.random.below(4);
        if !self.wires[conn].requests.is_empty() {
            upstream.late_until(conn, self.sim.now + self.sim.random.below(DOUBT));
        }
        upstream.turn(&mut self.wires[conn], count);
    }

    fn reply(&mut self, upstream: usize) -> Result<(), String> {
        let conn = 2 * upstream;
        let count = 1 + self.sim.random.below(4) as usize;
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
        if self.sim.now < self.upstreams[upstream].away_until {
            return self.event(Event::Lost { conn });
        }
        self.wires[conn.0 as usize].up = true;
        self.event(Event::Connected { conn })
    }

    fn fault(&mut self) -> Result<(), String> {
        if self.sim.random.below(3) > 0 {
            return Ok(());
        }
        let at = self.sim.random.below(UPSTREAMS as u64) as usize;
        match self.sim.random.below(3) {
            0 => self.upstreams[at].stopped_until = self.sim.now + self.sim.random.below(60 * MS),
            1 => self.upstreams[at].away_until = self.sim.now + self.sim.random.below(60 * MS),
            _ => {
                let was_up = self.wires[2 * at].up || self.broken.contains(&(2 * at as u32));
                self.cut(2 * at);
                if self.sim.random.below(2) == 0 {
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

static COPIES: Seeds = Seeds {
    name: "PROXY",
    test: "cargo test -p mbal-proxy --test copies",
    usual: 300,
    complete: 300,
    to_meet: &[
        "hit",
        "read from a copy",
        "answered from memory",
        "kept in memory",
        "answered by what was written",
        "an upstream returned",
        "connection lost",
        "connection lingered",
        "executed late",
    ],
    run: |seed, tells| World::new(seed, tells).run(),
};

#[test]
fn nobody_reads_what_was_overwritten() {
    COPIES.hold();
}

planted! {
    COPIES up to 2_000:
    copies_outlive_writes: CopiesOutliveWrites breaks 3,
    kept_though_overtaken: KeptThoughOvertaken breaks 3,
    older_fill_taken: OlderFillTaken breaks 3,
    doubt_forgotten: DoubtForgotten breaks 3,
    late_writes_forgotten: LateWritesForgotten breaks 3,
    closed_in_order: ClosedInOrder breaks 3,
    serves_unflushed: ServesUnflushed breaks 3,
    all_keys_move: AllKeysMove breaks 3,
}
