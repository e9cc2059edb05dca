//! The same cluster by events: each request is drawn, sent, queued and served, one after the other in virtual time. It checks
//! [`Network`](super::network::Network), whose shares and means it does not know.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use mbal_random::Random;
use mbal_replica::choose_place;

use super::demand::Demand;
use super::network::{KEY, LINK, Served, TURN};
use super::placement::{Placement, Ways, Writes};
use super::situation::Situation;
use crate::model::Delays;

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
    workers: Vec<Worker>,
    jobs: Vec<Job>,
    free: Vec<usize>,
    copied: Vec<Copied>,
    done: Counted,
}

/// Seconds; never no number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Time) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Time) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
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
    Served {
        worker: usize,
    },
}

struct Client {
    /// Where its connection is; smart ones have one everywhere.
    at: Option<usize>,
    sent: f64,
    parts: u32,
    /// What its connection's server asks of others when it has come to its request.
    forwards: Vec<Job>,
    /// By copied key.
    leases: u64,
}

#[derive(Default)]
struct Worker {
    queue: VecDeque<usize>,
    /// Seconds of a core that what is in the queue takes.
    work: f64,
    /// Since when what it serves is served.
    began: f64,
}

#[derive(Clone, Copy)]
struct Job {
    worker: usize,
    what: What,
    /// Seconds of a core.
    work: f64,
    keys: u32,
    /// Of copied keys: reads and writes of home or copy.
    asks: u64,
    writes: u64,
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
        key: usize,
    },
    Answer {
        key: usize,
    },
}

/// A key with copies.
struct Copied {
    places: Vec<usize>,
    rounds: Round,
    acks: usize,
    /// Clients whose writes wait until all shadows have let go.
    waiting: Vec<usize>,
    dirty: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    Open,
    Invalidate,
    Update,
}

#[derive(Default)]
struct Counted {
    /// When counting began.
    from: f64,
    keys: Vec<f64>,
    turns: Vec<f64>,
    followed_keys: Vec<f64>,
    followed_turns: Vec<f64>,
    followed: Vec<f64>,
    own: Vec<f64>,
    /// Requests times seconds in the queue, and their seconds of a core.
    queued: Vec<f64>,
    backlog: Vec<f64>,
    since: Vec<f64>,
    requests: f64,
    delays: Delays,
}

/// What holds in an epoch.
pub struct Epoch<'a> {
    pub situation: &'a Situation,
    pub demand: &'a Demand,
    pub placement: &'a Placement,
    pub taken: &'a [f64],
    pub ways: Ways,
}

/// What a key of a request may be: one of the hottest, or any other of a cachelet.
struct Targets {
    /// Alias method (Walker 1977): a column's own target below its limit, else another one.
    limits: Vec<f64>,
    others: Vec<usize>,
    hottest: usize,
    /// By one of the hottest, its place among the copied.
    copied: Vec<Option<usize>>,
}

impl Targets {
    fn new(demand: &Demand, placement: &Placement) -> Targets {
        let mut weights: Vec<f64> = demand.hottest.iter().map(|key| key.share).collect();
        let mut rest = demand.shares.clone();
        demand.hottest.iter().for_each(|key| rest[key.cachelet] -= key.share);
        weights.extend(rest.iter().map(|share| share.max(0.0)));
        let sum: f64 = weights.iter().sum();
        let count = weights.len();
        let mut limits: Vec<f64> = weights.iter().map(|one| one / sum * count as f64).collect();
        let mut others: Vec<usize> = (0..count).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|at| limits[*at] < 1.0);
        while let (Some(less), Some(more)) = (small.pop(), large.pop()) {
            others[less] = more;
            limits[more] -= 1.0 - limits[less];
            if limits[more] < 1.0 { small.push(more) } else { large.push(more) }
        }
        let copied = |name: &Vec<u8>| placement.copied.keys().position(|known| known == name);
        let copied = demand.hottest.iter().map(|key| copied(&key.name)).collect();
        Targets { limits, others, hottest: demand.hottest.len(), copied }
    }

    fn draw(&self, random: &mut Random) -> usize {
        let at = random.below(self.limits.len() as u64) as usize;
        if random.unit() <= self.limits[at] { at } else { self.others[at] }
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
            workers: (0..count).map(|_| Worker::default()).collect(),
            jobs: Vec::new(),
            free: Vec::new(),
            copied: Vec::new(),
            done: Counted::default(),
        }
    }

    /// Serves for an epoch; returns what was served, and the 99th percentile in seconds. `about`: keys a second, as far as is known.
    pub fn epoch(&mut self, epoch: &Epoch<'_>, about: f64) -> (Served, f64) {
        self.begin(epoch);
        let targets = Targets::new(epoch.demand, epoch.placement);
        let batch = f64::from(epoch.situation.batch);
        let requests = (KEYS / batch).max(REQUESTS_MIN).max(ROUNDS_MIN * self.clients.len() as f64);
        let seconds = (requests * batch / about).min(1.0);
        self.serve(epoch, &targets, self.now + WARM * seconds);
        self.done = Counted::new(self.workers.len(), self.now);
        let from = self.now;
        self.serve(epoch, &targets, from + (1.0 - WARM) * seconds);
        self.counted(epoch, self.now - from)
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
            (client.at, client.leases) = (*at, 0);
        }
        for (client, at) in at.iter().enumerate().skip(known) {
            self.clients.push(Client { at: *at, sent: 0.0, parts: 0, forwards: vec![], leases: 0 });
            let pause = clients.think + epoch.situation.round_trip + 1e-4;
            let first = self.now + self.random.unit() * pause;
            self.at(first, Event::Send { client });
        }
        let home = |name: &Vec<u8>| {
            let key = epoch.demand.hottest.iter().find(|key| key.name == *name);
            key.map_or(0, |key| epoch.placement.owners[key.cachelet])
        };
        let mut before = std::mem::take(&mut self.copied).into_iter();
        for (name, shadows) in epoch.placement.copied.iter().take(64) {
            // Writes that wait for a key's shadows are not lost with it.
            let waiting = before.next().map_or(Vec::new(), |one| one.waiting);
            waiting.into_iter().for_each(|client| self.part_done(epoch, client));
            let places = std::iter::once(home(name)).chain(shadows.iter().copied()).collect();
            let rounds = Round::Open;
            self.copied.push(Copied { places, rounds, acks: 0, waiting: vec![], dirty: false });
        }
        for one in before {
            one.waiting.into_iter().for_each(|client| self.part_done(epoch, client));
        }
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
                Event::Served { worker } => self.finish(epoch, worker),
            }
        }
        self.now = until;
    }

    /// A client sends a batch.
    fn send(&mut self, epoch: &Epoch<'_>, targets: &Targets, client: usize) {
        let Epoch { situation, demand, placement, ways, .. } = *epoch;
        let batch = situation.batch;
        let own = self.clients[client].at;
        let own_server = own.map(|worker| worker / situation.workers);
        let mut parts: Vec<Job> = Vec::new();
        // Copied keys of a smart client, which go where others go.
        let mut joining: Vec<usize> = Vec::new();
        let (mut first_asks, mut first_writes) = (0, 0);
        for _ in 0..batch {
            let target = targets.draw(&mut self.random);
            let (cachelet, sets, copied) = match demand.hottest.get(target) {
                Some(key) => (key.cachelet, key.sets, targets.copied[target]),
                None => (target - targets.hottest, situation.sets, None),
            };
            let is_set = self.random.unit() <= sets;
            let mut worker = placement.owners[cachelet];
            let (mut asks, mut writes) = (0, 0);
            if let Some(copied) = copied.filter(|at| *at < self.copied.len()) {
                let bit = 1 << copied;
                let places = &self.copied[copied].places;
                if is_set {
                    self.clients[client].leases &= !bit;
                    writes = bit;
                } else {
                    let here =
                        places.iter().find(|at| Some(**at / situation.workers) == own_server);
                    let may_choose = ways.forwards_to_copies(batch);
                    let has_lease = self.clients[client].leases & bit != 0;
                    if has_lease && own.is_none() {
                        joining.push(copied);
                        continue;
                    }
                    if has_lease {
                        let chosen = self.random.below(places.len() as u64) as usize;
                        worker = if may_choose { places[chosen] } else { worker };
                        let here = here.filter(|_| ways.answers_at_once(batch));
                        worker = *here.unwrap_or(&worker);
                    }
                    asks = bit;
                }
            }
            if Some(worker / situation.workers) == own_server {
                first_asks |= asks;
                first_writes |= writes;
                continue;
            }
            let what = What::Part { client };
            add_key(&mut parts, Job { worker, what, work: 0.0, keys: 1, asks, writes });
        }
        for copied in joining {
            let places = &self.copied[copied].places;
            let is_asked = |at: usize| parts.iter().any(|part| part.worker == places[at]);
            let worker = places[choose_place(places.len(), is_asked, self.random.word() as u32)];
            let (what, asks) = (What::Part { client }, 1 << copied);
            add_key(&mut parts, Job { worker, what, work: 0.0, keys: 1, asks, writes: 0 });
        }
        let turn = if own.is_some() { LINK } else { TURN };
        parts.iter_mut().for_each(|part| part.work = turn + f64::from(part.keys) * KEY);
        self.clients[client].sent = self.now;
        self.clients[client].parts = parts.len() as u32 + u32::from(own.is_some());
        let half = situation.round_trip / 2.0;
        if let Some(worker) = own {
            let links = parts.len() as f64;
            let first = Job {
                worker,
                what: What::Turn { client },
                work: TURN + f64::from(batch) * KEY + links * LINK,
                keys: batch,
                asks: first_asks,
                writes: first_writes,
            };
            self.clients[client].forwards = parts;
            self.post(first, half);
        } else {
            parts.into_iter().for_each(|part| self.post(part, half));
        }
    }

    fn speed(&self, epoch: &Epoch<'_>, worker: usize) -> f64 {
        epoch.situation.speeds[worker] * (1.0 - epoch.taken[worker])
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
            self.start(epoch, worker);
        }
    }

    fn start(&mut self, epoch: &Epoch<'_>, worker: usize) {
        let job = self.jobs[self.workers[worker].queue[0]];
        self.workers[worker].began = self.now;
        // Requests are not all as long.
        let time = job.work / self.speed(epoch, worker) * (0.5 + self.random.unit());
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
        if !self.done.keys.is_empty() {
            let time = self.now - self.workers[worker].began.max(self.done.from);
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
            self.start(epoch, worker);
        }
        match job.what {
            What::Part { client } => self.answer(epoch, &job, client),
            What::Turn { client } => {
                let half = epoch.situation.round_trip / 2.0;
                let forwards = std::mem::take(&mut self.clients[client].forwards);
                forwards.into_iter().for_each(|part| self.post(part, half));
                self.answer(epoch, &job, client);
            }
            What::Told { key } if key < self.copied.len() => {
                let home = self.copied[key].places[0];
                self.say(epoch, home, What::Answer { key });
            }
            What::Answer { key } if key < self.copied.len() => self.answered(epoch, key),
            What::Told { .. } | What::Answer { .. } => {}
        }
    }

    fn say(&mut self, epoch: &Epoch<'_>, worker: usize, what: What) {
        let job = Job { worker, what, work: LINK / 2.0, keys: 0, asks: 0, writes: 0 };
        self.post(job, epoch.situation.round_trip / 2.0);
    }

    /// A part is served: leases come and go, writes are told.
    fn answer(&mut self, epoch: &Epoch<'_>, job: &Job, client: usize) {
        let is_atomic = epoch.ways.writes == Writes::Atomic;
        let mut passes = None;
        for key in (0..self.copied.len()).filter(|key| job.asks >> key & 1 == 1) {
            let is_closed = self.copied[key].rounds != Round::Open;
            let home = self.copied[key].places[0];
            let is_home = home / epoch.situation.workers == job.worker / epoch.situation.workers;
            if is_home {
                let opens = !is_closed || epoch.ways.writes == Writes::Open;
                let bit = 1 << key;
                let leases = &mut self.clients[client].leases;
                *leases = if opens { *leases | bit } else { *leases & !bit };
            } else if is_atomic && is_closed {
                passes = Some((home, 1 << key));
            }
        }
        let mut waits = false;
        for key in (0..self.copied.len()).filter(|key| job.writes >> key & 1 == 1) {
            let copied = &mut self.copied[key];
            if is_atomic && !waits {
                copied.waiting.push(client);
                waits = true;
            } else {
                copied.dirty = true;
            }
            if copied.rounds == Round::Open {
                self.begin_round(epoch, key);
            }
        }
        match passes {
            // What a shadow has let go of is asked of the home.
            Some((home, asks)) if !waits => {
                let what = What::Part { client };
                let work = LINK + KEY;
                let job = Job { worker: home, what, work, keys: 1, asks, writes: 0 };
                self.post(job, epoch.situation.round_trip);
            }
            _ if waits => {}
            _ => match (job.what, self.clients[client].at) {
                (What::Part { .. }, Some(_)) => {
                    self.at(self.now + epoch.situation.round_trip / 2.0, Event::Back { client });
                }
                _ => self.part_done(epoch, client),
            },
        }
    }

    fn begin_round(&mut self, epoch: &Epoch<'_>, key: usize) {
        let copied = &mut self.copied[key];
        let invalidates = epoch.ways.writes == Writes::Atomic && !copied.waiting.is_empty();
        copied.rounds = if invalidates { Round::Invalidate } else { Round::Update };
        copied.dirty = false;
        copied.acks = copied.places.len() - 1;
        let shadows: Vec<usize> = copied.places[1..].to_vec();
        let (home, count) = (copied.places[0], shadows.len());
        for shadow in shadows {
            self.say(epoch, shadow, What::Told { key });
        }
        // Telling is work, too.
        let work = LINK / 2.0 * count as f64;
        let job =
            Job { worker: home, what: What::Told { key: 64 }, work, keys: 0, asks: 0, writes: 0 };
        self.post(job, 0.0);
    }

    fn answered(&mut self, epoch: &Epoch<'_>, key: usize) {
        let copied = &mut self.copied[key];
        copied.acks = copied.acks.saturating_sub(1);
        if copied.acks > 0 || copied.rounds == Round::Open {
            return;
        }
        if copied.rounds == Round::Invalidate {
            for client in std::mem::take(&mut copied.waiting) {
                self.part_done(epoch, client);
            }
            self.begin_round(epoch, key);
        } else if copied.dirty || !copied.waiting.is_empty() {
            self.begin_round(epoch, key);
        } else {
            copied.rounds = Round::Open;
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
        if !self.done.keys.is_empty() {
            self.done.requests += 1.0;
            self.done.delays.note(took * 1e7);
        }
        let think = epoch.situation.clients.think;
        // Clients that think do it by chance.
        let pause = if think > 0.0 { -self.random.unit().ln() * think } else { 0.0 };
        self.at(self.now + half + pause, Event::Send { client });
    }

    fn counted(&mut self, epoch: &Epoch<'_>, seconds: f64) -> (Served, f64) {
        (0..self.workers.len()).for_each(|worker| self.note_queue(worker));
        let done = std::mem::take(&mut self.done);
        let rate = |counts: &[f64]| counts.iter().map(|count| count / seconds).collect::<Vec<_>>();
        let throughput = done.requests / seconds * f64::from(epoch.situation.batch);
        let seconds_of = |(at, work): (usize, f64)| work / self.speed(epoch, at);
        let served = Served {
            throughput,
            queue: rate(&done.queued),
            backlog: rate(&done.backlog).into_iter().enumerate().map(seconds_of).collect(),
            followed: rate(&done.followed),
            own: rate(&done.own),
            keys: rate(&done.keys),
            turns: rate(&done.turns),
            followed_keys: rate(&done.followed_keys),
            followed_turns: rate(&done.followed_turns),
            ..Served::default()
        };
        (served, done.delays.at(0.99) / 1e7)
    }
}

/// A key more for its worker, in the part that it has of the batch already or in one of its own.
fn add_key(parts: &mut Vec<Job>, key: Job) {
    match parts.iter_mut().find(|part| part.worker == key.worker) {
        Some(part) => {
            part.keys += key.keys;
            part.asks |= key.asks;
            part.writes |= key.writes;
        }
        None => parts.push(key),
    }
}

impl Counted {
    fn new(workers: usize, now: f64) -> Counted {
        let none = || vec![0.0; workers];
        Counted {
            from: now,
            keys: none(),
            turns: none(),
            followed_keys: none(),
            followed_turns: none(),
            followed: none(),
            own: none(),
            queued: none(),
            backlog: none(),
            since: vec![now; workers],
            ..Counted::default()
        }
    }
}
