//! A connection to an upstream: what was asked over it, and is not answered yet.

use std::collections::VecDeque;
use std::time::Duration;

use mbal_link::Gathering;
use mbal_model::{Instant, KEY_BYTES_MAX};

use crate::buffers::{Output, Spare};
use crate::doubt::Doubts;
use crate::encode::push_bare;
use crate::expect::Expect;
use crate::inflight::{InFlight, Who};
use mbal_wire::{ReplyKind, base64_decode};

/// A connection that was up for so long has been of use, though it may have been asked nothing.
const USE_MIN: Duration = Duration::from_millis(100);
/// Of reads that may have to be asked again.
const ECHO_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It is not dialed before this.
    Closed {
        retry_at: Instant,
    },
    Dialing {
        since: Instant,
    },
    Up,
}

/// Of a reply that has not come in whole.
#[derive(Default)]
pub(crate) struct Input {
    pub bytes: Vec<u8>,
    pub need: usize,
    pub scanned: usize,
}

pub(crate) struct Conn {
    pub upstream: usize,
    pub state: State,
    /// Something, since it was dialed.
    pub has_answered: bool,
    /// When it came up, or said something since.
    heard_at: Instant,
    /// Part of a reply has come, the last one included: the replies behind it could not come before.
    in_part_at: Instant,
    /// When it came up.
    up_since: Instant,
    /// Some of its keys were asked of other servers of its cluster.
    pub is_stood_for: bool,
    /// Requests since the start, of which something has left.
    sent: u64,
    /// What has left since nobody had used the connection for a while, before the first answer to it: reads of that are asked again
    /// if the upstream was closing the connection at that moment.
    echo: Vec<u8>,
    pub out: Output,
    pub input: Input,
    pub asked: VecDeque<InFlight>,
    /// Requests that were answered or lost since the start.
    done: u64,
    /// What had been asked when this interval of NetKV's control began.
    asked_before: u64,
    gathering: Gathering,
    /// What has not left waits so long for more.
    pub gathers: Option<Instant>,
    /// It is in the list of those with requests that have not left.
    pub is_gathering: bool,
    /// The keys of the writes in `asked`, each behind its length and whether it is in base64.
    keys: Output,
    pub doubts: Doubts,
}

impl Conn {
    pub fn new(upstream: usize, doubt: Option<Instant>) -> Conn {
        Conn {
            upstream,
            state: State::Closed { retry_at: Instant::ZERO },
            has_answered: false,
            heard_at: Instant::ZERO,
            in_part_at: Instant::ZERO,
            up_since: Instant::ZERO,
            is_stood_for: false,
            sent: 0,
            echo: Vec::new(),
            out: Output::default(),
            input: Input::default(),
            asked: VecDeque::new(),
            done: 0,
            asked_before: 0,
            gathering: Gathering::default(),
            gathers: None,
            is_gathering: false,
            keys: Output::default(),
            doubts: Doubts::until(doubt),
        }
    }

    #[inline]
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// It is there. What was asked meanwhile has its time from now on.
    pub fn connected(&mut self, now: Instant) {
        (self.state, self.up_since, self.heard_at) = (State::Up, now, now);
    }

    pub fn ends(&mut self) {
        self.state = State::Closed { retry_at: Instant::MAX };
    }

    pub fn was_of_use(&self, now: Instant) -> bool {
        self.has_answered || self.up_since + USE_MIN <= now
    }

    /// It has said nothing since then, and nobody waits for it.
    pub fn is_silent_since(&self, at: Instant) -> bool {
        self.is_up() && self.asked.is_empty() && self.heard_at < at
    }

    pub fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    /// It is not dialed any more.
    pub fn is_over(&self) -> bool {
        self.state == State::Closed { retry_at: Instant::MAX }
    }

    /// Requests that were answered or lost since the start.
    #[inline]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// What [`Conn::done`] is when all that was asked has been answered or lost.
    pub fn asked_in_all(&self) -> u64 {
        self.done + self.asked.len() as u64
    }

    /// The socket has taken `count` bytes.
    #[inline]
    pub fn took(&mut self, count: usize, now: Instant, spare: &mut Spare) {
        if count > 0 {
            let idle = self.heard_at + USE_MIN <= now;
            if !self.echo.is_empty() || self.is_unsent() && idle {
                let fits = self.echo.len() + count <= ECHO_BYTES_MAX;
                match fits && count == self.out.unsent().len() {
                    true => self.echo.extend_from_slice(self.out.unsent()),
                    false => self.echo = Vec::new(),
                }
            }
            self.sent = self.asked_in_all();
        }
        self.out.sent(count, spare);
        self.out.told = self.out.len() > 0;
        self.gathering.sent(now.as_nanos());
    }

    /// Nothing has left of what is not answered: it can be asked over another connection.
    pub fn is_unsent(&self) -> bool {
        self.sent <= self.done
    }

    /// True if all that is not answered can be asked again: it has not left, or it is all reads. Then none of it counts as sent.
    pub fn asks_again(&mut self) -> bool {
        let reads = |asked: &InFlight| {
            matches!(asked.who, Who::Client { .. } | Who::Part { .. }) && !asked.writes
        };
        if self.is_unsent() {
            return true;
        }
        if self.echo.is_empty() || !self.input.bytes.is_empty() || !self.asked.iter().all(reads) {
            return false;
        }
        let mut again = std::mem::take(&mut self.echo);
        again.extend_from_slice(self.out.unsent());
        self.out = Output::default();
        self.out.bytes = again;
        self.sent = self.done;
        true
    }

    /// The connection is gone, and what it was asked waits for the next one.
    pub fn keep(&mut self) {
        // The driver may have been told of output, and then takes nothing.
        self.out.told = false;
        self.gathering = Gathering::default();
        self.gathers = None;
    }

    /// What is not answered, and what was asked in this interval: the first tells who is slow, the second who has few other keys.
    pub fn load(&self) -> (usize, u64) {
        (self.asked.len(), self.asked_in_all() - self.asked_before)
    }

    pub fn begin_interval(&mut self) {
        self.asked_before = self.asked_in_all();
    }

    /// When the upstream is to say something: it has been asked since then, or part of a reply has come. It never goes back.
    #[inline]
    pub fn waits_since(&self) -> Option<Instant> {
        let asked_at = self.asked.front()?.at;
        Some(asked_at.max(self.in_part_at))
    }

    /// A write may be executed at any moment.
    pub fn awaits_writes(&self) -> bool {
        !self.keys.unsent().is_empty()
    }

    /// The keys of writes that are not answered, each behind its length and whether it is in base64.
    pub fn written_keys(&self) -> &[u8] {
        self.keys.unsent()
    }

    /// A write of this key is not answered.
    pub fn has_written(&self, key: &[u8]) -> bool {
        let mut keys = self.keys.unsent();
        while let [length, base64, rest @ ..] = keys {
            let (written, further) = rest.split_at(usize::from(*length));
            let mut decoded = [0; KEY_BYTES_MAX];
            let bytes = if *base64 != 0 { base64_decode(written, &mut decoded) } else { None };
            if bytes.map_or(written, |bytes| &decoded[..bytes]) == key {
                return true;
            }
            keys = further;
        }
        false
    }

    /// The key of the next reply's request, if that writes, and whether it is in base64.
    pub fn next_written(&self) -> Option<(&[u8], bool)> {
        self.asked.front().filter(|asked| asked.writes)?;
        let keys = self.keys.unsent();
        Some((&keys[2..2 + usize::from(keys[0])], keys[1] != 0))
    }

    /// What was appended to the output is a request.
    #[inline]
    pub fn ask(&mut self, asked: InFlight, written: Option<(&[u8], bool)>) {
        if let Some((key, base64)) = written {
            self.keys.bytes.extend_from_slice(&[key.len() as u8, base64.into()]);
            self.keys.bytes.extend_from_slice(key);
        }
        self.gathering.gathers(asked.at.as_nanos());
        self.asked.push_back(asked);
    }

    /// Until when what has not left waits for more; `None`: it leaves.
    #[inline]
    pub fn gathers_until(&mut self, now: Instant) -> Option<Instant> {
        let bytes = self.out.len();
        let until = match self.is_up() && !self.out.told && bytes > 0 {
            true => self.gathering.waits_until(self.asked.len(), bytes, now.as_nanos()),
            false => None,
        };
        self.gathers = until.map(Instant::from_nanos);
        self.gathers
    }

    /// Something has come.
    #[inline]
    pub fn heard(&mut self, now: Instant) {
        self.gathering.heard(now.as_nanos());
        self.heard_at = now;
    }

    /// It was a part of a reply.
    pub fn heard_in_part(&mut self) {
        self.in_part_at = self.heard_at;
    }

    /// The next reply is this one's.
    #[inline]
    pub fn answered(&mut self, written: &mut Vec<u8>) -> Option<InFlight> {
        let asked = self.asked.pop_front()?;
        self.done += 1;
        if !self.echo.is_empty() {
            self.echo = Vec::new();
        }
        if asked.writes {
            let bytes = 2 + usize::from(self.keys.unsent()[0]);
            // Other connections have no order with this one: copies of the key end when it is known to have changed, too.
            if asked.kind == ReplyKind::Binary {
                written.extend_from_slice(&self.keys.unsent()[2..bytes]);
            }
            self.keys.passed(bytes);
        }
        Some(asked)
    }

    /// The connection is gone. Who waits for it; the keys of writes are owed from now on.
    pub fn lose(&mut self, now: Instant, spare: &mut Spare) -> VecDeque<InFlight> {
        self.doubts.lose(self.keys.unsent(), !self.is_unsent(), now);
        self.echo = Vec::new();
        for output in [&mut self.keys, &mut self.out] {
            output.sent(output.len(), spare);
        }
        self.keep();
        self.input.bytes.clear();
        (self.input.need, self.input.scanned) = (0, 0);
        self.done += self.asked.len() as u64;
        std::mem::take(&mut self.asked)
    }

    /// Puts the deletion of what is owed before all that was asked while the connection was being made. It is for good, if `is_last`.
    pub fn pay_first(&mut self, now: Instant, binary: bool, is_last: bool) {
        let mut first = Vec::new();
        let (deletions, asked) = self.doubts.push(&mut first, is_last, binary, now);
        self.ask_first(first, deletions, asked);
    }

    /// Asks first whether the upstream answers at all.
    pub fn probe_first(&mut self, now: Instant, binary: bool) {
        let mut first = Vec::new();
        let (kind, expect) = match binary {
            true => {
                push_bare(&mut first, 0x0a);
                (ReplyKind::Binary, Expect::Binary { opcode: 0x0a, opaque: [0; 4] })
            }
            false => {
                first.extend_from_slice(b"version\r\n");
                (ReplyKind::Line, Expect::Version)
            }
        };
        self.ask_first(first, 1, InFlight::own(Who::Nobody, kind, expect, now));
    }

    fn ask_first(&mut self, mut first: Vec<u8>, count: usize, asked: InFlight) {
        first.extend_from_slice(self.out.unsent());
        self.out.bytes = first;
        (0..count).for_each(|_| self.asked.push_front(asked));
    }

    /// Appends the deletion of what is owed, for good.
    pub fn pay(&mut self, now: Instant, binary: bool) {
        let (deletions, asked) = self.doubts.push(&mut self.out.bytes, true, binary, now);
        (0..deletions).for_each(|_| self.ask(asked, None));
    }
}
