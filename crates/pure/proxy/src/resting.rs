//! How long the driver of a proxy rests before it waits for events.
//!
//! A send or a wake-up costs what many requests cost. So while several clients wait for replies, the driver does not wake up for
//! each reply: it rests, then receives what has arrived, and sends what comes of it together.
//!
//! It does so only while its thread is busy, or many wait, or for many keys: a rest lets clients gather, and would be the reason of the next one. How busy it is, it sees
//! by the time that it neither rests nor waits. A rest lowers that; so it goes on resting while it is less busy than what began it.
//!
//! It rests for a part of an upstream's round trip. That is little where upstreams answer in a moment, and more where they are
//! busy. The rest makes the round trips longer that it is computed from, but only by a part of itself: it does not grow.

use std::time::Duration;

use mbal_model::Instant;

/// With fewer clients that wait for replies, the driver waits at once.
const CROWD: usize = 4;
/// So many are a reason to rest though the thread is not busy: it may be the upstreams that are.
const LARGE_CROWD: usize = 12;
/// Likewise, if a crowd waits for so many keys: these clients ask several at once.
const MANY_KEYS: usize = 32;
/// Of a round trip.
const PART: u64 = 3;
/// The kernel adds some 50 µs, so that less is not worth a timer.
const REST_NS_MIN: u64 = 20_000;
const REST_NS_MAX: u64 = 500_000;
/// How busy the thread has been is looked at after so long.
const WINDOW_NS: u64 = 10_000_000;
/// Of its time, in percent: it begins to rest above the first, and ends below the second. With rests a request costs about half.
const BUSY: (u64, u64) = (75, 33);
/// A reply changes the mean by its share of so many.
const REPLIES: u64 = 32;

/// How long upstreams take to answer, and how many clients wait for them.
#[derive(Debug, Default)]
pub(crate) struct Resting {
    /// The mean of late.
    round_trip_ns: u64,
    /// Clients with requests that are not answered.
    waiting: usize,
    /// The keys of these requests.
    keys: usize,
    /// Since the last look at how busy the thread is: when that was, and for how long it has rested and waited.
    looked: Instant,
    idle_ns: u64,
    is_busy: bool,
}

impl Resting {
    /// For so long, up to `now`, the thread has rested and waited.
    #[inline]
    pub fn idled(&mut self, now: Instant, idle: Duration) {
        self.idle_ns += idle.as_nanos() as u64;
        let since = (now - self.looked).as_nanos() as u64;
        if since >= WINDOW_NS {
            let busy = 100 * since.saturating_sub(self.idle_ns) / since;
            self.is_busy = busy > if self.is_busy { BUSY.1 } else { BUSY.0 };
            (self.looked, self.idle_ns) = (now, 0);
        }
    }

    /// A client's request for so many keys is on its way.
    #[inline]
    pub fn asked(&mut self, keys: usize) {
        self.keys += keys;
    }

    /// It will not be answered.
    pub fn lost(&mut self, keys: usize) {
        self.keys -= keys;
    }

    /// A reply, of so many of these keys, came so long after its request.
    #[inline]
    pub fn answered(&mut self, took_ns: u64, keys: usize) {
        self.keys -= keys;
        let before = self.round_trip_ns;
        self.round_trip_ns = before - before / REPLIES + took_ns / REPLIES;
    }

    /// A client waits for its first reply, or has got all.
    #[inline]
    pub fn waits(&mut self, waits: bool) {
        if waits { self.waiting += 1 } else { self.waiting -= 1 }
    }

    /// For how long; nothing is not at all.
    #[inline]
    pub fn rest(&self) -> Duration {
        let gathers = self.is_busy || self.waiting >= LARGE_CROWD || self.keys >= MANY_KEYS;
        match gathers && self.waiting >= CROWD {
            false => Duration::ZERO,
            true => {
                Duration::from_nanos((self.round_trip_ns / PART).clamp(REST_NS_MIN, REST_NS_MAX))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(replies: usize, took: u64, waiting: usize) -> Resting {
        let mut resting = Resting { waiting, is_busy: true, ..Resting::default() };
        (0..replies).for_each(|_| resting.answered(took, 0));
        resting
    }

    #[test]
    fn few_who_wait_are_answered_at_once() {
        assert_eq!(after(1000, 1_000_000, CROWD - 1).rest(), Duration::ZERO);
    }

    #[test]
    fn a_crowd_is_answered_after_a_part_of_a_round_trip() {
        for (took, rest) in [(10_000, REST_NS_MIN), (600_000, 200_000), (80_000_000, REST_NS_MAX)] {
            let rests = after(1000, took, CROWD).rest();
            let off = rests.abs_diff(Duration::from_nanos(rest));
            assert!(off < Duration::from_micros(1), "{rests:?} of {took}");
        }
        assert_eq!(after(0, 0, CROWD).rest(), Duration::from_nanos(REST_NS_MIN));
    }

    #[test]
    fn it_rests_while_the_thread_is_busy() {
        let mut resting = Resting { waiting: CROWD, ..Resting::default() };
        let window = Duration::from_nanos(WINDOW_NS);
        let mut now = Instant::ZERO + window;
        resting.idled(now, window);
        // Percent of a window that it neither rests nor waits; whether it rests then.
        for (busy, rests) in
            [(70, false), (80, true), (60, true), (34, true), (30, false), (70, false)]
        {
            now += window;
            resting.idled(now, window / 100 * (100 - busy));
            assert_eq!(resting.rest() > Duration::ZERO, rests, "{busy}%");
        }
        resting.idled(now + window / 2, Duration::ZERO);
        assert_eq!(resting.rest(), Duration::ZERO, "half a window is none");
        resting.waiting = LARGE_CROWD;
        assert!(resting.rest() > Duration::ZERO);
    }

    #[test]
    fn it_rests_while_a_crowd_waits_for_many_keys() {
        let mut resting = Resting { waiting: CROWD, ..Resting::default() };
        resting.asked(MANY_KEYS);
        assert!(resting.rest() > Duration::ZERO);
        resting.waiting = CROWD - 1;
        assert_eq!(resting.rest(), Duration::ZERO, "few clients");
        resting.waiting = CROWD;
        resting.answered(0, 1);
        assert_eq!(resting.rest(), Duration::ZERO, "few keys");
        resting.lost(MANY_KEYS - 1);
        assert_eq!(resting.keys, 0);
    }
}
