//! A home worker's tracker of hot keys.

/// A tracked key's place; stable until the key is evicted or handed over.
///
/// Keys are known by their hashes here. Who needs a key's bytes keeps them beside its slot, writes
/// them on [`Observed::Admitted`] and compares them where two keys could share a hash.
pub type Slot = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// Popularity is in sampled requests per epoch: with 3% sampling and epochs of one second, a
/// score of 30 is a thousand reads per second.
#[derive(Clone, Copy, Debug)]
pub struct HotKeysConfig {
    /// Keys tracked at most: 8 times a power of two.
    pub capacity: usize,
    /// What a write takes away, where a read adds one: 9 asks for 9 reads per write or more
    /// (SPORE, SoCC 2013, §3.5).
    pub write_weight: f32,
    /// A key is hot from this score on.
    pub hot_score: f32,
    /// A hot key cools below this score; lower than `hot_score`, lest a key flutter.
    pub cool_score: f32,
    /// The newest epoch's share in the average, in (0, 1].
    pub smoothing: f32,
}

impl Default for HotKeysConfig {
    fn default() -> HotKeysConfig {
        HotKeysConfig {
            capacity: 512,
            write_weight: 9.0,
            hot_score: 30.0,
            cool_score: 15.0,
            smoothing: 0.5,
        }
    }
}

/// What became of one sampled request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    Tracked(Slot),
    /// New here; if the slot had another key before, that one is evicted.
    Admitted(Slot),
    /// This request made the key hot: its replication may begin.
    TurnedHot(Slot),
    /// Not tracked: all its places are taken by keys that are hot, or still draining.
    Full,
}

/// What the end of an epoch changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Hot(Slot),
    /// Its replicas should go; it keeps its slot until [`HotKeys::release`].
    Cool(Slot),
}

/// A key's popularity, to travel to its cachelet's next owner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyHeat {
    pub hash: u64,
    reads: Average,
    writes: Average,
    heat: Heat,
    /// Reads in this epoch that make a cold key hot, unless it is written meanwhile.
    hot_at: u32,
}

// An average per epoch, and the epoch's count so far. Reads' and writes' are SPORE's four counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Average {
    past: f32,
    count: u32,
}

impl Average {
    fn with_this_epoch(self, smoothing: f32) -> f32 {
        self.past + smoothing * (self.count as f32 - self.past)
    }

    fn end_epoch(&mut self, smoothing: f32) {
        let past = self.with_this_epoch(smoothing);
        // Halved for ever, a float stays at its smallest value above zero.
        let past = if past < FORGOTTEN * smoothing { 0.0 } else { past };
        *self = Average { past, count: 0 };
    }
}

/// An average that has fallen under this part of what one request adds is none. So a key that is asked no
/// more sleeps after ln(1024 · average / smoothing) / −ln(1 − smoothing) epochs, rounded up, or one.
const FORGOTTEN: f32 = 1.0 / 1024.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heat {
    Cold,
    Hot,
    /// No longer hot, but clients may still hold leases.
    Draining,
}

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
    /// A bit per way: the key is hot or draining.
    pinned: u8,
    /// A bit per way: the key has a count or an average.
    awake: u8,
}

const EMPTY: Set =
    Set { tags: [0; WAYS], older: 0x7f3f_1f0f_0703_0100, free: u8::MAX, pinned: 0, awake: 0 };
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

    /// Makes `way` the oldest, and free.
    fn freed(&mut self, way: usize) {
        self.older = (self.older | EVERY_BYTE << way) & !(0xff << (8 * way));
        self.free |= 1 << way;
        self.pinned &= !(1 << way);
        self.awake &= !(1 << way);
    }

    #[inline]
    fn oldest(&self) -> usize {
        (zero_bytes(self.older).trailing_zeros() / 8) as usize % WAYS
    }

    fn ways_before(&self, way: usize) -> u32 {
        (self.older >> (8 * way) & 0xff).count_ones()
    }

    /// A free way, or the one whose cold key was sampled longest ago.
    #[inline(never)]
    fn room(&self) -> Option<usize> {
        let cold = (0..WAYS).filter(|way| self.pinned >> way & 1 == 0);
        cold.min_by_key(|way| self.ways_before(*way))
    }
}

const NO_KEY: KeyHeat = KeyHeat {
    hash: 0,
    reads: Average { past: 0.0, count: 0 },
    writes: Average { past: 0.0, count: 0 },
    heat: Heat::Cold,
    hot_at: u32::MAX,
};

/// A home worker's tracker of hot keys: SPORE's SSM cache (SoCC 2013, §3.3 and §3.5).
///
/// Fed with sampled requests. Counters are weighted moving averages, + 1 for a read and
/// − `write_weight` for a write, so that a key is hot when it is popular *and* read-mostly. Only
/// cold keys are evicted, the least recently sampled first: a key with replicas or leases is
/// never forgotten. As in a CPU's cache, a key has 8 places to choose from, and the least recent
/// is that of these (docs/decisions/0163). [`observe`](HotKeys::observe) is O(1),
/// [`tick`](HotKeys::tick) O(capacity).
///
/// ```text
///    not here ──sampled──▶ Cold ──score ≥ hot_score──▶ Hot ──score < cool_score──▶ Draining
///        ▲                 │  ▲                                                        │
///        └──least recent───┘  └───────────────────release()────────────────────────────┘
/// ```
#[derive(Clone, Debug)]
pub struct HotKeys {
    config: HotKeysConfig,
    sets: Vec<Set>,
    /// By slot; [`NO_KEY`] where there is none.
    keys: Vec<KeyHeat>,
    /// A new key's [`KeyHeat::hot_at`].
    new_hot_at: u32,
}

impl HotKeys {
    pub fn new(config: HotKeysConfig) -> HotKeys {
        let sets = config.capacity / WAYS;
        assert!(sets.is_power_of_two() && sets * WAYS == config.capacity, "{config:?}");
        assert!(config.cool_score <= config.hot_score, "{config:?}");
        assert!(0.0 < config.smoothing && config.smoothing <= 1.0, "{config:?}");
        let mut new = NO_KEY;
        new.aim(&config);
        let (sets, keys) = (vec![EMPTY; sets], vec![NO_KEY; config.capacity]);
        HotKeys { config, sets, keys, new_hot_at: new.hot_at }
    }

    /// Memory beside the struct itself.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.sets[..]) + size_of_val(&self.keys[..])
    }

    /// Counts one sampled request.
    ///
    /// Most sampled keys are new, the others come in no order: a branch between the two would be guessed
    /// wrong a quarter of the time and cost more than all the rest. So a known key and one that
    /// takes the oldest place go the same way (docs/decisions/0163).
    #[inline]
    pub fn observe(&mut self, hash: u64, access: Access) -> Observed {
        let at = self.set_of(hash);
        let (found, known) = self.way_of(at, hash);
        // All ones for a known key; a compiler that knew as much would branch.
        let kept = std::hint::black_box(u32::from(known).wrapping_neg());
        let set = &mut self.sets[at];
        let oldest = set.oldest() as u32;
        let mut way = (oldest ^ (oldest ^ found as u32) & kept) as usize % WAYS;
        if (u32::from(set.pinned) >> way & !kept & 1) == 1 {
            let Some(room) = set.room() else { return Observed::Full };
            way = room;
        }
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
        key.hot_at = key.hot_at & kept | self.new_hot_at & !kept;
        if access == Access::Write {
            key.writes.count += 1;
            key.aim(&self.config);
        } else {
            key.reads.count += 1;
            if known & (key.reads.count >= key.hot_at) {
                key.turn(Heat::Hot, &self.config);
                set.pinned |= 1 << way;
                return Observed::TurnedHot(slot as Slot);
            }
        }
        if known { Observed::Tracked(slot as Slot) } else { Observed::Admitted(slot as Slot) }
    }

    /// Adds reads that a shadow sampled, at this tracker's rate: a key that is served elsewhere
    /// must not look cold at home. A report of a key that is no longer tracked is dropped.
    pub fn report(&mut self, hash: u64, reads: u32) {
        if let Some(slot) = self.find(hash) {
            self.keys[slot as usize].reads.count += reads;
            self.sets[slot as usize / WAYS].awake |= 1 << (slot as usize % WAYS);
        }
    }

    /// The slot of a tracked key; every write of a replicated key asks.
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

    /// Ends an epoch; appends what turned hot or cool, in the order of slots.
    pub fn tick(&mut self, changes: &mut Vec<Change>) {
        let HotKeysConfig { smoothing, write_weight, hot_score, cool_score, .. } = self.config;
        for (at, set) in self.sets.iter_mut().enumerate() {
            // Of a large tracker most keys sleep most of the time.
            let mut awake = set.awake;
            while awake != 0 {
                let way = awake.trailing_zeros() as usize;
                awake &= awake - 1;
                let slot = at * WAYS + way;
                let key = &mut self.keys[slot];
                let score = key.score_if_over(smoothing, write_weight);
                for average in [&mut key.reads, &mut key.writes] {
                    average.end_epoch(smoothing);
                }
                match key.heat {
                    Heat::Hot if score < cool_score => {
                        key.heat = Heat::Draining;
                        changes.push(Change::Cool(slot as Slot));
                    }
                    Heat::Cold if score >= hot_score => {
                        key.heat = Heat::Hot;
                        set.pinned |= 1 << way;
                        changes.push(Change::Hot(slot as Slot));
                    }
                    Heat::Cold if [key.reads, key.writes] == [Average::default(); 2] => {
                        set.awake &= !(1 << way);
                    }
                    Heat::Cold | Heat::Hot | Heat::Draining => {}
                }
                key.aim(&self.config);
            }
        }
    }

    /// The last lease of a key that cooled has run out: from now on it may be evicted.
    pub fn release(&mut self, slot: Slot) {
        let key = &mut self.keys[slot as usize];
        assert_eq!(key.heat, Heat::Draining, "only a key that cooled is released");
        key.turn(Heat::Cold, &self.config);
        self.sets[slot as usize / WAYS].pinned &= !(1 << (slot as usize % WAYS));
    }

    /// Takes a key out, because its cachelet goes to another worker.
    pub fn hand_over(&mut self, slot: Slot) -> KeyHeat {
        let (set, way) = (&mut self.sets[slot as usize / WAYS], slot as usize % WAYS);
        assert_eq!(set.free >> way & 1, 0, "only a tracked key is handed over");
        set.freed(way);
        std::mem::replace(&mut self.keys[slot as usize], NO_KEY)
    }

    /// Takes in a key that another worker handed over. `None`, and not tracked, when there is no
    /// room; its replicas then end with their leases, as if their home had failed.
    pub fn take_over(&mut self, key: KeyHeat) -> Option<Slot> {
        assert_eq!(self.find(key.hash), None, "a key has one home");
        let at = self.set_of(key.hash);
        let slot = at * WAYS + self.sets[at].room()?;
        self.occupy(slot, key);
        Some(slot as Slot)
    }

    /// Reads less `write_weight` times the writes, averaged: sampled requests per epoch.
    ///
    /// Right after [`tick`](HotKeys::tick) it is the average over all epochs that have ended, the last one
    /// included. Within an epoch it is the higher of that and what it would be if the epoch ended now: it
    /// rises at once with a spike, and falls only when the epoch has ended. A new key's average begins at 0.
    pub fn score(&self, slot: Slot) -> f32 {
        self.keys[slot as usize].score(self.config.smoothing, self.config.write_weight)
    }

    /// Reads and writes alike, averaged as in [`score`](HotKeys::score): sampled requests per epoch.
    pub fn rate(&self, slot: Slot) -> f32 {
        self.keys[slot as usize].score(self.config.smoothing, -1.0)
    }

    pub fn hash(&self, slot: Slot) -> u64 {
        self.keys[slot as usize].hash
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

    pub fn hot(&self) -> impl Iterator<Item = Slot> {
        self.slots(|key| key.heat == Heat::Hot)
    }

    /// Keys as popular as hot ones by their [`rate`](HotKeys::rate), but written too often to be replicated:
    /// only moving what is around them helps (phase 2).
    pub fn write_hot(&self) -> impl Iterator<Item = Slot> {
        let HotKeysConfig { smoothing, write_weight, hot_score, .. } = self.config;
        self.slots(move |key| {
            key.heat == Heat::Cold
                && key.score(smoothing, -1.0) >= hot_score
                && key.score(smoothing, write_weight) < hot_score
        })
    }

    // What has no key has no heat, so it is not wanted.
    fn slots(&self, wanted: impl Fn(&KeyHeat) -> bool) -> impl Iterator<Item = Slot> {
        let slots = self.keys.iter().enumerate();
        slots.filter(move |&(_, key)| wanted(key)).map(|(at, _)| at as Slot)
    }

    #[inline]
    fn set_of(&self, hash: u64) -> usize {
        // Low bits: the high ones are the cachelet's and hardly differ here.
        hash as usize & (self.sets.len() - 1)
    }

    fn occupy(&mut self, slot: usize, key: KeyHeat) {
        self.keys[slot] = key;
        self.keys[slot].aim(&self.config);
        let (set, way) = (&mut self.sets[slot / WAYS], slot % WAYS);
        set.tags[way] = tag_of(key.hash);
        set.sampled(way);
        set.free &= !(1 << way);
        set.awake |= 1 << way;
        set.pinned |= u8::from(key.heat != Heat::Cold) << way;
    }
}

// Bits that choose neither the cachelet nor the set.
#[inline]
fn tag_of(hash: u64) -> u8 {
    (hash >> 24) as u8
}

impl KeyHeat {
    fn turn(&mut self, heat: Heat, config: &HotKeysConfig) {
        self.heat = heat;
        self.aim(config);
    }

    /// Solves score = `hot_score` for the reads, so that a read need not ask for the score.
    fn aim(&mut self, config: &HotKeysConfig) {
        let written = config.write_weight * self.writes.with_this_epoch(config.smoothing);
        let past = (1.0 - config.smoothing) * self.reads.past;
        self.hot_at = match self.heat {
            Heat::Cold => ((config.hot_score + written - past) / config.smoothing).ceil() as u32,
            Heat::Hot | Heat::Draining => u32::MAX,
        };
    }

    fn score(&self, smoothing: f32, write_weight: f32) -> f32 {
        let past = self.reads.past - write_weight * self.writes.past;
        past.max(self.score_if_over(smoothing, write_weight))
    }

    /// The score that a tick would find now.
    fn score_if_over(&self, smoothing: f32, write_weight: f32) -> f32 {
        self.reads.with_this_epoch(smoothing)
            - write_weight * self.writes.with_this_epoch(smoothing)
    }
}

#[cfg(test)]
mod tests;
