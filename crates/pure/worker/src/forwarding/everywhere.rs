//! `flush_all` of a cluster: the server that is asked asks all others, and answers when they have.

use mbal_model::ServerId;
use mbal_wire::{Admin, Binary, Command, Frame, HOPS_MAX, PeerRequest, Request};

use crate::commands::admin::flush_all;
use crate::commands::context::Here;
use crate::commands::execute::execute;
use crate::commands::turn::Then;
use crate::event::{Action, Actions};
use crate::forwarding::flush::{Everywhere, Flush};
use crate::forwarding::links::{Asker, Credit, Links};
use crate::forwarding::peers::Relayed;
use crate::ids::Ticket;
use crate::moving::moves::Owning;
use crate::sessions::batch::Batch;
use crate::sessions::job::Job;
use crate::sessions::session::Session;
use crate::shared::Shared;
use crate::time::UNLIMITED;

/// Whoever begins while a `flush_all` is to come has not been asked for it. It is told before this server asks it for anything else.
pub(crate) fn tell_of_flush(
    shared: &Shared,
    here: &Here,
    links: &mut Links,
    server: ServerId,
    actions: &mut Actions,
) {
    let second = here.now.second;
    let Some((at, number)) = shared.store.flush_to_come(second) else { return };
    // A delay ends a second early.
    let exptime = (at - second + 1) as i32;
    let request = Flush { exptime, number, asked: Vec::new() }.request();
    let ticket = links.ask(server, Asker::Here, here.now.instant(), 0);
    let start = actions.requests.len();
    PeerRequest::new(1, here.map_version, request.as_bytes()).encode(&mut actions.requests);
    let request = start..actions.requests.len();
    actions.list.push(Action::Forward { server, ticket, micros_left: UNLIMITED, request });
}

impl Batch<'_> {
    /// Does here what is asked of the whole cluster, and asks its other servers. `None`: it is this server's alone.
    pub fn everywhere(&mut self, session: &mut Session, job: &Job<'_>) -> Option<Then> {
        if !self.turn.on.shared.settings.flush_enabled {
            return None;
        }
        let (exptime, frame) = match &job.request {
            Request::Admin { command: Admin::FlushAll { exptime }, .. } => ((*exptime)?, None),
            Request::Binary(Binary { frame, command: Command::Flush { exptime } }) => {
                (i32::try_from(*exptime).unwrap_or(i32::MAX), Some(*frame))
            }
            _ => return None,
        };
        let asked = self.turn.on.shared.map.others();
        if let Some(server) = self.is_spent(&asked) {
            return Some(self.wait(session, server));
        }
        let before = self.turn.out.len();
        execute(&mut self.turn, &job.request, None);
        let done = self.turn.out.split_off(before);
        let number = self.turn.on.shared.store.flush_number();
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
        if asked.is_empty() && self.turn.on.shared.store.has_heard_of_flush(number) {
            self.turn.reply(false, b"OK");
            return None;
        }
        let mut unasked = Vec::new();
        if !asked.is_empty() && peer.map_version < self.turn.on.here.map_version {
            unasked = self.turn.on.shared.map.others();
            unasked.retain(|server| *server != from && !asked.contains(server));
        }
        if self.is_spent(&unasked).is_some() {
            return Some(Relayed::OnItsWay);
        }
        let before = self.turn.out.len();
        flush_all(&mut self.turn, Some(exptime), Some(number), false);
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
        let failed = servers.len() - linked.len() + usize::from(self.turn.on.here.lapsed);
        let (servers, unanswered) = (servers.len() + 1, linked.len());
        session.slots.sent_by(self.turn.on.here.map_version);
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
