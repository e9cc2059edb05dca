//! NetKV's evaluation (ICAC 2016, §IV.D, §VI.D and E), Figures 5 and 12 to 17.
//!
//! One interval of requests runs past the sketches, which gives a threshold T. The next, in which popularity
//! has drifted, runs over the servers, with a key of f requests on ceil(f / T) servers, found by renaming.

mod balls;
mod path;

use std::path::PathBuf;
use std::time::Instant;

use mbal_balance::{Demand, Prediction, copies, copies_threshold, predict};
use mbal_sketch::Random;

use self::balls::{choose_threshold_placed, predict_equal};
use self::path::{
    Detected, Detector, Intervals, Replicas, Stream, detect, hash, imbalance, max_over_min,
    mean_deviation, observe, place,
};

use super::report::Report;
use super::{Fleet, Popularity, traces};

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// A folder with real traces; skipped when it is not there.
    #[arg(long, default_value = "../shared/data/traces")]
    traces: PathBuf,
    /// How much the ranks of keys change from the interval that is seen to the one that is served, as the deviation
    /// of their logarithm; 0: not at all. Real traces are served in halves.
    #[arg(long, default_value_t = 0.1)]
    drift: f64,
    /// Only the speed of the whole path.
    #[arg(long)]
    speed: bool,
    /// Only Figure 17: whether targets are held, from 50 to 2,500 servers.
    #[arg(long)]
    targets: bool,
}

const TARGETS: [f64; 2] = [1.7, 3.2];

pub fn run(options: &Options, seed: u64, report: &Report) -> Result<(), String> {
    eprintln!("making 28 million requests' popularity");
    let wikipedia = Intervals::made(Popularity::wikipedia, options.drift, seed);
    if options.targets {
        return figure_17(&wikipedia, seed, report);
    }
    speed(&wikipedia, seed, report)?;
    if options.speed {
        return Ok(());
    }
    figure_5(&wikipedia, options, seed, report)?;
    figures_12_to_14(&wikipedia, seed, report)?;
    figures_15_and_16(options.drift, seed, report)?;
    figure_17(&wikipedia, seed, report)
}

/// One pass with generation, sampling, both sketches, routing by a replication table,
/// and queues with exponential services.
fn speed(intervals: &Intervals, seed: u64, report: &Report) -> Result<(), String> {
    const SERVERS: usize = 2_500;
    let hot = detect(&intervals.seen, 1_000, seed).hot;
    let stream = &intervals.served;
    let replicas = Replicas::new(&hot, |requests| copies(requests, 20_000.0), SERVERS);
    let started = Instant::now();
    let mut detector = Detector::new(1_000, stream.requests(), seed);
    let mut fleet = Fleet::new(SERVERS);
    let mut bits = Random::new(seed);
    let spacing = 2.0 / SERVERS as f64;
    for position in 0..stream.requests() {
        let hash = hash(stream.at(position), seed);
        if detector.sampler.choose() {
            detector.observe(hash);
        }
        let to = replicas.route(hash, position, SERVERS);
        // Two uniform halves: mean 1, and a spread that costs no logarithm.
        let service = (bits.word() >> 32) as f64 / f64::from(u32::MAX) + 0.5;
        fleet.serve(to as usize, f64::from(position) * spacing, service);
    }
    let detected = detector.detected();
    let seconds = started.elapsed().as_secs_f64();
    let row = format!(
        "{},{SERVERS},{seconds:.2},{:.1},{},{:.2},{:.1},{:.1}",
        stream.requests(),
        seconds * 1e9 / f64::from(stream.requests()),
        detected.hot.len(),
        imbalance(&fleet.served),
        fleet.delays.at(0.5),
        fleet.delays.at(0.99),
    );
    let header = "requests,servers,seconds,ns_per_request,hot_keys,max_over_average,delay_p50_services,delay_p99_services";
    report.table("netkv-speed", header, &[row])?;
    threshold_speed(&detected.hot, f64::from(stream.requests()), report)
}

/// What a coordinator pays for phase 1's threshold, once an epoch.
fn threshold_speed(hot: &[(u64, f64)], requests: f64, report: &Report) -> Result<(), String> {
    const ROUNDS: usize = 21;
    let mut rows = Vec::new();
    for servers in [20, 100, 2_500] {
        for keys in [100, 300, 1_000] {
            // Beyond what was detected, the hottest once more.
            let rates: Vec<f64> = hot.iter().cycle().map(|key| key.1).take(keys).collect();
            let mut threshold = 0.0;
            let mut microseconds: Vec<f64> = (0..ROUNDS)
                .map(|_| {
                    let started = Instant::now();
                    threshold = copies_threshold(servers, requests, &rates, 1.25);
                    started.elapsed().as_secs_f64() * 1e6
                })
                .collect();
            microseconds.sort_by(f64::total_cmp);
            rows.push(format!(
                "{servers},{keys},{threshold:.0},{:.0},{:.0}",
                microseconds[ROUNDS / 2],
                microseconds[ROUNDS - 1]
            ));
        }
    }
    let header = "servers,keys,threshold,us_median,us_most";
    report.table("threshold-speed", header, &rows)
}

fn demand(hot: &[(u64, f64)], stream: &Stream, distinct: f64, bins: usize) -> Demand {
    let tracked = hot.iter().map(|(_, requests)| *requests).collect();
    Demand { tracked, requests: f64::from(stream.requests()), keys: distinct, bins }
}

fn figure_5(
    wikipedia: &Intervals,
    options: &Options,
    seed: u64,
    report: &Report,
) -> Result<(), String> {
    let mut rows = Vec::new();
    let mut sweep = |name: &str, intervals: &Intervals, servers: usize, sampling: bool| {
        let stream = &intervals.seen;
        let known: Vec<(u64, f64)> = stream
            .known(servers)
            .into_iter()
            .map(|(key, count)| (hash(key, seed), count))
            .collect();
        let sampled = detect(stream, if sampling { 1_000 } else { 1 }, seed);
        let hottest = known.first().map_or(1.0, |key| key.1);
        let average = f64::from(stream.requests()) / servers as f64;
        for step in 0..10 {
            let threshold = (hottest.min(3.0 * average) * 0.6f64.powi(step)).max(2.0);
            let replicas = Replicas::new(&known, |requests| copies(requests, threshold), servers);
            let observed = imbalance(&observe(stream, &replicas, servers, seed));
            let next = imbalance(&observe(&intervals.served, &replicas, servers, seed));
            let perfect = demand(&known, stream, stream.distinct(), servers);
            let sketched = demand(&sampled.hot, stream, sampled.distinct, servers);
            let predictions = [
                predict_equal(&perfect, threshold),
                predict(&perfect, threshold, Prediction::WeighedBalls),
                predict(&sketched, threshold, Prediction::WeighedBalls),
                predict(&perfect, threshold, Prediction::Typical),
            ];
            rows.push(format!(
                "{name},{servers},{threshold:.0},{},{observed:.3},{next:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3}",
                replicas.keys,
                predictions[0],
                predictions[1],
                predictions[2],
                predictions[3],
                predictions[0] / observed - 1.0,
                predictions[1] / observed - 1.0,
                predictions[1] / next - 1.0,
            ));
            eprintln!("figure 5: {name}, T {threshold:.0}: {observed:.2}");
        }
    };
    sweep("wikipedia", wikipedia, 100, true);
    match traces::read_all(&options.traces) {
        Ok(traces) => {
            for trace in traces {
                let servers = if trace.keys.len() > 1_000_000 { 100 } else { 20 };
                sweep(&trace.name, &Intervals::halves(trace.keys, trace.distinct), servers, false);
            }
        }
        Err(error) => eprintln!("SKIPPED real traces: {error}"),
    }
    let header = "trace,servers,threshold,replicated_keys,observed,observed_next,predicted_equal,predicted_weighed,\
                  predicted_weighed_sampled,predicted_typical,gap_equal,gap_weighed,gap_weighed_next";
    report.table("netkv-figure-5", header, &rows)
}

fn figures_12_to_14(intervals: &Intervals, seed: u64, report: &Report) -> Result<(), String> {
    const SERVERS: usize = 100;
    let hot = detect(&intervals.seen, 1_000, seed).hot;
    let mut per_key = Vec::new();
    for threshold in [25_000.0, 100_000.0] {
        let replicated: Vec<u32> =
            hot.iter().map(|key| copies(key.1, threshold)).filter(|copies| *copies > 1).collect();
        for (rank, copies) in replicated.iter().enumerate() {
            per_key.push(format!("{threshold:.0},{},{copies}", rank + 1));
        }
    }
    report.table("netkv-figure-12", "threshold,rank,replicas", &per_key)?;

    let (mut rows, mut by_server) = (Vec::new(), Vec::new());
    let mut observe_one = |name: &str, copies_of: &dyn Fn(f64) -> u32| {
        let replicas = Replicas::new(&hot, copies_of, SERVERS);
        let mut served = observe(&intervals.served, &replicas, SERVERS, seed);
        served.sort_unstable();
        rows.push(format!(
            "{name},{},{},{:.3},{:.2},{:.3}",
            replicas.keys,
            replicas.places.len(),
            imbalance(&served),
            max_over_min(&served),
            mean_deviation(&served),
        ));
        let by_load = served.iter().enumerate();
        by_server.extend(by_load.map(|(rank, count)| format!("{name},{},{count}", rank + 1)));
        eprintln!("figures 13 and 14: {name}");
    };
    observe_one("none", &|_| 1);
    for threshold in [25_000.0, 100_000.0] {
        let thousands = threshold / 1_000.0;
        for fixed in [3, 10] {
            let name = format!("{fixed} replicas T {thousands:.0}k");
            observe_one(&name, &|requests| if requests > threshold { fixed } else { 1 });
        }
        observe_one(&format!("adaptive T {thousands:.0}k"), &|requests| {
            copies(requests, threshold)
        });
    }
    let header = "policy,replicated_keys,replicas,max_over_average,max_over_min,mean_deviation";
    report.table("netkv-figures-13-14", header, &rows)?;
    report.quiet_table("netkv-figure-14", "policy,server_by_load,requests", &by_server)
}

/// The sweep of §IV.E, by where the copies of this T's keys really are.
fn threshold_for(target: f64, detected: &Detected, stream: &Stream, servers: usize) -> f64 {
    let demand = demand(&detected.hot, stream, detected.distinct, servers);
    let bin_of =
        |key: usize, copy, copies| place(detected.hot[key].0, copy, copies, servers) as usize;
    choose_threshold_placed(&demand, target, bin_of).requests_per_copy
}

fn figures_15_and_16(drift: f64, seed: u64, report: &Report) -> Result<(), String> {
    const SERVERS: usize = 100;
    let policies = ["none", "3 replicas", "10 replicas", "adaptive 1.7"];
    let mut rows = Vec::new();
    let mut by_server = Vec::new();
    for step in 0..=14 {
        let skew = 0.25 * f64::from(step);
        let zipf = |seed| Popularity::zipf(skew, 1_000_000, 10_000_000, seed);
        let Intervals { seen, served } = Intervals::made(zipf, drift, seed);
        let detected = detect(&seen, 100, seed);
        let target = threshold_for(TARGETS[0], &detected, &seen, SERVERS);
        for (policy, name) in policies.iter().enumerate() {
            let copies_of = |requests: f64| match policy {
                0 => 1,
                1 => 3,
                2 => 10,
                _ => copies(requests, target),
            };
            let replicas = Replicas::new(&detected.hot, copies_of, SERVERS);
            let mut loads = observe(&served, &replicas, SERVERS, seed);
            rows.push(format!(
                "{skew},{name},{:.3},{:.3},{:.2},{}",
                mean_deviation(&loads),
                imbalance(&loads),
                max_over_min(&loads),
                replicas.places.len()
            ));
            if skew == 2.5 && policy >= 2 {
                loads.sort_unstable();
                by_server.extend(
                    loads
                        .iter()
                        .enumerate()
                        .map(|(rank, count)| format!("{name},{},{count}", rank + 1)),
                );
            }
        }
        eprintln!("figure 15: Zipf {skew}");
    }
    report.table(
        "netkv-figure-15",
        "skew,policy,mean_deviation,max_over_average,max_over_min,replicas",
        &rows,
    )?;
    report.table("netkv-figure-16", "policy,server_by_load,requests", &by_server)
}

/// The fullest server is partly luck: the targets are judged over so many placements of the same keys.
const PLACEMENTS: u64 = 5;

fn figure_17(intervals: &Intervals, seed: u64, report: &Report) -> Result<(), String> {
    let stream = &intervals.seen;
    let mut rows = Vec::new();
    let names = ["none", "fixed T 25k", "target 1.7", "target 3.2"];
    let detected: Vec<(u64, Detected)> =
        (seed..seed + PLACEMENTS).map(|seed| (seed, detect(stream, 100, seed))).collect();
    for servers in [50, 100, 250, 500, 1_000, 1_500, 2_000, 2_500] {
        for (policy, name) in names.iter().enumerate() {
            let placements = if policy >= 2 { &detected[..] } else { &detected[..1] };
            let (mut observed, mut spreads) = (Vec::new(), Vec::new());
            let mut table = (0, 0);
            let (mut threshold, mut bound) = (f64::INFINITY, f64::NAN);
            for (seed, detected) in placements {
                let demand = demand(&detected.hot, stream, detected.distinct, servers);
                threshold = match policy {
                    0 => f64::INFINITY,
                    1 => 25_000.0,
                    _ => threshold_for(TARGETS[policy - 2], detected, stream, servers),
                };
                if policy > 0 {
                    bound = predict(&demand, threshold, Prediction::WeighedBalls);
                }
                let replicas =
                    Replicas::new(&detected.hot, |requests| copies(requests, threshold), servers);
                table = (replicas.keys, replicas.places.len());
                let loads = observe(&intervals.served, &replicas, servers, *seed);
                observed.push(imbalance(&loads));
                spreads.push(max_over_min(&loads));
            }
            observed.sort_by(f64::total_cmp);
            let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
            let over = |observed: f64| match policy {
                0 | 1 => f64::NAN,
                _ => observed / TARGETS[policy - 2] - 1.0,
            };
            rows.push(format!(
                "{servers},{name},{},{threshold:.0},{},{},{bound:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.2}",
                placements.len(),
                table.0,
                table.1,
                mean(&observed),
                observed[0],
                observed[observed.len() - 1],
                over(observed[0]),
                over(observed[observed.len() - 1]),
                mean(&spreads),
            ));
        }
        eprintln!("figure 17: {servers} servers");
    }
    let header = "servers,policy,placements,threshold,replicated_keys,replicas,bound,observed_mean,\
                  observed_least,observed_most,least_over_target,most_over_target,max_over_min";
    report.table("netkv-figure-17", header, &rows)
}
