//! The papers' way of measuring: a cluster under a rule, with more and more clients, in some rounds with other keys. By events.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::events::Latency;
use super::situation::Situation;
use super::trial::{Rules, Trial, World};

/// Epochs of a trial, and those of them that are counted: by then copies are made and moves are over.
pub const EPOCHS: u64 = 20;
const COUNTED: usize = 10;

/// How points are measured, and where they go.
#[derive(clap::Args, Clone, Debug)]
pub struct SweepArgs {
    /// Rounds of each point, with other keys in each.
    #[arg(long, default_value_t = 3)]
    pub rounds: u64,
    /// Threads; as many as there are cores.
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Folder for CSV and SVG files; without it none are written.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

impl SweepArgs {
    pub fn jobs(&self) -> usize {
        self.jobs.unwrap_or_else(cores)
    }
}

pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// One line of a plot.
#[derive(Clone)]
pub struct Line {
    pub panel: String,
    pub name: String,
    /// Of the first round; its clients are replaced.
    pub situation: Situation,
    pub rules: Rules,
}

/// A line with so many clients.
pub struct Row {
    pub panel: String,
    pub name: String,
    pub clients: f64,
    /// By round.
    pub rounds: Vec<Point>,
}

/// What came of a trial.
#[derive(Clone, Default)]
pub struct Point {
    /// Requests a second.
    pub throughput: f64,
    pub latency: Latency,
    /// Requests of the busiest server by those of the average one.
    pub busiest: f64,
    pub copies: f64,
}

pub const HEADER: &str = "panel,line,clients,per_second,least,most,p50_ms,p90_ms,p95_ms,p99_ms,\
    write_p90_ms,busiest,copies";

/// Each line with each number of smart clients, in so many rounds; in the order of the lines.
pub fn run(lines: &[Line], clients: &[f64], args: &SweepArgs) -> Vec<Row> {
    let rounds = args.rounds;
    let tasks: Vec<(usize, u64)> =
        (0..lines.len()).flat_map(|line| (0..rounds).map(move |round| (line, round))).collect();
    let points = in_parallel(&tasks, args.jobs(), |(line, round)| {
        let line = &lines[*line];
        let mut world = World::of(line.situation.with_other_keys(*round));
        let mut point = |count: &f64| {
            world.situation.clients.smart = *count;
            Point::of(&world.run(&line.rules, true, false))
        };
        clients.iter().map(&mut point).collect::<Vec<_>>()
    });
    let mut rows = Vec::new();
    for (line, points) in lines.iter().zip(points.chunks(rounds as usize)) {
        for (at, count) in clients.iter().enumerate() {
            rows.push(Row {
                panel: line.panel.clone(),
                name: line.name.clone(),
                clients: *count,
                rounds: points.iter().map(|round| round[at].clone()).collect(),
            });
        }
    }
    rows
}

/// What comes of each task, in their order.
pub fn in_parallel<T: Sync, R: Send>(
    tasks: &[T],
    jobs: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some((at, task)) = {
                    let at = next.fetch_add(1, Relaxed);
                    tasks.get(at).map(|task| (at, task))
                } {
                    let result = work(task);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

impl Point {
    fn of(trial: &Trial) -> Point {
        let from = trial.seen.len().saturating_sub(COUNTED);
        let (mut point, count) = (Point::default(), (trial.seen.len() - from) as f64);
        for (throughput, seen) in trial.throughput[from..].iter().zip(&trial.seen[from..]) {
            point.throughput += throughput / count;
            point.latency.add(&seen.latency);
            point.busiest += seen.busiest / count;
            point.copies += seen.copies as f64 / count;
        }
        point
    }
}

impl Row {
    /// Requests a second, the mean of all rounds.
    pub fn throughput(&self) -> f64 {
        self.mean(|point| point.throughput)
    }

    pub fn mean(&self, of: impl Fn(&Point) -> f64) -> f64 {
        self.rounds.iter().map(of).sum::<f64>() / self.rounds.len() as f64
    }

    /// As [`HEADER`] has it.
    pub fn csv(&self) -> String {
        let rates = || self.rounds.iter().map(|point| point.throughput);
        let (least, most) = (rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max));
        let read = |share: f64| self.mean(|point| 1e3 * point.latency.of_reads(share));
        let [p50, p90, p95, p99] = [0.5, 0.9, 0.95, 0.99].map(read);
        let write = self.mean(|point| 1e3 * point.latency.of_writes(0.9));
        format!(
            "{},{},{},{:.0},{least:.0},{most:.0},{p50:.3},{p90:.3},{p95:.3},{p99:.3},{write:.3},{:.2},{:.1}",
            self.panel,
            self.name,
            self.clients,
            self.throughput(),
            self.mean(|point| point.busiest),
            self.mean(|point| point.copies),
        )
    }
}
