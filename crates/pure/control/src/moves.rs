//! Moves between servers, as the coordinator sees them: ordered, running, sealed; then a new map says so.

use std::sync::Arc;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{ClusterMap, MoveId, Owner, Prefix, SPLITS_UNTIL, ServerId, WorkerId};

use crate::api::{MoveCall, MoveDecision, MoveNews, MoveReport, MoveStatus, Progress, SplitCall};
use crate::ledger::Ledger;
use crate::refusal::Refusal;
use crate::selection::selected;
use crate::state::{Move, State};

/// How a move has come to an end.
pub(crate) enum Ended {
    Arrived(ServerId),
    /// Its destination was not reached, or did not take it, though it was to.
    Refused(ServerId),
}

/// An operator orders a move.
pub(crate) fn begin(ledger: &mut Ledger, call: &MoveCall) -> Result<u32, Refusal> {
    let number = order(ledger, call)?;
    let Move { prefix, from, to, .. } = ledger.state().moves[&MoveId(number)];
    ledger.say(format!("move {number}: {prefix} from server {} to {}", from.server.0, to.server.0));
    Ok(number)
}

/// It ends by a new map, or changes nothing. Whoever orders it says why.
pub(crate) fn order(ledger: &mut Ledger, call: &MoveCall) -> Result<u32, Refusal> {
    let prefix = prefix(&call.prefix)?;
    let to = ServerId(call.server);
    let map = ledger.map()?;
    let member = ledger.state().member(to)?;
    if !member.is_alive() {
        return Err(Refusal::Conflict(format!("server {} is dead", to.0)));
    }
    // What comes when it has been told that it is empty would end with it.
    let is_left = ledger.state().draining.contains(&to) || ledger.ends(to);
    if is_left && !is_planted(Fault::DrainingTakes) {
        let why = format!("server {} is to be emptied: it is given nothing", to.0);
        return Err(Refusal::Conflict(why));
    }
    let to_incarnation = member.incarnation;
    let worker = match call.worker {
        Some(worker) if worker >= member.workers() => {
            let why = format!("server {} has {} workers", to.0, member.workers());
            return Err(Refusal::Senseless(why));
        }
        Some(worker) => WorkerId(worker),
        None => lightest_worker(map, to, member.workers()),
    };
    let from = owner_of(map, prefix)?;
    if from.server == to {
        let why =
            format!("server {} has {prefix} already; its balancer lends between its workers", to.0);
        return Err(Refusal::Conflict(why));
    }
    stays(ledger.state(), prefix)?;
    let to = Owner { server: to, worker };
    let one = Move { prefix, from, to, to_incarnation, word: MoveDecision::Go };
    let state = ledger.change();
    state.moves_ever += 1;
    state.moves.insert(MoveId(state.moves_ever), one);
    Ok(state.moves_ever)
}

fn stays(state: &State, prefix: Prefix) -> Result<(), Refusal> {
    match state.moves.iter().find(|(_, one)| one.prefix == prefix) {
        Some((number, _)) => {
            Err(Refusal::Conflict(format!("move {} has {prefix} already", number.0)))
        }
        None => Ok(()),
    }
}

/// An operator wants two cachelets in the place of one.
pub(crate) fn split(ledger: &mut Ledger, call: &SplitCall) -> Result<(), Refusal> {
    let whole = prefix(&call.prefix)?;
    let owner = divide(ledger, whole, 1)?;
    let parts: Vec<String> = whole.parts(1).map(|half| half.to_string()).collect();
    ledger.say(format!(
        "{whole} of server {} is split into {}",
        owner.server.0,
        parts.join(" and ")
    ));
    Ok(())
}

/// 2^`bits` cachelets in the place of one. Its server splits what it has of it while it serves it; a move of a part waits for that.
pub(crate) fn divide(ledger: &mut Ledger, whole: Prefix, bits: u32) -> Result<Owner, Refusal> {
    let map = Arc::clone(ledger.map()?);
    let owner = owner_of(&map, whole)?;
    stays(ledger.state(), whole)?;
    if whole.bits() + bits > Prefix::BITS_MAX {
        return Err(Refusal::Senseless(format!("{whole} is as narrow as cachelets get")));
    }
    let held = map.cachelets().iter().filter(|(_, other)| other.server == owner.server);
    if held.count() >= SPLITS_UNTIL {
        let why = format!("server {} has {SPLITS_UNTIL} cachelets or more", owner.server.0);
        return Err(Refusal::Conflict(why));
    }
    let parts = |&(held, owner): &(Prefix, Owner)| {
        let bits = if held == whole { bits } else { 0 };
        held.parts(bits).map(move |part| (part, owner))
    };
    ledger.publish(map.cachelets().iter().flat_map(parts).collect());
    Ok(owner)
}

/// Tells the source to serve everything again, which it does if nothing is gone. A move that is over is unknown.
pub(crate) fn cancel(ledger: &mut Ledger, number: u32) -> Result<(), Refusal> {
    let unknown = || Refusal::Unknown(format!("no move {number} is under way"));
    let one = ledger.state().moves.get(&MoveId(number)).ok_or_else(unknown)?;
    if one.word == MoveDecision::Go {
        decide(ledger, MoveId(number), MoveDecision::Cancel);
        ledger.say(format!("move {number} is to be cancelled"));
    }
    Ok(())
}

/// A server is to be emptied: what is on its way to it stays where it is, if nothing of it has gone; the rest is waited for.
pub(crate) fn withdraw_to(ledger: &mut Ledger, server: ServerId) {
    let moves = ledger.state().moves.iter();
    let coming = moves.filter(|(_, one)| one.to.server == server && one.word == MoveDecision::Go);
    let coming: Vec<MoveId> = coming.map(|(number, _)| *number).collect();
    for number in coming {
        decide(ledger, number, MoveDecision::Cancel);
        ledger.say(format!(
            "move {} is to be cancelled: server {} is to be emptied",
            number.0, server.0
        ));
    }
}

/// What a source says of its move. Old news and other servers' change nothing.
pub(crate) fn reported(ledger: &mut Ledger, from: ServerId, report: &MoveReport) -> Option<Ended> {
    let (id, number) = (MoveId(report.number), report.number);
    let moves = &ledger.state().moves;
    let one = moves.get(&id).filter(|one| one.from.server == from).copied()?;
    match (report.progress, one.word) {
        // A cancelled one may have been sealed before the source heard of it: then it has moved.
        (Progress::Sealed, MoveDecision::Go | MoveDecision::Cancel) => {
            ledger.change().moves.remove(&id);
            ledger.say(format!("move {number}: {} has moved", one.prefix));
            give(ledger, one.prefix, one.to);
            Some(Ended::Arrived(one.to.server))
        }
        (Progress::Back, word) => {
            let why = report.why.as_deref().map_or(String::new(), |why| format!(": {why}"));
            ledger.say(format!("move {number}: {} stays where it was{why}", one.prefix));
            ledger.change().moves.remove(&id);
            (word == MoveDecision::Go).then_some(Ended::Refused(one.to.server))
        }
        (Progress::TooLate, MoveDecision::Cancel) => {
            ledger.say(format!("move {number} is too far to be cancelled"));
            decide(ledger, id, MoveDecision::Go);
            None
        }
        _ => None,
    }
}

fn decide(ledger: &mut Ledger, id: MoveId, word: MoveDecision) {
    ledger.change().moves.get_mut(&id).expect("it is under way").word = word;
}

/// A new map, by which one cachelet is another's.
fn give(ledger: &mut Ledger, prefix: Prefix, to: Owner) {
    let mut owners: Vec<(Prefix, Owner)> = ledger.state().cachelets().copied().collect();
    if let Some((_, owner)) = owners.iter_mut().find(|(held, _)| *held == prefix) {
        *owner = to;
    }
    ledger.publish(owners);
}

/// A server has died, or another process has taken its place. What was on its way from it is the destination's,
/// as far as it got; what was on its way to it stays where it was.
pub(crate) fn end_of_dead(ledger: &mut Ledger, dead: ServerId) {
    let all: Vec<(MoveId, Move)> =
        ledger.state().moves.iter().map(|(id, one)| (*id, *one)).collect();
    for (id, one) in all {
        if one.from.server == dead {
            ledger.change().moves.remove(&id);
            if one.word != MoveDecision::DestinationLost {
                ledger.say(format!("move {} ends with its source", id.0));
                give(ledger, one.prefix, one.to);
            }
        } else if one.to.server == dead {
            ledger.say(format!("move {} has lost its destination", id.0));
            decide(ledger, id, MoveDecision::DestinationLost);
        }
    }
}

/// The moves in which a server takes part, and what has become of them.
pub(crate) fn of_server(state: &State, server: ServerId) -> Vec<MoveNews> {
    let of_it = state.moves.iter();
    let of_it = of_it.filter(|(_, one)| one.from.server == server || one.to.server == server);
    let news = |(id, one): (&MoveId, &Move)| MoveNews {
        number: id.0,
        prefix: one.prefix.to_string(),
        from: one.from.server.0,
        to: one.to.server.0,
        worker: one.to.worker.0,
        to_incarnation: one.to_incarnation,
        word: one.word,
        selected: selected(state, one.from.server, one.to.server),
    };
    of_it.map(news).collect()
}

/// All of them, and what their sources have said last.
pub(crate) fn status(ledger: &Ledger) -> Vec<MoveStatus> {
    let status = |(id, one): (&MoveId, &Move)| MoveStatus {
        number: id.0,
        prefix: one.prefix.to_string(),
        from: one.from.server.0,
        to: one.to.server.0,
        word: one.word,
        report: ledger
            .report(one.from.server, id.0)
            .map(|report| MoveReport { number: 0, ..report.clone() }),
    };
    ledger.state().moves.iter().map(status).collect()
}

/// The worker of a server that has the smallest part of the hashes.
fn lightest_worker(map: &ClusterMap, server: ServerId, workers: u16) -> WorkerId {
    let nodes = |worker: u16| {
        let owner = Owner { server, worker: WorkerId(worker) };
        let held = map.cachelets().iter().filter(|(_, other)| *other == owner);
        held.map(|(prefix, _)| prefix.nodes()).sum::<usize>()
    };
    WorkerId((0..workers).min_by_key(|worker| nodes(*worker)).unwrap_or(0))
}

fn owner_of(map: &ClusterMap, prefix: Prefix) -> Result<Owner, Refusal> {
    let held = map.cachelets().iter().find(|(held, _)| *held == prefix);
    held.map(|(_, owner)| *owner).ok_or_else(|| {
        let (covering, _) = map.at(prefix.first_hash());
        Refusal::Unknown(format!(
            "{prefix} is no cachelet of the map; its first keys are {covering}'s"
        ))
    })
}

/// As an operator writes it.
fn prefix(text: &str) -> Result<Prefix, Refusal> {
    let expected = || Refusal::Senseless(format!("a cachelet is a prefix like 2800/5, not {text}"));
    Prefix::parse(text.as_bytes()).ok_or_else(expected)
}
