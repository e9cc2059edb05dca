//! Requests for keys that are hot: where reads go, what a write ends, how copies are filled.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{KEY_BYTES_MAX, Key};
use mbal_wire::{Meta, Request, base64_decode, parse_u64, push_u64};

use crate::Nanos;
use crate::control::Control;
use crate::expect::{Echo, Expect};
use crate::hot::{Copy, Kept, Read};
use crate::keeping::{KEPT_BYTES_MAX, Shape};
use crate::naming::{SUFFIX_BYTES, push_name};
use crate::placing::Refusal;
use crate::promises::Course;
use crate::proxy::Proxy;
use crate::reply::Kind;
use crate::upstream::{InFlight, State, Who};

/// The reply to a question for a value that is to be copied.
pub(crate) const FILLS: Expect = Expect::MetaGot { value: true, compares: false, echo: Echo::NONE };
/// A copy's item lives for so many seconds at most: what a proxy leaves behind goes by itself.
pub(crate) const COPY_SECONDS_MAX: i64 = 60;
pub(crate) const SECOND: Nanos = 1_000_000_000;

/// What becomes of a request.
pub(crate) enum Steered {
    /// It goes where its key's hash says.
    Home,
    Copy {
        conn: usize,
        name: u64,
    },
    /// It is passed on to its key's coordinator.
    Pass {
        conn: usize,
    },
    Refused(Refusal),
    /// It was answered.
    Done,
}

/// True if a copy shows all that the request asks for, and nothing changes by it.
pub(crate) fn is_plain(request: &Request<'_>) -> bool {
    let plain = |meta: &Meta<'_>| meta.words().all(|word| b"vfkOqs".contains(&word[0]));
    match request {
        Request::Get(get) => !get.cas && get.touch.is_none(),
        Request::MetaGet(meta) => plain(meta),
        _ => false,
    }
}

impl Proxy {
    /// A request for one key, `writes` if it may change the item.
    pub(crate) fn steer(
        &mut self,
        client: u32,
        request: &Request<'_>,
        key: (&[u8], bool),
        writes: bool,
    ) -> Steered {
        let (Some(control), (key, base64)) = (&mut self.control, key) else {
            return Steered::Home;
        };
        let mut decoded = [0; KEY_BYTES_MAX];
        let key = match base64 {
            true => match base64_decode(key, &mut decoded) {
                Some(length) => &decoded[..length],
                None => return Steered::Home,
            },
            false => key,
        };
        let Some(hash) = Key::new(key).map(|key| key.hash()) else { return Steered::Home };
        // What peers pass on they ask for more often than their other keys.
        if !self.clients[client as usize].is_peer {
            control.observe(key, hash);
        }
        match self.course_of(client, hash) {
            Ok(Course::Pass(member)) => return self.pass(member, key, writes),
            Ok(Course::Own | Course::Hold) => {}
            Err(why) => return Steered::Refused(why),
        }
        if self.hot.is_empty() {
            return Steered::Home;
        }
        if writes {
            self.writes(request, hash, key);
            return Steered::Home;
        }
        if base64 || !is_plain(request) {
            return Steered::Home;
        }
        if self.peers.as_ref().is_some_and(|peers| !peers.is_sure(self.now)) {
            return Steered::Home;
        }
        let may_fill = self.may_fill(hash, key);
        let conns = &self.conns;
        let load = |conn: u32| conns[conn as usize].load();
        match self.hot.read(hash, key, self.now, may_fill, load) {
            Read::Home => Steered::Home,
            Read::Fill(epoch) => {
                self.ask_fill(hash, epoch, key);
                Steered::Home
            }
            Read::Behind(ask) => match Shape::of(request) {
                Some(shape) => {
                    self.read_behind(ask, client, shape);
                    Steered::Done
                }
                None => Steered::Home,
            },
            Read::Cached(kept) => match Shape::of(request) {
                Some(shape) => {
                    let mut reply = self.spare.take();
                    shape.push(&mut reply, key, Some(kept));
                    self.clients[client as usize].say(&reply, &mut self.spare);
                    self.spare.give(reply);
                    self.counters.cache_hits += 1;
                    self.counters.get_hits += 1;
                    Steered::Done
                }
                None => Steered::Home,
            },
            Read::Copy { conn, name } if self.conns[conn].state == State::Up => {
                self.counters.copy_reads += 1;
                Steered::Copy { conn, name }
            }
            Read::Copy { .. } => Steered::Home,
        }
    }

    /// A key may have changed: no copy of it is read any more.
    pub(crate) fn end_copies(&mut self, hash: u64, key: &[u8]) {
        self.hot.write(hash, key, &mut self.left);
        self.delete_left();
    }

    /// What is known of any key may be wrong.
    pub(crate) fn end_all_copies(&mut self) {
        self.hot.end_all(&mut self.left);
        if let Some(kernel) = &mut self.kernel {
            kernel.must_forget_all();
        }
        self.delete_left();
    }

    /// All upstreams serve, and the key's home does what it was told.
    pub(crate) fn may_fill(&self, hash: u64, key: &[u8]) -> bool {
        let Some(home) = self.full.place(key).filter(|_| self.all_present) else { return false };
        let text = self.conn_of(home, key);
        let both = [text, text + self.settings.conns_per_server];
        let is_sure =
            !both.iter().any(|conn| self.in_doubt(*conn)) || is_planted(Fault::DoubtForgotten);
        let is_promised = self.peers.as_ref().is_none_or(|peers| peers.all_promised(hash));
        // A write in binary is in no order with the fill.
        self.conns[text].state == State::Up
            && !self.clusters.is_any()
            && !self.conns[both[1]].awaits_writes()
            && is_sure
            && is_promised
            && key.len() + SUFFIX_BYTES <= KEY_BYTES_MAX
    }

    fn ask_fill(&mut self, hash: u64, epoch: u64, key: &[u8]) {
        let home = self.full.place(key).expect("it may be filled");
        let conn = self.conn_of(home, key);
        self.push_fill(conn, key);
        self.ask_own(conn, Kind::Meta, FILLS, Who::Fill { hash, epoch });
    }

    pub(crate) fn push_fill(&mut self, conn: usize, key: &[u8]) {
        for part in [b"mg ", key, b" v f t\r\n"] {
            self.conns[conn].out.bytes.extend_from_slice(part);
        }
    }

    /// A request of the proxy's own.
    pub(crate) fn ask_own(&mut self, conn: usize, kind: Kind, expect: Expect, who: Who) {
        let asked = InFlight::own(who, kind, expect, self.now);
        self.conns[conn].ask(asked, None);
        self.tell_conn(conn);
    }

    /// The home has answered a fill.
    pub(crate) fn filled(&mut self, hash: u64, epoch: u64, reply: &[u8]) {
        let Some(hot) = self.hot.is_filling(hash, epoch) else { return };
        let (key, wanted, often_written) = (hot.key.clone(), hot.wanted, hot.often_written);
        let Some(item) = Item::parse(reply).filter(|item| item.seconds > 0) else {
            return self.hot.unfilled(hash, epoch);
        };
        if often_written && item.value.len() <= KEPT_BYTES_MAX {
            let kept = Kept { flags: item.flags, value: item.value.to_vec() };
            if self.hot.cached(hash, kept, self.now + item.seconds as u64 * SECOND) {
                return;
            }
        }
        let home = self.full.place(&key).expect("it was asked");
        let at_home = Copy { conn: self.conn_of(home, &key) as u32, name: None, stored: true };
        let mut copies = vec![at_home];
        let mut named = Vec::new();
        for at in 1..wanted {
            let name = mbal_random::mix(epoch ^ u64::from(at));
            named.clear();
            push_name(&mut named, &key, name);
            let upstream = self.full.place(&named).expect("somebody serves");
            let conn = self.conn_of(upstream, &named);
            let same = copies.iter().find(|copy| copy.conn as usize == conn).copied();
            if let Some(same) = same {
                copies.push(same);
            } else if upstream == home || self.admit(conn).is_err() {
                copies.push(at_home);
            } else {
                self.store_copy(conn, &named, &item);
                self.ask_own(conn, Kind::Line, Expect::Stored, Who::Copy { hash, epoch, at });
                copies.push(Copy { conn: conn as u32, name: Some(name), stored: false });
                self.counters.copies_stored += 1;
            }
        }
        self.hot.copied(hash, copies, self.now);
    }

    fn store_copy(&mut self, conn: usize, name: &[u8], item: &Item<'_>) {
        let out = &mut self.conns[conn].out.bytes;
        out.extend_from_slice(b"set ");
        out.extend_from_slice(name);
        for number in [item.flags.into(), item.seconds as u64, item.value.len() as u64] {
            out.push(b' ');
            push_u64(out, number);
        }
        for part in [b"\r\n", item.value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }

    /// Frees the memory of copies that are not read any more.
    fn delete_left(&mut self) {
        for (conn, name) in std::mem::take(&mut self.left) {
            let conn = conn as usize;
            if self.conns[conn].state != State::Up || self.admit(conn).is_err() {
                continue;
            }
            let out = &mut self.conns[conn].out.bytes;
            for part in [b"delete ", &name[..], b"\r\n"] {
                out.extend_from_slice(part);
            }
            self.ask_own(conn, Kind::Line, Expect::Deleted, Who::Nobody);
        }
    }

    /// The end of an interval: what is hot now.
    pub(crate) fn end_interval(&mut self) {
        let Some(control) = self.control.as_mut().filter(|at| at.ends_at <= self.now) else {
            return;
        };
        let mut hot = control.decide(self.order.len(), self.now);
        if let Some(peers) = &mut self.peers {
            hot.retain(|(hash, ..)| peers.is_own(*hash));
            peers.hurry(self.now);
        }
        let is_hot = |hash| hot.iter().any(|(other, ..)| *other == hash);
        self.hot.retain(is_hot, &mut self.left);
        for (hash, key, wanted) in &hot {
            self.hot.want(*hash, key, *wanted, &mut self.left);
        }
        self.delete_left();
        self.conns.iter_mut().for_each(|conn| conn.asked_before = conn.asked_in_all());
        if let Some(kernel) = &mut self.kernel {
            kernel.decided(&hot);
        }
        self.fill_kernel();
    }

    /// Makes copies of keys that are hot from now on.
    pub(crate) fn control_of(settings: &crate::Settings, now: Nanos) -> Option<Control> {
        settings.replication.map(|replication| Control::new(replication, settings.seed, now))
    }
}

/// What a fill has brought.
pub(crate) struct Item<'a> {
    pub flags: u32,
    /// That a copy of it lives.
    pub seconds: i64,
    pub value: &'a [u8],
}

impl<'a> Item<'a> {
    /// `VA LENGTH fFLAGS tSECONDS`, and the value.
    pub fn parse(reply: &'a [u8]) -> Option<Item<'a>> {
        let end = memchr::memchr(b'\n', reply)?;
        let line = std::str::from_utf8(reply[..end].strip_prefix(b"VA ")?).ok()?;
        let mut words = line.split_ascii_whitespace();
        let value_bytes = parse_u64(words.next()?.as_bytes())? as usize;
        let flags = words.next()?.strip_prefix('f')?.parse().ok()?;
        let seconds: i64 = words.next()?.strip_prefix('t')?.parse().ok()?;
        // An item that is stale, or waits for somebody who won it, is no value to copy.
        if words.next().is_some() {
            return None;
        }
        let seconds =
            if seconds < 0 { COPY_SECONDS_MAX } else { (seconds - 1).min(COPY_SECONDS_MAX) };
        Some(Item { flags, seconds, value: reply.get(end + 1..end + 1 + value_bytes)? })
    }
}
