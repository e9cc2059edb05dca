//! Samples in the order of their last access, with the number and bytes of all that are newer.
//!
//! ```text
//!   oldest                                                   newest
//!   |  .  #  .  .  #  #  | ... | #  #  .  #        |          positions: # live, . left behind
//!   '------- block ------'                                    block sums: live samples, bytes
//!   '------------------- group ------------------- ...        group sums
//! ```
//!
//! An access takes the sample's position away and appends it at the newest end. Asking what is
//! newer adds the rest of one block, of one group, and of all groups: three short runs of
//! consecutive words, which a CPU adds faster than it walks a tree. When the newest end reaches
//! the last position, live samples are pushed together; there is room for as many dead ones as
//! live ones, so this is amortised O(1).

const BLOCK: usize = 32;
const GROUP: usize = 32 * BLOCK;

pub(crate) type Position = u32;

#[derive(Clone, Debug)]
pub(crate) struct Recency {
    hashes: Vec<u64>,
    /// 0 for a position without a live sample; live samples have at least a byte.
    bytes: Vec<u32>,
    blocks: Sums,
    groups: Sums,
    end: usize,
    live: usize,
}

#[derive(Clone, Debug)]
struct Sums {
    live: Vec<u32>,
    bytes: Vec<u64>,
}

impl Sums {
    fn new(len: usize) -> Sums {
        Sums { live: vec![0; len], bytes: vec![0; len] }
    }
}

/// How many samples, and how many bytes of samples, are newer than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newer {
    pub samples: u32,
    pub bytes: u64,
}

impl Recency {
    pub(crate) fn new(samples_most: usize) -> Recency {
        let positions = (2 * samples_most).next_multiple_of(GROUP);
        Recency {
            hashes: vec![0; positions],
            bytes: vec![0; positions],
            blocks: Sums::new(positions / BLOCK),
            groups: Sums::new(positions / GROUP),
            end: 0,
            live: 0,
        }
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.hashes.len() * 12 + (self.blocks.live.len() + self.groups.live.len()) * 12
    }

    pub(crate) fn live(&self) -> usize {
        self.live
    }

    #[inline]
    pub(crate) fn hash(&self, at: Position) -> u64 {
        self.hashes[at as usize]
    }

    pub(crate) fn is_full(&self) -> bool {
        self.end == self.hashes.len()
    }

    /// O(√positions) at worst, in practice three short runs.
    #[inline]
    pub(crate) fn newer_than(&self, at: Position) -> Newer {
        let at = at as usize;
        let (block, group) = (at / BLOCK, at / GROUP);
        let mut newer = Newer { samples: 0, bytes: 0 };
        let end = self.end.min((block + 1) * BLOCK);
        for &bytes in &self.bytes[at + 1..end] {
            newer.samples += u32::from(bytes != 0);
            newer.bytes += u64::from(bytes);
        }
        let blocks_end = self.end.div_ceil(BLOCK).min((group + 1) * (GROUP / BLOCK));
        newer.add(&self.blocks, block + 1, blocks_end);
        newer.add(&self.groups, group + 1, self.end.div_ceil(GROUP));
        newer
    }

    #[inline]
    pub(crate) fn append(&mut self, hash: u64, bytes: u32) -> Position {
        let at = self.end;
        self.hashes[at] = hash;
        self.bytes[at] = bytes;
        for (sums, sum) in [(&mut self.blocks, at / BLOCK), (&mut self.groups, at / GROUP)] {
            sums.live[sum] += 1;
            sums.bytes[sum] += u64::from(bytes);
        }
        self.end += 1;
        self.live += 1;
        at as Position
    }

    #[inline]
    pub(crate) fn remove(&mut self, at: Position) {
        let at = at as usize;
        let bytes = std::mem::take(&mut self.bytes[at]);
        for (sums, sum) in [(&mut self.blocks, at / BLOCK), (&mut self.groups, at / GROUP)] {
            sums.live[sum] -= 1;
            sums.bytes[sum] -= u64::from(bytes);
        }
        self.live -= 1;
    }

    /// Pushes live samples together and drops those that `keep` does not want.
    pub(crate) fn compact(
        &mut self,
        keep: impl Fn(u64) -> bool,
        mut moved: impl FnMut(u64, Moved),
    ) {
        let end = std::mem::take(&mut self.end);
        self.live = 0;
        self.blocks = Sums::new(self.blocks.live.len());
        self.groups = Sums::new(self.groups.live.len());
        for at in 0..end {
            let bytes = std::mem::take(&mut self.bytes[at]);
            let hash = self.hashes[at];
            if bytes == 0 {
                continue;
            }
            let from = at as Position;
            match keep(hash) {
                true => {
                    let to = self.append(hash, bytes);
                    moved(hash, Moved { from, to: Some(to) });
                }
                false => moved(hash, Moved { from, to: None }),
            }
        }
    }

    pub(crate) fn live_hashes(&self) -> impl Iterator<Item = u64> {
        self.bytes[..self.end]
            .iter()
            .zip(&self.hashes)
            .filter(|&(&bytes, _)| bytes != 0)
            .map(|(_, &hash)| hash)
    }
}

/// Where a sample went; nowhere when it was dropped.
pub(crate) struct Moved {
    pub from: Position,
    pub to: Option<Position>,
}

impl Newer {
    #[inline]
    fn add(&mut self, sums: &Sums, from: usize, to: usize) {
        if from < to {
            self.samples += sums.live[from..to].iter().sum::<u32>();
            self.bytes += sums.bytes[from..to].iter().sum::<u64>();
        }
    }
}
