//! When a worker wants to be woken, and for whom.

use std::collections::BTreeSet;

use mbal_model::Instant;

use crate::ConnId;

/// Who waits for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sleeper {
    /// A connection, for room or for a slice that moves.
    Conn(ConnId),
    /// A peer's request, for either: by its number among those that are held.
    Held(u64),
    /// Those whose requests were lost with their link, for their deadlines.
    Lost,
    /// A datagram, for a slice.
    Datagram(u64),
    /// What the map has changed, for batches to be over.
    Map,
    /// Hot keys and their copies.
    Copies,
}

/// Those who wait for a moment, each for one.
#[derive(Default)]
pub(crate) struct Wakes {
    /// At one moment, in the order in which they came.
    all: BTreeSet<(Instant, u64, Sleeper)>,
    last: u64,
}

impl Wakes {
    pub fn set(&mut self, at: Instant, sleeper: Sleeper) {
        self.last += 1;
        self.all.insert((at, self.last, sleeper));
    }

    /// The earliest moment that anybody waits for.
    pub fn next(&self) -> Option<Instant> {
        self.all.first().map(|(at, ..)| *at)
    }

    /// Takes out those whose moment has come, up to `most`.
    pub fn due(&mut self, now: Instant, most: usize) -> Vec<Sleeper> {
        let mut due = Vec::new();
        while due.len() < most && self.next().is_some_and(|next| next <= now) {
            due.extend(self.all.pop_first().map(|(.., sleeper)| sleeper));
        }
        due
    }

    pub fn forget(&mut self, sleeper: Sleeper) {
        self.all.retain(|(.., other)| *other != sleeper);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    #[test]
    fn who_is_due_comes_in_order_and_the_rest_next_time() {
        let conn = |number| Sleeper::Conn(ConnId(number));
        let mut wakes = Wakes::default();
        assert_eq!(wakes.next(), None);
        wakes.set(at(30), conn(0));
        wakes.set(at(20), conn(2));
        wakes.set(at(20), conn(1));
        wakes.set(at(10), Sleeper::Held(7));
        assert_eq!((wakes.next(), wakes.due(at(9), 9)), (Some(at(10)), vec![]));
        assert_eq!(wakes.due(at(20), 2), [Sleeper::Held(7), conn(2)]);
        assert_eq!((wakes.next(), wakes.due(at(20), 9)), (Some(at(20)), vec![conn(1)]));
        wakes.forget(conn(0));
        assert_eq!((wakes.next(), wakes.due(at(99), 9)), (None, vec![]));
    }
}
