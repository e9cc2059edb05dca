//! Hot keys of a server, and their copies: what the rest of the process says and is told of them.

use std::collections::BTreeMap;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, Key, Prefix};
use mbal_replica::HomeState;
use mbal_sketch::KeyRates;

use crate::copies::{CopiesHere, HotHome, HotMode, HotTerms};
use crate::event::Event;
use crate::moving::quota::Quota;
use crate::shared::Shared;
use crate::time::Now;

impl Shared {
    /// What the coordinator says of hot keys. In another mode than before all copies end first.
    pub fn set_hot_terms(&self, terms: HotTerms) {
        self.copies.set_terms(terms);
    }

    /// True if a key's cachelet has begun empty, and serves nothing yet: copies of an earlier owner may be read still.
    pub fn is_newborn(&self, hash: u64, now: Now) -> bool {
        self.copies.newborns.any() && self.copies.newborns.is_newborn(hash, now.instant())
    }

    /// Whether a quota lets a worker have less than a core of its own.
    pub fn worker_has_quota(&self, worker: u16, quota: Option<Quota>) {
        let workers = self.settings.workers;
        self.copies
            .has_quota(worker, quota.is_some_and(|quota| quota.cores() < f64::from(workers)));
    }

    /// T as it holds here: the coordinator's, or this server's own.
    pub fn hot_threshold(&self) -> f64 {
        self.copies.terms().policy(self.copies.own_threshold()).threshold
    }

    pub fn hot_terms(&self) -> HotTerms {
        self.copies.terms()
    }

    /// Its workers look which keys are hot: copies may be made of them, or operators of a cluster ask for them.
    #[inline]
    pub(crate) fn looks_for_hot_keys(&self) -> bool {
        self.copies.mode() != HotMode::Off || !self.map.is_alone()
    }

    /// Phase 2 of balancing is on: phase 1 looks at fewer requests.
    pub fn set_phase_two(&self, is_on: bool) {
        self.copies.sample_less(is_on);
    }

    /// Drivers tell workers the time by [`crate::Worker::look_at_lease`] before each event that this holds for: leases are counted, or the event
    /// may begin one. The first copy of all must not begin at the server's birth.
    #[inline]
    pub fn counts_leases(&self, event: &Event<'_>) -> bool {
        // Clients' requests begin none, and are most of all events.
        let begins = matches!(event, Event::Woken | Event::Forwarded { .. });
        self.counts_leases_now() || begins && self.copies.mode() != HotMode::Off
    }

    /// The same before what is done in the background.
    #[inline]
    pub fn counts_leases_now(&self) -> bool {
        self.owns_by_lease() || self.copies.in_use()
    }

    /// The state of a key of this server that is copied, and how many copies it has or is to have.
    pub(crate) fn copied(&self, key: &Key<'_>) -> Option<(HomeState, u64)> {
        let homes = self.copies.homes.lock(key.hash());
        let one = homes.get(&key.hash()).filter(|one| *one.key == *key.bytes())?;
        Some((one.home.state(self.copies.latest()), one.home.shadows().count() as u64))
    }

    /// Copies of other servers' keys; and how often keys of this one got some.
    pub fn copies_here(&self) -> CopiesHere {
        self.copies.shadows.figures(self.copies.grants())
    }

    /// The hottest keys of this server that have copies, the hottest first.
    pub fn hot_homes(&self, count: usize) -> Vec<HotHome> {
        let mut all = self.hot_without_copies();
        self.copies.homes.each(|hash, one| {
            let home = HotHome {
                key: one.key.to_vec(),
                reads: one.upkeep.rates.reads,
                copy_reads: one.upkeep.elsewhere(),
                writes: one.upkeep.rates.writes,
                value_bytes: one.value_bytes,
                state: Some(one.home.state(self.copies.latest())),
                copies: one.home.shadows().map(|(_, server)| server).collect(),
                since: one.since,
            };
            all.insert(hash, home);
        });
        let mut all: Vec<HotHome> = all.into_values().collect();
        let rate = |home: &HotHome| home.reads + home.writes;
        all.sort_by(|a, b| rate(b).total_cmp(&rate(a)).then_with(|| a.key.cmp(&b.key)));
        all.truncate(count);
        all
    }

    /// Those that are asked for much, and have none.
    fn hot_without_copies(&self) -> BTreeMap<u64, HotHome> {
        let heats = self.copies.told();
        let cold = |(hash, KeyRates { key, rates })| {
            let home = HotHome {
                key: key.into(),
                reads: rates.reads,
                copy_reads: 0.0,
                writes: rates.writes,
                value_bytes: 0,
                state: None,
                copies: Vec::new(),
                since: Instant::ZERO,
            };
            (hash, home)
        };
        let is_here = |(hash, _): &(u64, KeyRates)| self.store.cachelet_of(*hash).is_some();
        heats.into_iter().filter(is_here).map(cold).collect()
    }

    /// Keys that a cachelet has, and that leaves, are to have no copies; true once they have none, those that an earlier owner has made
    /// included: at its destination it is served at once.
    pub(crate) fn has_no_copies(&self, prefix: Prefix, now: Now) -> bool {
        let rests =
            self.copies.newborns.any() && self.copies.newborns.overlap(prefix, now.instant());
        let mut none = !rests || is_planted(Fault::NewbornLeaves);
        self.copies.homes.each(|hash, one| {
            if prefix.contains(hash) {
                one.cools();
                none = false;
            }
        });
        none
    }
}
