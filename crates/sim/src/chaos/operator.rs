//! What is done to servers while they serve: cachelets are lent, connections handed over, cachelets split.

use std::collections::BTreeMap;
use std::sync::Arc;

use mbal_model::{Outcome, WorkerId};
use mbal_worker::{ConnId, Event, OrderId, Report};

use super::balancing::OPERATOR;
use super::connection::End;
use super::coverage::Sight;
use super::history::Micros;
use super::letters::Letter;
use super::world::{Happening, World};

/// Orders that are on their way, or not yet reported, before the operator waits.
const ORDERS_MAX: usize = 16;
/// A server that has so many cachelets is asked to split none: planners take their time over many.
const CACHELETS_MAX: usize = 24;

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
        let host = match self.hosts.len() {
            1 => 0,
            hosts => self.dice.below(hosts),
        };
        let is_up = self.hosts[host].is_up;
        match self.dice.below(12) {
            _ if !is_up => {}
            // Workers that are slow get no more to do than they can.
            _ if self.hosts[host].orders.waiting.len() >= ORDERS_MAX => {}
            0..=3 => self.lend(host),
            4..=6 => self.hand_over(host),
            7 => self.lighten(host),
            9 => self.ask_balancer(host),
            8 => self.begin_split(host),
            _ => self.go_on_splitting(host),
        }
        let longest = self.profile.meddle;
        let pause = self.dice.skewed(1..=longest);
        self.after(pause, Happening::Operator);
    }

    fn order(&mut self, host: usize, lends: bool) -> OrderId {
        if self.dice.percent(5) {
            return OrderId(0);
        }
        let orders = &mut self.hosts[host].orders;
        orders.last += 1;
        let order = OrderId(OPERATOR + orders.last);
        orders.waiting.insert(order, (self.now, lends));
        order
    }

    /// Any worker of a server; at times one that there is not.
    fn any_worker(&mut self) -> WorkerId {
        let some = usize::from(self.dice.percent(3));
        WorkerId(self.dice.below(self.profile.workers + some) as u16)
    }

    /// Lends a cachelet by what is known of its owner now; the order arrives later.
    fn lend(&mut self, host: usize) {
        let server = Arc::clone(&self.hosts[host].server);
        let store = &server.store;
        let seen = store.version();
        let prefixes = store.prefixes();
        if prefixes.is_empty() {
            return;
        }
        let cachelet = self.dice.pick(&prefixes);
        let owner = if self.dice.percent(5) {
            WorkerId(self.dice.below(self.profile.workers) as u16)
        } else {
            store.owner(cachelet).expect("it is among those that are here")
        };
        if self.hosts[host].splitting.contains(&cachelet) {
            self.coverage.meet(Sight::MovedInSplit);
        }
        // At times the same twice, or two different ones.
        for _ in 0..self.dice.pick(&[1, 1, 1, 2]) {
            let to = self.any_worker();
            let order = self.order(host, true);
            self.post_to(host, owner, Letter::Tell(Event::Lend { order, cachelet, to, seen }));
        }
    }

    fn hand_over(&mut self, host: usize) {
        if self.connections.is_empty() {
            return;
        }
        let connection = self.dice.below(self.connections.len());
        let (seat, conn) = match self.connections[connection].end {
            End::At { seat, conn } => (seat, conn),
            _ => (self.any_seat(host), ConnId(self.dice.below(9) as u32)),
        };
        let to = self.any_worker();
        if !self.hosts[self.seats[seat].host].is_up {
            return;
        }
        let order = self.order(self.seats[seat].host, false);
        self.post(seat, Letter::Tell(Event::HandOver { order, conn, to }));
    }

    fn any_seat(&mut self, host: usize) -> usize {
        self.hosts[host].seats.start + self.dice.below(self.profile.workers)
    }

    fn lighten(&mut self, host: usize) {
        let seat = self.any_seat(host);
        let (to, order) = (self.any_worker(), self.order(host, false));
        let share = self.dice.below(100) as f64 / 100.0;
        let share_max = self.dice.pick(&[0.1, 0.5, 1.0]);
        self.post(seat, Letter::Tell(Event::Lighten { order, to, share, share_max }));
    }

    pub fn reported(&mut self, seat: usize, report: Report) {
        let host = self.seats[seat].host;
        let Some((_, lends)) = self.hosts[host].orders.waiting.remove(&report.order) else {
            return self.fail(5, format!("a report of no order: {report:?}"));
        };
        if report.worker != self.seats[seat].id {
            return self.fail(5, format!("worker {seat} reports as another: {report:?}"));
        }
        if report.order.0 < OPERATOR {
            self.report_to_balancer(host, report);
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

    fn begin_split(&mut self, host: usize) {
        let this = &mut self.hosts[host];
        let prefixes = this.server.store.prefixes();
        if prefixes.is_empty() || prefixes.len() >= CACHELETS_MAX {
            return;
        }
        let cachelet = self.dice.pick(&prefixes);
        if cachelet.bits() >= self.profile.cachelet_bits_max {
            return;
        }
        if this.server.store.split(cachelet, this.second(self.now)) {
            this.splitting.push(cachelet);
            self.coverage.meet(Sight::SplitBegan);
            self.look_at_owners(host);
        }
    }

    fn go_on_splitting(&mut self, host: usize) {
        let this = &mut self.hosts[host];
        let Some(&cachelet) = this.splitting.last() else { return };
        if !this.server.store.split_step(cachelet, this.second(self.now)) {
            this.splitting.pop();
            self.coverage.meet(Sight::SplitDone);
        } else if self.connections.iter().any(|connection| !connection.asked.is_empty()) {
            self.coverage.meet(Sight::SplitUnderWay);
        }
        self.look_at_owners(host);
    }
}
