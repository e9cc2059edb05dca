//! Phase 3 of a whole cluster: once an epoch, an outlook in, a plan out.
//!
//! ```text
//!   heartbeats, map, moves under way ──Outlook──►┌────────────────┐
//!                                                │ ClusterPlanner │  shares, cases, what is pending, what rests
//!   orders, within bounds ◄────────ClusterPlan───└────────────────┘
//! ```
//!
//! What keeps it from going back and forth: a case is open for two epochs before it is helped, and its server has had its turn; what is
//! under way counts at its destination; a remedy is judged before the next one; what has changed servers rests.

use std::collections::{BTreeMap, BTreeSet};

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{
    CacheletLoad, Came, ClusterPlan, Move, Outlook, Owner, PlannedMove, PlannedSplit, Prefix,
    Relief, SPLITS_UNTIL, ServerId, ServerOutlook, Snapshot, Standing, Why, WorkerLoad, moves_max,
};

use crate::balancer::JUDGED_EPOCHS;
use crate::cases::{Cases, Sign};
use crate::drain::drain;
use crate::evening::{Field, Rules, too_heavy};
use crate::fill::fill;
use crate::gate::Gate;
use crate::pace::Pace;
use crate::remedies::{PendingRemedy, Remedies, TakenCachelet};
use crate::rest::Size;
use crate::shares::{Shares, quotient, rounded};
use crate::splits::{Heavy, Splits};
use crate::steps::apply;
use crate::trust::{Trust, came};
use crate::{Rest, Thresholds};

/// Workers that are helped in one epoch, the hottest first: what bounds the time of planning.
const SOURCES_MAX: usize = 64;
/// Steps of one worker's plan.
const STEPS_MAX: usize = 64;
/// A worker alone may have so much more than its part: a cachelet that has more is too heavy.
const HEAVY: f64 = 1.15;

/// A case waits so long for copies of its hot keys.
const COPIES_EPOCHS: u32 = 6;
/// So much of what has left a worker is back as load that stays with its connections, and giving was in vain.
const BACK_SHARE: f64 = 0.5;
/// So much of an average worker's work has left a worker, and it has to show.
const SHOWN_MIN: f64 = 0.25;

/// A taker that has so many times what one of the cachelets brought has got it from elsewhere.
const FAULT_MAX: f64 = 2.0;
/// Less is chance.
const SHOWN_LEAST: f64 = 0.1;

/// Of what a worker has above its part, a plan takes this much at least.
const WORTH: f64 = 0.05;

/// What a move takes of a worker while it lasts, and how long that is.
const MOVE_COST: f64 = 0.3;
const MOVE_SECONDS: f64 = 0.1;
/// Load from which on a worker limits its clients; who does not gains little by a move.
const LIMITS_FROM: f64 = 0.7;
const LIMITS_LEAST: f64 = 0.1;
/// A worker gives so many at a time that take longer than half an epoch: its server's places are for its other workers, too.
const LONG_MOVES_MAX: usize = 4;
const LONG_SECONDS: f64 = 0.5;
/// As long as nobody has seen how fast cachelets go, it may be that slow.
const SLOW_BYTES: f64 = (4 << 20) as f64;
/// In which it has to be earned back. Always the same: a time that grew with the age of the load made moves worth their price one after the
/// other, long after all had settled.
const EARNED_SECONDS: f64 = 20.0;

/// Remembers from epoch to epoch what shares, cases and rest need; everything else it is given.
#[derive(Default)]
pub struct ClusterPlanner {
    thresholds: Thresholds,
    shares: Shares,
    cases: Cases,
    /// By worker that was to be helped.
    trust: Trust<Owner>,
    /// What has been planned for workers, and what came of it.
    remedies: Remedies,
    splits: Splits,
    rest: Rest,
    /// Who had each cachelet by the last outlook, and which were under way.
    homes: BTreeMap<Prefix, ServerId>,
    under_way: BTreeSet<Prefix>,
    pace: Pace,
    /// Servers that are being given their share.
    filling: BTreeSet<ServerId>,
    all_hot: Gate,
    /// What is said of it, as long as `all_hot` is open.
    servers_wanted: u32,
}

/// What is planned for a worker, as the steps of a plan, the heaviest first.
struct Help {
    at: Owner,
    seen: f64,
    load: f64,
    fixed: f64,
    capacity: f64,
    /// What each worker had of its part before.
    had: BTreeMap<Owner, f64>,
    units: Vec<Vec<PlannedMove>>,
}

/// What arrives needs so much more than its items have: one byte in so many, for the index and for ends of pages.
const ROOM_SPARED: u64 = 8;

/// The cluster as it will be when everything under way has arrived, and what may still be begun.
pub(crate) struct Board<'o> {
    pub(crate) outlook: &'o Outlook,
    pub snapshot: Snapshot,
    under_way: BTreeSet<Prefix>,
    pub(crate) giving: BTreeMap<ServerId, usize>,
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
    /// O(cachelets · log + sources · steps · (workers + a worker's cachelets)).
    pub fn plan(&mut self, outlook: &Outlook) -> ClusterPlan {
        let heard = outlook.servers.iter().filter(|one| one.standing != Standing::Silent);
        self.watch(outlook);
        let touched = self.remedies.touched();
        let rests = |at, cachelet| self.rest.has(cachelet) || touched.contains(&at);
        // A heartbeat tells of the epoch before it.
        let is_between = |cachelet| {
            self.under_way.contains(&cachelet) || self.rest.since(cachelet, outlook.epoch) <= 1
        };
        let ends = outlook.under_way.iter().flat_map(|step| [step.from, step.to]);
        let ends: BTreeSet<Owner> = ends.collect();
        let workers = heard.flat_map(|one| &one.workers);
        self.shares.observe(workers, |at| ends.contains(&at), rests, is_between);
        if !outlook.awaits {
            self.restore(outlook);
        }
        if self.shares.age() == 0 {
            self.trust.clear();
            self.remedies.another_load();
            self.splits.another_load();
        }
        for at in self.shares.divided() {
            self.trust.note(at, Came::True, outlook.epoch);
        }
        let mut board = Board::new(outlook);
        self.pin_what_rests(&mut board.snapshot, outlook.epoch);
        let loads: Vec<f64> = board.snapshot.workers.iter().map(WorkerLoad::load).collect();
        let load_mean = loads.iter().fold(0.0, |sum, load| sum + load) / loads.len().max(1) as f64;
        // An operator's wish goes first.
        let stuck = drain(&mut board, &self.thresholds);
        let demand = self.shares.demand(&board.snapshot);
        self.judge(outlook, &demand, &mut board);
        for judged in self.splits.judge(&demand, outlook.epoch, self.thresholds.rest_epochs) {
            self.remedies.push_judged(judged);
        }
        let mut sources = self.sources(outlook, &demand);
        if outlook.awaits && !is_planted(Fault::NobodyIsAwaited) {
            sources.clear();
        }
        let mut field = Field::new(demand);
        let asking: BTreeSet<ServerId> =
            sources.iter().map(|&at| field.workers()[at].at.server).collect();
        let takers: BTreeSet<ServerId> = board.takers().collect();
        let (mut heavy, mut in_vain, mut is_short) = (Vec::new(), BTreeSet::new(), false);
        let (mut plans, mut splits) = (Vec::new(), Vec::new());
        let part = |(at, one): (&Owner, &mut PendingRemedy)| {
            std::mem::take(&mut one.is_part).then_some(*at)
        };
        let parts: Vec<Owner> = self.remedies.pending.iter_mut().filter_map(part).collect();
        for &source in &sources {
            let at = field.workers()[source].at;
            if let Some(held) = too_heavy(&field.workers()[source], HEAVY) {
                match self.split(source, held, &field, &takers, &board) {
                    // What leaves it with one of its parts need not leave it otherwise.
                    Some(split) => {
                        splits.push(split);
                        continue;
                    }
                    None => heavy.push(held.cachelet),
                }
            }
            if self.splits.settles(at, outlook.epoch) {
                continue;
            }
            if self.trust.waits(&at, outlook.epoch) {
                in_vain.insert(at.server);
                continue;
            }
            let stays = outlook.servers.iter().find(|one| one.server == at.server);
            if stays.is_some_and(|one| one.standing == Standing::Staying) {
                is_short = true;
                continue;
            }
            let is_pending = self.remedies.pending.contains_key(&at) && !parts.contains(&at);
            if !is_pending || is_planted(Fault::LedgerIsIgnored) {
                plans.push(self.plan_for(source, &mut field, &takers, &board));
            }
        }
        self.begin(plans, &mut board);
        self.pace.begin(&board.moves);
        splits.iter().for_each(|split| self.splits.begin(split, outlook.epoch));
        if !outlook.awaits {
            fill(&mut board, &mut self.filling, &self.thresholds);
        }
        let full = match is_short || self.thresholds.is_over(load_mean) {
            true => self.missing(&loads, outlook),
            false => 0,
        };
        self.tell_missing(full.max(u32::from(!stuck.is_empty())), !stuck.is_empty());
        heavy.sort();
        heavy.dedup();
        ClusterPlan {
            epoch: outlook.epoch,
            by_connections: by_connections(&field, &sources, &loads),
            moves: board.moves,
            later: board.later,
            splits,
            asking: asking.into_iter().collect(),
            servers_wanted: self.servers_wanted,
            too_heavy: heavy,
            stuck,
            in_vain: in_vain.into_iter().collect(),
            remedies: self.remedies.told().into_iter().chain(self.splits.told()).collect(),
            load_mean,
            load_max: loads.iter().copied().fold(0.0, f64::max),
        }
    }

    /// What a coordinator before this one had planned.
    fn restore(&mut self, outlook: &Outlook) {
        let Self { remedies, trust, splits, .. } = self;
        let moved = remedies.restore(&outlook.remedies, trust, splits, outlook.epoch);
        let workers = outlook.servers.iter().flat_map(|server| &server.workers);
        for held in
            workers.flat_map(|one| &one.cachelets).filter(|held| moved.contains(&held.cachelet))
        {
            let size = Size { load: held.load, share: self.shares.share(held.cachelet) };
            self.rest.note(held.cachelet, size, outlook.epoch);
        }
    }

    /// Workers with a case that is the coordinator's, the worst first, by their places.
    fn sources(&mut self, outlook: &Outlook, demand: &Snapshot) -> Vec<usize> {
        let servers = outlook.servers.iter().filter(|one| is_to_stay(one.standing));
        let places: BTreeMap<Owner, usize> =
            demand.workers.iter().enumerate().map(|(place, one)| (one.at, place)).collect();
        let stays = servers.flat_map(|server| server.workers.iter().map(move |one| (server, one)));
        let stays: Vec<(&ServerOutlook, &WorkerLoad)> = stays.collect();
        let signs = stays.iter().filter_map(|(_, worker)| {
            Some(Sign {
                at: worker.at,
                waits: self.thresholds.waits(worker),
                quotient: quotient(&demand.workers[*places.get(&worker.at)?]),
                keys: worker.service.keys,
            })
        });
        let signs: Vec<Sign> = signs.collect();
        self.cases.observe(signs.into_iter(), self.thresholds.patience);
        let copying: BTreeSet<Prefix> =
            outlook.servers.iter().flat_map(|server| &server.copying).copied().collect();
        // What copies are going to take is not taken by moves as well.
        let waits_for_copies = |worker: &WorkerLoad| {
            self.cases.open(worker.at) <= COPIES_EPOCHS
                && worker.cachelets.iter().any(|held| copying.contains(&held.cachelet))
        };
        // A server's own remedy moves its load from worker to worker: once it had its turn with one of them, all that press are the cluster's.
        let oldest = |server: &ServerOutlook| {
            let pressing = server.workers.iter().filter(|one| self.cases.is_pressing(one.at));
            pressing.map(|one| self.cases.open(one.at)).max().unwrap_or(0)
        };
        let is_its = |server: &ServerOutlook, at: Owner| {
            // The server acts first, and has as long until that has to show.
            let patience = if server.helpless { 1 } else { 2 * self.thresholds.patience };
            let patience = match is_planted(Fault::ServersKeepTheirCases) {
                true => u32::MAX,
                false => patience,
            };
            self.cases.is_pressing(at) && patience <= oldest(server)
                || is_planted(Fault::LevelsTheLastPercent)
        };
        let pressing = stays.iter().filter(|(server, worker)| {
            is_its(server, worker.at)
                && (!waits_for_copies(worker) || is_planted(Fault::NothingIsPending))
        });
        let mut sources: Vec<usize> =
            pressing.filter_map(|(_, worker)| places.get(&worker.at).copied()).collect();
        let by_quotient = |at: &usize| quotient(&demand.workers[*at]);
        sources.sort_by(|a, b| by_quotient(b).total_cmp(&by_quotient(a)).then(a.cmp(b)));
        sources.truncate(SOURCES_MAX);
        sources
    }

    /// How a worker's cachelet is split that is too much for it, and for whom else might take it.
    fn split(
        &self,
        source: usize,
        held: CacheletLoad,
        field: &Field,
        takers: &BTreeSet<ServerId>,
        board: &Board,
    ) -> Option<PlannedSplit> {
        let (worker, epoch) = (&field.workers()[source], board.outlook.epoch);
        let server = board.servers().find(|one| one.server == worker.at.server)?;
        let before = server.workers.iter().flat_map(|one| &one.cachelets);
        let load = before.clone().find(|one| one.cachelet == held.cachelet)?.load;
        let rest_epochs = self.thresholds.rest_epochs;
        let size = Size { load, share: held.load };
        let may_take = |to: Owner| to.server != worker.at.server && takers.contains(&to.server);
        let may_be = board.outlook.knows_hot_keys
            && server.standing == Standing::Serving
            && before.count() < SPLITS_UNTIL
            && !board.is_under_way(held.cachelet)
            && !self.rest.pinned(held.cachelet, size, epoch, rest_epochs)
            && !field.has_place(source, &held, HEAVY, may_take);
        let hottest = server.hottest.iter().find(|(cachelet, _)| *cachelet == held.cachelet);
        let hottest = hottest.map_or(0.0, |(_, load)| *load);
        let heavy = Heavy { worker, held, load, hottest };
        may_be.then(|| self.splits.wanted(&heavy, epoch, rest_epochs)).flatten()
    }

    /// What gains more than it costs, for one worker.
    fn plan_for(
        &self,
        source: usize,
        field: &mut Field,
        takers: &BTreeSet<ServerId>,
        board: &Board,
    ) -> Help {
        let (at, seen) = (field.workers()[source].at, field.quotient(source));
        let may_take: Vec<bool> = field
            .workers()
            .iter()
            .map(|to| to.at.server != at.server && takers.contains(&to.at.server))
            .collect();
        let before = &board.snapshot;
        let worker = before.workers.iter().find(|worker| worker.at == at);
        let (load, fixed) = worker.map_or((0.0, 0.0), |one| (one.load(), one.fixed));
        let price = 3.0 * MOVE_COST / EARNED_SECONDS / field.workers().len() as f64;
        let rules =
            Moves { may_take, price: price / limits(load), bytes_a_second: self.pace.of(at) };
        let quotients = field.workers().iter().map(|worker| worker.at).zip(field.quotients());
        let had: BTreeMap<Owner, f64> = quotients.collect();
        let mut units: Vec<Vec<PlannedMove>> = Vec::new();
        while let Some(step) = field.best_step(source, &rules).filter(|_| units.len() < STEPS_MAX) {
            field.take(&step.moves);
            let why = if step.moves.len() > 1 { Why::Exchange } else { Why::Overload };
            let first = planned(before, &step.moves[0], Why::Overload);
            let others = step.moves[1..].iter().map(|step| planned(before, step, why));
            units.push([first].into_iter().chain(others).collect());
        }
        // What is that little cannot be judged, and costs its giver time all the same: mostly one key is the load.
        if seen - field.quotient(source) < WORTH * (seen - 1.0) {
            units.clear();
        }
        units.sort_by(|a, b| b[0].load.total_cmp(&a[0].load));
        let capacity = field.workers()[source].service.capacity;
        Help { at, seen, load, fixed, capacity, had, units }
    }

    /// Begins what has a place, in turns: workers that give side by side keep all waiting for a shorter time than one after the other.
    fn begin(&mut self, plans: Vec<Help>, board: &mut Board) {
        let most = plans.iter().map(|help| help.units.len()).max().unwrap_or(0);
        let mut giving: BTreeMap<Owner, usize> = BTreeMap::new();
        for step in &board.outlook.under_way {
            *giving.entry(step.from).or_default() += 1;
        }
        for turn in 0..most {
            for help in plans.iter().filter(|help| turn < help.units.len()) {
                let Help { at, seen, load, fixed, .. } = *help;
                let gives = giving.entry(at).or_default();
                let bytes = help.units[turn][0].bytes as f64;
                let may_begin = match self.pace.is_known() {
                    true => bytes <= LONG_SECONDS * self.pace.of(at) || *gives < LONG_MOVES_MAX,
                    // One shows how long it takes.
                    false => bytes <= LONG_SECONDS * SLOW_BYTES || *gives == 0,
                };
                let begun = may_begin && board.begin(&help.units[turn]);
                *gives += usize::from(begun);
                let [seen, load, fixed] = [seen, load, fixed].map(rounded);
                let work_per_key = self.shares.work_per_key();
                let fresh =
                    PendingRemedy { seen, load, fixed, work_per_key, ..PendingRemedy::default() };
                if !begun {
                    if let Some(pending) = self.remedies.pending.get_mut(&at) {
                        pending.is_part = true;
                    }
                    continue;
                }
                let pending = self.remedies.pending.entry(at).or_insert(fresh);
                for &PlannedMove { step, .. } in &help.units[turn] {
                    let share = self.shares.share(step.cachelet) / help.capacity;
                    let relief = if step.from == at { share } else { -share };
                    let taker_had = help.had.get(&step.to).copied().unwrap_or(0.0);
                    let [relief, taker_had] = [relief, taker_had].map(rounded);
                    let one = Relief { step, relief, taker_had };
                    pending.taken.push(TakenCachelet { one, arrived: None });
                }
            }
        }
    }

    /// What came of remedies whose time is over; what has made the worst worker worse goes back.
    fn judge(&mut self, outlook: &Outlook, demand: &Snapshot, board: &mut Board) {
        let epoch = outlook.epoch;
        self.trust.forget(epoch);
        if is_planted(Fault::LedgerIsIgnored) {
            return;
        }
        let workers = outlook.servers.iter().flat_map(|server| &server.workers);
        let fixed_now: BTreeMap<Owner, f64> = workers.map(|one| (one.at, one.fixed)).collect();
        let mut over = Vec::new();
        for (at, pending) in &mut self.remedies.pending {
            let mut settled = !pending.is_part;
            let mut shown = 0.0;
            for taken in &mut pending.taken {
                if self.under_way.contains(&taken.one.step.cachelet) {
                    settled = false;
                    continue;
                }
                if epoch < *taken.arrived.get_or_insert(epoch) + JUDGED_EPOCHS {
                    settled = false;
                } else if self.homes.get(&taken.one.step.cachelet)
                    == Some(&taken.one.step.to.server)
                {
                    shown += taken.one.relief;
                }
            }
            if !settled && shown < SHOWN_MIN {
                continue;
            }
            // In batches what is even may cost more turns than what it was before: all that a key costs counts.
            let dearer = match pending.work_per_key > 0.0 {
                true => self.shares.work_per_key() / pending.work_per_key,
                false => 1.0,
            };
            let now_of = |at: Owner| {
                let worker = demand.workers.iter().find(|one| one.at == at);
                worker.map_or(0.0, quotient) * dearer
            };
            // A taker that others burden, too, is not this remedy's fault.
            let is_own = |one: &&TakenCachelet| {
                let Relief { step, taker_had, .. } = one.one;
                let share = self.shares.share(step.cachelet);
                now_of(step.to) <= taker_had + FAULT_MAX * share.max(SHOWN_LEAST)
            };
            let takers = pending.taken.iter().filter(is_own).map(|taken| taken.one.step.to);
            // Nor is what burdens the giver since; but that all keys are dearer is.
            let given = Some(*at).filter(|at| now_of(*at) <= pending.seen * dearer);
            let worst = takers.chain(given).map(now_of).fold(0.0, f64::max);
            let came = match shown < SHOWN_LEAST {
                true => Came::True,
                false => came(pending.seen, pending.seen - shown, now_of(*at), pending.seen, worst),
            };
            let fixed = fixed_now.get(at).map_or(0.0, |fixed| fixed - pending.fixed);
            let came = match came {
                // Clients go on asking the server that they know, which has to ask the new owner.
                Came::True if fixed >= BACK_SHARE * pending.load * shown / pending.seen => {
                    Came::Short
                }
                came => came,
            };
            // Another load is nobody's fault.
            let came =
                if self.shares.age() < 2 && came == Came::Worse { Came::Short } else { came };
            if settled || came != Came::True {
                self.trust.note(*at, came, epoch);
                over.push((*at, now_of(*at), came));
            }
        }
        for (at, now, came) in over {
            let moves = self.remedies.judged(at, now, came, self.trust.vain(&at));
            if came == Came::Worse {
                for step in moves {
                    let back = Move { from: step.to, to: step.from, ..step };
                    if self.homes.get(&back.cachelet) == Some(&back.from.server) {
                        board.order(planned(&board.snapshot, &back, Why::Undone));
                    }
                }
            }
        }
    }

    /// What has changed servers, or was under way and is so no more, rests from now on: a move may take less than
    /// an epoch, and may come to nothing.
    fn watch(&mut self, outlook: &Outlook) {
        let epoch = outlook.epoch;
        self.rest.forget_before(epoch, self.thresholds.rest_epochs);
        let under_way: BTreeSet<Prefix> =
            outlook.under_way.iter().map(|step| step.cachelet).collect();
        let (mut homes, mut arrived) = (BTreeMap::new(), Vec::new());
        for worker in outlook.servers.iter().flat_map(|server| &server.workers) {
            for held in &worker.cachelets {
                let (cachelet, home) = (held.cachelet, worker.at.server);
                let from = self.homes.get(&cachelet).filter(|before| **before != home);
                if from.is_some() {
                    arrived.push((cachelet, held.bytes));
                }
                let was_under_way = self.under_way.contains(&cachelet);
                if from.is_some() || was_under_way && !under_way.contains(&cachelet) {
                    let size = Size { load: held.load, share: self.shares.share(cachelet) };
                    self.rest.note(cachelet, size, epoch);
                }
                homes.insert(cachelet, home);
            }
        }
        self.pace.observe(&arrived, outlook);
        (self.homes, self.under_way) = (homes, under_way);
    }

    fn pin_what_rests(&self, snapshot: &mut Snapshot, epoch: u64) {
        if is_planted(Fault::NothingRests) || is_planted(Fault::NothingIsDamped) {
            return;
        }
        let rest_epochs = self.thresholds.rest_epochs;
        for held in snapshot.workers.iter_mut().flat_map(|worker| &mut worker.cachelets) {
            let size = Size { load: held.load, share: self.shares.share(held.cachelet) };
            held.pinned |= self.rest.pinned(held.cachelet, size, epoch, rest_epochs);
        }
    }

    /// Servers like those that there are, which would have to come for all load to be permissible.
    fn missing(&self, loads: &[f64], outlook: &Outlook) -> u32 {
        let serving = outlook.servers.iter().filter(|one| is_to_stay(one.standing));
        let workers: usize = serving.clone().map(|one| one.workers.len()).sum();
        let wanted = (loads.iter().sum::<f64>() / self.thresholds.permissible).ceil();
        let per_server = workers.max(1) as f64 / serving.count().max(1) as f64;
        ((wanted - workers as f64) / per_server).ceil().max(0.0) as u32
    }

    /// Said and taken back when it is so for some epochs; at once if a server is to be emptied, and cannot be.
    fn tell_missing(&mut self, missing: u32, is_stuck: bool) {
        let patience = if is_stuck { 1 } else { 2 * self.thresholds.patience };
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
            let forgets = [Fault::ForgetsWhatIsUnderWay, Fault::LedgerIsIgnored];
            if !forgets.into_iter().any(is_planted) {
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

    /// A step of a plan, if it has a place. The two of an exchange are begun together or not at all.
    fn begin(&mut self, unit: &[PlannedMove]) -> bool {
        let fits =
            |one: &PlannedMove| self.fits(one.step.from.server, one.step.to.server, one.bytes);
        let all = unit.iter().all(fits);
        for one in unit.iter().filter(|_| all) {
            self.order(*one);
            self.carry_out(one.step);
        }
        all
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

/// Servers with an overloaded worker that has more than its part by what stays with its connections. `loads`: what all workers are seen to
/// be busy. Where these are even a part is only as good as what is known of capacities, and no client would be better off elsewhere.
fn by_connections(field: &Field, sources: &[usize], loads: &[f64]) -> Vec<ServerId> {
    let mean = loads.iter().sum::<f64>() / loads.len().max(1) as f64;
    let is_over = |at: &&usize| {
        let worker = &field.workers()[**at];
        worker.fixed > HEAVY * worker.service.capacity && loads[**at] > HEAVY * mean
    };
    let over: BTreeSet<ServerId> =
        sources.iter().filter(is_over).map(|at| field.workers()[*at].at.server).collect();
    over.into_iter().collect()
}

/// How much a worker with this load keeps its clients from asking for more. Who has time left serves all that it is asked for, and would be
/// saturated by giving.
fn limits(load: f64) -> f64 {
    ((load - LIMITS_FROM) / (1.0 - LIMITS_FROM)).clamp(LIMITS_LEAST, 1.0)
}

/// Moves between servers.
struct Moves {
    /// By worker.
    may_take: Vec<bool>,
    /// Of a move of a second from who has its part, of the capacity of all.
    price: f64,
    bytes_a_second: f64,
}

impl Rules for Moves {
    fn price(&self, held: &CacheletLoad, quotient: f64) -> f64 {
        // It takes so much of a worker's capacity: the more it is missed, the dearer.
        let seconds = MOVE_SECONDS + held.bytes as f64 / self.bytes_a_second;
        let seconds = if is_planted(Fault::NothingIsDamped) { 0.0 } else { seconds };
        self.price * quotient.powi(4) * seconds
    }

    fn may_take(&self, at: usize) -> bool {
        self.may_take[at]
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
