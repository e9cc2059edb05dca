//! get, gat, the storage commands, incr and decr, touch, delete.

use mbal_cachelet::{Ahead, Full, Miss, View};
use mbal_model::{KEY_BYTES_MAX, Key, item_bytes, size_class};
use mbal_wire::{Chunk, Direction, Get, Storage, Verb, next_word, push_u64, push_value};

use crate::commands::change::{Change, Changed, New, Removed, Sum};
use crate::commands::discovery;
use crate::commands::tell::Fetched;
use crate::commands::turn::{Then, Turn};
use crate::observing::details::Deed;
use crate::sessions::job::GROUP;
use crate::sessions::session::OUTPUT_BYTES_MAX;

/// Keys of `get`s behind their first, after which a turn ends: even if all miss, others need not wait for long.
const FURTHER_KEYS_MAX: usize = 32 << 10;

pub(crate) const NOT_NUMERIC: &[u8] =
    b"CLIENT_ERROR cannot increment or decrement non-numeric value";
pub(crate) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format";
pub(crate) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk";
pub(crate) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache";
pub(crate) const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object";
pub(crate) const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory";

impl Turn<'_> {
    /// Hits in the order of the keys, then `END`. A key that is too long turns the whole reply
    /// into an error, whatever came before it.
    #[inline]
    pub fn get(&mut self, get: &Get<'_>, first: Option<Key<'_>>) -> Then {
        let before = self.out.len();
        match first {
            None if !get.first.is_empty() => {
                self.line(BAD_FORMAT);
                return Then::Next;
            }
            None => {}
            Some(_) if get.discovers() && discovery::get(&self.on, self.out) => return Then::Next,
            Some(first) => {
                let ahead = self.take_ahead();
                self.get_one(get, &first, ahead);
            }
        }
        if !get.further.is_empty() {
            if let Some(then) = self.get_further(get, before) {
                return then;
            }
        }
        self.line(b"END");
        Then::Next
    }

    /// Answers the keys behind the first; what follows, if it is not `END`. The reply began at `before`.
    fn get_further(&mut self, get: &Get<'_>, before: usize) -> Option<Then> {
        let mut rest = get.further;
        // While a group is answered the next one's buckets are on their way, and while that is being parsed
        // this one's items.
        let (mut waiting, mut waiting_ahead) = ([None; GROUP], [Ahead::NONE; GROUP]);
        let (mut waiting_count, mut waiting_from) = (0, rest);
        while !rest.is_empty() || waiting_count > 0 {
            let start = rest;
            let mut keys = [None; GROUP];
            let mut ahead = [Ahead::NONE; GROUP];
            let mut count = 0;
            while count < GROUP {
                let Some((word, tail)) = next_word(rest) else { break };
                let Some(key) = Key::new(word) else { return Some(self.bad_get(before)) };
                ahead[count] = self.on.shared.store.prefetch_bucket(key.hash());
                keys[count] = Some(key);
                (rest, count) = (tail, count + 1);
            }
            let answered = self.get_group(get, &waiting, waiting_ahead);
            if answered < waiting_count || count > 0 && self.further_keys >= FURTHER_KEYS_MAX {
                let behind = |keys, _| next_word(keys).map_or(keys, |(_, tail)| tail);
                let unanswered = (0..answered).fold(waiting_from, behind);
                return Some(match any_too_long(unanswered) {
                    true => self.bad_get(before),
                    false => Then::Resume(get_again(get, unanswered)),
                });
            }
            if count == 0 {
                break;
            }
            for (key, ahead) in keys.iter().flatten().zip(ahead) {
                self.on.shared.store.prefetch_item(key.hash(), ahead);
            }
            (waiting, waiting_ahead) = (keys, ahead);
            (waiting_count, waiting_from) = (count, start);
        }
        None
    }

    /// Answers keys until the output has come to its bound; how many.
    fn get_group(
        &mut self,
        get: &Get<'_>,
        keys: &[Option<Key<'_>>; GROUP],
        ahead: [Ahead<'_>; GROUP],
    ) -> usize {
        let mut answered = 0;
        for (key, ahead) in keys.iter().flatten().zip(ahead) {
            if self.replied_bytes() >= OUTPUT_BYTES_MAX {
                break;
            }
            self.on.count_executed(Some(key), ahead.owner());
            self.get_one(get, key, ahead);
            answered += 1;
        }
        self.observer.look_at_gets(&self.on, &keys[..answered]);
        self.further_keys += answered;
        answered
    }

    /// The values of those of a `get`'s keys that are here.
    pub fn get_here<'k>(&mut self, get: &Get<'_>, keys: impl Iterator<Item = Key<'k>>) -> Vec<u8> {
        let before = self.out.len();
        let mut keys = keys.peekable();
        while keys.peek().is_some() {
            let mut group = [None; GROUP];
            let mut ahead = [Ahead::NONE; GROUP];
            let mut count = 0;
            for key in keys.by_ref().take(GROUP) {
                ahead[count] = self.on.shared.store.prefetch_bucket(key.hash());
                group[count] = Some(key);
                count += 1;
            }
            for (key, ahead) in group.iter().flatten().zip(ahead) {
                self.on.shared.store.prefetch_item(key.hash(), ahead);
            }
            for (key, ahead) in group.iter().flatten().zip(ahead) {
                self.on.count_executed(Some(key), ahead.owner());
                self.get_one(get, key, ahead);
            }
            // The first key of all was looked at with its request.
            let further = group[..count]
                .iter()
                .position(|key| key.is_some_and(|key| key.bytes() != get.first));
            self.observer.look_at_gets(&self.on, &group[further.unwrap_or(count)..count]);
        }
        self.out.split_off(before)
    }

    fn bad_get(&mut self, before: usize) -> Then {
        self.out.truncate(before);
        self.line(BAD_FORMAT);
        Then::Next
    }

    #[inline]
    pub fn get_one(&mut self, get: &Get<'_>, key: &Key<'_>, ahead: Ahead<'_>) {
        match get.touch {
            None => self.get_item(key, ahead, |view, out| push_item(out, get, key, view)),
            Some(exptime) => self.get_and_touch_item(key, exptime.into(), |view, out| {
                push_item(out, get, key, view);
            }),
        };
    }

    /// Looks for an item, to `show` it; false is a miss. What is known `ahead` is known since this command began.
    #[inline]
    pub fn get_item(
        &mut self,
        key: &Key<'_>,
        ahead: Ahead<'_>,
        mut show: impl FnMut(&View<'_>, &mut Vec<u8>),
    ) -> bool {
        let (store, now) = (&self.on.shared.store, self.now().second);
        let seen = store.look_ahead(ahead, key, now, true, self.out, |view, out| {
            show(view, out);
            Fetched::Hit { flags: view.flags(), value_bytes: view.value_bytes() }
        });
        let hit = seen.is_ok();
        self.on.shared.details.count(key.bytes(), Deed::Get { hit });
        self.on.count_get(key, seen.unwrap_or_else(Fetched::Miss));
        hit
    }

    pub fn get_and_touch_item(
        &mut self,
        key: &Key<'_>,
        exptime: i64,
        mut show: impl FnMut(&View<'_>, &mut Vec<u8>),
    ) -> bool {
        self.on.counters.cmd_touch.add(1);
        let mut locked = self.on.shared.store.lock(key.hash(), self.now().second);
        let found = locked.find(key);
        self.on.shared.details.count(key.bytes(), Deed::Get { hit: found.is_some() });
        let old = found.map(|found| locked.view(&found, |view| view.meta()));
        self.on.tell_get(key, old.as_ref().into());
        let (Some(found), Some(old)) = (found, old) else {
            self.on.counters.touch_misses.add(1);
            return false;
        };
        self.on.counters.touch_hits.add(1);
        self.on.class(key, &old).touch_hits.add(1);
        locked.accessed(&found);
        locked.view(&found, |view| show(view, self.out));
        // A cache so full that no deadline can be added keeps the old one: the item was read.
        let _kept = locked.touch(&found, self.now().deadline(exptime));
        true
    }

    pub fn store(&mut self, storage: &Storage<'_>, key: &Key<'_>) {
        let line: &[u8] = match self.store_counted(storage, key) {
            None => BAD_CHUNK,
            Some(Changed::Done { .. }) => b"STORED",
            Some(Changed::Exists) => b"EXISTS",
            Some(Changed::NotFound) => b"NOT_FOUND",
            Some(Changed::Refused) => b"NOT_STORED",
            Some(Changed::Full(full)) => full_line(full),
            Some(Changed::NoRoom) => return,
        };
        self.reply(storage.noreply, line);
    }

    /// `None`: the data block did not end where it should have.
    pub fn store_counted(&mut self, storage: &Storage<'_>, key: &Key<'_>) -> Option<Changed> {
        let Chunk::Value(value) = storage.chunk else {
            self.count_set(key);
            return None;
        };
        let change = Change {
            verb: storage.verb,
            flags: storage.flags,
            deadline: self.now().deadline(storage.exptime),
            cas: storage.cas,
            new_cas: None,
            value,
            creates: false,
            may_be_stale: false,
            binary_key: false,
        };
        let outcome = self.store_item(key, &change);
        if matches!(outcome, Changed::NoRoom) {
            return Some(outcome);
        }
        self.count_set(key);
        let bytes = item_bytes(key.bytes().len(), storage.flags, value.len());
        let class = &self.on.classes[size_class(bytes)];
        class.cmd_set.add(1);
        if let Changed::Full(full) = outcome {
            if storage.verb == Verb::Set {
                self.remove_item(key);
            }
            class.outofmemory.add((full == Full::OutOfMemory).into());
            self.count_full(full);
        }
        Some(outcome)
    }

    fn count_set(&self, key: &Key<'_>) {
        self.on.counters.cmd_set.add(1);
        self.on.shared.details.count(key.bytes(), Deed::Set);
    }

    pub fn count_full(&mut self, full: Full) {
        match full {
            Full::TooLarge => self.on.counters.store_too_large.add(1),
            Full::OutOfMemory => self.on.counters.store_no_memory.add(1),
        }
    }

    pub fn too_large(&mut self, key: &Key<'_>, remove: bool, noreply: bool) {
        if remove {
            self.remove_item(key);
        }
        self.refuse_too_large(noreply);
    }

    pub fn refuse_too_large(&mut self, noreply: bool) {
        self.count_full(Full::TooLarge);
        self.reply(noreply, TOO_LARGE);
    }

    pub fn arithmetic(&mut self, key: &Key<'_>, direction: Direction, delta: u64, noreply: bool) {
        let line: &[u8] = match self.count_item(key, direction, delta, 0, New::default()) {
            Sum::Done { value, .. } => {
                if !noreply {
                    push_u64(self.out, value);
                    self.line(b"");
                }
                return;
            }
            Sum::NotNumeric => NOT_NUMERIC,
            Sum::NotFound => {
                self.count_missed(direction);
                b"NOT_FOUND"
            }
            Sum::Full => OUT_OF_MEMORY,
            Sum::NoRoom => return,
            Sum::Exists => unreachable!("no cas was asked for"),
            Sum::Created { .. } => unreachable!("nothing was to be created"),
        };
        self.reply(noreply, line);
    }

    pub fn count_missed(&self, direction: Direction) {
        match direction {
            Direction::Increment => self.on.counters.incr_misses.add(1),
            Direction::Decrement => self.on.counters.decr_misses.add(1),
        }
    }

    pub fn touch(&mut self, key: &Key<'_>, exptime: i32, noreply: bool) {
        self.on.counters.cmd_touch.add(1);
        let mut locked = self.on.shared.store.lock(key.hash(), self.now().second);
        let line: &[u8] = match locked.find(key) {
            Some(found) => {
                self.on.counters.touch_hits.add(1);
                let old = locked.view(&found, |view| view.meta());
                self.on.class(key, &old).touch_hits.add(1);
                self.on.tell_get(key, Some(&old).into());
                locked.accessed(&found);
                match locked.touch(&found, self.now().deadline(exptime)) {
                    Ok(()) => b"TOUCHED",
                    Err(_) => OUT_OF_MEMORY,
                }
            }
            None => {
                self.on.counters.touch_misses.add(1);
                self.on.tell_get(key, Fetched::Miss(Miss::NotFound));
                b"NOT_FOUND"
            }
        };
        drop(locked);
        self.reply(noreply, line);
    }

    pub fn delete(&mut self, key: &Key<'_>, noreply: bool) {
        let line: &[u8] = match self.delete_item(key, 0) {
            Removed::Done(old) => {
                self.on.tell_deletion(key, &old, "delete");
                b"DELETED"
            }
            Removed::NotFound => b"NOT_FOUND",
            Removed::Exists => unreachable!("no cas was asked for"),
        };
        self.reply(noreply, line);
    }
}

/// A hit in the reply to `get`. Inline, for it is most of what a key of a long `get` costs.
#[inline(always)]
fn push_item(out: &mut Vec<u8>, get: &Get<'_>, key: &Key<'_>, view: &View<'_>) {
    let cas = get.cas.then(|| view.cas());
    push_value(out, key.bytes(), view.flags(), view.value_bytes(), cas);
    view.copy_value(out);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn full_line(full: Full) -> &'static [u8] {
    match full {
        Full::TooLarge => TOO_LARGE,
        Full::OutOfMemory => NO_MEMORY,
    }
}

pub(crate) fn any_too_long(mut keys: &[u8]) -> bool {
    while let Some(some) = keys.get(..=KEY_BYTES_MAX) {
        // Words that end among so many bytes are no longer.
        match some.iter().rposition(|byte| *byte == b' ') {
            Some(blank) => keys = &keys[blank + 1..],
            None => return true,
        }
    }
    false
}

/// The request for `keys` that goes on where `get` stopped.
pub(crate) fn get_again(get: &Get<'_>, keys: &[u8]) -> Vec<u8> {
    let mut again = Vec::with_capacity(Get::HEAD_BYTES_MAX + keys.len() + b"\r\n".len());
    get.push_head(&mut again);
    again.extend_from_slice(keys);
    again.extend_from_slice(b"\r\n");
    again
}
