//! A coordinator's state as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use mbal_model::{
    Address, Cluster, Move as Step, MoveId, Owner, Prefix, Relief, Remedy, ServerId, WorkerId,
};
use serde::{Deserialize, Serialize};

use crate::api::{
    AutoscaleConfig, BalanceMode, CameReport, HotMode, Incarnation, MoveDecision, Scaling,
};
use crate::state::{Member, Move, State, addresses};

/// Of the saved form. A reader refuses any other.
const FORMAT: u32 = 1;

/// Why a saved state cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable(pub String);

impl fmt::Display for Unreadable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    format: u32,
    cluster: String,
    members: BTreeMap<u16, SavedMember>,
    /// A map document.
    map: Option<String>,
    moves: BTreeMap<u32, SavedMove>,
    moves_ever: u32,
    #[serde(default)]
    balance: BalanceMode,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    remedies: Vec<SavedRemedy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hot_keys: Option<HotMode>,
    #[serde(default)]
    draining: BTreeSet<u16>,
    #[serde(default)]
    flush_number: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    autoscale: Option<AutoscaleConfig>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    retiring: BTreeSet<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scaling: Option<Scaling>,
    #[serde(default, skip_serializing_if = "none_yet")]
    scalings_ever: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedMember {
    incarnation: Incarnation,
    #[serde(default = "nobody", skip_serializing_if = "is_nobody")]
    ended: Incarnation,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    retired: bool,
    client: String,
    link: String,
    workers: Vec<String>,
    memory_bytes: u64,
    #[serde(default)]
    moves: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    lease_ms: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    coordinators: Vec<String>,
}

fn nobody() -> Incarnation {
    Member::DEAD
}

fn is_nobody(incarnation: &Incarnation) -> bool {
    *incarnation == Member::DEAD
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn none_yet(ever: &u32) -> bool {
    *ever == 0
}

impl State {
    pub fn to_json(&self) -> String {
        let member = |member: &Member| SavedMember {
            incarnation: member.incarnation,
            ended: member.ended,
            retired: member.retired,
            client: member.addresses.client.to_string(),
            link: member.addresses.link.iter().map(Address::to_string).collect(),
            workers: member.addresses.workers.iter().map(Address::to_string).collect(),
            memory_bytes: member.memory_bytes,
            moves: member.moves,
            lease_ms: member.lease_ms,
            coordinators: member.coordinators.clone(),
        };
        let saved = Saved {
            format: FORMAT,
            cluster: self.cluster.clone(),
            members: self.members.iter().map(|(id, one)| (id.0, member(one))).collect(),
            map: self.document().map(|document| document.to_string()),
            moves: self.moves.iter().map(|(id, one)| (id.0, SavedMove::from(one))).collect(),
            moves_ever: self.moves_ever,
            balance: self.balance,
            remedies: self.remedies.iter().map(SavedRemedy::from).collect(),
            hot_keys: self.hot_keys,
            draining: self.draining.iter().map(|id| id.0).collect(),
            flush_number: self.flush_number,
            autoscale: self.autoscale.clone(),
            retiring: self.retiring.iter().map(|id| id.0).collect(),
            scaling: self.scaling.clone(),
            scalings_ever: self.scalings_ever,
        };
        let text =
            serde_json::to_string_pretty(&saved).expect("strings and numbers have a JSON form");
        text + "\n"
    }

    pub fn from_json(text: &str) -> Result<State, Unreadable> {
        let saved: Saved = serde_json::from_str(text)
            .map_err(|error| Unreadable(format!("not a coordinator's state: {error}")))?;
        if saved.format != FORMAT {
            return Err(Unreadable(format!(
                "format {}, and this program reads {FORMAT}",
                saved.format
            )));
        }
        let members = saved.members.into_iter().map(|(id, one)| {
            let addresses = addresses(&one.client, &one.link, &one.workers);
            let addresses = addresses.map_err(|why| Unreadable(format!("server {id}: {why}")))?;
            let member = Member {
                incarnation: one.incarnation,
                ended: one.ended,
                retired: one.retired,
                addresses,
                memory_bytes: one.memory_bytes,
                moves: one.moves,
                lease_ms: one.lease_ms,
                coordinators: one.coordinators,
            };
            Ok((ServerId(id), member))
        });
        let parsed = saved.map.as_deref().map(Cluster::parse).transpose();
        let map = parsed.map_err(|why| Unreadable(format!("its map: {why}")))?;
        let moves = saved.moves.into_iter().map(|(number, saved)| {
            let back =
                Move::try_from(saved).map_err(|why| Unreadable(format!("move {number}: {why}")));
            Ok((MoveId(number), back?))
        });
        let remedies = saved.remedies.into_iter().map(|saved| {
            Remedy::try_from(saved).map_err(|why| Unreadable(format!("a remedy: {why}")))
        });
        let draining: BTreeSet<ServerId> = saved.draining.into_iter().map(ServerId).collect();
        let retiring = saved.retiring.into_iter().map(ServerId);
        Ok(State {
            cluster: saved.cluster,
            members: Arc::new(members.collect::<Result<_, Unreadable>>()?),
            map: map.map(|cluster| cluster.map),
            moves: moves.collect::<Result<_, Unreadable>>()?,
            moves_ever: saved.moves_ever,
            balance: saved.balance,
            remedies: remedies.collect::<Result<_, Unreadable>>()?,
            hot_keys: saved.hot_keys,
            retiring: retiring.filter(|id| draining.contains(id)).collect(),
            draining,
            flush_number: saved.flush_number,
            autoscale: saved.autoscale,
            scaling: saved.scaling,
            scalings_ever: saved.scalings_ever,
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedMove {
    prefix: String,
    from: (u16, u16),
    to: (u16, u16),
    to_incarnation: Incarnation,
    word: MoveDecision,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedRemedy {
    at: (u16, u16),
    seen: f64,
    expected: f64,
    load: f64,
    fixed: f64,
    moves: Vec<SavedRelief>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    split: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    came: Option<(f64, CameReport)>,
    #[serde(default, skip_serializing_if = "none_yet")]
    vain: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedRelief {
    prefix: String,
    from: (u16, u16),
    to: (u16, u16),
    relief: f64,
    taker_had: f64,
}

fn pair(owner: Owner) -> (u16, u16) {
    (owner.server.0, owner.worker.0)
}

fn owner((server, worker): (u16, u16)) -> Owner {
    Owner { server: ServerId(server), worker: WorkerId(worker) }
}

fn prefix(text: &str) -> Result<Prefix, String> {
    Prefix::parse(text.as_bytes()).ok_or_else(|| format!("{text} is no cachelet"))
}

impl From<&Remedy> for SavedRemedy {
    fn from(one: &Remedy) -> SavedRemedy {
        let saved = |one: &Relief| SavedRelief {
            prefix: one.step.cachelet.to_string(),
            from: pair(one.step.from),
            to: pair(one.step.to),
            relief: one.relief,
            taker_had: one.taker_had,
        };
        let Remedy { seen, expected, load, fixed, vain, .. } = *one;
        let came = one.came.map(|(now, came)| (now, came.into()));
        let moves = one.moves.iter().map(saved).collect();
        let split = one.split.map(|whole| whole.to_string());
        SavedRemedy { at: pair(one.at), seen, expected, load, fixed, moves, split, came, vain }
    }
}

impl TryFrom<SavedRemedy> for Remedy {
    type Error = String;

    fn try_from(saved: SavedRemedy) -> Result<Remedy, String> {
        let moves = saved.moves.iter().map(|one| {
            let (from, to) = (owner(one.from), owner(one.to));
            let step = Step { cachelet: prefix(&one.prefix)?, from, to };
            Ok(Relief { step, relief: one.relief, taker_had: one.taker_had })
        });
        let moves = moves.collect::<Result<_, String>>()?;
        let SavedRemedy { seen, expected, load, fixed, vain, .. } = saved;
        let came = saved.came.map(|(now, judged)| (now, judged.into()));
        let split = saved.split.as_deref().map(prefix).transpose()?;
        Ok(Remedy { at: owner(saved.at), seen, expected, load, fixed, moves, split, came, vain })
    }
}

impl From<&Move> for SavedMove {
    fn from(one: &Move) -> SavedMove {
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
        Ok(Move {
            prefix: prefix(&saved.prefix)?,
            from: owner(saved.from),
            to: owner(saved.to),
            to_incarnation: saved.to_incarnation,
            word: saved.word,
        })
    }
}
