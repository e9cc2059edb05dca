//! Copies of hot keys on other servers, as a server has to do with them: its own keys that have copies (`homes`), others' keys of which it has
//! one (`here`), what its clients know of copies (`leased`), and which of its keys are hot (`heat`). `docs/design/hotkeys.md` is the
//! protocol, `mbal_replica` its state machines.
//!
//! ```text
//!   requests ──sampled──► Heat, of each worker ──► Heats ──► hot? ──► HomeKey ── Hold ──► link ──► CopyHere, on another server
//!   a write of such a key ──► HomeKey: let go? executed, told       a read there ──► answered from the copy, or passed on
//! ```

use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;

use mbal_locks::{Mutex, MutexGuard, RwLock, ranks};
use mbal_model::{Instant, Key, Prefix, ServerId};
use mbal_replica::{HomeState, Terms, newborn_rests};

use crate::shared::Shared;

mod heat;
mod here;
mod homes;
mod leased;
mod table;
mod ticking;
mod worth;

pub(crate) use here::Read;
pub(crate) use homes::is_read;
pub(crate) use leased::ReplyPrefix;
pub(crate) use ticking::Ticks;

use heat::{Heat, Heats};
use here::CopyHere;
use homes::HomeKey;
use table::Table;
use worth::CopyBackoff;

/// How a cluster copies its hot keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HotMode {
    #[default]
    Off,
    /// Writes are told to copies afterwards (SPORE).
    Async,
    /// Writes wait until copies have let go (SE-SPORE).
    Atomic,
}

/// What the coordinator says of hot keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotTerms {
    pub mode: HotMode,
    /// What is read is no older than this; a client's lease lasts so long.
    pub lease: Duration,
    /// T: requests a second that one copy of a key is to have at most. Infinity: nothing is copied.
    pub threshold: f64,
    /// For copies of other servers' keys.
    pub memory_bytes: u64,
}

impl Default for HotTerms {
    fn default() -> HotTerms {
        HotTerms {
            mode: HotMode::Off,
            lease: Duration::from_secs(1),
            threshold: f64::INFINITY,
            memory_bytes: 1 << 20,
        }
    }
}

/// A key of this server that is hot, or was lately.
#[derive(Clone, Debug, PartialEq)]
pub struct HotHome {
    pub key: Vec<u8>,
    /// Requests a second, those that copies answer included.
    pub reads: f64,
    pub writes: f64,
    pub value_bytes: u32,
    /// `None`: it has no copies.
    pub state: Option<HomeState>,
    pub copies: Vec<ServerId>,
    /// When it got them, by the clock of [`crate::Worker::look_at_lease`].
    pub since: Instant,
}

/// Copies of others' keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiesHere {
    pub keys: u64,
    pub bytes: u64,
    /// Answered from them ever.
    pub reads: u64,
    /// How often a key of this server got copies.
    pub grants: u64,
}

/// What the workers of a server share of this.
#[derive(Default)]
pub(crate) struct Copies {
    terms: RwLock<ranks::HotTerms, HotTerms>,
    /// Of the terms: looked at by each request.
    mode: AtomicU8,
    /// Tells this process's stamps from those of others.
    process: AtomicU32,
    /// Grants given so far.
    grants: AtomicU32,
    /// Keys of this server that have copies.
    pub homes: Table<ranks::Homes, HomeKey>,
    /// Others' keys.
    pub here: Table<ranks::CopiesHere, CopyHere>,
    bytes: AtomicU64,
    reads: AtomicU64,
    latest_ns: AtomicU64,
    /// There are copies of this server's keys, or of others': leases are counted.
    in_use: AtomicBool,
    heats: Mutex<ranks::Heats, Heats>,
    backoff: Mutex<ranks::CopyBackoff, CopyBackoff>,
    trackers: Box<[Mutex<ranks::Heat, Heat>]>,
    /// By worker: its own load says that it is a hotspot.
    hotspots: Box<[AtomicBool]>,
    /// Phase 2 is on: hot keys are looked for less.
    samples_less: AtomicBool,
    /// Cachelets that began empty, and serve nothing before then: copies that an earlier owner has made may be read still.
    newborn: Mutex<ranks::Newborn, Vec<(Prefix, Instant)>>,
    any_newborn: AtomicBool,
}

/// A copy's lease, as part of the terms' lease: with the tenth that is left to clocks, and what a link takes, nobody waits longer.
const SHADOW_PART: (u32, u32) = (3, 4);

impl Copies {
    pub fn new(workers: u16) -> Copies {
        Copies {
            trackers: (0..workers).map(|_| Mutex::default()).collect(),
            hotspots: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            ..Copies::default()
        }
    }

    #[inline]
    pub fn mode(&self) -> HotMode {
        match self.mode.load(Relaxed) {
            0 => HotMode::Off,
            1 => HotMode::Async,
            _ => HotMode::Atomic,
        }
    }

    pub fn terms(&self) -> HotTerms {
        *self.terms.read()
    }

    /// The terms as a home has them.
    pub fn home_terms(&self) -> Terms {
        let HotTerms { mode, lease, .. } = self.terms();
        Terms { atomic: mode == HotMode::Atomic, lease: lease * SHADOW_PART.0 / SHADOW_PART.1 }
    }

    /// Stamps that are made from now on are of this process.
    pub fn is_process(&self, number: u16) {
        self.process.store(number.into(), Relaxed);
    }

    pub fn process(&self) -> u16 {
        self.process.load(Relaxed) as u16
    }

    pub fn heat(&self, worker: u16) -> MutexGuard<'_, ranks::Heat, Heat> {
        self.trackers[usize::from(worker)].lock()
    }

    /// The share of requests that a worker looks at for hot keys, if any.
    pub fn sample(&self, worker: u16) -> Option<f64> {
        let looks = self.mode() != HotMode::Off && self.hotspots[usize::from(worker)].load(Relaxed);
        looks.then(|| if self.samples_less.load(Relaxed) { 0.01 } else { 0.03 })
    }

    /// There are copies of this server's keys, or of others'.
    #[inline]
    pub fn in_use(&self) -> bool {
        self.in_use.load(Relaxed)
    }

    pub fn any_newborn(&self) -> bool {
        self.any_newborn.load(Acquire)
    }

    /// A cachelet that has begun empty serves nothing yet.
    pub fn is_newborn(&self, hash: u64, now: Instant) -> bool {
        let newborn = self.newborn.lock();
        newborn.iter().any(|(prefix, until)| prefix.contains(hash) && now < *until)
    }

    /// The same of a whole cachelet, or of a part of it.
    pub fn has_newborn(&self, prefix: Prefix, now: Instant) -> bool {
        let newborn = self.newborn.lock();
        newborn.iter().any(|(other, until)| prefix.overlaps(*other) && now < *until)
    }

    pub fn born(&self, prefix: Prefix, now: Instant) {
        if self.mode() != HotMode::Atomic {
            return;
        }
        let rests = newborn_rests(self.terms().lease);
        let mut newborn = self.newborn.lock();
        newborn.push((prefix, now + rests));
        self.any_newborn.store(true, Release);
    }

    fn forget_newborn(&self, now: Instant) {
        let mut newborn = self.newborn.lock();
        newborn.retain(|(_, until)| now < *until);
        self.any_newborn.store(!newborn.is_empty(), Release);
    }
}

impl Shared {
    /// What the coordinator says of hot keys. In another mode than before all copies end first.
    pub fn set_hot_terms(&self, terms: HotTerms) {
        let copies = &self.copies;
        let mut known = copies.terms.write();
        let ends = known.mode != terms.mode || known.lease != terms.lease;
        *known = terms;
        drop(known);
        copies.mode.store(terms.mode as u8, Relaxed);
        if ends {
            copies.homes.each(|_, home| home.cools());
        }
    }

    /// True if a key's cachelet has begun empty, and serves nothing yet: copies of an earlier owner may be read still.
    pub fn is_newborn(&self, hash: u64, now: crate::Now) -> bool {
        self.copies.any_newborn() && self.copies.is_newborn(hash, now.instant())
    }

    pub fn hot_terms(&self) -> HotTerms {
        self.copies.terms()
    }

    /// Phase 2 of balancing is on: phase 1 looks at fewer requests.
    pub fn set_phase_two(&self, is_on: bool) {
        self.copies.samples_less.store(is_on, Relaxed);
    }

    /// Drivers tell workers the time by [`crate::Worker::look_at_lease`] before each event: leases are counted, or the next event may
    /// begin one. The first copy of all must not begin at the server's birth.
    #[inline]
    pub fn counts_leases(&self) -> bool {
        self.owns_by_lease()
            || self.copies.in_use.load(Relaxed)
            || self.copies.mode() != HotMode::Off
    }

    /// The state of a key of this server that is copied, and how many copies it has or is to have.
    pub(crate) fn copied(&self, key: &Key<'_>) -> Option<(HomeState, u64)> {
        let homes = self.copies.homes.lock(key.hash());
        let one = homes.get(&key.hash()).filter(|one| *one.key == *key.bytes())?;
        Some((one.home.state(self.copies.latest()), one.home.shadows().count() as u64))
    }

    /// Copies of other servers' keys; and how often keys of this one got some.
    pub fn copies_here(&self) -> CopiesHere {
        let mut keys = 0;
        self.copies.here.each(|_, copy| keys += u64::from(copy.has_item()));
        let (bytes, reads) = (&self.copies.bytes, &self.copies.reads);
        let grants = self.copies.grants.load(Relaxed).into();
        CopiesHere { keys, bytes: bytes.load(Relaxed), reads: reads.load(Relaxed), grants }
    }
}
