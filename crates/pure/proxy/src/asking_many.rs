//! A `get` of several keys, from its bytes to what upstreams are asked.

use mbal_model::KEY_BYTES_MAX;
use mbal_wire::{Get, Request, next_word};

use crate::asking::BAD_FORMAT;
use crate::client::Slot;
use crate::encode;
use crate::expect::Expect;
use crate::merge::{Merge, Place};
use crate::naming::push_name;
use crate::placing::Refusal;
use crate::proxy::Proxy;
use crate::reply::Kind;
use crate::steering::Steered;
use crate::upstream::{Asked, Hide, Who};

const TOO_MANY_UPSTREAMS: &[u8] = b"SERVER_ERROR too many upstreams for one get\r\n";

impl Proxy {
    /// A `get` of several keys.
    pub(crate) fn ask_many(&mut self, client: u32, get: &Get<'_>) {
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        match self.place_all(client, get, &mut places) {
            Ok(()) if places.is_empty() => self.say(client, b"END\r\n"),
            Ok(()) => {
                self.counters.further_keys += places.len() as u64 - 1;
                self.ask_parts(client, get, &places);
            }
            Err(why) => self.refuse(client, false, why),
        }
        self.places = places;
    }

    /// Where the keys of a `get` are asked for. One that is too long makes the whole an error.
    fn place_all(
        &mut self,
        client: u32,
        get: &Get<'_>,
        places: &mut Vec<Place>,
    ) -> Result<(), Refusal> {
        let mut rest = get.keys;
        while let Some((key, tail)) = next_word(rest) {
            rest = tail;
            if key.len() > KEY_BYTES_MAX {
                return Err(BAD_FORMAT);
            }
            let start = (key.as_ptr().addr() - get.keys.as_ptr().addr()) as u32;
            let bytes = key.len() as u8;
            let place = |conn: usize, name| Place { start, bytes, conn: conn as u32, name };
            if self.control.is_some() {
                let touches = get.touch.is_some();
                match self.steer(client, &Request::Get(*get), (key, false), touches) {
                    Steered::Copy { conn, name } => {
                        places.push(place(conn, Some(name)));
                        continue;
                    }
                    Steered::Pass { conn } => {
                        places.push(place(conn, None));
                        continue;
                    }
                    Steered::Refused(why) => return Err(why),
                    Steered::Home | Steered::Done => {}
                }
            }
            if get.touch.is_some() {
                self.note_write(key, false);
            }
            let (conn, name) = self.route(key, false)?;
            if self.owing && self.is_in_doubt(conn, key, false, name) {
                self.counters.get_misses += 1;
                continue;
            }
            places.push(place(conn, name));
        }
        Ok(())
    }

    /// Asks for the keys of a `get`, each connection once, or twice where keys have other names.
    fn ask_parts(&mut self, client: u32, get: &Get<'_>, places: &[Place]) {
        let mut merge = Merge::new(self.spare.take(), get.keys, places.len());
        let number = self.clients[client as usize].push(Slot::Waiting);
        if !places.iter().all(|place| merge.ask(place)) {
            return self.clients[client as usize].answer(number, &mut self.spare, |out| {
                out.extend_from_slice(TOO_MANY_UPSTREAMS);
            });
        }
        // Where a connection has two parts, one is written after the other; else all at once, key by key.
        let two = merge.count() > 1 && places.iter().any(|place| place.name.is_some());
        let rounds = if two { merge.count() } else { 1 };
        for round in 0..rounds {
            let begun = if two { round..round + 1 } else { 0..merge.count() };
            for part in begun.clone() {
                self.begin_part(client, number, get, part, &merge);
            }
            for (at, place) in places.iter().enumerate() {
                if two && round != merge.part_of(at) {
                    continue;
                }
                let out = &mut self.conns[place.conn as usize].out.bytes;
                out.reserve(usize::from(place.bytes) + 1);
                match place.name {
                    Some(name) => push_name(out, place.key(get.keys), name),
                    None => out.extend_from_slice(place.key(get.keys)),
                }
                out.push(b' ');
            }
            for part in begun {
                let (conn, _) = merge.part(part);
                let out = &mut self.conns[conn].out.bytes;
                out.pop();
                out.extend_from_slice(b"\r\n");
                self.tell_conn(conn);
            }
        }
        *self.clients[client as usize].slot(number) = Slot::Merge(Box::new(merge));
    }

    fn begin_part(&mut self, client: u32, number: u32, get: &Get<'_>, part: usize, merge: &Merge) {
        let (conn, renamed) = merge.part(part);
        let this = &mut self.conns[conn];
        if this.out.bytes.capacity() == 0 {
            this.out.bytes = self.spare.take();
        }
        encode::push_get(&mut this.out.bytes, get);
        let keys = u16::try_from(merge.keys_of(part)).unwrap_or(u16::MAX);
        let who = Who::Part { client, number, part: part as u8, keys };
        let (kind, hide, writes) = (Kind::Values, Hide::Nothing, false);
        let expect = Expect::Values { cas: get.cas };
        let asked = Asked { who, kind, expect, hide, writes, renamed, at: self.now };
        this.ask(asked, None);
        self.resting.asked(asked.keys());
        self.counters.forwarded += 1;
    }
}
