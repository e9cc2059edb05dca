//! From a client's bytes to what upstreams are asked.

use mbal_model::KEY_BYTES_MAX;
use mbal_wire::{Chunk, Meta, Request, next_word};

use crate::client::Slot;
use crate::doubt::{IN_DOUBT, InDoubt};
use crate::encode;
use crate::expect::Expect;
use crate::naming::push_name;
use crate::proxy::Proxy;
use crate::reply::Kind;
use crate::steering::Steered;
use crate::upstream::{Hide, InFlight, Who};

pub(crate) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(crate) const NOT_HERE: &[u8] = b"SERVER_ERROR not through a proxy\r\n";

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
            Request::Get(_) => Form::read(Kind::Values),
            Request::MetaGet(meta) => Form::meta(meta, Hide::Miss, meta.get_writes()),
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
                Steered::Refused(why) => return self.refuse(client, form.silent, why),
                Steered::Pass { conn } => route = Some((conn, None)),
                Steered::Copy { conn, name } => route = Some((conn, Some(name))),
                Steered::Home => {}
            }
        }
        if form.writes || matches!(request, Request::Get(get) if get.touch.is_some()) {
            self.note_write(key, base64);
        }
        let (conn, name) = match route.map_or_else(|| self.route(key, base64), Ok) {
            Ok(route) => route,
            Err(refusal) => return self.refuse(client, form.silent, refusal),
        };
        if self.owing {
            match self.in_doubt_of(conn, request, (key, base64), name) {
                InDoubt::Sent => {}
                InDoubt::Said(reply) => {
                    self.counters.get_misses += 1;
                    return self.say(client, reply);
                }
                InDoubt::Refused => return self.refuse(client, form.silent, IN_DOUBT),
            }
        }
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
        let expect = match name {
            None => Expect::of(request, key),
            Some(name) => {
                let mut named = Vec::with_capacity(KEY_BYTES_MAX);
                push_name(&mut named, key, name);
                Expect::of(request, &named)
            }
        };
        let renamed = name.is_some();
        let asked = InFlight { who, kind, expect, hide, writes, renamed, at: self.now };
        self.resting.asked(asked.keys());
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

    pub(crate) fn say(&mut self, client: u32, reply: &[u8]) {
        self.clients[client as usize].say(reply, &mut self.spare);
    }

    pub(crate) fn refuse(&mut self, client: u32, silent: bool, refusal: &[u8]) {
        self.counters.errors += 1;
        if !silent {
            self.say(client, refusal);
        }
    }
}
