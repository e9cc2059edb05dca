//! mg, ms, md, ma, me.

use mbal_cachelet::{Draft, Full, Locked, Meta as Item, Miss};
use mbal_model::{Key, Seconds, item_bytes, size_class};
use mbal_wire::{Chunk, Direction, Meta, Verb, base64_encode, opaque_too_long, push_i64, push_u64};

use crate::classic::{BAD_CHUNK, NOT_NUMERIC, OUT_OF_MEMORY, full_line};
use crate::items::{Change, Changed, New, Sum};
use crate::tell::Fetched;
use crate::turn::Turn;

const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long";

/// An item as a reply shows it.
struct Shown<'a> {
    item: Item,
    key: &'a [u8],
    base64: bool,
    /// Made by this very request (N).
    created: bool,
    now: Seconds,
    /// What T and N set, told by a `t` that stands behind them.
    exptime: Seconds,
    vivify: Seconds,
}

impl Turn<'_> {
    pub fn meta_get(&mut self, meta: &Meta<'_>, key: &Key<'_>) {
        let flags = meta.flags;
        if flags.has(b'O') && meta.words().any(opaque_too_long) {
            return self.meta_get_refused(meta, key);
        }
        if flags.has(b'T') || flags.has(b'N') || flags.has(b'R') {
            return self.meta_get_locked(meta, key, None);
        }
        let now = self.now.second;
        let (store, ahead) = (&self.shared.store, self.take_ahead());
        let seen = store.look_ahead(ahead, key, now, !flags.has(b'u'), self.out, |view, out| {
            let item = view.meta();
            // The one who is told to recache it must be known to the item.
            if item.stale && !item.win {
                return Err(item);
            }
            let with_value = shows_value(meta, &item);
            push_hit(out, meta, &Shown::new(item, key, now), with_value, false);
            if with_value {
                view.copy_value(out);
                out.extend_from_slice(b"\r\n");
            }
            Ok(Fetched::from(Some(&item)))
        });
        match seen {
            Ok(Ok(hit)) => self.count_get(key, hit),
            Ok(Err(before)) => self.meta_get_locked(meta, key, Some(before)),
            Err(miss) => self.meta_missed(meta, key, miss),
        }
    }

    /// The way of those `mg` that change more of an item than its last access. `before` is the item
    /// before this request looked at it once already.
    fn meta_get_locked(&mut self, meta: &Meta<'_>, key: &Key<'_>, before: Option<Item>) {
        let flags = meta.flags;
        let mut locked = self.shared.store.lock(key.hash(), self.now.second);
        let exptime = self.now.deadline(meta.exptime);
        let vivify = self.now.deadline(meta.vivify);
        let recache = self.now.deadline(meta.recache);
        let mut found = locked.find(key);
        let created = found.is_none();
        if created && !flags.has(b'N') {
            drop(locked);
            return self.meta_missed(meta, key, Miss::NotFound);
        }
        let mut old = match found {
            Some(found) => locked.view(&found, |view| view.meta()),
            None => absent(self.now.second),
        };
        if let Some(before) = before {
            (old.fetched, old.last_access) = (before.fetched, before.last_access);
        }
        let mut deadline = old.deadline;
        let mut won = false;
        for word in meta.words() {
            match word[0] {
                b'T' => deadline = exptime,
                b'N' if created => (deadline, won) = (vivify, true),
                b'R' if !created && !old.win => won |= deadline != 0 && deadline < recache,
                _ => {}
            }
        }
        won |= old.stale && !old.win;
        let mut item = old;
        if created {
            let cas = meta.chosen_cas();
            let draft = Draft { deadline, cas, win: true, ..Draft::default() };
            let Ok(cas) = locked.put(key, &draft) else {
                drop(locked);
                // memcached finds nothing where it could make nothing.
                return self.meta_missed(meta, key, Miss::NotFound);
            };
            item.cas = cas;
            found = locked.find(key);
        }
        let before = self.out.len();
        let shown = Shown { created, exptime, vivify, ..Shown::new(item, key, self.now.second) };
        let with_value = shows_value(meta, &item);
        push_hit(self.out, meta, &shown, with_value, won);
        if with_value {
            if let Some(found) = found.filter(|_| !created) {
                locked.view(&found, |view| view.copy_value(self.out));
            }
            self.out.extend_from_slice(b"\r\n");
        }
        if let Some(found) = found.filter(|_| !flags.has(b'u')) {
            locked.accessed(&found);
        }
        if let Some(found) = found.filter(|_| !created) {
            if change(&mut locked, &found, old, deadline, won).is_err() {
                self.out.truncate(before);
                drop(locked);
                return self.line(OUT_OF_MEMORY);
            }
        }
        if flags.has(b'T') {
            self.counters.cmd_touch.add(1);
            self.counters.touch_hits.add(1);
            self.class(key, &old).touch_hits.add(1);
            self.tell_get(key, Some(&old).into());
        } else {
            self.count_get(key, Some(&old).into());
        }
    }

    /// The opaque is found too long when it is to be repeated, after the flags before it.
    fn meta_get_refused(&mut self, meta: &Meta<'_>, key: &Key<'_>) {
        let mut locked = self.shared.store.lock(key.hash(), self.now.second);
        let found = locked.find(key);
        let before = meta.words().take_while(|word| !opaque_too_long(word));
        let mut deadline = None;
        for word in before {
            match word[0] {
                b'T' => deadline = Some(meta.exptime),
                b'N' if found.is_none() => deadline = Some(meta.vivify),
                _ => {}
            }
        }
        let deadline = deadline.map(|exptime| self.now.deadline(exptime));
        match found {
            // Whether a full cache kept the old deadline, the client cannot tell.
            Some(found) => {
                // Flags that need the item's lock put the access off to the end, which is not reached.
                let puts_off = meta.words().any(|word| b"hlNTR".contains(&word[0]));
                if !puts_off && !meta.flags.has(b'u') {
                    locked.accessed(&found);
                }
                let _kept = deadline.map(|deadline| locked.touch(&found, deadline));
            }
            None if meta.flags.has(b'N') => {
                let deadline = deadline.unwrap_or(0);
                let cas = meta.chosen_cas();
                let _put = locked.put(key, &Draft { deadline, cas, ..Draft::default() });
            }
            None => self.count_get(key, Fetched::Miss(Miss::NotFound)),
        }
        drop(locked);
        self.line(OPAQUE_TOO_LONG);
    }

    fn meta_missed(&mut self, meta: &Meta<'_>, key: &Key<'_>, miss: Miss) {
        self.count_get(key, Fetched::Miss(miss));
        if !meta.flags.has(b'q') {
            self.status(b"EN", meta, key);
        }
    }

    /// A status with the opaque and the key as the client sent them.
    fn status(&mut self, status: &[u8], meta: &Meta<'_>, key: &Key<'_>) {
        self.out.extend_from_slice(status);
        for word in meta.words() {
            push_sent(self.out, word, key.bytes(), meta.flags.has(b'b'));
        }
        self.out.extend_from_slice(b"\r\n");
    }

    pub fn meta_set(&mut self, meta: &Meta<'_>, key: &Key<'_>, chunk: Chunk<'_>) {
        let Chunk::Value(value) = chunk else {
            self.counters.cmd_set.add(1);
            return self.line(BAD_CHUNK);
        };
        let asked = meta.flags.has(b'C');
        let verb = match meta.mode {
            b'E' => Verb::Add,
            b'A' => Verb::Append,
            b'P' => Verb::Prepend,
            _ if asked => Verb::Cas,
            b'R' => Verb::Replace,
            _ => Verb::Set,
        };
        let creates = matches!(verb, Verb::Append | Verb::Prepend) && meta.flags.has(b'N');
        let exptime = if creates { meta.vivify } else { meta.exptime };
        let stored = self.store_item(
            key,
            &Change {
                verb,
                flags: meta.client_flags,
                deadline: self.now.deadline(exptime),
                cas: meta.cas,
                // A cas of 0 is as good as none.
                new_cas: meta.chosen_cas().filter(|cas| *cas != 0),
                value,
                creates,
                may_be_stale: meta.flags.has(b'I'),
                binary_key: meta.flags.has(b'b'),
            },
        );
        if matches!(stored, Changed::NoRoom) {
            return;
        }
        let bytes = item_bytes(key.bytes().len(), meta.client_flags, value.len());
        let class = &self.classes[size_class(bytes)];
        self.counters.cmd_set.add(1);
        class.cmd_set.add(1);
        let (status, cas, value_bytes): (&[u8], u64, usize) = match stored {
            Changed::Done { .. } if meta.flags.has(b'q') => return,
            Changed::Done { cas, value_bytes } => (b"HD", cas, value_bytes),
            Changed::Exists => (b"EX", 0, value.len()),
            Changed::NotFound => (b"NF", 0, value.len()),
            Changed::Refused => (b"NS", 0, value.len()),
            Changed::Full(full) => {
                self.remove_item(key);
                class.outofmemory.add((full == Full::OutOfMemory).into());
                self.count_full(full);
                return self.line(full_line(full));
            }
            Changed::NoRoom => unreachable!("nothing was done"),
        };
        self.out.extend_from_slice(status);
        for word in meta.words() {
            match word[0] {
                b'c' => push_number(self.out, b'c', cas),
                b's' => push_number(self.out, b's', value_bytes as u64),
                _ => push_sent(self.out, word, key.bytes(), meta.flags.has(b'b')),
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }

    pub fn meta_delete(&mut self, meta: &Meta<'_>, key: &Key<'_>) {
        if meta.words().any(opaque_too_long) {
            return self.line(OPAQUE_TOO_LONG);
        }
        let mut locked = self.shared.store.lock(key.hash(), self.now.second);
        let Some(found) = locked.find(key) else {
            drop(locked);
            self.counters.delete_misses.add(1);
            self.tell_get(key, Fetched::Miss(Miss::NotFound));
            return self.status(b"NF", meta, key);
        };
        let old = locked.view(&found, |view| view.meta());
        self.tell_get(key, Some(&old).into());
        if meta.flags.has(b'C') && old.cas != meta.cas {
            drop(locked);
            self.counters.delete_misses.add(1);
            return self.status(b"EX", meta, key);
        }
        let (stale, empties) = (meta.flags.has(b'I'), meta.flags.has(b'x'));
        let deadline = self.now.deadline(meta.exptime);
        let mut changed = Ok(());
        if empties {
            // Nothing of the old item stays but its cas, and that only where it is not stale.
            let cas = meta.chosen_cas().or((!stale).then_some(old.cas));
            let draft =
                Draft { flags: meta.client_flags, deadline, cas, stale, ..Draft::default() };
            changed = locked.put(key, &draft).map(drop);
        } else if stale {
            // A new cas, so that only a client that knows the item as stale can store over it.
            let cas = meta.chosen_cas().unwrap_or_else(|| locked.next_cas());
            changed = locked.mark(&found, true, false, Some(cas));
            // The mark may have moved the item.
            if let Some(found) = locked.find(key).filter(|_| meta.flags.has(b'T')) {
                changed = changed.and_then(|()| locked.touch(&found, deadline));
            }
        } else {
            locked.remove(&found);
        }
        if !stale && changed.is_ok() {
            self.counters.delete_hits.add(1);
            self.class(key, &old).delete_hits.add(1);
            self.tell_deletion(key, &old, "md");
        }
        drop(locked);
        match changed {
            Err(_) => self.line(OUT_OF_MEMORY),
            Ok(()) if meta.flags.has(b'q') => {}
            Ok(()) => self.status(b"HD", meta, key),
        }
    }

    pub fn meta_arithmetic(&mut self, meta: &Meta<'_>, key: &Key<'_>) {
        let direction = match meta.mode {
            0 | b'I' | b'+' => Direction::Increment,
            b'D' | b'-' => Direction::Decrement,
            _ => return self.line(b"CLIENT_ERROR invalid mode for ma M token"),
        };
        let too_long = meta.words().any(opaque_too_long);
        let exptime = self.now.deadline(meta.exptime);
        let vivify = self.now.deadline(meta.vivify);
        let mut told = meta.words().take_while(|word| !opaque_too_long(word));
        let touched = told.any(|word| word[0] == b'T').then_some(exptime);
        let new = New { cas: meta.chosen_cas(), deadline: touched };
        let initial = meta.flags.has(b'N').then(|| {
            let mut deadline = 0;
            for word in meta.words().take_while(|word| !opaque_too_long(word)) {
                match word[0] {
                    b'T' => deadline = exptime,
                    b'N' => deadline = vivify,
                    _ => {}
                }
            }
            (meta.initial, deadline)
        });
        let sum = self.count_or_create(key, direction, meta.delta, meta.cas, new, initial);
        let (value, item, created) = match sum {
            Sum::Done { value, meta } => (value, meta, false),
            Sum::Created { value, cas } => (value, Item { cas, ..absent(self.now.second) }, true),
            Sum::NotNumeric => return self.line(NOT_NUMERIC),
            Sum::Full => return self.line(OUT_OF_MEMORY),
            Sum::NoRoom => return,
            Sum::Exists if too_long => return self.line(OPAQUE_TOO_LONG),
            Sum::Exists => return self.status(b"EX", meta, key),
            Sum::NotFound => {
                self.count_missed(direction);
                return if too_long {
                    self.line(OPAQUE_TOO_LONG)
                } else {
                    self.status(b"NF", meta, key)
                };
            }
        };
        if too_long {
            return self.line(OPAQUE_TOO_LONG);
        }
        if meta.flags.has(b'q') {
            return;
        }
        self.scratch.clear();
        push_u64(self.scratch, value);
        if meta.flags.has(b'v') {
            self.out.extend_from_slice(b"VA ");
            push_u64(self.out, self.scratch.len() as u64);
        } else {
            self.out.extend_from_slice(b"HD");
        }
        let shown = Shown {
            base64: meta.flags.has(b'b'),
            created,
            exptime,
            vivify,
            ..Shown::new(item, key, self.now.second)
        };
        push_words(self.out, meta, &shown, false);
        self.out.extend_from_slice(b"\r\n");
        if meta.flags.has(b'v') {
            self.out.extend_from_slice(self.scratch);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    pub fn meta_debug(&mut self, key: &Key<'_>) {
        self.counters.cmd_meta.add(1);
        let now = self.now.second;
        let hit = self.shared.store.read(key, now, false, self.out, |view, out| {
            let item = view.meta();
            out.extend_from_slice(b"ME ");
            if item.binary_key {
                base64_encode(key.bytes(), out);
            } else {
                out.extend_from_slice(key.bytes());
            }
            let remaining = i64::from(item.deadline) - i64::from(now);
            let bytes = item_bytes(key.bytes().len(), item.flags, item.value_bytes as usize);
            let fetched: &[u8] = if item.fetched { b"yes" } else { b"no" };
            out.extend_from_slice(b" exp=");
            push_i64(out, if item.deadline == 0 { -1 } else { remaining });
            for (name, number) in [
                (&b" la="[..], u64::from(now.wrapping_sub(item.last_access))),
                (b" cas=", item.cas),
            ] {
                out.extend_from_slice(name);
                push_u64(out, number);
            }
            out.extend_from_slice(b" fetch=");
            out.extend_from_slice(fetched);
            out.extend_from_slice(b" cls=");
            push_u64(out, size_class(bytes) as u64);
            out.extend_from_slice(b" size=");
            push_u64(out, bytes as u64);
            out.extend_from_slice(b"\r\n");
        });
        if hit.is_none() {
            self.line(b"EN");
        }
    }
}

impl<'a> Shown<'a> {
    fn new(item: Item, key: &Key<'a>, now: Seconds) -> Shown<'a> {
        let base64 = item.binary_key;
        let key = key.bytes();
        Shown { item, key, base64, created: false, now, exptime: 0, vivify: 0 }
    }
}

/// What is known of an item before it is there.
fn absent(now: Seconds) -> Item {
    Item {
        flags: 0,
        deadline: 0,
        cas: 0,
        last_access: now,
        fetched: false,
        stale: false,
        win: false,
        binary_key: false,
        value_bytes: 0,
    }
}

fn change(
    locked: &mut Locked<'_>,
    found: &mbal_cachelet::Found<'_>,
    old: Item,
    deadline: Seconds,
    won: bool,
) -> Result<(), mbal_cachelet::Full> {
    if won {
        locked.mark(found, old.stale, true, None)?;
    }
    // Last: a first deadline needs room in the item, which then lies elsewhere than `found` says.
    if deadline != old.deadline {
        locked.touch(found, deadline)?;
    }
    Ok(())
}

/// A client that names the item's cas has the value.
#[inline]
fn shows_value(meta: &Meta<'_>, item: &Item) -> bool {
    meta.flags.has(b'v') && !(meta.flags.has(b'C') && meta.cas == item.cas)
}

/// The first line of a hit: status, what the flags ask for, and the marks.
#[inline]
fn push_hit(out: &mut Vec<u8>, meta: &Meta<'_>, shown: &Shown<'_>, with_value: bool, won: bool) {
    if with_value {
        out.extend_from_slice(b"VA ");
        push_u64(out, u64::from(shown.item.value_bytes));
    } else {
        out.extend_from_slice(b"HD");
    }
    push_words(out, meta, shown, true);
    if shown.item.win {
        out.extend_from_slice(b" Z");
    }
    if shown.item.stale {
        out.extend_from_slice(b" X");
    }
    if won {
        out.extend_from_slice(b" W");
    }
    out.extend_from_slice(b"\r\n");
}

/// What the flags ask for, in their order; `all` of them, or those that `ma` answers.
#[inline]
fn push_words(out: &mut Vec<u8>, meta: &Meta<'_>, shown: &Shown<'_>, all: bool) {
    let item = &shown.item;
    let mut deadline = item.deadline;
    for word in meta.words() {
        match word[0] {
            b'v' => {}
            letter if !all && !b"ctOkTN".contains(&letter) => {}
            b'T' => deadline = shown.exptime,
            b'N' if shown.created => deadline = shown.vivify,
            b's' => push_number(out, b's', u64::from(item.value_bytes)),
            b't' if deadline == 0 => out.extend_from_slice(b" t-1"),
            b't' => push_number(out, b't', u64::from(deadline.wrapping_sub(shown.now))),
            b'c' => push_number(out, b'c', item.cas),
            b'f' => push_number(out, b'f', u64::from(item.flags)),
            b'l' => push_number(out, b'l', u64::from(shown.now.wrapping_sub(item.last_access))),
            b'h' => push_number(out, b'h', u64::from(item.fetched)),
            _ => push_sent(out, word, shown.key, shown.base64),
        }
    }
}

fn push_number(out: &mut Vec<u8>, letter: u8, number: u64) {
    out.extend_from_slice(&[b' ', letter]);
    push_u64(out, number);
}

/// Repeats what the client sent: an opaque as it is; for `k` the key, marked if in base64.
pub(crate) fn push_sent(out: &mut Vec<u8>, word: &[u8], key: &[u8], base64: bool) {
    match word[0] {
        b'O' => {
            out.push(b' ');
            out.extend_from_slice(word);
        }
        b'k' => {
            out.extend_from_slice(b" k");
            if base64 {
                base64_encode(key, out);
                out.extend_from_slice(b" b");
            } else {
                out.extend_from_slice(key);
            }
        }
        _ => {}
    }
}
