//! The cachelets that come to a server.

use mbal_migration::destination::{self, Destination, Meeting, Met, Step};
use mbal_migration::{Advance, Arriver, Request, Response};
use mbal_model::{MoveId, ServerId};
use mbal_testkit::Failed;

use crate::host::{Coming, Host, brief, owner_by};
use crate::links::Link;
use crate::world::{MOVER, NOW, World, instant, when};

impl World {
    /// One step of a move's destination.
    pub fn pump_destination(&mut self, host: usize, id: MoveId) -> Result<(), Failed> {
        let (now, mut pause) = (self.sim.now, self.pause());
        let Some(at) = self.hosts[host].arriver(id) else { return Ok(()) };
        let Host { coming, store, map, is_slow, .. } = &mut self.hosts[host];
        let one = &mut coming[at];
        if one.pump_at != Some(now) {
            return Ok(());
        }
        one.pump_at = None;
        let store = store.as_ref().expect("it lives");
        let (prefix, from) = (one.arriver.destination.begin().prefix, one.from);
        let owner = owner_by(map.as_ref(), prefix);
        // Heartbeats say so.
        store.know_flush(self.newest_flush);
        if !self.truth.is_flushing() {
            store.flushes_are_over(self.newest_flush);
        }
        let advance = one.arriver.advance(instant(now), store, MOVER, owner);
        store.background(MOVER, NOW, 1);
        self.sim.tell(|| {
            let text = advance.as_ref().map_or("broken".to_owned(), brief);
            format!("destination {host} {id:?} {prefix}: {text}")
        });
        match advance {
            Err(_) => self.is_broken(from, host, "a part that cannot be"),
            Ok(Advance::Wait(until)) => {
                if one.arriver.destination.is_over() {
                    let state = one.arriver.destination.state();
                    self.hosts[host].coming.remove(at);
                    self.sim.met.count(match state {
                        destination::State::Owned => "arrived",
                        _ => "dropped",
                    });
                } else if let Some(until) = until {
                    self.pump_destination_at(host, id, when(until));
                }
                return Ok(());
            }
            Ok(Advance::Say { kind, payload }) => self.send(from, host, 1, id, kind, payload),
            Ok(Advance::Did(step)) => match step {
                Step::Import(_) if *is_slow => pause += 50_000_000,
                Step::GiveUp => self.sim.met.count("gave up what came"),
                Step::Inherit => self.sim.met.count("inherited"),
                _ => {}
            },
        }
        self.pump_destination_at(host, id, now + pause);
        Ok(())
    }

    /// What has arrived at a destination.
    pub fn source_says(&mut self, from: usize, host: usize, id: MoveId, kind: u8, payload: &[u8]) {
        let ask = Request::parse(kind, payload).expect("it is as it was written");
        let Request::Begin(begin) = ask else {
            let told = self.tell_destination(host, id, destination::Event::Asked(ask));
            if told.is_err() {
                self.is_broken(from, host, "what the source says cannot be");
            }
            return;
        };
        let here = self.hosts[host].incarnation;
        let known: Vec<Met> =
            self.hosts[host].coming.iter().map(|one| one.arriver.destination.met()).collect();
        let meeting = Destination::meet(here, id, &begin, &known);
        match meeting {
            Meeting::Known(_) => {
                let told = self.tell_destination(host, id, destination::Event::Asked(ask));
                if told.is_err() {
                    self.is_broken(from, host, "it has begun otherwise");
                }
                return;
            }
            Meeting::Refused(why) => {
                self.sim.met.count("refused");
                let mut payload = Vec::new();
                let kind = Response::Refused(why).encode(&mut payload);
                self.send(from, host, 1, id, kind, payload);
                return;
            }
            Meeting::Instead(at) => {
                self.sim.met.count("a newer move instead");
                let older = self.hosts[host].coming[at].arriver.destination.id();
                self.tell_destination(host, older, destination::Event::Ended).expect("no peer");
            }
            Meeting::New => {}
        }
        let destination = Destination::new(instant(self.sim.now), id, begin);
        let arriver = Arriver::new(destination, ServerId(from as u16));
        self.hosts[host].coming.push(Coming { arriver, from, pump_at: None });
        self.pump_destination_at(host, id, self.sim.now + 1);
    }

    /// A side saw what the other side cannot say, were both right.
    pub fn is_broken(&mut self, from: usize, to: usize, why: &'static str) {
        let Link { number, .. } = self.links[from][to];
        self.broken.get_or_insert(Failed::new(5, format!("link {number}: {why}")));
    }

    /// A request says that everything up to `last` is gone at the source of this move.
    pub fn knows_gone(&mut self, host: usize, id: MoveId, last: u64) -> bool {
        // Of a move that is over it is a request as any other.
        let Some(at) = self.hosts[host].arriver(id) else { return true };
        let Host { coming, store, .. } = &mut self.hosts[host];
        let store = store.as_ref().expect("it lives");
        coming[at].arriver.knows_gone(store, last).is_ok()
    }
}
