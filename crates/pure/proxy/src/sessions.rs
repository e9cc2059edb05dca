//! Clients' sessions: who waits for what, who is not read, when replies leave, and how sessions end.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use mbal_model::Instant;

use crate::client::{Client, REQUESTS_BEFORE_FIRST};
use crate::event::{Action, ClientId};
use crate::ledger::Ledger;
use crate::merge::Merge;
use crate::replies::Slot;

/// When so many parts of what may be kept have come from upstreams, it is looked how much is.
const KEPT_PART: usize = 16;
/// So many clients may ask for several values at a time before their first has come.
const OPENING_MAX: usize = 6;
/// Replies wait so long for others that were asked in the same turn.
const HELD_MAX: Duration = Duration::from_micros(500);

#[derive(Default)]
pub(crate) struct Sessions {
    clients: Vec<Client>,
    free: Vec<u32>,
    /// Clients that were paused and may go on.
    going_on: Vec<u32>,
    /// Clients that ask for several values before their first has come.
    opening: usize,
    /// Clients with replies that wait for others of their turn, and until when.
    held: VecDeque<(Instant, u32)>,
    /// Clients that wait for promises to change.
    on_hold: BTreeSet<u32>,
    /// Bytes of upstreams since it was looked how much is kept for clients.
    came_unlooked: usize,
}

impl Sessions {
    pub fn open(&mut self, is_peer: bool) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.clients.push(Client::default());
            self.clients.len() as u32 - 1
        });
        let this = self.get_mut(id);
        (this.is_open, this.is_peer) = (true, is_peer);
        id
    }

    #[inline]
    pub fn get(&self, client: u32) -> &Client {
        &self.clients[client as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, client: u32) -> &mut Client {
        &mut self.clients[client as usize]
    }

    pub fn count(&self) -> usize {
        self.clients.iter().filter(|client| client.is_open).count()
    }

    /// A place for a reply, behind all others.
    #[inline]
    pub fn push(&mut self, client: u32, slot: Slot) -> u32 {
        self.get_mut(client).replies.push(slot)
    }

    pub fn say(&mut self, client: u32, reply: &[u8], ledger: &mut Ledger) {
        self.get_mut(client).replies.say(reply, &mut ledger.spare);
    }

    pub fn refuse(&mut self, client: u32, silent: bool, refusal: &[u8], ledger: &mut Ledger) {
        ledger.counters.errors += 1;
        if !silent {
            self.say(client, refusal, ledger);
        }
    }

    /// The reply to request `number` is what `push` appends.
    #[inline]
    pub fn answer(
        &mut self,
        client: u32,
        number: u32,
        ledger: &mut Ledger,
        push: impl FnOnce(&mut Vec<u8>),
    ) {
        self.get_mut(client).replies.answer(number, &mut ledger.spare, push);
        self.answered(client, ledger);
    }

    /// A multi-get that is not answered.
    #[inline]
    pub fn merge(&mut self, client: u32, number: u32) -> &mut Merge {
        match self.get_mut(client).replies.slot(number) {
            Slot::Merge(merge) => merge,
            _ => unreachable!("its parts are its own"),
        }
    }

    /// A multi-get that is put together, when `all` of its parts are there.
    pub fn merged(
        &mut self,
        client: u32,
        number: u32,
        all: impl FnOnce(&mut Merge) -> bool,
    ) -> Option<Box<Merge>> {
        if !all(self.merge(client, number)) {
            return None;
        }
        let slot = self.get_mut(client).replies.slot(number);
        match std::mem::replace(slot, Slot::Waiting) {
            Slot::Merge(merge) => Some(merge),
            _ => unreachable!("it was looked at"),
        }
    }

    /// One of all upstreams has answered, by an error if there is one. True if that was the last one.
    pub fn answered_somewhere(
        &mut self,
        client: u32,
        number: u32,
        error: &[u8],
        ledger: &mut Ledger,
    ) -> bool {
        let this = self.get_mut(client);
        let Slot::Everywhere { missing, error: first, done, silent } = this.replies.slot(number)
        else {
            unreachable!("its parts are its own")
        };
        *missing -= 1;
        if first.is_empty() {
            first.extend_from_slice(error);
        }
        if *missing > 0 {
            return false;
        }
        let reply = match silent {
            true => Vec::new(),
            false => std::mem::take(if first.is_empty() { done } else { first }),
        };
        this.flushing = false;
        this.replies.answer(number, &mut ledger.spare, |out| out.extend_from_slice(&reply));
        true
    }

    /// A client has got a reply.
    #[inline]
    pub fn answered(&mut self, client: u32, ledger: &mut Ledger) {
        let this = self.get_mut(client);
        if this.opens && (this.sizes.are_known() || this.replies.is_idle()) {
            self.has_opened(client);
        }
        let this = self.get_mut(client);
        if this.gone {
            return self.free_if_done(client, ledger);
        }
        if this.has_ended() {
            return self.tell_ended(client, ledger);
        }
        if this.paused {
            self.let_go_on(client, ledger);
        }
        self.tell(client, ledger);
    }

    /// There may be output for a client.
    #[inline]
    pub fn tell(&mut self, client: u32, ledger: &mut Ledger) {
        let this = self.get_mut(client);
        let waits = !this.replies.is_idle();
        if waits != std::mem::replace(&mut this.is_waiting, waits) {
            ledger.resting.waits(waits);
        }
        let out = &mut this.replies.out;
        let free = out.unsent().len();
        if !out.told && free > 0 {
            out.told = true;
            ledger.actions.push(Action::ToClient(ClientId(client)));
        }
        if free == out.len() {
            this.held_until = None;
        } else if this.held_until.is_none() {
            let until = ledger.now + HELD_MAX;
            this.held_until = Some(until);
            if !std::mem::replace(&mut this.is_listed, true) {
                self.held.push_back((until, client));
            }
        }
    }

    /// Replies that wait for others of their turn leave without them when they have waited long enough.
    #[inline]
    pub fn release_held(&mut self, ledger: &mut Ledger) {
        if !self.held.is_empty() {
            self.release_late(ledger);
        }
    }

    fn release_late(&mut self, ledger: &mut Ledger) {
        while let Some((until, client)) = self.held.front().copied() {
            let this = self.get_mut(client);
            match this.held_until {
                // Others are held than were when it was listed.
                Some(later) if until < later => self.held.push_back((later, client)),
                Some(_) if ledger.now < until => return,
                Some(_) => {
                    this.replies.out.free();
                    this.is_listed = false;
                    self.tell(client, ledger);
                }
                None => this.is_listed = false,
            }
            self.held.pop_front();
        }
    }

    /// When [`Sessions::release_held`] is due.
    pub fn next_release(&self) -> Option<Instant> {
        self.held.front().map(|(until, _)| *until)
    }

    /// The client's socket has taken `count` bytes.
    #[inline]
    pub fn took(&mut self, client: u32, count: usize, ledger: &mut Ledger) {
        let this = self.get_mut(client);
        let out = &mut this.replies.out;
        out.sent(count, &mut ledger.spare);
        ledger.counters.bytes_written += count as u64;
        out.told = !out.unsent().is_empty();
        if out.len() > 0 {
            return;
        }
        if this.has_ended() {
            ledger.actions.push(Action::Close(ClientId(client)));
        } else if this.paused {
            self.let_go_on(client, ledger);
        }
    }

    /// A client is not read until it has got and taken some of its replies.
    pub fn pause(&mut self, client: u32, ledger: &mut Ledger) {
        let this = self.get_mut(client);
        (this.paused, this.input.need) = (true, 0);
        ledger.actions.push(Action::Pause(ClientId(client)));
    }

    /// A client is not read until promises have changed, or the kernel has forgotten a key.
    pub fn hold(&mut self, client: u32, ledger: &mut Ledger) {
        self.pause(client, ledger);
        self.on_hold.insert(client);
    }

    pub fn holds_any(&self) -> bool {
        !self.on_hold.is_empty()
    }

    pub fn let_all_go_on(&mut self, ledger: &Ledger) {
        for client in std::mem::take(&mut self.on_hold) {
            self.let_go_on(client, ledger);
        }
    }

    /// A client that was paused may go on at the end of the event.
    #[inline]
    fn let_go_on(&mut self, client: u32, ledger: &Ledger) {
        let limits = ledger.settings.limits;
        let this = self.get_mut(client);
        let has_room = if this.rest.is_some() {
            this.replies.has_taken_window()
        } else if this.waits_for_all {
            this.replies.is_idle() && this.replies.out.len() == 0
        } else {
            !this.flushing
                && this.replies.waiting() <= limits.client_requests_max / 2
                && this.expected_bytes() <= limits.client_output_bytes_max / 2
        };
        if this.paused && has_room && this.is_open && !this.may_go_on {
            this.may_go_on = true;
            self.going_on.push(client);
        }
    }

    /// Some client may go on, or has replies that wait for others.
    #[inline]
    pub fn has_any_to_do(&self) -> bool {
        !self.going_on.is_empty() || !self.held.is_empty()
    }

    /// One that may go on, and is no more in the list.
    #[inline]
    pub fn next_going_on(&mut self) -> Option<u32> {
        let client = self.going_on.pop()?;
        self.get_mut(client).may_go_on = false;
        Some(client)
    }

    /// Whether it has asked for as much as may be on its way.
    #[inline]
    pub fn has_asked_enough(&mut self, client: u32, ledger: &Ledger) -> bool {
        let limits = ledger.settings.limits;
        let bytes_max = limits.client_output_bytes_max;
        let this = self.get(client);
        let waiting = this.replies.waiting();
        // A peer's requests come from many clients.
        if this.is_peer {
            return limits.conn_requests_max <= waiting || bytes_max <= this.replies.out.len();
        }
        let requests_max = match this.sizes.are_known() {
            true => limits.client_requests_max,
            false => self.requests_before_first(client, limits.client_requests_max),
        };
        requests_max <= waiting || bytes_max <= self.get(client).expected_bytes()
    }

    /// How many requests of a client may be under way whose replies may have any length.
    fn requests_before_first(&mut self, client: u32, requests_max: usize) -> usize {
        if self.get(client).replies.is_idle() || !self.may_open(client) {
            return 1;
        }
        requests_max.min(REQUESTS_BEFORE_FIRST)
    }

    /// True for the few that may ask for several values before one has come.
    fn may_open(&mut self, client: u32) -> bool {
        let this = &mut self.clients[client as usize];
        if !this.opens && self.opening < OPENING_MAX {
            this.opens = true;
            self.opening += 1;
        }
        this.opens
    }

    /// A client has a reply, or waits for none.
    #[inline]
    fn has_opened(&mut self, client: u32) {
        if std::mem::take(&mut self.get_mut(client).opens) {
            self.opening -= 1;
        }
    }

    /// For so many keys a client's `get` may ask at a time: their values are kept until all have come.
    pub fn window(&mut self, client: u32, ledger: &Ledger) -> usize {
        let this = self.get(client);
        match this.sizes.window(ledger.settings.limits.client_output_bytes_max) {
            // A peer's requests come from many clients, whose windows are its own.
            _ if this.is_peer => usize::MAX,
            Some(window) => window,
            None if self.may_open(client) => REQUESTS_BEFORE_FIRST,
            None => 1,
        }
    }

    pub fn half_closed(&mut self, client: u32, ledger: &mut Ledger) {
        match self.get(client).paused {
            true => self.get_mut(client).half_closed = true,
            false => self.end(client, ledger),
        }
    }

    /// The client sends no more.
    pub fn end(&mut self, client: u32, ledger: &mut Ledger) {
        let this = self.get_mut(client);
        if !this.is_open || this.ending {
            return;
        }
        this.ending = true;
        this.input.bytes.clear();
        this.drop_refusal();
        if this.replies.is_idle() {
            self.tell_ended(client, ledger);
        } else {
            this.replies.push(Slot::End);
        }
    }

    /// All replies before a client's end are there.
    fn tell_ended(&mut self, client: u32, ledger: &mut Ledger) {
        let out = &mut self.get_mut(client).replies.out;
        out.free();
        match out.len() {
            0 => ledger.actions.push(Action::Close(ClientId(client))),
            _ => self.tell(client, ledger),
        }
    }

    pub fn closed(&mut self, client: u32, ledger: &mut Ledger) {
        let this = self.get_mut(client);
        this.gone = true;
        this.is_open = false;
        this.drop_refusal();
        this.go_deaf(&mut ledger.spare);
        self.has_opened(client);
        self.free_if_done(client, ledger);
    }

    /// Looks, now and then, how much is kept for clients that do not take it. If that is too much, who has most of it goes.
    #[inline]
    pub fn bound_kept(&mut self, came: usize, ledger: &mut Ledger) {
        let bytes_max = ledger.settings.limits.kept_bytes_max;
        self.came_unlooked += came;
        if bytes_max / KEPT_PART <= self.came_unlooked {
            self.came_unlooked = 0;
            self.cut_off(bytes_max, ledger);
        }
    }

    #[cold]
    fn cut_off(&mut self, bytes_max: usize, ledger: &mut Ledger) {
        let kept = |(client, this): (usize, &Client)| (this.replies.kept_bytes(), client as u32);
        let mut kept: Vec<_> = self.clients.iter().enumerate().map(kept).collect();
        let mut sum: usize = kept.iter().map(|(bytes, _)| bytes).sum();
        if sum <= bytes_max {
            return;
        }
        kept.sort_unstable();
        while let Some((bytes, client)) = kept.pop().filter(|_| bytes_max < sum) {
            sum -= bytes;
            ledger.counters.clients_cut_off += 1;
            let this = self.get_mut(client);
            this.ending = true;
            this.input.bytes.clear();
            this.go_deaf(&mut ledger.spare);
            ledger.actions.push(Action::CutOff(ClientId(client)));
        }
    }

    /// A client that is gone goes for good when no reply to it is on its way.
    fn free_if_done(&mut self, client: u32, ledger: &mut Ledger) {
        let this = self.get_mut(client);
        if this.gone && (this.replies.is_idle() || this.has_ended()) {
            ledger.spare.give(std::mem::take(&mut this.input.bytes));
            if this.is_waiting {
                ledger.resting.waits(false);
            }
            // It stays in the list that it is in.
            let is_listed = this.is_listed;
            *this = Client { is_listed, ..Client::default() };
            self.free.push(client);
        }
    }
}
