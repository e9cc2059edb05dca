//! The generator's receiving half: replies are read, counted, and followed by what they ask for.

use std::time::Instant;

use mbal_model::Hint;

use crate::connection::Received;
use crate::generator::{DRAIN, Generator, Phase, READ_BYTES};
use crate::reader::{Alike, Reader, Then};
use crate::replies::{Answer, Awaited, scan};
use crate::request::{Item, Protocol, Write};
use crate::udp::LOST;

/// A request that every worker turns away is a fault of the server.
const TURNED_AWAY_MAX: u8 = 20;

impl Generator<'_> {
    pub fn read(&mut self, index: usize) -> Result<(), String> {
        let now = self.now_ns();
        self.heard_ns = now;
        self.tick(now);
        loop {
            let connection = &mut self.connections[index];
            let datagrams = connection.is_datagrams();
            match connection.receive(&mut self.input, READ_BYTES, &self.epoll)? {
                None => break,
                Some(Received { filled, lost }) => self.answer(index, filled, lost, now)?,
            }
            // A stream that has more is reported again; that it has not costs a system call to learn.
            if !datagrams {
                break;
            }
        }
        self.act_after(index, now);
        self.refill_closed(index, now);
        self.flush()
    }

    /// Reads what stands in the first `filled` bytes of the input, after so many replies that are lost.
    fn answer(&mut self, index: usize, filled: usize, lost: usize, now: u64) -> Result<(), String> {
        let mut reader = Reader {
            now,
            counting: self.phase == Phase::Measured,
            window: self.start_ns..self.end_ns,
            look_aside: self.load.look_aside,
            store_ns: self.load.store.as_nanos() as u64,
            worker: index % self.width,
            client: index / self.width,
            leasing: self.leasing.as_mut(),
            batches: &mut self.batches,
            wording: &self.load.wording,
            tally: &mut self.tally,
            part: self.timeline.is_some().then_some(&mut self.part),
            after: &mut self.after,
            answered: 0,
            missed: false,
            alike: Alike::default(),
        };
        let connection = &mut self.connections[index];
        for reply in connection.awaited.drain(..lost) {
            reader.told(reply, Answer::Lost, None);
        }
        let input = &self.input[..filled];
        let (wording, lengths) = (&self.load.wording, self.load.lengths);
        let tell = |reply, outcome, word| reader.told(reply, outcome, word);
        let taken = scan(wording, lengths, input, &mut connection.awaited, tell)?;
        reader.record();
        connection.partial.extend_from_slice(&input[taken..]);
        connection.in_flight -= reader.answered;
        self.in_flight -= reader.answered;
        Ok(())
    }

    /// Datagrams that got lost would keep their places for ever.
    pub fn give_up_late(&mut self, now: u64) {
        if now < self.look_for_late_ns || !self.connections[0].is_datagrams() {
            return;
        }
        self.look_for_late_ns = now + LOST.as_nanos() as u64 / 10;
        for index in 0..self.connections.len() {
            let lost = self.connections[index].late(Instant::now());
            if lost > 0 {
                self.answer(index, 0, lost, now).expect("no bytes are no reply");
                self.refill_closed(index, now);
            }
        }
    }

    fn refill_closed(&mut self, index: usize, now: u64) {
        if self.schedule.is_none() {
            self.refill(self.connections[index].client, now);
        }
    }

    /// Does what replies of this connection asked for.
    fn act_after(&mut self, index: usize, now: u64) {
        let mut after = std::mem::take(&mut self.after);
        for (reply, then) in after.drain(..) {
            match then {
                Then::Heed(hint) => self.heed(reply, index % self.width, hint),
                Then::AskAgain => self.ask_again(reply),
                Then::Counter => {
                    let (wording, connection) = (&self.load.wording, &mut self.connections[index]);
                    connection.add_counter(wording, reply.key, reply.ttl, now);
                    self.asked(index);
                }
                Then::Set { after_ns } => {
                    let Awaited { key, value_bytes, ttl, .. } = reply;
                    self.reserve(index);
                    self.later.push_back((now + after_ns, index, Item { key, value_bytes, ttl }));
                }
            }
        }
        self.after = after;
        self.set_later(now);
    }

    /// Sets what the store has been asked for long enough.
    pub fn set_later(&mut self, now: u64) {
        while let Some(&(due, index, item)) = self.later.front().filter(|(due, ..)| *due <= now) {
            self.later.pop_front();
            let vbucket = self.vbucket(item.key, false);
            let (wording, connection) = (&self.load.wording, &mut self.connections[index]);
            connection.write(wording, Write::Set, item, due, vbucket);
            self.touched.push(index);
        }
    }

    /// Turned away by a worker that no longer has the key: on to the one that has.
    fn ask_again(&mut self, reply: Awaited) {
        if reply.turned_away == TURNED_AWAY_MAX {
            self.tally.blame(format!("key {} was turned away {TURNED_AWAY_MAX} times", reply.key));
            return;
        }
        let vbucket = self.vbucket(reply.key, reply.is_counter());
        let Some(routes) = &self.routes else {
            self.tally.blame(format!("key {}: status 7 for an ordinary client", reply.key));
            return;
        };
        let worker = routes.worker(self.load.wording.hash_of(reply.key, reply.is_counter()));
        // Any client will do: the request has lost its place in the order anyway.
        let index = worker;
        self.connections[index].ask_again(&self.load.wording, reply, vbucket);
        match reply.last {
            true => self.asked(index),
            false => self.touched.push(index),
        }
    }

    /// What binary says about a key's cachelet: 0 is an ordinary client.
    pub fn vbucket(&self, key: u64, counter: bool) -> u16 {
        let wording = &self.load.wording;
        match &self.routes {
            Some(routes) if self.load.follow && wording.protocol == Protocol::Binary => {
                routes.vbucket(wording.hash_of(key, counter))
            }
            _ => 0,
        }
    }

    fn heed(&mut self, reply: Awaited, asked: usize, hint: Hint) {
        let Some(routes) = self.routes.as_mut().filter(|_| self.load.follow) else { return };
        let hash = self.load.wording.hash_of(reply.key, reply.is_counter());
        if routes.heed(hash, asked, hint) {
            self.load.wording.tell(routes.version());
        }
    }

    /// After the drain: what is still unanswered is wrong, what is still unsent waits until now at least.
    pub fn settle(&mut self, now: u64) {
        for connection in &self.connections {
            for reply in connection.awaited.iter().filter(|reply| reply.last) {
                if (self.start_ns..self.end_ns).contains(&reply.intended_ns) {
                    self.tally.latency.saturating_record(now - reply.intended_ns);
                }
                let seconds = 2 * DRAIN.as_secs();
                self.tally.blame(format!("{:?} unanswered {seconds} s after the end", reply.kind));
            }
        }
        let Some(schedule) = &mut self.schedule else { return };
        let end_ns = if self.source_ended || self.budget == 0 { 0 } else { self.end_ns };
        while schedule.due_ns() < end_ns {
            self.tally.latency.saturating_record(now - schedule.due_ns());
            self.tally.unsent += 1;
            schedule.advance();
        }
    }
}
