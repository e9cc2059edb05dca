//! What an answer means where servers may not have reached each other.

use std::ops::Range;

use super::connection::End;
use super::coverage::Sight;
use super::history::{ALL_KEYS, Micros, Observed, Op};
use super::hosts::Host;
use super::world::World;

/// By no clock a server refuses what has waited for less: it waits as long as for a slice that moves.
const WAITS: Micros = 900_000;

/// What may have come between a request and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    None,
    /// The link to its key's owner was missing, or slower than its deadline.
    Link,
    /// Its key was on its way from server to server.
    Map,
}

impl World {
    pub fn doubt(&mut self, connection: usize, op: usize) -> Doubt {
        if !self.is_clustered() {
            return Doubt::None;
        }
        let Op { key, asked, .. } = self.history.ops[op];
        if key == ALL_KEYS {
            // It is another request to each server, whose answers are looked at on their own.
            return if self.any_in_flux(asked) { Doubt::Map } else { Doubt::None };
        }
        if self.in_flux(key, asked) {
            return Doubt::Map;
        }
        let hash = self.profile.keys[key].hash();
        let owner = self.owner_of(hash).expect("else it is in flux");
        let mut seats = self.seats_of(connection, asked);
        let is_elsewhere = owner != self.connections[connection].host;
        // A server with a copy may have been asked, and have reached the owner as little.
        let copied = self.profile.hot.is_some();
        let hosts = if copied { 0..self.hosts.len() } else { owner..owner + 1 };
        let is_missed = |seat: usize| {
            hosts.clone().any(|host| self.was_missing(seat, host, asked))
                || copied && self.counted_unreachable(seat, asked)
        };
        match self.may_have_waited(asked) || (is_elsewhere || copied) && seats.any(is_missed) {
            true => Doubt::Link,
            false => Doubt::None,
        }
    }

    /// True if a server may have refused what was asked then since it had waited for too long: for copies, or for what stands before it on a link
    /// that is silent, and has not failed yet.
    fn may_have_waited(&self, asked: Micros) -> bool {
        let may_wait = self.profile.hot.is_some() || self.profile.link_timeout > WAITS;
        may_wait && asked + WAITS <= self.now
    }

    /// True if some server has followed a newer map than this one since then, and was missing a link at some moment: it passes a `flush_all` on to
    /// servers of which this one does not know.
    fn may_be_passed_on(&self, here: usize, since: Micros) -> bool {
        let member = &self.hosts[here].member;
        let is_newer = |host: &Host| {
            host.member.driver.map_version() > member.driver.map_version()
                || member.followed >= since
        };
        let misses = |host: &Host, to: usize| {
            let mut seats = host.seats.clone();
            seats.any(|seat| self.was_missing(seat, to, since))
        };
        let others = || (0..self.hosts.len()).filter(|host| *host != here);
        others().any(|from| {
            let host = &self.hosts[from];
            is_newer(host) && others().any(|to| to != from && misses(host, to))
        })
    }

    /// True if the key is one of the server's that was asked.
    pub fn is_here(&self, connection: usize, op: usize) -> bool {
        let hash = self.profile.keys[self.history.ops[op].key].hash();
        self.owner_of(hash) == Some(self.connections[connection].host)
    }

    /// The workers that may have served a connection since then.
    fn seats_of(&self, connection: usize, since: Micros) -> Range<usize> {
        let this = &self.connections[connection];
        match this.end {
            End::At { seat, .. } if this.came < since => seat..seat + 1,
            _ => self.hosts[this.host].seats.clone(),
        }
    }

    /// What an answer means where servers may not have reached each other; an answer that there may not be is a fault.
    pub fn told_by_cluster(
        &mut self,
        connection: usize,
        op: usize,
        told: Observed,
        doubt: Doubt,
        reads: bool,
    ) -> Observed {
        let this = &self.history.ops[op];
        let (asked, flushes) = (this.asked, this.key == ALL_KEYS);
        match told {
            Observed::NotEverywhere { failed, servers } => {
                self.coverage.meet(Sight::NotEverywhere);
                let here = self.connections[connection].host;
                let seats = self.seats_of(connection, asked);
                // One whose own lease is over has been reached, and says that it has not done it.
                let is_missed = |host: &usize| {
                    let mut seats = seats.clone();
                    *host != here
                        && (self.has_lapsed(*host, asked)
                            || self.may_have_waited(asked)
                            || seats.any(|seat| self.was_missing(seat, *host, asked)))
                };
                let missed = match self.may_be_passed_on(here, asked) {
                    // By any of them, which then says that it has not done it.
                    true => self.hosts.len() - 1,
                    false => (0..self.hosts.len()).filter(is_missed).count(),
                };
                let missed = missed + usize::from(self.has_lapsed(here, asked));
                if !flushes || servers > self.hosts.len() || !(1..=missed).contains(&failed) {
                    let what = format!("{told:?}, where {missed} were missed: {this:?}");
                    self.fail(5, what);
                }
                told
            }
            Observed::Done { .. } if flushes => {
                self.coverage.meet(Sight::Everywhere);
                told
            }
            Observed::NoRoute if reads || flushes || doubt == Doubt::None => {
                let what = format!("no route: {this:?}");
                self.fail(5, what);
                told
            }
            Observed::NoRoute => {
                self.coverage.meet(Sight::NoRoute);
                Observed::Nothing
            }
            // It has missed, or nobody was asked.
            Observed::Absent if reads && doubt != Doubt::None => {
                // It may have been sent on.
                let mut seats = match doubt {
                    Doubt::Map => 0..self.seats.len(),
                    _ => self.seats_of(connection, asked),
                };
                if seats.any(|seat| self.counted_unreachable(seat, asked)) {
                    self.coverage.meet(Sight::Unreachable);
                    return Observed::Nothing;
                }
                told
            }
            // Executed or not, or yet to be executed: what was on a link that broke may still arrive.
            Observed::Quiet if doubt != Doubt::None => {
                self.coverage.meet(Sight::QuietInDoubt);
                Observed::Nothing
            }
            Observed::Error if doubt != Doubt::None => Observed::Nothing,
            _ => told,
        }
    }

    /// True if its keys are of several servers.
    pub fn is_gathered(&self, (first, count): (usize, usize)) -> bool {
        let Some(map) = &self.control.file.map else { return false };
        let server = |op: &Op| map.at(self.profile.keys[op.key].hash()).1.server;
        self.history.ops[first..first + count]
            .windows(2)
            .any(|two| server(&two[0]) != server(&two[1]))
    }
}
