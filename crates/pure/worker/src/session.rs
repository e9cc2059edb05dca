//! One connection, as far as a worker knows it: input that is not yet a whole request.

/// Reply bytes of one connection after which it is not read until they have left. One request may
/// pass it, by its own reply's largest part: an item.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Input kept for reuse after a request that did not arrive whole; more is given back.
const PENDING_BYTES_KEPT: usize = 16 << 10;

use crate::batch::Pause;
use crate::slots::Slots;

#[derive(Default)]
pub(crate) struct Session {
    /// The start of a request whose rest has not arrived, or all input since a stall.
    pub pending: Vec<u8>,
    /// Bytes of `pending` at which it is worth looking again; 0 is at the next line end.
    pub need: usize,
    /// Bytes still to come that belong to a value which was refused, with `refusal`.
    pub skip: usize,
    pub refusal: Vec<u8>,
    /// Waiting for `Drained`: input is kept, nothing is executed.
    pub stalled: bool,
    /// Waiting for peers: likewise.
    pub paused: Option<Pause>,
    /// No further input is read; and whether the server is to end (gracefully or not).
    pub closing: Option<Option<bool>>,
    /// The `Close` was asked for.
    pub closed: bool,
    /// Replies that wait for peers'.
    pub slots: Slots,
    /// The `get` that comes next is the rest of one that was stopped between two [`Gather`]s.
    ///
    /// [`Gather`]: crate::slots::Gather
    pub get_continues: bool,
    /// Turns that the next request has waited while room was made for its value.
    pub turns_for_room: u32,
    /// Tells the session from others of the same connection name.
    pub serial: u64,
}

impl Session {
    /// Counts off what of the next `available` bytes nobody wants.
    pub fn skipped(&mut self, available: usize) -> usize {
        let bytes = self.skip.min(available);
        self.skip -= bytes;
        bytes
    }

    /// Puts the reply that begins at `before` in `out` behind those that wait for peers.
    pub fn order(&mut self, before: usize, out: &mut Vec<u8>) {
        if !self.slots.is_empty() && before < out.len() {
            self.slots.push_local(&out[before..]);
            out.truncate(before);
            self.slots.release(out);
        }
    }

    /// Moves from `bytes` to `pending` what the request that waits there may need, and says
    /// whether it is worth looking at it.
    pub fn complete(&mut self, bytes: &mut &[u8]) -> bool {
        let take = match self.need {
            0 => memchr::memchr(b'\n', bytes).map_or(bytes.len(), |end| end + 1),
            need => bytes.len().min(need - self.pending.len()),
        };
        let (taken, rest) = bytes.split_at(take);
        self.pending.extend_from_slice(taken);
        *bytes = rest;
        match self.need {
            0 => taken.ends_with(b"\n") || !mbal_wire::may_grow(&self.pending),
            need => self.pending.len() == need,
        }
    }

    /// Puts back the buffer that was taken out, without the bytes that were used.
    pub fn keep(&mut self, mut pending: Vec<u8>, used: usize) {
        pending.drain(..used);
        if pending.is_empty() && pending.capacity() > PENDING_BYTES_KEPT {
            pending = Vec::new();
        }
        self.pending = pending;
    }
}
