//! What a coordinator has to remember: members, the map, moves under way. Saved whole, as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use mbal_model::{Address, Addresses, Cluster, ClusterMap, MoveId, ServerId};
use serde::{Deserialize, Serialize};

use crate::api::{AutoscaleConfig, BalanceMode, Incarnation, Scaling};
use crate::moves::{Move, SavedMove};

/// Of the saved form. A reader refuses any other.
const FORMAT: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The cluster's name.
    pub cluster: String,
    /// Shared with the states before it: a transaction keeps one, and most change no member.
    pub members: Arc<BTreeMap<ServerId, Member>>,
    /// None until enough servers have registered.
    pub map: Option<Arc<ClusterMap>>,
    pub moves: BTreeMap<MoveId, Move>,
    /// The last move's; numbers are not used twice.
    pub moves_ever: u32,
    pub balance: BalanceMode,
    /// Servers that an operator wants empty.
    pub draining: BTreeSet<ServerId>,
    /// The newest `flush_all` that a server has told of.
    pub flush_number: u32,
    /// None if nobody has set it up.
    pub autoscale: Option<AutoscaleConfig>,
    /// Of those the ones that the autoscaler has stopped when they are empty.
    pub retiring: BTreeSet<ServerId>,
    /// What is wanted, or was last.
    pub scaling: Option<Scaling>,
    /// The last number of one; numbers are not used twice.
    pub scalings_ever: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// 0 of a process that is known to be dead.
    pub incarnation: Incarnation,
    /// The last process here that was said to be dead; 0 if none was. It may live, and not have heard of it.
    pub ended: Incarnation,
    pub addresses: Addresses,
    pub memory_bytes: u64,
    /// It takes part in moves.
    pub moves: bool,
    /// How long each renewal of its ownership lasts, in milliseconds; 0 if it owns without a lease.
    pub lease_ms: u64,
    /// Coordinators of which it asks whether they lead; none if it owns nothing without etcd.
    pub coordinators: Vec<String>,
}

impl Member {
    pub const DEAD: Incarnation = Incarnation(0);

    pub fn is_alive(&self) -> bool {
        self.incarnation != Member::DEAD
    }

    /// One at least: a server says no ports if its workers have none of their own.
    pub fn workers(&self) -> u16 {
        self.addresses.workers.len().clamp(1, usize::from(u16::MAX)) as u16
    }
}

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
    /// The map with the addresses of the members that are alive, or that it needs; none if there is no map.
    pub fn document(&self) -> Option<Cluster> {
        let map = self.map.clone()?;
        let named = map.cachelets().iter().map(|(_, owner)| owner.server);
        let named: BTreeSet<ServerId> = named.collect();
        let members = self.members.iter();
        let members = members.filter(|(id, member)| member.is_alive() || named.contains(id));
        let servers = members.map(|(id, member)| (*id, member.addresses.clone())).collect();
        Some(Cluster { name: self.cluster.clone(), servers, map })
    }

    pub fn to_json(&self) -> String {
        let member = |member: &Member| SavedMember {
            incarnation: member.incarnation,
            ended: member.ended,
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
        let draining: BTreeSet<ServerId> = saved.draining.into_iter().map(ServerId).collect();
        let retiring = saved.retiring.into_iter().map(ServerId);
        Ok(State {
            cluster: saved.cluster,
            members: Arc::new(members.collect::<Result<_, Unreadable>>()?),
            map: map.map(|cluster| cluster.map),
            moves: moves.collect::<Result<_, Unreadable>>()?,
            moves_ever: saved.moves_ever,
            balance: saved.balance,
            retiring: retiring.filter(|id| draining.contains(id)).collect(),
            draining,
            flush_number: saved.flush_number,
            autoscale: saved.autoscale,
            scaling: saved.scaling,
            scalings_ever: saved.scalings_ever,
        })
    }
}

/// Where a server says that it is; or which of it is no address.
pub(crate) fn addresses(client: &str, link: &str, workers: &[String]) -> Result<Addresses, String> {
    let address = |text: &str| {
        let not = || match text.len() {
            0..=300 => format!("an address is host:port, not {text:?}"),
            _ => "an address is host:port, and no host has so long a name".into(),
        };
        Address::parse(text).ok_or_else(not)
    };
    Ok(Addresses {
        link: Some(address(link)?),
        client: address(client)?,
        workers: workers.iter().map(|text| address(text)).collect::<Result<_, _>>()?,
        resolved: None,
    })
}
