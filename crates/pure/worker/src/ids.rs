//! Names of what a worker has to do with, and what goes over a link by them.

use std::net::SocketAddr;

use mbal_model::{Outcome, WorkerId};

use crate::time::UNLIMITED;

/// A connection, named by whoever drives the worker: a small number (it indexes a table), used
/// again only after [`crate::Event::Closed`] or [`crate::Action::HandOver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// Whose session it is, as a worker names those that ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// `serial` tells a connection from an earlier one of the same name.
    Conn { conn: ConnId, serial: u64 },
    /// It is answered once: the sender of a datagram, or a server.
    Once { serial: u64 },
}

impl Default for Client {
    fn default() -> Client {
        Client::Once { serial: 0 }
    }
}

/// Who sent a datagram, by which of the driver's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    pub socket: u16,
    pub address: SocketAddr,
}

/// Names a request on a link until it is answered: from 1 on, they count up from the moment that the link comes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A request on a link, or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticketed<'a> {
    pub ticket: Ticket,
    /// Of a request: for so many microseconds from now on it may be executed, and not later. Then its client has been told that it failed.
    /// [`UNLIMITED`] if its sender has not said.
    pub micros_left: u64,
    pub bytes: &'a [u8],
}

impl<'a> Ticketed<'a> {
    pub fn new(ticket: Ticket, bytes: &'a [u8]) -> Ticketed<'a> {
        Ticketed { ticket, micros_left: UNLIMITED, bytes }
    }
}

/// Names an order until it is reported; 0 is one that nobody waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub order: OrderId,
    /// The worker that got the order.
    pub worker: WorkerId,
    pub outcome: Outcome,
}
