//! One connection of the generator: what it still has to send, and what it waits for.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use rustix::event::epoll;

use crate::address::{Address, Stream};
use crate::replies::{Awaited, Kind};
use crate::wording::{Protocol, Wording};

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
    /// Missed keys to be set, with their sizes.
    pub missed: Vec<(u64, u32)>,
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
            missed: Vec::new(),
            waits_to_write: false,
            index,
        })
    }

    pub fn get(&mut self, wording: &Wording, keys: &[u64], value_bytes: u32, intended_ns: u64) {
        wording.get(&mut self.out, keys);
        let text = wording.protocol == Protocol::Text;
        let end = keys.len() - 1;
        let kind = Kind::Get;
        self.awaited.extend(keys.iter().enumerate().map(|(place, &key)| {
            let last = !text && place == end;
            Awaited { kind, key, value_bytes, last, intended_ns }
        }));
        if text {
            let (kind, key) = (Kind::End, keys[0]);
            self.awaited.push_back(Awaited { kind, key, value_bytes: 0, last: true, intended_ns });
        }
    }

    pub fn set(&mut self, wording: &Wording, key: u64, value_bytes: u32, intended_ns: u64) {
        wording.set(&mut self.out, key, value_bytes);
        let kind = Kind::Set;
        self.awaited.push_back(Awaited { kind, key, value_bytes, last: true, intended_ns });
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
