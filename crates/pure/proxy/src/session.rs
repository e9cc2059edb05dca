//! Clients' sessions: their input, when they are not read, and how they end.

use mbal_wire::{BINARY_REQUEST, Parsed, parse, parse_binary};

use crate::client::{Client, REQUESTS_BEFORE_FIRST, Slot};
use crate::passing::Line;
use crate::proxy::{Action, ClientId, Proxy};

/// When so many parts of what may be kept have come from upstreams, it is looked how much is.
const KEPT_PART: usize = 16;
/// So many clients may ask for several values at a time before their first has come.
const OPENING_MAX: usize = 6;

impl Proxy {
    pub(crate) fn received(&mut self, client: u32, bytes: &[u8]) {
        let this = &mut self.clients[client as usize];
        if !this.is_open || this.ending || bytes.is_empty() {
            return;
        }
        if this.binary.is_none() {
            this.binary = Some(bytes[0] == BINARY_REQUEST);
        }
        if self.now < self.promises.serves_from && !this.is_peer && !this.paused {
            self.hold(client);
        }
        let this = &mut self.clients[client as usize];
        if this.paused || !this.input.is_empty() {
            this.input.extend_from_slice(bytes);
            if !this.paused && this.need <= this.input.len() {
                self.run_input(client);
            }
            return;
        }
        let used = self.run(client, bytes);
        if used < bytes.len() {
            let mut input = self.spare.take();
            input.extend_from_slice(&bytes[used..]);
            self.clients[client as usize].input = input;
        }
    }

    /// Goes on with what waits in a client's input.
    fn run_input(&mut self, client: u32) {
        let mut input = std::mem::take(&mut self.clients[client as usize].input);
        let used = self.run(client, &input);
        if used == input.len() {
            self.spare.give(input);
        } else {
            input.drain(..used);
            self.clients[client as usize].input = input;
        }
    }

    /// A client that was paused may go on at the end of the event.
    #[inline]
    pub(crate) fn let_go_on(&mut self, client: u32) {
        let limits = self.settings.limits;
        let this = &mut self.clients[client as usize];
        let has_room = if this.rest.is_some() {
            this.has_taken_window()
        } else if this.waits_for_all {
            this.is_idle() && this.out.len() == 0
        } else {
            !this.flushing
                && this.waiting() <= limits.client_requests_max / 2
                && this.expected_bytes() <= limits.client_output_bytes_max / 2
        };
        if this.paused && has_room && this.is_open && !this.may_go_on {
            this.may_go_on = true;
            self.going_on.push(client);
        }
    }

    pub(crate) fn go_on(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        this.may_go_on = false;
        if this.rest.is_some() {
            return self.ask_rest(client);
        }
        this.waits_for_all = false;
        if !std::mem::take(&mut this.paused) || !this.is_open || this.ending {
            return;
        }
        self.run_input(client);
        let this = &self.clients[client as usize];
        match (this.paused, this.half_closed) {
            (true, _) => {}
            (false, true) => self.end(client),
            (false, false) => self.actions.push(Action::Resume(ClientId(client))),
        }
    }

    /// Asks what is whole of `bytes`; how many of them are done with.
    fn run(&mut self, client: u32, bytes: &[u8]) -> usize {
        let from = self.clients[client as usize].next_number();
        let mut at = 0;
        while at < bytes.len() {
            let this = &mut self.clients[client as usize];
            if this.skip > 0 {
                let skipped = this.skip.min(bytes.len() - at);
                this.skip -= skipped;
                at += skipped;
                if let Some(number) = this.refused.take_if(|_| this.skip == 0) {
                    this.answer(number, &mut self.spare, |_| {});
                    self.answered(client);
                }
                continue;
            }
            if this.paused {
                break;
            }
            if this.flushing || self.has_asked_enough(client) {
                self.pause(client);
                break;
            }
            let rest = &bytes[at..];
            let this = &mut self.clients[client as usize];
            if this.is_peer && this.binary == Some(false) {
                match self.run_peer(client, rest) {
                    Line::Whole(length) => {
                        at += length;
                        continue;
                    }
                    Line::NeedMore => {
                        self.clients[client as usize].need = bytes.len() - at + 1;
                        break;
                    }
                    Line::Broken => {
                        self.end(client);
                        return bytes.len();
                    }
                    Line::Request => {}
                }
            }
            let this = &mut self.clients[client as usize];
            let parsed = match this.binary {
                Some(true) => parse_binary(rest, &self.wire_limits),
                _ => parse(rest, &self.wire_limits),
            };
            match parsed {
                Parsed::NeedMore { bytes } => {
                    this.need = bytes;
                    break;
                }
                Parsed::Close => {
                    self.end(client);
                    return bytes.len();
                }
                Parsed::Request { request, bytes: length, skip } => {
                    if this.is_peer && self.refuses_peer(&request) {
                        self.end(client);
                        return bytes.len();
                    }
                    if self.waits_for_clusters(client, &request)
                        || self.must_hold(client, &request)
                        || self.waits_for_kernel(&request)
                    {
                        self.hold(client);
                        break;
                    }
                    if self.waits_for_window(client, &request) {
                        self.clients[client as usize].waits_for_all = true;
                        self.pause(client);
                        break;
                    }
                    let this = &mut self.clients[client as usize];
                    this.skip = skip;
                    if rest.len() - length < skip {
                        this.refused = Some(this.push(Slot::Waiting));
                    }
                    self.counters.requests += 1;
                    self.by_class.count(&request);
                    self.ask(client, &request, &rest[..length]);
                    at += length;
                    if self.clients[client as usize].ending {
                        return bytes.len();
                    }
                }
            }
        }
        // A peer's requests come from many clients.
        if !self.clients[client as usize].is_peer {
            self.clients[client as usize].close_turn(from);
        }
        self.tell_client(client);
        at
    }

    /// A client is not read until it has got and taken some of its replies.
    pub(crate) fn pause(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        (this.paused, this.need) = (true, 0);
        self.actions.push(Action::Pause(ClientId(client)));
    }

    #[inline]
    fn has_asked_enough(&mut self, client: u32) -> bool {
        let limits = self.settings.limits;
        let bytes_max = limits.client_output_bytes_max;
        let this = &self.clients[client as usize];
        // A peer's requests come from many clients.
        if this.is_peer {
            return limits.conn_requests_max <= this.waiting() || bytes_max <= this.out.len();
        }
        let requests_max = match this.is_known() {
            true => limits.client_requests_max,
            false => self.requests_before_first(client),
        };
        self.clients[client as usize].has_asked_enough(requests_max, bytes_max)
    }

    /// How many requests of a client may be under way whose replies may have any length.
    fn requests_before_first(&mut self, client: u32) -> usize {
        if self.clients[client as usize].is_idle() || !self.may_open(client) {
            return 1;
        }
        self.settings.limits.client_requests_max.min(REQUESTS_BEFORE_FIRST)
    }

    /// True for the few that may ask for several values before one has come.
    pub(crate) fn may_open(&mut self, client: u32) -> bool {
        let this = &mut self.clients[client as usize];
        if !this.opens && self.opening < OPENING_MAX {
            this.opens = true;
            self.opening += 1;
        }
        this.opens
    }

    /// A client has a reply, or waits for none.
    #[inline]
    pub(crate) fn has_opened(&mut self, client: u32) {
        if std::mem::take(&mut self.clients[client as usize].opens) {
            self.opening -= 1;
        }
    }

    pub(crate) fn half_closed(&mut self, client: u32) {
        match self.clients[client as usize].paused {
            true => self.clients[client as usize].half_closed = true,
            false => self.end(client),
        }
    }

    /// The client sends no more.
    pub(crate) fn end(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        if !this.is_open || this.ending {
            return;
        }
        this.ending = true;
        this.input.clear();
        this.drop_refusal();
        if this.is_idle() {
            self.tell_ended(client);
        } else {
            this.push(Slot::End);
        }
    }

    /// All replies before a client's end are there.
    pub(crate) fn tell_ended(&mut self, client: u32) {
        let out = &mut self.clients[client as usize].out;
        out.free();
        match out.len() {
            0 => self.actions.push(Action::Close(ClientId(client))),
            _ => self.tell_client(client),
        }
    }

    pub(crate) fn closed(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        this.gone = true;
        this.is_open = false;
        this.drop_refusal();
        this.go_deaf(&mut self.spare);
        self.has_opened(client);
        self.free_if_done(client);
    }

    /// Looks, now and then, how much is kept for clients that do not take it. If that is too much, who has most of it goes.
    #[inline]
    pub(crate) fn bound_kept(&mut self, came: usize) {
        let bytes_max = self.settings.limits.kept_bytes_max;
        self.came_unlooked += came;
        if bytes_max / KEPT_PART <= self.came_unlooked {
            self.came_unlooked = 0;
            self.cut_off(bytes_max);
        }
    }

    #[cold]
    fn cut_off(&mut self, bytes_max: usize) {
        let kept = |(client, this): (usize, &Client)| (this.kept_bytes(), client as u32);
        let mut kept: Vec<_> = self.clients.iter().enumerate().map(kept).collect();
        let mut sum: usize = kept.iter().map(|(bytes, _)| bytes).sum();
        if sum <= bytes_max {
            return;
        }
        kept.sort_unstable();
        while let Some((bytes, client)) = kept.pop().filter(|_| bytes_max < sum) {
            sum -= bytes;
            self.counters.clients_cut_off += 1;
            let this = &mut self.clients[client as usize];
            this.ending = true;
            this.input.clear();
            this.go_deaf(&mut self.spare);
            self.actions.push(Action::CutOff(ClientId(client)));
        }
    }

    /// A client that is gone goes for good when no reply to it is on its way.
    pub(crate) fn free_if_done(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        if this.gone && (this.is_idle() || this.has_ended()) {
            let input = std::mem::take(&mut this.input);
            self.spare.give(input);
            if this.is_waiting {
                self.resting.waits(false);
            }
            // It stays in the list that it is in.
            let is_listed = this.is_listed;
            *this = Client::default();
            this.is_listed = is_listed;
            self.free.push(client);
        }
    }
}
