//! What each worker can do in a second: its speed while it runs, times the part of a core that it gets.
//!
//! The part shows only in who is busy: a quota does not stop a worker that has time left, nor do others that use its core. And the
//! speed shows only in who has something to do: a worker that wakes up for each request seems slow, since its caches have gone cold.

use std::collections::BTreeMap;

use mbal_model::{Owner, WorkerLoad};

/// The newest epoch's part. What a move takes is no work: a capacity falls late.
const NEWEST: f64 = 0.3;
const FALLS: f64 = 0.1;
/// Work for each load that differs by this part is taken anew: a quota is used up now, or is not any more.
const ANEW: f64 = 0.5;
/// So many keys show what a worker can do; fewer count for less.
const KEYS: f64 = 1000.0;
/// So many show its speed, or as much load as the part of a core needs.
const SPEED_KEYS: u64 = 4000;
const PART_LOAD: f64 = 0.75;
/// Who is not as busy could do so many times what it does.
const SPARE: f64 = 1.5;

/// Remembers from epoch to epoch. Work has no unit here: a worker does as much as is said of its capacity.
#[derive(Default)]
pub(crate) struct Capacities {
    /// Work for each load.
    rates: BTreeMap<Owner, f64>,
    speeds: BTreeMap<Owner, f64>,
    parts: BTreeMap<Owner, f64>,
    /// What all of that comes to.
    all: BTreeMap<Owner, f64>,
}

impl Capacities {
    /// An epoch of all workers that were heard of. What is not among them is forgotten.
    /// `moves`: who gives or takes cachelets does less beside it.
    pub fn observe<'w>(
        &mut self,
        workers: impl Iterator<Item = &'w WorkerLoad> + Clone,
        moves: impl Fn(Owner) -> bool,
    ) {
        // An epoch in which others took the core says little: who is new begins with what the others have shown.
        let mean_part = mean(self.parts.values());
        for worker in workers.clone() {
            let (at, service, load) = (worker.at, worker.service, worker.load());
            if service.capacity <= 0.0 || load <= 0.0 {
                continue;
            }
            // An older version tells no part; there all is taken for what it seems.
            let (part, is_told) = match service.part {
                Some(part) if part > 0.0 => (part, true),
                _ => (1.0, false),
            };
            let weight = match moves(at) {
                true => 0.0,
                false => (service.keys as f64 / KEYS).min(1.0),
            };
            let is_busy = !is_told || load >= PART_LOAD;
            learn(&mut self.rates, at, service.capacity, weight, is_told && !moves(at));
            if is_busy || service.keys >= SPEED_KEYS || self.speeds.contains_key(&at) {
                learn(&mut self.speeds, at, service.capacity / part, weight, false);
            }
            if is_busy {
                self.parts.entry(at).or_insert(mean_part.unwrap_or(part));
                learn(&mut self.parts, at, part, weight, false);
            }
        }
        let done = |one: &WorkerLoad| one.load() * self.rate(one.at);
        let most_done = workers.clone().map(done).fold(0.0, f64::max);
        let present = || workers.clone().map(|one| one.at);
        let least = |of: &BTreeMap<Owner, f64>| {
            present().filter_map(|at| of.get(&at).copied()).reduce(f64::min)
        };
        let usual_part = mean(self.parts.values()).unwrap_or(1.0);
        let presumed = least(&self.speeds).unwrap_or(SPARE * most_done / usual_part);
        let capacity = |one: &WorkerLoad| {
            let speed = self.speeds.get(&one.at).copied();
            let all = speed.unwrap_or(presumed);
            match (self.parts.get(&one.at), speed) {
                (Some(part), _) => all * part,
                // As good as others, or better if it does nearly as much and has time left.
                (None, Some(_)) => (all * usual_part).max((SPARE * done(one)).min(all)),
                (None, None) => (all * usual_part).max(SPARE * done(one)),
            }
        };
        let all = workers.clone().map(|one| (one.at, capacity(one)));
        self.all = all.collect();
        for of in [&mut self.rates, &mut self.speeds, &mut self.parts] {
            of.retain(|at, _| self.all.contains_key(at));
        }
    }

    /// Work in a second.
    pub fn of(&self, at: Owner) -> f64 {
        self.all.get(&at).copied().filter(|one| *one > 0.0).unwrap_or(1.0)
    }

    /// Work for each load, by which loads are compared. Where nobody tells it, all are alike.
    pub fn rate(&self, at: Owner) -> f64 {
        self.rates.get(&at).copied().unwrap_or(1.0)
    }
}

fn mean<'a>(all: impl ExactSizeIterator<Item = &'a f64>) -> Option<f64> {
    let count = all.len();
    (count > 0).then(|| all.sum::<f64>() / count as f64)
}

fn learn(of: &mut BTreeMap<Owner, f64>, at: Owner, now: f64, weight: f64, may_jump: bool) {
    let known = of.entry(at).or_insert(now);
    if may_jump && (now - *known).abs() >= ANEW * *known {
        *known = now;
        return;
    }
    let newest = if now < *known { FALLS } else { NEWEST };
    *known += newest * weight * (now - *known);
}

#[cfg(test)]
mod tests {
    use mbal_model::{CacheletLoad, Prefix, ServerId, Service, WorkerId};

    use super::*;

    /// Of a core of speed 1: the part of it that the worker gets, and its load.
    fn worker(server: u16, part: f64, load: f64) -> WorkerLoad {
        let (cachelet, at) = (Prefix::nth(0, 1), ServerId(server));
        WorkerLoad {
            at: Owner { server: at, worker: WorkerId(0) },
            service: Service {
                capacity: part,
                part: Some(part),
                keys: (100_000.0 * part * load) as u64,
                ..Service::default()
            },
            fixed: 0.0,
            bytes_max: 0,
            cachelets: vec![CacheletLoad { cachelet, load, bytes: 0, pinned: false }],
        }
    }

    /// Part and load of each.
    type Both = ((f64, f64), (f64, f64));

    /// The second worker's capacity by the first one's, after epochs with such parts and loads of both.
    fn ratio(epochs: &[Both]) -> f64 {
        let mut capacities = Capacities::default();
        let mut ratio = 0.0;
        for &((part, load), (other_part, other_load)) in epochs {
            let all = [worker(1, part, load), worker(2, other_part, other_load)];
            capacities.observe(all.iter(), |_| false);
            ratio = capacities.of(all[1].at) / capacities.of(all[0].at);
        }
        (ratio * 100.0).round() / 100.0
    }

    #[test]
    fn one_epoch_in_which_others_took_the_core_says_little() {
        let calm = ((0.2, 1.0), (1.0, 0.01));
        let starved = ((0.2, 1.0), (0.02, 1.0));
        assert_eq!(ratio(&[calm]), 1.0);
        assert_eq!(ratio(&[calm, starved]), 0.91);
        assert!(ratio(&[[calm].as_slice(), &[starved; 30]].concat()) < 0.2);
    }
}
