//! Servers that own by leases in etcd: what they are told, and when they are dead for certain.
//!
//! ```text
//!   Ask::Owners ──► whom to look for ──► etcd, by whoever drives this ──► Ask::KeysSeen ──► a Watch for each ──► lost
//! ```
//! `docs/design/cluster.md`, *Ownership leases*, has the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mbal_election::{KeySeen, Moment, Terms, Watch, over_after};
use mbal_model::ServerId;

use crate::api::{Incarnation, LeaseTold, Registration};
use crate::coordinator::{Answer, Coordinator, Micros, Refusal};

/// What the leases of a cluster are.
#[derive(Clone, Debug, PartialEq)]
pub struct Leases {
    pub terms: Terms,
    /// Members of etcd, as servers reach them.
    pub etcd: Vec<String>,
    /// This coordinator's URL, as servers name it.
    pub address: String,
}

/// Servers that own by leases.
#[derive(Clone, Debug, PartialEq)]
pub struct Owners {
    /// When this was asked: a look is not older.
    pub at: Micros,
    /// By their processes; `true`: not heard of lately, so it is asked when its lease was renewed.
    pub servers: BTreeMap<ServerId, (Incarnation, bool)>,
}

/// What is known of them since this process leads; lost with it.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    watches: BTreeMap<ServerId, (Incarnation, Watch)>,
    /// Of whom was said that they do not know this coordinator.
    strangers: BTreeSet<ServerId>,
}

fn moment(micros: Micros) -> Moment {
    Duration::from_micros(micros.0)
}

impl Coordinator {
    /// Another process takes the place of one only when that owns nothing any more.
    pub(crate) fn succeeds(&self, id: ServerId, asked: &Registration) -> Result<(), Refusal> {
        let before = self.state.members.get(&id).filter(|member| member.is_alive());
        let owns = before.is_some_and(|member| {
            member.lease_ms > 0
                && member.incarnation != asked.incarnation
                && self.settings.leases.is_some()
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
    pub(crate) fn lease_ms_for(&self, asked: &Registration) -> u64 {
        let mut members = self.state.members.values();
        if let Some(same) = members.find(|member| member.incarnation == asked.incarnation) {
            return same.lease_ms;
        }
        match &self.settings.leases {
            Some(leases) if asked.leases => leases.terms.lease.as_millis() as u64,
            _ => 0,
        }
    }

    pub(crate) fn coordinators_of(&self, asked: &Registration) -> Vec<String> {
        match &self.settings.leases {
            Some(leases) if leases.terms.grace != Some(Duration::ZERO) => {
                asked.coordinators.clone()
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn lease_told(&self, id: ServerId) -> Option<LeaseTold> {
        let leases = self.settings.leases.as_ref()?;
        let lease_ms = self.state.members[&id].lease_ms;
        let grace_ms = leases.terms.grace.map(|grace| grace.as_millis() as u64);
        let told = LeaseTold { etcd: leases.etcd.clone(), lease_ms, grace_ms };
        (lease_ms > 0).then_some(told)
    }

    /// It has registered, or a heartbeat of it was accepted.
    pub(crate) fn has_heard(&mut self, now: Micros, server: ServerId) {
        if let Some(watch) = self.watch(moment(now), server) {
            watch.heard(moment(now));
        }
    }

    /// None of a server that is dead, or owns without a lease.
    fn watch(&mut self, now: Moment, server: ServerId) -> Option<&mut Watch> {
        let member = self.state.members.get(&server)?;
        if !member.is_alive() || member.lease_ms == 0 {
            return None;
        }
        let of = member.incarnation;
        let watched = self.watched.watches.entry(server).or_insert((of, Watch::new(now)));
        if watched.0 != of {
            *watched = (of, Watch::new(now));
        }
        Some(&mut watched.1)
    }

    pub(crate) fn owners(&mut self, now: Micros) -> Owners {
        let all: Vec<ServerId> = self.state.members.keys().copied().collect();
        let mut servers = BTreeMap::new();
        for server in all {
            if self.watch(moment(now), server).is_some() {
                let incarnation = self.state.members[&server].incarnation;
                servers.insert(server, (incarnation, self.is_missed(now, server)));
            }
        }
        Owners { at: now, servers }
    }

    /// A heartbeat is late.
    fn is_missed(&self, now: Micros, server: ServerId) -> bool {
        let epoch = self.settings.epoch.as_micros() as u64;
        let heard = self.heard.get(&server).map_or(0, |heard| heard.at.0);
        heard + epoch + epoch / 2 < now.0
    }

    /// What a look has shown, of the processes that were asked about.
    pub(crate) fn keys_seen(
        &mut self,
        now: Micros,
        begun: Micros,
        keys: &BTreeMap<ServerId, (Incarnation, KeySeen)>,
    ) -> Result<Answer, Refusal> {
        for (server, (incarnation, key)) in keys {
            let member = self.state.members.get(server);
            let Some(member) = member.filter(|member| member.incarnation == *incarnation) else {
                continue;
            };
            let lease = Duration::from_millis(member.lease_ms);
            let watch = self.watch(moment(now), *server);
            let is_over =
                watch.is_some_and(|watch| watch.looked(moment(begun), moment(now), *key, lease));
            if is_over && self.is_known_to(*server) {
                self.said.push(format!("the lease of server {} is over", server.0));
                self.lost(*server)?;
            }
        }
        Ok(Answer::Done)
    }

    /// A server that was not told of this coordinator cannot know whether it leads: so it may own without etcd, whatever its key says.
    fn is_known_to(&mut self, server: ServerId) -> bool {
        let (Some(leases), Some(member)) = (&self.settings.leases, self.state.members.get(&server))
        else {
            return false;
        };
        let known = &member.coordinators;
        let is_known = known.is_empty() || known.contains(&leases.address);
        if !is_known && self.watched.strangers.insert(server) {
            self.said.push(format!(
                "the lease of server {} is over, but it does not know this coordinator as {}: whether it is dead is for an operator to say",
                server.0, leases.address
            ));
        }
        is_known
    }

    /// A server that owns by a lease is not heard of, and its lease may be about to end.
    pub(crate) fn awaits_a_death(&self, now: Micros) -> bool {
        let mut watches = self.watched.watches.iter();
        watches.any(|(server, (incarnation, _))| {
            let Some(member) = self.state.members.get(server) else { return false };
            let heard = self.heard.get(server).map_or(0, |heard| heard.at.0);
            let lease = Duration::from_millis(member.lease_ms);
            let long = (3 * over_after(lease)).as_micros() as u64;
            member.incarnation == *incarnation
                && self.is_missed(now, *server)
                && now.0 < heard + long
        })
    }
}
