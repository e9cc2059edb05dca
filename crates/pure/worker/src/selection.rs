//! Items by their age, for scaling: what a coordinator is told of them, and what it has chosen.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use mbal_cachelet::{ClassAges, Cutoffs};
use mbal_model::Seconds;
use mbal_model::planted::{Fault, is_planted};

use crate::Now;
use crate::shared::Shared;

/// Ages that a server tells: any part of its items is then known to about a hundredth of them.
const AGES_MOST: usize = 8_192;

/// The moment from which ages count that were told last, and its number; 0 is none.
#[derive(Debug, Default)]
pub(crate) struct Reference(Mutex<(u32, Seconds)>);

impl Shared {
    /// Ages of items by class, as they were so long ago, in milliseconds: a moment that all servers are asked for. It is
    /// remembered by its number.
    pub fn ages(&self, now: Now, number: u32, ago_ms: u64) -> Vec<ClassAges> {
        let at = (now.moment().0.saturating_sub(ago_ms * 1_000) / 1_000_000) as Seconds;
        *self.reference.0.lock().expect("nothing panics with it held") = (number, at);
        self.store.ages(at, now.second, AGES_MOST)
    }

    /// All that items may have, and what their pages have.
    pub fn memory_and_used(&self) -> (u64, u64) {
        (self.memory_bytes.load(Relaxed), self.store.stats().used_bytes)
    }

    /// By class, only items younger than that at the moment of this number; none if that is not remembered.
    pub fn cutoffs(
        &self,
        now: Now,
        number: u32,
        classes: impl Iterator<Item = (u8, Seconds)>,
    ) -> Option<Cutoffs> {
        let (known, mut at) = *self.reference.0.lock().expect("nothing panics with it held");
        if known != number || number == 0 {
            return None;
        }
        if is_planted(Fault::AgesFromTheMove) {
            at = now.second;
        }
        let mut cutoffs = Cutoffs::ALL;
        classes.for_each(|(class, age)| cutoffs.younger_than(class.into(), age, at));
        Some(cutoffs)
    }
}
