//! A cluster as a closed network of queues, solved for its mean values (Schweitzer's approximation of MVA).
//!
//! ```text
//!   smart client ──► a part of the batch for each owner's worker ──► the slowest part ends it ──► thinks
//!   ordinary client ──► its worker ──► a part for each worker of other servers, by link ──► the slowest ──► thinks
//! ```
//! A worker is one server of a queue: first come, first served. What comes waits for the work that stands before it, and then takes its own: the
//! turn of a connection, and its keys. Clients that do not wait are many that think long.

use super::costs::Costs;
use super::joining::BatchShares;

const ITERATIONS_MAX: usize = 300;
const PRECISION: f64 = 1e-5;

/// What the clients ask of whom, in shares of keys.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Of each server.
    pub workers: usize,
    /// By worker: its part of a core.
    pub capacity: Vec<f64>,
    pub costs: Costs,
    pub batch: f64,
    /// Between a reply and the next request arriving; what of it are not clients that think.
    pub pause: f64,
    pub pause_trip: f64,
    /// Between two servers and back.
    pub link_trip: f64,
    pub smart_clients: f64,
    pub ordinary_clients: Vec<f64>,
    /// By worker: what smart clients ask it for, and the share of keys that servers ask it for which have none of them.
    pub smart: BatchShares,
    pub forwarded: Vec<f64>,
    /// (server, worker, share): so much less a server asks this worker, since it answers it itself.
    pub spared: Vec<(usize, usize, f64)>,
    /// By worker: seconds of a core for each key that anyone asks for, beside answering.
    pub upkeep: Vec<f64>,
}

/// By worker.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// Keys a second, of all clients.
    pub throughput: f64,
    /// Requests that are in it, on average.
    pub queue: Vec<f64>,
    /// Seconds that they will take: warm, the next solution begins with it.
    pub backlog: Vec<f64>,
    /// Part of the time that it is busy for what follows cachelets, and for its connections and copies' upkeep.
    pub followed: Vec<f64>,
    pub own: Vec<f64>,
    /// A second.
    pub keys: Vec<f64>,
    pub turns: Vec<f64>,
    /// Of these, what follows cachelets.
    pub followed_keys: Vec<f64>,
    pub followed_turns: Vec<f64>,
    /// Of smart clients, and by server of ordinary ones: requests a second, and seconds until a request is answered.
    pub smart: (f64, f64),
    pub ordinary: Vec<(f64, f64)>,
    /// By server: seconds that its ordinary clients' requests are in the worker that has the connection.
    pub own_time: Vec<f64>,
}

impl Served {
    pub fn busy(&self, worker: usize) -> f64 {
        (self.followed[worker] + self.own[worker]).min(1.0)
    }

    /// Requests that stand ready and are not served yet, on average.
    pub fn waiting(&self, worker: usize) -> f64 {
        (self.queue[worker] - self.busy(worker)).max(0.0)
    }
}

/// A class of parts: how often a batch has one for a worker, and its seconds there.
struct Parts {
    often: Vec<f64>,
    work: Vec<f64>,
}

impl Parts {
    fn of_smart(network: &Network) -> Parts {
        let BatchShares { shares, often } = &network.smart;
        Parts::new(network, shares, often.clone(), network.costs.turn)
    }

    fn of_links(network: &Network) -> Parts {
        let shares = &network.forwarded;
        let often = shares.iter().map(|share| involved(*share, network.batch));
        Parts::new(network, shares, often.collect(), network.costs.link)
    }

    fn new(network: &Network, shares: &[f64], often: Vec<f64>, turn: f64) -> Parts {
        let keys = network.batch * network.costs.key;
        let work = |at: usize| (often[at] * turn + shares[at] * keys) / network.capacity[at];
        Parts { work: (0..often.len()).map(work).collect(), often }
    }

    fn flow(&self, at: usize, rate: f64) -> Flow {
        Flow::of(rate, self.often[at], self.work[at])
    }

    /// Seconds that a batch's part is in a worker, times how often it has one.
    fn time(&self, at: usize, wait: f64) -> f64 {
        self.work[at] + self.often[at] * wait
    }
}

/// What comes to a worker in a second: parts, their work in seconds, and the work of each.
#[derive(Clone, Copy, Default)]
struct Flow {
    parts: f64,
    work: f64,
    each: f64,
}

impl Flow {
    fn of(rate: f64, often: f64, work: f64) -> Flow {
        Flow { parts: rate * often, work: rate * work, each: work / often.max(1e-12) }
    }
}

/// A request's time in a worker: how long it waits, and how much of all is by chance, 1 being as exponential.
#[derive(Clone, Copy)]
struct Stay {
    wait: f64,
    shape: f64,
}

/// The part of gamma-distributed times with this shape that are longer than so many times the mean (Wilson and Hilferty 1931).
fn tail(times: f64, shape: f64) -> f64 {
    if shape < 1.05 {
        return (-times).exp();
    }
    let deviations = (times.cbrt() - 1.0 + 1.0 / (9.0 * shape)) * (9.0 * shape).sqrt();
    // Abramowitz and Stegun 26.2.17, to 1e-5.
    let t = 1.0 / (1.0 + 0.33267 * deviations.abs());
    let density = (-deviations * deviations / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let beyond = density * t * (0.4361836 + t * (-0.1201676 + t * 0.937298));
    if deviations < 0.0 { 1.0 - beyond } else { beyond }
}

/// How likely some key of a batch is of this share.
pub fn involved(share: f64, batch: f64) -> f64 {
    match batch {
        1.0 => share,
        _ => 1.0 - (1.0 - share.min(1.0)).powf(batch),
    }
}

impl Network {
    /// `before`: a solution of a network like this one, or nothing.
    pub fn solve(&self, before: &Served) -> Served {
        let count = self.capacity.len();
        let servers = count / self.workers;
        let Costs { turn, key, link: link_turn, .. } = self.costs;
        let clients = self.smart_clients + self.ordinary_clients.iter().sum::<f64>();
        let others = ((clients - 1.0) / clients).max(0.0);
        let smart = Parts::of_smart(self);
        let link = Parts::of_links(self);
        let mut spared = Vec::new();
        for &(server, worker, share) in &self.spared {
            let left = (self.forwarded[worker] - share).max(0.0);
            let often = link.often[worker] - involved(left, self.batch);
            let keys = self.batch * (self.forwarded[worker] - left);
            let work = (often * link_turn + keys * key) / self.capacity[worker];
            spared.push((server, worker, often, work));
        }
        let all_links: f64 = link.often.iter().sum();
        let links: Vec<f64> = (0..servers)
            .map(|server| {
                let own: f64 = link.often[self.of(server)].iter().sum();
                let spared = spared.iter().filter(|one| one.0 == server);
                all_links - own - spared.map(|one| one.2).sum::<f64>()
            })
            .collect();
        let own_work: Vec<f64> = (0..count)
            .map(|at| {
                let links = links[at / self.workers];
                (turn + self.batch * key + links * link_turn) / self.capacity[at]
            })
            .collect();
        let trips: Vec<f64> =
            (0..servers).map(|server| self.link_trip * self.any(&link, server)).collect();
        let upkeep: Vec<f64> =
            (0..count).map(|at| self.batch * self.upkeep[at] / self.capacity[at]).collect();
        let mut backlog = match before.backlog.len() == count {
            true => before.backlog.clone(),
            false => vec![clients / count as f64 * turn; count],
        };
        let mut queue = vec![0.0; count];
        let mut served = Served {
            ordinary: vec![(0.0, 0.0); servers],
            own_time: vec![0.0; servers],
            ..Served::default()
        };
        let mut last = 0.0;
        let mut close = 0;
        let mut by_class = vec![0.0; count];
        for _ in 0..ITERATIONS_MAX {
            let waits: Vec<f64> = backlog.iter().map(|work| others * work).collect();
            let slow = self.slowest(&smart, &waits);
            let smart_rate = match self.smart_clients > 0.0 {
                true => self.smart_clients / (self.pause + slow.whole),
                false => 0.0,
            };
            served.smart = (smart_rate, slow.whole);
            let has_ordinary = clients > self.smart_clients;
            let mut all_ordinary = 0.0;
            if has_ordinary {
                let slow = self.slowest(&link, &waits);
                for (server, trip) in trips.iter().enumerate() {
                    let (mut rate, mut time) = (0.0, 0.0);
                    for at in self.of(server) {
                        let own = own_work[at] + waits[at];
                        let pause = self.pause + slow.without[server] + trip;
                        by_class[at] = self.ordinary_clients[at] / (pause + own);
                        rate += by_class[at];
                        time += by_class[at] * own;
                    }
                    let own = time / rate.max(1e-9);
                    served.own_time[server] = own;
                    served.ordinary[server] = (rate, own + slow.without[server] + trip);
                    all_ordinary += rate;
                }
            }
            let rate = smart_rate + all_ordinary;
            let mut less = vec![(0.0, 0.0); count];
            for &(server, worker, often, work) in &spared {
                let rate = served.ordinary[server].0;
                less[worker] = (less[worker].0 + rate * often, less[worker].1 + rate * work);
            }
            for at in 0..count {
                let remote = all_ordinary - served.ordinary[at / self.workers].0;
                let parts = (remote * link.often[at] - less[at].0).max(0.0);
                let work = (remote * link.work[at] - less[at].1).max(0.0);
                // What copies are told is many small letters.
                let letters = link_turn / self.capacity[at];
                let flows = [
                    smart.flow(at, smart_rate),
                    Flow { parts, work, each: work / parts.max(1e-12) },
                    Flow::of(by_class[at], 1.0, own_work[at]),
                    Flow::of(rate * upkeep[at] / letters, 1.0, letters),
                ];
                let in_it = |flow: &Flow| flow.work + flow.parts * waits[at];
                queue[at] = flows.iter().map(in_it).sum();
                backlog[at] = flows.iter().map(|flow| in_it(flow) * flow.each).sum();
            }
            close = if (rate - last).abs() <= PRECISION * rate { close + 1 } else { 0 };
            last = rate;
            if close >= 3 {
                break;
            }
        }
        let all_ordinary: f64 = served.ordinary.iter().map(|one| one.0).sum();
        served.throughput = last * self.batch;
        for at in 0..count {
            let server = at / self.workers;
            let mut remote = (all_ordinary - served.ordinary[server].0) * link.work[at];
            let mut turns = (all_ordinary - served.ordinary[server].0) * link.often[at];
            let mut keys = (all_ordinary - served.ordinary[server].0) * self.forwarded[at];
            for &(asker, worker, often, work) in &spared {
                if worker == at {
                    remote -= served.ordinary[asker].0 * work;
                    turns -= served.ordinary[asker].0 * often;
                }
            }
            for &(asker, worker, share) in &self.spared {
                keys -= if worker == at { served.ordinary[asker].0 * share } else { 0.0 };
            }
            keys += served.smart.0 * self.smart.shares[at];
            turns += served.smart.0 * smart.often[at];
            served.followed_keys.push(keys * self.batch);
            served.followed_turns.push(turns);
            keys += by_class[at];
            turns += by_class[at];
            served.followed.push(served.smart.0 * smart.work[at] + remote);
            served.own.push(by_class[at] * own_work[at] + last * upkeep[at]);
            served.keys.push(keys * self.batch);
            served.turns.push(turns);
        }
        (served.queue, served.backlog) = (queue, backlog);
        served
    }

    /// Seconds from sending to the reply that one of a hundred requests takes longer than.
    pub fn p99(&self, served: &Served) -> f64 {
        let stays = self.stays(served);
        let smart = Parts::of_smart(self);
        let link = Parts::of_links(self);
        let all = served.throughput / self.batch;
        let late = |time: f64| {
            let of_smart = self.late(&smart, &stays, time, None);
            let mut late = served.smart.0 * of_smart;
            for (server, (rate, _)) in
                served.ordinary.iter().enumerate().filter(|one| one.1.0 > 0.0)
            {
                // Its own worker first, then the others.
                let own = served.own_time[server];
                let at =
                    self.of(server).max_by(|a, b| served.queue[*a].total_cmp(&served.queue[*b]));
                let first = tail(time / own, at.map_or(1.0, |at| stays[at].shape));
                let trip = self.link_trip * self.any(&link, server);
                let left = (time - own - trip).max(0.0);
                let others = self.late(&link, &stays, left, Some(server));
                late += rate * (first + (1.0 - first) * others.min(1.0));
            }
            late / all
        };
        let (mut least, mut most) = (1e-7f64, 1e2f64);
        for _ in 0..40 {
            let middle = (least * most).sqrt();
            (least, most) = if late(middle) > 0.01 { (middle, most) } else { (least, middle) };
        }
        least + self.pause_trip
    }

    /// How likely a part is not back after this time; without those of a server.
    fn late(&self, parts: &Parts, stays: &[Stay], time: f64, but: Option<usize>) -> f64 {
        let of = |at: usize| {
            let mean = parts.work[at] / parts.often[at].max(1e-12) + stays[at].wait;
            parts.often[at] * tail(time / mean.max(1e-12), stays[at].shape)
        };
        let all = (0..stays.len()).filter(|at| Some(at / self.workers) != but);
        match self.batch {
            1.0 => all.map(of).sum(),
            _ => 1.0 - all.fold(1.0, |done, at| done * (1.0 - of(at))),
        }
    }

    fn of(&self, server: usize) -> std::ops::Range<usize> {
        server * self.workers..(server + 1) * self.workers
    }

    /// A queue varies as one with chance arrivals does; but no more than all that are elsewhere vary, since clients are so many.
    fn stays(&self, served: &Served) -> Vec<Stay> {
        let clients = self.smart_clients + self.ordinary_clients.iter().sum::<f64>();
        let by_chance = |queue: &f64| queue * (1.0 + queue);
        let queued: f64 = served.queue.iter().sum();
        let all: f64 =
            served.queue.iter().map(by_chance).sum::<f64>() + (clients - queued).max(0.0);
        let stay = |(queue, wait): (&f64, &f64)| {
            let own = by_chance(queue);
            let (stretch, varies) = (1.0 + queue, own.min(all - own));
            // A request's own work, and those before it, vary a little.
            let variance = varies + 0.1 * stretch;
            Stay { wait: *wait, shape: (stretch * stretch / variance).max(1.0) }
        };
        served.queue.iter().zip(&served.backlog).map(stay).collect()
    }

    /// How likely a batch asks anything of other servers.
    fn any(&self, link: &Parts, server: usize) -> f64 {
        let own = self.of(server);
        let others = (0..link.often.len()).filter(|at| !own.contains(at)).map(|at| link.often[at]);
        match self.batch {
            1.0 => others.sum(),
            _ => 1.0 - others.fold(1.0, |none, often| none * (1.0 - often)),
        }
    }

    /// Until the slowest part of a batch is back.
    fn slowest(&self, parts: &Parts, waits: &[f64]) -> Slowest {
        let servers = waits.len() / self.workers;
        let time = |at: usize| parts.time(at, waits[at]);
        if self.batch == 1.0 {
            let of = |server| self.of(server).map(time).sum::<f64>();
            let of: Vec<f64> = (0..servers).map(of).collect();
            let whole = of.iter().sum::<f64>();
            return Slowest { whole, without: of.iter().map(|own| whole - own).collect() };
        }
        let rates: Vec<f64> = (0..waits.len())
            .map(|at| if parts.often[at] > 0.0 { parts.often[at] / time(at) } else { 0.0 })
            .collect();
        let slowest = rates.iter().copied().filter(|rate| *rate > 0.0).fold(f64::MAX, f64::min);
        let mut slow = Slowest { whole: 0.0, without: vec![0.0; servers] };
        let mut done = vec![1.0; servers];
        // A part's time is as good as exponential. The integral of what is not done yet, by the trapezoid's rule in the logarithm.
        for step in 0..=STEPS {
            let at_time = FIRST * (f64::from(step) * STEP).exp() / slowest;
            let weight = if step == 0 { at_time * (1.0 + STEP / 2.0) } else { at_time * STEP };
            let mut all = 1.0;
            for (server, done) in done.iter_mut().enumerate() {
                let of = self.of(server);
                *done = of.fold(1.0, |done, at| {
                    done * (1.0 - parts.often[at] * (-at_time * rates[at]).exp())
                });
                all *= *done;
            }
            slow.whole += weight * (1.0 - all);
            for (without, done) in slow.without.iter_mut().zip(&done) {
                let others = if *done > 1e-100 { all / done } else { 0.0 };
                *without += weight * (1.0 - others.min(1.0));
            }
        }
        slow
    }
}

const FIRST: f64 = 0.005;
const STEP: f64 = 0.4;
const STEPS: u32 = 19;

struct Slowest {
    whole: f64,
    /// By server: without its own workers.
    without: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: f64 = Costs::MODELLED.turn;
    const KEY: f64 = Costs::MODELLED.key;
    const LINK: f64 = Costs::MODELLED.link;

    fn network(shares: &[f64], clients: f64, batch: f64) -> Network {
        Network {
            workers: 1,
            capacity: vec![1.0; shares.len()],
            batch,
            smart_clients: clients,
            ordinary_clients: vec![0.0; shares.len()],
            smart: BatchShares::by_chance(shares.to_vec(), batch),
            forwarded: shares.to_vec(),
            upkeep: vec![0.0; shares.len()],
            ..Network::default()
        }
    }

    fn close(a: f64, b: f64, by: f64) -> bool {
        (a / b - 1.0).abs() < by
    }

    #[test]
    fn a_saturated_cluster_does_what_its_busiest_worker_can() {
        let served = network(&[0.5, 0.3, 0.2], 300.0, 1.0).solve(&Served::default());
        assert!(close(served.throughput, 2.0 / (TURN + KEY), 0.01), "{served:?}");
        assert!(served.waiting(0) > 250.0 && served.waiting(1) < 5.0, "{served:?}");
        assert!(close(served.busy(1), 0.6, 0.02), "{served:?}");
    }

    #[test]
    fn balanced_queues_are_as_the_exact_recursion_has_them() {
        // N clients, K even queues: X = N / (D (N + K - 1)).
        let served = network(&[0.25; 4], 16.0, 1.0).solve(&Served::default());
        let exact = 16.0 / ((TURN + KEY) / 4.0 * 19.0);
        assert!(close(served.throughput, exact, 0.03), "{} {exact}", served.throughput);
    }

    #[test]
    fn who_thinks_asks_for_less() {
        let mut calm = network(&[0.5, 0.5], 10.0, 1.0);
        calm.pause = 1e-3;
        let served = calm.solve(&Served::default());
        assert!(close(served.throughput, 10.0 / (1e-3 + TURN + KEY), 0.01), "{served:?}");
    }

    #[test]
    fn in_batches_the_busiest_worker_decides_too() {
        let served = network(&[0.7, 0.1, 0.1, 0.1], 200.0, 50.0).solve(&Served::default());
        let busiest = TURN + 35.0 * KEY;
        assert!(close(served.throughput, 50.0 / busiest, 0.03), "{served:?}");
    }

    #[test]
    fn the_slowest_of_equal_parts_takes_the_harmonic_sum() {
        let even = network(&[0.25; 4], 1.0, 1e6);
        let parts = Parts { often: vec![1.0; 4], work: vec![1.0; 4] };
        let slow = even.slowest(&parts, &[0.0; 4]);
        assert!(close(slow.whole, 25.0 / 12.0, 0.01), "{}", slow.whole);
        assert!(close(slow.without[0], 11.0 / 6.0, 0.01), "{}", slow.without[0]);
    }

    #[test]
    fn what_is_short_waits_for_what_is_long_and_before_it() {
        // Turns of fifty clients at the first worker; another one asks it for a key or two.
        let mut mixed = network(&[0.02, 0.98], 1.0, 60.0);
        mixed.ordinary_clients = vec![50.0, 0.0];
        let served = mixed.solve(&Served::default());
        let long = TURN + 60.0 * KEY;
        assert!((25.0..60.0).contains(&(served.smart.1 / long)), "{served:?}");
    }

    #[test]
    fn what_ordinary_clients_ask_of_others_costs_both_servers() {
        let mut all = network(&[0.5, 0.5], 0.0, 1.0);
        all.ordinary_clients = vec![200.0, 0.0];
        let served = all.solve(&Served::default());
        let work = TURN + KEY + 0.5 * LINK;
        assert!(close(served.throughput, 1.0 / work, 0.02), "{served:?}");
        assert!(close(served.followed[1], 0.5 * (LINK + KEY) / work, 0.02), "{served:?}");
    }
}
