//! When a run is over, and what it came to.

use super::checks::{Facts, Violation, check};
use super::connection::Connection;
use super::coverage::Sight;
use super::history::{Micros, SECOND};
use super::hosts::Past;
use super::world::World;

/// Where nothing moves, so many times as much is asked until a run ends.
const ASKED_MOST: usize = 2;

impl World {
    pub fn judge(&mut self) -> Result<(), Violation> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        let mut waiting = self.connections.iter().filter(|connection| self.waits(connection));
        if let Some(connection) = waiting.next() {
            let (end, stalled, paused) = (connection.end, connection.stalled, connection.paused);
            let end = format!("the connection is {end:?}, stalled: {stalled}, paused: {paused}");
            let what = match connection.asked.front() {
                Some(asked) => {
                    let op = self.history.ops.get(asked.ops.0);
                    format!("no answer at {} to what was asked at {}: {op:?}", self.now, asked.at)
                }
                None => "a client that sends no more waits for its end".to_owned(),
            };
            return Err(Violation::new(5, format!("{what}; {end}")));
        }
        let mut orders = self.hosts.iter().filter_map(|host| host.orders.waiting.first_key_value());
        if let Some((order, (sent, _))) = orders.next() {
            let what = format!("no report at {} of order {order:?}, sent at {sent}", self.now);
            return Err(Violation::new(5, what));
        }
        let Past { mut evictions, mut refused } = self.past;
        for host in &self.hosts {
            let stats = host.store().stats();
            evictions += stats.evictions;
            if stats.left_behind > 0 {
                self.coverage.meet(Sight::LeftBehind);
            }
            if stats.expired > 0 {
                self.coverage.meet(Sight::Expired);
            }
            // Memory may be short without an eviction: while what has been replaced waits for a worker that lost its core.
            let workers = 0..self.profile.workers;
            refused += workers.map(|at| host.server.sums_of(at).store_no_memory).sum::<u64>();
        }
        if !self.profile.tight && evictions > 0 {
            // They were not looked at on the way: any item may have been among them.
            self.history.ops.iter_mut().for_each(|op| op.evictions = (0, 1));
        }
        if evictions > 0 {
            self.coverage.meet(Sight::MemoryFull);
        }
        let kinds: Vec<_> = self.profile.keys.iter().map(|key| key.kind).collect();
        let calm = evictions == 0 && refused == 0;
        // Times travel as what remains, in seconds; a part may leave in one second and arrive in the next. So do those of clocks that run apart.
        let skew = self.skew();
        let put_off = |key| self.flux.journeys(key) * SECOND + skew;
        let put_off: Vec<_> = (0..kinds.len()).map(put_off).collect();
        let homes: Vec<_> = match self.is_clustered() {
            true => (0..kinds.len()).map(|key| self.flux.home(key)).collect(),
            false => vec![Some(0); kinds.len()],
        };
        let lag = self.lag + skew;
        let cuts = self.cuts_of_keys();
        let facts = Facts {
            kinds: &kinds,
            homes: &homes,
            put_off: &put_off,
            cuts: &cuts,
            lag,
            skew,
            calm,
            lease: self.profile.hot.as_ref().map(|hot| hot.lease),
        };
        check(&mut self.history, &facts)
    }

    /// So many requests, and a move at least.
    pub fn asked_all(&self) -> bool {
        let asked = self.history.ops.len();
        let has_moved =
            self.coverage.of(Sight::OwnerChanged) > 0 && (!self.is_clustered() || self.moved > 0);
        asked >= self.operations_wanted
            && (has_moved || asked >= ASKED_MOST * self.operations_wanted)
    }

    pub fn all_answered(&self) -> bool {
        !self.connections.iter().any(|connection| self.waits(connection))
            && self.hosts.iter().all(|host| host.orders.waiting.is_empty())
    }

    /// True if its client, who is no stranger, waits for an answer, or for its end.
    pub fn waits(&self, connection: &Connection) -> bool {
        let waits = connection.half_open || !connection.asked.is_empty();
        connection.open && waits && !self.is_stranger(connection.client)
    }

    /// How far clocks may show other seconds than the run's.
    pub fn skew(&self) -> Micros {
        let apart = self.hosts.iter().map(|host| host.clock.apart(self.now)).max().unwrap_or(0);
        if apart == 0 { 0 } else { apart + SECOND }
    }
}
