//! A cachelet goes to another server with its items, slice by slice, while its clients go on.
//!
//! ```text
//!   source:       begin_to_leave, then for each slice: freeze, export parts, forget      | release, a new map for all
//!   between:                      parts are lost, come twice; slices are sent again, or served again (thaw)
//!   destination:  begin_to_arrive,                     import, acknowledge, serve_until  | all of it is here
//! ```
//! Each part is imported as it comes. A slice is served at the destination once it is gone at the source, and the destination has heard
//! of that: by a word of the source, or by the next slice. Until then it is served by nobody.

use std::sync::Arc;

use mbal_cachelet::{Arriving, Birth, Cursor, Draft, Due, Part};
use mbal_model::{ClusterMap, Elsewhere, Key, MoveId, Owner, Prefix, Route, WorkerId};

use super::coverage::Sight;
use super::history::Micros;
use super::hosts::{host_of, id_of};
use super::world::{Happening, World};

/// A part has no more bytes than this, but for one item.
const PART_BYTES_MAX: usize = 20_000;
/// Items without a history, so that a cachelet has several slices: one is split at 1,280.
const FILLERS: usize = 2_500;
/// A store gets no more when it has so many items, and a cachelet that is narrower than this none.
const ITEMS_MAX: u64 = 20_000;
const FILLED_BITS_MAX: u32 = 5;
/// So many microseconds a slice is served again before it freezes once more, at most.
const REST_MAX: usize = 20_000;
/// Parts that have come, of which one may come again.
const OLD_PARTS_MAX: usize = 8;

pub struct Journey {
    prefix: Prefix,
    from: usize,
    to: usize,
    /// The destination's.
    worker: WorkerId,
    phase: Phase,
    cursor: Cursor,
    arriving: Arriving,
    /// The last hash that is gone at the source, and that the destination has not heard of.
    gone: Option<u64>,
    old_parts: Vec<Vec<u8>>,
}

enum Phase {
    /// What the destination had of the cachelet before may still be on its way out.
    Prepares,
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
    /// A slice is served again for a while.
    Rests,
    Over,
}

impl Journey {
    pub fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// The cachelet that is on its way to this server.
    pub fn to(&self, host: usize) -> Option<Prefix> {
        (self.to == host).then_some(self.prefix)
    }
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
        let worker = WorkerId(self.dice.below(self.profile.workers) as u16);
        if self.dice.percent(50) {
            self.fill(from, prefix);
        }
        self.maps.begin_change(prefix);
        self.maps.travels(prefix);
        self.maps.journey = Some(Journey {
            prefix,
            from,
            to,
            worker,
            phase: Phase::Prepares,
            cursor: Cursor::default(),
            arriving: Arriving::new(prefix),
            gone: None,
            old_parts: Vec::new(),
        });
        self.after(0, Happening::Journey);
        true
    }

    /// Makes several slices of a cachelet of few items, where there is memory for that.
    fn fill(&self, host: usize, prefix: Prefix) {
        let (store, now) = (self.hosts[host].store(), self.hosts[host].second(self.now));
        let is_full = self.profile.tight || store.stats().items > ITEMS_MAX;
        if is_full || prefix.bits() > FILLED_BITS_MAX {
            return;
        }
        let names = (0..).map(|number| format!("filler:{number}"));
        let inside = names.filter(|name| prefix.contains(key_of(name).hash()));
        store.enter(WorkerId(0));
        for name in inside.take(FILLERS) {
            let key = key_of(&name);
            // Where it finds no room there are fewer.
            store.lock(key.hash(), now).put(&key, &Draft::default()).ok();
        }
        store.leave(WorkerId(0));
    }

    /// One step of the journey.
    pub fn travel(&mut self) {
        let mut journey = self.maps.journey.take().expect("one is under way");
        let (from, to) = (journey.from, journey.to);
        let phase = std::mem::replace(&mut journey.phase, Phase::Over);
        journey.phase = self.step_of(&mut journey, phase);
        self.look_at_places(&journey);
        if matches!(journey.phase, Phase::Over) {
            self.end_journey(&journey);
        } else {
            self.tell_what_is_gone(&mut journey);
            let rests = matches!(journey.phase, Phase::Rests);
            self.maps.journey = Some(journey);
            let pause = if rests { self.dice.below(REST_MAX) as Micros } else { self.pace() };
            self.after(pause, Happening::Journey);
        }
        self.look_at_owners(from);
        self.look_at_owners(to);
        if self.maps.journey.is_none() {
            for host in 0..self.hosts.len() {
                self.tell_workers_of(host);
            }
        }
    }

    fn step_of(&mut self, journey: &mut Journey, phase: Phase) -> Phase {
        let server = Arc::clone(&self.hosts[journey.from].server);
        let (source, prefix) = (&server.store, journey.prefix);
        let now = self.hosts[journey.from].second(self.now);
        match phase {
            Phase::Prepares => match self.prepare(journey) {
                true => Phase::Freezes,
                false => Phase::Prepares,
            },
            Phase::Rests => Phase::Freezes,
            Phase::Freezes => match source.freeze(prefix, now) {
                Some(stamp) => Phase::Waits { stamp },
                None => Phase::Over,
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
            Phase::Sent { part, last } => self.part_sent(journey, part, last),
            Phase::Forgets => match source.forget(prefix, &mut journey.cursor, now) {
                true => Phase::Forgets,
                false => {
                    journey.gone = Some(journey.arriving.last());
                    Phase::Freezes
                }
            },
            Phase::Over => unreachable!("then there is no journey"),
        }
    }

    /// No key is served from two places.
    fn look_at_places(&mut self, journey: &Journey) {
        let serves = |host: usize, hash| {
            let route = self.hosts[host].store().route(WorkerId(0), hash);
            matches!(route, Route::Own | Route::Neighbour(_))
        };
        let mut hashes = self.profile.keys.iter().map(|key| key.hash());
        let twice = hashes.find(|hash| {
            let travels = journey.prefix.contains(*hash);
            travels && serves(journey.from, *hash) && serves(journey.to, *hash)
        });
        if let Some(hash) = twice {
            self.fail(
                1,
                format!("servers {} and {} both serve {hash:x}", journey.from, journey.to),
            );
        }
    }

    fn prepare(&mut self, journey: &Journey) -> bool {
        let newest = self.maps.newest().expect("there are several servers");
        let birth = Birth { generation: (newest.version() + 1) as u16, flush_number: 0 };
        let (Journey { prefix, from, to, worker, .. }, target) =
            (journey, self.hosts[journey.to].store());
        debug_assert!(from != to);
        target.begin_to_arrive(*prefix, *worker, birth, id_of(*from))
    }

    /// Sooner or later. A part that has come once may come again then.
    fn tell_what_is_gone(&mut self, journey: &mut Journey) {
        if journey.gone.is_some() && self.dice.percent(30) {
            let last = journey.gone.take().expect("looked at");
            self.hosts[journey.to].store().serve_until(journey.prefix, last);
            self.coverage.meet(Sight::SliceServed);
        }
        if !journey.old_parts.is_empty() && self.dice.percent(10) {
            let part = journey.old_parts[self.dice.below(journey.old_parts.len())].clone();
            self.deliver(journey, &part);
        }
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
        } else if self.deliver(journey, &part) == Due::Early {
            self.fail(2, "a part came before the one before it");
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
                let target = Arc::clone(&self.hosts[journey.to].server);
                let second = self.hosts[journey.to].second(self.now);
                // It may be told, or find out when the slice comes again.
                while self.dice.percent(60) && target.store.give_up(&mut journey.arriving, second) {
                }
                let second = self.hosts[journey.from].second(self.now);
                let source = self.hosts[journey.from].store();
                source.thaw(journey.prefix, &mut journey.cursor, second);
                Phase::Rests
            }
            _ if last => Phase::Forgets,
            _ => Phase::Exports,
        }
    }

    /// A part comes to the destination, and is imported if it is due.
    fn deliver(&mut self, journey: &mut Journey, bytes: &[u8]) -> Due {
        let mut part = Part::read(bytes).expect("it is as it was written");
        let due = journey.arriving.due(&part.heading);
        match due {
            Due::Now => {
                let second = self.hosts[journey.to].second(self.now);
                let server = Arc::clone(&self.hosts[journey.to].server);
                let (store, worker) = (&server.store, journey.worker);
                let mut more = true;
                while more {
                    store.enter(worker);
                    let imported = store.import(worker, &mut journey.arriving, &mut part, second);
                    store.leave(worker);
                    store.background(worker, second, 1);
                    more = imported.expect("it is as it was written");
                }
                self.count_evictions(journey.to);
                journey.old_parts.push(bytes.to_vec());
                if journey.old_parts.len() > OLD_PARTS_MAX {
                    journey.old_parts.remove(0);
                }
            }
            Due::Over => self.coverage.meet(Sight::PartTwice),
            Due::Early => {}
        }
        due
    }

    /// All slices have gone: all of the cachelet is the destination's, by the next map.
    fn end_journey(&mut self, journey: &Journey) {
        let Journey { prefix, from, to, worker, .. } = *journey;
        let newest = Arc::clone(self.maps.newest().expect("there are several servers"));
        self.hosts[to].store().serve_until(prefix, prefix.last_hash());
        let now = self.hosts[from].second(self.now);
        let source = self.hosts[from].store();
        assert!(source.release(prefix, Elsewhere::Peer(id_of(to))), "it is still here");
        while source.drop_released(now) {}
        let mut owners = newest.cachelets().to_vec();
        let moved = owners.iter_mut().find(|(other, _)| *other == prefix).expect("it is there");
        moved.1 = Owner { server: id_of(to), worker };
        let map = ClusterMap::new(newest.version() + 1, owners).expect("they cover what they did");
        self.maps.add(map);
        self.coverage.meet(Sight::JourneyOver);
    }
}

fn key_of(name: &str) -> Key<'_> {
    Key::new(name.as_bytes()).expect("a short name")
}
