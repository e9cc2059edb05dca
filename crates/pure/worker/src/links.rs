//! Links to other servers, as far as a worker knows them: how much may be on its way, and whom
//! each reply is for.

use std::collections::{BTreeMap, VecDeque};

use mbal_model::ServerId;
use mbal_model::planted::{Fault, is_planted};

use crate::ConnId;
use crate::session::Client;
use crate::slots::Place;

/// Names a request on a link until it is answered: from 1 on, they count up from the moment that the link comes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Whom a reply is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    Client {
        client: Client,
        place: Place,
    },
    /// A server that had sent the request here.
    Peer {
        server: ServerId,
        ticket: Ticket,
    },
}

struct Link {
    credits: u32,
    /// Who waits for a reply, from the oldest request on; `None` once it has come.
    asked: VecDeque<Option<Asker>>,
    /// Requests before the oldest of those.
    before: u64,
    /// Connections that wait for a credit, in the order in which they came.
    waiting: VecDeque<ConnId>,
}

/// A server's request that has been passed on, and is unanswered.
struct Passed {
    from: ServerId,
    /// Of its keys.
    hashes: Vec<u64>,
}

#[derive(Default)]
pub(crate) struct Links {
    links: BTreeMap<ServerId, Link>,
    /// By the server that was asked, and the ticket there.
    passed: BTreeMap<(ServerId, Ticket), Passed>,
}

/// What a link has to offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credit {
    Available,
    /// So many requests are unanswered that no further one may be sent.
    Spent,
    NoLink,
}

impl Links {
    pub fn up(&mut self, server: ServerId, credits: u32) {
        let link = Link { credits, asked: VecDeque::new(), before: 0, waiting: VecDeque::new() };
        assert!(
            self.links.insert(server, link).is_none(),
            "a link breaks before it comes up again"
        );
    }

    pub fn credit(&self, server: ServerId) -> Credit {
        match self.links.get(&server) {
            None => Credit::NoLink,
            Some(link) if link.credits == 0 => Credit::Spent,
            Some(_) => Credit::Available,
        }
    }

    /// True if so many requests may be sent at once; or none at all, for want of a link.
    pub fn has_credits(&self, server: ServerId, requests: usize) -> bool {
        self.links.get(&server).is_none_or(|link| requests <= link.credits as usize)
    }

    /// Spends a credit.
    pub fn ask(&mut self, server: ServerId, asker: Asker) -> Ticket {
        let link = self.links.get_mut(&server).expect("its credit was looked at");
        link.credits -= 1;
        link.asked.push_back(Some(asker));
        Ticket(link.before + link.asked.len() as u64)
    }

    /// The request of this ticket is one of server `from`'s, that was passed on.
    pub fn passes_on(&mut self, to: ServerId, ticket: Ticket, from: ServerId, hashes: Vec<u64>) {
        self.passed.insert((to, ticket), Passed { from, hashes });
    }

    pub fn passes_nothing(&self) -> bool {
        self.passed.is_empty()
    }

    /// True if a request of server `from` for this key was passed on elsewhere than to `to` (`None`: it is served here), and is unanswered: the
    /// way has changed since, and what goes the new one could overtake it.
    pub fn would_overtake(&self, from: ServerId, hash: u64, to: Option<ServerId>) -> bool {
        let mut others = self.passed.iter().filter(|((server, _), _)| Some(*server) != to);
        others.any(|(_, passed)| passed.from == from && passed.hashes.contains(&hash))
    }

    /// `conn` goes on when `server`'s link has a credit, or is no more.
    pub fn wait(&mut self, server: ServerId, conn: ConnId) {
        let link = self.links.get_mut(&server).expect("its credit was looked at");
        if !link.waiting.contains(&conn) {
            link.waiting.push_back(conn);
        }
    }

    /// Takes the credit back: who asked? `None` is a reply to nobody.
    pub fn answered(&mut self, server: ServerId, ticket: Ticket) -> Option<Asker> {
        let link = self.links.get_mut(&server)?;
        let index = usize::try_from(ticket.0.checked_sub(link.before + 1)?).ok()?;
        let asker = link.asked.get_mut(index)?.take()?;
        while let Some(None) = link.asked.front() {
            link.asked.pop_front();
            link.before += 1;
        }
        link.credits += 1;
        self.passed.remove(&(server, ticket));
        Some(asker)
    }

    /// Everybody who waits for an answer, and everybody who waits for a credit.
    pub fn broken(&mut self, server: ServerId) -> (Vec<Asker>, Vec<ConnId>) {
        self.passed.retain(|(to, _), _| *to != server);
        match self.links.remove(&server) {
            Some(_) if is_planted(Fault::LostAreForgotten) => (Vec::new(), Vec::new()),
            Some(link) => (link.asked.into_iter().flatten().collect(), link.waiting.into()),
            None => (Vec::new(), Vec::new()),
        }
    }

    /// The connection that has waited longest, if there is a credit for it.
    pub fn next_waiting(&mut self, server: ServerId) -> Option<ConnId> {
        let link = self.links.get_mut(&server).filter(|link| link.credits > 0)?;
        link.waiting.pop_front()
    }

    pub fn forget(&mut self, conn: ConnId) {
        for link in self.links.values_mut() {
            link.waiting.retain(|waiting| *waiting != conn);
        }
    }
}
