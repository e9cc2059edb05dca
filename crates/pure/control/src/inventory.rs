//! What servers have, by the ages of their items: asked for before some of them retire.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_model::{Instant, ServerId};

use crate::api::{AgesAsked, AgesReport, Incarnation, Scaling};
use crate::ledger::Ledger;
use crate::state::State;

/// Who has not told ages by then is not waited for: a server of an older version, or one that is silent.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// What who chooses reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Inventory {
    pub number: u32,
    /// So many servers are to retire.
    pub count: usize,
    /// These, if anybody was named; who of them is silent is not in `servers`.
    pub named: Vec<ServerId>,
    pub servers: Vec<(ServerId, AgesReport)>,
}

/// One is being made.
#[derive(Debug)]
pub(crate) struct Asking {
    pub number: u32,
    pub dry_run: bool,
    since: Instant,
    answers: BTreeMap<ServerId, (Incarnation, AgesReport)>,
}

impl Asking {
    pub fn new(now: Instant, number: u32, dry_run: bool) -> Asking {
        Asking { number, dry_run, since: now, answers: BTreeMap::new() }
    }

    /// What a heartbeat has told, and what its answer asks for.
    pub fn heard(
        &mut self,
        ledger: &Ledger,
        server: ServerId,
        told: Option<AgesReport>,
    ) -> Option<AgesAsked> {
        let incarnation = ledger.state().members.get(&server)?.incarnation;
        if let Some(told) = told.filter(|told| told.number == self.number) {
            self.answers.insert(server, (incarnation, told));
        }
        let ago_ms = (ledger.now - self.since).as_millis() as u64;
        let has_told = self.has_told(ledger.state(), server);
        (!has_told).then_some(AgesAsked { number: self.number, ago_ms })
    }

    fn has_told(&self, state: &State, server: ServerId) -> bool {
        let told = self.answers.get(&server);
        told.is_some_and(|(process, _)| *process == state.members[&server].incarnation)
    }

    /// Of those that serve, who has not told yet.
    pub fn awaited(&self, state: &State, serving: &[ServerId]) -> Vec<ServerId> {
        serving.iter().copied().filter(|id| !self.has_told(state, *id)).collect()
    }

    /// Of all servers that may retire or stay, when they have told what they have.
    pub fn inventory(
        &self,
        ledger: &Ledger,
        serving: &[ServerId],
        scaling: &Scaling,
    ) -> Option<Inventory> {
        let awaited = self.awaited(ledger.state(), serving);
        if !awaited.is_empty() && ledger.now < self.since + ANSWERED_WITHIN {
            return None;
        }
        let moves = |id: &&ServerId| ledger.state().members[*id].moves && !awaited.contains(id);
        let servers: Vec<(ServerId, AgesReport)> =
            serving.iter().filter(moves).map(|id| (*id, self.answers[id].1.clone())).collect();
        let count = serving.len().saturating_sub(scaling.servers);
        let named = scaling.retire.iter().map(|id| ServerId(*id));
        let named: Vec<ServerId> = named.filter(|id| serving.contains(id)).take(count).collect();
        let count = if scaling.retire.is_empty() { count } else { named.len() };
        let enough = count < servers.len() || count == named.len();
        enough.then_some(Inventory { number: self.number, count, named, servers })
    }
}
