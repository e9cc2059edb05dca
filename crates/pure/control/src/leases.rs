//! Servers that own by leases in etcd: what they are told, and when they are dead for certain.
//!
//! ```text
//!   Request::Owners ──► whom to look for ──► etcd, by whoever drives this ──► Request::KeysSeen ──► a Watch for each ──► lost
//! ```
//! `docs/design/cluster.md`, *Ownership leases*, has the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mbal_election::{KeySeen, Watch, over_after};
use mbal_model::{Instant, ServerId};

use crate::api::{Incarnation, LeaseTold, Registration};
use crate::ledger::Ledger;
use crate::refusal::Refusal;
use crate::settings::Leases;
use crate::state::State;

/// Servers that own by leases.
#[derive(Clone, Debug, PartialEq)]
pub struct Owners {
    /// When this was asked: a look is not older.
    pub at: Instant,
    /// By their processes; `true`: not heard of lately, so it is asked when its lease was renewed.
    pub servers: BTreeMap<ServerId, (Incarnation, bool)>,
}

/// What is known of them since this process leads; lost with it.
#[derive(Debug)]
pub(crate) struct Watched {
    leases: Option<Leases>,
    watches: BTreeMap<ServerId, (Incarnation, Watch)>,
    /// Of whom was said that they do not know this coordinator.
    strangers: BTreeSet<ServerId>,
}

impl Watched {
    pub fn new(leases: Option<Leases>) -> Watched {
        Watched { leases, watches: BTreeMap::new(), strangers: BTreeSet::new() }
    }

    /// Another process takes the place of one only when that owns nothing any more.
    pub fn may_succeed(
        &self,
        state: &State,
        id: ServerId,
        asked: &Registration,
    ) -> Result<(), Refusal> {
        let before = state.members.get(&id).filter(|member| member.is_alive());
        let owns = before.is_some_and(|member| {
            member.lease_ms > 0 && member.incarnation != asked.incarnation && self.leases.is_some()
        });
        if owns {
            let why = format!(
                "another process was server {} until lately, and may own its cachelets still: until its lease is over",
                id.0
            );
            return Err(Refusal::Conflict(why));
        }
        Ok(())
    }

    /// Who has registered already is told the same again.
    pub fn lease_ms_for(&self, state: &State, asked: &Registration) -> u64 {
        let mut members = state.members.values();
        if let Some(same) = members.find(|member| member.incarnation == asked.incarnation) {
            return same.lease_ms;
        }
        match &self.leases {
            Some(leases) if asked.leases => leases.terms.lease.as_millis() as u64,
            _ => 0,
        }
    }

    pub fn coordinators_of(&self, asked: &Registration) -> Vec<String> {
        match &self.leases {
            Some(leases) if leases.terms.grace != Some(Duration::ZERO) => {
                asked.coordinators.clone()
            }
            _ => Vec::new(),
        }
    }

    pub fn told(&self, state: &State, id: ServerId) -> Option<LeaseTold> {
        let leases = self.leases.as_ref()?;
        let lease_ms = state.members[&id].lease_ms;
        let grace_ms = leases.terms.grace.map(|grace| grace.as_millis() as u64);
        let told = LeaseTold { etcd: leases.etcd.clone(), lease_ms, grace_ms };
        (lease_ms > 0).then_some(told)
    }

    /// It has registered, or a heartbeat of it was accepted.
    pub fn heard(&mut self, ledger: &Ledger, server: ServerId) {
        if let Some(watch) = self.watch(ledger, server) {
            watch.heard(ledger.now);
        }
    }

    /// None of a server that is dead, or owns without a lease.
    fn watch(&mut self, ledger: &Ledger, server: ServerId) -> Option<&mut Watch> {
        let member = ledger.state().members.get(&server)?;
        if !member.is_alive() || member.lease_ms == 0 {
            return None;
        }
        let (of, now) = (member.incarnation, ledger.now);
        let watched = self.watches.entry(server).or_insert((of, Watch::new(now)));
        if watched.0 != of {
            *watched = (of, Watch::new(now));
        }
        Some(&mut watched.1)
    }

    pub fn owners(&mut self, ledger: &Ledger) -> Owners {
        let mut servers = BTreeMap::new();
        for (server, member) in ledger.state().members.iter() {
            if self.watch(ledger, *server).is_some() {
                let is_missed = ledger.is_missed(*server);
                servers.insert(*server, (member.incarnation, is_missed));
            }
        }
        Owners { at: ledger.now, servers }
    }

    /// What a look has shown of a process that was asked about: whether its lease is over, so that it is dead.
    pub fn is_over(
        &mut self,
        ledger: &mut Ledger,
        begun: Instant,
        server: ServerId,
        (incarnation, key): (Incarnation, KeySeen),
    ) -> bool {
        let member = ledger.state().members.get(&server);
        let Some(member) = member.filter(|member| member.incarnation == incarnation) else {
            return false;
        };
        let lease = Duration::from_millis(member.lease_ms);
        let watch = self.watch(ledger, server);
        let is_over = watch.is_some_and(|watch| watch.looked(begun, ledger.now, key, lease));
        is_over && self.is_known_to(ledger, server)
    }

    /// A server that was not told of this coordinator cannot know whether it leads: so it may own without etcd, whatever its key says.
    fn is_known_to(&mut self, ledger: &mut Ledger, server: ServerId) -> bool {
        let (Some(leases), Some(member)) = (&self.leases, ledger.state().members.get(&server))
        else {
            return false;
        };
        let known = &member.coordinators;
        let is_known = known.is_empty() || known.contains(&leases.address);
        if !is_known && self.strangers.insert(server) {
            ledger.say(format!(
                "the lease of server {} is over, but it does not know this coordinator as {}: whether it is dead is for an operator to say",
                server.0, leases.address
            ));
        }
        is_known
    }

    /// A server that owns by a lease is not heard of, and its lease may be about to end.
    pub fn awaits_a_death(&self, ledger: &Ledger) -> bool {
        let mut watches = self.watches.iter();
        watches.any(|(server, (incarnation, _))| {
            let Some(member) = ledger.state().members.get(server) else { return false };
            let heard = ledger.heard(*server).map_or(Instant::ZERO, |heard| heard.at);
            let lease = Duration::from_millis(member.lease_ms);
            let long = 3 * over_after(lease);
            member.incarnation == *incarnation
                && ledger.is_missed(*server)
                && ledger.now < heard + long
        })
    }
}
