//! What a request asks for, drawn by popularity.

use mbal_random::Random;

use super::super::demand::Demand;
use super::copies::Copies;

/// What a key of a request may be: one of the hottest, or any other of a cachelet.
pub struct Targets {
    /// Alias method (Walker 1977): a column's own target below its limit, else another one.
    limits: Vec<f64>,
    others: Vec<usize>,
    pub hottest: usize,
    /// By one of the hottest, its slot among the copied.
    pub slots: Vec<Option<usize>>,
}

impl Targets {
    pub fn new(demand: &Demand, copies: &Copies) -> Targets {
        let mut weights: Vec<f64> = demand.hottest.iter().map(|key| key.share).collect();
        let mut rest = demand.shares.clone();
        demand.hottest.iter().for_each(|key| rest[key.cachelet] -= key.share);
        weights.extend(rest.iter().map(|share| share.max(0.0)));
        let sum: f64 = weights.iter().sum();
        let count = weights.len();
        let mut limits: Vec<f64> = weights.iter().map(|one| one / sum * count as f64).collect();
        let mut others: Vec<usize> = (0..count).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|at| limits[*at] < 1.0);
        while let (Some(less), Some(more)) = (small.pop(), large.pop()) {
            others[less] = more;
            limits[more] -= 1.0 - limits[less];
            if limits[more] < 1.0 { small.push(more) } else { large.push(more) }
        }
        let slots = demand.hottest.iter().map(|key| copies.slot(&key.name)).collect();
        Targets { limits, others, hottest: demand.hottest.len(), slots }
    }

    pub fn draw(&self, random: &mut Random) -> usize {
        let at = random.below(self.limits.len() as u64) as usize;
        if random.unit() <= self.limits[at] { at } else { self.others[at] }
    }
}
