//! UDP: each datagram is a session of its own, from its first request to its last.

use mbal_model::{KEY_BYTES_MAX, Key, Route};
use mbal_wire::{
    BINARY_REQUEST, Limits, Login, Request, base64_decode, datagrams, parse_datagram, push_line,
    words_of,
};

use crate::batch::{Batch, GROUP, Job, next_job};
use crate::moves::Whereabouts;
use crate::once::Recipient;
use crate::peers::GATHER_KEYS_MAX;
use crate::room::Haste;
use crate::session::{Client, OUTPUT_BYTES_MAX, Session};
use crate::slice_wait::SliceWait;
use crate::turn::Then;
use crate::wakes::Sleeper;
use crate::worker::Worker;
use crate::{Action, Actions, Now, Sender};

/// A longer reply is told as an error.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// Told instead of the reply to a `get` that has too many values for datagrams.
const TOO_MUCH: &[u8] = b"SERVER_ERROR reply too large for UDP";

/// Datagrams that wait for a slice that moves; one more is lost, as any may be on its way.
const LATE_MAX: usize = 256;

/// A datagram that asks for a slice that moves.
pub(crate) struct Late {
    from: Sender,
    bytes: Vec<u8>,
    wait: SliceWait,
}

impl Worker {
    /// Executes what a datagram asks for. Every request's reply is a message of its own.
    ///
    /// What is not there to its end is dropped: nobody could say which later datagram, of which
    /// sender, brings the rest.
    pub(crate) fn datagram(&mut self, now: Now, from: Sender, bytes: &[u8], actions: &mut Actions) {
        self.counters().bytes_read.add(bytes.len() as u64);
        let Some((request_id, requests)) = parse_datagram(bytes) else { return };
        if self.shared.settings.login() != Login::NotAsked {
            return;
        }
        if self.is_on_its_way(requests) {
            return self.datagram_is_late(now, from, bytes, SliceWait::default());
        }
        self.run_requests(now, from, request_id, requests, actions);
    }

    fn run_requests(
        &mut self,
        now: Now,
        from: Sender,
        request_id: u16,
        requests: &[u8],
        actions: &mut Actions,
    ) {
        let serial = self.once.next_serial();
        // A datagram whose slice begins to move only now does not wait for it.
        let (client, slice) = (Client::Once { serial }, SliceWait::OVER);
        let mut session = Session { client, slice, ..Session::default() };
        let (mut replies, mut ends) = (Vec::new(), Vec::new());
        let Actions { requests: to_peers, list, .. } = actions;
        self.turn_of_nobody(now, requests.len(), &mut replies, to_peers, list, |batch, decoded| {
            batch.run_datagram(&mut session, requests, decoded, &mut ends);
        });
        let mut start = 0;
        for end in ends {
            self.send_datagrams(from, request_id, &replies[start..end], actions);
            start = end;
        }
        if !session.slots.is_empty() {
            let recipient = Recipient::Sender { to: from, request_id };
            self.once.begun(serial, recipient, session.slots);
            self.release_once(serial, actions);
        }
    }

    /// True if a key of these requests is of a slice that moves: then none of them is executed yet.
    fn is_on_its_way(&self, requests: &[u8]) -> bool {
        if self.shared.moves.is_empty() {
            return false;
        }
        let limits =
            Limits { item_bytes_max: self.shared.settings.item_bytes_max, login: Login::NotAsked };
        let moves = |word: &[u8]| {
            let route = Key::new(word)
                .map(|key| (key.hash(), self.shared.store.route(self.here.worker, key.hash())));
            let Some((hash, Route::Moving(id))) = route else { return false };
            self.shared.moves.whereabouts(id, hash) == Whereabouts::OnItsWay
        };
        let binary = requests[0] == BINARY_REQUEST;
        let mut at = 0;
        while let Ok(job) = next_job(binary, &limits, requests, at) {
            at = job.end + job.skip;
            let is_moving = match &job.request {
                Request::Get(get) => words_of(get.keys).any(moves),
                request => match request.key() {
                    Some((key, false)) => moves(key),
                    Some((key, true)) => {
                        let mut bytes = [0; KEY_BYTES_MAX];
                        let length = base64_decode(key, &mut bytes).expect("the parser tried it");
                        moves(&bytes[..length])
                    }
                    None => false,
                },
            };
            if is_moving {
                return true;
            }
            if at >= requests.len() {
                break;
            }
        }
        false
    }

    fn datagram_is_late(&mut self, now: Now, from: Sender, bytes: &[u8], mut wait: SliceWait) {
        if self.late.len() >= LATE_MAX {
            return;
        }
        let at = wait.again(now.instant());
        let serial = self.once.next_serial();
        self.late.insert(serial, Late { from, bytes: bytes.to_vec(), wait });
        self.wakes.set(at, Sleeper::Datagram(serial));
    }

    /// A datagram that waited for a slice is tried again.
    pub(crate) fn try_datagram(&mut self, now: Now, serial: u64, actions: &mut Actions) {
        let Some(Late { from, bytes, wait }) = self.late.remove(&serial) else { return };
        let Some((request_id, requests)) = parse_datagram(&bytes) else { return };
        match self.is_on_its_way(requests) {
            true if !wait.is_over(now.instant()) => self.datagram_is_late(now, from, &bytes, wait),
            _ => self.run_requests(now, from, request_id, requests, actions),
        }
    }

    /// Sends what may leave of a datagram's replies, as one message.
    pub(crate) fn answer_datagram(
        &self,
        to: Sender,
        request_id: u16,
        mut reply: Vec<u8>,
        actions: &mut Actions,
    ) {
        if reply.len() > REPLY_BYTES_MAX {
            reply.clear();
            push_line(&mut reply, TOO_MUCH);
        }
        self.send_datagrams(to, request_id, &reply, actions);
    }

    fn send_datagrams(&self, to: Sender, request_id: u16, reply: &[u8], actions: &mut Actions) {
        for (header, chunk) in datagrams(request_id, reply) {
            let at = actions.bytes.len();
            actions.bytes.extend_from_slice(&header);
            actions.bytes.extend_from_slice(chunk);
            let bytes = at..actions.bytes.len();
            self.counters().bytes_written.add(bytes.len() as u64);
            actions.list.push(Action::Datagram { to, bytes });
        }
    }
}

impl Batch<'_> {
    /// Executes requests that have arrived in one piece, and says where each reply ends. Those beyond a bound are dropped.
    fn run_datagram(
        &mut self,
        session: &mut Session,
        input: &[u8],
        decoded: &mut Vec<u8>,
        ends: &mut Vec<usize>,
    ) {
        // Nothing is kept of a datagram: it is executed now or never.
        self.turn.haste = Haste::Last;
        let limits = self.turn.limits(Login::NotAsked);
        let binary = input[0] == BINARY_REQUEST;
        let requests_max = self.turn.shared.settings.requests_per_event;
        let mut at = 0;
        loop {
            let mut jobs = [const { None }; GROUP];
            for slot in &mut jobs {
                // What is not there to its end is dropped, and what stands behind it.
                let job = next_job(binary, &limits, input, at).ok();
                let Some(job) = job.filter(|job| job.end + job.skip <= input.len()) else { break };
                at = job.end + job.skip;
                *slot = Some(job);
            }
            if jobs[0].is_none() {
                return;
            }
            let stopped = self.run_group(&jobs, decoded, |batch, job, key| {
                if batch.requests >= requests_max || batch.turn.replied_bytes() >= OUTPUT_BYTES_MAX
                {
                    return Some(());
                }
                let before = batch.turn.out.len();
                let closes = batch.execute_from_datagram(session, job, key);
                batch.requests += 1;
                session.order(before, batch.turn.out);
                ends.push(batch.turn.out.len());
                // Nobody is closed, and no server ended, by a sender that anybody can pretend to be.
                closes.then_some(())
            });
            if stopped.is_some() {
                return;
            }
        }
    }

    /// True if the request is to close its connection.
    fn execute_from_datagram(
        &mut self,
        session: &mut Session,
        job: &Job<'_>,
        key: Option<Key<'_>>,
    ) -> bool {
        let before = self.turn.out.len();
        if let (false, Request::Get(get)) = (self.turn.alone, &job.request) {
            if words_of(get.keys).nth(GATHER_KEYS_MAX).is_some() {
                self.turn.line(TOO_MUCH);
                return false;
            }
        }
        let then = match self.elsewhere(session, job, key.as_ref()) {
            Some(then) => then,
            None => self.execute_here(job, key),
        };
        let closes = matches!(then, Then::Close(_));
        match then {
            Then::Resume(_) => {
                self.turn.out.truncate(before);
                self.turn.line(TOO_MUCH);
            }
            // What needs a connection to go on, memcached does not answer here.
            Then::Walk(walk) if walk.is_a_dump() => {}
            Then::Walk(walk) => self.turn.walk_at_once(*walk),
            Then::Watch(watcher) => {
                self.turn.shared.log.unwatch(&watcher);
                self.turn.out.truncate(before);
            }
            _ => {}
        }
        closes
    }
}
