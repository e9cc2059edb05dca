//! `mbal-lab phases`: MBal's figures 10 to 13 (EuroSys 2015, §4.2): each phase alone, all of them, none.

mod course;

use self::course::Course;
use super::costs::Costs;
use super::placement::Ways;
use super::situation::{Clients, Law, Names, Shift, Situation};
use super::sweep::{self, EPOCHS, HEADER, Line, Row, SweepArgs, in_parallel};
use super::trial::{Rules, World, phases};
use crate::model::Report;

const EXAMPLES: &str = "\
  mbal-lab phases                            Figures 10 to 13
  mbal-lab phases 12 --rounds 1              workloads A, B and C, one after the other
  mbal-lab phases --out docs/results/phases  as CSV and plots";

/// MBal's figures in virtual time: rate against latency for each phase; latency and what phases do over time, as workloads change.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which; without one all.
    figures: Vec<Figure>,
    #[command(flatten)]
    sweep: SweepArgs,
    /// Seconds of each workload.
    #[arg(long, default_value_t = 200)]
    seconds: u64,
    /// Keys; a twentieth of the paper's.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u32,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    /// 95% reads: rate against latency; Figure 11, percentiles, is its last point.
    #[value(name = "10")]
    Ten,
    /// Workloads A, B and C: latency over time; and Figure 13, what phases do.
    #[value(name = "12")]
    Twelve,
}

const SERVERS: usize = 20;
/// Virtual cores of a c3.large.
const WORKERS: usize = 2;
/// The part of a core that a worker has: so that the paper's clients, who wait for replies, saturate the cluster.
const CORE: f64 = 0.1;
/// 36 processes of 16 threads.
const CLIENTS: f64 = 576.0;
/// 20 million items in 1,024 cachelets.
const CACHELET_BYTES: u64 = 20_000_000 * 140 / 1024;

/// What is compared; the last are judged by the others.
const COMPARED: [Rules; 7] = [
    phases("off", [false, false, false], Ways::ATOMIC),
    phases("phase 1", [true, false, false], Ways::ATOMIC),
    phases("phase 1 async", [true, false, false], Ways::ASYNC),
    phases("phase 2", [false, true, false], Ways::ATOMIC),
    phases("phase 3", [false, false, true], Ways::ATOMIC),
    phases("all", [true, true, true], Ways::ATOMIC),
    phases("all async", [true, true, true], Ways::ASYNC),
];

const ZIPF: Law = Law::Zipf { exponent: 0.99 };
const EVEN: Law = Law::Zipf { exponent: 0.0 };

/// Table 4: name, law, sets.
const WORKLOADS: [(&str, Law, f64); 3] =
    [("A", ZIPF, 0.0), ("B", Law::HotSet { keys: 0.05, share: 0.95 }, 0.05), ("C", ZIPF, 0.5)];

pub fn run(args: &Args) -> Result<(), String> {
    let report = Report::new(args.sweep.out.as_deref())?;
    let all: &[Figure] = clap::ValueEnum::value_variants();
    for figure in if args.figures.is_empty() { all } else { &args.figures } {
        match figure {
            Figure::Ten => rates(args, &report)?,
            Figure::Twelve => over_time(args, &report)?,
        }
    }
    Ok(())
}

fn cluster(args: &Args, shifts: Vec<Shift>, epochs: u64) -> Situation {
    let workers = SERVERS * WORKERS;
    Situation {
        seed: 0,
        servers: SERVERS,
        workers: WORKERS,
        speeds: vec![CORE; workers],
        keys: args.keys,
        epochs,
        shifts,
        batch: 1,
        clients: Clients {
            smart: CLIENTS,
            ordinary: vec![0.0; workers],
            think: 0.0,
            is_open: false,
        },
        round_trip: 1e-4,
        cachelet_bytes: CACHELET_BYTES,
        costs: Costs::MODELLED,
        names: Names::Drawn,
        quotas: None,
    }
}

fn rates(args: &Args, report: &Report) -> Result<(), String> {
    let situation = |law| {
        let shift = Shift { epoch: 0, law, sets: 0.05, salt: 1 };
        cluster(args, vec![shift], 2 * EPOCHS)
    };
    let line = |rules: &Rules, name: &str, law| Line {
        panel: String::new(),
        name: name.to_owned(),
        situation: situation(law),
        rules: *rules,
    };
    let mut lines: Vec<Line> = COMPARED.iter().map(|rules| line(rules, rules.name, ZIPF)).collect();
    lines.push(line(&COMPARED[0], "even", EVEN));
    let clients = [0.125, 0.25, 0.5, 0.75, 1.0].map(|part| part * CLIENTS);
    let rows = sweep::run(&lines, &clients, &args.sweep);
    let table: Vec<String> = rows.iter().map(Row::csv).collect();
    report.table("phases-10", HEADER, &table)?;
    let mut bars = Vec::new();
    for row in rows.iter().filter(|row| row.clients == CLIENTS) {
        for percentile in [50, 90, 95, 99] {
            let share = f64::from(percentile) / 100.0;
            let ms = row.mean(|point| 1e3 * point.latency.of_reads(share));
            bars.push(format!("{},{percentile},{ms:.3}", row.name));
        }
    }
    report.table("phases-11", "line,percentile,read_ms", &bars)
}

fn over_time(args: &Args, report: &Report) -> Result<(), String> {
    let courses = courses(args);
    let mut verdicts = Vec::new();
    for (at, (name, ..)) in WORKLOADS.iter().enumerate() {
        let begin = at * args.seconds as usize;
        verdicts.extend(course::verdicts(&courses, name, begin..begin + args.seconds as usize));
    }
    report.table("phases-abc", course::HEADER, &verdicts)?;
    let latencies: Vec<String> = courses.iter().flat_map(Course::latencies).collect();
    report.quiet_table("phases-12", "line,second,read_p90_ms,per_second", &latencies)?;
    let all = courses.iter().filter(|course| course.name.starts_with("all"));
    let shares: Vec<String> = all.flat_map(Course::shares).collect();
    report.quiet_table("phases-13", "line,second,phase,events,share", &shares)
}

fn courses(args: &Args) -> Vec<Course> {
    let workloads = |is_even: bool| {
        let shift = |(at, (_, law, sets)): (usize, (&str, Law, f64))| Shift {
            epoch: at as u64 * args.seconds,
            law: if is_even { EVEN } else { law },
            sets,
            salt: 1 + at as u64,
        };
        let shifts = WORKLOADS.into_iter().enumerate().map(shift).collect();
        cluster(args, shifts, WORKLOADS.len() as u64 * args.seconds)
    };
    let lines = COMPARED.iter().map(|rules| (rules.name, rules, false));
    let lines: Vec<(&str, &Rules, bool)> = lines.chain([("even", &COMPARED[0], true)]).collect();
    let rounds: Vec<u64> = (0..args.sweep.rounds).collect();
    let draw =
        |(is_even, round): &(bool, u64)| World::of(workloads(*is_even).with_other_keys(*round));
    let drawn: Vec<(bool, u64)> =
        [false, true].iter().flat_map(|even| rounds.iter().map(|round| (*even, *round))).collect();
    let worlds = in_parallel(&drawn, args.sweep.jobs(), draw);
    let tasks: Vec<(usize, usize)> = (0..lines.len())
        .flat_map(|line| (0..rounds.len()).map(move |round| (line, round)))
        .collect();
    let trials = in_parallel(&tasks, args.sweep.jobs(), |(line, round)| {
        let (_, rules, is_even) = lines[*line];
        worlds[usize::from(is_even) * rounds.len() + round].run(rules, true, false)
    });
    let mut trials = trials.into_iter();
    let course = |(name, ..): (&'static str, &Rules, bool)| Course {
        name,
        rounds: trials.by_ref().take(rounds.len()).collect(),
    };
    lines.into_iter().map(course).collect()
}

#[cfg(test)]
mod tests {
    use super::super::trial::Trial;
    use super::*;

    #[test]
    fn all_phases_are_as_good_as_none_and_each_acts() {
        let args = Args {
            figures: vec![],
            sweep: SweepArgs { rounds: 1, jobs: None, out: None },
            seconds: 30,
            keys: 20_000,
        };
        let courses = courses(&args);
        let sum = |name: &str, of: fn(&Trial) -> u64| {
            let course = courses.iter().find(|one| one.name == name).expect("there is such a line");
            of(&course.rounds[0])
        };
        let copied = |trial: &Trial| trial.copied.iter().sum::<u64>();
        let lent = |trial: &Trial| trial.moves.iter().map(|moves| moves[0] - moves[1]).sum::<u64>();
        let moved = |trial: &Trial| trial.moves.iter().map(|moves| moves[1]).sum::<u64>();
        let acts = |name: &str| [copied, lent, moved].map(|of| sum(name, of) > 0);
        assert_eq!(acts("off"), [false; 3]);
        assert_eq!(acts("phase 1"), [true, false, false]);
        assert_eq!(acts("phase 2"), [false, true, false]);
        assert_eq!(acts("phase 3"), [false, false, true]);
        assert_eq!(acts("all"), [true; 3]);
        for (at, (workload, ..)) in WORKLOADS.iter().enumerate() {
            let seconds = at * 30..(at + 1) * 30;
            let rows = course::verdicts(&courses, workload, seconds);
            let all = rows.iter().find(|row| row.contains(",all,")).expect("it was compared");
            let of_off: f64 = all.split(',').nth(5).and_then(|word| word.parse().ok()).unwrap();
            assert!(of_off > 0.98, "{rows:#?}");
        }
    }
}
