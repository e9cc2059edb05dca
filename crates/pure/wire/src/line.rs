//! From bytes to a line, and from its first word to whoever knows the rest.

use memchr::memchr;

use crate::request::{Direction, Get, Limits, Login, Parsed, Request, Verb, answer, done};
use crate::words::{BAD_FORMAT, LINE_BYTES_MAX, Tokens, find_blank};
use crate::{admin, meta_request, text};

/// A `get` or `gets` is bounded here, which memcached leaves unbounded.
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
        return answer(BAD_FORMAT, bytes);
    }
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    // The command begins the line; behind a blank, only what `admin` knows is understood.
    let (command, rest) = match find_blank(line) {
        Some(end) => (&line[..end], &line[end + 1..]),
        None => (line, &[][..]),
    };
    match command {
        b"mg" => done(meta_request::get(rest), bytes),
        b"get" => done(get(rest, false), bytes),
        b"ms" => meta_request::set(rest, input, bytes, limits),
        b"md" => done(meta_request::delete(rest), bytes),
        b"ma" => done(meta_request::arithmetic(rest), bytes),
        b"mn" => done(Request::MetaNoop, bytes),
        b"me" => done(meta_request::debug(rest), bytes),
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
    if get.first.is_empty() { Request::Answer(BAD_FORMAT) } else { Request::Get(get) }
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
