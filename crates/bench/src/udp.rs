//! memcached's frames over UDP: a request is one datagram, a reply one or several, and any may get lost.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Request id, sequence number, count of datagrams, reserved: 16 bits each, big-endian.
pub const HEAD_BYTES: usize = 8;
/// A reply that is not here by then does not come.
pub const LOST: Duration = Duration::from_millis(500);
/// Nothing longer fits a datagram.
pub const BYTES_MAX: usize = 65_000;

/// A connection's requests, each in its frame.
#[derive(Default)]
pub struct Datagrams {
    next_id: u16,
    /// Lengths of the requests that are not sent yet, each with how many replies it awaits.
    unsent: VecDeque<(usize, usize)>,
    asked: VecDeque<InFlight>,
    /// How many datagrams of the first asked request's reply are here.
    parts: u16,
}

struct InFlight {
    id: u16,
    replies: usize,
    sent: Instant,
}

/// What a datagram brought.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Got {
    /// Of a request that was given up, or garbled.
    Nothing,
    /// The next bytes of the first request's reply, after so many replies that are lost.
    Part { lost: usize, last: bool },
}

impl Datagrams {
    /// A request of so many bytes stands at the end of the output.
    pub fn asked(&mut self, bytes: usize, replies: usize) {
        self.unsent.push_back((bytes, replies));
    }

    /// The frame of the next request, and its length.
    pub fn next(&self) -> Option<([u8; HEAD_BYTES], usize)> {
        let &(bytes, _) = self.unsent.front()?;
        let [high, low] = self.next_id.to_be_bytes();
        Some(([high, low, 0, 0, 0, 1, 0, 0], bytes))
    }

    pub fn sent(&mut self, now: Instant) {
        let (_, replies) = self.unsent.pop_front().expect("it was next");
        self.asked.push_back(InFlight { id: self.next_id, replies, sent: now });
        self.next_id = self.next_id.wrapping_add(1);
    }

    /// Replies come in order here: what a later one has overtaken is given up.
    pub fn received(&mut self, head: [u8; HEAD_BYTES]) -> Got {
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let (id, sequence, count) = (word(0), word(2), word(4));
        let Some(place) = self.asked.iter().position(|asked| asked.id == id) else {
            return Got::Nothing;
        };
        let first = sequence == 0;
        let expected = if place == 0 { self.parts } else { 0 };
        if sequence != expected || (place > 0 && !first) {
            return Got::Nothing;
        }
        let lost = self.asked.drain(..place).map(|asked| asked.replies).sum();
        self.parts = sequence + 1;
        let last = self.parts >= count;
        if last {
            self.asked.pop_front();
            self.parts = 0;
        }
        Got::Part { lost, last }
    }

    /// Gives up what has waited too long; returns how many replies that were.
    pub fn late(&mut self, now: Instant) -> usize {
        let mut lost = 0;
        while self.asked.front().is_some_and(|asked| now - asked.sent > LOST) {
            lost += self.asked.pop_front().expect("just seen").replies;
            self.parts = 0;
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagrams(requests: u16) -> Datagrams {
        let mut datagrams = Datagrams::default();
        for id in 0..requests {
            datagrams.asked(10, 2);
            assert_eq!(datagrams.next(), Some(([0, id as u8, 0, 0, 0, 1, 0, 0], 10)));
            datagrams.sent(Instant::now());
        }
        datagrams
    }

    fn head(id: u8, sequence: u8, count: u8) -> [u8; HEAD_BYTES] {
        [0, id, 0, sequence, 0, count, 0, 0]
    }

    #[test]
    fn a_reply_of_several_datagrams_is_put_together_in_order() {
        let mut datagrams = datagrams(2);
        assert_eq!(datagrams.received(head(0, 0, 2)), Got::Part { lost: 0, last: false });
        assert_eq!(datagrams.received(head(0, 0, 2)), Got::Nothing, "twice");
        assert_eq!(datagrams.received(head(0, 1, 2)), Got::Part { lost: 0, last: true });
        assert_eq!(datagrams.received(head(1, 0, 1)), Got::Part { lost: 0, last: true });
        assert_eq!(datagrams.received(head(1, 0, 1)), Got::Nothing, "answered already");
    }

    #[test]
    fn what_is_overtaken_or_late_is_lost() {
        let mut datagrams = datagrams(3);
        assert_eq!(datagrams.received(head(2, 0, 1)), Got::Part { lost: 4, last: true });
        assert_eq!(datagrams.received(head(0, 0, 1)), Got::Nothing, "given up");
        let mut datagrams = self::datagrams(3);
        assert_eq!(datagrams.late(Instant::now()), 0);
        assert_eq!(datagrams.late(Instant::now() + 2 * LOST), 6);
    }
}
