//! `mbal bench`: loads memcached-compatible servers and says what each request cost them.
//!
//! One thread per core of load, each with an epoll of its own ([`generator`]); requests are stamped from
//! templates ([`wording`]), replies are checked byte for byte as far as it is cheap ([`replies`]). Servers are
//! compared in alternating rounds ([`compare`]), by the CPU time that the scheduler booked on them ([`cpu`]).
//! It never measures a server by the server's own word, and never takes a reply on trust.
#![forbid(unsafe_code)]

mod address;
#[cfg(test)]
#[path = "../tests/unit/against_servers.rs"]
mod against_servers;
mod answering;
mod args;
mod batches;
mod before;
mod binary;
mod compare;
mod connection;
mod cpu;
#[cfg(test)]
#[path = "../tests/unit/dividing.rs"]
mod dividing;
mod follow;
#[cfg(test)]
#[path = "../tests/unit/following.rs"]
mod following;
mod generator;
mod issuing;
mod leasing;
mod load;
mod measure;
mod mix;
mod pace;
mod parts;
mod peer;
mod plan;
mod popularity;
mod reader;
mod relief;
mod replies;
mod report;
mod request;
mod servers;
mod session;
mod sizes;
mod source;
mod summary;
mod tally;
mod timeline;
mod trace;
mod twitter;
mod udp;
mod unit;
mod wording;
mod workload;
mod ycsb;

pub use args::Args;

pub use mbal_random::{Random, mix};
pub use popularity::Popularity;
pub use summary::Spread;
pub use trace::Trace;

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mbal_dial::{ServerName, Speech};

use address::{Address, Target};
use compare::{Comparison, Series};
use measure::{Round, measure};
use plan::{Plan, Task};
use request::Protocol;
use servers::Servers;

/// For a first reply.
const GREETING_MAX: Duration = Duration::from_secs(5);

/// Runs the benchmark; the exit code is 1 where it could not be run or a reply was wrong.
pub fn run(args: Args) -> ExitCode {
    if let Err(error) = before::check(&args) {
        eprintln!("mbal bench: {error}");
        return ExitCode::FAILURE;
    }
    if args.compare.is_empty() {
        return finish(&args, stoppable(|stop| single(&args, stop)));
    }
    if !session::is_own() {
        return session::supervise().unwrap_or_else(|error| {
            eprintln!("mbal bench: {error}");
            ExitCode::FAILURE
        });
    }
    eprintln!("{}", session::found());
    let compared = stoppable(|stop| {
        let plan = Plan::new(&args)?;
        compare::compare(&args, &plan, &compare::commands(&args)?, stop)
    });
    finish(&args, compared)
}

fn stoppable(
    run: impl FnOnce(&AtomicBool) -> Result<Comparison, String>,
) -> Result<Comparison, String> {
    let stop = session::stop_flag().map_err(|error| error.to_string())?;
    run(&stop)
}

/// One run against a server that somebody else started.
fn single(args: &Args, stop: &AtomicBool) -> Result<Comparison, String> {
    let mut plan = Plan::new(args)?;
    let server = args.at.server();
    let mut target = Target::from(Address::of(&server)?);
    let host = match &server {
        ServerName::Tcp { host, .. } => Some(host.clone()),
        ServerName::Unix(_) => None,
    };
    plan.enter(&mut target, host)?;
    if !args.udp && args.protocol != Protocol::Resp {
        greet(args, &target, &server).map_err(|error| format!("{server}: {error}"))?;
    }
    if let Some(cores) = &args.client_cores {
        cores.pin().map_err(|error| format!("--client-cores: {error}"))?;
    }
    if let (Some(map), Address::Tcp(at)) = (&args.map, &target.address) {
        let failed = |why: String| format!("--map {}: {why}", map.display());
        let page = fs::read_to_string(map).map_err(|error| failed(error.to_string()))?;
        target.map = Some(follow::Routes::parse(&page, *at).map_err(failed)?);
    }
    let routes = target.routes(args.follow)?;
    if args.follow && routes.is_none() {
        return Err("the server does not answer `config get mbal`: no --smart".into());
    }
    if let (Some(routes), Some(hot)) = (&routes, args.hot_worker) {
        let (workers, known) = (hot.workers, routes.workers().len());
        if usize::from(workers) != known {
            return Err(format!("--hot-worker: of {workers} workers, and the map has {known}"));
        }
    }
    plan.layout = routes;
    let run =
        |task| measure(plan.loads(&target, task, 1), plan.timeline(task), &args.server_pid, stop);
    if args.prefill {
        eprintln!("{}", compare::filled(run(Task::Fill)?, run(Task::Verify)?)?);
    }
    let pace = plan.pace()?;
    let rounds = vec![watched(args, &target, || run(Task::Measure(pace)))?];
    Ok(Comparison {
        load: plan.describe(pace),
        filled: args.prefill || args.look_aside || plan.replays(),
        series: vec![Series { command: args.at.server().to_string(), rounds }],
    })
}

/// Measures, and looks at the servers meanwhile, if that was asked for.
fn watched(
    args: &Args,
    target: &Target,
    measure: impl FnOnce() -> Result<Round, String>,
) -> Result<Round, String> {
    if !args.per_server {
        return measure();
    }
    let (all, is_over) = (Servers::of(target)?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| all.watch(&is_over));
        let round = measure();
        is_over.store(true, Ordering::Relaxed);
        let samples = watching.join().expect("the watcher does not panic");
        let (round, samples) = (round?, samples?);
        Ok(Round { servers: servers::rates(&samples, round.window), ..round })
    })
}

/// A server that is not there, or asks for what no flag gives, is told before the load, as `top` tells it.
fn greet(args: &Args, target: &Target, server: &ServerName) -> Result<(), String> {
    let dialer = &target.way.dialer;
    let greeted = dialer.greet(server, GREETING_MAX);
    let (mut stream, speech) = greeted.map_err(|error| error.to_string())?;
    match (speech, args.protocol) {
        (Speech::Text, _) => Ok(()),
        (Speech::Binary, Protocol::Binary) if dialer.has_login() => Ok(()),
        (Speech::Binary, Protocol::Binary) => {
            binary::ask_for_nothing(&mut stream).map_err(|error| error.to_string())
        }
        (Speech::Binary, _) => Err("it speaks binary alone: --protocol binary".into()),
    }
}

fn finish(args: &Args, comparison: Result<Comparison, String>) -> ExitCode {
    let comparison = match comparison {
        Ok(comparison) => comparison,
        Err(error) => {
            eprintln!("mbal bench: {error}");
            return ExitCode::FAILURE;
        }
    };
    let print = if args.json { report::json } else { report::table };
    print!("{}", print(&args.name, &comparison));
    if args.percentiles && !args.json {
        print!("{}", report::percentiles(&comparison));
    }
    if let Err(error) = files(args, &comparison) {
        eprintln!("mbal bench: {error}");
        return ExitCode::FAILURE;
    }
    if args.json {
        report::warnings(&comparison).iter().for_each(|warning| eprintln!("!! {warning}"));
    }
    let (wrong, shown) = report::wrongs(&comparison);
    shown.iter().for_each(|line| eprintln!("wrong: {line}"));
    if wrong > 0 {
        eprintln!("{wrong} wrong replies");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// What was asked to be left behind.
fn files(args: &Args, comparison: &Comparison) -> Result<(), String> {
    let written = |path: &Path, result: io::Result<()>| {
        result.map_err(|error| format!("{}: {error}", path.display()))
    };
    if let Some(path) = &args.csv {
        written(path, report::append_csv(path, &args.name, comparison))?;
    }
    if let Some(path) = &args.over_time {
        written(path, report::write_over_time(path, &args.name, comparison))?;
    }
    Ok(())
}
