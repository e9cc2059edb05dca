//! One connection, as far as a worker knows it: input that is not yet a whole request.

/// Reply bytes of one connection after which it is not read until they have left. One request may
/// pass it, by its own reply's largest part: an item. Who reads nothing costs this much, and nobody waits while more is copied.
pub const OUTPUT_BYTES_MAX: usize = 256 << 10;

/// Input kept for reuse after a request that did not arrive whole; more is given back.
const PENDING_BYTES_KEPT: usize = 16 << 10;

use std::fmt;
use std::sync::Arc;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, ServerId, WorkerId};
use mbal_replica::Leases;
use mbal_wire::Login;

use crate::commands::walks::Walk;
use crate::ids::Client;
use crate::observing::conns::{ConnInfo, State};
use crate::observing::log::Watcher;
use crate::sessions::room::RoomWait;
use crate::sessions::slice_wait::SliceWait;
use crate::sessions::slots::Slots;
use crate::settings::Protocol;

/// Why a connection closes, as `watch connevents` tells it.
pub(crate) const NORMAL: &str = "normal";
pub(crate) const ERROR: &str = "error";
pub(crate) const IDLE: &str = "idle_timeout";

#[derive(Default)]
pub(crate) struct Session {
    /// The start of a request whose rest has not arrived, or all input since a stall.
    pub pending: Vec<u8>,
    /// Bytes of `pending` at which it is worth looking again; 0 is at the next line end.
    pub need: usize,
    /// Bytes still to come that belong to a value which was refused, with `refusal`.
    pub skip: usize,
    pub refusal: Vec<u8>,
    /// What it waits for.
    pub wait: Wait,
    /// Replies that wait for peers'.
    pub slots: Slots,
    /// Bytes that were sent and may not have left yet.
    pub unsent: usize,
    /// The `get` that comes next is the rest of one that was stopped between two [`Gather`]s.
    ///
    /// [`Gather`]: crate::sessions::gather::Gather
    pub get_continues: bool,
    /// How the next request has waited for room, and for a slice that moves.
    pub room: Option<RoomWait>,
    pub slice: SliceWait,
    pub protocol: Protocol,
    pub login: Login,
    /// SASL: credentials come with the next step.
    pub login_begun: bool,
    /// Why it closes, if not because its client wanted it.
    pub closes: Option<&'static str>,
    /// Missing during its turn alone.
    pub info: Option<Arc<ConnInfo>>,
    pub client: Client,
    /// The client chose this worker.
    pub own_port: bool,
    /// Copies of hot keys that its client may read, where its server holds leases for it.
    pub leases: Option<Box<Leases>>,
    /// What it costs its worker.
    pub work: Work,
    /// The worker that it is to be handed to.
    pub due: Option<WorkerId>,
}

/// What a paused connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// A credit of the link to this server.
    Credit(ServerId),
    /// Replies that wait for a peer's have come to [`OUTPUT_BYTES_MAX`].
    Order,
    /// All that is unanswered: what comes next could overtake it.
    Answers,
    /// An answer: what is asked for and not there yet may be as long as the connection may hold.
    Window,
}

/// Why a session executes nothing for the time being. Meanwhile its input is kept, unless it says otherwise.
#[derive(Default)]
pub(crate) enum Wait {
    /// For nothing but input.
    #[default]
    No,
    /// For its output to leave: [`crate::Event::Drained`].
    Output,
    /// The same, in the middle of a command of many steps.
    Walk(Box<Walk>),
    /// For peers.
    Peers(Pause),
    /// For room, or for a slice that moves, until then: [`crate::Event::Woken`].
    Until(Instant),
    /// For certificates: [`crate::Event::CertsRefreshed`].
    Certificates,
    /// For what there is to tell, for ever. Input is dropped.
    Watching {
        watcher: Arc<Watcher>,
        /// What it was told has not left yet.
        full: bool,
    },
    /// For its end. Input is dropped.
    End {
        /// Whether the server is to end too, gracefully or not.
        shutdown: Option<bool>,
        /// [`crate::Action::Close`] has been asked for.
        asked: bool,
    },
}

impl Wait {
    pub fn is_no(&self) -> bool {
        matches!(self, Wait::No)
    }

    pub fn drops_input(&self) -> bool {
        matches!(self, Wait::Watching { .. } | Wait::End { .. })
    }

    /// Who watches by this session.
    pub fn watcher(&self) -> Option<&Arc<Watcher>> {
        match self {
            Wait::Watching { watcher, .. } => Some(watcher),
            _ => None,
        }
    }
}

/// Epochs for which a connection that was handed over is left where it is, as a cachelet is.
const REST_EPOCHS: u64 = 10;

/// A connection's work by epoch, and whether it has moved lately.
#[derive(Default)]
pub(crate) struct Work {
    epoch: u64,
    /// In `epoch`, and in the one before.
    now: u64,
    last: u64,
    /// The epoch of its last move, and its work in the one before.
    moved: Option<(u64, u64)>,
}

impl Work {
    #[inline]
    pub fn add(&mut self, work: u64, epoch: u64) {
        if self.epoch != epoch {
            self.last = self.before(epoch);
            (self.epoch, self.now) = (epoch, 0);
        }
        self.now += work;
    }

    /// In the epoch before this one.
    pub fn before(&self, epoch: u64) -> u64 {
        match epoch.saturating_sub(self.epoch) {
            0 => self.last,
            1 => self.now,
            _ => 0,
        }
    }

    pub fn moves(&mut self, epoch: u64) {
        self.moved = Some((epoch, self.before(epoch)));
    }

    /// It moved so recently that moving it again would be restlessness, unless it has changed by half.
    pub fn rests(&self, epoch: u64) -> bool {
        self.moved.is_some_and(|(at, work)| {
            epoch < at + REST_EPOCHS && 2 * self.before(epoch).abs_diff(work) < work
        })
    }
}

/// A session on its way from one worker to another.
pub struct Carried(Box<Session>);

impl Carried {
    pub(crate) fn arrive(self) -> Box<Session> {
        self.0
    }
}

/// Two are the same if they are the same session; for comparing actions.
impl PartialEq for Carried {
    fn eq(&self, other: &Carried) -> bool {
        self.0.client == other.0.client
    }
}

impl Eq for Carried {}

impl fmt::Debug for Carried {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "session of {:?}", self.0.client)
    }
}

impl Session {
    /// True if nothing of it is bound to its worker: no request has begun, no reply is owed.
    pub fn is_between_requests(&self) -> bool {
        if matches!(self.wait, Wait::Output) && is_planted(Fault::StalledIsIdle) {
            return true;
        }
        self.pending.is_empty()
            && self.skip == 0
            && self.refusal.is_empty()
            && self.wait.is_no()
            && self.slots.is_empty()
            && !self.get_continues
    }

    /// Packs it for another worker. All that it knows of its client goes along.
    pub fn carry(mut self: Box<Self>) -> Carried {
        assert!(self.is_between_requests(), "a worker hands over between requests alone");
        self.due = None;
        Carried(self)
    }

    /// Nothing has begun that has not ended.
    pub fn is_at_rest(&self) -> bool {
        matches!(self.wait, Wait::No | Wait::Certificates) && self.need == 0 && self.skip == 0
    }

    pub fn state(&self) -> State {
        match self.wait {
            Wait::End { .. } => State::Closing,
            Wait::Watching { .. } => State::Watching,
            Wait::Output | Wait::Walk(_) => State::Writing,
            Wait::Peers(_) | Wait::Until(_) => State::Waiting,
            Wait::No | Wait::Certificates if self.skip > 0 => State::Swallowing,
            Wait::No | Wait::Certificates if self.need > 0 => State::Storing,
            Wait::No | Wait::Certificates => State::Reading,
        }
    }

    /// Counts off what of the next `available` bytes nobody wants.
    pub fn skipped(&mut self, available: usize) -> usize {
        let bytes = self.skip.min(available);
        self.skip -= bytes;
        bytes
    }

    /// Puts the reply that begins at `before` in `out` behind those that wait for peers.
    #[inline]
    pub fn order(&mut self, before: usize, out: &mut Vec<u8>) {
        let waits = !self.slots.is_empty() && !is_planted(Fault::RepliesOvertake);
        if waits && before < out.len() {
            self.slots.push_local(&out[before..]);
            out.truncate(before);
        }
    }

    /// Moves from `bytes` to `pending` what the request that waits there may need, and says
    /// whether it is worth looking at it.
    pub fn complete(&mut self, bytes: &mut &[u8]) -> bool {
        let take = match self.need {
            0 => memchr::memchr(b'\n', bytes).map_or(bytes.len(), |end| end + 1),
            need => bytes.len().min(need - self.pending.len()),
        };
        let (taken, rest) = bytes.split_at(take);
        self.pending.extend_from_slice(taken);
        *bytes = rest;
        match self.need {
            0 => taken.ends_with(b"\n") || !mbal_wire::may_grow(&self.pending),
            need => self.pending.len() == need,
        }
    }

    /// Puts back the buffer that was taken out, without the bytes that were used.
    pub fn keep(&mut self, mut pending: Vec<u8>, used: usize) {
        pending.drain(..used);
        if pending.is_empty() && pending.capacity() > PENDING_BYTES_KEPT {
            pending = Vec::new();
        }
        self.pending = pending;
    }
}
