//! When output leaves: what upstreams are asked gathers for a moment, and replies wait for the others of their turn.

use crate::Nanos;
use crate::proxy::{Action, ClientId, ConnId, Proxy};
use crate::upstream::State;

/// Replies wait so long for others that were asked in the same turn.
const HELD_NS_MAX: Nanos = 500_000;

impl Proxy {
    #[inline]
    pub(crate) fn tell_client(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        let waits = !this.is_idle();
        if waits != std::mem::replace(&mut this.is_waiting, waits) {
            self.resting.waits(waits);
        }
        let free = this.out.unsent().len();
        if !this.out.told && free > 0 {
            this.out.told = true;
            self.actions.push(Action::ToClient(ClientId(client)));
        }
        if free == this.out.len() {
            this.held_until = None;
        } else if this.held_until.is_none() {
            let until = self.now + HELD_NS_MAX;
            this.held_until = Some(until);
            if !std::mem::replace(&mut this.is_listed, true) {
                self.held.push_back((until, client));
            }
        }
    }

    /// There is something for an upstream: it leaves when the event loop has handled what has arrived.
    #[inline]
    pub(crate) fn tell_conn(&mut self, conn: usize) {
        let this = &mut self.conns[conn];
        if !this.is_gathering && this.state == State::Up {
            this.is_gathering = true;
            self.gathering.push(conn as u32);
        }
    }

    #[inline]
    pub(crate) fn send_gathered(&mut self) {
        let mut at = 0;
        while at < self.gathering.len() {
            let conn = self.gathering[at];
            let this = &mut self.conns[conn as usize];
            let bytes = this.out.len();
            this.gathers_until = match this.state == State::Up && !this.out.told && bytes > 0 {
                true => this.gathering.waits_until(this.asked.len(), bytes, self.now),
                false => None,
            };
            if this.gathers_until.is_some() {
                at += 1;
                continue;
            }
            self.gathering.swap_remove(at);
            this.is_gathering = false;
            if this.state == State::Up && !this.out.told && bytes > 0 {
                this.out.told = true;
                self.actions.push(Action::ToUpstream(ConnId(conn)));
            }
        }
    }

    /// Replies that wait for others of their turn leave without them when they have waited long enough.
    pub(crate) fn release_held(&mut self) {
        while let Some((until, client)) = self.held.front().copied() {
            let this = &mut self.clients[client as usize];
            match this.held_until {
                // Others are held than were when it was listed.
                Some(later) if until < later => self.held.push_back((later, client)),
                Some(_) if self.now < until => return,
                Some(_) => {
                    this.out.free();
                    this.is_listed = false;
                    self.tell_client(client);
                }
                None => this.is_listed = false,
            }
            self.held.pop_front();
        }
    }
}
