//! What of a host and a cluster is wrong for a server, and the command that mends it: from what was seen, and nothing else.

use mbal_control::api::{ServerStatus, Status};
use serde::Serialize;

/// What was seen. Nothing of what cannot be read is nothing to say about.
#[derive(Clone, Debug, Default)]
pub struct HostState {
    /// Soft and hard limit of open files.
    pub files: Option<(u64, u64)>,
    /// It may raise the hard limit.
    pub is_root: bool,
    pub somaxconn: Option<u64>,
    pub syn_backlog: Option<u64>,
    pub overcommit: Option<u64>,
    /// Bytes that may still be committed, which count in mode 2.
    pub commit_left: Option<u64>,
    pub swappiness: Option<u64>,
    pub swap_bytes: Option<u64>,
    /// The word in brackets of `transparent_hugepage/enabled`.
    pub huge_pages: Option<String>,
    /// Bytes of huge pages that are set apart for who asks for them by name, which MBal does not.
    pub reserved_bytes: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub group_bytes: Option<u64>,
    /// Microseconds of CPU time in a period.
    pub quota: Option<(u64, u64)>,
    pub slice_us: Option<u64>,
    pub clock: Clock,
    pub ports: Vec<Port>,
    pub secrets: Vec<Secret>,
    pub cluster: Option<Result<Status, String>>,
    /// Servers of the cluster that this host does not reach at their links' addresses: which, where, why.
    pub unreached: Vec<(u16, String, String)>,
}

#[derive(Clone, Debug, Default)]
pub struct Clock {
    pub is_synchronized: Option<bool>,
    pub source: Option<String>,
    /// Those that the kernel could use as well.
    pub sources: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Port {
    pub flag: &'static str,
    pub number: u16,
    /// Why it cannot be had.
    pub taken: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Secret {
    pub flag: &'static str,
    pub path: String,
    /// Mode and bytes, or why it cannot be read.
    pub found: Result<(u32, u64), String>,
}

/// What the server that is to be started asks for.
#[derive(Clone, Debug)]
pub struct Needs {
    pub connections: u32,
    /// Open files in all.
    pub files: u64,
    pub workers: u16,
    pub memory_bytes: u64,
    pub backlog: u64,
    pub locks_memory: bool,
    /// Of this program.
    pub version: &'static str,
    pub link_versions: [u16; 2],
    /// URL of the coordinator, if it is to be one of a cluster.
    pub coordinator: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something does not work, or will not.
    Wrong,
    /// It works, and costs time or comes to an end under load.
    Poor,
    /// It was not looked at; `mend` says what would let it.
    Skipped,
    Right,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub level: Level,
    pub check: &'static str,
    pub seen: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

/// Flags that name files of a cluster.
pub const CLUSTER_SECRET: &str = "--cluster-secret";
pub const COORDINATOR_TOKEN: &str = "--coordinator-token";

/// Others can read it or write to it.
const OTHERS: u32 = 0o006;
const SECRET_BYTES_MIN: u64 = 16;
/// Quotas below take no huge pages: decision 0015.
const QUOTA_US_SMALL: u64 = 20_000;
/// Of memory, that a process needs beside its items: buffers, threads, code.
const BESIDE: u64 = 16;
/// Reads of the others are system calls.
const FAST_CLOCKS: [&str; 5] =
    ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "riscv_clocksource"];

/// In the order in which they are told: the worst first, else as they are written here.
pub fn findings(seen: &HostState, wanted: &Needs) -> Vec<Finding> {
    let all = [files, queues, memory, overcommit, swap, huge_pages, reserved, quota, clock, source];
    let mut found: Vec<Finding> = all.iter().filter_map(|check| check(seen, wanted)).collect();
    found.extend(seen.ports.iter().map(port));
    found.extend(seen.secrets.iter().map(secret));
    found.extend(cluster(seen, wanted));
    found.extend(unreadable(seen));
    found.sort_by_key(|finding| finding.level);
    found
}

fn right(check: &'static str, seen: impl Into<String>) -> Finding {
    Finding { level: Level::Right, check, seen: seen.into(), mend: None }
}

fn poor(check: &'static str, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding { level: Level::Poor, check, seen: seen.into(), mend: Some(mend.into()) }
}

fn wrong(check: &'static str, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding { level: Level::Wrong, check, seen: seen.into(), mend: Some(mend.into()) }
}

fn skipped(check: &'static str, seen: impl Into<String>, with: impl Into<String>) -> Finding {
    Finding { level: Level::Skipped, check, seen: seen.into(), mend: Some(with.into()) }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

fn files(seen: &HostState, wanted: &Needs) -> Option<Finding> {
    let (_, hard) = seen.files?;
    let Needs { files, connections, .. } = wanted;
    if *files <= hard {
        return Some(right("open files", format!("-c {connections} needs {files} of {hard}")));
    }
    if seen.is_root {
        let text =
            format!("-c {connections} needs {files}, to which root raises the limit of {hard}");
        return Some(right("open files", text));
    }
    let room = hard.saturating_sub(files - u64::from(*connections));
    let text = format!(
        "-c {connections} needs {files}, the hard limit is {hard}: there will be room for {room} connections"
    );
    let mend = format!("ulimit -Hn {files} as root, or LimitNOFILE={files} in the unit");
    Some(wrong("open files", text, mend))
}

fn queues(seen: &HostState, wanted: &Needs) -> Option<Finding> {
    let backlog = wanted.backlog;
    let limits = [
        ("net.core.somaxconn", seen.somaxconn),
        ("net.ipv4.tcp_max_syn_backlog", seen.syn_backlog),
    ];
    let short = |(name, limit): (&'static str, Option<u64>)| {
        limit.filter(|limit| *limit < backlog).map(|limit| (name, limit))
    };
    let short: Vec<(&str, u64)> = limits.into_iter().filter_map(short).collect();
    if short.is_empty() {
        seen.somaxconn?;
        return Some(right("listen queues", format!("{backlog} connections may wait")));
    }
    let told = |(name, limit): &(&str, u64)| format!("{name} is {limit}");
    let told = short.iter().map(told).collect::<Vec<_>>().join(", ");
    let text =
        format!("-b {backlog}, but {told}: of many clients at once some try again after a second");
    let set = |(name, _): &(&str, u64)| format!("{name}={backlog}");
    let set = short.iter().map(set).collect::<Vec<_>>().join(" ");
    Some(poor("listen queues", text, format!("sysctl -w {set}")))
}

fn memory(seen: &HostState, wanted: &Needs) -> Option<Finding> {
    let limits = [("the control group", seen.group_bytes), ("this machine", seen.memory_bytes)];
    let limits = limits.into_iter().filter_map(|(whose, bytes)| Some((bytes?, whose)));
    let (limit, whose) = limits.min()?;
    let asked = wanted.memory_bytes;
    let fits = limit - limit / BESIDE;
    let text = format!("-m {} of the {} MiB of {whose}", mib(asked), mib(limit));
    if asked <= fits {
        return Some(right("memory", text));
    }
    let least = (asked + asked / (BESIDE - 1)).div_ceil(1 << 20);
    let mend = match whose {
        "this machine" => format!("-m {}, or less where others need memory too", mib(fits)),
        _ => format!("-m {}, or {least} MiB for the control group", mib(fits)),
    };
    let why = if asked > limit {
        "it is ended or swaps when it is full"
    } else {
        "connections' buffers have no room"
    };
    let level = if asked > limit { wrong } else { poor };
    Some(level("memory", format!("{text}: {why}"), mend))
}

fn overcommit(seen: &HostState, wanted: &Needs) -> Option<Finding> {
    let mode = seen.overcommit?;
    let left = seen.commit_left.unwrap_or(u64::MAX);
    if mode != 2 || wanted.memory_bytes <= left {
        return Some(right("overcommit", format!("vm.overcommit_memory is {mode}")));
    }
    let text = format!(
        "vm.overcommit_memory is 2, and {} MiB may still be committed: -m {} does not fit",
        mib(left),
        mib(wanted.memory_bytes)
    );
    Some(wrong("overcommit", text, "sysctl -w vm.overcommit_memory=0"))
}

fn swap(seen: &HostState, wanted: &Needs) -> Option<Finding> {
    let swappiness = seen.swappiness?;
    let swap = seen.swap_bytes?;
    if swap == 0 || wanted.locks_memory || swappiness <= 10 {
        let why = if swap == 0 { "there is none" } else { "items stay in memory" };
        return Some(right("swap", why));
    }
    let text = format!(
        "{} MiB of swap, and vm.swappiness is {swappiness}: reads of what was swapped out take milliseconds",
        mib(swap)
    );
    Some(poor("swap", text, "sysctl -w vm.swappiness=1, or -k"))
}

fn huge_pages(seen: &HostState, _: &Needs) -> Option<Finding> {
    let mode = seen.huge_pages.as_ref()?;
    if seen.quota.is_some_and(|(quota, _)| quota < QUOTA_US_SMALL) {
        return Some(right("huge pages", "not used with so small a CPU quota"));
    }
    if mode != "never" {
        return Some(right("huge pages", format!("transparent ones: {mode}")));
    }
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = "transparent ones are off: a get costs about a tenth more CPU";
    Some(poor("huge pages", text, format!("echo madvise >{file}")))
}

fn reserved(seen: &HostState, wanted: &Needs) -> Option<Finding> {
    let reserved = seen.reserved_bytes.filter(|bytes| *bytes > 0)?;
    let left = seen.memory_bytes?.saturating_sub(reserved);
    let text =
        format!("{} MiB are set apart as huge pages, which MBal does not use", mib(reserved));
    let level = if left < wanted.memory_bytes { wrong } else { poor };
    Some(level("reserved pages", text, "sysctl -w vm.nr_hugepages=0"))
}

fn quota(seen: &HostState, wanted: &Needs) -> Option<Finding> {
    let Some((quota, period)) = seen.quota else {
        return Some(right("CPU quota", "none"));
    };
    let told = format!("{} ms in {} ms", quota as f64 / 1e3, period as f64 / 1e3);
    let cores = quota.div_ceil(period.max(1)).max(1);
    if u64::from(wanted.workers) > cores {
        let workers = wanted.workers;
        let text = format!(
            "{told} is at most {cores} cores, for {workers} workers: they wait for the next period together"
        );
        return Some(poor("CPU quota", text, format!("-t {cores}, or a higher quota")));
    }
    let slice = seen.slice_us.unwrap_or(0);
    if slice * 10 <= quota || wanted.workers < 2 && slice <= quota {
        return Some(right("CPU quota", told));
    }
    let text = format!(
        "{told}, which cores take in slices of {} ms: threads on other cores wait",
        slice as f64 / 1e3
    );
    let to = (quota / 10).max(100);
    Some(poor("CPU quota", text, format!("sysctl -w kernel.sched_cfs_bandwidth_slice_us={to}")))
}

fn clock(seen: &HostState, _: &Needs) -> Option<Finding> {
    if seen.clock.is_synchronized? {
        return Some(right("clock", "synchronized"));
    }
    let text = "not synchronized: items that end at a time of day end at another one, and logs do not agree";
    Some(poor("clock", text, "timedatectl set-ntp true, or install chrony"))
}

fn source(seen: &HostState, _: &Needs) -> Option<Finding> {
    let source = seen.clock.source.as_ref()?;
    let is_fast = |source: &&str| FAST_CLOCKS.contains(source);
    if is_fast(&&**source) {
        return Some(right("clock source", source.clone()));
    }
    let text = format!("{source}: each look at the clock is a system call");
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let better = seen.clock.sources.iter().map(String::as_str).find(is_fast);
    let mend = better
        .map_or("another kind of machine: this one has no faster clock".into(), |better| {
            format!("echo {better} >{file}")
        });
    Some(poor("clock source", text, mend))
}

fn port(port: &Port) -> Finding {
    let Port { flag, number, taken } = port;
    match taken {
        None => right("port", format!("{flag} {number} is free")),
        Some(why) => {
            let text = format!("{flag} {number}: {why}");
            wrong(
                "port",
                text,
                format!(
                    "ss -lntup 'sport = :{number}' shows who has it; --running looks at no ports"
                ),
            )
        }
    }
}

fn secret(secret: &Secret) -> Finding {
    let Secret { flag, path, found } = secret;
    let told = |what: String| format!("{flag} {path}: {what}");
    let make = format!(
        "(umask 077; head -c 32 /dev/urandom | base64 >{path}), and the same file on all hosts"
    );
    match found {
        Err(why) => wrong("secret", told(why.clone()), make),
        Ok((mode, _)) if mode & OTHERS != 0 => {
            let text = told(format!("others can read or write it, mode {:03o}", mode & 0o777));
            wrong("secret", text, format!("chmod o= {path}"))
        }
        Ok((_, bytes)) if *bytes < SECRET_BYTES_MIN => wrong(
            "secret",
            told(format!("{bytes} bytes, and {SECRET_BYTES_MIN} are the least")),
            make,
        ),
        Ok((mode, _)) => right("secret", told(format!("mode {:03o}", mode & 0o777))),
    }
}

/// Checks of which nothing is known, since the kernel's files cannot be read.
fn unreadable(seen: &HostState) -> Option<Finding> {
    let known = [
        ("open files", seen.files.is_some()),
        ("listen queues", seen.somaxconn.is_some()),
        ("memory", seen.memory_bytes.or(seen.group_bytes).is_some()),
        ("overcommit", seen.overcommit.is_some()),
        ("swap", seen.swappiness.is_some() && seen.swap_bytes.is_some()),
        ("huge pages", seen.huge_pages.is_some()),
        ("clock", seen.clock.is_synchronized.is_some()),
        ("clock source", seen.clock.source.is_some()),
    ];
    let missing = known.into_iter().filter(|(_, is_known)| !is_known).map(|(check, _)| check);
    let missing = missing.collect::<Vec<_>>().join(", ");
    let with = "mbal doctor on the host itself: /proc and /sys say it";
    (!missing.is_empty()).then(|| skipped("host", format!("not to be read here: {missing}"), with))
}

/// What a coordinator tells of its servers, and whether this host reaches them.
fn cluster(seen: &HostState, wanted: &Needs) -> Vec<Finding> {
    let Some(url) = &wanted.coordinator else {
        let text = "none is named: versions, links and other servers were not looked at";
        let with = "--coordinator URL, or MBAL_COORDINATOR; a server alone has none";
        return vec![skipped("coordinator", text, with)];
    };
    let mut found = Vec::new();
    if !seen.secrets.iter().any(|secret| secret.flag == CLUSTER_SECRET) {
        let text = "none is named, and no server of a cluster starts without it";
        let with = format!("mbal doctor -- {CLUSTER_SECRET} FILE, or MBAL_CLUSTER_SECRET");
        found.push(skipped("secret", text, with));
    }
    let status = match &seen.cluster {
        None => return found,
        Some(Err(why)) => {
            let mend = match why.contains(COORDINATOR_TOKEN) {
                true => format!("{COORDINATOR_TOKEN} FILE, or MBAL_COORDINATOR_TOKEN"),
                false => format!(
                    "curl {url}/v1/leads from this host; a firewall, or another --coordinator"
                ),
            };
            found.push(wrong("coordinator", why.clone(), mend));
            return found;
        }
        Some(Ok(status)) => status,
    };
    let servers = status.servers.len();
    found.push(right(
        "coordinator",
        format!("{url}, cluster {}, {servers} servers", status.cluster),
    ));
    let is_speaking = |server: &&ServerStatus| !server.version.is_empty();
    let others = status.servers.iter().filter(is_speaking);
    let differ: Vec<&ServerStatus> =
        others.filter(|server| server.version != wanted.version).collect();
    let named = |servers: &[&ServerStatus]| {
        let one = |server: &&ServerStatus| format!("{} has {}", server.id, server.version);
        servers.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let apart = |server: &&ServerStatus| {
        let [low, high] = server.link_versions;
        high != 0 && (wanted.link_versions[1] < low || high < wanted.link_versions[0])
    };
    let apart: Vec<&ServerStatus> = differ.iter().copied().filter(apart).collect();
    if !apart.is_empty() {
        let text = format!(
            "this is {}, and speaks no protocol of links that these speak: {}",
            wanted.version,
            named(&apart)
        );
        found.push(wrong("versions", text, "a version between the two first, on all hosts"));
    } else if !differ.is_empty() {
        let text = format!("this is {}, server {}", wanted.version, named(&differ));
        let drain = format!("mbal cluster drain {} --coordinator {url}", differ[0].id);
        found.push(poor(
            "versions",
            text,
            format!("{drain}, then start it by the newer program; and so on"),
        ));
    } else if servers > 0 {
        found.push(right("versions", format!("all servers have {}", wanted.version)));
    }
    let ill = ["silent", "lost", "unlinked", "stuck"];
    for server in status.servers.iter().filter(|server| ill.contains(&server.state.as_str())) {
        let text = format!("server {} at {} is {}", server.id, server.client, server.state);
        found.push(wrong("servers", text, format!("mbal cluster events --coordinator {url}")));
    }
    for link in &status.broken_links {
        let text = format!(
            "server {} to server {}: {} for {} s",
            link.from, link.to, link.why, link.seconds
        );
        found.push(wrong("links", text, link.mend.clone()));
    }
    for (server, address, why) in &seen.unreached {
        let text = format!("this host does not reach server {server} at {address}: {why}");
        let port = address.rsplit(':').next().unwrap_or_default();
        found.push(wrong(
            "links",
            text,
            format!("let TCP to port {port} of that host through the firewall"),
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use mbal_control::api::LinkStatus;

    const GIB: u64 = 1 << 30;

    /// A host with which nothing is wrong.
    fn healthy() -> HostState {
        HostState {
            files: Some((1024, 65536)),
            is_root: false,
            somaxconn: Some(4096),
            syn_backlog: Some(2048),
            overcommit: Some(0),
            commit_left: Some(0),
            swappiness: Some(60),
            swap_bytes: Some(0),
            huge_pages: Some("madvise".into()),
            reserved_bytes: Some(0),
            memory_bytes: Some(16 * GIB),
            group_bytes: None,
            quota: None,
            slice_us: Some(5000),
            clock: Clock {
                is_synchronized: Some(true),
                source: Some("tsc".into()),
                sources: vec!["tsc".into(), "hpet".into()],
            },
            ports: vec![Port { flag: "--port", number: 11211, taken: None }],
            secrets: vec![Secret {
                flag: "--cluster-secret",
                path: "/s".into(),
                found: Ok((0o640, 45)),
            }],
            cluster: Some(Ok(status())),
            unreached: Vec::new(),
        }
    }

    fn status() -> Status {
        let server = |id| ServerStatus {
            id,
            version: "0.2.0".into(),
            link_versions: [1, 3],
            client: format!("10.0.0.{id}:11211"),
            link: format!("10.0.0.{id}:11299"),
            state: "serving".into(),
            ..ServerStatus::default()
        };
        Status { cluster: "mbal".into(), servers: vec![server(1), server(2)], ..Status::default() }
    }

    fn wanted() -> Needs {
        Needs {
            connections: 10_000,
            files: 10_100,
            workers: 4,
            memory_bytes: 8 * GIB,
            backlog: 1024,
            locks_memory: false,
            version: "0.2.0",
            link_versions: [1, 3],
            coordinator: Some("http://10.0.0.9:11210".into()),
        }
    }

    /// What is not right, by level, check and what mends it.
    fn told(seen: &HostState, wanted: &Needs) -> Vec<(Level, &'static str, String, String)> {
        let bad = findings(seen, wanted).into_iter().filter(|one| one.level != Level::Right);
        bad.map(|one| {
            (one.level, one.check, one.seen, one.mend.expect("what is bad can be mended"))
        })
        .collect()
    }

    #[test]
    fn nothing_is_wrong_with_a_healthy_host() {
        assert_eq!(told(&healthy(), &wanted()), []);
        let checks: Vec<&str> =
            findings(&healthy(), &wanted()).iter().map(|one| one.check).collect();
        assert!(checks.len() >= 13, "{checks:?}");
    }

    #[test]
    fn what_cannot_be_read_is_named_once() {
        let seen = HostState { secrets: healthy().secrets, ..HostState::default() };
        let found = findings(&seen, &wanted());
        let checks: Vec<&str> = found.iter().map(|one| one.check).collect();
        assert_eq!(checks, ["host", "CPU quota", "secret"]);
        let all =
            "open files, listen queues, memory, overcommit, swap, huge pages, clock, clock source";
        assert_eq!(found[0].seen, format!("not to be read here: {all}"));
    }

    type Plant = fn(&mut HostState, &mut Needs);

    /// One fault each, planted into what is healthy: it alone is found, with these words, and mended by these.
    #[test]
    fn each_planted_fault_is_found_with_what_mends_it() {
        let cases: [(Plant, Level, &str, &str, &str); 32] = [
            (
                |seen, _| seen.files = Some((1024, 4096)),
                Level::Wrong,
                "open files",
                "room for 3996 connections",
                "LimitNOFILE=10100",
            ),
            (
                |seen, _| seen.somaxconn = Some(128),
                Level::Poor,
                "listen queues",
                "net.core.somaxconn is 128",
                "sysctl -w net.core.somaxconn=1024",
            ),
            (
                |seen, _| seen.syn_backlog = Some(256),
                Level::Poor,
                "listen queues",
                "tcp_max_syn_backlog is 256",
                "sysctl -w net.ipv4.tcp_max_syn_backlog=1024",
            ),
            (
                |_, wanted| wanted.memory_bytes = 17 * GIB,
                Level::Wrong,
                "memory",
                "-m 17408 of the 16384 MiB of this machine",
                "-m 15360",
            ),
            (
                |_, wanted| wanted.memory_bytes = 16 * GIB,
                Level::Poor,
                "memory",
                "buffers",
                "-m 15360",
            ),
            (
                |seen, _| seen.group_bytes = Some(4 * GIB),
                Level::Wrong,
                "memory",
                "4096 MiB of the control group",
                "-m 3840, or 8739 MiB for the control group",
            ),
            (
                |seen, _| seen.overcommit = Some(2),
                Level::Wrong,
                "overcommit",
                "0 MiB may still be committed",
                "sysctl -w vm.overcommit_memory=0",
            ),
            (
                |seen, _| seen.swap_bytes = Some(GIB),
                Level::Poor,
                "swap",
                "1024 MiB of swap, and vm.swappiness is 60",
                "sysctl -w vm.swappiness=1, or -k",
            ),
            (
                |seen, _| seen.huge_pages = Some("never".into()),
                Level::Poor,
                "huge pages",
                "off",
                "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled",
            ),
            (
                |seen, _| seen.reserved_bytes = Some(GIB),
                Level::Poor,
                "reserved pages",
                "1024 MiB",
                "sysctl -w vm.nr_hugepages=0",
            ),
            (
                |seen, _| seen.reserved_bytes = Some(12 * GIB),
                Level::Wrong,
                "reserved pages",
                "12288 MiB",
                "sysctl -w vm.nr_hugepages=0",
            ),
            (
                |seen, _| seen.quota = Some((150_000, 100_000)),
                Level::Poor,
                "CPU quota",
                "150 ms in 100 ms is at most 2 cores, for 4 workers",
                "-t 2",
            ),
            (
                |seen, wanted| (seen.quota, wanted.workers) = (Some((20_000, 10_000)), 2),
                Level::Poor,
                "CPU quota",
                "slices of 5 ms",
                "sched_cfs_bandwidth_slice_us=2000",
            ),
            (
                |seen, wanted| (seen.quota, wanted.workers) = (Some((1000, 20_000)), 1),
                Level::Poor,
                "CPU quota",
                "1 ms in 20 ms",
                "sched_cfs_bandwidth_slice_us=100",
            ),
            (
                |seen, _| seen.clock.is_synchronized = Some(false),
                Level::Poor,
                "clock",
                "not synchronized",
                "timedatectl set-ntp true",
            ),
            (
                |seen, _| seen.clock.source = Some("hpet".into()),
                Level::Poor,
                "clock source",
                "hpet",
                "echo tsc >/sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
            (
                |seen, _| {
                    (seen.clock.source, seen.clock.sources) = (Some("xen".into()), Vec::new())
                },
                Level::Poor,
                "clock source",
                "xen",
                "another kind of machine",
            ),
            (
                |seen, _| seen.ports[0].taken = Some("Address already in use".into()),
                Level::Wrong,
                "port",
                "--port 11211: Address already in use",
                "ss -lntup 'sport = :11211'",
            ),
            (
                |seen, _| seen.secrets[0].found = Ok((0o100_644, 45)),
                Level::Wrong,
                "secret",
                "--cluster-secret /s: others can read or write it, mode 644",
                "chmod o= /s",
            ),
            (
                |seen, _| seen.secrets[0].found = Ok((0o600, 7)),
                Level::Wrong,
                "secret",
                "7 bytes",
                "/dev/urandom | base64 >/s",
            ),
            (
                |seen, _| seen.secrets[0].found = Err("No such file".into()),
                Level::Wrong,
                "secret",
                "No such file",
                "base64 >/s",
            ),
            (
                |seen, _| seen.cluster = Some(Err("refused".into())),
                Level::Wrong,
                "coordinator",
                "refused",
                "curl http://10.0.0.9:11210/v1/leads",
            ),
            (
                |seen, _| seen.cluster = Some(Err("it wants --coordinator-token".into())),
                Level::Wrong,
                "coordinator",
                "it wants",
                "--coordinator-token FILE, or MBAL_COORDINATOR_TOKEN",
            ),
            (
                |_, wanted| wanted.coordinator = None,
                Level::Skipped,
                "coordinator",
                "versions, links and other servers were not looked at",
                "--coordinator URL, or MBAL_COORDINATOR",
            ),
            (
                |seen, _| seen.secrets.clear(),
                Level::Skipped,
                "secret",
                "no server of a cluster starts without it",
                "mbal doctor -- --cluster-secret FILE, or MBAL_CLUSTER_SECRET",
            ),
            (
                |seen, _| seen.swappiness = None,
                Level::Skipped,
                "host",
                "not to be read here: swap",
                "on the host itself",
            ),
            (
                |seen, _| server(seen).version = "0.1.0".into(),
                Level::Poor,
                "versions",
                "this is 0.2.0, server 1 has 0.1.0",
                "mbal cluster drain 1 --coordinator http://10.0.0.9:11210",
            ),
            (
                |_, wanted| (wanted.version, wanted.link_versions) = ("0.9.0", [4, 6]),
                Level::Wrong,
                "versions",
                "1 has 0.2.0, 2 has 0.2.0",
                "a version between",
            ),
            (
                |seen, _| server(seen).state = "silent".into(),
                Level::Wrong,
                "servers",
                "server 1 at 10.0.0.1:11211 is silent",
                "mbal cluster events",
            ),
            (
                |seen, _| server(seen).state = "unlinked".into(),
                Level::Wrong,
                "servers",
                "unlinked",
                "mbal cluster events",
            ),
            (
                |seen, _| broken(seen),
                Level::Wrong,
                "links",
                "server 1 to server 2: another secret for 9 s",
                "copy the secret",
            ),
            (
                |seen, _| seen.unreached = vec![(2, "10.0.0.2:11299".into(), "timed out".into())],
                Level::Wrong,
                "links",
                "does not reach server 2 at 10.0.0.2:11299: timed out",
                "TCP to port 11299",
            ),
        ];
        for (plant, level, check, text, mend) in cases {
            let (mut seen, mut asked) = (healthy(), wanted());
            plant(&mut seen, &mut asked);
            let found = told(&seen, &asked);
            let [(of, name, said, by)] = &found[..] else { panic!("{text}: {found:?}") };
            assert_eq!((*of, *name), (level, check), "{said}");
            assert!(said.contains(text), "{text}: {said}");
            assert!(by.contains(mend), "{mend}: {by}");
        }
    }

    fn server(seen: &mut HostState) -> &mut ServerStatus {
        let Some(Ok(status)) = &mut seen.cluster else { panic!("it has a cluster") };
        &mut status.servers[0]
    }

    fn broken(seen: &mut HostState) {
        let Some(Ok(status)) = &mut seen.cluster else { panic!("it has a cluster") };
        let link = LinkStatus {
            from: 1,
            to: 2,
            seconds: 9,
            why: "another secret".into(),
            mend: "copy the secret".into(),
        };
        status.broken_links.push(link);
    }

    #[test]
    fn what_does_not_matter_here_is_right() {
        let cases: [Plant; 6] = [
            |seen, _| (seen.files, seen.is_root) = (Some((1024, 4096)), true),
            |seen, _| (seen.overcommit, seen.commit_left) = (Some(2), Some(9 * GIB)),
            |seen, wanted| (seen.swap_bytes, wanted.locks_memory) = (Some(GIB), true),
            |seen, _| (seen.swap_bytes, seen.swappiness) = (Some(GIB), Some(1)),
            // Small quotas take no huge pages.
            |seen, wanted| {
                wanted.workers = 1;
                (seen.huge_pages, seen.quota, seen.slice_us) =
                    (Some("never".into()), Some((10_000, 100_000)), Some(500));
            },
            |seen, _| (seen.quota, seen.slice_us) = (Some((400_000, 100_000)), Some(5000)),
        ];
        for (at, plant) in cases.into_iter().enumerate() {
            let (mut seen, mut asked) = (healthy(), wanted());
            plant(&mut seen, &mut asked);
            assert_eq!(told(&seen, &asked), [], "{at}");
        }
    }

    #[test]
    fn the_worst_is_told_first() {
        let mut seen = healthy();
        seen.somaxconn = Some(1);
        seen.ports[0].taken = Some("taken".into());
        let levels: Vec<Level> = findings(&seen, &wanted()).iter().map(|one| one.level).collect();
        assert_eq!(levels[..3], [Level::Wrong, Level::Poor, Level::Right]);
    }
}
