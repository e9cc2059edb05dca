//! What the kernel's data plane knows: which upstream has which keys, and values of hot keys (docs/design/xdp.md).
//!
//! Reads in the kernel are not seen here. What keeps them from being stale: a client that may change a key which the kernel answers
//! is not read on until the kernel has forgotten the key, and nothing that it answered is on its way.
//!
//! ```text
//!   hot, no value ── mg, behind all writes ──► filling ── VA, no write since ──► answered
//!        ▲                                        │ a write arrives                 │ a write arrives: Forget
//!        └──────────── Event::KernelForgot ───── leaving ◄──────────────────────────┘
//!                      the write is passed on
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, KEY_BYTES_MAX, Key};
use mbal_routing::Point;
use mbal_wire::{Admin, Request, base64_decode, next_word};

use crate::keeping::Item;

/// What the kernel's data plane is to do, before anything else that the proxy asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelChange {
    /// Reads go by this ring when this is done. A point's upstream is a place in `upstreams`.
    Ring { points: Vec<Point>, upstreams: Vec<KernelUpstream> },
    /// No read that begins after this is answered by the kernel. [`crate::Event::KernelForgot`] with this number is due when no
    /// answer is on its way any more.
    Forget { key: Box<[u8]>, number: u64 },
    /// Reads are answered with this for so long.
    Put { key: Box<[u8]>, flags: u32, value: Vec<u8>, lives: Duration },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelUpstream {
    pub number: usize,
    /// False: reads of its keys pass to the sockets. It is ejected, or has a write of unknown outcome.
    pub serves: bool,
}

/// One hot key.
#[derive(Debug)]
struct Entry {
    key: Box<[u8]>,
    is_hot: bool,
    /// The fill that is on its way.
    filling: Option<u64>,
    /// The kernel answers until then.
    answered: Option<Instant>,
    /// The kernel was told to forget it.
    leaving: Option<u64>,
}

pub(crate) struct KernelTable {
    /// By hash.
    keys: BTreeMap<u64, Entry>,
    /// The kernel takes no longer answers.
    answer_bytes_max: usize,
    /// Of fills, and of what is to be forgotten.
    number: u64,
    changes: Vec<KernelChange>,
    /// As the kernel was told, and after how many changes of the pool.
    told: Vec<KernelUpstream>,
    told_at: Option<u64>,
}

impl Entry {
    /// The kernel answers it no more.
    fn forget(&mut self, number: &mut u64, changes: &mut Vec<KernelChange>) {
        self.filling = None;
        if self.answered.take().is_some() {
            *number += 1;
            self.leaving = Some(*number);
            changes.push(KernelChange::Forget { key: self.key.clone(), number: *number });
        }
    }
}

impl KernelTable {
    pub fn new(answer_bytes_max: usize) -> KernelTable {
        KernelTable {
            keys: BTreeMap::new(),
            answer_bytes_max,
            number: 0,
            changes: Vec::new(),
            told: Vec::new(),
            told_at: None,
        }
    }

    /// The key may change when this is false, and not before.
    fn must_forget(&mut self, hash: u64) -> bool {
        let Some(entry) = self.keys.get_mut(&hash) else { return false };
        entry.forget(&mut self.number, &mut self.changes);
        entry.leaving.is_some()
    }

    /// The same for all keys.
    pub fn must_forget_all(&mut self) -> bool {
        let (number, changes) = (&mut self.number, &mut self.changes);
        self.keys.values_mut().for_each(|entry| entry.forget(number, changes));
        self.keys.values().any(|entry| entry.leaving.is_some())
    }

    pub fn forgot(&mut self, number: u64) {
        for entry in self.keys.values_mut() {
            entry.leaving = entry.leaving.filter(|leaving| number < *leaving);
        }
        self.keys.retain(|_, entry| entry.is_hot || entry.leaving.is_some());
    }

    /// What is hot from now on.
    pub fn decided(&mut self, hot: &[(u64, Box<[u8]>, u32)]) {
        for (hash, entry) in &mut self.keys {
            entry.is_hot = hot.iter().any(|(other, ..)| other == hash);
            if !entry.is_hot {
                entry.forget(&mut self.number, &mut self.changes);
            }
        }
        self.keys.retain(|_, entry| entry.is_hot || entry.leaving.is_some());
        // Keys in base64 may have blanks, which no `get` asks for.
        let is_plain = |key: &[u8]| key.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
        for (hash, key, _) in hot.iter().filter(|(_, key, _)| is_plain(key)) {
            let cold = || Entry {
                key: key.clone(),
                is_hot: true,
                filling: None,
                answered: None,
                leaving: None,
            };
            self.keys.entry(*hash).or_insert_with(cold);
        }
    }

    /// Keys whose values the kernel lacks, or will lack before `until`.
    pub fn wanting(&self, until: Instant) -> Vec<(u64, Box<[u8]>)> {
        let wants = |(_, entry): &(&u64, &Entry)| {
            entry.is_hot
                && entry.leaving.is_none()
                && entry.answered.is_none_or(|ends| ends < until)
        };
        let wanting = self.keys.iter().filter(wants);
        wanting.map(|(hash, entry)| (*hash, entry.key.clone())).collect()
    }

    /// The number of a fill that is asked for.
    pub fn fill(&mut self, hash: u64) -> u64 {
        self.number += 1;
        self.keys.get_mut(&hash).expect("it is wanting").filling = Some(self.number);
        self.number
    }

    pub fn filled(&mut self, hash: u64, number: u64, item: Option<Item<'_>>, now: Instant) {
        let Some(entry) = self.keys.get_mut(&hash) else { return };
        if entry.filling != Some(number) {
            return;
        }
        entry.filling = None;
        let fits = |item: &Item<'_>| {
            let around = format!("VALUE  {} {}\r\n\r\nEND\r\n", item.flags, item.value.len());
            around.len() + entry.key.len() + item.value.len() <= self.answer_bytes_max
        };
        // What has gone at its home ends in the kernel by itself.
        let Some(item) = item.filter(|item| item.seconds > 0 && fits(item)) else { return };
        let lives = item.lives();
        entry.answered = Some(now + lives);
        let (key, flags, value) = (entry.key.clone(), item.flags, item.value.to_vec());
        self.changes.push(KernelChange::Put { key, flags, value, lives });
    }

    /// What the kernel is to do, in this order. `upstreams` are those in the pool, which was changed so often.
    pub fn take_changes(
        &mut self,
        upstreams: Vec<KernelUpstream>,
        changed_at: u64,
        points: impl FnOnce() -> Vec<Point>,
    ) -> Vec<KernelChange> {
        let mut changes = std::mem::take(&mut self.changes);
        if self.told != upstreams || self.told_at != Some(changed_at) {
            (self.told, self.told_at) = (upstreams.clone(), Some(changed_at));
            changes.insert(0, KernelChange::Ring { points: points(), upstreams });
        }
        changes
    }

    /// True if a request waits until the kernel has forgotten its key.
    pub fn holds(&mut self, request: &Request<'_>) -> bool {
        if self.keys.is_empty() || is_planted(Fault::KernelAnswersOutliveWrites) {
            return false;
        }
        if let Request::Admin { command: Admin::FlushAll { .. }, .. } = request {
            return self.must_forget_all();
        }
        if let Request::Get(get) = request {
            let mut must = false;
            let mut rest = if get.touch.is_some() { get.keys } else { b"" };
            while let Some((key, tail)) = next_word(rest) {
                // All of them leave at once.
                must |= Key::new(key).is_some_and(|key| self.must_forget(key.hash()));
                rest = tail;
            }
            return must;
        }
        let mut decoded = [0; KEY_BYTES_MAX];
        let key = match request.key().filter(|_| request.writes()) {
            None => return false,
            Some((key, false)) => key,
            Some((key, true)) => match base64_decode(key, &mut decoded) {
                Some(length) => &decoded[..length],
                None => return false,
            },
        };
        Key::new(key).is_some_and(|key| self.must_forget(key.hash()))
    }
}
