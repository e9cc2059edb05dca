//! A connection whose TLS handshake goes on.

use std::os::fd::{AsFd, OwnedFd};

use crate::output::Output;
use crate::sys;
use crate::tls::{Broken, Tls};

/// How it goes on with a guest.
pub(crate) enum Step {
    Waits,
    Done,
    Gone,
    Broke(String),
}

/// A connection whose handshake goes on.
pub struct Guest {
    pub(crate) fd: OwnedFd,
    pub(crate) tls: Box<Tls>,
    /// It came in by the worker's own port.
    pub(crate) own_port: bool,
    /// What came right behind its last word, decrypted.
    pub(crate) plain: Vec<u8>,
    pub(crate) worker: usize,
    pub(crate) output: Output,
    pub(crate) deadline: u64,
}

impl Guest {
    pub(crate) fn new(fd: OwnedFd, tls: Box<Tls>, worker: usize, own_port: bool) -> Guest {
        let output = Output::default();
        Guest { fd, tls, own_port, plain: Vec::new(), worker, output, deadline: 0 }
    }

    pub(crate) fn go_on(&mut self, buffer: &mut [u8]) -> Step {
        if self.output.is_empty() {
            let count = match sys::recv(self.fd.as_fd(), buffer) {
                Ok(0) => return Step::Gone,
                Ok(count) => count,
                Err(error) if sys::is_transient(&error) => return Step::Waits,
                Err(_) => return Step::Gone,
            };
            let mut cipher = Vec::new();
            let received = self.tls.receive(&buffer[..count], &mut self.plain, &mut cipher);
            self.output.push(&cipher);
            if let Err(Broken(why)) = received {
                // An alert says why, if it still gets there.
                drop(sys::send(self.fd.as_fd(), self.output.unsent()));
                return Step::Broke(why);
            }
        }
        if !self.output.is_empty() {
            match sys::send(self.fd.as_fd(), self.output.unsent()) {
                Ok(sent) => self.output.sent(sent),
                Err(error) if sys::is_transient(&error) => {}
                Err(_) => return Step::Gone,
            }
        }
        if self.output.is_empty() && !self.tls.is_handshaking() { Step::Done } else { Step::Waits }
    }
}
