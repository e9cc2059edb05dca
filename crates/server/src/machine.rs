//! How much memory this machine has, as far as this process may use it.

use std::fs;
use std::path::Path;

use mbal_reactor::process;

/// Bytes that the machine has, and that are available now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    total: u64,
    available: u64,
}

/// Bytes of memory that this process could use at most, if the system tells.
pub(crate) fn memory_bytes() -> Option<u64> {
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
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (root, file) = match parts.next() {
            Some("") => ("/sys/fs/cgroup", "memory.max"),
            Some("memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        let group = Path::new(parts.next().unwrap_or_default().trim_start_matches('/'));
        let limit =
            |group: &Path| read(&Path::new(root).join(group).join(file))?.trim().parse().ok();
        group.ancestors().filter_map(limit).collect()
    });
    // A page below 2^63 says that there is none.
    limits.filter(|bytes| *bytes < 1 << 60).min()
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
}
