use crate::index::Index;

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
    /// Keys tracked at most.
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
            capacity: 1_024,
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
    /// Not tracked: all places are taken by keys that are hot, or still draining.
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

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: KeyHeat,
    newer: Slot,
    older: Slot,
}

const NONE: Slot = u32::MAX;

/// A home worker's tracker of hot keys: SPORE's SSM cache (papers/spore §3.3 and §3.5).
///
/// Fed with sampled requests. Counters are weighted moving averages, + 1 for a read and
/// − `write_weight` for a write, so that a key is hot when it is popular *and* read-mostly. Only
/// cold keys are evicted, the least recently sampled first: a key with replicas or leases is
/// never forgotten. [`observe`](HotKeys::observe) is O(1), [`tick`](HotKeys::tick) O(capacity).
///
/// ```text
///    not here ──sampled──▶ Cold ──score ≥ hot_score──▶ Hot ──score < cool_score──▶ Draining
///        ▲                 │  ▲                                                        │
///        └──least recent───┘  └───────────────────release()────────────────────────────┘
/// ```
#[derive(Clone, Debug)]
pub struct HotKeys {
    config: HotKeysConfig,
    entries: Vec<Entry>,
    index: Index,
    free: Vec<Slot>,
    newest_cold: Slot,
    oldest_cold: Slot,
}

impl HotKeys {
    pub fn new(config: HotKeysConfig) -> HotKeys {
        assert!(config.capacity > 0 && config.capacity < NONE as usize);
        assert!(config.cool_score <= config.hot_score && 0.0 < config.smoothing);
        HotKeys {
            config,
            entries: Vec::with_capacity(config.capacity),
            index: Index::new(config.capacity),
            free: Vec::new(),
            newest_cold: NONE,
            oldest_cold: NONE,
        }
    }

    /// Counts one sampled request.
    #[inline]
    pub fn observe(&mut self, hash: u64, access: Access) -> Seen {
        let Some(slot) = self.find(hash) else {
            return self.admit(hash, access);
        };
        let entry = &mut self.entries[slot as usize];
        match access {
            Access::Read => entry.key.reads.count += 1,
            Access::Write => entry.key.writes.count += 1,
        }
        if entry.key.heat == Heat::Cold {
            if access == Access::Read && self.score(slot) >= self.config.hot_score {
                self.turn_hot(slot);
                return Seen::TurnedHot(slot);
            }
            self.touch(slot);
        }
        Seen::Tracked(slot)
    }

    /// Adds reads that a shadow sampled, at this tracker's rate: a key that is served elsewhere
    /// must not look cold at home. A report of a key that is no longer tracked is dropped.
    pub fn report(&mut self, hash: u64, reads: u32) {
        if let Some(slot) = self.find(hash) {
            self.entries[slot as usize].key.reads.count += reads;
        }
    }

    /// The slot of a tracked key; every write of a replicated key asks.
    #[inline]
    pub fn find(&self, hash: u64) -> Option<Slot> {
        self.index.find(hash, |slot| self.entries[slot as usize].key.hash == hash)
    }

    /// Ends an epoch; appends what turned hot or cool, in the order of slots.
    pub fn tick(&mut self, turns: &mut Vec<Turn>) {
        for slot in 0..self.entries.len() as Slot {
            let score = self.score(slot);
            let key = &mut self.entries[slot as usize].key;
            for average in [&mut key.reads, &mut key.writes] {
                average.past = average.with_this_epoch(self.config.smoothing);
                average.count = 0;
            }
            match key.heat {
                Heat::Hot if score < self.config.cool_score => {
                    key.heat = Heat::Draining;
                    turns.push(Turn::Cool(slot));
                }
                Heat::Cold if score >= self.config.hot_score => {
                    self.turn_hot(slot);
                    turns.push(Turn::Hot(slot));
                }
                Heat::Cold | Heat::Hot | Heat::Draining => {}
            }
        }
    }

    /// The last lease of a key that cooled has run out: from now on it may be evicted.
    pub fn release(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot as usize];
        assert_eq!(entry.key.heat, Heat::Draining, "only a key that cooled is released");
        entry.key.heat = Heat::Cold;
        self.link_newest(slot);
    }

    /// Takes a key out, because its cachelet goes to another worker.
    pub fn hand_over(&mut self, slot: Slot) -> KeyHeat {
        let key = self.entries[slot as usize].key;
        if key.heat == Heat::Cold {
            self.unlink(slot);
        }
        self.index.remove(key.hash, slot);
        // A free slot's counters must not turn anything at a tick.
        self.entries[slot as usize].key = KeyHeat { hash: 0, ..KeyHeat::new(0) };
        self.entries[slot as usize].key.heat = Heat::Draining;
        self.free.push(slot);
        key
    }

    /// Takes in a key that another worker handed over. `None`, and not tracked, when there is no
    /// room; its replicas then end with their leases, as if their home had failed.
    pub fn take_over(&mut self, key: KeyHeat) -> Option<Slot> {
        assert_eq!(self.find(key.hash), None, "a key has one home");
        let slot = self.room()?;
        self.occupy(slot, key);
        Some(slot)
    }

    /// The weighted average, this epoch included: sampled requests per epoch.
    pub fn score(&self, slot: Slot) -> f32 {
        let key = &self.entries[slot as usize].key;
        key.reads.with_this_epoch(self.config.smoothing)
            - self.config.write_weight * key.writes.with_this_epoch(self.config.smoothing)
    }

    /// Reads and writes alike: sampled requests per epoch.
    pub fn rate(&self, slot: Slot) -> f32 {
        let key = &self.entries[slot as usize].key;
        key.reads.with_this_epoch(self.config.smoothing)
            + key.writes.with_this_epoch(self.config.smoothing)
    }

    pub fn hash(&self, slot: Slot) -> u64 {
        self.entries[slot as usize].key.hash
    }

    pub fn hot(&self) -> impl Iterator<Item = Slot> {
        self.slots(|_, key| key.heat == Heat::Hot)
    }

    /// Keys as popular as hot ones, but written too often to be replicated: only moving what is
    /// around them helps (DESIGN §8, phase 2).
    pub fn write_hot(&self) -> impl Iterator<Item = Slot> {
        self.slots(|slot, key| {
            key.heat == Heat::Cold
                && self.rate(slot) >= self.config.hot_score
                && self.score(slot) < self.config.hot_score
        })
    }

    fn slots(&self, wanted: impl Fn(Slot, &KeyHeat) -> bool) -> impl Iterator<Item = Slot> {
        (0..self.entries.len() as Slot)
            .filter(move |&slot| wanted(slot, &self.entries[slot as usize].key))
    }

    fn admit(&mut self, hash: u64, access: Access) -> Seen {
        let Some(slot) = self.room() else {
            return Seen::Full;
        };
        let mut key = KeyHeat::new(hash);
        match access {
            Access::Read => key.reads.count = 1,
            Access::Write => key.writes.count = 1,
        }
        self.occupy(slot, key);
        Seen::Admitted(slot)
    }

    fn room(&mut self) -> Option<Slot> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = self.entries.len() as Slot;
        if (slot as usize) < self.config.capacity {
            self.entries.push(Entry { key: KeyHeat::new(0), newer: NONE, older: NONE });
            return Some(slot);
        }
        let victim = self.oldest_cold;
        if victim == NONE {
            return None;
        }
        self.unlink(victim);
        self.index.remove(self.entries[victim as usize].key.hash, victim);
        Some(victim)
    }

    fn occupy(&mut self, slot: Slot, key: KeyHeat) {
        self.entries[slot as usize].key = key;
        self.index.insert(key.hash, slot);
        if key.heat == Heat::Cold {
            self.link_newest(slot);
        }
    }

    fn turn_hot(&mut self, slot: Slot) {
        self.unlink(slot);
        self.entries[slot as usize].key.heat = Heat::Hot;
    }

    fn touch(&mut self, slot: Slot) {
        if self.newest_cold != slot {
            self.unlink(slot);
            self.link_newest(slot);
        }
    }

    fn link_newest(&mut self, slot: Slot) {
        let before = std::mem::replace(&mut self.newest_cold, slot);
        let entry = &mut self.entries[slot as usize];
        (entry.newer, entry.older) = (NONE, before);
        match before {
            NONE => self.oldest_cold = slot,
            before => self.entries[before as usize].newer = slot,
        }
    }

    fn unlink(&mut self, slot: Slot) {
        let Entry { newer, older, .. } = self.entries[slot as usize];
        match newer {
            NONE => self.newest_cold = older,
            newer => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest_cold = newer,
            older => self.entries[older as usize].newer = newer,
        }
    }
}

impl KeyHeat {
    fn new(hash: u64) -> KeyHeat {
        KeyHeat { hash, reads: Average::default(), writes: Average::default(), heat: Heat::Cold }
    }
}

#[cfg(test)]
mod tests {
    use super::Access::{Read, Write};
    use super::*;

    fn tracker(capacity: usize) -> HotKeys {
        HotKeys::new(HotKeysConfig {
            capacity,
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
        let mut keys = tracker(4);
        assert_eq!(read(&mut keys, 1, 19), Seen::Tracked(0));
        assert_eq!(keys.observe(1, Read), Seen::TurnedHot(0));
        assert_eq!(keys.hot().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_steady_key_turns_hot_over_epochs_and_cools_late() {
        let mut keys = tracker(4);
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
        let mut keys = tracker(4);
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
        let mut keys = tracker(3);
        read(&mut keys, 1, 20);
        read(&mut keys, 2, 1);
        read(&mut keys, 3, 1);
        read(&mut keys, 2, 1);
        assert_eq!(keys.observe(4, Read), Seen::Admitted(2), "3 was least recent");
        assert_eq!((keys.find(1), keys.find(2), keys.find(3)), (Some(0), Some(1), None));
    }

    #[test]
    fn when_all_are_hot_nothing_is_admitted() {
        let mut keys = tracker(2);
        read(&mut keys, 1, 20);
        read(&mut keys, 2, 20);
        assert_eq!(keys.observe(3, Read), Seen::Full);
        tick(&mut keys);
        let turns: Vec<Turn> = [tick(&mut keys), tick(&mut keys)].concat();
        assert_eq!(turns, [Turn::Cool(0), Turn::Cool(1)]);
        assert_eq!(keys.observe(3, Read), Seen::Full, "leases may still be out");
        keys.release(0);
        assert_eq!(keys.observe(3, Read), Seen::Admitted(0));
    }

    #[test]
    fn reads_that_shadows_report_keep_a_key_hot() {
        let mut keys = tracker(2);
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
        let mut home = tracker(2);
        read(&mut home, 1, 20);
        read(&mut home, 2, 3);
        let mut next_home = tracker(2);
        for hash in [1, 2] {
            let slot = home.find(hash).expect("tracked");
            let score = home.score(slot);
            let heat = home.hand_over(slot);
            let slot = next_home.take_over(heat).expect("room");
            assert_eq!(next_home.score(slot), score);
        }
        assert_eq!(next_home.hot().collect::<Vec<_>>(), [0]);
        assert_eq!((home.find(1), tick(&mut home)), (None, vec![]));
        read(&mut home, 5, 1);
        read(&mut home, 6, 1);
        assert_eq!(read(&mut home, 7, 1), Seen::Admitted(home.find(7).expect("tracked")));
        assert_eq!(home.find(5), None, "handed-over slots are used again, then the oldest");
    }
}
