//! Why a key or a cachelet is where it is, who asks for it, and what would move its load.
//!
//! A cachelet's load moves with it only as far as its clients follow. What the others ask costs the workers of
//! their connections, wherever the cachelet is: there it is to be looked for.

use std::fmt::Write;

use mbal_balance::{Decision, Mode, Ordered};
use mbal_model::{Key, Order, Prefix};
use mbal_worker::{Heat, Shared};

use crate::hot_keys;
use crate::telling::{Teller, told};

/// As a part of a worker's time: below it there is no load to speak of.
const LOAD_FELT: f64 = 0.02;
/// A worker is told of if it executed this part of a cachelet's requests.
const SHARE_TOLD: f64 = 0.01;

/// Whose requests cost how much.
struct WorkerCost {
    worker: usize,
    heat: Heat,
    load: f64,
    /// Of the load, that of connections that can be handed over.
    handable: f64,
    connections: usize,
}

impl WorkerCost {
    /// The part of the worker's load that is the cachelet's, by its share of the requests.
    fn load_of_cachelet(&self) -> f64 {
        if self.heat.all > 0.0 { self.load * self.heat.cachelet / self.heat.all } else { 0.0 }
    }
}

impl Teller<'_> {
    /// `what` is a cachelet's prefix, or else a key, as it is or as `stats hot` writes it.
    pub(crate) fn explain(&self, what: &[u8]) -> String {
        let store = &self.server.store;
        let present = Prefix::parse(what).filter(|prefix| store.owner(*prefix).is_some());
        let bytes = mbal_wire::unescaped(what);
        let key = if present.is_none() { Key::new(&bytes) } else { None };
        let Some(cachelet) = present.or_else(|| Some(store.cachelet_of(key?.hash())?.0)) else {
            return elsewhere(self.server, what);
        };
        let asked = self.asked(cachelet, key.as_ref());
        let mut out = String::new();
        if let Some(key) = &key {
            out += &of_key(key, cachelet, &asked);
            out += &hot_keys::explained(self.server, key, self.lease_now).unwrap_or_default();
        }
        out += &self.of_cachelet(cachelet, &asked);
        let mut told_of = Vec::new();
        for one in &asked {
            if one.heat.cachelet >= SHARE_TOLD * total(&asked, |heat| heat.cachelet)
                && one.heat.cachelet > 0.0
            {
                out += &of_worker(one);
                told_of.push(one.worker as u16);
            }
        }
        out += &self.what_moves(cachelet, &asked);
        let concerns = |ordered: &Ordered| match ordered.what {
            Order::Lend { step, .. } => step.cachelet == cachelet,
            Order::Lighten { from, .. } => told_of.contains(&from.worker.0),
        };
        let concerns = |one: &&Decision| one.orders.iter().any(concerns);
        for decision in self.balancer.decisions().filter(concerns) {
            out += &told(decision);
            out.push('\n');
        }
        out
    }

    /// By worker, in their order.
    fn asked(&self, cachelet: Prefix, key: Option<&Key<'_>>) -> Vec<WorkerCost> {
        let reading = self.balancer.reading();
        let heat = self.server.heat(cachelet, key, self.second);
        let asked = |(worker, heat)| WorkerCost {
            worker,
            heat,
            load: reading.snapshot.workers.get(worker).map_or(0.0, |worker| worker.load()),
            handable: reading.handable.get(worker).copied().unwrap_or(0.0),
            connections: self.tally.of_worker(worker),
        };
        heat.into_iter().enumerate().map(asked).collect()
    }

    fn of_cachelet(&self, cachelet: Prefix, asked: &[WorkerCost]) -> String {
        let Some(owner) = self.server.store.owner(cachelet) else {
            return format!("cachelet {cachelet} has just gone\n");
        };
        let owner = owner.0;
        let loan = self.balancer.loans().iter().find(|(lent, ..)| *lent == cachelet);
        let place = match loan {
            Some((_, home, since)) => {
                format!("on loan from worker {} since epoch {since}", home.worker.0)
            }
            None => "at home".into(),
        };
        let rests = if self.held(cachelet).1 { ", rests after a move" } else { "" };
        let (rate, all) = (total(asked, |heat| heat.cachelet), total(asked, |heat| heat.all));
        let share = percent(rate, all);
        format!(
            "cachelet {cachelet}: worker {owner}, {place}{rests}; {rate:.0} requests/s, {share} of the server's\n"
        )
    }

    /// A cachelet's load that moves with it, and whether it rests.
    fn held(&self, cachelet: Prefix) -> (f64, bool) {
        let workers = &self.balancer.reading().snapshot.workers;
        let mut held = workers.iter().flat_map(|worker| &worker.cachelets);
        let held = held.find(|held| held.cachelet == cachelet);
        held.map_or((0.0, false), |held| (held.load, held.pinned))
    }

    fn what_moves(&self, cachelet: Prefix, asked: &[WorkerCost]) -> String {
        let (follows, _) = self.held(cachelet);
        let mut out = format!("load that moves with the cachelet: {follows:.3}\n");
        let heaviest = asked
            .iter()
            .max_by(|a, b| a.load_of_cachelet().total_cmp(&b.load_of_cachelet()))
            .filter(|heaviest| heaviest.load_of_cachelet() >= LOAD_FELT);
        match heaviest {
            _ if asked.len() == 1 => write!(out, "there is no other worker to move it to"),
            _ if follows >= LOAD_FELT => {
                write!(out, "its clients follow it: lending it moves that load (mbal cluster move {cachelet} WORKER)")
            }
            None => write!(out, "it costs no worker a load to speak of: there is nothing to move"),
            Some(WorkerCost { worker, handable, connections, .. }) => {
                let only = match connections {
                    1 => "; it is one connection, which can go elsewhere but not be shared out",
                    _ => "",
                };
                write!(
                    out,
                    "its clients do not follow it: lending it moves nothing; handing over connections of worker \
                     {worker} does ({handable:.3} of its load can go){only}"
                )
            }
        }
        .expect("a String takes all");
        out.push('\n');
        if asked.len() > 1 && (heaviest.is_some() || follows >= LOAD_FELT) {
            out += &self.who_decides();
        }
        out
    }

    fn who_decides(&self) -> String {
        match self.balancer.mode() {
            Mode::Off => "the balancer is off: nothing moves but by mbal cluster move\n".into(),
            Mode::DryRun => "the balancer only says what it would do (--balance dry-run)\n".into(),
            Mode::On if self.balancer.in_phase_two() => {
                "the balancer is at work: requests stand waiting in a worker that has more than its part, or cachelets are lent\n".into()
            }
            Mode::On => {
                "the balancer sees nobody who has too much now; it acts when requests stand waiting in a worker that has more than its part for two epochs\n".into()
            }
        }
    }
}

const NO_MAP: &str = "error: this server has no map yet; mbal cluster status --coordinator URL says what is awaited\n";

/// Who has a key or a cachelet that is not here, and what to type; an error where nobody has it.
fn elsewhere(server: &Shared, what: &[u8]) -> String {
    const NEITHER: &str = "error: a cachelet is a prefix like 2c00/6, a key has 1 to 250 bytes\n";
    let Some((here, cluster)) = server.cluster() else { return NEITHER.into() };
    let map = &cluster.map;
    if map.version() == 0 {
        return NO_MAP.into();
    }
    let named = Prefix::parse(what);
    let named = named.filter(|named| map.at(named.first_hash()).0 == *named);
    let bytes = mbal_wire::unescaped(what);
    let key = if named.is_none() { Key::new(&bytes) } else { None };
    let Some(hash) = named.map(Prefix::first_hash).or(key.as_ref().map(Key::hash)) else {
        return NEITHER.into();
    };
    let (prefix, owner) = map.at(hash);
    let typed = match &key {
        Some(key) => readable(key),
        None => prefix.to_string(),
    };
    let mut out = match &key {
        Some(key) => format!("key {typed}: hash {:016x}, cachelet {prefix}\n", key.hash()),
        None => String::new(),
    };
    let version = map.version();
    let of = owner.server.0;
    if owner.server == here {
        out += &format!("cachelet {prefix}: this server's by map {version}, and on its way here\n");
        return out;
    }
    out +=
        &format!("cachelet {prefix}: server {of}'s by map {version}; this is server {}\n", here.0);
    if let Some(addresses) = cluster.servers.get(&owner.server) {
        let client = &addresses.client;
        out += &format!(
            "mbal cluster explain {typed} {client} on the host of server {of} says more of it\n"
        );
    }
    out +=
        &format!("mbal cluster explain {typed} --coordinator URL says what was decided about it\n");
    out
}

/// Why a cachelet that is not here cannot be lent to another worker of this server, and what can be done.
pub(crate) fn not_here(server: &Shared, cachelet: Prefix) -> String {
    let Some((here, cluster)) = server.cluster() else {
        return "error: there is no such cachelet\n".into();
    };
    if cluster.map.version() == 0 {
        return NO_MAP.into();
    }
    let (covering, owner) = cluster.map.at(cachelet.first_hash());
    let of = owner.server.0;
    if covering != cachelet {
        return format!(
            "error: {cachelet} is no cachelet: its first keys are {covering}'s, of server {of}\n"
        );
    }
    if owner.server == here {
        return format!("error: cachelet {cachelet} is on its way here; try again\n");
    }
    let there = cluster.servers.get(&owner.server);
    let there = there.map_or(String::new(), |addresses| {
        format!(
            "; mbal cluster move {cachelet} WORKER {} on that host lends it there",
            addresses.client
        )
    });
    format!(
        "error: cachelet {cachelet} is server {of}'s, and this is server {}{there}; \
         mbal cluster move {cachelet} SERVER --coordinator URL moves it to another server\n",
        here.0
    )
}

fn readable(key: &Key<'_>) -> String {
    let mut name = Vec::new();
    mbal_wire::push_readable(&mut name, key.bytes());
    String::from_utf8_lossy(&name).into_owned()
}

fn of_key(key: &Key<'_>, cachelet: Prefix, asked: &[WorkerCost]) -> String {
    let name = readable(key);
    let [reads, writes] = [0, 1].map(|kind| total(asked, |heat| heat.key[kind]));
    let share = percent(reads + writes, total(asked, |heat| heat.all));
    format!(
        "key {name}: hash {:016x}, cachelet {}\n\
         key {name}: {:.0} requests/s ({reads:.0} reads, {writes:.0} writes), {share} of the server's\n",
        key.hash(),
        cachelet,
        reads + writes,
    )
}

fn of_worker(one: &WorkerCost) -> String {
    format!(
        "by connections of worker {} ({} open): {:.0} of these/s, about {:.3} of its load {:.3}\n",
        one.worker,
        one.connections,
        one.heat.cachelet,
        one.load_of_cachelet(),
        one.load,
    )
}

fn total(asked: &[WorkerCost], of: impl Fn(&Heat) -> f64) -> f64 {
    asked.iter().map(|one| of(&one.heat)).sum()
}

fn percent(part: f64, all: f64) -> String {
    if all > 0.0 { format!("{:.1}%", 100.0 * part / all) } else { "0.0%".into() }
}
