//! The flags of meta commands: single letters, some with an argument.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{KEY_BYTES_MAX, MapVersion, ReplicaVersion};

use crate::base64::base64_decode;
use crate::number::{word_i32, word_u32, word_u64};
use crate::words::{BAD_FORMAT, TOKENS_MAX, next_word, words_of};

/// An opaque token, its letter included.
const OPAQUE_BYTES_MAX: usize = 32;

/// Words of a meta command, the command included.
const WORDS_MAX: usize = 20;

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

/// memcached 1.6.45's letters, any of them on any command, and those of them that it parses but ignores: `P`, and
/// `L`, by which a smart client says its map version.
const KNOWN: MetaFlags = MetaFlags::of(b"bNTRlOPLkstcfvhuqxFCEMJDI");

/// A meta command's key and flags. A number is 0 (the delta 1) unless its letter is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<'a> {
    /// As it was sent: in base64 if there is a `b`.
    pub key: &'a [u8],
    /// The flag words, in the order in which the reply repeats them.
    pub words: &'a [u8],
    pub flags: MetaFlags,
    /// The byte behind `M`, or 0.
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
    /// `E`: the cas that the item is to have.
    pub new_cas: u64,
    /// `D`.
    pub delta: u64,
    /// `J`.
    pub initial: u64,
}

/// With one of these a get may change its item: it makes or touches it, wins its recache, or gives it a cas.
const GET_WRITES: MetaFlags = MetaFlags::of(b"NTRE");

impl<'a> Meta<'a> {
    /// Whether this, the `mg`, may change its item.
    #[inline]
    pub fn get_writes(&self) -> bool {
        self.flags.0 & GET_WRITES.0 != 0
    }

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

    /// What its `L` says that a smart client knows; any other `L` is ignored, as memcached does.
    #[cold]
    pub fn version(&self) -> Option<MapVersion> {
        let word = self.words().find(|word| word[0] == b'L')?;
        let version = &word[1..];
        MapVersion::parse(memchr::memchr(b'*', version).map_or(version, |end| &version[..end]))
    }

    /// It reads a copy, by a lease: a `*` behind its version says so, and what its client has seen may stand behind that.
    #[cold]
    pub fn by_lease(&self) -> Option<ReplicaVersion> {
        let word = self.words().find(|word| word[0] == b'L')?;
        let seen = &word[memchr::memchr(b'*', word)? + 1..];
        if seen.is_empty() { Some(ReplicaVersion::default()) } else { ReplicaVersion::parse(seen) }
    }

    /// The cas that the item is to have, if the client chose one.
    #[inline]
    pub fn chosen_cas(&self) -> Option<u64> {
        self.flags.has(b'E').then_some(self.new_cas)
    }
}

/// Why a command is refused: a line without its end.
type Refusal = &'static str;

/// A command whose key or flags are refused, with the value that may follow its line.
pub(crate) struct Refused {
    pub reason: Refusal,
    /// The line is no command at all: its value, if any, is read as a line.
    pub is_unread: bool,
}

/// True if memcached finds in a flag's place what cannot be one, and so does not read the line.
pub(crate) fn is_no_flag(word: &[u8]) -> bool {
    !matches!(word[0], b'A'..=b'z' | b'0'..=b'9')
}

/// Key and flags; `before` is how many words the line has before its flags.
#[inline]
pub(crate) fn command<'a>(
    key: &'a [u8],
    words: &'a [u8],
    before: usize,
) -> Result<Meta<'a>, Refused> {
    // Flags are at least two bytes with their blank, so a short line cannot have too many.
    let few = words.len() <= 2 * (WORDS_MAX - before) - 2;
    if key.len() > KEY_BYTES_MAX || !few && words_of(words).count() + before > WORDS_MAX {
        return Err(refuse(key, words, before));
    }
    flags(key, words).map_err(|_| refuse(key, words, before))
}

/// Why a command is refused, in the order in which memcached looks.
#[cold]
fn refuse(key: &[u8], words: &[u8], before: usize) -> Refused {
    if words_of(words).take(TOKENS_MAX - before).any(is_no_flag) {
        return Refused { reason: BAD_FORMAT, is_unread: true };
    }
    let reason = if key.len() > KEY_BYTES_MAX {
        BAD_FORMAT
    } else if words_of(words).count() + before > WORDS_MAX {
        "CLIENT_ERROR options flags are too long"
    } else {
        flags(key, words).expect_err("it was refused")
    };
    Refused { reason, is_unread: false }
}

// Its result is a hundred bytes, which a call would copy once more for each `mg`.
#[inline(always)]
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
        new_cas: 0,
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
        // A digit is no known flag either; other bytes below 64, or above 127, make no command.
        if !(64..128).contains(&letter) {
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
                match word_i32(argument) {
                    Some(exptime) => *target = exptime,
                    None => refuse(Some(BAD_TOKEN)),
                }
            }
            b'F' => match word_u32(argument) {
                Some(flags) => meta.client_flags = flags,
                None => refuse(None),
            },
            b'C' | b'E' => {
                let target = if letter == b'C' { &mut meta.cas } else { &mut meta.new_cas };
                match word_u64(argument) {
                    Some(cas) => *target = cas,
                    None => refuse(Some(BAD_TOKEN)),
                }
            }
            // Of a longer word memcached takes the first byte, and of none at all the blank.
            b'M' => meta.mode = argument.first().copied().unwrap_or(b' '),
            b'J' => match word_u64(argument) {
                Some(initial) => meta.initial = initial,
                None => refuse(Some("CLIENT_ERROR invalid numeric initial value")),
            },
            b'D' => match word_u64(argument) {
                Some(delta) => meta.delta = delta,
                None => refuse(Some("CLIENT_ERROR invalid numeric delta value")),
            },
            _ => {}
        }
    }
    if refused { Err(reason) } else { Ok(meta) }
}

/// True for an `O` word over [`OPAQUE_BYTES_MAX`].
pub fn opaque_too_long(word: &[u8]) -> bool {
    word[0] == b'O' && word.len() > OPAQUE_BYTES_MAX
}
