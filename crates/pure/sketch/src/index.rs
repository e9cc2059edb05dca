/// Hash → slot number, for tables whose owner keeps the hashes in its slots.
///
/// Linear probing in cells of 8 bytes, at most half full; removal shifts back, so there are no
/// tombstones and nothing to clean.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    cells: Vec<Cell>,
    home_shift: u32,
    used: usize,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    tag: u32,
    slot: u32,
}

const EMPTY: Cell = Cell { tag: 0, slot: u32::MAX };

impl Index {
    /// Room for `slots` without growing; memory is 16 to 32 bytes per slot.
    pub(crate) fn new(slots: usize) -> Index {
        let cells = (2 * slots).next_power_of_two().max(16);
        Index { cells: vec![EMPTY; cells], home_shift: 32 - cells.trailing_zeros(), used: 0 }
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.cells.len() * size_of::<Cell>()
    }

    /// The slot of `hash`; `same` says whether a slot holds exactly this hash.
    #[inline]
    pub(crate) fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        self.cell_of(hash, same).map(|at| self.cells[at].slot)
    }

    /// As [`find`](Index::find), to write a new slot number into.
    #[inline]
    pub(crate) fn find_mut(&mut self, hash: u64, same: impl Fn(u32) -> bool) -> Option<&mut u32> {
        self.cell_of(hash, same).map(|at| &mut self.cells[at].slot)
    }

    /// The slot of `hash`; where there is none, it is `slot` from now on.
    #[inline]
    pub(crate) fn find_or_insert(
        &mut self,
        hash: u64,
        same: impl Fn(u32) -> bool,
        slot: u32,
    ) -> Option<u32> {
        if 2 * (self.used + 1) > self.cells.len() {
            self.grow();
        }
        let at = self.probe(hash, same);
        if self.cells[at].slot != EMPTY.slot {
            return Some(self.cells[at].slot);
        }
        self.cells[at] = Cell { tag: tag_of(hash), slot };
        self.used += 1;
        None
    }

    /// `hash` must not be there yet.
    pub(crate) fn insert(&mut self, hash: u64, slot: u32) {
        if 2 * (self.used + 1) > self.cells.len() {
            self.grow();
        }
        self.place(Cell { tag: tag_of(hash), slot });
        self.used += 1;
    }

    pub(crate) fn remove(&mut self, hash: u64, slot: u32) {
        let mut hole = self.cell_of(hash, |other| other == slot).expect("only what is there");
        let mask = self.cells.len() - 1;
        let mut next = (hole + 1) & mask;
        while self.cells[next].slot != EMPTY.slot {
            let home = self.home_of(self.cells[next].tag);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.cells[hole] = self.cells[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.cells[hole] = EMPTY;
        self.used -= 1;
    }

    pub(crate) fn clear(&mut self) {
        self.cells.fill(EMPTY);
        self.used = 0;
    }

    #[inline]
    fn cell_of(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<usize> {
        let at = self.probe(hash, same);
        (self.cells[at].slot != EMPTY.slot).then_some(at)
    }

    // The cell of `hash`, or the empty one where it belongs.
    #[inline]
    fn probe(&self, hash: u64, same: impl Fn(u32) -> bool) -> usize {
        let tag = tag_of(hash);
        let mask = self.cells.len() - 1;
        let mut at = self.home_of(tag);
        loop {
            let cell = self.cells[at];
            if cell.slot == EMPTY.slot || (cell.tag == tag && same(cell.slot)) {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    fn home_of(&self, tag: u32) -> usize {
        (tag >> self.home_shift) as usize
    }

    fn place(&mut self, cell: Cell) {
        let mask = self.cells.len() - 1;
        let mut at = self.home_of(cell.tag);
        while self.cells[at].slot != EMPTY.slot {
            at = (at + 1) & mask;
        }
        self.cells[at] = cell;
    }

    fn grow(&mut self) {
        let doubled = vec![EMPTY; 2 * self.cells.len()];
        let old = std::mem::replace(&mut self.cells, doubled);
        self.home_shift -= 1;
        for cell in old.into_iter().filter(|cell| cell.slot != EMPTY.slot) {
            self.place(cell);
        }
    }
}

// Low bits: sketches choose keys by the high ones, and those must not also choose the cell.
#[inline]
fn tag_of(hash: u64) -> u32 {
    (hash as u32).wrapping_mul(0x9e37_79b1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RandomBits;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_map_through_inserts_removals_and_growth() {
        let mut bits = RandomBits::new(5);
        let mut hashes: Vec<u64> = Vec::new();
        let mut index = Index::new(4);
        let mut map = BTreeMap::new();
        for step in 0..60_000 {
            // A small key space with equal low halves makes long probe chains and equal tags.
            let hash = (bits.next_bits() % 600) | (bits.next_bits() % 3) << 40;
            match index.find(hash, |slot| hashes[slot as usize] == hash) {
                Some(slot) => {
                    assert_eq!(map.remove(&hash), Some(slot), "step {step}");
                    index.remove(hash, slot);
                }
                None => {
                    let slot = hashes.len() as u32;
                    assert_eq!(map.insert(hash, slot), None, "step {step}");
                    hashes.push(hash);
                    index.insert(hash, slot);
                }
            }
        }
        for (&hash, &slot) in &map {
            assert_eq!(index.find(hash, |other| hashes[other as usize] == hash), Some(slot));
        }
    }
}
