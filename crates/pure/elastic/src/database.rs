//! What a database bears, as misses see it: how long a missed key takes until it is stored again, by how many there are a second.
//!
//! ```text
//!   latency
//!     │                          x    slow: more than twice the least latency
//!     │                        x
//!  2× ├┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
//!     │  x   x     x     x  x         borne
//!     └──────────────────────┴──┴───► misses a second
//!                            bears knee
//! ```
//!
//! What has never been asked of the database is not known. So where no knee was seen, the most that it has borne is its rate.

use std::collections::BTreeMap;

/// Rates are told apart by eighths of an octave, 9%.
const PER_OCTAVE: f64 = 8.0;
/// Fewer fills in a minute tell no latency.
const FILLS_MIN: u64 = 20;
/// A latency of so many times the least one is slow.
const SLOW: f64 = 2.0;
/// A rate is judged when it was seen in so many minutes.
const SEEN_MIN: u32 = 2;
/// Of what is known of a rate, a new minute has this part.
const NEWEST: f64 = 0.3;
/// A week: what was not seen again is forgotten.
const KNOWN_MINUTES: u64 = 7 * 1_440;

/// By misses a second: how long they took.
#[derive(Clone, Debug, Default)]
pub struct DatabaseProfile {
    rates: BTreeMap<i32, SeenRate>,
}

#[derive(Clone, Copy, Debug)]
struct SeenRate {
    /// The most of this step that was seen.
    rate: f64,
    latency_ns: f64,
    /// In so many minutes, and the last of them.
    seen: u32,
    minute: u64,
}

/// What it bears.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bears {
    /// The most misses a second with which it was not slow.
    pub rate: f64,
    /// The fewest above that with which it was.
    pub knee: Option<f64>,
    /// The least latency.
    pub latency_ns: f64,
}

impl DatabaseProfile {
    /// A minute with so many misses a second, `fills` of which were timed: half of them took less than `latency_ns`.
    pub fn observe(&mut self, minute: u64, misses: f64, fills: u64, latency_ns: f64) {
        let is_known = |seen: &SeenRate| minute < seen.minute + KNOWN_MINUTES;
        self.rates.retain(|_, seen| is_known(seen));
        if fills < FILLS_MIN || misses <= 0.0 || latency_ns <= 0.0 {
            return;
        }
        let step = (misses.log2() * PER_OCTAVE).floor() as i32;
        let new = SeenRate { rate: misses, latency_ns, seen: 0, minute };
        let seen = self.rates.entry(step).or_insert(new);
        seen.latency_ns += NEWEST * (latency_ns - seen.latency_ns);
        *seen = SeenRate { rate: seen.rate.max(misses), seen: seen.seen + 1, minute, ..*seen };
    }

    /// None before anything is known.
    pub fn bears(&self) -> Option<Bears> {
        let known = || self.rates.values().filter(|seen| seen.seen >= SEEN_MIN);
        let latency_ns = known().map(|seen| seen.latency_ns).min_by(f64::total_cmp)?;
        let is_slow = |seen: &&SeenRate| seen.latency_ns > SLOW * latency_ns;
        let borne = known().rfind(|seen| !is_slow(seen)).expect("the fastest is not slow");
        // Slow with fewer misses: something else was the matter.
        let knee = known().filter(is_slow).map(|seen| seen.rate).find(|rate| *rate > borne.rate);
        Some(Bears { rate: borne.rate, knee, latency_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: f64 = 1e6;

    fn profile(seen: &[(f64, f64)]) -> DatabaseProfile {
        let mut profile = DatabaseProfile::default();
        for (minute, (misses, latency)) in seen.iter().enumerate() {
            (0..2).for_each(|_| profile.observe(minute as u64, *misses, 100, latency * MS));
        }
        profile
    }

    #[test]
    fn it_bears_what_was_not_slow() {
        for (seen, rate, knee) in [
            (&[(100.0, 5.0)][..], 100.0, None),
            (&[(100.0, 5.0), (400.0, 6.0), (200.0, 5.5)], 400.0, None),
            (&[(100.0, 5.0), (400.0, 6.0), (800.0, 30.0)], 400.0, Some(800.0)),
            // A night in which the database had other work.
            (&[(100.0, 5.0), (200.0, 30.0), (400.0, 6.0)], 400.0, None),
            (&[(100.0, 5.0), (1000.0, 20.0), (800.0, 11.0), (400.0, 6.0)], 400.0, Some(800.0)),
        ] {
            let bears = profile(seen).bears().expect("something was seen");
            assert_eq!((bears.rate, bears.knee), (rate, knee), "{seen:?}");
        }
    }

    #[test]
    fn nothing_is_known_of_what_was_seen_once_or_hardly_at_all() {
        let mut profile = DatabaseProfile::default();
        assert_eq!(profile.bears(), None);
        profile.observe(0, 100.0, FILLS_MIN, MS);
        (0..9).for_each(|minute| profile.observe(minute, 200.0, FILLS_MIN - 1, MS));
        assert_eq!(profile.bears(), None);
        profile.observe(1, 100.0, FILLS_MIN, MS);
        assert_eq!(profile.bears().map(|bears| bears.rate), Some(100.0));
    }

    #[test]
    fn one_slow_minute_of_many_is_no_knee() {
        let mut profile = profile(&[(100.0, 5.0), (400.0, 5.0)]);
        profile.observe(3, 400.0, 100, 20.0 * MS);
        assert_eq!(profile.bears().expect("seen").knee, None);
    }

    #[test]
    fn what_was_not_seen_for_a_week_is_forgotten() {
        let mut profile = profile(&[(100.0, 5.0), (800.0, 30.0)]);
        assert!(profile.bears().expect("seen").knee.is_some());
        (0..2).for_each(|_| profile.observe(KNOWN_MINUTES, 100.0, 100, 5.0 * MS));
        (0..2).for_each(|_| profile.observe(KNOWN_MINUTES + 2, 100.0, 100, 5.0 * MS));
        assert_eq!(profile.bears().expect("seen").knee, None);
    }
}
