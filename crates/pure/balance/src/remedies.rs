//! The ledger: what has been planned for workers and is not judged yet, and what came of the last of it. A coordinator saves it, so a planner
//! that begins with it knows what its forerunner had under way, and what it had tried in vain.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Came, Move, Owner, Prefix, Relief, Remedy};

use crate::shares::rounded;
use crate::splits::Splits;
use crate::trust::Trust;

/// Judged ones that are remembered.
const JUDGED_MAX: usize = 16;

#[derive(Default)]
pub(crate) struct Remedies {
    pub pending: BTreeMap<Owner, PendingRemedy>,
    /// The newest last.
    judged: VecDeque<Remedy>,
    /// What was saved has been read.
    is_known: bool,
}

/// A remedy for one worker: what was seen, what it takes, what has shown of it.
#[derive(Default)]
pub(crate) struct PendingRemedy {
    pub taken: Vec<TakenCachelet>,
    /// The worker's share of the work / share of the capacity.
    pub seen: f64,
    /// Of its time: all that it did, and of that what stays with its connections.
    pub load: f64,
    pub fixed: f64,
    /// What a key cost all workers together; 0: nobody knows.
    pub work_per_key: f64,
    /// Some of it had no place yet.
    pub is_part: bool,
}

pub(crate) struct TakenCachelet {
    pub one: Relief,
    /// In which epoch that was seen.
    pub arrived: Option<u64>,
}

impl PendingRemedy {
    fn told(&self, at: Owner) -> Remedy {
        let moves: Vec<Relief> = self.taken.iter().map(|taken| taken.one).collect();
        let all: f64 = moves.iter().map(|one| one.relief).sum();
        let PendingRemedy { seen, load, fixed, .. } = *self;
        let expected = rounded(seen - all);
        Remedy { at, seen, expected, load, fixed, moves, split: None, came: None, vain: 0 }
    }
}

impl Remedies {
    /// Takes over what was saved, once: what it says of times counts from now on. Returns what has moved for it lately.
    pub fn restore(
        &mut self,
        saved: &[Remedy],
        trust: &mut Trust<Owner>,
        splits: &mut Splits,
        epoch: u64,
    ) -> Vec<Prefix> {
        if std::mem::replace(&mut self.is_known, true) || is_planted(Fault::LedgerIsForgotten) {
            return Vec::new();
        }
        for remedy in saved {
            match remedy.split {
                Some(whole) => splits.restore(whole, remedy, epoch),
                None => trust.restore(remedy.at, remedy.vain, epoch),
            }
            if remedy.came.is_some() {
                self.judged.push_back(remedy.clone());
            }
            if remedy.came.is_some() || remedy.split.is_some() {
                continue;
            }
            let Remedy { at, seen, load, fixed, ref moves, .. } = *remedy;
            let taken =
                moves.iter().map(|one| TakenCachelet { one: *one, arrived: None }).collect();
            self.pending
                .insert(at, PendingRemedy { taken, seen, load, fixed, ..PendingRemedy::default() });
        }
        saved.iter().flat_map(|one| &one.moves).map(|one| one.step.cachelet).collect()
    }

    /// Workers from which something has gone, or to which something has come, that is not judged.
    pub fn touched(&self) -> BTreeSet<Owner> {
        let taken = self.pending.values().flat_map(|one| &one.taken);
        taken.flat_map(|taken| [taken.one.step.from, taken.one.step.to]).collect()
    }

    /// To be saved: what is judged, the oldest first, then what is pending.
    pub fn told(&self) -> Vec<Remedy> {
        let pending = self.pending.iter().filter(|one| !one.1.taken.is_empty());
        self.judged.iter().cloned().chain(pending.map(|(at, one)| one.told(*at))).collect()
    }

    /// A remedy's time is over: its worker has so much of its part now. Returns what was moved.
    pub fn judged(&mut self, at: Owner, now: f64, came: Came, vain: u32) -> Vec<Move> {
        let Some(pending) = self.pending.remove(&at) else { return Vec::new() };
        let came = Some((rounded(now), came));
        let remedy = Remedy { came, vain, ..pending.told(at) };
        let moves = remedy.moves.iter().map(|one| one.step).collect();
        self.push_judged(remedy);
        moves
    }

    pub fn push_judged(&mut self, remedy: Remedy) {
        // What is known of its worker is what is known last.
        let is_same = |one: &&mut Remedy| {
            one.at == remedy.at && one.split.is_some() == remedy.split.is_some()
        };
        self.judged.iter_mut().filter(is_same).for_each(|one| one.vain = 0);
        if self.judged.len() == JUDGED_MAX {
            self.judged.pop_front();
        }
        self.judged.push_back(remedy);
    }

    /// The load is another one: what is pending for it is not judged, and nothing has been in vain.
    pub fn another_load(&mut self) {
        self.pending.clear();
        self.judged.iter_mut().for_each(|one| one.vain = 0);
    }
}
