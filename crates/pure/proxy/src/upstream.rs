//! An upstream and the connections to it: what was asked, and is not answered yet.

use std::collections::{BTreeSet, VecDeque};

use crate::Nanos;
use crate::buffers::{Output, Spare};
use crate::counting::Latency;
use crate::peers::Ask;
use crate::reply::Kind;
use mbal_link::Gathering;

pub(crate) struct Upstream {
    /// What people call it.
    pub name: String,
    pub health: Health,
    /// It has been in the pool, and left it.
    pub was_member: bool,
    /// In a row.
    pub failures: u32,
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
    pub out: Output,
    /// Of a reply that has not come in whole.
    pub input: Vec<u8>,
    pub need: usize,
    pub scanned: usize,
    pub asked: VecDeque<Asked>,
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
    /// Keys whose last write has no known outcome, and whether they are in base64: they are deleted before anything else is asked.
    pub owed: BTreeSet<(Box<[u8]>, bool)>,
    /// Too many to know: everything is.
    pub owes_all: bool,
}

/// Keys that a connection remembers to delete.
const OWED_MAX: usize = 10_000;

/// A request that is on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub who: Who,
    pub kind: Kind,
    pub hide: Hide,
    /// It may change its key, which is in the queue of keys.
    pub writes: bool,
    /// Its key has a name of the proxy's own.
    pub renamed: bool,
    pub at: Nanos,
}

impl Asked {
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
        }
    }

    /// What [`Conn::done`] is when all that was asked has been answered or lost.
    pub fn asked_in_all(&self) -> u64 {
        self.done + self.asked.len() as u64
    }

    /// What is not answered, and what was asked in this interval: the first tells who is slow, the second who has few other keys.
    pub fn load(&self) -> (usize, u64) {
        (self.asked.len(), self.asked_in_all() - self.asked_before)
    }

    /// A write may be executed at any moment.
    pub fn awaits_writes(&self) -> bool {
        !self.keys.unsent().is_empty()
    }

    /// What was appended to the output is a request.
    #[inline]
    pub fn ask(&mut self, asked: Asked, written: Option<(&[u8], bool)>) {
        if let Some((key, base64)) = written {
            self.keys.bytes.extend_from_slice(&[key.len() as u8, base64.into()]);
            self.keys.bytes.extend_from_slice(key);
        }
        self.gathering.gathers(asked.at);
        self.asked.push_back(asked);
    }

    /// The next reply is this one's.
    #[inline]
    pub fn answered(&mut self, spare: &mut Spare, written: &mut Vec<u8>) -> Option<Asked> {
        let asked = self.asked.pop_front()?;
        self.done += 1;
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
    pub fn lose(&mut self, spare: &mut Spare) -> VecDeque<Asked> {
        let mut keys = self.keys.unsent();
        if !keys.is_empty() {
            self.doubt = Some(Nanos::MAX);
        }
        while let [length, base64, rest @ ..] = keys {
            let (key, rest) = rest.split_at(usize::from(*length));
            if self.owed.len() < OWED_MAX {
                self.owed.insert((key.into(), *base64 != 0));
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

    /// Puts the deletion of what is owed before all that was asked while the connection was being made.
    pub fn pay(&mut self, now: Nanos, binary: bool) {
        let mut first = Vec::new();
        let mut deletions = 0;
        if self.owes_all {
            push_flush(&mut first, binary);
            (self.owed, deletions) = (BTreeSet::new(), 1);
        }
        for (key, base64) in &self.owed {
            push_delete(&mut first, key, *base64, binary);
            deletions += 1;
        }
        if deletions == 0 {
            return;
        }
        let kind = if binary { Kind::Binary } else { Kind::Line };
        let asked = Asked {
            who: Who::Owed,
            kind,
            hide: Hide::Nothing,
            writes: false,
            renamed: false,
            at: now,
        };
        first.extend_from_slice(self.out.unsent());
        self.out.bytes = first;
        for _ in 0..deletions {
            self.asked.push_front(asked);
        }
    }

    /// A deletion that was owed is done.
    pub fn paid(&mut self) {
        if self.owes_all {
            self.owes_all = false;
        } else {
            self.owed.pop_first();
        }
    }
}

pub(crate) fn push_flush(out: &mut Vec<u8>, binary: bool) {
    match binary {
        true => {
            let mut frame = [0; 24];
            frame[..2].copy_from_slice(&[mbal_wire::BINARY_REQUEST, 0x08]);
            out.extend_from_slice(&frame);
        }
        false => out.extend_from_slice(b"flush_all\r\n"),
    }
}

pub(crate) fn push_delete(out: &mut Vec<u8>, key: &[u8], base64: bool, binary: bool) {
    let (verb, end): (&[u8], &[u8]) = match (binary, base64) {
        (true, _) => return out.extend_from_slice(&mbal_wire::binary_delete(key)),
        (false, true) => (b"md ", b" b\r\n"),
        (false, false) => (b"md ", b"\r\n"),
    };
    for part in [verb, key, end] {
        out.extend_from_slice(part);
    }
}
