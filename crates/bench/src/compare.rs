//! Servers side by side: the same load in alternating rounds, so that the machine's moods fall on all alike.

use std::sync::atomic::AtomicBool;

use crate::args::{Args, Rate};
use crate::cpu::Cores;
use crate::measure::{Round, measure};
use crate::pace::Pace;
use crate::peer::Peer;
use crate::plan::{Plan, Task};
use crate::summary::Spread;

/// Closed-loop rounds of the first peer whose median rate is its peak.
const PEAK_ROUNDS: u64 = 3;

/// One server's rounds.
pub struct Series {
    pub command: String,
    pub rounds: Vec<Round>,
}

pub struct Comparison {
    /// The load in words, with the rate that was used.
    pub load: String,
    /// Every key was set before it was measured, or the load sets what it misses.
    pub filled: bool,
    pub series: Vec<Series>,
}

/// The peers' commands, ours last, with threads and memory filled in; ports differ from start to start.
pub fn commands(args: &Args) -> Result<Vec<String>, String> {
    let mut commands = args.compare.clone();
    match &args.serve {
        Some(command) if command.is_empty() => {}
        Some(command) => commands.push(command.clone()),
        None => {
            let own = std::env::current_exe().map_err(|error| error.to_string())?;
            let memory = if commands[0].contains("{memory}") { " -m {memory}" } else { "" };
            commands.push(format!("'{}' serve -t {{threads}}{memory} -p {{port}}", own.display()));
        }
    }
    let (threads, memory) = (args.threads.to_string(), args.memory.to_string());
    let fill = |c: &String| c.replace("{threads}", &threads).replace("{memory}", &memory);
    Ok(commands.iter().map(fill).collect())
}

pub fn compare(
    args: &Args,
    plan: &Plan,
    commands: &[String],
    stop: &AtomicBool,
) -> Result<Comparison, String> {
    let server_cores = match &args.server_cores {
        Some(cores) => cores.clone(),
        None => Cores::current().map_err(|error| error.to_string())?,
    };
    if let Some(cores) = &args.client_cores {
        cores.pin().map_err(|error| format!("--client-cores: {error}"))?;
    }
    let mut peers = Vec::new();
    for command in commands {
        let peer = start(args, plan, command, &server_cores)?;
        if !plan.replays() {
            eprintln!("{command}: {}", fill(plan, &peer, stop)?);
        }
        peers.push(peer);
    }
    let pace = pace(args, plan, &peers[0], stop)?;
    let mut series: Vec<Series> = commands
        .iter()
        .map(|command| Series { command: command.clone(), rounds: Vec::new() })
        .collect();
    for round in 0..args.rounds as usize {
        for turn in 0..peers.len() {
            let which = (round + turn) % peers.len();
            if plan.replays() && round > 0 {
                peers[which] = start(args, plan, &commands[which], &server_cores)?;
            }
            let result = run(plan, &peers[which], Task::Measure(pace), round as u64 + 1, stop)?;
            let (rate, cpu) = (result.tally.counts.keys() as f64 / result.tally.seconds, &result);
            eprintln!(
                "{} round {:>2} of {}, server {}: {rate:>9.0} keys/s, {:.3} µs CPU per key",
                args.name,
                round + 1,
                args.rounds,
                which + 1,
                cpu.server_cpu_ns.unwrap_or(0) as f64 / 1e3 / result.tally.counts.keys() as f64,
            );
            series[which].rounds.push(result);
        }
    }
    Ok(Comparison { load: plan.describe(pace), filled: true, series })
}

fn start(args: &Args, plan: &Plan, command: &str, cores: &Cores) -> Result<Peer, String> {
    let mut peer = Peer::start(command, args.threads, cores)?;
    plan.enter(&mut peer.target, None)?;
    Ok(peer)
}

fn run(
    plan: &Plan,
    peer: &Peer,
    task: Task,
    round: u64,
    stop: &AtomicBool,
) -> Result<Round, String> {
    let timeline = plan.timeline(task);
    measure(plan.loads(&peer.target, task, round), timeline, &[peer.pid()], stop)
}

/// Sets every key, then counts those that can be read.
fn fill(plan: &Plan, peer: &Peer, stop: &AtomicBool) -> Result<String, String> {
    filled(run(plan, peer, Task::Fill, 0, stop)?, run(plan, peer, Task::Verify, 0, stop)?)
}

/// Checks a filling and the reading after it, and says what they came to.
pub fn filled(fill: Round, verify: Round) -> Result<String, String> {
    if let Some(wrong) = fill.tally.wrong_shown.first().or(verify.tally.wrong_shown.first()) {
        return Err(format!("prefill: {wrong}"));
    }
    Ok(format!("{} keys set, {} of them there", fill.tally.counts.sets, verify.tally.counts.hits))
}

fn pace(args: &Args, plan: &Plan, first: &Peer, stop: &AtomicBool) -> Result<Pace, String> {
    let Some(Rate::Share(share)) = args.rate else { return plan.pace() };
    let mut rates = Vec::new();
    for round in 0..PEAK_ROUNDS {
        let round =
            run(plan, first, Task::Measure(Pace::Closed), u64::from(u32::MAX) + round, stop)?;
        rates.push(round.tally.counts.requests as f64 / round.tally.seconds);
    }
    let peak = Spread::of(rates).expect("PEAK_ROUNDS is above 0").median;
    eprintln!("peak of the first peer in closed loop: {peak:.0} requests/s");
    Ok(Pace::Open { requests_per_second: peak * share })
}
