//! Carries out what the two sides of a move want of a store, one bounded step at a time.
//!
//! For whoever has a moment: each call holds no lock for longer than a step of `cachelet` does, some ten microseconds.

use mbal_cachelet::{
    AgeThresholds, Arriving, Birth, Crowded, Cursor, Due, EXPORT_BYTES_MAX, ImportStep, Part, Store,
};
use mbal_model::{Elsewhere, Instant, Seconds, ServerId, WorkerId};

use crate::destination::{self, Adopted, Destination, Imported};
use crate::message::{Request, kind};
use crate::order::Order;
use crate::source::{self, Exported, Source};
use crate::window::{BYTES_IN_FLIGHT_MAX, PART_BYTES};

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advance<Step> {
    /// This payload of this kind is to be sent, in a frame whose ticket is the move's number.
    Say { kind: u8, payload: Vec<u8> },
    /// A step was done. There may be more to do at once.
    Did(Step),
    /// Nothing until then, or until something happens.
    Wait(Option<Instant>),
}

/// More than are on their way from a worker to its link at a time.
const SPARE_PARTS: usize = 3;

/// A cachelet that leaves this server.
pub struct Leaver {
    pub source: Source,
    cursor: Cursor,
    /// It grows until it is sent.
    part: Vec<u8>,
    part_bytes: usize,
    /// Memory for the first parts, touched by who made this: a worker would wait for the kernel to find it. Later ones get what those
    /// have left with the allocator.
    spare: Vec<Vec<u8>>,
    /// What travels, if not everything: by a plan, and if there is none by how much time is left.
    planned: Option<AgeThresholds>,
    hurried: Option<AgeThresholds>,
}

impl Leaver {
    pub fn new(order: Order) -> Leaver {
        Leaver::with_parts(order, PART_BYTES)
    }

    /// One whose parts are sent when they have so many bytes.
    pub fn with_parts(order: Order, part_bytes: usize) -> Leaver {
        let touched = || {
            let mut part = vec![1; part_bytes + EXPORT_BYTES_MAX];
            part.clear();
            part
        };
        Leaver {
            source: Source::new(order),
            cursor: Cursor::default(),
            part: Vec::new(),
            part_bytes,
            spare: (0..SPARE_PARTS).map(|_| touched()).collect(),
            planned: None,
            hurried: None,
        }
    }

    /// Only these items travel, the others are gone with their slices.
    pub fn choose(&mut self, planned: Option<AgeThresholds>) {
        self.planned = planned;
    }

    /// The same of slices that begin from now on, unless it was planned what travels.
    pub fn hurry(&mut self, hurried: Option<AgeThresholds>) {
        self.hurried = hurried;
    }

    /// Does the next thing, at an instant of the clock whose seconds the store counts. `owner`: who has the cachelet by the newest map. From
    /// any thread that is in no batch.
    pub fn advance(
        &mut self,
        now: Instant,
        store: &Store,
        owner: Elsewhere,
    ) -> Advance<source::Step> {
        let step = match self.source.next(now) {
            source::Next::Say(ask) => return say(ask),
            source::Next::Wait(until) => return Advance::Wait(until),
            source::Next::Do(step) => step,
        };
        let (prefix, id) = (self.source.order().prefix, self.source.order().id);
        let (source, cursor) = (&mut self.source, &mut self.cursor);
        match step {
            source::Step::BeginToLeave => {
                source.began(now, store.begin_to_leave(prefix, id));
            }
            source::Step::Freeze => {
                if let Some(age_thresholds) = self.planned.or(self.hurried) {
                    store.take_along(prefix, age_thresholds);
                }
                if !store.halve_next_slice(prefix, second(now)) {
                    source.froze(now, store.freeze(prefix, second(now)));
                }
            }
            source::Step::Look(stamp) => source.looked(now, store.all_have_left(stamp)),
            source::Step::Export => {
                if self.part.capacity() == 0 {
                    let fresh = || Vec::with_capacity(self.part_bytes + EXPORT_BYTES_MAX);
                    self.part = self.spare.pop().unwrap_or_else(fresh);
                }
                let more = store.export(prefix, cursor, second(now), &mut self.part);
                if !more || self.part.len() >= self.part_bytes {
                    return self.part_is_complete(now, more);
                }
            }
            source::Step::Thaw => {
                self.part.clear();
                store.thaw(prefix, cursor, second(now));
                source.thawed(now);
            }
            source::Step::Forget => {
                source.forgot(now, store.forget(prefix, cursor, second(now)));
            }
            source::Step::Stay => {
                store.stay(prefix, second(now));
                source.stayed();
            }
            source::Step::Release => {
                // False if who follows the map was faster.
                store.release(prefix, owner);
                source.released();
            }
        }
        Advance::Did(step)
    }

    fn part_is_complete(&mut self, now: Instant, more: bool) -> Advance<source::Step> {
        self.cursor.end_part();
        let part = std::mem::take(&mut self.part);
        debug_assert!(Part::read(&part).is_ok(), "what is exported reads");
        let heading = Part::resume(&part, 0).heading;
        let (slice, number, last) = (heading.slice, heading.number, heading.last);
        self.source.exported(now, Exported { slice, number, last, bytes: part.len(), more });
        // As `Request::Part` is encoded, without a copy.
        Advance::Say { kind: kind::PART, payload: part }
    }
}

/// By the store's clock.
fn second(now: Instant) -> Seconds {
    now.as_secs() as Seconds
}

fn say<Step>(ask: Request<'_>) -> Advance<Step> {
    let mut payload = Vec::new();
    let kind = ask.encode(&mut payload);
    Advance::Say { kind, payload }
}

/// A cachelet that comes to this server.
pub struct Arriver {
    pub destination: Destination,
    from: ServerId,
    arriving: Arriving,
    begun: Option<Begun>,
}

/// A part of which the first steps are done.
struct Begun {
    part: Vec<u8>,
    /// Bytes of it that are left.
    left: usize,
    /// It has found no room: when it is tried again, and whether what finds none then is dropped, as if evicted.
    again: Option<(Instant, Crowded)>,
}

/// Bytes for which there is to be room before a source is told that it may send: what may come before it hears that there is none.
const ROOM_BYTES: usize = BYTES_IN_FLIGHT_MAX + PART_BYTES;

impl Arriver {
    pub fn new(destination: Destination, from: ServerId) -> Arriver {
        let arriving = Arriving::new(destination.begin().prefix);
        Arriver { destination, from, arriving, begun: None }
    }

    /// Only what was chosen comes.
    pub fn is_chosen(&mut self) {
        self.arriving.is_chosen = true;
    }

    /// Who serves what has not come.
    pub fn from(&self) -> ServerId {
        self.from
    }

    /// Does the next thing, for worker `worker`, which is in no batch. `now` and `owner` as for [`Leaver::advance`].
    ///
    /// # Errors
    /// [`destination::Broken`] if what came cannot be: the link is to be broken.
    pub fn advance(
        &mut self,
        now: Instant,
        store: &Store,
        worker: WorkerId,
        owner: Elsewhere,
    ) -> Result<Advance<destination::Step>, destination::Broken> {
        if let Some(begun) = self.begun.take() {
            let goes_on = self.destination.awaits_part();
            if let Some((at, _)) = begun.again.filter(|(at, _)| goes_on && now < *at) {
                self.begun = Some(begun);
                return Ok(Advance::Wait(Some(at)));
            }
            let crowded = begun.again.map_or(Crowded::Waits, |(_, crowded)| crowded);
            self.import(now, store, worker, begun.part, begun.left, crowded)?;
            return Ok(Advance::Did(destination::Step::Import(Vec::new())));
        }
        let step = match self.destination.next(now) {
            destination::Next::Say(answer) => {
                let mut payload = Vec::new();
                let kind = answer.encode(&mut payload);
                return Ok(Advance::Say { kind, payload });
            }
            destination::Next::Wait(until) => return Ok(Advance::Wait(until)),
            destination::Next::Do(step) => step,
        };
        let (begin, here) = (*self.destination.begin(), &mut self.destination);
        let prefix = begin.prefix;
        let done = match step {
            destination::Step::Adopt => {
                // The store knows of which flush it is. One that is still to come has its number already: what arrives is from before it.
                let birth = Birth { generation: begin.generation, flush_number: 0 };
                let has_room =
                    store.has_room_to_come(worker, prefix.first_hash(), ROOM_BYTES, second(now));
                let adopted = match store.may_be_flushing() {
                    true => Adopted::Flushing,
                    false if !has_room => Adopted::NoRoom,
                    false if store.begin_to_arrive(prefix, begin.worker, birth, self.from) => {
                        Adopted::Arrives
                    }
                    false => Adopted::NoRoom,
                };
                here.adopted(now, adopted);
                destination::Step::Adopt
            }
            destination::Step::Import(part) => {
                self.begin_to_import(now, store, worker, part)?;
                destination::Step::Import(Vec::new())
            }
            destination::Step::LookForRoom => {
                let first = prefix.first_hash();
                let is_there = store.has_room_to_come(worker, first, ROOM_BYTES, second(now));
                here.looked_for_room(now, is_there);
                step
            }
            destination::Step::ServeUntil(last) => {
                store.serve_until(prefix, last);
                here.serves(last);
                step
            }
            destination::Step::GiveUp => {
                here.gave_up(store.give_up(&mut self.arriving, second(now)));
                step
            }
            destination::Step::Inherit => {
                store.inherit(prefix, second(now));
                here.inherited();
                step
            }
            destination::Step::Release => {
                store.release(prefix, owner);
                here.released();
                step
            }
        };
        Ok(Advance::Did(done))
    }

    /// A request was sent on by the source, and says that everything up to `last` is gone there: it is served from now on.
    ///
    /// # Errors
    /// [`destination::Broken`] if that has not come. The request is to be refused.
    pub fn knows_gone(&mut self, store: &Store, last: u64) -> Result<(), destination::Broken> {
        self.destination.has_gone(last)?;
        store.serve_until(self.destination.begin().prefix, last);
        self.destination.serves(last);
        Ok(())
    }

    fn begin_to_import(
        &mut self,
        now: Instant,
        store: &Store,
        worker: WorkerId,
        bytes: Vec<u8>,
    ) -> Result<(), destination::Broken> {
        let Ok(part) = Part::read(&bytes) else { return self.destination.imported(None) };
        let left = part.left();
        match self.arriving.due(&part.heading) {
            Due::Now => self.import(now, store, worker, bytes, left, Crowded::Waits),
            Due::Over => self.destination.imported(Some(self.named(&bytes))),
            Due::Early => self.destination.imported(None),
        }
    }

    /// A step of a part, of whose bytes so many are left.
    fn import(
        &mut self,
        now: Instant,
        store: &Store,
        worker: WorkerId,
        bytes: Vec<u8>,
        left: usize,
        crowded: Crowded,
    ) -> Result<(), destination::Broken> {
        let mut part = Part::resume(&bytes, left);
        store.enter(worker);
        let imported = store.import(worker, &mut self.arriving, &mut part, second(now), crowded);
        store.leave(worker);
        let left = part.left();
        match imported {
            Err(_) => self.destination.imported(None),
            Ok(ImportStep::More) => {
                self.begun = Some(Begun { part: bytes, left, again: None });
                Ok(())
            }
            Ok(ImportStep::All) => self.destination.imported(Some(self.named(&bytes))),
            Ok(ImportStep::NoRoom) => {
                match self.destination.found_no_room(now, store.options().evict) {
                    destination::NoRoom::Again { at, drops } => {
                        let crowded = if drops { Crowded::Drops } else { Crowded::Waits };
                        let again = Some((at, crowded));
                        self.begun = Some(Begun { part: bytes, left, again });
                    }
                    destination::NoRoom::GivenUp => {
                        self.destination.came_in_part(self.arriving.last());
                    }
                }
                Ok(())
            }
        }
    }

    fn named(&self, part: &[u8]) -> Imported {
        let heading = Part::resume(part, 0).heading;
        let (slice, number) = (heading.slice, heading.number);
        Imported { slice, number, last: self.arriving.last() }
    }
}
