//! Hash → two small numbers, kept in the very cell where the hash says: one cache miss a look-up.
//!
//! Linear probing, at most three quarters full. A sketch looks up keys of which it cannot be foreseen
//! whether they are there, so a key and its place are found by the same steps, without a branch
//! between them (docs/decisions/0166).

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    pub hash: u64,
    /// How often, or how large; 0 says that the cell is empty.
    pub amount: u32,
    pub mark: u32,
}

impl Cell {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.amount == 0
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    cells: Vec<Cell>,
    home_shift: u32,
    used: usize,
}

impl Table {
    /// Half full with so many keys; 16 bytes a cell.
    pub(crate) fn new(keys: usize) -> Table {
        let cells = (2 * keys).next_power_of_two().max(16);
        Table {
            cells: vec![Cell::default(); cells],
            home_shift: 64 - cells.trailing_zeros(),
            used: 0,
        }
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.cells.len() * size_of::<Cell>()
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn find(&self, hash: u64) -> Option<&Cell> {
        Some(&self.cells[self.probe(hash)]).filter(|cell| !cell.is_empty())
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, hash: u64) -> Option<&mut Cell> {
        let at = self.probe(hash);
        Some(&mut self.cells[at]).filter(|cell| !cell.is_empty())
    }

    /// The cell of `hash`, or the empty one that is its own once it has an amount. Who gives it one
    /// says so by [`added`](Table::added).
    #[inline]
    pub(crate) fn cell(&mut self, hash: u64) -> &mut Cell {
        if 4 * self.used >= 3 * self.cells.len() {
            self.grow();
        }
        let at = self.probe(hash);
        let cell = &mut self.cells[at];
        cell.hash = hash;
        cell
    }

    #[inline]
    pub(crate) fn added(&mut self, cells: usize) {
        self.used += cells;
    }

    pub(crate) fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(|cell| !cell.is_empty())
    }

    /// Empty cells too, which are not worth a branch.
    pub(crate) fn marks_mut(&mut self) -> impl Iterator<Item = &mut u32> {
        self.cells.iter_mut().map(|cell| &mut cell.mark)
    }

    /// Drops what is not to be kept. Half of the cells are empty, in no order, so `keep` is asked of
    /// those too instead of branching around them.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Cell) -> bool) {
        let mut kept = 0;
        for at in 0..self.cells.len() {
            let cell = self.cells[at];
            self.cells[kept] = cell;
            kept += usize::from(keep(&cell) & !cell.is_empty());
        }
        let kept = self.cells[..kept].to_vec();
        self.clear();
        self.used = kept.len();
        for cell in kept {
            let place = self.probe(cell.hash);
            self.cells[place] = cell;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.cells.fill(Cell::default());
        self.used = 0;
    }

    #[inline]
    fn probe(&self, hash: u64) -> usize {
        let mask = self.cells.len() - 1;
        // Sketches choose keys by high bits, cachelets too: the product mixes all of them.
        let mut at = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.home_shift) as usize;
        loop {
            let cell = &self.cells[at & mask];
            if (cell.hash == hash) | cell.is_empty() {
                return at & mask;
            }
            at += 1;
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let doubled = vec![Cell::default(); 2 * self.cells.len()];
        let old = std::mem::replace(&mut self.cells, doubled);
        self.home_shift -= 1;
        for cell in old.into_iter().filter(|cell| !cell.is_empty()) {
            let place = self.probe(cell.hash);
            self.cells[place] = cell;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mbal_random::Random;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_map_through_additions_drops_and_growth() {
        let mut bits = Random::new(5);
        let mut table = Table::new(4);
        let mut map: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
        for step in 1..60_000_u32 {
            // A small key space, hash 0 in it, that wraps around the last cell.
            let hash = ((bits.word() % 400) << 55) | (bits.word() % 3);
            let cell = table.cell(hash);
            let new = cell.is_empty();
            assert_eq!(new, !map.contains_key(&hash), "step {step}");
            (cell.amount, cell.mark) = (step, step % 7);
            table.added(usize::from(new));
            map.insert(hash, (step, step % 7));
            if step % 500 == 0 {
                let dropped = bits.word() as u32 % 7;
                table.retain(|cell| cell.mark != dropped);
                map.retain(|_, (_, mark)| *mark != dropped);
            }
            assert_eq!(table.len(), map.len());
        }
        let cells: BTreeMap<u64, (u32, u32)> =
            table.cells().map(|cell| (cell.hash, (cell.amount, cell.mark))).collect();
        assert_eq!(cells, map);
        for hash in map.keys() {
            assert_eq!(table.find(*hash).map(|cell| cell.hash), Some(*hash));
        }
        assert!(table.find(1 << 40).is_none());
    }
}
