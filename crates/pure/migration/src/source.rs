//! The side of a move that has the cachelet.
//!
//! ```text
//!  Asking --> Here --> Frozen --> Sending --> Gone --> Forgetting --> Here ... --> Sealed --> Over
//!              ^         |           |
//!              +--thaw---+-----------+     the link broke, patience ended, it is to go back
//! ```
//!
//! It alone says that a slice is gone, and it never doubts which one is: a broken link leaves a slice here or gone.

use std::collections::VecDeque;
use std::time::Duration;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};

use crate::message::{Request, Response};
use crate::order::Order;
use crate::pace::{Pace, Patience, Strain};
use crate::report::{Progress, State, Why};
use crate::window::Window;

/// Between two looks whether all batches have left.
const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// Between two attempts to begin to leave.
const LEAVE_AGAIN: Duration = Duration::from_millis(10);
/// A cachelet that cannot leave for so long stays.
const LEAVE_MAX: Duration = Duration::from_secs(10);

/// What can happen to the source of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The link to the destination is up; nothing of an older one comes any more.
    LinkUp,
    LinkDown,
    Answer(Response),
    /// Whether clients leave the worker that does the steps no time.
    Strained(Strain),
    /// The coordinator wants the move to end before it has begun in earnest.
    Cancel,
    /// The coordinator has ended the move, since the destination has died.
    Lost,
    /// The coordinator has ended the move: by the newest map the cachelet is another server's.
    HandedOver,
}

/// What is to be done to the store, named after its functions; each is answered by the function that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// [`Source::began`].
    BeginToLeave,
    /// [`Source::froze`].
    Freeze,
    /// `all_have_left` of this stamp; [`Source::looked`].
    Look(u64),
    /// The next part, which is sent too; [`Source::exported`].
    Export,
    /// [`Source::thawed`].
    Thaw,
    /// [`Source::forgot`].
    Forget,
    /// [`Source::stayed`].
    Stay,
    /// [`Source::released`].
    Release,
}

/// What the source wants now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Say(Request<'static>),
    Do(Step),
    /// Nothing until then, or until something happens.
    Wait(Option<Instant>),
}

/// A part that has been exported, and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    pub slice: u32,
    pub number: u32,
    /// The last hash of its slice.
    pub last: u64,
    pub bytes: usize,
    /// Of the slice.
    pub more: bool,
}

/// The destination said what cannot be; the link is to be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The cachelet does not leave yet.
    Asking {
        again_at: Instant,
        until: Option<Instant>,
    },
    /// No slice is frozen; the next may be from then on.
    Here {
        from: Instant,
    },
    Frozen {
        since: Instant,
        stamp: u64,
        look_at: Instant,
    },
    Sending {
        since: Instant,
        last: u64,
        more: bool,
    },
    /// What is gone is not yet known to be served.
    Gone,
    Forgetting,
    Sealed,
    Over(State),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Down,
    /// `Begin` has been said.
    Asked,
    Ready,
}

/// A cachelet that leaves this server.
#[derive(Debug)]
pub struct Source {
    order: Order,
    phase: Phase,
    link: Link,
    say: VecDeque<Request<'static>>,
    in_flight: Window,
    /// The last hash that is gone.
    gone: Option<u64>,
    /// The cachelet is to stay.
    back: Option<Why>,
    handed_over: bool,
    /// When the first slice was frozen.
    began: Option<Instant>,
    patience: Patience,
    pace: Pace,
    strain: Strain,
    strained_there: bool,
    progress: Progress,
}

impl Source {
    pub fn new(order: Order) -> Source {
        Source {
            order,
            phase: Phase::Asking { again_at: Instant::ZERO, until: None },
            link: Link::Down,
            say: VecDeque::new(),
            in_flight: Window::default(),
            gone: None,
            back: None,
            handed_over: false,
            began: None,
            patience: Patience::new(),
            pace: Pace::default(),
            strain: Strain::None,
            strained_there: false,
            progress: Progress::default(),
        }
    }

    pub fn order(&self) -> &Order {
        &self.order
    }

    /// The last hash that is gone: requests for what is not above it are sent on, and name it. `None`: nothing is.
    pub fn gone(&self) -> Option<u64> {
        self.gone
    }

    pub fn state(&self) -> State {
        match self.phase {
            Phase::Asking { .. } => State::Asking,
            Phase::Sealed => State::Sealed,
            Phase::Over(state) => state,
            _ => State::Moving,
        }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_)) && self.say.is_empty()
    }

    /// A slice is frozen, and somebody may still be in it.
    pub fn is_waiting_for_batches(&self) -> bool {
        matches!(self.phase, Phase::Frozen { .. })
    }

    /// A slice is gone, and the destination has not said that it serves it.
    pub fn is_unconfirmed(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// The next step freezes a slice, if there is one left.
    pub fn is_to_freeze(&self, now: Instant) -> bool {
        let is_asked = self.handed_over || self.back.is_some() || !self.say.is_empty();
        let is_ready = self.link == Link::Ready && self.in_flight.is_empty();
        let is_time = matches!(self.phase, Phase::Here { from } if from <= now);
        is_time && is_ready && !is_asked
    }

    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// # Errors
    /// [`Broken`] ends the link, which then comes up again.
    pub fn handle(&mut self, now: Instant, event: Event) -> Result<(), Broken> {
        match event {
            Event::LinkUp => {
                self.in_flight.clear();
                self.say.clear();
                self.link = Link::Asked;
                if !matches!(self.phase, Phase::Over(_) | Phase::Sealed) {
                    self.say.push_back(Request::Begin(self.order.begin(self.gone)));
                }
            }
            Event::LinkDown => {
                self.link = Link::Down;
                self.in_flight.clear();
                self.say.clear();
                if self.phase == Phase::Gone && is_planted(Fault::TakenBackUnasked) {
                    self.back = Some(Why::Lost);
                }
            }
            // What a destination has said before it died may come late.
            Event::Answer(_) if self.back == Some(Why::Lost) => {}
            Event::Answer(answer) => return self.answered(now, answer),
            Event::Strained(strain) => self.strain = strain,
            Event::Cancel => self.stay_if_whole(Why::Cancelled),
            Event::Lost => self.back = Some(Why::Lost),
            Event::HandedOver => self.handed_over = true,
        }
        Ok(())
    }

    fn answered(&mut self, now: Instant, answer: Response) -> Result<(), Broken> {
        match answer {
            Response::Ready(served) if self.link == Link::Asked => {
                if served != self.gone {
                    return Err(Broken);
                }
                self.link = Link::Ready;
                self.progress.refused = None;
                self.served();
            }
            Response::Refused(why) if self.link == Link::Asked => {
                self.stay_if_whole(Why::Refused(why));
                self.progress.refused = Some(why);
            }
            // There is no room for what comes: the slice that is on its way is served here on. The next goes when there is some again.
            Response::Refused(why) if self.link == Link::Ready => {
                self.in_flight.clear();
                self.link = Link::Asked;
                self.stay_if_whole(Why::Refused(why));
                self.progress.refused = Some(why);
                if self.back.is_none() {
                    self.say.push_back(Request::Begin(self.order.begin(self.gone)));
                }
            }
            Response::Taken { slice, number, strained } => {
                self.strained_there = strained;
                let bytes = self.in_flight.taken((slice, number)).ok_or(Broken)?;
                self.progress.bytes += bytes as u64;
                if let Phase::Sending { since, last, more: false } = self.phase {
                    if self.in_flight.is_empty() && self.back.is_none() {
                        self.slice_has_gone(now, since, last);
                    }
                }
            }
            Response::Served(last) if Some(last) == self.gone => self.served(),
            _ => return Err(Broken),
        }
        Ok(())
    }

    /// From now on this server never serves the slice again, but when the coordinator has said that the destination is dead.
    fn slice_has_gone(&mut self, now: Instant, since: Instant, last: u64) {
        self.gone = Some(last);
        self.phase = Phase::Gone;
        self.patience.slice_has_gone();
        self.count_pause(now, since);
        self.progress.slices += 1;
        self.say.push_back(Request::Gone(last));
        if is_planted(Fault::ForgottenBeforeServed) {
            self.phase = Phase::Forgetting;
        }
    }

    fn served(&mut self) {
        if self.phase == Phase::Gone {
            self.phase = Phase::Forgetting;
        }
    }

    fn stay_if_whole(&mut self, why: Why) {
        match self.gone {
            None => self.back = self.back.or(Some(why)),
            Some(_) if why == Why::Cancelled => self.progress.cancelled_too_late = true,
            Some(_) => {}
        }
    }

    /// What to do next. To be asked again and again until it is to wait.
    pub fn next(&mut self, now: Instant) -> Next {
        if let Some(ask) = self.say.pop_front() {
            return Next::Say(ask);
        }
        match self.phase {
            Phase::Over(_) => Next::Wait(None),
            Phase::Asking { .. } if self.handed_over => self.over(State::HandedOver),
            _ if self.handed_over => Next::Do(Step::Release),
            Phase::Asking { again_at, until } => self.ask(now, again_at, until),
            Phase::Here { .. } if self.back.is_some() => Next::Do(Step::Stay),
            Phase::Here { from } if self.link == Link::Ready && self.in_flight.is_empty() => {
                match from <= now {
                    true => Next::Do(Step::Freeze),
                    false => Next::Wait(Some(from)),
                }
            }
            Phase::Here { .. } => Next::Wait(None),
            Phase::Frozen { since, .. } | Phase::Sending { since, .. }
                if self.is_to_thaw(now, since) =>
            {
                Next::Do(Step::Thaw)
            }
            Phase::Frozen { stamp, look_at, .. } if look_at <= now => Next::Do(Step::Look(stamp)),
            Phase::Frozen { look_at, .. } => Next::Wait(Some(look_at)),
            Phase::Sending { more: true, .. } if self.may_send() => Next::Do(Step::Export),
            Phase::Sending { since, .. } => Next::Wait(Some(since + self.patience.lasts())),
            // The destination may have served newer items than are here.
            Phase::Gone if self.back.is_some() => match is_planted(Fault::ThawsWhatIsGone) {
                true => Next::Do(Step::Thaw),
                false => Next::Do(Step::Forget),
            },
            Phase::Gone => Next::Wait(None),
            Phase::Forgetting => Next::Do(Step::Forget),
            Phase::Sealed if self.back.is_some() => Next::Do(Step::Stay),
            Phase::Sealed => Next::Wait(None),
        }
    }

    fn ask(&mut self, now: Instant, again_at: Instant, until: Option<Instant>) -> Next {
        if let Some(why) = self.back {
            return self.over_here(why);
        }
        if self.link != Link::Ready {
            return Next::Wait(None);
        }
        let until = until.unwrap_or(now + LEAVE_MAX);
        if until <= now {
            return self.over_here(Why::CannotLeave);
        }
        self.phase = Phase::Asking { again_at, until: Some(until) };
        match again_at <= now {
            true => Next::Do(Step::BeginToLeave),
            false => Next::Wait(Some(again_at)),
        }
    }

    fn over(&mut self, state: State) -> Next {
        self.phase = Phase::Over(state);
        Next::Wait(None)
    }

    /// The destination is told if it can be; else it hears of it by the coordinator.
    fn over_here(&mut self, why: Why) -> Next {
        self.phase = Phase::Over(State::Back(why));
        self.gone = None;
        if self.link == Link::Down || why == Why::Lost {
            return Next::Wait(None);
        }
        Next::Say(Request::Cancel)
    }

    fn is_to_thaw(&self, now: Instant, since: Instant) -> bool {
        let is_late = since + self.patience.lasts() <= now || self.link != Link::Ready;
        self.back.is_some() || is_late && !is_planted(Fault::FrozenForEver)
    }

    fn may_send(&self) -> bool {
        self.link == Link::Ready
            && (self.in_flight.has_room() || is_planted(Fault::SendsWithoutBound))
    }

    fn count_pause(&mut self, now: Instant, since: Instant) {
        let paused = (now - since).as_nanos() as u64;
        self.progress.paused_ns_longest = self.progress.paused_ns_longest.max(paused);
        self.progress.paused_ns_sum += paused;
    }

    /// Whether the cachelet leaves now.
    pub fn began(&mut self, now: Instant, leaves: bool) {
        let Phase::Asking { until, .. } = self.phase else { panic!("it was asked to begin") };
        self.phase = match leaves {
            true => Phase::Here { from: now },
            false => Phase::Asking { again_at: now + LEAVE_AGAIN, until },
        };
    }

    /// The stamp of the frozen slice's batches; `None`: no slice is left.
    pub fn froze(&mut self, now: Instant, stamp: Option<u64>) {
        self.began.get_or_insert(now);
        self.phase = match stamp {
            Some(stamp) => Phase::Frozen { since: now, stamp, look_at: now },
            None => Phase::Sealed,
        };
    }

    /// Whether nobody is in the frozen slice any more.
    pub fn looked(&mut self, now: Instant, all_have_left: bool) {
        let Phase::Frozen { since, stamp, .. } = self.phase else { panic!("a slice is frozen") };
        self.phase = match all_have_left {
            true => Phase::Sending { since, last: 0, more: true },
            false => Phase::Frozen { since, stamp, look_at: now + LOOK_AGAIN },
        };
    }

    /// A part of the frozen slice has been exported, and sent.
    pub fn exported(&mut self, now: Instant, part: Exported) {
        let Exported { slice, number, last, bytes, more } = part;
        let Phase::Sending { since, .. } = self.phase else { panic!("a slice is being sent") };
        self.phase = Phase::Sending { since, last, more };
        self.in_flight.sent((slice, number), bytes);
        self.progress.parts += 1;
        if !more && is_planted(Fault::GoneBeforeTaken) {
            self.slice_has_gone(now, since, last);
        }
    }

    /// The frozen slice is served here again.
    pub fn thawed(&mut self, now: Instant) {
        let mut from = now;
        if let Phase::Frozen { since, .. } | Phase::Sending { since, .. } = self.phase {
            self.count_pause(now, since);
            if since + self.patience.lasts() <= now {
                from = now + self.patience.ended();
            }
        }
        self.progress.again += 1;
        self.phase = Phase::Here { from };
    }

    /// `more` of the gone slice is to be forgotten.
    pub fn forgot(&mut self, now: Instant, more: bool) {
        if more {
            self.phase = Phase::Forgetting;
            return;
        }
        let is_all = self.gone == Some(self.order.prefix.last_hash());
        let rest = self.pace.rest(now, self.strain, self.strained_there);
        self.progress.is_slowed = self.pace.is_slowed();
        self.progress.moved_for = now - self.began.unwrap_or(now);
        self.phase = if is_all { Phase::Sealed } else { Phase::Here { from: now + rest } };
    }

    /// All of the cachelet is served here.
    pub fn stayed(&mut self) {
        let why = self.back.expect("it was to stay");
        if let Next::Say(ask) = self.over_here(why) {
            self.say.push_back(ask);
        }
    }

    /// Nothing of the cachelet is here.
    pub fn released(&mut self) {
        self.over(State::HandedOver);
    }
}
