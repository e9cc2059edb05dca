//! Servers that are to be emptied, and when they may be stopped.

use std::collections::{BTreeMap, BTreeSet};

use mbal_model::ServerId;

use crate::api::Drain;
use crate::ledger::Ledger;
use crate::moves;
use crate::refusal::Refusal;
use crate::state::State;

/// What was told of them since this process began.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Drains {
    /// Those that have nothing, and the map by which they have nothing.
    drained: BTreeMap<ServerId, u64>,
    /// Of these, those that all others know to have nothing.
    unasked: BTreeSet<ServerId>,
}

/// Moves from it go on in either case. It is given nothing any more.
pub(crate) fn drain(ledger: &mut Ledger, server: ServerId, wanted: bool) -> Result<(), Refusal> {
    let member = ledger.state().member(server)?;
    if wanted && !member.is_alive() {
        return Err(Refusal::Conflict(format!("server {} is dead", server.0)));
    }
    if wanted && !member.moves {
        return Err(cannot_give(server));
    }
    if wanted && ledger.serving() == [server] {
        let why =
            format!("no other server than {} serves: nobody could take what it has", server.0);
        return Err(Refusal::Conflict(why));
    }
    let changed = match wanted {
        true => ledger.change().draining.insert(server),
        false => end_drain(ledger, server),
    };
    if changed {
        let what = if wanted { "is to be emptied" } else { "is not to be emptied any more" };
        ledger.say(format!("server {} {what}", server.0));
        if wanted {
            moves::withdraw_to(ledger, server);
        }
    }
    Ok(())
}

/// It is to be emptied no more, or is gone.
pub(crate) fn end_drain(ledger: &mut Ledger, server: ServerId) -> bool {
    if !ledger.state().draining.contains(&server) && !ledger.state().retiring.contains(&server) {
        return false;
    }
    let state = ledger.change();
    state.retiring.remove(&server);
    state.draining.remove(&server)
}

pub(crate) fn cannot_give(server: ServerId) -> Refusal {
    let why = format!("server {} is of a version that cannot give cachelets", server.0);
    Refusal::Conflict(why)
}

/// It has no cachelet, and none is on its way to it.
pub(crate) fn is_empty(state: &State, server: ServerId, cachelets: usize) -> bool {
    let comes = state.moves.values().any(|one| one.to.server == server);
    cachelets == 0 && !comes && state.map.is_some()
}

/// Of one that ends now: it was to be emptied, and is empty.
pub(crate) fn has_retired(state: &State, server: ServerId) -> bool {
    let held = state.cachelets().filter(|(_, owner)| owner.server == server);
    state.draining.contains(&server) && is_empty(state, server, held.count())
}

impl Drains {
    /// It has nothing, and no other server that is heard of would send it requests.
    pub fn may_be_stopped(&self, server: ServerId) -> bool {
        self.unasked.contains(&server)
    }

    /// By a new map, or moves that have ended.
    pub fn update(&mut self, state: &State) {
        let holding: BTreeSet<ServerId> =
            state.cachelets().map(|(_, owner)| owner.server).collect();
        let drained = state.draining.iter().copied();
        let drained = drained.filter(|id| is_empty(state, *id, usize::from(holding.contains(id))));
        let drained: Vec<ServerId> = drained.collect();
        let version = state.map_version();
        self.drained.retain(|server, _| drained.contains(server));
        self.unasked.retain(|server| drained.contains(server));
        for server in drained {
            self.drained.entry(server).or_insert(version);
        }
    }

    /// Of a server that has just been heard of: how far it is emptied.
    pub fn look_at(&mut self, ledger: &mut Ledger, server: ServerId) -> Option<Drain> {
        if !ledger.state().draining.contains(&server) {
            return None;
        }
        self.update(ledger.state());
        let mut others = ledger.state().alive().filter(|(id, _)| *id != server);
        let Some(emptied) = self.drained.get(&server) else {
            let takes = others.any(|(id, one)| one.moves && !ledger.state().draining.contains(&id));
            return Some(if takes { Drain::Draining } else { Drain::Nobody });
        };
        let knows = |id| ledger.heard(id).is_none_or(|heard| *emptied <= heard.last.map_version);
        if others.any(|(id, _)| ledger.is_heard(id) && !knows(id)) {
            return Some(Drain::Draining);
        }
        drop(others);
        if self.unasked.insert(server) {
            ledger.say(format!("server {} is empty, and may be stopped", server.0));
        }
        Some(Drain::Drained)
    }
}
