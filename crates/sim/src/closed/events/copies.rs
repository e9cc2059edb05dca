//! Keys that have copies, as events know them. Each keeps its slot as long as it has copies, so that requests that are under way name it by that.

use super::super::demand::Demand;
use super::super::placement::Placement;

/// A word has so many bits.
const COPIED_MAX: usize = 64;

/// The slots of the keys that a request names, one bit each.
pub type Slots = u64;

pub fn each(slots: Slots) -> impl Iterator<Item = usize> {
    (0..COPIED_MAX).filter(move |slot| slots >> slot & 1 == 1)
}

#[derive(Default)]
pub struct CopiedKey {
    /// Empty if the slot is free.
    pub name: Vec<u8>,
    /// The workers that have it, the home first.
    pub places: Vec<usize>,
    pub round: Round,
    /// Shadows that have not answered yet in this round.
    pub silent: usize,
    /// Since when writes wait, while they do.
    pub waits_since: f64,
    /// Clients whose writes wait until all shadows have let go.
    pub waiting: Vec<usize>,
    pub dirty: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Round {
    #[default]
    Open,
    Invalidate,
    Update,
}

#[derive(Default)]
pub struct Copies {
    slots: Vec<CopiedKey>,
}

impl Copies {
    /// The key in a slot, if it has copies still.
    pub fn get(&self, slot: usize) -> Option<&CopiedKey> {
        self.slots.get(slot).filter(|one| !one.places.is_empty())
    }

    pub fn get_mut(&mut self, slot: usize) -> Option<&mut CopiedKey> {
        self.slots.get_mut(slot).filter(|one| !one.places.is_empty())
    }

    pub fn slot(&self, name: &[u8]) -> Option<usize> {
        self.slots.iter().position(|one| one.name == name)
    }

    pub fn all(&self) -> impl Iterator<Item = &CopiedKey> {
        self.slots.iter().filter(|one| !one.places.is_empty())
    }

    /// Copies are where they are now. Returns the slots that are free now, and clients whose writes wait for nobody any more.
    pub fn follow(&mut self, demand: &Demand, placement: &Placement) -> (Slots, Vec<usize>) {
        let (mut freed, mut waiting) = (0, Vec::new());
        for (slot, one) in self.slots.iter_mut().enumerate() {
            if !one.places.is_empty() && !placement.copied.contains_key(&one.name) {
                waiting.append(&mut one.waiting);
                *one = CopiedKey::default();
                freed |= 1 << slot;
            }
        }
        for key in &demand.hottest {
            let Some(shadows) = placement.copied.get(&key.name) else { continue };
            let home = placement.owners[key.cachelet];
            let places = std::iter::once(home).chain(shadows.iter().copied()).collect();
            let Some(slot) = self.slot(&key.name).or_else(|| self.free()) else { continue };
            self.slots[slot].name.clone_from(&key.name);
            self.slots[slot].places = places;
        }
        (freed, waiting)
    }

    fn free(&mut self) -> Option<usize> {
        let free = self.slots.iter().position(|one| one.places.is_empty());
        if free.is_none() && self.slots.len() < COPIED_MAX {
            self.slots.push(CopiedKey::default());
            return Some(self.slots.len() - 1);
        }
        free
    }
}

/// Of one client: until when it may ask for copies of which key.
#[derive(Clone, Default)]
pub struct Leases(Vec<f64>);

impl Leases {
    pub fn has(&self, slot: usize, now: f64) -> bool {
        self.0.get(slot).is_some_and(|until| now < *until)
    }

    /// `until` a moment that is past ends it.
    pub fn set(&mut self, slot: usize, until: f64) {
        if self.0.len() <= slot {
            self.0.resize(slot + 1, f64::NEG_INFINITY);
        }
        self.0[slot] = until;
    }

    pub fn end(&mut self, slot: usize) {
        self.set(slot, f64::NEG_INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::demand::HotKey;
    use super::*;

    const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];

    fn demand() -> Demand {
        let key = |name: &[u8]| HotKey {
            name: name.to_vec(),
            hash: 0,
            cachelet: 0,
            share: 0.1,
            sets: 0.0,
        };
        Demand::of_cachelets(vec![1.0], NAMES.map(key).into())
    }

    /// Keys with a copy on the second worker.
    fn placement(copied: &[&[u8]]) -> Placement {
        Placement {
            owners: vec![0],
            ordinary: vec![0.0; 2],
            copied: copied.iter().map(|name| (name.to_vec(), vec![1])).collect(),
            moves: Default::default(),
        }
    }

    #[test]
    fn a_key_keeps_its_slot_as_long_as_it_has_copies() {
        let (demand, mut copies) = (demand(), Copies::default());
        assert_eq!(copies.follow(&demand, &placement(&[b"a", b"c"])), (0, vec![]));
        copies.get_mut(0).expect("the first key is copied").waiting.push(7);
        assert_eq!(copies.follow(&demand, &placement(&[b"c"])), (1, vec![7]), "7 waits no more");
        assert_eq!(copies.follow(&demand, &placement(&[b"b", b"c"])), (0, vec![]));
        assert_eq!(NAMES.map(|name| copies.slot(name)), [None, Some(0), Some(1)]);
        assert_eq!(copies.get(1).map(|one| &one.places[..]), Some(&[0, 1][..]), "home, then copy");
    }

    #[test]
    fn a_lease_ends_by_itself() {
        let mut leases = Leases::default();
        leases.set(2, 5.0);
        assert_eq!([4.9, 5.0].map(|now| leases.has(2, now)), [true, false]);
        assert!(!leases.has(0, 0.0) && !leases.has(3, 0.0));
        leases.end(2);
        assert!(!leases.has(2, 0.0));
    }
}
