//! A connection: bytes on their way in both directions, and what the client waits for.

use std::collections::VecDeque;

use mbal_model::WorkerId;
use mbal_worker::{Carried, ConnId};

use super::history::Micros;
use super::replies::Form;

/// Where the server's end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Accepted, or handed over; on its way to a worker.
    Underway,
    At {
        seat: usize,
        conn: ConnId,
    },
    Closed,
}

pub struct Connection {
    pub client: usize,
    /// The server that it is to.
    pub host: usize,
    /// Which of the client's connections it is; a smart client has one to each worker of its server.
    pub slot: usize,
    /// Whose reads never go back in time: its own, or those of all of a smart client's.
    pub session: usize,
    pub end: End,
    /// It has been with a worker, and is on its way to the next.
    pub travels: bool,
    /// Arrived at the server, not yet received.
    pub arrived: Waiting,
    /// The client will send no more.
    pub finished: bool,
    /// ... and the worker has been told.
    pub half_closed: bool,
    /// The client broke it off.
    pub reset: bool,
    /// When its server's end came to where it is.
    pub came: Micros,
    /// Replies that the socket has not taken.
    pub output: Waiting,
    /// Replies that the client has not read.
    pub in_flight: usize,
    /// The socket takes so many bytes.
    pub window: usize,
    pub stalled: bool,
    /// Not read: it waits for peers.
    pub paused: bool,
    /// To be handed over once the output has left.
    pub leaving: Option<(WorkerId, Carried)>,
    /// To be closed once the output has left.
    pub closing: bool,
    /// Nothing overtakes on a connection: when the last bytes arrive, in both directions.
    pub last_up: Micros,
    pub last_down: Micros,
    /// The client's end. Half open: it sends no more, and reads until the server closes.
    pub open: bool,
    pub half_open: bool,
    pub read: Vec<u8>,
    pub asked: VecDeque<InFlight>,
    pub next_place: u32,
}

/// A request that waits for its reply.
pub struct InFlight {
    pub form: Form,
    /// Indices in the history: the first, and how many.
    pub ops: (usize, usize),
    pub at: Micros,
}

impl Connection {
    pub fn new(
        client: usize,
        host: usize,
        slot: usize,
        session: usize,
        window: usize,
    ) -> Connection {
        Connection {
            client,
            host,
            slot,
            session,
            end: End::Underway,
            travels: false,
            arrived: Waiting::default(),
            finished: false,
            half_closed: false,
            reset: false,
            came: 0,
            output: Waiting::default(),
            in_flight: 0,
            window,
            stalled: false,
            paused: false,
            leaving: None,
            closing: false,
            last_up: 0,
            last_down: 0,
            open: true,
            half_open: false,
            read: Vec::new(),
            asked: VecDeque::new(),
            next_place: 0,
        }
    }
}

/// Bytes that wait, in the order in which they came; long values are not shifted while they are taken out.
#[derive(Default)]
pub struct Waiting {
    parts: VecDeque<Vec<u8>>,
    /// Those of the first part before this have gone.
    begin: usize,
    bytes: usize,
}

impl Waiting {
    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub fn push(&mut self, part: Vec<u8>) {
        if !part.is_empty() {
            self.bytes += part.len();
            self.parts.push_back(part);
        }
    }

    /// Takes the first so many out, and appends them to `out`.
    pub fn take(&mut self, count: usize, out: &mut Vec<u8>) {
        assert!(count <= self.bytes);
        self.bytes -= count;
        let mut left = count;
        if out.is_empty()
            && self.begin == 0
            && self.parts.front().is_some_and(|one| one.len() <= left)
        {
            *out = self.parts.pop_front().expect("just looked at");
            left -= out.len();
        }
        while left > 0 {
            let rest = &self.parts[0][self.begin..];
            let taken = left.min(rest.len());
            out.extend_from_slice(&rest[..taken]);
            left -= taken;
            self.begin += taken;
            if taken == rest.len() {
                self.parts.pop_front();
                self.begin = 0;
            }
        }
    }
}
