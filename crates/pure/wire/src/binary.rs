//! The binary protocol: a header of 24 bytes, then extras, key and value, in requests and replies.
//!
//! ```text
//!   0      1       2           4       5     6        8        12      16          24
//!   magic  opcode  key length  extras  type  vbucket  body     opaque  cas         extras, key, value
//!   0x80           (u16)       (u8)    0     (u16)    (u32)                        (`body` bytes)
//!   0x81                                     status
//! ```

use mbal_model::KEY_BYTES_MAX;

use crate::request::{Chunk, Direction, Limits, Login, Parsed, Request, Storage, Verb};

/// Of a request, and of a reply.
pub const BINARY_HEAD_BYTES: usize = 24;
/// The first byte of every binary request, and of no other.
pub const BINARY_REQUEST: u8 = 0x80;
pub(crate) const BINARY_REPLY: u8 = 0x81;
/// A longer body is refused, and ends the connection.
const BODY_BYTES_MAX: usize = 1 << 30;

/// The name of a SASL mechanism, and what may come with it.
const MECHANISM_BYTES_MAX: usize = 32;
const CREDENTIALS_BYTES_MAX: usize = 64 << 10;

/// An expiration of `incr` that says: a missing item is not created.
const NO_INITIAL: u32 = u32::MAX;

/// Without the quiet ones.
pub mod opcode {
    pub const GET: u8 = 0x00;
    pub const SET: u8 = 0x01;
    pub const ADD: u8 = 0x02;
    pub const REPLACE: u8 = 0x03;
    pub const DELETE: u8 = 0x04;
    pub const INCREMENT: u8 = 0x05;
    pub const DECREMENT: u8 = 0x06;
    pub const QUIT: u8 = 0x07;
    pub const FLUSH: u8 = 0x08;
    pub const NOOP: u8 = 0x0a;
    pub const VERSION: u8 = 0x0b;
    pub const GETK: u8 = 0x0c;
    pub const APPEND: u8 = 0x0e;
    pub const PREPEND: u8 = 0x0f;
    pub const STAT: u8 = 0x10;
    pub const TOUCH: u8 = 0x1c;
    pub const GAT: u8 = 0x1d;
    pub const SASL_MECHANISMS: u8 = 0x20;
    pub const SASL_AUTH: u8 = 0x21;
    pub const SASL_STEP: u8 = 0x22;
    pub const GATK: u8 = 0x23;
    /// Not memcached's but ElastiCache's.
    pub const CONFIG_GET: u8 = 0x60;

    /// The opcode with an answer for its success that does the same, and whether `opcode` has none.
    pub fn loud(opcode: u8) -> (u8, bool) {
        let loud = match opcode {
            0x09 => GET,
            0x0d => GETK,
            0x11 => SET,
            0x12 => ADD,
            0x13 => REPLACE,
            0x14 => DELETE,
            0x15 => INCREMENT,
            0x16 => DECREMENT,
            0x17 => QUIT,
            0x18 => FLUSH,
            0x19 => APPEND,
            0x1a => PREPEND,
            0x1e => GAT,
            0x24 => GATK,
            loud => return (loud, false),
        };
        (loud, true)
    }

    pub fn is_known(loud: u8) -> bool {
        matches!(loud, 0..=0x1a | TOUCH..=GAT | SASL_MECHANISMS..=GATK)
    }
}

/// A reply's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    Success = 0,
    NotFound = 1,
    Exists = 2,
    TooLarge = 3,
    InvalidArguments = 4,
    NotStored = 5,
    NotNumeric = 6,
    /// "Not my vbucket": only for clients that name one.
    NotMine = 7,
    AuthError = 0x20,
    AuthContinue = 0x21,
    UnknownCommand = 0x81,
    OutOfMemory = 0x82,
    /// Not memcached's: the key's owner cannot be reached.
    TemporaryFailure = 0x86,
}

impl Status {
    /// The body of a reply that has no better one.
    fn text(self) -> &'static str {
        match self {
            Status::Success | Status::AuthContinue | Status::NotMine => "",
            Status::NotFound => "Not found",
            Status::Exists => "Data exists for key.",
            Status::TooLarge => "Too large.",
            Status::InvalidArguments => "Invalid arguments",
            Status::NotStored => "Not stored.",
            Status::NotNumeric => "Non-numeric server-side value for incr or decr",
            Status::AuthError => "Auth failure.",
            Status::UnknownCommand => "Unknown command",
            Status::OutOfMemory => "Out of memory",
            Status::TemporaryFailure => "no route to owner",
        }
    }
}

/// What every request says, and what its replies repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub opcode: u8,
    /// Success, or a miss of a get, is not told; errors are.
    pub quiet: bool,
    /// 0 is an ordinary client; one that knows the cluster map names the key's cachelet: `Prefix::vbucket`.
    pub vbucket: u16,
    /// The data type byte: 0, or which copy of a hot key a smart client reads.
    pub suffix: u8,
    pub opaque: [u8; 4],
    pub cas: u64,
}

/// A binary request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binary<'a> {
    pub frame: Frame,
    pub command: Command<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// get, gat and touch, which shows no value.
    Get {
        key: &'a [u8],
        /// The reply repeats the key.
        with_key: bool,
        with_value: bool,
        /// The exptime of gat and touch.
        touch: Option<u32>,
    },
    Store(Storage<'a>),
    TooLarge {
        key: &'a [u8],
        remove: bool,
    },
    Arithmetic {
        key: &'a [u8],
        direction: Direction,
        delta: u64,
        /// Value and exptime of an item that is to be created.
        initial: Option<(u64, u32)>,
    },
    Delete {
        key: &'a [u8],
    },
    Flush {
        exptime: u32,
    },
    Stats {
        topic: &'a [u8],
    },
    Noop,
    Version,
    Quit,
    /// `config get cluster`: where clients reach the servers of the cluster.
    Discover,
    Mechanisms,
    Authenticate {
        mechanism: &'a [u8],
        credentials: &'a [u8],
        /// Goes on with what an earlier request began.
        step: bool,
    },
    /// An error that needs no look at the server.
    Refused {
        status: Status,
        close: bool,
    },
}

impl<'a> Command<'a> {
    pub(crate) fn key(&self) -> Option<&'a [u8]> {
        match self {
            Command::Get { key, .. }
            | Command::Store(Storage { key, .. })
            | Command::TooLarge { key, .. }
            | Command::Arithmetic { key, .. }
            | Command::Delete { key } => Some(key),
            _ => None,
        }
    }
}

/// Looks at the start of `input` for one request, with its value if it has one.
///
/// What is amiss is found in memcached's order, and what of such a request memcached takes for the
/// next one, is the next one here.
pub fn parse_binary<'a>(input: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let Some(header) = input.first_chunk::<BINARY_HEAD_BYTES>() else {
        return Parsed::NeedMore { bytes: BINARY_HEAD_BYTES };
    };
    if header[0] != BINARY_REQUEST {
        return Parsed::Close;
    }
    let frame = Frame::of(header);
    let key_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let extras_bytes = usize::from(header[4]);
    let body_bytes = u32_at(header, 8) as usize;
    let head_bytes = BINARY_HEAD_BYTES + extras_bytes + key_bytes;
    if input.len() < head_bytes {
        return Parsed::NeedMore { bytes: head_bytes };
    }
    let (extras, key) = input[BINARY_HEAD_BYTES..head_bytes].split_at(extras_bytes);
    let done = |command, bytes, skip| Parsed::Request {
        request: Request::Binary(Binary { frame, command }),
        bytes,
        skip,
    };
    let refused = |status| done(Command::Refused { status, close: true }, head_bytes, 0);
    let skipped_error =
        |status, skip| done(Command::Refused { status, close: false }, head_bytes, skip);

    let (loud, _) = opcode::loud(frame.opcode);
    let Some(value_bytes) = body_bytes.checked_sub(extras_bytes + key_bytes) else {
        return refused(Status::UnknownCommand);
    };
    if body_bytes > BODY_BYTES_MAX {
        return refused(Status::InvalidArguments);
    }
    if limits.login == Login::Needed && !needs_no_login(loud) {
        return refused(Status::AuthError);
    }
    if key_bytes > KEY_BYTES_MAX {
        return refused(Status::InvalidArguments);
    }
    let bare = body_bytes == 0;
    let with_key = matches!(loud, opcode::GETK | opcode::GATK);
    let command = match (loud, extras_bytes, key_bytes, value_bytes) {
        (opcode::GET | opcode::GETK, 0, 1.., 0) => {
            Command::Get { key, with_key, with_value: true, touch: None }
        }
        (opcode::TOUCH | opcode::GAT | opcode::GATK, 4, 1.., _) => {
            let with_value = loud != opcode::TOUCH;
            Command::Get { key, with_key, with_value, touch: Some(u32_at(extras, 0)) }
        }
        (opcode::SET | opcode::ADD | opcode::REPLACE, 8, 1.., _)
        | (opcode::APPEND | opcode::PREPEND, 0, 1.., _) => {
            let flags = if extras.is_empty() { 0 } else { u32_at(extras, 0) };
            let exptime = if extras.is_empty() { 0 } else { u32_at(extras, 4) };
            if limits.too_large(key_bytes, flags, value_bytes) {
                let remove = loud == opcode::SET;
                return done(Command::TooLarge { key, remove }, head_bytes, value_bytes);
            }
            let verb = match loud {
                opcode::APPEND => Verb::Append,
                opcode::PREPEND => Verb::Prepend,
                _ if frame.cas != 0 => Verb::Cas,
                opcode::ADD => Verb::Add,
                opcode::REPLACE => Verb::Replace,
                _ => Verb::Set,
            };
            let end = head_bytes + value_bytes;
            let Some(value) = input.get(head_bytes..end) else {
                return Parsed::NeedMore { bytes: end };
            };
            let chunk = Chunk::Value(value);
            let (exptime, cas, noreply) = (exptime.into(), frame.cas, frame.quiet);
            let storage = Storage { verb, key, flags, exptime, cas, chunk, noreply };
            return done(Command::Store(storage), end, 0);
        }
        (opcode::INCREMENT | opcode::DECREMENT, 20, 1.., 0) => {
            let direction = match loud {
                opcode::INCREMENT => Direction::Increment,
                _ => Direction::Decrement,
            };
            let exptime = u32_at(extras, 16);
            let initial = (exptime != NO_INITIAL).then(|| (u64_at(extras, 8), exptime));
            Command::Arithmetic { key, direction, delta: u64_at(extras, 0), initial }
        }
        (opcode::DELETE, 0, 1.., 0) => Command::Delete { key },
        (opcode::FLUSH, 0, 0, 0) => Command::Flush { exptime: 0 },
        (opcode::FLUSH, 4, 0, 0) => Command::Flush { exptime: u32_at(extras, 0) },
        (opcode::STAT, 0, ..) => Command::Stats { topic: key },
        (opcode::CONFIG_GET, 0, _, 0) if key == b"cluster" => Command::Discover,
        (opcode::NOOP, ..) if bare => Command::Noop,
        (opcode::VERSION, ..) if bare => Command::Version,
        (opcode::QUIT, ..) if bare => Command::Quit,
        (opcode::SASL_MECHANISMS, ..) if bare => match limits.login {
            Login::NotAsked => return skipped_error(Status::UnknownCommand, 0),
            _ => Command::Mechanisms,
        },
        (opcode::SASL_AUTH | opcode::SASL_STEP, 0, 1.., _) => {
            if limits.login == Login::NotAsked {
                return skipped_error(Status::UnknownCommand, value_bytes);
            } else if key_bytes > MECHANISM_BYTES_MAX {
                return skipped_error(Status::InvalidArguments, value_bytes);
            } else if value_bytes > CREDENTIALS_BYTES_MAX {
                return skipped_error(Status::OutOfMemory, value_bytes);
            }
            let end = head_bytes + value_bytes;
            let Some(credentials) = input.get(head_bytes..end) else {
                return Parsed::NeedMore { bytes: end };
            };
            let step = loud == opcode::SASL_STEP;
            let command = Command::Authenticate { mechanism: key, credentials, step };
            return done(command, end, 0);
        }
        _ if opcode::is_known(loud) => return refused(Status::InvalidArguments),
        // Extras and key are gone already, and memcached swallows the whole body once more.
        _ => return skipped_error(Status::UnknownCommand, body_bytes),
    };
    done(command, head_bytes, 0)
}

fn needs_no_login(loud: u8) -> bool {
    matches!(loud, opcode::SASL_MECHANISMS..=opcode::SASL_STEP | opcode::VERSION)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// What stands before a reply's value: a hit's flags, the key if it was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head<'a> {
    pub extras: &'a [u8],
    pub key: &'a [u8],
    pub value_bytes: u32,
    pub cas: u64,
}

impl Frame {
    fn of(header: &[u8; BINARY_HEAD_BYTES]) -> Frame {
        Frame {
            opcode: header[1],
            quiet: opcode::loud(header[1]).1,
            vbucket: u16::from_be_bytes([header[6], header[7]]),
            suffix: header[5],
            opaque: header[12..16].try_into().expect("four bytes"),
            cas: u64_at(header, 16),
        }
    }

    /// The opcode that does the same, and is always answered.
    pub fn loud(&self) -> u8 {
        opcode::loud(self.opcode).0
    }

    /// Appends a reply up to its value.
    pub fn push_head(&self, out: &mut Vec<u8>, status: Status, head: &Head<'_>) {
        let Head { extras, key, value_bytes, cas } = head;
        let key_bytes = key.len() as u16;
        let body_bytes = (extras.len() + key.len()) as u32 + value_bytes;
        out.extend_from_slice(&[BINARY_REPLY, self.opcode]);
        out.extend_from_slice(&key_bytes.to_be_bytes());
        out.extend_from_slice(&[extras.len() as u8, 0]);
        out.extend_from_slice(&(status as u16).to_be_bytes());
        out.extend_from_slice(&body_bytes.to_be_bytes());
        out.extend_from_slice(&self.opaque);
        out.extend_from_slice(&cas.to_be_bytes());
        out.extend_from_slice(extras);
        out.extend_from_slice(key);
    }

    /// Appends a reply that is all value.
    pub fn push(&self, out: &mut Vec<u8>, status: Status, value: &[u8], cas: u64) {
        let value_bytes = value.len() as u32;
        self.push_head(out, status, &Head { value_bytes, cas, ..Head::default() });
        out.extend_from_slice(value);
    }

    /// Appends an error with memcached's words for it.
    pub fn push_error(&self, out: &mut Vec<u8>, status: Status) {
        self.push(out, status, status.text().as_bytes(), 0);
    }

    /// Appends a statistic; one without a name ends them.
    pub fn push_stat(&self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        let frame = Frame { opcode: opcode::STAT, ..*self };
        let value_bytes = value.len() as u32;
        frame.push_head(out, Status::Success, &Head { key: name, value_bytes, ..Head::default() });
        out.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binary_client::push_binary_request;

    const LIMITS: Limits = Limits { item_bytes_max: 1 << 20, login: Login::NotAsked };

    /// A request with its lengths set.
    fn request(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        push_binary_request(&mut bytes, opcode, extras, key.len(), value.len(), 0);
        bytes[12..16].copy_from_slice(b"opaq");
        [&bytes, key, value].concat()
    }

    fn parsed(input: &[u8]) -> (Command<'_>, usize, usize) {
        match parse_binary(input, &LIMITS) {
            Parsed::Request { request: Request::Binary(binary), bytes, skip } => {
                (binary.command, bytes, skip)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_says_how_long_it_is() {
        let set = request(opcode::SET, &[0, 0, 0, 1, 0, 0, 0, 2], b"key", b"value");
        for (have, need) in [(1, 24), (23, 24), (24, 35), (34, 35), (35, 40), (39, 40)] {
            let parsed = parse_binary(&set[..have], &LIMITS);
            assert_eq!(parsed, Parsed::NeedMore { bytes: need }, "{have} bytes");
        }
        let storage = Storage {
            verb: Verb::Set,
            key: b"key",
            flags: 1,
            exptime: 2,
            cas: 0,
            chunk: Chunk::Value(b"value"),
            noreply: false,
        };
        assert_eq!(parsed(&set), (Command::Store(storage), 40, 0));
    }

    #[test]
    fn what_is_too_large_is_told_before_it_comes() {
        let mut set = request(opcode::SET, &[0; 8], b"key", b"");
        set[8..12].copy_from_slice(&(11u32 + (1 << 20)).to_be_bytes());
        assert_eq!(parsed(&set), (Command::TooLarge { key: b"key", remove: true }, 35, 1 << 20));
        set[8..12].copy_from_slice(&(1u32 << 30).to_be_bytes());
        let too_large = Command::TooLarge { key: b"key", remove: true };
        assert_eq!(parsed(&set), (too_large, 35, (1 << 30) - 11));
        set[8..12].copy_from_slice(&((1u32 << 30) + 1).to_be_bytes());
        let refused = Command::Refused { status: Status::InvalidArguments, close: true };
        assert_eq!(parsed(&set), (refused, 35, 0));
    }

    #[test]
    fn what_is_amiss() {
        let refused = |status| (Command::Refused { status, close: true }, None);
        let invalid = refused(Status::InvalidArguments);
        for (request, expected) in [
            (request(opcode::GET, &[0; 4], b"k", b""), invalid),
            (request(opcode::GET, b"", b"", b""), invalid),
            (request(opcode::GET, b"", &[b'k'; 251], b""), invalid),
            (request(opcode::NOOP, b"", b"k", b""), invalid),
            (request(opcode::INCREMENT, &[0; 19], b"k", b""), invalid),
            (request(0x0d, b"", b"k", b"v"), invalid),
            (
                request(0x1b, &[0; 4], b"", b""),
                (Command::Refused { status: Status::UnknownCommand, close: false }, Some(4)),
            ),
        ] {
            let (command, bytes, skip) = parsed(&request);
            assert_eq!((command, skip), (expected.0, expected.1.unwrap_or(0)), "{request:?}");
            assert!(bytes <= request.len());
        }
        let mut shorter = request(opcode::GET, b"", b"key", b"");
        shorter[11] = 2;
        assert_eq!(parsed(&shorter).0, refused(Status::UnknownCommand).0);
        shorter[0] = b'g';
        assert_eq!(parse_binary(&shorter, &LIMITS), Parsed::Close);
    }

    #[test]
    fn nothing_but_logging_in_without_a_login() {
        let limits = Limits { login: Login::Needed, ..LIMITS };
        let is_refused = |request: &[u8]| match parse_binary(request, &limits) {
            Parsed::Request { request: Request::Binary(binary), .. } => {
                binary.command == Command::Refused { status: Status::AuthError, close: true }
            }
            other => panic!("{other:?}"),
        };
        for opcode in 0..=u8::MAX {
            let open = matches!(opcode, 0x0b | 0x20..=0x22);
            assert_eq!(is_refused(&request(opcode, b"", b"", b"")), !open, "{opcode:#x}");
        }
    }

    #[test]
    fn a_reply_repeats_opcode_and_opaque() {
        let get = request(opcode::GETK, b"", b"k", b"");
        let Parsed::Request { request: Request::Binary(binary), .. } = parse_binary(&get, &LIMITS)
        else {
            panic!("a whole request")
        };
        let mut out = Vec::new();
        let head = Head { extras: &[0, 0, 0, 9], key: b"k", value_bytes: 5, cas: 7 };
        binary.frame.push_head(&mut out, Status::Success, &head);
        let header = b"\x81\x0c\0\x01\x04\0\0\0\0\0\0\x0aopaq\0\0\0\0\0\0\0\x07\0\0\0\x09k";
        assert_eq!(out, header);
        out.clear();
        binary.frame.push_error(&mut out, Status::NotFound);
        assert_eq!(out, b"\x81\x0c\0\0\0\0\0\x01\0\0\0\x09opaq\0\0\0\0\0\0\0\0Not found");
    }
}
