//! What is counted by class of size, and told to those who watch.

use mbal_cachelet::{Meta, Miss};
use mbal_model::{Key, item_bytes, size_class};
use mbal_wire::{Verb, streams};

use crate::commands::change::{Change, Changed};
use crate::commands::context::Context;
use crate::observing::counters::ClassCounters;
use crate::observing::log::{self, ItemLine};

/// What came of looking for a key.
#[derive(Clone, Copy)]
pub(crate) enum Fetched {
    Hit { flags: u32, value_bytes: u32 },
    Miss(Miss),
}

impl From<Option<&Meta>> for Fetched {
    fn from(found: Option<&Meta>) -> Fetched {
        match found {
            Some(meta) => Fetched::Hit { flags: meta.flags, value_bytes: meta.value_bytes },
            None => Fetched::Miss(Miss::NotFound),
        }
    }
}

fn class_of(key: &Key<'_>, flags: u32, value_bytes: u32) -> usize {
    size_class(item_bytes(key.bytes().len(), flags, value_bytes as usize))
}

impl<'w> Context<'w> {
    /// The counters of an item's class.
    #[inline]
    pub fn class(&self, key: &Key<'_>, meta: &Meta) -> &'w ClassCounters {
        &self.classes[class_of(key, meta.flags, meta.value_bytes)]
    }

    /// A `get` of any kind.
    #[inline(always)]
    pub fn count_get(&self, key: &Key<'_>, seen: Fetched) {
        self.counters.cmd_get.add(1);
        match seen {
            Fetched::Hit { flags, value_bytes } => {
                self.counters.get_hits.add(1);
                self.classes[class_of(key, flags, value_bytes)].get_hits.add(1);
            }
            Fetched::Miss(miss) => {
                self.counters.get_misses.add(1);
                self.counters.get_expired.add((miss == Miss::Expired).into());
            }
        }
        self.tell_get(key, seen);
    }

    /// Tells those who watch fetchers that a key was looked for.
    #[inline]
    pub fn tell_get(&self, key: &Key<'_>, seen: Fetched) {
        if self.watched & streams::FETCHERS != 0 {
            self.tell_get_watched(key, seen);
        }
    }

    #[cold]
    fn tell_get_watched(&self, key: &Key<'_>, seen: Fetched) {
        let (status, class, value_bytes) = match seen {
            Fetched::Hit { flags, value_bytes } => {
                ("found", class_of(key, flags, value_bytes), value_bytes as usize)
            }
            Fetched::Miss(Miss::NotFound) => ("not_found", 0, 0),
            Fetched::Miss(Miss::Expired) => ("expired", 0, 0),
        };
        let line = ItemLine { key: key.bytes(), class, value_bytes, fd: self.info.fd };
        log::item_get(&self.shared.log, self.now(), status, &line);
    }

    /// Tells those who watch deletions that a text command took an item away.
    #[inline]
    pub fn tell_deletion(&self, key: &Key<'_>, item: &Meta, command: &str) {
        if self.watched & streams::DELETIONS != 0 {
            let class = class_of(key, item.flags, item.value_bytes);
            let value_bytes = item.value_bytes as usize;
            let line = ItemLine { key: key.bytes(), class, value_bytes, fd: self.info.fd };
            log::deletion(&self.shared.log, self.now(), command, &line);
        }
    }

    /// Tells those who watch mutations what came of storing.
    #[inline]
    pub fn tell_store(&self, key: &Key<'_>, change: &Change<'_>, outcome: &Changed) {
        if self.watched & streams::MUTATIONS != 0 {
            self.tell_store_watched(key, change, outcome);
        }
    }

    #[cold]
    fn tell_store_watched(&self, key: &Key<'_>, change: &Change<'_>, outcome: &Changed) {
        let status = match outcome {
            Changed::Done { .. } => "stored",
            Changed::Exists => "exists",
            Changed::NotFound => "not_found",
            Changed::Refused => "not_stored",
            Changed::Full(mbal_cachelet::Full::TooLarge) => "too_large",
            Changed::Full(mbal_cachelet::Full::OutOfMemory) => "no_memory",
            Changed::NoRoom => unreachable!("nothing was done"),
        };
        let command = match change.verb {
            Verb::Set => "set",
            Verb::Add => "add",
            Verb::Replace => "replace",
            Verb::Append => "append",
            Verb::Prepend => "prepend",
            Verb::Cas => "cas",
        };
        let ttl = match change.deadline {
            0 => 0,
            deadline => deadline.saturating_sub(self.now().second),
        };
        let value_bytes = change.value.len();
        let class = class_of(key, change.flags, value_bytes as u32);
        let line = ItemLine { key: key.bytes(), class, value_bytes, fd: self.info.fd };
        log::item_store(&self.shared.log, self.now(), status, command, ttl, &line);
    }
}
