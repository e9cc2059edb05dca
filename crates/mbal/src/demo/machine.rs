//! What other programs take of the machine, while a demonstration runs.

use std::fs;

/// In the kernel's ticks, since the machine began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuTimes {
    all: u64,
    busy: u64,
    /// This process, and those of its children that have ended.
    own: u64,
}

impl CpuTimes {
    /// Nothing where the kernel does not tell.
    pub fn now() -> Option<CpuTimes> {
        let read = |path: &str| fs::read_to_string(path).ok();
        CpuTimes::of(&read("/proc/stat")?, &read("/proc/self/stat")?)
    }

    fn of(machine: &str, process: &str) -> Option<CpuTimes> {
        // user nice system idle iowait irq softirq steal; guests are in user.
        let line = machine.lines().next()?.strip_prefix("cpu ")?;
        let ticks = line.split_whitespace().take(8).map(|ticks| ticks.parse::<u64>().ok());
        let ticks: Vec<u64> = ticks.collect::<Option<_>>()?;
        let [_, _, _, idle, iowait, ..] = ticks[..] else { return None };
        let all = ticks.iter().sum::<u64>();
        // The name, in brackets, may have blanks. Behind it utime, stime, cutime and cstime are the 12th to the 15th.
        let own = process.rsplit_once(") ")?.1.split(' ').skip(11).take(4);
        let own = own.map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()?;
        Some(CpuTimes { all, busy: all - idle - iowait, own })
    }

    /// The part of all cores' time that others had until then.
    pub fn others_until(self, then: CpuTimes) -> Option<f64> {
        let all = then.all.checked_sub(self.all).filter(|all| *all > 0)?;
        let busy = then.busy.saturating_sub(self.busy);
        let own = then.own.saturating_sub(self.own);
        Some(busy.saturating_sub(own) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_busy_and_not_its_own_is_others() {
        let process = |own: [u64; 4]| {
            let [user, system, children, of_kernel] = own;
            format!("7 (a ) b) S 1 7 7 0 -1 0 0 0 0 0 {user} {system} {children} {of_kernel} 20 0")
        };
        let before =
            CpuTimes::of("cpu  100 10 50 1000 40 5 5 0 7 0\ncpu0 1", &process([1, 1, 0, 0]));
        let before = before.expect("it can be read");
        assert_eq!(before, CpuTimes { all: 1210, busy: 170, own: 2 });
        let after = CpuTimes::of("cpu  180 10 90 1040 40 5 5 40 0 0", &process([11, 11, 20, 20]));
        let after = after.expect("it can be read");
        // 160 of 200 were busy, 60 of them by itself.
        assert_eq!(before.others_until(after), Some(0.5));
        assert_eq!(before.others_until(before), None);
        assert_eq!(CpuTimes::of("intr 5", &process([0; 4])), None);
    }

    #[test]
    fn this_machine_tells() {
        assert!(CpuTimes::now().is_some());
    }
}
