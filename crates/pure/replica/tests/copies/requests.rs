//! Requests at a server: executed, waiting, answered from a copy, passed on.

use std::time::Duration;

use mbal_model::{Instant, ReplicaVersion};
use mbal_replica::{Announcement, Choice, Leases, over_after};

use crate::client::{Ask, Op, Outcome, Reply};
use crate::host::{Letter, Stored, TICK, Waiting, hash};
use crate::world::{Event, World};

const HOPS_MAX: u32 = 4;

impl World {
    pub fn is_asked(&mut self, at: usize, ask: Ask) {
        let now = self.local(at);
        self.ends_newborn(at, ask.key);
        let here = self.hosts[at].keys.get(&ask.key);
        if here.is_some_and(|here| here.newborn.is_some()) {
            self.sim.met.count("newborn");
            return self.answers(at, ask, Outcome::NoRoute, None, None);
        }
        if here.is_some() {
            return self.executes(at, ask);
        }
        if ask.op == Op::Get && self.is_read_elsewhere(at, ask) {
            return;
        }
        let is_owned = self.clients[ask.client].is_smart || ask.by.is_some();
        let by = Some((at, self.hosts[at].process)).filter(|_| !is_owned).or(ask.by);
        let asked = if by == ask.by { ask.asked } else { now };
        let to = self.hosts[at].map.owners[ask.key];
        let ask = Ask { by_lease: None, by, asked, hops: ask.hops + 1, ..ask };
        if to == at || ask.hops > HOPS_MAX {
            return self.answers(at, ask, Outcome::NoRoute, None, None);
        }
        self.forwards(to, ask);
    }

    fn forwards(&mut self, to: usize, ask: Ask) {
        if self.loses() {
            self.sim.met.count("request lost");
            return;
        }
        let delay = self.delay();
        self.sim.after(delay, Event::Letter { to, letter: Letter::Ask(ask) });
    }

    /// True if a copy is asked, or has answered.
    fn is_read_elsewhere(&mut self, at: usize, ask: Ask) -> bool {
        let key = ask.key;
        if let Some(seen) = ask.by_lease {
            let Some((place, replica_version)) = self.copy_of(at, key, seen) else {
                self.sim.met.count("marked read passed on");
                return false;
            };
            let is_smart = self.clients[ask.client].is_smart;
            self.sim.met.count(match is_smart {
                true => "read from a copy by a smart client",
                false => "read from a copy by a lease of a server",
            });
            self.answers(at, ask, Outcome::Value(place), Some(replica_version), None);
            return true;
        }
        let is_ordinary = !self.clients[ask.client].is_smart && ask.by.is_none();
        if !is_ordinary {
            return false;
        }
        let atomic = self.profile.terms.atomic;
        if atomic {
            if let Some((place, replica_version)) = self.copy_of(at, key, ReplicaVersion::default())
            {
                self.sim.met.count("read from a copy at a client's own server");
                self.answers(at, ask, Outcome::Value(place), Some(replica_version), None);
                return true;
            }
        }
        let (now, random) = (self.local(at), self.sim.random.word() as u32);
        let host = &mut self.hosts[at];
        let leases = if atomic { &mut host.leases } else { &mut host.sessions[ask.client] };
        let Some(leases) = leases.as_mut().filter(|leases| !leases.is_empty()) else {
            return false;
        };
        leases.follow(host.map.version, now);
        let Some(seen) = leases.seen(hash(key), now) else { return false };
        let choice = leases.route(hash(key), now, random);
        if let Some((place, replica_version)) = self.copy_of(at, key, seen) {
            if let Some(leases) = &mut self.hosts[at].sessions[ask.client] {
                leases.saw(hash(key), replica_version, now);
            }
            self.sim.met.count("read from a copy at a client's own server");
            self.answers(at, ask, Outcome::Value(place), Some(replica_version), None);
            return true;
        }
        let Choice::Copy { suffix, seen } = choice else { return false };
        let to = self.place(key, suffix);
        if to == at {
            return false;
        }
        let by = Some((at, self.hosts[at].process));
        self.forwards(
            to,
            Ask { by_lease: Some(seen), leased: true, by, asked: now, hops: ask.hops + 1, ..ask },
        );
        true
    }

    /// A reply leaves for whoever holds leases, or for the client.
    fn answers(
        &mut self,
        at: usize,
        ask: Ask,
        outcome: Outcome,
        from_copy: Option<ReplicaVersion>,
        told: Option<Announcement>,
    ) {
        if matches!(outcome, Outcome::NoRoute) {
            self.sim.met.count("no route");
        }
        let token = told.map(|told| told.to_string());
        let reply = Reply { outcome, from_copy, token };
        if self.loses() {
            self.sim.met.count("reply lost");
            return;
        }
        let mut delay = self.delay();
        if self.is_trouble() && self.sim.random.below(1_000) < self.profile.late {
            delay += self.sim.random.below(self.profile.late_max);
        }
        match ask.by {
            Some((by, _)) if by != at => {
                self.sim
                    .after(delay, Event::Letter { to: by, letter: Letter::Answer { ask, reply } });
            }
            _ => self
                .sim
                .after(delay, Event::Reply { client: ask.client, number: ask.number, reply }),
        }
    }

    /// A server that holds leases for its clients gets a reply for one.
    pub fn is_answered(&mut self, at: usize, ask: Ask, reply: Reply) {
        let client = &self.clients[ask.client];
        if ask.by != Some((at, self.hosts[at].process)) || client.server != at {
            return;
        }
        if !client.waits_for(ask.number) {
            return;
        }
        let now = self.local(at);
        let atomic = self.profile.terms.atomic;
        let host = &mut self.hosts[at];
        let leases = if atomic { &mut host.leases } else { &mut host.sessions[ask.client] };
        let (map_version, since) = (host.map.version, host.map_since);
        if let Some(leases) = leases {
            leases.follow(map_version, now);
        }
        let new = || Leases::new(2, 4, map_version, since);
        match (&reply.token, reply.from_copy) {
            (Some(text), _) => {
                let told = Announcement::parse(text.as_bytes()).expect("a token");
                let leases = leases.get_or_insert_with(new);
                leases.answered(hash(ask.key), (ask.asked, ask.leased), Some(&told), now);
            }
            (None, Some(replica_version)) => {
                let leases = leases.get_or_insert_with(new);
                leases.saw(hash(ask.key), replica_version, now);
            }
            (None, None) if atomic && leases.is_none() => {}
            (None, None) => {
                let leases = leases.get_or_insert_with(new);
                leases.answered(hash(ask.key), (ask.asked, ask.leased), None, now);
            }
        }
        let delay = self.delay();
        self.sim.after(delay, Event::Reply { client: ask.client, number: ask.number, reply });
    }

    fn executes(&mut self, at: usize, ask: Ask) {
        let is_behind = self.hosts[at].waiting.iter().any(|one| one.ask.key == ask.key);
        let overtakes = !is_behind || ask.op == Op::Get;
        if overtakes && self.is_executed(at, ask, None) {
            return;
        }
        let since = self.local(at);
        self.sim.met.count(if ask.op == Op::Get { "a miss waited" } else { "a write waited" });
        self.hosts[at].waiting.push(Waiting { ask, since });
        self.says(at, ask.key);
    }

    /// Tries those that wait, the oldest first.
    pub fn retries(&mut self, at: usize) {
        let now = self.local(at);
        let waiting = std::mem::take(&mut self.hosts[at].waiting);
        let mut left = Vec::new();
        for one in waiting {
            let client = &self.clients[one.ask.client];
            if self.profile.drops_waiting && !client.waits_for(one.ask.number) {
                self.sim.met.count("a waiting write was given up");
                continue;
            }
            if !self.hosts[at].keys.contains_key(&one.ask.key) {
                self.sim.met.count("a waiting write goes on elsewhere");
                self.is_asked(at, one.ask);
                continue;
            }
            if !self.is_executed(at, one.ask, Some(one.since)) {
                self.says(at, one.ask.key);
                left.push(one);
            }
        }
        left.append(&mut self.hosts[at].waiting);
        for one in &left {
            // Leases that were given end, whatever becomes of what is said.
            let heard = self.hosts[at].keys.get(&one.ask.key).map(|here| here.heard);
            let Some(heard) = heard else { continue };
            let slack = Duration::from_micros(2 * TICK);
            if heard.max(one.since) + over_after(self.profile.terms.lease) + slack < now {
                let text = format!("#{} waits since {:?}", one.ask.number, one.since);
                self.fails(5, one.ask.key, text);
            }
        }
        self.hosts[at].waiting = left;
    }

    /// False if it has to wait for shadows.
    fn is_executed(&mut self, at: usize, ask: Ask, since: Option<Instant>) -> bool {
        let (now, key) = (self.local(at), ask.key);
        let host = &mut self.hosts[at];
        let number = host.flush_number;
        let stored = host.keys[&key].stored;
        let alive = stored.filter(|stored| host.is_alive(stored, now));
        if stored.is_some() && alive.is_none() {
            self.sim.met.count("died at home");
        }
        let here = host.keys.get_mut(&key).expect("it is here");
        if ask.op == Op::Get {
            let Some(stored) = alive else {
                if here.home.as_mut().is_some_and(|home| !home.missed(now)) {
                    return false;
                }
                self.sim.met.count("missed");
                here.stored = None;
                let place = self.truth[key].is_missed(self.sim.now);
                self.says(at, key);
                self.tell(key, || format!("home {at} misses, {place}, #{}", ask.number));
                self.answers(at, ask, Outcome::Nothing(place), None, None);
                return true;
            };
            self.sim.met.count("read at home");
            let told = here.home.as_ref().and_then(|home| home.told(now));
            if told.is_some() {
                self.sim.met.count("hot");
            }
            let told = told.map(|told| Announcement { lease: self.profile.lease, ..told });
            self.answers(at, ask, Outcome::Value(stored.place), None, told);
            return true;
        }
        if here.home.as_mut().is_some_and(|home| !home.invalidates(now)) {
            return false;
        }
        if self.profile.terms.atomic && here.invalidates {
            self.looks_at_shadows(key);
        }
        if since.is_some_and(|since| since + self.profile.terms.lease / 2 < now) {
            self.sim.met.count("a write waited for a lease to end");
        }
        let newest = self.truth[key].last();
        let ttl = match ask.op {
            Op::Get => unreachable!("it was read"),
            Op::Set(ttl) => Some(ttl),
            Op::Touch(ttl) => alive.map(|_| ttl),
            Op::Cas(seen) => alive.filter(|_| seen == newest).map(|_| None),
            Op::Delete => None,
        };
        let place = match (ttl, ask.op) {
            (Some(ttl), _) => {
                let deadline = ttl.map(|ttl| now.as_secs() + u64::from(ttl));
                let clock = self.hosts[at].clock;
                let dies = deadline.map(|deadline| clock.when(deadline * 1_000_000));
                let place = self.truth[key].is_written(self.sim.now, true, dies, number);
                let stored = Stored { place, deadline, flush_number: number };
                self.hosts[at].keys.get_mut(&key).expect("it is here").stored = Some(stored);
                Some(place)
            }
            (None, Op::Delete) => {
                self.hosts[at].keys.get_mut(&key).expect("it is here").stored = None;
                Some(self.truth[key].is_written(self.sim.now, false, None, u32::MAX))
            }
            (None, _) => None,
        };
        self.sim.met.count(if place.is_some() { "executed" } else { "conflict" });
        let host = &mut self.hosts[at];
        let stored = host.keys[&key].stored.filter(|stored| host.is_alive(stored, now));
        let here = host.keys.get_mut(&key).expect("it is here");
        if let Some(home) = &mut here.home {
            home.written(stored.is_some());
        }
        self.tell(key, || format!("home {at} executes {:?}: {place:?}, #{}", ask.op, ask.number));
        self.says(at, key);
        self.answers(at, ask, Outcome::Written(place), None, None);
        true
    }
}
