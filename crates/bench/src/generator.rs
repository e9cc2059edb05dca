//! One thread of load: connections, an epoll, and no wait that it does not mean.
//!
//! ```text
//!   source ─▶ wording ─▶ out ─▶ socket ─▶ server
//!     ▲ closed: a reply frees its place        │
//!     │ open: the schedule says it is due      ▼
//!   tally ◀─ replies.scan ◀─ awaited ◀─ socket
//! ```
//!
//! Counts are of what completes inside the window, latencies of what was due inside it, however late it came.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use crate::address::{Address, Target};
use crate::connection::Connection;
use crate::follow::{Moved, Routes};
use crate::pace::{Moments, Pace, Schedule};
use crate::random::Random;
use crate::reader::{Reader, Then};
use crate::replies::{Awaited, Lengths, scan};
use crate::source::{Ask, Source};
use crate::tally::Tally;
use crate::timeline::{Part, Timeline};
use crate::wording::{Item, Wording, Write};

/// After the window what is due may still be sent for so long, then replies are waited for as long again.
const DRAIN: Duration = Duration::from_secs(2);
/// A sleeping generator looks at the stop flag this often.
const NAP_NS: u64 = 100_000_000;
/// A request that every worker turns away is a fault of the server.
const TURNED_AWAY_MAX: u8 = 20;
const READ_BYTES: usize = 256 << 10;

/// What one thread sends.
#[derive(Clone)]
pub struct Load {
    pub target: Target,
    /// Ask the server which worker serves what, and obey what replies say about it.
    pub follow: bool,
    pub connections: usize,
    /// Unanswered requests per connection at most.
    pub depth: usize,
    /// Only part of the connections carries most of an open loop.
    pub busy: Option<Busy>,
    pub wording: Wording,
    pub lengths: Lengths,
    pub keys_per_get: usize,
    /// A missed key is set, on the same connection, when the store has been asked for so long.
    pub look_aside: bool,
    pub store: Duration,
    pub pace: Pace,
    /// When the requests of a trace came, for a recorded pace.
    pub moments: Option<Moments>,
    /// Ask the sockets without end, instead of sleeping: right on a core of one's own.
    pub spin: bool,
    pub source: Source,
    /// The hot set changes this often.
    pub shift: Option<Duration>,
    pub warmup: Duration,
    pub length: Length,
    pub seed: u64,
}

/// `share` of all requests goes by every `every`-th connection.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Busy {
    pub share: f64,
    pub every: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Length {
    Time(Duration),
    /// So many requests, or until the source ends.
    Requests(u64),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Edge {
    Start,
    End,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    WarmUp,
    Measured,
    Drain,
}

struct Generator<'a> {
    load: Load,
    epoll: OwnedFd,
    clock: Instant,
    schedule: Option<Schedule>,
    /// Client by client: one connection each, or one to each worker.
    connections: Vec<Connection>,
    routes: Option<Routes>,
    /// Connections per client.
    width: usize,
    clients: usize,
    in_flight: usize,
    turn: usize,
    /// Open loop: what `keys` is drawn for, and has to wait until its worker has room.
    drawn: Option<Ask>,
    /// Closed loop: the same by client, with the keys.
    held_up: Vec<Option<(Ask, Vec<u64>)>>,
    /// Which connections the next request of an open loop is for, and the random bits behind it.
    next_is_busy: bool,
    random: Random,
    /// Connections with something to send.
    touched: Vec<usize>,
    /// Requests that may still be issued in this window.
    budget: u64,
    source_ended: bool,
    /// Every connection was full when a request became due: its lateness is the server's.
    starved: bool,
    phase: Phase,
    start_ns: u64,
    /// `u64::MAX` until it is known.
    end_ns: u64,
    /// What replies ask for, until all that arrived with them is read.
    after: Vec<(Awaited, Then)>,
    /// Sets that wait for the store: due when, on which connection.
    later: VecDeque<(u64, usize, Item)>,
    tally: Tally,
    timeline: Option<&'a Timeline>,
    part: Part,
    /// The interval that `part` is of.
    interval: u64,
    keys: Vec<u64>,
    input: Vec<u8>,
}

/// Runs the load to its end; `edge` is called as the measured window starts and ends.
pub fn drive(
    load: Load,
    stop: &AtomicBool,
    timeline: Option<&Timeline>,
    mut edge: impl FnMut(Edge),
) -> Result<Tally, String> {
    let mut generator = Generator::new(load, timeline)?;
    generator.run(stop, &mut edge)?;
    Ok(generator.tally)
}

impl<'a> Generator<'a> {
    fn new(mut load: Load, timeline: Option<&'a Timeline>) -> Result<Self, String> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| e.to_string())?;
        let routes = load.target.routes(load.follow)?;
        let addresses = match &routes {
            Some(routes) => routes.workers().iter().copied().map(Address::Tcp).collect(),
            None => vec![load.target.address.clone()],
        };
        if let Some(routes) = routes.as_ref().filter(|_| load.follow) {
            load.wording.tell(routes.version());
        }
        let width = addresses.len();
        let clients = (load.connections / width).max(1);
        let mut connections = Vec::with_capacity(clients * width);
        for index in 0..clients * width {
            let address = &addresses[index % width];
            connections.push(Connection::open(address, index / width, index, &epoll)?);
        }
        // Without this the kernel may add 50 µs to every sleep.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).map_err(|e| e.to_string())?;
        let schedule = match load.pace {
            Pace::Closed => None,
            _ => {
                let seed = load.seed ^ 0x5eed;
                Some(Schedule::new(load.pace, load.moments.take(), load.warmup, seed))
            }
        };
        Ok(Self {
            epoll,
            clock: Instant::now(),
            schedule,
            connections,
            routes,
            width,
            clients,
            in_flight: 0,
            turn: 0,
            drawn: None,
            held_up: vec![None; clients],
            next_is_busy: false,
            random: Random::new(load.seed ^ 0xb5),
            touched: Vec::new(),
            budget: u64::MAX,
            source_ended: false,
            starved: false,
            start_ns: load.warmup.as_nanos() as u64,
            phase: Phase::WarmUp,
            end_ns: u64::MAX,
            after: Vec::new(),
            later: VecDeque::new(),
            tally: Tally::default(),
            timeline,
            part: Part::new(width),
            interval: 0,
            keys: Vec::new(),
            input: vec![0; READ_BYTES],
            load,
        })
    }

    fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    fn run(&mut self, stop: &AtomicBool, edge: &mut impl FnMut(Edge)) -> Result<(), String> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 128];
        if self.start_ns == 0 {
            self.start(edge);
        }
        if self.schedule.is_none() {
            for client in 0..self.clients {
                self.refill(client, self.now_ns());
            }
            self.flush()?;
        }
        loop {
            let now = self.now_ns();
            self.tick(now);
            if self.phase == Phase::WarmUp && now >= self.start_ns {
                self.start(edge);
            }
            if self.phase == Phase::Measured && (now >= self.end_ns || self.exhausted()) {
                self.end(edge);
            }
            if self.phase == Phase::Drain {
                let answered = self.in_flight == 0 && !self.due(now);
                if answered || now >= self.end_ns + 2 * DRAIN.as_nanos() as u64 {
                    self.settle(now);
                    return Ok(());
                }
            }
            if stop.load(Ordering::Relaxed) {
                return Err("stopped".into());
            }
            self.set_later(now);
            self.flush()?;
            self.issue_due()?;
            let timeout = self.timeout(self.now_ns());
            let count = match epoll::wait(&self.epoll, &mut events[..], Some(&timeout)) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => 0,
                Err(error) => return Err(error.to_string()),
            };
            for event in &events[..count] {
                let (index, flags) = (event.data.u64() as usize, event.flags);
                if flags.contains(epoll::EventFlags::OUT) {
                    self.connections[index].flush(&self.epoll)?;
                }
                if flags != epoll::EventFlags::OUT {
                    self.read(index)?;
                    self.issue_due()?;
                }
            }
        }
    }

    fn start(&mut self, edge: &mut impl FnMut(Edge)) {
        edge(Edge::Start);
        self.start_ns = self.now_ns();
        self.phase = Phase::Measured;
        match self.load.length {
            Length::Time(time) => self.end_ns = self.start_ns + time.as_nanos() as u64,
            Length::Requests(requests) => self.budget = requests,
        }
        let warm = std::mem::take(&mut self.tally);
        (self.tally.wrong, self.tally.wrong_shown) = (warm.wrong, warm.wrong_shown);
    }

    fn end(&mut self, edge: &mut impl FnMut(Edge)) {
        edge(Edge::End);
        let now = self.now_ns();
        self.end_ns = self.end_ns.min(now);
        self.tick(self.end_ns);
        self.phase = Phase::Drain;
        self.tally.seconds = (now - self.start_ns) as f64 / 1e9;
    }

    /// What goes by the clock: intervals that have passed, hot sets that have had their time.
    fn tick(&mut self, now: u64) {
        if self.phase != Phase::Measured {
            return;
        }
        let passed_ns = now - self.start_ns;
        if let Some(timeline) = self.timeline {
            while passed_ns >= (self.interval + 1) * timeline.interval_ns {
                timeline.hand_in(self.interval, &mut self.part);
                self.interval += 1;
            }
        }
        if let Some(period) = self.load.shift {
            self.load.source.shift(passed_ns / period.as_nanos() as u64);
        }
    }

    fn exhausted(&self) -> bool {
        (self.source_ended || self.budget == 0) && self.in_flight == 0
    }

    /// Is a request of the window waiting to be sent?
    fn due(&self, now: u64) -> bool {
        let Some(schedule) = &self.schedule else { return false };
        if self.phase == Phase::Drain && now >= self.end_ns + DRAIN.as_nanos() as u64 {
            return false;
        }
        let due = schedule.due_ns();
        due <= now && due < self.end_ns && !self.source_ended && self.budget > 0
    }

    fn timeout(&self, now: u64) -> Timespec {
        let mut wait_ns = NAP_NS;
        if self.load.spin {
            wait_ns = 0;
        } else {
            match self.phase {
                Phase::WarmUp => wait_ns = wait_ns.min(self.start_ns.saturating_sub(now)),
                Phase::Measured => wait_ns = wait_ns.min(self.end_ns.saturating_sub(now)),
                Phase::Drain => {}
            }
            if let Some(schedule) = &self.schedule {
                if !self.starved && schedule.due_ns() < self.end_ns {
                    wait_ns = wait_ns.min(schedule.due_ns().saturating_sub(now));
                }
            }
        }
        if let Some((due, ..)) = self.later.front() {
            wait_ns = wait_ns.min(due.saturating_sub(now));
        }
        Timespec { tv_sec: 0, tv_nsec: wait_ns as _ }
    }

    /// Open loop: sends what is due, as far as connections have room. A request whose worker has no room holds
    /// up those behind it: a client that waits for a slow worker waits with all it has.
    fn issue_due(&mut self) -> Result<(), String> {
        if self.schedule.is_none() {
            return Ok(());
        }
        let now = self.now_ns();
        while self.due(now) {
            let Some(ask) = self.drawn.or_else(|| self.draw()) else { break };
            let worker = self.worker();
            let Some(index) = self.next_with_room(worker) else {
                (self.drawn, self.starved) = (Some(ask), true);
                return self.flush();
            };
            self.drawn = None;
            let schedule = self.schedule.as_mut().expect("checked above");
            let due = schedule.due_ns();
            schedule.advance();
            if self.phase == Phase::Measured && !self.starved {
                self.tally.lag.saturating_record(now - due);
            }
            self.send(index, ask, due);
        }
        self.starved = false;
        self.flush()
    }

    /// The next request; its keys are in `keys`.
    fn draw(&mut self) -> Option<Ask> {
        let Load { source, wording, keys_per_get, .. } = &mut self.load;
        let routes = self.routes.as_ref();
        let worker = |key| routes.map(|routes| routes.worker(wording.hash(key)));
        let fits = |first, key| worker(first) == worker(key);
        let ask = source.next(*keys_per_get, fits, &mut self.keys);
        self.source_ended = ask.is_none();
        if let Some(Busy { share, .. }) = self.load.busy {
            self.next_is_busy = self.random.unit() <= share;
        }
        ask
    }

    /// Which of a client's connections the drawn request goes by.
    fn worker(&self) -> usize {
        let hash = |key| self.load.wording.hash(key);
        self.routes.as_ref().map_or(0, |routes| routes.worker(hash(self.keys[0])))
    }

    /// Clients take turns, so that every worker of the server gets its share.
    fn next_with_room(&mut self, worker: usize) -> Option<usize> {
        if self.in_flight >= self.connections.len() * self.load.depth {
            return None;
        }
        for _ in 0..self.clients {
            self.turn = (self.turn + 1) % self.clients;
            let of_its_kind = match self.load.busy {
                Some(Busy { every, .. }) => (self.turn % every == 0) == self.next_is_busy,
                None => true,
            };
            let index = self.turn * self.width + worker;
            if of_its_kind && self.connections[index].in_flight < self.load.depth {
                return Some(index);
            }
        }
        None
    }

    /// Closed loop: tops the client up, as far as the workers of its next keys have room.
    fn refill(&mut self, client: usize, now: u64) {
        let first = client * self.width;
        while self.phase != Phase::Drain && self.budget > 0 {
            let ask = match self.held_up[client].take() {
                Some((ask, keys)) => {
                    self.keys = keys;
                    ask
                }
                None if self.source_ended => return,
                None => {
                    let own = &self.connections[first..first + self.width];
                    if own.iter().all(|connection| connection.in_flight >= self.load.depth) {
                        return;
                    }
                    let Some(ask) = self.draw() else { return };
                    ask
                }
            };
            let index = first + self.worker();
            if self.connections[index].in_flight >= self.load.depth {
                self.held_up[client] = Some((ask, self.keys.clone()));
                return;
            }
            self.send(index, ask, now);
        }
    }

    fn send(&mut self, index: usize, ask: Ask, intended_ns: u64) {
        if self.phase == Phase::Measured {
            self.budget -= 1;
        }
        let vbucket = self.vbucket(self.keys[0]);
        let (connection, wording) = (&mut self.connections[index], &self.load.wording);
        connection.ask(wording, ask, &self.keys, intended_ns, vbucket);
        self.asked(index);
    }

    fn asked(&mut self, index: usize) {
        self.reserve(index);
        self.touched.push(index);
    }

    fn reserve(&mut self, index: usize) {
        self.connections[index].in_flight += 1;
        self.in_flight += 1;
    }

    /// Sends what was asked since the last time.
    fn flush(&mut self) -> Result<(), String> {
        for &index in &self.touched {
            if !self.connections[index].out.is_empty() {
                self.connections[index].flush(&self.epoll)?;
            }
        }
        self.touched.clear();
        Ok(())
    }

    fn read(&mut self, index: usize) -> Result<(), String> {
        let connection = &mut self.connections[index];
        let filled = connection.receive(&mut self.input, READ_BYTES)?;
        let now = self.clock.elapsed().as_nanos() as u64;
        self.tick(now);
        let mut reader = Reader {
            now,
            counting: self.phase == Phase::Measured,
            window: self.start_ns..self.end_ns,
            look_aside: self.load.look_aside,
            store_ns: self.load.store.as_nanos() as u64,
            worker: index % self.width,
            tally: &mut self.tally,
            part: &mut self.part,
            after: &mut self.after,
            answered: 0,
            missed: false,
        };
        let connection = &mut self.connections[index];
        let tell = |reply, outcome, moved| reader.told(reply, outcome, moved);
        let input = &self.input[..filled];
        let (wording, lengths) = (&self.load.wording, self.load.lengths);
        let taken = scan(wording, lengths, input, &mut connection.awaited, tell)?;
        connection.partial.extend_from_slice(&input[taken..]);
        connection.in_flight -= reader.answered;
        self.in_flight -= reader.answered;
        let client = connection.client;
        self.act_after(index, now);
        if self.schedule.is_none() {
            self.refill(client, now);
        }
        self.flush()
    }

    /// Does what replies of this connection asked for.
    fn act_after(&mut self, index: usize, now: u64) {
        let mut after = std::mem::take(&mut self.after);
        for (reply, then) in after.drain(..) {
            match then {
                Then::Heed(moved) => self.heed(reply.key, moved),
                Then::AskAgain => self.ask_again(reply),
                Then::Counter => {
                    let (wording, connection) = (&self.load.wording, &mut self.connections[index]);
                    connection.add_counter(wording, reply.key, reply.ttl, now);
                    self.asked(index);
                }
                Then::Set { after_ns } => {
                    let Awaited { key, value_bytes, ttl, .. } = reply;
                    self.reserve(index);
                    self.later.push_back((now + after_ns, index, Item { key, value_bytes, ttl }));
                }
            }
        }
        self.after = after;
        self.set_later(now);
    }

    /// Sets what the store has been asked for long enough.
    fn set_later(&mut self, now: u64) {
        while let Some(&(due, index, item)) = self.later.front().filter(|(due, ..)| *due <= now) {
            self.later.pop_front();
            let vbucket = self.vbucket(item.key);
            let (wording, connection) = (&self.load.wording, &mut self.connections[index]);
            connection.write(wording, Write::Set, item, due, vbucket);
            self.touched.push(index);
        }
    }

    /// Turned away by a worker that no longer has the key: on to the one that has.
    fn ask_again(&mut self, reply: Awaited) {
        if reply.turned_away == TURNED_AWAY_MAX {
            self.tally.blame(format!("key {} was turned away {TURNED_AWAY_MAX} times", reply.key));
            return;
        }
        let vbucket = self.vbucket(reply.key);
        let Some(routes) = &self.routes else {
            self.tally.blame(format!("key {}: status 7 for an ordinary client", reply.key));
            return;
        };
        let worker = routes.worker(self.load.wording.hash(reply.key));
        // Any client will do: the request has lost its place in the order anyway.
        let index = worker;
        self.connections[index].ask_again(&self.load.wording, reply, vbucket);
        match reply.last {
            true => self.asked(index),
            false => self.touched.push(index),
        }
    }

    /// What binary says about a key's cachelet: 0 is an ordinary client.
    fn vbucket(&self, key: u64) -> u16 {
        match &self.routes {
            Some(routes) if self.load.follow => {
                1 + routes.cachelet(self.load.wording.hash(key)) as u16
            }
            _ => 0,
        }
    }

    fn heed(&mut self, key: u64, moved: Moved) {
        let Some(routes) = self.routes.as_mut().filter(|_| self.load.follow) else { return };
        if routes.heed(self.load.wording.hash(key), moved) {
            self.load.wording.tell(routes.version());
        }
    }

    /// After the drain: what is still unanswered is wrong, what is still unsent waits until now at least.
    fn settle(&mut self, now: u64) {
        for connection in &self.connections {
            for reply in connection.awaited.iter().filter(|reply| reply.last) {
                if (self.start_ns..self.end_ns).contains(&reply.intended_ns) {
                    self.tally.latency.saturating_record(now - reply.intended_ns);
                }
                let seconds = 2 * DRAIN.as_secs();
                self.tally.blame(format!("{:?} unanswered {seconds} s after the end", reply.kind));
            }
        }
        let Some(schedule) = &mut self.schedule else { return };
        let end_ns = if self.source_ended || self.budget == 0 { 0 } else { self.end_ns };
        while schedule.due_ns() < end_ns {
            self.tally.latency.saturating_record(now - schedule.due_ns());
            self.tally.unsent += 1;
            schedule.advance();
        }
    }
}
