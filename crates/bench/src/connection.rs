//! One connection of the generator: what it still has to send, and what it waits for.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use rustix::event::epoll;

use crate::address::{Address, Stream};
use crate::mix::Op;
use crate::replies::{Awaited, Kind};
use crate::source::Ask;
use crate::wording::{Item, Protocol, Wording, Write};

pub struct Connection {
    pub stream: Stream,
    /// The client that it belongs to: itself alone, or one connection to each worker.
    pub client: usize,
    pub awaited: VecDeque<Awaited>,
    /// Unanswered requests.
    pub in_flight: usize,
    pub out: Vec<u8>,
    /// The start of a reply whose rest has not arrived.
    pub partial: Vec<u8>,
    waits_to_write: bool,
    index: u64,
}

impl Connection {
    pub fn open(
        address: &Address,
        client: usize,
        index: usize,
        epoll: &OwnedFd,
    ) -> Result<Self, String> {
        let stream = address.connect().map_err(|error| format!("connect {address:?}: {error}"))?;
        let index = index as u64;
        let data = epoll::EventData::new_u64(index);
        epoll::add(epoll, &stream, data, epoll::EventFlags::IN).map_err(|e| e.to_string())?;
        Ok(Self {
            stream,
            client,
            awaited: VecDeque::new(),
            in_flight: 0,
            out: Vec::new(),
            partial: Vec::new(),
            waits_to_write: false,
            index,
        })
    }

    /// `vbucket` is what binary says about the keys' cachelet.
    pub fn ask(
        &mut self,
        wording: &Wording,
        ask: Ask,
        keys: &[u64],
        intended_ns: u64,
        vbucket: u16,
    ) {
        let (key, ttl) = (keys[0], ask.ttl);
        let value_bytes = |key| ask.value_bytes.unwrap_or_else(|| wording.value_bytes(key));
        let write = match ask.op {
            Op::Get | Op::Scan | Op::ReadModifyWrite => {
                let then_set = ask.op == Op::ReadModifyWrite;
                wording.get(&mut self.out, keys, vbucket);
                let text = wording.protocol == Protocol::Text;
                let end = keys.len() - 1;
                let asked = |(place, &key): (usize, &u64)| Awaited {
                    key,
                    value_bytes: value_bytes(key),
                    ttl,
                    last: !text && place == end,
                    then_set,
                    intended_ns,
                    ..Awaited::default()
                };
                self.awaited.extend(keys.iter().enumerate().map(asked));
                if text {
                    let end = Awaited {
                        kind: Kind::End,
                        key,
                        last: true,
                        intended_ns,
                        ..Awaited::default()
                    };
                    self.awaited.push_back(end);
                }
                return;
            }
            Op::Set | Op::Insert => Write::Set,
            Op::Add => Write::Add,
            Op::Delete => Write::Delete,
            Op::Incr => Write::Incr,
        };
        let item = Item { key, value_bytes: value_bytes(key), ttl };
        self.write(wording, write, item, intended_ns, vbucket);
    }

    pub fn write(
        &mut self,
        wording: &Wording,
        write: Write,
        item: Item,
        intended_ns: u64,
        vbucket: u16,
    ) {
        wording.write(&mut self.out, write, item, vbucket);
        let Item { key, value_bytes, ttl } = item;
        let (kind, last) = (Kind::Write(write), true);
        let asked =
            Awaited { kind, key, value_bytes, ttl, last, intended_ns, ..Awaited::default() };
        self.awaited.push_back(asked);
    }

    /// What another worker turned away, word for word.
    pub fn ask_again(&mut self, wording: &Wording, asked: Awaited, vbucket: u16) {
        let Awaited { key, value_bytes, ttl, .. } = asked;
        match asked.kind {
            Kind::Write(write) => {
                wording.write(&mut self.out, write, Item { key, value_bytes, ttl }, vbucket);
            }
            Kind::Get | Kind::End => wording.get(&mut self.out, &[key], vbucket),
        }
        self.awaited.push_back(Awaited { turned_away: asked.turned_away + 1, ..asked });
    }

    /// Makes the counter that text did not find.
    pub fn add_counter(&mut self, wording: &Wording, key: u64, ttl: u32, intended_ns: u64) {
        wording.add_counter(&mut self.out, key, ttl);
        let (kind, last) = (Kind::Write(Write::Add), true);
        self.awaited.push_back(Awaited { kind, key, ttl, last, intended_ns, ..Awaited::default() });
    }

    /// Sends what the socket takes, and waits for the rest to be taken.
    pub fn flush(&mut self, epoll: &OwnedFd) -> Result<(), String> {
        let mut sent = 0;
        while sent < self.out.len() {
            match self.stream.write(&self.out[sent..]) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("send: {error}")),
            }
        }
        self.out.drain(..sent);
        let waits = !self.out.is_empty();
        if waits != self.waits_to_write {
            self.waits_to_write = waits;
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, waits);
            let data = epoll::EventData::new_u64(self.index);
            epoll::modify(epoll, &self.stream, data, flags).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Receives behind the start that is still there; returns how much of `input` is filled.
    pub fn receive(&mut self, input: &mut Vec<u8>, read_bytes: usize) -> Result<usize, String> {
        let held = self.partial.len();
        if input.len() < held + read_bytes {
            input.resize(held + read_bytes, 0);
        }
        input[..held].copy_from_slice(&self.partial);
        self.partial.clear();
        match self.stream.read(&mut input[held..]) {
            Ok(0) => Err("the server closed a connection".into()),
            Ok(bytes) => Ok(held + bytes),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(held)
            }
            Err(error) => Err(format!("receive: {error}")),
        }
    }
}
