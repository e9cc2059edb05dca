//! Who is a member: by which id, at which addresses; and what the dead had.

use std::collections::BTreeMap;
use std::sync::Arc;

use mbal_model::{Owner, Prefix, ServerId};

use crate::api::Registration;
use crate::leases::Watched;
use crate::ledger::Ledger;
use crate::placement::redeal;
use crate::refusal::Refusal;
use crate::state::{Member, State, addresses};

/// Ids that a coordinator gives begin here.
const FIRST_ID: u16 = 1;

/// A process wants to serve. Its id, and whether it had registered before.
pub(crate) fn admit(
    ledger: &mut Ledger,
    leases: &Watched,
    asked: &Registration,
) -> Result<(ServerId, bool), Refusal> {
    let state = ledger.state();
    let member = candidate(state, leases, asked)?;
    // What was on its way to it before may still come, and would meet the same process.
    if state.members.values().any(|other| other.ended == asked.incarnation) {
        let why = "this process was said to be dead: it is to begin anew, as another incarnation";
        return Err(Refusal::Conflict(why.into()));
    }
    let id = match asked.id {
        Some(id) if ServerId(id) == ServerId::NOBODY => {
            return Err(Refusal::Senseless("a server's id is 0 to 65534".into()));
        }
        Some(id) => ServerId(id),
        None => id_for(state, &member)?,
    };
    let addresses = &member.addresses;
    let mut others = state.alive().filter(|(other, _)| *other != id);
    let same = others.find(|(_, other)| {
        other.addresses.link == addresses.link || other.addresses.client == addresses.client
    });
    if let Some((other, _)) = same {
        let why = format!("server {} has one of these addresses", other.0);
        return Err(Refusal::Conflict(why));
    }
    drop(others);
    leases.may_succeed(state, id, asked)?;
    let ended = state.members.get(&id).map_or(Member::DEAD, |before| before.ended);
    let member = Member { ended, ..member };
    let before = Arc::make_mut(&mut ledger.change().members).insert(id, member);
    Ok((id, before.is_some_and(|before| before.incarnation == asked.incarnation)))
}

fn candidate(state: &State, leases: &Watched, asked: &Registration) -> Result<Member, Refusal> {
    if asked.cluster != state.cluster {
        let why = format!("this is cluster {}, not {}", state.cluster, asked.cluster);
        return Err(Refusal::Conflict(why));
    }
    if asked.incarnation == Member::DEAD {
        return Err(Refusal::Senseless("an incarnation is not 0".into()));
    }
    let addresses = addresses(&asked.client, &asked.link, &asked.workers);
    let addresses = addresses.map_err(Refusal::Senseless)?;
    Ok(Member {
        incarnation: asked.incarnation,
        ended: Member::DEAD,
        retired: false,
        addresses,
        memory_bytes: asked.memory_bytes,
        moves: asked.moves,
        lease_ms: leases.lease_ms_for(state, asked),
        coordinators: leases.coordinators_of(asked),
    })
}

/// Who comes back to its addresses is who it was; else the least number that is free.
fn id_for(state: &State, member: &Member) -> Result<ServerId, Refusal> {
    let same = state.members.iter().find(|(_, other)| other.addresses == member.addresses);
    if let Some((id, _)) = same {
        return Ok(*id);
    }
    let free = (FIRST_ID..ServerId::NOBODY.0).map(ServerId);
    let mut free = free.filter(|id| !state.members.contains_key(id));
    free.next().ok_or_else(|| Refusal::Conflict("there are 65,534 servers already".into()))
}

/// It is dead; `retired`: it was empty, as it was to be. False if that was known.
pub(crate) fn bury(ledger: &mut Ledger, server: ServerId, retired: bool) -> Result<bool, Refusal> {
    if !ledger.state().member(server)?.is_alive() {
        return Ok(false);
    }
    let members = Arc::make_mut(&mut ledger.change().members);
    let member = members.get_mut(&server).expect("it is known");
    member.ended = std::mem::replace(&mut member.incarnation, Member::DEAD);
    member.retired = retired;
    Ok(true)
}

/// Workers of the servers that are alive; those that are to be emptied only if there is nobody else.
pub(crate) fn workers(state: &State) -> BTreeMap<ServerId, u16> {
    let mut workers: BTreeMap<ServerId, u16> =
        state.alive().map(|(id, member)| (id, member.workers())).collect();
    if workers.keys().any(|id| !state.draining.contains(id)) {
        workers.retain(|id, _| !state.draining.contains(id));
    }
    workers
}

/// What dead servers have by the map is the others', if there are any.
pub(crate) fn without_the_dead(state: &State) -> Vec<(Prefix, Owner)> {
    let workers = workers(state);
    let owners = state.cachelets().copied().collect();
    let dead = state.members.iter().filter(|(_, member)| !member.is_alive());
    dead.fold(owners, |owners: Vec<_>, (id, _)| redeal(&owners, *id, &workers))
}
