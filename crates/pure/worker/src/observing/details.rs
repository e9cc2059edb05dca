//! `stats detail`: gets, hits, sets and deletes by the keys' prefix, while it is on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use mbal_locks::{Mutex, ranks};
use mbal_wire::push_u64;

/// What ends a prefix, unless `-D` says otherwise.
const DELIMITER: u8 = b':';

/// Prefixes that are told apart; what is done to further ones is not counted.
pub const PREFIXES_MAX: usize = 4096;

pub(crate) struct Details {
    pub delimiter: u8,
    on: AtomicBool,
    prefixes: Mutex<ranks::Details, BTreeMap<Vec<u8>, Prefix>>,
}

#[derive(Clone, Copy, Default)]
struct Prefix {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

#[derive(Clone, Copy)]
pub(crate) enum Deed {
    Get { hit: bool },
    Set,
    Delete,
}

impl Details {
    pub fn new(delimiter: Option<u8>) -> Details {
        Details {
            delimiter: delimiter.unwrap_or(DELIMITER),
            on: AtomicBool::new(delimiter.is_some()),
            prefixes: Mutex::default(),
        }
    }

    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    pub fn switch(&self, on: bool) {
        self.on.store(on, Relaxed);
    }

    /// One load while it is off.
    #[inline]
    pub fn count(&self, key: &[u8], deed: Deed) {
        if self.is_on() {
            self.count_on(key, deed);
        }
    }

    #[cold]
    fn count_on(&self, key: &[u8], deed: Deed) {
        let Some(end) = key.iter().position(|byte| *byte == self.delimiter) else { return };
        let mut prefixes = self.prefixes.lock();
        let full = prefixes.len() >= PREFIXES_MAX;
        let prefix = match prefixes.get_mut(&key[..end]) {
            Some(prefix) => prefix,
            None if full => return,
            None => prefixes.entry(key[..end].to_vec()).or_default(),
        };
        match deed {
            Deed::Get { hit } => {
                prefix.gets += 1;
                prefix.hits += u64::from(hit);
            }
            Deed::Set => prefix.sets += 1,
            Deed::Delete => prefix.deletes += 1,
        }
    }

    pub fn clear(&self) {
        self.prefixes.lock().clear();
    }

    pub fn dump(&self, out: &mut Vec<u8>) {
        for (name, prefix) in &*self.prefixes.lock() {
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(name);
            for (what, count) in [
                (" get ", prefix.gets),
                (" hit ", prefix.hits),
                (" set ", prefix.sets),
                (" del ", prefix.deletes),
            ] {
                out.extend_from_slice(what.as_bytes());
                push_u64(out, count);
            }
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"END\r\n");
    }
}
