//! Frames: what is on a link, from the first byte to the last.
//!
//! ```text
//!   0       4      5         9
//!   | bytes | kind | ticket  | payload: `bytes` of them
//! ```
//! Numbers are little-endian.

/// Before the payload.
pub const HEADER_BYTES: usize = 9;
/// Of a moment before a payload.
pub const MOMENT_BYTES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Request,
    Reply,
    /// Asks for a [`Kind::Pong`].
    Ping,
    Pong,
    Hello,
    Challenge,
    Proof,
    Welcome,
    Refusal,
    /// Of a cachelet's move, whose number is the ticket; only its two sides know these.
    Move(u8),
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Kind::Request => 1,
            Kind::Reply => 2,
            Kind::Ping => 3,
            Kind::Pong => 4,
            Kind::Hello => 16,
            Kind::Challenge => 17,
            Kind::Proof => 18,
            Kind::Welcome => 19,
            Kind::Refusal => 20,
            Kind::Move(byte) => byte,
        }
    }

    fn of(byte: u8) -> Option<Kind> {
        use Kind::*;
        let all = [Request, Reply, Ping, Pong, Hello, Challenge, Proof, Welcome, Refusal];
        match byte {
            // What a source says, and what a destination does.
            32..=35 | 48..=51 => Some(Kind::Move(byte)),
            _ => all.into_iter().find(|kind| kind.byte() == byte),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: Kind,
    /// Of a request and its reply; else 0.
    pub ticket: u32,
    pub payload: &'a [u8],
}

/// No frame begins with these bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    Kind(u8),
    /// A payload of so many bytes.
    TooLong(u32),
}

pub fn push_frame(out: &mut Vec<u8>, frame: &Frame<'_>) {
    push_parts(out, frame, b"");
}

/// With the moment first, in microseconds of the receiver's clock: a request's deadline, or what is read in a pong.
pub fn push_timed(out: &mut Vec<u8>, moment: u64, frame: &Frame<'_>) {
    push_parts(out, frame, &moment.to_le_bytes());
}

fn push_parts(out: &mut Vec<u8>, frame: &Frame<'_>, first: &[u8]) {
    let bytes = first.len() + frame.payload.len();
    let bytes = u32::try_from(bytes).expect("requests and replies are bounded");
    out.extend_from_slice(&bytes.to_le_bytes());
    out.push(frame.kind.byte());
    out.extend_from_slice(&frame.ticket.to_le_bytes());
    out.extend_from_slice(first);
    out.extend_from_slice(frame.payload);
}

/// The moment that a payload begins with, and what follows.
pub fn take_moment(payload: &[u8]) -> Option<(u64, &[u8])> {
    let (moment, rest) = payload.split_first_chunk()?;
    Some((u64::from_le_bytes(*moment), rest))
}

/// The first frame of `input` and what follows it; `None` if it is not all there. Whether it is one shows with its
/// header: nothing is waited for, or kept, that would be refused.
pub fn next_frame(
    input: &[u8],
    payload_bytes_max: usize,
) -> Result<Option<(Frame<'_>, &[u8])>, Malformed> {
    let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let [a, b, c, d, kind, ticket @ ..] = *header;
    let bytes = u32::from_le_bytes([a, b, c, d]);
    let kind = Kind::of(kind).ok_or(Malformed::Kind(kind))?;
    if bytes as usize > payload_bytes_max {
        return Err(Malformed::TooLong(bytes));
    }
    let Some((payload, rest)) = rest.split_at_checked(bytes as usize) else { return Ok(None) };
    Ok(Some((Frame { kind, ticket: u32::from_le_bytes(ticket), payload }, rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_these_bytes() {
        for (kind, ticket, payload, bytes) in [
            (Kind::Request, 7, &b"get k\r\n"[..], &b"\x07\0\0\0\x01\x07\0\0\0get k\r\n"[..]),
            (Kind::Reply, 0x01020304, b"", b"\0\0\0\0\x02\x04\x03\x02\x01"),
            (Kind::Ping, 0, b"", b"\0\0\0\0\x03\0\0\0\0"),
            (Kind::Refusal, 0, b"\x01", b"\x01\0\0\0\x14\0\0\0\0\x01"),
            (Kind::Move(51), 5, b"\x02", b"\x01\0\0\0\x33\x05\0\0\0\x02"),
        ] {
            let frame = Frame { kind, ticket, payload };
            let mut out = Vec::new();
            push_frame(&mut out, &frame);
            assert_eq!(out, bytes);
            assert_eq!(next_frame(bytes, 7), Ok(Some((frame, &b""[..]))));
            for end in 0..bytes.len() {
                assert_eq!(next_frame(&bytes[..end], 7), Ok(None), "{end}");
            }
        }
    }

    #[test]
    fn a_moment_stands_before_the_rest() {
        let mut out = Vec::new();
        let frame = Frame { kind: Kind::Request, ticket: 7, payload: b"mn" };
        push_timed(&mut out, 0x0102_0304, &frame);
        assert_eq!(out, b"\x0a\0\0\0\x01\x07\0\0\0\x04\x03\x02\x01\0\0\0\0mn");
        assert_eq!(take_moment(&out[HEADER_BYTES..]), Some((0x0102_0304, &b"mn"[..])));
        assert_eq!(take_moment(b"1234567"), None);
    }

    #[test]
    fn what_is_no_frame_shows_with_its_header() {
        let refused = |bytes: &[u8]| next_frame(bytes, 7).err();
        assert_eq!(refused(b"\x08\0\0\0\x01\0\0\0\0"), Some(Malformed::TooLong(8)));
        assert_eq!(refused(b"\xff\xff\xff\xff\x02\0\0\0\0"), Some(Malformed::TooLong(u32::MAX)));
        for kind in [0, 5, 15, 21, 31, 36, 47, 52, 255] {
            assert_eq!(refused(&[0, 0, 0, 0, kind, 0, 0, 0, 0]), Some(Malformed::Kind(kind)));
        }
        assert_eq!(refused(b"GET / HTT"), Some(Malformed::Kind(b'/')));
    }
}
