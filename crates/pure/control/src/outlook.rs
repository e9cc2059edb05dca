//! What a planner of balance between servers reads: the map, heartbeats, moves under way.

use std::collections::BTreeMap;

use mbal_model::{
    CacheletLoad, Move, MoveId, Outlook, Owner, Prefix, ServerId, ServerOutlook, Service, Standing,
    WorkerId, WorkerLoad,
};

use crate::api::{Heartbeat, Progress, RestReport, WorkerReport};
use crate::balancing::Balanced;
use crate::hot::hot_hashes;
use crate::ledger::Ledger;

/// One cachelet as a server reports it: its worker there, load, bytes.
type Report = (usize, f64, u64);

/// By the map and the last heartbeats. A cachelet that its server has not reported yet is as another one has seen it
/// last; what nobody lists has its part of what workers report as the rest.
pub(crate) fn outlook(
    ledger: &Ledger,
    balanced: &Balanced,
    knows_hot_keys: bool,
    epoch: u64,
) -> Outlook {
    let mut reports: BTreeMap<Prefix, BTreeMap<ServerId, Report>> = BTreeMap::new();
    for (server, heard) in ledger.all_heard() {
        for (index, worker) in heard.last.workers.iter().enumerate() {
            for one in &worker.cachelets {
                if let Some(prefix) = Prefix::parse(one.prefix.as_bytes()) {
                    let report = (index, sane(one.load), one.bytes);
                    reports.entry(prefix).or_default().insert(server, report);
                }
            }
        }
    }
    let alive = ledger.state().alive().map(|(id, _)| id);
    let mut servers: BTreeMap<ServerId, ServerOutlook> =
        alive.map(|id| (id, server_outlook(ledger, balanced, id))).collect();
    // Phase 1 helps those. A move would end their copies, and for a second or more all of their reads would be the destination's.
    let hot = hot_hashes(ledger);
    let hot_of = |prefix: Prefix| {
        let at = hot.partition_point(|one| one.hash < prefix.first_hash());
        hot[at..].iter().take_while(move |one| prefix.contains(one.hash))
    };
    for (prefix, owner) in ledger.state().cachelets() {
        let Some(server) = servers.get_mut(&owner.server) else { continue };
        let listed = reports.get(prefix);
        let own = listed.and_then(|listed| listed.get(&owner.server)).copied();
        let elsewhere = || listed.and_then(|listed| listed.values().next()).copied();
        let home = usize::from(owner.worker.0) % server.workers.len().max(1);
        let (at, load, bytes) = own
            .or_else(|| part_of_reported(&reports, *prefix, owner.server))
            .or_else(|| elsewhere().map(|(_, load, bytes)| (home, load, bytes)))
            .unwrap_or_else(|| {
                let (load, bytes) = unlisted(ledger, owner.server, home);
                (home, load, bytes)
            });
        let pinned = hot_of(*prefix).any(|one| one.is_copied);
        if hot_of(*prefix).any(|one| one.is_new) {
            server.copying.push(*prefix);
        }
        let at = at.min(server.workers.len().saturating_sub(1));
        if let Some(rate) = hot_of(*prefix).map(|one| one.rate).reduce(f64::max) {
            let last = ledger.heard(owner.server).map(|heard| &heard.last);
            let load = last.map_or(0.0, |last| rate * time_per_key(last, at));
            server.hottest.push((*prefix, load));
        }
        if let Some(worker) = server.workers.get_mut(at) {
            let held = CacheletLoad { cachelet: *prefix, load, bytes, pinned };
            worker.cachelets.push(held);
        }
    }
    let step = |one: &crate::Move| Move { cachelet: one.prefix, from: one.from, to: one.to };
    let gone = |(id, one): (&MoveId, &crate::Move)| {
        let report = ledger.report(one.from.server, id.0)?;
        (report.progress != Progress::Asking).then_some((one.prefix, report.bytes))
    };
    Outlook {
        epoch,
        servers: servers.into_values().collect(),
        under_way: ledger.state().moves.values().map(step).collect(),
        gone: ledger.state().moves.iter().filter_map(gone).collect(),
        knows_hot_keys,
        awaits: ledger.awaits() && !is_whole(ledger),
        remedies: ledger.state().remedies.clone(),
    }
}

/// All servers have said how they are, and what they do about it, since this process began.
fn is_whole(ledger: &Ledger) -> bool {
    let mut alive = ledger.state().alive().map(|(id, _)| id);
    alive.all(|id| ledger.heard(id).is_some_and(|heard| !heard.last.workers.is_empty()))
}

fn server_outlook(ledger: &Ledger, balanced: &Balanced, id: ServerId) -> ServerOutlook {
    let member = &ledger.state().members[&id];
    let last = ledger.heard(id).map(|heard| &heard.last);
    let last = last.filter(|last| !last.workers.is_empty());
    let standing = match last {
        Some(_) if !ledger.is_heard(id) => Standing::Silent,
        Some(_) if !member.moves => Standing::Staying,
        Some(last) if last.ending => Standing::Ending,
        Some(_) if ledger.state().draining.contains(&id) => Standing::Draining,
        Some(_) => Standing::Serving,
        None => Standing::Silent,
    };
    let reported = last.map_or(&[][..], |last| &last.workers);
    let worker = |index: usize| WorkerLoad {
        at: Owner { server: id, worker: WorkerId(index as u16) },
        service: reported.get(index).map_or(Service::default(), WorkerReport::service),
        fixed: reported.get(index).map_or(0.0, |report| sane(report.fixed)),
        bytes_max: 0,
        cachelets: Vec::new(),
    };
    let workers = reported.len().max(usize::from(member.workers()));
    let memory_bytes = last.map_or(0, |last| last.memory_bytes);
    ServerOutlook {
        server: id,
        standing,
        memory_bytes: if memory_bytes > 0 { memory_bytes } else { member.memory_bytes },
        workers: (0..workers).map(worker).collect(),
        helpless: last.is_some_and(|last| last.helpless),
        refuses: balanced.refuses(ledger.now, id),
        copying: Vec::new(),
        hottest: Vec::new(),
        room_bytes: last.and_then(|last| last.room_bytes),
    }
}

/// A part of what its server has reported as one: it has not split it yet, or not told.
fn part_of_reported(
    reports: &BTreeMap<Prefix, BTreeMap<ServerId, Report>>,
    part: Prefix,
    server: ServerId,
) -> Option<Report> {
    let wider = (0..part.bits()).rev().map(|bits| Prefix::of(part.first_hash(), bits));
    let mut listed = wider.filter_map(|whole| Some((whole, *reports.get(&whole)?.get(&server)?)));
    let (whole, (at, load, bytes)) = listed.next()?;
    let ratio = whole.nodes() / part.nodes();
    Some((at, load / ratio as f64, bytes / ratio as u64))
}

/// Of a worker's time, what one request a second for a key of its own takes.
fn time_per_key(last: &Heartbeat, worker: usize) -> f64 {
    let all: u64 = last.workers.iter().map(|one| one.keys).sum();
    let Some(worker) = last.workers.get(worker).filter(|one| one.keys > 0) else { return 0.0 };
    let rate = last.requests * worker.keys as f64 / all as f64;
    if rate > 0.0 { sane(worker.load() - worker.fixed) / rate } else { 0.0 }
}

/// Load and bytes of a cachelet that its worker does not list.
fn unlisted(ledger: &Ledger, server: ServerId, worker: usize) -> (f64, u64) {
    let worker = ledger.heard(server).and_then(|heard| heard.last.workers.get(worker));
    let rest = worker.map_or(RestReport::default(), |worker| worker.rest);
    match u64::from(rest.cachelets) {
        0 => (0.0, 0),
        count => (sane(rest.load) / count as f64, rest.bytes / count),
    }
}

/// A heartbeat may say anything.
fn sane(load: f64) -> f64 {
    if load.is_finite() { load.clamp(0.0, 1e6) } else { 0.0 }
}
