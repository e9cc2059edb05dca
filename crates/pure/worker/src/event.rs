//! What can happen to a worker, and what it can ask for.

use std::ops::Range;
use std::sync::Arc;

use mbal_model::{Cluster, MoveId, MoveLink, Prefix, ServerId, WorkerId};

use crate::ids::{ConnId, OrderId, Report, Sender, Ticket, Ticketed};
use crate::observing::conns::ConnInfo;
use crate::sessions::session::Carried;

/// Everything that can happen to a worker.
pub enum Event<'a> {
    Opened {
        conn: ConnId,
        /// It came by this worker's own port: such a client chose the worker, and stays with it.
        own_port: bool,
    },
    /// Another worker handed this connection over, in the state that its session was in.
    Adopted { conn: ConnId, session: Carried },
    /// Who it is, and where it came in. Without this, nobody but its worker knows of it.
    Introduced { conn: ConnId, info: Arc<ConnInfo> },
    /// The client at this descriptor broke TLS, whether it was a connection yet or not.
    TlsBroke { fd: u32, why: String },
    /// One of this worker's connections watches, and has something to send ([`Action::Nudge`]).
    Nudged,
    /// The answer to [`Action::RefreshCerts`], or what is wrong with them: then nothing changed.
    CertsRefreshed { conn: ConnId, refreshed: Result<(), String> },
    /// Bytes arrived, as many as were there.
    Received { conn: ConnId, bytes: &'a [u8] },
    /// A datagram arrived.
    Datagram { from: Sender, bytes: &'a [u8] },
    /// All that was sent to a connection that had [`Action::Stall`]ed has left.
    Drained { conn: ConnId },
    /// The client sends no more, and may still read: it closes when other servers have answered what it asked.
    HalfClosed { conn: ConnId },
    /// The peer closed, or the connection broke; also the answer to [`Action::Close`].
    Closed { conn: ConnId },
    /// The balancer's order: lend a cachelet to another worker (or send it home), if it is still this
    /// worker's, and has been since the store's version `seen`.
    Lend { order: OrderId, cachelet: Prefix, to: WorkerId, seen: u64 },
    /// The balancer's order: hand a connection over, as soon as it is between two requests.
    HandOver { order: OrderId, conn: ConnId, to: WorkerId },
    /// The balancer's order: hand over connections that make up this part of the work of all that can
    /// be handed over; a single one may be up to `share_max`.
    Lighten { order: OrderId, to: WorkerId, share: f64, share_max: f64 },
    /// Everything that had arrived is done: it has kept the worker's thread busy for so long, from
    /// waking to now. It had arrived within `before_ns` before that, in which others were served; 0 if the thread slept.
    Rests { busy_ns: u64, before_ns: u64 },
    /// Since this was said last, the thread has run for `ran_ns` in all. While its loop took it for asleep it wanted its core for `busy_ns`;
    /// for `delay_ns` of this it was ready to run, and did not.
    Unseen { busy_ns: u64, delay_ns: u64, ran_ns: u64 },
    /// Which server this is, who the others are, and who owns what. Until then a server is alone.
    Mapped { here: ServerId, cluster: Arc<Cluster> },
    /// A link to a peer came up: so many requests may be on it unanswered.
    LinkUp { server: ServerId, credits: u32 },
    /// It broke. What was on it is not repeated, and its tickets will not be answered; it may still be executed, until its deadlines.
    LinkBroken { server: ServerId },
    /// The answers to [`Action::Forward`]s that arrived together.
    Answered { server: ServerId, replies: &'a [Ticketed<'a>] },
    /// The answer did not come in time; what still comes of it is nobody's.
    Unanswered { server: ServerId, ticket: Ticket },
    /// A peer forwards requests ([`mbal_wire::PeerRequest`]), which arrived together. Each is answered by an
    /// [`Action::Answer`], in any order.
    Forwarded { server: ServerId, requests: &'a [Ticketed<'a>] },
    /// The link has gone over which a peer asked what has these tickets: nobody waits for the answers.
    AskerGone { server: ServerId, tickets: Range<Ticket> },
    /// A move that this worker carries has heard something.
    Carry,
    /// The moment of [`crate::Worker::next_wake`] has come.
    Woken,
    /// About a second has passed since the last one; more if the worker was busy. Idle connections are
    /// closed, cachelets go where the map says, and a little is done in the background.
    Tick,
    /// This wake-up is timed: what is received from now on, until `Timed`.
    Timing,
    /// All that was received since `Timing` has been answered, and the answers handed to the kernel,
    /// so long after it. The wake-up stands for so many, itself included.
    Timed { elapsed_ns: u64, stands_for: u32 },
}

/// Everything that a worker can ask for. Bytes to send lie in [`Actions::bytes`].
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Send {
        conn: ConnId,
        bytes: Range<usize>,
    },
    /// Send a datagram to the sender of the one that it answers; it may get lost.
    Datagram {
        to: Sender,
        bytes: Range<usize>,
    },
    /// Read no more from `conn`; tell `Drained` when all its output has left (at once, if it has).
    Stall {
        conn: ConnId,
    },
    /// Read no more from `conn` until [`Action::Resume`]: it waits for peers or for room, not for its output.
    Pause {
        conn: ConnId,
    },
    Resume {
        conn: ConnId,
    },
    /// Take `conn`, whose last reply is sent, to another worker, and tell that `Adopted`. Here its
    /// name is free from now on; bytes that have arrived meanwhile are the other worker's.
    HandOver {
        conn: ConnId,
        to: WorkerId,
        session: Carried,
    },
    /// What came of one of the balancer's orders.
    Report(Report),
    /// Send a request ([`mbal_wire::PeerRequest`]) to a peer whose link is up. It lies in [`Actions::requests`].
    Forward {
        server: ServerId,
        ticket: Ticket,
        /// What is left to it, if it is passed on for another server ([`Ticketed::micros_left`]).
        micros_left: u64,
        request: Range<usize>,
    },
    /// Answer a peer's request.
    Answer {
        server: ServerId,
        ticket: Ticket,
        reply: Range<usize>,
    },
    /// Say this to the other side of a move, over that link, unless it has broken.
    TellMove {
        link: MoveLink,
        id: MoveId,
        kind: u8,
        payload: Vec<u8>,
    },
    /// The other side of a move has said what cannot be.
    BreakMoveLink {
        link: MoveLink,
    },
    /// Close `conn` when its output has left. What still arrives from it is ignored.
    Close {
        conn: ConnId,
    },
    /// Tell that worker of this server that it is [`Event::Nudged`].
    Nudge {
        worker: WorkerId,
    },
    /// Lines for standard error, each with its end (`-vv`).
    Say {
        lines: Vec<u8>,
    },
    /// Read the certificates again, for connections to come; [`Event::CertsRefreshed`] says what came of it.
    RefreshCerts {
        conn: ConnId,
    },
    /// End the process (the `shutdown` command): when connections have ended, if `graceful`.
    Shutdown {
        graceful: bool,
    },
}

/// What came of an event; the driver clears and reuses it, so that nothing is allocated.
#[derive(Default)]
pub struct Actions {
    pub bytes: Vec<u8>,
    /// Requests to peers.
    pub requests: Vec<u8>,
    pub list: Vec<Action>,
}

impl Actions {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.requests.clear();
        self.list.clear();
    }
}
