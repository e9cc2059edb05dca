//! From an upstream's bytes to clients' replies; or from its failure to what they hear instead.

use mbal_model::{Instant, Key};
use mbal_wire::{Framed, ReplyKind, base64_encode, frame};

use crate::backend::Backend;
use crate::expect::{Echo, Expect};
use crate::hot::Reader;
use crate::inflight::{InFlight, Who};
use crate::merge::{Found, Merge};
use crate::naming;
use crate::proxy::Proxy;
use crate::replies::Slot;
use crate::upstreams::End;

const TIMED_OUT: &[u8] = b"SERVER_ERROR upstream timed out\r\n";

impl Proxy {
    pub(crate) fn replied(&mut self, conn: usize, bytes: &[u8]) {
        if !self.backend.upstreams.conn(conn).is_up() {
            return;
        }
        self.take_input(conn, bytes);
        if self.backend.upstreams.is_owing() {
            self.backend.upstreams.settle(conn, self.ledger.now);
        }
    }

    fn take_input(&mut self, conn: usize, bytes: &[u8]) {
        self.sessions.bound_kept(bytes.len(), &mut self.ledger);
        let this = self.backend.upstreams.conn_mut(conn);
        this.heard(self.ledger.now);
        if this.input.bytes.is_empty() {
            let used = self.take_replies(conn, bytes);
            if used < bytes.len() {
                let mut input = self.ledger.spare.take();
                input.extend_from_slice(&bytes[used..]);
                let this = self.backend.upstreams.conn_mut(conn);
                this.input.bytes = input;
                this.heard_in_part();
            }
            return;
        }
        this.heard_in_part();
        let input = &mut this.input;
        input.bytes.extend_from_slice(bytes);
        if input.bytes.len() < input.need {
            return;
        }
        let mut input = std::mem::take(&mut input.bytes);
        let used = self.take_replies(conn, &input);
        if used == input.len() {
            self.ledger.spare.give(input);
        } else {
            input.drain(..used);
            self.backend.upstreams.conn_mut(conn).input.bytes = input;
        }
    }

    /// Gives whole replies to those who wait for them; how many bytes are done with.
    fn take_replies(&mut self, conn: usize, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            match self.frame_next(conn, &bytes[at..]) {
                Framed::Whole(length) => {
                    let reply = &bytes[at..at + length];
                    self.take_reply(conn, reply);
                    if !self.backend.upstreams.conn(conn).is_up() {
                        return bytes.len();
                    }
                    at += length;
                }
                Framed::NeedMore { bytes: need, scanned } => {
                    let input = &mut self.backend.upstreams.conn_mut(conn).input;
                    (input.need, input.scanned) = (need, scanned);
                    break;
                }
                Framed::Broken => return self.distrust(conn, bytes),
            }
        }
        at
    }

    /// The next whole reply.
    #[inline]
    fn take_reply(&mut self, conn: usize, reply: &[u8]) {
        let (backend, ledger) = (&mut self.backend, &mut self.ledger);
        if backend.switching.notes_writes() {
            if let Some((key, base64)) = backend.upstreams.conn(conn).next_written() {
                backend.switching.wrote(key, base64);
            }
        }
        let this = backend.upstreams.conn_mut(conn);
        this.input.scanned = 0;
        this.has_answered = true;
        let asked = this.answered(&mut self.written);
        let asked = asked.expect("it was looked at");
        let ask = (conn as u32, this.done() - 1);
        let upstream = this.upstream;
        this.doubts.answered(ledger.now, ledger.settings.doubt);
        if let Some(key) = Key::new(&self.written).filter(|_| !backend.hot.table.is_empty()) {
            backend.hot.end_copies(key.hash(), key.bytes(), &mut backend.upstreams, ledger);
        }
        self.written.clear();
        if asked.writes && backend.hot.table.awaits_writes() {
            self.wrote(ask, reply);
        }
        let (backend, ledger) = (&mut self.backend, &mut self.ledger);
        let of_upstream = backend.upstreams.get_mut(upstream);
        of_upstream.failures = 0;
        let serves = of_upstream.serves();
        let took_ns = ledger.now.as_nanos().saturating_sub(asked.at.as_nanos());
        of_upstream.latency.record(took_ns);
        ledger.resting.answered(took_ns, asked.keys());
        ledger.counters.replies += 1;
        self.answer(conn, &asked, reply);
        if !serves {
            self.backend.answered_late(conn, &mut self.ledger);
        }
    }

    /// Where the next reply ends. It is one to what was asked, or broken.
    #[inline]
    fn frame_next(&mut self, conn: usize, input: &[u8]) -> Framed {
        let this = self.backend.upstreams.conn(conn);
        let Some(next) = this.asked.front() else { return Framed::Broken };
        if let Some(length) = next.expect.usual_bytes(input) {
            return Framed::Whole(length);
        }
        let (expect, renamed) = (next.expect, next.renamed);
        match (next.who, expect) {
            (Who::Part { client, number, part, .. }, Expect::Values { cas }) if !renamed => {
                self.sessions.merge(client, number).read(part, input, cas)
            }
            (who, _) => match frame(next.kind, input, this.input.scanned) {
                Framed::Whole(length) if !self.is_reply_to(who, expect, &input[..length]) => {
                    Framed::Broken
                }
                framed => framed,
            },
        }
    }

    /// What an upstream says, a whole reply, is one to what it was asked.
    fn is_reply_to(&mut self, who: Who, expect: Expect, reply: &[u8]) -> bool {
        match (who, expect) {
            (Who::Part { client, number, part, .. }, Expect::Values { cas }) => {
                let mut renamed = self.ledger.spare.take();
                naming::push_values_renamed(&mut renamed, reply);
                let read = self.sessions.merge(client, number).read(part, &renamed, cas);
                let is_whole = read == Framed::Whole(renamed.len());
                self.ledger.spare.give(renamed);
                is_whole
            }
            _ => expect.takes(reply),
        }
    }

    /// An upstream says what nobody asked for, or what is no reply: whose the next reply would be is not known any more.
    #[cold]
    fn distrust(&mut self, conn: usize, bytes: &[u8]) -> usize {
        self.backend.upstreams.give_up(conn, &mut self.ledger);
        let since = Some(self.ledger.now);
        self.fail_since(conn, since, b"SERVER_ERROR upstream sent no reply\r\n");
        bytes.len()
    }

    #[inline]
    fn answer(&mut self, conn: usize, asked: &InFlight, reply: &[u8]) {
        let (backend, ledger) = (&mut self.backend, &mut self.ledger);
        match asked.who {
            Who::Client { client, number } => {
                let found = asked.found(reply);
                match found {
                    Some(true) => ledger.counters.get_hits += 1,
                    Some(false) => ledger.counters.get_misses += 1,
                    None => {}
                }
                if let (Some(sampling), Some(found)) = (&mut ledger.sampling, found) {
                    if asked.kind != ReplyKind::Binary {
                        sampling.count(1);
                        let slot = self.sessions.get_mut(client).replies.slot(number);
                        if let Slot::Sampled(read) = *slot {
                            sampling.answered(read, asked.kind, reply, found, ledger.now);
                        }
                    }
                }
                self.sessions.get_mut(client).sizes.expect(reply.len());
                let push = |out: &mut Vec<u8>| asked.push_reply(out, reply);
                self.sessions.answer(client, number, ledger, push);
            }
            Who::Part { client, number, part, .. } => {
                if backend.switching.touches_any() {
                    backend.switching.touched((client, number, part), false);
                }
                let spare = &mut ledger.spare;
                let merge = self.sessions.merged(client, number, |merge| {
                    if asked.renamed {
                        let mut renamed = spare.take();
                        naming::push_values_renamed(&mut renamed, reply);
                        let all = merge.came(part, &renamed, spare);
                        spare.give(renamed);
                        return all;
                    }
                    merge.came(part, reply, spare)
                });
                if let Some(merge) = merge {
                    self.answer_merged(client, number, *merge);
                }
            }
            Who::Everywhere { client, number } => {
                let mut error = Vec::new();
                match asked.kind {
                    ReplyKind::Binary => {
                        // Fills go over other connections: one may have read what was there before.
                        backend.end_all_copies(ledger);
                        asked.push_reply(&mut error, reply);
                    }
                    _ if reply == b"OK\r\n" => {}
                    _ => error.extend_from_slice(reply),
                }
                self.answered_somewhere(client, number, &error);
            }
            Who::Nobody => {}
            Who::Fill { hash, epoch } => backend.filled(hash, epoch, reply, ledger),
            Who::KernelFill { hash, number } => {
                backend.kernel_filled(hash, number, reply, ledger);
            }
            Who::Copy { hash, epoch, at } => {
                if reply == b"STORED\r\n" {
                    backend.hot.table.stored(hash, epoch, at);
                }
            }
            Who::Peer { place, ask } => {
                let (place, now) = (usize::from(place), ledger.now);
                if backend.peering.answered(place, ask, asked.at, now, reply) {
                    backend.end_all_copies(ledger);
                }
            }
            Who::Owed => {
                ledger.counters.deleted_unsure += 1;
                backend.upstreams.paid(conn);
            }
            Who::Cluster => {
                let upstream = backend.upstreams.conn(conn).upstream;
                backend.cluster_answered(upstream, reply, ledger);
            }
            Who::Return => {
                let upstream = backend.upstreams.conn(conn).upstream;
                backend.return_answered(upstream, reply, ledger);
            }
            Who::Fence => {
                let done =
                    reply == b"OK\r\n" || reply.first() == Some(&0x81) && reply[6..8] == [0; 2];
                match done {
                    true => backend.flushed(conn, ledger),
                    false => drop(self.distrust(conn, &[])),
                }
            }
        }
    }

    /// All parts of what a `get` asks for at a time are there.
    fn answer_merged(&mut self, client: u32, number: u32, merge: Merge) {
        let mut values = self.ledger.spare.take();
        let is_last = self.sessions.get(client).rest.is_none();
        let (now, requests) = (self.ledger.now, self.ledger.counters.requests);
        if let Some(sampling) = &mut self.ledger.sampling {
            for (key, found) in merge.found() {
                sampling.count(1);
                sampling.answered_one_of(key, found, now, requests);
            }
        }
        let found = merge.finish(&mut values, &mut self.ledger.spare, is_last);
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
        let this = self.sessions.get_mut(client);
        match found {
            Some(Found { hits, misses, longest }) => {
                self.ledger.counters.get_hits += hits;
                self.ledger.counters.get_misses += misses;
                if hits + misses > 0 {
                    this.sizes.expect(values.len());
                    this.sizes.found((hits + misses) as usize, longest);
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
            Some(_) => this.replies.answer_in_part(push),
            None => this.replies.answer(number, &mut self.ledger.spare, push),
        }
        self.ledger.spare.give(values);
        self.sessions.answered(client, &mut self.ledger);
    }

    fn answered_somewhere(&mut self, client: u32, number: u32, error: &[u8]) {
        if self.sessions.answered_somewhere(client, number, error, &mut self.ledger) {
            // Between the first upstream's flush and the last one's a fill may have read what was there before.
            self.backend.end_all_copies(&mut self.ledger);
            self.sessions.answered(client, &mut self.ledger);
        }
    }

    /// The reply to a write, which reads may wait for.
    fn wrote(&mut self, ask: (u32, u64), reply: &[u8]) {
        let wrote = self.backend.wrote(ask, reply, &mut self.ledger);
        let Some((through, stored)) = wrote else { return };
        let kept = Some(&through.kept).filter(|_| stored);
        for Reader { client, number, shape } in through.readers {
            let push = |out: &mut Vec<u8>| shape.push(out, &through.key, kept);
            self.sessions.answer(client, number, &mut self.ledger, push);
        }
    }

    pub(crate) fn connected(&mut self, conn: usize) {
        self.backend.connected(conn, &mut self.ledger);
        if let End::Promises(place) = self.backend.upstreams.end(conn) {
            self.backend.peering.connected(place, self.ledger.now);
            self.tell_peers();
        }
        self.backend.upstreams.tell(conn);
    }

    /// A connection is gone by itself.
    pub(crate) fn lost(&mut self, conn: usize) {
        if !self.backend.keeps(conn, &mut self.ledger) {
            self.fail(conn, b"SERVER_ERROR upstream connection lost\r\n");
        }
    }

    pub(crate) fn time_out(&mut self, conn: usize) {
        self.ledger.counters.upstream_timeouts += 1;
        let this = self.backend.upstreams.conn(conn);
        let (upstream, is_up) = (this.upstream, this.is_up());
        let asked_at = this.asked.front().filter(|_| is_up).map(|asked| asked.at);
        self.backend.upstreams.give_up(conn, &mut self.ledger);
        self.fail(conn, TIMED_OUT);
        let is_server = self.backend.upstreams.end_of(upstream) == End::Server;
        if let Some(at) = asked_at.filter(|_| is_server) {
            self.backend.refresh(upstream, at, &mut self.ledger);
        }
    }

    /// Gives a connection up: whoever waits for it hears `error`.
    fn fail(&mut self, conn: usize, error: &'static [u8]) {
        let since = self.backend.upstreams.failing_since(conn, self.ledger.now);
        self.fail_since(conn, since, error);
    }

    /// Likewise; since when the upstream has not done what was wanted, if it is to blame.
    fn fail_since(&mut self, conn: usize, since: Option<Instant>, error: &'static [u8]) {
        let waiting = self.backend.fail(conn, since, &mut self.ledger);
        for Reader { client, number, .. } in self.backend.hot.table.lost(conn as u32) {
            self.ledger.counters.errors += 1;
            let push = |out: &mut Vec<u8>| out.extend_from_slice(error);
            self.sessions.answer(client, number, &mut self.ledger, push);
        }
        for asked in waiting {
            self.ledger.resting.lost(asked.keys());
            self.lose(asked, error);
        }
        self.backend.failed(conn, &mut self.ledger);
    }

    /// There is no reply, and there will be none.
    fn lose(&mut self, asked: InFlight, error: &'static [u8]) {
        let ledger = &mut self.ledger;
        match asked.who {
            Who::Client { client, number } => {
                ledger.counters.errors += 1;
                let push = |out: &mut Vec<u8>| asked.push_error(out, error);
                self.sessions.answer(client, number, ledger, push);
            }
            Who::Part { client, number, part, .. } => {
                if self.backend.switching.touches_any() {
                    self.backend.switching.touched((client, number, part), true);
                }
                ledger.counters.errors += 1;
                let merge = self.sessions.merged(client, number, |merge| merge.lost(error));
                if let Some(merge) = merge {
                    self.answer_merged(client, number, *merge);
                }
            }
            Who::Everywhere { client, number } => {
                ledger.counters.errors += 1;
                let mut told = Vec::new();
                asked.push_error(&mut told, error);
                self.answered_somewhere(client, number, &told);
            }
            Who::Fill { hash, epoch } => self.backend.hot.table.unfilled(hash, epoch),
            Who::KernelFill { hash, number } => {
                self.backend.kernel_filled(hash, number, b"", ledger);
            }
            Who::Nobody | Who::Copy { .. } | Who::Fence | Who::Owed | Who::Peer { .. } => {}
            Who::Cluster | Who::Return => {}
        }
    }

    /// Leases that are over, and what peers are asked for in turn.
    pub(crate) fn tell_peers(&mut self) {
        let now = self.ledger.now;
        if self.backend.peering.peers().is_none() {
            return;
        }
        while let Some(member) = self.backend.peering.expired(now) {
            self.take_back(member);
        }
        if self.backend.peering.serves(now) {
            self.sessions.let_all_go_on(&self.ledger);
        }
        let Backend { peering, hot, upstreams, .. } = &mut self.backend;
        peering.beat(&hot.table, upstreams, now);
    }

    /// A coordinator was silent for a lease: its keys are asked for at their homes from now on.
    fn take_back(&mut self, member: usize) {
        self.ledger.counters.leases_ended += 1;
        let upstream = self.backend.peering.passed_to(member, &self.backend.upstreams);
        for conn in self.backend.upstreams.conns_of(upstream) {
            if !self.backend.upstreams.conn(conn).is_idle() {
                self.ledger.hang_up(conn);
                self.fail(conn, TIMED_OUT);
            }
            // What was passed on without a known outcome is deleted where the key is asked for.
            for (key, base64) in self.backend.upstreams.conn_mut(conn).doubts.take() {
                let mut spelled = Vec::new();
                match base64 {
                    true => base64_encode(&key, &mut spelled),
                    false => spelled.extend_from_slice(&key),
                }
                self.delete_at_home(&spelled, base64);
            }
        }
        self.sessions.let_all_go_on(&self.ledger);
    }

    fn delete_at_home(&mut self, key: &[u8], base64: bool) {
        let Backend { placing, upstreams, .. } = &mut self.backend;
        let route = placing.route(key, base64, upstreams, &mut self.ledger);
        let Ok((conn, None)) = route else { return };
        let end: &[u8] = if base64 { b" b\r\n" } else { b"\r\n" };
        for part in [b"md ", key, end] {
            upstreams.out(conn).extend_from_slice(part);
        }
        let expect = Expect::MetaDeleted(Echo::default());
        let asked = InFlight::own(Who::Nobody, ReplyKind::Meta, expect, self.ledger.now);
        upstreams.ask(conn, InFlight { writes: true, ..asked }, Some((key, base64)));
    }
}
