//! Which workers are overloaded, and since when: one case for each, with one owner.
//!
//! ```text
//!   over for two epochs: the case opens, the server's own ──► its remedy has acted, two epochs later over still ──► the coordinator's
//!   not over for two epochs: it is closed
//! ```
//! A worker is over when requests stand waiting in it, and it has more than its part of the work. Waiting alone is a cluster that is full, a
//! share alone is one that has time: neither is helped by moving anything.

use std::collections::BTreeMap;

use mbal_model::Owner;
use mbal_model::planted::{Fault, is_planted};

/// Above its part: so much at once, or a little for longer.
const OVER: f64 = 0.15;
const OVER_LONG: f64 = 0.10;
/// What is a little has to last so many times as long.
const LONG: u32 = 4;
/// Chance makes a share of so many keys differ by this, over the root of their number.
const CHANCE: f64 = 5.0;

/// What a worker has shown in an epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sign {
    pub at: Owner,
    /// Requests stand waiting in it ([`crate::Thresholds::waits`]).
    pub waits: bool,
    /// Share of the work / share of the capacity, with all that is pending subtracted.
    pub quotient: f64,
    /// 0: nobody counts them.
    pub keys: u64,
}

impl Sign {
    fn is_over(&self, least: f64) -> bool {
        let chance = if self.keys > 0 { CHANCE / (self.keys as f64).sqrt() } else { 0.0 };
        self.waits && self.quotient > 1.0 + least.max(chance)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Case {
    /// Epochs in a row, up to now.
    over: u32,
    over_long: u32,
    calm: u32,
    /// How many epochs it has been open; 0: it is not.
    open: u32,
}

/// By worker.
#[derive(Default)]
pub(crate) struct Cases(BTreeMap<Owner, Case>);

impl Cases {
    /// An epoch of all workers; who is not among them has no case. `patience`: epochs in a row.
    pub fn observe(&mut self, signs: impl Iterator<Item = Sign>, patience: u32) {
        let mut all = BTreeMap::new();
        for sign in signs {
            let mut case = self.0.get(&sign.at).copied().unwrap_or_default();
            case.over = if sign.is_over(OVER) { case.over + 1 } else { 0 };
            case.over_long = if sign.is_over(OVER_LONG) { case.over_long + 1 } else { 0 };
            case.calm = if case.over_long == 0 { case.calm + 1 } else { 0 };
            let opens = case.over >= patience || case.over_long >= LONG * patience;
            let opens = opens && !is_planted(Fault::CasesStayClosed);
            case.open = match case.open {
                0 => u32::from(opens),
                _ if case.calm >= patience => 0,
                open => open + 1,
            };
            if case.over_long > 0 || case.open > 0 {
                all.insert(sign.at, case);
            }
        }
        self.0 = all;
    }

    /// A worker is over in this epoch, and has a case: something may be done.
    pub fn is_pressing(&self, at: Owner) -> bool {
        self.0.get(&at).is_some_and(|case| case.open > 0 && case.over_long > 0)
    }

    /// Epochs for which a worker's case has been open, this one included; 0 is that there is none.
    pub fn open(&self, at: Owner) -> u32 {
        self.0.get(&at).map_or(0, |case| case.open)
    }

    pub fn any_open(&self) -> bool {
        self.0.values().any(|case| case.open > 0)
    }
}

#[cfg(test)]
mod tests {
    use mbal_model::{ServerId, WorkerId};

    use super::*;

    fn opens(epochs: &[(bool, f64)]) -> Vec<u32> {
        let mut cases = Cases::default();
        let at = Owner { server: ServerId(1), worker: WorkerId(0) };
        let mut open = |&(waits, quotient): &(bool, f64)| {
            cases.observe([Sign { at, waits, quotient, keys: 10_000 }].into_iter(), 2);
            cases.open(at)
        };
        epochs.iter().map(&mut open).collect()
    }

    #[test]
    fn a_case_opens_after_two_epochs_and_ends_after_two() {
        let (over, calm) = ((true, 1.3), (false, 1.3));
        assert_eq!(opens(&[over, calm, over, over, over]), [0, 0, 0, 1, 2]);
        assert_eq!(opens(&[over, over, calm, over, calm, calm, over]), [0, 1, 2, 3, 4, 0, 0]);
    }

    #[test]
    fn a_little_more_than_its_part_is_a_case_when_it_lasts() {
        let little = (true, 1.12);
        assert_eq!(opens(&[little; 9])[6..], [0, 1, 2]);
        assert_eq!(opens(&[(true, 1.09); 12])[11], 0);
    }

    #[test]
    fn neither_who_has_time_nor_a_full_cluster_is_a_case() {
        assert_eq!(opens(&[(false, 5.0); 4])[3], 0);
        assert_eq!(opens(&[(true, 1.0); 9])[8], 0);
    }

    #[test]
    fn few_keys_say_little() {
        let at = Owner { server: ServerId(1), worker: WorkerId(0) };
        for (keys, open) in [(100, 0), (10_000, 1), (0, 1)] {
            let mut cases = Cases::default();
            for _ in 0..2 {
                cases.observe([Sign { at, waits: true, quotient: 1.3, keys }].into_iter(), 2);
            }
            assert_eq!(cases.open(at), open, "{keys}");
        }
    }
}
