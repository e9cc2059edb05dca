//! What a home says to its shadows, over one worker's links.

use mbal_model::{Key, Prefix, Route, ServerId, WorkerId};
use mbal_replica::{Grant, Held, Hold, HoldWhat, Item, What};
use mbal_wire::PeerRequest;

use crate::commands::context::Here;
use crate::copies::home::HomeKey;
use crate::event::Action;
use crate::forwarding::links::{Asker, Credit, Links};
use crate::shared::Shared;
use crate::time::UNLIMITED;

/// What sends words to shadows: one worker's links.
pub(crate) struct Sends<'w> {
    pub shared: &'w Shared,
    pub links: &'w mut Links,
    pub requests: &'w mut Vec<u8>,
    pub actions: &'w mut Vec<Action>,
    pub here: Here,
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
        one.home.say(self.here.lease_now, |say| said.push(say));
        // Read before the item: a flush that comes in between ends the copy. One of which this server only knows has not ended the item.
        let route = self.shared.store.route(WorkerId(0), hash);
        let flush_number = match route {
            Route::Own | Route::Neighbour(_) => {
                self.shared.store.flushed_at(hash, self.here.now.second)
            }
            Route::Peer(_) | Route::Moving(_) => 0,
        };
        let meta = said.iter().any(|say| say.what == What::Item).then(|| {
            let second = self.here.now.second;
            self.shared.store.read(&key, second, false, &mut value, |view, out| {
                view.copy_value(out);
                view.meta()
            })
        });
        let meta = meta.flatten().filter(|meta| !meta.stale && !meta.win);
        if meta.is_none() && said.iter().any(|say| say.what == What::Item) {
            // It has died, or is one that its home alone can tell of.
            said.iter().for_each(|say| one.home.failed(self.here.lease_now, say.to));
            one.home.written(false);
            said.clear();
            one.home.say(self.here.lease_now, |say| said.push(say));
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
                        ttl: (meta.deadline > 0).then(|| {
                            Item::ttl_told(meta.deadline.saturating_sub(self.here.now.second))
                        }),
                        binary_key: meta.binary_key,
                        flush_number,
                        value: &value,
                    })
                }
                (What::Item, None) => unreachable!("what is not there is not told"),
            };
            if self.links.credit(say.to) != Credit::Available {
                one.home.failed(self.here.lease_now, say.to);
                continue;
            }
            let asker = Asker::Home { server: say.to, hash, grant: say.grant };
            let hold = Hold {
                grant: say.grant,
                version: say.version,
                stamp: say.stamp,
                lease_ms: say.lease_ms,
                key: key.bytes(),
                what,
            };
            self.ask(say.to, asker, &hold);
        }
    }

    /// Asks the home of a key for a copy.
    pub fn want(&mut self, hash: u64, key: &[u8]) {
        let Route::Peer(server) = self.shared.store.route(WorkerId(0), hash) else { return };
        if self.links.credit(server) == Credit::Available {
            self.ask(server, Asker::Here, &Hold::want(key));
        }
    }

    /// Asks a server to fence off copies of a cachelet that has begun empty here. False if it cannot be asked now.
    pub fn fence(&mut self, server: ServerId, prefix: Prefix, grant: Grant) -> bool {
        let can = self.links.credit(server) == Credit::Available;
        if can {
            let asker = Asker::Newborn { server, prefix, grant };
            self.ask(server, asker, &Hold::fence(&prefix.to_string(), grant));
        }
        can
    }

    fn ask(&mut self, server: ServerId, asker: Asker, hold: &Hold<'_>) {
        let ticket = self.links.ask(server, asker, self.here.now.instant(), 0);
        let mut request = Vec::new();
        hold.encode(&mut request);
        let start = self.requests.len();
        PeerRequest::new(1, self.here.map_version, &request).encode(self.requests);
        let request = start..self.requests.len();
        self.actions.push(Action::Forward { server, ticket, micros_left: UNLIMITED, request });
    }

    /// A shadow has answered, or will not.
    pub fn shadow_answered(
        &mut self,
        from: ServerId,
        hash: u64,
        grant: Grant,
        reply: Option<&[u8]>,
    ) {
        let mut homes = self.shared.copies.homes.lock(hash);
        let Some(one) = homes.get_mut(&hash).filter(|one| one.home.grant() == grant) else {
            return;
        };
        match reply.and_then(Held::decode) {
            Some(held) => {
                one.answered += u64::from(held.reads);
                one.home.heard(self.here.lease_now, from, &held);
            }
            None => one.home.failed(self.here.lease_now, from),
        }
        self.say(hash, one);
    }
}
