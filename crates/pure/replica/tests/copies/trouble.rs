//! What goes wrong, and what a cluster does meanwhile: keys get hot and cool, move, are flushed.

use mbal_model::planted::{Fault, is_planted};

use crate::client::Op;
use crate::host::{Host, Letter, host_of, state_name};
use crate::profile::Focus;
use crate::world::{Event, MILLISECOND, SECOND, World};

impl World {
    /// The state of a key, for what is counted.
    pub fn state_of(&self, key: usize) -> &'static str {
        let at = self.map.owners[key];
        let home = self.hosts[at].keys.get(&key).and_then(|here| here.home.as_ref());
        state_name(home.map(|home| home.state(self.local(at))))
    }

    pub fn trouble(&mut self) {
        if !self.is_trouble() {
            return;
        }
        let gap = self.sim.about(self.profile.trouble_gap);
        self.sim.after(gap, Event::Trouble);
        let key = self.sim.random.below(self.truth.len() as u64) as usize;
        let home = self.map.owners[key];
        let host = if self.sim.random.below(2) == 0 { home } else { self.host() };
        match (self.profile.focus, self.sim.random.below(2)) {
            (Focus::Dying, 0) => return self.copies_what_dies(key),
            (Focus::Owners, 0) => return self.owners_change(key),
            _ => {}
        }
        let is_long = self.sim.random.below(8) == 0;
        let span = self.sim.random.below(if is_long { 4 * SECOND } else { 900 * MILLISECOND });
        match self.sim.random.below(40) {
            0..4 => {
                let count = 1 + self.sim.random.below(self.hosts.len() as u64) as usize;
                self.heats(key, count);
            }
            4..6 => self.cools(key),
            6 => self.dies(host, span),
            13..16 => {
                self.stops(host, span);
                // It finds the first word of a copy when it goes on.
                if self.sim.random.below(3) == 0 {
                    self.heats(key, 4);
                }
            }
            16..20 => {
                let other = self.host();
                self.sim.met.count("silence between servers");
                self.silent_until[host][other] = self.sim.now + span;
                if self.sim.random.below(2) == 0 {
                    self.silent_until[other][host] = self.sim.now + span;
                }
            }
            21 | 30 => self.begins_to_leave(key),
            31..35 => {
                let was_shadow = |key: &usize| {
                    let at = self.map.owners[*key];
                    self.hosts[at].keys.contains_key(key) && self.hosts[at].copies[*key].is_some()
                };
                if let Some(key) = (0..self.truth.len()).find(was_shadow) {
                    self.begins_to_leave(key);
                }
            }
            20 | 23 => self.flushes(),
            22 | 24 => self.evicts(key),
            25 => self.hosts[host].is_full = self.sim.random.below(2) == 0,
            26 => {
                let client = self.sim.random.below(self.clients.len() as u64) as usize;
                self.changes_server(client);
            }
            27..30 => {
                self.lossy_until = self.sim.now + span;
            }
            _ => {}
        }
    }

    /// A server that gets a copy is stopped before it hears of it.
    fn copies_what_dies(&mut self, key: usize) {
        let home = self.map.owners[key];
        if self.state_of(key) != "Cold" {
            return self.cools(key);
        }
        let Some((_, shadow)) = self.places(key, home, 9).last().copied() else { return };
        let client = self.sim.random.below(self.clients.len() as u64) as usize;
        let ttl = 3 + self.sim.random.below(2) as u32;
        self.asks_for(client, key, Op::Set(Some(ttl)));
        let span = SECOND + self.sim.random.below(1_500 * MILLISECOND);
        self.stops(host_of(shadow), span);
        self.sim.after(50 * MILLISECOND, Event::Heats { key });
    }

    fn owners_change(&mut self, key: usize) {
        let home = self.map.owners[key];
        let here = self.hosts[home].keys.get(&key);
        if self.hosts[home].copies[key].is_some() {
            self.begins_to_leave(key);
        } else if here.is_some_and(|here| here.home.is_some()) {
            self.dies(home, 200 * MILLISECOND);
            self.sim.after(1, Event::Reassign { host: home });
        }
    }

    fn counts(&mut self, host: usize, what: &str) {
        for key in 0..self.truth.len() {
            let state = self.state_of(key);
            if self.map.owners[key] == host {
                self.sim.met.count(&format!("home {what} in {state}"));
            } else if self.hosts[host].copies[key].is_some() && state != "Cold" {
                self.sim.met.count(&format!("shadow {what} in {state}"));
            }
        }
    }

    fn dies(&mut self, host: usize, span: u64) {
        if !self.hosts[host].lives {
            return;
        }
        self.counts(host, "died");
        self.sim.tell(|| format!("server {host} dies"));
        let here = &mut self.hosts[host];
        (here.lives, here.stopped, here.is_full) = (false, false, false);
        here.keys.clear();
        here.inbox.clear();
        here.waiting.clear();
        here.tickets.clear();
        here.leases = None;
        here.copies.iter_mut().for_each(|copy| *copy = None);
        here.sessions.iter_mut().for_each(|leases| *leases = None);
        for key in 0..self.truth.len() {
            if self.map.owners[key] == host {
                self.truth[key].is_lost = true;
                self.moving[key] = None;
            }
        }
        if self.sim.random.below(2) == 0 {
            let wait = self.sim.random.below(span + 1);
            self.sim.after(wait, Event::Reassign { host });
        }
        self.sim.after(span, Event::Restart { host });
        for client in 0..self.clients.len() {
            if self.clients[client].server == host {
                self.changes_server(client);
            }
        }
    }

    pub fn restarts(&mut self, host: usize) {
        self.sim.met.count("restarted");
        self.sim.tell(|| format!("server {host} begins again"));
        self.lives += 1;
        let here = &mut self.hosts[host];
        (here.lives, here.process) = (true, self.lives);
        here.flush_number = self.newest_flush;
        here.map.version = 0;
        here.restarted();
        self.map.version += 1;
        self.map.members[host] = true;
        self.publishes(Some(host));
        let process = self.lives;
        self.sim.after(1, Event::Tick { host, process });
    }

    /// Keys of a server that is dead, or whose own lease is over, go to others.
    pub fn reassigns(&mut self, host: usize) {
        let stopped = self.hosts[host].stopped;
        if self.hosts[host].lives && !stopped {
            return;
        }
        let others: Vec<usize> =
            (0..self.hosts.len()).filter(|at| *at != host && self.hosts[*at].lives).collect();
        let owned: Vec<usize> =
            (0..self.truth.len()).filter(|key| self.map.owners[*key] == host).collect();
        if others.is_empty() {
            return;
        }
        self.map.members[host] = false;
        for key in owned {
            let mut to = others[self.sim.random.below(others.len() as u64) as usize];
            let shadow = others.iter().find(|at| self.hosts[**at].copies[key].is_some());
            if let (Some(shadow), 0) = (shadow, self.sim.random.below(2)) {
                to = *shadow;
            }
            self.map.owners[key] = to;
            self.truth[key].is_lost = true;
            self.moving[key] = None;
            if stopped {
                self.hosts[host].lost.insert(key);
                self.sim.met.count("a stopped owner lost its keys");
            }
            self.tell(key, || format!("server {host} owns it no more, {to} does"));
        }
        self.map.version += 1;
        self.publishes(None);
    }

    /// The map reaches every server, sooner or later, and one of them at once.
    fn publishes(&mut self, at_once: Option<usize>) {
        for host in 0..self.hosts.len() {
            let wait = match at_once == Some(host) {
                true => 0,
                false => self.sim.random.below(self.profile.map_delay),
            };
            let letter = Letter::Map(self.map.clone());
            self.sim.after(wait, Event::Letter { to: host, letter });
        }
    }

    fn stops(&mut self, host: usize, span: u64) {
        if !self.hosts[host].lives || self.hosts[host].stopped {
            return;
        }
        self.counts(host, "stopped");
        self.sim.tell(|| format!("server {host} is stopped"));
        self.hosts[host].stopped = true;
        let process = self.hosts[host].process;
        // Its own lease ends in time, and it knows when it goes on.
        if span > SECOND && self.sim.random.below(2) == 0 {
            self.sim.after(span - 1, Event::Reassign { host });
        }
        self.sim.after(span, Event::GoesOn { host, process });
    }

    pub fn goes_on(&mut self, host: usize) {
        self.hosts[host].stopped = false;
        self.sim.tell(|| format!("server {host} goes on"));
        if !self.map.members[host] {
            self.joins_anew(host);
        }
        for letter in std::mem::take(&mut self.hosts[host].inbox) {
            if !self.hosts[host].stopped && self.hosts[host].lives {
                self.handles(host, letter);
            }
        }
    }

    /// Its own lease is over: what it has is others'. It comes back as another process would.
    fn joins_anew(&mut self, host: usize) {
        self.lives += 1;
        let here = &mut self.hosts[host];
        for key in std::mem::take(&mut here.lost) {
            here.keys.remove(&key);
        }
        here.copies.iter_mut().for_each(|copy| *copy = None);
        here.process = self.lives;
        self.map.version += 1;
        self.map.members[host] = true;
        self.publishes(None);
        let process = self.lives;
        self.sim.after(1, Event::Tick { host, process });
    }

    fn begins_to_leave(&mut self, key: usize) {
        let at = self.map.owners[key];
        let to = self.host();
        if to == at || !self.map.members[to] || !self.hosts[at].lives || self.hosts[at].stopped {
            return;
        }
        let state = self.state_of(key);
        let Some(here) = self.hosts[at].keys.get_mut(&key) else { return };
        if here.leaves_to.is_none() && here.newborn.is_none() {
            here.leaves_to = Some(to);
            self.sim.met.count(&format!("leaves in {state}"));
        }
    }

    /// A key that is to leave does so when it has no copies.
    pub fn leaves(&mut self, at: usize, key: usize) {
        let now = self.local(at);
        self.ends_newborn(at, key);
        let Some(here) = self.hosts[at].keys.get_mut(&key) else { return };
        let Some(to) = here.leaves_to else { return };
        if here.newborn.is_some() && !is_planted(Fault::NewbornLeaves) {
            return self.sim.met.count("a newborn waits to leave");
        }
        if let Some(home) = &mut here.home {
            home.cools();
            return self.says(at, key);
        }
        let stored = here.stored;
        self.hosts[at].keys.remove(&key);
        self.sim.met.count("moved");
        if self.hosts[to].copies[key].is_some() {
            self.sim.met.count("moved to a shadow");
        }
        self.tell(key, || format!("it leaves {at} for {to}"));
        self.map.version += 1;
        self.map.owners[key] = to;
        self.moving[key] = Some(to);
        let seconds = stored.and_then(|stored| stored.deadline);
        let seconds = seconds.map(|deadline| deadline.saturating_sub(now.as_secs()));
        let map = self.map.clone();
        self.hosts[at].map.owners[key] = to;
        let delay = self.delay();
        let letter = Letter::Moved { key, map, stored, seconds };
        self.sim.after(delay, Event::Letter { to, letter });
        self.publishes(None);
    }

    /// One server after the other; what does not live is told when it begins.
    fn flushes(&mut self) {
        if self.is_flushing {
            return;
        }
        self.is_flushing = true;
        self.newest_flush += 1;
        let number = self.newest_flush;
        self.sim.met.count("flushed");
        for key in 0..self.truth.len() {
            let state = self.state_of(key);
            if state != "Cold" {
                self.sim.met.count("flush in the middle of copies");
                self.sim.met.count(&format!("flushed in {state}"));
            }
        }
        self.sim.tell(|| format!("flush {number} begins"));
        for host in 0..self.hosts.len() {
            let wait = self.sim.random.below(100 * MILLISECOND);
            self.sim.after(wait, Event::Letter { to: host, letter: Letter::Flush(number) });
        }
        self.sim.after(100 * MILLISECOND, Event::FlushEnds { number });
    }

    pub fn flush_ends(&mut self, number: u32) {
        let is_done = |host: &Host| !host.lives || host.flush_number >= number;
        if !self.hosts.iter().all(is_done) {
            return self.sim.after(100 * MILLISECOND, Event::FlushEnds { number });
        }
        self.is_flushing = false;
        self.sim.tell(|| format!("flush {number} is done"));
        let now = self.sim.now;
        self.truth.iter_mut().for_each(|truth| truth.is_flushed(now, number));
    }

    /// Memory is short at its home.
    fn evicts(&mut self, key: usize) {
        let at = self.map.owners[key];
        let state = self.state_of(key);
        let Some(here) = self.hosts[at].keys.get_mut(&key) else { return };
        if here.stored.take().is_some() {
            self.sim.met.count("evicted at home");
            if state != "Cold" {
                self.sim.met.count(&format!("evicted in {state}"));
            }
            self.truth[key].is_lost = true;
            self.tell(key, || format!("home {at} evicts it"));
        }
    }

    pub fn heals(&mut self) {
        self.lossy_until = 0;
        self.silent_until.iter_mut().flatten().for_each(|until| *until = 0);
        for host in &mut self.hosts {
            host.is_full = false;
            host.keys.values_mut().for_each(|here| here.leaves_to = None);
        }
    }
}
