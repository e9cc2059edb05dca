//! One worker as a state machine: events and a time go in, actions come out.
//!
//! Knows no socket, thread or clock: the reactor drives it in a server, the simulator in virtual time.

use std::ops::Range;

/// A connection, named by whoever drives the worker; reused only after `Closed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// Everything that can happen to a worker.
pub enum Event<'a> {
    Opened {
        conn: ConnId,
    },
    /// Bytes arrived, as many as were there.
    Received {
        conn: ConnId,
        bytes: &'a [u8],
    },
    /// All that was sent to a connection that had [`Action::Stall`]ed has left.
    Drained {
        conn: ConnId,
    },
    /// The peer closed, or the connection broke.
    Closed {
        conn: ConnId,
    },
    /// At least once a second, and when the worker asked for background time.
    Tick,
}

/// Everything that a worker can ask for. Bytes to send lie in [`Actions::bytes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Send {
        conn: ConnId,
        bytes: Range<usize>,
    },
    /// Read no more from `conn`; tell `Drained` when all its output has left (at once, if it has).
    Stall {
        conn: ConnId,
    },
    /// Close `conn` when its output has left.
    Close {
        conn: ConnId,
    },
    /// End the process in order (the `shutdown` command).
    Shutdown,
}

/// What came of an event; reused from one to the next, so that nothing is allocated.
#[derive(Default)]
pub struct Actions {
    pub bytes: Vec<u8>,
    pub list: Vec<Action>,
}
