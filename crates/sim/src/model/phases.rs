//! The three phases together: MBal (EuroSys 2015) §4.2.2, Figures 12 and 13.

use mbal_balance::model::EXCESS_MIN;
use mbal_balance::{
    Effort, Loans, Local, Model, PhaseMachine, Phases, Thresholds, Vitals, deviation,
    rebalance_server, relieve, search,
};
use mbal_model::{Move, Snapshot};
use mbal_sketch::mix;

use super::cluster::{Cluster, Phase, SERVICES_PER_EPOCH, Size};
use super::replication::Replication;
use super::report::Report;
use super::workloads::{Workload, workloads};

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Servers of the cluster.
    #[arg(long, default_value_t = 20)]
    servers: usize,
    /// Workers of each server.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Epochs of each workload.
    #[arg(long, default_value_t = 200)]
    epochs: u64,
    /// Mean load of a worker.
    #[arg(long, default_value_t = 0.6)]
    load: f64,
    /// Shares of requests that stay with their connection.
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.5, 0.88])]
    immovable: Vec<f64>,
}

/// Which phases a run may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allowed {
    name: &'static str,
    one: bool,
    two: bool,
    three: bool,
}

/// What no moving can beat: see [`Level`].
const BOUND: &str = "bound";

const RUNS: [Allowed; 5] = [
    Allowed { name: "none", one: false, two: false, three: false },
    Allowed { name: "phase 1", one: true, two: false, three: false },
    Allowed { name: "phase 2", one: false, two: true, three: false },
    Allowed { name: "phase 3", one: false, two: false, three: true },
    Allowed { name: "combined", one: true, two: true, three: true },
];

pub fn run(options: &Options, seed: u64, report: &Report) -> Result<(), String> {
    let all_workers = options.servers * options.workers;
    if all_workers * 16 > 65_536 {
        return Err(format!(
            "{} cachelets are more than the 65,536 that a map holds",
            all_workers * 16
        ));
    }
    let workloads = workloads(all_workers as u32, seed);
    let mut summary = Vec::new();
    for &immovable in &options.immovable {
        let size = Size {
            servers: options.servers,
            workers: options.workers,
            cachelets_per_worker: 16,
            load: options.load,
            immovable,
        };
        let tag = format!("phases-{}-servers-{:.0}pct", options.servers, immovable * 100.0);
        let mut histories: Vec<History> = RUNS
            .iter()
            .map(|allowed| {
                let history = simulate(size, *allowed, &workloads, options.epochs, seed);
                eprintln!("{tag}: {} done", allowed.name);
                history
            })
            .collect();
        histories.push(level(size, &histories[0].immovable, &workloads, options.epochs, seed));
        eprintln!("{tag}: {BOUND} done");
        let names: Vec<&str> = RUNS.iter().map(|run| run.name).chain([BOUND]).collect();
        let at = |epoch: usize| {
            let workload = workloads[epoch / options.epochs as usize].name;
            let cells = histories.iter().map(|history| format!("{:.2}", history.p90[epoch]));
            let combined = &histories[RUNS.len() - 1].fired[epoch];
            format!(
                "{epoch},{workload},{},{},{},{},{},{}",
                cells.collect::<Vec<_>>().join(","),
                combined.open[0],
                combined.open[1],
                combined.open[2],
                combined.local_moves,
                combined.global_moves
            )
        };
        let rows: Vec<String> = (0..3 * options.epochs as usize).map(at).collect();
        let header = "epoch,workload,none,phase_1,phase_2,phase_3,combined,bound,servers_in_phase_1,\
                      servers_in_phase_2,servers_in_phase_3,local_moves,global_moves";
        report.quiet_table(&tag, header, &rows)?;
        for (name, history) in names.iter().zip(&histories) {
            let epochs = options.epochs as usize;
            let mean = |range: std::ops::Range<usize>| {
                let count = range.len() as f64;
                history.p90[range].iter().sum::<f64>() / count
            };
            let settled =
                |workload: usize| mean(workload * epochs + epochs / 2..(workload + 1) * epochs);
            summary.push(format!(
                "{},{:.0},{name},{:.2},{:.2},{:.2},{:.2},{:.2},{},{},{},{},{}",
                options.servers,
                immovable * 100.0,
                settled(0),
                settled(1),
                settled(2),
                mean(0..3 * epochs),
                history.max_load,
                history.refused,
                history.replicated,
                history.fired.iter().map(|fired| fired.local_moves).sum::<u64>(),
                history.fired.iter().map(|fired| fired.global_moves).sum::<u64>(),
                history.restless,
            ));
        }
    }
    let header = "servers,immovable_pct,run,p90_A_settled,p90_B_settled,p90_C_settled,p90_mean,\
                  max_load_at_end,refused,keys_replicated,local_moves,global_moves,restless_moves";
    report.table(&format!("phases-{}-servers", options.servers), header, &summary)
}

/// Every movable request on whichever worker has room, to the last drop: what immovable load leaves each
/// worker below one common level. No plan can be better than that, for it cuts neither cachelets nor keys.
struct Level {
    /// By worker: the share of movable requests on it and all before it.
    shares: Vec<f64>,
}

impl Level {
    fn new(immovable: &[f64], movable: f64) -> Level {
        let filled = |level: f64| immovable.iter().map(|load| (level - load).max(0.0)).sum::<f64>();
        let (mut low, mut high) = (0.0, movable + immovable.iter().copied().fold(0.0, f64::max));
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if filled(middle) < movable { low = middle } else { high = middle }
        }
        let mut sum = 0.0;
        let shares = immovable.iter().map(|load| {
            sum += (high - load).max(0.0) / filled(high);
            sum
        });
        Level { shares: shares.collect() }
    }

    fn pick(&self, bits: u64) -> u32 {
        let unit = mix(bits) as f64 / u64::MAX as f64;
        self.shares.partition_point(|share| *share < unit).min(self.shares.len() - 1) as u32
    }
}

/// The bound's p90, from the immovable loads that the run without phases saw.
fn level(
    size: Size,
    immovable: &[Vec<f64>],
    workloads: &[Workload],
    epochs: u64,
    seed: u64,
) -> History {
    let mut cluster = Cluster::new(size, seed);
    let mut history = History::default();
    for (workload, loads) in workloads.iter().zip(immovable) {
        let movable = size.load * size.all_workers() as f64 * (1.0 - size.immovable);
        let level = Level::new(loads, movable);
        for _ in 0..epochs {
            cluster.epoch(workload, |_, bits| Some(level.pick(bits)), |_, _| {});
            history.p90.push(cluster.fleet.delays.at(0.9));
        }
    }
    history.refused = cluster.refused;
    history.max_load = cluster.most_load();
    history
}

#[derive(Default)]
struct Fired {
    open: [u32; 3],
    local_moves: u64,
    global_moves: u64,
}

#[derive(Default)]
struct History {
    /// By epoch, in service times.
    p90: Vec<f64>,
    /// By workload: what each worker served that cannot move, shadows' reads included.
    immovable: Vec<Vec<f64>>,
    fired: Vec<Fired>,
    refused: u64,
    replicated: u64,
    restless: u64,
    max_load: f64,
}

fn simulate(
    size: Size,
    allowed: Allowed,
    workloads: &[Workload],
    epochs: u64,
    seed: u64,
) -> History {
    let thresholds = Thresholds::default();
    let mut cluster = Cluster::new(size, seed);
    let mut replication = Replication::new(size);
    let mut machines = vec![PhaseMachine::default(); size.servers];
    let mut loans: Vec<Loans> = (0..size.servers).map(|_| Loans::default()).collect();
    let mut history = History::default();
    let requests =
        size.load * SERVICES_PER_EPOCH * size.all_workers() as f64 * (1.0 - size.immovable);
    for workload in workloads {
        for _ in 0..epochs {
            let shared = std::cell::RefCell::new(&mut replication);
            cluster.epoch(
                workload,
                |arrival, bits| {
                    if allowed.one { shared.borrow_mut().route(arrival, bits) } else { None }
                },
                |arrival, reach| {
                    if allowed.one {
                        shared.borrow().written(arrival, reach);
                    }
                },
            );
            history.p90.push(cluster.fleet.delays.at(0.9));
            let fired = balance(
                &mut cluster,
                &mut replication,
                &mut machines,
                &mut loans,
                allowed,
                &thresholds,
                requests,
            );
            history.fired.push(fired);
        }
        history.immovable.push(cluster.fixed_loads().to_vec());
        eprintln!("{} servers, {}: workload {} done", size.servers, allowed.name, workload.name);
    }
    history.refused = cluster.refused;
    history.replicated = replication.replicated;
    history.restless = cluster.restless;
    history.max_load = cluster.most_load();
    history
}

fn solve(model: &Model) -> Option<Vec<u32>> {
    Some(search(model, Effort { shakes: 10, tolerance: 0.0 }))
}

/// The end of an epoch on every server and at the coordinator.
fn balance(
    cluster: &mut Cluster,
    replication: &mut Replication,
    machines: &mut [PhaseMachine],
    loans: &mut [Loans],
    allowed: Allowed,
    thresholds: &Thresholds,
    requests: f64,
) -> Fired {
    let size = cluster.size;
    let now = cluster.now();
    cluster.forget_rested(thresholds.rest_epochs);
    let snapshot = cluster.snapshot(Phase::Local, thresholds.rest_epochs);
    let loads: Vec<f64> = snapshot.workers.iter().map(|worker| worker.load()).collect();
    let average = loads.iter().sum::<f64>() / loads.len() as f64;
    let mut fired = Fired::default();
    let mut in_phase_1 = vec![false; size.servers];
    let mut asking = Vec::new();
    let mut moves: Vec<(usize, Move)> = Vec::new();
    for server in 0..size.servers {
        let range = server * size.workers..(server + 1) * size.workers;
        let own = &loads[range.clone()];
        let most = own.iter().copied().fold(0.0, f64::max);
        let least = own.iter().copied().fold(f64::INFINITY, f64::min);
        let over = |load: &&f64| thresholds.is_over(**load);
        let part = Snapshot { workers: snapshot.workers[range.clone()].to_vec() };
        let uneven = deviation(own) > thresholds.imbalance || thresholds.is_over(most);
        let local = match allowed.two && uneven {
            true => rebalance_server(&part, thresholds, solve),
            false => Local::Even,
        };
        // A plan that leaves a worker above its limit is the paper's NULL: (5) cannot be held here.
        let no_local_plan = match &local {
            Local::Beyond => true,
            Local::Moves(plan) => plan.excess > EXCESS_MIN,
            Local::Even => !allowed.two && thresholds.is_over(most),
        };
        let vitals = Vitals {
            hotspot: thresholds.is_over(most),
            hot_keys: range.clone().map(|worker| replication.hot_keys(worker)).max().unwrap_or(0),
            write_hot: range
                .clone()
                .any(|worker| thresholds.is_over(loads[worker]) && replication.write_hot(worker)),
            deviation: deviation(own),
            headroom: least < thresholds.permissible,
            overloaded_share: own.iter().filter(over).count() as f64 / own.len() as f64,
            no_local_plan,
            loans: loans[server].len() as u32,
            above_cluster: most - average,
        };
        let phases = machines[server].observe(&vitals, thresholds);
        let open =
            [phases.one && allowed.one, phases.two && allowed.two, phases.three && allowed.three];
        fired.open.iter_mut().zip(open).for_each(|(count, open)| *count += u32::from(open));
        in_phase_1[server] = open[0];
        let sampled = Phases { two: open[1], ..phases }.sampled(thresholds) / thresholds.sampled;
        for worker in range.clone() {
            let hot = allowed.one && thresholds.is_over(loads[worker]);
            replication.watch(worker, hot, sampled);
        }
        if open[1] {
            let home = loans[server].homecoming(&part, now, thresholds);
            match local {
                Local::Moves(plan) => moves.extend(plan.moves.iter().map(|step| (server, *step))),
                Local::Even | Local::Beyond => {
                    moves.extend(home.iter().map(|step| (server, *step)))
                }
            }
        }
        if open[2] {
            asking.push(server);
        }
    }
    fired.local_moves = moves.len() as u64;
    for (server, step) in moves {
        cluster.carry_out(&step, thresholds.rest_epochs);
        loans[server].note(&step, now);
    }
    if !asking.is_empty() {
        fired.global_moves = coordinate(cluster, loans, &asking, thresholds);
    }
    if allowed.one {
        let hot: Vec<bool> = loads.iter().map(|load| thresholds.is_over(*load)).collect();
        replication.plan(&in_phase_1, requests, &hot);
    }
    fired
}

/// Algorithm 2 for every overloaded worker of the servers that asked, hottest first.
fn coordinate(
    cluster: &mut Cluster,
    loans: &mut [Loans],
    asking: &[usize],
    thresholds: &Thresholds,
) -> u64 {
    let workers = cluster.size.workers;
    let mut snapshot = cluster.snapshot(Phase::Global, thresholds.rest_epochs);
    let mut sources: Vec<(f64, usize)> = asking
        .iter()
        .flat_map(|server| server * workers..(server + 1) * workers)
        .map(|worker| (snapshot.workers[worker].load(), worker))
        .filter(|(load, _)| thresholds.is_over(*load))
        .collect();
    sources.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut moved = 0;
    for (_, source) in sources {
        for step in relieve(&mut snapshot, source, thresholds, |_| true, solve).plan.moves {
            loans[source / workers].forget(step.cachelet);
            cluster.carry_out(&step, thresholds.rest_epochs);
            moved += 1;
        }
    }
    moved
}
