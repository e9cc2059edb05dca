//! Copies of other servers' keys that are here: what homes say of them, and reads that are answered from them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mbal_cachelet::Meta as StoredMeta;
use mbal_model::{Instant, Key, ReplicaVersion};
use mbal_replica::{Hold, HoldWhat, Kept, Outcome, Shadow, Stamp};
use mbal_wire::{Binary, Command, Get, Head, Meta, Request, Status, push_value};

use crate::copies::{Copies, HotMode};
use crate::meta_reply::{Shown, push_hit, shows_value};
use crate::tell::Fetched;
use crate::turn::Turn;

/// One key of another server.
pub(crate) struct CopyHere {
    key: Box<[u8]>,
    shadow: Shadow,
    item: Option<Arc<Copied>>,
    /// Answered from it since that was told.
    reads: u32,
}

impl CopyHere {
    pub fn has_item(&self) -> bool {
        self.item.is_some()
    }
}

/// A copy's value, and what is known of it.
pub(crate) struct Copied {
    flags: u32,
    cas: u64,
    binary_key: bool,
    /// It dies then.
    until: Option<Instant>,
    flush_number: u32,
    value: Box<[u8]>,
}

impl Copied {
    fn bytes(&self) -> u64 {
        (self.value.len() + std::mem::size_of::<Copied>()) as u64
    }

    fn is_alive(&self, now: Instant, flush_number: u32) -> bool {
        self.until.is_none_or(|until| now < until) && flush_number <= self.flush_number
    }

    fn meta(&self, now: crate::Now) -> StoredMeta {
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

impl Copies {
    /// Takes a home's word, and appends the answer.
    pub fn take(&self, now: Instant, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let Some((hold, key)) =
            Hold::decode(bytes).and_then(|hold| Some((hold, Key::new(hold.key)?)))
        else {
            return false;
        };
        self.in_use.store(true, Relaxed);
        let process = self.process();
        // Who copies nothing, any more or yet, has nothing and takes nothing.
        let takes = self.mode() != HotMode::Off;
        let (hash, mut known) = (key.hash(), self.here.lock(key.hash()));
        if !known.contains_key(&hash) {
            drop(known);
            let (key, shadow) = (key.bytes().into(), Shadow::unknown());
            self.here.insert(hash, CopyHere { key, shadow, item: None, reads: 0 });
            known = self.here.lock(hash);
        }
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
        let fits = takes && self.bytes.load(Relaxed) + comes <= had + self.terms().memory_bytes;
        let kept = copy.shadow.take(now, process, &hold, fits);
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

    /// The copy of a key, if there is one from which may be answered at this moment who has seen that much of it.
    fn copy_of(
        &self,
        key: &Key<'_>,
        seen: ReplicaVersion,
        now: Instant,
        flush_number: u32,
    ) -> Option<(Arc<Copied>, ReplicaVersion)> {
        if !self.here.may_have(key.hash()) {
            return None;
        }
        let mut known = self.here.lock(key.hash());
        let copy = known.get_mut(&key.hash()).filter(|copy| *copy.key == *key.bytes())?;
        if !copy.shadow.may_answer(now, seen) {
            return None;
        }
        let item = copy.item.as_ref()?;
        if !item.is_alive(now, flush_number) {
            self.bytes.fetch_sub(item.bytes(), Relaxed);
            copy.item = None;
            copy.shadow.loses_value();
            return None;
        }
        copy.reads += 1;
        self.reads.fetch_add(1, Relaxed);
        Some((copy.item.clone()?, copy.shadow.replica_version()))
    }

    /// Forgets what need not be remembered any more, of one shard.
    pub fn tidy_here(&self, at: usize, now: Instant) {
        self.here.retain(at, |_, copy| {
            if !copy.shadow.is_over(now) {
                return true;
            }
            if let Some(item) = &copy.item {
                self.bytes.fetch_sub(item.bytes(), Relaxed);
            }
            false
        });
    }
}

/// How a read shows itself to be one that a copy can answer.
pub(crate) enum Read<'r, 'a> {
    Get(&'r Get<'a>),
    Meta(&'r Meta<'a>),
    Binary(&'r Binary<'a>),
}

impl<'r, 'a> Read<'r, 'a> {
    /// `None` for what writes, or asks for what only the home knows: last access, hits, time to live.
    pub fn of(request: &'r Request<'a>) -> Option<Read<'r, 'a>> {
        match request {
            Request::Get(get) if get.touch.is_none() && !get.discovers() => Some(Read::Get(get)),
            Request::MetaGet(meta) => {
                let asks_home = |letter: &u8| meta.flags.has(*letter);
                let is_read = !meta.get_writes() && !b"hltu".iter().any(asks_home);
                (is_read && !meta.words().any(mbal_wire::opaque_too_long))
                    .then_some(Read::Meta(meta))
            }
            Request::Binary(binary) => matches!(binary.command, Command::Get { touch: None, .. })
                .then_some(Read::Binary(binary)),
            _ => None,
        }
    }
}

impl Turn<'_> {
    /// Answers a read from the copy that is here, unless there is none that may be read, and says what it was. Of a `get` its first key, with `END`.
    pub fn read_copy(
        &mut self,
        read: &Read<'_, '_>,
        key: &Key<'_>,
        seen: ReplicaVersion,
    ) -> Option<ReplicaVersion> {
        let copies = &self.shared.copies;
        let flush_number = self.shared.store.flush_number();
        let (copied, replica_version) = copies.copy_of(key, seen, self.lease_now, flush_number)?;
        match read {
            Read::Get(get) => {
                self.push_copy(get, key, &copied);
                self.line(b"END");
                return Some(replica_version);
            }
            Read::Meta(meta) => {
                let item = copied.meta(self.now);
                let with_value = shows_value(meta, &item);
                push_hit(
                    self.out,
                    meta,
                    &Shown::new(item, key, self.now.second),
                    with_value,
                    false,
                );
                if with_value {
                    self.out.extend_from_slice(&copied.value);
                    self.out.extend_from_slice(b"\r\n");
                }
            }
            Read::Binary(Binary { frame, command }) => {
                let Command::Get { with_key, with_value, .. } = command else {
                    unreachable!("it is a read")
                };
                let head = Head {
                    extras: &copied.flags.to_be_bytes(),
                    key: if *with_key { key.bytes() } else { b"" },
                    value_bytes: if *with_value { copied.value.len() as u32 } else { 0 },
                    cas: copied.cas,
                };
                frame.push_head(self.out, Status::Success, &head);
                if *with_value {
                    self.out.extend_from_slice(&copied.value);
                }
            }
        }
        self.count_copy(key, &copied);
        Some(replica_version)
    }

    /// One of the keys of a `get`, without `END`; false if there is no copy.
    pub fn get_copy(&mut self, get: &Get<'_>, key: &Key<'_>) -> bool {
        let shared = self.shared;
        let flush_number = shared.store.flush_number();
        let seen = ReplicaVersion::default();
        let copied = shared.copies.copy_of(key, seen, self.lease_now, flush_number);
        if let Some((copied, _)) = &copied {
            self.push_copy(get, key, copied);
        }
        copied.is_some()
    }

    fn push_copy(&mut self, get: &Get<'_>, key: &Key<'_>, copied: &Copied) {
        let cas = get.cas.then_some(copied.cas);
        push_value(self.out, key.bytes(), copied.flags, copied.value.len() as u32, cas);
        self.out.extend_from_slice(&copied.value);
        self.out.extend_from_slice(b"\r\n");
        self.count_copy(key, copied);
    }

    fn count_copy(&mut self, key: &Key<'_>, copied: &Copied) {
        let (flags, value_bytes) = (copied.flags, copied.value.len() as u32);
        self.count_get(key, Fetched::Hit { flags, value_bytes });
    }
}
