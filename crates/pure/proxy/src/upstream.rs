//! An upstream and the connections to it: what was asked, and is not answered yet.

use std::collections::{BTreeSet, VecDeque};

use crate::Nanos;
use crate::buffers::{Output, Spare};
use crate::counting::Latency;
use crate::expect::{Echo, Expect};
use crate::missed::{Missed, Return};
use crate::peers::Ask;
use crate::reply::Kind;
use mbal_link::Gathering;
use mbal_model::KEY_BYTES_MAX;
use mbal_wire::base64_decode;

pub(crate) struct Upstream {
    /// What people call it.
    pub name: String,
    pub health: Health,
    /// While it does not serve: what it would have got.
    pub missed: Option<Missed>,
    pub returning: Return,
    /// It is away since it left the pool, not since it failed.
    pub has_left: bool,
    /// Which cluster it is of.
    pub cluster: Option<u16>,
    /// It has told which, or that it is of none.
    pub is_told: bool,
    /// How often it hung up when it was asked that.
    pub hung_up: u8,
    /// It did not know, and is asked again.
    pub asked_again_at: Nanos,
    /// In a row.
    pub failures: u32,
    /// When the last of them was counted.
    pub failed_at: Option<Nanos>,
    /// Since the start.
    pub failures_total: u64,
    pub latency: Latency,
    /// Its connections follow each other from here on: those for text, then those for binary.
    pub first_conn: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Serves,
    /// Its keys are elsewhere until it has been flushed.
    Ejected,
    /// It is in the pool no more. Its connections answer what they were asked, and end.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It is not dialed before this.
    Closed {
        retry_at: Nanos,
    },
    Dialing {
        since: Nanos,
    },
    Up,
}

pub(crate) struct Conn {
    pub upstream: usize,
    pub state: State,
    /// Something, since it was dialed.
    pub has_answered: bool,
    /// When it came up, or said something since.
    pub heard_at: Nanos,
    /// When it came up.
    pub up_since: Nanos,
    /// When a write over it got no answer.
    pub lost_at: Nanos,
    /// Some of its keys were asked of other servers of its cluster.
    pub is_stood_for: bool,
    /// Requests since the start, of which something has left.
    sent: u64,
    /// What has left since nobody had used the connection for a while, before the first answer to it: reads of that are asked again
    /// if the upstream was closing the connection at that moment.
    echo: Vec<u8>,
    pub out: Output,
    /// Of a reply that has not come in whole.
    pub input: Vec<u8>,
    pub need: usize,
    pub scanned: usize,
    pub asked: VecDeque<InFlight>,
    /// Requests that were answered or lost since the start.
    pub done: u64,
    /// What had been asked when this interval of NetKV's control began.
    pub asked_before: u64,
    /// A write over an earlier connection may still be executed: until then, or until some time after the next reply.
    pub doubt: Option<Nanos>,
    pub gathering: Gathering,
    /// What has not left waits so long for more.
    pub gathers_until: Option<Nanos>,
    /// It is in the list of those with requests that have not left.
    pub is_gathering: bool,
    /// The keys of the writes in `asked`, each behind its length and whether it is in base64.
    keys: Output,
    /// Keys whose last write has no known outcome, and whether text needs base64 for them: they are deleted before anything else is
    /// asked, and again when the write cannot be executed any more.
    pub owed: BTreeSet<(Box<[u8]>, bool)>,
    /// Too many to know: everything is.
    pub owes_all: bool,
    /// Deletions that are on their way for good.
    pub paying: usize,
    /// Earlier connections that were given up while a write was not answered, and nothing tells when it is over.
    pub doubts: u32,
    /// Likewise, whose upstream will close them when it is.
    pub lingering: u32,
}

/// Of reads that may have to be asked again.
const ECHO_BYTES_MAX: usize = 64 << 10;
/// Keys that a connection remembers to delete.
const OWED_MAX: usize = 10_000;

/// A request that is on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub who: Who,
    pub kind: Kind,
    pub expect: Expect,
    pub hide: Hide,
    /// It may change its key, which is in the queue of keys.
    pub writes: bool,
    /// Its key has a name of the proxy's own.
    pub renamed: bool,
    pub at: Nanos,
}

impl InFlight {
    /// What no client waits for.
    pub fn own(who: Who, kind: Kind, expect: Expect, at: Nanos) -> InFlight {
        InFlight { who, kind, expect, hide: Hide::Nothing, writes: false, renamed: false, at }
    }

    /// So many keys clients wait for.
    #[inline]
    pub fn keys(&self) -> usize {
        match self.who {
            Who::Client { .. } => 1,
            Who::Part { keys, .. } => keys.into(),
            _ => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Client {
        client: u32,
        number: u32,
    },
    /// One part of a multi-get.
    Part {
        client: u32,
        number: u32,
        part: u8,
        keys: u16,
    },
    /// One of all upstreams.
    Everywhere {
        client: u32,
        number: u32,
    },
    Nobody,
    /// The value of a hot key is to be copied.
    Fill {
        hash: u64,
        epoch: u64,
    },
    /// The value of a hot key is for the kernel.
    KernelFill {
        hash: u64,
        number: u64,
    },
    /// Copy number `at` of a hot key.
    Copy {
        hash: u64,
        epoch: u64,
        at: u32,
    },
    /// The flush before an ejected upstream serves again.
    Fence,
    /// Which cluster an upstream is of.
    Cluster,
    /// A step of an upstream's return.
    Return,
    /// The deletion of the first key that is owed, or of everything.
    Owed,
    /// One of the other proxies.
    Peer {
        place: u8,
        ask: Ask,
    },
}

/// Which replies a client that asked quietly does not hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hide {
    Nothing,
    /// `mg`: EN.
    Miss,
    /// `ms` and `md`: HD.
    Done,
    /// `ma`: HD and VA.
    Success,
    /// Binary: replies of this status. The opcode and the opaque are the client's.
    Binary {
        opcode: u8,
        opaque: [u8; 4],
        status: u8,
    },
}

impl Conn {
    pub fn new(upstream: usize, doubt: Option<Nanos>) -> Conn {
        Conn {
            upstream,
            state: State::Closed { retry_at: 0 },
            has_answered: false,
            heard_at: 0,
            up_since: 0,
            lost_at: 0,
            is_stood_for: false,
            sent: 0,
            echo: Vec::new(),
            out: Output::default(),
            input: Vec::new(),
            need: 0,
            scanned: 0,
            asked: VecDeque::new(),
            done: 0,
            asked_before: 0,
            doubt,
            gathering: Gathering::default(),
            gathers_until: None,
            is_gathering: false,
            keys: Output::default(),
            owed: BTreeSet::new(),
            owes_all: false,
            paying: 0,
            doubts: 0,
            lingering: 0,
        }
    }

    /// What [`Conn::done`] is when all that was asked has been answered or lost.
    pub fn asked_in_all(&self) -> u64 {
        self.done + self.asked.len() as u64
    }

    /// The socket has taken `count` bytes.
    #[inline]
    pub fn took(&mut self, count: usize, idle: bool, spare: &mut Spare) {
        if count > 0 {
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
        if self.echo.is_empty() || !self.input.is_empty() || !self.asked.iter().all(reads) {
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
        self.gathers_until = None;
    }

    /// What is not answered, and what was asked in this interval: the first tells who is slow, the second who has few other keys.
    pub fn load(&self) -> (usize, u64) {
        (self.asked.len(), self.asked_in_all() - self.asked_before)
    }

    /// When the upstream is to say something: it has been asked since then, or a reply of it is coming in.
    #[inline]
    pub fn waits_since(&self) -> Option<Nanos> {
        let asked_at = self.asked.front()?.at;
        Some(if self.input.is_empty() { asked_at } else { asked_at.max(self.heard_at) })
    }

    /// A write may be executed at any moment.
    pub fn awaits_writes(&self) -> bool {
        !self.keys.unsent().is_empty()
    }

    /// What was appended to the output is a request.
    #[inline]
    pub fn ask(&mut self, asked: InFlight, written: Option<(&[u8], bool)>) {
        if let Some((key, base64)) = written {
            self.keys.bytes.extend_from_slice(&[key.len() as u8, base64.into()]);
            self.keys.bytes.extend_from_slice(key);
        }
        self.gathering.gathers(asked.at);
        self.asked.push_back(asked);
    }

    /// The next reply is this one's.
    #[inline]
    pub fn answered(&mut self, spare: &mut Spare, written: &mut Vec<u8>) -> Option<InFlight> {
        let asked = self.asked.pop_front()?;
        self.done += 1;
        if !self.echo.is_empty() {
            self.echo = Vec::new();
        }
        if asked.writes {
            let bytes = 2 + usize::from(self.keys.unsent()[0]);
            // Other connections have no order with this one: copies of the key end when it is known to have changed, too.
            if asked.kind == Kind::Binary {
                written.extend_from_slice(&self.keys.unsent()[2..bytes]);
            }
            self.keys.sent(bytes, spare);
        }
        Some(asked)
    }

    /// The connection is gone. Who waits for it; the keys of writes are owed from now on.
    pub fn lose(&mut self, spare: &mut Spare) -> VecDeque<InFlight> {
        let may_come = !self.is_unsent();
        let mut keys = self.keys.unsent();
        if !keys.is_empty() && may_come {
            self.doubt = Some(Nanos::MAX);
            self.doubts += 1;
        }
        self.paying = 0;
        self.echo = Vec::new();
        while let [length, base64, rest @ ..] = keys {
            let (key, rest) = rest.split_at(usize::from(*length));
            if self.owed.len() < OWED_MAX {
                let mut decoded = [0; KEY_BYTES_MAX];
                let length = if *base64 != 0 { base64_decode(key, &mut decoded) } else { None };
                let key = length.map_or(key, |length| &decoded[..length]);
                self.owed.insert((key.into(), length.is_some()));
            } else {
                self.owes_all = true;
            }
            keys = rest;
        }
        for output in [&mut self.keys, &mut self.out] {
            output.sent(output.len(), spare);
        }
        // The driver may have been told of what is gone now, and then takes nothing.
        self.out.told = false;
        self.gathering = Gathering::default();
        self.gathers_until = None;
        self.input.clear();
        (self.need, self.scanned) = (0, 0);
        self.done += self.asked.len() as u64;
        std::mem::take(&mut self.asked)
    }

    /// Something is to be deleted.
    pub fn owes(&self) -> bool {
        self.owes_all || !self.owed.is_empty()
    }

    pub fn owes_key(&self, key: &[u8]) -> bool {
        let is_owed = |base64| self.owed.contains(&(key.into(), base64) as &(Box<[u8]>, bool));
        self.owes_all || !self.owed.is_empty() && (is_owed(false) || is_owed(true))
    }

    /// An earlier write may still be executed, or what it has brought is still to be deleted.
    pub fn is_in_doubt(&self, now: Nanos) -> bool {
        self.owes() || self.doubt.is_some_and(|until| now < until)
    }

    /// No earlier write can be executed any more.
    pub fn is_settled(&self) -> bool {
        self.doubts == 0 && self.lingering == 0
    }

    /// Appends the deletions of what is owed; how many they are.
    fn push_owed(&self, out: &mut Vec<u8>, binary: bool) -> usize {
        if self.owes_all {
            push_flush(out, binary);
            return 1;
        }
        self.owed.iter().for_each(|(key, base64)| push_delete(out, key, *base64, binary));
        self.owed.len()
    }

    fn deletion(&self, who: Who, now: Nanos, binary: bool) -> InFlight {
        let (kind, expect) = match (binary, self.owes_all) {
            (true, all) => {
                let opcode = if all { 0x08 } else { 0x04 };
                (Kind::Binary, Expect::Binary { opcode, opaque: [0; 4] })
            }
            (false, true) => (Kind::Line, Expect::Ok),
            (false, false) => (Kind::Meta, Expect::MetaDeleted(Echo::default())),
        };
        InFlight::own(who, kind, expect, now)
    }

    /// Puts the deletion of what is owed before all that was asked while the connection was being made. It is for good, if `is_last`.
    pub fn pay_first(&mut self, now: Nanos, binary: bool, is_last: bool) {
        let mut first = Vec::new();
        let deletions = self.push_owed(&mut first, binary);
        if deletions == 0 {
            return;
        }
        if is_last {
            self.paying = deletions;
        }
        let who = if is_last { Who::Owed } else { Who::Nobody };
        let asked = self.deletion(who, now, binary);
        first.extend_from_slice(self.out.unsent());
        self.out.bytes = first;
        for _ in 0..deletions {
            self.asked.push_front(asked);
        }
    }

    /// Asks first whether the upstream answers at all.
    pub fn probe_first(&mut self, now: Nanos, binary: bool) {
        let mut first = Vec::new();
        match binary {
            true => push_bare(&mut first, 0x0a),
            false => first.extend_from_slice(b"version\r\n"),
        }
        first.extend_from_slice(self.out.unsent());
        self.out.bytes = first;
        let (kind, expect) = match binary {
            true => (Kind::Binary, Expect::Binary { opcode: 0x0a, opaque: [0; 4] }),
            false => (Kind::Line, Expect::Version),
        };
        self.asked.push_front(InFlight::own(Who::Nobody, kind, expect, now));
    }

    /// Appends the deletion of what is owed, for good.
    pub fn pay(&mut self, now: Nanos, binary: bool) {
        let mut out = std::mem::take(&mut self.out.bytes);
        self.paying = self.push_owed(&mut out, binary);
        self.out.bytes = out;
        let asked = self.deletion(Who::Owed, now, binary);
        (0..self.paying).for_each(|_| self.ask(asked, None));
    }

    /// A deletion that was owed is done.
    pub fn paid(&mut self) {
        self.paying -= 1;
        if self.owes_all {
            self.owes_all = false;
            self.owed.clear();
        } else {
            self.owed.pop_first();
        }
    }
}

pub(crate) fn push_flush(out: &mut Vec<u8>, binary: bool) {
    match binary {
        true => push_bare(out, 0x08),
        false => out.extend_from_slice(b"flush_all\r\n"),
    }
}

/// Appends a binary request that is nothing but its opcode.
fn push_bare(out: &mut Vec<u8>, opcode: u8) {
    let mut frame = [0; 24];
    frame[..2].copy_from_slice(&[mbal_wire::BINARY_REQUEST, opcode]);
    out.extend_from_slice(&frame);
}

pub(crate) fn push_delete(out: &mut Vec<u8>, key: &[u8], base64: bool, binary: bool) {
    if binary {
        return out.extend_from_slice(&mbal_wire::binary_delete(key));
    }
    out.extend_from_slice(b"md ");
    if base64 {
        mbal_wire::base64_encode(key, out);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
    out.extend_from_slice(b"\r\n");
}
