//! A server: its store, and its moves, whose steps it carries out one by one.

use mbal_cachelet::{Birth, Store};
use mbal_migration::destination;
use mbal_migration::source::{self, Step};
use mbal_migration::{Advance, Arriver, Incarnation, Leaver, Request, State};
use mbal_model::{Elsewhere, MoveId, Prefix, Route, ServerId};
use mbal_testkit::Failed;

use crate::coordinator::{Map, Report, Word};
use crate::world::{Event, MOVER, World, instant, when};

pub struct Host {
    pub incarnation: Incarnation,
    /// `None`: the process is dead.
    pub store: Option<Store>,
    pub map: Option<Map>,
    pub leaving: Vec<Leaving>,
    pub coming: Vec<Coming>,
    pub in_slow_batch: bool,
    /// Imports take long.
    pub is_slow: bool,
    pub strained: bool,
}

/// A cachelet that leaves.
pub struct Leaving {
    pub leaver: Leaver,
    pub to: usize,
    pump_at: Option<u64>,
}

/// One that comes.
pub struct Coming {
    pub arriver: Arriver,
    pub from: usize,
    pub pump_at: Option<u64>,
}

pub fn owner_by(map: Option<&Map>, prefix: Prefix) -> Elsewhere {
    let owners = map.map(|map| &map.owners);
    let owner = owners.and_then(|owners| owners.iter().find(|(other, _)| *other == prefix));
    owner.map_or(Elsewhere::Peer(ServerId::NOBODY), |(_, host)| elsewhere(*host))
}

/// What came of a call, in one line.
pub fn brief<Step: std::fmt::Debug>(advance: &Advance<Step>) -> String {
    match advance {
        Advance::Say { kind, payload } if payload.len() > 40 => {
            format!("says {kind}, {} bytes", payload.len())
        }
        other => format!("{other:?}"),
    }
}

pub fn elsewhere(host: usize) -> Elsewhere {
    Elsewhere::Peer(ServerId(host as u16))
}

impl Host {
    pub fn leaver(&self, id: MoveId) -> Option<&Leaving> {
        self.leaving.iter().find(|one| one.leaver.source.order().id == id)
    }

    pub fn arriver(&self, id: MoveId) -> Option<usize> {
        self.coming.iter().position(|one| one.arriver.destination.id() == id)
    }

    pub fn owner(&self, prefix: Prefix) -> Elsewhere {
        owner_by(self.map.as_ref(), prefix)
    }

    pub fn is_settled(&self) -> bool {
        self.store.is_some() && self.leaving.is_empty() && self.coming.is_empty()
    }
}

impl World {
    pub fn report(&self, host: usize) -> Report {
        let here = &self.hosts[host];
        let states = here
            .leaving
            .iter()
            .map(|one| (one.leaver.source.order().id, one.leaver.source.state()));
        Report { host, incarnation: here.incarnation, states: states.collect() }
    }

    /// What the coordinator answered to a heartbeat.
    pub fn hears(&mut self, host: usize, word: &Word) {
        let brief = |one: &crate::coordinator::Move| (one.order.id.0, one.cancelled, one.lost);
        self.sim.tell(|| {
            let moves: Vec<_> = word.moves.iter().map(brief).collect();
            format!("server {host} hears map {} {:?} {moves:?}", word.map.version, word.map.owners)
        });
        let known = self.hosts[host].map.as_ref().map_or(0, |map| map.version);
        if word.map.version > known {
            self.hosts[host].map = Some(word.map.clone());
        }
        self.follow_map(host);
        for one in &word.moves {
            let (order, here) = (one.order, &self.hosts[host]);
            if one.from != host || order.source != here.incarnation {
                continue;
            }
            if here.leaver(order.id).is_none() {
                let leaver = Leaver::with_parts(order, self.profile.part_bytes);
                let leaving = Leaving { leaver, to: one.to, pump_at: None };
                self.hosts[host].leaving.push(leaving);
                if self.links[host][one.to].is_up {
                    self.tell_source(host, order.id, source::Event::LinkUp);
                }
            }
            if one.cancelled {
                self.tell_source(host, order.id, source::Event::Cancel);
            }
            if one.lost {
                self.tell_source(host, order.id, source::Event::Lost);
            }
        }
        // Moves that the coordinator has ended.
        let is_listed = |id: MoveId| word.moves.iter().any(|one| one.order.id == id);
        let here = &mut self.hosts[host];
        here.leaving
            .retain(|one| !one.leaver.source.is_over() || is_listed(one.leaver.source.order().id));
        let ended = here.coming.iter().map(|one| one.arriver.destination.id());
        let ended: Vec<MoveId> = ended.filter(|id| *id <= word.newest && !is_listed(*id)).collect();
        for id in ended {
            let at = self.hosts[host].arriver(id).expect("listed above");
            let one = &mut self.hosts[host].coming[at];
            let prefix = one.arriver.destination.begin().prefix;
            let event = match self.hosts[host].owner(prefix) == elsewhere(host) {
                true => destination::Event::Owned,
                false => destination::Event::Ended,
            };
            self.tell_destination(host, id, event).expect("the coordinator breaks no link");
        }
    }

    fn follow_map(&mut self, host: usize) {
        let map = self.hosts[host].map.clone().expect("a word has a map");
        // Who begins may not have heard of the newest flush.
        let flush_number = if self.sim.random.below(2) == 0 { self.newest_flush } else { 0 };
        for &(prefix, owner) in &map.owners {
            let here = &self.hosts[host];
            let leaving = here.leaving.iter().find(|one| {
                one.leaver.source.order().prefix == prefix
                    && one.leaver.source.state() != State::HandedOver
                    && !matches!(one.leaver.source.state(), State::Back(_))
            });
            let leaving = leaving.map(|one| one.leaver.source.order().id);
            let arrives =
                here.coming.iter().any(|one| one.arriver.destination.begin().prefix == prefix);
            let store = here.store.as_ref().expect("it lives");
            if owner == host {
                let birth = Birth { generation: map.version as u16, flush_number };
                let is_here = store.owner(prefix).is_some();
                if !arrives && !is_here && store.adopt(prefix, MOVER, birth) {
                    self.sim.met.count("born empty");
                }
            } else if let Some(id) = leaving {
                self.tell_source(host, id, source::Event::HandedOver);
            } else if !arrives {
                if store.owner(prefix).is_some() {
                    store.release(prefix, elsewhere(owner));
                }
                let known = store.route(MOVER, prefix.first_hash());
                if known != Route::from(elsewhere(owner)) {
                    store.point(prefix, elsewhere(owner));
                }
            }
        }
    }

    pub fn tell_source(&mut self, host: usize, id: MoveId, event: source::Event) {
        let now = self.sim.now;
        let mine = |one: &&mut Leaving| one.leaver.source.order().id == id;
        let Some(one) = self.hosts[host].leaving.iter_mut().find(mine) else { return };
        let to = one.to;
        if one.leaver.source.handle(instant(now), event).is_err() {
            self.is_broken(host, to, "its answer cannot be");
        }
        self.pump_source_at(host, id, now + 1);
    }

    pub fn tell_destination(
        &mut self,
        host: usize,
        id: MoveId,
        event: destination::Event<'_>,
    ) -> Result<(), destination::Broken> {
        let now = self.sim.now;
        let Some(at) = self.hosts[host].arriver(id) else { return Ok(()) };
        let told = self.hosts[host].coming[at].arriver.destination.handle(event);
        self.pump_destination_at(host, id, now + 1);
        told
    }

    fn pump_source_at(&mut self, host: usize, id: MoveId, at: u64) {
        let (at, life) = (at.max(self.sim.now + 1), self.hosts[host].incarnation);
        let mine = |one: &&mut Leaving| one.leaver.source.order().id == id;
        let Some(one) = self.hosts[host].leaving.iter_mut().find(mine) else { return };
        if one.pump_at.is_none_or(|before| at < before) {
            one.pump_at = Some(at);
            self.sim.at(at, Event::PumpSource { host, life, id });
        }
    }

    pub fn pump_destination_at(&mut self, host: usize, id: MoveId, at: u64) {
        let (at, life) = (at.max(self.sim.now + 1), self.hosts[host].incarnation);
        let Some(place) = self.hosts[host].arriver(id) else { return };
        let one = &mut self.hosts[host].coming[place];
        if one.pump_at.is_none_or(|before| at < before) {
            one.pump_at = Some(at);
            self.sim.at(at, Event::PumpDestination { host, life, id });
        }
    }

    /// One step of a move's source.
    pub fn pump_source(&mut self, host: usize, id: MoveId) -> Result<(), Failed> {
        let (now, pause) = (self.sim.now, self.pause());
        let Host { leaving, store, map, .. } = &mut self.hosts[host];
        let mine = |one: &&mut Leaving| one.leaver.source.order().id == id;
        let Some(one) = leaving.iter_mut().find(mine) else { return Ok(()) };
        if one.pump_at != Some(now) {
            return Ok(());
        }
        one.pump_at = None;
        let store = store.as_ref().expect("it lives");
        let (prefix, to) = (one.leaver.source.order().prefix, one.to);
        let before = one.leaver.source.gone();
        let owner = owner_by(map.as_ref(), prefix);
        let advance = one.leaver.advance(instant(now), store, owner);
        self.sim.tell(|| format!("source {host} {id:?} {prefix}: {}", brief(&advance)));
        match advance {
            Advance::Wait(None) => return Ok(()),
            Advance::Wait(Some(until)) => {
                // Who waits for what has passed is asked again in a while.
                self.pump_source_at(host, id, when(until).max(now + 100_000));
                return Ok(());
            }
            Advance::Say { kind, payload } => {
                if let Ok(Request::Cancel) = Request::parse(kind, &payload) {
                    self.sim.met.count("cancel is said");
                }
                self.send(host, to, 0, id, kind, payload);
            }
            Advance::Did(step) => match step {
                Step::Look(_) if one.leaver.source.is_waiting_for_batches() => {
                    self.sim.met.count("waited for a batch");
                }
                Step::Thaw => self.sim.met.count("a slice thawed"),
                Step::Stay if before.is_some() => self.sim.met.count("taken back"),
                Step::Stay => self.sim.met.count("stayed"),
                Step::Release => self.sim.met.count("handed over"),
                _ => {}
            },
        }
        self.check_source(host, id)?;
        self.pump_source_at(host, id, now + pause);
        Ok(())
    }

    fn check_source(&mut self, host: usize, id: MoveId) -> Result<(), Failed> {
        let Some(one) = self.hosts[host].leaver(id) else { return Ok(()) };
        let (progress, to) = (one.leaver.source.progress(), one.to);
        if progress.paused_ns_longest > 7_000_000_000 {
            return Err(Failed::new(5, format!("a slice was on its way for {progress:?}")));
        }
        if progress.cancelled_too_late {
            self.sim.met.count("cancelled too late");
        }
        if progress.is_slowed {
            self.sim.met.count("slowed down");
        }
        let bytes = self.links[host][to].ways[0].bytes;
        let most = 4 * (mbal_migration::BYTES_IN_FLIGHT_MAX + 3 * mbal_migration::PART_BYTES);
        match bytes > most {
            true => Err(Failed::new(5, format!("{bytes} bytes are on their way"))),
            false => Ok(()),
        }
    }
}
