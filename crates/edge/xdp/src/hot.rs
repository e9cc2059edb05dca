//! Keys with a rule of their own, as the packet program sees them.
//!
//! A key's entry is written once, then a way of its set leads to it by one store. It is taken away by one store too; its memory
//! waits in `limbo` until no program runs that may have seen the way.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Release, SeqCst};
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::MapData;
use mbal_routing::ketama::KeyHash;

use crate::Error;
pub use crate::layout::ANSWER_BYTES_MAX;
use crate::layout::{HOT_MAX, HotEntry, Hots, RULE_ANSWER, RULE_PASS, SETS, WAYS, sum};
use crate::map::Mapped;

/// What happens to reads of a hot key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule<'a> {
    /// Answered with this value, until a point of the monotonic clock ([`crate::now_ns`]).
    Answer { flags: u32, value: &'a [u8], until_ns: u64 },
    /// Left to the sockets: of keys whose copies have other names.
    Pass,
}

pub struct HotTable {
    shared: Mapped<Hots>,
    hash: KeyHash,
    places: HashMap<Box<[u8]>, usize>,
    free: Vec<usize>,
    /// No way leads there, but a program that runs may have seen one.
    limbo: Vec<usize>,
}

impl HotTable {
    pub fn new(map: &MapData, hash: KeyHash) -> Result<HotTable, Error> {
        let shared = Mapped::new(map)?;
        let free = (0..HOT_MAX).collect();
        Ok(HotTable { shared, hash, places: HashMap::new(), free, limbo: Vec::new() })
    }

    /// Whether a place is free, or will be after the next [`HotTable::settled`] alone.
    pub fn must_settle(&self) -> bool {
        self.free.is_empty() && !self.limbo.is_empty()
    }

    /// A key that has a rule gets the new one at once.
    pub fn put(&mut self, key: &[u8], rule: Rule<'_>) -> Result<(), Error> {
        if key.is_empty() || key.len() > 250 {
            return Err(Error::KeyLength(key.len()));
        }
        let (kind, answer, until_ns) = match rule {
            Rule::Answer { flags, value, until_ns } => {
                (RULE_ANSWER, answer(key, flags, value), until_ns)
            }
            Rule::Pass => (RULE_PASS, Vec::new(), 0),
        };
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(Error::AnswerLength(answer.len()));
        }
        let hash = self.hash.place(key);
        let old = self.places.get(key).copied();
        let way = match old {
            Some(place) => self.way(hash, |way| way == led_to(hash, place)),
            // The program looks at the first way of a hash only.
            None if self.way(hash, |way| way >> 32 == u64::from(hash) && way != 0).is_some() => {
                return Err(Error::HotFull);
            }
            None => self.way(hash, |way| way == 0),
        };
        let (Some(way), Some(place)) = (way, self.free.pop()) else { return Err(Error::HotFull) };
        let entry = self.entry(place);
        // SAFETY: the place was free: no way leads to it, and no program that runs has seen one that did. The lengths were checked.
        unsafe {
            (*entry).until_ns.store(until_ns, Ordering::Relaxed);
            (&raw mut (*entry).rule).write(kind);
            (&raw mut (*entry).sum).write(sum(&answer));
            (&raw mut (*entry).key_length).write(key.len() as u16);
            (&raw mut (*entry).answer_length).write(answer.len() as u16);
            let bytes = (&raw mut (*entry).key).cast::<u8>();
            bytes.write_bytes(0, 256);
            bytes.copy_from_nonoverlapping(key.as_ptr(), key.len());
            let bytes = (&raw mut (*entry).answer).cast::<u8>();
            bytes.copy_from_nonoverlapping(answer.as_ptr(), answer.len());
            (*way).store(led_to(hash, place), Release);
        }
        self.limbo.extend(old);
        self.places.insert(key.into(), place);
        Ok(())
    }

    /// No program that begins after this finds the key's rule. False if it had none.
    pub fn retract(&mut self, key: &[u8]) -> bool {
        let Some(place) = self.places.remove(key) else { return false };
        let hash = self.hash.place(key);
        let way = self.way(hash, |way| way == led_to(hash, place));
        // SAFETY: it points to an atomic of the mapped memory.
        unsafe { (*way.expect("a way leads to each place in use")).store(0, SeqCst) };
        self.limbo.push(place);
        true
    }

    /// The key is answered until then. False if it has no rule.
    pub fn renew(&mut self, key: &[u8], until_ns: u64) -> bool {
        let Some(place) = self.places.get(key) else { return false };
        // SAFETY: it points to an atomic of the mapped memory.
        unsafe { (*self.entry(*place)).until_ns.store(until_ns, Release) };
        true
    }

    /// Places for [`HotTable::settled`], to which no way leads any more.
    pub fn limbo(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.limbo)
    }

    /// No program runs any more that may have seen a way to these places.
    pub fn settled(&mut self, mut places: Vec<usize>) {
        self.free.append(&mut places);
    }

    fn entry(&self, place: usize) -> *mut HotEntry {
        assert!(place < HOT_MAX);
        // SAFETY: in bounds of the mapped memory.
        unsafe { (&raw mut (*self.shared.get()).hot).cast::<HotEntry>().add(place) }
    }

    /// The first way of the hash's set that is so.
    fn way(&self, hash: u32, is: impl Fn(u64) -> bool) -> Option<*const AtomicU64> {
        let set = hash as usize % SETS;
        (0..WAYS).map(|at| self.at(set, at)).find(|way| {
            // SAFETY: it points to an atomic of the mapped memory.
            is(unsafe { (**way).load(Ordering::Relaxed) })
        })
    }

    fn at(&self, set: usize, at: usize) -> *const AtomicU64 {
        // SAFETY: both are below the lengths of the arrays.
        unsafe { &raw const (*self.shared.get()).ways[set][at] }
    }
}

fn led_to(hash: u32, place: usize) -> u64 {
    u64::from(hash) << 32 | (place as u64 + 1)
}

fn answer(key: &[u8], flags: u32, value: &[u8]) -> Vec<u8> {
    let end = format!(" {flags} {}\r\n", value.len());
    [b"VALUE ", key, end.as_bytes(), value, b"\r\nEND\r\n"].concat()
}
