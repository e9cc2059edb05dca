//! CPU time by the scheduler's own books, and on which cores whom.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPU time of all of a process's live threads in ns. A running thread's last tick (≤ 4 ms) is not in it yet.
pub fn process_ns(pid: u32) -> io::Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let line = match fs::read_to_string(task?.path().join("schedstat")) {
            Ok(line) => line,
            // The thread ended since the folder was read.
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let ns = line.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
        sum += ns.ok_or_else(|| io::Error::other(format!("schedstat says {line:?}")))?;
    }
    Ok(sum)
}

/// A list such as `0`, `0,1` or `0-3,8`.
#[derive(Clone, Debug, PartialEq)]
pub struct Cores(pub Vec<usize>);

impl std::str::FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let core = text.parse::<usize>().ok().filter(|&core| core < CpuSet::MAX_CPU);
            core.ok_or_else(|| format!("{text:?} is no core"))
        };
        let mut cores = Vec::new();
        for part in text.split(',') {
            match part.split_once('-') {
                Some((first, last)) => cores.extend(number(first)?..=number(last)?),
                None => cores.push(number(part)?),
            }
        }
        if cores.is_empty() { Err(format!("{text:?} has no core")) } else { Ok(Self(cores)) }
    }
}

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let ranges = self.0.chunk_by(|one, next| one + 1 == *next).map(|range| match range {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => unreachable!("a chunk is never empty"),
        });
        f.write_str(&ranges.collect::<Vec<_>>().join(","))
    }
}

impl Cores {
    fn set(&self) -> CpuSet {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|&core| set.set(core));
        set
    }

    /// Those that the kernel would not let this process run on. It takes a list as long as one of its cores is right.
    pub fn unusable(&self) -> Vec<usize> {
        // A thread of its own, whose cores are nobody's business.
        std::thread::scope(|scope| {
            let looked = scope.spawn(|| {
                let refused = |core: &usize| Self(vec![*core]).pin().is_err();
                self.0.iter().copied().filter(refused).collect()
            });
            looked.join().expect("pinning does not panic")
        })
    }

    pub fn usable() -> Self {
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).collect();
        let unusable = Self(all.clone()).unusable();
        Self(all.into_iter().filter(|core| !unusable.contains(core)).collect())
    }

    /// Moves the calling thread, and whatever it starts from here on, to these cores.
    pub fn pin(&self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.set())?)
    }

    pub fn disjoint(&self, other: &Self) -> bool {
        self.0.iter().all(|core| !other.0.contains(core))
    }

    /// Where the calling thread may run now.
    pub fn current() -> io::Result<Self> {
        let set = sched_getaffinity(None)?;
        Ok(Self((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn cores_are_lists_and_ranges() {
        assert_eq!("0,2-4".parse(), Ok(Cores(vec![0, 2, 3, 4])));
        for text in ["0", "0,2-4", "0-1,7"] {
            assert_eq!(text.parse::<Cores>().unwrap().to_string(), text);
        }
        for wrong in ["", "a", "1,", "3-1", "99999"] {
            assert!(wrong.parse::<Cores>().is_err(), "{wrong:?}");
        }
        assert!(
            Cores(vec![0]).disjoint(&Cores(vec![1]))
                && !Cores(vec![0]).disjoint(&Cores(vec![0, 1]))
        );
    }

    #[test]
    fn work_shows_in_cpu_time_and_sleep_does_not() {
        let mut spinner =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while process_ns(spinner.id()).unwrap() < 50_000_000 {
            assert!(Instant::now() < until, "a spinning shell used no CPU in 20 s");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(process_ns(sleeper.id()).unwrap() < 50_000_000);
        for child in [&mut spinner, &mut sleeper] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
