//! A server's clock: it shows another time than others' do, and runs at another pace.

use mbal_model::Instant;
use mbal_worker::Now;

use super::history::{Micros, SECOND};

/// Wall clock at the start of a run.
const UNIX: u64 = 1_700_000_000;
const MILLION: i64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    first_second: u32,
    /// It gains so many microseconds a second.
    drift: i64,
}

impl Clock {
    pub fn new(first_second: u32, drift: i64) -> Clock {
        Clock { first_second, drift }
    }

    /// Since the run began, by this clock.
    fn elapsed(&self, now: Micros) -> Micros {
        (now as i64 + now as i64 * self.drift / MILLION) as Micros
    }

    /// By the clock of leases, which goes on at the same pace.
    pub fn lease_now(&self, now: Micros) -> Instant {
        Instant::from_micros(u64::from(self.first_second) * SECOND + self.elapsed(now))
    }

    pub fn second(&self, now: Micros) -> u32 {
        self.first_second + (self.elapsed(now) / SECOND) as u32
    }

    pub fn at(&self, now: Micros) -> Now {
        let elapsed = self.elapsed(now);
        let (second, micros) = (elapsed / SECOND, elapsed % SECOND);
        let unix = UNIX + second;
        Now { second: self.first_second + second as u32, unix, micros: micros as u32 }
    }

    /// The first moment of the run at which this clock shows `instant`.
    pub fn when(&self, instant: Instant) -> Micros {
        let micros = instant.as_nanos().div_ceil(1_000);
        let elapsed = micros.saturating_sub(u64::from(self.first_second) * SECOND);
        let mut now = (elapsed as i64 * MILLION / (MILLION + self.drift)) as Micros;
        while self.elapsed(now) < elapsed {
            now += 1;
        }
        now
    }

    /// How far it may be from the run's time, until `now`.
    pub fn apart(&self, now: Micros) -> Micros {
        self.elapsed(now).abs_diff(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_comes_when_the_clock_shows_it_and_not_before() {
        for drift in [-20_000, -7, 0, 3, 20_000] {
            let clock = Clock::new(2, drift);
            for micros in [2_000_000, 2_000_001, 2_999_999, 50_123_457] {
                let instant = Instant::from_micros(micros);
                let now = clock.when(instant);
                assert!(clock.at(now).instant() >= instant, "drift {drift}");
                assert!(now == 0 || clock.at(now - 1).instant() < instant, "drift {drift}");
            }
        }
    }
}
