//! What a coordinator has to remember: members, the map, moves under way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mbal_model::{
    Address, Addresses, Cluster, ClusterMap, MoveId, Owner, Prefix, Remedy, ServerId,
};

use crate::api::{AutoscaleConfig, BalanceMode, HotMode, Incarnation, MoveDecision, Scaling};
use crate::refusal::Refusal;

/// Saved whole.
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
    /// The planner's ledger: what is pending, and what came of the last remedies.
    pub remedies: Vec<Remedy>,
    /// How hot keys are copied, if an operator has said so since; else it is as the coordinator was started.
    pub hot_keys: Option<HotMode>,
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
    /// That process was to be emptied and was empty when it ended: nothing was lost with it.
    pub retired: bool,
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

    /// The server of that number.
    pub(crate) fn member(&self, server: ServerId) -> Result<&Member, Refusal> {
        let unknown = || Refusal::Unknown(format!("there is no server {}", server.0));
        self.members.get(&server).ok_or_else(unknown)
    }

    pub(crate) fn alive(&self) -> impl Iterator<Item = (ServerId, &Member)> + Clone {
        let members = self.members.iter().map(|(id, member)| (*id, member));
        members.filter(|(_, member)| member.is_alive())
    }

    /// 0 if there is no map.
    pub(crate) fn map_version(&self) -> u64 {
        self.map.as_ref().map_or(0, |map| map.version())
    }

    /// All of the map, none if there is no map.
    pub(crate) fn cachelets(&self) -> impl Iterator<Item = &(Prefix, Owner)> + Clone {
        self.map.iter().flat_map(|map| map.cachelets())
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
