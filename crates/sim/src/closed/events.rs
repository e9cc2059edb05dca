//! The same cluster by events: each request is drawn, sent, queued and served, one after the other in virtual time. It checks
//! [`Network`](super::network::Network), whose shares and means it does not know.

mod copies;
mod counted;
mod quota;
mod sending;
mod targets;
mod telling;
mod time;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use mbal_random::Random;

use self::copies::{Copies, Leases, Round, Slots, each};
use self::counted::Counts;
pub use self::counted::{Latency, Measurement};
use self::quota::Budget;
use self::targets::Targets;
use self::time::Time;
use super::costs::Quotas;
use super::demand::Demand;
use super::placement::{Placement, Ways};
use super::situation::Situation;

/// Keys that are served in an epoch, about: enough for means to be right to some percents.
const KEYS: f64 = 40_000.0;
const REQUESTS_MIN: f64 = 4_000.0;
/// Requests of each client in an epoch, at least: what has changed is felt by then.
const ROUNDS_MIN: f64 = 2.0;
/// An epoch's first part is not counted.
const WARM: f64 = 0.3;

pub struct Events {
    random: Random,
    now: f64,
    order: u64,
    heap: BinaryHeap<Reverse<(Time, u64, Event)>>,
    clients: Vec<Client>,
    /// Until when those who ask are busy: who does for smart clients, then by server for ordinary ones.
    askers: Vec<f64>,
    workers: Vec<Worker>,
    jobs: Vec<Job>,
    free: Vec<usize>,
    copies: Copies,
    done: Counts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send {
        client: usize,
    },
    /// Another server has answered the one that has the client's connection.
    Back {
        client: usize,
    },
    Arrive {
        job: usize,
    },
    /// The worker's quota lets it go on.
    Resume {
        worker: usize,
    },
    Served {
        worker: usize,
    },
}

#[derive(Default)]
struct Client {
    /// Where its connection is; smart ones have one everywhere.
    at: Option<usize>,
    sent: f64,
    parts: u32,
    /// What its connection's server asks of others when it has come to its request.
    forwards: Vec<Job>,
    leases: Leases,
    /// Its request sets something.
    writes: bool,
}

#[derive(Default)]
struct Worker {
    queue: VecDeque<usize>,
    /// Seconds of a core that what is in the queue takes.
    work: f64,
    /// Since when what it serves is served, and for how long of its own time.
    began: f64,
    takes: f64,
    budget: Option<Budget>,
}

impl Worker {
    fn new(quotas: Option<Quotas>) -> Worker {
        Worker { budget: quotas.map(Budget::new), ..Worker::default() }
    }
}

#[derive(Clone, Copy)]
struct Job {
    worker: usize,
    what: What,
    /// Seconds of a core.
    work: f64,
    keys: u32,
    /// Of copied keys: reads and writes of home or copy.
    asks: Slots,
    writes: Slots,
}

#[derive(Clone, Copy)]
enum What {
    /// Of a smart client, or a server that forwards.
    Part {
        client: usize,
    },
    /// Of an ordinary client; what is asked of others follows.
    Turn {
        client: usize,
    },
    /// A shadow is told of a write, and answers.
    Told {
        slot: usize,
    },
    Answer {
        slot: usize,
    },
    /// A home sends what it tells shadows.
    Telling,
}

/// What holds in an epoch.
pub struct Epoch<'a> {
    pub situation: &'a Situation,
    pub demand: &'a Demand,
    pub placement: &'a Placement,
    pub taken: &'a [f64],
    /// By worker: seconds of a core for each key, since it looks for hot ones.
    pub sampling: &'a [f64],
    pub ways: Ways,
}

impl Epoch<'_> {
    fn speed(&self, worker: usize) -> f64 {
        self.situation.speeds[worker] * (1.0 - self.taken[worker])
    }
}

impl Events {
    pub fn new(situation: &Situation) -> Events {
        let count = situation.all_workers();
        Events {
            random: Random::new(situation.seed ^ 0x6576_656e_7473),
            now: 0.0,
            order: 0,
            heap: BinaryHeap::new(),
            clients: Vec::new(),
            askers: vec![0.0; 1 + situation.servers],
            workers: (0..count).map(|_| Worker::new(situation.quotas)).collect(),
            jobs: Vec::new(),
            free: Vec::new(),
            copies: Copies::default(),
            done: Counts::default(),
        }
    }

    /// Serves for an epoch. `about`: keys a second, as far as is known.
    pub fn epoch(&mut self, epoch: &Epoch<'_>, about: f64) -> Measurement {
        self.begin(epoch);
        let targets = Targets::new(epoch.demand, &self.copies);
        let batch = f64::from(epoch.situation.batch);
        let requests = (KEYS / batch).max(REQUESTS_MIN).max(ROUNDS_MIN * self.clients.len() as f64);
        let seconds = match epoch.situation.quotas {
            Some(_) => 1.0,
            None => (requests * batch / about).min(1.0),
        };
        self.serve(epoch, &targets, self.now + WARM * seconds);
        self.done = Counts::new(self.workers.len(), self.now);
        let from = self.now;
        self.serve(epoch, &targets, from + (1.0 - WARM) * seconds);
        self.measured(epoch, self.now - from)
    }

    fn measured(&mut self, epoch: &Epoch<'_>, seconds: f64) -> Measurement {
        (0..self.workers.len()).for_each(|worker| self.note_queue(worker));
        let mut done = std::mem::take(&mut self.done);
        for one in self.copies.all().filter(|one| one.round == Round::Invalidate) {
            done.of_key(&one.name).waits += self.now - one.waits_since.max(done.from);
        }
        let speeds: Vec<f64> = (0..self.workers.len()).map(|worker| epoch.speed(worker)).collect();
        done.measured(seconds, epoch.situation.batch, &speeds)
    }

    /// Connections are where they are now, and keys are copied as they are now.
    fn begin(&mut self, epoch: &Epoch<'_>) {
        let Situation { clients, .. } = epoch.situation;
        let smart = clients.smart.round() as usize;
        let mut at = vec![None; smart];
        // Largest remainders are of no account among so many.
        let mut carried = 0.0;
        for (worker, count) in epoch.placement.ordinary.iter().enumerate() {
            carried += count;
            let whole = carried.round().max(0.0);
            carried -= whole;
            at.extend(std::iter::repeat_n(Some(worker), whole as usize));
        }
        let known = self.clients.len();
        for (client, at) in self.clients.iter_mut().zip(&at) {
            client.at = *at;
        }
        for at in at.into_iter().skip(known) {
            let pause = clients.think + epoch.situation.round_trip + 1e-4;
            let first = self.now + self.random.unit() * pause;
            self.at(first, Event::Send { client: self.clients.len() });
            self.clients.push(Client { at, ..Client::default() });
        }
        let (freed, waiting) = self.copies.follow(epoch.demand, epoch.placement);
        for slot in each(freed) {
            self.clients.iter_mut().for_each(|client| client.leases.end(slot));
        }
        waiting.into_iter().for_each(|client| self.part_done(epoch, client));
    }

    fn at(&mut self, time: f64, event: Event) {
        self.order += 1;
        self.heap.push(Reverse((Time(time), self.order, event)));
    }

    fn serve(&mut self, epoch: &Epoch<'_>, targets: &Targets, until: f64) {
        while let Some(Reverse((Time(time), _, event))) = self.heap.peek().copied() {
            if time > until {
                break;
            }
            self.heap.pop();
            self.now = time;
            match event {
                Event::Send { client } => self.send(epoch, targets, client),
                Event::Back { client } => self.part_done(epoch, client),
                Event::Arrive { job } => self.arrive(epoch, job),
                Event::Resume { worker } => self.look(epoch, worker),
                Event::Served { worker } => self.finish(epoch, worker),
            }
        }
        self.now = until;
    }

    fn post(&mut self, job: Job, delay: f64) {
        let at = match self.free.pop() {
            Some(at) => {
                self.jobs[at] = job;
                at
            }
            None => {
                self.jobs.push(job);
                self.jobs.len() - 1
            }
        };
        self.at(self.now + delay, Event::Arrive { job: at });
    }

    fn arrive(&mut self, epoch: &Epoch<'_>, job: usize) {
        let worker = self.jobs[job].worker;
        self.note_queue(worker);
        self.workers[worker].work += self.jobs[job].work;
        self.workers[worker].queue.push_back(job);
        if self.workers[worker].queue.len() == 1 {
            self.jobs[job].work += epoch.situation.costs.wake;
            self.workers[worker].work += epoch.situation.costs.wake;
            self.look(epoch, worker);
        }
    }

    /// It has slept, or was held back.
    fn look(&mut self, epoch: &Epoch<'_>, worker: usize) {
        let (now, part) = (self.now, epoch.situation.speeds[worker]);
        let budget = self.workers[worker].budget.as_mut();
        let at = budget.map_or(now, |budget| budget.runs_at(now, part));
        self.start(epoch, worker, at);
    }

    fn go_on(&mut self, epoch: &Epoch<'_>, worker: usize) {
        let (now, part) = (self.now, epoch.situation.speeds[worker]);
        let budget = self.workers[worker].budget.as_mut();
        let at = budget.map_or(now, |budget| budget.goes_on_at(now, part));
        self.start(epoch, worker, at);
    }

    fn start(&mut self, epoch: &Epoch<'_>, worker: usize, at: f64) {
        if at > self.now {
            self.at(at, Event::Resume { worker });
            return;
        }
        let job = self.jobs[self.workers[worker].queue[0]];
        // Requests are not all as long.
        let takes = job.work / epoch.speed(worker) * (0.5 + self.random.unit());
        let own = &mut self.workers[worker];
        (own.began, own.takes) = (self.now, takes);
        // Who has a quota runs as fast as the core.
        let on_core = takes * epoch.situation.speeds[worker];
        let time = own.budget.as_mut().map_or(takes, |budget| {
            budget.used(on_core);
            on_core
        });
        self.at(self.now + time, Event::Served { worker });
    }

    fn note_queue(&mut self, worker: usize) {
        let counted = &mut self.done;
        if let Some(since) = counted.since.get_mut(worker) {
            let Worker { queue, work, .. } = &self.workers[worker];
            counted.queued[worker] += queue.len() as f64 * (self.now - *since);
            counted.backlog[worker] += work * (self.now - *since);
            *since = self.now;
        }
    }

    fn finish(&mut self, epoch: &Epoch<'_>, worker: usize) {
        self.note_queue(worker);
        let at = self.workers[worker].queue.pop_front().expect("something was served");
        let job = self.jobs[at];
        self.workers[worker].work -= job.work;
        self.free.push(at);
        if self.done.is_counting() {
            let Worker { began, takes, .. } = self.workers[worker];
            let time =
                takes * (self.now - began.max(self.done.from)) / (self.now - began).max(1e-12);
            match job.what {
                What::Part { .. } => {
                    self.done.followed[worker] += time;
                    self.done.followed_keys[worker] += f64::from(job.keys);
                    self.done.followed_turns[worker] += 1.0;
                }
                _ => self.done.own[worker] += time,
            }
            let is_turn = matches!(job.what, What::Part { .. } | What::Turn { .. });
            self.done.keys[worker] += f64::from(job.keys);
            self.done.turns[worker] += f64::from(u8::from(is_turn));
        }
        if !self.workers[worker].queue.is_empty() {
            self.go_on(epoch, worker);
        }
        match job.what {
            What::Part { client } => self.answer(epoch, &job, client),
            What::Turn { client } => {
                let half = epoch.situation.round_trip / 2.0;
                let forwards = std::mem::take(&mut self.clients[client].forwards);
                forwards.into_iter().for_each(|part| self.post(part, half));
                self.answer(epoch, &job, client);
            }
            What::Told { slot } => {
                if let Some(copied) = self.copies.get(slot) {
                    let home = copied.places[0];
                    self.say(epoch, home, What::Answer { slot });
                }
            }
            What::Answer { slot } => self.heard(epoch, slot),
            What::Telling => {}
        }
    }

    fn part_done(&mut self, epoch: &Epoch<'_>, client: usize) {
        let one = &mut self.clients[client];
        one.parts = one.parts.saturating_sub(1);
        if one.parts > 0 {
            return;
        }
        let half = epoch.situation.round_trip / 2.0;
        let took = self.now + half - one.sent;
        if self.done.is_counting() {
            self.done.requests += 1.0;
            let writes = self.clients[client].writes;
            self.done.latency.note(writes, took);
        }
        let think = epoch.situation.clients.think;
        // Clients that think do it by chance.
        let pause = if think > 0.0 { -self.random.unit().ln() * think } else { 0.0 };
        self.at(self.now + half + pause, Event::Send { client });
    }
}
