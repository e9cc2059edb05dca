//! Keys that were written while they move: what the tool is to copy again, and what it must not copy.

use std::collections::BTreeSet;

use mbal_model::KEY_BYTES_MAX;
use mbal_wire::{SWITCH_KEYS_MAX, SwitchWritten};

use super::moving::{MovingKeys, unspelled};

/// So many keys are remembered that the tool has not asked for. Beyond that the switch is given up.
const NOTED_MAX: usize = 200_000;

/// A part of a multi-get: its client, number and part.
pub(crate) type PartOf = (u32, u32, u8);

#[derive(Default)]
pub(super) struct WrittenKeys {
    /// Keys whose writes have been answered since the tool asked last.
    written: BTreeSet<Box<[u8]>>,
    /// Keys whose last write has no known outcome, of the whole switch; and those that the tool has not been told.
    lost: BTreeSet<Box<[u8]>>,
    lost_untold: Vec<Box<[u8]>>,
    /// Multi-gets that touch, and are not answered.
    touching: Vec<(PartOf, Vec<Box<[u8]>>)>,
}

impl WrittenKeys {
    pub fn wrote(&mut self, key: &[u8], base64: bool, moving: &MovingKeys) {
        let mut decoded = [0; KEY_BYTES_MAX];
        let key = unspelled(key, base64, &mut decoded);
        if moving.moves(key) && !self.lost.contains(key) {
            self.written.insert(key.into());
        }
    }

    pub fn lose(&mut self, key: &[u8], base64: bool, moving: &MovingKeys) {
        let mut decoded = [0; KEY_BYTES_MAX];
        let key = unspelled(key, base64, &mut decoded);
        if moving.moves(key) {
            self.lose_moving(key);
        }
    }

    fn lose_moving(&mut self, key: &[u8]) {
        self.written.remove(key);
        if self.lost.insert(key.into()) {
            self.lost_untold.push(key.into());
        }
    }

    pub fn touches(&mut self, of: PartOf, key: &[u8]) {
        match self.touching.iter_mut().find(|(other, _)| *other == of) {
            Some((_, keys)) => keys.push(key.into()),
            None => self.touching.push((of, vec![key.into()])),
        }
    }

    pub fn touched(&mut self, of: PartOf, is_lost: bool) {
        let Some(at) = self.touching.iter().position(|(other, _)| *other == of) else { return };
        for key in self.touching.swap_remove(at).1 {
            match is_lost {
                true => self.lose_moving(&key),
                false if self.lost.contains(&key) => {}
                false => drop(self.written.insert(key)),
            }
        }
    }

    pub fn touches_any(&self) -> bool {
        !self.touching.is_empty()
    }

    pub fn is_full(&self) -> bool {
        NOTED_MAX < self.written.len() + self.lost.len()
    }

    /// The next of them.
    pub fn told(&mut self) -> SwitchWritten {
        let keys = std::iter::from_fn(|| self.written.pop_first());
        let keys = keys.take(SWITCH_KEYS_MAX).map(|key| key.into_vec()).collect();
        let lost = self.lost_untold.len().min(SWITCH_KEYS_MAX);
        let lost = self.lost_untold.drain(..lost).map(|key| key.into_vec()).collect();
        let more = !self.written.is_empty() || !self.lost_untold.is_empty();
        SwitchWritten { keys, lost, more }
    }
}
