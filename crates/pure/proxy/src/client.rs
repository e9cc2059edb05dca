//! A client's session: what of its input is no whole request yet, its replies, and when it is not read.

use mbal_model::Instant;

use crate::buffers::Spare;
use crate::replies::Replies;

/// How large replies to a client are is not known before its first one.
pub(crate) const REQUESTS_BEFORE_FIRST: usize = 8;
/// A `get` asks for so many keys at a time at most.
const WINDOW_KEYS_MAX: usize = 256;
/// After so many that were all missed, for so many times as many.
const WINDOW_GROWTH: usize = 4;

/// Keys of a `get` that are asked for when the values before them have left.
pub(crate) struct Rest {
    pub keys: Vec<u8>,
    /// Those before have been asked for.
    pub from: usize,
    pub cas: bool,
    pub touch: Option<i32>,
    pub number: u32,
}

/// Of a request that has not come in whole.
#[derive(Default)]
pub(crate) struct Input {
    pub bytes: Vec<u8>,
    /// It is not looked at before it has so many bytes.
    pub need: usize,
    /// Bytes of a value that nobody wants.
    pub skip: usize,
    /// It is in binary; `None` before the first byte.
    pub binary: Option<bool>,
}

/// How large a client's replies are.
#[derive(Default)]
pub(crate) struct Sizes {
    /// The largest reply of late: it fades by an eighth with each one that is smaller.
    reply_bytes: Option<usize>,
    /// The longest value in a multi-get of late, with its line: it fades likewise. None of it has come, while it is 0.
    value_bytes: usize,
    /// Then, how many keys one asks for at a time.
    window: usize,
}

#[derive(Default)]
pub(crate) struct Client {
    pub input: Input,
    pub replies: Replies,
    pub sizes: Sizes,
    /// The place before the refusal of a value that nobody wants, which is told when all of it has come.
    pub refused: Option<u32>,
    /// What its `get`, the only request that is not answered, is to ask for yet.
    pub rest: Option<Box<Rest>>,
    /// What it asks next waits until it has all replies.
    pub waits_for_all: bool,
    /// It is one of few that may ask for several values before the first has come.
    pub opens: bool,
    /// It is not read: it has asked enough.
    pub paused: bool,
    /// It sends no more, and not all that it has sent has been looked at.
    pub half_closed: bool,
    /// Its requests are over; it is closed when all replies have left.
    pub ending: bool,
    /// Its connection is gone. It is kept for the replies that are on their way.
    pub gone: bool,
    pub is_open: bool,
    /// Another proxy.
    pub is_peer: bool,
    /// Replies wait for others of their turn until then.
    pub held_until: Option<Instant>,
    /// It is in the list of those whose replies do.
    pub is_listed: bool,
    /// It is one of those that wait for replies.
    pub is_waiting: bool,
    /// It is in the list of those that may go on.
    pub may_go_on: bool,
    /// Its `flush_all` is not done everywhere: what it asks behind that waits.
    pub flushing: bool,
    /// What was asked before its `flush_all` has been answered.
    pub is_fenced: bool,
}

impl Sizes {
    /// There was a reply: how large they are is known.
    #[inline]
    pub fn are_known(&self) -> bool {
        self.reply_bytes.is_some()
    }

    /// For how many keys a `get` may ask at a time; `None` if no value has come, and none was missed.
    #[inline]
    pub fn window(&self, bytes_max: usize) -> Option<usize> {
        match self.value_bytes {
            0 if self.window == 0 => None,
            0 => Some(self.window),
            bytes => Some((bytes_max / bytes).clamp(1, WINDOW_KEYS_MAX)),
        }
    }

    /// A `get` has found values, the longest of so many bytes, or none.
    #[inline]
    pub fn found(&mut self, keys: usize, longest: usize) {
        if longest == 0 && self.value_bytes == 0 {
            self.window = (keys * WINDOW_GROWTH).min(WINDOW_KEYS_MAX).max(self.window);
        } else {
            self.value_bytes = longest.max(self.value_bytes - self.value_bytes / 8).max(1);
        }
    }

    /// An upstream's reply has so many bytes. Errors of the proxy's own say nothing of those to come.
    #[inline]
    pub fn expect(&mut self, bytes: usize) {
        let before = self.reply_bytes.unwrap_or(0);
        self.reply_bytes = Some(bytes.max(before - before / 8));
    }
}

impl Client {
    /// What it has not taken, and what is on its way if replies are as large as the largest of late.
    #[inline]
    pub fn expected_bytes(&self) -> usize {
        self.replies.out.len() + self.replies.waiting() * self.sizes.reply_bytes.unwrap_or(0)
    }

    /// Forgets its replies, and those to come.
    pub fn go_deaf(&mut self, spare: &mut Spare) {
        self.replies.go_deaf(self.rest.take().is_some(), spare);
    }

    /// The rest of a refused value will not come: nobody hears the refusal.
    pub fn drop_refusal(&mut self) {
        if let Some(number) = self.refused.take() {
            self.replies.truncate(number);
        }
    }

    /// All replies before the end of the connection are there.
    pub fn has_ended(&self) -> bool {
        self.ending && self.replies.are_over()
    }
}
