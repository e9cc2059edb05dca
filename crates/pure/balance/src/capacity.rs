//! What each worker can do in a second: its speed while it runs, times the part of a core that it gets.
//!
//! The part shows only in who is busy: a quota does not stop a worker that has time left, nor do others that use its core. And the
//! speed shows only in who has something to do: a worker that wakes up for each request seems slow, since its caches have gone cold.
//! What is asked makes all workers seem faster or slower, by factors: full batches and hot keys are cheap. So speeds are compared
//! among those who show one in the same epoch, and who shows one alone shows nothing.

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
    /// By those of the others: 1 is usual.
    speeds: BTreeMap<Owner, f64>,
    /// Work in a second that a worker of speed 1 ran, in the last epoch that showed it.
    usual_speed: Option<f64>,
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
        let mut shown = Vec::new();
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
            if is_busy || service.keys >= SPEED_KEYS {
                shown.push((at, service.capacity / part, weight));
            }
            if is_busy {
                self.parts.entry(at).or_insert(mean_part.unwrap_or(part));
                learn(&mut self.parts, at, part, weight, false);
            }
        }
        self.compare(&shown);
        let usual_part = mean(self.parts.values()).unwrap_or(1.0);
        let capacity = |one: &WorkerLoad| {
            let speed = self.speed(one.at);
            // As good as others, or better if it does nearly as much and has time left.
            let does =
                || self.usual_speed.map_or(0.0, |usual| one.load() * self.rate(one.at) / usual);
            match self.parts.get(&one.at) {
                Some(part) => speed * part,
                None => (speed * usual_part).max((SPARE * does()).min(speed)),
            }
        };
        let all = workers.clone().map(|one| (one.at, capacity(one)));
        self.all = all.collect();
        for of in [&mut self.rates, &mut self.speeds, &mut self.parts] {
            of.retain(|at, _| self.all.contains_key(at));
        }
    }

    /// Speeds that were shown in one epoch, and what each of them counts for.
    fn compare(&mut self, shown: &[(Owner, f64, f64)]) {
        if shown.is_empty() {
            return;
        }
        // Where nobody tells keys all count alike.
        let counts = |weight: f64| weight.max(f64::EPSILON);
        let weights: f64 = shown.iter().map(|(_, _, weight)| counts(*weight)).sum();
        let usual =
            |&(at, speed, weight): &(Owner, f64, f64)| counts(weight) * speed / self.speed(at);
        let usual = shown.iter().map(usual).sum::<f64>() / weights;
        for &(at, speed, weight) in shown {
            learn(&mut self.speeds, at, speed / usual, weight, false);
        }
        self.usual_speed = Some(usual);
    }

    fn speed(&self, at: Owner) -> f64 {
        self.speeds.get(&at).copied().unwrap_or(1.0)
    }

    /// Work in a second, of a worker of speed 1 that has a core.
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

    /// Of a core: the part of it that the worker gets, its load, and how fast what it is asked makes it seem.
    fn worker(server: u16, part: f64, load: f64, seems: f64) -> WorkerLoad {
        let (cachelet, at) = (Prefix::nth(0, 1), ServerId(server));
        WorkerLoad {
            at: Owner { server: at, worker: WorkerId(0) },
            service: Service {
                capacity: part * seems,
                part: Some(part),
                keys: (100_000.0 * part * load * seems) as u64,
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
            let all = [worker(1, part, load, 1.0), worker(2, other_part, other_load, 1.0)];
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

    #[test]
    fn who_is_asked_what_is_cheap_is_not_faster() {
        let mut capacities = Capacities::default();
        let even = [worker(1, 0.2, 1.0, 1.0), worker(2, 0.2, 1.0, 1.0)];
        let hot = [worker(1, 0.2, 1.0, 3.0), worker(2, 0.2, 0.02, 0.5)];
        for all in [[&even].as_slice(), &[&hot; 20]].concat() {
            capacities.observe(all.iter(), |_| false);
        }
        let [one, other] = hot.map(|worker| capacities.of(worker.at));
        assert_eq!(one, other);
        // Both are asked that, and one does less of it.
        let differ = [worker(1, 0.2, 1.0, 3.0), worker(2, 0.2, 1.0, 1.5)];
        (0..40).for_each(|_| capacities.observe(differ.iter(), |_| false));
        let [one, other] = differ.map(|worker| capacities.of(worker.at));
        assert!((1.8..2.2).contains(&(one / other)), "{one} {other}");
    }
}
