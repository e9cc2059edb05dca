//! Items of hot keys: what a fill has brought, what a write brings, and reads that either answers.
//!
//! What is written to keys that are often written is kept (NetKV, ICAC 2016, §IV.F), and reads wait for it. A read that waits for the
//! last write of its key gets what it would have got behind it, at the key's home: reads of the home are answered on the connection
//! of the writes.

use std::time::Duration;

use mbal_wire::{
    Chunk, Get, Meta, Request, Storage, Verb, parse_u64, push_u64, push_value, words_of,
};

/// A copy's item lives for so many seconds at most: what a proxy leaves behind goes by itself.
const COPY_SECONDS_MAX: i64 = 60;

/// A longer value is not kept in the proxy's own cache.
pub(crate) const KEPT_BYTES_MAX: usize = 64 << 10;
/// A longer time to live is a moment of the calendar.
const RELATIVE_SECONDS_MAX: i64 = 60 * 60 * 24 * 30;
/// Servers refuse longer ones.
const OPAQUE_BYTES_MAX: usize = 32;

/// An item in the proxy's own cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub flags: u32,
    pub value: Vec<u8>,
}

/// True if a copy shows all that the request asks for, and nothing changes by it.
pub(crate) fn is_plain(request: &Request<'_>) -> bool {
    let plain = |meta: &Meta<'_>| meta.words().all(|word| b"vfkOqs".contains(&word[0]));
    match request {
        Request::Get(get) => !get.cas && get.touch.is_none(),
        Request::MetaGet(meta) => plain(meta),
        _ => false,
    }
}

/// How a read is answered.
#[derive(Debug)]
pub(crate) enum Shape {
    Get,
    /// `mg` with these flag words.
    Meta(Box<[u8]>),
}

impl Shape {
    /// `None`: its home answers it. A `get` of several keys is asked as a whole.
    pub fn of(request: &Request<'_>) -> Option<Shape> {
        let is_known = |word: &[u8]| word[0] != b'O' || word.len() <= 1 + OPAQUE_BYTES_MAX;
        match request {
            _ if !is_plain(request) => None,
            Request::Get(Get { further, .. }) => further.is_empty().then_some(Shape::Get),
            Request::MetaGet(meta) => {
                meta.words().all(is_known).then(|| Shape::Meta(meta.words.into()))
            }
            _ => None,
        }
    }

    /// Appends the reply; a miss, if there is nothing.
    pub fn push(&self, out: &mut Vec<u8>, key: &[u8], kept: Option<&Kept>) {
        match (self, kept) {
            (Shape::Get, None) => out.extend_from_slice(b"END\r\n"),
            (Shape::Get, Some(Kept { flags, value })) => {
                push_value(out, key, *flags, value.len() as u32, None);
                for part in [value, &b"\r\nEND\r\n"[..]] {
                    out.extend_from_slice(part);
                }
            }
            (Shape::Meta(words), None) => {
                if words_of(words).all(|word| word[0] != b'q') {
                    out.extend_from_slice(b"EN\r\n");
                }
            }
            (Shape::Meta(words), Some(kept)) => push_meta(out, key, kept, words),
        }
    }
}

/// Appends the reply to `mg`. Flags come in the order of the request.
fn push_meta(out: &mut Vec<u8>, key: &[u8], Kept { flags, value }: &Kept, words: &[u8]) {
    let shows_value = words_of(words).any(|word| word[0] == b'v');
    match shows_value {
        true => {
            out.extend_from_slice(b"VA ");
            push_u64(out, value.len() as u64);
        }
        false => out.extend_from_slice(b"HD"),
    }
    for word in words_of(words) {
        if b"fskO".contains(&word[0]) {
            out.extend_from_slice(&[b' ', word[0]]);
        }
        match word[0] {
            b'f' => push_u64(out, u64::from(*flags)),
            b's' => push_u64(out, value.len() as u64),
            b'k' => out.extend_from_slice(key),
            b'O' => out.extend_from_slice(&word[1..]),
            _ => {}
        }
    }
    out.extend_from_slice(b"\r\n");
    if shows_value {
        for part in [value, &b"\r\n"[..]] {
            out.extend_from_slice(part);
        }
    }
}

/// What a request writes, and for how many seconds it is kept: a whole value under no condition. The time that it lives has to be
/// known here.
pub(crate) fn written(request: &Request<'_>) -> Option<(Kept, i64)> {
    let is_plain = |meta: &Meta<'_>| meta.words().all(|word| b"FTkOq".contains(&word[0]));
    let (flags, exptime, chunk) = match *request {
        Request::Store(Storage { verb: Verb::Set, flags, exptime, chunk, .. }) => {
            (flags, exptime, chunk)
        }
        Request::MetaSet(meta, chunk) if is_plain(&meta) => {
            (meta.client_flags, meta.exptime.into(), chunk)
        }
        _ => return None,
    };
    let seconds = match exptime {
        0 => COPY_SECONDS_MAX,
        2..=RELATIVE_SECONDS_MAX => (exptime - 1).min(COPY_SECONDS_MAX),
        _ => return None,
    };
    match chunk {
        Chunk::Value(value) if value.len() <= KEPT_BYTES_MAX => {
            Some((Kept { flags, value: value.into() }, seconds))
        }
        _ => None,
    }
}

/// What a fill has brought.
pub(crate) struct Item<'a> {
    pub flags: u32,
    /// That a copy of it lives.
    pub seconds: i64,
    pub value: &'a [u8],
}

impl<'a> Item<'a> {
    /// A copy of it.
    pub fn lives(&self) -> Duration {
        Duration::from_secs(self.seconds as u64)
    }

    /// `VA LENGTH fFLAGS tSECONDS`, and the value.
    pub fn parse(reply: &'a [u8]) -> Option<Item<'a>> {
        let end = memchr::memchr(b'\n', reply)?;
        let line = std::str::from_utf8(reply[..end].strip_prefix(b"VA ")?).ok()?;
        let mut words = line.split_ascii_whitespace();
        let value_bytes = parse_u64(words.next()?.as_bytes())? as usize;
        let flags = words.next()?.strip_prefix('f')?.parse().ok()?;
        let seconds: i64 = words.next()?.strip_prefix('t')?.parse().ok()?;
        // An item that is stale, or waits for somebody who won it, is no value to copy.
        if words.next().is_some() {
            return None;
        }
        let seconds =
            if seconds < 0 { COPY_SECONDS_MAX } else { (seconds - 1).min(COPY_SECONDS_MAX) };
        Some(Item { flags, seconds, value: reply.get(end + 1..end + 1 + value_bytes)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_as_a_servers() {
        let kept = Kept { flags: 7, value: b"abc".to_vec() };
        let meta = |words: &str| Shape::Meta(words.as_bytes().into());
        for (shape, hit, miss) in [
            (Shape::Get, "VALUE key 7 3\r\nabc\r\nEND\r\n", "END\r\n"),
            (meta("v"), "VA 3\r\nabc\r\n", "EN\r\n"),
            (meta("k f v s Oxy q"), "VA 3 kkey f7 s3 Oxy\r\nabc\r\n", ""),
            (meta("s q"), "HD s3\r\n", ""),
            (meta(""), "HD\r\n", "EN\r\n"),
        ] {
            let said = |kept| {
                let mut out = Vec::new();
                shape.push(&mut out, b"key", kept);
                String::from_utf8(out).expect("text")
            };
            assert_eq!((said(Some(&kept)).as_str(), said(None).as_str()), (hit, miss));
        }
    }
}
