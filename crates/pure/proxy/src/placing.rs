//! Over which connection a key's request goes.

use mbal_model::KEY_BYTES_MAX;
use mbal_model::planted::{Fault, is_planted};
use mbal_routing::Point;
use mbal_routing::ketama::{KeyHash, RingServer};
use mbal_wire::{ReplyKind, base64_decode};

use crate::encode::push_delete;
use crate::expect::Expect;
use crate::inflight::{InFlight, Who};
use crate::ledger::Ledger;
use crate::mapped::Slots;
use crate::naming::SUFFIX_BYTES;
use crate::pool::Pool;
use crate::refusal::{DOWN, Refusal};
use crate::settings::Settings;
use crate::upstreams::Upstreams;

/// Which upstreams have which keys.
pub(crate) struct Placing {
    /// All upstreams in the pool, and those that serve.
    full: Pool,
    present: Pool,
    all_present: bool,
    /// Numbers of the upstreams in the pool, in its order.
    order: Vec<usize>,
    /// Of a cluster whose map is known.
    slots: Option<Slots>,
    /// Names of keys that are not where their hash says end with it.
    epoch: u64,
}

/// Of these upstreams, those that are `present`. In a cluster each has its keys, whether it can be asked or not.
fn pool(
    settings: &Settings,
    (order, slots): (&[usize], Option<&Slots>),
    present: impl Fn(usize) -> bool,
) -> Pool {
    if let Some(slots) = slots {
        return Pool::mapped(order, slots);
    }
    let members = order.iter().filter(|number| present(**number));
    let members: Vec<(usize, &RingServer)> =
        members.map(|number| (*number, &settings.servers[*number])).collect();
    Pool::new(settings.distribution, &members)
}

impl Placing {
    pub fn new(settings: &Settings) -> Placing {
        let order: Vec<usize> = (0..settings.servers.len()).collect();
        let slots = settings.slots.clone();
        let all = || pool(settings, (&order, slots.as_ref()), |_| true);
        let (full, present) = (all(), all());
        Placing { full, present, all_present: true, order, slots, epoch: settings.seed }
    }

    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The pool is about to change: nobody is in it. Who was.
    pub fn take_order(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.order)
    }

    pub fn set_order(&mut self, order: Vec<usize>, slots: Option<Slots>, settings: &Settings) {
        (self.order, self.slots) = (order, slots);
        self.full = pool(settings, (&self.order, self.slots.as_ref()), |_| true);
    }

    pub fn slots(&self) -> Option<&Slots> {
        self.slots.as_ref()
    }

    /// Another upstream serves, or one no more.
    pub fn place_again(&mut self, upstreams: &Upstreams, settings: &Settings) {
        self.epoch = self.epoch.wrapping_add(1);
        let serves = |number: usize| upstreams.get(number).serves();
        self.present = pool(settings, (&self.order, self.slots.as_ref()), serves);
        self.all_present = self.order.iter().all(|number| serves(*number));
    }

    pub fn all_present(&self) -> bool {
        self.all_present
    }

    /// The upstream that a key's hash says. `None`: there is none.
    #[inline]
    pub fn home(&self, key: &[u8]) -> Option<usize> {
        self.full.place(key)
    }

    /// Where a key is while its home does not serve.
    pub fn stand_in(&self, key: &[u8]) -> Option<usize> {
        self.present.place(key)
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Of the ring, in order. None if keys are placed by remainder.
    pub fn points(&self) -> Vec<Point> {
        self.full.points()
    }

    /// The connection for a key, and what the name is made of that it has there, if it has another.
    #[inline]
    pub fn route(
        &self,
        key: &[u8],
        base64: bool,
        upstreams: &mut Upstreams,
        ledger: &mut Ledger,
    ) -> Result<(usize, Option<u64>), Refusal> {
        // An item has one place, however its key is spelled.
        if base64 {
            let mut decoded = [0; KEY_BYTES_MAX];
            let length = base64_decode(key, &mut decoded);
            let key = length.map_or(key, |length| &decoded[..length]);
            return self.route_to(key, true, upstreams, ledger);
        }
        self.route_to(key, false, upstreams, ledger)
    }

    /// Likewise for a key as it is hashed. One that came in base64 has no other name.
    #[inline]
    fn route_to(
        &self,
        key: &[u8],
        base64: bool,
        upstreams: &mut Upstreams,
        ledger: &mut Ledger,
    ) -> Result<(usize, Option<u64>), Refusal> {
        let home = self.home(key).ok_or(DOWN)?;
        if upstreams.get(home).cluster.is_some() {
            let conn = self.route_in_cluster(home, key, false, upstreams, ledger)?;
            return Ok((conn, None));
        }
        // Keys of an upstream that serves stay there: what it has would be older when they came back.
        let serves =
            self.all_present || upstreams.get(home).serves() && !is_planted(Fault::AllKeysMove);
        let (upstream, name) = match serves {
            true => (home, None),
            false => match self.stand_in(key) {
                None => return Err(DOWN),
                Some(there) => (there, (there != home).then_some(self.epoch)),
            },
        };
        if name.is_some() && (base64 || KEY_BYTES_MAX < key.len() + SUFFIX_BYTES) {
            return Err(DOWN);
        }
        let conn = upstreams.conn_of(upstream, key);
        upstreams.admit(conn, ledger)?;
        Ok((conn, name))
    }

    /// Likewise for binary. A key whose upstream is ejected is nowhere.
    pub fn route_binary(
        &self,
        key: &[u8],
        upstreams: &mut Upstreams,
        ledger: &mut Ledger,
    ) -> Result<usize, Refusal> {
        let home = self.home(key).ok_or(DOWN)?;
        if upstreams.get(home).cluster.is_some() {
            return self.route_in_cluster(home, key, true, upstreams, ledger);
        }
        if !upstreams.get(home).serves() {
            return Err(DOWN);
        }
        let [_, conn] = upstreams.both_of(home, key);
        upstreams.admit(conn, ledger)?;
        Ok(conn)
    }

    /// The connection for a key whose upstream is of a cluster.
    fn route_in_cluster(
        &self,
        home: usize,
        key: &[u8],
        binary: bool,
        upstreams: &mut Upstreams,
        ledger: &mut Ledger,
    ) -> Result<usize, Refusal> {
        let cluster = upstreams.get(home).cluster;
        let own = upstreams.both_of(home, key);
        let text = own[0];
        let among = text - upstreams.first_conn(home);
        let kind_of = |upstreams: &Upstreams, text| match binary {
            true => upstreams.binary(text),
            false => text,
        };
        let is_its = |upstreams: &Upstreams, number| upstreams.get(number).cluster == cluster;
        if upstreams.is_owing() {
            // A write of unknown outcome that went another way is to be over first.
            let owes = |text| {
                let both = [text, upstreams.binary(text)];
                both.iter().any(|conn| upstreams.conn(*conn).doubts.owes_key(key))
            };
            let owes_there = |number: usize| {
                let conn = upstreams.first_conn(number) + among;
                is_its(upstreams, number) && conn != text && owes(conn)
            };
            let is_lost = !upstreams.conn(text).is_up() && owes(text);
            if is_lost || (0..upstreams.servers()).any(owes_there) {
                return Err(DOWN);
            }
        }
        let conn = kind_of(upstreams, text);
        if upstreams.conn(text).is_up() || !upstreams.conn(conn).is_idle() {
            upstreams.admit(conn, ledger)?;
            return Ok(conn);
        }
        let hash = u64::from(KeyHash::OneAtATime.place(key));
        let is_up = |number: &&usize| {
            is_its(upstreams, **number)
                && upstreams.get(**number).serves()
                && upstreams.conn(upstreams.first_conn(**number) + among).is_up()
        };
        let weight = |number: &&usize| mbal_random::mix(hash ^ ((**number as u64) << 32));
        let Some(there) = self.order.iter().filter(is_up).max_by_key(weight) else {
            upstreams.admit(conn, ledger)?;
            return Ok(conn);
        };
        let conn = kind_of(upstreams, upstreams.first_conn(*there) + among);
        upstreams.admit(conn, ledger)?;
        upstreams.conn_mut(text).is_stood_for = true;
        ledger.counters.failovers += 1;
        Ok(conn)
    }

    /// Where `flush_all` goes in clusters: one connection of each; an error if one of them has none.
    pub fn flushes_of_clusters(
        &self,
        binary: bool,
        upstreams: &mut Upstreams,
        ledger: &mut Ledger,
    ) -> Vec<Result<usize, Refusal>> {
        let mut asked: Vec<(u16, Result<usize, Refusal>)> = Vec::new();
        for number in &self.order {
            let Some(cluster) = upstreams.get(*number).cluster else { continue };
            let text = upstreams.first_conn(*number);
            let conn = if binary { upstreams.binary(text) } else { text };
            let found = match upstreams.conn(text).is_up() {
                true => upstreams.admit(conn, ledger).map(|()| conn),
                false => Err(DOWN),
            };
            match asked.iter_mut().find(|(other, _)| *other == cluster) {
                None => asked.push((cluster, found)),
                Some((_, before)) if before.is_err() => *before = found,
                Some(_) if is_planted(Fault::FlushedByEach) => asked.push((cluster, found)),
                Some(_) => {}
            }
        }
        asked.into_iter().map(|(_, found)| found).collect()
    }

    /// A server of a cluster that is gone for longer than a write may take: what it may have executed is deleted by another one.
    pub fn move_debts(&self, conn: usize, upstreams: &mut Upstreams, ledger: &mut Ledger) {
        if upstreams.get(upstreams.conn(conn).upstream).cluster.is_none() {
            return;
        }
        let (binary, now) = (upstreams.is_binary(conn), ledger.now);
        let owed = upstreams.conn_mut(conn).doubts.take_late(now, ledger.settings.doubt);
        for (key, base64) in owed {
            let home = self.home(&key).expect("somebody is in the pool");
            match self.route_in_cluster(home, &key, binary, upstreams, ledger) {
                Ok(there) if there != conn => {
                    push_delete(upstreams.out(there), &key, base64, binary);
                    let kind = if binary { ReplyKind::Binary } else { ReplyKind::Line };
                    let asked = InFlight::own(Who::Nobody, kind, Expect::Any, now);
                    upstreams.ask(there, asked, None);
                }
                _ => {
                    upstreams.owe(conn, key, base64);
                    upstreams.conn_mut(conn).doubts.postpone(now);
                }
            }
        }
        upstreams.look_who_owes();
    }
}
