//! Upstreams that do not serve for a while, and what is written meanwhile: that alone is deleted when they come back.
//!
//! ```text
//!   Serves ── fails, with `--eject`; leaves the pool ──► away: keys that are written are noted
//!     ▲                                                    │ it can be reached, and is in the pool
//!     │                                                    ▼
//!     ├── of a cluster: others have stored it ◄── what is it, and has `mbal cluster scale` filled it?
//!     ├── filled: it has what there is        ◄──          │ all that it was asked before is answered
//!     └── deleted, or flushed where too much was noted ◄───┘
//! ```
//!
//! An upstream that has missed nothing keeps all that it has. Only what others than this proxy write is not seen here.

use std::collections::BTreeMap;

use mbal_model::KEY_BYTES_MAX;
use mbal_model::planted::{Fault, is_planted};
use mbal_wire::{ReplyKind, base64_decode};

use crate::doubt::Owed;
use crate::expect::Expect;
use crate::inflight::Who;
use crate::ledger::Ledger;
use crate::placing::Placing;
use crate::upstreams::{Health, Missed, Return, Upstreams};

/// So many keys are noted. Beyond that, whoever is away has missed too much, and is flushed.
const NOTED_MAX: usize = 10_000;

/// Keys that are written while somebody is away.
#[derive(Default)]
pub(crate) struct Notes {
    /// As they were spelled, and whether in base64; with the number of the last write.
    keys: BTreeMap<Owed, u64>,
    next: u64,
    /// Some upstream that has left the pool: nobody knows which keys will be its own.
    some_gone: bool,
    some_ejected: bool,
}

impl Notes {
    /// A write of a key arrives.
    #[inline]
    pub fn write(
        &mut self,
        key: &[u8],
        base64: bool,
        placing: &Placing,
        upstreams: &mut Upstreams,
    ) {
        if self.some_gone || self.some_ejected {
            self.note(key, base64, placing, upstreams);
        }
    }

    #[cold]
    fn note(&mut self, key: &[u8], base64: bool, placing: &Placing, upstreams: &mut Upstreams) {
        if !self.some_gone {
            let mut decoded = [0; KEY_BYTES_MAX];
            let length = if base64 { base64_decode(key, &mut decoded) } else { None };
            let home = placing.home(length.map_or(key, |length| &decoded[..length]));
            if home.is_none_or(|home| upstreams.get(home).serves()) {
                return;
            }
        }
        let is_sayable = key.len() <= KEY_BYTES_MAX && key.iter().all(u8::is_ascii_graphic);
        self.keys.insert((key.into(), base64), self.next);
        self.next += 1;
        if !is_sayable || NOTED_MAX < self.keys.len() {
            self.miss_all(upstreams);
        }
    }

    /// Whoever is away has missed more than is known.
    pub fn miss_all(&mut self, upstreams: &mut Upstreams) {
        for missed in upstreams.all_mut().iter_mut().filter_map(|one| one.missed.as_mut()) {
            *missed = Missed::All;
        }
        self.watch(upstreams);
    }

    /// It does not serve from now on.
    pub fn goes_away(&mut self, upstream: usize, upstreams: &mut Upstreams) {
        let this = upstreams.get_mut(upstream);
        this.returning = Return::Away;
        // A cluster's servers miss nothing: the others forward to them, or have their keys.
        if this.cluster.is_none() {
            this.missed.get_or_insert(Missed::Since(self.next));
        }
        self.watch(upstreams);
    }

    /// It serves from now on. Keys that were written since it began to delete what it has missed.
    pub fn comes_back(&mut self, upstream: usize, upstreams: &mut Upstreams) -> Vec<Owed> {
        let this = upstreams.get_mut(upstream);
        let late = match this.returning {
            Return::Cleans(cleaned) => self.since(cleaned),
            Return::Away | Return::InFlight | Return::Waits => Vec::new(),
        };
        (this.health, this.returning, this.missed) = (Health::Serves, Return::Away, None);
        this.has_left = false;
        self.watch(upstreams);
        late
    }

    fn watch(&mut self, upstreams: &Upstreams) {
        let is_any = |health: Health| {
            let mut all = upstreams.all().iter();
            all.any(|one| one.health == health && matches!(one.missed, Some(Missed::Since(_))))
        };
        (self.some_gone, self.some_ejected) = (is_any(Health::Gone), is_any(Health::Ejected));
        if !self.some_gone && !self.some_ejected {
            self.keys.clear();
        }
    }

    fn since(&self, number: u64) -> Vec<Owed> {
        let keys = self.keys.iter().filter(|(_, written)| number <= **written);
        keys.map(|(key, _)| key.clone()).collect()
    }

    /// Whether something was written that it would have got.
    pub fn have(&self, missed: Option<Missed>) -> bool {
        match missed {
            None => false,
            Some(Missed::All) => true,
            Some(Missed::Since(since)) => self.keys.values().any(|number| since <= *number),
        }
    }

    /// An upstream deletes what it has missed, when nothing that it was asked before can be executed after that.
    pub fn clean_if_idle(&self, upstream: usize, upstreams: &mut Upstreams, ledger: &mut Ledger) {
        let is_idle = upstreams.is_idle(upstream);
        let (conn, now) = (upstreams.first_conn(upstream), ledger.now);
        let this = upstreams.get_mut(upstream);
        if this.returning != Return::Waits || this.health != Health::Ejected || !is_idle {
            return;
        }
        this.returning = Return::Cleans(self.next);
        let since = match this.missed {
            Some(Missed::Since(since)) if !is_planted(Fault::FlushedOnReturn) => since,
            _ => return upstreams.ask_fence(conn, now),
        };
        debug_assert!(upstreams.conn(conn).is_up(), "it has answered");
        let shape = (ReplyKind::Line, Expect::Any);
        for (key, base64) in self.since(since) {
            let end: &[u8] = if base64 { b" b\r\n" } else { b"\r\n" };
            upstreams.ask_own(conn, &[b"md ", &key, end], shape, Who::Nobody, now);
            ledger.counters.deleted_missed += 1;
        }
        upstreams.ask_own(conn, &[b"version\r\n"], shape, Who::Return, now);
    }
}
