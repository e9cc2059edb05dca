//! The meta commands: one line of single-letter flags, some with an argument.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{KEY_BYTES_MAX, MapVersion};

use crate::base64::base64_decode;
use crate::line::{answer, done, next_word};
use crate::number::{parse_i32, parse_u32, parse_u64};
use crate::request::{Limits, Parsed, Request};
use crate::text::{BAD_FORMAT, chunk, value_length};

/// An opaque token, its letter included.
const OPAQUE_BYTES_MAX: usize = 32;

/// Words of a meta command, the command included.
const WORDS_MAX: usize = 19;

const INVALID_OR_DUPLICATE: &str = "CLIENT_ERROR invalid or duplicate flag";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";

/// The letters that stand on a command, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaFlags(u64);

impl MetaFlags {
    const fn bit(letter: u8) -> u64 {
        1 << (letter & 63)
    }

    const fn of(letters: &[u8]) -> MetaFlags {
        let (mut set, mut at) = (0, 0);
        while at < letters.len() {
            set |= MetaFlags::bit(letters[at]);
            at += 1;
        }
        MetaFlags(set)
    }

    /// True if `letter` (ASCII 64 to 126) is on the command.
    #[inline]
    pub const fn has(self, letter: u8) -> bool {
        self.0 & MetaFlags::bit(letter) != 0
    }
}

/// memcached 1.6.18's letters, and those of them that it parses but ignores: `P`, and `L`, by
/// which a smart client says its map version.
const KNOWN: MetaFlags = MetaFlags::of(b"bNTRlOPLkstcfvhuqFCMJDI");

/// A meta command's key and flags. A number is 0 (the delta 1) unless its letter is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<'a> {
    /// As it was sent: in base64 if there is a `b`.
    pub key: &'a [u8],
    /// The flag words, in the order in which the reply repeats them.
    pub words: &'a [u8],
    pub flags: MetaFlags,
    /// The letter of `M`, or 0.
    pub mode: u8,
    /// `T`, an exptime.
    pub exptime: i32,
    /// `N`, an exptime.
    pub vivify: i32,
    /// `R`, an exptime.
    pub recache: i32,
    /// `F`.
    pub client_flags: u32,
    /// `C`.
    pub cas: u64,
    /// `D`.
    pub delta: u64,
    /// `J`.
    pub initial: u64,
}

impl<'a> Meta<'a> {
    /// The flag words: a letter and perhaps its argument each.
    #[inline]
    pub fn words(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.words;
        std::iter::from_fn(move || {
            let (word, tail) = next_word(rest)?;
            rest = tail;
            Some(word)
        })
    }

    /// True if its `L` is a smart client's; any other is ignored, as memcached does.
    #[cold]
    pub(crate) fn names_a_version(&self) -> bool {
        self.words().any(|word| word[0] == b'L' && MapVersion::parse(&word[1..]).is_some())
    }
}

/// Why a command is refused: a line without its end.
type Refusal = &'static str;

/// The key and what follows it, or why not.
fn key(rest: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    let (key, rest) = next_word(rest).ok_or("ERROR")?;
    if key.len() > KEY_BYTES_MAX { Err(BAD_FORMAT) } else { Ok((key, rest)) }
}

fn too_many(words: &[u8], before: usize) -> bool {
    words.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).count() + before > WORDS_MAX
}

fn flags<'a>(key: &'a [u8], words: &'a [u8]) -> Result<Meta<'a>, Refusal> {
    let mut meta = Meta {
        key,
        words,
        flags: MetaFlags::default(),
        mode: 0,
        exptime: 0,
        vivify: 0,
        recache: 0,
        client_flags: 0,
        cas: 0,
        delta: 1,
        initial: 0,
    };
    // Every word is looked at before the command is refused, and the last reason is told; only a
    // duplicate or an unknown letter ends it at once.
    let mut refused = false;
    let mut reason = BAD_FORMAT;
    let mut refuse = |why: Option<Refusal>| {
        refused = true;
        if let Some(why) = why {
            reason = why;
        }
    };
    for word in meta.words() {
        let letter = word[0];
        if letter >= 127 {
            return Err("CLIENT_ERROR duplicate flag");
        }
        if letter < 64 {
            return Err("CLIENT_ERROR invalid flag");
        }
        if meta.flags.has(letter) {
            return Err("CLIENT_ERROR duplicate flag");
        }
        if !KNOWN.has(letter) {
            return Err("CLIENT_ERROR invalid flag");
        }
        meta.flags.0 |= MetaFlags::bit(letter);
        let argument = &word[1..];
        match letter {
            b'b' if base64_decode(key, &mut [0; KEY_BYTES_MAX]).is_none()
                && !is_planted(Fault::Base64Unchecked) =>
            {
                refuse(Some("CLIENT_ERROR error decoding key"));
            }
            b'N' | b'T' | b'R' => {
                let target = match letter {
                    b'N' => &mut meta.vivify,
                    b'T' => &mut meta.exptime,
                    _ => &mut meta.recache,
                };
                match parse_i32(argument) {
                    Some(exptime) => *target = exptime,
                    None => refuse(Some(BAD_TOKEN)),
                }
            }
            b'F' => match parse_u32(argument) {
                Some(flags) => meta.client_flags = flags,
                None => refuse(None),
            },
            b'C' => match parse_u64(argument) {
                Some(cas) => meta.cas = cas,
                None => refuse(Some(BAD_TOKEN)),
            },
            b'M' => match argument {
                [mode] => meta.mode = *mode,
                _ => refuse(Some("CLIENT_ERROR incorrect length for M token")),
            },
            b'J' => match parse_u64(argument) {
                Some(initial) => meta.initial = initial,
                None => refuse(Some("CLIENT_ERROR invalid numeric initial value")),
            },
            b'D' => match parse_u64(argument) {
                Some(delta) => meta.delta = delta,
                None => refuse(Some("CLIENT_ERROR invalid numeric delta value")),
            },
            _ => {}
        }
    }
    if refused { Err(reason) } else { Ok(meta) }
}

/// Key and flags of `mg`, `md` and `ma`; the number of words is looked at first.
fn command<'a>(rest: &'a [u8], too_long: Refusal) -> Result<Meta<'a>, Refusal> {
    let (key, words) = key(rest)?;
    // Words are at least two bytes with their blank, so a short line cannot have too many.
    if words.len() > 2 * (WORDS_MAX - 2) - 2 && too_many(words, 2) {
        return Err(too_long);
    }
    flags(key, words)
}

pub(crate) fn get(rest: &[u8]) -> Request<'_> {
    match command(rest, "CLIENT_ERROR options flags are too long") {
        Ok(meta) => Request::MetaGet(meta),
        Err(refusal) => Request::Answer(refusal),
    }
}

/// `md` and `ma` do not say which flag they dislike.
fn vaguely<'a>(rest: &'a [u8], request: impl Fn(Meta<'a>) -> Request<'a>) -> Request<'a> {
    const TOO_LONG: &str = "CLIENT_ERROR options flags too long";
    let (key, words) = match key(rest) {
        Ok(found) => found,
        Err(refusal) => return Request::Answer(refusal),
    };
    if too_many(words, 2) {
        return Request::Answer(TOO_LONG);
    }
    flags(key, words).map_or(Request::Answer(INVALID_OR_DUPLICATE), request)
}

pub(crate) fn delete(rest: &[u8]) -> Request<'_> {
    vaguely(rest, Request::MetaDelete)
}

pub(crate) fn arithmetic(rest: &[u8]) -> Request<'_> {
    vaguely(rest, Request::MetaArithmetic)
}

pub(crate) fn debug(rest: &[u8]) -> Request<'_> {
    let Some((key, rest)) = next_word(rest).filter(|(key, _)| key.len() <= KEY_BYTES_MAX) else {
        return Request::Answer(BAD_FORMAT);
    };
    let base64 = next_word(rest).is_some_and(|(word, _)| word == b"b");
    if base64 && base64_decode(key, &mut [0; KEY_BYTES_MAX]).is_none() {
        return Request::Answer(BAD_FORMAT);
    }
    Request::MetaDebug { key, base64 }
}

pub(crate) fn set<'a>(
    rest: &'a [u8],
    input: &'a [u8],
    bytes: usize,
    limits: &Limits,
) -> Parsed<'a> {
    let (key, rest) = match key(rest) {
        Ok(found) => found,
        Err(refusal) => return answer(refusal, bytes),
    };
    let Some((value_bytes, words)) = next_word(rest) else {
        return answer(BAD_FORMAT, bytes);
    };
    if too_many(words, 3) {
        return answer("CLIENT_ERROR options flags too long", bytes);
    }
    let Some(value_bytes) = parse_i32(value_bytes).and_then(value_length) else {
        return answer(BAD_FORMAT, bytes);
    };
    let skip = value_bytes + 2;
    let meta = match flags(key, words).and_then(storable) {
        Ok(meta) => meta,
        Err(refusal) => return Parsed::Request { request: Request::Answer(refusal), bytes, skip },
    };
    let base64 = meta.flags.has(b'b');
    let key_bytes = if base64 { decoded_length(key) } else { key.len() };
    if limits.too_large(key_bytes, meta.client_flags, value_bytes) {
        let request = Request::TooLarge { key, base64, remove: true, noreply: false };
        return Parsed::Request { request, bytes, skip };
    }
    match chunk(input, bytes, value_bytes) {
        Some((chunk, bytes)) => done(Request::MetaSet(meta, chunk), bytes),
        None => Parsed::NeedMore { bytes: bytes + skip },
    }
}

/// What `ms` refuses before it reads the value.
fn storable(meta: Meta<'_>) -> Result<Meta<'_>, Refusal> {
    if !matches!(meta.mode, 0 | b'E' | b'A' | b'P' | b'R' | b'S') {
        return Err("CLIENT_ERROR invalid mode for ms M token");
    }
    if meta.flags.has(b'O') && meta.words().any(opaque_too_long) {
        return Err("CLIENT_ERROR opaque token too long");
    }
    Ok(meta)
}

/// True for an `O` word over [`OPAQUE_BYTES_MAX`].
pub fn opaque_too_long(word: &[u8]) -> bool {
    word[0] == b'O' && word.len() > OPAQUE_BYTES_MAX
}

fn decoded_length(key: &[u8]) -> usize {
    base64_decode(key, &mut [0; KEY_BYTES_MAX]).unwrap_or(0)
}
