//! What one line came to over time, and beside others.

use std::ops::Range;

use super::super::events::Latency;
use super::super::trial::{JUDGED_FROM, Trial};

/// The trials of one line, by round.
pub struct Course {
    pub name: &'static str,
    pub rounds: Vec<Trial>,
}

/// Seconds that one point of a plot stands for.
const LATENCY_EVERY: usize = 10;
const EVENTS_EVERY: usize = 20;

/// What *all* is compared with.
const SINGLE: [&str; 5] = ["off", "phase 1", "phase 1 async", "phase 2", "phase 3"];

/// Rates of so many seconds that differ by less from those of the last ones are settled.
const SETTLED_WITHIN: f64 = 0.05;
const SETTLED_EVERY: usize = 5;
const LAST: usize = 40;

pub const HEADER: &str = "workload,line,per_second,least,most,of_off,of_best_single,read_p90_ms,\
    read_p95_ms,read_p99_ms,settled_s";

impl Course {
    /// Of one round: requests a second.
    fn rate(trial: &Trial, seconds: Range<usize>) -> f64 {
        let count = seconds.len() as f64;
        trial.throughput[seconds].iter().sum::<f64>() / count
    }

    /// The mean of all rounds.
    fn throughput(&self, seconds: Range<usize>) -> f64 {
        let rates = self.rounds.iter().map(|trial| Course::rate(trial, seconds.clone()));
        rates.sum::<f64>() / self.rounds.len() as f64
    }

    fn latency(&self, seconds: Range<usize>) -> Latency {
        let mut all = Latency::default();
        for trial in &self.rounds {
            trial.seen[seconds.clone()].iter().for_each(|seen| all.add(&seen.latency));
        }
        all
    }

    fn stretches(&self, every: usize) -> impl Iterator<Item = Range<usize>> {
        let end = self.rounds.iter().map(|trial| trial.seen.len()).min().unwrap_or(0);
        (0..end).step_by(every).map(move |from| from..(from + every).min(end))
    }

    /// The 90th percentile of reads over time (Figure 12).
    pub fn latencies(&self) -> Vec<String> {
        let row = |seconds: Range<usize>| {
            let ms = 1e3 * self.latency(seconds.clone()).of_reads(0.9);
            let (from, rate) = (seconds.start, self.throughput(seconds));
            format!("{},{from},{ms:.3},{rate:.0}", self.name)
        };
        self.stretches(LATENCY_EVERY).map(row).collect()
    }

    /// What phases have begun over time, and each one's part of it (Figure 13).
    pub fn shares(&self) -> Vec<String> {
        let mut rows = Vec::new();
        for seconds in self.stretches(EVENTS_EVERY) {
            let mut events = [0; 3];
            for trial in &self.rounds {
                for at in seconds.clone() {
                    let [all, between] = trial.moves[at];
                    let of_phases = [trial.copied[at], all - between, between];
                    events.iter_mut().zip(of_phases).for_each(|(sum, one)| *sum += one);
                }
            }
            let all = events.iter().sum::<u64>().max(1) as f64;
            for (phase, count) in (1..).zip(events) {
                let (from, share) = (seconds.start, count as f64 / all);
                rows.push(format!("{},{from},{phase},{count},{share:.3}", self.name));
            }
        }
        rows
    }

    /// Seconds after the first until rates are as they stay, the mean of all rounds.
    fn settled(&self, seconds: &Range<usize>) -> f64 {
        let of = |trial: &Trial| {
            let last = Course::rate(trial, seconds.end - LAST.min(seconds.len())..seconds.end);
            let begins = seconds.clone().step_by(SETTLED_EVERY);
            let is_off = |begin: &usize| {
                let end = (begin + SETTLED_EVERY).min(seconds.end);
                (Course::rate(trial, *begin..end) / last - 1.0).abs() > SETTLED_WITHIN
            };
            let late = begins.rev().find(is_off);
            late.map_or(0, |at| at + SETTLED_EVERY - seconds.start) as f64
        };
        self.rounds.iter().map(of).sum::<f64>() / self.rounds.len() as f64
    }
}

/// A row for each line, of a workload that holds for so many seconds.
pub fn verdicts(courses: &[Course], workload: &str, seconds: Range<usize>) -> Vec<String> {
    let judged = seconds.start + JUDGED_FROM as usize..seconds.end;
    let rate = |course: &Course| course.throughput(judged.clone());
    let off = courses.iter().find(|one| one.name == "off").map_or(f64::NAN, rate);
    let singles = courses.iter().filter(|one| SINGLE.contains(&one.name));
    let best = singles.map(rate).fold(0.0, f64::max);
    let row = |course: &Course| {
        let rates = || course.rounds.iter().map(|trial| Course::rate(trial, judged.clone()));
        let (least, most) = (rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max));
        let latency = course.latency(judged.clone());
        let [p90, p95, p99] = [0.9, 0.95, 0.99].map(|share| 1e3 * latency.of_reads(share));
        let (own, settled) = (rate(course), course.settled(&seconds));
        format!(
            "{workload},{},{own:.0},{least:.0},{most:.0},{:.3},{:.3},{p90:.3},{p95:.3},{p99:.3},{settled:.0}",
            course.name,
            own / off,
            own / best,
        )
    };
    courses.iter().map(row).collect()
}
