//! One measured run: the generator's threads, the server's CPU time over the window, and the figures.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::cpu;
use crate::generator::drive;
use crate::load::{Edge, Load};
use crate::tally::Tally;
use crate::timeline::{Row, Timeline};
use crate::unit::{Unit, quantile_us};
use crate::{relief, servers};

/// What a run came to, with the CPU time that it cost both sides.
pub struct Round {
    pub tally: Tally,
    pub server_cpu_ns: Option<u64>,
    pub client_cpu_ns: u64,
    /// The run over time, where it was asked for.
    pub rows: Vec<Row>,
    /// From the first thread's start of measuring to the last one's end.
    pub window: (Instant, Instant),
    /// Seconds between two changes of ranks.
    pub shift: Option<f64>,
    /// Gets and sets a second of each server, where they were asked for.
    pub servers: Vec<f64>,
}

/// A figure of a round: its name in files, its name for people, its unit, its decimals in files, and how it is had.
pub struct Figure {
    pub name: &'static str,
    pub title: &'static str,
    pub unit: Unit,
    pub decimals: usize,
    pub of: fn(&Round) -> Option<f64>,
}

/// All that is reported, in this order, everywhere.
pub const FIGURES: [Figure; 24] = [
    figure("server_cpu_us_per_key", "server CPU per key", Unit::Micros, 3, |round| {
        Some(round.server_cpu_ns? as f64 / 1e3 / round.tally.counts.keys() as f64)
    }),
    figure("keys_per_second", "keys per second", Unit::Count, 0, |round| {
        Some(round.tally.counts.keys() as f64 / round.tally.seconds)
    }),
    figure("requests_per_second", "requests per second", Unit::Count, 0, |round| {
        Some(round.tally.counts.requests as f64 / round.tally.seconds)
    }),
    figure("p50_us", "p50", Unit::Micros, 1, |round| quantile_us(&round.tally.latency, 0.5)),
    figure("p90_us", "p90", Unit::Micros, 1, |round| quantile_us(&round.tally.latency, 0.9)),
    figure("p95_us", "p95", Unit::Micros, 1, |round| quantile_us(&round.tally.latency, 0.95)),
    figure("p99_us", "p99", Unit::Micros, 1, |round| quantile_us(&round.tally.latency, 0.99)),
    figure("p999_us", "p99.9", Unit::Micros, 1, |round| quantile_us(&round.tally.latency, 0.999)),
    figure("max_us", "longest", Unit::Micros, 1, |round| quantile_us(&round.tally.latency, 1.0)),
    figure("writes_p90_us", "p90 of writes", Unit::Micros, 1, |round| {
        quantile_us(&round.tally.writes, 0.9)
    }),
    figure("writes_p99_us", "p99 of writes", Unit::Micros, 1, |round| {
        quantile_us(&round.tally.writes, 0.99)
    }),
    figure("hit_ratio", "hit ratio", Unit::Share, 4, |round| round.tally.counts.hit_ratio()),
    figure("from_copies", "gets answered by copies", Unit::Share, 4, |round| {
        let Tally { from_copies, counts, .. } = &round.tally;
        (*from_copies > 0).then(|| *from_copies as f64 / counts.gets as f64)
    }),
    figure("max_over_mean", "busiest server, of the average", Unit::Ratio, 3, |round| {
        servers::max_over_mean(&round.servers)
    }),
    figure("relief_seconds", "relief after a change of ranks", Unit::Seconds, 2, |round| {
        relief::seconds(&round.rows, round.shift?).map(|spread| spread.median)
    }),
    figure("relief_seconds_worst", "the longest relief", Unit::Seconds, 2, |round| {
        relief::seconds(&round.rows, round.shift?).map(|spread| spread.max)
    }),
    figure("client_cpu_us_per_key", "generator CPU per key", Unit::Micros, 3, |round| {
        Some(round.client_cpu_ns as f64 / 1e3 / round.tally.counts.keys() as f64)
    }),
    figure("lag_p99_us", "generator late by, p99", Unit::Micros, 1, |round| {
        quantile_us(&round.tally.lag, 0.99)
    }),
    figure("unsent", "due but never sent", Unit::Fault, 0, |round| Some(round.tally.unsent as f64)),
    figure("lost", "lost on UDP", Unit::Fault, 0, |round| Some(round.tally.lost as f64)),
    figure("wrong", "wrong replies", Unit::Fault, 0, |round| Some(round.tally.wrong as f64)),
    figure("seconds", "seconds measured", Unit::Seconds, 2, |round| Some(round.tally.seconds)),
    figure("keys", "keys answered", Unit::Count, 0, |round| Some(round.tally.counts.keys() as f64)),
    figure("keys_outside", "keys answered before and after the window", Unit::Fault, 0, |round| {
        Some(round.tally.outside.keys() as f64)
    }),
];

const fn figure(
    name: &'static str,
    title: &'static str,
    unit: Unit,
    decimals: usize,
    of: fn(&Round) -> Option<f64>,
) -> Figure {
    Figure { name, title, unit, decimals, of }
}

/// CPU readings at the first start and the last end of any thread's window.
#[derive(Default)]
struct Meter<'a> {
    server_pids: &'a [u32],
    start_ns: Option<(u64, u64)>,
    end_ns: (u64, u64),
    failure: Option<String>,
    window: Option<(Instant, Instant)>,
}

impl Meter<'_> {
    fn read(&mut self, edge: Edge) {
        let now = Instant::now();
        self.window = Some((self.window.map_or(now, |(start, _)| start), now));
        if edge == Edge::Start && self.start_ns.is_some() {
            return;
        }
        let server: io::Result<u64> =
            self.server_pids.iter().map(|pid| cpu::process_ns(*pid)).sum();
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
    server_pids: &[u32],
    stop: &AtomicBool,
) -> Result<Round, String> {
    let shift = loads.first().and_then(|load| load.shift);
    let meter = Mutex::new(Meter { server_pids, ..Meter::default() });
    let edge = |edge| meter.lock().unwrap_or_else(PoisonError::into_inner).read(edge);
    let over_time = timeline.as_ref();
    let tallies: Vec<Result<Tally, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = loads
            .into_iter()
            .map(|load| scope.spawn(|| drive(load, stop, over_time, edge)))
            .collect();
        threads.into_iter().map(|t| t.join().expect("a generator thread panicked")).collect()
    });
    let (shift, mut tally) = (shift.map(|shift| shift.as_secs_f64()), Tally::default());
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
        server_cpu_ns: (!server_pids.is_empty()).then(|| meter.end_ns.0.saturating_sub(start.0)),
        client_cpu_ns: meter.end_ns.1.saturating_sub(start.1),
        rows: timeline.map_or(Vec::new(), Timeline::rows),
        window: meter.window.expect("the window has begun"),
        shift,
        servers: Vec::new(),
    })
}
