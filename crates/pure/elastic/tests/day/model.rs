//! A cluster for some days, second by second, that a [`Resizer`] sizes: a cache is how many bytes it has filled, and hits as often
//! as a trace's exact curve says. What is added fills by misses; what leaves takes the coldest along.

use std::collections::VecDeque;

use mbal_elastic::{Aims, Forecast, Measured, Policy, Resizer, Seen};
use mbal_sketch::{Curve, Random, StackDistances};

use crate::demand::{self, MINUTES_PER_DAY};

#[allow(dead_code)]
#[path = "../../../sketch/tests/mattson/mod.rs"]
mod mattson;

/// The first one teaches, and is not judged.
const DAYS: usize = 2;
/// Servers that the busiest minute needs, about.
const SERVERS_SCALE: u64 = 12;
/// Of all that can hit, what has to hit in the busiest minute.
const NEEDED_PART: f64 = 0.95;
/// At its mean rate a trace takes so long: what is added fills in a part of that.
const TRACE_SECONDS: f64 = 1_800.0;
pub const SERVERS_MOST: usize = 40;
const SERVERS_LEAST: usize = 1;
/// Until a server that is started serves; and until one that leaves has given all away.
const CHANGE_SECONDS: usize = 120;
const REST_MINUTES: u64 = 10;
/// As in a coordinator: a hit ratio is measured while the servers are the same for so long.
const STEADY_MINUTES: usize = 10;
/// In which, for a minute, all servers are said to be hot.
const HOT_MINUTES: [usize; 3] = [200, 500, 1_300];
const SAMPLES_MOST: usize = 8_192;

/// What a trace tells.
pub struct Load {
    exact: mattson::ExactCurve,
    sampled: Curve,
    requests: usize,
    mean_bytes: f64,
}

impl Load {
    pub fn of(requests: &[(u64, u32)]) -> Load {
        let mut distances = StackDistances::new(SAMPLES_MOST);
        requests.iter().for_each(|&(key, bytes)| distances.observe(key, bytes));
        let bytes: u64 = requests.iter().map(|one| u64::from(one.1)).sum();
        let (_, exact) = mattson::exact(requests);
        let mean_bytes = bytes as f64 / requests.len() as f64;
        Load { exact, sampled: distances.by_bytes(), requests: requests.len(), mean_bytes }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Day {
    pub held_share: f64,
    /// Seconds times servers, as a mean.
    pub servers_mean: f64,
    pub changes: usize,
    /// Servers that left within [`REST_MINUTES`] after some had come.
    pub flaps: usize,
    /// Of the hit ratios that were forecast for changes.
    pub error_mean: f64,
    pub servers: Vec<usize>,
}

/// A fixed number of servers, or a policy.
#[derive(Clone, Copy, Debug)]
pub enum Sized {
    Fixed(usize),
    By(Policy),
}

pub fn play(load: &Load, seed: u64, sized: Sized) -> Day {
    let scale = load.requests as f64 / TRACE_SECONDS / demand::RATE_MEAN;
    let rates: Vec<f64> = demand::rates(DAYS, seed).iter().map(|rate| scale * rate).collect();
    let busiest = rates.iter().copied().fold(0.0, f64::max);
    let needed = NEEDED_PART * load.sampled.hit_ratio_most();
    let rate_db = busiest * (1.0 - needed);
    let needed_bytes = load.sampled.size_for_hit_ratio(needed).expect("it is reached");
    let server_bytes = (needed_bytes / SERVERS_SCALE).max(1);
    let aims = |policy| Aims {
        policy,
        servers_least: SERVERS_LEAST,
        servers_most: SERVERS_MOST,
        rate_db,
        rules: Vec::new(),
        headroom: 1.25,
        rest_minutes: REST_MINUTES,
    };
    let list = Forecast::of(load.sampled.clone());
    let mut forecast = list.clone();
    // Reads and hits of the last minutes with these servers.
    let mut steady: VecDeque<(f64, f64)> = VecDeque::new();
    let mut servers = match sized {
        Sized::Fixed(servers) => servers,
        Sized::By(_) => SERVERS_SCALE as usize,
    };
    let mut resizer = match sized {
        Sized::Fixed(_) => None,
        Sized::By(policy) => Some(Resizer::new(aims(policy), 0)),
    };
    let mut bits = Random::new(seed + 7);
    let mut filled = servers as f64 * server_bytes as f64;
    let mut under_way: Option<(usize, usize, f64)> = None;
    let (mut day, mut held, mut seconds, mut came) = (Day::default(), 0, 0, None);
    let (mut errors, mut outcomes) = (0.0, 0);
    for (minute, &rate) in rates.iter().enumerate() {
        let mut hits = 0.0;
        for second in 0..60 {
            // Seconds differ by 2% as requests that come at random.
            let rate = rate * (1.0 + 0.02 * (2.0 * bits.unit() - 1.0));
            let ratio = 1.0 - load.exact.miss_ratio(filled as u64);
            hits += ratio;
            let capacity = servers as f64 * server_bytes as f64;
            filled = (filled + rate * (1.0 - ratio) * load.mean_bytes).min(capacity);
            if minute >= MINUTES_PER_DAY {
                seconds += 1;
                held += usize::from(rate * (1.0 - ratio) <= rate_db);
                day.servers_mean += servers as f64;
            }
            if let Some((_, to, expected)) =
                under_way.filter(|&(at, ..)| at <= minute * 60 + second)
            {
                if to < servers && came.is_some_and(|at| (minute as u64) < at + REST_MINUTES) {
                    day.flaps += 1;
                }
                if servers < to {
                    came = Some(minute as u64);
                }
                day.changes += usize::from(minute >= MINUTES_PER_DAY);
                let resizer = resizer.as_mut().expect("only it begins changes");
                resizer.changed(minute as u64, servers, to, expected);
                servers = to;
                filled = filled.min(servers as f64 * server_bytes as f64);
                under_way = None;
                steady.clear();
            }
        }
        day.servers.push(servers);
        let Some(resizer) = &mut resizer else { continue };
        steady.push_back((rate, rate * hits / 60.0));
        if steady.len() > STEADY_MINUTES {
            steady.pop_front();
            let (reads, hits) =
                steady.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let bytes = servers as u64 * server_bytes;
            forecast = list.clone().through(Measured { bytes, hit_ratio: hits / reads });
        }
        let seen = Seen {
            minute: minute as u64,
            rate,
            hit_ratio: hits / 60.0,
            forecast: &forecast,
            servers,
            server_bytes,
            more_wanted: usize::from(HOT_MINUTES.contains(&(minute % MINUTES_PER_DAY))),
            load_mean: 0.1,
        };
        let decision = resizer.decide(&seen);
        if let Some(outcome) = resizer.came_true(&seen) {
            errors += (outcome.expected - outcome.measured).abs();
            outcomes += 1;
        }
        if under_way.is_none() && decision.servers != servers {
            let at = minute * 60 + 59 + CHANGE_SECONDS;
            under_way = Some((at, decision.servers, decision.expected));
        }
    }
    day.held_share = held as f64 / seconds as f64;
    day.servers_mean /= seconds as f64;
    day.error_mean = errors / f64::from(outcomes.max(1));
    day
}

/// The fewest servers that hold the hit ratio as often without being scaled.
pub fn peak(load: &Load, seed: u64, held_share: f64) -> usize {
    let holds = |servers| play(load, seed, Sized::Fixed(servers)).held_share >= held_share;
    let (mut too_few, mut enough) = (0, SERVERS_MOST);
    while enough - too_few > 1 {
        let middle = usize::midpoint(too_few, enough);
        if holds(middle) { enough = middle } else { too_few = middle }
    }
    enough
}
