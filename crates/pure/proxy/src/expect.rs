//! Which replies are a request's own. An upstream that gives another one has lost count: its connection ends.

use mbal_wire::{Meta, Request, Values, Verb, is_error_reply, lone_value};

const STORED: &[u8] = b"STORED\r\n";

/// What may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// It is looked at elsewhere.
    Any,
    Ok,
    Version,
    Stored,
    StoredAs,
    Deleted,
    Touched,
    Number,
    Debugged,
    /// One key's value, or none.
    Value {
        key: u32,
        cas: bool,
    },
    /// Of several keys, which the reply that is put together knows.
    Values {
        cas: bool,
    },
    MetaGot {
        value: bool,
        /// The value comes only if its cas is that of the request.
        compares: bool,
        echo: Echo,
    },
    MetaStored(Echo),
    MetaDeleted(Echo),
    MetaCounted(Echo),
    Binary {
        opcode: u8,
        opaque: [u8; 4],
    },
}

/// What a reply to a meta command repeats, if it repeats anything: a sum of the key, and of the opaque.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Echo {
    key: Option<u32>,
    opaque: Option<u32>,
}

impl Echo {
    pub const NONE: Echo = Echo { key: None, opaque: None };

    fn of(meta: &Meta<'_>, key: &[u8]) -> Echo {
        // A key in base64 may be spelled otherwise.
        let shows_key = meta.flags.has(b'k') && !meta.flags.has(b'b');
        let mut opaques = meta.words().filter(|word| word[0] == b'O');
        let opaque = if meta.flags.has(b'O') { opaques.next() } else { None };
        Echo {
            key: shows_key.then(|| sum(key)),
            opaque: opaque.filter(|_| opaques.next().is_none()).map(|word| sum(&word[1..])),
        }
    }

    fn is_in(self, line: &[u8]) -> bool {
        if self == Echo::default() {
            return true;
        }
        let words = || line.split(|byte| *byte == b' ').skip(1);
        // Who stored the item in base64 has its key shown so to everybody.
        let is_base64 = words().any(|word| word == b"b");
        words().all(|word| {
            let expected = match word.first() {
                Some(b'k') if is_base64 => None,
                Some(b'k') => self.key,
                Some(b'O') => self.opaque,
                _ => None,
            };
            expected.is_none_or(|expected| expected == sum(&word[1..]))
        })
    }
}

impl Expect {
    /// Of a request, whose key has the name `key` there.
    #[inline]
    pub fn of(request: &Request<'_>, key: &[u8]) -> Expect {
        match request {
            Request::Get(get) => Expect::Value { key: sum(key), cas: get.cas },
            Request::Store(storage) if storage.verb == Verb::Cas => Expect::StoredAs,
            Request::Store(_) => Expect::Stored,
            Request::Arithmetic { .. } => Expect::Number,
            Request::Touch { .. } => Expect::Touched,
            Request::TooLarge { base64: true, .. } => Expect::MetaDeleted(Echo::default()),
            Request::Delete { .. } | Request::TooLarge { .. } => Expect::Deleted,
            Request::MetaGet(meta) => {
                let (value, compares) = (meta.flags.has(b'v'), meta.flags.has(b'C'));
                Expect::MetaGot { value, compares, echo: Echo::of(meta, key) }
            }
            Request::MetaSet(meta, _) => Expect::MetaStored(Echo::of(meta, key)),
            Request::MetaDelete(meta) => Expect::MetaDeleted(Echo::of(meta, key)),
            Request::MetaArithmetic(meta) => Expect::MetaCounted(Echo::of(meta, key)),
            Request::MetaDebug { .. } => Expect::Debugged,
            _ => Expect::Any,
        }
    }

    /// The length of the reply that `input` begins with, if it is whole and a usual one to this request. `None` says nothing.
    #[inline]
    pub fn usual_bytes(self, input: &[u8]) -> Option<usize> {
        match self {
            Expect::Value { key, cas: false } => {
                let (found, bytes) = lone_value(input)?;
                (sum(found) == key).then_some(bytes)
            }
            Expect::Stored => input.starts_with(STORED).then_some(STORED.len()),
            _ => None,
        }
    }

    /// Whether a whole reply may be one to this request.
    #[inline]
    pub fn takes(self, reply: &[u8]) -> bool {
        let line = || reply.strip_suffix(b"\r\n");
        let is = |words: &[&[u8]]| line().is_some_and(|line| words.contains(&line));
        let meta = |statuses: &[&[u8]], echo: Echo| {
            // A key may have any byte but a blank and this one.
            let end = memchr::memchr(b'\n', reply).map_or(reply.len(), |end| end.saturating_sub(1));
            let status = &reply[..end.min(2)];
            let is_whole = end == 2 || reply.get(2) == Some(&b' ');
            is_whole && statuses.contains(&status) && echo.is_in(&reply[..end])
        };
        let fits = match self {
            Expect::Any => true,
            Expect::Binary { opcode, opaque } => {
                return reply[1] == opcode && reply[12..16] == opaque;
            }
            Expect::Value { key, cas } => return takes_value(reply, key, cas),
            // Each value is looked at where it is put.
            Expect::Values { .. } => reply.starts_with(b"VALUE ") || reply == b"END\r\n",
            Expect::Ok => is(&[b"OK"]),
            Expect::Version => reply.starts_with(b"VERSION "),
            Expect::Stored => is(&[b"STORED", b"NOT_STORED"]),
            Expect::StoredAs => is(&[b"STORED", b"EXISTS", b"NOT_FOUND", b"NOT_STORED"]),
            Expect::Deleted => is(&[b"DELETED", b"NOT_FOUND"]),
            Expect::Touched => is(&[b"TOUCHED", b"NOT_FOUND"]),
            Expect::Number => is(&[b"NOT_FOUND"]) || line().is_some_and(is_number),
            Expect::Debugged => reply.starts_with(b"ME ") || is(&[b"EN"]),
            Expect::MetaGot { value: true, compares: true, echo } => {
                meta(&[b"VA", b"HD", b"EN"], echo)
            }
            Expect::MetaGot { value: true, echo, .. } => meta(&[b"VA", b"EN"], echo),
            Expect::MetaGot { value: false, echo, .. } => meta(&[b"HD", b"EN"], echo),
            Expect::MetaStored(echo) => meta(&[b"HD", b"NS", b"EX", b"NF"], echo),
            Expect::MetaDeleted(echo) => meta(&[b"HD", b"NF", b"EX"], echo),
            Expect::MetaCounted(echo) => meta(&[b"HD", b"VA", b"NF", b"NS", b"EX"], echo),
        };
        fits || is_error_reply(reply) && !(self.brings_value() && reply == b"ERROR\r\n")
    }

    /// Who takes the command for an unknown one takes its value for more commands, and answers those, too.
    fn brings_value(self) -> bool {
        matches!(self, Expect::Stored | Expect::StoredAs | Expect::MetaStored(_))
    }
}

/// memcached fills the end of a smaller number with blanks.
fn is_number(line: &[u8]) -> bool {
    let digits = line.trim_ascii_end();
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

#[inline]
fn takes_value(reply: &[u8], key: u32, cas: bool) -> bool {
    let mut values = Values(reply);
    let is_its = values.next().is_none_or(|(found, has)| sum(found) == key && has == cas);
    is_its && values.next().is_none() && (values.0 == b"END\r\n" || is_error_reply(values.0))
}

/// Tells keys apart that are not chosen to be alike: a mistake of an upstream's, not malice.
#[inline]
fn sum(bytes: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let add = |sum: u64, word: u64| (sum.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    let mut chunks = bytes.chunks_exact(8);
    let mut all = bytes.len() as u64;
    for chunk in &mut chunks {
        all = add(all, u64::from_le_bytes(chunk.try_into().expect("of eight bytes")));
    }
    let mut last = [0; 8];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    (add(all, u64::from_le_bytes(last)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use mbal_wire::{Limits, Login, Parsed, parse};

    #[test]
    fn a_reply_to_another_request_is_not_taken() {
        let limits = Limits { item_bytes_max: 1 << 20, login: Login::NotAsked };
        for (request, own, foreign) in [
            (
                "get a\r\n",
                &["END\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n", "ERROR\r\n", "SERVER_ERROR x\r\n"][..],
                &[
                    "VALUE b 0 1\r\nx\r\nEND\r\n",
                    "VALUE a 0 1 7\r\nx\r\nEND\r\n",
                    "VALUE a 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
                    "STORED\r\n",
                    "OK\r\n",
                    "ERROR Too many open connections\r\n",
                ][..],
            ),
            (
                "gets a\r\n",
                &["VALUE a 0 1 7\r\nx\r\nEND\r\n"],
                &["VALUE a 0 1\r\nx\r\nEND\r\n", "EN\r\n"],
            ),
            (
                "set a 0 0 1\r\nx\r\n",
                &["STORED\r\n", "NOT_STORED\r\n", "SERVER_ERROR out of memory\r\n"],
                &["END\r\n", "EXISTS\r\n", "DELETED\r\n", "ERROR\r\n", "STORED \r\n", "HD\r\n"],
            ),
            ("cas a 0 0 1 2\r\nx\r\n", &["STORED\r\n", "EXISTS\r\n", "NOT_FOUND\r\n"], &["5\r\n"]),
            ("delete a\r\n", &["DELETED\r\n", "NOT_FOUND\r\n"], &["TOUCHED\r\n", "STORED\r\n"]),
            ("touch a 1\r\n", &["TOUCHED\r\n", "NOT_FOUND\r\n"], &["DELETED\r\n"]),
            ("incr a 1\r\n", &["5\r\n", "9  \r\n", "NOT_FOUND\r\n"], &["\r\n", "-5\r\n", "OK\r\n"]),
            ("me a\r\n", &["ME a exp=-1\r\n", "EN\r\n"], &["HD\r\n"]),
            (
                "mg a v k O12\r\n",
                &["VA 1 ka O12\r\nx\r\n", "EN\r\n", "CLIENT_ERROR x\r\n"],
                &[
                    "VA 1 kb O12\r\nx\r\n",
                    "VA 1 ka O13\r\nx\r\n",
                    "HD\r\n",
                    "STORED\r\n",
                    "VAX\r\n",
                ],
            ),
            ("mg a\rb k\r\n", &["HD ka\rb\r\n"], &["HD ka\r\n"]),
            ("mg a t\r\n", &["HD t-1\r\n", "EN\r\n"], &["VA 1\r\nx\r\n", "NF\r\n"]),
            ("mg a v k\r\n", &["VA 1 kYQ== b\r\nx\r\n"], &["VA 1 kYQ==\r\nx\r\n"]),
            ("mg a v C7\r\n", &["VA 1\r\nx\r\n", "HD\r\n", "EN\r\n"], &["NF\r\n", "STORED\r\n"]),
            ("mg YQ== b k v\r\n", &["VA 1 kYQ== b\r\nx\r\n"], &["HD\r\n"]),
            (
                "ms a 1\r\nx\r\n",
                &["HD\r\n", "NS\r\n", "EX\r\n", "NF\r\n"],
                &["EN\r\n", "ERROR\r\n"],
            ),
            ("md a O1\r\n", &["HD O1\r\n", "NF\r\n"], &["HD O2\r\n", "EN\r\n"]),
            ("ma a v\r\n", &["VA 1\r\n5\r\n", "NF\r\n"], &["EN\r\n", "5\r\n"]),
        ] {
            let Parsed::Request { request: parsed, .. } = parse(request.as_bytes(), &limits) else {
                panic!("{request}")
            };
            let (key, _) = parsed.key().expect("it has one");
            let expect = Expect::of(&parsed, key);
            for reply in own {
                assert!(expect.takes(reply.as_bytes()), "{request} {reply}");
                let usual = expect.usual_bytes(format!("{reply}STORED\r\n").as_bytes());
                assert!(usual.is_none_or(|bytes| bytes == reply.len()), "{request} {reply}");
            }
            for reply in foreign {
                assert!(!expect.takes(reply.as_bytes()), "{request} {reply}");
                assert_eq!(expect.usual_bytes(reply.as_bytes()), None, "{request} {reply}");
            }
        }
    }
}
