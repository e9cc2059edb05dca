//! A placement under change: what one step would gain, in constant time.

use crate::model::{LOAD_EPSILON, Model, Objective, Placement};

pub(crate) struct State<'m> {
    pub model: &'m Model,
    pub at: Placement,
    pub loads: Vec<f64>,
    /// The balls in each bin.
    pub held: Vec<Vec<u32>>,
    bytes: Vec<u64>,
    load_caps: Vec<f64>,
    byte_caps: Vec<u64>,
}

impl<'m> State<'m> {
    pub fn new(model: &'m Model, placement: &[u32]) -> State<'m> {
        let mut held = vec![Vec::with_capacity(8); model.bins.len()];
        for (ball, &bin) in placement.iter().enumerate() {
            held[bin as usize].push(ball as u32);
        }
        State {
            model,
            at: placement.to_vec(),
            loads: model.loads(placement),
            held,
            bytes: model.bytes(placement),
            load_caps: model.load_caps(),
            byte_caps: model.byte_caps(),
        }
    }

    /// Whether `ball` may lie in `bin` by the rules that do not depend on load.
    pub fn may_hold(&self, bin: usize, ball: u32) -> bool {
        self.model.bins[bin].takes || self.model.balls[ball as usize].home == bin
    }

    /// What the cost changes by if `from` gives `given` and gets `taken` in exchange; None if a cap
    /// forbids it. A move is an exchange for nothing.
    #[inline]
    pub fn exchange(&self, from: usize, given: u32, to: usize, taken: Option<u32>) -> Option<f64> {
        let balls = &self.model.balls;
        let out = &balls[given as usize];
        let (back_load, back_bytes) = match taken {
            Some(taken) => (balls[taken as usize].load, balls[taken as usize].bytes),
            None => (0.0, 0),
        };
        let from_load = self.loads[from] - out.load + back_load;
        let to_load = self.loads[to] + out.load - back_load;
        if to_load > self.load_caps[to]
            || from_load > self.load_caps[from]
            || self.bytes[to] + out.bytes - back_bytes > self.byte_caps[to]
            || self.bytes[from] + back_bytes - out.bytes > self.byte_caps[from]
            || !self.may_hold(to, given)
            || taken.is_some_and(|taken| !self.may_hold(from, taken))
        {
            return None;
        }
        let mut change = self.shift_cost(from, from_load, to, to_load);
        let price = self.model.move_price();
        if price > 0.0 {
            change += price * self.new_moves(given, from, to);
            if let Some(taken) = taken {
                change += price * self.new_moves(taken, to, from);
            }
        }
        Some(change)
    }

    fn new_moves(&self, ball: u32, from: usize, to: usize) -> f64 {
        let home = self.model.balls[ball as usize].home;
        f64::from(home == from) - f64::from(home == to)
    }

    #[inline]
    fn shift_cost(&self, a: usize, a_load: f64, b: usize, b_load: f64) -> f64 {
        let model = self.model;
        let mut change = model.bin_cost(a, a_load) - model.bin_cost(a, self.loads[a])
            + model.bin_cost(b, b_load)
            - model.bin_cost(b, self.loads[b]);
        if let Objective::Closest { .. } = model.objective {
            let mut loads = self.loads.clone();
            loads[a] = a_load;
            loads[b] = b_load;
            change += model.closeness(&loads) - model.closeness(&self.loads);
        }
        change
    }

    pub fn apply(&mut self, from: usize, given: u32, to: usize, taken: Option<u32>) {
        self.put(given, from, to);
        if let Some(taken) = taken {
            self.put(taken, to, from);
        }
    }

    fn put(&mut self, ball: u32, from: usize, to: usize) {
        let place = self.held[from].iter().position(|held| *held == ball);
        self.held[from].swap_remove(place.expect("a ball is held where it lies"));
        self.held[to].push(ball);
        self.at[ball as usize] = to as u32;
        let (load, bytes) =
            (self.model.balls[ball as usize].load, self.model.balls[ball as usize].bytes);
        self.loads[from] -= load;
        self.loads[to] += load;
        self.bytes[from] -= bytes;
        self.bytes[to] += bytes;
    }

    /// Bins, worst first: those with load that the objective wants elsewhere.
    pub fn givers(&self, tolerance: f64) -> Vec<usize> {
        let level = self.level(tolerance);
        let mut givers: Vec<usize> = (0..self.loads.len())
            .filter(|&bin| self.loads[bin] > level(bin) + LOAD_EPSILON)
            .collect();
        givers.sort_by(|&a, &b| {
            (self.loads[b] - level(b)).total_cmp(&(self.loads[a] - level(a))).then(a.cmp(&b))
        });
        givers
    }

    fn level(&self, tolerance: f64) -> impl Fn(usize) -> f64 + '_ {
        let lightest = match self.model.objective {
            Objective::Closest { .. } => self.loads.iter().copied().fold(f64::INFINITY, f64::min),
            _ => 0.0,
        };
        move |bin| match self.model.objective {
            Objective::FewestMoves => self.model.bins[bin].limit,
            Objective::Evenest { average, .. } => {
                (average * (1.0 + tolerance)).min(self.model.bins[bin].limit)
            }
            Objective::Closest { .. } => lightest,
        }
    }
}
