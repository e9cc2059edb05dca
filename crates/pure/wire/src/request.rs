//! What a client can ask for.

use mbal_model::{MapVersion, ReplicaVersion, item_bytes};

use crate::binary::{Binary, Command};
use crate::meta::Meta;
use crate::number::push_i64;
use crate::words::{Tokens, next_word};

/// What came of looking at the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Nothing can be said before the input is `bytes` long in all; 0 is "one more byte".
    NeedMore { bytes: usize },
    /// The first `bytes` of the input are this request; of what follows, `skip` bytes are a value
    /// that nobody wants.
    Request { request: Request<'a>, bytes: usize, skip: usize },
    /// Not a client: close without a word, as memcached does.
    Close,
}

#[inline]
pub(crate) fn done(request: Request<'_>, bytes: usize) -> Parsed<'_> {
    Parsed::Request { request, bytes, skip: 0 }
}

pub(crate) fn answer(line: &'static str, bytes: usize) -> Parsed<'static> {
    done(Request::Answer(line), bytes)
}

/// What the parser must know of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `-I`, in bytes; what counts is the item as memcached would lay it out.
    pub item_bytes_max: usize,
    pub login: Login,
}

/// Whether the client has to say who it is, and has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Login {
    #[default]
    NotAsked,
    Needed,
    Done,
}

impl Limits {
    /// True if an item of this shape is too large to be stored (memcached 1.6 with cas: 48 bytes
    /// of header and 8 of cas, key and a zero byte, 4 of flags unless 0, value and line end).
    pub fn too_large(&self, key_bytes: usize, flags: u32, value_bytes: usize) -> bool {
        item_bytes(key_bytes, flags, value_bytes) > self.item_bytes_max
    }
}

/// One request. Keys are 1 to 250 bytes long, except in [`Request::Get`] and base64 ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Get(Get<'a>),
    Store(Storage<'a>),
    Arithmetic {
        key: &'a [u8],
        direction: Direction,
        delta: u64,
        noreply: bool,
    },
    Touch {
        key: &'a [u8],
        exptime: i32,
        noreply: bool,
    },
    Delete {
        key: &'a [u8],
        noreply: bool,
    },
    MetaGet(Meta<'a>),
    MetaSet(Meta<'a>, Chunk<'a>),
    MetaDelete(Meta<'a>),
    MetaArithmetic(Meta<'a>),
    MetaDebug {
        key: &'a [u8],
        /// The key is in base64.
        base64: bool,
    },
    MetaNoop,
    Binary(Binary<'a>),
    /// `-Y`: a `set` whose value is a name and a password.
    Login {
        user: &'a [u8],
        password: &'a [u8],
    },
    /// What concerns the server rather than an item.
    Admin {
        command: Admin<'a>,
        noreply: bool,
    },
    Version,
    Quit,
    /// An answer that needs no look at the server: a line without its end.
    Answer(&'static str),
    /// Nothing is to be said.
    Silence,
    /// A value that cannot be stored. The key's old item goes, where memcached thinks that stale
    /// is worse than none.
    TooLarge {
        key: &'a [u8],
        base64: bool,
        remove: bool,
        noreply: bool,
    },
}

/// `get`, `gets`, `gat`, `gats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'a> {
    /// The rest of the line: keys with blanks between, of any length and number.
    pub keys: &'a [u8],
    /// Of them, the first, empty if there is none, and what is behind it.
    pub first: &'a [u8],
    pub further: &'a [u8],
    pub cas: bool,
    /// The exptime of `gat`.
    pub touch: Option<i32>,
}

/// Older clients ask for this key instead of `config get cluster`.
pub const DISCOVERY_KEY: &[u8] = b"AmazonElastiCache:cluster";

impl<'a> Get<'a> {
    /// It is no longer than this before its keys.
    pub const HEAD_BYTES_MAX: usize = b"gats -2147483648 ".len();

    /// Appends it up to its keys.
    #[inline]
    pub fn push_head(&self, out: &mut Vec<u8>) {
        let Some(exptime) = self.touch else {
            return out.extend_from_slice(if self.cas { b"gets " } else { b"get " });
        };
        out.extend_from_slice(if self.cas { b"gats " } else { b"gat " });
        push_i64(out, i64::from(exptime));
        out.push(b' ');
    }

    /// True if it may be a client that looks for the servers of the cluster.
    #[inline]
    pub fn discovers(&self) -> bool {
        // The length tells it from almost every other key.
        self.first.len() == DISCOVERY_KEY.len() && self.asks_for_discovery_alone()
    }

    #[cold]
    fn asks_for_discovery_alone(&self) -> bool {
        let alone = next_word(self.further).is_none();
        self.first == DISCOVERY_KEY && alone && !self.cas && self.touch.is_none()
    }

    #[inline]
    pub(crate) fn new(keys: &'a [u8], cas: bool, touch: Option<i32>) -> Get<'a> {
        let (first, further) = next_word(keys).unwrap_or((&[], &[]));
        Get { keys, first, further, cas, touch }
    }
}

/// The classic storage commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage<'a> {
    pub verb: Verb,
    pub key: &'a [u8],
    pub flags: u32,
    /// Of 32 bits, with a sign in text and without one in binary.
    pub exptime: i64,
    /// 0 asks for none; what [`Verb::Cas`], and a binary append, compares.
    pub cas: u64,
    pub chunk: Chunk<'a>,
    pub noreply: bool,
}

/// The data block of a storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk<'a> {
    Value(&'a [u8]),
    /// It did not end with a line end.
    Bad,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
}

/// Commands for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin<'a> {
    /// The exptime as the client gave it, or `None` if that is no number: `flush_all` is counted,
    /// and refused where it is disabled, before its argument is looked at.
    FlushAll {
        exptime: Option<i32>,
    },
    Stats(Tokens<'a>),
    Verbosity {
        level: u32,
    },
    /// The memory for items is to be so large.
    MemoryLimit {
        mib: u32,
    },
    /// `None` is a mode that there is not.
    Shutdown(Option<Shutdown>),
    /// `config get cluster`: where clients reach the servers of the cluster.
    Discover,
    /// `config get mbal`: who owns what, unless that is what the client knows; what has `changes`, if the client takes that.
    View {
        known: Option<MapVersion>,
        changes: bool,
    },
    /// `config get mbal servers`: the same without cachelets and workers.
    Servers,
    /// What tunes machinery that is another here: the setting changes, and nothing else.
    Tune(Tune),
    /// `lru_crawler enable` or `disable`.
    Crawler {
        on: bool,
    },
    /// A walk over all items; `None` if its classes are none.
    Walk(Walk, Option<ClassSet>),
    /// Log lines from now on instead of replies: of the streams of [`streams`], or `None` if one of them
    /// does not exist.
    ///
    /// [`streams`]: crate::streams
    Watch(Option<u32>),
    /// Reads the certificates again.
    RefreshCerts,
    /// For tests: the clock goes on (or back) by so many seconds; `None` if that is no number.
    DebugTime {
        seconds: Option<i32>,
    },
}

/// Settings of memcached's that a running server may change. Fractions are in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tune {
    Automove(u32),
    AutomoveRatio(u32),
    /// Nobody is told what it is.
    AutomoveFreeRatio,
    /// In rounds of the automover.
    AutomoveWindow(u32),
    Lru {
        hot_pct: u32,
        warm_pct: u32,
        hot_factor: u32,
        warm_factor: u32,
    },
    CrawlerSleep(u32),
    CrawlerItems(u32),
}

/// What a walk over all items is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// Removing what has expired.
    Crawl,
    Metadump,
    /// The keys alone, as `mg` commands.
    Mgdump,
}

/// Classes of size, by bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSet(pub u64);

impl ClassSet {
    pub const ALL: ClassSet = ClassSet(u64::MAX);

    pub fn has(&self, class: usize) -> bool {
        self.0 >> class & 1 == 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    Now,
    /// Connections end first.
    Graceful,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Increment,
    Decrement,
}

impl<'a> Request<'a> {
    /// Whether it may change an item. What has no key writes none.
    #[inline]
    pub fn writes(&self) -> bool {
        match self {
            Request::Get(get) => get.touch.is_some(),
            Request::MetaGet(meta) => meta.get_writes(),
            Request::MetaDebug { .. } => false,
            Request::Binary(binary) => {
                binary.command.key().is_some()
                    && !matches!(binary.command, Command::Get { touch: None, .. })
            }
            _ => self.key().is_some(),
        }
    }

    /// The key that decides where the request is served, as it was sent, and whether that is in
    /// base64. Of several, the first, which may be of any length.
    #[inline]
    pub fn key(&self) -> Option<(&'a [u8], bool)> {
        match self {
            Request::Get(get) => (!get.first.is_empty()).then_some((get.first, false)),
            Request::MetaGet(meta)
            | Request::MetaSet(meta, _)
            | Request::MetaDelete(meta)
            | Request::MetaArithmetic(meta) => Some((meta.key, meta.flags.has(b'b'))),
            Request::Store(Storage { key, .. })
            | Request::Arithmetic { key, .. }
            | Request::Touch { key, .. }
            | Request::Delete { key, .. } => Some((key, false)),
            Request::MetaDebug { key, base64 } | Request::TooLarge { key, base64, .. } => {
                Some((key, *base64))
            }
            Request::Binary(binary) => Some((binary.command.key()?, false)),
            Request::MetaNoop
            | Request::Login { .. }
            | Request::Admin { .. }
            | Request::Version
            | Request::Quit
            | Request::Answer(_)
            | Request::Silence => None,
        }
    }

    /// True if the client knows the workers: it sends its map version, and obeys what it is told.
    #[inline]
    pub fn follows(&self) -> bool {
        match self {
            Request::MetaGet(meta)
            | Request::MetaSet(meta, _)
            | Request::MetaDelete(meta)
            | Request::MetaArithmetic(meta) => meta.flags.has(b'L') && meta.version().is_some(),
            Request::Binary(binary) => binary.frame.vbucket != 0,
            _ => false,
        }
    }

    /// A smart client wants it answered from a copy of its key, for which it has a lease: one that is no older than what it has seen.
    pub fn by_lease(&self) -> Option<ReplicaVersion> {
        match self {
            Request::MetaGet(meta) if meta.flags.has(b'L') => meta.by_lease(),
            Request::Binary(Binary { frame, .. }) if frame.vbucket != 0 && frame.suffix != 0 => {
                Some(ReplicaVersion::default())
            }
            _ => None,
        }
    }

    /// True if it brings a value.
    pub fn stores(&self) -> bool {
        let binary =
            matches!(self, Request::Binary(binary) if matches!(binary.command, Command::Store(_)));
        binary || matches!(self, Request::Store(_) | Request::MetaSet(..))
    }

    /// True if what follows can only be parsed once this has been executed.
    pub fn is_login(&self) -> bool {
        let binary = matches!(self, Request::Binary(binary) if matches!(binary.command, Command::Authenticate { .. }));
        binary || matches!(self, Request::Login { .. })
    }

    /// True if the client wants no answer, whatever comes of it (meta's q and binary's quiet
    /// commands want errors).
    pub fn noreply(&self) -> bool {
        match self {
            Request::Store(Storage { noreply, .. })
            | Request::Arithmetic { noreply, .. }
            | Request::Touch { noreply, .. }
            | Request::Delete { noreply, .. }
            | Request::TooLarge { noreply, .. }
            | Request::Admin { noreply, .. } => *noreply,
            _ => false,
        }
    }
}
