//! A server's right to own cachelets, while etcd or all coordinators vouch for it: one server's side, as a state machine.
//!
//! ```text
//!           lease granted       key written, seen,           renewed and seen, every 500 ms
//!   Bare ──────────────► Granted ─────────────► Held ──────────────────────────────────────┐
//!    ▲                                           │ ▲  a heartbeat was accepted since: it owns │
//!    │ the key is gone, and nobody leads         │ └────────────────────────────────────────┘
//!    └───────────────────────────────────────────┤
//!                                                └──► over: the lease has ended, or the key is gone. For good
//! ```
//! Whoever drives it asks what [`Ownership::next`] says. `docs/design/cluster.md`, *Ownership leases*, has the rules.

use std::time::Duration;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};

use crate::lease::{Renewal, held_until, over_after};
use crate::{LOOK_EVERY, LeaseId, RENEW_EVERY, RETRY_AFTER};

/// etcd keeps a server's key for so long after its lease is over: a coordinator that looks sees that it was not renewed.
const KEY_OUTLASTS: Duration = Duration::from_secs(2);

/// What a coordinator tells a server at registering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a renewal lasts. Longer than a coordinator's lease, by enough for a server to hear that no coordinator leads: both end when
    /// etcd is gone.
    pub lease: Duration,
    /// How long a server goes on without etcd while no coordinator leads; none is for ever.
    pub grace: Option<Duration>,
}

impl Terms {
    /// What is asked of etcd, in whole seconds: the lease, the drift of clocks, and some.
    pub fn key_lasts(&self) -> Duration {
        let lasts = over_after(self.lease) + KEY_OUTLASTS;
        Duration::from_secs(lasts.as_millis().div_ceil(1_000) as u64)
    }
}

/// What is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerRequest {
    /// A lease of [`Terms::key_lasts`].
    Grant,
    /// The server's key, with its incarnation, bound to this lease.
    Write {
        lease: LeaseId,
    },
    Renew {
        lease: LeaseId,
    },
    /// Whether the key is there, with this incarnation and lease; linearizable.
    Look {
        lease: LeaseId,
    },
    /// All coordinators, at once: whether they lead. See [`nobody_leads`].
    WhoLeads,
}

/// What was said to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerResponse {
    Granted {
        lease: LeaseId,
    },
    Written,
    /// There is no such lease any more.
    NoLease,
    Renewed {
        raft_term: u64,
    },
    Seen {
        is_there: bool,
        raft_term: u64,
    },
    /// Each coordinator has said that it does not lead.
    NobodyLeads,
    /// Nothing, or nothing of use.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerNext {
    Ask(OwnerRequest),
    Wait(Instant),
    /// It is over: the process goes on as another incarnation, empty.
    Over,
}

/// What coordinators have said when they were asked whether they lead, none of those that did not answer. Only if all have said no,
/// no map can be changed before one of them has been elected and has waited for lease and drift.
pub fn nobody_leads(said: &[Option<bool>]) -> bool {
    let is_no = |one: &Option<bool>| *one == Some(false);
    if is_planted(Fault::OneDoesNotLead) {
        return said.iter().any(is_no);
    }
    !said.is_empty() && said.iter().all(is_no)
}

/// One incarnation of a server.
#[derive(Debug)]
pub struct Ownership {
    terms: Terms,
    phase: Phase,
    asked: Option<(OwnerRequest, Instant)>,
    due: Instant,
    renewal: Option<Renewal>,
    /// Whether a coordinator knows of the key.
    word: KeyVoucher,
    /// It owns before, and never then: by etcd, and since nobody leads.
    by_etcd: Instant,
    by_nobody: Instant,
    /// When the last renewal that counted was asked for.
    renewed: Instant,
    /// etcd did not answer the last question: coordinators are asked next.
    asks_coordinators: bool,
    has_owned: bool,
    is_over: bool,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Bare,
    Granted(LeaseId),
    Held(LeaseId),
}

/// A key that a coordinator may not have seen counts for nothing: the process may have been said to be dead before it was written.
#[derive(Clone, Copy, Debug)]
enum KeyVoucher {
    /// The key was not seen yet.
    None,
    /// It was, at this moment, and would count until that one.
    Seen { at: Instant, until: Instant },
    /// A heartbeat that was sent later has been accepted.
    Given,
}

impl Ownership {
    pub fn new(terms: Terms) -> Ownership {
        Ownership {
            terms,
            phase: Phase::Bare,
            asked: None,
            due: Instant::ZERO,
            renewal: None,
            word: KeyVoucher::None,
            by_etcd: Instant::ZERO,
            by_nobody: Instant::ZERO,
            renewed: Instant::ZERO,
            asks_coordinators: false,
            has_owned: false,
            is_over: false,
        }
    }

    /// It owns before, and never then. [`Instant::ZERO`] as long as it owns nothing.
    pub fn until(&self) -> Instant {
        match self.has_owned && !self.is_over {
            true => self.by_etcd.max(self.by_nobody),
            false => Instant::ZERO,
        }
    }

    /// It has owned, and does so no more.
    pub fn is_over(&mut self, now: Instant) -> bool {
        self.is_over |= self.has_owned && self.until() <= now;
        self.is_over
    }

    /// Its key is there, and a coordinator is to hear of it.
    pub fn wants_word(&self) -> bool {
        matches!(self.word, KeyVoucher::Seen { .. })
    }

    /// What to ask now. It is asked nothing else before [`Ownership::answered`].
    ///
    /// # Panics
    /// If a question waits for its answer.
    pub fn next(&mut self, now: Instant) -> OwnerNext {
        assert!(self.asked.is_none(), "one question at a time");
        if self.is_over(now) {
            return OwnerNext::Over;
        }
        if now < self.due {
            return OwnerNext::Wait(self.due);
        }
        let question = match self.phase {
            _ if self.asks_coordinators => OwnerRequest::WhoLeads,
            Phase::Bare => OwnerRequest::Grant,
            Phase::Granted(lease) => OwnerRequest::Write { lease },
            Phase::Held(lease) if self.renewal.is_some() => OwnerRequest::Look { lease },
            Phase::Held(lease) => OwnerRequest::Renew { lease },
        };
        self.asked = Some((question, now));
        OwnerNext::Ask(question)
    }

    /// What was answered. An answer that does not fit the question is none.
    ///
    /// # Panics
    /// If nothing was asked.
    pub fn answered(&mut self, now: Instant, answer: OwnerResponse) {
        let (question, sent) = self.asked.take().expect("it has asked");
        if self.is_over(now) {
            return;
        }
        self.due = now;
        match (question, answer) {
            (OwnerRequest::Grant, OwnerResponse::Granted { lease }) => {
                self.phase = Phase::Granted(lease);
            }
            (OwnerRequest::Write { lease }, OwnerResponse::Written) => {
                self.phase = Phase::Held(lease);
            }
            (OwnerRequest::Renew { .. }, OwnerResponse::Renewed { raft_term }) => {
                let until = held_until(now, sent, self.terms.lease);
                self.renewal = Some(Renewal { until, raft_term });
                self.renewed = sent;
            }
            (OwnerRequest::Look { .. }, OwnerResponse::Seen { is_there: true, raft_term }) => {
                let renewal = self.renewal.take().expect("it was renewed before");
                if renewal.counts(raft_term) {
                    self.counts(now, renewal.until);
                    self.due = now + RENEW_EVERY;
                }
            }
            (_, OwnerResponse::NoLease | OwnerResponse::Seen { is_there: false, .. }) => {
                self.key_is_gone(now);
            }
            (OwnerRequest::WhoLeads, answer) => {
                self.asks_coordinators = false;
                if answer == OwnerResponse::NobodyLeads {
                    self.nobody_led(now, sent);
                }
                self.due = now + LOOK_EVERY;
            }
            _ => {
                self.renewal = None;
                self.asks_coordinators = self.has_owned && self.terms.grace != Some(Duration::ZERO);
                self.due = now + RETRY_AFTER;
            }
        }
    }

    fn counts(&mut self, now: Instant, until: Instant) {
        match self.word {
            KeyVoucher::Given => self.by_etcd = self.by_etcd.max(until),
            KeyVoucher::Seen { at, until: before } => {
                // Between two renewals that do not meet, who has seen the key may have called its server dead.
                let at = if now < before { at } else { now };
                self.word = KeyVoucher::Seen { at, until };
            }
            KeyVoucher::None => self.word = KeyVoucher::Seen { at: now, until },
        }
        if is_planted(Fault::OwnsWithoutWord) {
            self.accepted(now, now);
        }
    }

    /// A coordinator that leads has accepted a heartbeat, which was sent at that moment.
    pub fn accepted(&mut self, now: Instant, sent: Instant) {
        if self.is_over(now) {
            return;
        }
        if let KeyVoucher::Seen { at, until } = self.word {
            if at <= sent && now < until {
                self.word = KeyVoucher::Given;
                self.by_etcd = self.by_etcd.max(until);
                self.has_owned = true;
            }
        }
    }

    /// The lease governs where etcd is there. Only who owns since nobody leads may write its key anew: etcd was away, and kept no leases.
    fn key_is_gone(&mut self, now: Instant) {
        (self.phase, self.word, self.renewal) = (Phase::Bare, KeyVoucher::None, None);
        self.by_etcd = self.by_etcd.min(now);
        self.is_over(now);
    }

    /// No coordinator led at some moment since `sent`: whoever does later has to wait for a lease first.
    fn nobody_led(&mut self, now: Instant, sent: Instant) {
        let until = held_until(now, sent, self.terms.lease);
        let until = self.terms.grace.map_or(until, |grace| until.min(self.renewed + grace));
        self.by_nobody = self.by_nobody.max(until);
    }
}
