//! A run over time: what was answered in each interval, for progress lines, CSV and plots.
//!
//! Counts and latencies are of the replies that came in the interval. Threads hand in their part when an
//! interval has passed; the last one makes the row.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use hdrhistogram::Histogram;

use crate::pace::Pace;
use crate::tally::{Counts, LATENCY_NS_MAX};
use crate::unit::{Unit, quantile_us};

/// One thread's part of an interval.
#[derive(Clone)]
pub struct Part {
    pub counts: Counts,
    /// Requests answered by each worker's port, where clients know the workers; parts of a batch one by one.
    pub workers: Vec<u64>,
    latency: Histogram<u64>,
    lag: Histogram<u64>,
}

/// A finished interval of all threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// When it ended, in seconds since the window began.
    pub second: f64,
    pub requests_per_second: f64,
    /// What an open loop was to send; nothing in a closed one, and where moments were recorded.
    pub offered_per_second: Option<f64>,
    pub keys_per_second: f64,
    pub hit_ratio: Option<f64>,
    /// 0.5, 0.99, 0.999 and 1, in µs; nothing where nothing was answered.
    pub latency_us: Option<[f64; 4]>,
    /// How late the generator itself was with what it sent; nothing where nothing was due.
    pub lag_p99_us: Option<f64>,
    pub workers_per_second: Vec<f64>,
}

pub struct Timeline {
    pub interval_ns: u64,
    threads: usize,
    progress: bool,
    pace: Pace,
    rows: Mutex<Rows>,
}

#[derive(Default)]
struct Rows {
    done: Vec<Row>,
    /// By interval: how many threads have handed in, and their sum.
    open: BTreeMap<u64, (usize, Part)>,
}

impl Part {
    pub fn new(workers: usize) -> Self {
        let times = || {
            Histogram::new_with_bounds(1_000, LATENCY_NS_MAX, 2).expect("constant, valid bounds")
        };
        let (latency, lag) = (times(), times());
        Self { counts: Counts::default(), workers: vec![0; workers], latency, lag }
    }

    /// So many requests, which took as long as each other.
    pub fn answered(&mut self, worker: usize, latency_ns: u64, requests: u64) {
        self.counts.requests += requests;
        self.workers[worker] += requests;
        self.latency.saturating_record_n(latency_ns, requests);
    }

    /// A request left so long after it was due, though a connection was free for it.
    pub fn late(&mut self, lag_ns: u64) {
        self.lag.saturating_record(lag_ns);
    }

    fn join(&mut self, other: &Self) {
        self.counts.join(&other.counts);
        self.workers.iter_mut().zip(&other.workers).for_each(|(sum, part)| *sum += part);
        for (sum, part) in [(&mut self.latency, &other.latency), (&mut self.lag, &other.lag)] {
            sum.add(part).expect("both have the same bounds");
        }
    }

    fn row(&self, index: u64, interval_ns: u64, pace: Pace) -> Row {
        let seconds = interval_ns as f64 / 1e9;
        let us = |quantile| self.latency.value_at_quantile(quantile) as f64 / 1e3;
        Row {
            second: (index + 1) as f64 * seconds,
            requests_per_second: self.counts.requests as f64 / seconds,
            // A rate changes evenly, so its mean is that of the interval's middle.
            offered_per_second: pace.requests_per_second((index as f64 + 0.5) * seconds),
            keys_per_second: self.counts.keys() as f64 / seconds,
            hit_ratio: self.counts.hit_ratio(),
            lag_p99_us: quantile_us(&self.lag, 0.99),
            latency_us: (self.counts.requests > 0).then(|| [0.5, 0.99, 0.999, 1.0].map(us)),
            workers_per_second: self.workers.iter().map(|n| *n as f64 / seconds).collect(),
        }
    }
}

impl Timeline {
    /// `pace` is that of all threads together.
    pub fn new(interval_seconds: f64, threads: usize, progress: bool, pace: Pace) -> Self {
        let interval_ns = (interval_seconds * 1e9) as u64;
        Self { interval_ns, threads, progress, pace, rows: Mutex::default() }
    }

    /// A thread's part of interval `index` is complete; it is emptied for the next one.
    pub fn hand_in(&self, index: u64, part: &mut Part) {
        let empty = Part::new(part.workers.len());
        let part = std::mem::replace(part, empty);
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, sum) =
            rows.open.entry(index).or_insert_with(|| (0, Part::new(part.workers.len())));
        sum.join(&part);
        *count += 1;
        if *count == self.threads {
            let row = sum.row(index, self.interval_ns, self.pace);
            rows.open.remove(&index);
            if self.progress {
                eprintln!("{}", row.line());
            }
            rows.done.push(row);
        }
    }

    pub fn rows(self) -> Vec<Row> {
        self.rows.into_inner().unwrap_or_else(PoisonError::into_inner).done
    }
}

impl Row {
    fn line(&self) -> String {
        let hits =
            self.hit_ratio.map_or(String::new(), |ratio| format!("  {:.2}% hits", ratio * 100.0));
        let latency = match self.latency_us {
            Some([p50, p99, p999, max]) => {
                let [p50, p99, p999, max] = [p50, p99, p999, max].map(|us| Unit::Micros.shown(us));
                format!("  p50 {p50}  p99 {p99}  p99.9 {p999}  longest {max}")
            }
            None => "  no reply".into(),
        };
        format!(
            "{:>6.1} s  {:>9.0} requests/s{hits}{latency}",
            self.second, self.requests_per_second
        )
    }

    /// With as many workers as the table has; fewer leave the last columns empty.
    pub fn csv(&self, workers: usize) -> String {
        let (requests, keys) = (self.requests_per_second, self.keys_per_second);
        let mut out = format!("{:.3},{requests:.1},{keys:.1},", self.second);
        out += &self.hit_ratio.map_or(String::new(), |ratio| format!("{ratio:.4}"));
        match self.latency_us {
            Some(latency) => latency.iter().for_each(|us| out += &format!(",{us:.1}")),
            None => out += ",,,,",
        }
        for figure in [self.offered_per_second, self.lag_p99_us] {
            out += &figure.map_or(",".into(), |figure| format!(",{figure:.1}"));
        }
        for worker in 0..workers {
            let rate = self.workers_per_second.get(worker);
            out += &rate.map_or(",".into(), |rate| format!(",{rate:.1}"));
        }
        out
    }
}

/// The columns of [`Row::csv`].
pub fn columns(workers: usize) -> String {
    let mut out = String::from(
        "second,requests_per_second,keys_per_second,hit_ratio,p50_us,p99_us,p999_us,max_us,\
         offered_per_second,lag_p99_us",
    );
    (0..workers).for_each(|worker| out += &format!(",worker_{worker}"));
    out
}

/// How many workers the rows tell apart: none where clients do not know them.
pub fn workers(rows: &[Row]) -> usize {
    let workers = rows.first().map_or(0, |row| row.workers_per_second.len());
    if workers > 1 { workers } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_row_is_the_sum_of_all_threads_and_waits_for_the_last() {
        let pace = Pace::Ramp { from: 100.0, to: 900.0, over: Duration::from_secs(4) };
        let timeline = Timeline::new(0.5, 2, false, pace);
        let mut parts = [Part::new(2), Part::new(2)];
        for (worker, part) in parts.iter_mut().enumerate() {
            (1..=100).for_each(|us| part.answered(worker, us * 1_000 * (1 + worker as u64), 1));
            (0..100).for_each(|_| part.late(300_000));
            part.counts = Counts { gets: 80, hits: 60, sets: 20, ..part.counts };
        }
        let [first, second] = &mut parts;
        timeline.hand_in(0, first);
        timeline.hand_in(1, first);
        timeline.hand_in(0, second);
        let rows = timeline.rows();
        assert_eq!(rows.len(), 1, "the second interval lacks a thread");
        let row = &rows[0];
        assert_eq!((row.second, row.requests_per_second, row.hit_ratio), (0.5, 400.0, Some(0.75)));
        assert_eq!(row.workers_per_second, [200.0, 200.0]);
        let longest = row.latency_us.unwrap()[3];
        assert!((longest / 200.0 - 1.0).abs() < 0.01, "{longest}");
        assert!(columns(workers(&rows)).ends_with(",lag_p99_us,worker_0,worker_1"));
        let line = row.csv(3);
        assert!(line.starts_with("0.500,400.0,400.0,0.7500,"), "{line}");
        // Offered in the middle of the first half second, and late by 300 µs within the histogram's two digits.
        assert!(line.ends_with(",150.0,301.1,200.0,200.0,"), "{line}");
    }
}
