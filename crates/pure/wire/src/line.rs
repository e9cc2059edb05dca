//! From bytes to a line, and from its first word to whoever knows the rest.

use memchr::{memchr, memchr2};

use crate::request::{Get, Limits, Login, Parsed, Request, Tokens};
use crate::{admin, meta, text};

/// A line that has not ended after so many bytes is not a client's, unless it is a `get`.
pub const LINE_BYTES_MAX: usize = 2048;

/// The same for `get` and `gets`, which memcached leaves unbounded.
pub const GET_LINE_BYTES_MAX: usize = 4 << 20;

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
    let found = memchr2(b'\n', 0, input);
    let Some(end) = found.filter(|at| input[*at] == b'\n') else {
        return without_plain_end(input, found, limits);
    };
    request(without_return(&input[..end]), input, end + 1, limits)
}

fn without_return(line: &[u8]) -> &[u8] {
    match line {
        [first @ .., b'\r'] if !first.is_empty() => first,
        _ => line,
    }
}

/// A line with a zero byte, or none at all. What follows a zero byte does not exist for
/// memcached, whose lines are C strings.
#[cold]
fn without_plain_end<'a>(input: &'a [u8], zero: Option<usize>, limits: &Limits) -> Parsed<'a> {
    let end = zero.and_then(|zero| memchr(b'\n', &input[zero..]).map(|rest| (zero, zero + rest)));
    let Some((zero, end)) = end else {
        return if may_grow(input) { Parsed::NeedMore { bytes: 0 } } else { Parsed::Close };
    };
    request(&without_return(&input[..end])[..zero], input, end + 1, limits)
}

#[inline]
fn request<'a>(line: &'a [u8], input: &'a [u8], bytes: usize, limits: &Limits) -> Parsed<'a> {
    let Some((command, rest)) = next_word(line) else {
        return answer("ERROR", bytes);
    };
    match command {
        [_] => answer("ERROR", bytes),
        b"mg" => done(meta::get(rest), bytes),
        b"get" | b"bget" => done(get(rest, false), bytes),
        b"ms" => meta::set(rest, input, bytes, limits),
        b"md" => done(meta::delete(rest), bytes),
        b"ma" => done(meta::arithmetic(rest), bytes),
        b"mn" => done(Request::MetaNoop, bytes),
        b"me" => done(meta::debug(rest), bytes),
        b"gets" => done(get(rest, true), bytes),
        b"gat" => done(text::gat(rest, false), bytes),
        b"gats" => done(text::gat(rest, true), bytes),
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
            text::store(Tokens::new(line), input, bytes, limits)
        }
        b"incr" | b"decr" => done(text::arithmetic(Tokens::new(line)), bytes),
        b"delete" => done(text::delete(Tokens::new(line)), bytes),
        b"touch" => done(text::touch(Tokens::new(line)), bytes),
        b"version" => done(Request::Version, bytes),
        b"quit" => done(Request::Quit, bytes),
        _ => match admin::parse(Tokens::new(line)) {
            Some(request) => done(request, bytes),
            None => Parsed::Close,
        },
    }
}

fn get(rest: &[u8], cas: bool) -> Request<'_> {
    let get = Get::new(rest, cas, None);
    if get.first.is_empty() { Request::Answer("ERROR") } else { Request::Get(get) }
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
    const ONES: u64 = u64::from_le_bytes([0x01; 8]);
    const TOPS: u64 = u64::from_le_bytes([0x80; 8]);
    let chunks = line.chunks_exact(8);
    let tail = chunks.remainder();
    for (at, chunk) in chunks.enumerate() {
        let chunk = chunk.try_into().expect("eight bytes");
        // A byte of `other` is zero where there is a blank.
        let other = u64::from_le_bytes(chunk) ^ u64::from_le_bytes([b' '; 8]);
        let blanks = other.wrapping_sub(ONES) & !other & TOPS;
        if blanks != 0 {
            return Some(at * 8 + blanks.trailing_zeros() as usize / 8);
        }
    }
    let start = line.len() - tail.len();
    tail.iter().position(|byte| *byte == b' ').map(|at| start + at)
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
