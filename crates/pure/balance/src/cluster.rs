//! Phase 3 of a whole cluster: once an epoch, an outlook in, a plan out.
//!
//! ```text
//!   heartbeats, map, moves under way ──Outlook──►┌────────────────┐
//!                                                │ ClusterPlanner │  phase machines, what rests
//!   orders, within bounds ◄────────ClusterPlan───└────────────────┘
//! ```
//!
//! What keeps it from going back and forth: a server asks for four epochs in a row before it is helped; what is
//! under way counts at its destination; what has changed servers rests, unless its load has changed by half.

use std::collections::{BTreeMap, BTreeSet};

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{
    ClusterPlan, Move, Outlook, Owner, PlannedMove, Prefix, ServerId, ServerOutlook, Snapshot,
    Standing, Why, WorkerLoad, moves_max,
};

use crate::drain::drain;
use crate::fill::fill;
use crate::local::apply;
use crate::phases::Gate;
use crate::vain::Vain;
use crate::{Effort, Global, Model, PhaseMachine, Rest, Thresholds, Vitals, relieve, search};

/// Workers that are helped in one epoch, the hottest first: what bounds the time of planning.
const SOURCES_MAX: usize = 64;

/// A source with so many cachelets is planned for thoroughly, which takes some descents more.
const THOROUGH_BALLS_MAX: usize = 64;

/// Below this a cachelet's load is noise: it has not changed.
const LOAD_FELT: f64 = 0.02;

/// Remembers from epoch to epoch what patience and rest need; everything else it is given.
#[derive(Default)]
pub struct ClusterPlanner {
    thresholds: Thresholds,
    machines: BTreeMap<ServerId, PhaseMachine>,
    rest: Rest,
    /// Who had each cachelet by the last outlook, and which were under way.
    homes: BTreeMap<Prefix, ServerId>,
    under_way: BTreeSet<Prefix>,
    vain: Vain,
    /// Servers for which something was planned, or was under way, in the last epoch.
    helped: BTreeSet<ServerId>,
    /// The last epoch in which a server was in phase 3.
    asked_in: Option<u64>,
    /// Servers that are being given their share.
    filling: BTreeSet<ServerId>,
    all_hot: Gate,
    /// What is said of it, as long as `all_hot` is open.
    servers_wanted: u32,
}

/// What arrives needs so much more than its items have: one byte in so many, for the index and for ends of pages.
const ROOM_SPARED: u64 = 8;

/// The cluster as it will be when everything under way has arrived, and what may still be begun.
pub(crate) struct Board<'o> {
    pub(crate) outlook: &'o Outlook,
    pub snapshot: Snapshot,
    under_way: BTreeSet<Prefix>,
    giving: BTreeMap<ServerId, usize>,
    taking: BTreeMap<ServerId, usize>,
    /// Of servers that evict nothing: bytes that they have room for, beside what is on its way to them.
    room: BTreeMap<ServerId, u64>,
    pub moves: Vec<PlannedMove>,
    /// See [`ClusterPlan::later`].
    pub later: Vec<PlannedMove>,
}

impl ClusterPlanner {
    pub fn new(thresholds: Thresholds) -> ClusterPlanner {
        ClusterPlanner { thresholds, ..ClusterPlanner::default() }
    }

    /// Called once an epoch. The same outlooks give the same plans.
    /// O(workers + sources · `max_iter` · (servers + a server's cachelets)).
    pub fn plan(&mut self, outlook: &Outlook) -> ClusterPlan {
        let left = self.watch(outlook);
        let mut board = Board::new(outlook);
        self.pin_what_rests(&mut board.snapshot, outlook.epoch);
        let before = board.snapshot.clone();
        let loads: Vec<f64> = before.workers.iter().map(WorkerLoad::load).collect();
        let load_mean = loads.iter().fold(0.0, |sum, load| sum + load) / loads.len().max(1) as f64;
        let asking = self.asking(outlook, &before, load_mean);
        let in_vain = self.in_vain(outlook, &asking, &left);
        // A plan is carried out over several epochs: it goes on under the limit, until phase 3 is over.
        let above = |at: usize| loads[at] - load_mean >= self.thresholds.felt();
        let mut sources: Vec<usize> = (0..loads.len())
            .filter(|&at| self.thresholds.is_over(loads[at]) || above(at))
            .filter(|&at| asking.contains(&before.workers[at].at.server))
            .filter(|&at| !in_vain.contains(&before.workers[at].at.server))
            .collect();
        sources.sort_by(|&a, &b| loads[b].total_cmp(&loads[a]).then(a.cmp(&b)));
        let standing = |id| outlook.servers.iter().find(|one| one.server == id);
        let (mut missing, mut too_heavy) = (0, Vec::new());
        let takers: Vec<ServerId> = board.takers().collect();
        let solve = |model: &Model| {
            let is_small = model.balls.len() <= THOROUGH_BALLS_MAX;
            Some(search(model, if is_small { Effort::THOROUGH } else { Effort::DESCENT }))
        };
        for &source in sources.iter().take(SOURCES_MAX) {
            let server = standing(before.workers[source].at.server);
            if server.is_some_and(|server| server.standing == Standing::Staying) {
                missing = missing.max(self.missing(&loads, outlook));
                continue;
            }
            let takes = |server| takers.contains(&server);
            let global = relieve(&mut board.snapshot, source, &self.thresholds, takes, solve);
            if self.is_no_answer(&global, &before.workers[source]) {
                missing = self.missing(&loads, outlook).max(1);
            }
            too_heavy.extend(&global.plan.too_heavy);
            board.begin(&before, &global.plan.moves);
        }
        let stuck = drain(&mut board, &self.thresholds);
        fill(&mut board, &mut self.filling, &self.thresholds);
        if !stuck.is_empty() {
            missing = missing.max(1);
        }
        self.tell_missing(missing);
        let planned = board.moves.iter().map(|planned| &planned.step);
        let steps = planned.chain(&outlook.under_way);
        self.helped = steps.map(|step| step.from.server).collect();
        too_heavy.sort();
        too_heavy.dedup();
        ClusterPlan {
            epoch: outlook.epoch,
            by_connections: self.by_connections(&before, &asking),
            moves: board.moves,
            later: board.later,
            asking,
            servers_wanted: self.servers_wanted,
            too_heavy,
            stuck,
            in_vain,
            load_mean,
            load_max: loads.iter().copied().fold(0.0, f64::max),
        }
    }

    /// What has changed servers, or was under way and is so no more, rests from now on: a move may take less than
    /// an epoch, and may come to nothing. Returns the load that has left each server.
    fn watch(&mut self, outlook: &Outlook) -> BTreeMap<ServerId, f64> {
        let epoch = outlook.epoch;
        self.rest.forget_before(epoch, self.thresholds.rest_epochs);
        self.machines.retain(|id, _| outlook.servers.iter().any(|server| server.server == *id));
        let under_way: BTreeSet<Prefix> =
            outlook.under_way.iter().map(|step| step.cachelet).collect();
        let mut homes = BTreeMap::new();
        let mut left = BTreeMap::new();
        for worker in outlook.servers.iter().flat_map(|server| &server.workers) {
            for held in &worker.cachelets {
                let (cachelet, home) = (held.cachelet, worker.at.server);
                let from = self.homes.get(&cachelet).filter(|before| **before != home);
                if let Some(from) = from {
                    *left.entry(*from).or_default() += held.load;
                }
                let was_under_way = self.under_way.contains(&cachelet);
                if from.is_some() || was_under_way && !under_way.contains(&cachelet) {
                    self.rest.note(cachelet, held.load.max(LOAD_FELT), epoch);
                }
                homes.insert(cachelet, home);
            }
        }
        (self.homes, self.under_way) = (homes, under_way);
        left
    }

    fn by_connections(&self, now: &Snapshot, asking: &[ServerId]) -> Vec<ServerId> {
        let over = |server: &&ServerId| {
            let mut own = now.workers.iter().filter(|worker| worker.at.server == **server);
            own.any(|worker| self.thresholds.is_over(worker.fixed))
        };
        asking.iter().filter(over).copied().collect()
    }

    fn in_vain(
        &mut self,
        outlook: &Outlook,
        asking: &[ServerId],
        left: &BTreeMap<ServerId, f64>,
    ) -> Vec<ServerId> {
        self.vain.keep(asking);
        for server in outlook.servers.iter().filter(|one| asking.contains(&one.server)) {
            let fixed = server.workers.iter().map(|worker| worker.fixed).sum();
            let id = server.server;
            let of_it = |step: &&Move| step.from.server == id || step.to.server == id;
            let under_way = outlook.under_way.iter().filter(of_it).count();
            let left = left.get(&server.server).copied().unwrap_or(0.0);
            let patience = self.thresholds.patience;
            self.vain.observe(id, (fixed, under_way), left, outlook.epoch, patience);
        }
        let waits = |server: &&ServerId| self.vain.waits(**server, outlook.epoch);
        asking.iter().filter(waits).copied().collect()
    }

    fn pin_what_rests(&self, snapshot: &mut Snapshot, epoch: u64) {
        if is_planted(Fault::NothingRests) {
            return;
        }
        let rest_epochs = self.thresholds.rest_epochs;
        for held in snapshot.workers.iter_mut().flat_map(|worker| &mut worker.cachelets) {
            let load = held.load.max(LOAD_FELT);
            held.pinned |= self.rest.pinned(held.cachelet, load, epoch, rest_epochs);
        }
    }

    /// Servers in phase 3.
    fn asking(&mut self, outlook: &Outlook, now: &Snapshot, mean: f64) -> Vec<ServerId> {
        let mut asking = Vec::new();
        let lately = outlook.epoch.saturating_sub(self.thresholds.patience.into());
        let in_motion = self.asked_in.is_some_and(|epoch| epoch >= lately);
        for server in outlook.servers.iter().filter(|one| is_to_stay(one.standing)) {
            let own = now.workers.iter().filter(|worker| worker.at.server == server.server);
            let loads: Vec<f64> = own.map(WorkerLoad::load).collect();
            let most = loads.iter().copied().fold(0.0, f64::max);
            let over = loads.iter().filter(|load| self.thresholds.is_over(**load)).count();
            // Who is under its limit, and cannot be brought nearer to the others, has been helped.
            let is_helped = self.helped.contains(&server.server);
            let vitals = Vitals {
                hotspot: over > 0,
                headroom: true,
                overloaded_share: over as f64 / loads.len().max(1) as f64,
                no_local_plan: server.helpless && over > 0,
                above_cluster: if is_helped { most - mean } else { 0.0 },
                in_motion,
                ..Vitals::default()
            };
            let machine = self.machines.entry(server.server).or_default();
            let in_three = machine.observe(&vitals, &self.thresholds).three;
            if in_three || is_planted(Fault::LevelsTheLastPercent) {
                asking.push(server.server);
                self.asked_in = Some(outlook.epoch);
            }
        }
        asking
    }

    /// The source stays too hot, though what is on it could move, and does not merely rest.
    fn is_no_answer(&self, global: &Global, source: &WorkerLoad) -> bool {
        let permissible = self.thresholds.permissible;
        let heavy = source.cachelets.iter().filter(|held| held.load > permissible);
        let immovable = source.fixed + heavy.map(|held| held.load).sum::<f64>();
        let rests = source.cachelets.iter().filter(|held| held.pinned);
        let resting: f64 = rests.map(|held| held.load).sum();
        global.all_hot
            && !self.thresholds.is_over(immovable)
            && self.thresholds.is_over(permissible + global.plan.excess - resting)
    }

    /// Servers like those that there are, which would have to come for all load to be permissible.
    fn missing(&self, loads: &[f64], outlook: &Outlook) -> u32 {
        let serving = outlook.servers.iter().filter(|one| is_to_stay(one.standing));
        let workers: usize = serving.clone().map(|one| one.workers.len()).sum();
        let wanted = (loads.iter().sum::<f64>() / self.thresholds.permissible).ceil();
        let per_server = workers.max(1) as f64 / serving.count().max(1) as f64;
        ((wanted - workers as f64) / per_server).ceil().max(0.0) as u32
    }

    /// Said at once; taken back when nothing is missing for some epochs.
    fn tell_missing(&mut self, missing: u32) {
        let patience = if missing > 0 { 1 } else { self.thresholds.patience };
        let open = self.all_hot.step(missing > 0, missing == 0, patience);
        self.servers_wanted = match (open, missing) {
            _ if is_planted(Fault::AllHotIsKept) => 0,
            (false, _) => 0,
            (true, 0) => self.servers_wanted,
            (true, missing) => missing,
        };
    }
}

impl Board<'_> {
    fn new(outlook: &Outlook) -> Board<'_> {
        let heard = outlook
            .servers
            .iter()
            .filter(|server| server.standing != Standing::Silent || is_planted(Fault::SilentTakes));
        let workers = heard.clone().flat_map(|server| server.workers.iter().cloned()).collect();
        let mut board = Board {
            outlook,
            snapshot: Snapshot { workers },
            under_way: outlook.under_way.iter().map(|step| step.cachelet).collect(),
            giving: BTreeMap::new(),
            taking: BTreeMap::new(),
            room: BTreeMap::new(),
            moves: Vec::new(),
            later: Vec::new(),
        };
        let told = outlook.servers.iter();
        board.room = told.filter_map(|one| Some((one.server, one.room_bytes?))).collect();
        for step in &outlook.under_way {
            *board.giving.entry(step.from.server).or_default() += 1;
            *board.taking.entry(step.to.server).or_default() += 1;
            if !is_planted(Fault::ForgetsWhatIsUnderWay) {
                board.arrive(step);
            }
        }
        for server in heard {
            board.share_memory(server.server, server.memory_bytes);
        }
        board
    }

    /// What is under way counts where it goes, and cannot be moved.
    fn arrive(&mut self, step: &Move) {
        let workers = &mut self.snapshot.workers;
        let from = workers.iter_mut().find_map(|worker| {
            let at = worker.cachelets.iter().position(|held| held.cachelet == step.cachelet)?;
            Some(worker.cachelets.remove(at))
        });
        let Some(mut held) = from else { return };
        let bytes = held.bytes;
        held.pinned = true;
        let to = workers.iter().position(|worker| worker.at == step.to);
        // A destination that is silent: it stays, on paper, with whoever is heard of.
        let back = workers.iter().position(|worker| worker.at.server == step.from.server);
        if let Some(at) = to.or(back) {
            workers[at].cachelets.push(held);
        }
        self.takes_room(step.to.server, bytes);
    }

    /// A server's workers share its memory: each may have, beside what it has, its part of what is free.
    fn share_memory(&mut self, server: ServerId, memory_bytes: u64) {
        let own = self.snapshot.workers.iter_mut().filter(|worker| worker.at.server == server);
        let mut own: Vec<&mut WorkerLoad> = own.collect();
        let used: u64 = own.iter().map(|worker| worker.bytes()).sum();
        let free = match is_planted(Fault::OverMemory) {
            true => memory_bytes,
            false => memory_bytes.saturating_sub(used),
        };
        let free = free.min(self.room.get(&server).copied().unwrap_or(u64::MAX));
        let part = free / own.len().max(1) as u64;
        own.iter_mut().for_each(|worker| worker.bytes_max = worker.bytes() + part);
    }

    pub fn servers(&self) -> impl Iterator<Item = &ServerOutlook> {
        self.outlook.servers.iter()
    }

    /// Servers that may be given something.
    pub fn takers(&self) -> impl Iterator<Item = ServerId> + '_ {
        let takes = |standing| match standing {
            Standing::Serving => true,
            Standing::Staying => false,
            Standing::Draining | Standing::Ending => is_planted(Fault::DrainingTakes),
            Standing::Silent => is_planted(Fault::SilentTakes),
        };
        let takers = self.outlook.servers.iter().filter(move |one| takes(one.standing));
        takers.map(|one| one.server)
    }

    /// Servers that are to be emptied, and whether each is about to end: those first.
    pub fn draining(&self) -> Vec<(ServerId, bool)> {
        let all = |standing| {
            let all = self.outlook.servers.iter().filter(move |one| one.standing == standing);
            all.map(move |one| (one.server, standing == Standing::Ending))
        };
        all(Standing::Ending).chain(all(Standing::Draining)).collect()
    }

    pub fn memory_of(&self, server: ServerId) -> u64 {
        let mut servers = self.outlook.servers.iter();
        servers.find(|one| one.server == server).map_or(0, |one| one.memory_bytes)
    }

    /// Whether what a cachelet has would arrive there whole: where nothing is evicted, only if it fits, and if no move there came to
    /// nothing lately.
    pub fn has_room(&self, server: ServerId, bytes: u64) -> bool {
        let Some(room) = self.room.get(&server) else { return true };
        let refuses = self.servers().any(|one| one.server == server && one.refuses);
        !refuses && bytes + bytes / ROOM_SPARED <= *room
    }

    fn takes_room(&mut self, server: ServerId, bytes: u64) {
        if let Some(room) = self.room.get_mut(&server) {
            *room = room.saturating_sub(bytes + bytes / ROOM_SPARED);
        }
    }

    pub fn is_under_way(&self, cachelet: Prefix) -> bool {
        self.under_way.contains(&cachelet)
    }

    /// Whether both servers have a place for a move of so many bytes.
    pub fn fits(&self, from: ServerId, to: ServerId, bytes: u64) -> bool {
        let mut servers = self.outlook.servers.iter();
        let ends = servers.any(|one| one.server == from && one.standing == Standing::Ending);
        let most = moves_max(bytes, ends);
        let count = |of: &BTreeMap<ServerId, usize>, id| of.get(&id).copied().unwrap_or(0);
        count(&self.giving, from).max(count(&self.taking, to)) < most
            || is_planted(Fault::OrdersWithoutBound)
    }

    /// Notes a move for this epoch, if both servers have a place for it; what has none is planned anew in the next.
    pub fn order(&mut self, planned: PlannedMove) -> bool {
        let (from, to) = (planned.step.from.server, planned.step.to.server);
        let fits = self.fits(from, to, planned.bytes);
        if fits {
            *self.giving.entry(from).or_default() += 1;
            *self.taking.entry(to).or_default() += 1;
            self.under_way.insert(planned.step.cachelet);
            self.moves.push(planned);
        }
        fits
    }

    /// A plan of Algorithm 2, heaviest first. The two of an exchange are begun together or not at all.
    fn begin(&mut self, before: &Snapshot, moves: &[Move]) {
        let Some(source) = moves.first().map(|step| step.from.server) else { return };
        let mut units: Vec<Vec<PlannedMove>> = Vec::new();
        for step in moves {
            let planned = |why| planned(before, step, why);
            match units.last_mut().filter(|_| step.to.server == source) {
                Some(unit) => unit.push(planned(Why::Exchange)),
                None => units.push(vec![planned(Why::Overload)]),
            }
        }
        units.sort_by(|a, b| b[0].load.total_cmp(&a[0].load));
        for unit in units {
            let both = unit
                .iter()
                .all(|one| self.fits(one.step.from.server, one.step.to.server, one.bytes));
            if both {
                for one in unit {
                    self.order(one);
                }
            }
        }
    }

    /// On paper.
    pub fn carry_out(&mut self, step: Move) {
        let workers = self.snapshot.workers.iter().flat_map(|worker| &worker.cachelets);
        let held = workers.clone().find(|held| held.cachelet == step.cachelet);
        let bytes = held.map_or(0, |held| held.bytes);
        self.takes_room(step.to.server, bytes);
        apply(&mut self.snapshot, &[step]);
    }
}

/// It will be there tomorrow, as far as is known.
fn is_to_stay(standing: Standing) -> bool {
    matches!(standing, Standing::Serving | Standing::Staying)
}

pub(crate) fn planned(before: &Snapshot, step: &Move, why: Why) -> PlannedMove {
    let worker = |at: Owner| before.workers.iter().find(|worker| worker.at == at);
    let held = before.workers.iter().flat_map(|worker| &worker.cachelets);
    let held = held.copied().find(|held| held.cachelet == step.cachelet);
    PlannedMove {
        step: *step,
        why,
        load: held.map_or(0.0, |held| held.load),
        bytes: held.map_or(0, |held| held.bytes),
        from_load: worker(step.from).map_or(0.0, WorkerLoad::load),
        to_load: worker(step.to).map_or(0.0, WorkerLoad::load),
    }
}
