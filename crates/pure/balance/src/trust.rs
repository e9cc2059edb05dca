//! What became of remedies: which came true, which are tried less often, which are undone.

use std::collections::BTreeMap;

use mbal_model::Came;
use mbal_model::planted::{Fault, is_planted};

/// Of what was expected: who has brought less is tried less often.
const CAME_MIN: f64 = 0.3;
/// The worst worker has more than this beyond what it had: it is undone.
const WORSE: f64 = 0.1;
/// Epochs until the next try; each failure in a row doubles them, so many times at most.
const PAUSE_EPOCHS: u64 = 5;
const DOUBLED_MAX: u32 = 4;

/// By the quotients of the worker that it was to help, and of the worst one: before, as they were to be, as they are.
pub(crate) fn came(seen: f64, expected: f64, now: f64, worst: f64, worst_now: f64) -> Came {
    if worst_now > worst + WORSE {
        return Came::Worse;
    }
    match seen - now >= CAME_MIN * (seen - expected) {
        true => Came::True,
        false => Came::Short,
    }
}

/// By whatever remedies are told apart by.
pub(crate) struct Trust<K>(BTreeMap<K, Pause>);

struct Pause {
    times: u32,
    until: u64,
}

impl<K: Ord> Default for Trust<K> {
    fn default() -> Trust<K> {
        Trust(BTreeMap::new())
    }
}

impl<K: Ord> Trust<K> {
    pub fn note(&mut self, like: K, came: Came, epoch: u64) {
        if came == Came::True {
            self.0.remove(&like);
            return;
        }
        let times = self.0.get(&like).map_or(0, |pause| pause.times + 1).min(DOUBLED_MAX);
        self.0.insert(like, Pause { times, until: epoch + (PAUSE_EPOCHS << times) });
    }

    /// How often in a row it has not come true.
    pub fn vain(&self, like: &K) -> u32 {
        self.0.get(like).map_or(0, |pause| pause.times + 1)
    }

    /// It has not come true so often, as is known from before; nobody knows since when.
    pub fn restore(&mut self, like: K, vain: u32, epoch: u64) {
        if let Some(times) = vain.checked_sub(1).map(|times| times.min(DOUBLED_MAX)) {
            self.0.insert(like, Pause { times, until: epoch + (PAUSE_EPOCHS << times) });
        }
    }

    /// It is not tried in this epoch.
    pub fn waits(&self, like: &K, epoch: u64) -> bool {
        !is_planted(Fault::VainGoesOn) && self.0.get(like).is_some_and(|one| epoch < one.until)
    }

    /// The load is another one: nothing is known of remedies for it.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Forgets what nobody has tried for as long as it was not to be tried.
    pub fn forget(&mut self, epoch: u64) {
        self.0.retain(|_, one| epoch < one.until + (PAUSE_EPOCHS << DOUBLED_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_judged_by_shares() {
        // seen, expected, now, worst, worst now
        let cases = [
            (3.0, 1.0, 1.1, 3.0, 1.1, Came::True),
            (3.0, 1.0, 2.4, 3.0, 2.4, Came::True),
            (3.0, 1.0, 2.5, 3.0, 2.5, Came::Short),
            (3.0, 1.0, 3.0, 3.0, 3.0, Came::Short),
            (3.0, 1.0, 1.0, 3.0, 3.2, Came::Worse),
        ];
        for case @ (seen, expected, now, worst, worst_now, wanted) in cases {
            assert_eq!(came(seen, expected, now, worst, worst_now), wanted, "{case:?}");
        }
    }

    #[test]
    fn who_fails_is_tried_less_and_less_often() {
        let mut trust = Trust::default();
        let waits = |trust: &Trust<u8>| (0..200).filter(|epoch| trust.waits(&1, *epoch)).count();
        for expected in [5, 10, 20, 40, 80, 80] {
            trust.note(1, Came::Short, 0);
            assert_eq!(waits(&trust), expected);
        }
        assert!(!trust.waits(&2, 0));
        trust.note(1, Came::True, 0);
        assert_eq!(waits(&trust), 0);
    }
}
