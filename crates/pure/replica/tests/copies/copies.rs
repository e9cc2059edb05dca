//! What homes and shadows say to each other, and reads of copies.

use std::time::Duration;

use mbal_model::{Instant, ReplicaVersion};
use mbal_replica::{Grant, Held, Hold, HoldWhat, Item, Kept, Say, Shadow, What, over_after};

use crate::host::{Host, Letter, Stored, host_of, id_of, name};
use crate::world::{Event, World};

/// A copy.
pub struct Copy {
    pub shadow: Shadow,
    pub item: Option<Copied>,
    reads: u32,
    /// The end of the leases that homes have given, worked out by the simulation.
    lease_end: Instant,
}

#[derive(Clone, Copy, Debug)]
pub struct Copied {
    place: usize,
    until: Option<Instant>,
    flush_number: u32,
}

impl World {
    /// Sends to shadows what there is to say.
    pub fn says(&mut self, at: usize, key: usize) {
        let now = self.local(at);
        let host = &mut self.hosts[at];
        let stored = host.keys.get(&key).and_then(|here| here.stored);
        let stored = stored.filter(|stored| host.is_alive(stored, now));
        let Some(here) = host.keys.get_mut(&key) else { return };
        let Some(home) = &mut here.home else { return };
        let mut said = Vec::new();
        home.say(now, |say| said.push(say));
        let needs = |say: &Say| matches!(say.what, What::Item);
        if stored.is_none() && said.iter().any(needs) {
            said.iter().for_each(|say| home.failed(now, say.to));
            home.written(false);
            said.clear();
            home.say(now, |say| said.push(say));
        }
        for say in &said {
            here.invalidates |= matches!(say.what, What::Invalidate | What::Drop);
            here.invalidates &= say.what != What::Item;
        }
        said.into_iter().for_each(|say| self.sends(at, key, say, stored));
    }

    fn sends(&mut self, at: usize, key: usize, say: Say, stored: Option<Stored>) {
        let now = self.local(at);
        let value = stored.map(|stored| (stored.place as u64).to_le_bytes());
        let what = match (say.what, &stored, &value) {
            (What::Keep, ..) => HoldWhat::Keep,
            (What::Invalidate, ..) => HoldWhat::Invalidate,
            (What::Drop, ..) => HoldWhat::Drop,
            (What::Item, Some(stored), Some(value)) => HoldWhat::Item(Item {
                flags: 0,
                cas: stored.place as u64,
                ttl: stored
                    .deadline
                    .map(|deadline| Item::ttl_told(deadline.saturating_sub(now.as_secs()) as u32)),
                binary_key: false,
                flush_number: self.hosts[at].flush_number,
                value,
            }),
            (What::Item, ..) => unreachable!("what is not there is not told"),
        };
        let to = host_of(say.to);
        if self.is_silent(at, to) && self.sim.random.below(2) == 0 {
            let here = self.hosts[at].keys.get_mut(&key).expect("it has said something");
            here.home.as_mut().expect("it has said something").failed(now, say.to);
            self.sim.met.count("hold failed");
            return;
        }
        let (grant, version, stamp) = (say.grant, say.version, say.stamp);
        let name = name(key);
        let hold = Hold { grant, version, stamp, lease_ms: say.lease_ms, key: &name, what };
        let mut bytes = Vec::new();
        hold.encode(&mut bytes);
        self.numbers += 1;
        let ticket = self.numbers;
        self.hosts[at].tickets.insert(ticket);
        self.tell(key, || format!("home {at} says to {to}: {:?} {version:?} {stamp:?}", say.what));
        let process = self.hosts[at].process;
        let wait = self.profile.link_timeout;
        self.sim.after(wait, Event::Late { home: at, process, key, grant, to, ticket });
        for delay in self.sent(at, to, ["hold lost", "hold late", "hold doubled"]) {
            let letter = Letter::Hold { from: at, ticket, bytes: bytes.clone() };
            self.sim.after(delay, Event::Letter { to, letter });
        }
    }

    /// A home's word has not been answered in time.
    pub fn is_late(&mut self, at: usize, key: usize, grant: Grant, to: usize, ticket: u64) {
        if !self.hosts[at].tickets.remove(&ticket) {
            return;
        }
        let now = self.local(at);
        let home = self.hosts[at].keys.get_mut(&key).and_then(|here| here.home.as_mut());
        let Some(home) = home.filter(|home| home.grant() == grant) else { return };
        home.failed(now, id_of(to));
        self.sim.met.count("hold failed");
        self.says(at, key);
        self.retries(at);
    }

    /// A shadow takes a home's word.
    pub fn holds(&mut self, at: usize, from: usize, ticket: u64, bytes: &[u8]) {
        let now = self.local(at);
        let hold = Hold::decode(bytes).expect("it was encoded");
        let key = usize::from(hold.key[1] - b'0');
        let host = &mut self.hosts[at];
        let (process, fits) = (host.process, !host.is_full);
        let copy = host.copies[key].get_or_insert_with(|| Copy {
            shadow: Shadow::unknown(),
            item: None,
            reads: 0,
            lease_end: Instant::ZERO,
        });
        if hold.grant < copy.shadow.grant() {
            self.sim.met.count("grant over at a shadow");
        }
        let kept = copy.shadow.take(now, process, &hold, fits);
        match (kept, hold.what) {
            (Kept::New, HoldWhat::Item(item)) => {
                copy.item = Some(Copied {
                    place: u64::from_le_bytes(item.value.try_into().expect("a place")) as usize,
                    until: item.dies(hold.stamp, process, now),
                    flush_number: item.flush_number,
                });
            }
            (Kept::Nothing | Kept::New, _) => copy.item = None,
            (Kept::Same, _) => {}
        }
        // Whoever took the stamp, it counts for the process that took it.
        let is_of = (hold.stamp.0 >> 48) as u16 == process && hold.stamp.0 > 0;
        if is_of {
            let micros = hold.stamp.0 & ((1 << 48) - 1);
            let lease = Duration::from_millis(hold.lease_ms.into());
            copy.lease_end = copy.lease_end.max(Instant::from_micros(micros) + lease);
        }
        let refused = !fits && matches!(hold.what, HoldWhat::Item(_));
        if refused && copy.item.is_none() {
            self.sim.met.count("refused for want of room");
        }
        let held: Held = copy.shadow.held(now, process, std::mem::take(&mut copy.reads), refused);
        let mut bytes = Vec::new();
        held.encode(&mut bytes);
        let grant = hold.grant;
        self.tell(key, || format!("shadow {at} takes it: {kept:?}, has {held:?}"));
        for delay in self.sent(at, from, ["held lost", "held late", "held doubled"]) {
            let letter = Letter::Held { from: at, key, grant, ticket, bytes: bytes.clone() };
            self.sim.after(delay, Event::Letter { to: from, letter });
        }
    }

    /// The place of the value that a copy answers with, if there is one that may be read by who has seen that much.
    pub fn copy_of(
        &mut self,
        at: usize,
        key: usize,
        seen: ReplicaVersion,
    ) -> Option<(usize, ReplicaVersion)> {
        let now = self.local(at);
        let host = &mut self.hosts[at];
        let flush_number = host.flush_number;
        let copy = host.copies[key].as_mut()?;
        if !copy.shadow.may_answer(now, seen) {
            if copy.shadow.may_answer(now, ReplicaVersion::default()) {
                self.sim.met.count("a copy was older than what was seen");
            } else if copy.item.is_some() {
                self.sim.met.count("lease over at a shadow");
            }
            return None;
        }
        let item = copy.item?;
        let is_alive =
            item.until.is_none_or(|until| now < until) && flush_number <= item.flush_number;
        if !is_alive {
            copy.item = None;
            copy.shadow.loses_value();
            self.sim.met.count("died at a shadow");
            return None;
        }
        copy.reads += 1;
        let (place, replica_version) = (item.place, copy.shadow.replica_version());
        let lease_end = copy.lease_end;
        self.looks_at_copy(at, key, place, now, lease_end);
        Some((place, replica_version))
    }

    /// A copy has just answered with this.
    fn looks_at_copy(&mut self, at: usize, key: usize, place: usize, now: Instant, end: Instant) {
        self.tell(key, || format!("shadow {at} answers {place}"));
        if end <= now {
            return self.fails(4, key, format!("shadow {at} answers after its lease"));
        }
        let state = self.truth[key].at(place);
        if state.to.is_some() {
            self.sim.met.count("read from a copy that was overwritten");
        }
        let lease = over_after(self.profile.terms.lease).as_micros() as u64;
        if state.to.is_some_and(|to| to + lease < self.sim.now) {
            self.fails(4, key, format!("shadow {at} answers {place}, older than a lease"));
        }
        if state.flushed.is_some_and(|flushed| flushed < self.sim.now) {
            self.fails(3, key, format!("shadow {at} answers {place}, which was flushed"));
        }
        if state.to.is_none() && state.dies.is_some_and(|dies| dies <= self.sim.now) {
            self.fails(3, key, format!("shadow {at} answers {place}, which has died"));
        }
    }

    /// Where clients are told of copies there are some, when nothing has gone wrong for a while.
    pub fn looks_at_told(&mut self, key: usize) {
        let at = self.map.owners[key];
        let Some(here) = self.hosts[at].keys.get(&key) else { return };
        let told = here.home.as_ref().and_then(|home| home.told(self.local(at)));
        let dies = here.stored.is_none_or(|stored| stored.deadline.is_some());
        for suffix in told.filter(|_| !dies).map_or(Vec::new(), |told| told.suffixes) {
            let to = self.place(key, suffix);
            let copy = self.hosts[to].copies[key].as_ref();
            if copy.is_none_or(|copy| copy.item.is_none()) {
                self.fails(5, key, format!("clients are told of {to}, which has no copy"));
            }
        }
    }

    /// A home executes an atomic write: who can answer from a copy still?
    pub fn looks_at_shadows(&mut self, key: usize) {
        let answers = |(at, host): (usize, &Host)| {
            let copy = host.copies[key].as_ref()?;
            let now = host.clock.local(self.sim.now);
            let can = host.lives && copy.item.is_some() && now < copy.lease_end;
            (can && copy.shadow.may_answer(now, ReplicaVersion::default())).then_some(at)
        };
        let Some(at) = self.hosts.iter().enumerate().find_map(answers) else { return };
        self.fails(4, key, format!("a write is executed, and shadow {at} has a lease still"));
    }

    /// Delays with which a message comes, once for each time. `names`: lost, late, doubled.
    pub fn sent(&mut self, from: usize, to: usize, names: [&'static str; 3]) -> Vec<u64> {
        if self.is_silent(from, to) || self.loses() {
            self.sim.met.count(names[0]);
            return Vec::new();
        }
        let mut delays = vec![self.delay()];
        if self.is_trouble() && self.sim.random.below(1_000) < self.profile.late {
            self.sim.met.count(names[1]);
            delays[0] += self.sim.random.below(self.profile.late_max);
        }
        if self.is_trouble() && self.sim.random.below(1_000) < self.profile.doubled {
            self.sim.met.count(names[2]);
            let delay = self.delay() + self.sim.random.below(self.profile.late_max);
            delays.push(delay);
        }
        delays
    }

    /// A tick of a server: what time brings about.
    pub fn ticks(&mut self, at: usize) {
        let now = self.local(at);
        let keys: Vec<usize> = self.hosts[at].keys.keys().copied().collect();
        for key in keys {
            self.says(at, key);
            let here = self.hosts[at].keys.get_mut(&key).expect("it is here");
            if here.home.as_ref().is_some_and(|home| home.is_over(now)) {
                here.home = None;
                self.sim.met.count("cold again");
                self.tell(key, || format!("home {at}: it is cold"));
            }
            self.leaves(at, key);
            self.ends_newborn(at, key);
        }
        self.asks_for_fences(at);
        self.retries(at);
        for copy in &mut self.hosts[at].copies {
            if copy.as_ref().is_some_and(|copy| copy.shadow.is_over(now)) {
                *copy = None;
            }
        }
    }
}
