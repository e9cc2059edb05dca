//! Where clients come in that speak TLS, and what there is of each.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::guest::Guest;
use crate::output::Output;
use crate::tls::{ClientCertificate, Tls, TlsDoor};
use crate::{Mailbox, Tally};

/// Who lets clients in that speak TLS.
pub(super) struct Entrance {
    pub door: Arc<TlsDoor>,
    pub tls_acceptor: Mailbox<Guest>,
}

impl Entrance {
    pub fn send_in(&self, fd: OwnedFd, certificate: ClientCertificate, tally: &Tally) {
        match self.door.open(certificate) {
            Some(tls) => self.tls_acceptor.post(Guest::new(fd, tls, 0, false)),
            None => tally.leave(0),
        }
    }
}

/// A client's TLS, and what it has enciphered and the socket has not taken.
pub(super) struct Secured {
    pub tls: Box<Tls>,
    pub output: Output,
    /// It is closed when that has left.
    pub ending: bool,
}

impl Secured {
    pub fn new(tls: Box<Tls>) -> Box<Secured> {
        Box::new(Secured { tls, output: Output::default(), ending: false })
    }
}
