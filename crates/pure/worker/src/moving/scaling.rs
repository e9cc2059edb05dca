//! Items by their age, for scaling: what a coordinator is told of them, and what it has chosen. And what the process may use.

use std::time::Duration;

use mbal_cachelet::{AgeThresholds, ClassAges};
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, Seconds};

use crate::moving::quota::Quota;
use crate::shared::Shared;
use crate::time::Now;

/// Ages that a server tells: any part of its items is then known to about a hundredth of them.
const AGES_MOST: usize = 8_192;

/// What became of a server that had to be empty at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rescued {
    pub bytes: u64,
    /// Items that were not chosen.
    pub left_behind: u64,
    /// Items that are here still.
    pub left: u64,
    /// The age of the first item that did not travel with the last cachelet, when not all did.
    pub cut: Option<Seconds>,
}

impl Shared {
    /// The server is to be empty then: what goes with its cachelets from now on is what will have gone in time, the youngest items.
    pub fn hurry(&self, now: Now, until: Instant) {
        let mut ages = Vec::new();
        for ClassAges { items: _, bytes, ages: some } in
            self.store.ages(now.second, now.second, AGES_MOST)
        {
            let each = bytes as f64 / some.len().max(1) as f64;
            ages.extend(some.into_iter().map(|age| (age, each)));
        }
        self.hurry.begin((now.instant(), until), now.second, ages, self.carried_bytes());
        self.cpu_budget.hurry();
    }

    /// What travels of a slice that begins now, if the server is in a hurry.
    pub(crate) fn hurried(&self, now: Now) -> Option<AgeThresholds> {
        let left = || self.store.stats().bytes;
        self.hurry.age_thresholds(now.instant(), self.carried_bytes(), left)
    }

    /// Of parts that were taken, by all moves from here so far.
    pub fn carried_bytes(&self) -> u64 {
        self.moves.carried()
    }

    pub fn rescued(&self) -> Rescued {
        let stats = self.store.stats();
        Rescued {
            bytes: self.carried_bytes(),
            left_behind: stats.left_behind,
            left: stats.items,
            cut: self.hurry.cut(),
        }
    }

    /// Ages of items by class, as they were so long ago, in milliseconds: a moment that all servers are asked for. It is
    /// remembered by its number.
    pub fn ages(&self, now: Now, number: u32, ago_ms: u64) -> Vec<ClassAges> {
        let at = (now.instant() - Duration::from_millis(ago_ms)).as_secs() as Seconds;
        *self.reference.lock() = (number, at);
        self.store.ages(at, now.second, AGES_MOST)
    }

    /// All that items may have, and what their pages have.
    pub fn memory_and_used(&self) -> (u64, u64) {
        (self.memory_limit(), self.store.stats().used_bytes)
    }

    /// What stays here while chosen items come from other servers; none: they come no more.
    pub fn keep(&self, age_thresholds: Option<AgeThresholds>) {
        self.moves.choose(age_thresholds.is_some());
        if let Some(age_thresholds) = age_thresholds {
            self.store.keep(age_thresholds);
        }
    }

    /// By class, only items younger than that at the moment of this number, and a part of those of that very age; none if the number is
    /// not remembered.
    pub fn age_thresholds(
        &self,
        now: Now,
        number: u32,
        classes: impl Iterator<Item = (u8, Seconds, u16)>,
    ) -> Option<AgeThresholds> {
        let (known, mut at) = *self.reference.lock();
        if known != number || number == 0 {
            return None;
        }
        if is_planted(Fault::AgesFromTheMove) {
            at = now.second;
        }
        let mut age_thresholds = AgeThresholds::at(at);
        classes.for_each(|(class, age, tied)| age_thresholds.younger_than(class.into(), age, tied));
        Some(age_thresholds)
    }

    /// Whether moves are slowed down much for the sake of a small quota: less than the quota of a period that bears huge pages.
    pub fn has_small_quota(&self) -> bool {
        self.cpu_budget.is_small()
    }

    /// What the process may use of the CPU, as it is found now.
    pub fn has_quota(&self, quota: Option<Quota>) {
        if let Some(huge_pages) = self.cpu_budget.set(quota) {
            self.store.touch_huge_pages(huge_pages);
        }
    }
}
