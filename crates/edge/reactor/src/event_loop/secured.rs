//! Connections by TLS: hands are shaken elsewhere; here bytes are deciphered on their way in.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mbal_worker::{Actions, ConnId, Event};

use super::EventLoop;
use crate::guest::Guest;
use crate::sys;
use crate::tls::{Broken, ClientCertificate};

impl EventLoop {
    #[cold]
    pub(super) fn serve_tls(
        &mut self,
        id: ConnId,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        let conn = self.conns[id.0 as usize].as_mut().expect("it is there: serve looked");
        let tls = conn.tls.as_mut().expect("it has TLS: serve looked");
        let count = match sys::recv(conn.fd.as_fd(), &mut self.buffer) {
            Ok(count @ 1..) => count,
            Err(error) if sys::is_transient(&error) => return,
            Ok(0) => {
                self.half_closed(id, now, handle);
                return self.settle(now, handle);
            }
            Err(_) => {
                self.close(id);
                return self.settle(now, handle);
            }
        };
        let (mut plain, mut cipher) =
            (std::mem::take(&mut self.plain), std::mem::take(&mut self.cipher));
        let received = tls.receive(&self.buffer[..count], &mut plain, &mut cipher);
        if !cipher.is_empty() {
            self.send_raw(id, &cipher);
        }
        match received {
            Ok(()) if plain.is_empty() => {}
            Ok(()) => {
                let bytes = plain.as_slice();
                handle(now, Event::Received { conn: id, bytes }, &mut self.actions);
            }
            Err(Broken(why)) => {
                let conn = self.conns[id.0 as usize].as_ref();
                let fd = conn.map_or(0, |conn| conn.fd.as_raw_fd() as u32);
                handle(now, Event::TlsBroke { fd, why }, &mut self.actions);
                self.close_when_sent(id);
            }
        }
        plain.clear();
        cipher.clear();
        (self.plain, self.cipher) = (plain, cipher);
        self.settle(now, handle);
    }

    /// A connection has come: who speaks TLS shakes hands first.
    pub(super) fn receive(
        &mut self,
        fd: OwnedFd,
        tls: Option<ClientCertificate>,
        own_port: bool,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        match (&self.tls, &self.tls_acceptor, tls) {
            (Some(door), Some(tls_acceptor), Some(certificate)) => match door.open(certificate) {
                Some(tls) => tls_acceptor.post(Guest::new(fd, tls, self.worker, own_port)),
                None => self.tally.leave(self.worker),
            },
            _ => drop(self.adopt(fd, None, own_port, now, handle)),
        }
    }

    pub(super) fn welcome(
        &mut self,
        guest: Guest,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        let Guest { fd, tls, own_port, plain, .. } = guest;
        let Some(conn) = self.adopt(fd, Some(tls), own_port, now, handle) else { return };
        if !plain.is_empty() && self.conns[conn.0 as usize].is_some() {
            handle(now, Event::Received { conn, bytes: &plain }, &mut self.actions);
            self.settle(now, handle);
        }
    }
}
