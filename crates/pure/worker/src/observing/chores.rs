//! How long steps of background work take, from the moment when clients could not be served until they could be again.

use mbal_cachelet::Chore;

use crate::observing::latency::{Histogram, WorkerHistogram};

/// What a step is for: [`Chore`], and moves.
pub const CHORES: [&str; 6] = ["release", "split", "shrink", "expire", "evict", "move"];

/// Of [`CHORES`]. A step that goes on with a move counts as that, whatever else it does.
pub(crate) fn number_of(is_move: bool, chore: Option<Chore>) -> Option<usize> {
    match is_move {
        true => Some(CHORES.len() - 1),
        false => chore.map(|chore| chore as usize),
    }
}

/// One worker's, written by it alone.
#[derive(Default)]
pub(crate) struct StepTimes([WorkerHistogram; CHORES.len()]);

impl StepTimes {
    pub fn record(&self, chore: usize, ns: u64) {
        self.0[chore].add(1, ns);
    }

    pub fn add_to(&self, all: &mut [Histogram; CHORES.len()]) {
        self.0.iter().zip(all).for_each(|(from, to)| from.add_to(to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chores_have_their_names() {
        for (chore, name) in [
            (Chore::Release, "release"),
            (Chore::Split, "split"),
            (Chore::Shrink, "shrink"),
            (Chore::Expire, "expire"),
            (Chore::Evict, "evict"),
        ] {
            let number = number_of(false, Some(chore)).expect("it has one");
            assert_eq!(CHORES[number], name);
        }
        assert_eq!(number_of(true, None).map(|number| CHORES[number]), Some("move"));
        assert_eq!(number_of(false, None), None);
    }
}
