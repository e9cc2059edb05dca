//! What a control group lets the process use of the CPU, and what goes by it.
//!
//! Who has used its quota up stands still until the period is over: with 1 ms in 20 ms, work of 5 ms at one go keeps every client waiting for 80 ms. So
//! under a small quota memory is not touched by huge pages, and slices of moves come one by one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mbal_model::Instant;

use crate::time::Now;

/// The first use of a huge page is the zeroing of 2 MiB: 0.2 ms where the machine is one, 5 ms where its memory is another machine's.
const HUGE_PAGE: Duration = Duration::from_millis(5);
/// A process that may use so many times that in a period hardly feels it.
const HUGE_PAGES_BORNE: u32 = 4;
/// What a slice of a move costs a server, on either side, with what threads say to each other of it: 0.4 ms and some.
const SLICE: Duration = Duration::from_micros(500);
/// Moves get one part in so many of the quota. A period in which a slice comes may be one in which the quota ends before clients are served: these
/// periods are so few that one request in twenty does not meet one, though it asks ten servers.
const PARTS: u32 = 8;
/// Likewise of a server that is to be empty by a deadline: clients wait rather than miss.
const PARTS_IN_A_HURRY: u32 = 2;
/// There are ten slices a second in any case, as between strained workers.
const BETWEEN_SLICES_MAX: Duration = Duration::from_millis(100);

/// So many microseconds of CPU time in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    quota_micros: u32,
    period_micros: u32,
}

impl Quota {
    /// `None` if it is none that the kernel takes.
    pub fn of(quota_micros: u64, period_micros: u64) -> Option<Quota> {
        let (quota_micros, period_micros) =
            (quota_micros.try_into().ok()?, period_micros.try_into().ok()?);
        (quota_micros > 0 && period_micros > 0).then_some(Quota { quota_micros, period_micros })
    }

    /// CPU time, and the period in which it may be used.
    pub fn micros(self) -> (u64, u64) {
        (self.quota_micros.into(), self.period_micros.into())
    }

    /// The tighter of two.
    #[must_use]
    pub fn min(self, other: Quota) -> Quota {
        let share =
            |one: Quota, by: Quota| u64::from(one.quota_micros) * u64::from(by.period_micros);
        if share(other, self) < share(self, other) { other } else { self }
    }

    /// Of CPU time in as much time.
    pub(crate) fn cores(self) -> f64 {
        f64::from(self.quota_micros) / f64::from(self.period_micros)
    }

    /// Whether the first use of a huge page is no more than a small part of it.
    fn bears_huge_pages(self) -> bool {
        Duration::from_micros(self.quota_micros.into()) >= HUGE_PAGE * HUGE_PAGES_BORNE
    }

    fn between_slices(self, hurries: bool) -> Duration {
        let parts = if hurries { PARTS_IN_A_HURRY } else { PARTS };
        (SLICE * parts * self.period_micros / self.quota_micros).min(BETWEEN_SLICES_MAX)
    }
}

/// The quota of this process, if it has one, and when the next slice may come.
#[derive(Default)]
pub(crate) struct CpuBudget {
    /// Both numbers of a [`Quota`]; 0 is none.
    quota: AtomicU64,
    /// An [`Instant`], in nanoseconds.
    next_slice_ns: AtomicU64,
    /// The server is to be empty by a deadline.
    hurries: AtomicBool,
}

impl CpuBudget {
    fn quota(&self) -> Option<Quota> {
        let both = self.quota.load(Relaxed);
        Quota::of(both >> 32, both & u64::from(u32::MAX))
    }

    pub fn hurry(&self) {
        self.hurries.store(true, Relaxed);
    }

    pub fn hurries(&self) -> bool {
        self.hurries.load(Relaxed)
    }

    /// Moves are slowed down much for its sake.
    pub fn is_small(&self) -> bool {
        let is_small = |quota: Quota| !quota.bears_huge_pages();
        self.quota().is_some_and(is_small) && !self.hurries()
    }

    /// Whether huge pages may be touched from now on, if that may have changed.
    pub fn set(&self, quota: Option<Quota>) -> Option<bool> {
        let both = quota.map_or(0, |quota| {
            u64::from(quota.quota_micros) << 32 | u64::from(quota.period_micros)
        });
        let is_other = self.quota.swap(both, Relaxed) != both;
        is_other.then(|| quota.is_none_or(Quota::bears_huge_pages))
    }

    /// A slice is frozen here, or called for from here, now or from the moment on that is the error.
    pub fn begin_slice(&self, now: Now) -> Result<(), Instant> {
        let Some(quota) = self.quota() else { return Ok(()) };
        let (now, next_ns) = (now.instant(), self.next_slice_ns.load(Relaxed));
        let next = Instant::from_nanos(next_ns);
        // A clock that was moved back: what is waited for is no longer than it can be.
        if now < next && next <= now + BETWEEN_SLICES_MAX {
            return Err(next);
        }
        let after = now + quota.between_slices(self.hurries());
        match self.next_slice_ns.compare_exchange(next_ns, after.as_nanos(), Relaxed, Relaxed) {
            Ok(_) => Ok(()),
            // By another worker, at this moment.
            Err(next_ns) => Err(Instant::from_nanos(next_ns).max(now + Duration::from_micros(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(quota: u64, period: u64) -> Quota {
        Quota::of(quota, period).expect("it is one")
    }

    #[test]
    fn huge_pages_are_for_those_who_may_use_several_at_one_go() {
        let bears = [(1_000, 20_000), (10_000, 100_000), (20_000, 100_000), (400_000, 100_000)]
            .map(|(used, period)| quota(used, period).bears_huge_pages());
        assert_eq!(bears, [false, false, true, true]);
    }

    #[test]
    fn an_eighth_of_a_quota_is_for_slices_or_half_in_a_hurry_and_there_are_ten_a_second_in_any_case()
     {
        let quotas = [(1_000, 20_000), (10_000, 100_000), (100_000, 100_000), (1_000, 1_000_000)];
        let between = |hurries| {
            quotas.map(|(used, period)| quota(used, period).between_slices(hurries).as_micros())
        };
        assert_eq!(between(false), [80_000, 40_000, 4_000, 100_000]);
        assert_eq!(between(true), [20_000, 10_000, 1_000, 100_000]);
    }

    #[test]
    fn the_tighter_quota_is_the_smaller_part_of_its_period() {
        let (tenth, fifth) = (quota(10_000, 100_000), quota(2_000, 10_000));
        assert_eq!((tenth.min(fifth), fifth.min(tenth)), (tenth, tenth));
        assert_eq!(Quota::of(0, 100_000), None);
    }

    #[test]
    fn one_slice_at_a_time_and_the_next_when_its_time_has_come() {
        let at = |micros| Now { second: 2, unix: 0, micros };
        let cpu_budget = CpuBudget::default();
        assert_eq!(
            [0; 3].map(|micros| cpu_budget.begin_slice(at(micros))),
            [Ok(()); 3],
            "no quota"
        );
        cpu_budget.quota.store(1_000 << 32 | 20_000, Relaxed);
        assert_eq!(cpu_budget.begin_slice(at(5)), Ok(()));
        assert_eq!(cpu_budget.begin_slice(at(6)), Err(Instant::from_micros(2_080_005)));
        assert_eq!(cpu_budget.begin_slice(at(80_005)), Ok(()));
        cpu_budget.hurry();
        assert_eq!(cpu_budget.begin_slice(at(160_005)), Ok(()));
        assert_eq!(cpu_budget.begin_slice(at(160_006)), Err(Instant::from_micros(2_180_005)));
    }
}
