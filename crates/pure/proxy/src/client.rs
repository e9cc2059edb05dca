//! A client's session: what of its input is no whole request yet, and its replies in order.

use std::collections::VecDeque;

use crate::Nanos;
use crate::buffers::{Output, Spare};
use crate::merge::Merge;

/// So many bytes leave, whatever else was asked in their turn.
const HELD_BYTES_MAX: usize = 16 << 10;
/// How large replies to a client are is not known before its first one.
pub(crate) const REQUESTS_BEFORE_FIRST: usize = 8;
/// A `get` asks for so many keys at a time at most.
const WINDOW_KEYS_MAX: usize = 256;
/// After so many that were all missed, for so many times as many.
const WINDOW_GROWTH: usize = 4;

/// A place among a client's replies.
pub(crate) enum Slot {
    Waiting,
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

/// Keys of a `get` that are asked for when the values before them have left.
pub(crate) struct Rest {
    pub keys: Vec<u8>,
    /// Those before have been asked for.
    pub from: usize,
    pub cas: bool,
    pub touch: Option<i32>,
    pub number: u32,
}

#[derive(Default)]
pub(crate) struct Client {
    /// Of a request that has not come in whole.
    pub input: Vec<u8>,
    /// It is not looked at before it has so many bytes.
    pub need: usize,
    /// Bytes of a value that nobody wants.
    pub skip: usize,
    /// The place before the refusal of that value, which is told when all of it has come.
    pub refused: Option<u32>,
    pub out: Output,
    slots: VecDeque<Slot>,
    /// Its largest reply of late: it fades by an eighth with each one that is smaller.
    reply_bytes: Option<usize>,
    /// Its longest value in a multi-get of late, with its line: it fades likewise. None of it has come, while it is 0.
    value_bytes: usize,
    /// Then, how many keys one asks for at a time.
    window: usize,
    /// What its `get`, the only request that is not answered, is to ask for yet.
    pub rest: Option<Box<Rest>>,
    /// What it asks next waits until it has all replies.
    pub waits_for_all: bool,
    /// It is one of few that may ask for several values before the first has come.
    pub opens: bool,
    /// The number of the first of the slots.
    first: u32,
    /// It is not read: it has asked enough.
    pub paused: bool,
    /// It sends no more, and not all that it has sent has been looked at.
    pub half_closed: bool,
    /// Its requests are over; it is closed when all replies have left.
    pub ending: bool,
    /// Its connection is gone. It is kept for the replies that are on their way.
    pub gone: bool,
    /// No reply is kept for it: its connection is gone, or will be.
    deaf: bool,
    /// It speaks binary; `None` before its first byte.
    pub binary: Option<bool>,
    pub is_open: bool,
    /// Another proxy.
    pub is_peer: bool,
    /// The numbers behind the last request of each turn that has not been answered.
    turns: VecDeque<u32>,
    /// Replies wait for others of their turn until then.
    pub held_until: Option<Nanos>,
    /// It is in the list of those whose replies do.
    pub is_listed: bool,
    /// It is one of those that wait for replies.
    pub is_waiting: bool,
    /// It is in the list of those that may go on.
    pub may_go_on: bool,
    /// Its `flush_all` is not done everywhere: what it asks behind that waits.
    pub flushing: bool,
    /// What was asked before its `flush_all` has been answered.
    pub is_fenced: bool,
}

impl Client {
    /// No reply is on its way.
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn waiting(&self) -> usize {
        self.slots.len()
    }

    /// What it has not taken, and what is on its way if replies are as large as the largest of late.
    #[inline]
    pub fn expected_bytes(&self) -> usize {
        self.out.len() + self.slots.len() * self.reply_bytes.unwrap_or(0)
    }

    /// Whether it has asked for as much as may be on its way.
    #[inline]
    pub fn has_asked_enough(&self, requests_max: usize, bytes_max: usize) -> bool {
        requests_max <= self.slots.len() || bytes_max <= self.expected_bytes()
    }

    /// It has got a reply: how large they are is known.
    #[inline]
    pub fn is_known(&self) -> bool {
        self.reply_bytes.is_some()
    }

    /// For how many keys a `get` may ask at a time; `None` if no value has come, and none was missed.
    #[inline]
    pub fn window(&self, bytes_max: usize) -> Option<usize> {
        match self.value_bytes {
            0 if self.window == 0 => None,
            0 => Some(self.window),
            bytes => Some((bytes_max / bytes).clamp(1, WINDOW_KEYS_MAX)),
        }
    }

    /// A `get` has found values, the longest of so many bytes, or none.
    #[inline]
    pub fn found(&mut self, keys: usize, longest: usize) {
        if longest == 0 && self.value_bytes == 0 {
            self.window = (keys * WINDOW_GROWTH).min(WINDOW_KEYS_MAX).max(self.window);
        } else {
            self.value_bytes = longest.max(self.value_bytes - self.value_bytes / 8).max(1);
        }
    }

    /// It has all that was asked for of a `get` that is not done, and has taken it.
    pub fn has_taken_window(&self) -> bool {
        self.out.len() == 0 && matches!(self.slots.front(), Some(Slot::Waiting))
    }

    /// Of replies that it has not taken, or that wait for others.
    pub fn kept_bytes(&self) -> usize {
        let early = |slot: &Slot| match slot {
            Slot::Early(reply) => reply.len(),
            Slot::Merge(merge) => merge.kept_bytes(),
            Slot::Waiting | Slot::Everywhere { .. } | Slot::End => 0,
        };
        self.out.bytes.len() + self.slots.iter().map(early).sum::<usize>()
    }

    /// Forgets its replies, and those to come.
    pub fn go_deaf(&mut self, spare: &mut Spare) {
        self.deaf = true;
        if self.rest.take().is_some() && matches!(self.slots.front(), Some(Slot::Waiting)) {
            self.pop();
        }
        self.out.free();
        self.out.sent(self.out.len(), spare);
        for slot in &mut self.slots {
            match slot {
                Slot::Early(reply) => spare.give(std::mem::take(reply)),
                Slot::Merge(merge) => merge.forget(),
                Slot::Waiting | Slot::Everywhere { .. } | Slot::End => {}
            }
        }
    }

    /// An upstream's reply has so many bytes. Errors of the proxy's own say nothing of those to come.
    #[inline]
    pub fn expect(&mut self, bytes: usize) {
        let before = self.reply_bytes.unwrap_or(0);
        self.reply_bytes = Some(bytes.max(before - before / 8));
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

    /// One of its multi-gets that is not answered.
    pub fn merge(&self, number: u32) -> &Merge {
        match &self.slots[number.wrapping_sub(self.first) as usize] {
            Slot::Merge(merge) => merge,
            _ => unreachable!("its parts are its own"),
        }
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

    /// The rest of a refused value will not come: nobody hears the refusal.
    pub fn drop_refusal(&mut self) {
        if let Some(number) = self.refused.take() {
            self.slots.truncate(number.wrapping_sub(self.first) as usize);
        }
    }

    fn pop(&mut self) -> Option<Slot> {
        self.first = self.first.wrapping_add(1);
        self.slots.pop_front()
    }

    /// All replies before the end of the connection are there.
    pub fn has_ended(&self) -> bool {
        self.ending && matches!(self.slots.front(), None | Some(Slot::End))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_leave_in_order() {
        let (mut client, mut spare) = (Client::default(), Spare::default());
        let numbers: Vec<u32> = (0..3).map(|_| client.push(Slot::Waiting)).collect();
        client.say(b"3", &mut spare);
        for number in [2, 0, 1] {
            let text = number.to_string();
            let reply = |out: &mut Vec<u8>| out.extend_from_slice(text.as_bytes());
            client.answer(numbers[number], &mut spare, reply);
        }
        assert_eq!(client.out.bytes, b"0123");
        assert!(client.is_idle());
    }
}
