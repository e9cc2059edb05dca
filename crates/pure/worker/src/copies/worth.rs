//! How many copies a key is worth.
//!
//! A copy spreads reads, and costs: its lease is prolonged, and it is told of each write.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_model::Instant;

use crate::copies::heat::Rates;
use crate::copies::terms::{HotMode, HotTerms};

/// A value of so many bytes costs as much to answer as the request itself.
const VALUE_BYTES_OF_A_REQUEST: f64 = 4096.0;
/// Reads for each write and each shadow, at least. So a write takes away what nine reads add (SPORE, SoCC 2013, §3.5), and what is read
/// a hundred times for each write has eleven shadows.
const WRITE_WEIGHT: f64 = 9.0;
/// Of copies that a server may make of one key.
const COPIES_MAX: f64 = 255.0;

/// How many copies, the original included, a key of these rates is to have: as many as T says, and no more than its writes allow.
pub(crate) fn copies_worth(rates: &Rates, value_bytes: u32, terms: &HotTerms) -> usize {
    let weight = 1.0 + f64::from(value_bytes) / VALUE_BYTES_OF_A_REQUEST;
    let rate = (rates.reads + rates.writes) * weight;
    if !rate.is_finite() || rate <= terms.threshold {
        return 1;
    }
    let shadows = (rates.reads / (WRITE_WEIGHT * words(terms.mode) * rates.writes)).floor();
    (rate / terms.threshold).ceil().min(1.0 + shadows).min(COPIES_MAX) as usize
}

/// What a shadow is told of a write: one that lets go first, twice.
fn words(mode: HotMode) -> f64 {
    if mode == HotMode::Atomic { 2.0 } else { 1.0 }
}

/// Of T: who has so much in the last epochs is hot, and not by chance.
const SURE: f64 = 1.5;

/// [`copies_worth`] of a key that has none yet, by its rates of the last epochs and those of the last second or so. An epoch has some ten
/// samples of a key at T. So what is far over T is copied at once, and the rest when it has lasted: else chance would copy what is not hot.
/// Nor what is written: among twenty samples of a key that is written in one of ten requests there is no write in one of eight epochs. So one
/// write more is taken for granted.
pub(crate) fn copies_for_new(
    now: &Rates,
    lately: Option<&Rates>,
    value_bytes: u32,
    terms: &HotTerms,
) -> usize {
    let worth = |rates: &Rates, terms| {
        let writes = rates.writes + rates.sample;
        copies_worth(&Rates { writes, key: Box::default(), ..*rates }, value_bytes, terms)
    };
    let sure = HotTerms { threshold: terms.threshold * SURE, ..*terms };
    match worth(now, &sure) {
        1 => lately.map_or(1, |rates| worth(rates, terms)),
        _ => worth(now, terms),
    }
}

/// What copies of a key have done lately, counted exactly: an older look weighs less.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ledger {
    answered: f64,
    written: f64,
}

/// Of what was counted before the last look.
const LEDGER_KEEPS: f64 = 0.9;
/// Fewer writes are chance.
const WRITES_THAT_SHOW: f64 = 8.0;

impl Ledger {
    /// Since the last look copies have answered so many reads, and so many writes were executed.
    pub fn add(&mut self, answered: f64, written: f64) {
        self.answered = self.answered * LEDGER_KEEPS + answered;
        self.written = self.written * LEDGER_KEEPS + written;
    }

    /// Copies that have to let go before each write have answered less than half of what so many of them are to, [`WRITE_WEIGHT`]: who waits
    /// for them asks for less, and averages hear of that late.
    pub fn is_a_loss(&self, shadows: usize, mode: HotMode) -> bool {
        let due = WRITE_WEIGHT * words(mode) * shadows as f64 * self.written;
        mode == HotMode::Atomic && self.written >= WRITES_THAT_SHOW && 2.0 * self.answered < due
    }
}

/// Keys that were copied and turned out to be written too often. Samples alone would say again and again that they are hot.
#[derive(Default)]
pub(crate) struct CopyBackoff {
    /// Until when they are not copied, and how long that is.
    keys: BTreeMap<u64, (Instant, Duration)>,
}

const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);
const SPURNED_MAX: usize = 1024;

impl CopyBackoff {
    /// Whether this key is not to be copied now.
    pub fn has(&self, hash: u64, now: Instant) -> bool {
        self.keys.get(&hash).is_some_and(|(until, _)| now < *until)
    }

    /// It was copied, and written too often: for twice as long as the last time, unless that is long ago.
    pub fn add(&mut self, hash: u64, now: Instant) {
        self.keys.retain(|_, (until, pause)| now < *until + *pause);
        let pause =
            self.keys.get(&hash).map_or(PAUSE_MIN, |(_, pause)| (*pause * 2).min(PAUSE_MAX));
        if self.keys.len() < SPURNED_MAX {
            self.keys.insert(hash, (now + pause, pause));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_as_many_copies_as_t_says_and_its_writes_allow() {
        let copies = |mode, reads: f64, writes: f64, bytes| {
            let terms = HotTerms { mode, threshold: 100.0, ..HotTerms::default() };
            copies_worth(&Rates { reads, writes, ..Rates::default() }, bytes, &terms)
        };
        use HotMode::{Async, Atomic};
        let cases = [
            (Async, 100.0, 0.0, 0, 1),
            (Async, 101.0, 0.0, 0, 2),
            (Async, 1_000.0, 0.0, 0, 10),
            (Async, 100.0, 0.0, 4096, 2),
            (Async, 990.0, 10.0, 0, 10),
            (Async, 9_900.0, 100.0, 0, 12),
            (Atomic, 9_900.0, 100.0, 0, 6),
            (Async, 900.0, 100.0, 0, 2),
            (Atomic, 900.0, 100.0, 0, 1),
            (Async, 890.0, 110.0, 0, 1),
            (Async, 0.0, 1_000.0, 0, 1),
            (Async, 1e9, 0.0, 0, 255),
            (Async, f64::NAN, 0.0, 0, 1),
        ];
        for case @ (mode, reads, writes, bytes, wanted) in cases {
            assert_eq!(copies(mode, reads, writes, bytes), wanted, "{case:?}");
        }
    }

    #[test]
    fn a_key_that_is_a_little_over_t_has_copies_when_that_has_lasted() {
        let terms = HotTerms { mode: HotMode::Async, threshold: 100.0, ..HotTerms::default() };
        let reads = |reads| Rates { reads, ..Rates::default() };
        let copies = |now, lately: Option<f64>| {
            copies_for_new(&reads(now), lately.map(reads).as_ref(), 0, &terms)
        };
        let cases = [
            (140.0, None, 1),
            (140.0, Some(99.0), 1),
            (140.0, Some(101.0), 2),
            (80.0, Some(101.0), 2),
            (160.0, None, 2),
            (450.0, Some(99.0), 5),
        ];
        for case @ (now, lately, wanted) in cases {
            assert_eq!(copies(now, lately), wanted, "{case:?}");
        }
    }

    #[test]
    fn a_key_in_whose_few_samples_no_write_fell_is_not_copied_by_chance() {
        let copies = |mode, samples: f64, writes: f64, sample: f64| {
            let terms = HotTerms { mode, threshold: 100.0, ..HotTerms::default() };
            let (reads, writes) = ((samples - writes) * sample, writes * sample);
            let rates = Rates { reads, writes, sample, ..Rates::default() };
            copies_for_new(&rates, Some(&rates), 0, &terms)
        };
        use HotMode::{Async, Atomic};
        let cases = [
            (Async, 8.0, 0.0, 50.0, 1),
            (Async, 9.0, 0.0, 50.0, 2),
            (Async, 30.0, 1.0, 50.0, 2),
            (Atomic, 17.0, 0.0, 50.0, 1),
            (Atomic, 18.0, 0.0, 50.0, 2),
            (Atomic, 90.0, 0.0, 50.0, 6),
            (Atomic, 90.0, 4.0, 50.0, 1),
        ];
        for case @ (mode, samples, writes, sample, wanted) in cases {
            assert_eq!(copies(mode, samples, writes, sample), wanted, "{case:?}");
        }
    }

    #[test]
    fn copies_that_answer_less_than_half_of_what_their_writes_cost_are_a_loss() {
        let is_a_loss = |answered: f64, written: f64, shadows, mode| {
            let mut ledger = Ledger::default();
            (0..3).for_each(|_| ledger.add(answered, written));
            ledger.is_a_loss(shadows, mode)
        };
        use HotMode::{Async, Atomic};
        let cases = [
            (0.0, 2.0, 1, Atomic, false),
            (0.0, 3.0, 1, Atomic, true),
            (26.0, 3.0, 1, Atomic, true),
            (28.0, 3.0, 1, Atomic, false),
            (28.0, 3.0, 2, Atomic, true),
            (0.0, 3.0, 1, Async, false),
        ];
        for case @ (answered, written, shadows, mode, expected) in cases {
            assert_eq!(is_a_loss(answered, written, shadows, mode), expected, "{case:?}");
        }
        let mut ledger = Ledger::default();
        ledger.add(0.0, 9.0);
        assert!(ledger.is_a_loss(1, Atomic));
        (0..20).for_each(|_| ledger.add(10.0, 0.5));
        assert!(!ledger.is_a_loss(1, Atomic), "that was long ago");
    }

    #[test]
    fn who_is_spurned_again_is_for_longer() {
        let (mut backoff, second) = (CopyBackoff::default(), Instant::from_secs);
        assert!(!backoff.has(7, second(0)));
        backoff.add(7, second(0));
        assert!(
            backoff.has(7, second(1)) && !backoff.has(7, second(2)) && !backoff.has(8, second(1))
        );
        backoff.add(7, second(3));
        assert!(backoff.has(7, second(6)) && !backoff.has(7, second(7)));
        for _ in 0..9 {
            backoff.add(7, second(8));
        }
        assert!(backoff.has(7, second(67)) && !backoff.has(7, second(68)));
        backoff.add(8, second(200));
        backoff.add(7, second(200));
        assert!(!backoff.has(7, second(202)), "that is long ago");
        for hash in 0..9_999 {
            backoff.add(hash, second(300));
        }
        assert!(backoff.has(9, second(301)) && !backoff.has(9_998, second(301)), "it has a bound");
    }
}
