//! Items by their age, for scaling: what a coordinator is told of them, and what it has chosen.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use mbal_cachelet::{ClassAges, Cutoffs};
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{CLASSES, Prefix, Seconds};

use crate::shared::Shared;
use crate::{Moment, Now};

/// Until moves have carried so many bytes, they are taken to carry [`BYTES_PER_SECOND`].
const BYTES_MEASURED: u64 = 8 << 20;
const BYTES_PER_SECOND: f64 = 64e6;
/// Of the time that is left moves get this part: the last ones have to be sealed, and the map told.
const TIME_USED: f64 = 0.8;

/// Ages that a server tells: any part of its items is then known to about a hundredth of them.
const AGES_MOST: usize = 8_192;

/// The moment from which ages count that were told last, and its number; 0 is none.
#[derive(Debug, Default)]
pub(crate) struct Reference(Mutex<(u32, Seconds)>);

/// The server is to be empty at a moment.
#[derive(Debug)]
struct Deadline {
    since: Moment,
    until: Moment,
    /// What moves had carried before.
    carried: u64,
    /// From when ages count, and ages with the bytes of what each stands for; youngest first.
    at: Seconds,
    ages: Vec<(Seconds, f64)>,
    /// Of the last cachelet that went with a part of its items: the age of its first one that did not.
    cut: Option<Seconds>,
}

/// What became of a server that had to be empty at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rescued {
    pub bytes: u64,
    /// Items that were not chosen.
    pub left_behind: u64,
    /// Items that are here still.
    pub left: u64,
    /// The age of the first item that did not travel with the last cachelet, when not all did.
    pub cut: Option<Seconds>,
}

/// While a server is to be empty at a moment.
#[derive(Debug, Default)]
pub(crate) struct Hurry(Mutex<Option<Deadline>>);

impl Deadline {
    /// Of all bytes, those that were used so lately.
    fn part_younger(&self, age: Seconds) -> f64 {
        let bytes = |some: &[(Seconds, f64)]| some.iter().map(|(_, bytes)| bytes).sum::<f64>();
        let younger = self.ages.partition_point(|(other, _)| *other < age);
        bytes(&self.ages[..younger]) / bytes(&self.ages).max(1.0)
    }

    /// The youngest items of what is left that will have gone in time, by how fast it went so far.
    fn cutoffs(&mut self, now: Moment, carried: u64, under_way: u64, left: u64) -> Option<Cutoffs> {
        let seconds = |micros: u64| micros as f64 / 1e6;
        let carried = carried.saturating_sub(self.carried);
        let speed = match carried {
            ..BYTES_MEASURED => BYTES_PER_SECOND,
            _ => carried as f64 / seconds(now.0 - self.since.0).max(0.001),
        };
        let time = seconds(self.until.0.saturating_sub(now.0)) * TIME_USED;
        let part = (speed * time - under_way as f64) / left.max(1) as f64;
        if part >= 1.0 {
            return None;
        }
        let room = part.max(0.0) * self.ages.iter().map(|(_, bytes)| bytes).sum::<f64>();
        let mut filled = 0.0;
        let fits = |(_, bytes): &&(Seconds, f64)| {
            filled += bytes;
            filled <= room
        };
        let taken = self.ages.iter().take_while(fits).count();
        let next = self.ages.get(taken).map_or(0, |(age, _)| *age);
        let tied = |some: &[(Seconds, f64)]| some.iter().filter(|(age, _)| *age == next).count();
        let part = tied(&self.ages[..taken]) as f64 / tied(&self.ages).max(1) as f64;
        self.cut = Some(next);
        let mut cutoffs = Cutoffs::at(self.at);
        let tied = (part * 65_536.0) as u16;
        (0..CLASSES).for_each(|class| cutoffs.younger_than(class, next, tied));
        Some(cutoffs)
    }
}

impl Shared {
    /// The server is to be empty then: what goes with its cachelets from now on is what will have gone in time, the youngest items.
    pub fn hurry(&self, now: Now, until: Moment) {
        let mut ages = Vec::new();
        for ClassAges { items: _, bytes, ages: some } in
            self.store.ages(now.second, now.second, AGES_MOST)
        {
            let each = bytes as f64 / some.len().max(1) as f64;
            ages.extend(some.into_iter().map(|age| (age, each)));
        }
        ages.sort_unstable_by_key(|(age, _)| *age);
        let (since, at, carried) = (now.moment(), now.second, self.carried_bytes());
        let deadline = Deadline { since, until, carried, at, ages, cut: None };
        *self.hurry.0.lock().expect("nothing panics with it held") = Some(deadline);
        self.thrift.hurry();
    }

    /// What a cachelet takes along that begins to leave now, if the server is in a hurry.
    pub(crate) fn hurried(&self, now: Now) -> Option<Cutoffs> {
        let mut hurry = self.hurry.0.lock().expect("nothing panics with it held");
        let deadline = hurry.as_mut()?;
        let moving: Vec<Prefix> = self.moves_here().iter().map(|one| one.prefix).collect();
        let bytes = |prefix: &Prefix| self.store.stats_of(*prefix).map_or(0, |stats| stats.bytes);
        let (there, left): (Vec<Prefix>, Vec<Prefix>) =
            self.store.prefixes().into_iter().partition(|prefix| moving.contains(prefix));
        let chosen = deadline.cut.map_or(1.0, |cut| deadline.part_younger(cut));
        let under_way = there.iter().map(bytes).sum::<u64>() as f64 * chosen;
        let left = left.iter().map(bytes).sum();
        deadline.cutoffs(now.moment(), self.carried_bytes(), under_way as u64, left)
    }

    /// Of parts, by all moves from here so far.
    pub fn carried_bytes(&self) -> u64 {
        let under_way = self.move_reports().iter().map(|one| one.progress.bytes).sum::<u64>();
        self.moves.carried() + under_way
    }

    pub fn rescued(&self) -> Rescued {
        let hurry = self.hurry.0.lock().expect("nothing panics with it held");
        let stats = self.store.stats();
        Rescued {
            bytes: self.carried_bytes(),
            left_behind: stats.left_behind,
            left: stats.items,
            cut: hurry.as_ref().and_then(|deadline| deadline.cut),
        }
    }

    /// Ages of items by class, as they were so long ago, in milliseconds: a moment that all servers are asked for. It is
    /// remembered by its number.
    pub fn ages(&self, now: Now, number: u32, ago_ms: u64) -> Vec<ClassAges> {
        let at = (now.moment().0.saturating_sub(ago_ms * 1_000) / 1_000_000) as Seconds;
        *self.reference.0.lock().expect("nothing panics with it held") = (number, at);
        self.store.ages(at, now.second, AGES_MOST)
    }

    /// All that items may have, and what their pages have.
    pub fn memory_and_used(&self) -> (u64, u64) {
        (self.memory_bytes.load(Relaxed), self.store.stats().used_bytes)
    }

    /// What stays here while chosen items come from other servers; none: they come no more.
    pub fn keep(&self, cutoffs: Option<Cutoffs>) {
        self.moves.choose(cutoffs.is_some());
        if let Some(cutoffs) = cutoffs {
            self.store.keep(cutoffs);
        }
    }

    /// By class, only items younger than that at the moment of this number, and a part of those of that very age; none if the number is
    /// not remembered.
    pub fn cutoffs(
        &self,
        now: Now,
        number: u32,
        classes: impl Iterator<Item = (u8, Seconds, u16)>,
    ) -> Option<Cutoffs> {
        let (known, mut at) = *self.reference.0.lock().expect("nothing panics with it held");
        if known != number || number == 0 {
            return None;
        }
        if is_planted(Fault::AgesFromTheMove) {
            at = now.second;
        }
        let mut cutoffs = Cutoffs::at(at);
        classes.for_each(|(class, age, tied)| cutoffs.younger_than(class.into(), age, tied));
        Some(cutoffs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// A hundred ages, a mebibyte each; ten seconds.
    fn deadline() -> Deadline {
        let ages = (0..100).map(|age| (age, (1 << 20) as f64)).collect();
        let (since, until) = (Moment(0), Moment(10 * SECOND));
        Deadline { since, until, carried: 0, at: 1_000, ages, cut: None }
    }

    fn younger_than(age: Seconds) -> Cutoffs {
        let mut cutoffs = Cutoffs::at(1_000);
        (0..CLASSES).for_each(|class| cutoffs.younger_than(class, age, 0));
        cutoffs
    }

    #[test]
    fn with_time_enough_everything_goes() {
        assert_eq!(deadline().cutoffs(Moment(0), 0, 0, 100 << 20), None);
    }

    #[test]
    fn what_will_have_gone_in_time_is_the_youngest() {
        let mut deadline = deadline();
        // In five seconds 20 MiB have gone, so 16 go in four of the other five: a fifth of 80.
        let cutoffs = deadline.cutoffs(Moment(5 * SECOND), 20 << 20, 0, 80 << 20);
        assert_eq!((cutoffs, deadline.cut), (Some(younger_than(20)), Some(20)));
        // Of them 8 are under way.
        let cutoffs = deadline.cutoffs(Moment(5 * SECOND), 20 << 20, 8 << 20, 80 << 20);
        assert_eq!(cutoffs, Some(younger_than(10)));
        assert_eq!(deadline.part_younger(10), 0.1);
    }

    #[test]
    fn a_few_bytes_do_not_say_how_fast_it_goes() {
        assert_eq!(deadline().cutoffs(Moment(SECOND), 1_000, 0, 100 << 20), None);
    }

    #[test]
    fn when_the_time_is_over_next_to_nothing_goes() {
        let cutoffs = deadline().cutoffs(Moment(11 * SECOND), 50 << 20, 0, 50 << 20);
        assert_eq!(cutoffs, Some(younger_than(0)));
    }
}
