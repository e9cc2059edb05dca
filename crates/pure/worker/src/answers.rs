//! What peers have answered: to whom it goes, and what may leave now.

use std::ops::Range;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, ServerId};
use mbal_replica::Held;

use crate::copies::{HotMode, ReplyPrefix, Sends, heed_leases};
use crate::event::{Action, Actions};
use crate::forwarding::links::Asker;
use crate::forwarding::once::{AnsweredOnce, Recipient};
use crate::forwarding::unreachable::NO_ROUTE_LINE;
use crate::ids::{Client, ConnId};
use crate::sessions::datagram::answer_datagram;
use crate::sessions::run::Ended;
use crate::sessions::session::{OUTPUT_BYTES_MAX, Pause, Wait};
use crate::sessions::slots::Slots;
use crate::sessions::table::Sessions;
use crate::sessions::wakes::Sleeper;
use crate::worker::Worker;

impl Worker {
    /// A reply has come, or will not: it is kept until those before it have left.
    pub(crate) fn fill(&mut self, asker: Asker, reply: Option<&[u8]>, actions: &mut Actions) {
        let (client, place) = match asker {
            Asker::Client { client, place } => (client, place),
            Asker::Home { server, hash, grant } => {
                return self.sends(actions).shadow_answered(server, hash, grant, reply);
            }
            Asker::Newborn { server, prefix, grant } => {
                let (newborns, now) = (&self.shared.copies.newborns, self.here.now.instant());
                let held = reply.and_then(Held::decode);
                return newborns.heard(now, server, (prefix, grant), held.as_ref());
            }
            Asker::Here => return,
            Asker::Peer { server, ticket, .. } => {
                // Whoever it is passed on for has not asked for that.
                let reply = reply.map(|reply| ReplyPrefix::from(reply).1);
                let reply = append(&mut actions.bytes, reply.unwrap_or(NO_ROUTE_LINE));
                return actions.list.push(Action::Answer { server, ticket, reply });
            }
        };
        let taken = reply.map(ReplyPrefix::from);
        let leases_by_client = self.shared.copies.mode() == HotMode::Async;
        let Some(slots) = slots_of(&mut self.sessions, &mut self.once, client) else { return };
        let sent = slots.sent_of(place);
        let gathered = if leases_by_client { slots.gathered_by(place) } else { Vec::new() };
        let reply = taken.as_ref().map(|(_, reply)| *reply);
        let missed = match reply {
            Some(reply) => slots.fill(place, reply),
            None => slots.fail(place),
        };
        if !is_planted(Fault::MissNotCounted) {
            self.counters().get_unreachable.add(missed);
        }
        if let Some(sent) = sent {
            // A copy that cannot be reached is no better than none.
            let taken = taken.map_or(ReplyPrefix::Without, |(taken, _)| taken);
            self.heed_leases(client, sent.hash, (sent.asked, sent.by_lease), &taken);
        }
        for hash in gathered {
            // Of several keys it is not said which have copies.
            let asked = (self.here.now.instant(), false);
            self.heed_leases(client, hash, asked, &ReplyPrefix::Without);
        }
        if !self.replied.contains(&client) {
            self.replied.push(client);
        }
    }

    /// Of a client, or of all of this worker's, as the mode has it.
    fn heed_leases(
        &mut self,
        client: Client,
        hash: u64,
        asked: (Instant, bool),
        taken: &ReplyPrefix,
    ) {
        let mode = self.shared.copies.mode();
        let leases = match mode {
            HotMode::Off => None,
            HotMode::Atomic => Some(&mut self.leases),
            HotMode::Async => self.sessions.of_client(client).map(|session| &mut session.leases),
        };
        if let Some(leases) = leases {
            heed_leases(leases, mode, &self.here, hash, asked, taken);
        }
    }

    /// What says to shadows what there is to say.
    pub(crate) fn sends<'w>(&'w mut self, actions: &'w mut Actions) -> Sends<'w> {
        let Actions { requests, list, .. } = actions;
        let (shared, links, here) = (&*self.shared, &mut self.links, self.here);
        Sends { shared, links, requests, actions: list, here }
    }

    /// Sends what may leave of an answer, now that another server has answered.
    pub(crate) fn release_once(&mut self, serial: u64, actions: &mut Actions) {
        let Some((recipient, reply, is_over)) = self.once.release(serial) else { return };
        match recipient {
            Recipient::Sender { to, request_id } => {
                answer_datagram(self.counters(), to, request_id, reply, actions);
            }
            // There is one request, so it is all of the answer.
            Recipient::Peer { server, ticket } if is_over => {
                let reply = append(&mut actions.bytes, &reply);
                actions.list.push(Action::Answer { server, ticket, reply });
            }
            Recipient::Peer { .. } => {}
        }
    }

    /// Sends what may leave, once for everybody who got something.
    pub(crate) fn release_replied(&mut self, actions: &mut Actions) {
        let mut replied = std::mem::take(&mut self.replied);
        for client in replied.drain(..) {
            match client {
                Client::Conn { conn, .. } => self.release(conn, actions),
                Client::Once { serial } => self.release_once(serial, actions),
            }
        }
        self.replied = replied;
    }

    pub(crate) fn release(&mut self, conn: ConnId, actions: &mut Actions) {
        // The end of every turn sends what may leave.
        self.turn(conn, 0, actions, |_, _| Ended::Hungry);
        let session = self.sessions.of(conn);
        let held = session.slots.held_bytes();
        let goes_on = match session.wait {
            Wait::Peers(Pause::Order) => held < OUTPUT_BYTES_MAX,
            Wait::Peers(Pause::Answers) => session.slots.is_empty(),
            Wait::Peers(Pause::Window) => true,
            _ => false,
        };
        if goes_on {
            self.go_on(conn, actions);
        } else {
            self.leave_if_due(conn, actions);
        }
    }

    /// Replies have come over this link, and made room for requests.
    pub(crate) fn credits_came(&mut self, server: ServerId, actions: &mut Actions) {
        self.release_replied(actions);
        // One that waited goes on, and the next while there is credit left.
        while let Some(conn) = self.links.next_waiting(server) {
            self.go_on(conn, actions);
            // A `get` that asks a server twice needs two credits.
            if self.links.waits_again(server, conn) {
                break;
            }
        }
    }

    pub(crate) fn link_broken(&mut self, server: ServerId, actions: &mut Actions) {
        self.shared.links_up.went(server);
        let (askers, waiting) = self.links.broken(server);
        let timeout = self.shared.settings.link_timeout;
        for (asker, asked) in askers {
            let deadline = asked + timeout;
            if deadline <= self.here.now.instant() || !self.may_be_executed(&asker) {
                self.fill(asker, None, actions);
                continue;
            }
            self.links.lose(asker, deadline);
            self.wakes.set(deadline, Sleeper::Lost);
        }
        self.release_replied(actions);
        for conn in waiting {
            self.go_on(conn, actions);
        }
    }

    /// True if a lost request may still be executed and would change something. Its bytes may lie in the other side's receive buffer: nobody is
    /// told that it failed before that server would refuse it.
    fn may_be_executed(&mut self, asker: &Asker) -> bool {
        if is_planted(Fault::LostAreToldAtOnce) {
            return false;
        }
        match *asker {
            Asker::Client { client, place } => {
                let slots = slots_of(&mut self.sessions, &mut self.once, client);
                slots.is_some_and(|slots| !slots.reads(place))
            }
            Asker::Peer { reads, .. } => !reads,
            // A home waits until its leases are over.
            Asker::Home { .. } | Asker::Newborn { .. } | Asker::Here => false,
        }
    }

    /// Deadlines of lost requests have come.
    pub(crate) fn tell_lost(&mut self, actions: &mut Actions) {
        while let Some(asker) = self.links.next_lost(self.here.now.instant()) {
            self.fill(asker, None, actions);
        }
        self.release_replied(actions);
    }
}

fn slots_of<'s>(
    sessions: &'s mut Sessions,
    once: &'s mut AnsweredOnce,
    client: Client,
) -> Option<&'s mut Slots> {
    match client {
        Client::Conn { .. } => sessions.slots_of(client),
        Client::Once { serial } => once.slots_of(serial),
    }
}

/// Where what was appended stands.
fn append(to: &mut Vec<u8>, bytes: &[u8]) -> Range<usize> {
    let start = to.len();
    to.extend_from_slice(bytes);
    start..to.len()
}
