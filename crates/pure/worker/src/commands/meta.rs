//! mg, me.

use mbal_cachelet::{Draft, Locked, Meta as Item, Miss};
use mbal_model::{Key, Seconds, item_bytes, size_class};
use mbal_wire::{Meta, base64_encode, opaque_too_long, push_i64, push_u64};

use crate::commands::classic::OUT_OF_MEMORY;
use crate::commands::meta_reply::{
    OPAQUE_TOO_LONG, Shown, absent, push_hit, push_sent, shows_value,
};
use crate::commands::tell::Fetched;
use crate::commands::turn::Turn;

impl Turn<'_> {
    #[inline]
    pub fn meta_get(&mut self, meta: &Meta<'_>, key: &Key<'_>) {
        let flags = meta.flags;
        if flags.has(b'O') && meta.words().any(opaque_too_long) {
            return self.meta_get_refused(meta, key);
        }
        if flags.has(b'T') || flags.has(b'N') || flags.has(b'R') {
            let _done = self.meta_get_locked(meta, key, None, true);
            return;
        }
        let now = self.now().second;
        let (store, ahead) = (&self.on.shared.store, self.take_ahead());
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
            Ok(Ok(hit)) => self.on.count_get(key, hit),
            Ok(Err(before)) => {
                let _done = self.meta_get_locked(meta, key, Some(before), true);
            }
            Err(miss) => self.meta_missed(meta, key, miss),
        }
    }

    /// Executes an `mg` that makes no item, wins nothing and changes no time to live, though its flags might; else it does nothing, and is false.
    pub fn meta_get_unchanged(&mut self, meta: &Meta<'_>, key: &Key<'_>) -> bool {
        !meta.flags.has(b'T')
            && !meta.words().any(opaque_too_long)
            && self.meta_get_locked(meta, key, None, false)
    }

    /// The way of those `mg` that change more of an item than its last access. `before` is the item
    /// before this request looked at it once already. False, and nothing is done, if it would have to change what it may not.
    fn meta_get_locked(
        &mut self,
        meta: &Meta<'_>,
        key: &Key<'_>,
        before: Option<Item>,
        may_change: bool,
    ) -> bool {
        let flags = meta.flags;
        let mut locked = self.on.shared.store.lock(key.hash(), self.now().second);
        let exptime = self.now().deadline(meta.exptime);
        let vivify = self.now().deadline(meta.vivify);
        let recache = self.now().deadline(meta.recache);
        let mut found = locked.find(key);
        let created = found.is_none();
        if created && !may_change {
            return false;
        }
        if created && !flags.has(b'N') {
            drop(locked);
            self.meta_missed(meta, key, Miss::NotFound);
            return true;
        }
        let mut old = match found {
            Some(found) => locked.view(&found, |view| view.meta()),
            None => absent(self.now().second),
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
        if won && !may_change {
            return false;
        }
        let mut item = old;
        if created {
            let cas = meta.chosen_cas();
            let draft = Draft { deadline, cas, win: true, ..Draft::default() };
            let Ok(cas) = locked.put(key, &draft) else {
                drop(locked);
                // memcached finds nothing where it could make nothing.
                self.meta_missed(meta, key, Miss::NotFound);
                return true;
            };
            item.cas = cas;
            found = locked.find(key);
        }
        let before = self.out.len();
        let shown = Shown { created, exptime, vivify, ..Shown::new(item, key, self.now().second) };
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
                self.line(OUT_OF_MEMORY);
                return true;
            }
        }
        if flags.has(b'T') {
            self.on.counters.cmd_touch.add(1);
            self.on.counters.touch_hits.add(1);
            self.on.class(key, &old).touch_hits.add(1);
            self.on.tell_get(key, Some(&old).into());
        } else {
            self.on.count_get(key, Some(&old).into());
        }
        true
    }

    /// The opaque is found too long when it is to be repeated, after the flags before it.
    fn meta_get_refused(&mut self, meta: &Meta<'_>, key: &Key<'_>) {
        let mut locked = self.on.shared.store.lock(key.hash(), self.now().second);
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
        let deadline = deadline.map(|exptime| self.now().deadline(exptime));
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
            None => self.on.count_get(key, Fetched::Miss(Miss::NotFound)),
        }
        drop(locked);
        self.line(OPAQUE_TOO_LONG);
    }

    fn meta_missed(&mut self, meta: &Meta<'_>, key: &Key<'_>, miss: Miss) {
        self.on.count_get(key, Fetched::Miss(miss));
        if !meta.flags.has(b'q') {
            self.status(b"EN", meta, key);
        }
    }

    /// A status with the opaque and the key as the client sent them.
    pub fn status(&mut self, status: &[u8], meta: &Meta<'_>, key: &Key<'_>) {
        self.out.extend_from_slice(status);
        for word in meta.words() {
            push_sent(self.out, word, key.bytes(), meta.flags.has(b'b'));
        }
        self.out.extend_from_slice(b"\r\n");
    }

    pub fn meta_debug(&mut self, key: &Key<'_>) {
        self.on.counters.cmd_meta.add(1);
        let now = self.now().second;
        let hit = self.on.shared.store.read(key, now, false, self.out, |view, out| {
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
