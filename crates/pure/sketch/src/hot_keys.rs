/// A tracked key's place; stable until the key is evicted or handed over.
///
/// Keys are known by their hashes here. Who needs a key's bytes keeps them beside its slot, writes
/// them on [`Seen::Admitted`] and compares them where two keys could share a hash.
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
    /// (papers/spore §3.5).
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
pub enum Seen {
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
pub enum Turn {
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heat {
    Cold,
    Hot,
    /// No longer hot, but clients may still hold leases.
    Draining,
}

const WAYS: usize = 8;

/// The places that a key may take, four sets to a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
struct Set {
    /// A part of each key's hash, a byte per way; all of it is compared in `keys`.
    tags: u64,
    /// The ways in order of their last sample, four bits each, the newest lowest.
    order: u32,
    /// A bit per way: no key is here.
    free: u8,
    /// A bit per way: the key is hot or draining.
    pinned: u8,
}

const EMPTY: Set = Set { tags: 0, order: 0x7654_3210, free: u8::MAX, pinned: 0 };
const EVERY_BYTE: u64 = 0x0101_0101_0101_0101;
const EVERY_NIBBLE: u32 = 0x1111_1111;

impl Set {
    /// The ways whose tag may be this one, as the highest bits of their bytes. The lowest is certain,
    /// others may be wrong.
    #[inline]
    fn tagged(&self, tag: u8) -> u64 {
        let differing = self.tags ^ (EVERY_BYTE * u64::from(tag));
        differing.wrapping_sub(EVERY_BYTE) & !differing & (EVERY_BYTE << 7)
    }

    /// Makes `way` the newest: the nibbles below its own move up by one.
    #[inline]
    fn sampled(&mut self, way: usize) {
        let differing = self.order ^ (EVERY_NIBBLE * way as u32);
        let zero = differing.wrapping_sub(EVERY_NIBBLE) & !differing & (EVERY_NIBBLE << 3);
        // Bits below the way's nibble; each way is in the order once.
        let newer = (1 << (zero.trailing_zeros() & !3)) - 1;
        let rest = self.order & !(newer << 4 | 0xf);
        self.order = rest | (self.order & newer) << 4 | way as u32;
    }

    /// A free way, or the one whose cold key was sampled longest ago.
    #[inline]
    fn room(&self) -> Option<usize> {
        if self.free != 0 {
            return Some(self.free.trailing_zeros() as usize);
        }
        let oldest_first = (0..WAYS).rev().map(|place| (self.order >> (4 * place)) as usize & 0xf);
        oldest_first.into_iter().find(|way| self.pinned >> way & 1 == 0)
    }
}

const NO_KEY: KeyHeat = KeyHeat {
    hash: 0,
    reads: Average { past: 0.0, count: 0 },
    writes: Average { past: 0.0, count: 0 },
    heat: Heat::Cold,
};

/// A home worker's tracker of hot keys: SPORE's SSM cache (papers/spore §3.3 and §3.5).
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
}

impl HotKeys {
    pub fn new(config: HotKeysConfig) -> HotKeys {
        let sets = config.capacity / WAYS;
        assert!(sets.is_power_of_two() && sets * WAYS == config.capacity, "{config:?}");
        assert!(config.cool_score <= config.hot_score && 0.0 < config.smoothing, "{config:?}");
        HotKeys { config, sets: vec![EMPTY; sets], keys: vec![NO_KEY; config.capacity] }
    }

    /// Counts one sampled request.
    #[inline]
    pub fn observe(&mut self, hash: u64, access: Access) -> Seen {
        let Some(slot) = self.find(hash) else {
            return self.admit(hash, access);
        };
        let (smoothing, write_weight) = (self.config.smoothing, self.config.write_weight);
        let set = &mut self.sets[slot as usize / WAYS];
        set.sampled(slot as usize % WAYS);
        let key = &mut self.keys[slot as usize];
        key.count(access, 1);
        let turns_hot = key.heat == Heat::Cold
            && access == Access::Read
            && key.score(smoothing, write_weight) >= self.config.hot_score;
        if turns_hot {
            key.heat = Heat::Hot;
            set.pinned |= 1 << (slot as usize % WAYS);
            return Seen::TurnedHot(slot);
        }
        Seen::Tracked(slot)
    }

    /// Adds reads that a shadow sampled, at this tracker's rate: a key that is served elsewhere
    /// must not look cold at home. A report of a key that is no longer tracked is dropped.
    pub fn report(&mut self, hash: u64, reads: u32) {
        if let Some(slot) = self.find(hash) {
            self.keys[slot as usize].count(Access::Read, reads);
        }
    }

    /// The slot of a tracked key; every write of a replicated key asks.
    #[inline]
    pub fn find(&self, hash: u64) -> Option<Slot> {
        let at = self.set_of(hash);
        let set = &self.sets[at];
        let mut same = set.tagged(tag_of(hash));
        while same != 0 {
            let way = same.trailing_zeros() as usize / 8;
            let slot = at * WAYS + way;
            if self.keys[slot].hash == hash && set.free >> way & 1 == 0 {
                return Some(slot as Slot);
            }
            same &= same - 1;
        }
        None
    }

    /// Ends an epoch; appends what turned hot or cool, in the order of slots.
    pub fn tick(&mut self, turns: &mut Vec<Turn>) {
        let HotKeysConfig { smoothing, write_weight, hot_score, cool_score, .. } = self.config;
        for (slot, key) in self.keys.iter_mut().enumerate() {
            let score = key.score(smoothing, write_weight);
            for average in [&mut key.reads, &mut key.writes] {
                average.past = average.with_this_epoch(smoothing);
                average.count = 0;
            }
            match key.heat {
                Heat::Hot if score < cool_score => {
                    key.heat = Heat::Draining;
                    turns.push(Turn::Cool(slot as Slot));
                }
                Heat::Cold if score >= hot_score => {
                    key.heat = Heat::Hot;
                    self.sets[slot / WAYS].pinned |= 1 << (slot % WAYS);
                    turns.push(Turn::Hot(slot as Slot));
                }
                Heat::Cold | Heat::Hot | Heat::Draining => {}
            }
        }
    }

    /// The last lease of a key that cooled has run out: from now on it may be evicted.
    pub fn release(&mut self, slot: Slot) {
        let key = &mut self.keys[slot as usize];
        assert_eq!(key.heat, Heat::Draining, "only a key that cooled is released");
        key.heat = Heat::Cold;
        self.sets[slot as usize / WAYS].pinned &= !(1 << (slot as usize % WAYS));
    }

    /// Takes a key out, because its cachelet goes to another worker.
    pub fn hand_over(&mut self, slot: Slot) -> KeyHeat {
        let (set, way) = (&mut self.sets[slot as usize / WAYS], 1 << (slot as usize % WAYS));
        assert_eq!(set.free & way, 0, "only a tracked key is handed over");
        set.free |= way;
        set.pinned &= !way;
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

    /// The weighted average, this epoch included: sampled requests per epoch.
    pub fn score(&self, slot: Slot) -> f32 {
        self.keys[slot as usize].score(self.config.smoothing, self.config.write_weight)
    }

    /// Reads and writes alike: sampled requests per epoch.
    pub fn rate(&self, slot: Slot) -> f32 {
        self.keys[slot as usize].score(self.config.smoothing, -1.0)
    }

    pub fn hash(&self, slot: Slot) -> u64 {
        self.keys[slot as usize].hash
    }

    pub fn hot(&self) -> impl Iterator<Item = Slot> {
        self.slots(|key| key.heat == Heat::Hot)
    }

    /// Keys as popular as hot ones, but written too often to be replicated: only moving what is
    /// around them helps (DESIGN §8, phase 2).
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

    #[inline]
    fn admit(&mut self, hash: u64, access: Access) -> Seen {
        let at = self.set_of(hash);
        let Some(way) = self.sets[at].room() else {
            return Seen::Full;
        };
        let slot = at * WAYS + way;
        let mut key = KeyHeat { hash, ..NO_KEY };
        key.count(access, 1);
        self.occupy(slot, key);
        Seen::Admitted(slot as Slot)
    }

    #[inline]
    fn occupy(&mut self, slot: usize, key: KeyHeat) {
        self.keys[slot] = key;
        let (set, way) = (&mut self.sets[slot / WAYS], slot % WAYS);
        let shift = 8 * way;
        set.tags = set.tags & !(0xff << shift) | u64::from(tag_of(key.hash)) << shift;
        set.sampled(way);
        set.free &= !(1 << way);
        set.pinned |= u8::from(key.heat != Heat::Cold) << way;
    }
}

// Bits that choose neither the cachelet nor the set.
#[inline]
fn tag_of(hash: u64) -> u8 {
    (hash >> 24) as u8
}

impl KeyHeat {
    fn count(&mut self, access: Access, times: u32) {
        match access {
            Access::Read => self.reads.count += times,
            Access::Write => self.writes.count += times,
        }
    }

    fn score(&self, smoothing: f32, write_weight: f32) -> f32 {
        self.reads.with_this_epoch(smoothing)
            - write_weight * self.writes.with_this_epoch(smoothing)
    }
}

#[cfg(test)]
mod tests {
    use super::Access::{Read, Write};
    use super::*;

    // One set: its least recent key is the tracker's.
    fn tracker() -> HotKeys {
        HotKeys::new(HotKeysConfig {
            capacity: 8,
            hot_score: 10.0,
            cool_score: 5.0,
            ..HotKeysConfig::default()
        })
    }

    fn read(keys: &mut HotKeys, hash: u64, times: usize) -> Seen {
        (0..times).map(|_| keys.observe(hash, Read)).last().expect("read at least once")
    }

    fn tick(keys: &mut HotKeys) -> Vec<Turn> {
        let mut turns = Vec::new();
        keys.tick(&mut turns);
        turns
    }

    #[test]
    fn a_spike_turns_a_key_hot_within_its_epoch() {
        let mut keys = tracker();
        assert_eq!(read(&mut keys, 1, 19), Seen::Tracked(0));
        assert_eq!(keys.observe(1, Read), Seen::TurnedHot(0));
        assert_eq!(keys.hot().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_steady_key_turns_hot_over_epochs_and_cools_late() {
        let mut keys = tracker();
        let mut turns = Vec::new();
        for reads in [12, 12, 12, 12, 8, 6, 4, 2, 0] {
            let mut turn = '-';
            for _ in 0..reads {
                if let Seen::TurnedHot(_) = keys.observe(1, Read) {
                    turn = 'H';
                }
            }
            if tick(&mut keys) == [Turn::Cool(0)] {
                turn = 'C';
            }
            turns.push(turn);
        }
        assert_eq!(String::from_iter(turns), "--H----C-");
    }

    #[test]
    fn nine_reads_per_write_weigh_nothing() {
        let mut keys = tracker();
        for _ in 0..50 {
            keys.observe(1, Write);
            for _ in 0..9 {
                assert_eq!(keys.observe(1, Read), Seen::Tracked(0));
            }
        }
        assert_eq!(keys.score(0), 0.0);
        assert_eq!(keys.write_hot().collect::<Vec<_>>(), [0]);
        assert_eq!(tick(&mut keys), []);
    }

    #[test]
    fn only_cold_keys_are_evicted_and_the_least_recent_first() {
        let mut keys = tracker();
        read(&mut keys, 1, 20);
        (2..=8)
            .for_each(|hash| assert_eq!(read(&mut keys, hash, 1), Seen::Admitted(hash as u32 - 1)));
        read(&mut keys, 2, 1);
        assert_eq!(keys.observe(9, Read), Seen::Admitted(2), "3 was least recent");
        assert_eq!((keys.find(1), keys.find(2), keys.find(3)), (Some(0), Some(1), None));
    }

    #[test]
    fn the_order_of_a_set_is_that_of_its_samples() {
        let mut set = EMPTY;
        let mut order: Vec<usize> = (0..WAYS).collect();
        let mut bits = crate::RandomBits::new(4);
        for _ in 0..10_000 {
            let way = bits.next_bits() as usize % WAYS;
            set.sampled(way);
            order.retain(|other| *other != way);
            order.insert(0, way);
            let nibbles: Vec<usize> =
                (0..WAYS).map(|place| (set.order >> (4 * place)) as usize & 0xf).collect();
            assert_eq!(nibbles, order);
        }
    }

    #[test]
    fn when_all_are_hot_nothing_is_admitted() {
        let mut keys = tracker();
        (1..=8).for_each(|hash| {
            assert_eq!(read(&mut keys, hash, 20), Seen::TurnedHot(hash as u32 - 1))
        });
        assert_eq!(keys.observe(9, Read), Seen::Full);
        tick(&mut keys);
        let turns: Vec<Turn> = [tick(&mut keys), tick(&mut keys)].concat();
        assert_eq!(turns, (0..8).map(Turn::Cool).collect::<Vec<_>>());
        assert_eq!(keys.observe(9, Read), Seen::Full, "leases may still be out");
        keys.release(3);
        assert_eq!(keys.observe(9, Read), Seen::Admitted(3));
    }

    #[test]
    fn reads_that_shadows_report_keep_a_key_hot() {
        let mut keys = tracker();
        read(&mut keys, 1, 20);
        for _ in 0..20 {
            keys.report(1, 12);
            assert_eq!(tick(&mut keys), []);
        }
        keys.report(77, 5);
        assert_eq!(keys.find(77), None);
    }

    #[test]
    fn heat_moves_with_the_cachelet() {
        let (mut home, mut next_home) = (tracker(), tracker());
        read(&mut home, 1, 20);
        read(&mut home, 2, 3);
        for hash in [1, 2] {
            let slot = home.find(hash).expect("tracked");
            let score = home.score(slot);
            let heat = home.hand_over(slot);
            let slot = next_home.take_over(heat).expect("room");
            assert_eq!(next_home.score(slot), score);
        }
        assert_eq!(next_home.hot().collect::<Vec<_>>(), [0]);
        assert_eq!((home.find(1), tick(&mut home)), (None, vec![]));
        assert_eq!(home.observe(5, Read), Seen::Admitted(0), "its place is free");
        (10..16).for_each(|hash| {
            read(&mut next_home, hash, 20);
        });
        assert_eq!(read(&mut next_home, 16, 1), Seen::Admitted(1), "only key 2 was cold");
        assert!(next_home.find(1).is_some(), "a hot key is pinned where it went");
    }

    #[test]
    fn keys_that_share_a_tag_are_told_apart() {
        let mut keys = tracker();
        let (one, other) = (5, 5 | 1 << 60);
        read(&mut keys, one, 1);
        read(&mut keys, other, 1);
        assert_eq!((keys.find(one), keys.find(other)), (Some(0), Some(1)));
        assert_eq!(keys.find(5 | 1 << 61), None);
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut keys = HotKeys::new(HotKeysConfig { capacity: 64, ..HotKeysConfig::default() });
        let mut bits = crate::RandomBits::new(3);
        for _ in 0..100_000 {
            keys.observe(bits.next_bits() >> (bits.next_bits() % 60), Read);
        }
        assert_eq!(keys.keys.len(), 64);
        assert!(keys.keys.iter().all(|key| keys.find(key.hash).is_some()));
    }
}
