//! Requests whose key another server owns: out to it, in from it, and on to a third.

use mbal_cachelet::Ahead;
use mbal_model::{Key, Route, ServerId};
use mbal_wire::{
    Admin, BINARY_REQUEST, Binary, Command, Get, HOPS_MAX, Login, Parsed, PeerRequest, Request,
    binary_delete, next_word, parse, parse_binary,
};

use crate::Action;
use crate::batch::{Batch, Job, Pause};
use crate::classic::{BAD_FORMAT, any_too_long, get_again};
use crate::links::{Asker, Credit};
use crate::session::Session;
use crate::slots::{Gather, NO_ROUTE_LINE, Place};
use crate::turn::{Then, Turn};
use crate::unreachable::{END, Lost};

/// Keys of a `get` that are gathered from several servers at a time: with values at the item
/// limit, what a connection can make a worker hold.
pub const GATHER_KEYS_MAX: usize = 64;

impl Batch<'_> {
    /// Sends the request to the server that owns its key. `None`: it is served here.
    pub fn elsewhere(
        &mut self,
        session: &mut Session,
        job: &Job<'_>,
        key: Option<&Key<'_>>,
    ) -> Option<Then> {
        if self.turn.alone && !session.get_continues {
            return None;
        }
        // A client that names a cachelet asks its owner: it is told who that is.
        if matches!(job.request, Request::Binary(binary) if binary.frame.vbucket != 0) {
            return None;
        }
        if let Request::Get(get) = &job.request {
            let several = next_word(get.further).is_some();
            if several || session.get_continues {
                return self.gather(session, get);
            }
        }
        let Some(key) = key else { return self.everywhere(session, job) };
        let server = match self.turn.route(key) {
            Route::Own | Route::Neighbour(_) => return None,
            Route::Peer(server) => server,
            // Nobody is known who serves it at this moment.
            Route::Moving(_) => ServerId::NOBODY,
        };
        self.turn.counters.requests_peer.add(1);
        let lost = Lost::of(&job.request, key);
        match self.links.credit(server) {
            Credit::NoLink => {
                self.turn.out.extend_from_slice(&lost.told);
                self.turn.counters.get_unreachable.add(lost.missed.into());
                return Some(Then::Next);
            }
            Credit::Spent => return Some(self.wait(server)),
            Credit::Available => {}
        }
        match job.request {
            // What the value was to replace is at its owner; the value itself goes nowhere.
            Request::TooLarge { key, base64, remove, noreply } => {
                self.turn.refuse_too_large(noreply);
                let command: [&[u8]; 3] =
                    if base64 { [b"md ", key, b" b\r\n"] } else { [b"delete ", key, b"\r\n"] };
                if remove {
                    self.send(server, Asker::Nobody, &command.concat());
                }
            }
            Request::Binary(Binary { frame, command: Command::TooLarge { key, remove } }) => {
                self.turn.binary_too_large(&frame);
                if remove {
                    self.send(server, Asker::Nobody, &binary_delete(key));
                }
            }
            _ => {
                let place = session.slots.push_peer(lost);
                self.forward(server, session.serial, place, job.bytes);
            }
        }
        Some(Then::Next)
    }

    fn wait(&mut self, server: ServerId) -> Then {
        self.links.wait(server, self.conn);
        Then::Wait(Pause::Credit(server))
    }

    pub fn forward(&mut self, server: ServerId, session: u64, place: Place, request: &[u8]) {
        self.turn.has_waiting = true;
        self.send(server, Asker::Client { conn: self.conn, session, place }, request);
    }

    fn send(&mut self, server: ServerId, asker: Asker, request: &[u8]) {
        let ticket = self.links.ask(server, asker);
        let map_version = self.turn.map_version;
        let mut bytes = Vec::new();
        PeerRequest { hops: 1, map_version, request }.encode(&mut bytes);
        self.actions.push(Action::Forward { server, ticket, request: bytes });
    }

    /// A `get` of several keys: one request to every server that owns some of them. `None` if
    /// that is this server alone.
    fn gather(&mut self, session: &mut Session, get: &Get<'_>) -> Option<Then> {
        // The reply is an error, whoever has the other keys.
        if any_too_long(get.keys) {
            self.turn.line(BAD_FORMAT);
            return Some(Then::Next);
        }
        let mut servers = Vec::new();
        let mut routes = Vec::new();
        let mut words: Vec<Vec<u8>> = vec![Vec::new()];
        let mut rest = get.keys;
        while let Some((word, tail)) = next_word(rest).filter(|_| routes.len() < GATHER_KEYS_MAX) {
            let key = Key::new(word).expect("none is too long");
            let source = match self.turn.route(&key) {
                Route::Peer(server) => {
                    let known = servers.iter().position(|known| *known == server);
                    known.unwrap_or_else(|| {
                        servers.push(server);
                        words.push(Vec::new());
                        servers.len() - 1
                    }) + 1
                }
                _ => 0,
            };
            routes.push(source as u8);
            words[source].extend_from_slice(word);
            words[source].push(b' ');
            rest = tail;
        }
        let ends = next_word(rest).is_none();
        if servers.is_empty() && ends && !session.get_continues {
            return None;
        }
        let spent = |server: &&ServerId| self.links.credit(**server) == Credit::Spent;
        if let Some(server) = servers.iter().find(spent) {
            return Some(self.wait(*server));
        }
        let keys = get.keys[..get.keys.len() - rest.len()].to_vec();
        let mut sources = vec![Some(self.turn.get_here(get, &words[0]))];
        for server in &servers {
            let linked = self.links.credit(*server) == Credit::Available;
            sources.push((!linked).then(|| END.to_vec()));
        }
        let missing: Vec<bool> = sources.iter().map(Option::is_none).collect();
        let continues = std::mem::replace(&mut session.get_continues, !ends);
        let gather = Gather { keys, routes: routes.clone(), sources, continues, ends };
        let place = session.slots.push_gather(gather);
        for (at, server) in servers.iter().enumerate() {
            self.turn.counters.requests_peer.add(1);
            if !missing[at + 1] {
                let of = |route: &&u8| usize::from(**route) == at + 1;
                let unreachable = routes.iter().filter(of).count() as u64;
                self.turn.counters.get_unreachable.add(unreachable);
            } else {
                let request = get_again(get, &words[at + 1]);
                self.forward(*server, session.serial, place(at + 1), &request);
            }
        }
        session.slots.release(self.turn.out);
        Some(if ends { Then::Next } else { Then::Resume(get_again(get, rest)) })
    }
}

/// What a server does with a request that a peer sent.
pub(crate) enum Served {
    /// It was executed here.
    Reply,
    /// It goes on to the owner.
    PassOn(ServerId, Vec<u8>),
}

impl Turn<'_> {
    /// Executes a peer's request: its reply stands in `out`.
    pub fn serve(&mut self, bytes: &[u8]) -> Served {
        let before = self.out.len();
        match self.try_serve(bytes) {
            Some(served) => served,
            None => {
                self.out.truncate(before);
                self.out.extend_from_slice(NO_ROUTE_LINE);
                Served::Reply
            }
        }
    }

    /// `None` for what cannot be served: no request, or one that has come too far, or a `get`
    /// some of whose keys are not here.
    fn try_serve(&mut self, bytes: &[u8]) -> Option<Served> {
        let peer = PeerRequest::decode(bytes)?;
        let mut rest = peer.request.to_vec();
        loop {
            let limits = self.limits(Login::NotAsked);
            let parsed = match rest[0] {
                BINARY_REQUEST => parse_binary(&rest, &limits),
                _ => parse(&rest, &limits),
            };
            let Parsed::Request { request, skip: 0, .. } = parsed else {
                return None;
            };
            if let Request::Admin { command: Admin::FlushAll { .. }, .. } = request {
                self.execute(&request, None);
                return Some(Served::Reply);
            }
            let (word, base64) = request.key()?;
            let mut decoded = [0; mbal_model::KEY_BYTES_MAX];
            let word = if base64 {
                let length = mbal_wire::base64_decode(word, &mut decoded)?;
                &decoded[..length]
            } else {
                word
            };
            let key = Key::new(word)?;
            if let Request::Get(get) = &request {
                let mut keys = get.further;
                while let Some((word, tail)) = next_word(keys) {
                    if !self.is_here(&Key::new(word)?) {
                        return None;
                    }
                    keys = tail;
                }
            }
            if let Route::Peer(server) = self.route(&key) {
                let hops = peer.hops.saturating_add(1);
                let mut bytes = Vec::new();
                PeerRequest { hops, ..peer }.encode(&mut bytes);
                return (hops <= HOPS_MAX).then_some(Served::PassOn(server, bytes));
            }
            match self.execute(&request, Some(key)) {
                Then::Resume(again) => rest = again,
                _ => return Some(Served::Reply),
            }
        }
    }

    #[inline]
    pub fn route(&self, key: &Key<'_>) -> Route {
        self.server.store.route(self.here.worker, key.hash())
    }

    pub fn is_here(&self, key: &Key<'_>) -> bool {
        matches!(self.route(key), Route::Own | Route::Neighbour(_))
    }

    /// The values of those of a `get`'s keys that are here.
    fn get_here(&mut self, get: &Get<'_>, mut keys: &[u8]) -> Vec<u8> {
        let before = self.out.len();
        while let Some((word, rest)) = next_word(keys) {
            let key = Key::new(word).expect("none is too long");
            self.count_route(&key);
            self.get_one(get, &key, Ahead::NONE);
            keys = rest;
        }
        self.out.split_off(before)
    }
}
