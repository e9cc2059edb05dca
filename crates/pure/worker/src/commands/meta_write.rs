//! ms, md, ma.

use mbal_cachelet::{Draft, Full, Meta as Item, Miss};
use mbal_model::{Key, item_bytes, size_class};
use mbal_wire::{Chunk, Direction, Meta, Verb, opaque_too_long, push_u64};

use crate::commands::change::{Change, Changed, New, Sum};
use crate::commands::classic::{BAD_CHUNK, NOT_NUMERIC, OUT_OF_MEMORY, full_line};
use crate::commands::meta_reply::{
    OPAQUE_TOO_LONG, Shown, absent, push_number, push_sent, push_words,
};
use crate::commands::tell::Fetched;
use crate::commands::turn::Turn;

impl Turn<'_> {
    pub fn meta_set(&mut self, meta: &Meta<'_>, key: &Key<'_>, chunk: Chunk<'_>) {
        let Chunk::Value(value) = chunk else {
            self.on.counters.cmd_set.add(1);
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
                deadline: self.now().deadline(exptime),
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
        let class = &self.on.classes[size_class(bytes)];
        self.on.counters.cmd_set.add(1);
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
        let mut locked = self.on.shared.store.lock(key.hash(), self.now().second);
        let Some(found) = locked.find(key) else {
            drop(locked);
            self.on.counters.delete_misses.add(1);
            self.on.tell_get(key, Fetched::Miss(Miss::NotFound));
            return self.status(b"NF", meta, key);
        };
        let old = locked.view(&found, |view| view.meta());
        self.on.tell_get(key, Some(&old).into());
        if meta.flags.has(b'C') && old.cas != meta.cas {
            drop(locked);
            self.on.counters.delete_misses.add(1);
            return self.status(b"EX", meta, key);
        }
        let (stale, empties) = (meta.flags.has(b'I'), meta.flags.has(b'x'));
        let deadline = self.now().deadline(meta.exptime);
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
            self.on.counters.delete_hits.add(1);
            self.on.class(key, &old).delete_hits.add(1);
            self.on.tell_deletion(key, &old, "md");
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
        let exptime = self.now().deadline(meta.exptime);
        let vivify = self.now().deadline(meta.vivify);
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
            Sum::Created { value, cas } => (value, Item { cas, ..absent(self.now().second) }, true),
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
            ..Shown::new(item, key, self.now().second)
        };
        push_words(self.out, meta, &shown, false);
        self.out.extend_from_slice(b"\r\n");
        if meta.flags.has(b'v') {
            self.out.extend_from_slice(self.scratch);
            self.out.extend_from_slice(b"\r\n");
        }
    }
}
