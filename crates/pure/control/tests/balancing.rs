//! The coordinator, a planner, and servers that are made up: they report loads, and carry moves out in some epochs. One
//! call is an epoch. With `--features planted` the checks have to notice a fault.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mbal_balance::{ClusterPlanner, Thresholds};
use mbal_control::api::{
    BalanceMode, Heartbeat, Incarnation, LostCall, MoveCall, MoveDecision, MoveReport, Progress,
    Registration, RemedyReport, Status, WorkerReport, cachelets_listed,
};
use mbal_control::{Coordinator, Refusal, Request, Response, Settings, State};
use mbal_model::{Came, Instant, Owner, Prefix, ServerId, Standing, WorkerId, moves_max};
use mbal_random::Random;

const EPOCH_US: u64 = 1_000_000;
const WORKERS: usize = 2;
/// Of cachelets that are not short.
const MOVES_MAX: usize = moves_max(u64::MAX, false);
/// `Thresholds::permissible`.
const T: f64 = 0.75;
const REST: u64 = 10;

struct Server {
    incarnation: u64,
    /// It says nothing, and does nothing.
    is_silent: bool,
    is_alive: bool,
    /// Load that no cachelet brings, by worker.
    fixed: [f64; WORKERS],
}

struct World {
    random: Random,
    coordinator: Coordinator,
    planner: ClusterPlanner,
    epoch: u64,
    servers: BTreeMap<u16, Server>,
    /// What is asked of each cachelet, as a part of a worker's time.
    loads: BTreeMap<Prefix, f64>,
    /// By cachelet, the worker that has it: servers lend as they like.
    workers: BTreeMap<Prefix, usize>,
    /// By move, the epoch in which its source is done.
    done_at: BTreeMap<u32, u64>,
    said: Vec<String>,
    /// By cachelet, when it changed servers, and its load then.
    changed: BTreeMap<Prefix, (u64, f64)>,
    /// The cluster's troubles excuse that something moves again.
    excused_until: u64,
    /// A server that takes nothing of what is to come.
    refuses: Option<ServerId>,
}

impl World {
    fn new(servers: u16, seed: u64) -> World {
        let coordinator = Coordinator::new(settings(servers));
        let mut world = World {
            random: Random::new(seed),
            coordinator,
            planner: ClusterPlanner::new(Thresholds::default()),
            epoch: 0,
            servers: BTreeMap::new(),
            loads: BTreeMap::new(),
            workers: BTreeMap::new(),
            done_at: BTreeMap::new(),
            said: Vec::new(),
            changed: BTreeMap::new(),
            excused_until: 0,
            refuses: None,
        };
        (1..=servers).for_each(|id| world.register(id, u64::from(id)));
        world.heat(|_| 0.3);
        world
    }

    fn ask(&mut self, ask: Request) -> Result<Response, Refusal> {
        let now = Instant::from_micros(self.epoch * EPOCH_US);
        let done = self.coordinator.handle(now, ask);
        self.said.extend(done.said);
        let state = self.coordinator.state();
        assert_eq!(State::from_json(&state.to_json()).as_ref(), Ok(state), "it can be read again");
        done.answer
    }

    fn register(&mut self, id: u16, incarnation: u64) {
        let registration = Registration {
            id: Some(id),
            incarnation: Incarnation(incarnation),
            cluster: "mbal".into(),
            client: format!("10.0.0.{id}:11211"),
            link: format!("10.0.0.{id}:11311"),
            workers: (0..WORKERS).map(|at| format!("10.0.0.{id}:{}", 11300 + at)).collect(),
            memory_bytes: 1 << 36,
            moves: true,
            ..Registration::default()
        };
        self.ask(Request::Register(registration)).expect("nobody is in the way");
        let fixed = [0.0; WORKERS];
        self.servers.insert(id, Server { incarnation, is_silent: false, is_alive: true, fixed });
    }

    fn map(&self) -> Vec<(Prefix, Owner)> {
        let map = self.coordinator.state().map.as_ref();
        map.map_or(Vec::new(), |map| map.cachelets().to_vec())
    }

    fn of(&self, server: u16) -> Vec<Prefix> {
        let held = self.map().into_iter().filter(|(_, owner)| owner.server.0 == server);
        held.map(|(prefix, _)| prefix).collect()
    }

    /// Gives each worker of a server a load, spread evenly over its cachelets.
    fn heat(&mut self, load: impl Fn(Owner) -> f64) {
        let map = self.map();
        let mut counts = BTreeMap::<Owner, usize>::new();
        map.iter().for_each(|(_, owner)| *counts.entry(*owner).or_default() += 1);
        for (prefix, owner) in map {
            self.loads.insert(prefix, load(owner) / counts[&owner] as f64);
            self.workers.insert(prefix, usize::from(owner.worker.0));
        }
    }

    fn worker_of(&self, prefix: Prefix) -> usize {
        self.workers.get(&prefix).copied().unwrap_or(0)
    }

    /// What is asked of each worker of a server.
    fn asked(&self, server: u16) -> Vec<f64> {
        let mut loads = self.servers[&server].fixed.to_vec();
        for prefix in self.of(server) {
            loads[self.worker_of(prefix)] += self.loads[&prefix];
        }
        loads
    }

    fn heartbeat(&mut self, id: u16) {
        let server = &self.servers[&id];
        let (incarnation, fixed) = (server.incarnation, server.fixed);
        let asked = self.asked(id);
        let listed = cachelets_listed(WORKERS);
        let workers = (0..WORKERS).map(|at| {
            // A saturated worker shows no more than all of its time.
            let shown = 1.0 / asked[at].max(1.0);
            let held = self.of(id).into_iter().filter(|prefix| self.worker_of(*prefix) == at);
            let one = |prefix: Prefix| (prefix.to_string(), self.loads[&prefix] * shown, 10 << 20);
            WorkerReport::new(fixed[at] * shown, held.map(one).collect(), listed)
        });
        let workers: Vec<WorkerReport> = workers.collect();
        let overloaded = asked.iter().filter(|load| **load > T).count();
        let moves = self.coordinator.state().moves.clone();
        let moves = moves.iter().filter(|(_, one)| one.from.server.0 == id);
        let reports = moves.map(|(number, one)| {
            let is_done = self.done_at.get(&number.0).is_some_and(|at| *at <= self.epoch);
            let progress = match one.word {
                MoveDecision::DestinationLost => Progress::Back,
                MoveDecision::Go if is_done && self.refuses == Some(one.to.server) => {
                    Progress::Back
                }
                MoveDecision::Go | MoveDecision::Cancel if is_done => Progress::Sealed,
                MoveDecision::Go | MoveDecision::Cancel => Progress::Moving,
            };
            MoveReport { number: number.0, progress, ..MoveReport::default() }
        });
        let heartbeat = Heartbeat {
            incarnation: Incarnation(incarnation),
            workers,
            helpless: overloaded > 0,
            map_version: self.coordinator.state().map.as_ref().map_or(0, |map| map.version()),
            moves: reports.collect(),
            ..Heartbeat::default()
        };
        drop(self.ask(Request::Heartbeat(ServerId(id), heartbeat)));
    }

    /// Heartbeats, a plan, and what is said of it. What the plan begins is checked.
    fn epoch(&mut self) -> Result<(), String> {
        self.epoch += 1;
        let map = self.map();
        let talking: Vec<u16> = self
            .servers
            .iter()
            .filter(|(_, server)| server.is_alive && !server.is_silent)
            .map(|(id, _)| *id)
            .collect();
        // Heartbeats begin moves, too: what empties servers, and had no place before.
        let before: BTreeSet<u32> = self.moves();
        talking.into_iter().for_each(|id| self.heartbeat(id));
        self.notice(&map)?;
        let Ok(Response::Outlook(outlook)) = self.ask(Request::Outlook(self.epoch)) else {
            return Err("there is always an outlook".into());
        };
        let plan = self.planner.plan(&outlook);
        self.ask(Request::Planned(plan)).expect("a plan is never refused");
        self.follow_splits();
        let begun: Vec<u32> = self.moves().difference(&before).copied().collect();
        for number in begun {
            let takes = 1 + self.random.below(3);
            self.done_at.insert(number, self.epoch + takes);
            let state = self.coordinator.state();
            let one = state.moves[&mbal_model::MoveId(number)];
            if state.draining.contains(&one.to.server) {
                return Err(format!("move {number} goes to a server that is to be emptied"));
            }
            let standing = |id| outlook.servers.iter().find(|one| one.server == id);
            let standing = standing(one.to.server).map(|one| one.standing);
            if standing != Some(Standing::Serving) {
                return Err(format!("move {number} goes to a server that is {standing:?}"));
            }
            let drains = state.draining.contains(&one.from.server);
            if !drains && state.balance != BalanceMode::On {
                return Err(format!("move {number} though balance is {:?}", state.balance));
            }
        }
        let mut counts = BTreeMap::<(bool, ServerId), usize>::new();
        for one in self.coordinator.state().moves.values() {
            *counts.entry((true, one.from.server)).or_default() += 1;
            *counts.entry((false, one.to.server)).or_default() += 1;
        }
        match counts.iter().find(|(_, count)| **count > MOVES_MAX) {
            Some(((_, server), count)) => Err(format!("server {} in {count} moves", server.0)),
            None => Ok(()),
        }
    }

    /// What has changed servers rests, and goes to the lightest worker there when phase 2 has a say.
    fn notice(&mut self, before: &[(Prefix, Owner)]) -> Result<(), String> {
        for ((prefix, was), (_, is)) in before.iter().zip(self.map()) {
            if was.server == is.server {
                continue;
            }
            let load = self.loads[prefix];
            self.workers.insert(*prefix, usize::from(is.worker.0) % WORKERS);
            if let Some((when, then)) = self.changed.insert(*prefix, (self.epoch, load)) {
                let is_the_same = (load - then).abs() < 0.4 * then;
                if self.epoch < when + REST && is_the_same && self.excused_until < when {
                    return Err(format!("{prefix} moves again after {} epochs", self.epoch - when));
                }
            }
        }
        Ok(())
    }

    /// Parts have as much of what is asked for as of the hashes.
    fn follow_splits(&mut self) {
        for (part, _) in self.map() {
            if self.loads.contains_key(&part) {
                continue;
            }
            let mut wider = (0..part.bits()).rev().map(|bits| Prefix::of(part.first_hash(), bits));
            let whole = wider.find(|whole| self.loads.contains_key(whole));
            let whole = whole.expect("it was a part of something");
            let ratio = part.nodes() as f64 / whole.nodes() as f64;
            self.loads.insert(part, self.loads[&whole] * ratio);
            self.workers.insert(part, self.worker_of(whole));
        }
    }

    fn moves(&self) -> BTreeSet<u32> {
        self.coordinator.state().moves.keys().map(|id| id.0).collect()
    }

    fn epochs(&mut self, count: u64) {
        for _ in 0..count {
            self.epoch().unwrap_or_else(|why| panic!("epoch {}: {why}", self.epoch));
        }
    }

    fn most(&self) -> f64 {
        let alive = self.servers.iter().filter(|(_, server)| server.is_alive);
        alive.flat_map(|(id, _)| self.asked(*id)).fold(0.0, f64::max)
    }

    fn status(&mut self) -> Status {
        match self.ask(Request::Status) {
            Ok(Response::Status(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    fn state_of(&mut self, id: u16) -> String {
        let servers = self.status().servers;
        servers.into_iter().find(|server| server.id == id).expect("it is known").state
    }

    fn says(&self, what: &str) -> usize {
        self.said.iter().filter(|text| text.contains(what)).count()
    }

    /// Something happens to the cluster.
    fn trouble(&mut self) {
        let id = 1 + self.random.below(self.servers.len() as u64) as u16;
        let excuse = self.epoch + REST;
        match self.random.below(16) {
            0 => {
                let silent = self.servers.values().filter(|server| server.is_silent).count();
                let server = self.servers.get_mut(&id).expect("it is there");
                server.is_silent = !server.is_silent && silent == 0;
            }
            1 => {
                if self.servers.values().filter(|server| server.is_alive).count() > 2 {
                    drop(self.ask(Request::Lost(ServerId(id))));
                    self.servers.get_mut(&id).expect("it is there").is_alive = false;
                    self.excused_until = excuse;
                }
            }
            2 => {
                let incarnation = 1000 + self.epoch;
                self.register(id, incarnation);
                self.excused_until = excuse;
            }
            3 => {
                drop(self.ask(Request::Drain(ServerId(id), true)));
                self.excused_until = excuse;
            }
            4 | 5 => drop(self.ask(Request::Drain(ServerId(id), false))),
            6 => {
                let mode = [BalanceMode::Off, BalanceMode::DryRun, BalanceMode::On]
                    [self.random.below(3) as usize];
                drop(self.ask(Request::Balance(mode)));
            }
            7 => {
                // The coordinator is started again, and remembers what was saved.
                let state = self.coordinator.state().clone();
                let resumed = Coordinator::resume(settings(0), state);
                self.coordinator = resumed.expect("it is the same cluster");
                self.planner = ClusterPlanner::new(Thresholds::default());
                self.excused_until = excuse;
            }
            8 => {
                let before = self.coordinator.state().clone();
                drop(self.ask(Request::Drain(ServerId(id), true)));
                self.coordinator.restore(before.into());
            }
            9..13 => {
                // Connections come to one server, and leave the others.
                for (other, server) in &mut self.servers {
                    server.fixed = if *other == id { [0.5; WORKERS] } else { [0.0; WORKERS] };
                }
            }
            _ => {
                let hot = self.random.below(1 << 16);
                let load = 0.2 + 0.8 * self.random.below(100) as f64 / 100.0;
                self.heat(|owner| {
                    let is_hot = owner.server.0 == 1 + (hot % 4) as u16;
                    if is_hot { load } else { 0.2 }
                });
            }
        }
    }
}

fn settings(servers: u16) -> Settings {
    Settings { servers_first: servers.into(), ..Settings::default() }
}

#[test]
fn an_overloaded_server_gives_until_no_worker_is_overloaded_and_then_all_is_still() {
    let mut world = World::new(4, 1);
    world.heat(|owner| if owner.server.0 == 2 { 0.9 } else { 0.3 });
    world.epochs(2);
    assert!(!world.moves().is_empty(), "after two epochs");
    world.epochs(12);
    assert!(world.most() <= T + 1e-9, "{}", world.most());
    let ever = world.coordinator.state().moves_ever;
    assert!(ever < 24, "{ever} moves");
    world.epochs(40);
    assert_eq!(world.coordinator.state().moves_ever, ever);
    assert_eq!(world.says("phase 3 for server 2"), 1, "{:#?}", world.said);
    assert_eq!(world.says("no server asks for help any more"), 1);
    assert!(world.says("to lighten its worker; it has load 0.0") >= 4, "{:?}", world.said);
}

#[test]
fn an_even_cluster_moves_nothing() {
    for load in [0.1, 0.5, 0.74] {
        let mut world = World::new(3, 1);
        world.heat(|_| load);
        world.epochs(50);
        assert_eq!(world.coordinator.state().moves_ever, 0);
        let hot = world.says("servers wanted");
        assert_eq!(hot, 0, "{:?}", world.said);
    }
}

#[test]
fn when_all_are_hot_operators_see_how_many_servers_are_missing() {
    let mut world = World::new(3, 1);
    world.heat(|_| 0.95);
    world.epochs(6);
    // 5.7 of load are eight workers at 0.75: one server of two workers more. Nobody has more than its part.
    let status = world.status();
    assert_eq!((status.balance.servers_wanted, status.balance.asking.len()), (1, 0));
    assert_eq!(world.says("1 more servers wanted: loads are 0.95 on average, 0.95 at most"), 1);
    assert_eq!(world.coordinator.state().moves_ever, 0);
    world.heat(|_| 0.4);
    world.epochs(10);
    assert_eq!(world.status().balance.servers_wanted, 0);
    assert_eq!(world.says("no more servers are wanted"), 1);
}

#[test]
fn a_server_that_its_connections_overload_is_named_and_moves_nothing() {
    let mut world = World::new(3, 1);
    world.servers.get_mut(&2).expect("it is there").fixed = [0.9, 0.1];
    world.heat(|owner| if owner.server.0 == 2 { 0.0 } else { 0.3 });
    world.epochs(12);
    assert_eq!(world.status().balance.by_connections, [2]);
    assert_eq!(world.says("server 2 is overloaded by its connections"), 1, "{:?}", world.said);
    assert_eq!(world.status().balance.servers_wanted, 0);
}

/// A cachelet of server 2 has twice a worker's time.
fn one_is_heavy() -> (World, Prefix) {
    let mut world = World::new(3, 1);
    let whole = world.of(2)[0];
    world.loads.insert(whole, 2.0);
    (world, whole)
}

#[test]
fn what_nobody_has_a_place_for_is_split_and_its_parts_leave() {
    let (mut world, whole) = one_is_heavy();
    // The first part that leaves a saturated worker shows more elsewhere than it did there, and may move once more (decision 0516).
    world.excused_until = u64::MAX;
    world.epochs(2);
    assert_eq!(world.says(&format!("{whole} of server 2 is split into ")), 1, "{:#?}", world.said);
    let alone = format!("{whole} alone had 2.");
    let remedies: Vec<String> =
        world.status().balance.remedies.iter().map(RemedyReport::told).collect();
    assert!(remedies[0].starts_with(&alone), "{remedies:?}");
    world.epochs(40);
    assert!(world.most() < 0.9, "{}", world.most());
    assert_eq!(world.says("is split into"), 1, "{:#?}", world.said);
    let judged = |text: &&String| text.starts_with(&alone) && text.ends_with("it came true");
    assert_eq!(world.said.iter().filter(judged).count(), 1, "{:#?}", world.said);
    let held = world.of(2).iter().filter(|part| whole.contains(part.first_hash())).count();
    assert!((1..8).contains(&held), "some have left: {held}");
}

#[test]
fn off_and_dry_run_split_nothing_but_what_operators_order() {
    for mode in [BalanceMode::Off, BalanceMode::DryRun] {
        let (mut world, whole) = one_is_heavy();
        assert_eq!(world.ask(Request::Balance(mode)), Ok(Response::Done));
        world.epochs(12);
        assert!(world.of(2).contains(&whole));
        let would = world.says(&format!("would split {whole} of server 2"));
        assert_eq!(would > 0, mode == BalanceMode::DryRun, "{:?}", world.said);
        assert!(would <= 2, "it is not said again and again: {:?}", world.said);
    }
}

#[test]
fn off_and_dry_run_move_nothing_but_what_operators_order() {
    for mode in [BalanceMode::Off, BalanceMode::DryRun] {
        let mut world = World::new(3, 1);
        assert_eq!(world.ask(Request::Balance(mode)), Ok(Response::Done));
        world.heat(|owner| if owner.server.0 == 2 { 0.9 } else { 0.3 });
        world.epochs(12);
        assert_eq!(world.coordinator.state().moves_ever, 0);
        let would = world.says("would move");
        assert_eq!(would > 0, mode == BalanceMode::DryRun, "{:?}", world.said);
        assert!(would <= MOVES_MAX, "it is not said again and again: {:?}", world.said);
        world.ask(Request::Drain(ServerId(3), true)).expect("it is known");
        world.epochs(1);
        assert_eq!(world.moves().len(), MOVES_MAX);
    }
}

/// Server 1 is hot, and what is planned for it has begun.
fn helped() -> World {
    let mut world = World::new(3, 5);
    world.heat(|owner| if owner.server.0 == 1 { 0.95 } else { 0.2 });
    while world.coordinator.state().remedies.is_empty() {
        assert!(world.epoch < 10, "{:#?}", world.said);
        world.epochs(1);
    }
    world
}

#[test]
fn what_is_planned_is_told_and_saved_and_so_is_what_came_of_it() {
    let mut world = helped();
    let planned = world.coordinator.state().remedies[0].clone();
    assert!(planned.came.is_none() && planned.at.server == ServerId(1), "{planned:?}");
    assert!(planned.expected < planned.seen, "{planned:?}");
    let status = |world: &mut World| match world.ask(Request::Status) {
        Ok(Response::Status(status)) => status.balance.remedies,
        other => panic!("{other:?}"),
    };
    let of_worker = |one: &RemedyReport| one.worker == planned.at.worker.0;
    let told = status(&mut world).into_iter().find(of_worker).expect("it is told");
    assert_eq!((told.seen, told.came), (planned.seen, None));
    let begin = format!("worker 1/{} had {:.2} of its part, ", told.worker, told.seen);
    let is_told = |world: &World, end: &str| {
        world.said.iter().any(|said| said.starts_with(&begin) && said.contains(end))
    };
    assert!(is_told(&world, &planned.moves[0].step.cachelet.to_string()), "{:#?}", world.said);
    world.epochs(10);
    assert!(is_told(&world, ": it came true: "), "{:#?}", world.said);
    assert!(status(&mut world).iter().any(|one| one.seen == told.seen && one.came.is_some()));
}

#[test]
fn a_new_coordinator_awaits_servers_and_has_what_was_saved() {
    let mut world = helped();
    let state = world.coordinator.state().clone();
    let remedies = state.remedies.clone();
    world.coordinator = Coordinator::resume(settings(0), state).expect("it is the same cluster");
    world.epoch = 1;
    let outlook = |world: &mut World| match world.ask(Request::Outlook(1)) {
        Ok(Response::Outlook(outlook)) => (outlook.awaits, outlook.remedies),
        other => panic!("{other:?}"),
    };
    assert_eq!(outlook(&mut world), (true, remedies.clone()));
    world.heartbeat(1);
    world.heartbeat(2);
    assert_eq!(outlook(&mut world), (true, remedies.clone()));
    world.heartbeat(3);
    assert_eq!(outlook(&mut world), (false, remedies));
}

#[test]
fn nobody_is_awaited_for_ever() {
    let mut world = helped();
    let state = world.coordinator.state().clone();
    world.coordinator = Coordinator::resume(settings(0), state).expect("it is the same cluster");
    world.epoch = 30;
    let Ok(Response::Outlook(outlook)) = world.ask(Request::Outlook(30)) else { panic!("none") };
    assert!(!outlook.awaits);
}

#[test]
fn off_cancels_what_remedies_have_under_way_and_leaves_what_operators_move() {
    let mut world = helped();
    let cachelet = world.of(2)[0];
    let call = MoveCall { prefix: cachelet.to_string(), server: 3, worker: None };
    let Ok(Response::Move(own)) = world.ask(Request::Move(call)) else { panic!("it may move") };
    drop(world.ask(Request::Balance(BalanceMode::Off)));
    let words = world.coordinator.state().moves.iter();
    let words: Vec<(bool, MoveDecision)> =
        words.map(|(number, one)| (number.0 == own, one.word)).collect();
    assert!(words.len() > 1 && words.contains(&(true, MoveDecision::Go)), "{words:?}");
    assert!(!words.contains(&(false, MoveDecision::Go)), "{words:?}");
    assert!(world.coordinator.state().remedies.is_empty());
    world.epochs(6);
    assert!(world.coordinator.state().remedies.is_empty(), "what is only thought is not told");
}

#[test]
fn what_servers_do_themselves_is_told_once_and_what_came_of_it() {
    let mut world = World::new(3, 5);
    let mut beat = |remedies: &[RemedyReport]| {
        let remedies = remedies.to_vec();
        let heartbeat = Heartbeat { incarnation: Incarnation(2), remedies, ..Heartbeat::default() };
        world.said.clear();
        world.ask(Request::Heartbeat(ServerId(2), heartbeat)).expect("it is a member");
        world.said.clone()
    };
    let at = Owner { server: ServerId(2), worker: WorkerId(1) };
    let report = |number, came| RemedyReport::of_server(number, at, (3.2, 1.1), 3, came);
    let begun =
        "server 2: worker 2/1 had 3.20 of its part, 3 steps inside the server to leave it 1.10";
    assert_eq!(beat(&[report(7, None)]), [begun]);
    assert_eq!(beat(&[report(7, None)]), [""; 0]);
    let came = Some((2.85, Came::Short));
    let judged = "server 2: worker 2/1 had 3.20 of its part, 3 steps inside the server: expected 1.10, came 2.85: 17% of the relief came, so it is tried less often";
    assert_eq!(beat(&[report(7, came), report(9, None)]), [judged, begun]);
    assert_eq!(beat(&[report(9, None)]), [""; 0]);
}

#[test]
fn only_what_brought_nine_tenths_of_its_relief_is_said_to_have_come_true() {
    let at = Owner { server: ServerId(2), worker: WorkerId(1) };
    for (seen, expected, now, came, wanted) in [
        (3.0, 1.0, 1.0, Came::True, "it came true"),
        (3.0, 1.0, 0.5, Came::True, "it came true"),
        (3.0, 1.0, 1.2, Came::True, "it came true"),
        (3.0, 1.0, 1.3, Came::True, "85% of the relief came"),
        (3.0, 1.0, 2.4, Came::True, "30% of the relief came"),
        (3.0, 1.0, 2.9, Came::Short, "5% of the relief came, so it is tried less often"),
        (3.0, 1.0, 3.0, Came::Short, "nothing of the relief came, so it is tried less often"),
        (3.0, 1.0, 3.4, Came::Worse, "worse, so it goes back"),
        // Its clients go on asking the server that they know.
        (
            3.0,
            1.0,
            1.0,
            Came::Short,
            "100% of the relief came, but others pay for it, so it is tried less often",
        ),
        // Nothing was left to be taken away.
        (1.1, 1.1, 1.1, Came::True, "it came true"),
        (1.1, 1.1, 1.5, Came::True, "nothing of the relief came"),
    ] {
        let told = RemedyReport::of_server(1, at, (seen, expected), 2, Some((now, came))).told();
        assert_eq!(told.rsplit(": ").next(), Some(wanted), "{told}");
        let figures = format!(": expected {expected:.2}, came {now:.2}: ");
        assert!(told.contains(&figures), "{told}");
    }
}

#[test]
fn a_server_is_emptied_and_then_may_be_stopped_and_serves_again_when_it_comes_back() {
    let mut world = World::new(3, 1);
    world.ask(Request::Drain(ServerId(2), true)).expect("it is known");
    assert_eq!(world.ask(Request::Drain(ServerId(2), true)), Ok(Response::Done), "once is enough");
    world.epochs(3);
    assert_eq!(world.state_of(2), "draining");
    world.epochs(60);
    assert_eq!((world.of(2).len(), world.state_of(2).as_str()), (0, "drained"));
    assert_eq!(world.says("server 2 is empty, and may be stopped"), 1);
    // 128 cachelets: the others have got as many each.
    assert!(world.of(1).len().abs_diff(world.of(3).len()) <= 8, "{}", world.of(1).len());
    world.ask(Request::Leave(ServerId(2), Incarnation(2))).expect("it is the one");
    assert_eq!(world.state_of(2), "retired");
    assert_eq!(world.says("server 2 has retired: it was empty"), 1, "{:?}", world.said);
    // Saying so again makes it no lost one.
    let call = LostCall { incarnation: None, force: true };
    assert_eq!(world.ask(Request::SaidLost(ServerId(2), call)), Ok(Response::Done));
    assert_eq!(world.state_of(2), "retired");
    world.register(2, 20);
    world.epochs(60);
    assert!(world.state_of(2) == "serving" && !world.of(2).is_empty());
    // Who ends with what it has is lost, also when it was to be emptied.
    world.ask(Request::Drain(ServerId(2), true)).expect("it is known");
    world.ask(Request::SaidLost(ServerId(2), call)).expect("it is known");
    assert_eq!((world.state_of(2).as_str(), world.says("server 2 is dead")), ("lost", 1));
}

#[test]
fn emptying_is_called_off_and_what_is_under_way_arrives() {
    let mut world = World::new(3, 1);
    world.ask(Request::Drain(ServerId(2), true)).expect("it is known");
    world.epochs(3);
    let ever = world.coordinator.state().moves_ever;
    world.ask(Request::Drain(ServerId(2), false)).expect("it is known");
    world.epochs(20);
    assert_eq!(world.coordinator.state().moves_ever, ever);
    assert_eq!((world.moves().len(), world.state_of(2).as_str()), (0, "serving"));
    assert!(!world.of(2).is_empty());
}

#[test]
fn a_server_that_refuses_is_asked_less_often_and_gets_its_share_in_the_end() {
    let mut world = World::new(3, 1);
    world.refuses = Some(ServerId(4));
    world.register(4, 4);
    let mut began = Vec::new();
    for epoch in 1..=100 {
        let before = world.coordinator.state().moves_ever;
        world.epochs(1);
        let begun = world.coordinator.state().moves_ever - before;
        assert!(begun <= MOVES_MAX as u32, "{begun} moves in epoch {epoch}");
        began.extend((begun > 0).then_some(epoch));
    }
    let gaps: Vec<u64> = began.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(began.len() <= 6 && *gaps.last().unwrap_or(&0) >= 32, "{began:?}");
    // Nor is it forgotten.
    world.refuses = None;
    world.epochs(60);
    assert_eq!(world.of(4).len(), 32, "of 128, a quarter");
}

#[test]
fn what_a_dead_server_had_does_not_begin_where_all_is_to_go() {
    let mut world = World::new(3, 1);
    world.ask(Request::Drain(ServerId(2), true)).expect("it is known");
    let before = world.of(2).len();
    world.ask(Request::Lost(ServerId(3))).expect("it is known");
    assert_eq!(world.of(2).len(), before);
    assert!(matches!(world.ask(Request::Drain(ServerId(3), true)), Err(Refusal::Conflict(_))));
    assert!(matches!(world.ask(Request::Drain(ServerId(9), true)), Err(Refusal::Unknown(_))));
}

#[test]
fn an_older_server_neither_gives_nor_takes() {
    let mut world = World::new(3, 1);
    let mut state = world.coordinator.state().clone();
    let members = Arc::make_mut(&mut state.members);
    members.get_mut(&ServerId(1)).expect("it is known").moves = false;
    world.coordinator.restore(state.into());
    world.heat(|owner| if owner.server.0 == 2 { 0.9 } else { 0.2 });
    let held = world.of(1);
    world.epochs(20);
    assert!(world.coordinator.state().moves_ever > 0);
    assert_eq!(world.of(1), held);
    assert!((world.status().balance.load_mean - 1.3 / 3.0).abs() < 0.01, "its load counts");
    assert!(matches!(world.ask(Request::Drain(ServerId(1), true)), Err(Refusal::Conflict(_))));
}

#[test]
fn a_heartbeat_is_small_however_many_cachelets_there_are() {
    for (workers, cachelets) in [(64, 64), (64, 512), (4, 1024), (1, 32_768)] {
        let worker = |at: usize| {
            let held = (0..cachelets).map(|n| {
                let prefix = Prefix::nth((at * cachelets + n) % (1 << 15), 15).to_string();
                (prefix, 0.012_345_678 / (n + 1) as f64, 123_456_789)
            });
            let reads = WorkerReport {
                reads: 1_234_567,
                hits: 1_234_567,
                writes: 123_456,
                ..WorkerReport::default()
            };
            let report =
                WorkerReport::new(0.123_456_789, held.collect(), cachelets_listed(workers));
            WorkerReport { reads: reads.reads, hits: reads.hits, writes: reads.writes, ..report }
        };
        let heartbeat = Heartbeat {
            workers: (0..workers).map(worker).collect(),
            memory_bytes: 1 << 36,
            ..Heartbeat::default()
        };
        let bytes = serde_json::to_string(&heartbeat).expect("it has a JSON form").len();
        println!("{workers} workers with {cachelets} cachelets each: {bytes} bytes");
        assert!(bytes < 32 << 10, "{bytes}");
    }
}

fn random_run(seed: u64) -> Result<u64, String> {
    let mut world = World::new(4, seed);
    for _ in 0..120 {
        if world.random.below(4) == 0 {
            world.trouble();
        }
        world.epoch().map_err(|why| format!("epoch {}: {why}", world.epoch))?;
    }
    Ok(world.coordinator.state().moves_ever.into())
}

const SEEDS: u64 = 60;

#[test]
fn whatever_happens_moves_keep_the_rules() {
    let moves: u64 = (1..=SEEDS)
        .map(|seed| random_run(seed).unwrap_or_else(|why| panic!("seed {seed}, {why}")))
        .sum();
    println!("{moves} moves");
    assert!(moves > 1_000, "{moves} moves are too few to have shown anything");
}

/// A checker is trusted only after it caught a fault.
#[cfg(feature = "planted")]
mod planted {
    use mbal_model::planted::{Fault, plant};

    use super::*;

    #[test]
    fn every_fault_is_found_by_some_seed() {
        for fault in [
            Fault::OrdersWithoutBound,
            Fault::NothingRests,
            Fault::DrainingTakes,
            Fault::SilentTakes,
            Fault::OffIsIgnored,
        ] {
            plant(Some(fault));
            let found = (1..=SEEDS).find_map(|seed| random_run(seed).err());
            plant(None);
            println!("{fault:?}: {found:?}");
            assert!(found.is_some(), "{fault:?} is found by no seed up to {SEEDS}");
        }
    }

    #[test]
    fn refusals_that_are_forgotten_are_noticed() {
        plant(Some(Fault::RefusalsAreForgotten));
        let checked = std::panic::catch_unwind(
            a_server_that_refuses_is_asked_less_often_and_gets_its_share_in_the_end,
        );
        plant(None);
        assert!(checked.is_err());
    }
}
