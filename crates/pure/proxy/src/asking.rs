//! From a client's bytes to what upstreams are asked.

use std::borrow::Cow;

use mbal_model::KEY_BYTES_MAX;
use mbal_wire::{Admin, Chunk, Meta, ReplyKind, Request, Storage, Verb, next_word};

use crate::administering::{self, NOT_HERE, Voice};
use crate::backend::Backend;
use crate::doubt::{IN_DOUBT, InDoubt};
use crate::encode;
use crate::expect::Expect;
use crate::hot::Reader;
use crate::inflight::{Hide, InFlight, Who};
use crate::insights::distances;
use crate::naming::push_name;
use crate::proxy::Proxy;
use crate::refusal::{BAD_FORMAT, DOWN, SWITCHING};
use crate::replies::Slot;
use crate::steering::Steered;
use crate::switching::Passage;

const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";

/// Where a request goes, and how its reply comes back.
#[derive(Clone, Copy)]
struct Form {
    kind: ReplyKind,
    hide: Hide,
    writes: bool,
    /// The client hears nothing of it, whatever comes.
    silent: bool,
}

impl Form {
    fn read(kind: ReplyKind) -> Form {
        Form { kind, hide: Hide::Nothing, writes: false, silent: false }
    }

    fn write(silent: bool) -> Form {
        Form { kind: ReplyKind::Line, hide: Hide::Nothing, writes: true, silent }
    }

    fn meta(meta: &Meta<'_>, hide: Hide, writes: bool) -> Form {
        let hide = if meta.flags.has(b'q') { hide } else { Hide::Nothing };
        Form { kind: ReplyKind::Meta, hide, writes, silent: false }
    }
}

impl Proxy {
    #[inline]
    pub(crate) fn ask(&mut self, client: u32, request: &Request<'_>, raw: &[u8]) {
        let form = match request {
            Request::Get(get) if get.first.len() > KEY_BYTES_MAX => {
                return self.say(client, BAD_FORMAT);
            }
            Request::Get(get) if next_word(get.further).is_some() => {
                return self.ask_many(client, get);
            }
            Request::Get(_) => Form::read(ReplyKind::Values),
            Request::MetaGet(meta) => Form::meta(meta, Hide::Miss, meta.get_writes()),
            Request::MetaSet(_, Chunk::Bad) => return self.say(client, BAD_CHUNK),
            Request::MetaSet(meta, _) | Request::MetaDelete(meta) => {
                Form::meta(meta, Hide::Done, true)
            }
            Request::MetaArithmetic(meta) => Form::meta(meta, Hide::Success, true),
            Request::MetaDebug { .. } => Form::read(ReplyKind::Line),
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
                let line = format!("VERSION {}\r\n", self.ledger.settings.version);
                return self.say(client, line.as_bytes());
            }
            Request::Quit => return self.sessions.end(client, &mut self.ledger),
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
        let touches = matches!(request, Request::Get(get) if get.touch.is_some());
        let may_write = form.writes || touches;
        let mut form = form;
        if self.backend.switching.is_active() {
            let compares = compares(request);
            let (switching, now) = (&self.backend.switching, self.ledger.now);
            match switching.passage(key, base64, may_write, compares, now) {
                Passage::Passes => form.writes |= touches,
                Passage::Misses => {
                    if let InDoubt::Said(reply) = InDoubt::of(request) {
                        self.ledger.counters.get_misses += 1;
                        return self.say(client, reply);
                    }
                }
                Passage::Refused => return self.refuse(client, form.silent, SWITCHING),
                Passage::Differs => {
                    let reply = differs(request);
                    if !form.silent {
                        self.say(client, &reply);
                    }
                    return;
                }
            }
        }
        let mut route = None;
        if self.backend.hot.control().is_some() {
            let is_peer = self.sessions.get(client).is_peer;
            let ledger = &mut self.ledger;
            match self.backend.steer(is_peer, request, (key, base64), may_write, ledger) {
                Steered::Said(reply) => {
                    self.say(client, &reply);
                    return self.ledger.spare.give(reply);
                }
                Steered::Behind(ask, shape) => {
                    let number = self.sessions.push(client, Slot::Waiting);
                    return self.backend.hot.table.wait(ask, Reader { client, number, shape });
                }
                Steered::Refused(why) => return self.refuse(client, form.silent, why),
                Steered::Pass { conn } => route = Some((conn, None)),
                Steered::Copy { conn, name } => route = Some((conn, Some(name))),
                Steered::Home => {}
            }
        }
        if !self.backend.copied.is_empty() {
            // What stands behind a touch goes where it goes.
            form.writes |= touches;
            if !may_write && !base64 {
                let copy = self.backend.copy(key, false, &mut self.ledger);
                route = route.or(copy.map(|conn| (conn, None)));
            }
        }
        let Backend { notes, placing, upstreams, .. } = &mut self.backend;
        if may_write {
            notes.write(key, base64, placing, upstreams);
        }
        let route =
            route.map_or_else(|| placing.route(key, base64, upstreams, &mut self.ledger), Ok);
        let (conn, name) = match route {
            Ok(route) => route,
            Err(refusal) => return self.refuse(client, form.silent, refusal),
        };
        if upstreams.is_owing() && upstreams.owes_key(conn, key, base64, name) {
            match InDoubt::of(request) {
                InDoubt::Sent => {}
                InDoubt::Said(reply) => {
                    self.ledger.counters.get_misses += 1;
                    return self.say(client, reply);
                }
                InDoubt::Refused => return self.refuse(client, form.silent, IN_DOUBT),
            }
        }
        let (now, requests) = (self.ledger.now, self.ledger.counters.requests);
        let sampling = self.ledger.sampling.as_mut();
        let sampled = sampling.and_then(|it| it.asked(request, (key, base64), now, requests));
        let slot = sampled.map_or(Slot::Waiting, Slot::Sampled);
        let who = match form.silent {
            true => Who::Nobody,
            false => Who::Client { client, number: self.sessions.push(client, slot) },
        };
        let ledger = &mut self.ledger;
        let out = upstreams.filled_out(conn, &mut ledger.spare);
        let Form { kind, hide, writes, .. } = form;
        let at = ledger.now;
        let keys = if let Some(name) = name {
            let mut named = ledger.spare.take();
            push_name(&mut named, key, name);
            encode::push(out, request, &named);
            let expect = Expect::of(request, &named);
            let asked = InFlight { who, kind, expect, hide, writes, renamed: true, at };
            upstreams.ask(conn, asked, writes.then_some((&named, false)));
            ledger.spare.give(named);
            asked.keys()
        } else {
            encode::push(out, request, key);
            let expect = Expect::of(request, key);
            let asked = InFlight { who, kind, expect, hide, writes, renamed: false, at };
            upstreams.ask(conn, asked, writes.then_some((key, base64)));
            asked.keys()
        };
        ledger.resting.asked(keys);
        ledger.counters.forwarded += 1;
    }

    /// What has no key, in text.
    fn administer(&mut self, client: u32, command: &Admin<'_>, noreply: bool) {
        if let Admin::FlushAll { exptime: Some(exptime) } = command {
            return self.flush(client, *exptime, Voice::Text { noreply });
        }
        if let Admin::Stats(words) = command {
            if words.get(1) == b"distances" {
                let reply = distances(&self.backend, &mut self.ledger, words.get(2));
                return self.say(client, &reply);
            }
        }
        let stats = || self.stats();
        let reply = administering::reply(command, stats, &self.backend, &self.ledger);
        if !noreply || matches!(reply, Cow::Owned(_)) {
            self.say(client, &reply);
        }
    }

    /// `flush_all`, by all upstreams.
    pub(crate) fn flush(&mut self, client: u32, exptime: i32, voice: Voice<'_>) {
        if !self.backend.switching.may_flush() {
            let silent = matches!(voice, Voice::Text { noreply: true });
            return self.refuse(client, silent, &voice.refused(SWITCHING));
        }
        let this = self.sessions.get_mut(client);
        this.is_fenced = false;
        let (is_peer, binary) = (this.is_peer, voice.is_binary());
        let (conns, refusal) = self.backend.flush(exptime, binary, !is_peer, &mut self.ledger);
        let silent = matches!(voice, Voice::Text { noreply: true });
        if conns.is_empty() {
            return self.refuse(client, silent, &voice.refused(DOWN));
        }
        // Who wants no answer waits for it all the same: an upstream that is late would flush what the client has stored since.
        let error = refusal.map_or_else(Vec::new, |why| voice.refused(why));
        let (missing, done) = (conns.len(), voice.done());
        let number = self.sessions.push(client, Slot::Everywhere { missing, error, done, silent });
        // A peer's requests come from many clients, and each of them waits there.
        self.sessions.get_mut(client).flushing = !is_peer;
        let who = Who::Everywhere { client, number };
        let (kind, expect, hide) = voice.form();
        for conn in conns {
            voice.push_flush(self.backend.upstreams.out(conn), exptime);
            let at = self.ledger.now;
            let asked = InFlight { who, kind, expect, hide, writes: false, renamed: false, at };
            self.backend.upstreams.ask(conn, asked, None);
            self.ledger.counters.forwarded += 1;
        }
    }

    pub(crate) fn say(&mut self, client: u32, reply: &[u8]) {
        self.sessions.say(client, reply, &mut self.ledger);
    }

    pub(crate) fn refuse(&mut self, client: u32, silent: bool, refusal: &[u8]) {
        self.sessions.refuse(client, silent, refusal, &mut self.ledger);
    }
}

/// It is executed only if an item's cas number is that of the request.
fn compares(request: &Request<'_>) -> bool {
    match request {
        Request::Store(Storage { verb, .. }) => *verb == Verb::Cas,
        Request::MetaSet(meta, _) | Request::MetaDelete(meta) | Request::MetaArithmetic(meta) => {
            meta.flags.has(b'C')
        }
        _ => false,
    }
}

/// What a request hears whose cas number is another one.
fn differs(request: &Request<'_>) -> Vec<u8> {
    let (Request::MetaSet(meta, _) | Request::MetaDelete(meta) | Request::MetaArithmetic(meta)) =
        request
    else {
        return b"EXISTS\r\n".to_vec();
    };
    let mut reply = b"EX".to_vec();
    for word in meta.words() {
        match word[0] {
            b'O' => reply.extend_from_slice(&[b" ", word].concat()),
            b'k' => reply.extend_from_slice(&[b" k", meta.key].concat()),
            b'b' => reply.extend_from_slice(b" b"),
            _ => {}
        }
    }
    reply.extend_from_slice(b"\r\n");
    reply
}
