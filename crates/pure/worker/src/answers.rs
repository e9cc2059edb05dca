//! What peers have answered: to whom it goes, and what may leave now.

use std::ops::Range;

use mbal_model::ServerId;
use mbal_model::planted::{Fault, is_planted};

use crate::batch::{Ended, Pause};
use crate::copies::{HotMode, ReplyPrefix};
use crate::links::Asker;
use crate::session::{Client, OUTPUT_BYTES_MAX, Wait};
use crate::slots::{NO_ROUTE_LINE, Slots};
use crate::wakes::Sleeper;
use crate::worker::Worker;
use crate::{Action, Actions, ConnId, Now};

impl Worker {
    /// A reply has come, or will not: it is kept until those before it have left.
    pub(crate) fn fill(&mut self, asker: Asker, reply: Option<&[u8]>, actions: &mut Actions) {
        let (client, place) = match asker {
            Asker::Client { client, place } => (client, place),
            Asker::Home { server, hash, grant } => {
                return self.shadow_answered(server, hash, grant, reply, actions);
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
        let Some(slots) = self.slots_of(client) else { return };
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
            if sent.by_lease && matches!(taken, ReplyPrefix::Announcement(_)) {
                // Its home has answered: the lease is for a copy that is no more.
                self.heed_leases(client, sent.hash, sent.asked, &ReplyPrefix::Without);
            }
            self.heed_leases(client, sent.hash, sent.asked, &taken);
        }
        for hash in gathered {
            // Of several keys it is not said which have copies.
            self.heed_leases(client, hash, self.now.instant(), &ReplyPrefix::Without);
        }
        if !self.replied.contains(&client) {
            self.replied.push(client);
        }
    }

    /// `None` once the client has gone.
    pub(crate) fn slots_of(&mut self, client: Client) -> Option<&mut Slots> {
        match client {
            Client::Conn { conn, .. } => {
                let session = self.sessions.get_mut(conn.0 as usize)?.as_mut()?;
                (session.client == client).then_some(&mut session.slots)
            }
            Client::Once { serial } => self.once.slots_of(serial),
        }
    }

    /// Sends what may leave, once for everybody who got something.
    pub(crate) fn release_replied(&mut self, now: Now, actions: &mut Actions) {
        let mut replied = std::mem::take(&mut self.replied);
        for client in replied.drain(..) {
            match client {
                Client::Conn { conn, .. } => self.release(now, conn, actions),
                Client::Once { serial } => self.release_once(serial, actions),
            }
        }
        self.replied = replied;
    }

    pub(crate) fn release(&mut self, now: Now, conn: ConnId, actions: &mut Actions) {
        // The end of every turn sends what may leave.
        self.turn(now, conn, 0, actions, |_, _| Ended::Hungry);
        let session = self.sessions[conn.0 as usize].as_ref().expect("its turn is over");
        let held = session.slots.held_bytes();
        let goes_on = match session.wait {
            Wait::Peers(Pause::Order) => held < OUTPUT_BYTES_MAX,
            Wait::Peers(Pause::Answers) => session.slots.is_empty(),
            Wait::Peers(Pause::Window) => true,
            _ => false,
        };
        if goes_on {
            self.go_on(now, conn, actions);
        } else {
            self.leave_if_due(conn, actions);
        }
    }

    /// Replies have come over this link, and made room for requests.
    pub(crate) fn credits_came(&mut self, now: Now, server: ServerId, actions: &mut Actions) {
        self.release_replied(now, actions);
        // One that waited goes on, and the next while there is credit left.
        while let Some(conn) = self.links.next_waiting(server) {
            self.go_on(now, conn, actions);
            // A `get` that asks a server twice needs two credits.
            if self.links.waits_again(server, conn) {
                break;
            }
        }
    }

    pub(crate) fn link_broken(&mut self, now: Now, server: ServerId, actions: &mut Actions) {
        self.shared.links_up.went(server);
        let (askers, waiting) = self.links.broken(server);
        let timeout = self.shared.settings.link_timeout;
        for (asker, asked) in askers {
            let deadline = asked + timeout;
            if deadline <= now.instant() || !self.may_be_executed(&asker) {
                self.fill(asker, None, actions);
                continue;
            }
            self.links.lose(asker, deadline);
            self.wakes.set(deadline, Sleeper::Lost);
        }
        self.release_replied(now, actions);
        for conn in waiting {
            self.go_on(now, conn, actions);
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
                self.slots_of(client).is_some_and(|slots| !slots.reads(place))
            }
            Asker::Peer { reads, .. } => !reads,
            // A home waits until its leases are over.
            Asker::Home { .. } | Asker::Here => false,
        }
    }

    /// Deadlines of lost requests have come.
    pub(crate) fn tell_lost(&mut self, now: Now, actions: &mut Actions) {
        while let Some(asker) = self.links.next_lost(now.instant()) {
            self.fill(asker, None, actions);
        }
        self.release_replied(now, actions);
    }
}

/// Where what was appended stands.
pub(crate) fn append(to: &mut Vec<u8>, bytes: &[u8]) -> Range<usize> {
    let start = to.len();
    to.extend_from_slice(bytes);
    start..to.len()
}
