//! The classic commands.

use mbal_model::KEY_BYTES_MAX;
use memchr::memchr;

use crate::line::{LINE_BYTES_MAX, answer, done, next_word};
use crate::number::{parse_i32, parse_u32, parse_u64};
use crate::request::{Chunk, Direction, Get, Limits, Parsed, Request, Storage, Tokens, Verb};

pub(crate) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
/// What memcached takes of a name and a password.
const LOGIN_BYTES_MAX: usize = 16 << 10;
/// Before the line feed: memcached closes where less than a login can be there.
const LOGIN_LINE_BYTES_MIN: usize = 6;
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";

/// An answer, or silence for those who asked for it.
fn quiet(noreply: bool, line: &'static str) -> Request<'static> {
    if noreply { Request::Silence } else { Request::Answer(line) }
}

pub(crate) fn gat(rest: &[u8], cas: bool) -> Request<'_> {
    let Some((exptime, keys)) = next_word(rest) else {
        return Request::Answer("ERROR");
    };
    match parse_i32(exptime) {
        Some(exptime) => Request::Get(Get::new(keys, cas, Some(exptime))),
        None => Request::Answer(BAD_EXPTIME),
    }
}

pub(crate) fn store<'a>(
    tokens: Tokens<'a>,
    input: &'a [u8],
    bytes: usize,
    limits: &Limits,
) -> Parsed<'a> {
    let mut words = [&[][..]; 7];
    for (slot, word) in words.iter_mut().zip(tokens.iter()) {
        *slot = word;
    }
    let [command, key, flags, exptime, value_bytes, cas, _] = words;
    let verb = match command {
        b"set" => Verb::Set,
        b"add" => Verb::Add,
        b"replace" => Verb::Replace,
        b"append" => Verb::Append,
        b"prepend" => Verb::Prepend,
        _ => Verb::Cas,
    };
    let least = if verb == Verb::Cas { 6 } else { 5 };
    if tokens.count < least || tokens.count > least + 1 {
        return answer("ERROR", bytes);
    }
    let noreply = words[tokens.count - 1] == b"noreply";
    let bad_format = || done(quiet(noreply, BAD_FORMAT), bytes);
    if key.len() > KEY_BYTES_MAX {
        return bad_format();
    }
    let (Some(flags), Some(exptime), Some(value_bytes)) =
        (parse_u32(flags), parse_i32(exptime), parse_i32(value_bytes))
    else {
        return bad_format();
    };
    let cas = match verb {
        Verb::Cas => match parse_u64(cas) {
            Some(cas) => cas,
            None => return bad_format(),
        },
        _ => 0,
    };
    let Some(value_bytes) = value_length(value_bytes) else {
        return bad_format();
    };
    if limits.too_large(key.len(), flags, value_bytes) {
        let remove = verb == Verb::Set;
        let request = Request::TooLarge { key, base64: false, remove, noreply };
        return Parsed::Request { request, bytes, skip: value_bytes + 2 };
    }
    let Some((chunk, bytes)) = chunk(input, bytes, value_bytes) else {
        return Parsed::NeedMore { bytes: bytes + value_bytes + 2 };
    };
    let exptime = exptime.into();
    let storage = Storage { verb, key, flags, exptime, cas, chunk, noreply };
    done(Request::Store(storage), bytes)
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

pub(crate) fn arithmetic(tokens: Tokens<'_>) -> Request<'_> {
    if tokens.count != 3 && tokens.count != 4 {
        return Request::Answer("ERROR");
    }
    let noreply = tokens.noreply();
    let key = tokens.get(1);
    if key.len() > KEY_BYTES_MAX {
        return quiet(noreply, BAD_FORMAT);
    }
    let Some(delta) = parse_u64(tokens.get(2)) else {
        return quiet(noreply, "CLIENT_ERROR invalid numeric delta argument");
    };
    let direction =
        if tokens.get(0) == b"incr" { Direction::Increment } else { Direction::Decrement };
    Request::Arithmetic { key, direction, delta, noreply }
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
    let Some(value_bytes) = parse_u32(tokens.get(4)).filter(|_| line.starts_with(b"set")) else {
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

pub(crate) fn delete(tokens: Tokens<'_>) -> Request<'_> {
    if tokens.count < 2 || tokens.count > 4 {
        return Request::Answer("ERROR");
    }
    let key = tokens.get(1);
    let mut noreply = false;
    if tokens.count > 2 {
        noreply = tokens.noreply();
        let hold_is_zero = tokens.get(2) == b"0";
        let valid = match tokens.count {
            3 => hold_is_zero || noreply,
            _ => hold_is_zero && noreply,
        };
        if !valid {
            return quiet(
                noreply,
                "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]",
            );
        }
    }
    if key.len() > KEY_BYTES_MAX {
        return quiet(noreply, BAD_FORMAT);
    }
    Request::Delete { key, noreply }
}

pub(crate) fn touch(tokens: Tokens<'_>) -> Request<'_> {
    if tokens.count != 3 && tokens.count != 4 {
        return Request::Answer("ERROR");
    }
    let noreply = tokens.noreply();
    let key = tokens.get(1);
    if key.len() > KEY_BYTES_MAX {
        return quiet(noreply, BAD_FORMAT);
    }
    match parse_i32(tokens.get(2)) {
        Some(exptime) => Request::Touch { key, exptime, noreply },
        None => quiet(noreply, BAD_EXPTIME),
    }
}
