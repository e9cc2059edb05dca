//! From an upstream's bytes to clients' replies.

use crate::Nanos;
use crate::binary::push_failure;
use crate::client::Slot;
use crate::expect::Expect;
use crate::merge::Found;
use crate::naming;
use crate::proxy::Proxy;
use crate::reply::{Framed, Kind, frame};
use crate::upstream::{Health, Hide, InFlight, State, Who};
use mbal_model::Key;

impl Proxy {
    pub(crate) fn replied(&mut self, conn: usize, bytes: &[u8]) {
        if self.conns[conn].state != State::Up {
            return;
        }
        self.take_input(conn, bytes);
        if self.owing {
            self.settle(conn);
        }
    }

    fn take_input(&mut self, conn: usize, bytes: &[u8]) {
        let this = &mut self.conns[conn];
        this.gathering.heard(self.now);
        this.heard_at = self.now;
        self.bound_kept(bytes.len());
        let this = &mut self.conns[conn];
        if this.input.is_empty() {
            let used = self.take_replies(conn, bytes);
            if used < bytes.len() {
                let mut input = self.spare.take();
                input.extend_from_slice(&bytes[used..]);
                self.conns[conn].input = input;
            }
            return;
        }
        this.input.extend_from_slice(bytes);
        if this.input.len() < this.need {
            return;
        }
        let mut input = std::mem::take(&mut this.input);
        let used = self.take_replies(conn, &input);
        if used == input.len() {
            self.spare.give(input);
        } else {
            input.drain(..used);
            self.conns[conn].input = input;
        }
    }

    /// Gives whole replies to those who wait for them; how many bytes are done with.
    fn take_replies(&mut self, conn: usize, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let this = &mut self.conns[conn];
            let Some(next) = this.asked.front() else { return self.distrust(conn, bytes) };
            match frame(next.kind, &bytes[at..], this.scanned) {
                Framed::Whole(length) => {
                    let next = *next;
                    if !self.is_reply_to(&next, &bytes[at..at + length]) {
                        return self.distrust(conn, bytes);
                    }
                    let this = &mut self.conns[conn];
                    this.scanned = 0;
                    this.has_answered = true;
                    let mut written = std::mem::take(&mut self.written);
                    let asked = this.answered(&mut self.spare, &mut written);
                    let asked = asked.expect("it was looked at");
                    let ask = (conn as u32, this.done - 1);
                    let upstream = this.upstream;
                    if this.doubt == Some(Nanos::MAX) {
                        this.doubt = Some(self.now + self.settings.doubt);
                    }
                    if let Some(key) = Key::new(&written).filter(|_| !self.hot.is_empty()) {
                        self.end_copies(key.hash(), key.bytes());
                    }
                    if asked.writes && self.hot.awaits_writes() {
                        self.wrote(ask, &bytes[at..at + length]);
                    }
                    written.clear();
                    self.written = written;
                    let of_upstream = &mut self.upstreams[upstream];
                    of_upstream.failures = 0;
                    let serves = of_upstream.health == Health::Serves;
                    let took = self.now.saturating_sub(asked.at);
                    of_upstream.latency.record(took);
                    self.resting.answered(took, asked.keys());
                    self.counters.replies += 1;
                    self.answer(conn, &asked, &bytes[at..at + length]);
                    if !serves {
                        self.answered_late(conn);
                    }
                    if self.conns[conn].state != State::Up {
                        return bytes.len();
                    }
                    at += length;
                }
                Framed::NeedMore { bytes: need, scanned } => {
                    (this.need, this.scanned) = (need, scanned);
                    break;
                }
                Framed::Broken => return self.distrust(conn, bytes),
            }
        }
        at
    }

    /// What an upstream says is a reply to what it was asked.
    #[inline]
    fn is_reply_to(&self, asked: &InFlight, reply: &[u8]) -> bool {
        asked.expect.takes(reply)
            && match (asked.who, asked.expect) {
                (Who::Part { client, number, part, .. }, Expect::Values { cas }) => {
                    let merge = self.clients[client as usize].merge(number);
                    merge.is_reply_to(part, reply, asked.renamed, cas)
                }
                _ => true,
            }
    }

    /// An upstream says what nobody asked for, or what is no reply: whose the next reply would be is not known any more.
    #[cold]
    fn distrust(&mut self, conn: usize, bytes: &[u8]) -> usize {
        self.give_up(conn);
        self.fail_since(conn, Some(self.now), b"SERVER_ERROR upstream sent no reply\r\n");
        bytes.len()
    }

    #[inline]
    fn answer(&mut self, conn: usize, asked: &InFlight, reply: &[u8]) {
        match asked.who {
            Who::Client { client, number } => {
                match found(asked, reply) {
                    Some(true) => self.counters.get_hits += 1,
                    Some(false) => self.counters.get_misses += 1,
                    None => {}
                }
                let this = &mut self.clients[client as usize];
                this.expect(reply.len());
                this.answer(number, &mut self.spare, |out| push_reply(out, asked, reply));
                self.answered(client);
            }
            Who::Part { client, number, part, .. } => self.merge(client, number, |merge, spare| {
                if asked.renamed {
                    let mut renamed = spare.take();
                    naming::push_values_renamed(&mut renamed, reply);
                    let all = merge.came(part, &renamed, spare);
                    spare.give(renamed);
                    return all;
                }
                merge.came(part, reply, spare)
            }),
            Who::Everywhere { client, number } => {
                let mut error = Vec::new();
                match asked.kind {
                    Kind::Binary => {
                        // Fills go over other connections: one may have read what was there before.
                        self.end_all_copies();
                        push_reply(&mut error, asked, reply);
                    }
                    _ if reply == b"OK\r\n" => {}
                    _ => error.extend_from_slice(reply),
                }
                self.answered_somewhere(client, number, &error);
            }
            Who::Nobody => {}
            Who::Fill { hash, epoch } => self.filled(hash, epoch, reply),
            Who::KernelFill { hash, number } => self.kernel_filled(hash, number, reply),
            Who::Copy { hash, epoch, at } => {
                if reply == b"STORED\r\n" {
                    self.hot.stored(hash, epoch, at);
                }
            }
            Who::Peer { place, ask } => {
                self.peer_answered(usize::from(place), ask, asked.at, reply);
            }
            Who::Owed => self.paid(conn),
            Who::Cluster => self.cluster_answered(self.conns[conn].upstream, reply),
            Who::Return => self.return_answered(self.conns[conn].upstream, reply),
            Who::Fence => {
                let done =
                    reply == b"OK\r\n" || reply.first() == Some(&0x81) && reply[6..8] == [0; 2];
                match done {
                    true => self.flushed(conn),
                    false => drop(self.distrust(conn, &[])),
                }
            }
        }
    }

    /// There is no reply, and there will be none.
    pub(crate) fn lose_asked(&mut self, asked: InFlight, error: &'static [u8]) {
        match asked.who {
            Who::Client { client, number } => {
                self.counters.errors += 1;
                let is_binary = asked.kind == Kind::Binary;
                self.clients[client as usize].answer(
                    number,
                    &mut self.spare,
                    |out| match is_binary {
                        true => push_failure(out, &asked),
                        false => out.extend_from_slice(error),
                    },
                );
                self.answered(client);
            }
            Who::Part { client, number, .. } => {
                self.counters.errors += 1;
                self.merge(client, number, |merge, _| merge.lost(error));
            }
            Who::Everywhere { client, number } => {
                self.counters.errors += 1;
                let mut told = Vec::new();
                match asked.kind {
                    Kind::Binary => push_failure(&mut told, &asked),
                    _ => told.extend_from_slice(error),
                }
                self.answered_somewhere(client, number, &told);
            }
            Who::Fill { hash, epoch } => self.hot.unfilled(hash, epoch),
            Who::KernelFill { hash, number } => self.kernel_filled(hash, number, b""),
            Who::Nobody | Who::Copy { .. } | Who::Fence | Who::Owed | Who::Peer { .. } => {}
            Who::Cluster | Who::Return => {}
        }
    }

    fn merge(
        &mut self,
        client: u32,
        number: u32,
        step: impl FnOnce(&mut crate::merge::Merge, &mut crate::buffers::Spare) -> bool,
    ) {
        let this = &mut self.clients[client as usize];
        let Slot::Merge(merge) = this.slot(number) else { unreachable!("its parts are its own") };
        if !step(merge, &mut self.spare) {
            return;
        }
        let merge = std::mem::replace(this.slot(number), Slot::Waiting);
        let Slot::Merge(merge) = merge else { unreachable!("it was looked at") };
        let mut values = self.spare.take();
        let is_last = this.rest.is_none();
        let found = merge.finish(&mut values, &mut self.spare, is_last);
        self.answer_window(client, number, found, values);
    }

    /// All that a `get` has asked for until now is there, or an error, which ends it.
    pub(crate) fn answer_window(
        &mut self,
        client: u32,
        number: u32,
        found: Option<Found>,
        mut values: Vec<u8>,
    ) {
        let this = &mut self.clients[client as usize];
        match found {
            Some(Found { hits, misses, longest }) => {
                self.counters.get_hits += hits;
                self.counters.get_misses += misses;
                if hits + misses > 0 {
                    this.expect(values.len());
                    this.found((hits + misses) as usize, longest);
                }
            }
            None => this.rest = None,
        }
        // An empty output takes the reply as it is.
        let push = |out: &mut Vec<u8>| match out.is_empty() {
            true => std::mem::swap(out, &mut values),
            false => out.extend_from_slice(&values),
        };
        match this.rest {
            Some(_) => this.answer_in_part(push),
            None => this.answer(number, &mut self.spare, push),
        }
        self.spare.give(values);
        self.answered(client);
    }

    fn answered_somewhere(&mut self, client: u32, number: u32, error: &[u8]) {
        let this = &mut self.clients[client as usize];
        let Slot::Everywhere { missing, error: first, done, silent } = this.slot(number) else {
            unreachable!("its parts are its own")
        };
        *missing -= 1;
        if first.is_empty() {
            first.extend_from_slice(error);
        }
        if *missing == 0 {
            let reply = match silent {
                true => Vec::new(),
                false => std::mem::take(if first.is_empty() { done } else { first }),
            };
            this.flushing = false;
            this.answer(number, &mut self.spare, |out| out.extend_from_slice(&reply));
            // Between the first upstream's flush and the last one's a fill may have read what was there before.
            self.end_all_copies();
            self.answered(client);
        }
    }

    /// A client has got a reply.
    #[inline]
    pub(crate) fn answered(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        if this.opens && (this.is_known() || this.is_idle()) {
            self.has_opened(client);
        }
        let this = &mut self.clients[client as usize];
        if this.gone {
            return self.free_if_done(client);
        }
        if this.has_ended() {
            return self.tell_ended(client);
        }
        if this.paused {
            self.let_go_on(client);
        }
        self.tell_client(client);
    }
}

/// Whether the reply to a `get` of one key, or to a `mg` that changes nothing, has found it. `None`: it is neither.
#[inline]
fn found(asked: &InFlight, reply: &[u8]) -> Option<bool> {
    match (asked.kind, reply[0]) {
        (Kind::Values, b'V') => Some(true),
        (Kind::Values, b'E') if reply == b"END\r\n" => Some(false),
        (Kind::Meta, _) if asked.writes => None,
        (Kind::Meta, b'V' | b'H') => Some(true),
        (Kind::Meta, b'E') if reply.starts_with(b"EN") => Some(false),
        (Kind::Binary, _) if is_binary_get(reply[1]) => match reply[6..8] {
            [0, 0] => Some(true),
            [0, 1] => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// Get, GetK, and Gat, GatK; and their quiet kin.
fn is_binary_get(opcode: u8) -> bool {
    matches!(opcode, 0x00 | 0x09 | 0x0c | 0x0d | 0x1d | 0x1e | 0x23 | 0x24)
}

/// Appends what the client hears of a reply.
#[inline]
fn push_reply(out: &mut Vec<u8>, asked: &InFlight, reply: &[u8]) {
    let hidden = match asked.hide {
        Hide::Nothing => false,
        Hide::Miss => reply.starts_with(b"EN"),
        Hide::Done => reply.starts_with(b"HD"),
        Hide::Success => reply.starts_with(b"HD") || reply.starts_with(b"VA "),
        Hide::Binary { status, .. } => reply[6..8] == [0, status],
    };
    if hidden {
        return;
    }
    match (asked.renamed, asked.kind, asked.hide) {
        (true, Kind::Values, _) => naming::push_values_renamed(out, reply),
        (true, Kind::Meta, _) => naming::push_meta_renamed(out, reply),
        (_, _, Hide::Binary { opcode, .. }) => {
            out.extend_from_slice(&[reply[0], opcode]);
            out.extend_from_slice(&reply[2..]);
        }
        _ => out.extend_from_slice(reply),
    }
}
