//! Local search for few cachelets: two workers at a time, split in the best of all ways.
//!
//! With two cachelets a worker, a pair has 16 splits, which hold all moves, swaps and two-for-one exchanges
//! between them. A sweep over 8 workers is 28 pairs, about 1 µs.

use crate::model::{EXCESS_WEIGHT, LOAD_EPSILON, Model, Objective, Placement};
use crate::search::Dice;

/// Sets of balls are bits of a u64.
pub(crate) const BALLS_MAX: usize = 64;

/// A pair with more cachelets than this splits only as far as the heaviest ones go.
const SPLIT_BALLS_MAX: usize = 8;

pub(crate) struct Pairs<'m> {
    model: &'m Model,
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
        Some(Pairs {
            model,
            average,
            evenness,
            price: model.move_price(),
            load_caps: model.load_caps(),
            byte_caps: model.byte_caps(),
            loads: model.loads(placement),
            bytes: model.bytes(placement),
            held,
            stale: u64::MAX,
        })
    }

    /// Splits pairs until no split helps, then shakes and does so again. Returns the best placement.
    pub fn search(&mut self, shakes: u32) -> Placement {
        self.settle();
        let mut best_cost = self.cost();
        let mut best = (self.held.clone(), self.loads.clone(), self.bytes.clone());
        let mut dice = Dice::default();
        for _ in 0..shakes {
            self.shake(&mut dice);
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
            self.stale = 0;
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
            for other in 0..bins {
                if other != bin && self.split(bin, other) {
                    self.stale |= 1 << bin | 1 << other;
                }
            }
        }
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

    /// Takes the best split of what two bins hold, in Gray's order: one ball changes sides at a time.
    fn split(&mut self, a: usize, b: usize) -> bool {
        let now = self.bin_cost(a, self.loads[a]) + self.bin_cost(b, self.loads[b]);
        // Two workers on the same side of the average are as even as their sum lets them be.
        let least = self.evenness * (self.loads[a] + self.loads[b] - 2.0 * self.average).abs();
        if self.price == 0.0 && now <= least + LOAD_EPSILON {
            return false;
        }
        let mut free = [(0usize, 0.0f64); SPLIT_BALLS_MAX];
        let mut count = 0;
        let balls = &self.model.balls;
        for ball in members(self.held[a] | self.held[b]) {
            if count < SPLIT_BALLS_MAX && self.may_hold(a, ball) && self.may_hold(b, ball) {
                free[count] = (ball, balls[ball].load);
                count += 1;
            }
        }
        let (mut a_load, both) = (self.loads[a], self.loads[a] + self.loads[b]);
        let (mut a_bytes, both_bytes) = (self.bytes[a], self.bytes[a] + self.bytes[b]);
        let mut in_a = self.held[a];
        let mut moves = 0.0;
        let mut best = (now - LOAD_EPSILON, None);
        for step in 1..1u32 << count {
            let (ball, load) = free[step.trailing_zeros() as usize];
            let home = balls[ball].home;
            let into_a = in_a >> ball & 1 == 0;
            in_a ^= 1 << ball;
            let sign = if into_a { 1.0 } else { -1.0 };
            a_load += sign * load;
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
        let Some((in_a, a_load, a_bytes)) = best.1 else { return false };
        self.held[b] = (self.held[a] | self.held[b]) & !in_a;
        self.held[a] = in_a;
        (self.loads[a], self.loads[b]) = (a_load, both - a_load);
        (self.bytes[a], self.bytes[b]) = (a_bytes, both_bytes - a_bytes);
        true
    }

    /// A few balls change places with each other, as far as the caps let them.
    fn shake(&mut self, dice: &mut Dice) {
        let bins = self.held.len();
        for _ in 0..3 {
            let (from, to) = (dice.below(bins), dice.below(bins));
            let (Some(given), Some(taken)) =
                (pick(self.held[from], dice), pick(self.held[to], dice))
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
            self.stale |= 1 << from | 1 << to;
        }
    }
}

fn pick(set: u64, dice: &mut Dice) -> Option<usize> {
    let count = set.count_ones() as usize;
    (count > 0).then(|| members(set).nth(dice.below(count)).expect("fewer than the set has"))
}

fn members(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let ball = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (ball < 64).then_some(ball as usize)
    })
}
