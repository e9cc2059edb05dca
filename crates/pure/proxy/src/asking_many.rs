//! A `get` of several keys, from its bytes to what upstreams are asked.

use mbal_model::KEY_BYTES_MAX;
use mbal_wire::{Get, ReplyKind, Request, next_word};

use crate::backend::Backend;
use crate::client::Rest;
use crate::expect::Expect;
use crate::inflight::{Hide, InFlight, Who};
use crate::merge::{Found, Merge, Place};
use crate::naming::push_name;
use crate::proxy::Proxy;
use crate::refusal::{BAD_FORMAT, Refusal, SWITCHING};
use crate::replies::Slot;
use crate::steering::Steered;
use crate::switching::Passage;

const TOO_MANY_UPSTREAMS: &[u8] = b"SERVER_ERROR too many upstreams for one get\r\n";

/// Where the key behind the first `count` begins, if there are more.
fn behind(keys: &[u8], count: usize) -> Option<usize> {
    // Mostly there are fewer: then they are not looked at one by one.
    if blanks(keys) < count {
        return None;
    }
    let mut rest = keys;
    for _ in 0..count {
        rest = next_word(rest)?.1;
    }
    let (next, _) = next_word(rest)?;
    Some(next.as_ptr().addr() - keys.as_ptr().addr())
}

/// Counted in bytes, a few at a time, so that a byte holds the sum: the compiler does that many at once.
fn blanks(keys: &[u8]) -> usize {
    let few = |part: &[u8]| part.iter().map(|byte| u8::from(*byte == b' ')).sum::<u8>();
    keys.chunks(255).map(|part| usize::from(few(part))).sum()
}

impl Proxy {
    /// True if a `get` that is not asked for at once waits for what its client has asked before: it alone fills the client's output.
    pub(crate) fn waits_for_window(&mut self, client: u32, request: &Request<'_>) -> bool {
        let Request::Get(get) = request else { return false };
        let replies = &self.sessions.get(client).replies;
        if replies.is_idle() && replies.out.len() == 0 || next_word(get.further).is_none() {
            return false;
        }
        let window = self.sessions.window(client, &self.ledger);
        behind(get.keys, window).is_some()
    }

    /// A `get` of several keys.
    pub(crate) fn ask_many(&mut self, client: u32, get: &Get<'_>) {
        let window = self.sessions.window(client, &self.ledger);
        let number = self.sessions.push(client, Slot::Waiting);
        let Some(from) = behind(get.keys, window) else {
            return self.ask_window(client, number, get, true);
        };
        // What is refused is refused as a whole.
        let mut rest = get.keys;
        while let Some((key, tail)) = next_word(rest) {
            rest = tail;
            if key.len() > KEY_BYTES_MAX {
                return self.refuse_window(client, number, BAD_FORMAT);
            }
        }
        let mut keys = self.ledger.spare.take();
        keys.extend_from_slice(get.keys);
        let rest = Rest { keys, from, cas: get.cas, touch: get.touch, number };
        self.sessions.get_mut(client).rest = Some(Box::new(rest));
        // Others of its requests wait.
        self.sessions.pause(client, &mut self.ledger);
        self.ask_window(client, number, &Get { keys: &get.keys[..from], ..*get }, true);
    }

    /// The values of the keys before have left.
    pub(crate) fn ask_rest(&mut self, client: u32) {
        let window = self.sessions.window(client, &self.ledger);
        let this = self.sessions.get_mut(client);
        let Some(rest) = &mut this.rest else { return };
        let keys = std::mem::take(&mut rest.keys);
        let Rest { from, cas, touch, number, .. } = **rest;
        let end = behind(&keys[from..], window).map_or(keys.len(), |length| from + length);
        rest.from = end;
        if end == keys.len() {
            this.rest = None;
        }
        // One key of several is asked for as they are.
        let get = Get { keys: &keys[from..end], first: &keys, further: &keys, cas, touch };
        self.ask_window(client, number, &get, false);
        match &mut self.sessions.get_mut(client).rest {
            Some(rest) => rest.keys = keys,
            None => self.ledger.spare.give(keys),
        }
    }

    /// Asks for some of the keys of a `get`.
    fn ask_window(&mut self, client: u32, number: u32, get: &Get<'_>, is_first: bool) {
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        match self.place_all(client, get, &mut places) {
            Ok(()) if places.is_empty() => {
                let found = Found { hits: 0, misses: 0, longest: 0 };
                let is_last = self.sessions.get(client).rest.is_none();
                let end: &[u8] = if is_last { b"END\r\n" } else { b"" };
                self.answer_window(client, number, Some(found), end.to_vec());
            }
            Ok(()) => {
                self.ledger.counters.further_keys += places.len() as u64 - u64::from(is_first);
                self.ask_parts(client, number, get, &places);
            }
            Err(why) => self.refuse_window(client, number, why),
        }
        self.places = places;
    }

    fn refuse_window(&mut self, client: u32, number: u32, why: Refusal) {
        self.ledger.counters.errors += 1;
        self.answer_window(client, number, None, why.to_vec());
    }

    /// Where the keys of a `get` are asked for. One that is too long makes the whole an error.
    fn place_all(
        &mut self,
        client: u32,
        get: &Get<'_>,
        places: &mut Vec<Place>,
    ) -> Result<(), Refusal> {
        let is_peer = self.sessions.get(client).is_peer;
        let mut rest = get.keys;
        while let Some((key, tail)) = next_word(rest) {
            rest = tail;
            if key.len() > KEY_BYTES_MAX {
                return Err(BAD_FORMAT);
            }
            let start = (key.as_ptr().addr() - get.keys.as_ptr().addr()) as u32;
            let bytes = key.len() as u8;
            let place = |conn: usize, name| Place { start, bytes, conn: conn as u32, name };
            let touches = get.touch.is_some();
            if self.backend.switching.is_active() {
                let (switching, now) = (&self.backend.switching, self.ledger.now);
                match switching.passage(key, false, touches, false, now) {
                    Passage::Passes | Passage::Differs => {}
                    Passage::Misses => {
                        self.ledger.counters.get_misses += 1;
                        continue;
                    }
                    Passage::Refused => return Err(SWITCHING),
                }
            }
            if self.backend.hot.control().is_some() {
                let (request, ledger) = (Request::Get(*get), &mut self.ledger);
                match self.backend.steer(is_peer, &request, (key, false), touches, ledger) {
                    Steered::Copy { conn, name } => {
                        places.push(place(conn, Some(name)));
                        continue;
                    }
                    Steered::Pass { conn } => {
                        places.push(place(conn, None));
                        continue;
                    }
                    Steered::Refused(why) => return Err(why),
                    // One key of several is not answered by itself.
                    Steered::Home | Steered::Said(_) | Steered::Behind(..) => {}
                }
            }
            if !touches && !self.backend.copied.is_empty() {
                if let Some(conn) = self.backend.copy(key, false, &mut self.ledger) {
                    places.push(place(conn, None));
                    continue;
                }
            }
            let Backend { notes, placing, upstreams, .. } = &mut self.backend;
            if touches {
                notes.write(key, false, placing, upstreams);
            }
            let (conn, name) = placing.route(key, false, upstreams, &mut self.ledger)?;
            if upstreams.is_owing() && upstreams.owes_key(conn, key, false, name) {
                self.ledger.counters.get_misses += 1;
                continue;
            }
            places.push(place(conn, name));
        }
        Ok(())
    }

    /// Asks for the keys of a `get`, each connection once, or twice where keys have other names.
    fn ask_parts(&mut self, client: u32, number: u32, get: &Get<'_>, places: &[Place]) {
        let mut merge = Merge::new(self.ledger.spare.take(), get.keys, places.len());
        if !places.iter().all(|place| merge.ask(place)) {
            return self.answer_window(client, number, None, TOO_MANY_UPSTREAMS.to_vec());
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
                if get.touch.is_some() && self.backend.switching.notes_writes() {
                    let of = (client, number, merge.part_of(at) as u8);
                    self.backend.switching.touches(of, place.key(get.keys));
                }
                let out = self.backend.upstreams.out(place.conn as usize);
                out.reserve(usize::from(place.bytes) + 1);
                match place.name {
                    Some(name) => push_name(out, place.key(get.keys), name),
                    None => out.extend_from_slice(place.key(get.keys)),
                }
                out.push(b' ');
            }
            for part in begun {
                let (conn, _) = merge.part(part);
                let out = self.backend.upstreams.out(conn);
                out.pop();
                out.extend_from_slice(b"\r\n");
                self.backend.upstreams.tell(conn);
            }
        }
        *self.sessions.get_mut(client).replies.slot(number) = Slot::Merge(Box::new(merge));
    }

    fn begin_part(&mut self, client: u32, number: u32, get: &Get<'_>, part: usize, merge: &Merge) {
        let (conn, renamed) = merge.part(part);
        let upstreams = &mut self.backend.upstreams;
        get.push_head(upstreams.filled_out(conn, &mut self.ledger.spare));
        let keys = u16::try_from(merge.keys_of(part)).unwrap_or(u16::MAX);
        let who = Who::Part { client, number, part: part as u8, keys };
        let (kind, hide, writes) = (ReplyKind::Values, Hide::Nothing, false);
        let (expect, at) = (Expect::Values { cas: get.cas }, self.ledger.now);
        let asked = InFlight { who, kind, expect, hide, writes, renamed, at };
        // It leaves when its keys are there.
        upstreams.conn_mut(conn).ask(asked, None);
        self.ledger.resting.asked(asked.keys());
        self.ledger.counters.forwarded += 1;
    }
}
