//! A worker's links to other servers: actions to frames.
//!
//! What a wake-up sends over a link leaves in one send at its end, or later with more ([`mbal_link::Gathering`]).

use mbal_link::{Frame, Kind, push_frame, push_timed};
use mbal_model::ServerId;
use mbal_worker::{Event, Ticket};

use super::link::{End, Link};
use crate::Mailbox;
use crate::letters::LinkNote;

/// Tokens from here up are links.
pub(super) const LINKS: u64 = 1 << 34;
/// A link by which nothing was asked for so long, not even whether this server lives, has broken.
pub(super) const UNUSED_NS_MAX: u64 = 30_000_000_000;

pub(super) struct Links {
    linker: Mailbox<LinkNote>,
    pub(super) timeout_ns: u64,
    pub(super) payload_bytes_max: usize,
    /// Named by their place.
    pub(super) all: Vec<Option<Link>>,
    /// Those with something to send.
    pub(super) unsent: Vec<usize>,
    /// Those of them that wait for more; empty between two wake-ups.
    pub(super) gathering: Vec<usize>,
    /// What the worker has not been told yet: dialed ones that broke, and who asked over those that have gone.
    pub(super) news: Vec<Event<'static>>,
    pub(super) last_serial: u32,
    /// Of this wake-up.
    pub(super) now: u64,
}

impl Links {
    pub(super) fn new(
        linker: Mailbox<LinkNote>,
        timeout_ns: u64,
        payload_bytes_max: usize,
    ) -> Links {
        Links {
            linker,
            timeout_ns,
            payload_bytes_max,
            all: Vec::new(),
            unsent: Vec::new(),
            gathering: Vec::new(),
            news: Vec::new(),
            last_serial: 0,
            now: 0,
        }
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        let deadline = |link: &Link| match &link.end {
            End::Dialed { waiting, .. } => {
                let receives = !link.input.is_empty();
                let moments = [waiting.next(receives), link.gathers_until(self.now)];
                moments.into_iter().flatten().min()
            }
            End::Accepted { .. } => link.can_go_on().then_some(0),
        };
        self.all.iter().flatten().filter_map(deadline).min()
    }

    /// It is given up when the link's timeout is over, or what is left to it where it came from.
    pub(super) fn forward(
        &mut self,
        to: ServerId,
        ticket: Ticket,
        micros_left: u64,
        request: &[u8],
    ) {
        let now = self.now;
        let given_up = now + self.timeout_ns.min(micros_left.saturating_mul(1_000));
        for (place, link) in self.all.iter_mut().enumerate() {
            let Some(Link { end, sending, .. }) = link else { continue };
            let End::Dialed { server, waiting, gathering, clock } = end else { continue };
            if *server == to {
                waiting.sent(ticket.0, now);
                gathering.gathers(now);
                let frame =
                    Frame { kind: Kind::Request, ticket: ticket.0 as u32, payload: request };
                let deadline = clock.map(|clock| clock.at_least(given_up));
                push_by(deadline, sending, &frame, place, &mut self.unsent);
                return;
            }
        }
        // It has just broken, which the worker will hear.
    }

    pub(super) fn answer(&mut self, ticket: Ticket, reply: &[u8]) {
        let of = (ticket.0 >> 32) as u32;
        for (place, link) in self.all.iter_mut().enumerate() {
            let Some(Link { end: End::Accepted { serial, .. }, sending, .. }) = link else {
                continue;
            };
            if *serial == of {
                let frame = Frame { kind: Kind::Reply, ticket: ticket.0 as u32, payload: reply };
                push(sending, &frame, place, &mut self.unsent);
                return;
            }
        }
        // Who asked has gone.
    }

    /// Who dials again has given the older link up. What still lies in it is not executed any more: a write could come after
    /// newer ones.
    pub(super) fn drop_accepted(&mut self, from: ServerId, of: u16) {
        let is_older = |link: &mut Link| matches!(link.end, End::Accepted { server, worker, .. } if (server, worker) == (from, of));
        let older = self.all.iter_mut().filter_map(|link| link.take_if(is_older));
        self.news.extend(older.filter_map(|link| link.asker_gone()));
    }

    pub(super) fn ping(&mut self, place: usize) {
        let link = self.all[place].as_mut().expect("who is asked is there");
        let frame = Frame { kind: Kind::Ping, ticket: 0, payload: b"" };
        push(&mut link.sending, &frame, place, &mut self.unsent);
    }

    /// Takes a link away that is no good any more.
    pub(super) fn end(&mut self, worker: usize, link: Link, why: String) {
        match link.end {
            End::Dialed { server, .. } => {
                self.news.push(Event::LinkBroken { server });
                self.linker.post(LinkNote::Lost { worker, server, why });
            }
            End::Accepted { .. } => self.news.extend(link.asker_gone()),
        }
    }
}

fn push(sending: &mut Vec<u8>, frame: &Frame<'_>, place: usize, unsent: &mut Vec<usize>) {
    push_by(None, sending, frame, place, unsent);
}

fn push_by(
    deadline: Option<u64>,
    sending: &mut Vec<u8>,
    frame: &Frame<'_>,
    place: usize,
    unsent: &mut Vec<usize>,
) {
    if sending.is_empty() {
        unsent.push(place);
    }
    match deadline {
        Some(deadline) => push_timed(sending, deadline, frame),
        None => push_frame(sending, frame),
    }
}
