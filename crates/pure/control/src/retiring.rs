//! Servers that retire: who may, who does, how far it is.

use std::collections::BTreeSet;

use mbal_model::ServerId;

use crate::api::{ScalePlan, Scaling};
use crate::draining::{Drains, cannot_give, end_drain};
use crate::ledger::Ledger;
use crate::moves;
use crate::refusal::Refusal;
use crate::state::{Move, State};

/// Whether those that are named serve, can give what they have, and are as many as are too many.
pub(crate) fn can_retire(
    state: &State,
    serving: &[ServerId],
    servers: usize,
    named: &[u16],
) -> Result<(), Refusal> {
    if named.is_empty() {
        return Ok(());
    }
    for id in named {
        let member = state.member(ServerId(*id))?;
        if !serving.contains(&ServerId(*id)) {
            return Err(Refusal::Conflict(format!("server {id} does not serve")));
        }
        if !member.moves {
            return Err(cannot_give(ServerId(*id)));
        }
    }
    let different: BTreeSet<&u16> = named.iter().collect();
    let too_many = serving.len().checked_sub(servers);
    if different.len() != named.len() || too_many != Some(named.len()) {
        return Err(Refusal::Conflict(format!(
            "{} servers serve: {} of them have to be named for {servers} to stay",
            serving.len(),
            too_many.unwrap_or(0)
        )));
    }
    Ok(())
}

/// Servers that have retired and are still there serve again, if more are wanted.
pub(crate) fn want_back(ledger: &mut Ledger, servers: usize) {
    let missing = servers.saturating_sub(ledger.serving().len());
    let plan = ledger.state().scaling.as_ref().and_then(|scaling| scaling.plan.as_ref());
    let retired = plan.iter().flat_map(|plan| plan.retiring.iter().rev());
    let mut retired: Vec<ServerId> = retired.map(|one| ServerId(one.server)).collect();
    retired.extend(&ledger.state().retiring);
    let mut back = Vec::new();
    for server in retired {
        let is_there = ledger.state().draining.contains(&server) && !ledger.ends(server);
        if is_there && !back.contains(&server) {
            back.push(server);
        }
    }
    for server in back.into_iter().take(missing) {
        end_drain(ledger, server);
        ledger.say(format!("server {} is wanted again", server.0));
    }
}

pub(crate) fn retire(ledger: &mut Ledger, server: ServerId) {
    if ledger.change().draining.insert(server) {
        moves::withdraw_to(ledger, server);
    }
    if ledger.state().scaling.as_ref().is_some_and(|scaling| scaling.stops) {
        ledger.change().retiring.insert(server);
    }
}

/// A process of this number begins. One that was to be emptied and was not is to be still.
pub(crate) fn retire_again(ledger: &mut Ledger, server: ServerId) {
    let goes_on = ledger.state().scaling.as_ref().filter(|scaling| !scaling.done);
    let plan = goes_on.and_then(|scaling| scaling.plan.as_ref());
    let retires = plan.is_some_and(|plan| plan.has(server));
    if retires && ledger.state().cachelets().any(|(_, owner)| owner.server == server) {
        retire(ledger, server);
    }
}

/// A server is dead. If too few are left, the last one that was chosen stays.
pub(crate) fn keep_enough(ledger: &mut Ledger, drains: &Drains) {
    let state = ledger.state();
    let under_way = state.scaling.as_ref().filter(|one| !is_over(ledger, drains, one));
    let Some(scaling) = under_way else { return };
    if scaling.plan.is_none() || ledger.serving().len() >= scaling.servers {
        return;
    }
    let retiring = scaling.plan.iter().flat_map(|plan| plan.retiring.iter().rev());
    let mut retiring = retiring.map(|one| ServerId(one.server));
    if let Some(stays) = retiring.find(|id| state.draining.contains(id)) {
        let number = scaling.number;
        end_drain(ledger, stays);
        ledger.say(format!("scaling {number}: too few servers are left, server {} stays", stays.0));
    }
}

/// Whether nothing is left to be done.
pub(crate) fn is_over(ledger: &Ledger, drains: &Drains, scaling: &Scaling) -> bool {
    let state = ledger.state();
    // It is empty, dead, or was told to stay.
    let has_retired = |server: ServerId| {
        let is_alive = state.members.get(&server).is_some_and(|one| one.is_alive());
        !is_alive || !state.draining.contains(&server) || drains.may_be_stopped(server)
    };
    match &scaling.plan {
        _ if scaling.done => true,
        None if scaling.grows => ledger.serving().len() >= scaling.servers,
        None => false,
        Some(plan) => plan.retiring.iter().all(|one| has_retired(ServerId(one.server))),
    }
}

/// What those that retire have of the hashes.
pub(crate) fn nodes_of(state: &State, plan: &ScalePlan) -> usize {
    let retiring = state.cachelets().filter(|(_, owner)| plan.has(owner.server));
    retiring.map(|(prefix, _)| prefix.nodes()).sum()
}

/// Of what they had.
pub(crate) fn part_done(ledger: &Ledger, plan: &ScalePlan) -> f64 {
    let state = ledger.state();
    let is_of_it = |one: &&Move| plan.has(one.from.server);
    let under_way = state.moves.iter().filter(|(_, one)| is_of_it(one));
    let gone = under_way.filter_map(|(id, one)| {
        let report = ledger.report(one.from.server, id.0)?;
        Some(report.part_gone * one.prefix.nodes() as f64)
    });
    let left = nodes_of(state, plan) as f64 - gone.sum::<f64>();
    (1.0 - left / plan.nodes.max(1) as f64).clamp(0.0, 1.0)
}
