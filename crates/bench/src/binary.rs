//! memcached's binary protocol, as far as the generator speaks it.

use std::collections::VecDeque;
use std::io::{self, Read};

use mbal_dial::wants_login;
use mbal_model::Hint;
use mbal_wire::{BINARY_HEAD_BYTES, BinaryReply, Status, binary_request, opcode};

use crate::replies::{Answer, Awaited, Kind, LeaseToken, Lengths, judge};
use crate::request::Write;

/// Flags before a value.
const FLAGS_BYTES: usize = 4;

/// A no-op: a server that asks for a login says so.
pub fn ask_for_nothing(stream: &mut (impl Read + io::Write)) -> io::Result<()> {
    stream.write_all(&binary_request(opcode::NOOP, b"", b""))?;
    let mut reply = [0; BINARY_HEAD_BYTES];
    stream.read_exact(&mut reply)?;
    match BinaryReply::parse(&reply) {
        Some(reply) if reply.status == Status::AuthError as u16 => Err(wants_login()),
        _ => Ok(()),
    }
}

/// Like [`crate::replies::scan`], which calls it.
pub fn scan(
    lengths: Lengths,
    bytes: &[u8],
    awaited: &mut VecDeque<Awaited>,
    mut tell: impl FnMut(Awaited, Answer, Option<LeaseToken>),
) -> Result<usize, String> {
    let mut at = 0;
    while let Some(head) = bytes[at..].first_chunk::<BINARY_HEAD_BYTES>() {
        let reply = BinaryReply::parse(head);
        let reply = reply.ok_or_else(|| format!("no binary reply: {}", head.escape_ascii()))?;
        let BinaryReply { status, body_bytes, .. } = reply;
        let before_value = reply.before_value();
        let Some(body) = bytes[at + BINARY_HEAD_BYTES..].get(..body_bytes) else { return Ok(at) };
        let asked = awaited
            .pop_front()
            .ok_or_else(|| format!("a reply that nobody asked for: {}", head.escape_ascii()))?;
        let (mut moved, value) = (None, &body[before_value..]);
        let outcome = match (asked.kind, status) {
            _ if reply.opcode != opcode_of(asked.kind) => wrong(asked, head, body),
            (Kind::Get, 0) if before_value == FLAGS_BYTES => judge(asked, lengths, value),
            (Kind::Get, 1) => Answer::Miss,
            (Kind::Write(Write::Set | Write::Add), 0) => Answer::Stored,
            (Kind::Write(Write::Add), 2) | (Kind::Write(Write::Delete), 0 | 1) => Answer::Done,
            (Kind::Write(Write::Incr), 0) if body.len() == 8 => Answer::Done,
            (_, 7) => {
                moved = Hint::parse(body).map(LeaseToken::Hint);
                moved.as_ref().map_or_else(|| wrong(asked, head, body), |_| Answer::Elsewhere)
            }
            _ => wrong(asked, head, body),
        };
        tell(asked, outcome, moved);
        at += BINARY_HEAD_BYTES + body_bytes;
    }
    Ok(at)
}

fn opcode_of(kind: Kind) -> u8 {
    match kind {
        Kind::Get | Kind::End => opcode::GET,
        Kind::Write(Write::Set) => opcode::SET,
        Kind::Write(Write::Add) => opcode::ADD,
        Kind::Write(Write::Delete) => opcode::DELETE,
        Kind::Write(Write::Incr) => opcode::INCREMENT,
    }
}

fn wrong(asked: Awaited, head: &[u8], body: &[u8]) -> Answer {
    let body = body[..body.len().min(80)].escape_ascii();
    Answer::Wrong(format!(
        "{:?} of key {}: {} \"{body}\"",
        asked.kind,
        asked.key,
        head.escape_ascii()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::label;

    fn reply(opcode: u8, status: u16, extras: usize, body: &[u8]) -> Vec<u8> {
        let mut out = vec![0x81, opcode, 0, 0, extras as u8, 0];
        out.extend(status.to_be_bytes());
        out.extend((body.len() as u32).to_be_bytes());
        out.extend([0; 12]);
        out.extend(body);
        out
    }

    fn awaited(kinds: &[Kind]) -> VecDeque<Awaited> {
        let asked =
            |&kind| Awaited { kind, key: 7, value_bytes: 14, last: true, ..Awaited::default() };
        kinds.iter().map(asked).collect()
    }

    fn told(kinds: &[Kind], bytes: &[u8]) -> Result<Vec<(Answer, Option<LeaseToken>)>, String> {
        let mut all = Vec::new();
        let mut awaited = awaited(kinds);
        let taken = scan(Lengths::Known, bytes, &mut awaited, |_, outcome, moved| {
            all.push((outcome, moved))
        })?;
        assert_eq!(taken, bytes.len());
        Ok(all)
    }

    fn value() -> Vec<u8> {
        [&[0; 4][..], &label(7, 14), b".."].concat()
    }

    #[test]
    fn right_replies_are_told_by_their_status() {
        for (kind, reply, outcome) in [
            (Kind::Get, reply(opcode::GET, 0, 4, &value()), Answer::Hit),
            (Kind::Get, reply(opcode::GET, 1, 0, b"Not found"), Answer::Miss),
            (Kind::Write(Write::Set), reply(opcode::SET, 0, 0, b""), Answer::Stored),
            (
                Kind::Write(Write::Add),
                reply(opcode::ADD, 2, 0, b"Data exists for key."),
                Answer::Done,
            ),
            (Kind::Write(Write::Delete), reply(opcode::DELETE, 1, 0, b"Not found"), Answer::Done),
            (Kind::Write(Write::Incr), reply(opcode::INCREMENT, 0, 0, &[0; 8]), Answer::Done),
        ] {
            assert_eq!(told(&[kind], &reply), Ok(vec![(outcome, None)]), "{kind:?}");
        }
        let told = told(&[Kind::Get], &reply(opcode::GET, 7, 0, b"1.18.3"));
        assert_eq!(told, Ok(vec![(Answer::Elsewhere, LeaseToken::parse(b"1.18.3"))]));
    }

    #[test]
    fn wrong_replies_are_caught() {
        let mut other = value();
        other[4] = 8;
        for (kind, reply) in [
            (Kind::Get, reply(opcode::GET, 0, 4, &other)),
            (Kind::Get, reply(opcode::GET, 0, 4, &value()[..10])),
            (Kind::Get, reply(opcode::SET, 0, 0, b"")),
            (Kind::Write(Write::Set), reply(opcode::SET, 3, 0, b"Too large.")),
            (Kind::Get, reply(opcode::GET, 7, 0, b"I don't belong to you")),
        ] {
            let told = told(&[kind], &reply).unwrap();
            assert!(matches!(told[0].0, Answer::Wrong(_)), "{told:?}");
        }
        assert!(told(&[], &reply(opcode::GET, 1, 0, b"")).is_err());
        assert!(told(&[Kind::Get], b"HTTP/1.1 400 Bad Request").is_err());
    }

    #[test]
    fn replies_cut_anywhere_are_told_the_same() {
        let bytes = [
            reply(opcode::GET, 0, 4, &value()),
            reply(opcode::GET, 1, 0, b"no"),
            reply(opcode::SET, 0, 0, b""),
        ]
        .concat();
        for cut in 0..bytes.len() {
            let (mut awaited, mut all) =
                (awaited(&[Kind::Get, Kind::Get, Kind::Write(Write::Set)]), Vec::new());
            let mut tell = |_, outcome, _| all.push(outcome);
            let taken = scan(Lengths::Known, &bytes[..cut], &mut awaited, &mut tell).unwrap();
            scan(Lengths::Known, &bytes[taken..], &mut awaited, &mut tell).unwrap();
            assert_eq!(all, [Answer::Hit, Answer::Miss, Answer::Stored], "cut at {cut}");
        }
    }
}
