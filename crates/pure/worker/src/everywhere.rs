//! `flush_all` of a cluster: the server that is asked asks all others, and answers when they have.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, ServerId};
use mbal_wire::{Admin, Binary, Command, Frame, HOPS_MAX, PeerRequest, Request, Status};

use crate::asked::Relayed;
use crate::batch::{Batch, Job};
use crate::links::{Asker, Credit, Ticket};
use crate::moves::Owning;
use crate::session::Session;
use crate::shared::Shared;
use crate::turn::Then;
use crate::worker::Worker;
use crate::{Action, Actions, Now, UNLIMITED};

/// What other servers answer to a `flush_all`.
const DONE: &[u8] = b"OK\r\n";

/// One request of all servers of a cluster.
pub(crate) struct Everywhere {
    /// The client's answer, if all have done it: nothing, if it wants none.
    done: Vec<u8>,
    /// The client speaks the binary protocol.
    frame: Option<Frame>,
    /// This one included.
    servers: usize,
    unanswered: usize,
    failed: usize,
}

impl Everywhere {
    pub fn fill(&mut self, reply: &[u8]) {
        self.unanswered -= 1;
        self.failed += usize::from(reply != DONE);
    }

    pub fn is_ready(&self) -> bool {
        self.unanswered == 0
    }

    pub fn push(&self, out: &mut Vec<u8>) {
        if self.failed == 0 || is_planted(Fault::FlushForgetsServers) {
            return out.extend_from_slice(&self.done);
        }
        let (failed, servers) = (self.failed, self.servers);
        let text = format!("flush_all did not reach {failed} of {servers} servers");
        match &self.frame {
            Some(frame) => frame.push(out, Status::TemporaryFailure, text.as_bytes(), 0),
            // `noreply`
            None if self.done.is_empty() => {}
            None => out.extend_from_slice(format!("SERVER_ERROR {text}\r\n").as_bytes()),
        }
    }
}

/// What another server is asked.
pub(crate) struct Flush {
    exptime: i32,
    /// It has this number on all servers.
    number: u32,
    /// All that are asked by who sends this. None: it tells of a flush that is to come.
    asked: Vec<ServerId>,
}

impl Flush {
    pub fn read(request: &[u8]) -> Option<Flush> {
        let words = request.strip_prefix(b"flush_all ")?.strip_suffix(b"\r\n")?;
        let mut words = std::str::from_utf8(words).ok()?.split(' ');
        let (exptime, number) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let asked = words.next().map_or(Some(Vec::new()), |ids| {
            ids.split(',').map(|id| Some(ServerId(id.parse().ok()?))).collect()
        })?;
        Some(Flush { exptime, number, asked })
    }

    fn request(&self) -> String {
        let ids: Vec<String> = self.asked.iter().map(|server| server.0.to_string()).collect();
        let ids = if ids.is_empty() { ids.concat() } else { format!(" {}", ids.join(",")) };
        format!("flush_all {} {}{ids}\r\n", self.exptime, self.number)
    }
}

/// The newest flush that this server knows of.
#[derive(Default)]
pub(crate) struct Newest {
    number: u32,
    since: Instant,
    is_over: bool,
}

impl Shared {
    /// Once a second. A flush that this server has heard of, and was not asked for, was before its process began; or it is about to be
    /// asked. When the link's timeout has passed nobody waits for its answer any more.
    pub(crate) fn look_at_flushes(&self, now: Instant) {
        let number = self.store.flushed();
        let mut newest = self.newest_flush.lock();
        if newest.number != number {
            *newest = Newest { number, since: now, is_over: false };
        }
        // Clocks run apart.
        let waits = self.settings.link_timeout * 5 / 4;
        if !newest.is_over && newest.since + waits <= now {
            newest.is_over = true;
            self.store.flushes_are_over(number);
        }
    }
}

impl Worker {
    /// Whoever begins while a `flush_all` is to come has not been asked for it. It is told before this server asks it for anything else.
    pub(crate) fn tell_of_flush(&mut self, now: Now, server: ServerId, actions: &mut Actions) {
        let second = now.second;
        let Some((at, number)) = self.shared.store.flush_to_come(second) else { return };
        // A delay ends a second early.
        let exptime = (at - second + 1) as i32;
        let request = Flush { exptime, number, asked: Vec::new() }.request();
        let ticket = self.links.ask(server, Asker::Here, now.instant(), 0);
        let start = actions.requests.len();
        PeerRequest::new(1, self.map_version, request.as_bytes()).encode(&mut actions.requests);
        let request = start..actions.requests.len();
        actions.list.push(Action::Forward { server, ticket, micros_left: UNLIMITED, request });
    }
}

impl Batch<'_> {
    /// Does here what is asked of the whole cluster, and asks its other servers. `None`: it is this server's alone.
    pub fn everywhere(&mut self, session: &mut Session, job: &Job<'_>) -> Option<Then> {
        if !self.turn.shared.settings.flush_enabled {
            return None;
        }
        let (exptime, frame) = match &job.request {
            Request::Admin { command: Admin::FlushAll { exptime }, .. } => ((*exptime)?, None),
            Request::Binary(Binary { frame, command: Command::Flush { exptime } }) => {
                (i32::try_from(*exptime).unwrap_or(i32::MAX), Some(*frame))
            }
            _ => return None,
        };
        let asked = self.turn.shared.others();
        if let Some(server) = self.is_spent(&asked) {
            return Some(self.wait(session, server));
        }
        let before = self.turn.out.len();
        self.turn.execute(&job.request, None);
        let done = self.turn.out.split_off(before);
        let number = self.turn.shared.store.flush_number();
        let servers = asked.clone();
        self.ask_all(session, &servers, &Flush { exptime, number, asked }, done, frame);
        Some(Then::Next)
    }

    /// Does here what server `from` asks all others for. By an older map it does not know all of them: whom it does not ask is asked
    /// before it is answered. `None`: there is nobody else.
    pub fn flush_for(
        &mut self,
        from: ServerId,
        ticket: Ticket,
        peer: &PeerRequest<'_>,
        flush: Flush,
    ) -> Option<Relayed> {
        let Flush { exptime, number, mut asked } = flush;
        if asked.is_empty() && self.turn.shared.store.has_heard_of_flush(number) {
            self.turn.reply(false, b"OK");
            return None;
        }
        let mut unasked = Vec::new();
        if !asked.is_empty() && peer.map_version < self.turn.map_version {
            unasked = self.turn.shared.others();
            unasked.retain(|server| *server != from && !asked.contains(server));
        }
        if self.is_spent(&unasked).is_some() {
            return Some(Relayed::OnItsWay);
        }
        let before = self.turn.out.len();
        self.turn.flush_all(Some(exptime), Some(number), false);
        if unasked.is_empty() {
            return None;
        }
        let done = self.turn.out.split_off(before);
        if peer.hops >= HOPS_MAX {
            return Some(Relayed::Refused);
        }
        asked.push(from);
        asked.extend(&unasked);
        let flush = Flush { exptime, number, asked };
        self.relay(from, ticket, peer.hops, |batch, session| {
            batch.ask_all(session, &unasked, &flush, done, None);
            Some(Then::Next)
        })
    }

    /// One that cannot be asked yet.
    fn is_spent(&self, servers: &[ServerId]) -> Option<ServerId> {
        servers.iter().copied().find(|server| self.links.credit(*server) == Credit::Spent)
    }

    /// `done`: what is told when all have done it, as this server has.
    fn ask_all(
        &mut self,
        session: &mut Session,
        servers: &[ServerId],
        flush: &Flush,
        done: Vec<u8>,
        frame: Option<Frame>,
    ) {
        let is_linked = |server: &ServerId| self.links.credit(*server) == Credit::Available;
        let linked: Vec<ServerId> = servers.iter().copied().filter(is_linked).collect();
        // Without a lease this server may have been called dead, and does not know who has its keys.
        let failed = servers.len() - linked.len() + usize::from(self.turn.lapsed);
        let (servers, unanswered) = (servers.len() + 1, linked.len());
        session.slots.sent_by(self.turn.map_version);
        let place =
            session.slots.push_everywhere(Everywhere { done, frame, servers, unanswered, failed });
        let request = flush.request();
        for server in linked {
            let to = Owning { server, gone: None };
            self.forward(to, session.client, place, 0, request.as_bytes());
        }
        self.turn.has_waiting = true;
    }
}
