//! A worker whose part of a core is a quota, as Linux keeps them: at full speed until it is found to have used more than it has been given, then
//! not at all until that is paid back.
//!
//! ```text
//!   given      |slice     |slice     |slice     |slice      once a period of slice / part
//!   runs       ████████████                     ████████    until a tick, or until it has nothing to do
//! ```

use super::super::costs::Quotas;

/// What a worker may use.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    quotas: Quotas,
    /// Below zero what it has used too much.
    left: f64,
    /// So many periods, and ticks, have been seen.
    periods: f64,
    ticks: f64,
}

impl Budget {
    pub fn new(quotas: Quotas) -> Budget {
        Budget { quotas, left: quotas.slice, periods: 0.0, ticks: 0.0 }
    }

    /// It has run so long without a look.
    pub fn used(&mut self, seconds: f64) {
        self.left -= seconds;
    }

    /// `part` of a core is its quota. When it may run, it being looked at now: at once, or later.
    pub fn runs_at(&mut self, now: f64, part: f64) -> f64 {
        self.ticks = (now / self.quotas.tick).floor();
        let period = self.quotas.slice / part;
        let periods = (now / period).floor();
        let given = (periods - self.periods).max(0.0) * self.quotas.slice;
        self.periods = self.periods.max(periods);
        self.left = (self.left + given).min(self.quotas.slice);
        if self.left > 0.0 {
            return now;
        }
        let owed = (-self.left / self.quotas.slice).floor() + 1.0;
        (self.periods + owed) * period
    }

    /// The same of a worker that goes from one request to the next.
    pub fn goes_on_at(&mut self, now: f64, part: f64) -> f64 {
        let is_tick = (now / self.quotas.tick).floor() > self.ticks;
        if is_tick { self.runs_at(now, part) } else { now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Always busy, with requests of so many seconds: the part of the time in which it runs, and the longest that it does so.
    fn run(part: f64, work: f64) -> (f64, f64) {
        let mut budget = Budget::new(Quotas::LEAST);
        let (mut now, mut done, mut longest) = (0.0, 0.0, 0.0f64);
        let mut since = now;
        while now < 10.0 {
            let at = budget.goes_on_at(now, part);
            if at > now {
                (now, since) = (at, at);
                continue;
            }
            (now, done) = (now + work, done + work);
            budget.used(work);
            longest = longest.max(now - since);
        }
        (done / now, longest)
    }

    #[test]
    fn who_is_always_busy_has_its_part_and_has_it_by_ticks() {
        for part in [0.1, 0.25, 0.5] {
            let (ran, longest) = run(part, 10e-6);
            assert!((ran / part - 1.0).abs() < 0.01, "{ran} of {part}");
            assert!((0.0039..0.0082).contains(&longest), "{longest}");
        }
    }

    #[test]
    fn who_sleeps_is_looked_at_when_it_wakes() {
        let mut budget = Budget::new(Quotas::LEAST);
        assert_eq!(budget.runs_at(0.0, 0.1), 0.0);
        budget.used(1.5e-3);
        assert!((budget.runs_at(2e-3, 0.1) - 0.01).abs() < 1e-9);
        budget.used(1e-3);
        assert!((budget.runs_at(0.0101, 0.1) - 0.02).abs() < 1e-9);
    }
}
