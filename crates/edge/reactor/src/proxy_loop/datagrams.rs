//! Datagrams of clients. Each of their requests is a client of the proxy's; the replies leave when all are there, in the order of the
//! requests, each as a message of its own (decision 0232).

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use mbal_proxy::{ClientId, Event, Proxy};
use mbal_wire::{datagrams, parse_datagram};

use crate::Clock;
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
    pub fn hear(&mut self, client: ClientId, bytes: &[u8]) {
        let Some((serial, number)) = self.clients.get(&client.0) else { return };
        let Some(asked) = self.asked.get_mut(serial) else { return };
        let reply = &mut asked.replies[*number];
        if reply.len() <= REPLY_BYTES_MAX {
            reply.extend_from_slice(bytes);
        }
    }

    /// A client's reply is whole.
    pub fn end(&mut self, client: ClientId) {
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

    /// Takes what has come to a socket. Nothing that the proxy has asked for may wait to be done: clients get numbers here. The highest.
    pub fn receive(
        &mut self,
        token: u64,
        clock: Clock,
        proxy: &mut Proxy,
        buffer: &mut [u8],
    ) -> Option<ClientId> {
        let (socket, mut highest) = ((token - DATAGRAMS) as usize, None);
        for _ in 0..PER_WAKEUP {
            let received = self.sockets[socket].recv_from(buffer);
            // A sender that cannot be reached, or nothing more: the next wake-up knows.
            let Ok((count, from)) = received else { break };
            let now = clock.now();
            let Some((request_id, requests)) = parse_datagram(&buffer[..count]) else { continue };
            let ends = proxy.requests_of(requests, REQUESTS_MAX);
            let waiting = ends.len();
            if waiting == 0 || ASKED_MAX < self.clients.len() + waiting {
                continue;
            }
            let replies = vec![Vec::new(); waiting];
            let serial = self.next_serial;
            self.next_serial += 1;
            self.asked.insert(serial, InFlight { socket, from, request_id, replies, waiting });
            let mut start = 0;
            for (number, end) in ends.into_iter().enumerate() {
                let client = proxy.open();
                highest = highest.max(Some(client.0));
                self.clients.insert(client.0, (serial, number));
                let bytes = &requests[start..end];
                proxy.handle(now, Event::Received { client, bytes });
                proxy.handle(now, Event::HalfClosed { client });
                start = end;
            }
        }
        highest.map(ClientId)
    }
}
