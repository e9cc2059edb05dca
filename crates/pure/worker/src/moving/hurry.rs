//! A server that is to be empty at a moment: the youngest items go, as many as will have gone in time.

use std::time::Duration;

use mbal_cachelet::AgeThresholds;
use mbal_locks::{Mutex, ranks};
use mbal_model::{CLASSES, Instant, Seconds};

/// Until moves have carried so many bytes, they are taken to carry [`BYTES_PER_SECOND`].
const BYTES_MEASURED: u64 = 1 << 20;
const BYTES_PER_SECOND: f64 = 32e6;
/// How fast they are is measured over this part of the whole time, or up to twice of it.
const TIME_MEASURED: f64 = 0.125;
/// The last slices have to be taken: they begin before this part of the whole time is left.
const TIME_KEPT: f64 = 0.15;
/// This part of the items goes at any rate: it costs about as much time as to look at the others.
const PART_LEAST: f64 = 0.02;

/// The server is to be empty at a moment.
#[derive(Debug)]
struct Deadline {
    since: Instant,
    until: Instant,
    pace: Pace,
    /// From when ages count, and ages with the bytes of what each stands for; youngest first.
    at: Seconds,
    ages: Vec<(Seconds, f64)>,
    /// Of the last slice that went with a part of its items: the age of its first one that did not.
    cut: Option<Seconds>,
}

/// How fast moves are: moments at which slices began, and what had been carried by then.
#[derive(Debug)]
struct Pace {
    /// What they had carried before.
    begin: u64,
    from: (Instant, u64),
    /// The next `from`.
    lately: (Instant, u64),
}

/// While a server is to be empty at a moment.
#[derive(Debug, Default)]
pub(crate) struct Hurry(Mutex<ranks::Hurry, Option<Deadline>>);

impl Hurry {
    /// `ages`: with the bytes of what each stands for, by a clock that said `at`; `carried`: bytes by moves so far.
    pub fn begin(
        &self,
        (since, until): (Instant, Instant),
        at: Seconds,
        mut ages: Vec<(Seconds, f64)>,
        carried: u64,
    ) {
        ages.sort_unstable_by_key(|(age, _)| *age);
        let pace = Pace::new(since, carried);
        *self.0.lock() = Some(Deadline { since, until, pace, at, ages, cut: None });
    }

    /// What travels of a slice that begins now, if the server is in a hurry; `left`: bytes that are here, asked for if it is.
    pub fn age_thresholds(
        &self,
        now: Instant,
        carried: u64,
        left: impl FnOnce() -> u64,
    ) -> Option<AgeThresholds> {
        let mut hurry = self.0.lock();
        Some(hurry.as_mut()?.age_thresholds(now, carried, left()))
    }

    /// The age of the first item that did not travel with the last cachelet, when not all did.
    pub fn cut(&self) -> Option<Seconds> {
        self.0.lock().as_ref().and_then(|deadline| deadline.cut)
    }
}

impl Deadline {
    /// The youngest items of what is left, which are so many bytes, that will have gone in time, by how fast it went lately.
    fn age_thresholds(&mut self, now: Instant, carried: u64, left: u64) -> AgeThresholds {
        let all = self.until - self.since;
        let speed = self.pace.observe(now, carried, all.mul_f64(TIME_MEASURED));
        let until = self.until - all.mul_f64(TIME_KEPT);
        let part = (speed * (until - now).as_secs_f64() / left.max(1) as f64).max(PART_LEAST);
        let mut age_thresholds = AgeThresholds::at(self.at);
        self.cut = None;
        if part >= 1.0 {
            return age_thresholds;
        }
        let room = part * self.ages.iter().map(|(_, bytes)| bytes).sum::<f64>();
        let mut filled = 0.0;
        let fits = |(_, bytes): &&(Seconds, f64)| {
            filled += bytes;
            filled <= room
        };
        let taken = self.ages.iter().take_while(fits).count();
        let next = self.ages.get(taken).map_or(0, |(age, _)| *age);
        let tied = |some: &[(Seconds, f64)]| some.iter().filter(|(age, _)| *age == next).count();
        let part = tied(&self.ages[..taken]) as f64 / tied(&self.ages).max(1) as f64;
        self.cut = Some(next);
        let tied = (part * 65_536.0) as u16;
        (0..CLASSES).for_each(|class| age_thresholds.younger_than(class, next, tied));
        age_thresholds
    }
}

impl Pace {
    fn new(now: Instant, carried: u64) -> Pace {
        Pace { begin: carried, from: (now, carried), lately: (now, carried) }
    }

    /// Bytes a second, over so long or up to twice as long.
    fn observe(&mut self, now: Instant, carried: u64, window: Duration) -> f64 {
        if carried == self.begin {
            // Until something has gone, time says nothing.
            *self = Pace::new(now, carried);
        } else if self.lately.0 + window <= now {
            (self.from, self.lately) = (self.lately, (now, carried));
        }
        if carried - self.begin < BYTES_MEASURED {
            return BYTES_PER_SECOND;
        }
        (carried - self.from.1) as f64 / (now - self.from.0).as_secs_f64().max(0.001)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A hundred ages, a mebibyte each; a second.
    fn deadline() -> Deadline {
        let ages = (0..100).map(|age| (age, MIB as f64)).collect();
        let (since, until) = (Instant::ZERO, Instant::from_secs(1));
        Deadline { since, until, pace: Pace::new(since, 0), at: 1_000, ages, cut: None }
    }

    fn younger_than(age: Seconds) -> AgeThresholds {
        let mut age_thresholds = AgeThresholds::at(1_000);
        (0..CLASSES).for_each(|class| age_thresholds.younger_than(class, age, 0));
        age_thresholds
    }

    #[test]
    fn with_time_enough_everything_goes() {
        assert_eq!(deadline().age_thresholds(Instant::ZERO, 0, 20 * MIB), AgeThresholds::at(1_000));
    }

    #[test]
    fn a_few_bytes_do_not_say_how_fast_it_goes() {
        let mut deadline = deadline();
        let first = deadline.age_thresholds(Instant::ZERO, 0, 100 * MIB);
        assert_eq!(first, younger_than(25), "32 MB a second, for 0.85 s");
        assert_eq!(deadline.age_thresholds(Instant::from_micros(1), MIB / 2, 100 * MIB), first);
    }

    #[test]
    fn what_will_have_gone_in_time_is_the_youngest_by_how_fast_it_went_lately() {
        let mut deadline = deadline();
        deadline.age_thresholds(Instant::from_millis(250), 0, 100 * MIB);
        // It began late: 10 MiB in a tenth of a second, so half of what is left goes in another half of a second.
        let age_thresholds =
            deadline.age_thresholds(Instant::from_millis(350), 10 * MIB, 100 * MIB);
        assert_eq!((age_thresholds, deadline.cut), (younger_than(50), Some(50)));
        // Then it is slow: what was fast is forgotten.
        deadline.age_thresholds(Instant::from_millis(475), 11 * MIB, 30 * MIB);
        let age_thresholds = deadline.age_thresholds(Instant::from_millis(600), 12 * MIB, 20 * MIB);
        assert_eq!(age_thresholds, younger_than(10), "8 MiB a second, for a quarter of it");
    }

    #[test]
    fn when_the_time_is_over_or_nothing_moves_the_hottest_go_still() {
        let over = deadline().age_thresholds(Instant::from_millis(1_100), 0, 50 * MIB);
        assert_eq!(over, younger_than(2));
        let mut deadline = deadline();
        deadline.age_thresholds(Instant::ZERO, 0, 50 * MIB);
        let mut carried = 5 * MIB;
        for at in (20..400).step_by(20) {
            deadline.age_thresholds(Instant::from_millis(at), carried, 50 * MIB);
        }
        assert_eq!(
            deadline.age_thresholds(Instant::from_millis(400), carried, 50 * MIB),
            younger_than(2)
        );
        carried += 5 * MIB;
        assert_ne!(
            deadline.age_thresholds(Instant::from_millis(410), carried, 50 * MIB),
            younger_than(2)
        );
    }
}
