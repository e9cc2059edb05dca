//! Requests that are on their way to upstreams: who waits, what may come, and what the client hears of it.

use mbal_model::Instant;
use mbal_wire::{Frame, ReplyKind, Status};

use crate::expect::Expect;
use crate::naming;
use crate::peers::Ask;

/// A request that is on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub who: Who,
    pub kind: ReplyKind,
    pub expect: Expect,
    pub hide: Hide,
    /// It may change its key, which is in the queue of keys.
    pub writes: bool,
    /// Its key has a name of the proxy's own.
    pub renamed: bool,
    pub at: Instant,
}

impl InFlight {
    /// What no client waits for.
    pub fn own(who: Who, kind: ReplyKind, expect: Expect, at: Instant) -> InFlight {
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

    /// Whether the reply to a `get` of one key, or to a `mg` that changes nothing, has found it. `None`: it is neither.
    #[inline]
    pub fn found(&self, reply: &[u8]) -> Option<bool> {
        match (self.kind, reply[0]) {
            (ReplyKind::Values, b'V') => Some(true),
            (ReplyKind::Values, b'E') if reply == b"END\r\n" => Some(false),
            (ReplyKind::Meta, _) if self.writes => None,
            (ReplyKind::Meta, b'V' | b'H') => Some(true),
            (ReplyKind::Meta, b'E') if reply.starts_with(b"EN") => Some(false),
            (ReplyKind::Binary, _) if is_binary_get(reply[1]) => match reply[6..8] {
                [0, 0] => Some(true),
                [0, 1] => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    /// Appends what the client hears of a reply.
    #[inline]
    pub fn push_reply(&self, out: &mut Vec<u8>, reply: &[u8]) {
        let hidden = match self.hide {
            Hide::Nothing => false,
            Hide::Miss => reply.starts_with(b"EN"),
            Hide::Done => reply.starts_with(b"HD"),
            Hide::Success => reply.starts_with(b"HD") || reply.starts_with(b"VA "),
            Hide::Binary { status, .. } => reply[6..8] == [0, status],
        };
        if hidden {
            return;
        }
        match (self.renamed, self.kind, self.hide) {
            (true, ReplyKind::Values, _) => naming::push_values_renamed(out, reply),
            (true, ReplyKind::Meta, _) => naming::push_meta_renamed(out, reply),
            (_, _, Hide::Binary { opcode, .. }) => {
                out.extend_from_slice(&[reply[0], opcode]);
                out.extend_from_slice(&reply[2..]);
            }
            _ => out.extend_from_slice(reply),
        }
    }

    /// Appends what the client hears when its upstream has failed.
    pub fn push_error(&self, out: &mut Vec<u8>, error: &[u8]) {
        if self.kind != ReplyKind::Binary {
            out.extend_from_slice(error);
        } else if let Hide::Binary { opcode, opaque, .. } = self.hide {
            let frame = Frame { opcode, quiet: false, vbucket: 0, suffix: 0, opaque, cas: 0 };
            frame.push_error(out, Status::TemporaryFailure);
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

/// Get, GetK, and Gat, GatK; and their quiet kin.
fn is_binary_get(opcode: u8) -> bool {
    matches!(opcode, 0x00 | 0x09 | 0x0c | 0x0d | 0x1d | 0x1e | 0x23 | 0x24)
}
