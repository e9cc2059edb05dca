//! A client's replies, in the order of its requests.

use std::collections::VecDeque;

use crate::buffers::{Output, Spare};
use crate::merge::Merge;
use crate::sampling::SampledRead;

/// So many bytes leave, whatever else was asked in their turn.
const HELD_BYTES_MAX: usize = 16 << 10;

/// A place among a client's replies.
pub(crate) enum Slot {
    Waiting,
    /// Likewise; what comes is told to the sketch.
    Sampled(SampledRead),
    /// The reply is here, and waits for those before it.
    Early(Vec<u8>),
    Merge(Box<Merge>),
    /// All upstreams are asked: so many have not answered. The first error of those that have, and what is said if there is none.
    /// A client that is `silent` hears neither.
    Everywhere {
        missing: usize,
        error: Vec<u8>,
        done: Vec<u8>,
        silent: bool,
    },
    /// The connection ends here.
    End,
}

#[derive(Default)]
pub(crate) struct Replies {
    pub out: Output,
    slots: VecDeque<Slot>,
    /// The number of the first of the slots.
    first: u32,
    /// No reply is kept: the client's connection is gone, or will be.
    deaf: bool,
    /// The numbers behind the last request of each turn that has not been answered.
    turns: VecDeque<u32>,
}

impl Replies {
    /// No reply is on its way.
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn waiting(&self) -> usize {
        self.slots.len()
    }

    /// It has all that was asked for of a `get` that is not done, and has taken it.
    pub fn has_taken_window(&self) -> bool {
        self.out.len() == 0 && matches!(self.slots.front(), Some(Slot::Waiting))
    }

    /// Of replies that the client has not taken, or that wait for others.
    pub fn kept_bytes(&self) -> usize {
        let early = |slot: &Slot| match slot {
            Slot::Early(reply) => reply.len(),
            Slot::Merge(merge) => merge.kept_bytes(),
            Slot::Waiting | Slot::Sampled(_) | Slot::Everywhere { .. } | Slot::End => 0,
        };
        self.out.bytes.len() + self.slots.iter().map(early).sum::<usize>()
    }

    /// Forgets all, and those to come; also that more of the first is to be asked for.
    pub fn go_deaf(&mut self, had_rest: bool, spare: &mut Spare) {
        self.deaf = true;
        if had_rest && matches!(self.slots.front(), Some(Slot::Waiting)) {
            self.pop();
        }
        self.out.free();
        self.out.sent(self.out.len(), spare);
        for slot in &mut self.slots {
            match slot {
                Slot::Early(reply) => spare.give(std::mem::take(reply)),
                Slot::Merge(merge) => merge.forget(),
                Slot::Waiting | Slot::Sampled(_) | Slot::Everywhere { .. } | Slot::End => {}
            }
        }
    }

    /// A place for a reply, behind all others.
    #[inline]
    pub fn push(&mut self, slot: Slot) -> u32 {
        self.slots.push_back(slot);
        self.first.wrapping_add(self.slots.len() as u32 - 1)
    }

    /// A reply that is known at once.
    pub fn say(&mut self, reply: &[u8], spare: &mut Spare) {
        if self.slots.is_empty() {
            self.out.bytes.extend_from_slice(reply);
        } else {
            let mut early = spare.take();
            early.extend_from_slice(reply);
            self.slots.push_back(Slot::Early(early));
        }
    }

    #[inline]
    pub fn slot(&mut self, number: u32) -> &mut Slot {
        &mut self.slots[number.wrapping_sub(self.first) as usize]
    }

    /// What has been asked since `from` was asked together, and is answered in one piece.
    #[inline]
    pub fn close_turn(&mut self, from: u32) {
        let end = self.next_number();
        if end.wrapping_sub(from) > 1 || end != from && !self.turns.is_empty() {
            self.turns.push_back(end);
        }
    }

    /// Of the next request.
    #[inline]
    pub fn next_number(&self) -> u32 {
        self.first.wrapping_add(self.slots.len() as u32)
    }

    /// A part of the reply to the first request, of which more is to come.
    pub fn answer_in_part(&mut self, push: impl FnOnce(&mut Vec<u8>)) {
        if !self.deaf {
            push(&mut self.out.bytes);
        }
    }

    /// The reply to request `number` is what `push` appends.
    #[inline]
    pub fn answer(&mut self, number: u32, spare: &mut Spare, push: impl FnOnce(&mut Vec<u8>)) {
        let at = number.wrapping_sub(self.first) as usize;
        let deaf = self.deaf;
        let push = |out: &mut Vec<u8>| {
            if !deaf {
                push(out);
            }
        };
        if at > 0 {
            let mut early = spare.take();
            push(&mut early);
            self.slots[at] = Slot::Early(early);
            return;
        }
        if self.out.bytes.capacity() == 0 {
            self.out.bytes = spare.take();
        }
        let before = self.out.bytes.len();
        push(&mut self.out.bytes);
        self.leave(before);
        while let Some(Slot::Early(_)) = self.slots.front() {
            let first = self.slots.front_mut().expect("it was looked at");
            let Slot::Early(early) = std::mem::replace(first, Slot::Waiting) else {
                unreachable!("it was looked at")
            };
            let before = self.out.bytes.len();
            self.out.bytes.extend_from_slice(&early);
            spare.give(early);
            self.leave(before);
        }
    }

    /// The first reply is there, behind the output's first `before` bytes. It leaves with the others of its turn.
    #[inline]
    fn leave(&mut self, before: usize) {
        self.pop();
        let Some(end) = self.turns.front() else { return };
        self.out.hold(self.out.bytes.len() - before);
        if *end == self.first {
            self.turns.pop_front();
            self.out.free();
        } else if HELD_BYTES_MAX <= self.out.len() {
            self.out.free();
        }
    }

    /// Nobody hears replies from this number on.
    pub fn truncate(&mut self, number: u32) {
        self.slots.truncate(number.wrapping_sub(self.first) as usize);
    }

    fn pop(&mut self) -> Option<Slot> {
        self.first = self.first.wrapping_add(1);
        self.slots.pop_front()
    }

    /// All replies before the end of the connection are there, if it ends.
    pub fn are_over(&self) -> bool {
        matches!(self.slots.front(), None | Some(Slot::End))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_leave_in_order() {
        let (mut replies, mut spare) = (Replies::default(), Spare::default());
        let numbers: Vec<u32> = (0..3).map(|_| replies.push(Slot::Waiting)).collect();
        replies.say(b"3", &mut spare);
        for number in [2, 0, 1] {
            let text = number.to_string();
            let reply = |out: &mut Vec<u8>| out.extend_from_slice(text.as_bytes());
            replies.answer(numbers[number], &mut spare, reply);
        }
        assert_eq!(replies.out.bytes, b"0123");
        assert!(replies.is_idle());
    }
}
