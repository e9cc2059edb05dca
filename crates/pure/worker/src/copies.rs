//! Copies of hot keys on other servers, as a server has to do with them: its own keys that have copies (`homes`), others' keys of which it has
//! one (`here`), what its clients know of copies (`leased`), and which of its keys are hot (`heat`). `docs/design/hotkeys.md` is the
//! protocol, `mbal_replica` its state machines.
//!
//! ```text
//!   requests ──sampled──► Heat, of each worker ──► Heats ──► hot? ──► HomeKey ── Hold ──► link ──► CopyHere, on another server
//!   a write of such a key ──► HomeKey: let go? executed, told       a read there ──► answered from the copy, or passed on
//! ```

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use mbal_balance::hot::{CopyBackoff, Effort};
use mbal_locks::{Mutex, MutexGuard, RwLock, ranks};
use mbal_model::{Instant, Key, Prefix, ServerId};
use mbal_replica::{Grant, Held, Hold, HoldWhat, MARK, Newborn, Terms};

mod heat;
mod here;
mod home;
mod homes;
mod leased;
mod newborn;
mod read;
mod reading;
mod reply_prefix;
mod sends;
mod shared;
mod table;
mod terms;
mod ticking;

pub use terms::{CopiesHere, HotHome, HotMode, HotTerms};

pub(crate) use heat::RatesByKey;
pub(crate) use homes::{execute_told, tell_copies, told_of};
pub(crate) use leased::{heed_leases, read_elsewhere};
pub(crate) use read::Read;
pub(crate) use reading::{get_copy, read_copy};
pub(crate) use reply_prefix::ReplyPrefix;
pub(crate) use sends::Sends;
pub(crate) use ticking::Ticks;

use heat::{Heat, Heats};
use here::Shadows;
use home::HomeKey;
use newborn::Newborns;
use table::Table;

/// What the workers of a server share of this.
#[derive(Default)]
pub(crate) struct Copies {
    terms: RwLock<ranks::HotTerms, HotTerms>,
    /// Of the terms: looked at by each request.
    mode: AtomicU8,
    /// Grants given so far.
    grants: AtomicU32,
    /// Keys of this server that have copies.
    pub homes: Table<ranks::Homes, HomeKey>,
    pub shadows: Shadows,
    latest_ns: AtomicU64,
    /// There are copies of this server's keys, or of others': leases are counted.
    in_use: AtomicBool,
    heats: Mutex<ranks::Heats, Heats>,
    backoff: Mutex<ranks::CopyBackoff, CopyBackoff>,
    trackers: Box<[Mutex<ranks::Heat, Heat>]>,
    /// By worker: its own load says that it is a hotspot.
    hotspots: Box<[AtomicBool]>,
    /// By worker: a quota holds it back.
    quotas: Box<[AtomicBool]>,
    /// By worker: it fills its core or its quota; or nobody knows.
    limited: Box<[AtomicBool]>,
    /// Phase 2 is on: hot keys are looked for less.
    samples_less: AtomicBool,
    pub newborns: Newborns,
}

/// A copy's lease, as part of the terms' lease: with the tenth that is left to clocks, and what a link takes, nobody waits longer.
const SHADOW_PART: (u32, u32) = (3, 4);

impl Copies {
    pub fn new(workers: u16) -> Copies {
        let flags = |is| (0..workers).map(|_| AtomicBool::new(is)).collect();
        Copies {
            trackers: (0..workers).map(|_| Mutex::default()).collect(),
            hotspots: flags(false),
            quotas: flags(false),
            limited: flags(true),
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

    /// In another mode than before all copies end first.
    pub fn set_terms(&self, terms: HotTerms) {
        let mut known = self.terms.write();
        let ends = known.mode != terms.mode || known.lease != terms.lease;
        *known = terms;
        drop(known);
        self.mode.store(terms.mode as u8, Relaxed);
        if ends {
            self.homes.each(|_, home| home.cools());
        }
    }

    /// Phase 2 is on.
    pub fn sample_less(&self, is_on: bool) {
        self.samples_less.store(is_on, Relaxed);
    }

    /// Whether a quota lets a worker have less than its core.
    pub fn has_quota(&self, worker: u16, has: bool) {
        self.quotas[usize::from(worker)].store(has, Relaxed);
    }

    /// What the workers have shown of late.
    pub fn effort(&self) -> Effort {
        let busy = || self.hotspots.iter().zip(&self.limited).filter(|(one, _)| one.load(Relaxed));
        Effort {
            is_busy: busy().next().is_some(),
            is_limited: busy().any(|(_, limited)| limited.load(Relaxed)),
            has_copies: !self.homes.is_empty(),
        }
    }

    /// How often a key of this server got copies.
    pub fn grants(&self) -> u64 {
        self.grants.load(Relaxed).into()
    }

    /// Rates of the hottest keys over the last second or so, by hash.
    pub fn told(&self) -> RatesByKey {
        self.heats.lock().told()
    }

    /// T by what this server knows itself.
    pub fn own_threshold(&self) -> f64 {
        self.heats.lock().own_threshold()
    }

    /// The terms as a home has them.
    pub fn home_terms(&self) -> Terms {
        let HotTerms { mode, lease, .. } = self.terms();
        Terms { atomic: mode == HotMode::Atomic, lease: lease * SHADOW_PART.0 / SHADOW_PART.1 }
    }

    pub fn heat(&self, worker: u16) -> MutexGuard<'_, ranks::Heat, Heat> {
        self.trackers[usize::from(worker)].lock()
    }

    /// The share of requests that a worker looks at for hot keys, if any.
    pub fn sample(&self, worker: u16) -> Option<f64> {
        let looks = self.mode() != HotMode::Off && self.hotspots[usize::from(worker)].load(Relaxed);
        looks.then(|| if self.samples_less.load(Relaxed) { 0.01 } else { 0.02 })
    }

    /// There are copies of this server's keys, or of others'.
    #[inline]
    pub fn in_use(&self) -> bool {
        self.in_use.load(Relaxed)
    }

    /// The latest moment that any worker has looked at.
    pub fn latest(&self) -> Instant {
        Instant::from_nanos(self.latest_ns.load(Relaxed))
    }

    /// Takes a home's word, or that of a server that wants a copy or a fence, and appends the answer.
    pub fn take(
        &self,
        from: ServerId,
        (now, lease_now): (Instant, Instant),
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        let hold = Hold::decode(bytes).and_then(|hold| Some((hold, Key::new(hold.key)?)));
        let Some((hold, key)) = hold else { return false };
        if hold.what == HoldWhat::Fence {
            let Some(prefix) = Prefix::parse(hold.key) else { return false };
            self.shadows.fence(prefix, hold.grant);
            Held::fenced(hold.grant).encode(out);
            return true;
        }
        if hold.what == HoldWhat::Want {
            if self.mode() != HotMode::Off {
                self.heats.lock().wants(key.hash(), from, now);
            }
            out.push(MARK);
            return true;
        }
        self.in_use.store(true, Relaxed);
        // Who copies nothing, any more or yet, has nothing and takes nothing.
        let memory_bytes = (self.mode() != HotMode::Off).then(|| self.terms().memory_bytes);
        self.shadows.take(lease_now, &hold, &key, memory_bytes, out)
    }

    /// A cachelet begins empty by a map of this version, with these other servers: no copy of its keys is read that an earlier owner has made, before
    /// it serves anything.
    pub fn born(&self, prefix: Prefix, version: u64, others: Vec<ServerId>, now: Instant) {
        if self.mode() != HotMode::Atomic {
            return;
        }
        let fence = Grant::new(version, 0);
        // This server may have been a shadow, and give the cachelet away.
        self.shadows.fence(prefix, fence);
        self.newborns.add(prefix, Newborn::new(fence, others, self.terms().lease, now));
    }
}
