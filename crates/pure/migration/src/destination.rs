//! The side of a move that gets the cachelet.
//!
//! ```text
//!  hashes:   | served .......... | came, or is to come ..... |
//!                      Gone -->  |     here its source serves
//! ```
//!
//! It serves what it knows to be gone at the source, and nothing else; what lies behind may be out of date at any time, since the source may serve
//! it again without a word.

use std::collections::VecDeque;
use std::time::Duration;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, MoveId, Prefix};

use crate::message::{Begin, Refusal, Request, Response};
use crate::order::{Incarnation, MOVES_MAX};
use crate::window::{BYTES_IN_FLIGHT_MAX, PARTS_IN_FLIGHT_MAX};

/// Room for the cachelet is waited for so long: what was there of it may still be on its way out.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);
/// While a `flush_all` may be under way, the wait for room is so long in all.
const FLUSH_WAIT_MAX: Duration = Duration::from_secs(10);
const ADOPT_AGAIN: Duration = Duration::from_millis(1);

/// A part that finds no room is tried again for so long, before its source is told: less than its patience.
const CROWDED_MAX: Duration = Duration::from_millis(100);
/// Between two tries, at first; each is twice as long as the one before.
const CROWDED_AGAIN: Duration = Duration::from_micros(100);
/// Who was told that there is no room is told so again, if it comes to that, after so long at the least; each time in a row doubles that.
/// Where items are evicted, a part finds no room for moments alone, while others' threads have lost their cores: what finds none after the
/// longest of these waits is dropped.
const FULL_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(32)];

/// What can happen to the destination of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The source says this, over its newest link.
    Asked(Request<'a>),
    LinkDown,
    /// Whether clients leave the worker that does the steps no time.
    Strained(bool),
    /// The newest map gives the cachelet to this server.
    Owned,
    /// The coordinator has ended the move; otherwise, unless [`Event::Owned`] came before.
    Ended,
}

/// What is to be done to the store, named after its functions; each is answered by the function that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// `begin_to_arrive`; [`Destination::adopted`].
    Adopt,
    /// All of this part, if its turn has come; [`Destination::imported`], or [`Destination::found_no_room`].
    Import(Vec<u8>),
    /// Whether there is room for parts again; [`Destination::looked_for_room`].
    LookForRoom,
    /// [`Destination::serves`].
    ServeUntil(u64),
    /// [`Destination::gave_up`].
    GiveUp,
    /// [`Destination::inherited`].
    Inherit,
    /// [`Destination::released`].
    Release,
}

/// What has become of a [`Step::Adopt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    Arrives,
    NoRoom,
    /// A `flush_all` may not have reached the source yet.
    Flushing,
}

/// What the destination wants now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Say(Response),
    Do(Step),
    /// Nothing until then, or until something happens.
    Wait(Option<Instant>),
}

/// A part that is in the store, by this import or by an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    pub slice: u32,
    pub number: u32,
    /// The last hash of the slice that is arriving.
    pub last: u64,
}

/// What the coordinator could hear, and does not need to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Arriving,
    /// All of it is served here.
    Whole,
    /// The move is over, and the cachelet is this server's.
    Owned,
    /// The move is over, and nothing is left of it here.
    Dropped,
}

/// What becomes of a [`Begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    New,
    /// Of this one's move.
    Known(usize),
    /// Of a newer move than this one's, which ends.
    Instead(usize),
    Refused(Refusal),
}

/// What is to be known of a move that comes, when another one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    id: MoveId,
    prefix: Prefix,
    is_over: bool,
    has_served: bool,
    is_whole: bool,
}

/// The source said what cannot be; the link is to be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// What is known of the room for what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Enough,
    /// A part has found none since then, and is tried again.
    Crowded {
        since: Instant,
        pause: Duration,
    },
    /// The source has been told. It is not looked for room before then.
    Full {
        again_at: Instant,
    },
}

/// What becomes of a part that has found no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// It is tried again then. `drops`: what may be evicted is dropped if there is no room then.
    Again { at: Instant, drops: bool },
    /// It is given up.
    GivenUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// `since` it was asked to.
    Adopting {
        since: Instant,
        again_at: Instant,
        until: Instant,
    },
    Open,
    Releasing,
    Over(State),
}

/// A cachelet that comes to this server.
#[derive(Debug)]
pub struct Destination {
    id: MoveId,
    begin: Begin,
    phase: Phase,
    say: VecDeque<Response>,
    /// To be imported.
    parts: VecDeque<Vec<u8>>,
    part_bytes: usize,
    /// A part of this link is being imported.
    importing: bool,
    /// The last hash of the slice of which the last part came.
    came: Option<u64>,
    /// The last hash that is served here.
    served: Option<u64>,
    /// What is gone at the source, and so to be served.
    gone: Option<u64>,
    owes_ready: bool,
    owes_served: bool,
    owned: bool,
    strained: bool,
    space: Space,
    /// The next wait for room.
    full_pause: Duration,
    /// The source has been told that there is no room, and may not have heard it: until its next `Begin` nothing counts that it sends.
    deaf: bool,
}

impl Destination {
    /// What becomes of a [`Begin`] at the process `here`, which has these moves.
    pub fn meet(here: Incarnation, id: MoveId, begin: &Begin, moves: &[Met]) -> Meeting {
        if begin.destination != here {
            return Meeting::Refused(Refusal::Incarnation);
        }
        let known = moves.iter().enumerate().filter(|(_, one)| !one.is_over);
        if let Some((at, _)) = known.clone().find(|(_, one)| one.id == id) {
            return Meeting::Known(at);
        }
        if let Some((at, other)) =
            known.clone().find(|(_, other)| other.prefix.overlaps(begin.prefix))
        {
            let gives_way = id > other.id && !other.has_served && begin.gone.is_none();
            return match gives_way {
                true => Meeting::Instead(at),
                false => Meeting::Refused(Refusal::OtherMove),
            };
        }
        // What has gone would have to be here.
        if begin.gone.is_some() {
            return Meeting::Refused(Refusal::OtherMove);
        }
        // A move that has come whole ends when this server hears of a new map. The coordinator knows that earlier, and orders others.
        let mut coming = known.filter(|(_, other)| !other.is_whole);
        match coming.nth(MOVES_MAX - 1) {
            Some(_) => Meeting::Refused(Refusal::NoRoom),
            None => Meeting::New,
        }
    }

    /// Of a [`Begin`] that was met as [`Meeting::New`] or [`Meeting::Instead`].
    pub fn new(now: Instant, id: MoveId, begin: Begin) -> Destination {
        Destination {
            id,
            begin,
            phase: Phase::Adopting { since: now, again_at: now, until: now + ROOM_WAIT_MAX },
            say: VecDeque::new(),
            parts: VecDeque::new(),
            part_bytes: 0,
            importing: false,
            came: None,
            served: None,
            gone: None,
            owes_ready: true,
            owes_served: false,
            owned: false,
            strained: false,
            space: Space::Enough,
            full_pause: FULL_PAUSES[0],
            deaf: false,
        }
    }

    pub fn id(&self) -> MoveId {
        self.id
    }

    pub fn begin(&self) -> &Begin {
        &self.begin
    }

    pub fn state(&self) -> State {
        match self.phase {
            Phase::Over(state) => state,
            _ if self.is_whole() => State::Whole,
            _ => State::Arriving,
        }
    }

    /// For [`Destination::meet`].
    pub fn met(&self) -> Met {
        Met {
            id: self.id,
            prefix: self.begin.prefix,
            is_over: matches!(self.phase, Phase::Over(_)),
            has_served: self.served.is_some(),
            is_whole: self.is_whole(),
        }
    }

    /// All of it is served here.
    fn is_whole(&self) -> bool {
        self.phase == Phase::Open && self.served == Some(self.begin.prefix.last_hash())
    }

    /// Nothing comes any more; what came may still have to go, or to be served.
    pub fn has_ended(&self) -> bool {
        self.owned || matches!(self.phase, Phase::Releasing | Phase::Over(_))
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_)) && self.say.is_empty()
    }

    /// What is said next has the source freeze a slice, if there is one left. Everything that is gone is served by then.
    pub fn calls_for_slice(&self) -> bool {
        let owes = self.owes_ready && !self.is_full() || self.owes_served && self.served.is_some();
        let is_next = self.phase == Phase::Open && self.say.is_empty() && !self.owned;
        is_next && owes && self.gone <= self.served
    }

    /// # Errors
    /// [`Broken`] ends the link; what is served stays so.
    pub fn handle(&mut self, event: Event<'_>) -> Result<(), Broken> {
        match event {
            // What a source says that has died, or has nothing left to send, may come late.
            Event::Asked(_) if self.owned => {}
            Event::Asked(_) if !matches!(self.phase, Phase::Adopting { .. } | Phase::Open) => {}
            Event::Asked(ask) => return self.asked(ask),
            Event::LinkDown => self.link_down(),
            Event::Strained(strained) => self.strained = strained,
            Event::Owned => {
                self.forget_parts();
                self.owned = true;
            }
            // By the map it ended here.
            Event::Ended if self.owned => {}
            Event::Ended => self.end(),
        }
        Ok(())
    }

    fn link_down(&mut self) {
        self.forget_parts();
        self.say.clear();
        (self.owes_ready, self.owes_served, self.importing) = (false, false, false);
    }

    fn forget_parts(&mut self) {
        self.parts.clear();
        self.part_bytes = 0;
    }

    fn end(&mut self) {
        self.forget_parts();
        match self.phase {
            Phase::Adopting { .. } => self.phase = Phase::Over(State::Dropped),
            Phase::Open => self.phase = Phase::Releasing,
            Phase::Releasing | Phase::Over(_) => {}
        }
    }

    fn asked(&mut self, ask: Request<'_>) -> Result<(), Broken> {
        match ask {
            Request::Begin(begin) => {
                if (Begin { gone: None, ..begin }) != (Begin { gone: None, ..self.begin }) {
                    return Err(Broken);
                }
                self.link_down();
                self.owes_ready = true;
                self.deaf = false;
                // `Ready` says so too, and may have to wait.
                self.owes_served = self.is_full() && begin.gone.is_some();
                if self.is_full() && begin.gone.is_none() {
                    self.say.push_back(Response::Refused(Refusal::NoRoom));
                }
                begin.gone.map_or(Ok(()), |last| self.has_gone(last))
            }
            Request::Part(_) if self.deaf => Ok(()),
            Request::Part(bytes) => {
                let is_full = self.parts.len() >= PARTS_IN_FLIGHT_MAX
                    || self.part_bytes >= BYTES_IN_FLIGHT_MAX;
                if is_full || self.phase != Phase::Open {
                    return Err(Broken);
                }
                self.part_bytes += bytes.len();
                self.parts.push_back(bytes.to_vec());
                Ok(())
            }
            Request::Gone(last) => {
                self.owes_served = true;
                self.has_gone(last)
            }
            Request::Cancel if self.served.max(self.gone).is_some() => Err(Broken),
            Request::Cancel => {
                self.end();
                Ok(())
            }
        }
    }

    /// The source calls everything up to here gone: by a message, or by a request that it sent on.
    ///
    /// # Errors
    /// [`Broken`] if that has not come: a source that sends a slice on knows that it has.
    pub fn has_gone(&mut self, last: u64) -> Result<(), Broken> {
        if let Phase::Over(_) = self.phase {
            return Ok(());
        }
        let has_come = Some(last) <= self.served || Some(last) == self.came;
        if !has_come && !is_planted(Fault::GoneBeforeTaken) || self.phase != Phase::Open {
            return Err(Broken);
        }
        self.gone = self.gone.max(Some(last));
        Ok(())
    }

    /// What to do next. To be asked again and again until it is to wait.
    pub fn next(&mut self, now: Instant) -> Next {
        if let Some(answer) = self.say.pop_front() {
            return Next::Say(answer);
        }
        match self.phase {
            Phase::Over(_) => Next::Wait(None),
            Phase::Releasing => Next::Do(Step::Release),
            // Nothing has come of it: whoever follows the map adopts it.
            Phase::Adopting { .. } if self.owned => {
                self.phase = Phase::Over(State::Dropped);
                Next::Wait(None)
            }
            Phase::Adopting { until, .. } if until <= now => {
                self.phase = Phase::Over(State::Dropped);
                Next::Say(Response::Refused(Refusal::NoRoom))
            }
            Phase::Adopting { again_at, .. } if again_at <= now => Next::Do(Step::Adopt),
            Phase::Adopting { again_at, .. } => Next::Wait(Some(again_at)),
            Phase::Open => self.next_open(now),
        }
    }

    /// The source has been told that there is no room. It does not send before it hears `Ready`.
    fn next_full(&mut self, now: Instant, again_at: Instant) -> Next {
        // What came of the slice is no use: its source serves it. Then there is more room.
        if self.came > self.served {
            return Next::Do(Step::GiveUp);
        }
        if let Some(last) = self.served.filter(|_| std::mem::take(&mut self.owes_served)) {
            return Next::Say(Response::Served(last));
        }
        match again_at <= now {
            true => Next::Do(Step::LookForRoom),
            false => Next::Wait(Some(again_at)),
        }
    }

    fn next_open(&mut self, now: Instant) -> Next {
        if let Some(last) = self.gone.filter(|last| Some(*last) > self.served) {
            return Next::Do(Step::ServeUntil(last));
        }
        if self.owned {
            return self.next_owned();
        }
        if let Space::Full { again_at } = self.space {
            return self.next_full(now, again_at);
        }
        if std::mem::take(&mut self.owes_ready) {
            return Next::Say(Response::Ready(self.served));
        }
        if let Some(last) = self.served.filter(|_| std::mem::take(&mut self.owes_served)) {
            return Next::Say(Response::Served(last));
        }
        let Some(part) = self.parts.pop_front() else { return Next::Wait(None) };
        self.part_bytes -= part.len();
        self.importing = true;
        Next::Do(Step::Import(part))
    }

    fn next_owned(&mut self) -> Next {
        if self.is_whole() {
            self.phase = Phase::Over(State::Owned);
            return Next::Wait(None);
        }
        // The source has died. What came of a slice that was not gone may be older than what it served since.
        let is_unfinished = self.came > self.served && !is_planted(Fault::KeepsUnfinished)
            || self.came.is_some() && is_planted(Fault::GivesUpWhatIsServed);
        Next::Do(if is_unfinished { Step::GiveUp } else { Step::Inherit })
    }

    /// Whether the cachelet arrives now.
    pub fn adopted(&mut self, now: Instant, adopted: Adopted) {
        let Phase::Adopting { since, until, .. } = self.phase else {
            panic!("it was to be adopted")
        };
        let again_at = now + ADOPT_AGAIN;
        self.phase = match adopted {
            Adopted::Arrives => Phase::Open,
            Adopted::NoRoom => Phase::Adopting { since, again_at, until },
            Adopted::Flushing => {
                let until = until.max((now + ROOM_WAIT_MAX).min(since + FLUSH_WAIT_MAX));
                Phase::Adopting { since, again_at, until }
            }
        };
    }

    /// A part is in the store; or it cannot be imported, since it is broken, or one before it is missing.
    ///
    /// # Errors
    /// [`Broken`] for the latter.
    pub fn imported(&mut self, part: Option<Imported>) -> Result<(), Broken> {
        if !self.is_full() {
            self.space = Space::Enough;
        }
        let Some(Imported { slice, number, last }) = part else {
            self.forget_parts();
            return Err(Broken);
        };
        self.came = Some(last);
        if is_planted(Fault::ServedBeforeGone) {
            self.gone = self.came.max(self.gone);
        }
        // The source has forgotten what it sent over a link that broke meanwhile.
        if std::mem::take(&mut self.importing) {
            self.say.push_back(Response::Taken { slice, number, strained: self.strained });
        }
        Ok(())
    }

    /// The part that is being imported has found no room: it is tried again for a while, then the source is told, and keeps what it has.
    /// `evicts`: where items are evicted, what finds none though the source was told again and again is dropped.
    pub fn found_no_room(&mut self, now: Instant, evicts: bool) -> NoRoom {
        let (since, pause) = match self.space {
            Space::Crowded { since, pause } => (since, pause),
            Space::Enough | Space::Full { .. } => (now, CROWDED_AGAIN),
        };
        let is_early = now < since + CROWDED_MAX;
        let drops = evicts && self.full_pause == FULL_PAUSES[1] && !is_early;
        // Nobody waits for a part over a link that broke, or of a move that has ended.
        let is_awaited = self.awaits_part();
        if is_awaited && (is_early || drops) {
            self.space = Space::Crowded { since, pause: 2 * pause };
            return NoRoom::Again { at: now + pause, drops };
        }
        self.space = Space::Enough;
        if is_awaited {
            self.space = Space::Full { again_at: now + self.full_pause };
            self.full_pause = (self.full_pause * 2).min(FULL_PAUSES[1]);
            self.deaf = true;
            self.forget_parts();
            self.say.push_back(Response::Refused(Refusal::NoRoom));
        }
        self.importing = false;
        NoRoom::GivenUp
    }

    /// A part that was given up has come in part: up to this hash nothing of it may stay that is not served.
    pub fn came_in_part(&mut self, last: u64) {
        self.came = Some(last);
    }

    /// The source waits for the part that is being imported.
    pub fn awaits_part(&self) -> bool {
        self.importing && self.phase == Phase::Open && !self.owned
    }

    /// Its memory was full when it was looked last.
    pub fn is_full(&self) -> bool {
        matches!(self.space, Space::Full { .. })
    }

    /// Whether there is room for parts again.
    pub fn looked_for_room(&mut self, now: Instant, is_there: bool) {
        self.space = match is_there {
            true => Space::Enough,
            false => Space::Full { again_at: now + FULL_PAUSES[0] },
        };
    }

    /// Everything up to this hash is served here.
    pub fn serves(&mut self, last: u64) {
        if Some(last) > self.served {
            self.full_pause = FULL_PAUSES[0];
        }
        self.served = self.served.max(Some(last));
    }

    /// `more` of what came of a slice that was not gone is to be given up.
    pub fn gave_up(&mut self, more: bool) {
        if !more {
            self.came = None;
        }
    }

    /// All of the cachelet is served here, though not all of it came.
    pub fn inherited(&mut self) {
        self.phase = Phase::Over(State::Owned);
    }

    /// Nothing of the cachelet is here.
    pub fn released(&mut self) {
        self.phase = Phase::Over(State::Dropped);
    }
}
