//! What a server's heartbeat says of a move that it is the source of.

use std::time::Duration;

use crate::message::Refusal;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Asking,
    Moving,
    /// The destination serves all of it: a map may say so.
    Sealed,
    /// This server serves all of it, and the move is over.
    Back(Why),
    /// It is another server's, and the move is over.
    HandedOver,
}

/// Why a cachelet did not go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Cancelled,
    Refused(Refusal),
    /// It could not leave: it is being split, or has hardly come.
    CannotLeave,
    /// The destination has died.
    Lost,
}

/// What came of a move so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// That are gone.
    pub slices: u64,
    /// Slices that were served again, and are sent again.
    pub again: u64,
    pub parts: u64,
    /// Of parts that were taken.
    pub bytes: u64,
    /// How long requests for one slice had to wait.
    pub paused_ns_longest: u64,
    pub paused_ns_sum: u64,
    /// From the first slice's begin to the last one's end.
    pub moved_for: Duration,
    /// It rests between slices, since clients would feel it.
    pub is_slowed: bool,
    /// It was to be cancelled when something had gone.
    pub cancelled_too_late: bool,
    /// The destination wants none of it, though something has gone.
    pub refused: Option<Refusal>,
}
