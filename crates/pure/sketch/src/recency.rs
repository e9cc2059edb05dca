//! Samples in the order of their last access, with the number and bytes of all that are newer.
//!
//! ```text
//!   oldest                                                   newest
//!   |  .  #  .  .  #  #  | ... | #  #  .  #        |          positions: # live, . left behind
//!   '------- block ------'                                    block sums: live samples, bytes
//!   '------------------- group ------------------- ...        group sums
//! ```
//!
//! An access takes the sample's position away and appends it at the newest end. Asking what is newer adds
//! the rest of one block, of one group, and of all groups. Each is 32 words of which a mask leaves some,
//! always as many additions: a CPU guesses where a loop of varying length ends, and pays dearly when wrong.
//! When the newest end reaches the last position, live samples are pushed together; there is room for as
//! many dead ones as live ones, so this is amortised O(1).

const WIDTH: usize = 32;
const GROUP: usize = WIDTH * WIDTH;

pub(crate) type Position = u32;
/// A sample's name for as long as it is not forgotten; then the last sample takes its number.
pub(crate) type Sample = u32;

/// More would not fit a sum beside so many of them.
pub(crate) const BYTES_MAX: u32 = 1 << 26;
const SAMPLES_MAX: usize = 1 << 19;

/// A sum of live samples and their bytes in one word, so that both are added at once.
const BYTES_BITS: u32 = 44;

fn packed(bytes: u32) -> u64 {
    1 << BYTES_BITS | u64::from(bytes)
}

#[derive(Clone, Debug)]
pub(crate) struct Recency {
    /// By sample.
    hashes: Vec<u64>,
    /// By sample; and one more, for positions that nobody has.
    positions: Vec<Position>,
    /// By position; `nobody` where its sample has gone.
    samples: Vec<Sample>,
    /// By position; 0 where its sample has gone. Live samples have at least a byte.
    bytes: Vec<u32>,
    blocks: Vec<u64>,
    groups: Vec<u64>,
    end: usize,
    nobody: Sample,
}

/// How many samples, and how many bytes of samples, are newer than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newer {
    pub samples: u32,
    pub bytes: u64,
}

impl Recency {
    pub(crate) fn new(samples_most: usize) -> Recency {
        assert!(samples_most <= SAMPLES_MAX, "{samples_most} samples are too many to sum");
        let places = (2 * samples_most).next_multiple_of(GROUP);
        Recency {
            hashes: Vec::with_capacity(samples_most),
            positions: vec![0; samples_most + 1],
            samples: vec![samples_most as Sample; places],
            bytes: vec![0; places],
            blocks: vec![0; places / WIDTH],
            groups: vec![0; (places / GROUP).next_multiple_of(WIDTH)],
            end: 0,
            nobody: samples_most as Sample,
        }
    }

    pub(crate) fn state_bytes(&self) -> usize {
        8 * (self.hashes.capacity() + self.blocks.len() + self.groups.len())
            + 4 * (self.positions.len() + self.samples.len() + self.bytes.len())
    }

    pub(crate) fn live(&self) -> usize {
        self.hashes.len()
    }

    #[inline]
    pub(crate) fn hash(&self, sample: Sample) -> u64 {
        self.hashes[sample as usize]
    }

    pub(crate) fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// O(1): three times 32 words.
    #[inline]
    pub(crate) fn newer_than(&self, sample: Sample) -> Newer {
        let at = self.positions[sample as usize] as usize;
        let (block, group) = (at / WIDTH, at / GROUP);
        let mut newer = Newer { samples: 0, bytes: 0 };
        let masks = &MASKS[WIDTH - 1 - at % WIDTH..][..WIDTH];
        let mut leaf = 0u32;
        for (&bytes, &mask) in self.bytes[block * WIDTH..][..WIDTH].iter().zip(masks) {
            let bytes = bytes & mask as u32;
            newer.samples += u32::from(bytes != 0);
            leaf += bytes;
        }
        let outer = sum_after(&self.blocks[group * WIDTH..][..WIDTH], block % WIDTH);
        let row = group / WIDTH * WIDTH;
        let outermost = sum_after(&self.groups[row..][..WIDTH], group % WIDTH)
            + self.groups[row + WIDTH..].iter().sum::<u64>();
        let sum = outer + outermost;
        newer.samples += (sum >> BYTES_BITS) as u32;
        newer.bytes = u64::from(leaf) + (sum & ((1 << BYTES_BITS) - 1));
        newer
    }

    /// Makes a sample the newest.
    #[inline]
    pub(crate) fn touch(&mut self, sample: Sample, bytes: u32) {
        self.leave(sample);
        self.append(sample, bytes);
    }

    /// A new sample, the newest; its number is that of the live ones before.
    pub(crate) fn add(&mut self, hash: u64, bytes: u32) -> Sample {
        let sample = self.hashes.len() as Sample;
        self.hashes.push(hash);
        self.append(sample, bytes);
        sample
    }

    /// Forgets a sample. The last one, unless it is the same, has its number from now on.
    pub(crate) fn forget(&mut self, sample: Sample) {
        self.leave(sample);
        self.hashes.swap_remove(sample as usize);
        let last = self.hashes.len();
        if sample as usize != last {
            let at = self.positions[last];
            self.positions[sample as usize] = at;
            self.samples[at as usize] = sample;
        }
    }

    #[inline]
    fn append(&mut self, sample: Sample, bytes: u32) {
        if self.end == self.samples.len() {
            self.compact();
        }
        let at = self.end;
        self.samples[at] = sample;
        self.bytes[at] = bytes;
        self.positions[sample as usize] = at as Position;
        self.blocks[at / WIDTH] += packed(bytes);
        self.groups[at / GROUP] += packed(bytes);
        self.end += 1;
    }

    #[inline]
    fn leave(&mut self, sample: Sample) {
        let at = self.positions[sample as usize] as usize;
        let bytes = std::mem::take(&mut self.bytes[at]);
        self.samples[at] = self.nobody;
        self.blocks[at / WIDTH] -= packed(bytes);
        self.groups[at / GROUP] -= packed(bytes);
    }

    /// Pushes live samples together. Whether a position is live cannot be guessed, so nothing branches on it.
    fn compact(&mut self) {
        let mut to = 0;
        for at in 0..self.end {
            let (sample, bytes) = (self.samples[at], self.bytes[at]);
            self.samples[to] = sample;
            self.bytes[to] = bytes;
            self.positions[sample as usize] = to as Position;
            to += usize::from(bytes != 0);
        }
        self.samples[to..].fill(self.nobody);
        self.bytes[to..].fill(0);
        self.end = to;
        for (sum, bytes) in self.blocks.iter_mut().zip(self.bytes.chunks_exact(WIDTH)) {
            let live = bytes.iter().filter(|bytes| **bytes != 0);
            *sum = live.map(|bytes| packed(*bytes)).sum();
        }
        for (sum, blocks) in self.groups.iter_mut().zip(self.blocks.chunks_exact(WIDTH)) {
            *sum = blocks.iter().sum();
        }
    }
}

/// A window of these starting at WIDTH − 1 − i lets what comes after i pass.
const MASKS: [u64; 2 * WIDTH] = {
    let mut masks = [0; 2 * WIDTH];
    let mut at = WIDTH;
    while at < masks.len() {
        masks[at] = u64::MAX;
        at += 1;
    }
    masks
};

/// The sum of the words after index `at` among [`WIDTH`].
#[inline]
fn sum_after(words: &[u64], at: usize) -> u64 {
    let masks = &MASKS[WIDTH - 1 - at..][..WIDTH];
    words.iter().zip(masks).map(|(word, mask)| word & mask).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RandomBits;
    use std::collections::BTreeMap;

    #[test]
    fn what_is_newer_is_what_a_list_says() {
        // The last has more groups than one row of sums.
        for samples_most in [20, 700, 17_000] {
            let mut recency = Recency::new(samples_most);
            let mut known: BTreeMap<u64, (Sample, u64)> = BTreeMap::new();
            // (hash, bytes) by time of last access.
            let mut list: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
            let mut bits = RandomBits::new(samples_most as u64);
            for now in 0..4 * samples_most as u64 + 5_000 {
                let hash = bits.next_bits() % (samples_most as u64 + samples_most as u64 / 8);
                let bytes = 1 + (bits.next_bits() % 1_000) as u32;
                let Some(&(sample, then)) = known.get(&hash) else {
                    if recency.live() < samples_most {
                        known.insert(hash, (recency.add(hash, bytes), now));
                        list.insert(now, (hash, bytes));
                    }
                    continue;
                };
                assert_eq!(recency.hash(sample), hash);
                if samples_most < 1_000 || now % 64 == 0 {
                    let newer = list.range(then + 1..).map(|(_, held)| held);
                    let expected = Newer {
                        samples: newer.clone().count() as u32,
                        bytes: newer.map(|held| u64::from(held.1)).sum(),
                    };
                    assert_eq!(recency.newer_than(sample), expected);
                }
                list.remove(&then);
                if now % 50 == 0 {
                    recency.forget(sample);
                    known.remove(&hash);
                    if (sample as usize) < recency.live() {
                        known.get_mut(&recency.hash(sample)).expect("it is known").0 = sample;
                    }
                    continue;
                }
                recency.touch(sample, bytes);
                known.insert(hash, (sample, now));
                list.insert(now, (hash, bytes));
            }
            assert_eq!(recency.live(), list.len());
        }
    }
}
