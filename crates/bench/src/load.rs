//! What one thread of the generator sends, and for how long.

use std::time::Duration;

use crate::address::Target;
use crate::pace::{Moments, Pace};
use crate::replies::Lengths;
use crate::source::Source;
use crate::wording::Wording;

/// What one thread sends.
#[derive(Clone)]
pub struct Load {
    pub target: Target,
    /// Ask the server which worker serves what, and obey what replies say about it.
    pub follow: bool,
    /// Read copies of hot keys, as the servers tell.
    pub copies: bool,
    pub connections: usize,
    /// Unanswered requests per connection at most.
    pub depth: usize,
    /// Only part of the connections carries most of an open loop.
    pub busy: Option<Busy>,
    pub wording: Wording,
    pub lengths: Lengths,
    pub keys_per_get: usize,
    /// A missed key is set, on the same connection, when the store has been asked for so long.
    pub look_aside: bool,
    pub store: Duration,
    pub pace: Pace,
    /// When the requests of a trace came, for a recorded pace.
    pub moments: Option<Moments>,
    /// Ask the sockets without end, instead of sleeping: right on a core of one's own.
    pub spin: bool,
    pub source: Source,
    /// The hot set changes this often.
    pub shift: Option<Duration>,
    pub warmup: Duration,
    pub length: Length,
    pub seed: u64,
}

/// `share` of all requests goes by every `every`-th connection.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Busy {
    pub share: f64,
    pub every: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Length {
    Time(Duration),
    /// So many requests, or until the source ends.
    Requests(u64),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Edge {
    Start,
    End,
}
