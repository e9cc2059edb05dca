//! The cachelets that come to a server.

use mbal_cachelet::{Arriving, Birth, Due, Part, Store};
use mbal_migration::destination::{self, Destination, Imported, Meeting};
use mbal_migration::{Answer, Ask};
use mbal_model::{MoveId, ServerId};

use crate::host::{Arriver, Host};
use crate::links::Link;
use crate::met::Failed;
use crate::world::{MOVER, NOW, World};

impl World {
    /// One step of a move's destination.
    pub fn pump_destination(&mut self, host: usize, id: MoveId) -> Result<(), Failed> {
        let (now, mut pause) = (self.now, self.pause());
        let Some(at) = self.hosts[host].arriver(id) else { return Ok(()) };
        let Host { arrivers, store, is_slow, .. } = &mut self.hosts[host];
        let one = &mut arrivers[at];
        if one.pump_at != Some(now) {
            return Ok(());
        }
        one.pump_at = None;
        let store = store.as_ref().expect("it lives");
        let (begin, from) = (*one.destination.begin(), one.from);
        let prefix = begin.prefix;
        let next = one.destination.next(now);
        if self.tells {
            let mut text = format!("{next:x?}");
            text.truncate(60);
            println!("{now} destination {host} {id:?} {prefix}: {text}");
        }
        match next {
            destination::Next::Wait(until) => {
                if one.destination.is_over() {
                    let state = one.destination.state();
                    self.hosts[host].arrivers.remove(at);
                    self.met.count(match state {
                        destination::State::Owned => "arrived",
                        _ => "dropped",
                    });
                } else if let Some(until) = until {
                    self.pump_destination_at(host, id, until);
                }
                return Ok(());
            }
            destination::Next::Say(answer) => {
                let mut payload = Vec::new();
                let kind = answer.encode(&mut payload);
                self.send(from, host, 1, id, kind, payload);
            }
            destination::Next::Do(step) => match step {
                destination::Step::Adopt => {
                    let generation = begin.generation;
                    let birth = Birth { generation, flush_number: self.newest_flush };
                    let source = ServerId(from as u16);
                    let arrives = store.begin_to_arrive(prefix, begin.worker, birth, source);
                    one.destination.adopted(now, arrives);
                }
                destination::Step::Import(bytes) => {
                    if *is_slow {
                        pause += 50_000_000;
                    }
                    let imported = import(store, &mut one.arriving, &bytes);
                    if one.destination.imported(imported).is_err() {
                        self.is_broken(from, host, "a part that cannot be");
                    }
                }
                destination::Step::ServeUntil(last) => {
                    store.serve_until(prefix, last);
                    one.destination.serves(last);
                }
                destination::Step::GiveUp => {
                    let more = store.give_up(&mut one.arriving, NOW);
                    one.destination.gave_up(more);
                    self.met.count("gave up what came");
                }
                destination::Step::Inherit => {
                    store.inherit(prefix, NOW);
                    one.destination.inherited();
                    self.met.count("inherited");
                }
                destination::Step::Release => {
                    let owner = self.hosts[host].owner(prefix);
                    let here = &mut self.hosts[host];
                    assert!(here.store.as_ref().expect("it lives").release(prefix, owner));
                    here.arrivers[at].destination.released();
                }
            },
        }
        self.pump_destination_at(host, id, now + pause);
        Ok(())
    }

    /// What has arrived at a destination.
    pub fn source_says(&mut self, from: usize, host: usize, id: MoveId, kind: u8, payload: &[u8]) {
        let ask = Ask::parse(kind, payload).expect("it is as it was written");
        let Ask::Begin(begin) = ask else {
            let told = self.tell_destination(host, id, destination::Event::Asked(ask));
            if told.is_err() {
                self.is_broken(from, host, "what the source says cannot be");
            }
            return;
        };
        let here = self.hosts[host].incarnation;
        let known: Vec<&Destination> =
            self.hosts[host].arrivers.iter().map(|one| &one.destination).collect();
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
                self.met.count("refused");
                let mut payload = Vec::new();
                let kind = Answer::Refused(why).encode(&mut payload);
                self.send(from, host, 1, id, kind, payload);
                return;
            }
            Meeting::Instead(at) => {
                self.met.count("a newer move instead");
                let older = self.hosts[host].arrivers[at].destination.id();
                self.tell_destination(host, older, destination::Event::Ended).expect("no peer");
            }
            Meeting::New => {}
        }
        let destination = Destination::new(self.now, id, begin);
        let arriving = Arriving::new(begin.prefix);
        self.hosts[host].arrivers.push(Arriver { destination, from, arriving, pump_at: None });
        self.pump_destination_at(host, id, self.now + 1);
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
        let Host { arrivers, store, .. } = &mut self.hosts[host];
        let destination = &mut arrivers[at].destination;
        if destination.has_gone(last).is_err() {
            return false;
        }
        let store = store.as_ref().expect("it lives");
        store.serve_until(destination.begin().prefix, last);
        destination.serves(last);
        true
    }
}

fn import(store: &Store, arriving: &mut Arriving, bytes: &[u8]) -> Option<Imported> {
    let mut part = Part::read(bytes).ok()?;
    let (slice, number) = (part.heading.slice, part.heading.number);
    match arriving.due(&part.heading) {
        Due::Early => return None,
        Due::Over => {}
        Due::Now => {
            let mut more = true;
            while more {
                store.enter(MOVER);
                let imported = store.import(MOVER, arriving, &mut part, NOW);
                store.leave(MOVER);
                store.background(MOVER, NOW, 1);
                more = imported.ok()?;
            }
        }
    }
    Some(Imported { slice, number, last: arriving.last() })
}
