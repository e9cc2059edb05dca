//! UDP: each datagram is a session of its own, from its first request to its last.

use mbal_wire::{
    BINARY_REQUEST, Login, Parsed, Request, base64_decode, datagrams, parse, parse_binary,
    parse_datagram,
};

use mbal_model::{KEY_BYTES_MAX, Key};

use crate::session::OUTPUT_BYTES_MAX;
use crate::slots::NO_ROUTE;
use crate::turn::{Then, Turn};
use crate::worker::Worker;
use crate::{Action, Actions, Now};

/// Told instead of the reply to a `get` that has too many values for datagrams.
const TOO_MUCH: &[u8] = b"SERVER_ERROR reply too large for UDP";

impl Worker {
    /// Executes what a datagram asks for. Every request's reply is a message of its own.
    ///
    /// What is not there to its end is dropped: nobody could say which later datagram, of which
    /// sender, brings the rest.
    pub(crate) fn datagram(&mut self, now: Now, bytes: &[u8], actions: &mut Actions) {
        let counters = self.counters();
        counters.bytes_read.add(bytes.len() as u64);
        let Some((request_id, requests)) = parse_datagram(bytes) else { return };
        if self.server.settings.login() != Login::NotAsked {
            return;
        }
        let mut replies = Vec::new();
        let mut ends = Vec::new();
        let mut turn = self.turn_for(now, &mut replies);
        turn.run_all(requests, &mut ends);
        let mut start = 0;
        for end in ends {
            for (header, chunk) in datagrams(request_id, &replies[start..end]) {
                let at = actions.bytes.len();
                actions.bytes.extend_from_slice(&header);
                actions.bytes.extend_from_slice(chunk);
                actions.list.push(Action::Datagram { bytes: at..actions.bytes.len() });
                self.counters().bytes_written.add((header.len() + chunk.len()) as u64);
            }
            start = end;
        }
    }
}

impl Turn<'_> {
    /// Executes requests that have arrived in one piece; where each reply ends is added to `ends`.
    /// Those beyond a bound are dropped.
    fn run_all(&mut self, mut input: &[u8], ends: &mut Vec<usize>) {
        let limits = self.limits(Login::NotAsked);
        let binary = input[0] == BINARY_REQUEST;
        let requests_max = self.server.settings.requests_per_event as usize;
        while !input.is_empty()
            && ends.len() < requests_max
            && self.replied_bytes() < OUTPUT_BYTES_MAX
        {
            let parsed = if binary { parse_binary(input, &limits) } else { parse(input, &limits) };
            let Parsed::Request { request, bytes, skip } = parsed else { return };
            let Some(rest) = input.get(bytes + skip..) else { return };
            input = rest;
            let before = self.out.len();
            let then = self.execute_datagram(&request);
            let closes = matches!(then, Then::Close(_));
            match then {
                Then::Resume(_) => {
                    self.out.truncate(before);
                    self.line(TOO_MUCH);
                }
                // What needs a connection to go on, memcached does not answer here.
                Then::Walk(walk) if walk.is_a_dump() => {}
                Then::Walk(walk) => self.walk_at_once(*walk),
                Then::Watch(watcher) => {
                    self.server.log.unwatch(&watcher);
                    self.out.truncate(before);
                }
                _ => {}
            }
            ends.push(self.out.len());
            // Nobody is closed, and no server ended, by a sender that anybody can pretend to be.
            if closes {
                return;
            }
        }
    }

    fn execute_datagram(&mut self, request: &Request<'_>) -> Then {
        let mut decoded = [0; KEY_BYTES_MAX];
        let key = request.key().and_then(|(word, base64)| {
            let length = if base64 { base64_decode(word, &mut decoded)? } else { 0 };
            Key::new(if base64 { &decoded[..length] } else { word })
        });
        if key.is_some_and(|key| !self.is_here(&key)) {
            self.reply(request.noreply(), NO_ROUTE.as_bytes());
            return Then::Next;
        }
        self.execute(request, key)
    }
}
