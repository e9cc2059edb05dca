//! Servers come, are heard of, and go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mbal_model::{Address, ClusterMap, Owner, Prefix, ServerId};

use crate::api::{self, Heartbeat, Incarnation, News, Registered, Registration, ServerStatus};
use crate::coordinator::{Answer, Coordinator, Micros, Refusal, known};
use crate::placement::{deal, redeal};
use crate::state::{Member, addresses};

/// A server that has missed so many heartbeats is called silent.
const MISSED_MAX: u64 = 3;
/// A coordinator that has just begun waits so long for servers that it has not heard of: they may be asking others, which do not answer.
const AWAITED: Duration = Duration::from_secs(10);
/// Ids that a coordinator gives begin here.
const FIRST_ID: u16 = 1;

/// What a server has said lately.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Heard {
    pub at: Micros,
    pub map_version: u64,
    /// It lets no client in yet.
    pub starting: bool,
    pub workers: Vec<api::WorkerReport>,
    pub memory_bytes: u64,
    pub room_bytes: Option<u64>,
    pub helpless: bool,
    pub ending: bool,
    pub moves: Vec<api::MoveReport>,
    pub requests: f64,
    pub hot: Vec<api::HotReport>,
    pub version: String,
    pub link_versions: [u16; 2],
    pub links: Vec<api::LinkReport>,
}

impl Coordinator {
    /// A process wants to serve. One that asks again is told the same again. Another process under a known id is
    /// certain death of the one before: its cachelets stay where they are, empty, under a new version of the map, since
    /// what is born under one version gives no cas that was given under another.
    pub(crate) fn register(
        &mut self,
        now: Micros,
        asked: Registration,
    ) -> Result<Registered, Refusal> {
        let member = self.candidate(&asked)?;
        // What was on its way to it before may still come, and would meet the same process.
        if self.state.members.values().any(|other| other.ended == asked.incarnation) {
            let why =
                "this process was said to be dead: it is to begin anew, as another incarnation";
            return Err(Refusal::Conflict(why.into()));
        }
        let id = match asked.id {
            Some(id) if ServerId(id) == ServerId::NOBODY => {
                return Err(Refusal::Senseless("a server's id is 0 to 65534".into()));
            }
            Some(id) => ServerId(id),
            None => self.id_for(&member)?,
        };
        if let Some((other, _)) = self.with_addresses_of(&member).find(|(other, _)| **other != id) {
            let why = format!("server {} has one of these addresses", other.0);
            return Err(Refusal::Conflict(why));
        }
        self.succeeds(id, &asked)?;
        let ended = self.state.members.get(&id).map_or(Member::DEAD, |before| before.ended);
        let member = Member { ended, ..member };
        let before = Arc::make_mut(&mut self.changing().members).insert(id, member);
        let is_known =
            before.as_ref().is_some_and(|before| before.incarnation == asked.incarnation);
        self.heard.entry(id).or_default().at = now;
        self.has_heard(now, id);
        if !is_known {
            self.said.push(format!("server {} registers: {}", id.0, asked.client));
            self.heard.insert(id, Heard { at: now, starting: true, ..Heard::default() });
            self.copies_are_gone(id);
            // Who comes back is to serve again.
            self.is_drained_no_more(id);
            self.retires_again(id);
            self.refuses_no_more(id);
            self.moves_of_dead(id);
        }
        match &self.state.map {
            // A new process at least; and if all were dead, their cachelets.
            Some(map) if !is_known => {
                let owners = self.without_the_dead(map.cachelets());
                self.publish(owners);
            }
            None if self.missing() == 0 => {
                let owners = deal(&self.workers());
                self.said.push(format!("the first map: {} cachelets", owners.len()));
                self.publish(owners);
            }
            _ => {}
        }
        let map = self.state.document().map(|document| document.to_string());
        let flush_number = self.state.flush_number;
        let epoch_ms = self.settings.epoch.as_millis() as u64;
        let (lease, hot) = (self.lease_told(id), Some(self.hot_told()));
        Ok(Registered { id: id.0, epoch_ms, flush_number, lease, hot, map })
    }

    fn candidate(&self, asked: &Registration) -> Result<Member, Refusal> {
        if asked.cluster != self.state.cluster {
            let why = format!("this is cluster {}, not {}", self.state.cluster, asked.cluster);
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
            addresses,
            memory_bytes: asked.memory_bytes,
            moves: asked.moves,
            lease_ms: self.lease_ms_for(asked),
            coordinators: self.coordinators_of(asked),
        })
    }

    fn with_addresses_of(&self, member: &Member) -> impl Iterator<Item = (&ServerId, &Member)> {
        let (link, client) = (member.addresses.link.clone(), member.addresses.client.clone());
        self.state.members.iter().filter(move |(_, other)| {
            other.is_alive() && (other.addresses.link == link || other.addresses.client == client)
        })
    }

    /// Who comes back to its addresses is who it was; else the least number that is free.
    fn id_for(&self, member: &Member) -> Result<ServerId, Refusal> {
        let same = self.state.members.iter().find(|(_, other)| other.addresses == member.addresses);
        if let Some((id, _)) = same {
            return Ok(*id);
        }
        let free = (FIRST_ID..ServerId::NOBODY.0).map(ServerId);
        let mut free = free.filter(|id| !self.state.members.contains_key(id));
        free.next().ok_or_else(|| Refusal::Conflict("there are 65,534 servers already".into()))
    }

    /// Workers of the servers that are alive; those that are to be emptied only if there is nobody else.
    fn workers(&self) -> BTreeMap<ServerId, u16> {
        let alive = self.state.members.iter().filter(|(_, member)| member.is_alive());
        let mut workers: BTreeMap<ServerId, u16> =
            alive.map(|(id, member)| (*id, member.workers())).collect();
        if workers.keys().any(|id| !self.state.draining.contains(id)) {
            workers.retain(|id, _| !self.state.draining.contains(id));
        }
        workers
    }

    /// What dead servers have by a map is the others', if there are any.
    fn without_the_dead(&self, owners: &[(Prefix, Owner)]) -> Vec<(Prefix, Owner)> {
        let workers = self.workers();
        let dead = self.state.members.iter().filter(|(_, member)| !member.is_alive());
        dead.fold(owners.to_vec(), |owners, (id, _)| redeal(&owners, *id, &workers))
    }

    pub(crate) fn publish(&mut self, owners: Vec<(Prefix, Owner)>) {
        let version = self.state.map.as_ref().map_or(0, |map| map.version()) + 1;
        let map = ClusterMap::new(version, owners);
        let map = map.expect("a map's prefixes in another map's places cover the hashes as well");
        self.changing().map = Some(Arc::new(map));
    }

    /// What a server has to say, and what is new for it.
    pub(crate) fn heartbeat(
        &mut self,
        now: Micros,
        server: ServerId,
        heartbeat: Heartbeat,
    ) -> Result<News, Refusal> {
        let member = known(&self.state, server)?;
        if member.incarnation != heartbeat.incarnation {
            let why = format!("server {} is another process now, or was said to be dead", server.0);
            return Err(Refusal::Conflict(why));
        }
        self.has_heard(now, server);
        for report in &heartbeat.moves {
            self.move_reported(now, server, report);
        }
        if self.state.flush_number < heartbeat.flush_number {
            self.changing().flush_number = heartbeat.flush_number;
        }
        let Heartbeat { map_version, workers, memory_bytes, helpless, ending, moves, .. } =
            heartbeat;
        let Heartbeat { room_bytes, version, link_versions, requests, hot, curve, ages, .. } =
            heartbeat;
        let Heartbeat { links, starting, takes_changes, .. } = heartbeat;
        if let Some(curve) = curve {
            self.curve_reported(now, server, heartbeat.incarnation, curve);
        }
        let hot = self.hot_reported(server, hot);
        let ages = self.ages_wanted(now, server, ages);
        self.look_at_version(server, map_version);
        let heard = Heard {
            at: now,
            map_version,
            starting,
            workers,
            memory_bytes,
            room_bytes,
            helpless,
            ending,
            moves,
            requests,
            hot,
            version,
            link_versions,
            links,
        };
        self.look_whether_pressing(server, ending);
        self.heard.insert(server, heard);
        self.tell_changes_of_links(now, server);
        let drain = self.look_at_drain(now, server, ending);
        self.look_whether_scaled(now);
        let (map, changes) = self.changes.told(&self.state, map_version, takes_changes);
        Ok(News {
            map,
            changes,
            moves: self.moves_of(server),
            moves_ever: self.state.moves_ever,
            flush_number: self.state.flush_number,
            drain,
            no_room: drain.is_some() && self.balanced().plan.stuck.contains(&server),
            hot: Some(self.hot_told()),
            soon: self.awaits_a_death(now) || self.asks_for_ages(),
            ages,
            keep: self.kept_by(server),
        })
    }

    /// Says once that a server knows more than this coordinator, whose state was restored from a backup: nobody can bring them together but operators.
    fn look_at_version(&mut self, server: ServerId, map_version: u64) {
        let own = self.state.map.as_ref().map_or(0, |map| map.version());
        let is_known =
            self.heard.get(&server).is_some_and(|heard| heard.map_version == map_version);
        if own < map_version && !is_known {
            self.said.push(format!(
                "server {} follows map {map_version}, and the state has map {own}: it is an old one. Start the server anew",
                server.0
            ));
        }
    }

    /// A process has ended: its cachelets begin empty elsewhere, if it is the one that is known.
    pub(crate) fn leave(
        &mut self,
        server: ServerId,
        incarnation: Incarnation,
    ) -> Result<Answer, Refusal> {
        if known(&self.state, server)?.incarnation != incarnation {
            let why = format!("server {} is another process now", server.0);
            return Err(Refusal::Conflict(why));
        }
        self.lost(server)
    }

    /// An operator says that it is dead. One that is heard is not, whatever he believes, unless he insists: it would lose all, and end.
    pub(crate) fn said_lost(
        &mut self,
        now: Micros,
        server: ServerId,
        call: api::LostCall,
    ) -> Result<Answer, Refusal> {
        let member = known(&self.state, server)?;
        // Of one that was said to be dead, it may be said again.
        let is_it =
            |named| named == member.incarnation || named == member.ended && !member.is_alive();
        if call.incarnation.is_some_and(|named| !is_it(named)) {
            let why = format!("server {} is another process now", server.0);
            return Err(Refusal::Conflict(why));
        }
        let id = server.0;
        let lives = match self.heard.get(&server) {
            _ if call.force || !member.is_alive() => None,
            Some(heard) if self.is_heard(now, server) => {
                let seconds = (now.0 - heard.at.0) as f64 / 1e6;
                Some(format!("server {id} lives: it was heard {seconds:.1} s ago"))
            }
            None if self.awaits(now) => {
                Some(format!("server {id} may live: this coordinator has just begun"))
            }
            _ => None,
        };
        match lives {
            Some(why) => Err(Refusal::Conflict(format!(
                "{why}. Stop it, or wait; with --force it is said to be dead, and loses all that it has"
            ))),
            None => self.lost(server),
        }
    }

    /// Certain death, by whoever knows. Saying it twice changes nothing.
    pub(crate) fn lost(&mut self, server: ServerId) -> Result<Answer, Refusal> {
        if !known(&self.state, server)?.is_alive() {
            return Ok(Answer::Done);
        }
        let members = Arc::make_mut(&mut self.changing().members);
        let member = members.get_mut(&server).expect("it is known");
        member.ended = std::mem::replace(&mut member.incarnation, Member::DEAD);
        self.heard.remove(&server);
        self.copies_are_gone(server);
        self.is_drained_no_more(server);
        self.said.push(format!("server {} is dead", server.0));
        self.moves_of_dead(server);
        if let Some(map) = self.state.map.clone() {
            let owners = self.without_the_dead(map.cachelets());
            let moved = owners.iter().zip(map.cachelets()).filter(|(new, old)| new != old).count();
            if moved > 0 {
                self.said.push(format!(
                    "{moved} cachelets of server {} begin empty elsewhere",
                    server.0
                ));
            }
            // Also if it had nothing: clients and servers are to ask it no more.
            self.publish(owners);
        }
        self.look_at_scaling();
        Ok(Answer::Done)
    }

    /// Its last heartbeat is not long ago.
    pub(crate) fn is_heard(&self, now: Micros, server: ServerId) -> bool {
        let patience = self.settings.epoch.as_micros() as u64 * MISSED_MAX;
        let heard = self.heard.get(&server);
        heard.is_some_and(|heard| (now.0.saturating_sub(heard.at.0)) / 1000 <= patience / 1000)
    }

    /// Whether it has begun so lately that a server's silence says nothing: nobody is taken for dead, or passed over, for that alone.
    pub fn awaits(&self, now: Micros) -> bool {
        let until = AWAITED.max(self.settings.epoch * MISSED_MAX as u32);
        now.0 < until.as_micros() as u64
    }

    /// O(cachelets).
    pub(crate) fn servers_status(&self, now: Micros) -> Vec<ServerStatus> {
        // By server, how many cachelets it has, and how many parts of the hashes.
        let mut owned: BTreeMap<ServerId, (usize, usize)> = BTreeMap::new();
        for (prefix, owner) in self.state.map.iter().flat_map(|map| map.cachelets()) {
            let (cachelets, nodes) = owned.entry(owner.server).or_default();
            (*cachelets, *nodes) = (*cachelets + 1, *nodes + prefix.nodes());
        }
        let unlinked = self.unlinked_now(now);
        let status = |id: &ServerId| {
            let owned = owned.get(id).copied().unwrap_or_default();
            self.server_status(now, *id, owned, unlinked.contains(id))
        };
        self.state.members.keys().map(status).collect()
    }

    fn server_status(
        &self,
        now: Micros,
        id: ServerId,
        (cachelets, nodes): (usize, usize),
        is_unlinked: bool,
    ) -> ServerStatus {
        let member = &self.state.members[&id];
        let heard = self.heard.get(&id);
        let silent = heard.map(|heard| (now.0 - heard.at.0) / 1000);
        let is_draining = self.state.draining.contains(&id);
        let state = match (member.is_alive(), self.is_heard(now, id)) {
            (false, _) => "lost",
            (true, false) if heard.is_none() && self.awaits(now) => "awaited",
            (true, false) => "silent",
            (true, true) if is_draining => self.draining_state(id, cachelets),
            (true, true) if heard.is_some_and(|heard| heard.starting) => "starting",
            (true, true) if is_unlinked => "unlinked",
            (true, true) => "serving",
        };
        let workers = heard.map_or(&[][..], |heard| &heard.workers);
        let load = api::WorkerReport::load;
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
            map_version: heard.map_or(0, |heard| heard.map_version),
            version: heard.map_or_else(String::new, |heard| heard.version.clone()),
            link_versions: heard.map_or([0; 2], |heard| heard.link_versions),
            silent_ms: silent,
            state: state.into(),
        }
    }
}
