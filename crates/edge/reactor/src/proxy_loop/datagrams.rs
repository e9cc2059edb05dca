//! Datagrams of clients. Each of their requests is a client of the proxy's; the replies leave when all are there, in the order of the
//! requests, each as a message of its own (decision 0232).

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use mbal_proxy::{ClientId, Event};
use mbal_wire::{datagrams, parse_datagram};

use super::ProxyLoop;
use crate::sys::{Epoll, READABLE};

/// Tokens from here up are sockets for datagrams.
pub(super) const DATAGRAMS: u64 = 1 << 34;
/// Of one socket in a turn.
const PER_WAKEUP: usize = 32;
/// Requests of datagrams that are not answered. One more is lost, as any may be on its way.
const ASKED_MAX: usize = 4096;
/// Requests of one datagram; the rest is dropped.
const REQUESTS_MAX: usize = 512;
/// Of one reply.
const REPLY_BYTES_MAX: usize = 1 << 20;
const TOO_MUCH: &[u8] = b"SERVER_ERROR reply too large for UDP\r\n";

#[derive(Default)]
pub(super) struct Datagrams {
    sockets: Vec<UdpSocket>,
    /// By client: its datagram, and which of its requests it is.
    clients: BTreeMap<u32, (u64, usize)>,
    asked: BTreeMap<u64, InFlight>,
    next_serial: u64,
}

/// A datagram that is not answered.
struct InFlight {
    socket: usize,
    from: SocketAddr,
    request_id: u16,
    replies: Vec<Vec<u8>>,
    waiting: usize,
}

impl Datagrams {
    pub fn new(sockets: Vec<UdpSocket>, epoll: &Epoll) -> io::Result<Datagrams> {
        for (token, socket) in (DATAGRAMS..).zip(&sockets) {
            epoll.add(socket.as_fd(), READABLE, token)?;
        }
        Ok(Datagrams { sockets, ..Datagrams::default() })
    }

    #[inline]
    pub fn is_its(&self, client: ClientId) -> bool {
        !self.clients.is_empty() && self.clients.contains_key(&client.0)
    }

    /// Part of a client's reply.
    fn hear(&mut self, client: ClientId, bytes: &[u8]) {
        let Some((serial, number)) = self.clients.get(&client.0) else { return };
        let Some(asked) = self.asked.get_mut(serial) else { return };
        let reply = &mut asked.replies[*number];
        if reply.len() <= REPLY_BYTES_MAX {
            reply.extend_from_slice(bytes);
        }
    }

    /// A client's reply is whole.
    fn end(&mut self, client: ClientId) {
        let Some((serial, _)) = self.clients.remove(&client.0) else { return };
        let Some(asked) = self.asked.get_mut(&serial) else { return };
        asked.waiting -= 1;
        if asked.waiting > 0 {
            return;
        }
        let InFlight { socket, from, request_id, replies, .. } =
            self.asked.remove(&serial).expect("it was looked at");
        let mut datagram = Vec::new();
        for reply in &replies {
            let reply = if reply.len() <= REPLY_BYTES_MAX { reply } else { TOO_MUCH };
            for (header, chunk) in datagrams(request_id, reply) {
                datagram.clear();
                datagram.extend_from_slice(&header);
                datagram.extend_from_slice(chunk);
                // One that the kernel has no room for is lost, as any may be on its way.
                drop(self.sockets[socket].send_to(&datagram, from));
            }
        }
    }
}

impl ProxyLoop {
    /// Nothing that the proxy has asked for may wait to be done: clients get numbers here.
    pub(super) fn receive_datagrams(&mut self, token: u64) {
        let socket = (token - DATAGRAMS) as usize;
        for _ in 0..PER_WAKEUP {
            let received = self.datagrams.sockets[socket].recv_from(&mut self.buffer);
            // A sender that cannot be reached, or nothing more: the next wake-up knows.
            let Ok((count, from)) = received else { return };
            let now = self.clock.now();
            let Some((request_id, requests)) = parse_datagram(&self.buffer[..count]) else {
                continue;
            };
            let ends = self.proxy.requests_of(requests, REQUESTS_MAX);
            let requests = requests.to_vec();
            let waiting = ends.len();
            if waiting == 0 || ASKED_MAX < self.datagrams.clients.len() + waiting {
                continue;
            }
            let replies = vec![Vec::new(); waiting];
            let serial = self.datagrams.next_serial;
            self.datagrams.next_serial += 1;
            let asked = InFlight { socket, from, request_id, replies, waiting };
            self.datagrams.asked.insert(serial, asked);
            let mut start = 0;
            for (number, end) in ends.into_iter().enumerate() {
                let client = self.proxy.open();
                self.make_place(client);
                self.datagrams.clients.insert(client.0, (serial, number));
                let bytes = &requests[start..end];
                self.proxy.handle(now, Event::Received { client, bytes });
                self.proxy.handle(now, Event::HalfClosed { client });
                start = end;
            }
        }
    }

    pub(super) fn send_to_sender(&mut self, client: ClientId) {
        let unsent = self.proxy.client_output(client);
        let count = unsent.len();
        self.datagrams.hear(client, unsent);
        self.proxy.client_took(client, count);
    }

    pub(super) fn end_of_request(&mut self, client: ClientId) {
        self.datagrams.end(client);
        self.proxy.handle(self.clock.now(), Event::Closed { client });
    }
}
