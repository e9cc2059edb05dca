//! etcd as far as servers and a leader see it, with what old versions do wrong: for simulations.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_election::{LeaseId, OwnerRequest, OwnerResponse};
use mbal_model::Instant;

/// A lease that is over is removed, with its key, a moment later.
const REVOKED_AFTER: Duration = Duration::from_millis(200);
/// For so long a leader of etcd that was replaced goes on renewing leases.
const RENEWS_ON: Duration = Duration::from_secs(4);

#[derive(Clone, Copy)]
struct Lease {
    ends: Instant,
    lasts: Duration,
    /// Once it has ended: when it and its key are removed.
    revoked_at: Option<Instant>,
}

/// Servers' keys, and the leases that they are bound to.
#[derive(Default)]
pub struct Etcd {
    leases: BTreeMap<LeaseId, Lease>,
    leases_ever: LeaseId,
    /// By server: incarnation and lease.
    keys: BTreeMap<usize, (u64, LeaseId)>,
    raft_term: u64,
    /// Until then somebody renews leases who is etcd's leader no more.
    stale_until: Instant,
}

impl Etcd {
    /// What it answers to a server's question, at an instant of its own clock. `luck`: the question has come to a member that still takes
    /// itself for etcd's leader.
    ///
    /// # Panics
    /// If coordinators were meant.
    pub fn ask(
        &mut self,
        now: Instant,
        server: usize,
        incarnation: u64,
        question: OwnerRequest,
        lasts: Duration,
        luck: bool,
    ) -> OwnerResponse {
        let raft_term = self.raft_term;
        match question {
            OwnerRequest::Grant => {
                self.leases_ever += 1;
                let lease = Lease { ends: now + lasts, lasts, revoked_at: None };
                self.leases.insert(self.leases_ever, lease);
                OwnerResponse::Granted { lease: self.leases_ever }
            }
            OwnerRequest::Write { lease } => match self.leases.contains_key(&lease) {
                true => {
                    self.keys.insert(server, (incarnation, lease));
                    OwnerResponse::Written
                }
                false => OwnerResponse::NoLease,
            },
            OwnerRequest::Renew { .. } if luck && now < self.stale_until => {
                OwnerResponse::Renewed { raft_term: raft_term - 1 }
            }
            OwnerRequest::Renew { lease } => match self.leases.get_mut(&lease) {
                Some(lease) => {
                    // One that is being revoked is renewed by old versions, and then revoked.
                    lease.ends = now + lease.lasts;
                    OwnerResponse::Renewed { raft_term }
                }
                None => OwnerResponse::NoLease,
            },
            OwnerRequest::Look { lease } => {
                let is_there = self.keys.get(&server) == Some(&(incarnation, lease));
                OwnerResponse::Seen { is_there, raft_term }
            }
            OwnerRequest::WhoLeads => unreachable!("coordinators are asked"),
        }
    }

    /// Of a key with this incarnation: since its lease was renewed, rounded down as if etcd told that in whole seconds.
    pub fn unrenewed(&self, now: Instant, server: usize, incarnation: u64) -> Option<Duration> {
        let (of, lease) = self.keys.get(&server)?;
        let lease = self.leases.get(lease).filter(|_| *of == incarnation)?;
        let remaining = (lease.ends - now).as_secs();
        Some(Duration::from_secs(lease.lasts.as_secs().saturating_sub(remaining + 1)))
    }

    /// Ends leases whose time is over, a moment later.
    pub fn tick(&mut self, now: Instant) {
        for lease in self.leases.values_mut() {
            if lease.ends <= now && lease.revoked_at.is_none() {
                lease.revoked_at = Some(now + REVOKED_AFTER);
            }
        }
        let over = |lease: &Lease| lease.revoked_at.is_some_and(|at| at <= now);
        self.leases.retain(|_, lease| !over(lease));
        let leases = &self.leases;
        self.keys.retain(|_, (_, lease)| leases.contains_key(lease));
    }

    /// An operator, or a leader of etcd that was replaced, revokes a server's lease; or an operator deletes its key.
    pub fn revoke(&mut self, server: usize, key_alone: bool) {
        match self.keys.remove(&server) {
            Some((_, lease)) if !key_alone => drop(self.leases.remove(&lease)),
            _ => {}
        }
    }

    /// Another member leads: all leases last anew, and the one before goes on renewing for a while.
    pub fn change_leader(&mut self, now: Instant) {
        self.raft_term += 1;
        self.stale_until = now + RENEWS_ON;
        for lease in self.leases.values_mut() {
            (lease.ends, lease.revoked_at) = (now + lease.lasts, None);
        }
    }
}
