//! The parts that replies are made of: how a server writes them, and how whoever asked a server reads them.

use memchr::memchr;

use crate::number::{push_u64, word_u32, word_u64};

/// Appends a line and its end.
#[inline]
pub fn push_line(out: &mut Vec<u8>, line: &[u8]) {
    out.extend_from_slice(line);
    out.extend_from_slice(b"\r\n");
}

/// Appends the line that stands before a value in the reply to `get`; `cas` for `gets`.
#[inline(always)]
pub fn push_value(out: &mut Vec<u8>, key: &[u8], flags: u32, value_bytes: u32, cas: Option<u64>) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    push_u64(out, u64::from(flags));
    out.push(b' ');
    push_u64(out, u64::from(value_bytes));
    if let Some(cas) = cas {
        out.push(b' ');
        push_u64(out, cas);
    }
    out.extend_from_slice(b"\r\n");
}

/// These bytes are no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAReply;

/// A line is longer in no reply: a key and its flags, an error.
pub const REPLY_LINE_BYTES_MAX: usize = 4096;
/// Longer values than this no server has (`-I`).
pub const VALUE_BYTES_MAX: usize = 1 << 30;

/// The first line without its end, and how many bytes it has with it; `None`: more must come.
pub fn reply_line(input: &[u8]) -> Result<Option<(&[u8], usize)>, NotAReply> {
    let seen = &input[..input.len().min(REPLY_LINE_BYTES_MAX)];
    match memchr(b'\n', seen) {
        Some(end) => {
            let line = input[..end].strip_suffix(b"\r").ok_or(NotAReply)?;
            Ok(Some((line, end + 1)))
        }
        None if seen.len() == REPLY_LINE_BYTES_MAX => Err(NotAReply),
        None => Ok(None),
    }
}

/// So many bytes that `end` follows; `None`: more must come.
pub fn reply_block<'a>(
    input: &'a [u8],
    bytes: usize,
    end: &[u8],
) -> Result<Option<&'a [u8]>, NotAReply> {
    match input.get(bytes..bytes + end.len()) {
        None => Ok(None),
        Some(tail) if tail == end => Ok(Some(&input[..bytes])),
        Some(_) => Err(NotAReply),
    }
}

/// `ERROR`, `CLIENT_ERROR ...` or `SERVER_ERROR ...`.
pub fn is_error(line: &[u8]) -> bool {
    line == b"ERROR"
        || line.starts_with(b"CLIENT_ERROR ")
        || line.starts_with(b"SERVER_ERROR ")
        || line == b"SERVER_ERROR"
}

/// The same with the line's end.
pub fn is_error_reply(reply: &[u8]) -> bool {
    reply.strip_suffix(b"\r\n").is_some_and(is_error)
}

/// `VALUE <key> <flags> <bytes> [<cas>]`, which stands before a value in the reply to `get` and its kin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueHead<'a> {
    pub key: &'a [u8],
    pub flags: u32,
    pub bytes: usize,
    pub cas: Option<u64>,
}

impl<'a> ValueHead<'a> {
    /// A line without its end.
    pub fn parse(line: &'a [u8]) -> Option<ValueHead<'a>> {
        let mut words = line.strip_prefix(b"VALUE ")?.split(|byte| *byte == b' ');
        let (key, flags, bytes) = (words.next()?, words.next()?, words.next()?);
        let cas = match words.next() {
            None => None,
            Some(cas) => Some(word_u64(cas)?),
        };
        let is_whole = words.next().is_none();
        let head = ValueHead { key, flags: word_u32(flags)?, bytes: value_bytes(bytes)?, cas };
        is_whole.then_some(head)
    }
}

/// What a meta command's reply begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetaStatus {
    /// `HD`
    #[default]
    Done,
    /// `VA`
    Value,
    /// `EN`
    Miss,
    /// `NF`
    NotFound,
    /// `NS`
    NotStored,
    /// `EX`
    Exists,
    /// `MN`
    Noop,
}

/// The line of a meta command's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaHead<'a> {
    pub status: MetaStatus,
    /// Of the value that follows; nothing follows if the status is another than `VA`.
    pub bytes: usize,
    flags: &'a [u8],
}

impl<'a> MetaHead<'a> {
    /// A line without its end.
    pub fn parse(line: &'a [u8]) -> Option<MetaHead<'a>> {
        let (word, rest) = split_word(line);
        let status = match word {
            b"HD" => MetaStatus::Done,
            b"VA" => MetaStatus::Value,
            b"EN" => MetaStatus::Miss,
            b"NF" => MetaStatus::NotFound,
            b"NS" => MetaStatus::NotStored,
            b"EX" => MetaStatus::Exists,
            b"MN" => MetaStatus::Noop,
            _ => return None,
        };
        if status != MetaStatus::Value {
            return Some(MetaHead { status, bytes: 0, flags: rest });
        }
        let (bytes, flags) = split_word(rest);
        Some(MetaHead { status, bytes: value_bytes(bytes)?, flags })
    }

    /// The flags, each a letter and what follows it.
    pub fn flags(&self) -> impl Iterator<Item = (u8, &'a [u8])> {
        let words = self.flags.split(|byte| *byte == b' ');
        words.filter_map(|word| word.split_first().map(|(letter, rest)| (*letter, rest)))
    }
}

/// What stands before a value in an answer to `mg KEY v t f c`, as whoever copies items reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemHead {
    /// Of the value that follows.
    pub bytes: usize,
    pub flags: u64,
    /// In seconds; `None` is for ever.
    pub ttl: Option<u32>,
    /// 0 if it was not told.
    pub cas: u64,
    /// It is neither stale nor a place that a client keeps for what it fetches (flags X, W and Z).
    pub is_settled: bool,
}

impl ItemHead {
    /// A line without its end; `None` where no value follows, or a flag is none.
    pub fn parse(line: &[u8]) -> Option<ItemHead> {
        let head = MetaHead::parse(line).filter(|head| head.status == MetaStatus::Value)?;
        let mut item =
            ItemHead { bytes: head.bytes, flags: 0, ttl: None, cas: 0, is_settled: true };
        for (letter, rest) in head.flags() {
            match letter {
                b'f' => item.flags = word_u64(rest)?,
                b't' if rest == b"-1" => item.ttl = None,
                b't' => item.ttl = Some(word_u32(rest)?),
                b'c' => item.cas = word_u64(rest)?,
                b'X' | b'W' | b'Z' => item.is_settled = false,
                _ => {}
            }
        }
        Some(item)
    }
}

fn split_word(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b' ', line) {
        Some(end) => (&line[..end], &line[end + 1..]),
        None => (line, b""),
    }
}

fn value_bytes(word: &[u8]) -> Option<usize> {
    word_u64(word)?.try_into().ok().filter(|bytes| *bytes <= VALUE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for cas in [None, Some(u64::MAX)] {
            let mut out = Vec::new();
            push_value(&mut out, b"key", 7, 3, cas);
            let (line, bytes) = reply_line(&out).expect("a reply").expect("whole");
            assert_eq!(bytes, out.len());
            let head = ValueHead { key: b"key", flags: 7, bytes: 3, cas };
            assert_eq!(ValueHead::parse(line), Some(head));
        }
    }

    #[test]
    fn lines_that_are_no_heads_are_known() {
        for line in
            ["VALUE", "VALUE k", "VALUE k 0", "VALUE k x 1", "VALUE k 0 1 x", "VALUE k 0 1 2 3"]
        {
            assert_eq!(ValueHead::parse(line.as_bytes()), None, "{line}");
        }
        for line in ["", "OK", "VA", "VA x", "VA +1", "VA 9999999999", "HDx"] {
            assert_eq!(MetaHead::parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn items_have_flags_time_and_cas() {
        let parsed = |line: &str| {
            let ItemHead { bytes, flags, ttl, cas, is_settled } = ItemHead::parse(line.as_bytes())?;
            Some((bytes, flags, ttl, cas, is_settled))
        };
        assert_eq!(parsed("VA 3 t-1 f7 c18446744073709551615"), Some((3, 7, None, u64::MAX, true)));
        assert_eq!(parsed("VA 0 t100 f0 c9"), Some((0, 0, Some(100), 9, true)));
        for unsettled in ["VA 0 t0 f0 c9 W", "VA 0 t0 f0 c9 Z", "VA 0 t0 f0 c9 X"] {
            assert_eq!(parsed(unsettled), Some((0, 0, Some(0), 9, false)));
        }
        for line in ["HD", "EN", "VA x", "VA 0 t-2", "VA 0 fx", "VA 0 c"] {
            assert_eq!(parsed(line), None, "{line}");
        }
    }

    #[test]
    fn flags_are_letters_with_what_follows() {
        let head = MetaHead::parse(b"VA 2 f7 c99  W Lx").expect("a line");
        assert_eq!((head.status, head.bytes), (MetaStatus::Value, 2));
        let flags: Vec<(u8, &[u8])> = head.flags().collect();
        assert_eq!(flags, [(b'f', &b"7"[..]), (b'c', b"99"), (b'W', b""), (b'L', b"x")]);
        assert_eq!(MetaHead::parse(b"HD").expect("a line").flags().count(), 0);
    }

    #[test]
    fn a_line_has_an_end_and_a_bound() {
        assert_eq!(reply_line(b"HD\r"), Ok(None));
        assert_eq!(reply_line(b"HD\n"), Err(NotAReply));
        assert_eq!(reply_line(&[b'x'; REPLY_LINE_BYTES_MAX]), Err(NotAReply));
        assert_eq!(reply_block(b"ab\r", 2, b"\r\n"), Ok(None));
        assert_eq!(reply_block(b"ab\r\n", 2, b"\r\n"), Ok(Some(&b"ab"[..])));
        assert_eq!(reply_block(b"abc\r\n", 2, b"\r\n"), Err(NotAReply));
    }
}
