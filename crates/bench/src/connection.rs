//! One connection of the generator: what it still has to send, and what it waits for.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::epoll;

use crate::address::{Address, Stream, Target};
use crate::batches::BatchId;
use crate::mix::Op;
use crate::replies::{Awaited, Kind};
use crate::request::{Item, Protocol, Read, Write};
use crate::source::Ask;
use crate::udp::{Datagrams, Got};
use crate::wording::Wording;

pub struct Connection {
    pub stream: Stream,
    /// Where it leads to, if a server that has nothing more to say may close it.
    leads_to: Option<Address>,
    /// The server has done so: it is opened again when there is something to ask.
    is_closed: bool,
    /// The client that it belongs to: itself alone, or one connection to each worker.
    pub client: usize,
    pub awaited: VecDeque<Awaited>,
    /// Unanswered requests.
    pub in_flight: usize,
    pub out: Vec<u8>,
    /// The start of a reply whose rest has not arrived.
    pub partial: Vec<u8>,
    /// Over UDP: which request has which frame.
    datagrams: Option<Datagrams>,
    waits_to_write: bool,
    index: u64,
}

/// How a request is asked.
#[derive(Clone, Copy)]
pub struct How {
    /// When it was to be sent, and when it is.
    pub intended_ns: u64,
    pub asked_ns: u64,
    /// It is a part of this batch.
    pub batch: Option<BatchId>,
}

/// Bytes at the start of the input, after so many replies that are lost.
pub struct Received {
    pub filled: usize,
    pub lost: usize,
}

impl Connection {
    pub fn open(
        target: &Target,
        address: &Address,
        client: usize,
        index: usize,
        epoll: &OwnedFd,
    ) -> Result<Self, String> {
        let stream = target.connect(address).map_err(|error| format!("{address}: {error}"))?;
        let index = index as u64;
        let data = epoll::EventData::new_u64(index);
        epoll::add(epoll, &stream, data, epoll::EventFlags::IN).map_err(|e| e.to_string())?;
        let datagrams = matches!(stream, Stream::Udp(_)).then(Datagrams::default);
        Ok(Self {
            stream,
            leads_to: None,
            is_closed: false,
            client,
            awaited: VecDeque::new(),
            in_flight: 0,
            out: Vec::new(),
            partial: Vec::new(),
            datagrams,
            waits_to_write: false,
            index,
        })
    }

    /// A server of a cluster that has been emptied may end, and come back.
    pub fn may_close(self, address: &Address) -> Self {
        Self { leads_to: Some(address.clone()), ..self }
    }

    /// Opens it again, if the server has closed it.
    pub fn reopen(&mut self, target: &Target, epoll: &OwnedFd) -> Result<(), String> {
        let Some(address) = self.leads_to.clone().filter(|_| self.is_closed) else { return Ok(()) };
        let new = Self::open(target, &address, self.client, self.index as usize, epoll)?;
        (self.stream, self.is_closed, self.waits_to_write) = (new.stream, false, false);
        Ok(())
    }

    pub fn is_datagrams(&self) -> bool {
        self.datagrams.is_some()
    }

    /// Over UDP, replies that will not come any more.
    pub fn late(&mut self, now: Instant) -> usize {
        let lost = self.datagrams.as_mut().map_or(0, |datagrams| datagrams.late(now));
        if lost > 0 {
            self.partial.clear();
        }
        lost
    }

    /// One request, of one key unless it is a get.
    pub fn ask(&mut self, wording: &Wording, ask: Ask, reads: &[Read], how: How) {
        let How { intended_ns, asked_ns, batch } = how;
        let (Read { key, vbucket, .. }, ttl) = (reads[0], ask.ttl);
        let value_bytes = |key| ask.value_bytes.unwrap_or_else(|| wording.value_bytes(key));
        let write = match ask.op {
            Op::Set | Op::Insert => Write::Set,
            Op::Add => Write::Add,
            Op::Delete => Write::Delete,
            Op::Incr => Write::Incr,
            Op::Get | Op::Scan | Op::ReadModifyWrite => {
                let then_set = ask.op == Op::ReadModifyWrite;
                let asked = |read: &Read| Awaited {
                    key: read.key,
                    value_bytes: value_bytes(read.key),
                    ttl,
                    then_set,
                    intended_ns,
                    asked_ns,
                    by_lease: read.by_lease.is_some(),
                    batch,
                    ..Awaited::default()
                };
                return self.get(wording, reads, asked);
            }
        };
        let item = Item { key, value_bytes: value_bytes(key), ttl };
        self.write(wording, write, item, intended_ns, vbucket);
    }

    fn get(&mut self, wording: &Wording, reads: &[Read], asked: impl Fn(&Read) -> Awaited) {
        let before = self.before();
        wording.get(&mut self.out, reads);
        self.awaited.extend(reads.iter().map(&asked));
        if wording.protocol == Protocol::Text {
            let first = asked(&reads[0]);
            self.awaited.push_back(Awaited { kind: Kind::End, then_set: false, ..first });
        }
        self.awaited.back_mut().expect("a get has a key").last = true;
        self.frame(before);
    }

    pub fn write(
        &mut self,
        wording: &Wording,
        write: Write,
        item: Item,
        intended_ns: u64,
        vbucket: u16,
    ) {
        let before = self.before();
        wording.write(&mut self.out, write, item, vbucket);
        let Item { key, value_bytes, ttl } = item;
        let (kind, last) = (Kind::Write(write), true);
        let asked =
            Awaited { kind, key, value_bytes, ttl, last, intended_ns, ..Awaited::default() };
        self.awaited.push_back(asked);
        self.frame(before);
    }

    /// What another worker turned away, word for word. Only binary is turned away, never over UDP.
    pub fn ask_again(&mut self, wording: &Wording, asked: Awaited, vbucket: u16) {
        let Awaited { key, value_bytes, ttl, .. } = asked;
        match asked.kind {
            Kind::Write(write) => {
                wording.write(&mut self.out, write, Item { key, value_bytes, ttl }, vbucket);
            }
            Kind::Get | Kind::End => {
                wording.get(&mut self.out, &[Read { key, vbucket, by_lease: None }]);
            }
        }
        self.awaited.push_back(Awaited { turned_away: asked.turned_away + 1, ..asked });
    }

    /// Makes the counter that text did not find.
    pub fn add_counter(&mut self, wording: &Wording, key: u64, ttl: u32, intended_ns: u64) {
        let before = self.before();
        wording.add_counter(&mut self.out, key, ttl);
        let (kind, last) = (Kind::Write(Write::Add), true);
        self.awaited.push_back(Awaited { kind, key, ttl, last, intended_ns, ..Awaited::default() });
        self.frame(before);
    }

    fn before(&self) -> (usize, usize) {
        (self.out.len(), self.awaited.len())
    }

    /// What has been added since is one request.
    fn frame(&mut self, (bytes, replies): (usize, usize)) {
        let (bytes, replies) = (self.out.len() - bytes, self.awaited.len() - replies);
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.asked(bytes, replies);
        }
    }

    /// Sends what the socket takes, and waits for the rest to be taken.
    pub fn flush(&mut self, epoll: &OwnedFd) -> Result<(), String> {
        let sent = self.send().map_err(|error| format!("send: {error}"))?;
        self.out.drain(..sent);
        let held_back = self.stream.holds_back().map_err(|error| format!("send: {error}"))?;
        let waits = held_back || !self.out.is_empty();
        if waits != self.waits_to_write {
            self.waits_to_write = waits;
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, waits);
            let data = epoll::EventData::new_u64(self.index);
            epoll::modify(epoll, &self.stream, data, flags).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Returns how many bytes of the output have left.
    fn send(&mut self) -> io::Result<usize> {
        let mut sent = 0;
        while sent < self.out.len() {
            let framed = self.datagrams.as_ref().and_then(Datagrams::next);
            let result = match framed {
                None => self.stream.write(&self.out[sent..]),
                Some((head, bytes)) => {
                    let frame = [&head[..], &self.out[sent..sent + bytes]].concat();
                    self.stream.write(&frame).map(|_| bytes)
                }
            };
            match result {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            if let Some(datagrams) = &mut self.datagrams {
                datagrams.sent(Instant::now());
            }
        }
        Ok(sent)
    }

    /// The server has closed it, as it may while nothing is on its way. Else the socket would be reported for ever.
    fn close(&mut self, epoll: &OwnedFd) -> Result<(), String> {
        if self.leads_to.is_none() || !self.awaited.is_empty() || !self.out.is_empty() {
            return Err("the server closed a connection".into());
        }
        self.is_closed = true;
        epoll::delete(epoll, &self.stream).map_err(|error| error.to_string())
    }

    /// Receives behind the start that is still there; nothing when nothing has arrived.
    pub fn receive(
        &mut self,
        input: &mut Vec<u8>,
        read_bytes: usize,
        epoll: &OwnedFd,
    ) -> Result<Option<Received>, String> {
        let held = self.partial.len();
        if input.len() < held + read_bytes {
            input.resize(held + read_bytes, 0);
        }
        let bytes = match self.stream.read(&mut input[held..]) {
            Ok(0) if self.datagrams.is_none() => {
                return self.close(epoll).map(|()| None);
            }
            Ok(bytes) => bytes,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(None);
            }
            Err(error) => return Err(format!("receive: {error}")),
        };
        let Some(datagrams) = &mut self.datagrams else {
            input[..held].copy_from_slice(&self.partial);
            self.partial.clear();
            return Ok(Some(Received { filled: held + bytes, lost: 0 }));
        };
        let nothing = Ok(Some(Received { filled: 0, lost: 0 }));
        let Some((head, body)) = input[held..held + bytes].split_first_chunk() else {
            return nothing;
        };
        let Got::Part { lost, last } = datagrams.received(*head) else { return nothing };
        if lost > 0 {
            // The start that was there was of a reply that is given up.
            self.partial.clear();
        }
        self.partial.extend_from_slice(body);
        if !last {
            return Ok(Some(Received { filled: 0, lost }));
        }
        let filled = self.partial.len();
        input[..filled].copy_from_slice(&self.partial);
        self.partial.clear();
        Ok(Some(Received { filled, lost }))
    }
}
