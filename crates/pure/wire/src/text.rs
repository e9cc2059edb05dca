//! The classic commands.

use mbal_model::KEY_BYTES_MAX;
use memchr::memchr;

use crate::number::{is_space, parse_i32, parse_u32, word_i32, word_u32, word_u64};
use crate::request::{Chunk, Direction, Get, Limits, Parsed, Request, Storage, Verb, answer, done};
use crate::words::{BAD_FORMAT, LINE_BYTES_MAX, TOKENS_MAX, Tokens, next_word};

/// What memcached takes of a name and a password.
const LOGIN_BYTES_MAX: usize = 16 << 10;
/// Before the line feed: memcached closes where less than a login can be there.
const LOGIN_LINE_BYTES_MIN: usize = 6;
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";

/// An answer, or silence for those who asked for it.
pub(crate) fn quiet(noreply: bool, line: &'static str) -> Request<'static> {
    if noreply { Request::Silence } else { Request::Answer(line) }
}

/// `gat` and `gats`.
pub(crate) fn gat(rest: &[u8], cas: bool) -> Request<'_> {
    let words = next_word(rest).and_then(|(exptime, keys)| Some((exptime, keys, next_word(keys)?)));
    let Some((exptime, keys, _)) = words else {
        return Request::Answer(BAD_FORMAT);
    };
    match word_i32(exptime) {
        Some(exptime) => Request::Get(Get::new(keys, cas, Some(exptime))),
        None => Request::Answer(BAD_EXPTIME),
    }
}

/// `rest` is what follows the command. As soon as the value's length is known, whatever is wrong with the rest of
/// the line, the value is skipped.
pub(crate) fn store<'a>(
    verb: Verb,
    rest: &'a [u8],
    input: &'a [u8],
    bytes: usize,
    limits: &Limits,
) -> Parsed<'a> {
    let words = || {
        let (key, from_flags) = next_word(rest)?;
        let flags = next_word(from_flags)?;
        let exptime = next_word(flags.1)?;
        let (value_bytes, rest) = next_word(exptime.1)?;
        let value_bytes = word_i32(value_bytes).and_then(value_length)?;
        Some((key, flags, exptime, value_bytes, rest))
    };
    let Some((key, flags, exptime, value_bytes, rest)) = words() else {
        return answer(BAD_FORMAT, bytes);
    };
    let noreply = is_quiet(&[], rest, 5);
    let cas = match verb {
        Verb::Cas => next_word(rest).and_then(|(cas, _)| word_u64(cas)),
        _ => Some(0),
    };
    let numbers = (parse_u32(c_word(flags)), parse_i32(c_word(exptime)), cas);
    let skip = value_bytes + 2;
    let (Some(flags), Some(exptime), Some(cas), true) =
        (numbers.0, numbers.1, numbers.2, key.len() <= KEY_BYTES_MAX)
    else {
        return Parsed::Request { request: quiet(noreply, BAD_FORMAT), bytes, skip };
    };
    if limits.too_large(key.len(), flags, value_bytes) {
        let remove = verb == Verb::Set;
        let request = Request::TooLarge { key, base64: false, remove, noreply };
        return Parsed::Request { request, bytes, skip };
    }
    let Some((chunk, bytes)) = chunk(input, bytes, value_bytes) else {
        return Parsed::NeedMore { bytes: bytes + skip };
    };
    let exptime = exptime.into();
    let storage = Storage { verb, key, flags, exptime, cas, chunk, noreply };
    done(Request::Store(storage), bytes)
}

/// What memcached looks at to find out whether an answer is wanted is the last word of a line: the one `before` the
/// rest, which is word number `count`, if nothing follows.
fn is_quiet(before: &[u8], rest: &[u8], count: usize) -> bool {
    let words = rest.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let last = if rest.is_empty() { None } else { words.take(TOKENS_MAX - count).last() };
    last.unwrap_or(before) == b"noreply"
}

/// The word that `strtol` finds where `word` is, with the rest of the line behind it: one of white space alone does not hold it up.
#[inline]
fn c_word<'a>((mut word, mut rest): (&'a [u8], &'a [u8])) -> &'a [u8] {
    while word.iter().all(|byte| is_space(*byte)) {
        let Some(next) = next_word(rest) else { return &[] };
        (word, rest) = next;
    }
    word
}

/// memcached adds the line end's two bytes in an `int`.
pub(crate) fn value_length(value_bytes: i32) -> Option<usize> {
    usize::try_from(value_bytes).ok().filter(|_| value_bytes <= i32::MAX - 2)
}

/// The value at `bytes`, and where the request ends; `None` if it has not all arrived.
pub(crate) fn chunk(input: &[u8], bytes: usize, value_bytes: usize) -> Option<(Chunk<'_>, usize)> {
    let end = bytes + value_bytes;
    let tail = input.get(end..end + 2)?;
    let chunk = if tail == b"\r\n" { Chunk::Value(&input[bytes..end]) } else { Chunk::Bad };
    Some((chunk, end + 2))
}

/// Words beyond those that a command knows say nothing, but that the last of all may be `noreply`.
pub(crate) fn arithmetic(direction: Direction, rest: &[u8]) -> Request<'_> {
    let Some((key, noreply, delta)) = key_and_word(rest) else {
        return Request::Answer(BAD_FORMAT);
    };
    if key.len() > KEY_BYTES_MAX {
        return quiet(noreply, BAD_FORMAT);
    }
    match word_u64(delta) {
        Some(delta) => Request::Arithmetic { key, direction, delta, noreply },
        None => quiet(noreply, "CLIENT_ERROR invalid numeric delta argument"),
    }
}

/// A key, whether an answer is unwanted, and the word behind the key.
fn key_and_word(rest: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    let (key, rest) = next_word(rest)?;
    let (word, rest) = next_word(rest)?;
    Some((key, is_quiet(word, rest, 3), word))
}

/// `-Y`: until somebody has logged in, all that is understood is a `set` whose value is a name, a blank and
/// a password; its key, flags and exptime say nothing. A line too short to be one is not a client's.
pub(crate) fn login(input: &[u8]) -> Parsed<'_> {
    if input.len() < 3 {
        return Parsed::NeedMore { bytes: 3 };
    }
    let end = match memchr(b'\n', input) {
        Some(..LOGIN_LINE_BYTES_MIN) => return Parsed::Close,
        Some(end) => end,
        None if input.len() <= LINE_BYTES_MAX => return Parsed::NeedMore { bytes: 0 },
        None => return Parsed::Close,
    };
    let bytes = end + 1;
    let line = &input[..end];
    let tokens = Tokens::new(line.strip_suffix(b"\r").unwrap_or(line));
    let Some(value_bytes) = word_u32(tokens.get(4)).filter(|_| line.starts_with(b"set")) else {
        return answer("CLIENT_ERROR unauthenticated", bytes);
    };
    let value_bytes = value_bytes as usize;
    if value_bytes > LOGIN_BYTES_MAX {
        return answer("CLIENT_ERROR auth token too long", bytes);
    }
    let Some((chunk, bytes)) = chunk(input, bytes, value_bytes) else {
        return Parsed::NeedMore { bytes: bytes + value_bytes + 2 };
    };
    let Chunk::Value(value) = chunk else {
        return answer("CLIENT_ERROR bad command line termination", bytes);
    };
    let Some(blank) = memchr(b' ', value) else {
        return answer("CLIENT_ERROR bad authentication token format", bytes);
    };
    done(Request::Login { user: &value[..blank], password: &value[blank + 1..] }, bytes)
}

pub(crate) fn delete(rest: &[u8]) -> Request<'_> {
    let Some((key, rest)) = next_word(rest) else {
        return Request::Answer(BAD_FORMAT);
    };
    let noreply = is_quiet(key, rest, 2);
    if key.len() > KEY_BYTES_MAX {
        return quiet(noreply, BAD_FORMAT);
    }
    Request::Delete { key, noreply }
}

pub(crate) fn touch(rest: &[u8]) -> Request<'_> {
    let Some((key, noreply, exptime)) = key_and_word(rest) else {
        return Request::Answer(BAD_FORMAT);
    };
    if key.len() > KEY_BYTES_MAX {
        return quiet(noreply, BAD_FORMAT);
    }
    match word_i32(exptime) {
        Some(exptime) => Request::Touch { key, exptime, noreply },
        None => quiet(noreply, BAD_EXPTIME),
    }
}
