//! etcd as far as an election sees it, with what old versions do wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_election::{
    Condition, Fence, LEASE, Leader, LeaseId, NOBODY_LEADS, Request, Response, Revision,
    SaveResponse, Sight, Stored, Term,
};
use mbal_model::Instant;

use mbal_testkit::Failed;

/// A state of the cluster, told apart by a number; and the one that it was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    pub id: u64,
    pub from: u64,
}

impl Value {
    pub fn of(stored: &Stored) -> u64 {
        u64::from_le_bytes(stored.bytes.clone().try_into().expect("a number"))
    }
}

/// Removals are done by ticks.
const TICKS_WITHIN: Duration = Duration::from_millis(25);

#[derive(Debug)]
struct Lease {
    ends: Instant,
    /// Once it has ended: when it and its key are removed.
    removed: Option<Instant>,
}

#[derive(Default)]
pub struct Etcd {
    revision: Revision,
    leases: BTreeMap<LeaseId, Lease>,
    leases_ever: LeaseId,
    leader: Option<(Term, LeaseId, String)>,
    state: Option<(Revision, u64)>,
    /// Every state that was ever written.
    pub history: Vec<u64>,
    raft_term: u64,
    leaders_ever: u64,
    /// Until then somebody renews leases who is etcd's leader no more.
    stale_until: Instant,
}

pub enum Answered {
    Now(Response),
    /// When the lease has been removed.
    At(Instant, Response),
}

impl Etcd {
    pub fn term(&self) -> Option<Term> {
        self.leader.as_ref().map(|(term, ..)| *term)
    }

    pub fn raft_term(&self) -> u64 {
        self.raft_term
    }

    /// How many leaders there were.
    pub fn leaders_ever(&self) -> u64 {
        self.leaders_ever
    }

    pub fn state(&self) -> u64 {
        self.state.map_or(0, |(_, id)| id)
    }

    fn sight(&self) -> Sight {
        let leader = self.leader.as_ref();
        let leader =
            leader.map(|(term, _, address)| Leader { term: *term, address: address.clone() });
        Sight { leader, state: self.state.map(|(revision, _)| revision), raft_term: self.raft_term }
    }

    fn holds(&self, condition: Condition) -> bool {
        match condition {
            Condition::LeaderCreatedAt(term) => self.term().unwrap_or(0) == term,
            Condition::StateModifiedAt(revision) => {
                self.state.map_or(0, |(revision, _)| revision) == revision
            }
        }
    }

    /// `luck` says whether a replaced leader of etcd gets a renewal, while there is one.
    pub fn ask(&mut self, now: Instant, question: Request, address: &str, luck: bool) -> Answered {
        let lasts = LEASE;
        Answered::Now(match question {
            Request::Look => Response::Seen(self.sight()),
            Request::Grant => {
                self.leases_ever += 1;
                let lease = Lease { ends: now + lasts, removed: None };
                self.leases.insert(self.leases_ever, lease);
                Response::Granted { lease: self.leases_ever, lasts }
            }
            Request::Campaign { lease } => {
                if !self.leases.contains_key(&lease) {
                    Response::Nothing
                } else if self.holds(NOBODY_LEADS) {
                    self.revision += 1;
                    self.leaders_ever += 1;
                    self.leader = Some((self.revision, lease, address.to_owned()));
                    let stored = |(revision, id): (Revision, u64)| Stored {
                        revision,
                        bytes: id.to_le_bytes().to_vec(),
                    };
                    Response::Won { term: self.revision, state: self.state.map(stored) }
                } else {
                    Response::Lost(self.sight())
                }
            }
            Request::Renew { .. } if luck && now < self.stale_until => {
                Response::Renewed { lasts, raft_term: self.raft_term - 1 }
            }
            Request::Renew { lease } => match self.leases.get_mut(&lease) {
                None => Response::Renewed { lasts: Duration::ZERO, raft_term: self.raft_term },
                // It waits for the lease to be removed, and then says that it was renewed.
                Some(Lease { removed: Some(at), .. }) => {
                    return Answered::At(
                        *at + TICKS_WITHIN,
                        Response::Renewed { lasts, raft_term: self.raft_term },
                    );
                }
                Some(lease) => {
                    lease.ends = now + lasts;
                    Response::Renewed { lasts, raft_term: self.raft_term }
                }
            },
            Request::Revoke { lease } => {
                self.remove(lease);
                Response::Revoked
            }
        })
    }

    pub fn save(&mut self, fence: Fence, value: Value) -> Result<SaveResponse, Failed> {
        if fence.conditions().into_iter().all(|condition| self.holds(condition)) {
            if value.from != self.state() {
                let text = format!(
                    "{value:?} is written over {}, which its writer does not know",
                    self.state()
                );
                return Err(Failed::new(1, text));
            }
            self.revision += 1;
            self.state = Some((self.revision, value.id));
            self.history.push(value.id);
            return Ok(SaveResponse::Written(self.revision));
        }
        let ours = self.state.filter(|(_, id)| *id == value.id).map(|(revision, _)| revision);
        Ok(SaveResponse::Refused { leader: self.term(), ours })
    }

    /// Ends leases whose time is over; `takes` is how long their removal will take.
    pub fn tick(&mut self, now: Instant, takes: Duration) {
        for lease in self.leases.values_mut() {
            if lease.ends <= now && lease.removed.is_none() {
                lease.removed = Some(now + takes);
            }
        }
        let over = |lease: &Lease| lease.removed.is_some_and(|at| at <= now);
        let over: Vec<LeaseId> =
            self.leases.iter().filter(|(_, lease)| over(lease)).map(|(id, _)| *id).collect();
        for lease in over {
            self.remove(lease);
        }
    }

    fn remove(&mut self, lease: LeaseId) {
        self.leases.remove(&lease);
        self.leader.take_if(|(_, of, _)| *of == lease);
    }

    /// Another member leads: all leases last anew, and the one before goes on renewing for up to a second.
    pub fn change_leader(&mut self, now: Instant) {
        self.raft_term += 1;
        self.stale_until = now + Duration::from_secs(1);
        for lease in self.leases.values_mut() {
            *lease = Lease { ends: now + LEASE, removed: None };
        }
    }
}
