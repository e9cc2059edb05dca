//! UDP: each datagram is a session of its own, from its first request to its last.

use mbal_model::Key;
use mbal_wire::{BINARY_REQUEST, Login, Request, datagrams, parse_datagram, push_line, words_of};

use crate::batch::{Batch, GROUP, Job, next_job};
use crate::peers::GATHER_KEYS_MAX;
use crate::room::Haste;
use crate::session::{Client, OUTPUT_BYTES_MAX, Session};
use crate::slots::Slots;
use crate::turn::Then;
use crate::worker::Worker;
use crate::{Action, Actions, Now, Sender};

/// Told instead of the reply to a `get` that has too many values for datagrams.
const TOO_MUCH: &[u8] = b"SERVER_ERROR reply too large for UDP";

/// A datagram some of whose requests wait for other servers.
pub(crate) struct Datagram {
    to: Sender,
    request_id: u16,
    pub slots: Slots,
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
        let serial = self.next_serial();
        let mut session = Session { client: Client::Datagram { serial }, ..Session::default() };
        let (mut replies, mut ends) = (Vec::new(), Vec::new());
        let Actions { requests: to_peers, list, .. } = actions;
        self.turn_of_nobody(now, bytes.len(), &mut replies, to_peers, list, |batch, decoded| {
            batch.run_datagram(&mut session, requests, decoded, &mut ends);
        });
        let mut start = 0;
        for end in ends {
            self.send_datagrams(from, request_id, &replies[start..end], actions);
            start = end;
        }
        if !session.slots.is_empty() {
            let datagram = Datagram { to: from, request_id, slots: session.slots };
            self.datagrams.insert(serial, datagram);
            self.release_datagram(serial, actions);
        }
    }

    /// Sends what may leave of a datagram's replies, now that another server has answered: as one message.
    pub(crate) fn release_datagram(&mut self, serial: u64, actions: &mut Actions) {
        let Some(datagram) = self.datagrams.get_mut(&serial) else { return };
        let mut reply = Vec::new();
        datagram.slots.release(&mut reply);
        let Datagram { to, request_id, ref slots } = *datagram;
        if slots.is_empty() {
            self.datagrams.remove(&serial);
        }
        if reply.len() > OUTPUT_BYTES_MAX {
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
                let closes = batch.answer_datagram(session, job, key);
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
    fn answer_datagram(
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
