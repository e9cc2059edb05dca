//! What comes of an answer: leases come and go, shadows are told of writes, and in atomic mode let go first.

use super::super::placement::Writes;
use super::copies::Slots;
use super::{Epoch, Event, Events, Job, Round, What, each};

impl Events {
    /// A part is served.
    pub(super) fn answer(&mut self, epoch: &Epoch<'_>, job: &Job, client: usize) {
        let passes = self.grant(epoch, job, client);
        let waits = self.write(epoch, job.writes, client);
        match passes {
            _ if waits => {}
            // What a shadow has let go of is asked of the home.
            Some((home, asks)) => {
                let what = What::Part { client };
                let work = epoch.situation.costs.link + epoch.situation.costs.key;
                let job = Job { worker: home, what, work, keys: 1, asks, writes: 0 };
                self.post(job, epoch.situation.round_trip);
            }
            None => match (job.what, self.clients[client].at) {
                (What::Part { .. }, Some(_)) => {
                    self.at(self.now + epoch.situation.round_trip / 2.0, Event::Back { client });
                }
                _ => self.part_done(epoch, client),
            },
        }
    }

    /// Leases that the answer gives or ends; and the home that has to answer instead, with the key that it is asked for.
    fn grant(&mut self, epoch: &Epoch<'_>, job: &Job, client: usize) -> Option<(usize, Slots)> {
        let Epoch { situation, ways, .. } = epoch;
        let is_atomic = ways.writes == Writes::Atomic;
        let server = |worker: usize| worker / situation.workers;
        let mut passes = None;
        for slot in each(job.asks) {
            let Some(copied) = self.copies.get(slot) else { continue };
            let is_closed = is_atomic && copied.round != Round::Open;
            let home = copied.places[0];
            let one = &mut self.clients[client];
            if server(home) == server(job.worker) {
                let lasts = if is_closed { f64::NEG_INFINITY } else { ways.terms.lease };
                one.leases.set(slot, one.sent + lasts);
            } else if is_closed {
                passes = Some((home, 1 << slot));
            } else if self.done.is_counting() {
                self.done.of_key(&copied.name).answered += 1.0;
            }
        }
        passes
    }

    /// Writes of copied keys; true if the client has to wait for shadows.
    fn write(&mut self, epoch: &Epoch<'_>, slots: Slots, client: usize) -> bool {
        let is_atomic = epoch.ways.writes == Writes::Atomic;
        let mut waits = false;
        for slot in each(slots) {
            let Some(copied) = self.copies.get_mut(slot) else { continue };
            if is_atomic && !waits {
                copied.waiting.push(client);
                waits = true;
            } else {
                copied.dirty = true;
            }
            if copied.round == Round::Open {
                self.begin_round(epoch, slot);
            }
        }
        waits
    }

    fn begin_round(&mut self, epoch: &Epoch<'_>, slot: usize) {
        let now = self.now;
        let Some(copied) = self.copies.get_mut(slot) else { return };
        let invalidates = epoch.ways.writes == Writes::Atomic && !copied.waiting.is_empty();
        copied.round = if invalidates { Round::Invalidate } else { Round::Update };
        copied.waits_since = now;
        copied.dirty = false;
        copied.silent = copied.places.len() - 1;
        let (home, shadows) = (copied.places[0], copied.places[1..].to_vec());
        // Telling is work, too.
        let work = epoch.situation.costs.link / 2.0 * shadows.len() as f64;
        for shadow in shadows {
            self.say(epoch, shadow, What::Told { slot });
        }
        let what = What::Telling;
        self.post(Job { worker: home, what, work, keys: 0, asks: 0, writes: 0 }, 0.0);
    }

    pub(super) fn say(&mut self, epoch: &Epoch<'_>, worker: usize, what: What) {
        let work = epoch.situation.costs.link / 2.0;
        let job = Job { worker, what, work, keys: 0, asks: 0, writes: 0 };
        self.post(job, epoch.situation.round_trip / 2.0);
    }

    /// A shadow has answered.
    pub(super) fn heard(&mut self, epoch: &Epoch<'_>, slot: usize) {
        let Some(copied) = self.copies.get_mut(slot) else { return };
        copied.silent = copied.silent.saturating_sub(1);
        if copied.silent > 0 || copied.round == Round::Open {
            return;
        }
        if copied.round == Round::Invalidate {
            let waiting = std::mem::take(&mut copied.waiting);
            let since = copied.waits_since.max(self.done.from);
            if self.done.is_counting() {
                self.done.of_key(&copied.name).waits += self.now - since;
            }
            waiting.into_iter().for_each(|client| self.part_done(epoch, client));
            self.begin_round(epoch, slot);
        } else if copied.dirty || !copied.waiting.is_empty() {
            self.begin_round(epoch, slot);
        } else {
            copied.round = Round::Open;
        }
    }
}
