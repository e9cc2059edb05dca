//! Copies of hot keys: their states, and who may read which. One proxy is the write coordinator of all keys (docs/design/proxy.md).
//!
//! What keeps a copy from being read stale: a write ends all copies of its key when it arrives, and the next ones have names that
//! were never used. A fill reads the home over the connection of the writes, behind them.

mod telling;
mod through;

pub(crate) use telling::{HotKey, HotKeyState};
pub(crate) use through::{AskId, Reader, Through};

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};
use mbal_random::{Random, mix};

use crate::keeping::Kept;
use crate::naming::push_name;

/// A copy is made anew after so long: its item lives little longer.
const AGE_MAX: Duration = Duration::from_secs(30);

/// One of the places where reads of a key go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub conn: u32,
    /// What its name is made of; `None` is the key's home.
    pub name: Option<u64>,
    /// It has said that it has the value.
    pub stored: bool,
}

/// What a key has beside its home.
#[derive(Debug)]
enum State {
    Cold,
    /// Its home has been asked for the value.
    Filling,
    Copied {
        /// The home is the first.
        copies: Vec<Copy>,
        since: Instant,
    },
    Cached {
        kept: Kept,
        until: Instant,
    },
}

/// A key that is hot.
#[derive(Debug)]
pub(crate) struct Hot {
    pub key: Vec<u8>,
    /// Virtual copies, its home included (NetKV, ICAC 2016, §IV.B).
    pub wanted: u32,
    state: State,
    /// The write of the key that was asked last; reads wait for it.
    last_write: Option<AskId>,
    /// Changes with each write, and with all else that ends what is known of the value.
    epoch: u64,
    reads: u64,
    writes: u64,
    /// Reads and writes of the interval before.
    reads_before: u64,
    writes_before: u64,
    /// In the last interval it was written so often that copies would be made for few reads each (NetKV §IV.F).
    pub often_written: bool,
}

/// A key with more writes than one in so many reads is kept in the proxy's own cache.
const READS_PER_WRITE: u64 = 20;

/// Of all values in the proxy's own cache; and of those that are written, on their way.
const CACHE_BYTES_MAX: usize = 4 << 20;

/// Where a read goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read<'a> {
    Home,
    /// Home; and the key is to be filled, under this epoch.
    Fill(u64),
    Copy {
        conn: usize,
        name: u64,
    },
    Cached(&'a Kept),
    /// What this write brings, when its reply comes.
    Behind(AskId),
}

/// All keys that are hot.
pub(crate) struct HotTable {
    keys: BTreeMap<u64, Hot>,
    under_way: through::UnderWay,
    next_epoch: u64,
    random: Random,
    /// No fills before this: a `flush_all` is to come.
    suspended_until: Instant,
}

/// A copy that is not read any more: its connection, and its name.
pub(crate) type Left = (u32, Vec<u8>);

impl HotTable {
    pub fn new(seed: u64) -> HotTable {
        HotTable {
            keys: BTreeMap::new(),
            under_way: through::UnderWay::default(),
            next_epoch: seed,
            random: Random::new(seed),
            suspended_until: Instant::ZERO,
        }
    }

    /// No fills before this.
    pub fn suspend(&mut self, until: Instant) {
        self.suspended_until = until.max(self.suspended_until);
    }

    pub fn is_suspended(&self, now: Instant) -> bool {
        now < self.suspended_until
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// By hash.
    pub fn keys(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.keys.iter().map(|(hash, hot)| (*hash, hot.key.as_slice()))
    }

    fn epoch(&mut self) -> u64 {
        self.next_epoch = self.next_epoch.wrapping_add(1);
        mix(self.next_epoch)
    }

    fn find(&mut self, hash: u64, key: &[u8]) -> Option<&mut Hot> {
        self.keys.get_mut(&hash).filter(|hot| hot.key == key)
    }

    /// Where a read of `key` goes that shows no more than a copy knows: of two virtual copies by chance the one whose connection has
    /// less `load`.
    pub fn read<L: Ord>(
        &mut self,
        hash: u64,
        key: &[u8],
        now: Instant,
        may_fill: bool,
        load: impl Fn(u32) -> L,
    ) -> Read<'_> {
        let place = self.random.word();
        let epoch = self.epoch();
        let may_fill = may_fill && !self.is_suspended(now);
        let Some(hot) = self.keys.get_mut(&hash).filter(|hot| hot.key == key) else {
            return Read::Home;
        };
        hot.reads += 1;
        if let Some(ask) = hot.last_write {
            return Read::Behind(ask);
        }
        let is_old = match &hot.state {
            State::Cold => true,
            State::Filling => false,
            State::Copied { since, .. } => *since + AGE_MAX <= now,
            State::Cached { until, .. } => *until <= now,
        };
        if is_old && hot.wanted > 1 && may_fill {
            hot.state = State::Filling;
            hot.epoch = epoch;
            return Read::Fill(epoch);
        }
        match &hot.state {
            State::Copied { copies, .. } => {
                let [one, other] = [place as u32, (place >> 32) as u32].map(|bits| {
                    let copy = copies[bits as usize % copies.len()];
                    // Its home has the value until it does.
                    if copy.stored { copy } else { copies[0] }
                });
                let copy = if load(one.conn) <= load(other.conn) { one } else { other };
                match copy.name {
                    Some(name) => Read::Copy { conn: copy.conn as usize, name },
                    None => Read::Home,
                }
            }
            State::Cached { kept, until } if now < *until => Read::Cached(kept),
            _ => Read::Home,
        }
    }

    /// The key may change, or has changed: nothing that is known of it is read any more.
    pub fn write(&mut self, hash: u64, key: &[u8], left: &mut Vec<Left>) {
        let epoch = self.epoch();
        if let Some(hot) = self.find(hash, key) {
            hot.writes += 1;
            if !is_planted(Fault::CopiesOutliveWrites) {
                hot.end(epoch, left);
            }
        }
    }

    /// The home has answered a fill, and nothing has changed since it was asked.
    pub fn is_filling(&self, hash: u64, epoch: u64) -> Option<&Hot> {
        let hot = self.keys.get(&hash)?;
        let is_its = hot.epoch == epoch || is_planted(Fault::OlderFillTaken);
        (is_its && matches!(hot.state, State::Filling)).then_some(hot)
    }

    /// The fill came to nothing.
    pub fn unfilled(&mut self, hash: u64, epoch: u64) {
        if let Some(hot) = self.keys.get_mut(&hash).filter(|hot| hot.epoch == epoch) {
            hot.state = State::Cold;
        }
    }

    pub fn copied(&mut self, hash: u64, copies: Vec<Copy>, now: Instant) {
        let hot = self.keys.get_mut(&hash).expect("it is filling");
        hot.state = State::Copied { copies, since: now };
    }

    /// Keeps a value in the proxy's own cache. What is read least often makes room (LFU, NetKV §IV.G). False: there is none, all is
    /// read as often.
    pub fn cached(&mut self, hash: u64, kept: Kept, until: Instant) -> bool {
        let reads = |hot: &Hot| hot.reads_before + hot.reads;
        let own = reads(self.keys.get(&hash).expect("it is hot"));
        let other = |(other, hot): (&u64, &Hot)| match &hot.state {
            State::Cached { kept, .. } if *other != hash => {
                Some((reads(hot), *other, kept.value.len()))
            }
            _ => None,
        };
        let mut others: Vec<(u64, u64, usize)> = self.keys.iter().filter_map(other).collect();
        let all: usize = others.iter().map(|(.., bytes)| bytes).sum();
        let mut excess = (all + kept.value.len()).saturating_sub(CACHE_BYTES_MAX);
        if excess > 0 {
            others.sort_unstable();
        }
        let mut ended = 0;
        for (reads, _, bytes) in &others {
            if excess == 0 {
                break;
            }
            if own <= *reads {
                return false;
            }
            excess = excess.saturating_sub(*bytes);
            ended += 1;
        }
        for (_, other, _) in &others[..ended] {
            self.keys.get_mut(other).expect("it is listed").state = State::Cold;
        }
        self.keys.get_mut(&hash).expect("it is hot").state = State::Cached { kept, until };
        true
    }

    /// A copy has said that it has the value of an epoch.
    pub fn stored(&mut self, hash: u64, epoch: u64, at: u32) {
        let Some(hot) = self.keys.get_mut(&hash) else { return };
        if let State::Copied { copies, .. } = &mut hot.state {
            let conn = copies.get(at as usize).map(|copy| copy.conn);
            if hot.epoch == epoch {
                let same = copies.iter_mut().filter(|copy| Some(copy.conn) == conn);
                same.for_each(|copy| copy.stored = true);
            }
        }
    }

    /// What is known of any key may be wrong: the pool has changed, or everything is flushed.
    pub fn end_all(&mut self, left: &mut Vec<Left>) {
        let hashes: Vec<u64> = self.keys.keys().copied().collect();
        for hash in hashes {
            let epoch = self.epoch();
            self.keys.get_mut(&hash).expect("it is listed").end(epoch, left);
        }
    }

    /// A key is hot from now on, with so many copies, or as many as before. Fewer end those that there are.
    pub fn want(&mut self, hash: u64, key: &[u8], wanted: u32, left: &mut Vec<Left>) {
        let epoch = self.epoch();
        let new = || Hot {
            key: key.to_vec(),
            wanted,
            state: State::Cold,
            last_write: None,
            epoch,
            reads: 0,
            writes: 0,
            reads_before: 0,
            writes_before: 0,
            often_written: false,
        };
        let hot = self.keys.entry(hash).or_insert_with(new);
        // Close by is near enough: a change ends what there is.
        let is_near = 2 * hot.wanted <= 3 * wanted && 2 * wanted <= 3 * hot.wanted;
        if !is_near {
            hot.wanted = wanted;
            hot.end(epoch, left);
        }
        hot.often_written = hot.writes * READS_PER_WRITE > hot.reads;
        (hot.reads_before, hot.writes_before) = (hot.reads, hot.writes);
        (hot.reads, hot.writes) = (0, 0);
    }

    /// Those that `keep` says no to are cold again.
    pub fn retain(&mut self, keep: impl Fn(u64) -> bool, left: &mut Vec<Left>) {
        self.keys.retain(|hash, hot| {
            let keeps = keep(*hash);
            if !keeps {
                hot.end(0, left);
            }
            keeps
        });
    }
}

impl Hot {
    fn end(&mut self, epoch: u64, left: &mut Vec<Left>) {
        if let State::Copied { copies, .. } = &self.state {
            let mut seen = Vec::new();
            for copy in copies {
                if let Some(name) = copy.name.filter(|_| !seen.contains(&copy.conn)) {
                    seen.push(copy.conn);
                    let mut named = Vec::new();
                    push_name(&mut named, &self.key, name);
                    left.push((copy.conn, named));
                }
            }
        }
        self.state = State::Cold;
        self.epoch = epoch;
        self.last_write = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_upstream_is_read_when_both_choices_are_its_own() {
        let (mut table, mut left) = (HotTable::new(1), Vec::new());
        table.want(7, b"hot", 2, &mut left);
        assert!(matches!(table.read(7, b"hot", Instant::ZERO, true, |_| 0), Read::Fill(_)));
        let copy = |conn, name| Copy { conn, name, stored: true };
        table.copied(7, vec![copy(4, None), copy(9, Some(1))], Instant::ZERO);
        let reads = |table: &mut HotTable, busy| {
            let of_home = |_: &i32| {
                table.read(7, b"hot", Instant::ZERO, false, |conn| conn == busy) == Read::Home
            };
            (0..4_000).filter(of_home).count()
        };
        assert!((900..1_100).contains(&reads(&mut table, 4)));
        assert!((2_900..3_100).contains(&reads(&mut table, 9)));
    }

    #[test]
    fn what_is_read_least_often_leaves_the_cache() {
        let (mut table, mut left) = (HotTable::new(1), Vec::new());
        let reads = [5, 1, 3, 2, 4];
        for (hash, reads) in (0..).zip(reads) {
            table.want(hash, &[b'a' + hash as u8], 2, &mut left);
            for _ in 0..reads {
                table.read(hash, &[b'a' + hash as u8], Instant::ZERO, false, |_| 0);
            }
        }
        // Two have room.
        let half = || Kept { flags: 0, value: vec![0; CACHE_BYTES_MAX / 2] };
        let kept: Vec<bool> =
            (0..5).map(|hash| table.cached(hash, half(), Instant::from_nanos(9))).collect();
        assert_eq!(kept, [true, true, true, false, true]);
        let is_cached = |hash| matches!(table.keys[&hash].state, State::Cached { .. });
        assert_eq!([0, 1, 2, 3, 4].map(is_cached), [true, false, false, false, true]);
    }
}
