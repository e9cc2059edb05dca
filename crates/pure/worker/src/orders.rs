//! The balancer's orders to a worker. They travel by mailbox, so by the time that one arrives the
//! world may have changed: the worker, which alone may give away what is its own, looks again.

use mbal_model::{CacheletId, WorkerId};

use crate::worker::Worker;
use crate::{Action, Actions, ConnId};

/// Names an order until it is reported; 0 is one that nobody waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub order: OrderId,
    /// The worker that got the order.
    pub worker: WorkerId,
    pub outcome: Outcome,
}

/// What came of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The connection is in the middle of something, and goes when that is over.
    Due,
    /// The cachelet is not this worker's, or has left and come back since; the connection is not
    /// there. Nothing was done.
    Stale,
    /// The other worker does not exist, or is this one; or the connection chose this worker. Nothing
    /// was done.
    Refused,
}

impl Worker {
    pub(crate) fn lend(&self, cachelet: CacheletId, to: WorkerId, seen: u64) -> Outcome {
        let (store, index) = (&self.server.store, usize::from(cachelet.0));
        if !self.is_other(to) || index >= store.cachelets() {
            Outcome::Refused
        } else if store.give(index, self.here.worker, to, seen) {
            Outcome::Done
        } else {
            Outcome::Stale
        }
    }

    pub(crate) fn hand_over(
        &mut self,
        conn: ConnId,
        to: WorkerId,
        actions: &mut Actions,
    ) -> Outcome {
        if !self.is_other(to) {
            return Outcome::Refused;
        }
        let session = self.sessions.get_mut(conn.0 as usize).and_then(Option::as_mut);
        match session {
            None => Outcome::Stale,
            Some(session) if session.own_port => Outcome::Refused,
            Some(session) => {
                session.due = Some(to);
                if self.leave_if_due(conn, actions) { Outcome::Done } else { Outcome::Due }
            }
        }
    }

    /// A connection that is to go, goes between two requests.
    pub(crate) fn leave_if_due(&mut self, conn: ConnId, actions: &mut Actions) -> bool {
        let place = &mut self.sessions[conn.0 as usize];
        let due = place.as_ref().filter(|session| session.is_between_requests());
        let Some(to) = due.and_then(|session| session.due) else { return false };
        let session = place.take().expect("it is due").carry();
        self.counters().conns_handed_over.add(1);
        actions.list.push(Action::HandOver { conn, to, session });
        true
    }

    fn is_other(&self, worker: WorkerId) -> bool {
        worker != self.here.worker && worker.0 < self.server.settings.workers
    }
}
