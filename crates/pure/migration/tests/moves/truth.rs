//! What was executed, in the order in which it was: what any read has to find.

use std::collections::BTreeSet;

use mbal_cachelet::{Draft, Store};
use mbal_model::{Key, WorkerId};
use mbal_testkit::Failed;

use crate::world::NOW;

/// Keys that are looked at. Fillers are not.
pub const KEYS: u64 = 60;
/// Of the longest values, of which a part has several pieces.
const LONG_BYTES: usize = 40_000;

pub fn name(n: u64) -> String {
    format!("key:{n}")
}

pub fn hash(n: u64) -> u64 {
    Key::new(name(n).as_bytes()).expect("short").hash()
}

/// Of this version of a key: its length differs from most others, and every byte says which one it is.
fn value(n: u64, version: u64) -> Vec<u8> {
    let long = (n + version) % 53 == 0;
    let bytes = if long { LONG_BYTES } else { (n * 7 + version * 13) as usize % 60 };
    let mut value = version.to_le_bytes().to_vec();
    value.resize(8 + bytes, version as u8);
    value
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    version: u64,
    there: bool,
    cas: u64,
    /// It may be missing: who held it has died, or a flush is under way.
    may_miss: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Get,
    Set,
    Delete,
    /// Stores if the item's cas is still this one.
    Cas(u64),
}

pub struct Truth {
    known: Vec<Known>,
    /// Given so far, by key: while a cachelet travels, both sides count on, each for keys of its own.
    cas: BTreeSet<(u64, u64)>,
    /// Versions when the flush began that is under way.
    flush: Option<Vec<u64>>,
    /// Memory is short: anything may be missing.
    evicts: bool,
}

impl Truth {
    pub fn new(evicts: bool) -> Truth {
        let known = vec![Known::default(); KEYS as usize];
        Truth { known, cas: BTreeSet::new(), flush: None, evicts }
    }

    /// Executes an operation by a worker that has entered, and has been told that the key is served by this store. The item's cas then, if it is there.
    pub fn execute(
        &mut self,
        store: &Store,
        worker: WorkerId,
        n: u64,
        op: Op,
    ) -> Result<Option<u64>, Failed> {
        let text = name(n);
        let key = Key::new(text.as_bytes()).expect("short");
        let next = self.known[n as usize].version + 1;
        let bytes = value(n, next);
        if let Op::Get = op {
            let mut out = Vec::new();
            let cas = store.read(&key, NOW, true, &mut out, |view, out| {
                view.copy_value(out);
                view.meta().cas
            });
            self.look(n, cas.map(|cas| (out.as_slice(), cas)))?;
            return Ok(cas);
        }
        let _room = store.reserve_at_once(worker, key.hash(), bytes.len(), NOW);
        let mut locked = store.lock(key.hash(), NOW);
        let found = locked.find(&key);
        let seen = found.as_ref().map(|found| {
            locked.view(found, |view| {
                let mut out = Vec::new();
                view.copy_value(&mut out);
                (out, view.meta().cas)
            })
        });
        self.look(n, seen.as_ref().map(|(out, cas)| (out.as_slice(), *cas)))?;
        let known = &mut self.known[n as usize];
        let may_miss = self.flush.is_some() || self.evicts;
        match op {
            Op::Get => unreachable!("done above"),
            Op::Cas(cas) if seen.as_ref().map(|(_, seen)| *seen) != Some(cas) => {
                Ok(seen.map(|(_, cas)| cas))
            }
            Op::Delete => {
                if let Some(found) = found {
                    locked.remove(&found);
                }
                *known = Known { version: next, there: false, cas: 0, may_miss };
                Ok(None)
            }
            Op::Set | Op::Cas(_) => {
                let draft = Draft { parts: &[&bytes], ..Draft::default() };
                let Ok(cas) = locked.put(&key, &draft) else {
                    assert!(self.evicts, "memory suffices");
                    // The old value must not outlive a write that failed.
                    if let Some(found) = locked.find(&key) {
                        locked.remove(&found);
                    }
                    *known = Known { version: next, there: false, cas: 0, may_miss };
                    return Ok(None);
                };
                if !self.cas.insert((n, cas)) {
                    return Err(Failed::new(3, format!("cas {cas:x} is given twice, to key {n}")));
                }
                *known = Known { version: next, there: true, cas, may_miss };
                Ok(Some(cas))
            }
        }
    }

    /// Compares what is in a store, a value and its cas, with what has to be.
    fn look(&self, n: u64, found: Option<(&[u8], u64)>) -> Result<(), Failed> {
        let known = &self.known[n as usize];
        let Known { version, there, cas, may_miss } = *known;
        let Some((bytes, found_cas)) = found else {
            return match there && !may_miss {
                true => Err(Failed::new(
                    2,
                    format!("key {n}, hash {:x}, is lost: version {version}", hash(n)),
                )),
                false => Ok(()),
            };
        };
        let at = u64::from_le_bytes(bytes[..8].try_into().expect("every value begins so"));
        let is_whole = bytes == value(n, at);
        match () {
            () if !is_whole => Err(Failed::new(3, format!("a torn value of key {n}"))),
            () if at != version => {
                Err(Failed::new(3, format!("key {n} is stale: {at} after {version}")))
            }
            () if !there => Err(Failed::new(3, format!("key {n} is back: version {version}"))),
            () if found_cas != cas => Err(Failed::new(3, format!("key {n} has another cas"))),
            () => Ok(()),
        }
    }

    /// A server dies: what it holds of the newest versions goes, unless another one serves it.
    pub fn dies(&mut self, store: &Store, is_served_elsewhere: impl Fn(u64) -> bool) {
        for n in 0..KEYS {
            let hash = hash(n);
            let known = &mut self.known[n as usize];
            if !known.there || store.cachelet_of(hash).is_none() || is_served_elsewhere(hash) {
                continue;
            }
            let text = name(n);
            let key = Key::new(text.as_bytes()).expect("short");
            let mut locked = store.lock(hash, NOW);
            let found = locked.find(&key);
            let held = found.map(|found| locked.view(&found, |view| view.meta().cas));
            known.may_miss |= held == Some(known.cas);
        }
    }

    pub fn flush_begins(&mut self) {
        self.flush = Some(self.known.iter().map(|known| known.version).collect());
        self.known.iter_mut().for_each(|known| known.may_miss = true);
    }

    pub fn flush_ends(&mut self) {
        let before = self.flush.take().expect("a flush is under way");
        for (known, version) in self.known.iter_mut().zip(before) {
            known.there &= known.version != version;
        }
    }

    pub fn is_flushing(&self) -> bool {
        self.flush.is_some()
    }
}
