//! How many servers are wanted, from a rate and a miss-ratio curve.

use crate::forecast::Forecast;

/// The hit ratio that the database needs (ElMem, ICDCS 2018, §III.B, equation 1): with `rate` requests
/// per second and a database that bears `rate_db`, 1 − r_DB / r, or 0 when it bears them all.
pub fn hit_ratio_min(rate: f64, rate_db: f64) -> f64 {
    if rate <= rate_db { 0.0 } else { 1.0 - rate_db / rate }
}

/// What an autoscaler reads once a minute.
#[derive(Clone, Debug)]
pub struct Demand<'a> {
    /// Minutes since some start; only differences and whole days matter.
    pub minute: usize,
    /// Requests per second of the last minute.
    pub rate: f64,
    /// Of the recent past.
    pub forecast: &'a Forecast,
    pub servers: usize,
}

/// What it wants, and what it expects of that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    pub servers: usize,
    /// The hit ratio that is forecast for so many servers.
    pub hit_ratio_expected: f64,
}

/// When and how much to scale: the pluggable part of ElMem (ICDCS 2018, §III.B).
pub trait Autoscaler {
    /// Called once a minute, in order.
    fn decide(&mut self, demand: &Demand) -> Wish;

    /// From now on; what it has learned stays.
    fn reconfigure(&mut self, config: ScalingConfig);
}

#[derive(Clone, Copy, Debug)]
pub struct ScalingConfig {
    /// What the database bears, requests per second.
    pub rate_db: f64,
    /// Memory for items on one server.
    pub server_bytes: u64,
    pub servers_least: usize,
    pub servers_most: usize,
    /// Memory is planned for so many times the rate that is expected: a cache fills through
    /// misses, so memory that is added when a spike is seen comes too late for it.
    pub headroom: f64,
    /// Scaling in waits until fewer servers would have done for so many minutes on end.
    pub patience_minutes: usize,
}

impl ScalingConfig {
    /// The fewest servers at which the hit ratio is expected that `rate` needs. Where no size has it, as many as help, and no fewer than
    /// there are: the database has too much to do, and a curve that knows only the last minute promises too little of any size.
    fn servers_for(&self, rate: f64, demand: &Demand) -> usize {
        let forecast = demand.forecast;
        let (wanted, most) =
            (hit_ratio_min(rate * self.headroom, self.rate_db), forecast.hit_ratio_most());
        let bytes = forecast.bytes_for(wanted.min(0.995 * most)).unwrap_or(0);
        let least = if most < wanted { demand.servers } else { 0 };
        let servers = (bytes.div_ceil(self.server_bytes) as usize).max(least);
        servers.clamp(self.servers_least, self.servers_most)
    }
}

/// Out at once, in only after patience: the most servers wanted within the last minutes.
#[derive(Clone, Debug)]
struct Hysteresis {
    recent: std::collections::VecDeque<usize>,
    patience_minutes: usize,
}

impl Hysteresis {
    fn new(patience_minutes: usize) -> Hysteresis {
        Hysteresis { recent: std::collections::VecDeque::new(), patience_minutes }
    }

    fn settle(&mut self, wanted: usize) -> usize {
        if self.recent.len() == self.patience_minutes.max(1) {
            self.recent.pop_front();
        }
        self.recent.push_back(wanted);
        self.recent.iter().copied().max().expect("one was pushed")
    }
}

/// ElMem's policy: what the last minute's rate needs, with hysteresis.
#[derive(Clone, Debug)]
pub struct Reactive {
    config: ScalingConfig,
    hysteresis: Hysteresis,
}

impl Reactive {
    pub fn new(config: ScalingConfig) -> Reactive {
        Reactive { config, hysteresis: Hysteresis::new(config.patience_minutes) }
    }
}

impl Autoscaler for Reactive {
    fn decide(&mut self, demand: &Demand) -> Wish {
        let wanted = self.config.servers_for(demand.rate, demand);
        wish(self.hysteresis.settle(wanted), &self.config, demand.forecast)
    }

    fn reconfigure(&mut self, config: ScalingConfig) {
        self.config = config;
    }
}

/// As [`Reactive`], for the larger of the rate now and the rate that is foreseen.
///
/// Foreseen is the rate `lead_minutes` ahead one day ago, scaled by how this quarter of an hour
/// compares with the same one then; a median, so that yesterday's spike is not expected again.
#[derive(Clone, Debug)]
pub struct Predictive {
    config: ScalingConfig,
    hysteresis: Hysteresis,
    lead_minutes: usize,
    /// Rates by minute of the day, of the day that ends now.
    day: Vec<f64>,
    recent_ratios: std::collections::VecDeque<f64>,
}

const MINUTES_PER_DAY: usize = 1_440;
const COMPARED_MINUTES: usize = 15;

impl Predictive {
    pub fn new(config: ScalingConfig, lead_minutes: usize) -> Predictive {
        assert!(lead_minutes + COMPARED_MINUTES < MINUTES_PER_DAY);
        Predictive {
            config,
            hysteresis: Hysteresis::new(config.patience_minutes),
            lead_minutes,
            day: vec![0.0; MINUTES_PER_DAY],
            recent_ratios: std::collections::VecDeque::new(),
        }
    }

    fn foresee(&mut self, minute: usize, rate: f64) -> f64 {
        let now = minute % MINUTES_PER_DAY;
        let yesterday = std::mem::replace(&mut self.day[now], rate);
        if self.recent_ratios.len() == COMPARED_MINUTES {
            self.recent_ratios.pop_front();
        }
        if yesterday > 0.0 {
            self.recent_ratios.push_back(rate / yesterday);
        }
        let from = now + self.lead_minutes - COMPARED_MINUTES / 2 + MINUTES_PER_DAY;
        let ahead = (from..from + COMPARED_MINUTES).map(|at| self.day[at % MINUTES_PER_DAY]);
        median(ahead) * median(self.recent_ratios.iter().copied())
    }
}

impl Autoscaler for Predictive {
    fn decide(&mut self, demand: &Demand) -> Wish {
        let rate = self.foresee(demand.minute, demand.rate).max(demand.rate);
        let wanted = self.config.servers_for(rate, demand);
        wish(self.hysteresis.settle(wanted), &self.config, demand.forecast)
    }

    fn reconfigure(&mut self, config: ScalingConfig) {
        self.config = config;
    }
}

fn wish(servers: usize, config: &ScalingConfig, forecast: &Forecast) -> Wish {
    let bytes = servers as u64 * config.server_bytes;
    Wish { servers, hit_ratio_expected: forecast.hit_ratio(bytes) }
}

/// 0 of nothing.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mbal_sketch::{StackDistances, mix};

    // A loop over 1,000 items of 100 bytes, every tenth request over 100 of them only.
    fn forecast() -> Forecast {
        let mut distances = StackDistances::new(2_048);
        for i in 0..50_000_u64 {
            distances.observe(mix(if i % 10 == 0 { i / 10 % 1_000 } else { i % 100 }), 100);
        }
        Forecast::of(distances.by_bytes())
    }

    fn config() -> ScalingConfig {
        ScalingConfig {
            rate_db: 100.0,
            server_bytes: 10_000,
            servers_least: 1,
            servers_most: 20,
            headroom: 1.0,
            patience_minutes: 3,
        }
    }

    fn decide(scaler: &mut dyn Autoscaler, forecast: &Forecast, minute: usize, rate: f64) -> usize {
        scaler.decide(&Demand { minute, rate, forecast, servers: 1 }).servers
    }

    #[test]
    fn the_database_bears_what_misses() {
        assert_eq!(hit_ratio_min(100.0, 100.0), 0.0);
        assert_eq!(hit_ratio_min(0.0, 100.0), 0.0);
        assert_eq!(hit_ratio_min(400.0, 100.0), 0.75);
    }

    #[test]
    fn scales_out_at_once_and_in_after_patience() {
        let (forecast, mut scaler) = (forecast(), Reactive::new(config()));
        let servers: Vec<usize> = [200.0, 5_000.0, 200.0, 200.0, 200.0, 200.0]
            .into_iter()
            .enumerate()
            .map(|(minute, rate)| decide(&mut scaler, &forecast, minute, rate))
            .collect();
        let (low, high) = (servers[0], servers[1]);
        assert!(low < high, "{servers:?}");
        assert_eq!(servers, [low, high, high, high, low, low]);
    }

    #[test]
    fn expects_what_the_curve_promises() {
        let forecast = forecast();
        let wish = Reactive::new(config()).decide(&Demand {
            minute: 0,
            rate: 1_000.0,
            forecast: &forecast,
            servers: 1,
        });
        assert!(wish.hit_ratio_expected >= 0.9, "{wish:?}");
        assert!(forecast.hit_ratio((wish.servers as u64 - 1) * 10_000) < 0.9, "{wish:?}");
    }

    #[test]
    fn a_hit_ratio_that_no_memory_gives_asks_for_what_helps() {
        let forecast = forecast();
        let servers = decide(&mut Reactive::new(config()), &forecast, 0, 1e9);
        assert!((2..20).contains(&servers), "{servers}");
    }

    #[test]
    fn where_no_size_is_enough_no_server_is_to_leave() {
        let mut distances = StackDistances::new(2_048);
        // Read once each: nothing is known of any of them.
        (0..500_u64).for_each(|i| distances.observe(mix(i), 100));
        let forecast = Forecast::of(distances.by_bytes());
        let of = |rate| {
            let demand = Demand { minute: 0, rate, forecast: &forecast, servers: 4 };
            let policies: [Box<dyn Autoscaler>; 2] =
                [Box::new(Reactive::new(config())), Box::new(Predictive::new(config(), 30))];
            policies.map(|mut policy| policy.decide(&demand).servers)
        };
        assert_eq!(of(1_000.0), [4, 4]);
        assert_eq!(of(90.0), [1, 1], "a database that bears all needs no cache");
    }

    #[test]
    fn prediction_scales_before_the_day_repeats_and_forgets_a_spike() {
        let forecast = forecast();
        let mut predictive = Predictive::new(config(), 30);
        let rate = |minute: usize| match minute % MINUTES_PER_DAY {
            600..900 => 5_000.0,
            _ if minute == 300 => 5_000.0,
            _ => 150.0,
        };
        let servers: Vec<usize> = (0..2 * MINUTES_PER_DAY)
            .map(|minute| decide(&mut predictive, &forecast, minute, rate(minute)))
            .collect();
        assert!(servers[590] < servers[610], "nothing is foreseen on the first day");
        assert_eq!(servers[MINUTES_PER_DAY + 590], servers[610]);
        assert_eq!(servers[MINUTES_PER_DAY + 275], servers[0], "one minute is no pattern");
    }
}
