//! A client's connection, as its worker's event loop has it.

use std::os::fd::OwnedFd;

use mbal_model::WorkerId;
use mbal_worker::Carried;

use crate::output::Output;
use crate::sys::{HUNG_UP, READABLE};
use crate::tls::Tls;

/// What a connection is watched for. Nobody here asks who has hung up: the listener does, in [`crate::Tally::hung_up`].
pub(crate) const RECEIVING: u32 = READABLE | HUNG_UP;

pub(crate) struct Conn {
    pub(crate) fd: OwnedFd,
    /// `None` is plain text.
    pub(crate) tls: Option<Box<Tls>>,
    pub(crate) output: Output,
    pub(crate) stalled: bool,
    /// It waits for other servers, and is not read.
    pub(crate) paused: bool,
    pub(crate) closing: bool,
    /// It goes to this worker when its output has left; here it has no session any more.
    pub(crate) leaving: Option<(WorkerId, Carried)>,
}

impl Conn {
    /// What is worth waking up for while there is no output.
    pub(crate) fn interest(&self) -> u32 {
        if self.paused { 0 } else { RECEIVING }
    }
}
