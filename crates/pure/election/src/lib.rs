//! Which of several coordinators leads, and what came of what it saved: one coordinator's side, as a state machine over etcd.
//!
//! Whoever drives it asks etcd what [`Election::next`] says, and tells what etcd answered. Saves go beside that, in a lane of their own
//! ([`Election::begin_save`], [`Election::settle`]). Knows no socket and no clock, and never looks into the state that is
//! saved. `docs/design/cluster.md`, *Several coordinators*, has the rules by their numbers.
//!
//! ```
//! use std::time::Duration;
//! use mbal_election::{Election, Next, Request, Response, Sight};
//! use mbal_model::Instant;
//!
//! let at = Instant::from_millis;
//! let mut one = Election::new();
//! assert_eq!(one.next(at(0)), Next::Ask(Request::Look));
//! one.answered(at(1), Response::Seen(Sight::default()));
//! assert_eq!(one.next(at(1)), Next::Ask(Request::Grant));
//! one.answered(at(2), Response::Granted { lease: 7, lasts: Duration::from_secs(3) });
//! assert_eq!(one.next(at(2)), Next::Ask(Request::Campaign { lease: 7 }));
//! one.answered(at(3), Response::Won { term: 12, state: None });
//! assert_eq!((one.leads(at(4)), one.leads(at(2701))), (Some(12), None));
//! ```
//!
//! Beside it, by the same arithmetic: a server's lease on what it owns ([`Ownership`]), and how a leader knows that it is over
//! ([`Watch`]). *Ownership leases* of the same page has the rules.

#![forbid(unsafe_code)]

mod election;
mod saving;

mod ownership;
mod watch;

mod lease;

use std::time::Duration;

use mbal_model::Instant;

pub use election::Election;
pub use lease::over_after;
pub use ownership::{OwnerNext, OwnerRequest, OwnerResponse, Ownership, Terms, nobody_leads};
pub use saving::{Fence, SaveResponse, Verdict};
pub use watch::{KeySeen, Watch};

/// A revision of etcd's store. They only grow.
pub type Revision = u64;
/// The create revision of a leader's key. No two leaders have the same.
pub type Term = Revision;
pub type LeaseId = i64;

/// What is asked of etcd for a lease. It may grant more.
pub const LEASE: Duration = Duration::from_secs(3);
/// A leader renews its lease so often.
pub const RENEW_EVERY: Duration = Duration::from_millis(500);
/// Who does not lead looks so often whether somebody does.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A leader that etcd did not answer asks again after this.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// A save that nobody knows of is asked about for so long.
pub const SETTLE_WITHIN: Duration = Duration::from_secs(5);
/// Who cannot use the state that it finds leaves it to others for so long.
pub const UNUSABLE_PAUSE: Duration = Duration::from_secs(5);

/// What has to hold in etcd for a transaction to be executed. 0 is: there is no such key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    LeaderCreatedAt(Revision),
    StateModifiedAt(Revision),
}

/// What a campaign asks for: that nobody leads.
pub const NOBODY_LEADS: Condition = Condition::LeaderCreatedAt(0);

/// What is to be asked of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Who leads, and the state's revision; linearizable.
    Look,
    /// A lease of [`LEASE`].
    Grant,
    /// One transaction: if [`NOBODY_LEADS`] the leader key is written with this lease. The state, or who leads.
    Campaign {
        lease: LeaseId,
    },
    Renew {
        lease: LeaseId,
    },
    Revoke {
        lease: LeaseId,
    },
}

/// Which question, or when to come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Ask(Request),
    Wait(Instant),
}

/// What etcd said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    Seen(Sight),
    /// A lease, and how long it lasts.
    Granted {
        lease: LeaseId,
        lasts: Duration,
    },
    Won {
        term: Term,
        state: Option<Stored>,
    },
    Lost(Sight),
    /// 0 is: there is no such lease any more. `raft_term` is etcd's own term of leadership, as its answer carries it.
    Renewed {
        lasts: Duration,
        raft_term: u64,
    },
    Revoked,
    /// Nothing, or nothing of use. The question may have been executed, or be executed yet.
    Nothing,
}

/// What is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    pub leader: Option<Leader>,
    /// The revision that wrote the state; none if there is none.
    pub state: Option<Revision>,
    /// As in [`Response::Renewed`].
    pub raft_term: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    pub term: Term,
    /// Its URL.
    pub address: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub revision: Revision,
    pub bytes: Vec<u8>,
}

/// What has become of this coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It leads, by this state.
    Elected { term: Term, state: Option<Stored> },
    /// It leads no more.
    Deposed { term: Term, why: Why },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its lease was not renewed in time.
    LeaseOver,
    /// Its lease or its key is gone, or another one's.
    Replaced,
    /// Somebody who does not lead has written the state.
    StateChanged,
    /// There was a state, and there is none.
    StateMissing,
    /// Nobody knows what became of a save.
    Unsettled,
    /// It was told to.
    Resigned,
}

impl std::fmt::Display for Why {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Why::LeaseOver => "its lease was not renewed in time",
            Why::Replaced => "its lease is gone, or another one leads",
            Why::StateChanged => "the state in etcd was changed by somebody who does not lead",
            Why::StateMissing => "the state that was in etcd is gone",
            Why::Unsettled => "it could not find out whether a change was saved",
            Why::Resigned => "it resigns",
        })
    }
}
