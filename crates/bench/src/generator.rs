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

use crate::address::Address;
use crate::batches::Batches;
use crate::connection::Connection;
use crate::follow::Routes;
use crate::issuing::Next;
use crate::leasing::Leasing;
use crate::load::{Edge, Length, Load};
use crate::pace::{Pace, Schedule};
use crate::reader::Then;
use crate::replies::Awaited;
use crate::request::Item;
use crate::source::Ask;
use crate::tally::Tally;
use crate::timeline::{Part, Timeline};
use mbal_random::Random;

/// After the window what is due may still be sent for so long, then replies are waited for as long again.
pub const DRAIN: Duration = Duration::from_secs(2);
/// A server that answers nothing for so long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A sleeping generator looks at the stop flag this often.
const NAP_NS: u64 = 100_000_000;
pub const READ_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Phase {
    WarmUp,
    Measured,
    Drain,
}

pub struct Generator<'a> {
    pub load: Load,
    pub epoll: OwnedFd,
    pub clock: Instant,
    pub schedule: Option<Schedule>,
    /// Client by client: one connection each, or one to each worker.
    pub connections: Vec<Connection>,
    pub routes: Option<Routes>,
    /// Of all clients, where copies of hot keys are read.
    pub leasing: Option<Leasing>,
    /// Connections per client.
    pub width: usize,
    pub clients: usize,
    pub in_flight: usize,
    pub turn: usize,
    pub next: Next,
    /// Closed loop: what waits by client until its workers have room, and its keys.
    pub held_up: Vec<Option<(Ask, Vec<u64>)>>,
    pub batches: Batches,
    /// Which connections an open loop's requests are for.
    pub random: Random,
    /// Connections with something to send.
    pub touched: Vec<usize>,
    /// Requests that may still be issued in this window.
    pub budget: u64,
    pub source_ended: bool,
    /// Every connection was full when a request became due: its lateness is the server's.
    pub starved: bool,
    pub phase: Phase,
    pub start_ns: u64,
    /// `u64::MAX` until it is known.
    pub end_ns: u64,
    /// When the last bytes came, or none were waited for.
    pub heard_ns: u64,
    /// When datagrams are looked through next for those that got lost.
    pub look_for_late_ns: u64,
    /// What replies ask for, until all that arrived with them is read.
    pub after: Vec<(Awaited, Then)>,
    /// Sets that wait for the store: due when, on which connection.
    pub later: VecDeque<(u64, usize, Item)>,
    pub tally: Tally,
    pub timeline: Option<&'a Timeline>,
    pub part: Part,
    /// The interval that `part` is of.
    pub interval: u64,
    pub input: Vec<u8>,
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
            let client = index / width;
            let connection = Connection::open(&load.target, address, client, index, &epoll)?;
            connections.push(match load.follow {
                true => connection.may_close(address),
                false => connection,
            });
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
            leasing: load.copies.then(|| Leasing::new(clients, load.seed ^ 0x1ea5e)),
            routes,
            width,
            clients,
            in_flight: 0,
            turn: 0,
            next: Next::default(),
            held_up: vec![None; clients],
            batches: Batches::default(),
            random: Random::new(load.seed ^ 0xb5),
            touched: Vec::new(),
            budget: u64::MAX,
            source_ended: false,
            starved: false,
            start_ns: load.warmup.as_nanos() as u64,
            phase: Phase::WarmUp,
            end_ns: u64::MAX,
            look_for_late_ns: 0,
            heard_ns: 0,
            after: Vec::new(),
            later: VecDeque::new(),
            tally: Tally::default(),
            timeline,
            part: Part::new(width),
            interval: 0,
            input: vec![0; READ_BYTES],
            load,
        })
    }

    pub fn now_ns(&self) -> u64 {
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
            if self.in_flight == 0 {
                self.heard_ns = now;
            } else if now >= self.heard_ns + SILENCE_MAX.as_nanos() as u64 {
                return Err(format!("no reply for {} s", SILENCE_MAX.as_secs()));
            }
            if stop.load(Ordering::Relaxed) {
                return Err("stopped".into());
            }
            self.set_later(now);
            self.give_up_late(now);
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
        self.tally.outside = warm.outside;
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
    pub fn tick(&mut self, now: u64) {
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
        let played = self.schedule.as_ref().is_some_and(Schedule::is_over);
        (self.source_ended || self.budget == 0 || played) && self.in_flight == 0
    }

    /// Is a request of the window waiting to be sent?
    pub fn due(&self, now: u64) -> bool {
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
}
