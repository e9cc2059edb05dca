//! Copies of other servers' keys that are here, and what homes say of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use mbal_cachelet::Meta as StoredMeta;
use mbal_locks::ranks;
use mbal_model::{Instant, Key, Prefix, ReplicaVersion};
use mbal_replica::{Grant, Hold, HoldWhat, Kept, Outcome, Shadow, Stamp};

use crate::copies::table::Table;
use crate::copies::terms::CopiesHere;
use crate::time::Now;

/// One key of another server.
struct CopyHere {
    key: Box<[u8]>,
    shadow: Shadow,
    item: Option<Arc<Copied>>,
    /// Answered from it since that was told.
    reads: u32,
}

/// A copy's value, and what is known of it.
pub(crate) struct Copied {
    pub flags: u32,
    pub cas: u64,
    binary_key: bool,
    /// It dies then.
    until: Option<Instant>,
    flush_number: u32,
    pub value: Box<[u8]>,
}

impl Copied {
    fn bytes(&self) -> u64 {
        (self.value.len() + std::mem::size_of::<Copied>()) as u64
    }

    fn is_alive(&self, now: Instant, flush_number: u32) -> bool {
        self.until.is_none_or(|until| now < until) && flush_number <= self.flush_number
    }

    pub fn meta(&self, now: Now) -> StoredMeta {
        StoredMeta {
            flags: self.flags,
            deadline: 0,
            cas: self.cas,
            last_access: now.second,
            fetched: true,
            stale: false,
            win: false,
            binary_key: self.binary_key,
            value_bytes: self.value.len() as u32,
        }
    }
}

/// Copies of other servers' keys.
#[derive(Default)]
pub(crate) struct Shadows {
    table: Table<ranks::CopiesHere, CopyHere>,
    /// Tells this process's stamps from those of others. Read with a shard locked.
    process: AtomicU32,
    bytes: AtomicU64,
    reads: AtomicU64,
}

impl Shadows {
    #[inline]
    pub fn may_have(&self, hash: u64) -> bool {
        self.table.may_have(hash)
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn is_empty_at(&self, shard: usize) -> bool {
        self.table.shard(shard).is_empty()
    }

    /// So far; `grants` are of homes.
    pub fn figures(&self, grants: u64) -> CopiesHere {
        let mut keys = 0;
        self.table.each(|_, copy| keys += u64::from(copy.item.is_some()));
        CopiesHere {
            keys,
            bytes: self.bytes.load(Relaxed),
            reads: self.reads.load(Relaxed),
            grants,
        }
    }

    /// Takes a home's word, and appends the answer. `memory_bytes`: for all copies; nothing is taken without.
    pub fn take(
        &self,
        now: Instant,
        hold: &Hold<'_>,
        key: &Key<'_>,
        memory_bytes: Option<u64>,
        out: &mut Vec<u8>,
    ) -> bool {
        let (hash, mut known) = (key.hash(), self.table.lock(key.hash()));
        if !known.contains_key(&hash) {
            drop(known);
            let (key, shadow) = (key.bytes().into(), Shadow::unknown());
            self.table.insert(hash, CopyHere { key, shadow, item: None, reads: 0 });
            known = self.table.lock(hash);
        }
        let process = self.process.load(Relaxed) as u16;
        // A tick may have taken it out again.
        let Some(copy) = known.get_mut(&hash) else { return false };
        if *copy.key != *key.bytes() {
            // Another key of the same hash: there is no place for this one.
            let (grant, version) = (hold.grant, hold.version);
            let (stamp, outcome) = (Stamp::new(process, now), Outcome::Refused);
            mbal_replica::Held { grant, version, stamp, reads: 0, outcome }.encode(out);
            return true;
        }
        let had = copy.item.as_ref().map_or(0, |item| item.bytes());
        let comes = match hold.what {
            HoldWhat::Item(item) => item.value.len() as u64,
            _ => 0,
        };
        let fits = memory_bytes.is_some_and(|most| self.bytes.load(Relaxed) + comes <= had + most);
        let kept = copy.shadow.take(now, process, hold, fits);
        match (kept, hold.what) {
            (Kept::New, HoldWhat::Item(item)) => {
                let until = item.dies(hold.stamp, process, now);
                copy.item = Some(Arc::new(Copied {
                    flags: item.flags,
                    cas: item.cas,
                    binary_key: item.binary_key,
                    until,
                    flush_number: item.flush_number,
                    value: item.value.into(),
                }));
            }
            (Kept::Nothing | Kept::New, _) => copy.item = None,
            (Kept::Same, _) => {}
        }
        let has = copy.item.as_ref().map_or(0, |item| item.bytes());
        self.bytes.fetch_add(has.wrapping_sub(had), Relaxed);
        let refused = !fits && matches!(hold.what, HoldWhat::Item(_));
        copy.shadow.held(now, process, std::mem::take(&mut copy.reads), refused).encode(out);
        true
    }

    /// Copies of a cachelet's keys that were granted before that are not read any more.
    pub fn fence(&self, prefix: Prefix, grant: Grant) {
        self.table.each(|hash, copy| {
            if prefix.contains(hash) && copy.shadow.fence(grant) {
                self.drop_item(copy);
            }
        });
    }

    /// Stamps are of this process from now on, which has no copies yet: who makes some, or owns what they are of, has not counted on the one before
    /// since its end.
    pub fn is_process(&self, number: u16) {
        self.process.store(number.into(), Relaxed);
        self.table.each(|_, copy| {
            copy.shadow.loses_value();
            self.drop_item(copy);
        });
    }

    fn drop_item(&self, copy: &mut CopyHere) {
        if let Some(item) = copy.item.take() {
            self.bytes.fetch_sub(item.bytes(), Relaxed);
        }
    }

    /// The copy of a key, if there is one from which may be answered at this moment who has seen that much of it.
    pub fn copy_of(
        &self,
        key: &Key<'_>,
        seen: ReplicaVersion,
        now: Instant,
        flush_number: u32,
    ) -> Option<(Arc<Copied>, ReplicaVersion)> {
        if !self.table.may_have(key.hash()) {
            return None;
        }
        let mut known = self.table.lock(key.hash());
        let copy = known.get_mut(&key.hash()).filter(|copy| *copy.key == *key.bytes())?;
        if !copy.shadow.may_answer(now, seen) {
            return None;
        }
        let item = copy.item.as_ref()?;
        if !item.is_alive(now, flush_number) {
            copy.shadow.loses_value();
            self.drop_item(copy);
            return None;
        }
        copy.reads += 1;
        self.reads.fetch_add(1, Relaxed);
        Some((copy.item.clone()?, copy.shadow.replica_version()))
    }

    /// Forgets what need not be remembered any more, of one shard.
    pub fn tidy(&self, at: usize, now: Instant) {
        self.table.retain(at, |_, copy| {
            let is_over = copy.shadow.is_over(now);
            if is_over {
                self.drop_item(copy);
            }
            !is_over
        });
    }
}
