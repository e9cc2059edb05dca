//! Keys that begin empty: their owner has copies fenced off that an earlier one has made.

use mbal_model::Prefix;
use mbal_replica::{Grant, Held, Hold, Newborn};

use crate::host::{Letter, host_of, id_of, prefix};
use crate::world::{Event, Map, World};

impl World {
    /// A key begins empty at a server by this map.
    pub fn newborn(&mut self, at: usize, key: usize, map: &Map) -> Newborn {
        let (now, fence) = (self.local(at), Grant::new(map.version, 0));
        // The server here may have been a shadow, and give the key away.
        self.fences(at, prefix(key), fence);
        let others = (0..map.members.len()).filter(|other| map.members[*other] && *other != at);
        Newborn::new(fence, others.map(id_of), self.profile.lease, now)
    }

    fn fences(&mut self, at: usize, of: Prefix, grant: Grant) {
        for (key, copy) in self.hosts[at].copies.iter_mut().enumerate() {
            if let Some(copy) = copy.as_mut().filter(|_| of.contains(prefix(key).first_hash())) {
                if copy.shadow.grant() < grant && copy.item.is_some() {
                    self.sim.met.count("a copy was fenced off");
                }
                copy.shadow.fence(grant);
            }
        }
    }

    pub fn asks_for_fences(&mut self, at: usize) {
        let now = self.local(at);
        let keys: Vec<usize> = self.hosts[at].keys.keys().copied().collect();
        for key in keys {
            let here = self.hosts[at].keys.get_mut(&key).expect("it is here");
            let Some(mut newborn) = here.newborn.take() else { continue };
            let fence = newborn.fence();
            newborn.ask(now, |server| self.sends_fence(at, key, fence, host_of(server)));
            self.hosts[at].keys.get_mut(&key).expect("it is here").newborn = Some(newborn);
        }
    }

    /// False if there is no link.
    fn sends_fence(&mut self, at: usize, key: usize, grant: Grant, to: usize) -> bool {
        if self.is_silent(at, to) && self.sim.random.below(2) == 0 {
            return false;
        }
        let text = prefix(key).to_string();
        let mut bytes = Vec::new();
        Hold::fence(&text, grant).encode(&mut bytes);
        self.numbers += 1;
        let (ticket, process) = (self.numbers, self.hosts[at].process);
        self.hosts[at].tickets.insert(ticket);
        let wait = self.profile.link_timeout;
        self.sim.after(wait, Event::FenceLate { at, process, key, grant, to, ticket });
        for delay in self.sent(at, to, ["fence lost", "fence late", "fence doubled"]) {
            let letter = Letter::Fence { from: at, process, ticket, bytes: bytes.clone() };
            self.sim.after(delay, Event::Letter { to, letter });
        }
        true
    }

    pub fn is_fenced(
        &mut self,
        at: usize,
        (from, asker): (usize, u16),
        ticket: u64,
        hold: &Hold<'_>,
    ) {
        let of = Prefix::parse(hold.key).expect("it was one");
        self.fences(at, of, hold.grant);
        let mut bytes = Vec::new();
        Held::fenced(hold.grant).encode(&mut bytes);
        let (key, grant) = (of.place(), hold.grant);
        self.tell(key, || format!("server {at} fences off {grant:?}"));
        for delay in self.sent(at, from, ["fenced lost", "fenced late", "fenced doubled"]) {
            let bytes = bytes.clone();
            let letter = Letter::Fenced { from: at, process: asker, key, grant, ticket, bytes };
            self.sim.after(delay, Event::Letter { to: from, letter });
        }
    }

    pub fn hears_of_fence(
        &mut self,
        at: usize,
        from: usize,
        key: usize,
        grant: Grant,
        held: Option<&Held>,
    ) {
        let now = self.local(at);
        let newborn = self.hosts[at].keys.get_mut(&key).and_then(|here| here.newborn.as_mut());
        let Some(newborn) = newborn.filter(|newborn| newborn.fence() == grant) else { return };
        newborn.heard(now, id_of(from), held);
        self.ends_newborn(at, key);
    }

    /// It serves from now on, if no copy of an earlier owner is read any more.
    pub fn ends_newborn(&mut self, at: usize, key: usize) {
        let now = self.local(at);
        let Some(here) = self.hosts[at].keys.get_mut(&key) else { return };
        let Some(newborn) = here.newborn.take_if(|newborn| newborn.is_over(now)) else { return };
        self.sim.met.count(match newborn.is_fenced() {
            true => "a newborn served when all had fenced",
            false => "a newborn served when leases were over",
        });
        self.tell(key, || format!("server {at} serves it"));
    }
}
