//! One measured run: the generator's threads, the server's CPU time over the window, and the figures.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use crate::cpu;
use crate::generator::drive;
use crate::load::{Edge, Load};
use crate::tally::Tally;
use crate::timeline::{Row, Timeline};

/// What a run came to, with the CPU time that it cost both sides.
pub struct Round {
    pub tally: Tally,
    pub server_cpu_ns: Option<u64>,
    pub client_cpu_ns: u64,
    /// The run over time, where it was asked for.
    pub rows: Vec<Row>,
}

/// A figure of a round: its name in files, its name for people, its decimals, and how it is had.
pub struct Figure {
    pub name: &'static str,
    pub title: &'static str,
    pub decimals: usize,
    pub of: fn(&Round) -> Option<f64>,
}

/// All that is reported, in this order, everywhere.
pub const FIGURES: [Figure; 16] = [
    figure("server_cpu_us_per_key", "server CPU, µs per key", 3, |round| {
        Some(round.server_cpu_ns? as f64 / 1e3 / round.tally.counts.keys() as f64)
    }),
    figure("keys_per_second", "keys per second", 0, |round| {
        Some(round.tally.counts.keys() as f64 / round.tally.seconds)
    }),
    figure("requests_per_second", "requests per second", 0, |round| {
        Some(round.tally.counts.requests as f64 / round.tally.seconds)
    }),
    figure("p50_us", "p50, µs", 1, |round| quantile_us(round, 0.5)),
    figure("p99_us", "p99, µs", 1, |round| quantile_us(round, 0.99)),
    figure("p999_us", "p99.9, µs", 1, |round| quantile_us(round, 0.999)),
    figure("max_us", "longest, µs", 1, |round| quantile_us(round, 1.0)),
    figure("hit_ratio", "hit ratio", 4, |round| round.tally.counts.hit_ratio()),
    figure("client_cpu_us_per_key", "generator CPU, µs per key", 3, |round| {
        Some(round.client_cpu_ns as f64 / 1e3 / round.tally.counts.keys() as f64)
    }),
    figure("lag_p99_us", "generator late by, p99, µs", 1, |round| {
        let lag = &round.tally.lag;
        (!lag.is_empty()).then(|| lag.value_at_quantile(0.99) as f64 / 1e3)
    }),
    figure("unsent", "due but never sent", 0, |round| Some(round.tally.unsent as f64)),
    figure("lost", "lost on UDP", 0, |round| Some(round.tally.lost as f64)),
    figure("wrong", "wrong replies", 0, |round| Some(round.tally.wrong as f64)),
    figure("seconds", "seconds", 2, |round| Some(round.tally.seconds)),
    figure("keys", "keys answered", 0, |round| Some(round.tally.counts.keys() as f64)),
    figure("keys_outside", "keys answered before and after the window", 0, |round| {
        Some(round.tally.outside.keys() as f64)
    }),
];

const fn figure(
    name: &'static str,
    title: &'static str,
    decimals: usize,
    of: fn(&Round) -> Option<f64>,
) -> Figure {
    Figure { name, title, decimals, of }
}

fn quantile_us(round: &Round, quantile: f64) -> Option<f64> {
    let latency = &round.tally.latency;
    (!latency.is_empty()).then(|| latency.value_at_quantile(quantile) as f64 / 1e3)
}

/// CPU readings at the first start and the last end of any thread's window.
#[derive(Default)]
struct Meter {
    server_pid: Option<u32>,
    start_ns: Option<(u64, u64)>,
    end_ns: (u64, u64),
    failure: Option<String>,
}

impl Meter {
    fn read(&mut self, edge: Edge) {
        if edge == Edge::Start && self.start_ns.is_some() {
            return;
        }
        let server = self.server_pid.map_or(Ok(0), cpu::process_ns);
        let both = server.and_then(|ns| Ok((ns, cpu::process_ns(std::process::id())?)));
        match (both, edge) {
            (Ok(both), Edge::Start) => self.start_ns = Some(both),
            (Ok(both), Edge::End) => self.end_ns = both,
            (Err(error), _) => self.failure = Some(format!("CPU time of the server: {error}")),
        }
    }
}

/// Drives one thread per load, all against one server.
pub fn measure(
    loads: Vec<Load>,
    timeline: Option<Timeline>,
    server_pid: Option<u32>,
    stop: &AtomicBool,
) -> Result<Round, String> {
    let meter = Mutex::new(Meter { server_pid, ..Meter::default() });
    let edge = |edge| meter.lock().unwrap_or_else(PoisonError::into_inner).read(edge);
    let over_time = timeline.as_ref();
    let tallies: Vec<Result<Tally, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = loads
            .into_iter()
            .map(|load| scope.spawn(|| drive(load, stop, over_time, edge)))
            .collect();
        threads.into_iter().map(|t| t.join().expect("a generator thread panicked")).collect()
    });
    let mut tally = Tally::default();
    for share in tallies {
        tally.join(share?);
    }
    let meter = meter.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(failure) = meter.failure {
        return Err(failure);
    }
    let start = meter.start_ns.ok_or("the run ended before its window began")?;
    Ok(Round {
        tally,
        server_cpu_ns: server_pid.map(|_| meter.end_ns.0.saturating_sub(start.0)),
        client_cpu_ns: meter.end_ns.1.saturating_sub(start.1),
        rows: timeline.map_or(Vec::new(), Timeline::rows),
    })
}
