//! `conformance scripts|covers|differential|rounds`: see `conformance/run`, which calls all of them.

#![forbid(unsafe_code)]

use mbal_conformance::cluster::{Cluster, Words};
use mbal_conformance::covers;
use mbal_conformance::differential::{Campaign, Plan, Report, Rounds, RoundsReport};
use mbal_conformance::member::{await_ready, become_member};
use mbal_conformance::mover::moved;
use mbal_conformance::play::Cut;
use mbal_conformance::runner::{self, Against};
use mbal_conformance::server::Launch;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage:
  conformance scripts (--server COMMAND [--cluster N [--at N] [--moves MS]] | --pure WORKERS) [--unix] [--cut bytes]
      [--except LIST] [--without LIST] [--jobs N] FOLDER...
  conformance covers [--source FOLDER] LIST FOLDER...
  conformance differential --left COMMAND --right COMMAND [--flags FLAGS] [--unix] [--seed N] [--epoch N]
      [--commands N] [--cells LIST --least N] [--plant N] [--without ROW,...] [--faults N]
  conformance rounds --left COMMAND --right COMMAND [--seed N] [--requests N] [--datagrams N] [--cells LIST --least N]
      [--plant N]                                       binary protocol and UDP
  conformance member --server COMMAND --cluster N [--at N] [--moves MS] [-- FLAGS]
      becomes the server that --at names, with FLAGS, and has the others kept for as long as it lives
  conformance ready PORT|PATH                           waits until a server of a cluster reaches all keys
With --cluster N, COMMAND (of differential and rounds, that of --right) is started N times, as servers that share the keys;
clients ask the one that --at names, from 1. With --moves MS a coordinator is started too, and a cachelet moves each MS milliseconds.";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let result = match words.next().as_deref() {
        Some("scripts") => scripts(words.collect()),
        Some("covers") => covers(words.collect()),
        Some("differential") => differential(words.collect()),
        Some("rounds") => rounds(words.collect()),
        Some("member") => member(words.collect()),
        Some("keep") => keep(words.collect()),
        Some("ready") => ready(words.collect()),
        _ => Err(USAGE.to_string()),
    };
    if moved() > 0 {
        println!("{} cachelets moved meanwhile", moved());
    }
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn scripts(words: Vec<String>) -> Result<bool, String> {
    let (mut server, mut pure) = (None, None);
    let (mut except, mut without) = (Vec::new(), Vec::new());
    let (mut unix, mut cut, mut jobs) = (false, Cut::Whole, 8);
    let mut cluster = Words::default();
    let mut folders = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value\n{USAGE}"));
        match word.as_str() {
            "--server" => server = Some(value()?),
            "--pure" => pure = Some(value()?.parse().map_err(|_| USAGE.to_string())?),
            "--except" => except = names(&value()?)?,
            "--without" => without = names(&value()?)?,
            "--unix" => unix = true,
            "--cut" if value()? == "bytes" => cut = Cut::Bytes,
            "--jobs" => jobs = value()?.parse().map_err(|_| USAGE.to_string())?,
            _ if !word.starts_with('-') => folders.push(PathBuf::from(word)),
            _ if cluster.take(&word, &mut value)? => {}
            _ => return Err(format!("{word}?\n{USAGE}")),
        }
    }
    let (command, against) = match (server, pure) {
        (Some(command), None) => {
            let against =
                Against::Server(Launch::new(&command, unix).in_cluster(Cluster::of(&cluster)?));
            (command, against)
        }
        (None, Some(workers)) => (format!("{workers} pure workers"), Against::Pure(workers)),
        _ => return Err(USAGE.to_string()),
    };
    let scripts = runner::load(&folders)?;
    let outcome = runner::run(&scripts, &against, cut, &except, &without, jobs);
    for error in &outcome.excepted {
        println!("NOT YET {}", error.lines().next().unwrap_or(""));
    }
    for error in &outcome.failed {
        println!("FAILED {error}");
    }
    println!(
        "scripts against {command}: {} passed, {} failed, {} not yet, {} skipped",
        outcome.passed,
        outcome.failed.len(),
        outcome.excepted.len(),
        outcome.skipped
    );
    Ok(outcome.failed.is_empty() && outcome.passed > 0)
}

fn covers(words: Vec<String>) -> Result<bool, String> {
    let mut source = None;
    let mut paths = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--source" => source = Some(PathBuf::from(words.next().ok_or(USAGE)?)),
            _ => paths.push(PathBuf::from(word)),
        }
    }
    let (list, folders) = paths.split_first().ok_or(USAGE)?;
    let text = std::fs::read_to_string(list).map_err(|error| format!("{list:?}: {error}"))?;
    let scripts = runner::load(folders)?;
    let missing = covers::missing(&text, &scripts, source.as_deref())?;
    for line in &missing {
        println!("FAILED {line}");
    }
    println!("covers: {} scripts, {} missing", scripts.len(), missing.len());
    Ok(missing.is_empty())
}

fn differential(words: Vec<String>) -> Result<bool, String> {
    let (mut left, mut right, mut cells) = (None, None, None);
    let mut plan = Plan {
        left: Launch::new("memcached", false),
        right: Launch::new("memcached", false),
        flags: Vec::new(),
        seed: 1,
        commands: 100_000,
        only: None,
        without: Vec::new(),
        plant_every: None,
        faults_max: 5,
    };
    let (mut unix, mut least) = (false, 0);
    let mut cluster = Words::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value\n{USAGE}"));
        let mut number = || value()?.parse::<u64>().map_err(|error| format!("{word}: {error}"));
        match word.as_str() {
            "--seed" => plan.seed = number()?,
            "--epoch" => plan.only = Some(number()?),
            "--commands" => plan.commands = number()?,
            "--plant" => plan.plant_every = Some(number()? as usize),
            "--faults" => plan.faults_max = number()? as usize,
            "--least" => least = number()?,
            "--left" => left = Some(value()?),
            "--right" => right = Some(value()?),
            "--flags" => plan.flags = value()?.split_whitespace().map(str::to_string).collect(),
            "--cells" => cells = Some(PathBuf::from(value()?)),
            "--unix" => unix = true,
            "--without" => plan.without = value()?.split(',').map(str::to_string).collect(),
            _ if cluster.take(&word, &mut value)? => {}
            _ => return Err(format!("{word}?\n{USAGE}")),
        }
    }
    plan.left = Launch::new(&left.ok_or(USAGE)?, unix);
    plan.right = Launch::new(&right.ok_or(USAGE)?, unix).in_cluster(Cluster::of(&cluster)?);
    let cells = match cells {
        Some(path) => {
            std::fs::read_to_string(&path).map_err(|error| format!("{path:?}: {error}"))?
        }
        None => String::new(),
    };
    println!("seed {}", plan.seed);
    let is_left_out =
        |line: &str| plan.without.iter().any(|row| line.starts_with(&format!("{row}: ")));
    let cells: String =
        cells.lines().filter(|line| !is_left_out(line)).map(|line| format!("{line}\n")).collect();
    if !plan.without.is_empty() {
        println!("NOT COMPARED: {}", plan.without.join(", "));
    }
    let is_planted = plan.plant_every.is_some();
    let report = Campaign { plan }.run()?;
    Ok(if is_planted { all_caught(&report) } else { all_agree(&report, &cells, least) })
}

fn rounds(words: Vec<String>) -> Result<bool, String> {
    let mut rounds = Rounds {
        left: Launch::new("memcached", false),
        right: Launch::new("memcached", false),
        seed: 1,
        requests: 50_000,
        datagrams: 5_000,
        plant_every: None,
    };
    let (mut cells, mut least) = (String::new(), 0);
    let mut cluster = Words::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value\n{USAGE}"));
        let mut number = || value()?.parse::<u64>().map_err(|error| format!("{word}: {error}"));
        match word.as_str() {
            "--left" => rounds.left = Launch::new(&value()?, false),
            "--right" => rounds.right = Launch::new(&value()?, false),
            "--seed" => rounds.seed = number()?,
            "--requests" => rounds.requests = number()?,
            "--datagrams" => rounds.datagrams = number()?,
            "--plant" => rounds.plant_every = Some(number()? as usize),
            "--least" => least = number()?,
            "--cells" => {
                let list = value()?;
                cells = std::fs::read_to_string(&list).map_err(|e| format!("{list}: {e}"))?;
            }
            _ if cluster.take(&word, &mut value)? => {}
            _ => return Err(format!("{word}?\n{USAGE}")),
        }
    }
    rounds.right = rounds.right.in_cluster(Cluster::of(&cluster)?);
    println!("seed {}", rounds.seed);
    let report = rounds.run()?;
    if rounds.plant_every.is_none() {
        print!("{}", report.cells.table(&cells));
    }
    let short = report.cells.short_of(&cells, least);
    for line in &short {
        println!("FAILED too seldom: {line}");
    }
    for failure in &report.failures {
        println!("FAILED {failure}");
    }
    let RoundsReport { requests, datagrams, planted, caught, .. } = report;
    let differences = report.failures.len();
    println!(
        "rounds: {requests} binary requests, {datagrams} datagrams, {differences} differences, \
         {planted} faults planted, {caught} caught"
    );
    let is_sharp = caught == planted && (rounds.plant_every.is_none() || planted >= 5);
    Ok(differences == 0 && short.is_empty() && is_sharp)
}

/// What `member` and its keeper are told: how servers are started, the cluster, whose keeper it is, the server's flags.
fn of_member(words: &[String]) -> Result<(Launch, Cluster, Option<u32>, Vec<String>), String> {
    let (mut server, mut of, mut cluster) = (None, None, Words::default());
    let mut words = words.iter().cloned();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value\n{USAGE}"));
        match word.as_str() {
            "--server" => server = Some(value()?),
            "--of" => of = Some(value()?.parse().map_err(|_| USAGE.to_string())?),
            "--" => break,
            _ if cluster.take(&word, &mut value)? => {}
            _ => return Err(format!("{word}?\n{USAGE}")),
        }
    }
    let cluster = Cluster::of(&cluster)?.ok_or(USAGE)?;
    Ok((Launch::new(&server.ok_or(USAGE)?, false), cluster, of, words.collect()))
}

fn member(words: Vec<String>) -> Result<bool, String> {
    let (launch, _, _, flags) = of_member(&words)?;
    let own = words.iter().position(|word| word == "--").unwrap_or(words.len());
    Err(become_member(&launch, &words[..own], &flags))
}

/// Says itself what has moved.
fn keep(words: Vec<String>) -> ! {
    let kept = of_member(&words).and_then(|(launch, cluster, of, flags)| {
        mbal_conformance::member::keep(of.ok_or(USAGE)?, &launch, &cluster, &flags)
    });
    if let Err(error) = &kept {
        eprintln!("{error}");
    }
    std::process::exit(i32::from(kept.is_err()))
}

fn ready(words: Vec<String>) -> Result<bool, String> {
    await_ready(words.first().ok_or(USAGE)?)?;
    Ok(true)
}

/// The scripts of a list: the first word of each line.
fn names(list: &str) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(list).map_err(|error| format!("{list}: {error}"))?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    Ok(lines.filter_map(|line| line.split_whitespace().next().map(str::to_string)).collect())
}

fn all_caught(report: &Report) -> bool {
    for (kind, count) in &report.planted_kinds {
        println!("{count:>9}  planted: {kind}");
    }
    let (planted, caught) = (report.planted, report.caught);
    println!("differential: {planted} faults planted, {caught} caught");
    planted >= 5 && caught == planted && report.failures.is_empty()
}

fn all_agree(report: &Report, cells: &str, least: u64) -> bool {
    print!("{}", report.cells.table(cells));
    println!("allowed differences, and how often each was met:");
    for (allowed, name) in mbal_conformance::differential::Allowed::ALL {
        println!("{:>9}  {name}", report.used.get(&allowed).copied().unwrap_or(0));
    }
    let short = report.cells.short_of(cells, least);
    for line in &short {
        println!("FAILED too seldom: {line}");
    }
    for (epoch, what) in &report.unrepeatable {
        println!("FAILED once, not again: epoch {epoch}: {what}");
    }
    println!(
        "differential: {} commands in {} epochs, {} attributed, {} differences, {} unrepeatable",
        report.commands,
        report.epochs,
        report.cells.total(),
        report.failures.len(),
        report.unrepeatable.len(),
    );
    report.failures.is_empty() && report.unrepeatable.is_empty() && short.is_empty()
}
