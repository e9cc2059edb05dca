//! How much memory and CPU time this machine has, as far as this process may use it.

use std::fs;
use std::path::{Path, PathBuf};

use mbal_reactor::process;
use mbal_worker::Quota;

/// Bytes that the machine has, and that are available now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    total: u64,
    available: u64,
}

/// Bytes of memory that this process could use at most, if the system tells.
pub fn memory_bytes() -> Option<u64> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let total = machine(read).map(|memory| memory.total);
    total.into_iter().chain(group_limit(read)).min()
}

/// What there is, in a sentence's words.
pub(crate) fn memory_told() -> String {
    told(|path: &Path| fs::read_to_string(path).ok(), process::memory_limit())
}

/// Memory of this process that is in the machine's now, if the system tells.
pub(crate) fn resident_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Bytes of memory that the control groups of this process allow it, if they limit it.
pub fn group_memory_bytes() -> Option<u64> {
    group_limit(|path: &Path| fs::read_to_string(path).ok())
}

/// The CPU time that this process may use in a period, and the period, in microseconds.
pub fn cpu_quota_us() -> Option<(u64, u64)> {
    cpu_quota().map(Quota::micros)
}

/// What this process may use of the CPU, by the tightest quota of its control group and of those around it. It may change at any time.
pub(crate) fn cpu_quota() -> Option<Quota> {
    group_quota("self", |path: &Path| fs::read_to_string(path).ok())
}

/// The same of the calling thread, which may be in a control group of its own.
pub(crate) fn thread_cpu_quota() -> Option<Quota> {
    group_quota("thread-self", |path: &Path| fs::read_to_string(path).ok())
}

fn told(read: impl Fn(&Path) -> Option<String> + Copy, limit: Option<u64>) -> String {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let machine = machine(read).map(|Memory { total, available }| {
        format!("this machine has {}, {} of them available", mib(total), mib(available))
    });
    let group = group_limit(read).map(|bytes| format!("its control group may use {}", mib(bytes)));
    let limit = limit.map(|bytes| format!("ulimit allows the process {}", mib(bytes)));
    let known: Vec<String> = [machine, group, limit].into_iter().flatten().collect();
    known.join(", ")
}

fn machine(read: impl Fn(&Path) -> Option<String>) -> Option<Memory> {
    let text = read(Path::new("/proc/meminfo"))?;
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    };
    Some(Memory { total: bytes("MemTotal")?, available: bytes("MemAvailable")? })
}

/// The least limit of the process's control group and of those around it, in either version of them.
fn group_limit(read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = groups("self", &read, "memory").into_iter().filter_map(|(version, group)| {
        let file = match version {
            Version::First => "memory.limit_in_bytes",
            Version::Second => "memory.max",
        };
        read(&group.join(file))?.trim().parse().ok()
    });
    // A page below 2^63 says that there is none.
    limits.filter(|bytes| *bytes < 1 << 60).min()
}

/// `whose`: its folder in `/proc`.
fn group_quota(whose: &str, read: impl Fn(&Path) -> Option<String>) -> Option<Quota> {
    let quotas = groups(whose, &read, "cpu").into_iter().filter_map(|(version, group)| {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        match version {
            Version::First => {
                // -1 is none.
                let quota = number(&read(&group.join("cpu.cfs_quota_us"))?)?;
                Quota::of(quota, number(&read(&group.join("cpu.cfs_period_us"))?)?)
            }
            Version::Second => {
                let text = read(&group.join("cpu.max"))?;
                let (quota, period) = text.trim().split_once(' ')?;
                Quota::of(number(quota)?, number(period)?)
            }
        }
    });
    quotas.reduce(Quota::min)
}

#[derive(Clone, Copy)]
enum Version {
    First,
    Second,
}

/// Folders of somebody's control group and of those around it, which may have this controller.
fn groups(
    whose: &str,
    read: impl Fn(&Path) -> Option<String>,
    controller: &str,
) -> Vec<(Version, PathBuf)> {
    let listed = read(&Path::new("/proc").join(whose).join("cgroup")).unwrap_or_default();
    let folders = listed.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (version, root) = match parts.next() {
            Some("") => (Version::Second, PathBuf::from("/sys/fs/cgroup")),
            Some(names) if names.split(',').any(|name| name == controller) => {
                (Version::First, Path::new("/sys/fs/cgroup").join(controller))
            }
            _ => return Vec::new(),
        };
        let group = Path::new(parts.next().unwrap_or_default().trim_start_matches('/'));
        group.ancestors().map(|group| (version, root.join(group))).collect()
    });
    folders.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str =
        "MemTotal:       24684092 kB\nMemFree:        1 kB\nMemAvailable:   2097152 kB\n";

    fn files<'a>(files: &'a [(&'a str, &'a str)]) -> impl Fn(&Path) -> Option<String> + Copy + 'a {
        move |path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| text.to_string())
        }
    }

    #[test]
    fn what_there_is_is_told_in_mebibytes() {
        let alone = [("/proc/meminfo", MEMINFO)];
        let there_is = "this machine has 24105 MiB, 2048 MiB of them available";
        assert_eq!(told(files(&alone), None), there_is);
        let limited = format!("{there_is}, ulimit allows the process 195 MiB");
        assert_eq!(told(files(&alone), Some(200_000 << 10)), limited);
        assert_eq!(told(files(&[]), None), "");
    }

    #[test]
    fn the_least_limit_of_all_groups_around_counts() {
        let second = [
            ("/proc/self/cgroup", "0::/system.slice/mbal.service\n"),
            ("/sys/fs/cgroup/system.slice/mbal.service/memory.max", "max\n"),
            ("/sys/fs/cgroup/system.slice/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/memory.max", "2147483648\n"),
        ];
        assert_eq!(group_limit(files(&second)), Some(1 << 30));
        let first = [
            ("/proc/self/cgroup", "5:cpu:/x\n4:memory:/x\n0::/\n"),
            ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "536870912\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(group_limit(files(&first)), Some(512 << 20));
        assert_eq!(group_limit(files(&first[..1])), None);
    }

    #[test]
    fn the_tightest_quota_of_all_groups_around_counts() {
        let second = [
            ("/proc/self/cgroup", "0::/pods/mbal\n"),
            ("/sys/fs/cgroup/pods/mbal/cpu.max", "50000 100000\n"),
            ("/sys/fs/cgroup/pods/cpu.max", "1000 20000\n"),
            ("/sys/fs/cgroup/cpu.max", "max 100000\n"),
        ];
        assert_eq!(group_quota("self", files(&second)), Quota::of(1_000, 20_000));
        assert_eq!(group_quota("self", files(&second[..2])), Quota::of(50_000, 100_000));
        let first = [
            ("/proc/self/cgroup", "5:cpuset:/y\n4:cpu,cpuacct:/x\n0::/\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "2000\n"),
            ("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "40000\n"),
        ];
        assert_eq!(group_quota("self", files(&first)), Quota::of(2_000, 40_000));
        assert_eq!(group_quota("self", files(&first[..3])), None);
        let thread = [("/proc/thread-self/cgroup", "4:cpu,cpuacct:/x\n")];
        let files_of_thread = [&first[1..], &thread].concat();
        let quota = |whose| group_quota(whose, files(&files_of_thread));
        assert_eq!([quota("self"), quota("thread-self")], [None, Quota::of(2_000, 40_000)]);
    }
}
