//! Where a reply ends, for who passes it on: nothing is read of it but lengths.

use memchr::memchr;

use crate::binary::BINARY_HEAD_BYTES;
use crate::number::parse_u64;
use crate::reply::{REPLY_LINE_BYTES_MAX, VALUE_BYTES_MAX};

/// What a reply looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// One line.
    Line,
    /// To `get` and its kin: values, then a line.
    Values,
    /// To a meta command: a line, and a value if it begins with `VA`.
    Meta,
    /// To `config get`: a line with a length, what is so long, and a line; or a line.
    Config,
    /// A header of 24 bytes that says how much follows.
    Binary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framed {
    /// So many bytes.
    Whole(usize),
    /// Not before the input has so many bytes in all. What is before `scanned` need not be looked at again.
    NeedMore { bytes: usize, scanned: usize },
    /// No reply.
    Broken,
}

const BINARY_REPLY: u8 = 0x81;

/// Looks at the start of `input`, of which the first `scanned` bytes are whole values.
#[inline]
pub fn frame(kind: ReplyKind, input: &[u8], scanned: usize) -> Framed {
    match kind {
        ReplyKind::Line => line(input, 0),
        ReplyKind::Values => values(input, scanned),
        ReplyKind::Meta => meta(input),
        ReplyKind::Config => config(input),
        ReplyKind::Binary => binary(input),
    }
}

#[inline]
fn line(input: &[u8], from: usize) -> Framed {
    match memchr(b'\n', &input[from..]) {
        Some(end) => Framed::Whole(from + end + 1),
        None if input.len() - from > REPLY_LINE_BYTES_MAX => Framed::Broken,
        None => Framed::NeedMore { bytes: input.len() + 1, scanned: from },
    }
}

fn config(input: &[u8]) -> Framed {
    let Some(end) = memchr(b'\n', input).filter(|_| input.starts_with(b"CONFIG ")) else {
        return line(input, 0);
    };
    let length = input[..end].trim_ascii_end().rsplit(|byte| *byte == b' ').next();
    let length = length.and_then(value_bytes);
    let Some(length) = length else { return Framed::Broken };
    let behind = end + 1 + length;
    match input.get(behind..behind + 7) {
        Some(b"\r\nEND\r\n") => Framed::Whole(behind + 7),
        Some(_) => Framed::Broken,
        None => Framed::NeedMore { bytes: behind + 7, scanned: 0 },
    }
}

#[inline]
fn values(input: &[u8], mut at: usize) -> Framed {
    loop {
        let rest = &input[at..];
        if rest.starts_with(b"END\r\n") {
            return Framed::Whole(at + 5);
        }
        if !rest.starts_with(b"VALUE ") {
            // An error, or too little to know.
            return line(input, at);
        }
        let plain = key_end(rest).and_then(|behind_key| plain_value_bytes(rest, behind_key));
        let next = at
            + match plain {
                Some(bytes) => bytes,
                None => {
                    let Some(end) = memchr(b'\n', rest) else { return line(input, at) };
                    let Some(value) = value_length(&rest[..end]) else { return Framed::Broken };
                    end + 1 + value + 2
                }
            };
        if input.len() < next {
            return Framed::NeedMore { bytes: next + 5, scanned: at };
        }
        if &input[next - 2..next] != b"\r\n" {
            return Framed::Broken;
        }
        at = next;
    }
}

/// The end of the key behind the `VALUE ` that `input` begins with, if it is a blank. Eight bytes at a time: keys are short,
/// and a call to `memchr` costs more than that.
#[inline]
fn key_end(input: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([0x01; 8]);
    const TOPS: u64 = u64::from_le_bytes([0x80; 8]);
    let mut at = b"VALUE ".len();
    loop {
        let bytes = u64::from_le_bytes(*input.get(at..)?.first_chunk()?);
        // The lowest of the set bits is that of the first byte up to a blank.
        let blanks = bytes.wrapping_sub((u64::from(b' ') + 1) * ONES) & !bytes & TOPS;
        if blanks != 0 {
            at += blanks.trailing_zeros() as usize / 8;
            return (input[at] == b' ').then_some(at);
        }
        at += 8;
    }
}

/// The bytes of a value that begins with `VALUE KEY FLAGS LENGTH\r\n`, its line and its end included; `behind_key` is where the
/// key ends. `None` if the line is another or not whole: [`value_length`] knows them all.
#[inline]
pub fn plain_value_bytes(input: &[u8], behind_key: usize) -> Option<usize> {
    let digit = |at: usize| input.get(at).map(|byte| byte.wrapping_sub(b'0'));
    let mut at = behind_key + 1;
    while digit(at)? < 10 {
        at += 1;
    }
    if input[at] != b' ' {
        return None;
    }
    at += 1;
    let (first, mut value_bytes) = (at, 0);
    loop {
        let digit = digit(at)?;
        if digit > 9 {
            break;
        }
        value_bytes = value_bytes * 10 + u64::from(digit);
        if (VALUE_BYTES_MAX as u64) < value_bytes {
            return None;
        }
        at += 1;
    }
    let is_plain = at > first && input[at] == b'\r' && *input.get(at + 1)? == b'\n';
    is_plain.then_some(at + 2 + value_bytes as usize + 2)
}

/// The key of the only value that a reply to `get` has, and the reply's length, if `input` begins with such a one in its usual shape.
#[inline]
pub fn lone_value(input: &[u8]) -> Option<(&[u8], usize)> {
    let key_end = input.starts_with(b"VALUE ").then(|| key_end(input))??;
    let bytes = plain_value_bytes(input, key_end)?;
    let ends = input.get(bytes - 2..bytes + 5)? == b"\r\nEND\r\n";
    ends.then_some((&input[b"VALUE ".len()..key_end], bytes + 5))
}

/// The third word of `VALUE KEY FLAGS LENGTH [CAS]`.
#[inline]
pub fn value_length(line: &[u8]) -> Option<usize> {
    let line = line.strip_suffix(b"\r")?;
    let rest = &line[b"VALUE ".len()..];
    let flags = memchr(b' ', rest)? + 1;
    let length = flags + memchr(b' ', &rest[flags..])? + 1;
    let digits = &rest[length..];
    let digits = memchr(b' ', digits).map_or(digits, |end| &digits[..end]);
    value_bytes(digits)
}

#[inline]
fn value_bytes(digits: &[u8]) -> Option<usize> {
    parse_u64(digits).map(|bytes| bytes as usize).filter(|bytes| *bytes <= VALUE_BYTES_MAX)
}

/// The values of a reply to `get`, by their keys and whether they have a cas; behind them, what ends it.
pub struct Values<'a>(pub &'a [u8]);

impl<'a> Iterator for Values<'a> {
    type Item = (&'a [u8], bool);

    #[inline]
    fn next(&mut self) -> Option<(&'a [u8], bool)> {
        let words = self.0.strip_prefix(b"VALUE ")?;
        let plain = key_end(self.0).and_then(|at| Some((at, plain_value_bytes(self.0, at)?)));
        if let Some((key_end, bytes)) = plain {
            let key = &self.0[self.0.len() - words.len()..key_end];
            self.0 = self.0.get(bytes..)?;
            return Some((key, false));
        }
        let key = &words[..memchr(b' ', words)?];
        let end = memchr(b'\n', self.0)?;
        let line = &self.0[..end];
        let value_bytes = value_length(line)?;
        let blanks = line.iter().filter(|byte| **byte == b' ').count();
        self.0 = self.0.get(end + 1 + value_bytes + 2..)?;
        Some((key, blanks == 4))
    }
}

#[inline]
fn meta(input: &[u8]) -> Framed {
    let whole = line(input, 0);
    let (Framed::Whole(end), Some(words)) = (whole, input.strip_prefix(b"VA ")) else {
        return whole;
    };
    let digits = words.split(|byte| matches!(byte, b' ' | b'\r')).next().unwrap_or_default();
    let Some(value_bytes) = value_bytes(digits) else { return Framed::Broken };
    sized(input, end + value_bytes + 2)
}

#[inline]
fn binary(input: &[u8]) -> Framed {
    let Some(header) = input.first_chunk::<BINARY_HEAD_BYTES>() else {
        return Framed::NeedMore { bytes: BINARY_HEAD_BYTES, scanned: 0 };
    };
    let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
    if header[0] != BINARY_REPLY || VALUE_BYTES_MAX < body {
        return Framed::Broken;
    }
    sized(input, BINARY_HEAD_BYTES + body)
}

#[inline]
fn sized(input: &[u8], bytes: usize) -> Framed {
    match input.len() < bytes {
        true => Framed::NeedMore { bytes, scanned: 0 },
        false => Framed::Whole(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_whole_at_its_end_and_not_before() {
        let two = b"VALUE a 0 3\r\nEND\r\nVALUE b 1 0 77\r\n\r\nEND\r\n";
        for (kind, reply) in [
            (ReplyKind::Line, &b"STORED\r\n"[..]),
            (ReplyKind::Values, b"END\r\n"),
            (ReplyKind::Values, b"SERVER_ERROR out of memory\r\n"),
            (ReplyKind::Values, two),
            (ReplyKind::Meta, b"HD t5\r\n"),
            (ReplyKind::Meta, b"EN\r\n"),
            (ReplyKind::Meta, b"VA 4 s4\r\n\r\n\r\n\r\n"),
            (ReplyKind::Meta, b"VA 0\r\n\r\n"),
            (ReplyKind::Binary, b"\x81\0\0\0\0\0\0\0\0\0\0\x02idid\0\0\0\0\0\0\0\0xy"),
        ] {
            let mut scanned = 0;
            for end in 1..reply.len() {
                match frame(kind, &reply[..end], scanned) {
                    Framed::NeedMore { bytes, scanned: to } => {
                        assert!(end < bytes && bytes <= reply.len(), "{reply:?}");
                        scanned = to;
                    }
                    other => panic!("{other:?} after {end} bytes of {reply:?}"),
                }
            }
            let longer = [reply, &b"END\r\nrest"[..]].concat();
            assert_eq!(frame(kind, &longer, scanned), Framed::Whole(reply.len()), "{reply:?}");
        }
    }

    #[test]
    fn a_plain_value_is_as_long_as_its_line_says_and_others_are_left_to_who_knows_all() {
        for key in ["k", "a-key-of-more-than-eight-bytes", "sevenby", "eight-by", "\u{e4}", "a\tb"]
        {
            for (behind, value_bytes) in [
                (" 0 5\r\n", Some(5)),
                (" 4294967295 1073741824\r\n", Some(1 << 30)),
                (" 0 1073741825\r\n", None),
                (" 0 99999999999999999999999\r\n", None),
                (" 0 5 77\r\n", None),
                (" 0 5\n\n", None),
                (" 0 \r\n", None),
                (" 0 5\r", None),
                (" 0 5", None),
                (" 0x 5\r\n", None),
                ("\r\n 0 5\r\n", None),
            ] {
                let rest = if value_bytes.is_some() { "some more" } else { "" };
                let input = format!("VALUE {key}{behind}{rest}");
                let found = key_end(input.as_bytes());
                let found = found.and_then(|end| plain_value_bytes(input.as_bytes(), end));
                let plain = value_bytes.filter(|_| key != "a\tb");
                assert_eq!(found, plain.map(|bytes| input.len() - rest.len() + bytes + 2));
                let end = input.find('\n').unwrap_or(input.len());
                if let Some(bytes) = value_bytes {
                    assert_eq!(value_length(&input.as_bytes()[..end]), Some(bytes), "{input:?}");
                }
            }
        }
    }

    #[test]
    fn a_lone_value_is_what_the_long_way_finds() {
        let reply = b"VALUE some-key 0 12\r\nEND\r\nx VALUE\r\nEND\r\n";
        assert_eq!(lone_value(reply), Some((&b"some-key"[..], reply.len())));
        let mut found = 0;
        for at in 0..reply.len() {
            assert_eq!(lone_value(&reply[..at]), None, "{at}");
            for byte in *b" \r\n0129Vx" {
                let mut reply = reply.to_vec();
                reply[at] = byte;
                let Some((key, length)) = lone_value(&reply) else { continue };
                found += 1;
                assert_eq!(frame(ReplyKind::Values, &reply, 0), Framed::Whole(length), "{reply:?}");
                let mut values = Values(&reply);
                assert_eq!(values.next(), Some((key, false)), "{reply:?}");
                assert_eq!(values.0, b"END\r\n", "{reply:?}");
            }
        }
        assert!(found > 100, "{found}");
    }

    #[test]
    fn what_is_no_reply_is_broken() {
        for (kind, bytes) in [
            (ReplyKind::Values, &b"VALUE a 0 x\r\n"[..]),
            (ReplyKind::Values, b"VALUE a 0 1\r\nxyz"),
            (ReplyKind::Values, b"VALUE a\r\n"),
            (ReplyKind::Meta, b"VA x\r\n"),
            (ReplyKind::Meta, b"VA 99999999999999999999\r\n"),
            (ReplyKind::Binary, &[0x80; 24]),
            (ReplyKind::Line, &[b'x'; REPLY_LINE_BYTES_MAX + 1]),
        ] {
            assert_eq!(frame(kind, bytes, 0), Framed::Broken, "{bytes:?}");
        }
    }
}
