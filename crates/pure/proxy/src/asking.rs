//! From a client's bytes to what upstreams are asked.

use mbal_model::KEY_BYTES_MAX;
use mbal_routing::ketama::KeyHash;
use mbal_wire::{
    Admin, BINARY_REQUEST, Chunk, Get, Meta, Parsed, Request, next_word, parse, parse_binary,
};

use crate::client::Slot;
use crate::encode;
use crate::merge::{Merge, PARTS_MAX};
use crate::proxy::{Action, ClientId, Proxy};
use crate::reply::Kind;
use crate::upstream::{Asked, Health, Hide, State, Who};

const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
const NOT_HERE: &[u8] = b"SERVER_ERROR not through a proxy\r\n";
const TOO_MANY_UPSTREAMS: &[u8] = b"SERVER_ERROR too many upstreams for one get\r\n";

/// Why an upstream is not asked.
pub(crate) type Refusal = &'static [u8];

const DOWN: Refusal = b"SERVER_ERROR upstream is down\r\n";
const BUSY: Refusal = b"SERVER_ERROR upstream is busy\r\n";

/// Where a request goes, and how its reply comes back.
#[derive(Clone, Copy)]
struct Form {
    kind: Kind,
    hide: Hide,
    writes: bool,
    /// The client hears nothing of it, whatever comes.
    silent: bool,
}

impl Form {
    fn read(kind: Kind) -> Form {
        Form { kind, hide: Hide::Nothing, writes: false, silent: false }
    }

    fn write(silent: bool) -> Form {
        Form { kind: Kind::Line, hide: Hide::Nothing, writes: true, silent }
    }

    fn meta(meta: &Meta<'_>, hide: Hide, writes: bool) -> Form {
        let hide = if meta.flags.has(b'q') { hide } else { Hide::Nothing };
        Form { kind: Kind::Meta, hide, writes, silent: false }
    }
}

/// True if `mg` may change its item: it is touched, made, or won.
fn meta_get_writes(meta: &Meta<'_>) -> bool {
    b"NRTE".iter().any(|letter| meta.flags.has(*letter))
}

impl Proxy {
    pub(crate) fn received(&mut self, client: u32, bytes: &[u8]) {
        let this = &mut self.clients[client as usize];
        if !this.is_open || this.ending || bytes.is_empty() {
            return;
        }
        if this.binary.is_none() {
            this.binary = Some(bytes[0] == BINARY_REQUEST);
        }
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
        let has_room = this.waiting() <= limits.client_requests_max / 2
            && this.out.len() <= limits.client_output_bytes_max / 2;
        if this.paused && has_room && this.is_open && !this.may_go_on {
            this.may_go_on = true;
            self.going_on.push(client);
        }
    }

    pub(crate) fn go_on(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        this.may_go_on = false;
        if !std::mem::take(&mut this.paused) || !this.is_open || this.ending {
            return;
        }
        self.actions.push(Action::Resume(ClientId(client)));
        self.run_input(client);
    }

    /// Asks what is whole of `bytes`; how many of them are done with.
    fn run(&mut self, client: u32, bytes: &[u8]) -> usize {
        let limits = self.settings.limits;
        let from = self.clients[client as usize].next_number();
        let mut at = 0;
        while at < bytes.len() {
            let this = &mut self.clients[client as usize];
            if this.skip > 0 {
                let skipped = this.skip.min(bytes.len() - at);
                this.skip -= skipped;
                at += skipped;
                continue;
            }
            if limits.client_requests_max <= this.waiting()
                || limits.client_output_bytes_max <= this.out.len()
            {
                this.paused = true;
                this.need = 0;
                self.actions.push(Action::Pause(ClientId(client)));
                break;
            }
            let rest = &bytes[at..];
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
                    this.skip = skip;
                    self.counters.requests += 1;
                    self.ask(client, &request, &rest[..length]);
                    at += length;
                    if self.clients[client as usize].ending {
                        return bytes.len();
                    }
                }
            }
        }
        self.clients[client as usize].close_turn(from);
        self.tell_client(client);
        at
    }

    #[inline]
    fn ask(&mut self, client: u32, request: &Request<'_>, raw: &[u8]) {
        let form = match request {
            Request::Get(get) if get.first.len() > KEY_BYTES_MAX => {
                return self.say(client, BAD_FORMAT);
            }
            Request::Get(get) if next_word(get.further).is_some() => {
                return self.ask_many(client, get);
            }
            Request::Get(_) => Form::read(Kind::Values),
            Request::MetaGet(meta) => Form::meta(meta, Hide::Miss, meta_get_writes(meta)),
            Request::MetaSet(_, Chunk::Bad) => return self.say(client, BAD_CHUNK),
            Request::MetaSet(meta, _) | Request::MetaDelete(meta) => {
                Form::meta(meta, Hide::Done, true)
            }
            Request::MetaArithmetic(meta) => Form::meta(meta, Hide::Success, true),
            Request::MetaDebug { .. } => Form::read(Kind::Line),
            Request::MetaNoop => return self.say(client, b"MN\r\n"),
            Request::Store(storage) => match storage.chunk {
                Chunk::Bad if storage.noreply => return,
                Chunk::Bad => return self.say(client, BAD_CHUNK),
                Chunk::Value(_) => Form::write(storage.noreply),
            },
            Request::Arithmetic { noreply, .. }
            | Request::Touch { noreply, .. }
            | Request::Delete { noreply, .. } => Form::write(*noreply),
            Request::TooLarge { remove, noreply, .. } => {
                if *remove {
                    self.ask_one(client, request, Form::write(true));
                }
                if !noreply {
                    self.say(client, TOO_LARGE);
                }
                return;
            }
            Request::Answer(line) => return self.say(client, format!("{line}\r\n").as_bytes()),
            Request::Silence => return,
            Request::Version => {
                let line = format!("VERSION {}\r\n", self.settings.version);
                return self.say(client, line.as_bytes());
            }
            Request::Quit => return self.end(client),
            Request::Login { .. } => return self.say(client, NOT_HERE),
            Request::Admin { command, noreply } => {
                return self.administer(client, command, *noreply);
            }
            Request::Binary(binary) => return self.ask_binary(client, binary, raw),
        };
        self.ask_one(client, request, form);
    }

    /// A request that has one key.
    #[inline]
    fn ask_one(&mut self, client: u32, request: &Request<'_>, form: Form) {
        let (key, base64) = request.key().expect("it has a key");
        let route = self.route(key, base64);
        let (conn, renamed) = match route {
            Ok(route) => route,
            Err(refusal) => return self.refuse(client, form.silent, refusal),
        };
        let who = match form.silent {
            true => Who::Nobody,
            false => {
                let number = self.clients[client as usize].push(Slot::Waiting);
                Who::Client { client, number }
            }
        };
        let out = &mut self.conns[conn].out.bytes;
        if out.capacity() == 0 {
            *out = self.spare.take();
        }
        let Form { kind, hide, writes, .. } = form;
        let asked = Asked { who, kind, hide, writes, renamed, at: self.now };
        if renamed {
            let mut name = self.spare.take();
            self.rename(key, &mut name);
            let this = &mut self.conns[conn];
            encode::push(&mut this.out.bytes, request, &name);
            this.ask(asked, writes.then_some((&name, false)));
            self.spare.give(name);
        } else {
            encode::push(out, request, key);
            self.conns[conn].ask(asked, writes.then_some((key, base64)));
        }
        self.counters.forwarded += 1;
        self.tell_conn(conn);
    }

    /// A `get` of several keys.
    fn ask_many(&mut self, client: u32, get: &Get<'_>) {
        let mut merge = Merge::new(self.spare.take(), get.keys);
        let mut refusal = None;
        // The places of keys first: a key that is too long makes the whole an error.
        let mut rest = get.keys;
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        while let Some((key, tail)) = next_word(rest) {
            rest = tail;
            if key.len() > KEY_BYTES_MAX {
                refusal = Some(BAD_FORMAT);
                break;
            }
            match self.route(key, false) {
                Ok((conn, renamed)) => places.push((conn as u32, renamed)),
                Err(why) => {
                    refusal = Some(why);
                    break;
                }
            }
        }
        if let Some(why) = refusal {
            self.places = places;
            return self.refuse(client, false, why);
        }
        let number = self.clients[client as usize].push(Slot::Waiting);
        let mut rest = get.keys;
        for (conn, renamed) in &places {
            let Some((key, tail)) = next_word(rest) else { break };
            rest = tail;
            let (part, is_new) = merge.ask(*conn);
            let this = &mut self.conns[*conn as usize];
            if is_new && PARTS_MAX <= merge.count() {
                // All parts but this one have been begun: they end as they are.
                merge.give_up(TOO_MANY_UPSTREAMS);
                break;
            }
            if is_new {
                if this.out.bytes.capacity() == 0 {
                    this.out.bytes = self.spare.take();
                }
                encode::push_get(&mut this.out.bytes, get);
                let who = Who::Part { client, number, part };
                let (kind, hide) = (Kind::Values, Hide::Nothing);
                let (writes, renamed) = (false, *renamed);
                this.ask(Asked { who, kind, hide, writes, renamed, at: self.now }, None);
                self.counters.forwarded += 1;
            } else {
                this.out.bytes.push(b' ');
            }
            if *renamed {
                let mut name = self.spare.take();
                self.rename(key, &mut name);
                self.conns[*conn as usize].out.bytes.extend_from_slice(&name);
                self.spare.give(name);
            } else {
                this.out.bytes.extend_from_slice(key);
            }
        }
        for conn in merge.conns() {
            self.conns[conn].out.bytes.extend_from_slice(b"\r\n");
        }
        let told: Vec<usize> = merge.conns().collect();
        *self.clients[client as usize].slot(number) = Slot::Merge(Box::new(merge));
        told.into_iter().for_each(|conn| self.tell_conn(conn));
        self.places = places;
    }

    /// The connection for a key, and whether it has another name there.
    #[inline]
    fn route(&mut self, key: &[u8], base64: bool) -> Result<(usize, bool), Refusal> {
        let home = self.full.place(key).ok_or(DOWN)?;
        let (upstream, renamed) = match self.all_present {
            true => (home, false),
            false => match self.present.place(key) {
                None => return Err(DOWN),
                Some(there) => (there, there != home),
            },
        };
        if renamed && (base64 || KEY_BYTES_MAX < key.len() + crate::naming::SUFFIX_BYTES) {
            return Err(DOWN);
        }
        let conn = self.conn_of(upstream, key);
        self.admit(conn)?;
        Ok((conn, renamed))
    }

    /// The connection over which an upstream is asked for a key: always the same, so that its requests stay in order.
    #[inline]
    fn conn_of(&self, upstream: usize, key: &[u8]) -> usize {
        let conns = self.settings.conns_per_server;
        let among = if conns == 1 { 0 } else { KeyHash::OneAtATime.of(key) as usize % conns };
        self.upstreams[upstream].first_conn + among
    }

    /// Likewise for binary. A key whose upstream is ejected is nowhere.
    pub(crate) fn route_binary(&mut self, key: &[u8]) -> Result<usize, Refusal> {
        let home = self.full.place(key).ok_or(DOWN)?;
        if self.upstreams[home].health != Health::Serves {
            return Err(DOWN);
        }
        let conn = self.conn_of(home, key) + self.settings.conns_per_server;
        self.admit(conn)?;
        Ok(conn)
    }

    /// Whether a connection takes one more request.
    #[inline]
    fn admit(&mut self, conn: usize) -> Result<(), Refusal> {
        let this = &self.conns[conn];
        match this.state {
            State::Closed { retry_at } if retry_at <= self.now => self.dial(conn),
            State::Closed { .. } => return Err(DOWN),
            State::Dialing { .. } | State::Up => {}
        }
        let limits = &self.settings.limits;
        let this = &self.conns[conn];
        match this.asked.len() < limits.conn_requests_max
            && this.out.len() < limits.conn_output_bytes_max
        {
            true => Ok(()),
            false => Err(BUSY),
        }
    }

    fn administer(&mut self, client: u32, command: &Admin<'_>, noreply: bool) {
        let reply: &[u8] = match command {
            Admin::FlushAll { exptime: Some(exptime) } => {
                return self.flush(client, *exptime, noreply);
            }
            Admin::FlushAll { exptime: None } => b"CLIENT_ERROR bad command line format\r\n",
            Admin::Verbosity { .. } => b"OK\r\n",
            Admin::Stats(words) if words.count == 1 => {
                let mut reply = Vec::new();
                self.push_stats(&mut reply);
                return self.say(client, &reply);
            }
            Admin::Stats(words) if words.get(1) == b"reset" => b"RESET\r\n",
            Admin::Shutdown(_) => b"ERROR: shutdown not enabled\r\n",
            _ => NOT_HERE,
        };
        if !noreply {
            self.say(client, reply);
        }
    }

    /// `flush_all`, by all upstreams.
    fn flush(&mut self, client: u32, exptime: i32, noreply: bool) {
        let conns = self.settings.conns_per_server;
        let mut asked_of = Vec::new();
        let mut refusal: &[u8] = b"";
        for upstream in 0..self.upstreams.len() {
            // An upstream that is ejected is flushed when it comes back.
            if self.upstreams[upstream].health != Health::Serves {
                continue;
            }
            // Over each connection: it is in order with what was asked there before.
            let first = self.upstreams[upstream].first_conn;
            for conn in first..first + conns {
                match self.admit(conn) {
                    Ok(()) => asked_of.push(conn),
                    Err(why) => refusal = why,
                }
            }
        }
        if asked_of.is_empty() {
            return self.refuse(client, noreply, DOWN);
        }
        let who = match noreply {
            true => Who::Nobody,
            false => {
                let slot = Slot::Everywhere(asked_of.len(), refusal.to_vec());
                let number = self.clients[client as usize].push(slot);
                Who::Everywhere { client, number }
            }
        };
        for conn in asked_of {
            let this = &mut self.conns[conn];
            if exptime == 0 {
                this.out.bytes.extend_from_slice(b"flush_all\r\n");
            } else {
                this.out.bytes.extend_from_slice(format!("flush_all {exptime}\r\n").as_bytes());
            }
            let (kind, hide) = (Kind::Line, Hide::Nothing);
            let at = self.now;
            this.ask(Asked { who, kind, hide, writes: false, renamed: false, at }, None);
            self.counters.forwarded += 1;
            self.tell_conn(conn);
        }
    }

    pub(crate) fn say(&mut self, client: u32, reply: &[u8]) {
        self.clients[client as usize].say(reply, &mut self.spare);
    }

    fn refuse(&mut self, client: u32, silent: bool, refusal: Refusal) {
        self.counters.errors += 1;
        if !silent {
            self.say(client, refusal);
        }
    }
}
