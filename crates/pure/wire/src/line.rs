//! From bytes to a line, and from its first word to whoever knows the rest.

use memchr::memchr;

use crate::request::{Direction, Get, Limits, Login, Parsed, Request, Tokens, Verb};
use crate::{admin, meta, text};

/// A line that has not ended after so many bytes is not a client's, unless it is a `get`.
pub const LINE_BYTES_MAX: usize = 2048;

/// The same for `get` and `gets`, which memcached leaves unbounded.
pub const GET_LINE_BYTES_MAX: usize = 4 << 20;

/// A shorter one is refused before it is looked at, its end included.
const REQUEST_BYTES_MIN: usize = 4;

/// Blanks that may stand before a long `get`.
const LEADING_BLANKS_MAX: usize = 100;

/// Looks at the start of `input` for one request, with its value if it has one.
///
/// One pass to find the line's end, one over the words; no allocation.
#[inline]
pub fn parse<'a>(input: &'a [u8], limits: &Limits) -> Parsed<'a> {
    if limits.login == Login::Needed {
        return text::login(input);
    }
    let Some(end) = memchr(b'\n', input) else {
        return if may_grow(input) { Parsed::NeedMore { bytes: 0 } } else { Parsed::Close };
    };
    request(&input[..end], input, end + 1, limits)
}

/// `line` may still have its `\r`.
#[inline]
fn request<'a>(line: &'a [u8], input: &'a [u8], bytes: usize, limits: &Limits) -> Parsed<'a> {
    if bytes < REQUEST_BYTES_MIN {
        return answer(text::BAD_FORMAT, bytes);
    }
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    // The command begins the line; behind a blank, only what `admin` knows is understood.
    let (command, rest) = match find_blank(line) {
        Some(end) => (&line[..end], &line[end + 1..]),
        None => (line, &[][..]),
    };
    match command {
        b"mg" => done(meta::get(rest), bytes),
        b"get" => done(get(rest, false), bytes),
        b"ms" => meta::set(rest, input, bytes, limits),
        b"md" => done(meta::delete(rest), bytes),
        b"ma" => done(meta::arithmetic(rest), bytes),
        b"mn" => done(Request::MetaNoop, bytes),
        b"me" => done(meta::debug(rest), bytes),
        b"gets" => done(get(rest, true), bytes),
        b"gat" => done(text::gat(rest, false), bytes),
        b"gats" => done(text::gat(rest, true), bytes),
        b"set" => text::store(Verb::Set, rest, input, bytes, limits),
        b"add" => text::store(Verb::Add, rest, input, bytes, limits),
        b"replace" => text::store(Verb::Replace, rest, input, bytes, limits),
        b"append" => text::store(Verb::Append, rest, input, bytes, limits),
        b"prepend" => text::store(Verb::Prepend, rest, input, bytes, limits),
        b"cas" => text::store(Verb::Cas, rest, input, bytes, limits),
        b"incr" => done(text::arithmetic(Direction::Increment, rest), bytes),
        b"decr" => done(text::arithmetic(Direction::Decrement, rest), bytes),
        b"delete" => done(text::delete(rest), bytes),
        b"touch" => done(text::touch(rest), bytes),
        b"version" => done(Request::Version, bytes),
        b"quit" => done(Request::Quit, bytes),
        b"stats" => done(admin::stats(line), bytes),
        b"watch" => done(admin::watch(line), bytes),
        _ => match admin::parse(Tokens::new(line)) {
            Some(request) => done(request, bytes),
            None => Parsed::Close,
        },
    }
}

fn get(rest: &[u8], cas: bool) -> Request<'_> {
    let get = Get::new(rest, cas, None);
    if get.first.is_empty() { Request::Answer(text::BAD_FORMAT) } else { Request::Get(get) }
}

/// The first word and what follows it.
#[inline]
pub fn next_word(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut start = 0;
    while line.get(start) == Some(&b' ') {
        start += 1;
    }
    let line = &line[start..];
    if line.is_empty() {
        return None;
    }
    match find_blank(line) {
        Some(end) => Some((&line[..end], &line[end + 1..])),
        None => Some((line, &[])),
    }
}

/// Eight bytes at a time: words are short, and a call to `memchr` costs more than that.
#[inline]
fn find_blank(line: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(chunk) = line[at..].first_chunk() {
        if let Some(blank) = blank_in(u64::from_le_bytes(*chunk)) {
            return Some(at + blank);
        }
        at += 8;
    }
    let left = line.len() - at;
    let last = match line.last_chunk() {
        _ if left == 0 => return None,
        Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * left),
        None => few_bytes(line),
    };
    blank_in(last).map(|blank| at + blank)
}

/// The first of eight bytes that is a blank.
#[inline(always)]
fn blank_in(bytes: u64) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([0x01; 8]);
    const TOPS: u64 = u64::from_le_bytes([0x80; 8]);
    // A byte of `other` is zero where there is a blank.
    let other = bytes ^ u64::from_le_bytes([b' '; 8]);
    let blanks = other.wrapping_sub(ONES) & !other & TOPS;
    (blanks != 0).then(|| blanks.trailing_zeros() as usize / 8)
}

/// Fewer than eight bytes, and zeros. Its halves may overlap.
#[inline(always)]
fn few_bytes(bytes: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let high = u64::from(u32::from_le_bytes(*last)) << (8 * (bytes.len() - 4));
        return u64::from(u32::from_le_bytes(*first)) | high;
    }
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

#[inline]
pub(crate) fn done(request: Request<'_>, bytes: usize) -> Parsed<'_> {
    Parsed::Request { request, bytes, skip: 0 }
}

pub(crate) fn answer(line: &'static str, bytes: usize) -> Parsed<'static> {
    done(Request::Answer(line), bytes)
}

/// False if a line that has not ended yet is not a client's.
pub fn may_grow(line: &[u8]) -> bool {
    if line.len() <= LINE_BYTES_MAX {
        return true;
    }
    let blanks = line.iter().take_while(|byte| **byte == b' ').count();
    let is_get = line[blanks..].starts_with(b"get ") || line[blanks..].starts_with(b"gets ");
    blanks <= LEADING_BLANKS_MAX && is_get && line.len() <= GET_LINE_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_is_found_wherever_it_stands() {
        let odd = [0x00, 0x1f, 0x21, 0x7f, 0x80, 0xa0, 0xff];
        for length in 0..40 {
            for at in 0..=length {
                let mut line: Vec<u8> = (0..length).map(|at| odd[at % odd.len()]).collect();
                assert_eq!(find_blank(&line), None);
                line.splice(at..at, *b" x ");
                assert_eq!(find_blank(&line), Some(at));
            }
        }
    }
}
