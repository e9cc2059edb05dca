//! A server: its store, and its moves, whose steps it carries out one by one.

use mbal_cachelet::{Arriving, Birth, Cursor, Part, Store};
use mbal_migration::destination::{self, Destination};
use mbal_migration::source::{self, Exported, Source};
use mbal_migration::{Ask, Incarnation, State};
use mbal_model::{Elsewhere, MoveId, Prefix, Route, ServerId};

use crate::coordinator::{Map, Report, Word};
use crate::met::Failed;
use crate::world::{Event, MOVER, NOW, World};

pub struct Host {
    pub incarnation: Incarnation,
    /// `None`: the process is dead.
    pub store: Option<Store>,
    pub map: Option<Map>,
    pub leavers: Vec<Leaver>,
    pub arrivers: Vec<Arriver>,
    pub in_slow_batch: bool,
    /// Imports take long.
    pub is_slow: bool,
    pub strained: bool,
}

/// A cachelet that leaves.
pub struct Leaver {
    pub source: Source,
    pub to: usize,
    cursor: Cursor,
    pump_at: Option<u64>,
}

/// One that comes.
pub struct Arriver {
    pub destination: Destination,
    pub from: usize,
    pub arriving: Arriving,
    pub pump_at: Option<u64>,
}

pub fn elsewhere(host: usize) -> Elsewhere {
    Elsewhere::Peer(ServerId(host as u16))
}

impl Host {
    pub fn leaver(&self, id: MoveId) -> Option<&Leaver> {
        self.leavers.iter().find(|one| one.source.order().id == id)
    }

    pub fn arriver(&self, id: MoveId) -> Option<usize> {
        self.arrivers.iter().position(|one| one.destination.id() == id)
    }

    pub fn owner(&self, prefix: Prefix) -> Elsewhere {
        let owners = self.map.as_ref().map(|map| &map.owners);
        let owner = owners.and_then(|owners| owners.iter().find(|(other, _)| *other == prefix));
        owner.map_or(Elsewhere::Peer(ServerId::NOBODY), |(_, host)| elsewhere(*host))
    }

    pub fn is_settled(&self) -> bool {
        self.store.is_some() && self.leavers.is_empty() && self.arrivers.is_empty()
    }
}

impl World {
    pub fn report(&self, host: usize) -> Report {
        let here = &self.hosts[host];
        let states = here.leavers.iter().map(|one| (one.source.order().id, one.source.state()));
        Report { host, incarnation: here.incarnation, states: states.collect() }
    }

    /// What the coordinator answered to a heartbeat.
    pub fn hears(&mut self, host: usize, word: &Word) {
        let brief = |one: &crate::coordinator::Move| (one.order.id.0, one.cancelled, one.lost);
        self.tell(|| {
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
                let source = Source::new(order);
                let cursor = Cursor::default();
                let leaver = Leaver { source, to: one.to, cursor, pump_at: None };
                self.hosts[host].leavers.push(leaver);
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
        here.leavers.retain(|one| !one.source.is_over() || is_listed(one.source.order().id));
        let ended = here.arrivers.iter().map(|one| one.destination.id());
        let ended: Vec<MoveId> = ended.filter(|id| *id <= word.newest && !is_listed(*id)).collect();
        for id in ended {
            let at = self.hosts[host].arriver(id).expect("listed above");
            let one = &mut self.hosts[host].arrivers[at];
            let prefix = one.destination.begin().prefix;
            let event = match self.hosts[host].owner(prefix) == elsewhere(host) {
                true => destination::Event::Owned,
                false => destination::Event::Ended,
            };
            self.tell_destination(host, id, event).expect("the coordinator breaks no link");
        }
    }

    fn follow_map(&mut self, host: usize) {
        let map = self.hosts[host].map.clone().expect("a word has a map");
        for &(prefix, owner) in &map.owners {
            let here = &self.hosts[host];
            let leaving = here.leavers.iter().find(|one| {
                one.source.order().prefix == prefix
                    && one.source.state() != State::HandedOver
                    && !matches!(one.source.state(), State::Back(_))
            });
            let leaving = leaving.map(|one| one.source.order().id);
            let arrives = here.arrivers.iter().any(|one| one.destination.begin().prefix == prefix);
            let store = here.store.as_ref().expect("it lives");
            if owner == host {
                let birth =
                    Birth { generation: map.version as u16, flush_number: self.newest_flush };
                let is_here = store.owner(prefix).is_some();
                if !arrives && !is_here && store.adopt(prefix, MOVER, birth) {
                    self.met.count("born empty");
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
        let now = self.now;
        let mine = |one: &&mut Leaver| one.source.order().id == id;
        let Some(one) = self.hosts[host].leavers.iter_mut().find(mine) else { return };
        let to = one.to;
        if one.source.handle(now, event).is_err() {
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
        let now = self.now;
        let Some(at) = self.hosts[host].arriver(id) else { return Ok(()) };
        let told = self.hosts[host].arrivers[at].destination.handle(event);
        self.pump_destination_at(host, id, now + 1);
        told
    }

    fn pump_source_at(&mut self, host: usize, id: MoveId, at: u64) {
        let (at, life) = (at.max(self.now + 1), self.hosts[host].incarnation);
        let mine = |one: &&mut Leaver| one.source.order().id == id;
        let Some(one) = self.hosts[host].leavers.iter_mut().find(mine) else { return };
        if one.pump_at.is_none_or(|before| at < before) {
            one.pump_at = Some(at);
            self.at(at, Event::PumpSource { host, life, id });
        }
    }

    pub fn pump_destination_at(&mut self, host: usize, id: MoveId, at: u64) {
        let (at, life) = (at.max(self.now + 1), self.hosts[host].incarnation);
        let Some(place) = self.hosts[host].arriver(id) else { return };
        let one = &mut self.hosts[host].arrivers[place];
        if one.pump_at.is_none_or(|before| at < before) {
            one.pump_at = Some(at);
            self.at(at, Event::PumpDestination { host, life, id });
        }
    }

    /// One step of a move's source.
    pub fn pump_source(&mut self, host: usize, id: MoveId) -> Result<(), Failed> {
        let (now, pause) = (self.now, self.pause());
        let most = self.profile.part_bytes;
        let Host { leavers, store, .. } = &mut self.hosts[host];
        let Some(one) = leavers.iter_mut().find(|one| one.source.order().id == id) else {
            return Ok(());
        };
        if one.pump_at != Some(now) {
            return Ok(());
        }
        one.pump_at = None;
        let store = store.as_ref().expect("it lives");
        let (prefix, to) = (one.source.order().prefix, one.to);
        let mut say = None;
        let next = one.source.next(now);
        if self.tells {
            println!(
                "{now} source {host} {id:?} {prefix}: {next:?}, gone {:x?}",
                one.source.gone()
            );
        }
        match next {
            source::Next::Wait(None) => return Ok(()),
            source::Next::Wait(Some(until)) => {
                // Who waits for what has passed is asked again in a while.
                self.pump_source_at(host, id, until.max(now + 100_000));
                return Ok(());
            }
            source::Next::Say(ask) => {
                let mut payload = Vec::new();
                say = Some((ask.encode(&mut payload), payload));
                if let Ask::Cancel = ask {
                    self.met.count("cancel is said");
                }
            }
            source::Next::Do(step) => match step {
                source::Step::BeginToLeave => {
                    one.source.began(now, store.begin_to_leave(prefix, id));
                }
                source::Step::Freeze => {
                    one.source.froze(now, store.freeze(prefix, NOW));
                }
                source::Step::Look(stamp) => {
                    let all = store.all_have_left(stamp);
                    one.source.looked(now, all);
                    if !all {
                        self.met.count("waited for a batch");
                    }
                }
                source::Step::Export => {
                    let (mut out, mut more) = (Vec::new(), true);
                    while more && out.len() < most {
                        more = store.export(prefix, &mut one.cursor, NOW, &mut out);
                    }
                    one.cursor.end_part();
                    let heading = Part::read(&out).expect("what is exported reads").heading;
                    let (slice, number, last) = (heading.slice, heading.number, heading.last);
                    let bytes = out.len();
                    one.source.exported(now, Exported { slice, number, last, bytes, more });
                    let mut payload = Vec::new();
                    say = Some((Ask::Part(&out).encode(&mut payload), payload));
                }
                source::Step::Thaw => {
                    store.thaw(prefix, &mut one.cursor, NOW);
                    one.source.thawed(now);
                    self.met.count("a slice thawed");
                }
                source::Step::Forget => {
                    let more = store.forget(prefix, &mut one.cursor, NOW);
                    one.source.forgot(now, more);
                }
                source::Step::Stay => {
                    store.stay(prefix, NOW);
                    let had_gone = one.source.gone().is_some();
                    one.source.stayed();
                    self.met.count(if had_gone { "taken back" } else { "stayed" });
                }
                source::Step::Release => {
                    let owner = self.hosts[host].owner(prefix);
                    let here = &mut self.hosts[host];
                    assert!(here.store.as_ref().expect("it lives").release(prefix, owner));
                    let one = here.leavers.iter_mut().find(|one| one.source.order().id == id);
                    one.expect("it was there").source.released();
                    self.met.count("handed over");
                }
            },
        }
        if let Some((kind, payload)) = say {
            self.send(host, to, 0, id, kind, payload);
        }
        self.check_source(host, id)?;
        self.pump_source_at(host, id, now + pause);
        Ok(())
    }

    fn check_source(&mut self, host: usize, id: MoveId) -> Result<(), Failed> {
        let Some(one) = self.hosts[host].leaver(id) else { return Ok(()) };
        let (progress, to) = (one.source.progress(), one.to);
        if progress.paused_ns_longest > 7_000_000_000 {
            return Err(Failed::new(5, format!("a slice was on its way for {progress:?}")));
        }
        if progress.cancelled_too_late {
            self.met.count("cancelled too late");
        }
        if progress.is_slowed {
            self.met.count("slowed down");
        }
        let bytes = self.links[host][to].ways[0].bytes;
        let most = 4 * (mbal_migration::BYTES_IN_FLIGHT_MAX + 3 * mbal_migration::PART_BYTES);
        match bytes > most {
            true => Err(Failed::new(5, format!("{bytes} bytes are on their way"))),
            false => Ok(()),
        }
    }
}
