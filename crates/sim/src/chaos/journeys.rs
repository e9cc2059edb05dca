//! A cachelet goes to another server with its items, slice by slice, while its clients go on.
//!
//! ```text
//!   source:       begin_to_leave, then for each slice: freeze, export parts, forget      | release, a new map for all
//!   between:                      parts are lost, come twice; slices are sent again, or served again (thaw)
//!   destination:                  parts are acknowledged, and kept                       | adopt, import
//! ```
//! The destination keeps the parts until all slices have gone, and imports them at one moment. Until then a slice that is frozen or
//! has gone is served by nobody. What is served slice by slice is for the torture of journeys in `cachelet`.

use std::sync::Arc;

use mbal_cachelet::{Arriving, Birth, Cursor, Due, Part};
use mbal_model::{ClusterMap, Elsewhere, MoveId, Owner, Prefix, WorkerId};

use super::coverage::Sight;
use super::history::Micros;
use super::hosts::{host_of, id_of};
use super::world::{Happening, World};

/// A part has no more bytes than this, but for one item.
const PART_BYTES_MAX: usize = 20_000;

pub struct Journey {
    prefix: Prefix,
    from: usize,
    to: usize,
    phase: Phase,
    cursor: Cursor,
    arriving: Arriving,
    /// At the destination, in order; and what its clock said.
    parts: Vec<(u32, Vec<u8>)>,
}

enum Phase {
    Freezes,
    /// Workers may still be in batches in which they were told that the slice is here.
    Waits {
        stamp: u64,
    },
    Exports,
    /// On its way; `last` of its slice.
    Sent {
        part: Vec<u8>,
        last: bool,
    },
    Forgets,
    Arrives,
}

impl World {
    /// True if a journey has begun; not while servers disagree about a map.
    pub fn begin_journey(&mut self) -> bool {
        if self.maps.is_changing(self.now) {
            return false;
        }
        let newest = Arc::clone(self.maps.newest().expect("there are several servers"));
        let (prefix, owner) = self.dice.pick(newest.cachelets());
        let from = host_of(owner.server);
        let of_source = newest.cachelets().iter().filter(|(_, other)| other.server == owner.server);
        let id = MoveId(newest.version() as u32);
        if of_source.count() < 2 || !self.hosts[from].store().begin_to_leave(prefix, id) {
            return false;
        }
        let to = (from + 1 + self.dice.below(self.hosts.len() - 1)) % self.hosts.len();
        self.maps.begin_change(prefix);
        self.maps.journey = Some(Journey {
            prefix,
            from,
            to,
            phase: Phase::Freezes,
            cursor: Cursor::default(),
            arriving: Arriving::new(prefix),
            parts: Vec::new(),
        });
        self.after(0, Happening::Journey);
        true
    }

    /// One step of the journey.
    pub fn travel(&mut self) {
        let mut journey = self.maps.journey.take().expect("one is under way");
        let server = Arc::clone(&self.hosts[journey.from].server);
        let (source, prefix) = (&server.store, journey.prefix);
        let now = self.hosts[journey.from].second(self.now);
        let pause = self.pace();
        journey.phase = match std::mem::replace(&mut journey.phase, Phase::Freezes) {
            Phase::Freezes => match source.freeze(prefix, now) {
                Some(stamp) => Phase::Waits { stamp },
                None => Phase::Arrives,
            },
            Phase::Waits { stamp } if source.all_have_left(stamp) => {
                self.coverage.meet(Sight::SliceFrozen);
                Phase::Exports
            }
            Phase::Waits { stamp } => Phase::Waits { stamp },
            Phase::Exports => {
                let (mut part, mut more) = (Vec::new(), true);
                let most = self.dice.below(PART_BYTES_MAX);
                while more && part.len() <= most {
                    more = source.export(prefix, &mut journey.cursor, now, &mut part);
                }
                journey.cursor.end_part();
                Phase::Sent { part, last: !more }
            }
            Phase::Sent { part, last } => self.part_sent(&mut journey, part, last),
            Phase::Forgets => match source.forget(prefix, &mut journey.cursor, now) {
                true => Phase::Forgets,
                false => Phase::Freezes,
            },
            Phase::Arrives => {
                if self.arrive(&journey) {
                    return;
                }
                Phase::Arrives
            }
        };
        self.maps.journey = Some(journey);
        self.after(pause, Happening::Journey);
    }

    fn pace(&mut self) -> Micros {
        let longest = self.profile.journey;
        self.dice.skewed(1..=longest)
    }

    /// A part is on its way: what becomes of it, and of its slice.
    fn part_sent(&mut self, journey: &mut Journey, part: Vec<u8>, last: bool) -> Phase {
        let what = self.dice.below(16);
        if what == 0 {
            self.coverage.meet(Sight::PartLost);
        } else {
            let due = self.deliver(journey, &part);
            if due == Due::Early {
                self.fail(2, "a part came before the one before it");
            }
        }
        match what {
            // Not acknowledged: again, or all of the slice again.
            0 | 1 if self.dice.percent(50) => Phase::Sent { part, last },
            0 | 1 => {
                self.coverage.meet(Sight::SliceAgain);
                journey.cursor.restart_slice();
                Phase::Exports
            }
            2 => {
                self.coverage.meet(Sight::SliceThawed);
                let server = &self.hosts[journey.to].server;
                let second = self.hosts[journey.to].second(self.now);
                while server.store.give_up(&mut journey.arriving, second) {}
                let second = self.hosts[journey.from].second(self.now);
                let source = self.hosts[journey.from].store();
                source.thaw(journey.prefix, &mut journey.cursor, second);
                Phase::Freezes
            }
            _ if last => Phase::Forgets,
            _ => Phase::Exports,
        }
    }

    fn deliver(&mut self, journey: &mut Journey, bytes: &[u8]) -> Due {
        let part = Part::read(bytes).expect("it is as it was written");
        let due = journey.arriving.due(&part.heading);
        match due {
            Due::Now => {
                let second = self.hosts[journey.to].second(self.now);
                journey.parts.push((second, bytes.to_vec()));
            }
            Due::Over => self.coverage.meet(Sight::PartTwice),
            Due::Early => {}
        }
        due
    }

    /// All slices have gone: the destination takes what it has kept. False if what it had of the cachelet before has not gone yet.
    fn arrive(&mut self, journey: &Journey) -> bool {
        let Journey { prefix, from, to, .. } = *journey;
        let newest = Arc::clone(self.maps.newest().expect("there are several servers"));
        let version = newest.version() + 1;
        let worker = WorkerId(self.dice.below(self.profile.workers) as u16);
        let birth = Birth { generation: version as u16, flush_number: 0 };
        let server = Arc::clone(&self.hosts[to].server);
        if !server.store.adopt(prefix, worker, birth) {
            return false;
        }
        let mut arriving = Arriving::new(prefix);
        for (second, bytes) in &journey.parts {
            let mut part = Part::read(bytes).expect("it has been read before");
            assert_eq!(arriving.due(&part.heading), Due::Now, "parts were kept in order");
            let mut more = true;
            while more {
                server.store.enter(worker);
                let imported = server.store.import(worker, &mut arriving, &mut part, *second);
                server.store.leave(worker);
                server.store.background(worker, *second, 1);
                more = imported.expect("it is as it was written");
            }
        }
        self.count_evictions(to);
        let now = self.hosts[from].second(self.now);
        let source = self.hosts[from].store();
        assert!(source.release(prefix, Elsewhere::Peer(id_of(to))), "it is still here");
        while source.drop_released(now) {}
        self.look_at_owners(from);
        self.look_at_owners(to);
        let mut owners = newest.cachelets().to_vec();
        let moved = owners.iter_mut().find(|(other, _)| *other == prefix).expect("it is there");
        moved.1 = Owner { server: id_of(to), worker };
        let map = ClusterMap::new(version, owners).expect("they cover what they did");
        self.maps.arrived(prefix, map);
        self.coverage.meet(Sight::JourneyOver);
        for host in 0..self.hosts.len() {
            self.tell_workers_of(host);
        }
        true
    }
}
