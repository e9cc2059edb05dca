//! Requests whose key another server owns: out to it, in from it, and on to a third.

use mbal_cachelet::Ahead;
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Key, Route, ServerId};
use mbal_replica::{Hold, HoldWhat, MARK};
use mbal_wire::{
    Admin, BINARY_REQUEST, Binary, Command, Get, HOPS_MAX, Limits, Login, Parsed, PeerRequest,
    Request, binary_delete, next_word, parse, words_of,
};

use crate::batch::{Batch, GROUP, Job, Pause, next_job};
use crate::classic::{BAD_FORMAT, any_too_long, get_again};
use crate::copies::{HotMode, Read, Taken};
use crate::everywhere::Flush;
use crate::held::Obstacle;
use crate::links::{Asker, Credit, Ticket};
use crate::moves::{Owning, Whereabouts};
use crate::once::Recipient;
use crate::session::{Client, Session};
use crate::slots::{Gather, NO_ROUTE_LINE, Place, Sent};
use crate::turn::{Then, Turn};
use crate::unreachable::{END, Lost};
use crate::{Action, Ticketed};

/// Keys of a `get` that are gathered from several servers at a time: with values at the item
/// limit, what a connection can make a worker hold.
pub const GATHER_KEYS_MAX: usize = 64;

impl Batch<'_> {
    /// Sends the request to the server that owns its key. `None`: it is served here.
    #[inline(always)]
    pub fn elsewhere(
        &mut self,
        session: &mut Session,
        job: &Job<'_>,
        key: Option<&Key<'_>>,
    ) -> Option<Then> {
        if self.turn.alone && !session.get_continues && !self.turn.has_waiting {
            return None;
        }
        // Mostly no way has changed since: then nothing can overtake but a flush.
        let is_plain = !self.turn.has_waiting
            || session.slots.is_plain(self.turn.map_version)
                && self.turn.shared.moves.is_empty()
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
        let overtakes =
            |key: &Key<'_>| session.slots.would_overtake(key, self.turn.whereabouts(key).server());
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
            let moves = key.is_some_and(|key| matches!(self.turn.route(key), Route::Moving(_)));
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
        if let Some(then) = self.read_elsewhere(session, job, key) {
            return Some(then);
        }
        let owning = match self.turn.whereabouts(key) {
            Whereabouts::Here => return None,
            Whereabouts::At(owning) => owning,
            Whereabouts::OnItsWay if session.slice.is_over(self.turn.now.moment()) => {
                Owning { server: ServerId::NOBODY, gone: None }
            }
            Whereabouts::OnItsWay => return Some(Then::OnItsWay),
        };
        let server = owning.server;
        let asked = self.turn.now.moment();
        let sent = Sent { hash: key.hash(), to: server, asked, by_lease: false };
        session.slots.sent_by(self.turn.map_version);
        self.turn.counters.requests_peer.add(1);
        let mut lost = Lost::of(&job.request, key);
        if lost.missed && job.request.follows() {
            self.turn.tell_newer_map(&job.request, lost.told.to_mut());
        }
        match self.links.credit(server) {
            Credit::NoLink => {
                self.turn.out.extend_from_slice(&lost.told);
                self.turn.counters.get_unreachable.add(lost.missed.into());
                return Some(Then::Next);
            }
            Credit::Spent => return Some(self.wait(session, server)),
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
                    self.forward(owning, session.client, place, &command.concat());
                }
            }
            Request::Binary(Binary { frame, command: Command::TooLarge { key, remove } }) => {
                self.turn.binary_too_large(&frame);
                if remove {
                    let place = session.slots.push_removal(sent);
                    self.forward(owning, session.client, place, &binary_delete(key));
                }
            }
            _ => {
                let place = session.slots.push_peer(lost, sent);
                self.forward(owning, session.client, place, job.bytes);
            }
        }
        Some(Then::Next)
    }

    /// Tells the value of another server's key from its copy, if one is here and every read may be answered from it. It must not overtake
    /// what the same client has asked before: be that under way from here, or passed on for the server that asks.
    fn gather_copy(&mut self, session: &Session, get: &Get<'_>, key: &Key<'_>) -> bool {
        let copies = &self.turn.shared.copies;
        let (links, hops) = (&self.links, self.hops);
        let overtakes = |from| links.would_overtake(from, hops, key.hash(), None);
        copies.mode() == HotMode::Atomic
            && get.touch.is_none()
            && copies.here.may_have(key.hash())
            && !self.turn.is_here(key)
            && session.slots.under_way(key.hash()).is_none()
            && !self.passed_by.is_some_and(overtakes)
            && self.turn.get_copy(get, key)
    }

    pub fn wait(&mut self, session: &Session, server: ServerId) -> Then {
        if let Client::Conn { conn, .. } = session.client {
            self.links.wait(server, conn);
        }
        Then::Wait(Pause::Credit(server))
    }

    pub fn forward(&mut self, to: Owning, client: Client, place: Place, request: &[u8]) -> Ticket {
        let wants_leases = self.turn.shared.copies.mode() != HotMode::Off;
        let peer = PeerRequest::new(self.hops + 1, self.turn.map_version, request);
        let peer = PeerRequest { gone: to.gone, wants_leases, ..peer };
        self.forward_as(to.server, client, place, &peer)
    }

    /// To a server that has a copy of the key.
    pub fn forward_by_lease(
        &mut self,
        to: ServerId,
        client: Client,
        place: Place,
        request: &[u8],
    ) -> Ticket {
        let peer = PeerRequest::new(self.hops + 1, self.turn.map_version, request);
        self.forward_as(to, client, place, &PeerRequest { by_lease: true, ..peer })
    }

    fn forward_as(
        &mut self,
        to: ServerId,
        client: Client,
        place: Place,
        peer: &PeerRequest<'_>,
    ) -> Ticket {
        self.turn.has_waiting = true;
        self.send_on(to, Asker::Client { client, place }, peer)
    }

    fn send_on(&mut self, server: ServerId, asker: Asker, peer: &PeerRequest<'_>) -> Ticket {
        let ticket = self.links.ask(server, asker);
        let start = self.to_peers.len();
        peer.encode(self.to_peers);
        let request = start..self.to_peers.len();
        self.actions.push(Action::Forward { server, ticket, request });
        ticket
    }

    /// A `get` of several keys: one request to every server that owns some of them. `None` if
    /// that is this server alone.
    fn gather(&mut self, session: &mut Session, get: &Get<'_>) -> Option<Then> {
        // The reply is an error, whoever has the other keys.
        if any_too_long(get.keys) {
            self.turn.line(BAD_FORMAT);
            return Some(Then::Next);
        }
        let mut sources: Vec<Owning> = Vec::new();
        let mut routes = Vec::new();
        let mut words: Vec<Vec<u8>> = vec![Vec::new()];
        let mut rest = get.keys;
        let before = self.turn.out.len();
        while let Some((word, tail)) = next_word(rest).filter(|_| routes.len() < GATHER_KEYS_MAX) {
            let key = Key::new(word).expect("none is too long");
            if self.gather_copy(session, get, &key) {
                routes.push(COPIED);
                rest = tail;
                continue;
            }
            let owning = match self.turn.whereabouts(&key) {
                Whereabouts::Here => None,
                Whereabouts::At(owning) => Some(owning),
                // Nothing of it is told before all of it can be.
                Whereabouts::OnItsWay if !session.slice.is_over(self.turn.now.moment()) => {
                    self.turn.out.truncate(before);
                    return Some(Then::OnItsWay);
                }
                Whereabouts::OnItsWay => Some(Owning { server: ServerId::NOBODY, gone: None }),
            };
            let source = owning.map_or(0, |owning| {
                let known = sources.iter().position(|known| *known == owning);
                1 + known.unwrap_or_else(|| {
                    sources.push(owning);
                    words.push(Vec::new());
                    sources.len() - 1
                })
            });
            routes.push(source as u8);
            words[source].extend_from_slice(word);
            words[source].push(b' ');
            rest = tail;
        }
        let ends = next_word(rest).is_none();
        let copied = self.turn.out.split_off(before);
        if sources.is_empty() && copied.is_empty() && ends && !session.get_continues {
            return None;
        }
        // A server may be two sources: what it has got by a move of late is asked for apart.
        let spent = |one: &&Owning| {
            let of_it = sources.iter().filter(|other| other.server == one.server);
            !self.links.has_credits(one.server, of_it.count())
        };
        if let Some(one) = sources.iter().find(spent) {
            return Some(self.wait(session, one.server));
        }
        let keys = get.keys[..get.keys.len() - rest.len()].to_vec();
        let mut replies = vec![Some(self.turn.get_here(get, &words[0]))];
        for one in &sources {
            let linked = self.links.credit(one.server) != Credit::NoLink;
            replies.push((!linked).then(|| END.to_vec()));
        }
        let missing: Vec<bool> = replies.iter().map(Option::is_none).collect();
        if !copied.is_empty() {
            // One source more, whose reply is there.
            let is_copied = routes.iter_mut().filter(|route| **route == COPIED);
            is_copied.for_each(|route| *route = replies.len() as u8);
            replies.push(Some([&copied, END].concat()));
        }
        let continues = std::mem::replace(&mut session.get_continues, !ends);
        let servers = sources.iter().map(|one| one.server).collect();
        let gather =
            Gather { keys, routes: routes.clone(), sources: replies, servers, continues, ends };
        session.slots.sent_by(self.turn.map_version);
        let place = session.slots.push_gather(gather);
        for (at, owning) in sources.into_iter().enumerate() {
            self.turn.counters.requests_peer.add(1);
            if !missing[at + 1] {
                let of = |route: &&u8| usize::from(**route) == at + 1;
                let unreachable = routes.iter().filter(of).count() as u64;
                self.turn.counters.get_unreachable.add(unreachable);
            } else {
                let request = get_again(get, &words[at + 1]);
                let ticket = self.forward(owning, session.client, place(at + 1), &request);
                if let Some(from) = self.passed_by {
                    let hashes = words_of(&words[at + 1]).filter_map(Key::new);
                    let hashes = hashes.map(|key| key.hash()).collect();
                    self.links.passes_on((owning.server, ticket), from, self.hops, hashes);
                }
            }
        }
        self.turn.has_waiting = true;
        Some(if ends { Then::Next } else { Then::Resume(get_again(get, rest)) })
    }
}

/// Of the sources of a `get`, while they are counted: copies that are here.
const COPIED: u8 = u8::MAX;

fn is_flush(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Admin { command: Admin::FlushAll { .. }, .. }
            | Request::Binary(Binary { command: Command::Flush { .. }, .. })
    )
}

/// A peer's request, parsed.
pub(crate) struct Asked<'a> {
    pub as_it_came: Ticketed<'a>,
    pub peer: PeerRequest<'a>,
}

impl<'a> Asked<'a> {
    /// `None` for what is no request, or more than one.
    fn parse(asked: &Ticketed<'a>, limits: &Limits) -> Option<(Asked<'a>, Job<'a>)> {
        let peer = PeerRequest::decode(asked.bytes)?;
        let binary = peer.request[0] == BINARY_REQUEST;
        let job = next_job(binary, limits, peer.request, 0).ok().filter(|job| job.skip == 0)?;
        let is_for_all =
            matches!(job.request, Request::Admin { command: Admin::FlushAll { .. }, .. });
        (is_for_all || job.request.key().is_some())
            .then_some((Asked { as_it_came: *asked, peer }, job))
    }
}

/// What becomes of a peer's request.
enum Served {
    /// It was executed here.
    Reply,
    /// It was answered from a copy of its key.
    FromCopy,
    /// It goes on to the owner of its key.
    PassOn(Owning),
    /// A `get` some of whose keys are not here.
    Divided,
    /// It has no key here, and cannot go on.
    Refused,
    /// It was not executed, and is to be tried again.
    NotYet(Obstacle),
}

impl Batch<'_> {
    /// Executes up to [`GROUP`] requests that server `from` sent, and answers them.
    pub fn serve(&mut self, from: ServerId, requests: &[Ticketed<'_>], decoded: &mut Vec<u8>) {
        let limits = self.turn.limits(Login::NotAsked);
        let mut asked = [const { None }; GROUP];
        let mut jobs = [const { None }; GROUP];
        let mut count = 0;
        for request in requests {
            if self.is_said_by_a_home(from, request) {
                continue;
            }
            match Asked::parse(request, &limits) {
                Some((who, job)) => {
                    (asked[count], jobs[count]) = (Some(who), Some(job));
                    count += 1;
                }
                None => {
                    let before = self.turn.out.len();
                    self.turn.out.extend_from_slice(NO_ROUTE_LINE);
                    self.answer(from, request.ticket, before);
                }
            }
        }
        let mut asked = asked.iter().flatten();
        self.run_group(&jobs, decoded, |batch, job, key| {
            let asked = asked.next().expect("as many as jobs");
            batch.serve_one(from, asked, job, key);
            None::<()>
        });
    }

    fn serve_one(
        &mut self,
        from: ServerId,
        asked: &Asked<'_>,
        job: &Job<'_>,
        key: Option<Key<'_>>,
    ) {
        let Asked { as_it_came, peer } = asked;
        let Some(patience) = self.patience_of(from, asked, job, key.as_ref()) else { return };
        self.turn.haste = patience.haste;
        // First of all: what was asked before may have been passed on to where its key was until then.
        if let Some(gone) = peer.gone.filter(|_| !self.all_here(&job.request, key.as_ref())) {
            self.turn.shared.knows_gone(gone);
        }
        let before = self.turn.out.len();
        (self.turn.start, self.turn.further_keys) = (before, 0);
        if !self.links.passes_nothing()
            && self.would_overtake_passed(from, peer.hops, job, key.as_ref())
        {
            if patience.slice_is_over {
                self.refuse(before);
                return self.answer(from, as_it_came.ticket, before);
            }
            return self.hold_for(from, asked, job, key.as_ref(), Obstacle::Slice);
        }
        if is_planted(Fault::ServedTwice) {
            self.serve_parsed(from, peer, &job.request, key);
            self.turn.out.truncate(before);
        }
        let (ticket, can_go_on) = (as_it_came.ticket, peer.hops < HOPS_MAX);
        let mut relayed = None;
        let mut served = match Flush::read(peer.request) {
            Some(flush) => {
                relayed = self.flush_for(from, ticket, peer, flush);
                Served::Reply
            }
            None => self.serve_parsed(from, peer, &job.request, key),
        };
        if let (Served::Divided, Request::Get(get), true) = (&served, &job.request, can_go_on) {
            let gather = |batch: &mut Self, session: &mut _| batch.gather(session, get);
            relayed = self.relay(from, ticket, peer.hops, gather);
        }
        match relayed {
            None => {}
            Some(Relayed::Begun) => return,
            Some(Relayed::Answered) => served = Served::Reply,
            Some(Relayed::OnItsWay) => served = Served::NotYet(Obstacle::Slice),
            Some(Relayed::Refused) => served = Served::Refused,
        }
        match served {
            Served::Reply => {
                if let (true, Some(key)) = (job.request.follows(), &key) {
                    self.turn.followed_from_afar(before, key);
                }
                if let (true, Some(key)) = (peer.wants_leases, &key) {
                    if let Some(told) = self.told_of(&job.request, key) {
                        Taken::put(Some(&told), before, self.turn.out);
                    }
                }
            }
            Served::FromCopy => Taken::put(None, before, self.turn.out),
            Served::NotYet(Obstacle::Slice) if patience.slice_is_over => self.refuse(before),
            Served::NotYet(obstacle) => {
                self.turn.out.truncate(before);
                return self.hold_for(from, asked, job, key.as_ref(), obstacle);
            }
            // Without credit it is not kept: a peer that waits for us must not wait for others.
            Served::PassOn(Owning { server, gone })
                if can_go_on && self.links.credit(server) == Credit::Available =>
            {
                let asker = Asker::Peer { server: from, ticket: as_it_came.ticket };
                let (hops, map_version) = (peer.hops, self.turn.map_version);
                let peer = PeerRequest::new(hops + 1, map_version, peer.request);
                let peer = PeerRequest { gone, ..peer };
                let ticket = self.send_on(server, asker, &peer);
                let hashes = key.iter().map(Key::hash).collect();
                return self.links.passes_on((server, ticket), from, hops, hashes);
            }
            Served::PassOn(_) | Served::Divided | Served::Refused => self.refuse(before),
        }
        self.requests += 1;
        self.answer(from, as_it_came.ticket, before);
    }

    /// As [`Batch::would_overtake`], of what server `from` asked before.
    #[cold]
    fn would_overtake_passed(
        &self,
        from: ServerId,
        hops: u8,
        job: &Job<'_>,
        key: Option<&Key<'_>>,
    ) -> bool {
        let overtakes = |key: &Key<'_>| {
            let to = self.turn.whereabouts(key).server();
            self.links.would_overtake(from, hops, key.hash(), to)
        };
        match &job.request {
            Request::Get(get) => words_of(get.keys).filter_map(Key::new).any(|key| overtakes(&key)),
            _ => key.is_some_and(overtakes),
        }
    }

    fn refuse(&mut self, before: usize) {
        self.turn.out.truncate(before);
        self.turn.out.extend_from_slice(NO_ROUTE_LINE);
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

    /// The answer begins at `start` of what has been told.
    fn answer(&mut self, server: ServerId, ticket: Ticket, start: usize) {
        let reply = start..self.turn.out.len();
        self.actions.push(Action::Answer { server, ticket, reply });
    }
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

impl Batch<'_> {
    /// True if a home has said something of a copy of its key. It is answered.
    fn is_said_by_a_home(&mut self, from: ServerId, asked: &Ticketed<'_>) -> bool {
        let said = PeerRequest::decode(asked.bytes).map(|peer| peer.request);
        let Some(said) = said.filter(|said| said[0] == MARK) else { return false };
        let before = self.turn.out.len();
        if !self.turn.shared.copies.take(self.turn.lease_now, said, self.turn.out) {
            self.turn.out.extend_from_slice(NO_ROUTE_LINE);
        }
        // A flush that begins here is later than what the copy has seen.
        if let Some(Hold { what: HoldWhat::Item(item), .. }) = Hold::decode(said) {
            self.turn.shared.store.know_flush(item.flush_number);
        }
        self.answer(from, asked.ticket, before);
        true
    }

    /// True if all keys of a peer's request are here.
    fn all_here(&self, request: &Request<'_>, key: Option<&Key<'_>>) -> bool {
        match request {
            Request::Get(get) if !get.further.is_empty() => {
                words_of(get.keys).filter_map(Key::new).all(|key| self.turn.is_here(&key))
            }
            _ => key.is_some_and(|key| self.turn.is_here(key)),
        }
    }

    /// Executes a peer's request: its reply stands in `out`.
    fn serve_parsed(
        &mut self,
        from: ServerId,
        peer: &PeerRequest<'_>,
        request: &Request<'_>,
        key: Option<Key<'_>>,
    ) -> Served {
        let Some(key) = key else {
            if request.key().is_some() {
                return Served::Refused;
            }
            self.turn.execute(request, None);
            return Served::Reply;
        };
        let several = matches!(request, Request::Get(get) if !get.further.is_empty());
        if several && !self.all_here(request, Some(&key)) {
            return Served::Divided;
        }
        match self.turn.whereabouts(&key) {
            Whereabouts::Here => {}
            Whereabouts::At(_) if is_planted(Fault::TooFarIsServed) => {}
            Whereabouts::At(owning) => {
                // What was passed on for this key must not be overtaken.
                let overtakes = |hash| self.links.would_overtake(from, peer.hops, hash, None);
                let may_read = peer.by_lease && !overtakes(key.hash());
                let read = Read::of(request).filter(|_| may_read);
                return match read.is_some_and(|read| self.turn.read_copy(&read, &key)) {
                    true => Served::FromCopy,
                    false => Served::PassOn(owning),
                };
            }
            Whereabouts::OnItsWay => return Served::NotYet(Obstacle::Slice),
        }
        let mut then = self.execute_told(request, Some(key));
        while let Then::Resume(again) = then {
            (self.turn.start, self.turn.further_keys) = (self.turn.out.len(), 0);
            let limits = self.turn.limits(Login::NotAsked);
            let Parsed::Request { request, .. } = parse(&again, &limits) else {
                unreachable!("it is the rest of a get")
            };
            let key = request.key().and_then(|(word, _)| Key::new(word));
            then = self.turn.execute(&request, key);
        }
        match then {
            Then::NoRoom(room) => Served::NotYet(Obstacle::Room(room)),
            Then::OnItsWay => Served::NotYet(Obstacle::Slice),
            _ => Served::Reply,
        }
    }
}

impl Turn<'_> {
    #[inline]
    pub fn route(&self, key: &Key<'_>) -> Route {
        let route = self.shared.store.route(self.here.worker, key.hash());
        match route {
            Route::Peer(_) => route,
            _ if self.lapsed => Route::Peer(ServerId::NOBODY),
            _ if self.newborn && self.shared.copies.is_newborn(key.hash(), self.now.moment()) => {
                Route::Peer(ServerId::NOBODY)
            }
            _ => route,
        }
    }

    pub fn whereabouts(&self, key: &Key<'_>) -> Whereabouts {
        match self.route(key) {
            Route::Own | Route::Neighbour(_) => Whereabouts::Here,
            Route::Peer(server) => Whereabouts::At(Owning { server, gone: None }),
            Route::Moving(id) => self.shared.moves.whereabouts(id, key.hash()),
        }
    }

    pub fn is_here(&self, key: &Key<'_>) -> bool {
        matches!(self.route(key), Route::Own | Route::Neighbour(_))
    }

    /// The values of those of a `get`'s keys that are here.
    fn get_here(&mut self, get: &Get<'_>, keys: &[u8]) -> Vec<u8> {
        let before = self.out.len();
        let mut words = words_of(keys).peekable();
        while words.peek().is_some() {
            let mut group = [None; GROUP];
            let mut ahead = [Ahead::NONE; GROUP];
            let mut count = 0;
            for word in words.by_ref().take(GROUP) {
                let key = Key::new(word).expect("none is too long");
                ahead[count] = self.shared.store.prefetch_bucket(key.hash());
                group[count] = Some(key);
                count += 1;
            }
            for (key, ahead) in group.iter().flatten().zip(ahead) {
                self.shared.store.prefetch_item(key.hash(), ahead);
            }
            for (key, ahead) in group.iter().flatten().zip(ahead) {
                self.count_executed(Some(key), ahead.owner());
                self.get_one(get, key, ahead);
            }
            // The first key of all was looked at with its request.
            let further = group[..count]
                .iter()
                .position(|key| key.is_some_and(|key| key.bytes() != get.first));
            self.look_at_gets(&group[further.unwrap_or(count)..count]);
        }
        self.out.split_off(before)
    }
}
