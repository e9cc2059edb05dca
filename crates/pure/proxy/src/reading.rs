//! What clients send: their requests, in order, as many as may be on their way.

use mbal_wire::{
    Admin, BINARY_REQUEST, Command, Parsed, Request, SWITCH, SWITCH_LINE_BYTES_MAX, parse,
    parse_binary, words_of,
};

use crate::event::{Action, ClientId};
use crate::peering::Talk;
use crate::proxy::Proxy;
use crate::replies::Slot;
use crate::switching::Heard;

impl Proxy {
    pub(crate) fn received(&mut self, client: u32, bytes: &[u8]) {
        let this = self.sessions.get_mut(client);
        if !this.is_open || this.ending || bytes.is_empty() {
            return;
        }
        if this.input.binary.is_none() {
            this.input.binary = Some(bytes[0] == BINARY_REQUEST);
        }
        if !self.backend.peering.serves(self.ledger.now) && !this.is_peer && !this.paused {
            self.sessions.hold(client, &mut self.ledger);
        }
        let this = self.sessions.get_mut(client);
        let input = &mut this.input;
        if this.paused || !input.bytes.is_empty() {
            input.bytes.extend_from_slice(bytes);
            if !this.paused && input.need <= input.bytes.len() {
                self.run_input(client);
            }
            return;
        }
        let used = self.run(client, bytes);
        if used < bytes.len() {
            let mut input = self.ledger.spare.take();
            input.extend_from_slice(&bytes[used..]);
            self.sessions.get_mut(client).input.bytes = input;
        }
    }

    /// Goes on with what waits in a client's input.
    fn run_input(&mut self, client: u32) {
        let mut input = std::mem::take(&mut self.sessions.get_mut(client).input.bytes);
        let used = self.run(client, &input);
        if used == input.len() {
            self.ledger.spare.give(input);
        } else {
            input.drain(..used);
            self.sessions.get_mut(client).input.bytes = input;
        }
    }

    /// A client that was paused has room.
    pub(crate) fn go_on(&mut self, client: u32) {
        let this = self.sessions.get_mut(client);
        if this.rest.is_some() {
            return self.ask_rest(client);
        }
        this.waits_for_all = false;
        if !std::mem::take(&mut this.paused) || !this.is_open || this.ending {
            return;
        }
        self.run_input(client);
        let this = self.sessions.get(client);
        match (this.paused, this.half_closed) {
            (true, _) => {}
            (false, true) => self.sessions.end(client, &mut self.ledger),
            (false, false) => self.ledger.actions.push(Action::Resume(ClientId(client))),
        }
    }

    /// Asks what is whole of `bytes`; how many of them are done with.
    fn run(&mut self, client: u32, bytes: &[u8]) -> usize {
        let from = self.sessions.get(client).replies.next_number();
        let mut at = 0;
        while at < bytes.len() {
            let this = self.sessions.get_mut(client);
            if this.input.skip > 0 {
                let skipped = this.input.skip.min(bytes.len() - at);
                this.input.skip -= skipped;
                at += skipped;
                let skip = this.input.skip;
                if let Some(number) = this.refused.take_if(|_| skip == 0) {
                    self.sessions.answer(client, number, &mut self.ledger, |_| {});
                }
                continue;
            }
            if this.paused {
                break;
            }
            if this.flushing || self.sessions.has_asked_enough(client, &self.ledger) {
                self.sessions.pause(client, &mut self.ledger);
                break;
            }
            let rest = &bytes[at..];
            let this = self.sessions.get_mut(client);
            let is_peer = this.is_peer;
            if is_peer && this.input.binary == Some(false) {
                match Talk::of(rest) {
                    Talk::Line(line) if self.hear_peer(client, line) => {
                        at += line.len() + b"\r\n".len();
                        continue;
                    }
                    Talk::Line(_) | Talk::Broken => {
                        self.sessions.end(client, &mut self.ledger);
                        return bytes.len();
                    }
                    Talk::NeedMore => {
                        self.sessions.get_mut(client).input.need = bytes.len() - at + 1;
                        break;
                    }
                    Talk::Request => {}
                }
            }
            if rest.starts_with(SWITCH) && !is_peer && self.backend.switching.hears() {
                let Some(length) = self.hear_switch(client, rest) else { break };
                at += length;
                continue;
            }
            let this = self.sessions.get_mut(client);
            let parsed = match this.input.binary {
                Some(true) => parse_binary(rest, &self.wire_limits),
                _ => parse(rest, &self.wire_limits),
            };
            match parsed {
                Parsed::NeedMore { bytes } => {
                    this.input.need = bytes;
                    break;
                }
                Parsed::Close => {
                    self.sessions.end(client, &mut self.ledger);
                    return bytes.len();
                }
                Parsed::Request { request, bytes: length, skip } => {
                    if is_peer && self.backend.peering.refuses(&request, self.ledger.now) {
                        self.sessions.end(client, &mut self.ledger);
                        return bytes.len();
                    }
                    if self.backend.may_hold() && self.must_hold(client, is_peer, &request) {
                        self.sessions.hold(client, &mut self.ledger);
                        break;
                    }
                    if self.waits_for_window(client, &request) {
                        self.sessions.get_mut(client).waits_for_all = true;
                        self.sessions.pause(client, &mut self.ledger);
                        break;
                    }
                    let this = self.sessions.get_mut(client);
                    this.input.skip = skip;
                    if rest.len() - length < skip {
                        this.refused = Some(this.replies.push(Slot::Waiting));
                    }
                    self.ledger.counters.requests += 1;
                    self.by_class.count(&request);
                    self.ask(client, &request, &rest[..length]);
                    at += length;
                    if self.sessions.get(client).ending {
                        return bytes.len();
                    }
                }
            }
        }
        // A peer's requests come from many clients.
        let this = self.sessions.get_mut(client);
        if !this.is_peer {
            this.replies.close_turn(from);
        }
        self.sessions.tell(client, &mut self.ledger);
        at
    }

    /// True if a request waits: for what was asked of a cluster before, for a promise that is given or ends, or until the kernel has
    /// forgotten its key.
    fn must_hold(&mut self, client: u32, is_peer: bool, request: &Request<'_>) -> bool {
        self.waits_for_clusters(client, request)
            || self.backend.peering.must_hold(is_peer, request)
            || self.backend.hot.kernel.as_mut().is_some_and(|kernel| kernel.holds(request))
            || self.backend.switching.is_active() && self.waits_for_switch(request)
    }

    /// True if a request changes a key that moves just now.
    fn waits_for_switch(&self, request: &Request<'_>) -> bool {
        let switching = &self.backend.switching;
        match request {
            Request::Admin { command: Admin::FlushAll { exptime: Some(_) }, .. } => {
                switching.holds_flush()
            }
            Request::Binary(binary) if matches!(binary.command, Command::Flush { .. }) => {
                switching.holds_flush()
            }
            Request::Get(get) if get.touch.is_some() => {
                words_of(get.keys).any(|key| switching.holds_write(key, false))
            }
            _ => request
                .key()
                .filter(|_| request.writes())
                .is_some_and(|(key, base64)| switching.holds_write(key, base64)),
        }
    }

    /// A line of the tool that switches the pool. How many bytes of the input it has; `None`: it is not whole yet.
    fn hear_switch(&mut self, client: u32, input: &[u8]) -> Option<usize> {
        let Some(end) = memchr::memchr(b'\n', input) else {
            if SWITCH_LINE_BYTES_MAX <= input.len() {
                self.sessions.end(client, &mut self.ledger);
                return Some(input.len());
            }
            self.sessions.get_mut(client).input.need = input.len() + 1;
            return None;
        };
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        let now = self.ledger.now;
        let number = self.sessions.push(client, Slot::Waiting);
        let backend = &mut self.backend;
        let order = backend.placing.order().iter();
        let servers: Vec<_> = order.map(|at| self.ledger.settings.servers[*at].clone()).collect();
        let in_doubt = backend.in_doubt();
        let heard = backend.switching.hear(line, &servers, in_doubt, (client, number), now);
        if let Heard::Said(reply) = heard {
            self.sessions.answer(client, number, &mut self.ledger, |out| reply.push(out));
        }
        self.settle_switch();
        self.sessions.let_all_go_on(&self.ledger);
        Some(end + 1)
    }

    fn waits_for_clusters(&mut self, client: u32, request: &Request<'_>) -> bool {
        let clusters = &mut self.backend.clusters;
        if !clusters.is_any() {
            return false;
        }
        let flushes = match request {
            Request::Admin { command: Admin::FlushAll { exptime: Some(_) }, .. } => true,
            Request::Binary(binary) => matches!(binary.command, Command::Flush { .. }),
            _ => false,
        };
        // One server flushes what all have: also what is on its way to another one.
        if flushes && !std::mem::replace(&mut self.sessions.get_mut(client).is_fenced, true) {
            clusters.raise_barrier(&self.backend.upstreams);
        }
        clusters.holds_all()
    }

    /// Answers a line of a peer. False: it is none.
    fn hear_peer(&mut self, client: u32, line: &[u8]) -> bool {
        let (backend, now) = (&mut self.backend, self.ledger.now);
        let may_promise = !backend.hot.table.is_suspended(now);
        let (placing, upstreams) = (&backend.placing, &mut backend.upstreams);
        let heard = backend.peering.hear(line, may_promise, placing, upstreams, now);
        let Some((reply, changed)) = heard else { return false };
        if changed {
            self.sessions.let_all_go_on(&self.ledger);
        }
        self.sessions.say(client, reply.as_bytes(), &mut self.ledger);
        true
    }

    /// Where each whole request of a datagram ends, `max` of them at most. What is not there to its end is dropped, and what stands
    /// behind it. Each request is a session of its own (decision 0232).
    pub fn requests_of(&self, bytes: &[u8], max: usize) -> Vec<usize> {
        let is_binary = bytes.first() == Some(&BINARY_REQUEST);
        let mut ends = Vec::new();
        let mut at = 0;
        while at < bytes.len() && ends.len() < max {
            let rest = &bytes[at..];
            let parsed = match is_binary {
                true => parse_binary(rest, &self.wire_limits),
                false => parse(rest, &self.wire_limits),
            };
            let Parsed::Request { bytes: length, skip, .. } = parsed else { break };
            if rest.len() < length + skip {
                break;
            }
            at += length + skip;
            ends.push(at);
        }
        ends
    }
}
