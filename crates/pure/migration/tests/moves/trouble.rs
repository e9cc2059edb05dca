//! What goes wrong, and what the coordinator orders meanwhile.

use mbal_cachelet::Store;
use mbal_migration::destination;
use mbal_migration::source;
use mbal_migration::{Incarnation, Strain};
use mbal_model::MoveId;

use crate::world::{Event, MILLISECOND, NOW, SECOND, World, serves, store};

impl World {
    /// Nothing goes wrong from now on.
    pub fn quiet(&mut self) {
        self.coordinator.down_until = 0;
        for host in &mut self.hosts {
            (host.is_slow, host.strained) = (false, false);
        }
        for link in self.links.iter_mut().flatten() {
            link.down_until = 0;
            link.ways.iter_mut().for_each(|way| way.silent_until = 0);
        }
        for from in 0..self.profile.hosts {
            for to in (0..self.profile.hosts).filter(|to| *to != from) {
                if !self.links[from][to].is_up {
                    self.sim.after(1, Event::LinkUp { from, to });
                }
            }
        }
    }

    pub fn trouble(&mut self) {
        if self.is_quiet() {
            return;
        }
        let gap = self.sim.about(self.profile.trouble_gap);
        self.sim.after(gap, Event::Trouble);
        let count = self.profile.hosts as u64;
        let (mut host, other) = (self.host(), 1 + self.sim.random.below(count - 1) as usize);
        let mut other = (host + other) % self.profile.hosts;
        let moves = &self.coordinator.moves;
        if !moves.is_empty() && self.sim.random.below(4) > 0 {
            let one = moves[self.sim.random.below(moves.len() as u64) as usize];
            (host, other) = (one.from, one.to);
        }
        let long = self.sim.random.below(60) == 0;
        let span = self.sim.random.below(if long { 10 * SECOND } else { 200 * MILLISECOND });
        match self.sim.random.below(32) {
            0..4 => self.break_link(host, other, span),
            4..8 => {
                self.sim.met.count("a way fell silent");
                let way = self.sim.random.below(2) as usize;
                let link = &mut self.links[host][other];
                link.ways[way].silent_until = self.sim.now + span;
                let number = link.number;
                // Whoever dialed finds out that it hears nothing.
                if span > self.profile.link_timeout {
                    let wait = self.profile.link_timeout;
                    self.sim.after(wait, Event::LinkDown { from: host, to: other, way: 0, number });
                }
            }
            8 => self.dies(host, span),
            9 => self.dies(other, span),
            10 => {
                self.sim.met.count("a coordinator was down");
                self.coordinator.down_until = self.sim.now + span;
            }
            11 | 12 if !self.truth.is_flushing() => self.flush(host, span / 10),
            13 | 14 => self.hosts[other].is_slow = self.sim.random.below(3) == 0,
            15 | 16 => {
                self.hosts[host].strained = self.sim.random.below(2) == 0;
                self.tell_strain(host);
            }
            17..20 => {
                let moves = &mut self.coordinator.moves;
                if !moves.is_empty() {
                    let at = self.sim.random.below(moves.len() as u64) as usize;
                    moves[at].cancelled = true;
                }
            }
            _ => {}
        }
    }

    pub fn order(&mut self) {
        let all = self.coordinator.map.owners.len() as u64;
        // The same move again may find what the last attempt has left.
        if self.sim.random.below(2) == 0 {
            self.ordered = (self.sim.random.below(all) as usize, self.host());
        }
        let (at, to) = self.ordered;
        if self.sim.now >= self.coordinator.down_until && self.coordinator.moves.len() < 3 {
            self.coordinator.order(at, to);
        }
    }

    pub fn tell_strain(&mut self, host: usize) {
        let strained = self.hosts[host].strained;
        let strain = if strained { Strain::Felt } else { Strain::None };
        let here = &self.hosts[host];
        let leaving: Vec<MoveId> =
            here.leaving.iter().map(|one| one.leaver.source.order().id).collect();
        let arriving: Vec<MoveId> =
            here.coming.iter().map(|one| one.arriver.destination.id()).collect();
        for id in leaving {
            self.tell_source(host, id, source::Event::Strained(strain));
        }
        for id in arriving {
            let event = destination::Event::Strained(strained);
            self.tell_destination(host, id, event).expect("no peer says so");
        }
    }

    /// One server after the other, in any order, each at its own time.
    pub fn flush(&mut self, first: usize, span: u64) {
        let Some(store) = &self.hosts[first].store else { return };
        self.sim.met.count("a flush");
        self.truth.flush_begins();
        self.sim.tell(|| format!("flush by {first} within {span}"));
        let number = store.flush(0, NOW).max(self.newest_flush + 1);
        store.flush_as(number, 0, NOW);
        self.newest_flush = number;
        for host in (0..self.profile.hosts).filter(|host| *host != first) {
            let wait = self.sim.random.below(span + 1);
            self.sim.after(wait, Event::Flush { host, number });
        }
        self.sim.after(span + 2, Event::FlushEnds);
    }

    pub fn dies(&mut self, host: usize, span: u64) {
        let Some(store) = self.hosts[host].store.take() else { return };
        self.sim.met.count("a server died");
        self.sim.tell(|| format!("server {host} dies"));
        let others: Vec<&Store> =
            self.hosts.iter().filter_map(|host| host.store.as_ref()).collect();
        self.truth.dies(&store, |hash| others.iter().any(|store| serves(store, hash)));
        let here = &mut self.hosts[host];
        (here.map, here.in_slow_batch, here.is_slow, here.strained) = (None, false, false, false);
        here.leaving.clear();
        here.coming.clear();
        for other in (0..self.profile.hosts).filter(|other| *other != host) {
            self.break_link(host, other, 0);
            self.links[host][other].is_up = false;
            self.break_link(other, host, 0);
        }
        self.sim.after(span, Event::Restart { host });
    }

    pub fn restart(&mut self, host: usize) {
        self.lives += 1;
        self.sim.tell(|| format!("server {host} begins again"));
        let life = Incarnation(self.lives);
        self.hosts[host].store = Some(store(self.profile.is_short));
        self.hosts[host].incarnation = life;
        let wait = self.sim.about(self.profile.heartbeat);
        self.sim.after(wait, Event::Heartbeat { host, life });
        for other in (0..self.profile.hosts).filter(|other| *other != host) {
            self.sim.after(1, Event::LinkUp { from: host, to: other });
            if !self.links[other][host].is_up {
                self.sim.after(1, Event::LinkUp { from: other, to: host });
            }
        }
    }
}
