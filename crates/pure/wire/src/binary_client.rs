//! The binary protocol's other side: requests to bytes, heads of replies from bytes.

use crate::binary::{BINARY_HEAD_BYTES, BINARY_REPLY, BINARY_REQUEST, opcode};

/// A reply that announces more has lost its frame.
const BODY_BYTES_MAX: usize = 1 << 30;

/// Appends a request up to its key, which the caller appends with its value.
pub fn push_binary_request(
    out: &mut Vec<u8>,
    opcode: u8,
    extras: &[u8],
    key_bytes: usize,
    value_bytes: usize,
    vbucket: u16,
) {
    let body = (extras.len() + key_bytes + value_bytes) as u32;
    out.extend_from_slice(&[BINARY_REQUEST, opcode]);
    out.extend_from_slice(&(key_bytes as u16).to_be_bytes());
    out.extend_from_slice(&[extras.len() as u8, 0]);
    out.extend_from_slice(&vbucket.to_be_bytes());
    out.extend_from_slice(&body.to_be_bytes());
    out.extend_from_slice(&[0; 12]);
    out.extend_from_slice(extras);
}

/// A request without extras.
pub fn binary_request(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    push_binary_request(&mut request, opcode, &[], key.len(), value.len(), 0);
    [&request, key, value].concat()
}

/// A request to delete `key`, whatever bytes that has.
pub fn binary_delete(key: &[u8]) -> Vec<u8> {
    binary_request(opcode::DELETE, key, b"")
}

/// What stands before the body of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinaryReply {
    pub opcode: u8,
    /// As a number: others have more of them than [`Status`](crate::Status).
    pub status: u16,
    pub extras_bytes: usize,
    pub key_bytes: usize,
    /// Extras, key and value.
    pub body_bytes: usize,
}

impl BinaryReply {
    /// `None` if it is no reply.
    pub fn parse(head: &[u8; BINARY_HEAD_BYTES]) -> Option<BinaryReply> {
        let half = |at| u16::from_be_bytes([head[at], head[at + 1]]);
        let reply = BinaryReply {
            opcode: head[1],
            status: half(6),
            extras_bytes: head[4].into(),
            key_bytes: half(2).into(),
            body_bytes: u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize,
        };
        let fits = reply.before_value() <= reply.body_bytes && reply.body_bytes <= BODY_BYTES_MAX;
        (head[0] == BINARY_REPLY && fits).then_some(reply)
    }

    /// Bytes of the body in front of the value.
    pub fn before_value(&self) -> usize {
        self.extras_bytes + self.key_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_says_how_long_it_is() {
        let mut head = [0; BINARY_HEAD_BYTES];
        head[..12].copy_from_slice(&[0x81, opcode::GET, 0, 3, 4, 0, 0, 7, 0, 0, 0, 12]);
        let reply = BinaryReply::parse(&head).expect("a reply");
        assert_eq!((reply.opcode, reply.status), (opcode::GET, 7));
        assert_eq!((reply.before_value(), reply.body_bytes), (7, 12));
        for (at, byte) in [(0, 0x80), (8, 0x41), (11, 6)] {
            let mut head = head;
            head[at] = byte;
            assert_eq!(BinaryReply::parse(&head), None, "{at}");
        }
    }
}
