//! Moves between servers, as the coordinator sees them: ordered, running, sealed; then a new map says so.

use std::sync::Arc;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{ClusterMap, MoveId, Owner, Prefix, ServerId, WorkerId};
use serde::{Deserialize, Serialize};

use crate::api::{
    Incarnation, MoveCall, MoveDecision, MoveNews, MoveReport, MoveStatus, Progress, SplitCall,
};
use crate::coordinator::{Answer, Coordinator, Micros, Refusal, known, prefix};

/// A server that has so many cachelets splits none: a store has room for twice as many.
const SPLITS_UNTIL: usize = 2_048;

/// A cachelet that is to be another server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub prefix: Prefix,
    pub from: Owner,
    pub to: Owner,
    /// The destination's process; another one knows nothing of the move.
    pub to_incarnation: Incarnation,
    pub word: MoveDecision,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedMove {
    prefix: String,
    from: (u16, u16),
    to: (u16, u16),
    to_incarnation: Incarnation,
    word: MoveDecision,
}

impl From<&Move> for SavedMove {
    fn from(one: &Move) -> SavedMove {
        let pair = |owner: Owner| (owner.server.0, owner.worker.0);
        SavedMove {
            prefix: one.prefix.to_string(),
            from: pair(one.from),
            to: pair(one.to),
            to_incarnation: one.to_incarnation,
            word: one.word,
        }
    }
}

impl TryFrom<SavedMove> for Move {
    type Error = String;

    fn try_from(saved: SavedMove) -> Result<Move, String> {
        let owner = |(server, worker)| Owner { server: ServerId(server), worker: WorkerId(worker) };
        let prefix = Prefix::parse(saved.prefix.as_bytes());
        let prefix = prefix.ok_or_else(|| format!("{} is no cachelet", saved.prefix))?;
        Ok(Move {
            prefix,
            from: owner(saved.from),
            to: owner(saved.to),
            to_incarnation: saved.to_incarnation,
            word: saved.word,
        })
    }
}

impl Move {
    pub(crate) fn status(&self, number: u32, report: Option<MoveReport>) -> MoveStatus {
        MoveStatus {
            number,
            prefix: self.prefix.to_string(),
            from: self.from.server.0,
            to: self.to.server.0,
            word: self.word,
            report: report.map(|report| MoveReport { number: 0, ..report }),
        }
    }
}

impl Coordinator {
    /// Orders a move. It ends by a new map, or changes nothing.
    pub(crate) fn begin_move(&mut self, call: &MoveCall) -> Result<u32, Refusal> {
        let prefix = prefix(&call.prefix)?;
        let to = ServerId(call.server);
        let Some(map) = &self.state.map else { return Err(self.no_map()) };
        let member = known(&self.state, to)?;
        if !member.is_alive() {
            return Err(Refusal::Conflict(format!("server {} is dead", to.0)));
        }
        // What comes when it has been told that it is empty would end with it.
        let is_left = self.state.draining.contains(&to) || self.ends(to);
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
            let why = format!(
                "server {} has {prefix} already; its balancer lends between its workers",
                to.0
            );
            return Err(Refusal::Conflict(why));
        }
        self.stays(prefix)?;
        self.changing().moves_ever += 1;
        let number = self.state.moves_ever;
        let to = Owner { server: to, worker };
        self.said.push(format!(
            "move {number}: {prefix} from server {} to {}",
            from.server.0, to.server.0
        ));
        let one = Move { prefix, from, to, to_incarnation, word: MoveDecision::Go };
        self.changing().moves.insert(MoveId(number), one);
        Ok(number)
    }

    fn stays(&self, prefix: Prefix) -> Result<(), Refusal> {
        match self.state.moves.iter().find(|(_, one)| one.prefix == prefix) {
            Some((number, _)) => {
                Err(Refusal::Conflict(format!("move {} has {prefix} already", number.0)))
            }
            None => Ok(()),
        }
    }

    /// Two cachelets in the place of one. Its server splits what it has of it while it serves it; a move of a half waits for that.
    pub(crate) fn split(&mut self, call: &SplitCall) -> Result<Answer, Refusal> {
        let whole = prefix(&call.prefix)?;
        let Some(map) = self.state.map.clone() else { return Err(self.no_map()) };
        let owner = owner_of(&map, whole)?;
        self.stays(whole)?;
        let Some((low, high)) = whole.halves() else {
            return Err(Refusal::Senseless(format!("{whole} is as narrow as cachelets get")));
        };
        let held = map.cachelets().iter().filter(|(_, other)| other.server == owner.server);
        if held.count() >= SPLITS_UNTIL {
            let why = format!("server {} has {SPLITS_UNTIL} cachelets or more", owner.server.0);
            return Err(Refusal::Conflict(why));
        }
        let halves = |one: &(Prefix, Owner)| match one.0 == whole {
            true => [Some((low, owner)), Some((high, owner))],
            false => [Some(*one), None],
        };
        self.publish(map.cachelets().iter().flat_map(halves).flatten().collect());
        self.said
            .push(format!("{whole} of server {} is split into {low} and {high}", owner.server.0));
        Ok(Answer::Done)
    }

    /// Tells the source to serve everything again, which it does if nothing is gone. A move that is over is unknown.
    pub(crate) fn cancel_move(&mut self, number: u32) -> Result<Answer, Refusal> {
        let unknown = || Refusal::Unknown(format!("no move {number} is under way"));
        let one = self.state.moves.get(&MoveId(number)).ok_or_else(unknown)?;
        if one.word == MoveDecision::Go {
            self.tell_move(MoveId(number), MoveDecision::Cancel);
            self.said.push(format!("move {number} is to be cancelled"));
        }
        Ok(Answer::Done)
    }

    /// A server is to be emptied: what is on its way to it stays where it is, if nothing of it has gone; the rest is waited for.
    pub(crate) fn withdraw_moves_to(&mut self, server: ServerId) {
        let moves = self.state.moves.iter();
        let coming =
            moves.filter(|(_, one)| one.to.server == server && one.word == MoveDecision::Go);
        let coming: Vec<MoveId> = coming.map(|(number, _)| *number).collect();
        for number in coming {
            self.tell_move(number, MoveDecision::Cancel);
            self.said.push(format!(
                "move {} is to be cancelled: server {} is to be emptied",
                number.0, server.0
            ));
        }
    }

    /// What a source says of its move. Old news and other servers' change nothing.
    pub(crate) fn move_reported(&mut self, now: Micros, from: ServerId, report: &MoveReport) {
        let id = MoveId(report.number);
        let moves = &self.state.moves;
        let Some(one) = moves.get(&id).filter(|one| one.from.server == from).copied() else {
            return;
        };
        match (report.progress, one.word) {
            // A cancelled one may have been sealed before the source heard of it: then it has moved.
            (Progress::Sealed, MoveDecision::Go | MoveDecision::Cancel) => {
                self.changing().moves.remove(&id);
                self.said.push(format!("move {}: {} has moved", report.number, one.prefix));
                self.scaled_by(from, report);
                self.refuses_no_more(one.to.server);
                self.give(one.prefix, one.to);
            }
            (Progress::Back, word) => {
                let why = report.why.as_deref().map_or(String::new(), |why| format!(": {why}"));
                self.said.push(format!(
                    "move {}: {} stays where it was{why}",
                    report.number, one.prefix
                ));
                self.changing().moves.remove(&id);
                if word == MoveDecision::Go {
                    self.has_refused(now, one.to.server);
                }
            }
            (Progress::TooLate, MoveDecision::Cancel) => {
                self.said.push(format!("move {} is too far to be cancelled", report.number));
                self.tell_move(id, MoveDecision::Go);
            }
            _ => {}
        }
    }

    fn tell_move(&mut self, id: MoveId, word: MoveDecision) {
        self.changing().moves.get_mut(&id).expect("it is under way").word = word;
    }

    /// A new map, by which one cachelet is another's.
    fn give(&mut self, prefix: Prefix, to: Owner) {
        let map: Arc<ClusterMap> = self.state.map.clone().expect("a move begins with a map");
        let mut owners = map.cachelets().to_vec();
        if let Some((_, owner)) = owners.iter_mut().find(|(held, _)| *held == prefix) {
            *owner = to;
        }
        self.publish(owners);
    }

    /// A server has died, or another process has taken its place. What was on its way from it is the destination's,
    /// as far as it got; what was on its way to it stays where it was.
    pub(crate) fn moves_of_dead(&mut self, dead: ServerId) {
        let all: Vec<(MoveId, Move)> =
            self.state.moves.iter().map(|(id, one)| (*id, *one)).collect();
        for (id, one) in all {
            if one.from.server == dead {
                self.changing().moves.remove(&id);
                if one.word != MoveDecision::DestinationLost {
                    self.said.push(format!("move {} ends with its source", id.0));
                    self.give(one.prefix, one.to);
                }
            } else if one.to.server == dead {
                self.said.push(format!("move {} has lost its destination", id.0));
                self.tell_move(id, MoveDecision::DestinationLost);
            }
        }
    }

    /// The moves in which a server takes part, and what has become of them.
    pub(crate) fn moves_of(&self, server: ServerId) -> Vec<MoveNews> {
        let of_it = self.state.moves.iter();
        let of_it = of_it.filter(|(_, one)| one.from.server == server || one.to.server == server);
        let news = |(id, one): (&MoveId, &Move)| MoveNews {
            number: id.0,
            prefix: one.prefix.to_string(),
            from: one.from.server.0,
            to: one.to.server.0,
            worker: one.to.worker.0,
            to_incarnation: one.to_incarnation,
            word: one.word,
            selected: self.selected(one.from.server, one.to.server),
        };
        of_it.map(news).collect()
    }
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
