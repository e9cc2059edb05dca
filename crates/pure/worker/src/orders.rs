//! The balancer's orders to a worker. They travel by mailbox, so by the time that one arrives the
//! world may have changed: the worker, which alone may give away what is its own, looks again.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

use mbal_model::{Order, Outcome, Prefix, WorkerId};

use crate::event::{Action, Actions, Event};
use crate::ids::{ConnId, OrderId};
use crate::worker::Worker;

/// A connection is picked if this part of its work is still wanted.
const OVERSHOOT: f64 = 0.6;

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
        } else if store.give(cachelet, self.here.owner.worker, to, seen) {
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
        match self.sessions.get(conn) {
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
        let epoch = self.shared.counted.epoch.load(Relaxed);
        let mut all = 0;
        let mut free = Vec::new();
        for (conn, session) in self.sessions.each().filter(|(_, session)| !session.own_port) {
            let work = session.work.before(epoch);
            all += work;
            if work > 0 && session.due.is_none() && !session.work.rests(epoch) {
                free.push((work, conn));
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
            let session = self.sessions.of(conn);
            session.due = Some(to);
            session.work.moves(epoch);
            self.leave_if_due(conn, actions);
        }
        Outcome::Leaving(chosen.len() as u32)
    }

    /// A connection that is to go, goes between two requests.
    pub(crate) fn leave_if_due(&mut self, conn: ConnId, actions: &mut Actions) -> bool {
        let due = self.sessions.get(conn).filter(|session| session.is_between_requests());
        let Some(to) = due.and_then(|session| session.due) else { return false };
        let session = self.sessions.take(conn).expect("it is due").carry();
        self.counters().conns_handed_over.add(1);
        actions.list.push(Action::HandOver { conn, to, session });
        true
    }

    fn is_other(&self, worker: WorkerId) -> bool {
        worker != self.here.owner.worker && worker.0 < self.shared.settings.workers
    }
}
