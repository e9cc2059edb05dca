//! The balancer's orders to a worker. They travel by mailbox, so by the time that one arrives the
//! world may have changed: the worker, which alone may give away what is its own, looks again.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

use mbal_model::{Order, Outcome, Prefix, WorkerId};

use crate::worker::Worker;
use crate::{Action, Actions, ConnId, Event};

/// A connection is picked if this part of its work is still wanted.
const OVERSHOOT: f64 = 0.6;

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

/// The balancer's order as what happens to a worker, and which.
pub fn order_event(order: OrderId, what: Order) -> (WorkerId, Event<'static>) {
    match what {
        Order::Lend { step, seen } => {
            let (cachelet, to) = (step.cachelet, step.to.worker);
            (step.from.worker, Event::Lend { order, cachelet, to, seen })
        }
        Order::Lighten { from, to, share, share_max } => {
            (from.worker, Event::Lighten { order, to: to.worker, share, share_max })
        }
    }
}

impl Worker {
    pub(crate) fn lend(&self, cachelet: Prefix, to: WorkerId, seen: u64) -> Outcome {
        let store = &self.shared.store;
        if !self.is_other(to) || store.owner(cachelet).is_none() {
            Outcome::Refused
        } else if store.give(cachelet, self.here.worker, to, seen) {
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

    /// Picks by what each connection cost in the epoch that has ended. O(connections log connections).
    pub(crate) fn lighten(
        &mut self,
        to: WorkerId,
        share: f64,
        share_max: f64,
        actions: &mut Actions,
    ) -> Outcome {
        if !self.is_other(to) {
            return Outcome::Refused;
        }
        let epoch = self.shared.epoch.load(Relaxed);
        let mut all = 0;
        let mut free = Vec::new();
        for (index, session) in self.sessions.iter().enumerate() {
            let Some(session) = session.as_ref().filter(|session| !session.own_port) else {
                continue;
            };
            let work = session.work.before(epoch);
            all += work;
            if work > 0 && session.due.is_none() && !session.work.rests(epoch) {
                free.push((work, ConnId(index as u32)));
            }
        }
        free.sort_by_key(|&(work, conn)| (Reverse(work), conn));
        let mut wanted = share * all as f64;
        let mut chosen: Vec<ConnId> = Vec::new();
        for &(work, conn) in &free {
            // Half of the last one may be too much: closer than too little.
            if OVERSHOOT * work as f64 <= wanted && (work as f64) < share_max * all as f64 {
                wanted -= work as f64;
                chosen.push(conn);
            }
        }
        // All are heavier than what was asked for; the lightest may still make things better.
        if chosen.is_empty() {
            let lightest = free.last().filter(|(work, _)| (*work as f64) < share_max * all as f64);
            chosen.extend(lightest.map(|(_, conn)| *conn));
        }
        for &conn in &chosen {
            let session = self.sessions[conn.0 as usize].as_mut().expect("it was chosen");
            session.due = Some(to);
            session.work.moves(epoch);
            self.leave_if_due(conn, actions);
        }
        Outcome::Leaving(chosen.len() as u32)
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
        worker != self.here.worker && worker.0 < self.shared.settings.workers
    }
}
