//! Keys of this server that have copies elsewhere: their writes, and what shadows are told.

use std::collections::BTreeMap;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, Key, Prefix, Route, ServerId, WorkerId};
use mbal_replica::{Announcement, Grant, Held, Hold, HoldWhat, Home, Item, What};
use mbal_wire::{PeerRequest, Request, words_of};

use crate::batch::{Batch, Job};
use crate::copies::worth::Ledger;
use crate::copies::{HotHome, HotMode};
use crate::links::{Asker, Credit, Links};
use crate::ownership::push_hint;
use crate::shared::Shared;
use crate::turn::Then;
use crate::worker::Worker;
use crate::{Action, Actions, Now, UNLIMITED};

/// A key that has copies.
pub(crate) struct HomeKey {
    pub key: Box<[u8]>,
    pub home: Home,
    /// Until every batch is over in which somebody could have found that it has none, nobody is told of what it is.
    pub stamp: Option<u64>,
    pub since: Instant,
    /// Requests a second at the last look, those that copies have answered included.
    pub reads: f64,
    pub writes: f64,
    pub value_bytes: u32,
    /// Answered by copies since the last look; and their average a second.
    pub answered: u64,
    pub elsewhere: f64,
    /// Writes that were executed since the last look.
    pub written: u64,
    pub ledger: Ledger,
    /// Looks at which it was not hot any more, one after the other.
    pub cool: u32,
}

impl HomeKey {
    pub fn cools(&mut self) {
        self.home.cools();
    }
}

/// What sends words to shadows: one worker's links.
pub(crate) struct Sends<'w> {
    pub shared: &'w Shared,
    pub links: &'w mut Links,
    pub requests: &'w mut Vec<u8>,
    pub actions: &'w mut Vec<Action>,
    pub map_version: u64,
    pub now: Now,
    pub lease_now: Instant,
}

impl Sends<'_> {
    /// Says to the shadows of a key what there is to say. Within a batch, with the key's shard locked.
    pub fn say(&mut self, hash: u64, one: &mut HomeKey) {
        if one.stamp.is_some_and(|stamp| !self.shared.store.all_have_left(stamp)) {
            return;
        }
        one.stamp = None;
        let key = Key::new(&one.key).expect("it was a key");
        let mut value = Vec::new();
        let mut said = Vec::new();
        one.home.say(self.lease_now, |say| said.push(say));
        // Read before the item: a flush that comes in between ends the copy. One of which this server only knows has not ended the item.
        let route = self.shared.store.route(WorkerId(0), hash);
        let flush_number = match route {
            Route::Own | Route::Neighbour(_) => self.shared.store.flushed_at(hash, self.now.second),
            Route::Peer(_) | Route::Moving(_) => 0,
        };
        let meta = said.iter().any(|say| say.what == What::Item).then(|| {
            let second = self.now.second;
            self.shared.store.read(&key, second, false, &mut value, |view, out| {
                view.copy_value(out);
                view.meta()
            })
        });
        let meta = meta.flatten().filter(|meta| !meta.stale && !meta.win);
        if meta.is_none() && said.iter().any(|say| say.what == What::Item) {
            // It has died, or is one that its home alone can tell of.
            said.iter().for_each(|say| one.home.failed(self.lease_now, say.to));
            one.home.written(false);
            said.clear();
            one.home.say(self.lease_now, |say| said.push(say));
        }
        for say in said {
            let what = match (say.what, &meta) {
                (What::Keep, _) => HoldWhat::Keep,
                (What::Invalidate, _) => HoldWhat::Invalidate,
                (What::Drop, _) => HoldWhat::Drop,
                (What::Item, Some(meta)) => {
                    one.value_bytes = meta.value_bytes;
                    HoldWhat::Item(Item {
                        flags: meta.flags,
                        cas: meta.cas,
                        ttl: (meta.deadline > 0)
                            .then(|| Item::ttl_told(meta.deadline.saturating_sub(self.now.second))),
                        binary_key: meta.binary_key,
                        flush_number,
                        value: &value,
                    })
                }
                (What::Item, None) => unreachable!("what is not there is not told"),
            };
            if self.links.credit(say.to) != Credit::Available {
                one.home.failed(self.lease_now, say.to);
                continue;
            }
            let asker = Asker::Home { server: say.to, hash, grant: say.grant };
            let ticket = self.links.ask(say.to, asker, self.now.instant(), 0);
            let hold = Hold {
                grant: say.grant,
                version: say.version,
                stamp: say.stamp,
                lease_ms: say.lease_ms,
                key: key.bytes(),
                what,
            };
            let mut request = Vec::new();
            hold.encode(&mut request);
            let start = self.requests.len();
            PeerRequest::new(1, self.map_version, &request).encode(self.requests);
            let request = start..self.requests.len();
            let (server, micros_left) = (say.to, UNLIMITED);
            self.actions.push(Action::Forward { server, ticket, micros_left, request });
        }
    }
}

/// How a request touches what copies are of.
enum Touches {
    Nothing,
    /// It writes its key.
    Writes,
    /// It writes several keys at once.
    Several,
}

fn touches(request: &Request<'_>) -> Touches {
    match request {
        _ if !request.writes() => Touches::Nothing,
        Request::Get(get) if !get.further.is_empty() => Touches::Several,
        _ => Touches::Writes,
    }
}

/// A read of which a client may be told where copies are.
pub(crate) fn is_read(request: &Request<'_>) -> bool {
    matches!(touches(request), Touches::Nothing) && request.key().is_some()
}

impl Batch<'_> {
    pub fn sends(&mut self) -> Sends<'_> {
        Sends {
            shared: self.turn.shared,
            links: self.links,
            requests: self.to_peers,
            actions: self.actions,
            map_version: self.turn.map_version,
            now: self.turn.now,
            lease_now: self.turn.lease_now,
        }
    }

    /// Executes a request whose key is here. One that writes a key with copies waits for them, if that is the mode, and tells them.
    #[inline]
    pub fn execute_told(&mut self, request: &Request<'_>, key: Option<Key<'_>>) -> Then {
        match key {
            Some(_) if self.reads_several(request) => self.execute_reads(request, key),
            Some(key) if self.turn.shared.copies.homes.may_have(key.hash()) => {
                self.execute_copied(request, key)
            }
            // Its first key has no copies; the others are looked at.
            Some(_) if matches!(request, Request::Get(get) if get.touch.is_some() && !get.further.is_empty()) => {
                self.execute_several(request, key)
            }
            _ => self.turn.execute(request, key),
        }
    }

    /// Several keys are read, and some keys have copies.
    #[inline]
    fn reads_several(&self, request: &Request<'_>) -> bool {
        matches!(request, Request::Get(get) if get.touch.is_none() && !get.further.is_empty())
            && !self.turn.shared.copies.homes.is_empty()
    }

    #[cold]
    fn execute_copied(&mut self, request: &Request<'_>, key: Key<'_>) -> Then {
        match touches(request) {
            Touches::Nothing => {
                return match self.may_miss(&key) {
                    true => self.turn.execute(request, Some(key)),
                    false => Then::OnItsWay,
                };
            }
            Touches::Several => return self.execute_several(request, Some(key)),
            Touches::Writes => {}
        }
        // Whoever asks what somebody else has won already waits for nobody.
        if self.turn.execute_unchanging(request, &key) {
            return Then::Next;
        }
        let shared = self.turn.shared;
        let mut homes = shared.copies.homes.lock(key.hash());
        let one = homes.get_mut(&key.hash()).filter(|one| *one.key == *key.bytes());
        let Some(one) = one else {
            drop(homes);
            return self.turn.execute(request, Some(key));
        };
        if !one.home.invalidates(self.turn.lease_now) {
            self.sends().say(key.hash(), one);
            return Then::OnItsWay;
        }
        let then = self.turn.execute(request, Some(key));
        if !matches!(then, Then::NoRoom(_)) {
            one.home.written(self.is_there(&key));
            one.written += 1;
            self.sends().say(key.hash(), one);
        }
        then
    }

    /// A read of this key may be executed. One that would find nothing, though the key has copies, waits as a write does: the item
    /// has died, was flushed or evicted.
    fn may_miss(&mut self, key: &Key<'_>) -> bool {
        let shared = self.turn.shared;
        if !shared.copies.homes.may_have(key.hash()) || self.is_there(key) {
            return true;
        }
        let mut homes = shared.copies.homes.lock(key.hash());
        let one = homes.get_mut(&key.hash()).filter(|one| *one.key == *key.bytes());
        let Some(one) = one else { return true };
        let may_miss = one.home.missed(self.turn.lease_now);
        self.sends().say(key.hash(), one);
        may_miss
    }

    #[cold]
    fn execute_reads(&mut self, request: &Request<'_>, key: Option<Key<'_>>) -> Then {
        let Request::Get(get) = request else { unreachable!("nothing else has several keys") };
        let mut may_miss = true;
        words_of(get.keys).filter_map(Key::new).for_each(|key| may_miss &= self.may_miss(&key));
        if may_miss { self.turn.execute(request, key) } else { Then::OnItsWay }
    }

    fn is_there(&self, key: &Key<'_>) -> bool {
        let (store, second) = (&self.turn.shared.store, self.turn.now.second);
        store.read(key, second, false, &mut Vec::new(), |_, _| ()).is_some()
    }

    /// A write of several keys waits until none of them has copies.
    #[cold]
    fn execute_several(&mut self, request: &Request<'_>, key: Option<Key<'_>>) -> Then {
        let Request::Get(get) = request else { unreachable!("nothing else has several keys") };
        let shared = self.turn.shared;
        let mut waits = false;
        for key in words_of(get.keys).filter_map(Key::new) {
            if shared.copies.homes.may_have(key.hash()) {
                let mut homes = shared.copies.homes.lock(key.hash());
                if let Some(one) = homes.get_mut(&key.hash()) {
                    one.cools();
                    self.sends().say(key.hash(), one);
                    waits = true;
                }
            }
        }
        if waits { Then::OnItsWay } else { self.turn.execute(request, key) }
    }

    /// Adds to the reply of a smart client, which begins at `before`, where copies are that it may read.
    #[cold]
    pub fn tell_copies(&mut self, before: usize, job: &Job<'_>, key: &Key<'_>) {
        if self.turn.route(key) != Route::Own {
            return;
        }
        let Some(told) = self.told_of(&job.request, key) else { return };
        match &job.request {
            Request::Binary(_) => {
                if let Some(data_type) = self.turn.out.get_mut(before + 5) {
                    *data_type = told.gamma();
                }
            }
            _ => push_hint(self.turn.out, before, told),
        }
    }

    /// What a client that has just read this key here may know of copies.
    pub fn told_of(&self, request: &Request<'_>, key: &Key<'_>) -> Option<Announcement> {
        let shared = self.turn.shared;
        if !shared.copies.homes.may_have(key.hash()) || !is_read(request) {
            return None;
        }
        let homes = shared.copies.homes.lock(key.hash());
        let one = homes.get(&key.hash()).filter(|one| *one.key == *key.bytes())?;
        let mut told = one.home.told(self.turn.lease_now)?;
        told.lease = shared.copies.terms().lease;
        Some(told)
    }
}

impl Worker {
    /// A shadow has answered, or will not.
    pub(crate) fn shadow_answered(
        &mut self,
        from: ServerId,
        hash: u64,
        grant: Grant,
        reply: Option<&[u8]>,
        actions: &mut Actions,
    ) {
        let shared = std::sync::Arc::clone(&self.shared);
        let mut homes = shared.copies.homes.lock(hash);
        let Some(one) = homes.get_mut(&hash).filter(|one| one.home.grant() == grant) else {
            return;
        };
        match reply.and_then(Held::decode) {
            Some(held) => {
                one.answered += u64::from(held.reads);
                one.home.heard(self.lease_now, from, &held);
            }
            None => one.home.failed(self.lease_now, from),
        }
        let Actions { requests, list, .. } = actions;
        let (map_version, now, lease_now) = (self.map_version, self.now, self.lease_now);
        let links = &mut self.links;
        Sends { shared: &shared, links, requests, actions: list, map_version, now, lease_now }
            .say(hash, one);
    }
}

impl Shared {
    /// The hottest keys of this server that have copies, the hottest first.
    pub fn hot_homes(&self, count: usize) -> Vec<HotHome> {
        let mut all = self.hot_without_copies();
        self.copies.homes.each(|hash, one| {
            let home = HotHome {
                key: one.key.to_vec(),
                reads: one.reads,
                writes: one.writes,
                value_bytes: one.value_bytes,
                state: Some(one.home.state(self.copies.latest())),
                copies: one.home.shadows().map(|(_, server)| server).collect(),
                since: one.since,
            };
            all.insert(hash, home);
        });
        let mut all: Vec<HotHome> = all.into_values().collect();
        let rate = |home: &HotHome| home.reads + home.writes;
        all.sort_by(|a, b| rate(b).total_cmp(&rate(a)).then_with(|| a.key.cmp(&b.key)));
        all.truncate(count);
        all
    }

    /// Those that are asked for much, and have none.
    fn hot_without_copies(&self) -> BTreeMap<u64, HotHome> {
        let heats = self.copies.heats.lock().told();
        let cold = |(hash, rates): (u64, super::heat::Rates)| {
            let home = HotHome {
                key: rates.key.into(),
                reads: rates.reads,
                writes: rates.writes,
                value_bytes: 0,
                state: None,
                copies: Vec::new(),
                since: Instant::ZERO,
            };
            (hash, home)
        };
        heats.into_iter().map(cold).collect()
    }

    /// Keys that a cachelet has, and that leaves, are to have no copies; true once they have none, those that an earlier owner has made
    /// included: at its destination it is served at once.
    pub(crate) fn has_no_copies(&self, prefix: Prefix, now: Now) -> bool {
        if self.copies.mode() == HotMode::Off && !self.counts_leases() {
            return true;
        }
        let rests = self.copies.any_newborn() && self.copies.has_newborn(prefix, now.instant());
        let mut none = !rests || is_planted(Fault::NewbornLeaves);
        self.copies.homes.each(|hash, one| {
            if prefix.contains(hash) {
                one.cools();
                none = false;
            }
        });
        none
    }
}
