//! Clients' sockets.

use std::os::fd::{AsFd, OwnedFd};

use mbal_model::Instant;
use mbal_proxy::{ClientId, Event};

use super::ProxyLoop;
use super::entrance::Secured;
use super::socket::{Socket, send};
use crate::sys;

impl ProxyLoop {
    pub(super) fn admit(&mut self, fd: OwnedFd, client: ClientId, secured: Option<Box<Secured>>) {
        self.make_place(client);
        let socket = Socket::of_client(fd, secured);
        let added = self.epoll.add(socket.fd.as_fd(), socket.interest(), client.0.into());
        self.clients[client.0 as usize] = Some(socket);
        if added.is_err() {
            self.close(client);
        }
    }

    pub(super) fn receive_datagrams(&mut self, token: u64) {
        let (proxy, buffer) = (&mut self.proxy, &mut self.buffer);
        if let Some(client) = self.datagrams.receive(token, self.clock, proxy, buffer) {
            self.make_place(client);
        }
    }

    fn make_place(&mut self, client: ClientId) {
        let places = client.0 as usize + 1;
        if self.clients.len() < places {
            self.clients.resize_with(places, || None);
        }
    }

    #[inline]
    pub(super) fn serve_client(&mut self, at: usize) {
        let Some(socket) = &mut self.clients[at] else { return };
        let client = ClientId(at as u32);
        if socket.blocked {
            self.send_to_client(client, true);
            return;
        }
        if socket.paused {
            // Nobody listens to it, so it broke, or was ready before it paused.
            if sys::peek(socket.fd.as_fd()).is_err_and(|error| !sys::is_transient(&error)) {
                self.close(client);
            }
            return;
        }
        if socket.secured.is_some() {
            return self.serve_secured(client);
        }
        let received = sys::recv(socket.fd.as_fd(), &mut self.buffer);
        // Not before: a lease that was over when a request came in must be seen to be.
        let now = self.clock.now();
        match received {
            Ok(0) => self.half_closed(client, now),
            Ok(count) => {
                if count == self.buffer.len() {
                    self.unread.push(at as u64);
                }
                let bytes = &self.buffer[..count];
                self.proxy.handle(now, Event::Received { client, bytes });
            }
            Err(error) if sys::is_transient(&error) => {}
            Err(_) => self.close(client),
        }
    }

    pub(super) fn half_closed(&mut self, client: ClientId, now: Instant) {
        let Some(socket) = &mut self.clients[client.0 as usize] else { return };
        socket.paused = true;
        let interest = socket.interest();
        drop(self.epoll.modify(socket.fd.as_fd(), interest, client.0.into()));
        self.proxy.handle(now, Event::HalfClosed { client });
    }

    #[inline]
    pub(super) fn send_to_client(&mut self, client: ClientId, has_room: bool) {
        if self.datagrams.is_its(client) {
            let unsent = self.proxy.client_output(client);
            let count = unsent.len();
            self.datagrams.hear(client, unsent);
            return self.proxy.client_took(client, count);
        }
        let Some(socket) = &mut self.clients[client.0 as usize] else { return };
        if socket.blocked && !has_room {
            return;
        }
        if socket.secured.is_some() {
            return self.send_secured(client);
        }
        let unsent = self.proxy.client_output(client);
        match send(socket, &self.epoll, unsent, u64::from(client.0)) {
            Ok(sent) => self.proxy.client_took(client, sent),
            Err(_) => self.close(client),
        }
    }

    #[cold]
    pub(super) fn pause(&mut self, client: ClientId, paused: bool) {
        let Some(socket) = &mut self.clients[client.0 as usize] else { return };
        socket.paused = paused;
        let (fd, interest) = (socket.fd.as_fd(), socket.interest());
        if self.epoll.modify(fd, interest, u64::from(client.0)).is_err() {
            self.close(client);
        }
    }

    /// All that a client was to hear has been taken from the proxy.
    pub(super) fn finish(&mut self, client: ClientId) {
        if self.datagrams.is_its(client) {
            self.datagrams.end(client);
            return self.proxy.handle(self.clock.now(), Event::Closed { client });
        }
        match &self.clients[client.0 as usize] {
            Some(socket) if socket.secured.is_some() => self.end_secured(client),
            _ => self.close(client),
        }
    }

    pub(super) fn close(&mut self, client: ClientId) {
        if self.clients[client.0 as usize].take().is_some() {
            self.tally.leave(0);
            self.proxy.handle(self.clock.now(), Event::Closed { client });
        }
    }
}
