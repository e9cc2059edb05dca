//! Time that goes from one event to the next.

use std::collections::BTreeMap;

use mbal_random::Random;

use crate::met::Met;

/// What every world has. Time is in the world's own unit, since its clocks may run at paces of their own.
pub struct Sim<E> {
    pub now: u64,
    pub random: Random,
    pub met: Met,
    tells: bool,
    /// By time, and in the order in which they were put there.
    events: BTreeMap<(u64, u64), E>,
    events_ever: u64,
}

impl<E> Sim<E> {
    pub fn new(seed: u64, tells: bool) -> Sim<E> {
        let (events, met) = (BTreeMap::new(), Met::default());
        Sim { now: 0, random: Random::new(seed), met, tells, events, events_ever: 0 }
    }

    pub fn at(&mut self, time: u64, event: E) {
        self.events_ever += 1;
        self.events.insert((time.max(self.now), self.events_ever), event);
    }

    pub fn after(&mut self, wait: u64, event: E) {
        self.at(self.now + wait, event);
    }

    /// Goes to the next event.
    pub fn advance(&mut self) -> Option<E> {
        let ((time, _), event) = self.events.pop_first()?;
        self.now = self.now.max(time);
        Some(event)
    }

    /// The same, if it is not after `until`; else goes there.
    pub fn advance_until(&mut self, until: u64) -> Option<E> {
        if self.next_at().is_some_and(|time| time <= until) {
            return self.advance();
        }
        self.now = until;
        None
    }

    pub fn next_at(&self) -> Option<u64> {
        self.events.keys().next().map(|(time, _)| *time)
    }

    pub fn events(&self) -> impl Iterator<Item = &E> {
        self.events.values()
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.random.below(count) == 0
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.below(choices.len() as u64) as usize]
    }

    /// From 1 to twice the mean.
    pub fn about(&mut self, mean: u64) -> u64 {
        1 + self.random.below(2 * mean)
    }

    /// For who replays a seed.
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if self.tells {
            println!("{:>12} {}", self.now, what());
        }
    }
}
