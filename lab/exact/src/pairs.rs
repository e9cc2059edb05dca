//! Local search for few cachelets: two workers at a time, split in the best of all ways.
//!
//! With two cachelets a worker, a pair has 16 splits, which hold all moves, swaps and two-for-one exchanges
//! between them. A sweep over 8 workers is 28 pairs, about 1 µs.

use mbal_random::Random;

use crate::model::{Bin, EXCESS_WEIGHT, LOAD_EPSILON, Model, Objective, Placement};
use crate::search::SEED;

/// Sets of balls are bits of a u64.
pub(crate) const BALLS_MAX: usize = 64;

/// A pair with more cachelets than this splits only as far as the heaviest ones go.
const SPLIT_BALLS_MAX: usize = 8;

/// What one of two bins holds after a split, its load and its bytes.
type Split = (u64, f64, u64);

/// The balls that both bins of a pair may hold.
struct Free {
    balls: [u8; SPLIT_BALLS_MAX],
    count: usize,
    set: u64,
}

pub(crate) struct Pairs<'m> {
    model: &'m Model,
    ball_loads: Vec<f64>,
    /// Moves are free, memory cannot run out, and all workers have the same limit.
    loads_alone: bool,
    least_limit: f64,
    average: f64,
    /// 1 if the distance to the average costs, 0 if excess alone does.
    evenness: f64,
    price: f64,
    load_caps: Vec<f64>,
    byte_caps: Vec<u64>,
    loads: Vec<f64>,
    bytes: Vec<u64>,
    held: Vec<u64>,
    /// Bins that changed since their pairs were last split.
    stale: u64,
    /// By bin: the others with which it was split since either changed.
    split_with: Vec<u64>,
    /// Loads of every split of a pair; kept, for clearing it would cost more than filling it.
    sums: [f64; 1 << SPLIT_BALLS_MAX],
}

impl<'m> Pairs<'m> {
    /// None for what this search cannot hold: more than 64 balls or bins, or an objective that is no
    /// sum over bins.
    pub fn new(model: &'m Model, placement: &[u32]) -> Option<Pairs<'m>> {
        let (average, evenness) = match model.objective {
            Objective::Evenest { average, .. } => (average, 1.0),
            Objective::FewestMoves => (0.0, 0.0),
            Objective::Closest { .. } => return None,
        };
        if model.balls.len() > BALLS_MAX || model.bins.len() > 64 {
            return None;
        }
        let mut held = vec![0; model.bins.len()];
        for (ball, &bin) in placement.iter().enumerate() {
            held[bin as usize] |= 1 << ball;
        }
        let byte_caps = model.byte_caps();
        let all_bytes: u64 = model.balls.iter().map(|ball| ball.bytes).sum();
        let roomy = |(bin, cap): (&Bin, &u64)| bin.bytes_fixed + all_bytes <= *cap;
        Some(Pairs {
            model,
            ball_loads: model.balls.iter().map(|ball| ball.load).collect(),
            loads_alone: evenness == 1.0
                && model.move_price() == 0.0
                && model.bins.iter().all(|bin| bin.limit == model.bins[0].limit)
                && model.bins.iter().zip(&byte_caps).all(roomy),
            least_limit: model.bins.iter().map(|bin| bin.limit).fold(f64::INFINITY, f64::min),
            average,
            evenness,
            price: model.move_price(),
            load_caps: model.load_caps(),
            byte_caps,
            loads: model.loads(placement),
            bytes: model.bytes(placement),
            held,
            stale: u64::MAX,
            split_with: vec![0; model.bins.len()],
            sums: [0.0; 1 << SPLIT_BALLS_MAX],
        })
    }

    /// Splits pairs until no split helps, then shakes and does so again, up to `shakes` times or until no
    /// placement can be better. Returns the best placement. O(shakes · bins² · 2^balls of a pair).
    pub fn search(&mut self, shakes: u32) -> Placement {
        self.settle();
        let mut best_cost = self.cost();
        let mut best = (self.held.clone(), self.loads.clone(), self.bytes.clone());
        let mut random = Random::new(SEED);
        let least = if self.evenness > 0.0 { self.model.lower_bound() } else { 0.0 };
        for _ in 0..shakes {
            if best_cost <= least + LOAD_EPSILON {
                break;
            }
            self.shake(&mut random);
            self.settle();
            let cost = self.cost();
            if cost < best_cost - LOAD_EPSILON {
                best_cost = cost;
                best.0.copy_from_slice(&self.held);
                best.1.copy_from_slice(&self.loads);
                best.2.copy_from_slice(&self.bytes);
            } else {
                self.held.copy_from_slice(&best.0);
                self.loads.copy_from_slice(&best.1);
                self.bytes.copy_from_slice(&best.2);
            }
            // Both are settled: every pair of them is split as well as it can be.
            self.split_with.fill(u64::MAX);
        }
        let mut placement = vec![0; self.model.balls.len()];
        for (bin, &set) in best.0.iter().enumerate() {
            members(set).for_each(|ball| placement[ball] = bin as u32);
        }
        placement
    }

    fn settle(&mut self) {
        let bins = self.held.len();
        while self.stale != 0 {
            let bin = self.stale.trailing_zeros() as usize;
            self.stale &= self.stale - 1;
            if bin >= bins {
                return self.stale = 0;
            }
            for other in (0..bins).filter(|other| *other != bin) {
                if self.split_with[bin] >> other & 1 == 1 {
                    continue;
                }
                if self.split(bin, other) {
                    self.changed(bin);
                    self.changed(other);
                }
                self.split_with[bin] |= 1 << other;
                self.split_with[other] |= 1 << bin;
            }
        }
    }

    fn changed(&mut self, bin: usize) {
        self.stale |= 1 << bin;
        self.split_with[bin] = 0;
        self.split_with.iter_mut().for_each(|others| *others &= !(1 << bin));
    }

    #[inline]
    fn bin_cost(&self, bin: usize, load: f64) -> f64 {
        EXCESS_WEIGHT * (load - self.model.bins[bin].limit).max(0.0)
            + self.evenness * (load - self.average).abs()
    }

    fn cost(&self) -> f64 {
        let bins: f64 = (0..self.held.len()).map(|bin| self.bin_cost(bin, self.loads[bin])).sum();
        if self.price == 0.0 {
            return bins;
        }
        let away = |bin: usize| {
            members(self.held[bin]).filter(|ball| self.model.balls[*ball].home != bin).count()
        };
        bins + self.price * (0..self.held.len()).map(away).sum::<usize>() as f64
    }

    fn may_hold(&self, bin: usize, ball: usize) -> bool {
        self.model.bins[bin].takes || self.model.balls[ball].home == bin
    }

    /// Takes the best split of what two bins hold. O(2^balls of both), at most 2^[`SPLIT_BALLS_MAX`].
    fn split(&mut self, a: usize, b: usize) -> bool {
        let now = self.bin_cost(a, self.loads[a]) + self.bin_cost(b, self.loads[b]);
        // Two workers on the same side of the average are as even as their sum lets them be.
        let least = self.evenness * (self.loads[a] + self.loads[b] - 2.0 * self.average).abs();
        if self.price == 0.0 && now <= least + LOAD_EPSILON {
            return false;
        }
        let mut free = Free { balls: [0; SPLIT_BALLS_MAX], count: 0, set: 0 };
        for ball in members(self.held[a] | self.held[b]) {
            if free.count < SPLIT_BALLS_MAX && self.may_hold(a, ball) && self.may_hold(b, ball) {
                free.balls[free.count] = ball as u8;
                free.count += 1;
                free.set |= 1 << ball;
            }
        }
        let highest = self.average.max(self.loads[a] + self.loads[b] - self.average);
        let best = match self.loads_alone && highest <= self.least_limit {
            true => self.nearest_split(a, b, &free, now),
            false => self.cheapest_split(a, b, &free, now),
        };
        let Some((in_a, a_load, a_bytes)) = best else { return false };
        let (both, both_bytes) = (self.loads[a] + self.loads[b], self.bytes[a] + self.bytes[b]);
        self.held[b] = (self.held[a] | self.held[b]) & !in_a;
        self.held[a] = in_a;
        (self.loads[a], self.loads[b]) = (a_load, both - a_load);
        (self.bytes[a], self.bytes[b]) = (a_bytes, both_bytes - a_bytes);
        true
    }

    /// Where loads alone count, a split is as good as the load of `a` is near to the interval between
    /// the average and what leaves `b` the average: one distance to compare for each split. All
    /// workers have one limit, and that interval lies below it.
    fn nearest_split(&mut self, a: usize, b: usize, free: &Free, now: f64) -> Option<Split> {
        let both = self.loads[a] + self.loads[b];
        let mirrored = both - self.average;
        let (low, high) = (self.average.min(mirrored), self.average.max(mirrored));
        let stays = self.held[a] & !free.set;
        let sums = &mut self.sums;
        sums[0] = self.loads[a]
            - members(self.held[a] & free.set).map(|ball| self.ball_loads[ball]).sum::<f64>();
        let mut filled = 1;
        for &ball in &free.balls[..free.count] {
            let load = self.ball_loads[ball as usize];
            let (sums, larger) = sums.split_at_mut(filled);
            sums.iter().zip(larger).for_each(|(sum, larger)| *larger = sum + load);
            filled *= 2;
        }
        // Nothing is as far away as this, so that there are four at least.
        sums[filled..]
            .iter_mut()
            .take(4usize.saturating_sub(filled))
            .for_each(|sum| *sum = f64::MAX);
        let distance = |a_load: f64| {
            let (below, above) = (low - a_load, a_load - high);
            let outside = if below > above { below } else { above };
            if outside > 0.0 { outside } else { 0.0 }
        };
        // Four at a time, which do not wait for each other.
        let mut nearest = [f64::INFINITY; 4];
        for four in sums[..filled.max(4)].chunks_exact(4) {
            for (nearest, &a_load) in nearest.iter_mut().zip(four) {
                let distance = distance(a_load);
                *nearest = if distance < *nearest { distance } else { *nearest };
            }
        }
        let nearest = nearest.into_iter().fold(f64::INFINITY, f64::min);
        let chosen = sums.iter().position(|a_load| distance(*a_load) == nearest);
        let chosen = chosen.expect("the nearest is one of them");
        let a_load = sums[chosen];
        let cost = self.bin_cost(a, a_load) + self.bin_cost(b, both - a_load);
        if cost >= now - LOAD_EPSILON {
            return None;
        }
        if a_load > self.load_caps[a] || both - a_load > self.load_caps[b] {
            return self.cheapest_split(a, b, free, now);
        }
        let given = (0..free.count).filter(|ball| chosen >> ball & 1 == 1);
        let in_a = given.fold(stays, |set, ball| set | 1 << free.balls[ball]);
        let bytes = |set| members(set).map(|ball| self.model.balls[ball].bytes).sum::<u64>();
        Some((in_a, a_load, self.bytes[a] + bytes(in_a) - bytes(self.held[a])))
    }

    /// Any caps and prices, in Gray's order: one ball changes sides at a time.
    fn cheapest_split(&self, a: usize, b: usize, free: &Free, now: f64) -> Option<Split> {
        let balls = &self.model.balls;
        let (mut a_load, both) = (self.loads[a], self.loads[a] + self.loads[b]);
        let (mut a_bytes, both_bytes) = (self.bytes[a], self.bytes[a] + self.bytes[b]);
        let mut in_a = self.held[a];
        let mut moves = 0.0;
        let mut best = (now - LOAD_EPSILON, None);
        for step in 1..1u32 << free.count {
            let ball = usize::from(free.balls[step.trailing_zeros() as usize]);
            let home = balls[ball].home;
            let into_a = in_a >> ball & 1 == 0;
            in_a ^= 1 << ball;
            let sign = if into_a { 1.0 } else { -1.0 };
            a_load += sign * balls[ball].load;
            moves += sign * (f64::from(home == b) - f64::from(home == a));
            a_bytes =
                if into_a { a_bytes + balls[ball].bytes } else { a_bytes - balls[ball].bytes };
            let b_load = both - a_load;
            let cost = self.bin_cost(a, a_load) + self.bin_cost(b, b_load) + self.price * moves;
            if cost < best.0
                && a_load <= self.load_caps[a]
                && b_load <= self.load_caps[b]
                && a_bytes <= self.byte_caps[a]
                && both_bytes - a_bytes <= self.byte_caps[b]
            {
                best = (cost, Some((in_a, a_load, a_bytes)));
            }
        }
        best.1
    }

    /// A few balls change places with each other, as far as the caps let them.
    fn shake(&mut self, random: &mut Random) {
        let bins = self.held.len() as u64;
        for _ in 0..3 {
            let (from, to) = (random.below(bins) as usize, random.below(bins) as usize);
            let (Some(given), Some(taken)) =
                (pick(self.held[from], random), pick(self.held[to], random))
            else {
                continue;
            };
            let (out, back) = (&self.model.balls[given], &self.model.balls[taken]);
            let from_load = self.loads[from] - out.load + back.load;
            let to_load = self.loads[to] + out.load - back.load;
            let from_bytes = self.bytes[from] + back.bytes - out.bytes;
            let to_bytes = self.bytes[to] + out.bytes - back.bytes;
            if from == to
                || from_load > self.load_caps[from]
                || to_load > self.load_caps[to]
                || from_bytes > self.byte_caps[from]
                || to_bytes > self.byte_caps[to]
                || !self.may_hold(to, given)
                || !self.may_hold(from, taken)
            {
                continue;
            }
            self.held[from] ^= 1 << given | 1 << taken;
            self.held[to] ^= 1 << given | 1 << taken;
            (self.loads[from], self.loads[to]) = (from_load, to_load);
            (self.bytes[from], self.bytes[to]) = (from_bytes, to_bytes);
            self.changed(from);
            self.changed(to);
        }
    }
}

fn pick(set: u64, random: &mut Random) -> Option<usize> {
    let count = u64::from(set.count_ones());
    (count > 0).then(|| {
        let nth = random.below(count) as usize;
        members(set).nth(nth).expect("fewer than the set has")
    })
}

fn members(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let ball = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (ball < 64).then_some(ball as usize)
    })
}
