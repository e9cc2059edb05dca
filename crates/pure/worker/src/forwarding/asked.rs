//! What other servers ask for their clients: executed here, or passed on to a third.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Key, ReplicaVersion, ServerId};
use mbal_replica::{Hold, HoldWhat, MARK};
use mbal_wire::{HOPS_MAX, Login, Parsed, PeerRequest, Request, parse, words_of};

use crate::commands::execute::execute;
use crate::commands::hints::{followed_from_afar, linked, push_hint};
use crate::commands::turn::Then;
use crate::copies::{HotMode, Read, ReplyPrefix, execute_told, read_copy, told_of};
use crate::event::Action;
use crate::forwarding::flush::Flush;
use crate::forwarding::forwarded::ForwardedRequest;
use crate::forwarding::held::Obstacle;
use crate::forwarding::links::{Asker, Credit};
use crate::forwarding::peers::Relayed;
use crate::forwarding::unreachable::NO_ROUTE_LINE;
use crate::ids::{Ticket, Ticketed};
use crate::moving::moves::{Owning, Whereabouts};
use crate::sessions::batch::Batch;
use crate::sessions::job::{GROUP, Job, is_read, no_jobs};
use crate::sessions::wakes::Sleeper;

/// What becomes of a peer's request.
enum Served {
    /// It was executed here.
    Reply,
    /// It was answered from a copy of its key.
    FromCopy(ReplicaVersion),
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
        let limits = self.turn.on.limits(Login::NotAsked);
        let now = self.turn.now().instant();
        let mut asked: [_; GROUP] = std::array::from_fn(|_| None);
        let mut jobs = no_jobs();
        let mut count = 0;
        for request in requests {
            // Its client has been told that it failed, and may have written since: it comes too late even for a refusal.
            if request.micros_left == 0 && !is_planted(Fault::LateAreExecuted) {
                let before = self.turn.out.len();
                self.turn.out.extend_from_slice(NO_ROUTE_LINE);
                self.answer(from, request.ticket, before);
                continue;
            }
            if self.is_said_by_a_home(from, request) {
                continue;
            }
            asked[count] = ForwardedRequest::parse(from, request, now, &limits, &mut jobs[count]);
            match asked[count] {
                Some(_) => count += 1,
                None => {
                    jobs[count] = None;
                    let before = self.turn.out.len();
                    self.turn.out.extend_from_slice(NO_ROUTE_LINE);
                    self.answer(from, request.ticket, before);
                }
            }
        }
        let mut asked = asked.iter().flatten();
        self.run_group(&jobs, decoded, |batch, job, key| {
            let asked = asked.next().expect("as many as jobs");
            batch.serve_one(asked, job, key);
            None::<()>
        });
    }

    fn serve_one(&mut self, asked: &ForwardedRequest<'_>, job: &Job<'_>, key: Option<Key<'_>>) {
        let ForwardedRequest { from, as_it_came, until, peer } = asked;
        let from = *from;
        self.until = *until;
        let patience = self.held.patience_of(asked, self.again, job, key.as_ref());
        let Some(patience) = patience else { return };
        self.turn.haste = patience.haste;
        // First of all: what was asked before may have been passed on to where its key was until then.
        if let Some(gone) = peer.gone.filter(|_| !self.all_here(&job.request, key.as_ref())) {
            self.turn.on.shared.knows_gone(gone);
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
            return self.hold_for(asked, job, key.as_ref(), Obstacle::Slice);
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
                if let Some(key) = &key {
                    linked(&mut self.turn, before, peer.request.len(), key);
                    self.tell_asker(before, peer, job, key);
                }
            }
            Served::FromCopy(replica_version) => {
                let is_async = self.turn.on.shared.copies.mode() == HotMode::Async;
                ReplyPrefix::FromCopy(is_async.then_some(replica_version))
                    .put(before, self.turn.out);
            }
            Served::NotYet(Obstacle::Slice) if patience.slice_is_over => self.refuse(before),
            Served::NotYet(obstacle) => {
                self.turn.out.truncate(before);
                return self.hold_for(asked, job, key.as_ref(), obstacle);
            }
            // Without credit it is not kept: a peer that waits for us must not wait for others.
            Served::PassOn(Owning { server, gone })
                if can_go_on && self.links.credit(server) == Credit::Available =>
            {
                let reads = is_read(&job.request);
                let asker = Asker::Peer { server: from, ticket: as_it_came.ticket, reads };
                let (hops, map_version) = (peer.hops, self.turn.on.here.map_version);
                let peer = PeerRequest::new(hops + 1, map_version, peer.request);
                let peer = PeerRequest { gone, ..peer };
                let ticket = self.send_on(server, asker, 0, &peer);
                let hashes = key.iter().map(Key::hash).collect();
                return self.links.passes_on((server, ticket), from, hops, hashes);
            }
            Served::PassOn(_) | Served::Divided | Served::Refused => self.refuse(before),
        }
        self.requests += 1;
        self.answer(from, as_it_came.ticket, before);
    }

    /// A peer's request has been executed, whose reply begins at `before`: says what is known of copies of its key, to the client whose read by a
    /// lease was passed on, and to the server that holds leases for clients.
    fn tell_asker(&mut self, before: usize, peer: &PeerRequest<'_>, job: &Job<'_>, key: &Key<'_>) {
        let by_lease = job.request.by_lease().is_some();
        let told = match peer.wants_leases || by_lease {
            true => told_of(&self.turn.on, &job.request, key),
            false => None,
        };
        match &told {
            Some(told) if by_lease && told.newest.is_some() => {
                push_hint(self.turn.out, before, told);
            }
            _ if job.request.follows() => followed_from_afar(&mut self.turn, before, key),
            _ => {}
        }
        if let Some(told) = told.filter(|_| peer.wants_leases) {
            ReplyPrefix::Announcement(told).put(before, self.turn.out);
        }
    }

    /// It could not be executed yet.
    fn hold_for(
        &mut self,
        asked: &ForwardedRequest<'_>,
        job: &Job<'_>,
        key: Option<&Key<'_>>,
        obstacle: Obstacle,
    ) {
        let now = self.turn.now().instant();
        let (number, at) = self.held.hold_for(asked, self.again, (job, key), obstacle, now);
        if !is_planted(Fault::NobodyIsWoken) {
            self.wakes.set(at, Sleeper::Held(number));
        }
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
            let to = self.turn.on.whereabouts(key).server();
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

    /// The answer begins at `start` of what has been told.
    fn answer(&mut self, server: ServerId, ticket: Ticket, start: usize) {
        let reply = start..self.turn.out.len();
        self.actions.push(Action::Answer { server, ticket, reply });
    }

    /// True if a home has said something of a copy of its key. It is answered.
    fn is_said_by_a_home(&mut self, from: ServerId, asked: &Ticketed<'_>) -> bool {
        let said = PeerRequest::decode(asked.bytes).map(|peer| peer.request);
        let Some(said) = said.filter(|said| said[0] == MARK) else { return false };
        let before = self.turn.out.len();
        let on = &self.turn.on;
        let now = (on.now().instant(), on.here.lease_now);
        if !on.shared.copies.take(from, now, said, self.turn.out) {
            self.turn.out.extend_from_slice(NO_ROUTE_LINE);
        }
        // A flush that begins here is later than what the copy has seen.
        if let Some(Hold { what: HoldWhat::Item(item), .. }) = Hold::decode(said) {
            self.turn.on.shared.store.know_flush(item.flush_number);
        }
        self.answer(from, asked.ticket, before);
        true
    }

    /// True if all keys of a peer's request are here.
    fn all_here(&self, request: &Request<'_>, key: Option<&Key<'_>>) -> bool {
        match request {
            Request::Get(get) if !get.further.is_empty() => {
                words_of(get.keys).filter_map(Key::new).all(|key| self.turn.on.is_here(&key))
            }
            _ => key.is_some_and(|key| self.turn.on.is_here(key)),
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
            execute(&mut self.turn, request, None);
            return Served::Reply;
        };
        let several = matches!(request, Request::Get(get) if !get.further.is_empty());
        if several && !self.all_here(request, Some(&key)) {
            return Served::Divided;
        }
        match self.turn.on.whereabouts(&key) {
            Whereabouts::Here => {}
            Whereabouts::At(_) if is_planted(Fault::TooFarIsServed) => {}
            Whereabouts::At(owning) => {
                // What was passed on for this key must not be overtaken.
                let overtakes = |hash| self.links.would_overtake(from, peer.hops, hash, None);
                let seen = peer.by_lease.filter(|_| !overtakes(key.hash()));
                let replica_version = Read::of(request)
                    .zip(seen)
                    .and_then(|(read, seen)| read_copy(&mut self.turn, &read, &key, seen));
                return replica_version.map_or(Served::PassOn(owning), Served::FromCopy);
            }
            Whereabouts::OnItsWay => return Served::NotYet(Obstacle::Slice),
        }
        let mut then = execute_told(self, request, Some(key));
        while let Then::Resume(again) = then {
            (self.turn.start, self.turn.further_keys) = (self.turn.out.len(), 0);
            let limits = self.turn.on.limits(Login::NotAsked);
            let Parsed::Request { request, .. } = parse(&again, &limits) else {
                unreachable!("it is the rest of a get")
            };
            let key = request.key().and_then(|(word, _)| Key::new(word));
            then = execute(&mut self.turn, &request, key);
        }
        match then {
            Then::NoRoom(room) => Served::NotYet(Obstacle::Room(room)),
            Then::OnItsWay => Served::NotYet(Obstacle::Slice),
            _ => Served::Reply,
        }
    }
}
