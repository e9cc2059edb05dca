//! What is done to the server while it serves: cachelets are lent, connections handed over, cachelets split.

use std::collections::BTreeMap;

use mbal_model::{Outcome, WorkerId};
use mbal_worker::{ConnId, Event, OrderId, Report};

use super::balancing::OPERATOR;
use super::connection::End;
use super::coverage::Sight;
use super::history::{Micros, SECOND};
use super::seat::Letter;
use super::world::{Happening, World};

/// Orders that are on their way, or not yet reported, before the operator waits.
const ORDERS_MAX: usize = 16;

/// Orders on their way, or not yet reported.
#[derive(Default)]
pub struct Orders {
    /// When each was sent, and whether it was about a cachelet.
    pub waiting: BTreeMap<OrderId, (Micros, bool)>,
    last: u64,
}

impl World {
    pub fn operate(&mut self) {
        if self.asked_all() {
            return;
        }
        match self.dice.below(12) {
            // Workers that are slow get no more to do than they can.
            _ if self.orders.waiting.len() >= ORDERS_MAX => {}
            0..=3 => self.lend(),
            4..=6 => self.hand_over(),
            7 => self.lighten(),
            9 => self.ask_balancer(),
            8 => self.begin_split(),
            _ => self.go_on_splitting(),
        }
        let longest = self.profile.meddle;
        let pause = self.dice.skewed(1..=longest);
        self.after(pause, Happening::Operator);
    }

    fn order(&mut self, lends: bool) -> OrderId {
        if self.dice.percent(5) {
            return OrderId(0);
        }
        self.orders.last += 1;
        let order = OrderId(OPERATOR + self.orders.last);
        self.orders.waiting.insert(order, (self.now, lends));
        order
    }

    /// Any worker; at times one that there is not.
    fn any_worker(&mut self) -> WorkerId {
        let some = usize::from(self.dice.percent(3));
        WorkerId(self.dice.below(self.seats.len() + some) as u16)
    }

    /// Lends a cachelet by what is known of its owner now; the order arrives later.
    fn lend(&mut self) {
        let store = &self.server.store;
        let seen = store.version();
        let cachelet = self.dice.pick(&store.prefixes());
        let owner = if self.dice.percent(5) {
            WorkerId(self.dice.below(self.seats.len()) as u16)
        } else {
            store.owner(cachelet).expect("it is among those that are here")
        };
        if self.splitting.contains(&cachelet) {
            self.coverage.meet(Sight::MovedInSplit);
        }
        // At times the same twice, or two different ones.
        for _ in 0..self.dice.pick(&[1, 1, 1, 2]) {
            let to = self.any_worker();
            let order = self.order(true);
            self.post(
                usize::from(owner.0),
                Letter::Tell(Event::Lend { order, cachelet, to, seen }),
            );
        }
    }

    fn hand_over(&mut self) {
        let connection = self.dice.below(self.connections.len());
        let (seat, conn) = match self.connections[connection].end {
            End::At { seat, conn } => (seat, conn),
            _ => (self.dice.below(self.seats.len()), ConnId(self.dice.below(9) as u32)),
        };
        let to = self.any_worker();
        let order = self.order(false);
        self.post(seat, Letter::Tell(Event::HandOver { order, conn, to }));
    }

    fn lighten(&mut self) {
        let seat = self.dice.below(self.seats.len());
        let (to, order) = (self.any_worker(), self.order(false));
        let share = self.dice.below(100) as f64 / 100.0;
        let share_max = self.dice.pick(&[0.1, 0.5, 1.0]);
        self.post(seat, Letter::Tell(Event::Lighten { order, to, share, share_max }));
    }

    pub fn reported(&mut self, seat: usize, report: Report) {
        let Some((_, lends)) = self.orders.waiting.remove(&report.order) else {
            return self.fail(5, format!("a report of no order: {report:?}"));
        };
        if usize::from(report.worker.0) != seat {
            return self.fail(5, format!("worker {seat} reports as another: {report:?}"));
        }
        if report.order.0 < OPERATOR {
            self.report_to_balancer(report.order.0, report.outcome);
        }
        match (report.outcome, lends) {
            (Outcome::Leaving(0), false) => {}
            (Outcome::Leaving(_), false) => self.coverage.meet(Sight::Lightened),
            (Outcome::Done, true) => {}
            (Outcome::Stale, true) => self.coverage.meet(Sight::LendStale),
            (Outcome::Refused, true) => self.coverage.meet(Sight::LendRefused),
            (Outcome::Due | Outcome::Leaving(_), true) => {
                self.fail(5, format!("a cachelet is never due: {report:?}"));
            }
            (Outcome::Done, false) => self.coverage.meet(Sight::HandOverNow),
            (Outcome::Due, false) => self.coverage.meet(Sight::HandOverMidRequest),
            (Outcome::Stale, false) => self.coverage.meet(Sight::HandOverStale),
            (Outcome::Refused, false) => self.coverage.meet(Sight::HandOverRefused),
        }
    }

    fn second(&self) -> u32 {
        (2 + self.now / SECOND) as u32
    }

    fn begin_split(&mut self) {
        let cachelet = self.dice.pick(&self.server.store.prefixes());
        if cachelet.bits() == self.claims.bits() {
            return;
        }
        if self.server.store.split(cachelet, self.second()) {
            self.coverage.meet(Sight::SplitBegan);
            self.splitting.push(cachelet);
            self.look_at_owners();
        }
    }

    fn go_on_splitting(&mut self) {
        let Some(&cachelet) = self.splitting.last() else { return };
        if !self.server.store.split_step(cachelet, self.second()) {
            self.coverage.meet(Sight::SplitDone);
            self.splitting.pop();
        } else if self.connections.iter().any(|connection| !connection.asked.is_empty()) {
            self.coverage.meet(Sight::SplitUnderWay);
        }
        self.look_at_owners();
    }
}
