//! Datagrams: each request is a session of its own (decision 0232).

use mbal_wire::{BINARY_REQUEST, Parsed, parse, parse_binary};

use crate::proxy::Proxy;

impl Proxy {
    /// Where each whole request of a datagram ends, `max` of them at most. What is not there to its end is dropped, and what stands
    /// behind it.
    pub fn requests_of(&self, bytes: &[u8], max: usize) -> Vec<usize> {
        let is_binary = bytes.first() == Some(&BINARY_REQUEST);
        let mut ends = Vec::new();
        let mut at = 0;
        while at < bytes.len() && ends.len() < max {
            let rest = &bytes[at..];
            let parsed = match is_binary {
                true => parse_binary(rest, &self.wire_limits),
                false => parse(rest, &self.wire_limits),
            };
            let Parsed::Request { bytes: length, skip, .. } = parsed else { break };
            if rest.len() < length + skip {
                break;
            }
            at += length + skip;
            ends.push(at);
        }
        ends
    }
}
