//! What a peer has promised to coordinators: which keys' requests it passes on, and for how long (docs/design/proxy.md).
//!
//! A promise is given when nothing is unanswered that was sent for its key elsewhere than to the coordinator, and ends likewise. In
//! between, clients that ask for the key wait.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};
use mbal_random::mix;

/// A connection has answered, or lost, so many requests since the start.
pub(crate) type Fence = (usize, u64);

/// A coordinator that asks for promises.
#[derive(Clone, Copy, Debug)]
struct Session {
    id: u64,
    until: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// What was sent to the key's home is not answered.
    Giving {
        fences: Vec<Fence>,
    },
    Given,
    /// What was passed on is not answered.
    Ending {
        fences: Vec<Fence>,
    },
}

#[derive(Debug)]
struct Promise {
    member: usize,
    state: State,
}

/// What becomes of a request for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// Nobody was promised anything.
    Own,
    /// It is passed on to this proxy.
    Pass(usize),
    /// Its client waits.
    Hold,
}

/// All promises of a proxy.
pub(crate) struct Promises {
    /// By proxy.
    sessions: Vec<Option<Session>>,
    keys: BTreeMap<u64, Promise>,
    /// Those that are given or ended.
    changing: usize,
    next_id: u64,
    lease: Duration,
    /// Nobody is served before this: an earlier life of this proxy may have promised anything.
    pub serves_from: Instant,
}

/// A coordinator that asks for more keys than it can have copies of gets no further promises.
const KEYS_MAX: usize = 1024;

impl Promises {
    pub fn new(members: usize, lease: Duration, seed: u64) -> Promises {
        Promises {
            sessions: vec![None; members],
            keys: BTreeMap::new(),
            changing: 0,
            next_id: seed,
            lease,
            serves_from: Instant::MAX,
        }
    }

    pub fn start(&mut self, now: Instant) {
        let forgets = is_planted(Fault::RestartForgetsPromises);
        self.serves_from = if forgets { now } else { now + self.lease };
    }

    #[inline]
    pub fn course(&self, hash: u64) -> Course {
        match self.keys.get(&hash) {
            None => Course::Own,
            Some(Promise { member, state: State::Given }) => Course::Pass(*member),
            Some(_) => Course::Hold,
        }
    }

    pub fn is_changing(&self) -> bool {
        self.changing > 0
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn has_session(&self, member: usize) -> bool {
        self.sessions[member].is_some()
    }

    /// A coordinator asks for a session. `None`: an earlier one lives.
    pub fn hello(&mut self, member: usize, now: Instant) -> Option<u64> {
        if self.sessions[member].is_some() {
            return None;
        }
        self.next_id = self.next_id.wrapping_add(1);
        let id = mix(self.next_id);
        self.sessions[member] = Some(Session { id, until: now + self.lease });
        Some(id)
    }

    /// Whose session it is.
    pub fn member_of(&self, id: u64) -> Option<usize> {
        self.sessions.iter().position(|session| session.is_some_and(|session| session.id == id))
    }

    pub fn keep(&mut self, member: usize, now: Instant) {
        if let Some(session) = &mut self.sessions[member] {
            session.until = now + self.lease;
        }
    }

    /// True if a claim need not begin by waiting: the key is promised, or on its way to that.
    pub fn knows(&self, hash: u64) -> bool {
        self.keys.contains_key(&hash)
    }

    /// A coordinator wants a key. True if it is promised; else it is, once all before `fences` is answered.
    pub fn claim(&mut self, member: usize, hash: u64, fences: Vec<Fence>) -> bool {
        if let Some(promise) = self.keys.get_mut(&hash).filter(|one| one.member == member) {
            // Nothing was sent elsewhere since it ended.
            if matches!(promise.state, State::Ending { .. }) {
                promise.state = State::Given;
                self.changing -= 1;
            }
            return promise.state == State::Given;
        }
        if self.keys.len() < KEYS_MAX && !self.keys.contains_key(&hash) {
            let at_once = is_planted(Fault::PromisedInFlight);
            let state = if at_once { State::Given } else { State::Giving { fences } };
            self.changing += usize::from(!at_once);
            self.keys.insert(hash, Promise { member, state });
            return at_once;
        }
        false
    }

    /// A coordinator does without a key: it is passed on no more, once all before `fences` is answered.
    pub fn release(&mut self, member: usize, hash: u64, fences: Vec<Fence>) {
        let Some(promise) = self.keys.get_mut(&hash).filter(|one| one.member == member) else {
            return;
        };
        match promise.state {
            State::Given => {
                promise.state = State::Ending { fences };
                self.changing += 1;
            }
            State::Giving { .. } => {
                self.keys.remove(&hash);
                self.changing -= 1;
            }
            State::Ending { .. } => {}
        }
    }

    /// Gives and ends promises behind whose fences all is answered. One is not given if `in_doubt` says that a connection may have
    /// lost a write. True if clients that wait may go on.
    pub fn settle(
        &mut self,
        answered: impl Fn(usize) -> u64,
        in_doubt: impl Fn(usize) -> bool,
    ) -> bool {
        let before = self.changing;
        let is_past = |fences: &[Fence]| fences.iter().all(|(conn, upto)| *upto <= answered(*conn));
        let mut changed = 0;
        self.keys.retain(|_, promise| match &promise.state {
            State::Giving { fences } if fences.iter().any(|(conn, _)| in_doubt(*conn)) => {
                changed += 1;
                false
            }
            State::Giving { fences } if is_past(fences) => {
                promise.state = State::Given;
                changed += 1;
                true
            }
            State::Ending { fences } if is_past(fences) => {
                changed += 1;
                false
            }
            _ => true,
        });
        self.changing = before - changed;
        changed > 0
    }

    /// When the next lease is over.
    pub fn next_end(&self) -> Option<Instant> {
        self.sessions.iter().flatten().map(|session| session.until).min()
    }

    /// A coordinator that was silent for a lease.
    pub fn expired(&self, now: Instant) -> Option<usize> {
        self.sessions.iter().position(|one| one.is_some_and(|session| session.until <= now))
    }

    /// Takes back all that a coordinator was promised.
    pub fn end(&mut self, member: usize) {
        self.sessions[member] = None;
        self.keys.retain(|_, promise| promise.member != member);
        self.changing = self.keys.values().filter(|one| one.state != State::Given).count();
    }
}
