//! What an operator sees of it all.

use std::collections::BTreeMap;

use mbal_model::{Address, ServerId};

use super::Coordinator;
use crate::api::{ServerStatus, Status, WorkerReport};
use crate::draining::is_empty;
use crate::linked::{broken_links, unlinked};
use crate::moves;
use crate::overview::{self, Overview};

impl Coordinator {
    /// O(cachelets).
    pub(super) fn status(&self) -> Status {
        let state = self.ledger.state();
        Status {
            cluster: state.cluster.clone(),
            map_version: state.map_version(),
            waits_for: self.ledger.missing(),
            servers: self.servers_status(),
            moves: moves::status(&self.ledger),
            balance: self.balanced.status(&self.ledger),
            hot: Some(self.hot.status(&self.ledger)),
            broken_links: broken_links(&self.ledger),
        }
    }

    /// O(cachelets + workers).
    pub(super) fn overview(&self) -> Overview {
        Overview {
            status: self.status(),
            hot: self.hot.keys(&self.ledger),
            scaling: self.scaling.status(&self.ledger, &self.balanced.drains),
            servers: overview::servers(&self.ledger),
            epoch: self.ledger.epoch,
        }
    }

    fn servers_status(&self) -> Vec<ServerStatus> {
        // By server, how many cachelets it has, and how many parts of the hashes.
        let mut owned: BTreeMap<ServerId, (usize, usize)> = BTreeMap::new();
        for (prefix, owner) in self.ledger.state().cachelets() {
            let (cachelets, nodes) = owned.entry(owner.server).or_default();
            (*cachelets, *nodes) = (*cachelets + 1, *nodes + prefix.nodes());
        }
        let unlinked = unlinked(&self.ledger);
        let status = |id: &ServerId| {
            let owned = owned.get(id).copied().unwrap_or_default();
            self.server_status(*id, owned, unlinked.contains(id))
        };
        self.ledger.state().members.keys().map(status).collect()
    }

    fn server_status(
        &self,
        id: ServerId,
        (cachelets, nodes): (usize, usize),
        is_unlinked: bool,
    ) -> ServerStatus {
        let member = &self.ledger.state().members[&id];
        let heard = self.ledger.heard(id);
        let last = heard.map(|heard| &heard.last);
        let is_draining = self.ledger.state().draining.contains(&id);
        let state = match (member.is_alive(), self.ledger.is_heard(id)) {
            (false, _) if member.retired => "retired",
            (false, _) => "lost",
            (true, false) if heard.is_none() && self.ledger.awaits() => "awaited",
            (true, false) => "silent",
            (true, true) if is_draining => self.draining_state(id, cachelets),
            (true, true) if last.is_some_and(|last| last.starting) => "starting",
            (true, true) if is_unlinked => "unlinked",
            (true, true) => "serving",
        };
        let workers = last.map_or(&[][..], |last| &last.workers);
        let load = WorkerReport::load;
        ServerStatus {
            id: id.0,
            incarnation: member.incarnation,
            client: member.addresses.client.to_string(),
            link: member.addresses.link.as_ref().map(Address::to_string).unwrap_or_default(),
            workers: member.addresses.workers.len(),
            memory_bytes: member.memory_bytes,
            cachelets,
            share: nodes as f64 / 65_536.0,
            // Not the sum of nothing, which is -0.
            load: workers.iter().map(load).fold(0.0, |sum, one| sum + one)
                / workers.len().max(1) as f64,
            map_version: last.map_or(0, |last| last.map_version),
            version: last.map_or_else(String::new, |last| last.version.clone()),
            link_versions: last.map_or([0; 2], |last| last.link_versions),
            silent_ms: heard.map(|heard| (self.ledger.now - heard.at).as_millis() as u64),
            state: state.into(),
        }
    }

    fn draining_state(&self, server: ServerId, cachelets: usize) -> &'static str {
        let is_empty = is_empty(self.ledger.state(), server, cachelets);
        match () {
            () if is_empty && self.balanced.drains.may_be_stopped(server) => "drained",
            () if self.balanced.plan.stuck.contains(&server) => "stuck",
            () => "draining",
        }
    }
}
