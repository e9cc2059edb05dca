//! Cuts many sorted lists at one age, all of them side by side.
//!
//! A search in a list that no cache holds waits for memory at each step. Here every list takes one step, then
//! every list the next: within a step the loads do not depend on each other, so a CPU has ten of them under
//! way at once.

use crate::Age;
use crate::fusecache::WeightedAges;

/// One list's search: outwards from where the cut is guessed, in doubling steps, then by halving.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The list, and the window's bounds: the cut lies between them, ends included.
    list: u32,
    low: usize,
    high: usize,
    step: usize,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Guess,
    Up,
    Down,
    Between,
}

impl Cut {
    /// Which age to look at next.
    #[inline]
    fn next(&self) -> usize {
        match self.stage {
            Stage::Guess => self.step,
            Stage::Up => self.low + self.step - 1,
            Stage::Down => self.high - self.step,
            Stage::Between => usize::midpoint(self.low, self.high),
        }
    }

    /// Learns whether the age at `at`, which [`next`](Cut::next) named, lies before the cut.
    #[inline]
    fn learn(&mut self, at: usize, before: bool) {
        if before {
            self.low = at + 1;
        } else {
            self.high = at;
        }
        self.stage = match (self.stage, before) {
            (Stage::Guess, true) => {
                self.step = 1;
                Stage::Up
            }
            (Stage::Guess, false) => {
                self.step = 1;
                Stage::Down
            }
            (Stage::Up, true) | (Stage::Down, false) => {
                self.step *= 2;
                self.stage
            }
            (Stage::Up, false) | (Stage::Down, true) | (Stage::Between, _) => Stage::Between,
        };
        if self.step > self.high - self.low {
            self.stage = Stage::Between;
        }
    }
}

/// The searches of one pass after the other; keeps its memory between them.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    cuts: Vec<Cut>,
    /// Those that have not ended, and the ages that they look at.
    open: Vec<(u32, Age)>,
    /// Ages looked at since the start.
    pub probes: usize,
}

impl Cuts {
    pub fn clear(&mut self) {
        self.cuts.clear();
    }

    /// Adds a search in `low..high` of a list, first at `guess`, which lies in there.
    pub fn add(&mut self, list: usize, low: usize, high: usize, guess: usize) {
        self.cuts.push(Cut { list: list as u32, low, high, step: guess, stage: Stage::Guess });
    }

    /// For each search that was added, in order: the first index in its window whose age is not
    /// `before`, or the window's end. O(log of the distance from the guess) each.
    pub fn search(
        &mut self,
        lists: &[WeightedAges],
        before: impl Fn(Age) -> bool,
    ) -> impl Iterator<Item = usize> {
        self.open.clear();
        let open = self.cuts.iter().enumerate().filter(|(_, cut)| cut.low < cut.high);
        self.open.extend(open.map(|(at, _)| (at as u32, 0)));
        while !self.open.is_empty() {
            self.probes += self.open.len();
            for (at, age) in &mut self.open {
                let cut = &self.cuts[*at as usize];
                *age = lists[cut.list as usize].0[cut.next()];
            }
            let cuts = &mut self.cuts;
            self.open.retain(|&(at, age)| {
                let cut = &mut cuts[at as usize];
                cut.learn(cut.next(), before(age));
                cut.low < cut.high
            });
        }
        self.cuts.iter().map(|cut| cut.low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_is_where_a_scan_finds_it() {
        let ages: Vec<Age> = vec![1, 2, 2, 2, 5, 9, 9, 12, 40, 41, 41];
        let lists = [(&ages[..], 1)];
        for limit in 0..45 {
            for (low, high) in [(0, 11), (2, 9), (4, 5), (3, 3)] {
                let scanned = (low..high).find(|at| ages[*at] >= limit).unwrap_or(high);
                for guess in low..high.max(low + 1) {
                    let mut cuts = Cuts::default();
                    cuts.add(0, low, high, guess);
                    let found: Vec<usize> = cuts.search(&lists, |age| age < limit).collect();
                    assert_eq!(found, [scanned], "{limit} in {low}..{high} from {guess}");
                }
            }
        }
    }

    #[test]
    fn a_good_guess_needs_few_probes() {
        let ages: Vec<Age> = (0..1_000_000).collect();
        let mut cuts = Cuts::default();
        cuts.add(0, 0, ages.len(), 499_990);
        assert_eq!(cuts.search(&[(&ages, 1)], |age| age < 500_000).next(), Some(500_000));
        assert!(cuts.probes <= 8, "{}", cuts.probes);
    }
}
