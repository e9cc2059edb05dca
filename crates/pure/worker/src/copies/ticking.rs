//! What is done of copies as time passes: hot keys get them, leases are prolonged, what has cooled ends.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mbal_balance::hot::{Seen, Upkeep, Verdict};
use mbal_model::{Instant, Key, ServerId, WorkerId};
use mbal_replica::{Grant, Home};
use mbal_routing::copies as copies_of;
use mbal_sketch::{KeyRates, Sampler};

use crate::commands::context::Here;
use crate::copies::Copies;
use crate::copies::heat::{RatesByKey, SHARE_LEAST};
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
/// Keys of one server with copies.
const HOT_KEYS_MAX: usize = 512;

/// What a worker remembers from one epoch of its tracker to the next.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ticks {
    /// They come, as long as there is anything to look at.
    are_set: bool,
    heat_at: Instant,
    busy_ns: u64,
    /// Requests executed.
    keyed: u64,
}

impl Ticks {
    /// Begins to look at hot keys and their copies, unless that has begun.
    pub fn begin(&mut self, copies: &Copies, now: Now, wakes: &mut Wakes) {
        if !self.are_set {
            self.later(copies, now, wakes);
        }
    }

    fn later(&mut self, copies: &Copies, now: Now, wakes: &mut Wakes) {
        let in_use = copies.in_use();
        self.are_set = copies.mode() != HotMode::Off || in_use || copies.any_newborn();
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
        if copies.any_newborn() {
            copies.forget_newborn(here.now.instant());
        }
        if copies.mode() != HotMode::Off && self.heat_at + HEAT_EPOCH <= here.now.instant() {
            self.end_heat(shared, &here, sampler);
        }
        tend(shared, sends);
        self.later(copies, here.now, wakes);
    }

    /// Ends an epoch of the tracker; worker 0 decides what is hot.
    fn end_heat(&mut self, shared: &Shared, here: &Here, sampler: &mut Sampler) {
        let (worker, now) = (here.owner.worker, here.now);
        let counters = shared.counters(worker.0.into());
        let elapsed = now.instant() - self.heat_at;
        let (busy_ns, keyed) = (counters.busy_ns.get(), counters.keyed());
        let requests = keyed.saturating_sub(std::mem::replace(&mut self.keyed, keyed));
        let load = (busy_ns - self.busy_ns) as f64 / elapsed.as_nanos() as f64;
        let is_first = self.heat_at == Instant::ZERO;
        self.heat_at = now.instant();
        self.busy_ns = busy_ns;
        if is_first {
            return;
        }
        let copies = &shared.copies;
        copies.hotspots[usize::from(worker.0)].store(load >= HOTSPOT, Relaxed);
        let rate = shared.hot_sample(now.second, worker);
        if sampler.rate() != rate {
            sampler.set_rate(rate);
        }
        let seconds = elapsed.as_secs_f64();
        let has_copies = |hash| copies.homes.may_have(hash);
        let rates =
            copies.heat(worker.0).0.rates(seconds, requests as f64, SHARE_LEAST, has_copies);
        let mut heats = copies.heats.lock();
        heats.tell(worker.0, rates, requests as f64 / seconds);
        if worker == WorkerId(0) {
            let (sum, told) = (heats.sum(), heats.told());
            drop(heats);
            decide(shared, here, sum, &told, seconds);
        }
    }
}

/// `sum`: rates of the last epochs; `told`: those of the last second or so.
fn decide(shared: &Shared, here: &Here, mut sum: RatesByKey, told: &RatesByKey, seconds: f64) {
    let copies = &shared.copies;
    let servers: Vec<ServerId> = {
        let mut all = shared.map.others();
        all.push(shared.here());
        all.sort();
        all
    };
    let (policy, lease_now) = (copies.terms().policy(), here.lease_now);
    let mut backoff = copies.backoff.lock();
    let mut keys = 0;
    copies.homes.each(|hash, one| {
        keys += 1;
        let counted = sum.remove(&hash).filter(|counted| counted.key == one.key);
        let seen = Seen {
            seconds,
            reads: counted.map_or(0.0, |counted| counted.rates.reads),
            answered: std::mem::take(&mut one.answered) as f64,
            written: std::mem::take(&mut one.written) as f64,
            value_bytes: one.value_bytes,
            copies: one.home.shadows().count(),
        };
        match one.upkeep.look(&policy, &seen) {
            Verdict::Copies(wanted) if wanted - 1 > seen.copies => {
                let key = Key::new(&one.key).expect("it was a key");
                for (suffix, server) in copies_of(&key, shared.here(), &servers, wanted - 1) {
                    one.home.widen(suffix, server);
                }
            }
            Verdict::Copies(_) => {}
            Verdict::Cools { back_off } => {
                if back_off {
                    backoff.add(hash, lease_now);
                }
                one.cools();
            }
        }
    });
    let is_hotspot = copies.hotspots.iter().any(|hotspot| hotspot.load(Relaxed));
    if !is_hotspot || servers.len() < 2 || here.lapsed {
        return;
    }
    for (hash, KeyRates { key: name, rates }) in sum {
        if keys >= HOT_KEYS_MAX {
            break;
        }
        let Some(key) = Key::new(&name) else { continue };
        if backoff.has(hash, lease_now) {
            continue;
        }
        let is_here = shared.store.cachelet_of(hash).is_some();
        let moves = shared.moves.list(|one| one.prefix.contains(hash));
        if !is_here || !moves.is_empty() {
            continue;
        }
        let mut nothing = Vec::new();
        let value_bytes =
            shared
                .store
                .read(&key, here.now.second, false, &mut nothing, |view, _| view.value_bytes());
        let Some(value_bytes) = value_bytes else { continue };
        let lately = told.get(&hash).map(|known| &known.rates);
        let wanted = policy.copies_for_new(&rates, lately, value_bytes);
        if wanted < 2 {
            continue;
        }
        let places = copies_of(&key, shared.here(), &servers, wanted - 1);
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
