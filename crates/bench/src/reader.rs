//! What a reply means for the counts, and what it asks for next.

use std::ops::Range;

use mbal_model::Hint;

use crate::batches::Batches;
use crate::leasing::Leasing;
use crate::replies::{Answer, Awaited, Kind, LeaseToken};
use crate::tally::Tally;
use crate::timeline::Part;
use crate::wording::Wording;

/// What follows from a reply, when all that arrived with it is read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Then {
    /// Set the key that missed or was to be modified, when the store has been asked for so long.
    Set { after_ns: u64 },
    /// Text found no counter: make one.
    Counter,
    /// The key's cachelet has moved.
    Heed(Hint),
    /// It was not executed: ask the worker that has the key.
    AskAgain,
}

#[derive(Clone, Copy, Default)]
pub struct Alike {
    latency_ns: u64,
    answered: u64,
    /// Of them, those that were due in the window.
    due: u64,
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
    /// The client whose connection it is, and the leases of all, where copies are read.
    pub client: usize,
    pub leasing: Option<&'a mut Leasing>,
    pub batches: &'a mut Batches,
    pub wording: &'a Wording,
    pub tally: &'a mut Tally,
    /// Of the interval, where the run is shown over time.
    pub part: Option<&'a mut Part>,
    pub after: &'a mut Vec<(Awaited, Then)>,
    /// Requests of which this was the last reply, a batch's parts counted one by one.
    pub answered: usize,
    /// A key of the request that is being read was missed.
    pub missed: bool,
    /// Requests that took as long as each other, not yet in the histograms: what was sent together and is answered
    /// together is recorded at once.
    pub alike: Alike,
}

impl Reader<'_> {
    pub fn told(&mut self, reply: Awaited, outcome: Answer, word: Option<LeaseToken>) {
        if let Some(leasing) = &mut self.leasing {
            let told = (&outcome, word.as_ref());
            let from_copy = leasing.heard(self.client, self.wording, &reply, told, self.now);
            if self.counting {
                self.tally.from_copies += u64::from(from_copy);
            }
        }
        if let Some(LeaseToken::Hint(hint)) = word {
            self.after.push((reply, Then::Heed(hint)));
        }
        if outcome == Answer::Elsewhere {
            self.after.push((reply, Then::AskAgain));
            self.answered += usize::from(reply.last);
            return;
        }
        if outcome == Answer::Lost {
            self.tally.lost += u64::from(reply.last && self.counting);
            self.answered += usize::from(reply.last);
            return;
        }
        self.count(&outcome);
        let missed = outcome == Answer::Miss && self.look_aside;
        self.missed |= missed;
        match outcome {
            Answer::Hit | Answer::Miss if missed || reply.then_set => {
                let after_ns = if missed { self.store_ns } else { 0 };
                self.after.push((reply, Then::Set { after_ns }));
            }
            Answer::NoCounter => self.after.push((reply, Then::Counter)),
            Answer::Wrong(wrong) => self.tally.blame(wrong),
            _ => {}
        }
        if reply.last {
            if matches!(reply.kind, Kind::Write(_)) && self.window.contains(&reply.intended_ns) {
                self.tally.writes.saturating_record(self.now.saturating_sub(reply.intended_ns));
            }
            self.answered(&reply);
        }
    }

    fn count(&mut self, outcome: &Answer) {
        if !self.counting {
            return self.tally.outside.count(outcome);
        }
        self.tally.counts.count(outcome);
        if let Some(part) = &mut self.part {
            part.counts.count(outcome);
        }
    }

    /// Whoever missed has waited for the store too.
    fn answered(&mut self, &Awaited { intended_ns, batch, .. }: &Awaited) {
        self.answered += 1;
        let missed = std::mem::take(&mut self.missed);
        let whole = batch.map_or(Some(missed), |batch| self.batches.answered(batch, missed));
        let Some(missed) = whole else {
            if let Some(part) = self.part.as_mut().filter(|_| self.counting) {
                part.workers[self.worker] += 1;
            }
            return;
        };
        let store_ns = if missed { self.store_ns } else { 0 };
        let latency_ns = self.now.saturating_sub(intended_ns) + store_ns;
        if latency_ns != self.alike.latency_ns {
            self.record();
            self.alike.latency_ns = latency_ns;
        }
        self.alike.answered += 1;
        self.alike.due += u64::from(self.window.contains(&intended_ns));
    }

    /// Puts what is alike into the histograms; to be called behind the last reply.
    pub fn record(&mut self) {
        let Alike { latency_ns, answered, due } = std::mem::take(&mut self.alike);
        if self.counting {
            self.tally.counts.requests += answered;
            if let (Some(part), true) = (&mut self.part, answered > 0) {
                part.answered(self.worker, latency_ns, answered);
            }
        } else {
            self.tally.outside.requests += answered;
        }
        if due > 0 {
            self.tally.latency.saturating_record_n(latency_ns, due);
        }
    }
}
