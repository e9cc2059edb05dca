//! Which cachelets are split: what is too much for any worker goes nowhere as a whole, and its parts do.
//!
//! ```text
//!   too much for its worker, nobody has a place for it, not one key's ──► split ──► its parts have been measured ──► judged
//!                                                                          └────── rests for ten epochs ──────┘
//! ```
//! A split copies no item and makes nobody wait, but the map grows by it, and nothing makes it smaller again. So everything else comes first.

use std::collections::BTreeMap;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{CacheletLoad, Owner, PlannedSplit, Prefix, Remedy, Snapshot, WorkerLoad};

use crate::shares::rounded;
use crate::trust::{Trust, came};

/// A part is to have so much of its worker's part at most: half of what is barely too much has no place yet beside others.
const PART_MAX: f64 = 0.5;
/// At once into 2 to the power of this.
const BITS_MAX: u32 = 3;
/// Whose hottest key has so much of it is that key's: a split leaves the key where it is.
const ONE_KEY: f64 = 0.5;
/// Epochs until its parts have been measured: a server hears of the map, splits what it has, and counts for an epoch.
const MEASURED_EPOCHS: u64 = 3;

/// What has been split lately.
#[derive(Default)]
pub(crate) struct Splits {
    made: BTreeMap<Prefix, Made>,
    /// By worker whose cachelets were split.
    trust: Trust<Owner>,
}

/// Parts of a worker's part: the cachelet's own, and what each of its parts was to have.
struct Made {
    at: Owner,
    seen: f64,
    expected: f64,
    epoch: u64,
    is_judged: bool,
}

/// A cachelet that is too heavy.
pub(crate) struct Heavy<'w> {
    /// By shares: its worker, and what it has.
    pub worker: &'w WorkerLoad,
    pub held: CacheletLoad,
    /// In fractions of its worker's time: all of it, and its hottest key.
    pub load: f64,
    pub hottest: f64,
}

impl Splits {
    /// How a cachelet is to be split that nobody has a place for; `None`: not now.
    pub fn wanted(&self, heavy: &Heavy<'_>, epoch: u64, rest_epochs: u32) -> Option<PlannedSplit> {
        let Heavy { worker, held, load, hottest } = *heavy;
        let seen = held.load / worker.service.capacity;
        let bits = (seen / PART_MAX).log2().ceil().clamp(1.0, f64::from(BITS_MAX)) as u32;
        let bits = bits.min(Prefix::BITS_MAX - held.cachelet.bits());
        let is_one_keys = hottest >= ONE_KEY * load && !is_planted(Fault::OneKeyIsSplit);
        let may_be = bits > 0
            && !is_one_keys
            && !self.rests(held.cachelet, epoch, rest_epochs)
            && !self.trust.waits(&worker.at, epoch)
            && !is_planted(Fault::NothingIsSplit);
        may_be.then_some(PlannedSplit {
            cachelet: held.cachelet,
            at: worker.at,
            bits,
            seen,
            load,
            hottest,
        })
    }

    /// It is, or is a part of, what was split lately.
    fn rests(&self, cachelet: Prefix, epoch: u64, rest_epochs: u32) -> bool {
        let is_recent = |one: &Made| epoch < one.epoch + u64::from(rest_epochs);
        let mut made = self.made.iter();
        !is_planted(Fault::SplitsGoOn)
            && made.any(|(whole, one)| is_recent(one) && whole.overlaps(cachelet))
    }

    /// A worker has parts that have not been measured yet: its server has the first turn with them.
    pub fn settles(&self, at: Owner, epoch: u64) -> bool {
        self.made.values().any(|one| one.at == at && epoch < one.epoch + MEASURED_EPOCHS)
    }

    pub fn begin(&mut self, planned: &PlannedSplit, epoch: u64) {
        let PlannedSplit { cachelet, at, bits, seen, .. } = *planned;
        let (seen, expected) = (rounded(seen), rounded(seen / f64::from(1 << bits)));
        self.made.insert(cachelet, Made { at, seen, expected, epoch, is_judged: false });
    }

    /// What came of splits whose parts have been measured. What the coordinator has not split after all rests too.
    pub fn judge(&mut self, demand: &Snapshot, epoch: u64, rest_epochs: u32) -> Vec<Remedy> {
        let mut judged = Vec::new();
        self.made.retain(|whole, one| {
            if one.is_judged || epoch < one.epoch + MEASURED_EPOCHS {
                return !one.is_judged || epoch < one.epoch + u64::from(rest_epochs);
            }
            one.is_judged = true;
            let Some(now) = heaviest_part(demand, *whole, one.at) else { return true };
            let came = came(one.seen, one.expected, now, one.seen, one.seen);
            self.trust.note(one.at, came, epoch);
            let remedy = remedy(*whole, one);
            let vain = self.trust.vain(&one.at);
            judged.push(Remedy { came: Some((rounded(now), came)), vain, ..remedy });
            true
        });
        self.trust.forget(epoch);
        judged
    }

    /// To be saved: what is not judged.
    pub fn told(&self) -> impl Iterator<Item = Remedy> + '_ {
        let pending = self.made.iter().filter(|(_, one)| !one.is_judged);
        pending.map(|(whole, one)| remedy(*whole, one))
    }

    /// What a planner before this one has split: it rests from now on.
    pub fn restore(&mut self, whole: Prefix, saved: &Remedy, epoch: u64) {
        let Remedy { at, seen, expected, came, vain, .. } = *saved;
        self.trust.restore(at, vain, epoch);
        self.made.insert(whole, Made { at, seen, expected, epoch, is_judged: came.is_some() });
    }

    /// The load is another one: nothing has been in vain.
    pub fn another_load(&mut self) {
        self.trust.clear();
        self.made.values_mut().for_each(|one| one.is_judged = true);
    }
}

fn remedy(whole: Prefix, one: &Made) -> Remedy {
    let Made { at, seen, expected, .. } = *one;
    let (load, fixed, moves) = (0.0, 0.0, Vec::new());
    Remedy { at, seen, expected, load, fixed, moves, split: Some(whole), came: None, vain: 0 }
}

/// Of what was one cachelet, wherever it lies: the largest part's share, by what its worker could do.
fn heaviest_part(demand: &Snapshot, whole: Prefix, at: Owner) -> Option<f64> {
    let capacity = demand.workers.iter().find(|worker| worker.at == at)?.service.capacity;
    let held = demand.workers.iter().flat_map(|worker| &worker.cachelets);
    let parts =
        held.filter(|held| held.cachelet != whole && whole.contains(held.cachelet.first_hash()));
    parts.map(|part| part.load / capacity).reduce(f64::max)
}
