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
use mbal_routing::ketama::FILLED;
use mbal_wire::base64_decode;

use crate::expect::Expect;
use crate::proxy::Proxy;
use crate::reply::Kind;
use crate::upstream::{Health, State, Who};

/// So many keys are noted. Beyond that, whoever is away has missed too much, and is flushed.
const NOTED_MAX: usize = 10_000;

/// What an upstream has missed since it was away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// What was noted under this number or later.
    Since(u64),
    All,
}

/// How far an upstream's return is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Return {
    #[default]
    Away,
    /// It is asked what it is.
    InFlight,
    /// What it was asked before is to be answered first.
    Waits,
    /// It deletes what was noted below this number, or flushes.
    Cleans(u64),
}

/// Keys that are written while somebody is away.
#[derive(Default)]
pub(crate) struct Notes {
    /// As they were spelled, and whether in base64; with the number of the last write.
    keys: BTreeMap<(Box<[u8]>, bool), u64>,
    next: u64,
    /// Some upstream that has left the pool: nobody knows which keys will be its own.
    some_gone: bool,
    some_ejected: bool,
}

impl Proxy {
    /// A write of a key arrives.
    #[inline]
    pub(crate) fn note_write(&mut self, key: &[u8], base64: bool) {
        if self.notes.some_gone || self.notes.some_ejected {
            self.note(key, base64);
        }
    }

    #[cold]
    fn note(&mut self, key: &[u8], base64: bool) {
        if !self.notes.some_gone {
            let mut decoded = [0; KEY_BYTES_MAX];
            let length = if base64 { base64_decode(key, &mut decoded) } else { None };
            let home = self.full.place(length.map_or(key, |length| &decoded[..length]));
            if home.is_none_or(|home| self.upstreams[home].health == Health::Serves) {
                return;
            }
        }
        let is_sayable = key.len() <= KEY_BYTES_MAX && key.iter().all(u8::is_ascii_graphic);
        self.notes.keys.insert((key.into(), base64), self.notes.next);
        self.notes.next += 1;
        if !is_sayable || NOTED_MAX < self.notes.keys.len() {
            self.miss_all();
        }
    }

    /// Whoever is away has missed more than is known.
    pub(crate) fn miss_all(&mut self) {
        for upstream in &mut self.upstreams {
            if upstream.missed.is_some() {
                upstream.missed = Some(Missed::All);
            }
        }
        self.watch_writes();
    }

    /// It does not serve from now on.
    pub(crate) fn goes_away(&mut self, upstream: usize) {
        let since = Missed::Since(self.notes.next);
        let this = &mut self.upstreams[upstream];
        this.returning = Return::Away;
        // A cluster's servers miss nothing: the others forward to them, or have their keys.
        if this.cluster.is_none() {
            this.missed.get_or_insert(since);
        }
        self.watch_writes();
    }

    fn watch_writes(&mut self) {
        let since = |health: Health| {
            let is_it = |upstream: &&crate::upstream::Upstream| {
                upstream.health == health && matches!(upstream.missed, Some(Missed::Since(_)))
            };
            self.upstreams.iter().find(is_it).is_some()
        };
        let (gone, ejected) = (since(Health::Gone), since(Health::Ejected));
        (self.notes.some_gone, self.notes.some_ejected) = (gone, ejected);
        if !gone && !ejected {
            self.notes.keys.clear();
        }
    }

    /// Whether something was written that it would have got.
    pub(crate) fn has_missed(&self, upstream: usize) -> bool {
        match self.upstreams[upstream].missed {
            None => false,
            Some(Missed::All) => true,
            Some(Missed::Since(since)) => self.notes.keys.values().any(|number| since <= *number),
        }
    }

    /// It can be reached again: it is asked what it is, and whether it was filled.
    pub(crate) fn begin_return(&mut self, upstream: usize) {
        let conn = self.upstreams[upstream].first_conn;
        self.upstreams[upstream].returning = Return::InFlight;
        self.ask_cluster(conn, false);
        let asked = if self.upstreams[upstream].has_left { FILLED } else { "" };
        let kind = if asked.is_empty() { Kind::Line } else { Kind::Values };
        let request = match asked {
            "" => "version\r\n".to_owned(),
            key => format!("get {key}\r\n"),
        };
        self.conns[conn].out.bytes.extend_from_slice(request.as_bytes());
        self.ask_own(conn, kind, Expect::Any, Who::Return);
    }

    /// It has said what it is; or that it is done.
    pub(crate) fn return_answered(&mut self, upstream: usize, reply: &[u8]) {
        let this = &mut self.upstreams[upstream];
        if this.health != Health::Ejected {
            return;
        }
        match this.returning {
            Return::InFlight if this.cluster.is_some() => self.come_back(upstream),
            Return::InFlight
                if reply.starts_with(b"VALUE ") && !is_planted(Fault::FilledForgotten) =>
            {
                // What is owed was written before it was filled.
                for conn in self.conns_of(upstream) {
                    let this = &mut self.conns[conn];
                    (this.owes_all, this.doubts) = (false, 0);
                    this.owed.clear();
                }
                self.come_back(upstream);
            }
            Return::InFlight => {
                this.returning = Return::Waits;
                self.clean_if_idle(upstream);
            }
            Return::Cleans(_) => self.come_back(upstream),
            Return::Away | Return::Waits => {}
        }
    }

    /// Deletes what it has missed, when nothing that it was asked before can be executed after that.
    pub(crate) fn clean_if_idle(&mut self, upstream: usize) {
        let this = &self.upstreams[upstream];
        let is_idle = self.conns_of(upstream).all(|conn| self.conns[conn].asked.is_empty());
        if this.returning != Return::Waits || this.health != Health::Ejected || !is_idle {
            return;
        }
        let conn = this.first_conn;
        debug_assert_eq!(self.conns[conn].state, State::Up, "it has answered");
        self.upstreams[upstream].returning = Return::Cleans(self.notes.next);
        let since = match self.upstreams[upstream].missed {
            Some(Missed::Since(since)) if !is_planted(Fault::FlushedOnReturn) => since,
            _ => return self.ask_fence(conn),
        };
        let keys = self.notes.keys.iter().filter(|(_, number)| since <= **number);
        let keys: Vec<(Box<[u8]>, bool)> = keys.map(|(key, _)| key.clone()).collect();
        for (key, base64) in keys {
            let end: &[u8] = if base64 { b" b\r\n" } else { b"\r\n" };
            for part in [b"md ", &key[..], end] {
                self.conns[conn].out.bytes.extend_from_slice(part);
            }
            self.ask_own(conn, Kind::Line, Expect::Any, Who::Nobody);
            self.counters.deleted_missed += 1;
        }
        self.conns[conn].out.bytes.extend_from_slice(b"version\r\n");
        self.ask_own(conn, Kind::Line, Expect::Any, Who::Return);
    }

    /// It serves again, and has what it has to have.
    pub(crate) fn come_back(&mut self, upstream: usize) {
        // What was written since it began to clean goes first over its key's connection.
        if let Return::Cleans(cleaned) = self.upstreams[upstream].returning {
            let late = self.notes.keys.iter().filter(|(_, number)| cleaned <= **number);
            let late: Vec<(Box<[u8]>, bool)> = late.map(|(key, _)| key.clone()).collect();
            for (key, base64) in late {
                let mut decoded = [0; KEY_BYTES_MAX];
                let length = if base64 { base64_decode(&key, &mut decoded) } else { None };
                let key = length.map_or(key.clone(), |length| decoded[..length].into());
                let conn = self.conn_of(upstream, &key);
                self.conns[conn].owed.insert((key, length.is_some()));
                self.owing = true;
            }
        }
        let this = &mut self.upstreams[upstream];
        (this.health, this.returning, this.missed) = (Health::Serves, Return::Away, None);
        this.has_left = false;
        self.counters.returns += 1;
        self.watch_writes();
        self.place_again();
        for conn in self.conns_of(upstream) {
            // One that was up all the time may have been asked something: that is answered first.
            match self.conns[conn].asked.is_empty() {
                true => self.pay_or_wait(conn),
                false => self.settle(conn),
            }
        }
    }
}
