//! From a client's bytes to what upstreams are asked.

use mbal_model::KEY_BYTES_MAX;
use mbal_model::planted::{Fault, is_planted};
use mbal_routing::ketama::KeyHash;
use mbal_wire::{
    Admin, BINARY_REQUEST, Chunk, Get, Meta, Parsed, Request, base64_decode, next_word, parse,
    parse_binary,
};

use crate::Nanos;
use crate::client::Slot;
use crate::encode;
use crate::merge::Merge;
use crate::naming::{SUFFIX_BYTES, push_name};
use crate::proxy::{Action, ClientId, Proxy};
use crate::reply::Kind;
use crate::steering::Steered;
use crate::upstream::{Asked, Health, Hide, State, Who};

const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
const NOT_HERE: &[u8] = b"SERVER_ERROR not through a proxy\r\n";
const TOO_MANY_UPSTREAMS: &[u8] = b"SERVER_ERROR too many upstreams for one get\r\n";

/// A longer exptime is a moment of the calendar.
const RELATIVE_SECONDS_MAX: u64 = 60 * 60 * 24 * 30;

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
                    self.by_class.count(&request);
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
        let mut route = None;
        if self.control.is_some() {
            let touches = matches!(request, Request::Get(get) if get.touch.is_some());
            match self.steer(client, request, (key, base64), form.writes || touches) {
                Steered::Done => return,
                Steered::Copy { conn, name } => route = Some((conn, Some(name))),
                Steered::Home => {}
            }
        }
        let (conn, name) = match route.map_or_else(|| self.route(key, base64), Ok) {
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
        let this = &mut self.conns[conn];
        let out = &mut this.out.bytes;
        if out.capacity() == 0 {
            *out = self.spare.take();
        }
        let Form { kind, hide, writes, .. } = form;
        let asked = Asked { who, kind, hide, writes, renamed: name.is_some(), at: self.now };
        if let Some(name) = name {
            let mut named = self.spare.take();
            push_name(&mut named, key, name);
            encode::push(out, request, &named);
            this.ask(asked, writes.then_some((&named, false)));
            self.spare.give(named);
        } else {
            encode::push(out, request, key);
            this.ask(asked, writes.then_some((key, base64)));
        }
        self.counters.forwarded += 1;
        self.tell_conn(conn);
    }

    /// A `get` of several keys.
    fn ask_many(&mut self, client: u32, get: &Get<'_>) {
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        match self.place_all(client, get, &mut places) {
            Ok(()) => self.ask_parts(client, get, &places),
            Err(why) => self.refuse(client, false, why),
        }
        self.places = places;
    }

    /// Where the keys of a `get` are asked for. One that is too long makes the whole an error.
    fn place_all(
        &mut self,
        client: u32,
        get: &Get<'_>,
        places: &mut Vec<(u32, Option<u64>)>,
    ) -> Result<(), Refusal> {
        let mut rest = get.keys;
        while let Some((key, tail)) = next_word(rest) {
            rest = tail;
            if key.len() > KEY_BYTES_MAX {
                return Err(BAD_FORMAT);
            }
            if self.control.is_some() {
                let steered =
                    self.steer(client, &Request::Get(*get), (key, false), get.touch.is_some());
                if let Steered::Copy { conn, name } = steered {
                    places.push((conn as u32, Some(name)));
                    continue;
                }
            }
            let (conn, name) = self.route(key, false)?;
            places.push((conn as u32, name));
        }
        Ok(())
    }

    /// Asks for the keys of a `get`, each connection once, or twice where keys have other names.
    fn ask_parts(&mut self, client: u32, get: &Get<'_>, places: &[(u32, Option<u64>)]) {
        let mut merge = Merge::new(self.spare.take(), get.keys);
        let number = self.clients[client as usize].push(Slot::Waiting);
        if !places.iter().all(|(conn, name)| merge.ask(*conn, name.is_some())) {
            return self.clients[client as usize].answer(number, &mut self.spare, |out| {
                out.extend_from_slice(TOO_MANY_UPSTREAMS);
            });
        }
        // Where a connection has two parts, one is written after the other; else all at once, key by key.
        let two = merge.count() > 1 && places.iter().any(|(_, name)| name.is_some());
        let rounds = if two { merge.count() } else { 1 };
        for round in 0..rounds {
            let begun = if two { round..round + 1 } else { 0..merge.count() };
            for part in begun.clone() {
                self.begin_part(client, number, get, part, &merge);
            }
            let mut rest = get.keys;
            for (at, (conn, name)) in places.iter().enumerate() {
                let Some((key, tail)) = next_word(rest) else { break };
                rest = tail;
                if !begun.contains(&merge.part_of(at)) {
                    continue;
                }
                let out = &mut self.conns[*conn as usize].out.bytes;
                match name {
                    Some(name) => push_name(out, key, *name),
                    None => out.extend_from_slice(key),
                }
                out.push(b' ');
            }
            for part in begun {
                let (conn, _) = merge.part(part);
                let out = &mut self.conns[conn].out.bytes;
                out.pop();
                out.extend_from_slice(b"\r\n");
                self.tell_conn(conn);
            }
        }
        *self.clients[client as usize].slot(number) = Slot::Merge(Box::new(merge));
    }

    fn begin_part(&mut self, client: u32, number: u32, get: &Get<'_>, part: usize, merge: &Merge) {
        let (conn, renamed) = merge.part(part);
        let this = &mut self.conns[conn];
        if this.out.bytes.capacity() == 0 {
            this.out.bytes = self.spare.take();
        }
        encode::push_get(&mut this.out.bytes, get);
        let who = Who::Part { client, number, part: part as u8 };
        let (kind, hide, writes) = (Kind::Values, Hide::Nothing, false);
        this.ask(Asked { who, kind, hide, writes, renamed, at: self.now }, None);
        self.counters.forwarded += 1;
    }

    /// The connection for a key, and what the name is made of that it has there, if it has another.
    #[inline]
    fn route(&mut self, key: &[u8], base64: bool) -> Result<(usize, Option<u64>), Refusal> {
        // An item has one place, however its key is spelled.
        let mut decoded = [0; KEY_BYTES_MAX];
        let key = match base64.then(|| base64_decode(key, &mut decoded)).flatten() {
            Some(length) => &decoded[..length],
            None => key,
        };
        let home = self.full.place(key).ok_or(DOWN)?;
        // Keys of an upstream that serves stay there: what it has would be older when they came back.
        let serves = self.all_present
            || self.upstreams[home].health == Health::Serves && !is_planted(Fault::AllKeysMove);
        let (upstream, name) = match serves {
            true => (home, None),
            false => match self.present.place(key) {
                None => return Err(DOWN),
                Some(there) => (there, (there != home).then_some(self.epoch)),
            },
        };
        if name.is_some() && (base64 || KEY_BYTES_MAX < key.len() + SUFFIX_BYTES) {
            return Err(DOWN);
        }
        let conn = self.conn_of(upstream, key);
        self.admit(conn)?;
        Ok((conn, name))
    }

    /// The connection over which an upstream is asked for a key: always the same, so that its requests stay in order.
    #[inline]
    pub(crate) fn conn_of(&self, upstream: usize, key: &[u8]) -> usize {
        let conns = self.settings.conns_per_server;
        let among = if conns == 1 { 0 } else { KeyHash::OneAtATime.place(key) as usize % conns };
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
    pub(crate) fn admit(&mut self, conn: usize) -> Result<(), Refusal> {
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
            Admin::FlushAll { exptime: None } => b"CLIENT_ERROR invalid exptime argument\r\n",
            Admin::Verbosity { .. } => b"OK\r\n",
            Admin::Stats(words) if words.count == 1 => {
                let mut reply = Vec::new();
                self.push_stats(&mut reply);
                return self.say(client, &reply);
            }
            Admin::Stats(words) if words.get(1) == b"reset" => b"RESET\r\n",
            Admin::Stats(words) if words.get(1) == b"explain" && words.count == 3 => {
                let reply = self.explain(words.get(2));
                return self.say(client, &reply);
            }
            Admin::Shutdown(_) => b"SERVER_ERROR: shutdown not enabled\r\n",
            _ => NOT_HERE,
        };
        if !noreply {
            self.say(client, reply);
        }
    }

    /// `flush_all`, by all upstreams.
    fn flush(&mut self, client: u32, exptime: i32, noreply: bool) {
        self.end_all_copies();
        if exptime != 0 {
            // Until everything is flushed, and everybody's clock says so; a moment of the calendar is not known here.
            let seconds = u64::try_from(exptime).unwrap_or(0);
            let until = if seconds > RELATIVE_SECONDS_MAX {
                Nanos::MAX
            } else {
                self.now + (seconds + 2) * 1_000_000_000
            };
            self.hot.suspended_until = self.hot.suspended_until.max(until);
        }
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
