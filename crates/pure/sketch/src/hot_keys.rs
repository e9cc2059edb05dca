//! The keys that are asked for most, by samples of the requests: one tracker for a server's workers and for a proxy.

use std::collections::BTreeMap;

/// A tracked key's place; stable until the key is evicted.
pub type Slot = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// Requests a second for a key, as samples tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub reads: f64,
    pub writes: f64,
    /// What one sample more would have added; 0 of what is counted exactly.
    pub sample: f64,
}

impl Rates {
    pub fn all(&self) -> f64 {
        self.reads + self.writes
    }
}

/// A key, and how often it is asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyRates {
    pub key: Box<[u8]>,
    pub rates: Rates,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tracked {
    hash: u64,
    reads: Average,
    writes: Average,
}

// An average per epoch, and the epoch's count so far. Reads' and writes' are SPORE's four counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Average {
    past: f32,
    count: u32,
}

impl Average {
    fn end_epoch(&mut self, smoothing: f32) {
        let past = self.past + smoothing * (self.count as f32 - self.past);
        // Halved for ever, a float stays at its smallest value above zero.
        let past = if past < FORGOTTEN * smoothing { 0.0 } else { past };
        *self = Average { past, count: 0 };
    }
}

/// An average that has fallen under this part of what one request adds is none. So a key that is asked no
/// more sleeps after ln(1024 · average / smoothing) / −ln(1 − smoothing) epochs, rounded up, or one.
const FORGOTTEN: f32 = 1.0 / 1024.0;

/// A key that was sampled less often in an epoch, on average, is not told of: chance does that.
const SAMPLES_LEAST: f32 = 1.0;

const WAYS: usize = 8;

/// The places that a key may take, two sets to a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Set {
    /// A part of each key's hash, by way; all of it is compared in `keys`.
    tags: [u8; WAYS],
    /// By way, a byte of the others: those that were sampled before it. Free ways are the oldest.
    older: u64,
    /// A bit per way: no key is here.
    free: u8,
    /// A bit per way: the key has a count or an average.
    awake: u8,
}

const EMPTY: Set = Set { tags: [0; WAYS], older: 0x7f3f_1f0f_0703_0100, free: u8::MAX, awake: 0 };
const EVERY_BYTE: u64 = 0x0101_0101_0101_0101;

/// The bytes that are 0, as their highest bits. The lowest is certain, others may be wrong.
#[inline]
fn zero_bytes(bytes: u64) -> u64 {
    bytes.wrapping_sub(EVERY_BYTE) & !bytes & (EVERY_BYTE << 7)
}

impl Set {
    /// The ways whose tag may be this one, as the highest bits of their bytes.
    #[inline]
    fn tagged(&self, tag: u8) -> u64 {
        zero_bytes(u64::from_le_bytes(self.tags) ^ (EVERY_BYTE * u64::from(tag)))
    }

    /// Makes `way` the newest: it comes after all others, and no other after it.
    #[inline]
    fn sampled(&mut self, way: usize) {
        self.older = (self.older | 0xff << (8 * way)) & !(EVERY_BYTE << way);
    }

    #[inline]
    fn oldest(&self) -> usize {
        (zero_bytes(self.older).trailing_zeros() / 8) as usize % WAYS
    }
}

/// SPORE's SSM cache (SoCC 2013, §3.3): the keys that are asked for most of late, by sampled requests.
///
/// Counters are weighted moving averages, of reads and of writes. As in a CPU's cache, a key has 8 places to choose
/// from, and the least recently sampled of these makes room (docs/decisions/0163). What is hot is not decided here.
/// [`observe`](HotKeys::observe) is O(1), [`tick`](HotKeys::tick) O(capacity).
#[derive(Clone, Debug)]
pub struct HotKeys {
    /// The newest epoch's share in the averages.
    smoothing: f32,
    sets: Vec<Set>,
    /// By slot.
    keys: Vec<Tracked>,
    /// By slot; a key keeps its place for names, whoever has it next.
    names: Vec<Vec<u8>>,
    /// In this epoch.
    samples: u64,
    /// Requests for a sample, in the last epoch that had one.
    stood_for: f64,
}

impl HotKeys {
    /// `capacity`: keys tracked at most, 8 times a power of two. `smoothing`: the newest epoch's share in the averages, in (0, 1].
    pub fn new(capacity: usize, smoothing: f32) -> HotKeys {
        let sets = capacity / WAYS;
        assert!(sets.is_power_of_two() && sets * WAYS == capacity, "{capacity} keys");
        assert!(0.0 < smoothing && smoothing <= 1.0, "{smoothing}");
        HotKeys {
            smoothing,
            sets: vec![EMPTY; sets],
            keys: vec![Tracked::default(); capacity],
            names: vec![Vec::new(); capacity],
            samples: 0,
            stood_for: 1.0,
        }
    }

    /// Memory beside the struct itself.
    pub fn bytes(&self) -> usize {
        let names: usize = self.names.iter().map(Vec::capacity).sum();
        size_of_val(&self.sets[..])
            + size_of_val(&self.keys[..])
            + size_of_val(&self.names[..])
            + names
    }

    /// Counts one sampled request for the key of this hash.
    ///
    /// Most sampled keys are new, the others come in no order: a branch between the two would be guessed
    /// wrong a quarter of the time and cost more than all the rest. So a known key and one that
    /// takes the oldest place go the same way (docs/decisions/0163).
    #[inline]
    pub fn observe(&mut self, hash: u64, name: &[u8], access: Access) {
        self.samples += 1;
        let at = self.set_of(hash);
        let (found, known) = self.way_of(at, hash);
        // All ones for a known key; a compiler that knew as much would branch.
        let kept = std::hint::black_box(u32::from(known).wrapping_neg());
        let set = &mut self.sets[at];
        let oldest = set.oldest() as u32;
        let way = (oldest ^ (oldest ^ found as u32) & kept) as usize % WAYS;
        set.tags[way] = tag_of(hash);
        set.sampled(way);
        set.free &= !(1 << way);
        set.awake |= 1 << way;

        let slot = at * WAYS + way;
        let key = &mut self.keys[slot];
        key.hash = hash;
        for average in [&mut key.reads, &mut key.writes] {
            average.past = f32::from_bits(average.past.to_bits() & kept);
            average.count &= kept;
        }
        match access {
            Access::Read => key.reads.count += 1,
            Access::Write => key.writes.count += 1,
        }
        if !known {
            self.names[slot].clear();
            self.names[slot].extend_from_slice(name);
        }
    }

    /// The slot of a tracked key.
    #[inline]
    pub fn find(&self, hash: u64) -> Option<Slot> {
        let at = self.set_of(hash);
        let (way, known) = self.way_of(at, hash);
        known.then_some((at * WAYS + way) as Slot)
    }

    /// A key's way, and whether it is there at all.
    #[inline]
    fn way_of(&self, at: usize, hash: u64) -> (usize, bool) {
        let set = &self.sets[at];
        let keys = &self.keys[at * WAYS..(at + 1) * WAYS];
        let holds = |way: usize| (keys[way].hash == hash) & (set.free >> way & 1 == 0);
        let tagged = set.tagged(tag_of(hash));
        // Way 0 where there is none: its key is another.
        let way = (tagged.trailing_zeros() / 8) as usize % WAYS;
        let known = holds(way);
        if !known & (tagged & tagged.wrapping_sub(1) != 0) {
            let other = (way + 1..WAYS).find(|way| holds(*way));
            return (other.unwrap_or(way), other.is_some());
        }
        (way, known)
    }

    /// Ends an epoch.
    pub fn tick(&mut self) {
        self.samples = 0;
        for (at, set) in self.sets.iter_mut().enumerate() {
            // Of a large tracker most keys sleep most of the time.
            let mut awake = set.awake;
            while awake != 0 {
                let way = awake.trailing_zeros() as usize;
                awake &= awake - 1;
                let key = &mut self.keys[at * WAYS + way];
                for average in [&mut key.reads, &mut key.writes] {
                    average.end_epoch(self.smoothing);
                }
                if [key.reads, key.writes] == [Average::default(); 2] {
                    set.awake &= !(1 << way);
                }
            }
        }
    }

    /// Ends an epoch of so many seconds, in which there were so many requests: the rates of the keys with at least this share of them, by
    /// their hashes. `counts`: those that matter however small their rates are.
    pub fn rates(
        &mut self,
        seconds: f64,
        requests: f64,
        share_least: f64,
        counts: impl Fn(u64) -> bool,
    ) -> BTreeMap<u64, KeyRates> {
        let samples = self.samples as f64;
        self.tick();
        // Without a sample there is nothing that it stands for: what is known fades.
        let stands_for = if samples > 0.0 { (requests / samples).max(1.0) } else { self.stood_for };
        self.stood_for = stands_for;
        let scale = stands_for / seconds;
        let least = SAMPLES_LEAST.max((requests / seconds * share_least / scale) as f32);
        let matters = |key: &Tracked| {
            let all = key.reads.past + key.writes.past;
            all >= least || all > 0.0 && counts(key.hash)
        };
        let rates = |slot: usize| {
            let Tracked { hash, reads, writes } = self.keys[slot];
            let rates = Rates {
                reads: f64::from(reads.past) * scale,
                writes: f64::from(writes.past) * scale,
                sample: f64::from(self.smoothing) * scale,
            };
            (hash, KeyRates { key: self.names[slot].as_slice().into(), rates })
        };
        // Most of what is tracked was sampled by chance: its names are not copied.
        let told = self.tracked().map(|slot| slot as usize);
        told.filter(|slot| matters(&self.keys[*slot])).map(rates).collect()
    }

    /// Sampled requests in this epoch.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    pub fn name(&self, slot: Slot) -> &[u8] {
        &self.names[slot as usize]
    }

    /// Sampled requests of one kind: the average of past epochs, and this epoch's so far.
    pub fn sampled(&self, slot: Slot, access: Access) -> (f32, u32) {
        let key = &self.keys[slot as usize];
        let Average { past, count } = match access {
            Access::Read => key.reads,
            Access::Write => key.writes,
        };
        (past, count)
    }

    /// All keys that have a slot.
    pub fn tracked(&self) -> impl Iterator<Item = Slot> {
        let all = 0..self.keys.len();
        all.filter(|slot| self.sets[slot / WAYS].free >> (slot % WAYS) & 1 == 0)
            .map(|at| at as Slot)
    }

    #[inline]
    fn set_of(&self, hash: u64) -> usize {
        // Low bits: the high ones are the cachelet's and hardly differ here.
        hash as usize & (self.sets.len() - 1)
    }
}

// Bits that choose neither the cachelet nor the set.
#[inline]
fn tag_of(hash: u64) -> u8 {
    (hash >> 24) as u8
}

#[cfg(test)]
mod tests;
