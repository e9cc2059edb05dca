//! Requests of clients whose key another server owns: out to it. What it asks in turn is in [`asked`](crate::forwarding::asked).

use mbal_model::{Key, Route, ServerId};
use mbal_wire::{Admin, Binary, Command, Get, Request, binary_delete, next_word, words_of};

use crate::commands::classic::{BAD_FORMAT, any_too_long, get_again};
use crate::commands::turn::Then;
use crate::copies::{HotMode, get_copy, read_elsewhere};
use crate::forwarding::links::Credit;
use crate::forwarding::once::Recipient;
use crate::forwarding::unreachable::{END, Lost};
use crate::ids::{Client, Ticket};
use crate::moving::moves::{Owning, Whereabouts};
use crate::sessions::batch::Batch;
use crate::sessions::gather::{Gather, Source, WantedKey};
use crate::sessions::job::{GROUP, Job};
use crate::sessions::session::{Pause, Session};
use crate::sessions::slots::Sent;

/// Keys of a `get` that are gathered from several servers at a time: with values at the item
/// limit, what a datagram can make a worker hold.
pub const GATHER_KEYS_MAX: usize = 64;

/// A connection asks other servers for no more values than would be about as long as this, by what it got of late, together with what it has not
/// taken yet: it waits before it asks, since what is asked for has a deadline. One value it may ask for in any case.
const WINDOW_BYTES: usize = 1 << 20;

impl Batch<'_> {
    /// Sends the request to the server that owns its key. `None`: it is served here.
    #[inline(always)]
    pub fn elsewhere(
        &mut self,
        session: &mut Session,
        job: &Job<'_>,
        key: Option<&Key<'_>>,
    ) -> Option<Then> {
        if self.turn.on.here.alone && !session.get_continues && !self.turn.has_waiting {
            return None;
        }
        // Mostly no way has changed since: then nothing can overtake but a flush.
        let is_plain = !self.turn.has_waiting
            || session.slots.is_plain(self.turn.on.here.map_version)
                && self.turn.on.shared.moves.is_empty()
                && !is_flush(&job.request);
        if !is_plain && self.would_overtake(session, job, key) {
            return Some(Then::Wait(Pause::Answers));
        }
        self.send_elsewhere(session, job, key)
    }

    /// True if a request of this connection for the same key is unanswered, and went elsewhere than this one would: a map, or a move, has
    /// changed the way since. Then all answers are waited for.
    #[cold]
    #[inline(never)]
    fn would_overtake(&self, session: &Session, job: &Job<'_>, key: Option<&Key<'_>>) -> bool {
        // A datagram does not wait: everything of it is asked for in one go.
        if matches!(session.client, Client::Once { .. }) {
            return false;
        }
        // What was asked before may be passed on, to a server that this flush has reached already.
        if is_flush(&job.request) {
            return session.slots.waits();
        }
        let overtakes = |key: &Key<'_>| {
            session.slots.would_overtake(key, self.turn.on.whereabouts(key).server())
        };
        match &job.request {
            Request::Get(get) => words_of(get.keys).filter_map(Key::new).any(|key| overtakes(&key)),
            _ => key.is_some_and(overtakes),
        }
    }

    #[cold]
    #[inline(never)]
    fn send_elsewhere(
        &mut self,
        session: &mut Session,
        job: &Job<'_>,
        key: Option<&Key<'_>>,
    ) -> Option<Then> {
        // A client that names a cachelet asks its owner: it is told who that is, unless that changes at this moment.
        if matches!(job.request, Request::Binary(binary) if binary.frame.vbucket != 0) {
            let moves = key.is_some_and(|key| matches!(self.turn.on.route(key), Route::Moving(_)));
            if !moves {
                return None;
            }
        }
        if let Request::Get(get) = &job.request {
            // This server knows, whoever owns the key.
            if get.discovers() && !session.get_continues {
                return None;
            }
            let several = next_word(get.further).is_some();
            if several || session.get_continues {
                return self.gather(session, get);
            }
        }
        let Some(key) = key else { return self.everywhere(session, job) };
        if brings_value(&job.request) && self.keys_allowed(session) == 0 {
            return Some(Then::Wait(Pause::Window));
        }
        if let Some(then) = read_elsewhere(self, session, job, key) {
            return Some(then);
        }
        let owning = match self.turn.on.whereabouts(key) {
            Whereabouts::Here => return None,
            Whereabouts::At(owning) => owning,
            Whereabouts::OnItsWay if session.slice.is_over(self.turn.now().instant()) => {
                Owning { server: ServerId::NOBODY, gone: None }
            }
            Whereabouts::OnItsWay => return Some(Then::OnItsWay),
        };
        let server = owning.server;
        let asked = self.turn.now().instant();
        let sent = Sent { hash: key.hash(), to: server, asked, by_lease: false };
        session.slots.sent_by(self.turn.on.here.map_version);
        self.turn.on.counters.requests_peer.add(1);
        let mut lost = Lost::of(&job.request, key);
        if lost.missed && job.request.follows() {
            self.turn.on.tell_newer_map(&job.request, lost.told.to_mut());
        }
        match self.links.credit(server) {
            Credit::NoLink => {
                self.turn.out.extend_from_slice(&lost.told);
                self.turn.on.counters.get_unreachable.add(lost.missed.into());
                return Some(Then::Next);
            }
            Credit::Spent => return Some(self.wait(session, server)),
            Credit::Available if lost.missed && self.room(session, server) == 0 => {
                return Some(self.wait(session, server));
            }
            Credit::Available => {}
        }
        match job.request {
            // What the value was to replace is at its owner; the value itself goes nowhere. The client is told when the old one
            // has gone: what is written after that must not be removed.
            Request::TooLarge { key, base64, remove, noreply } => {
                self.turn.refuse_too_large(noreply);
                let command: [&[u8]; 3] =
                    if base64 { [b"md ", key, b" b\r\n"] } else { [b"delete ", key, b"\r\n"] };
                if remove {
                    let place = session.slots.push_removal(sent);
                    self.forward(owning, session.client, place, 0, &command.concat());
                }
            }
            Request::Binary(Binary { frame, command: Command::TooLarge { key, remove } }) => {
                self.turn.binary_too_large(&frame);
                if remove {
                    let place = session.slots.push_removal(sent);
                    self.forward(owning, session.client, place, 0, &binary_delete(key));
                }
            }
            _ => {
                let keys = usize::from(lost.missed);
                let place = session.slots.push_peer(lost, sent);
                self.forward(owning, session.client, place, keys, job.bytes);
            }
        }
        Some(Then::Next)
    }

    /// Tells the value of another server's key from its copy, if one is here and every read may be answered from it. It must not overtake
    /// what the same client has asked before: be that under way from here, or passed on for the server that asks.
    fn gather_copy(&mut self, session: &Session, get: &Get<'_>, key: &Key<'_>) -> bool {
        let copies = &self.turn.on.shared.copies;
        let (links, hops) = (&self.links, self.hops);
        let overtakes = |from| links.would_overtake(from, hops, key.hash(), None);
        copies.mode() == HotMode::Atomic
            && get.touch.is_none()
            && copies.shadows.may_have(key.hash())
            && !self.turn.on.is_here(key)
            && session.slots.under_way(key.hash()).is_none()
            && !self.passed_by.is_some_and(overtakes)
            && get_copy(&mut self.turn, get, key)
    }

    /// How many keys more a connection may ask other servers for.
    fn keys_allowed(&self, session: &Session) -> usize {
        if matches!(session.client, Client::Once { .. }) {
            return GATHER_KEYS_MAX;
        }
        let (expected, each) = session.slots.expected_bytes(self.links.reply_bytes());
        match expected + session.unsent {
            0 => (WINDOW_BYTES / each).max(1),
            expected => WINDOW_BYTES.saturating_sub(expected) / each,
        }
    }

    /// For how many values it may ask this server.
    fn room(&self, session: &Session, server: ServerId) -> usize {
        match session.client {
            Client::Once { .. } => GATHER_KEYS_MAX,
            Client::Conn { .. } => self.links.room(server),
        }
    }

    /// A `get` of several keys: one request to every server that owns some of them. `None` if
    /// that is this server alone.
    pub fn gather(&mut self, session: &mut Session, get: &Get<'_>) -> Option<Then> {
        // The reply is an error, whoever has the other keys.
        if !session.get_continues && any_too_long(get.keys) {
            self.turn.line(BAD_FORMAT);
            return Some(Then::Next);
        }
        let keys_allowed = self.keys_allowed(session);
        if keys_allowed == 0 {
            return Some(Then::Wait(Pause::Window));
        }
        let mut asked: Vec<GetPart> = Vec::new();
        let mut wanted: Vec<WantedKey> = Vec::with_capacity(GATHER_KEYS_MAX);
        // Those that are not answered by copies, and their sources.
        let mut keys = [None; GATHER_KEYS_MAX];
        let mut to_come = 0;
        // The first key was looked at with its request.
        let mut others = [None; GROUP];
        let mut rest = get.keys;
        let before = self.turn.out.len();
        while let Some((word, tail)) = next_word(rest).filter(|_| wanted.len() < GATHER_KEYS_MAX) {
            let at = wanted.len();
            let key = Key::new(word).expect("none is too long");
            let route = self.turn.on.route(&key);
            let is_here = matches!(route, Route::Own | Route::Neighbour(_));
            if at > 0 && !is_here {
                others[at % GROUP] = Some(key);
            }
            if at % GROUP == GROUP - 1 {
                self.turn.observer.look_at_others(&self.turn.on, &others);
                others = [None; GROUP];
            }
            let start = (word.as_ptr().addr() - get.keys.as_ptr().addr()) as u32;
            let from = |source| WantedKey { start, bytes: word.len() as u8, source };
            if !is_here && self.gather_copy(session, get, &key) {
                wanted.push(from(COPIED));
                rest = tail;
                continue;
            }
            let owning = match self.turn.on.whereabouts_by(route, &key) {
                Whereabouts::Here => None,
                Whereabouts::At(owning) => Some(owning),
                // Nothing of it is told before all of it can be.
                Whereabouts::OnItsWay if !session.slice.is_over(self.turn.now().instant()) => {
                    self.turn.out.truncate(before);
                    return Some(Then::OnItsWay);
                }
                Whereabouts::OnItsWay => Some(Owning { server: ServerId::NOBODY, gone: None }),
            };
            let source = match owning {
                None => 0,
                // The rest of the keys, when others have answered.
                Some(_) if to_come == keys_allowed => break,
                Some(owning) => {
                    let known = asked.iter().position(|one| one.owning == owning);
                    let place = known.unwrap_or_else(|| {
                        let room = self.room(session, owning.server);
                        asked.push(GetPart { owning, keys: 0, key_bytes: 0, room });
                        asked.len() - 1
                    });
                    let one = &mut asked[place];
                    if one.keys > 0 && one.room <= one.keys {
                        break;
                    }
                    one.keys += 1;
                    one.key_bytes += word.len() + 1;
                    to_come += 1;
                    place as u8 + 1
                }
            };
            keys[at] = Some((key, source));
            wanted.push(from(source));
            rest = tail;
        }
        self.turn.observer.look_at_others(&self.turn.on, &others);
        let ends = next_word(rest).is_none();
        let copied = self.turn.out.split_off(before);
        if asked.is_empty() && copied.is_empty() && ends && !session.get_continues {
            return None;
        }
        // A server may be two sources: what it has got by a move of late is asked for apart.
        let spent = |one: &&GetPart| {
            let of_it = asked.iter().filter(|other| other.owning.server == one.owning.server);
            !self.links.has_credits(one.owning.server, of_it.count()) || one.room == 0
        };
        if let Some(one) = asked.iter().find(spent) {
            return Some(self.wait(session, one.owning.server));
        }
        let keys = &keys[..wanted.len()];
        let keys_of = |source| {
            let all = keys.iter().flatten().copied();
            all.filter_map(move |(key, its)| (usize::from(its) == source).then_some(key))
        };
        let here = Some(self.turn.get_here(get, keys_of(0)));
        let mut sources = Vec::with_capacity(2 + asked.len());
        sources.push(Source { server: ServerId::NOBODY, keys: 0, reply: here });
        sources.extend(asked.iter().map(|one| {
            let linked = self.links.credit(one.owning.server) != Credit::NoLink;
            let reply = (!linked).then(|| END.to_vec());
            Source { server: one.owning.server, keys: one.keys, reply }
        }));
        let missing: Vec<bool> = sources.iter().map(|source| source.reply.is_none()).collect();
        if !copied.is_empty() {
            // One source more, whose reply is there.
            let is_copied = wanted.iter_mut().filter(|one| one.source == COPIED);
            is_copied.for_each(|one| one.source = sources.len() as u8);
            let reply = Some([&copied, END].concat());
            sources.push(Source { server: ServerId::NOBODY, keys: 0, reply });
        }
        let gather = Gather {
            keys: get.keys[..get.keys.len() - rest.len()].to_vec(),
            wanted,
            sources,
            continues: std::mem::replace(&mut session.get_continues, !ends),
            ends,
            touches: get.touch.is_some(),
        };
        session.slots.sent_by(self.turn.on.here.map_version);
        let place = session.slots.push_gather(gather);
        for (at, one) in asked.into_iter().enumerate() {
            self.turn.on.counters.requests_peer.add(1);
            if !missing[at + 1] {
                self.turn.on.counters.get_unreachable.add(one.keys as u64);
                continue;
            }
            let mut request =
                Vec::with_capacity(Get::HEAD_BYTES_MAX + one.key_bytes + b"\r\n".len());
            get.push_head(&mut request);
            for key in keys_of(at + 1) {
                request.extend_from_slice(key.bytes());
                request.push(b' ');
            }
            request.extend_from_slice(b"\r\n");
            let ticket =
                self.forward(one.owning, session.client, place(at + 1), one.keys, &request);
            if let Some(from) = self.passed_by {
                let hashes = keys_of(at + 1).map(|key| key.hash()).collect();
                self.links.passes_on((one.owning.server, ticket), from, self.hops, hashes);
            }
        }
        self.turn.has_waiting = true;
        Some(if ends { Then::Next } else { Then::Resume(get_again(get, rest)) })
    }

    /// What a peer asks of several servers: `ask` asks them for it, as for a client.
    pub fn relay(
        &mut self,
        from: ServerId,
        ticket: Ticket,
        hops: u8,
        ask: impl FnOnce(&mut Self, &mut Session) -> Option<Then>,
    ) -> Option<Relayed> {
        let serial = self.relays.next_serial();
        let mut session = Session { client: Client::Once { serial }, ..Session::default() };
        (self.hops, self.passed_by) = (hops, Some(from));
        let then = ask(self, &mut session);
        (self.hops, self.passed_by) = (0, None);
        Some(match then {
            Some(Then::Next) if session.slots.waits() => {
                self.relays.begun(serial, Recipient::Peer { server: from, ticket }, session.slots);
                Relayed::Begun
            }
            // None of them has a link.
            Some(Then::Next) if !session.slots.is_empty() => {
                session.slots.release(self.turn.out);
                Relayed::Answered
            }
            Some(Then::OnItsWay | Then::Wait(_)) => Relayed::OnItsWay,
            _ => Relayed::Refused,
        })
    }
}

/// A source of a `get`'s values, and what it is asked for.
struct GetPart {
    owning: Owning,
    keys: usize,
    /// With a blank behind each.
    key_bytes: usize,
    /// It may be asked for so many.
    room: usize,
}

/// What came of a `get` that is gathered for a peer, or of a `flush_all` that goes on.
pub(crate) enum Relayed {
    /// It is answered when others have answered.
    Begun,
    /// The answer has been told.
    Answered,
    /// A part of it is on its way, or there is no credit for it: later.
    OnItsWay,
    Refused,
}

/// Of the sources of a `get`, while they are counted: copies that are here.
const COPIED: u8 = u8::MAX;

/// Its reply may be as long as an item.
fn brings_value(request: &Request<'_>) -> bool {
    match request {
        Request::Get(_) | Request::MetaGet(_) => true,
        Request::Binary(binary) => matches!(binary.command, Command::Get { with_value: true, .. }),
        _ => false,
    }
}

fn is_flush(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Admin { command: Admin::FlushAll { .. }, .. }
            | Request::Binary(Binary { command: Command::Flush { .. }, .. })
    )
}
