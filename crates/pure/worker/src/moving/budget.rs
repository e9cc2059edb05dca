//! What moves may add to how long clients' requests stand waiting.
//!
//! ```text
//!   the move's:   │ a slice │        rest       │ a slice │        rest       │
//!   ticks, 10 ms: │ . . . . . . │ calm calm calm │ . . . . . │ calm calm calm │
//! ```
//! The mean wait of all requests of 100 ms is held against what it was of late in calm ticks: those with no step of a move in them
//! and none in the tick before, in which what has queued up is served. Rests are as long as they have to be, so that under a load
//! that has changed there are calm ticks again.

use std::time::Duration;

use mbal_migration::Strain;
use mbal_model::Instant;

const TICK: Duration = Duration::from_millis(10);
/// A mean is of so many ticks.
const TICKS: u32 = 10;
/// So many means of calm ticks are remembered.
const REMEMBERED: usize = 9;
/// What nobody feels: less than a round trip between two hosts.
const UNFELT_NS: u64 = 20_000;

/// Requests, and how long they stood waiting in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    pub requests: u64,
    pub ns: u64,
}

impl Waits {
    fn since(self, before: Waits) -> Waits {
        Waits {
            requests: self.requests.wrapping_sub(before.requests),
            ns: self.ns.wrapping_sub(before.ns),
        }
    }

    fn mean_ns(self) -> Option<u64> {
        self.ns.checked_div(self.requests)
    }
}

/// A sum over some ticks.
#[derive(Debug, Default)]
struct Sum {
    ticks: u32,
    waits: Waits,
}

impl Sum {
    /// The mean when there are ticks enough; nobody has waited where nobody has asked.
    fn add(&mut self, waits: Waits) -> Option<u64> {
        self.ticks += 1;
        self.waits.requests += waits.requests;
        self.waits.ns += waits.ns;
        if self.ticks < TICKS {
            return None;
        }
        Some(std::mem::take(self).waits.mean_ns().unwrap_or(0))
    }
}

/// Of a worker.
#[derive(Debug)]
pub(crate) struct LatencyBudget {
    /// What moves may add, in parts of a hundred.
    percent: u32,
    next_tick: Instant,
    counted: Waits,
    /// A step of a move was taken in this tick; in the one before.
    has_moved: bool,
    had_moved: bool,
    /// The thread has slept since the last mean.
    has_slept: bool,
    felt: Sum,
    calm: Sum,
    /// Means of calm ticks, the latest ones in turn.
    remembered: Vec<u64>,
    oldest: usize,
    strain: Strain,
}

impl LatencyBudget {
    pub fn new(percent: u32) -> LatencyBudget {
        LatencyBudget {
            percent,
            next_tick: Instant::ZERO,
            counted: Waits::default(),
            has_moved: false,
            had_moved: false,
            has_slept: false,
            felt: Sum::default(),
            calm: Sum::default(),
            remembered: Vec::new(),
            oldest: 0,
            strain: Strain::None,
        }
    }

    /// Steps of moves are taken.
    pub fn moves(&mut self) {
        self.has_moved = true;
    }

    /// What clients feel of moves. `counted`: all waits since the start; `slept`: clients have left the thread time since
    /// the last call.
    pub fn observe(
        &mut self,
        now: Instant,
        slept: bool,
        counted: impl FnOnce() -> Waits,
    ) -> Strain {
        self.has_slept |= slept;
        if now < self.next_tick && self.next_tick <= now + TICK {
            return self.strain;
        }
        self.next_tick = now + TICK;
        let counted = counted();
        let waits = counted.since(self.counted);
        self.counted = counted;
        if !self.has_moved && !self.had_moved {
            if let Some(mean_ns) = self.calm.add(waits) {
                self.remember(mean_ns);
            }
        }
        self.had_moved = std::mem::take(&mut self.has_moved);
        if let Some(mean_ns) = self.felt.add(waits) {
            self.strain = match self.may_be_ns() {
                _ if !std::mem::take(&mut self.has_slept) => Strain::Full,
                Some(may_be) if mean_ns > may_be => Strain::Felt,
                _ => Strain::None,
            };
        }
        self.strain
    }

    fn remember(&mut self, mean_ns: u64) {
        if self.remembered.len() < REMEMBERED {
            self.remembered.push(mean_ns);
        } else {
            self.remembered[self.oldest] = mean_ns;
            self.oldest = (self.oldest + 1) % REMEMBERED;
        }
    }

    /// At what mean wait moves slow down, once it is known how long it is else: at half of what they may add, since what a slower pace does is known
    /// a tenth of a second later.
    fn may_be_ns(&self) -> Option<u64> {
        let mut means = self.remembered.clone();
        means.sort_unstable();
        let calm = means.get(means.len() / 2)?;
        Some(calm + (calm * u64::from(self.percent) / 100 + UNFELT_NS) / 2)
    }
}

#[cfg(test)]
mod tests {
    use mbal_migration::Pace;
    use mbal_random::Random;

    use super::*;

    /// A worker of which nothing is known but how long requests wait in each tick; each has a request.
    struct Ticks {
        budget: LatencyBudget,
        now: Instant,
        counted: Waits,
    }

    impl Ticks {
        fn new(percent: u32) -> Ticks {
            Ticks {
                budget: LatencyBudget::new(percent),
                now: Instant::from_secs(1),
                counted: Waits::default(),
            }
        }

        /// What is said after so many means of such ticks.
        fn pass(&mut self, means: u32, micros: u64, moves: bool, slept: bool) -> Strain {
            let mut strain = Strain::None;
            for _ in 0..means * TICKS {
                if moves {
                    self.budget.moves();
                }
                self.counted.requests += 1;
                self.counted.ns += micros * 1_000;
                strain = self.budget.observe(self.now, slept, || self.counted);
                self.now += TICK;
            }
            strain
        }
    }

    #[test]
    fn moves_slow_down_at_half_of_what_they_may_add_and_of_what_nobody_feels() {
        let mut ticks = Ticks::new(10);
        assert_eq!(ticks.pass(4, 200, false, true), Strain::None);
        assert_eq!(ticks.pass(3, 220, true, true), Strain::None);
        assert_eq!(ticks.pass(2, 221, true, true), Strain::Felt);
        assert_eq!(ticks.pass(2, 205, true, true), Strain::None, "and it is over");
    }

    #[test]
    fn who_never_sleeps_has_no_time_for_moves() {
        let mut ticks = Ticks::new(1_000);
        assert_eq!(ticks.pass(2, 100, true, true), Strain::None, "nobody knows what it is else");
        assert_eq!(ticks.pass(2, 100, true, false), Strain::Full);
    }

    #[test]
    fn a_load_that_grows_while_something_moves_is_known_by_the_rests() {
        let mut ticks = Ticks::new(10);
        ticks.pass(9, 50, false, true);
        assert_eq!(ticks.pass(2, 300, true, true), Strain::Felt);
        let strains = (0..20).map(|_| {
            ticks.pass(1, 300, false, true);
            ticks.pass(1, 300, true, true)
        });
        assert_eq!(strains.last(), Some(Strain::None));
    }

    #[test]
    fn a_clock_that_goes_back_stops_nothing() {
        let mut ticks = Ticks::new(10);
        ticks.pass(3, 50, false, true);
        ticks.now = Instant::ZERO;
        assert_eq!(ticks.pass(2, 500, true, true), Strain::Felt);
    }

    /// A worker whose requests come at random, and wait for those before them and for steps of a move: microseconds.
    struct Queue {
        random: Random,
        service: f64,
        every: f64,
        next_arrival: f64,
        /// Until then the thread is busy.
        busy_until: f64,
        slept: bool,
        waits: Waits,
    }

    /// What moves cost here: steps of 50 µs, each after as much sleep.
    const STEP: f64 = 50.0;

    impl Queue {
        fn new(seed: u64, load: f64, service: f64) -> Queue {
            let mut queue = Queue {
                random: Random::new(seed),
                service,
                every: service / load,
                next_arrival: 0.0,
                busy_until: 0.0,
                slept: true,
                waits: Waits::default(),
            };
            queue.next_arrival = queue.gap();
            queue
        }

        fn gap(&mut self) -> f64 {
            let part = (self.random.below(1 << 30) + 1) as f64 / (1 << 30) as f64;
            -part.ln() * self.every
        }

        fn serve_until(&mut self, until: f64) {
            while self.next_arrival < until {
                let begins = self.next_arrival.max(self.busy_until);
                self.slept |= self.busy_until < self.next_arrival;
                self.waits.requests += 1;
                self.waits.ns += ((begins - self.next_arrival) * 1e3) as u64;
                self.busy_until = begins + self.service;
                self.next_arrival += self.gap();
            }
        }
    }

    /// Mean wait, in microseconds, from half a second after the begin of a move of so many slices of so much work each; whether rests became as
    /// long as they may.
    fn moved(
        seed: u64,
        (load, service): (f64, f64),
        percent: u32,
        work: f64,
        slices: u32,
    ) -> (f64, bool) {
        let mut queue = Queue::new(seed, load, service);
        let (mut budget, mut pace) = (LatencyBudget::new(percent), Pace::default());
        let observe = |now: f64, queue: &mut Queue, budget: &mut LatencyBudget| {
            queue.serve_until(now);
            let slept = std::mem::take(&mut queue.slept);
            budget.observe(Instant::from_micros(now as u64), slept, || queue.waits)
        };
        let (mut now, mut strain, mut at_floor) = (0.0, Strain::None, false);
        let mut before = None;
        for slice in 0..=slices {
            // A second without a slice comes first.
            let rest = match slice {
                0 => Duration::from_secs(1),
                _ => pace.rest(Instant::from_micros(now as u64), strain, false),
            };
            at_floor |= slice > 0 && rest >= Duration::from_millis(100);
            let until = now + rest.as_micros() as f64;
            while now < until {
                now = (now + 1e3).min(until);
                strain = observe(now, &mut queue, &mut budget);
            }
            if now >= 1.5e6 && before.is_none() {
                before = Some(queue.waits);
            }
            let mut left = work;
            while left > 0.0 {
                queue.serve_until(now.max(queue.busy_until));
                now = now.max(queue.busy_until) + STEP;
                queue.busy_until = now;
                now += STEP;
                left -= STEP;
                budget.moves();
                strain = observe(now, &mut queue, &mut budget);
            }
        }
        let waits = queue.waits.since(before.unwrap_or_default());
        (waits.mean_ns().unwrap_or(0) as f64 / 1e3, at_floor)
    }

    /// Of so many moves under a budget, those that added more than that and what nobody feels; of these, those whose rests could have been longer.
    fn over(moves: u64, percent: u32, may_add: f64) -> (u32, u32) {
        let mut random = Random::new(7);
        let (mut over, mut without_need) = (0, 0);
        for seed in 0..moves {
            let load = (0.1 + 0.8 * random.unit(), 2.0 + 20.0 * random.unit());
            let work = 200.0 + 1_000.0 * random.unit();
            let slices = 100 + random.below(300) as u32;
            let (waits, is_slowest) = moved(seed, load, percent, work, slices);
            let (calm, _) = moved(seed, load, percent, 0.0, slices);
            let is_over = waits > (1.0 + may_add) * calm + UNFELT_NS as f64 / 1e3;
            over += u32::from(is_over);
            without_need += u32::from(is_over && !is_slowest);
        }
        println!(
            "{percent}%: {over} of {moves} add more than {may_add}, {without_need} of them could have been slower"
        );
        (over, without_need)
    }

    #[test]
    fn a_thousand_moves_keep_to_their_budget() {
        for percent in [10, 25] {
            let (over, without_need) = over(1_000, percent, f64::from(percent) / 100.0);
            assert!(over <= 10 && without_need <= 5, "{percent}: {over}, {without_need}");
        }
        let (over, _) = over(100, 100_000, 0.1);
        assert!(over > 25, "who has no budget does not keep to it");
    }
}
