//! Which keys are not copied for a while, since copies of them, or of others, were a loss.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_model::Instant;

/// Keys that were copied and turned out to be written too often. Samples alone would say again and again that they are hot.
///
/// How long a write waits depends on round trips and on who is busy, so it is known of all keys of a server when one has shown it.
#[derive(Debug, Default)]
pub struct CopyBackoff {
    /// Until when they are not copied, and how long that is.
    keys: BTreeMap<u64, (Instant, Duration)>,
    waits: Option<Waits>,
}

/// Writes have waited for copies for too long.
#[derive(Clone, Copy, Debug)]
struct Waits {
    /// Keys that are written more often, a second, are not copied...
    writes_bearable: f64,
    /// ...until then, and how long that is.
    until: Instant,
    pause: Duration,
}

const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The same of all keys of a server: to find out anew costs all who write a part of a second.
const WAITS_PAUSE_MIN: Duration = Duration::from_secs(30);
const WAITS_PAUSE_MAX: Duration = Duration::from_secs(240);
const KEYS_MAX: usize = 1024;

impl CopyBackoff {
    /// Whether this key, which has so many writes a second, is not to be copied now.
    pub fn has(&self, hash: u64, writes: f64, now: Instant) -> bool {
        self.keys.get(&hash).is_some_and(|(until, _)| now < *until)
            || self.waits.is_some_and(|one| now < one.until && one.writes_bearable < writes)
    }

    /// It was copied, and written too often: for twice as long as the last time, unless that is long ago.
    /// `writes_bearable`: see [`super::Upkeep::writes_bearable`].
    pub fn add(&mut self, hash: u64, writes_bearable: f64, now: Instant) {
        if writes_bearable.is_finite() {
            self.add_waits(writes_bearable, now);
        }
        self.keys.retain(|_, (until, pause)| now < *until + *pause);
        let pause =
            self.keys.get(&hash).map_or(PAUSE_MIN, |(_, pause)| (*pause * 2).min(PAUSE_MAX));
        if self.keys.len() < KEYS_MAX {
            self.keys.insert(hash, (now + pause, pause));
        }
    }

    fn add_waits(&mut self, writes_bearable: f64, now: Instant) {
        let known = self.waits.filter(|one| now < one.until + one.pause);
        let is_known_yet = known.filter(|one| now < one.until);
        let pause = match (known, is_known_yet) {
            // Others have begun before that was known.
            (_, Some(one)) => one.pause,
            (Some(one), None) => (one.pause * 2).min(WAITS_PAUSE_MAX),
            (None, None) => WAITS_PAUSE_MIN,
        };
        let least = is_known_yet.map_or(f64::INFINITY, |one| one.writes_bearable);
        let writes_bearable = writes_bearable.min(least);
        self.waits = Some(Waits { writes_bearable, until: now + pause, pause });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_key_has_shown_of_waiting_counts_for_all_that_are_written_as_often() {
        let (mut backoff, second) = (CopyBackoff::default(), Instant::from_secs);
        backoff.add(7, 80.0, second(0));
        assert!(backoff.has(8, 100.0, second(29)) && !backoff.has(8, 70.0, second(29)));
        assert!(!backoff.has(8, 100.0, second(30)));
        // Two that have begun together: the pause doubles once, and the least counts.
        backoff.add(8, 80.0, second(31));
        backoff.add(9, 10.0, second(32));
        assert!(backoff.has(6, 20.0, second(91)) && !backoff.has(6, 20.0, second(92)));
        backoff.add(8, 80.0, second(1_000));
        assert!(!backoff.has(6, 100.0, second(1_030)), "that is long ago");
    }

    #[test]
    fn who_backs_off_again_does_so_for_longer() {
        let (mut backoff, second) = (CopyBackoff::default(), Instant::from_secs);
        assert!(!backoff.has(7, 0.0, second(0)));
        backoff.add(7, f64::INFINITY, second(0));
        assert!(
            backoff.has(7, 0.0, second(1))
                && !backoff.has(7, 0.0, second(2))
                && !backoff.has(8, 0.0, second(1))
        );
        backoff.add(7, f64::INFINITY, second(3));
        assert!(backoff.has(7, 0.0, second(6)) && !backoff.has(7, 0.0, second(7)));
        for _ in 0..9 {
            backoff.add(7, f64::INFINITY, second(8));
        }
        assert!(backoff.has(7, 0.0, second(67)) && !backoff.has(7, 0.0, second(68)));
        backoff.add(8, f64::INFINITY, second(200));
        backoff.add(7, f64::INFINITY, second(200));
        assert!(!backoff.has(7, 0.0, second(202)), "that is long ago");
        for hash in 0..9_999 {
            backoff.add(hash, f64::INFINITY, second(300));
        }
        assert!(
            backoff.has(9, 0.0, second(301)) && !backoff.has(9_998, 0.0, second(301)),
            "it has a bound"
        );
    }
}
