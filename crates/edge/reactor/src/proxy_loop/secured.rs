//! Clients that speak TLS. Hands are shaken on the [`TlsAcceptor`](crate::TlsAcceptor)'s thread.

use std::os::fd::AsFd;

use mbal_model::Instant;
use mbal_proxy::{ClientId, Event};

use super::ProxyLoop;
use super::entrance::Secured;
use super::socket::send;
use crate::guest::Guest;
use crate::sys;

/// A client's replies are enciphered so many bytes at a time, when its socket has taken those before.
const CIPHERED_BYTES: usize = 64 << 10;

impl ProxyLoop {
    pub(super) fn welcome(&mut self, guest: Guest, now: Instant) {
        let Guest { fd, tls, plain, .. } = guest;
        let client = self.proxy.open();
        self.admit(fd, client, Some(Secured::new(tls)));
        if !plain.is_empty() && self.clients[client.0 as usize].is_some() {
            self.proxy.handle(now, Event::Received { client, bytes: &plain });
        }
    }

    /// There is something of a client to be read.
    #[cold]
    pub(super) fn serve_secured(&mut self, client: ClientId) {
        let at = client.0 as usize;
        let Some(socket) = &mut self.clients[at] else { return };
        let received = sys::recv(socket.fd.as_fd(), &mut self.buffer);
        let now = self.clock.now();
        let count = match received {
            Ok(0) => return self.half_closed(client, now),
            Ok(count) => count,
            Err(error) if sys::is_transient(&error) => return,
            Err(_) => return self.close(client),
        };
        let secured = socket.secured.as_mut().expect("its caller has looked");
        let (mut plain, mut cipher) = (Vec::new(), Vec::new());
        let received = secured.tls.receive(&self.buffer[..count], &mut plain, &mut cipher);
        secured.output.push(&cipher);
        if received.is_err() {
            // An alert says why, if it still gets there.
            drop(sys::send(socket.fd.as_fd(), secured.output.unsent()));
            return self.close(client);
        }
        if !cipher.is_empty() {
            self.send_secured(client);
        }
        if !plain.is_empty() {
            self.proxy.handle(now, Event::Received { client, bytes: &plain });
        }
    }

    /// Sends what there is for a client, and enciphers more when that has left.
    pub(super) fn send_secured(&mut self, client: ClientId) {
        let at = client.0 as usize;
        loop {
            let Some(socket) = &mut self.clients[at] else { return };
            let mut secured = socket.secured.take().expect("its caller has looked");
            if secured.output.is_empty() && !secured.ending {
                let plain = self.proxy.client_output(client);
                let count = plain.len().min(CIPHERED_BYTES);
                if count > 0 {
                    let mut cipher = Vec::new();
                    secured.tls.send(&plain[..count], &mut cipher);
                    secured.output.push(&cipher);
                    self.proxy.client_took(client, count);
                }
            }
            let is_last = secured.ending;
            let sent = send(socket, &self.epoll, secured.output.unsent(), client.0.into());
            let nothing = secured.output.is_empty();
            if let Ok(sent) = sent {
                secured.output.sent(sent);
            }
            let blocked = !secured.output.is_empty();
            socket.secured = Some(secured);
            match sent {
                Err(_) => return self.close(client),
                Ok(_) if blocked => return,
                Ok(_) if is_last => return self.close(client),
                Ok(_) if nothing => return,
                Ok(_) => {}
            }
        }
    }

    /// All replies have been enciphered: the goodbye follows them.
    pub(super) fn end_secured(&mut self, client: ClientId) {
        let Some(socket) = &mut self.clients[client.0 as usize] else { return };
        let secured = socket.secured.as_mut().expect("its caller has looked");
        let mut cipher = Vec::new();
        secured.tls.close(&mut cipher);
        secured.output.push(&cipher);
        secured.ending = true;
        if !socket.blocked {
            self.send_secured(client);
        }
    }
}
