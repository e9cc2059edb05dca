//! What clients asked and were told, with times: all that the checkers look at.

/// Virtual time, in microseconds: a number, since checkers and dice reckon with it. Servers are told it by their [clocks](super::clock).
pub type Micros = u64;

pub const SECOND: Micros = 1_000_000;
/// Of what was never answered.
pub const NEVER: Micros = Micros::MAX;

/// What a key's values are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Written as a whole.
    Register,
    /// Written, then appended to.
    Log,
    /// Written, then counted up by one.
    Number,
}

/// An item's state: what it was written as, and what has been added since.
///
/// Bases and tokens are tags, each used once in a run; so a state says which requests made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub base: u32,
    /// Of a number: how often it was counted up.
    pub count: u32,
    /// Of a log: the tags that were appended.
    pub tokens: Vec<u32>,
}

impl State {
    /// True if an item of state `later` may have had this state before.
    pub fn leads_to(&self, later: &State) -> bool {
        self.base == later.base
            && self.count <= later.count
            && later.tokens.starts_with(&self.tokens)
    }
}

/// What one request asked of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    Read,
    /// Stores under a condition or none; `tag` is the new base.
    Store {
        tag: u32,
        exptime: i32,
        when: When,
    },
    Append {
        tag: u32,
    },
    Increment,
    Delete,
    /// `touch` or `gat`.
    Touch {
        exptime: i32,
    },
    /// Of every key; 0 is at once, otherwise so many seconds later.
    Flush {
        delay: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    Absent,
    Present,
    /// The item has this cas.
    Unchanged(u64),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// No answer yet, or never one.
    Nothing,
    /// It wanted no answer; an answer to a later request has come.
    Quiet,
    /// The item's state and its cas (0: not told).
    Hit { state: State, cas: u64 },
    /// Done; the cas of the new item (0: not told).
    Done { cas: u64 },
    /// There is no such item.
    Absent,
    /// There is an item, but not as the request wants it.
    Refused,
    /// An error; whatever was there may be gone.
    Error,
    /// The error of a server that cannot reach the key's owner, or lost it. Nobody knows whether the request was executed; it will
    /// not be any more.
    NoRoute,
    /// `flush_all` was done by the server that was asked; of so many others it is not known.
    NotEverywhere { failed: usize, servers: usize },
}

#[derive(Clone, Debug)]
pub struct Op {
    /// Index of the key; [`ALL_KEYS`] for a flush.
    pub key: usize,
    /// Connection and place on it: requests of one are executed in their order.
    pub connection: usize,
    pub place: u32,
    /// Of one session no request is answered from a state before what was answered earlier.
    pub session: usize,
    /// For others' sessions, it may speak of the time so long before it was asked.
    pub stale: Micros,
    /// The server that was asked.
    pub host: usize,
    /// It may have taken another way than the next request of its connection: lost on a link, or sent by another map.
    pub unordered: bool,
    /// A `flush_all` of which some items may know nothing: a process may have taken a delayed one with it; or it has the number of
    /// an earlier one that some servers have missed, and by which copies are told apart.
    pub is_forgotten: bool,
    pub asked: Micros,
    pub answered: Micros,
    /// Evictions in the server when it was asked, and when it was answered.
    pub evictions: (u64, u64),
    pub asks: Asks,
    pub told: Observed,
    /// It wanted no answer.
    pub quiet: bool,
}

pub const ALL_KEYS: usize = usize::MAX;

impl Op {
    /// Which request of which connection.
    pub fn place_of(&self) -> (usize, u32) {
        (self.connection, self.place)
    }

    /// When a `flush_all` with this delay has taken effect, at the latest.
    pub fn effect_ends(&self, delay: u32) -> Micros {
        self.answered.saturating_add(u64::from(delay) * SECOND)
    }

    /// What was answered before that moment is certainly known to it.
    pub fn since(&self) -> Micros {
        self.asked.saturating_sub(self.stale)
    }

    /// True if `self` was executed before `later`, by all that a client can know.
    pub fn precedes(&self, later: &Op) -> bool {
        (self.connection == later.connection && self.place < later.place && !self.unordered)
            || (self.session == later.session && self.answered < later.asked)
            || self.answered < later.since()
    }
}

#[derive(Default)]
pub struct History {
    pub ops: Vec<Op>,
    /// By tag: the request that wrote it.
    pub by_tag: Vec<usize>,
}

impl History {
    /// A tag for the request that is recorded next.
    pub fn next_tag(&mut self) -> u32 {
        self.by_tag.push(self.ops.len());
        self.by_tag.len() as u32 - 1
    }
}
