//! What is known of the servers: the state, which is saved, and what they have said lately, which is not; and what one event
//! makes of both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mbal_model::{Cluster, ClusterMap, Instant, Owner, Prefix, ServerId};

use crate::api::{Heartbeat, MoveReport};
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::state::State;

/// A server that has missed so many heartbeats is called silent.
const MISSED_MAX: u32 = 3;
/// A coordinator that has just begun waits so long for servers that it has not heard of: they may be asking others, which do not answer.
const AWAITED: Duration = Duration::from_secs(10);

/// Of one server.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub at: Instant,
    /// Without what is kept elsewhere: ages, and its hit ratio by size.
    pub last: Heartbeat,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    pub now: Instant,
    /// The time between two heartbeats.
    pub epoch: Duration,
    servers_first: usize,
    /// Copied by the first change of a transaction: what only reads copies nothing.
    state: Arc<State>,
    heard: BTreeMap<ServerId, Heard>,
    said: Vec<String>,
    is_pressing: bool,
}

impl Ledger {
    pub fn new(settings: &Settings, state: State) -> Ledger {
        let &Settings { epoch, servers_first, .. } = settings;
        let (now, state, heard) = (Instant::ZERO, Arc::new(state), BTreeMap::new());
        Ledger { now, epoch, servers_first, state, heard, said: Vec::new(), is_pressing: false }
    }

    /// A transaction; the state as it is before.
    pub fn begin(&mut self, now: Instant) -> Arc<State> {
        (self.now, self.is_pressing) = (now, false);
        self.said.clear();
        Arc::clone(&self.state)
    }

    /// What was said in it, and whether it is pressing.
    pub fn end(&mut self) -> (Vec<String>, bool) {
        (std::mem::take(&mut self.said), self.is_pressing)
    }

    pub fn restore(&mut self, state: Arc<State>) {
        self.state = state;
    }

    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    pub fn change(&mut self) -> &mut State {
        Arc::make_mut(&mut self.state)
    }

    /// For the log.
    pub fn say(&mut self, what: String) {
        self.said.push(what);
    }

    /// See [`crate::Done::is_pressing`].
    pub fn press(&mut self) {
        self.is_pressing = true;
    }

    pub fn map(&self) -> Result<&Arc<ClusterMap>, Refusal> {
        self.state.map.as_ref().ok_or_else(|| self.no_map())
    }

    pub fn document(&self) -> Result<Cluster, Refusal> {
        self.state.document().ok_or_else(|| self.no_map())
    }

    fn no_map(&self) -> Refusal {
        let missing = self.missing();
        Refusal::Conflict(format!("there is no map yet: {missing} more servers have to register"))
    }

    /// Servers that the first map still waits for.
    pub fn missing(&self) -> usize {
        match self.state.map {
            Some(_) => 0,
            None => self.servers_first.saturating_sub(self.state.members.len()),
        }
    }

    /// The next map.
    pub fn publish(&mut self, owners: Vec<(Prefix, Owner)>) {
        let map = ClusterMap::new(self.state.map_version() + 1, owners);
        let map = map.expect("a map's prefixes in another map's places cover the hashes as well");
        self.change().map = Some(Arc::new(map));
    }

    pub fn heard(&self, server: ServerId) -> Option<&Heard> {
        self.heard.get(&server)
    }

    pub fn all_heard(&self) -> impl Iterator<Item = (ServerId, &Heard)> {
        self.heard.iter().map(|(id, heard)| (*id, heard))
    }

    /// Those of whom the last heartbeat is not long ago.
    pub fn recent(&self) -> impl Iterator<Item = (ServerId, &Heard)> {
        self.all_heard().filter(|(id, _)| self.is_heard(*id))
    }

    /// A process has registered, another one than was known or the same again.
    pub fn registered(&mut self, server: ServerId, is_known: bool) {
        let heard = self.heard.entry(server).or_default();
        heard.at = self.now;
        if !is_known {
            heard.last = Heartbeat { starting: true, ..Heartbeat::default() };
        }
    }

    pub fn record(&mut self, server: ServerId, last: Heartbeat) {
        self.heard.insert(server, Heard { at: self.now, last });
    }

    /// It is dead.
    pub fn forget(&mut self, server: ServerId) {
        self.heard.remove(&server);
    }

    /// Its last heartbeat is not long ago.
    pub fn is_heard(&self, server: ServerId) -> bool {
        let patience = self.epoch * MISSED_MAX;
        let heard = self.heard(server);
        heard.is_some_and(|heard| (self.now - heard.at).as_millis() <= patience.as_millis())
    }

    /// Whether this process has begun so lately that a server's silence says nothing: nobody is taken for dead, or passed over, for that alone.
    pub fn awaits(&self) -> bool {
        self.now < Instant::ZERO + AWAITED.max(self.epoch * MISSED_MAX)
    }

    /// A heartbeat is late.
    pub fn is_missed(&self, server: ServerId) -> bool {
        let heard = self.heard(server).map_or(Instant::ZERO, |heard| heard.at);
        heard + self.epoch + self.epoch / 2 < self.now
    }

    /// Its process has been told to end.
    pub fn ends(&self, server: ServerId) -> bool {
        self.heard(server).is_some_and(|heard| heard.last.ending)
    }

    /// Servers that are alive, and not on their way out.
    pub fn serving(&self) -> Vec<ServerId> {
        let alive = self.state.alive().map(|(id, _)| id);
        alive.filter(|id| !self.ends(*id) && !self.state.draining.contains(id)).collect()
    }

    /// What the source of a move has said of it.
    pub fn report(&self, source: ServerId, number: u32) -> Option<&MoveReport> {
        self.heard(source)?.last.moves.iter().find(|report| report.number == number)
    }
}
