//! Turns of requests that come from no connection: other servers', those of them that were held, and datagrams.

use std::ops::Range;

use mbal_model::ServerId;
use mbal_wire::{Login, parse_datagram};

use crate::event::Actions;
use crate::forwarding::held::Patience;
use crate::forwarding::once::Recipient;
use crate::ids::{Client, Sender, Ticket, Ticketed};
use crate::observing::load::turn_work;
use crate::sessions::batch::Batch;
use crate::sessions::datagram::{Late, is_on_its_way, send_datagrams};
use crate::sessions::job::GROUP;
use crate::sessions::session::Session;
use crate::sessions::slice_wait::SliceWait;
use crate::sessions::wakes::Sleeper;
use crate::worker::Worker;

impl Worker {
    /// Executes requests that come from no connection. What they append to `out` is theirs to send.
    fn turn_of_nobody(
        &mut self,
        arrived_bytes: usize,
        out: &mut Vec<u8>,
        actions: &mut Actions,
        run: impl FnOnce(&mut Batch<'_>, &mut Vec<u8>),
    ) {
        let mut decoded = std::mem::take(&mut self.decoded);
        let nobody = self.sessions.nobody();
        let Actions { requests, list, .. } = actions;
        let (mut batch, keys_before) = self.batch(&nobody, out, requests, list);
        run(&mut batch, &mut decoded);
        let counters = batch.turn.on.counters;
        let keys = counters.keyed() - keys_before;
        let work = turn_work(keys, arrived_bytes as u64);
        counters.work.add(work);
        let (all, linked) = (batch.requests as u64, batch.turn.linked as u64);
        counters.turns.add(all);
        if linked > 0 {
            counters.work_linked.add(work * linked / all);
            counters.turns_followed.add(linked);
            counters.keys_followed.add(keys * linked / all);
        }
        self.decoded = decoded;
    }

    /// The same, and what they append is for the event's actions.
    fn answer_peers(
        &mut self,
        arrived_bytes: usize,
        actions: &mut Actions,
        run: impl FnOnce(&mut Batch<'_>, &mut Vec<u8>),
    ) {
        let mut out = std::mem::take(&mut actions.bytes);
        self.turn_of_nobody(arrived_bytes, &mut out, actions, run);
        actions.bytes = out;
    }

    pub(crate) fn asked(
        &mut self,
        from: ServerId,
        requests: &[Ticketed<'_>],
        actions: &mut Actions,
    ) {
        self.bound_held(actions);
        let bytes = requests.iter().map(|request| request.bytes.len()).sum();
        self.answer_peers(bytes, actions, |batch, decoded| {
            for requests in requests.chunks(GROUP) {
                batch.serve(from, requests, decoded);
            }
        });
    }

    /// Makes room for what a server asks, if much of what it asked is held.
    fn bound_held(&mut self, actions: &mut Actions) {
        while let Some((number, from)) = self.held.too_old() {
            self.wakes.forget(Sleeper::Held(number));
            self.run_held(number, Some(Patience::NONE), actions);
            self.go_on_behind(from, actions);
        }
    }

    /// A held request's moment has come.
    pub(crate) fn try_held(&mut self, number: u64, actions: &mut Actions) {
        let Some(from) = self.held.from(number) else { return };
        self.run_held(number, None, actions);
        if self.held.from(number).is_none() {
            self.go_on_behind(from, actions);
        }
    }

    fn go_on_behind(&mut self, from: ServerId, actions: &mut Actions) {
        while let Some(number) = self.held.next_free(from) {
            self.run_held(number, None, actions);
        }
    }

    fn run_held(&mut self, number: u64, patience: Option<Patience>, actions: &mut Actions) {
        let Some(waiting) = self.held.take(number) else { return };
        let now = self.here.now.instant();
        let again = waiting.again(number, patience, now);
        self.answer_peers(0, actions, |batch, decoded| {
            batch.again = Some(again);
            batch.serve(waiting.from, &[waiting.as_asked(now)], decoded);
        });
    }

    /// Who asked these over a link has gone: what is left of them is not executed, since it could come after newer requests.
    pub(crate) fn drop_held(
        &mut self,
        server: ServerId,
        tickets: &Range<Ticket>,
        actions: &mut Actions,
    ) {
        for number in self.held.drop_all(server, tickets) {
            self.wakes.forget(Sleeper::Held(number));
        }
        self.go_on_behind(server, actions);
    }

    /// Executes what a datagram asks for. Every request's reply is a message of its own.
    ///
    /// What is not there to its end is dropped: nobody could say which later datagram, of which
    /// sender, brings the rest.
    pub(crate) fn datagram(&mut self, from: Sender, bytes: &[u8], actions: &mut Actions) {
        self.counters().bytes_read.add(bytes.len() as u64);
        let Some((request_id, requests)) = parse_datagram(bytes) else { return };
        if self.shared.settings.login() != Login::NotAsked {
            return;
        }
        match is_on_its_way(&self.shared, &self.here, requests) {
            true => self.datagram_is_late(Late::new(from, bytes)),
            false => self.run_requests(from, request_id, requests, actions),
        }
    }

    fn run_requests(
        &mut self,
        from: Sender,
        request_id: u16,
        requests: &[u8],
        actions: &mut Actions,
    ) {
        let serial = self.once.next_serial();
        // A datagram whose slice begins to move only now does not wait for it.
        let (client, slice) = (Client::Once { serial }, SliceWait::OVER);
        let mut session = Session { client, slice, ..Session::default() };
        let (mut replies, mut ends) = (Vec::new(), Vec::new());
        self.turn_of_nobody(requests.len(), &mut replies, actions, |batch, decoded| {
            batch.run_datagram(&mut session, requests, decoded, &mut ends);
        });
        let mut start = 0;
        for end in ends {
            send_datagrams(self.counters(), from, request_id, &replies[start..end], actions);
            start = end;
        }
        if !session.slots.is_empty() {
            let recipient = Recipient::Sender { to: from, request_id };
            self.once.begun(serial, recipient, session.slots);
            self.release_once(serial, actions);
        }
    }

    fn datagram_is_late(&mut self, late: Late) {
        let serial = self.once.next_serial();
        if let Some(at) = self.late.wait(serial, late, self.here.now.instant()) {
            self.wakes.set(at, Sleeper::Datagram(serial));
        }
    }

    /// A datagram that waited for a slice is tried again.
    pub(crate) fn try_datagram(&mut self, serial: u64, actions: &mut Actions) {
        let Some(late) = self.late.take(serial) else { return };
        let Some((request_id, requests)) = parse_datagram(&late.bytes) else { return };
        match is_on_its_way(&self.shared, &self.here, requests) {
            true if !late.is_over(self.here.now.instant()) => self.datagram_is_late(late),
            _ => self.run_requests(late.from, request_id, requests, actions),
        }
    }
}
