//! The demand that autoscaling is judged by. Written down before any policy was tuned.
//!
//! After ElMem (ICDCS 2018) §II.C (Facebook: 2× from night to day, spikes of 2 to 3×):
//! - days of 1,440 minutes; the rate is a sine, lowest at 4:00, highest at 16:00, 2× the lowest;
//! - each day is up to 5% above or below the others, each minute up to 3%;
//! - one spike a day at a random minute: 3× the rate, after 5 minutes of rising, for 20 minutes,
//!   then 10 minutes of falling;
//! - Zipf 0.9 over 200,000 keys of Facebook's sizes; each minute 50 random pairs of keys swap
//!   their popularity.

use mbal_sketch::Random;

pub const MINUTES_PER_DAY: usize = 1_440;
pub const KEYS: usize = 200_000;
pub const ZIPF_EXPONENT: f64 = 0.9;
pub const SWAPS_PER_MINUTE: usize = 50;
/// Requests per second, averaged over a day without its spike.
pub const RATE_MEAN: f64 = 400.0;
/// What the database bears, requests per second.
pub const RATE_DB: f64 = 120.0;
const SPIKE: f64 = 3.0;
const SPIKE_RISE: f64 = 5.0;
const SPIKE_HOLD: f64 = 20.0;
const SPIKE_FALL: f64 = 10.0;

/// Requests per second in each minute of `days` days.
pub fn rates(days: usize, seed: u64) -> Vec<f64> {
    let mut bits = Random::new(seed);
    let mut rates = Vec::with_capacity(days * MINUTES_PER_DAY);
    for _ in 0..days {
        let level = RATE_MEAN * (1.0 + 0.05 * (2.0 * bits.unit() - 1.0));
        let spike_start = bits.unit() * (MINUTES_PER_DAY as f64 - 40.0);
        for minute in 0..MINUTES_PER_DAY {
            let minute = minute as f64;
            let hour_angle = (minute / MINUTES_PER_DAY as f64 - 4.0 / 24.0) * std::f64::consts::TAU;
            let diurnal = 1.0 - hour_angle.cos() / 3.0;
            let noise = 1.0 + 0.03 * (2.0 * bits.unit() - 1.0);
            rates.push(level * diurnal * noise * spike_factor(minute - spike_start));
        }
    }
    rates
}

fn spike_factor(since: f64) -> f64 {
    let until_end = SPIKE_RISE + SPIKE_HOLD + SPIKE_FALL - since;
    1.0 + (SPIKE - 1.0) * (since / SPIKE_RISE).min(until_end / SPIKE_FALL).clamp(0.0, 1.0)
}
