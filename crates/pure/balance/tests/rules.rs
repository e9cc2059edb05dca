//! One case for each rule of the deciders (docs/design/balancing.md). With `--features planted` each is run
//! with the fault that breaks its rule, and has to notice.

use std::collections::{BTreeMap, BTreeSet};

use mbal_balance::{ClusterPlanner, Thresholds};
use mbal_model::{
    CacheletLoad, Came, ClusterPlan, Move, Outlook, Owner, PlannedMove, Prefix, Remedy, ServerId,
    ServerOutlook, Service, Standing, Why, WorkerId, WorkerLoad,
};

fn at(server: u16, worker: u16) -> Owner {
    Owner { server: ServerId(server), worker: WorkerId(worker) }
}

const MIB: u64 = 1 << 20;

/// Servers, their workers, the loads of their cachelets, which have 10 MiB each.
struct Cluster {
    servers: Vec<ServerOutlook>,
    under_way: Vec<Move>,
    gone: BTreeMap<Prefix, u64>,
    planner: ClusterPlanner,
    epoch: u64,
    /// A coordinator has just begun.
    awaits: bool,
    knows_hot_keys: bool,
    /// What it saves.
    remedies: Vec<Remedy>,
}

impl Cluster {
    fn new(loads: &[&[&[f64]]]) -> Cluster {
        let mut id = 0;
        let mut worker = |server: usize, index: usize, loads: &[f64]| WorkerLoad {
            at: at(server as u16, index as u16),
            service: Service::default(),
            fixed: 0.0,
            bytes_max: 0,
            cachelets: loads
                .iter()
                .map(|&load| {
                    id += 1;
                    let cachelet = Prefix::nth(id - 1, 15);
                    CacheletLoad { cachelet, load, bytes: 10 * MIB, pinned: false }
                })
                .collect(),
        };
        let servers = loads.iter().enumerate().map(|(server, workers)| ServerOutlook {
            server: ServerId(server as u16),
            standing: Standing::Serving,
            memory_bytes: 10_000 * MIB,
            workers: workers
                .iter()
                .enumerate()
                .map(|(at, loads)| worker(server, at, loads))
                .collect(),
            helpless: true,
            refuses: false,
            copying: Vec::new(),
            hottest: Vec::new(),
            room_bytes: None,
        });
        Cluster {
            servers: servers.collect(),
            under_way: Vec::new(),
            gone: BTreeMap::new(),
            planner: ClusterPlanner::new(Thresholds::default()),
            epoch: 0,
            awaits: false,
            knows_hot_keys: true,
            remedies: Vec::new(),
        }
    }

    /// Another coordinator, with what this one has saved.
    fn another_coordinator(&mut self) {
        self.planner = ClusterPlanner::new(Thresholds::default());
        self.epoch = 0;
    }

    fn epoch(&mut self) -> ClusterPlan {
        self.epoch += 1;
        let outlook = Outlook {
            epoch: self.epoch,
            servers: self.servers.clone(),
            under_way: self.under_way.clone(),
            gone: self.gone.clone(),
            awaits: self.awaits,
            knows_hot_keys: self.knows_hot_keys,
            remedies: self.remedies.clone(),
        };
        let plan = self.planner.plan(&outlook);
        self.remedies.clone_from(&plan.remedies);
        plan
    }

    /// Nothing that is planned is begun.
    fn epochs(&mut self, count: usize) -> ClusterPlan {
        (1..count).for_each(|_| drop(self.epoch()));
        self.epoch()
    }

    /// Cachelets are a sixteenth of all hashes each.
    fn widen(&mut self) {
        let workers = self.servers.iter_mut().flat_map(|server| &mut server.workers);
        for (place, held) in workers.flat_map(|worker| &mut worker.cachelets).enumerate() {
            held.cachelet = Prefix::nth(place, 4);
        }
    }

    /// The first plan that splits something.
    fn until_split(&mut self) -> ClusterPlan {
        let plan = (0..10).map(|_| self.epoch()).find(|plan| !plan.splits.is_empty());
        plan.expect("something is split")
    }

    /// So that cachelets take no time worth a thought.
    fn shrink(&mut self) {
        let workers = self.servers.iter_mut().flat_map(|server| &mut server.workers);
        workers.flat_map(|one| &mut one.cachelets).for_each(|held| held.bytes = MIB);
    }

    /// A server does what is planned: parts with as much load each.
    fn split(&mut self, plan: &ClusterPlan) {
        for planned in &plan.splits {
            let held = &mut self.worker(planned.at).cachelets;
            let at = held.iter().position(|one| one.cachelet == planned.cachelet);
            let whole = held.remove(at.expect("it is there"));
            let count = whole.cachelet.parts(planned.bits).len();
            let part = |cachelet| CacheletLoad {
                cachelet,
                load: whole.load / count as f64,
                bytes: whole.bytes / count as u64,
                ..whole
            };
            held.extend(whole.cachelet.parts(planned.bits).map(part));
        }
    }

    fn worker(&mut self, owner: Owner) -> &mut WorkerLoad {
        let workers = self.servers.iter_mut().flat_map(|server| &mut server.workers);
        workers.into_iter().find(|worker| worker.at == owner).expect("it is there")
    }

    /// All that is under way arrives; what is planned sets out.
    fn turn(&mut self) -> ClusterPlan {
        for step in std::mem::take(&mut self.under_way) {
            let from = self.worker(step.from);
            let index = from.cachelets.iter().position(|held| held.cachelet == step.cachelet);
            let held = from.cachelets.remove(index.expect("it left nobody else"));
            self.worker(step.to).cachelets.push(held);
        }
        let plan = self.epoch();
        self.under_way = plan.moves.iter().map(|planned| planned.step).collect();
        plan
    }

    fn of(&self, server: u16) -> usize {
        let own = self.servers[usize::from(server)].workers.iter();
        own.map(|worker| worker.cachelets.len()).sum()
    }
}

fn overloads(plan: &ClusterPlan) -> usize {
    plan.moves.iter().filter(|one| one.why == Why::Overload).count()
}

fn steps(plan: &ClusterPlan) -> Vec<(usize, u16, u16)> {
    let moves = plan.moves.iter();
    moves
        .map(|one| (one.step.cachelet.place(), one.step.from.server.0, one.step.to.server.0))
        .collect()
}

const TENTHS: &[f64] = &[0.1; 12];

fn a_server_takes_part_in_four_moves_at_a_time() {
    let mut cluster =
        Cluster::new(&[&[TENTHS, TENTHS], &[TENTHS, TENTHS], &[&[], &[], &[]], &[&[], &[], &[]]]);
    let mut most = 0;
    for _ in 0..12 {
        cluster.turn();
        let mut counts = BTreeMap::<(bool, ServerId), usize>::new();
        for step in &cluster.under_way {
            *counts.entry((true, step.from.server)).or_default() += 1;
            *counts.entry((false, step.to.server)).or_default() += 1;
        }
        most = most.max(counts.values().copied().max().unwrap_or(0));
    }
    assert_eq!(most, 4);
}

fn what_has_changed_servers_stays_for_ten_epochs() {
    let mut cluster = Cluster::new(&[&[&[0.3, 0.3, 0.3]], &[&[0.1]]]);
    let mut moved = Vec::new();
    for epoch in 0..16 {
        let plan = cluster.turn();
        moved.extend(steps(&plan).into_iter().map(|step| (epoch, step)));
        // Whoever has the most is made too hot by what cannot move.
        for server in 0..2 {
            cluster.worker(at(server, 0)).fixed = 0.0;
        }
        let hot = u16::from(cluster.of(1) > 1);
        cluster.worker(at(hot, 0)).fixed = 0.3;
    }
    let (first, (cachelet, ..)) = moved[0];
    let again = moved.iter().find(|(epoch, step)| *epoch > first && step.0 == cachelet);
    // It arrives in the epoch after it was ordered, and rests from then on.
    assert!(again.is_none_or(|(epoch, _)| *epoch > first + 10), "{moved:?}");
}

fn a_draining_server_gets_nothing_and_loses_all() {
    let mut cluster = Cluster::new(&[&[&[0.4, 0.45]], &[&[0.01, 0.01]], &[&[0.2]]]);
    cluster.servers[1].standing = Standing::Draining;
    for _ in 0..12 {
        let plan = cluster.turn();
        assert!(plan.moves.iter().all(|one| one.step.to.server != ServerId(1)), "{plan:?}");
    }
    assert_eq!(cluster.of(1), 0);
}

fn a_silent_server_gets_nothing() {
    let mut cluster = Cluster::new(&[&[&[0.4, 0.45]], &[&[0.01]], &[&[0.2]]]);
    cluster.servers[1].standing = Standing::Silent;
    assert_eq!(steps(&cluster.epochs(2)), [(0, 0, 2)]);
}

fn what_is_under_way_counts_where_it_goes() {
    let mut cluster = Cluster::new(&[&[&[0.4, 0.45]], &[&[]]]);
    let plan = cluster.epochs(2);
    cluster.under_way = plan.moves.iter().map(|planned| planned.step).collect();
    assert_eq!(cluster.under_way.len(), 1);
    assert_eq!(steps(&cluster.epochs(6)), []);
}

fn nobody_gets_more_than_its_memory_holds() {
    let mut cluster = Cluster::new(&[&[&[0.5, 0.4]], &[&[0.01]], &[&[0.1]]]);
    cluster.servers[1].memory_bytes = 15 * MIB;
    assert_eq!(steps(&cluster.epochs(2)), [(1, 0, 2)]);
}

fn a_server_that_joins_a_calm_cluster_gets_its_share() {
    let mut cluster = Cluster::new(&[&[&[0.01; 12]], &[&[0.01; 12]], &[&[]]]);
    let first = cluster.turn();
    assert_eq!(first.moves.len(), 4, "{:?}", steps(&first));
    assert_eq!((first.moves[0].why, first.later.len()), (Why::Share, 4));
    (0..2).for_each(|_| drop(cluster.turn()));
    assert_eq!([0, 1, 2].map(|server| cluster.of(server)), [8; 3]);
    // And that is all.
    assert_eq!((0..20).map(|_| cluster.turn().moves.len()).sum::<usize>(), 0);
}

fn a_load_that_nobody_feels_ends_no_share() {
    let mut cluster = Cluster::new(&[&[&[0.001; 12]], &[&[0.001; 12]], &[&[]]]);
    cluster.turn();
    // What is beside requests: heartbeats, the moves themselves.
    cluster.worker(at(2, 0)).fixed = 0.03;
    (0..2).for_each(|_| drop(cluster.turn()));
    assert_eq!([0, 1, 2].map(|server| cluster.of(server)), [8; 3]);
}

fn what_a_server_did_not_take_of_its_share_is_planned_again() {
    let mut cluster = Cluster::new(&[&[&[0.01; 12]], &[&[0.01; 12]], &[&[]]]);
    cluster.turn();
    cluster.turn();
    assert_eq!((cluster.of(2), cluster.under_way.len()), (4, 4), "half is there, half on its way");
    // What is on its way stays where it was.
    cluster.epoch();
    cluster.under_way.clear();
    (0..12).for_each(|_| drop(cluster.turn()));
    assert_eq!([0, 1, 2].map(|server| cluster.of(server)), [8; 3]);
}

/// One key is most of the load.
#[test]
fn what_takes_little_of_an_overload_stays() {
    let moved = |light| {
        let mut cluster = Cluster::new(&[&[&[0.95, light]], &[&[0.1]], &[&[0.1]]]);
        (0..8).any(|_| !cluster.epoch().moves.is_empty())
    };
    assert!(!moved(0.02) && moved(0.05));
}

/// A slow server that gives most of what it has has few cachelets then, and on paper little to do.
#[test]
fn who_gives_is_given_nothing() {
    let mut cluster = Cluster::new(&[&[&[0.08; 12]], &[&[0.03; 12]], &[&[0.03; 12]]]);
    let leaving = cluster.servers[0].workers[0].cachelets[..9].iter().map(|held| held.cachelet);
    let takers = [at(1, 0), at(2, 0)].into_iter().cycle();
    cluster.under_way =
        leaving.zip(takers).map(|(cachelet, to)| Move { cachelet, from: at(0, 0), to }).collect();
    for _ in 0..3 {
        let plan = cluster.epoch();
        let mut all = plan.moves.iter().chain(&plan.later);
        assert!(all.all(|one| one.step.to.server != ServerId(0)), "{plan:?}");
    }
}

#[test]
fn who_refuses_gets_no_share_and_all_of_it_afterwards() {
    let mut cluster = Cluster::new(&[&[&[0.01; 12]], &[&[0.01; 12]], &[&[]]]);
    (0..2).for_each(|_| drop(cluster.turn()));
    cluster.under_way.clear();
    for standing in [Standing::Serving, Standing::Silent] {
        (cluster.servers[2].standing, cluster.servers[2].refuses) = (standing, true);
        let plan = cluster.turn();
        assert_eq!((plan.moves, plan.later), (vec![], vec![]));
    }
    (cluster.servers[2].standing, cluster.servers[2].refuses) = (Standing::Serving, false);
    (0..12).for_each(|_| drop(cluster.turn()));
    assert_eq!([0, 1, 2].map(|server| cluster.of(server)), [8; 3]);
}

fn when_all_are_hot_servers_are_wanted() {
    let mut cluster = Cluster::new(&[&[&[0.5, 0.45]], &[&[0.5, 0.4]]]);
    assert_eq!(cluster.epochs(3).servers_wanted, 0);
    let plan = cluster.epoch();
    // 1.85 of load are three workers at 0.75.
    assert_eq!((plan.servers_wanted, plan.moves.len()), (1, 0));
    for server in 0..2 {
        cluster.worker(at(server, 0)).cachelets[1].load = 0.0;
    }
    assert_eq!(cluster.epochs(3).servers_wanted, 1, "once is a blip");
    assert_eq!(cluster.epoch().servers_wanted, 0);
}

fn who_gives_in_vain_is_helped_less_often() {
    let mut cluster = Cluster::new(&[&[&[0.04; 32]], &[&[0.0; 8], &[0.0; 8], &[0.0; 8]]]);
    let mut planned = Vec::new();
    for epoch in 1..=30 {
        let plan = cluster.turn();
        planned.extend((!plan.moves.is_empty()).then_some(epoch));
        // Clients go on asking the server that they know.
        cluster.worker(at(0, 0)).fixed = 0.04 * (32.0 - cluster.of(0) as f64);
    }
    // A few batches until the first has shown nothing; then the pause begins, and it is tried again.
    let pause = planned.windows(2).position(|pair| pair[1] - pair[0] > 5);
    assert!(pause.is_some_and(|at| at < 4), "{planned:?}");
}

fn what_copies_are_to_take_is_not_taken_by_moves() {
    let mut cluster = Cluster::new(&[&[&[0.5, 0.2, 0.2]], &[&[0.1]], &[&[0.1]]]);
    cluster.servers[0].copying = vec![Prefix::nth(0, 15)];
    assert_eq!(steps(&cluster.epochs(2)), []);
    // They have shown it, and it was not enough.
    cluster.servers[0].copying.clear();
    cluster.worker(at(0, 0)).cachelets[0].pinned = true;
    assert_eq!(cluster.epoch().asking, [ServerId(0)]);
    // Nor is a case kept by copies that come and go.
    let mut cluster = Cluster::new(&[&[&[0.5, 0.2, 0.2]], &[&[0.1]], &[&[0.1]]]);
    cluster.servers[0].copying = vec![Prefix::nth(0, 15)];
    assert_eq!(cluster.epochs(8).asking, [ServerId(0)]);
}

fn a_new_coordinator_goes_on_with_what_was_saved() {
    let mut cluster = Cluster::new(&[&[&[0.04; 32]], &[&[0.0; 8], &[0.0; 8], &[0.0; 8]]]);
    let is_vain = |one: &Remedy| one.vain > 0 && matches!(one.came, Some((_, Came::Short)));
    while !cluster.remedies.iter().any(is_vain) {
        assert!(cluster.epoch < 30, "{:?}", cluster.remedies);
        cluster.turn();
        cluster.worker(at(0, 0)).fixed = 0.04 * (32.0 - cluster.of(0) as f64);
    }
    cluster.under_way.clear();
    cluster.another_coordinator();
    for _ in 0..5 {
        assert_eq!(steps(&cluster.turn()), [], "it has been in vain");
    }
    // What was under way is judged by who comes after.
    let mut cluster = Cluster::new(&[&[&[0.2; 5]], &[&[0.05]], &[&[0.05]]]);
    cluster.shrink();
    cluster.turn();
    let moves = cluster.turn().moves;
    let planned = cluster.remedies[0].clone();
    assert_eq!((planned.at, planned.came, planned.moves.len()), (at(0, 0), None, moves.len()));
    assert!(planned.expected + 0.3 < planned.seen, "{planned:?}");
    cluster.another_coordinator();
    for _ in 0..4 {
        assert_eq!(steps(&cluster.turn()), []);
    }
    let judged = &cluster.remedies[0];
    assert!(matches!(judged.came, Some((now, Came::True)) if now < planned.seen), "{judged:?}");
    assert_eq!((judged.seen, &judged.moves), (planned.seen, &planned.moves));
}

fn a_new_coordinator_awaits_what_servers_say() {
    let mut cluster = Cluster::new(&[&[&[0.2; 5]], &[&[0.05]], &[&[0.05]]]);
    cluster.awaits = true;
    assert_eq!(steps(&cluster.epochs(6)), []);
    cluster.awaits = false;
    assert!(!cluster.epoch().moves.is_empty());
}

/// A worker whose load is one cachelet's, and others that have time; of the load so much is one key's.
fn heavy(hottest: f64) -> Cluster {
    let mut cluster = Cluster::new(&[&[&[0.9]], &[&[0.02; 5]], &[&[0.02; 5]]]);
    cluster.widen();
    let cachelet = cluster.worker(at(0, 0)).cachelets[0].cachelet;
    cluster.servers[0].hottest.push((cachelet, hottest));
    cluster
}

fn what_nobody_has_a_place_for_is_split() {
    let mut cluster = heavy(0.1);
    let split = cluster.until_split().splits[0];
    assert_eq!((split.at, split.bits), (at(0, 0), 3));
    assert!(split.seen > 2.4 && split.load > 0.8, "{split:?}");
}

fn what_one_key_heats_is_not_split() {
    let mut cluster = heavy(0.6);
    for _ in 0..30 {
        let plan = cluster.epoch();
        assert_eq!(plan.splits, []);
    }
    assert_eq!(cluster.epoch().too_heavy.len(), 1);
}

fn what_has_been_split_rests_for_ten_epochs() {
    let mut cluster = heavy(0.0);
    let plan = cluster.until_split();
    cluster.split(&plan);
    let cachelets = &mut cluster.worker(at(0, 0)).cachelets;
    // All of it is one part's, which nobody takes.
    cachelets.iter_mut().for_each(|one| one.load = 0.0);
    cachelets[0].load = 0.9;
    let again = (1..60).find(|_| !cluster.epoch().splits.is_empty());
    assert!(again >= Some(10), "{again:?}");
}

fn what_has_been_judged_is_minded() {
    who_gives_in_vain_is_helped_less_often();
}

macro_rules! rules {
    ($($rule:ident: $fault:ident,)*) => {
        mod holds {
            $(#[test]
            fn $rule() {
                super::$rule();
            })*
        }

        /// A checker is trusted only after it caught a fault.
        #[cfg(feature = "planted")]
        mod planted {
            use mbal_model::planted::{Fault, plant};

            $(#[test]
            fn $rule() {
                plant(Some(Fault::$fault));
                let checked = std::panic::catch_unwind(super::$rule);
                plant(None);
                assert!(checked.is_err(), "{:?} is not noticed", Fault::$fault);
            })*
        }
    };
}

rules! {
    a_server_takes_part_in_four_moves_at_a_time: OrdersWithoutBound,
    what_has_changed_servers_stays_for_ten_epochs: NothingRests,
    a_draining_server_gets_nothing_and_loses_all: DrainingTakes,
    a_silent_server_gets_nothing: SilentTakes,
    what_is_under_way_counts_where_it_goes: ForgetsWhatIsUnderWay,
    nobody_gets_more_than_its_memory_holds: OverMemory,
    a_server_that_joins_a_calm_cluster_gets_its_share: EmptyStaysEmpty,
    a_load_that_nobody_feels_ends_no_share: EmptyStaysEmpty,
    what_a_server_did_not_take_of_its_share_is_planned_again: FilledOnPaper,
    when_all_are_hot_servers_are_wanted: AllHotIsKept,
    who_gives_in_vain_is_helped_less_often: VainGoesOn,
    what_nobody_has_a_place_for_is_split: NothingIsSplit,
    what_one_key_heats_is_not_split: OneKeyIsSplit,
    what_has_been_split_rests_for_ten_epochs: SplitsGoOn,
    what_has_been_judged_is_minded: LedgerIsIgnored,
    what_copies_are_to_take_is_not_taken_by_moves: NothingIsPending,
    a_new_coordinator_goes_on_with_what_was_saved: LedgerIsForgotten,
    a_new_coordinator_awaits_what_servers_say: NobodyIsAwaited,
}

#[test]
fn a_move_that_does_not_pay_at_once_does_not_pay_later() {
    // What the light one would gain in 20 s is two thirds of what its way costs; the heavy one has no other place.
    let mut cluster = Cluster::new(&[&[&[0.885, 0.009]], &[&[0.48]]]);
    for epoch in 1..=120 {
        let plan = cluster.epoch();
        assert_eq!(steps(&plan), [], "epoch {epoch}");
        assert!(epoch < 2 || plan.asking == [ServerId(0)], "it has a case");
    }
}

#[test]
fn one_goes_first_where_nobody_knows_how_long_it_takes() {
    // A fortieth of its load is not worth ten seconds of 0.3 of a worker's time; of those that take a second four go at a time.
    for (gone_mib, follow) in [(1, 0), (9, 3)] {
        let mut cluster = Cluster::new(&[&[&[0.03; 40]], &[&[0.01; 24]], &[&[0.01; 24]]]);
        let plan = cluster.epochs(2);
        let [(first, ..)] = steps(&plan)[..] else { panic!("{:?}", steps(&plan)) };
        cluster.under_way = plan.moves.iter().map(|one| one.step).collect();
        assert_eq!(steps(&cluster.epoch()), [], "it has not begun");
        cluster.gone.insert(Prefix::nth(first, 15), gone_mib * MIB);
        assert_eq!(cluster.epoch().moves.len(), follow, "{gone_mib} MiB in an epoch");
    }
}

#[test]
fn a_server_that_helps_itself_is_left_alone() {
    let mut cluster = Cluster::new(&[&[&[0.4, 0.45], &[0.1], &[0.1]], &[&[0.1], &[0.1], &[0.1]]]);
    cluster.servers[0].helpless = false;
    assert_eq!(cluster.epochs(4).asking, []);
    cluster.servers[0].helpless = true;
    let plan = cluster.epoch();
    assert_eq!((plan.asking.as_slice(), plan.moves[0].why), (&[ServerId(0)][..], Why::Overload));
}

#[test]
fn once_a_server_had_its_turn_all_of_its_workers_are_helped() {
    let tenths: &[f64] = &[0.1; 24];
    let mut cluster = Cluster::new(&[&[tenths, &[]], &[&[0.1], &[0.1]], &[&[0.1], &[0.1]]]);
    cluster.servers[0].helpless = false;
    assert_eq!(cluster.epochs(3).asking, []);
    let lent = cluster.worker(at(0, 0)).cachelets.split_off(12);
    cluster.worker(at(0, 1)).cachelets = lent;
    assert_eq!(cluster.epoch().asking, []);
    let plan = cluster.epoch();
    let from: BTreeSet<WorkerId> = plan.moves.iter().map(|one| one.step.from.worker).collect();
    assert_eq!(from, [WorkerId(0), WorkerId(1)].into());
}

#[test]
fn what_is_more_even_and_costs_more_a_key_goes_back() {
    for (keys, goes_back) in [(1000, false), (300, true)] {
        let mut cluster = Cluster::new(&[&[&[0.2; 5]], &[&[0.05]], &[&[0.05]]]);
        cluster.shrink();
        let mut backs = 0;
        for epoch in 0..8 {
            let has_moved = cluster.of(0) < 5;
            let workers = cluster.servers.iter_mut().flat_map(|server| &mut server.workers);
            workers.for_each(|one| one.service.keys = if has_moved { keys } else { 1000 });
            let plan = cluster.turn();
            backs += plan.moves.iter().filter(|one| one.why == Why::Undone).count();
            assert!(epoch > 2 || backs == 0, "it is judged first");
        }
        assert_eq!(backs > 0, goes_back, "{keys}: {:?}", cluster.remedies);
    }
}

/// Two servers of a worker each, whose clients know no workers, and who run for so much of the time.
fn connected(parts: [f64; 2]) -> Cluster {
    let mut cluster = Cluster::new(&[&[&[]], &[&[]]]);
    for (server, part) in (0..).zip(parts) {
        runs(&mut cluster, server, 0.95, part);
    }
    cluster
}

fn runs(cluster: &mut Cluster, server: u16, load: f64, part: f64) {
    let worker = cluster.worker(at(server, 0));
    let (waiting, keys) = (Some(if load > 0.9 { 5.0 } else { 0.0 }), 20_000);
    worker.service =
        Service { waiting, capacity: part, part: Some(part), keys, ..Service::default() };
    worker.fixed = load;
}

#[test]
fn who_is_overloaded_by_its_connections_is_named_where_others_have_time() {
    let mut cluster = connected([0.9, 0.9]);
    assert_eq!(cluster.epochs(6).by_connections, []);
    runs(&mut cluster, 1, 0.3, 0.9);
    assert_eq!(cluster.epochs(6).by_connections, [ServerId(0)]);
}

#[test]
fn who_is_as_busy_as_the_others_is_not_overloaded_by_its_connections() {
    let mut cluster = connected([0.9, 0.9]);
    cluster.epochs(6);
    // Another program has taken most of a core: its server does less, and is no less busy.
    runs(&mut cluster, 1, 0.95, 0.3);
    let plans: Vec<ClusterPlan> = (0..8).map(|_| cluster.epoch()).collect();
    assert!(plans.iter().any(|plan| plan.asking == [ServerId(0)]), "its part seems too large");
    assert!(plans.iter().all(|plan| plan.by_connections.is_empty()));
}

#[test]
fn the_worker_that_its_connections_overload_is_the_one_that_is_over() {
    // The first worker is over by its cachelets, the second has many clients, and none waits for it.
    let mut cluster = Cluster::new(&[&[&[0.5, 0.45], &[]], &[&[0.2], &[0.2]]]);
    cluster.worker(at(0, 1)).fixed = 0.7;
    let plan = cluster.epochs(6);
    assert_eq!(
        (plan.asking.as_slice(), plan.by_connections.as_slice()),
        (&[ServerId(0)][..], &[][..])
    );
}

#[test]
fn what_is_too_heavy_for_anybody_and_as_narrow_as_cachelets_get_is_named_and_wants_no_server() {
    let mut cluster = Cluster::new(&[&[&[0.9]], &[&[0.1]]]);
    let plan = cluster.epochs(6);
    assert_eq!((plan.too_heavy.as_slice(), plan.servers_wanted), (&[Prefix::nth(0, 15)][..], 0));
    assert_eq!((plan.moves, plan.splits), (vec![], vec![]));
}

#[test]
fn where_nobody_looks_for_hot_keys_nothing_is_split_and_what_is_too_heavy_is_named() {
    let mut cluster = heavy(0.0);
    cluster.servers[0].hottest.clear();
    cluster.knows_hot_keys = false;
    let cachelet = cluster.worker(at(0, 0)).cachelets[0].cachelet;
    for _ in 0..12 {
        assert_eq!(cluster.epoch().splits, []);
    }
    assert_eq!(cluster.epoch().too_heavy, [cachelet]);
}

#[test]
fn moves_and_whoever_can_do_more_come_before_a_split() {
    // Two that are a worker's part each.
    let mut cluster = Cluster::new(&[&[&[0.5, 0.45]], &[&[0.05]]]);
    cluster.widen();
    let plan = cluster.epochs(2);
    assert_eq!((plan.splits.len(), overloads(&plan)), (0, 1));
    // One that a stronger worker has a place for.
    let mut cluster = Cluster::new(&[&[&[0.9]], &[&[0.005]]]);
    cluster.widen();
    cluster.worker(at(0, 0)).service.capacity = 1e6;
    cluster.worker(at(1, 0)).service.capacity = 16e6;
    let plan = cluster.epochs(2);
    assert_eq!((plan.splits.len(), overloads(&plan)), (0, 1));
}

#[test]
fn a_server_has_the_first_turn_with_the_parts() {
    let mut cluster = heavy(0.0);
    let plan = cluster.until_split();
    cluster.split(&plan);
    let first = (0..6).position(|_| !cluster.epoch().moves.is_empty());
    assert_eq!(first, Some(2), "it has two epochs");
}

#[test]
fn a_split_that_takes_nothing_is_tried_less_and_less_often() {
    let mut cluster = heavy(0.0);
    let mut splits = Vec::new();
    for epoch in 0..120 {
        let plan = cluster.epoch();
        if !plan.splits.is_empty() {
            splits.push(epoch);
            cluster.split(&plan);
            // All of it is one part's.
            let held = &mut cluster.worker(at(0, 0)).cachelets;
            held.iter_mut().for_each(|one| one.load = 0.0);
            held.last_mut().expect("there are parts").load = 0.9;
        }
    }
    let pauses: Vec<i32> = splits.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.len() >= 3 && pauses.is_sorted(), "{splits:?}");
    assert!(pauses[0] >= 10 && pauses.last() >= Some(&20), "{splits:?}");
}

#[test]
fn a_split_is_told_judged_and_known_to_the_next_coordinator() {
    let mut cluster = heavy(0.0);
    let plan = cluster.until_split();
    let told = &plan.remedies[0];
    assert_eq!((told.split, told.came), (Some(plan.splits[0].cachelet), None));
    assert!(told.expected <= 0.5, "{told:?}");
    cluster.split(&plan);
    cluster.another_coordinator();
    let judged = (0..8).find_map(|_| {
        let plan = cluster.epoch();
        assert_eq!(plan.splits, [], "it rests");
        plan.remedies.into_iter().find(|one| one.split.is_some() && one.came.is_some())
    });
    let (now, came) = judged.and_then(|one| one.came).expect("it is judged");
    assert!(came == Came::True && now <= 0.6, "{now} {came:?}");
}

#[test]
fn a_full_cluster_is_balanced_by_exchanges() {
    let mut cluster = Cluster::new(&[&[&[0.5, 0.4]], &[&[0.1, 0.15]]]);
    cluster.servers.iter_mut().for_each(|server| server.memory_bytes = 20 * MIB);
    let plan = cluster.epochs(2);
    assert_eq!(steps(&plan), [(0, 0, 1), (3, 1, 0)]);
    assert_eq!([plan.moves[0].why, plan.moves[1].why], [Why::Overload, Why::Exchange]);
}

#[test]
fn a_server_is_emptied_to_where_most_room_is() {
    let mut cluster = Cluster::new(&[&[&[0.05; 8]], &[&[0.3]], &[&[0.1]]]);
    cluster.servers[0].standing = Standing::Draining;
    let first = cluster.turn();
    assert!(first.moves.iter().all(|one| one.why == Why::Drain));
    assert_eq!(steps(&first), [(0, 0, 2), (1, 0, 2), (2, 0, 2), (3, 0, 2)]);
    let second = cluster.turn();
    assert_eq!(steps(&second), [(4, 0, 1), (5, 0, 2), (6, 0, 1), (7, 0, 2)]);
    cluster.turn();
    assert_eq!((cluster.of(0), cluster.of(1), cluster.of(2)), (0, 3, 7));
}

#[test]
fn a_little_load_does_not_send_all_items_to_one_server() {
    let mut cluster = Cluster::new(&[&[&[0.001; 8]], &[&[0.02]], &[&[0.0]]]);
    cluster.servers[0].standing = Standing::Draining;
    cluster.servers.iter_mut().for_each(|server| server.memory_bytes = 64 * MIB);
    (0..4).for_each(|_| drop(cluster.turn()));
    assert_eq!((cluster.of(0), cluster.of(1), cluster.of(2)), (0, 5, 5));
}

#[test]
fn the_heaviest_leave_first_and_what_has_no_place_yet_is_planned_ahead() {
    let loads: Vec<f64> = (1..=30).map(|n| f64::from(n) / 1000.0).collect();
    let mut cluster = Cluster::new(&[&[&loads], &[&[]]]);
    cluster.servers[0].standing = Standing::Draining;
    let plan = cluster.epoch();
    let numbers = |moves: &[PlannedMove]| -> Vec<f64> {
        moves.iter().map(|one| (one.load * 1000.0).round()).collect()
    };
    assert_eq!(numbers(&plan.moves), [30.0, 29.0, 28.0, 27.0]);
    let later: Vec<f64> = (11..=26).rev().map(f64::from).collect();
    assert_eq!(numbers(&plan.later), later);
    // Short ones are on their way for milliseconds.
    let mut cluster = Cluster::new(&[&[&loads], &[&[]]]);
    cluster.servers[0].standing = Standing::Draining;
    cluster.worker(at(0, 0)).cachelets.iter_mut().for_each(|held| held.bytes = MIB);
    assert_eq!(cluster.epoch().moves.len(), 16);
}

#[test]
fn a_server_that_ends_gives_all_even_where_it_is_too_much() {
    let mut cluster = Cluster::new(&[&[&[0.3, 0.2]], &[&[0.5]], &[&[0.6]]]);
    cluster.servers[0].standing = Standing::Ending;
    let plan = cluster.epoch();
    assert_eq!((steps(&plan), plan.stuck), (vec![(0, 0, 1), (1, 0, 2)], vec![]));
}

#[test]
fn of_a_server_that_ends_long_cachelets_go_all_at_once_like_short_ones() {
    let loads = [0.01; 12];
    for (standing, together) in [(Standing::Draining, 4), (Standing::Ending, 12)] {
        let mut cluster = Cluster::new(&[&[&loads], &[&[]]]);
        cluster.servers[0].standing = standing;
        cluster.worker(at(0, 0)).cachelets.iter_mut().for_each(|held| held.bytes = 5 * MIB);
        assert_eq!(cluster.epoch().moves.len(), together, "{standing:?}");
    }
}

#[test]
fn of_a_server_that_is_emptied_goes_what_fits_and_for_the_rest_a_server_is_wanted() {
    let mut cluster = Cluster::new(&[&[&[0.3, 0.2]], &[&[0.5]]]);
    cluster.servers[0].standing = Standing::Draining;
    let plan = cluster.epochs(2);
    assert_eq!((plan.stuck.as_slice(), plan.servers_wanted), (&[ServerId(0)][..], 1));
    assert_eq!(steps(&plan), [(1, 0, 1)]);
    let mut alone = Cluster::new(&[&[&[0.3]]]);
    alone.servers[0].standing = Standing::Draining;
    assert_eq!(alone.epoch().stuck, [ServerId(0)]);
}

#[test]
fn a_server_that_evicts_nothing_is_given_what_fits() {
    for standing in [Standing::Draining, Standing::Ending] {
        let mut cluster = Cluster::new(&[&[&[0.01; 6]], &[&[]], &[&[]]]);
        cluster.servers[0].standing = standing;
        // Cachelets have 10 MiB: two fit at server 1, and one at server 2, on which a move came to nothing lately.
        cluster.servers[1].room_bytes = Some(25 * MIB);
        cluster.servers[2].room_bytes = Some(15 * MIB);
        cluster.servers[2].refuses = true;
        let plan = cluster.epoch();
        let to: Vec<u16> = steps(&plan).iter().map(|(_, _, to)| *to).collect();
        assert_eq!((to, plan.later.len()), (vec![1, 1], 0), "{standing:?}");
        assert_eq!(plan.stuck, [ServerId(0)]);
        // What is on its way has its room.
        cluster.under_way = plan.moves.iter().map(|planned| planned.step).collect();
        cluster.servers[2].refuses = false;
        let plan = cluster.epoch();
        let to: Vec<u16> = steps(&plan).iter().map(|(_, _, to)| *to).collect();
        assert_eq!(to, [2], "{standing:?}");
        cluster.servers[1].room_bytes = None;
        let plan = cluster.epoch();
        assert_eq!((plan.stuck.len(), steps(&plan).is_empty()), (0, false), "who evicts takes all");
    }
}
