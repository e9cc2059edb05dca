//! What a reply means for the counts, and what it asks for next.

use std::ops::Range;

use crate::follow::Moved;
use crate::replies::{Awaited, Outcome};
use crate::tally::Tally;
use crate::timeline::Part;

/// What follows from a reply, when all that arrived with it is read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Then {
    /// Set the key that missed or was to be modified, when the store has been asked for so long.
    Set { after_ns: u64 },
    /// Text found no counter: make one.
    Counter,
    /// The key's cachelet has moved.
    Heed(Moved),
    /// It was not executed: ask the worker that has the key.
    AskAgain,
}

/// Reads the replies that arrived on one connection at one moment.
pub struct Reader<'a> {
    pub now: u64,
    /// Within the measured window.
    pub counting: bool,
    pub window: Range<u64>,
    pub look_aside: bool,
    pub store_ns: u64,
    pub worker: usize,
    pub tally: &'a mut Tally,
    pub part: &'a mut Part,
    pub after: &'a mut Vec<(Awaited, Then)>,
    /// Requests of which this was the last reply.
    pub answered: usize,
    /// A key of the request that is being read was missed.
    pub missed: bool,
}

impl Reader<'_> {
    pub fn told(&mut self, reply: Awaited, outcome: Outcome, moved: Option<Moved>) {
        self.after.extend(moved.map(|moved| (reply, Then::Heed(moved))));
        if outcome == Outcome::Elsewhere {
            self.after.push((reply, Then::AskAgain));
            self.answered += usize::from(reply.last);
            return;
        }
        if outcome == Outcome::Lost {
            self.tally.lost += u64::from(reply.last && self.counting);
            self.answered += usize::from(reply.last);
            return;
        }
        self.count(&outcome);
        let missed = outcome == Outcome::Miss && self.look_aside;
        self.missed |= missed;
        match outcome {
            Outcome::Hit | Outcome::Miss if missed || reply.then_set => {
                let after_ns = if missed { self.store_ns } else { 0 };
                self.after.push((reply, Then::Set { after_ns }));
            }
            Outcome::NoCounter => self.after.push((reply, Then::Counter)),
            Outcome::Wrong(wrong) => self.tally.blame(wrong),
            _ => {}
        }
        if reply.last {
            self.answered(reply.intended_ns);
        }
    }

    fn count(&mut self, outcome: &Outcome) {
        if !self.counting {
            return;
        }
        let (tally, part) = (&mut *self.tally, &mut *self.part);
        match outcome {
            Outcome::Hit | Outcome::Miss => {
                let hit = u64::from(*outcome == Outcome::Hit);
                (tally.gets, part.gets) = (tally.gets + 1, part.gets + 1);
                (tally.hits, part.hits) = (tally.hits + hit, part.hits + hit);
            }
            Outcome::Stored => (tally.sets, part.sets) = (tally.sets + 1, part.sets + 1),
            Outcome::Done => (tally.others, part.others) = (tally.others + 1, part.others + 1),
            _ => {}
        }
    }

    /// Whoever missed has waited for the store too.
    fn answered(&mut self, intended_ns: u64) {
        self.answered += 1;
        let store_ns = if std::mem::take(&mut self.missed) { self.store_ns } else { 0 };
        let latency_ns = self.now.saturating_sub(intended_ns) + store_ns;
        if self.counting {
            self.tally.requests += 1;
            self.part.answered(self.worker, latency_ns);
        }
        if self.window.contains(&intended_ns) {
            self.tally.latency.saturating_record(latency_ns);
        }
    }
}
