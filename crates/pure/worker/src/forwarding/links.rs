//! Links to other servers, as far as a worker knows them: how much may be on its way, and whom
//! each reply is for.

use std::collections::{BTreeMap, VecDeque};

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, Prefix, ServerId};
use mbal_replica::Grant;

use crate::forwarding::reply_bytes::{REPLY_BYTES_MIN, ReplyBytes};
use crate::ids::{Client, ConnId, Ticket};
use crate::sessions::slots::Place;

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
        /// It changes nothing, whenever it is executed.
        reads: bool,
    },
    /// This server, as the home of a key, of a shadow.
    Home {
        server: ServerId,
        hash: u64,
        grant: Grant,
    },
    /// This server, as the owner of a cachelet that has begun empty.
    Newborn {
        server: ServerId,
        prefix: Prefix,
        grant: Grant,
    },
    /// This server, whatever the answer.
    Here,
}

struct Link {
    /// So many may be unanswered.
    granted: u32,
    unanswered: u32,
    /// Keys that it was asked for by requests that are unanswered.
    keys: usize,
    /// Who waits for a reply, and since when, from the oldest request on; `None` once it has come.
    asked: VecDeque<Option<InFlight>>,
    /// Requests before the oldest of those.
    before: u64,
    /// Connections that wait for a credit, in the order in which they came.
    waiting: VecDeque<ConnId>,
}

struct InFlight {
    asker: Asker,
    since: Instant,
    /// Keys whose values it may bring.
    keys: usize,
}

/// A server's request that has been passed on, and is unanswered.
struct Passed {
    from: ServerId,
    /// Servers that had passed it on before.
    hops: u8,
    /// Of its keys.
    hashes: Vec<u64>,
}

impl Link {
    fn has_credit(&self) -> bool {
        self.unanswered < self.granted
    }

    /// For the values of how many keys it may be asked: of one in any case, if of none.
    fn room(&self, reply_bytes: usize) -> usize {
        let most = (LINK_BYTES_MAX / reply_bytes).max(1);
        most.saturating_sub(self.keys)
    }
}

/// Values that a link is asked for at a time, by what their replies were of late: what comes behind them, though it be small, waits for so long
/// only. Who may not ask yet waits without a deadline.
const LINK_BYTES_MAX: usize = 8 << 20;

/// And all links together for as long as this until one has come.
const REPLY_BYTES_AT_FIRST: usize = 1 << 20;

/// Short ones count for as long as this. A connection's are longer: a link has many, and whose values become long all at once is one of them.
const LINK_REPLY_BYTES_MIN: usize = 4 << 10;

#[derive(Default)]
pub(crate) struct Links {
    /// Of all links together; `None` before the first.
    reply_bytes: Option<ReplyBytes>,
    links: BTreeMap<ServerId, Link>,
    /// By the server that was asked, and the ticket there.
    passed: BTreeMap<(ServerId, Ticket), Passed>,
    /// Whose link has broken, and whose request may still be executed: until when.
    lost: BTreeMap<(Instant, u64), Asker>,
    lost_ever: u64,
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
        let (asked, waiting) = (VecDeque::new(), VecDeque::new());
        let link = Link { granted: credits, unanswered: 0, keys: 0, asked, before: 0, waiting };
        assert!(
            self.links.insert(server, link).is_none(),
            "a link breaks before it comes up again"
        );
    }

    pub fn credit(&self, server: ServerId) -> Credit {
        match self.links.get(&server) {
            None => Credit::NoLink,
            Some(link) if link.has_credit() => Credit::Available,
            Some(_) => Credit::Spent,
        }
    }

    /// True if so many requests may be sent at once; or none at all, for want of a link. More than may ever be unanswered go
    /// when nothing is: nobody waits for what does not come.
    pub fn has_credits(&self, server: ServerId, requests: usize) -> bool {
        let fits = |link: &Link| link.unanswered as usize + requests <= link.granted as usize;
        self.links.get(&server).is_none_or(|link| link.unanswered == 0 || fits(link))
    }

    /// For the values of how many keys a server may be asked; all, if there is no link.
    pub fn room(&self, server: ServerId) -> usize {
        self.links.get(&server).map_or(usize::MAX, |link| link.room(self.each()))
    }

    fn each(&self) -> usize {
        let reply_bytes = self.reply_bytes.map_or(REPLY_BYTES_AT_FIRST, |seen| seen.0);
        reply_bytes.max(LINK_REPLY_BYTES_MIN)
    }

    /// What a connection expects that has got no reply yet.
    pub fn reply_bytes(&self) -> ReplyBytes {
        self.reply_bytes.unwrap_or(ReplyBytes(REPLY_BYTES_MIN))
    }

    /// Spends a credit, for the values of so many keys.
    pub fn ask(&mut self, server: ServerId, asker: Asker, since: Instant, keys: usize) -> Ticket {
        let link = self.links.get_mut(&server).expect("its credit was looked at");
        link.unanswered += 1;
        link.keys += keys;
        link.asked.push_back(Some(InFlight { asker, since, keys }));
        Ticket(link.before + link.asked.len() as u64)
    }

    /// The request of this ticket is one of server `from`'s, that was passed on; `hops` servers had done so before.
    pub fn passes_on(
        &mut self,
        (to, ticket): (ServerId, Ticket),
        from: ServerId,
        hops: u8,
        hashes: Vec<u64>,
    ) {
        self.passed.insert((to, ticket), Passed { from, hops, hashes });
    }

    pub fn passes_nothing(&self) -> bool {
        self.passed.is_empty()
    }

    /// True if a request of server `from` for this key was passed on elsewhere than to `to` (`None`: it is served here), and is unanswered: the
    /// way has changed since, and what goes the new one could overtake it. What one connection asks of a key takes one way, so it has been passed
    /// on as often. With more `hops` it may be the same request, which has come back.
    pub fn would_overtake(
        &self,
        from: ServerId,
        hops: u8,
        hash: u64,
        to: Option<ServerId>,
    ) -> bool {
        let mut others = self.passed.iter().filter(|((server, _), _)| Some(*server) != to);
        others.any(|(_, passed)| {
            passed.from == from && passed.hops >= hops && passed.hashes.contains(&hash)
        })
    }

    /// `conn` goes on when `server`'s link has a credit, or is no more.
    pub fn wait(&mut self, server: ServerId, conn: ConnId) {
        let link = self.links.get_mut(&server).expect("its credit was looked at");
        if !link.waiting.contains(&conn) {
            link.waiting.push_back(conn);
        }
    }

    /// Takes the credit back: who asked? `None` is a reply to nobody.
    pub fn answered(
        &mut self,
        server: ServerId,
        ticket: Ticket,
        reply_bytes: Option<usize>,
    ) -> Option<Asker> {
        let link = self.links.get_mut(&server)?;
        let index = usize::try_from(ticket.0.checked_sub(link.before + 1)?).ok()?;
        let InFlight { asker, keys, .. } = link.asked.get_mut(index)?.take()?;
        link.keys -= keys;
        if let Some(bytes) = reply_bytes.and_then(|bytes| bytes.checked_div(keys)) {
            self.reply_bytes.get_or_insert(ReplyBytes(bytes)).saw(bytes);
        }
        while let Some(None) = link.asked.front() {
            link.asked.pop_front();
            link.before += 1;
        }
        link.unanswered -= 1;
        self.passed.remove(&(server, ticket));
        Some(asker)
    }

    /// Everybody who waits for an answer, and since when; and everybody who waits for a credit.
    pub fn broken(&mut self, server: ServerId) -> (Vec<(Asker, Instant)>, Vec<ConnId>) {
        self.passed.retain(|(to, _), _| *to != server);
        match self.links.remove(&server) {
            Some(_) if is_planted(Fault::LostAreForgotten) => (Vec::new(), Vec::new()),
            Some(link) => {
                let asked = link.asked.into_iter().flatten();
                (asked.map(|one| (one.asker, one.since)).collect(), link.waiting.into())
            }
            None => (Vec::new(), Vec::new()),
        }
    }

    /// What this one asked for may be executed until then. It hears of its failure after that.
    pub fn lose(&mut self, asker: Asker, deadline: Instant) {
        self.lost_ever += 1;
        self.lost.insert((deadline, self.lost_ever), asker);
    }

    /// One of the lost whose deadline is over.
    pub fn next_lost(&mut self, now: Instant) -> Option<Asker> {
        let (&key, _) =
            self.lost.first_key_value().filter(|((deadline, _), _)| *deadline <= now)?;
        self.lost.remove(&key)
    }

    /// The connection that has waited longest, if there is a credit for it.
    pub fn next_waiting(&mut self, server: ServerId) -> Option<ConnId> {
        let each = self.each();
        let can_ask = |link: &&mut Link| link.has_credit() && link.room(each) > 0;
        self.links.get_mut(&server).filter(can_ask)?.waiting.pop_front()
    }

    /// True if `conn`, which was the next, waits again, since it needs more credits than there are. It stays the next.
    pub fn waits_again(&mut self, server: ServerId, conn: ConnId) -> bool {
        let Some(link) = self.links.get_mut(&server) else { return false };
        let waits = link.waiting.back() == Some(&conn);
        if waits {
            link.waiting.rotate_right(1);
        }
        waits
    }

    pub fn forget(&mut self, conn: ConnId) {
        for link in self.links.values_mut() {
            link.waiting.retain(|waiting| *waiting != conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: ServerId = ServerId(2);

    fn ask(links: &mut Links) -> Ticket {
        let asker = Asker::Peer { server: ServerId(3), ticket: Ticket(1), reads: false };
        links.ask(PEER, asker, Instant::default(), 0)
    }

    #[test]
    fn what_needs_more_credits_than_there_ever_are_goes_when_nothing_is_unanswered() {
        let mut links = Links::default();
        links.up(PEER, 1);
        assert!(links.has_credits(PEER, 2));
        let tickets = [ask(&mut links), ask(&mut links)];
        assert_eq!(links.credit(PEER), Credit::Spent);
        assert!(links.answered(PEER, tickets[0], None).is_some());
        assert!(!links.has_credits(PEER, 2) && links.credit(PEER) == Credit::Spent);
        assert!(links.answered(PEER, tickets[1], None).is_some());
        assert!(links.has_credits(PEER, 2) && links.credit(PEER) == Credit::Available);
    }

    #[test]
    fn who_waits_for_two_credits_is_tried_once_for_each_that_comes_and_stays_the_next() {
        let (mut links, patient, other) = (Links::default(), ConnId(1), ConnId(2));
        links.up(PEER, 2);
        let tickets = [ask(&mut links), ask(&mut links)];
        links.wait(PEER, patient);
        links.wait(PEER, other);
        assert!(links.answered(PEER, tickets[0], None).is_some());
        assert_eq!(links.next_waiting(PEER), Some(patient));
        links.wait(PEER, patient);
        assert!(links.waits_again(PEER, patient));
        assert_eq!(links.next_waiting(PEER), Some(patient), "it has not lost its place");
        assert!(!links.waits_again(PEER, patient));
    }
}
