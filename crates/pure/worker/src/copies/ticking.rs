//! What is done of copies as time passes: hot keys get them, leases are prolonged, what has cooled ends.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mbal_balance::hot::{STILL_HOT, Seen, Upkeep, Verdict};
use mbal_model::{Instant, Key, ServerId, WorkerId};
use mbal_replica::{Grant, Home};
use mbal_routing::copies as copies_of;
use mbal_sketch::{KeyRates, Sampler};

use crate::commands::context::Here;
use crate::copies::heat::RatesByKey;
use crate::copies::home::HomeKey;
use crate::copies::sends::Sends;
use crate::copies::table::SHARDS;
use crate::copies::terms::HotMode;
use crate::sessions::wakes::{Sleeper, Wakes};
use crate::shared::Shared;
use crate::time::Now;

/// An epoch of the trackers: a key is hot for its home within two of them.
const HEAT_EPOCH: Duration = Duration::from_millis(200);
/// While there are copies they are looked at this often.
const COPIES_EVERY: Duration = Duration::from_millis(20);
/// The load from which on a worker looks for hot keys.
const HOTSPOT: f64 = 0.5;
/// A worker that runs for so much of the time fills its core.
const FILLS_CORE: f64 = 0.9;
/// The newest look's part in how much a worker runs: the kernel's account is read every 50 ms.
const RAN_SMOOTHING: f64 = 0.3;
/// Keys of one server with copies.
const HOT_KEYS_MAX: usize = 512;

/// What a worker remembers from one epoch of its tracker to the next.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ticks {
    /// They come, as long as there is anything to look at.
    are_set: bool,
    heat_at: Instant,
    busy_ns: u64,
    ran_ns: u64,
    /// The part of the time in which it has run of late.
    ran: f64,
}

impl Ticks {
    /// Begins to look at hot keys and their copies, unless that has begun.
    pub fn begin(&mut self, shared: &Shared, now: Now, wakes: &mut Wakes) {
        if !self.are_set {
            self.later(shared, now, wakes);
        }
    }

    /// Looks at once, if cachelets have begun empty: other servers are to be asked.
    pub fn hasten(&mut self, shared: &Shared, now: Now, wakes: &mut Wakes) {
        if shared.copies.newborns.any() {
            wakes.forget(Sleeper::Copies);
            wakes.set(now.instant(), Sleeper::Copies);
            self.are_set = true;
        }
    }

    fn later(&mut self, shared: &Shared, now: Now, wakes: &mut Wakes) {
        let in_use = shared.copies.in_use() || shared.copies.newborns.any();
        self.are_set = shared.looks_for_hot_keys() || in_use;
        if self.are_set {
            let pause = if in_use { COPIES_EVERY } else { HEAT_EPOCH };
            wakes.set(now.instant() + pause, Sleeper::Copies);
        }
    }

    /// Its moment has come.
    pub fn tick(
        &mut self,
        shared: &Shared,
        sampler: &mut Sampler,
        sends: &mut Sends<'_>,
        wakes: &mut Wakes,
    ) {
        let (copies, here) = (&shared.copies, sends.here);
        copies.latest_ns.fetch_max(here.lease_now.as_nanos(), Relaxed);
        if copies.newborns.any() {
            copies.newborns.forget(here.now.instant());
            copies.newborns.ask(here.now.instant(), |server, prefix, fence| {
                sends.fence(server, prefix, fence)
            });
        }
        if shared.looks_for_hot_keys() && self.heat_at + HEAT_EPOCH <= here.now.instant() {
            self.end_heat(shared, sends, sampler);
        }
        tend(shared, sends);
        self.later(shared, here.now, wakes);
    }

    /// Ends an epoch of the tracker; worker 0 decides what is hot.
    fn end_heat(&mut self, shared: &Shared, sends: &mut Sends<'_>, sampler: &mut Sampler) {
        let (worker, now) = (sends.here.owner.worker, sends.here.now);
        let counters = shared.counters(worker.0.into());
        let elapsed = now.instant() - self.heat_at;
        let (busy_ns, ran_ns) = (counters.busy_ns.get(), counters.ran_ns.get());
        let load = (busy_ns - self.busy_ns) as f64 / elapsed.as_nanos() as f64;
        let ran = (ran_ns - self.ran_ns) as f64 / elapsed.as_nanos() as f64;
        let copies = &shared.copies;
        if self.heat_at == Instant::ZERO {
            copies.heat(worker.0).end_epoch(1.0, |_| false);
            (self.heat_at, self.busy_ns, self.ran_ns) = (now.instant(), busy_ns, ran_ns);
            return;
        }
        (self.heat_at, self.busy_ns, self.ran_ns) = (now.instant(), busy_ns, ran_ns);
        self.ran += RAN_SMOOTHING * (ran - self.ran);
        let at = usize::from(worker.0);
        copies.hotspots[at].store(load >= HOTSPOT, Relaxed);
        // Not every kernel says for how long it has run.
        let is_limited = copies.quotas[at].load(Relaxed) || ran == 0.0 || self.ran >= FILLS_CORE;
        copies.limited[at].store(is_limited, Relaxed);
        let rate = shared.hot_sample(now.second, worker);
        if sampler.rate() != rate {
            sampler.set_rate(rate);
        }
        let seconds = elapsed.as_secs_f64();
        let has_copies = |hash| copies.homes.may_have(hash);
        let (rates, requests) = copies.heat(worker.0).end_epoch(seconds, has_copies);
        let mut heats = copies.heats.lock();
        heats.tell(worker.0, rates, requests, load);
        if worker == WorkerId(0) {
            let now = now.instant();
            let (sum, lately, own) = (heats.sum(), heats.told(), heats.own_threshold());
            let wanted = heats.wanted(now);
            let effort = copies.effort();
            heats.one_machine.look(effort, now);
            let relieves = heats.one_machine.relieves(now);
            drop(heats);
            let is_hotspot = effort.is_busy;
            let relieves = match copies.mode() {
                HotMode::Off => return,
                // Who has chosen it wants copies.
                HotMode::Async => true,
                HotMode::Atomic => relieves || !shared.map.is_on_one_machine(),
            };
            let (here, others) = sum.into_iter().partition(|(hash, _)| is_here(shared, *hash));
            want(shared, sends, others, own, is_hotspot);
            let epoch = Epoch { rates: here, lately, own, wanted, is_hotspot, relieves, seconds };
            decide(shared, &sends.here, epoch);
        }
    }
}

fn is_here(shared: &Shared, hash: u64) -> bool {
    shared.store.cachelet_of(hash).is_some()
}

/// What is known of a server's keys at the end of an epoch.
struct Epoch {
    /// In the last epochs, and in the last second or so.
    rates: RatesByKey,
    lately: RatesByKey,
    /// T as the server itself knows it.
    own: f64,
    /// By key, the servers that want copies.
    wanted: BTreeMap<u64, Vec<ServerId>>,
    is_hotspot: bool,
    /// Copies may relieve this server. Those that others want relieve them: they need not ask for each read.
    relieves: bool,
    seconds: f64,
}

/// Keys of others of which a server wants copies at a time.
const WANTED_MAX: usize = 16;

/// Asks the homes of others' keys that heat this server for copies.
fn want(shared: &Shared, sends: &mut Sends<'_>, others: RatesByKey, own: f64, is_hotspot: bool) {
    let heats = |(hash, one): &(u64, KeyRates)| {
        let is_copied = shared.copies.shadows.may_have(*hash);
        let at_least = if is_copied { own * STILL_HOT } else { own };
        (is_hotspot || is_copied) && one.rates.all() >= at_least
    };
    let mut hot: Vec<(u64, KeyRates)> = others.into_iter().filter(heats).collect();
    hot.sort_by(|a, b| b.1.rates.all().total_cmp(&a.1.rates.all()));
    for (hash, one) in hot.iter().take(WANTED_MAX) {
        sends.want(*hash, &one.key);
    }
}

/// Which keys have copies from now on, and how many.
fn decide(shared: &Shared, here: &Here, epoch: Epoch) {
    let Epoch { mut rates, lately, own, wanted, is_hotspot, relieves, seconds } = epoch;
    let copies = &shared.copies;
    let servers: Vec<ServerId> = {
        let mut all = shared.map.others();
        all.push(shared.here());
        all.sort();
        all
    };
    let (policy, lease_now) = (copies.terms().policy(own), here.lease_now);
    // Where this many copies are, and those that servers want.
    let places = |key: &Key<'_>, count: usize| {
        let mut places = copies_of(key, shared.here(), &servers, count);
        let wanting = wanted.get(&key.hash()).into_iter().flatten();
        let mut all = Vec::new();
        for server in wanting.filter(|server| servers.contains(server)) {
            if all.is_empty() {
                all = copies_of(key, shared.here(), &servers, servers.len());
            }
            let place = all.iter().find(|(_, at)| at == server);
            places.extend(place.filter(|place| !places.contains(place)));
        }
        places
    };
    let mut backoff = copies.backoff.lock();
    let mut keys = 0;
    copies.homes.each(|hash, one| {
        keys += 1;
        let counted = rates.remove(&hash).filter(|counted| counted.key == one.key);
        let seen = Seen {
            seconds,
            reads: counted.map_or(0.0, |counted| counted.rates.reads),
            answered: std::mem::take(&mut one.answered) as f64,
            written: std::mem::take(&mut one.written) as f64,
            waited: std::mem::take(&mut one.waited).as_secs_f64(),
            value_bytes: one.value_bytes,
            copies: one.home.shadows().count(),
            is_wanted: wanted.contains_key(&hash),
        };
        let verdict = one.upkeep.look(&policy, &seen);
        if !relieves && !seen.is_wanted {
            one.cools();
            return;
        }
        match verdict {
            Verdict::Copies(count) if count - 1 > seen.copies || seen.is_wanted => {
                let count = if relieves { count } else { 1 };
                let key = Key::new(&one.key).expect("it was a key");
                for (suffix, server) in places(&key, count - 1) {
                    one.home.widen(suffix, server);
                }
            }
            Verdict::Copies(_) => {}
            Verdict::Cools { back_off } => {
                if back_off {
                    backoff.add(hash, one.upkeep.writes_bearable(), lease_now);
                }
                one.cools();
            }
        }
    });
    if servers.len() < 2 || here.lapsed {
        return;
    }
    let heats_home = is_hotspot && relieves;
    let is_hot = |hash: u64| heats_home || wanted.contains_key(&hash);
    for (hash, KeyRates { key: name, rates }) in rates.into_iter().filter(|one| is_hot(one.0)) {
        if keys >= HOT_KEYS_MAX {
            break;
        }
        let Some(key) = Key::new(&name) else { continue };
        let lately = lately.get(&hash).map(|known| &known.rates);
        let writes = lately.map_or(0.0, |rates| rates.writes).max(rates.writes);
        if backoff.has(hash, writes, lease_now) {
            continue;
        }
        let moves = shared.moves.list(|one| one.prefix.contains(hash));
        if !moves.is_empty() {
            continue;
        }
        let mut nothing = Vec::new();
        let value_bytes =
            shared
                .store
                .read(&key, here.now.second, false, &mut nothing, |view, _| view.value_bytes());
        let Some(value_bytes) = value_bytes else { continue };
        let count = match heats_home {
            true => policy.copies_for_new(&rates, lately, value_bytes),
            false => 1,
        };
        let is_wanted = wanted.contains_key(&hash) && policy.allows(&rates);
        if count < 2 && !is_wanted {
            continue;
        }
        let places = places(&key, count - 1);
        if places.is_empty() {
            continue;
        }
        let count = copies.grants.fetch_add(1, Relaxed);
        let grant = Grant::new(shared.map_version(), count);
        let home = Home::new(copies.home_terms(), grant, &places);
        copies.in_use.store(true, Relaxed);
        let one = HomeKey {
            key: name.clone(),
            home,
            stamp: Some(u64::MAX),
            since: copies.latest(),
            upkeep: Upkeep::new(rates),
            value_bytes,
            answered: 0,
            written: 0,
            waited: Duration::ZERO,
        };
        if copies.homes.insert(hash, one) {
            keys += 1;
            // From now on every batch that begins finds it.
            let stamp = shared.store.stamp_batches();
            let mut homes = copies.homes.lock(hash);
            if let Some(one) = homes.get_mut(&hash) {
                one.stamp = Some(stamp);
            }
        }
    }
}

/// Tends the keys of this worker's shards: those that are here, and copies of others'.
fn tend(shared: &Shared, sends: &mut Sends<'_>) {
    let (copies, here) = (&shared.copies, sends.here);
    if !copies.in_use() {
        return;
    }
    let mut left = false;
    let workers = usize::from(shared.settings.workers);
    for at in (usize::from(here.owner.worker.0)..SHARDS).step_by(workers) {
        copies.homes.retain(at, |hash, one| {
            // What is not this server's any more has no home here: its shadows' leases run out.
            if here.lapsed || shared.store.cachelet_of(hash).is_none() {
                return false;
            }
            sends.say(hash, one);
            left = true;
            !one.home.is_over(here.lease_now)
        });
        copies.shadows.tidy(at, here.lease_now);
        left |= !copies.shadows.is_empty_at(at);
    }
    if here.owner.worker == WorkerId(0) && !left {
        // Who begins to use it again says so.
        let any = !copies.homes.is_empty() || !copies.shadows.is_empty();
        copies.in_use.store(any, Relaxed);
    }
}
