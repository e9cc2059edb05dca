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
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use crate::address::{Stream, Target};
use crate::pace::{Pace, Schedule};
use crate::replies::{Awaited, Kind, Lengths, Outcome, scan};
use crate::source::Source;
use crate::tally::Tally;
use crate::wording::{Protocol, Wording};

/// How long replies are waited for after the window.
const DRAIN: Duration = Duration::from_secs(2);
/// A sleeping generator looks at the stop flag this often.
const NAP_NS: u64 = 100_000_000;
const READ_BYTES: usize = 256 << 10;

/// What one thread sends.
#[derive(Clone)]
pub struct Load {
    pub target: Target,
    /// By key, the worker that serves it; empty where connections do not care.
    pub workers: Arc<[u16]>,
    pub connections: usize,
    /// Unanswered requests per connection at most.
    pub depth: usize,
    pub wording: Wording,
    pub lengths: Lengths,
    pub keys_per_get: usize,
    /// A missed key is set, on the same connection.
    pub look_aside: bool,
    pub pace: Pace,
    /// Ask the sockets without end, instead of sleeping: right on a core of one's own.
    pub spin: bool,
    pub source: Source,
    pub warmup: Duration,
    pub length: Length,
    pub seed: u64,
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

struct Connection {
    stream: Stream,
    /// The worker at the other end, where only its own keys are asked for.
    worker: Option<u16>,
    awaited: VecDeque<Awaited>,
    in_flight: usize,
    out: Vec<u8>,
    /// The start of a reply whose rest has not arrived.
    partial: Vec<u8>,
    /// Missed keys to be set, with their sizes.
    missed: Vec<(u64, u32)>,
    waits_to_write: bool,
}

struct Generator {
    load: Load,
    epoll: OwnedFd,
    clock: Instant,
    schedule: Option<Schedule>,
    connections: Vec<Connection>,
    turn: usize,
    in_flight: usize,
    /// Requests that may still be issued in this window.
    budget: u64,
    source_ended: bool,
    /// Every connection was full when a request became due: its lateness is the server's.
    starved: bool,
    phase: Phase,
    start_ns: u64,
    /// `u64::MAX` until it is known.
    end_ns: u64,
    tally: Tally,
    keys: Vec<u64>,
    input: Vec<u8>,
}

/// Runs the load to its end; `edge` is called as the measured window starts and ends.
pub fn drive(load: Load, stop: &AtomicBool, mut edge: impl FnMut(Edge)) -> Result<Tally, String> {
    let mut generator = Generator::new(load)?;
    generator.run(stop, &mut edge)?;
    Ok(generator.tally)
}

impl Generator {
    fn new(load: Load) -> Result<Self, String> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| e.to_string())?;
        let mut connections = Vec::with_capacity(load.connections);
        for index in 0..load.connections {
            let (stream, worker) = load
                .target
                .connect(index)
                .map_err(|e| format!("connect {:?}: {e}", load.target.address))?;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, &stream, data, epoll::EventFlags::IN).map_err(|e| e.to_string())?;
            connections.push(Connection {
                stream,
                worker,
                awaited: VecDeque::new(),
                in_flight: 0,
                out: Vec::new(),
                partial: Vec::new(),
                missed: Vec::new(),
                waits_to_write: false,
            });
        }
        // Without this the kernel may add 50 µs to every sleep.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).map_err(|e| e.to_string())?;
        let schedule = match load.pace {
            Pace::Closed => None,
            Pace::Open { requests_per_second } => {
                Some(Schedule::new(requests_per_second, load.seed ^ 0x5eed))
            }
        };
        Ok(Self {
            epoll,
            clock: Instant::now(),
            schedule,
            connections,
            turn: 0,
            in_flight: 0,
            budget: u64::MAX,
            source_ended: false,
            starved: false,
            start_ns: load.warmup.as_nanos() as u64,
            phase: Phase::WarmUp,
            end_ns: u64::MAX,
            tally: Tally::default(),
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
            for index in 0..self.connections.len() {
                self.refill(index, self.now_ns())?;
            }
        }
        loop {
            let now = self.now_ns();
            if self.phase == Phase::WarmUp && now >= self.start_ns {
                self.start(edge);
            }
            if self.phase == Phase::Measured && (now >= self.end_ns || self.exhausted()) {
                self.end(edge);
            }
            if self.phase == Phase::Drain {
                let answered = self.in_flight == 0 && !self.due(now);
                if answered || now >= self.end_ns + DRAIN.as_nanos() as u64 {
                    self.settle(now);
                    return Ok(());
                }
            }
            if stop.load(Ordering::Relaxed) {
                return Err("stopped".into());
            }
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
                    self.flush(index)?;
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
        self.phase = Phase::Drain;
        let now = self.now_ns();
        self.end_ns = self.end_ns.min(now);
        self.tally.seconds = (now - self.start_ns) as f64 / 1e9;
    }

    fn exhausted(&self) -> bool {
        (self.source_ended || self.budget == 0) && self.in_flight == 0
    }

    /// Is a request of the window waiting to be sent?
    fn due(&self, now: u64) -> bool {
        let Some(schedule) = &self.schedule else { return false };
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
                let full = self.in_flight >= self.connections.len() * self.load.depth;
                if !full && schedule.due_ns() < self.end_ns {
                    wait_ns = wait_ns.min(schedule.due_ns().saturating_sub(now));
                }
            }
        }
        Timespec { tv_sec: 0, tv_nsec: wait_ns as _ }
    }

    /// Open loop: sends what is due, as far as connections have room.
    fn issue_due(&mut self) -> Result<(), String> {
        if self.schedule.is_none() {
            return Ok(());
        }
        let now = self.now_ns();
        while self.due(now) {
            let Some(index) = self.next_with_room() else {
                self.starved = true;
                return Ok(());
            };
            let schedule = self.schedule.as_mut().expect("checked above");
            let due = schedule.due_ns();
            schedule.advance();
            if self.phase == Phase::Measured && !self.starved {
                self.tally.lag.saturating_record(now - due);
            }
            self.ask(index, due);
            self.flush(index)?;
        }
        self.starved = false;
        Ok(())
    }

    /// Connections take turns, so that every worker of the server gets its share.
    fn next_with_room(&mut self) -> Option<usize> {
        if self.in_flight >= self.connections.len() * self.load.depth {
            return None;
        }
        for _ in 0..self.connections.len() {
            self.turn = (self.turn + 1) % self.connections.len();
            if self.connections[self.turn].in_flight < self.load.depth {
                return Some(self.turn);
            }
        }
        None
    }

    /// Closed loop: tops the connection up.
    fn refill(&mut self, index: usize, now: u64) -> Result<(), String> {
        while self.phase != Phase::Drain
            && self.connections[index].in_flight < self.load.depth
            && self.budget > 0
            && !self.source_ended
        {
            self.ask(index, now);
        }
        self.flush(index)
    }

    fn ask(&mut self, index: usize, intended_ns: u64) {
        let Load { source, workers, keys_per_get, .. } = &mut self.load;
        let worker = self.connections[index].worker;
        let wanted = |key| worker.is_none_or(|worker| workers[key as usize] == worker);
        let Some(ask) = source.next(*keys_per_get, wanted, &mut self.keys) else {
            self.source_ended = true;
            return;
        };
        if self.phase == Phase::Measured {
            self.budget -= 1;
        }
        if ask.set {
            self.set(index, self.keys[0], ask.value_bytes, intended_ns);
            return;
        }
        let connection = &mut self.connections[index];
        self.load.wording.get(&mut connection.out, &self.keys);
        let text = self.load.wording.protocol == Protocol::Text;
        let end = self.keys.len() - 1;
        for (place, &key) in self.keys.iter().enumerate() {
            connection.awaited.push_back(Awaited {
                kind: Kind::Get,
                key,
                value_bytes: ask.value_bytes,
                last: !text && place == end,
                intended_ns,
            });
        }
        if text {
            connection.awaited.push_back(Awaited {
                kind: Kind::End,
                key: self.keys[0],
                value_bytes: 0,
                last: true,
                intended_ns,
            });
        }
        connection.in_flight += 1;
        self.in_flight += 1;
    }

    fn set(&mut self, index: usize, key: u64, value_bytes: u32, intended_ns: u64) {
        let connection = &mut self.connections[index];
        self.load.wording.set(&mut connection.out, key, value_bytes);
        connection.awaited.push_back(Awaited {
            kind: Kind::Set,
            key,
            value_bytes,
            last: true,
            intended_ns,
        });
        connection.in_flight += 1;
        self.in_flight += 1;
    }

    fn flush(&mut self, index: usize) -> Result<(), String> {
        let connection = &mut self.connections[index];
        let mut sent = 0;
        while sent < connection.out.len() {
            match connection.stream.write(&connection.out[sent..]) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("send: {error}")),
            }
        }
        connection.out.drain(..sent);
        let waits = !connection.out.is_empty();
        if waits != connection.waits_to_write {
            connection.waits_to_write = waits;
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, waits);
            let data = epoll::EventData::new_u64(index as u64);
            epoll::modify(&self.epoll, &connection.stream, data, flags)
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn read(&mut self, index: usize) -> Result<(), String> {
        let connection = &mut self.connections[index];
        let held = connection.partial.len();
        if self.input.len() < held + READ_BYTES {
            self.input.resize(held + READ_BYTES, 0);
        }
        self.input[..held].copy_from_slice(&connection.partial);
        connection.partial.clear();
        let filled = match connection.stream.read(&mut self.input[held..]) {
            Ok(0) => return Err("the server closed a connection".into()),
            Ok(bytes) => held + bytes,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => held,
            Err(error) => return Err(format!("receive: {error}")),
        };
        let now = self.clock.elapsed().as_nanos() as u64;
        let (tally, counting) = (&mut self.tally, self.phase == Phase::Measured);
        let (mut answered, look_aside) = (0, self.load.look_aside);
        let window = self.start_ns..self.end_ns;
        let missed = &mut connection.missed;
        let tell = |reply: Awaited, outcome: Outcome| {
            match outcome {
                Outcome::Hit if counting => {
                    tally.gets += 1;
                    tally.hits += 1;
                }
                Outcome::Miss => {
                    tally.gets += u64::from(counting);
                    if look_aside {
                        missed.push((reply.key, reply.value_bytes));
                    }
                }
                Outcome::Stored => tally.sets += u64::from(counting),
                Outcome::Wrong(wrong) => tally.blame(wrong),
                Outcome::Hit | Outcome::Ended => {}
            }
            if reply.last {
                answered += 1;
                tally.requests += u64::from(counting);
                if window.contains(&reply.intended_ns) {
                    tally.latency.saturating_record(now - reply.intended_ns);
                }
            }
        };
        let input = &self.input[..filled];
        let awaited = &mut connection.awaited;
        let taken = scan(&self.load.wording, self.load.lengths, input, awaited, tell)?;
        connection.partial.extend_from_slice(&input[taken..]);
        connection.in_flight -= answered;
        self.in_flight -= answered;
        for place in 0..self.connections[index].missed.len() {
            let (key, value_bytes) = self.connections[index].missed[place];
            self.set(index, key, value_bytes, now);
        }
        self.connections[index].missed.clear();
        match self.schedule {
            None => self.refill(index, now),
            Some(_) => self.flush(index),
        }
    }

    /// After the drain: what is still unanswered is wrong, what is still unsent waits until now at least.
    fn settle(&mut self, now: u64) {
        for connection in &self.connections {
            for reply in connection.awaited.iter().filter(|reply| reply.last) {
                if (self.start_ns..self.end_ns).contains(&reply.intended_ns) {
                    self.tally.latency.saturating_record(now - reply.intended_ns);
                }
                let seconds = DRAIN.as_secs();
                self.tally.blame(format!("{:?} unanswered {seconds} s after the end", reply.kind));
            }
        }
        while self.due(now) {
            let schedule = self.schedule.as_mut().expect("only a schedule has requests due");
            self.tally.latency.saturating_record(now - schedule.due_ns());
            self.tally.unsent += 1;
            schedule.advance();
        }
    }
}
