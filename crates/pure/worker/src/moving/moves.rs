//! Moves of cachelets between this server and others: which there are, and where their keys are.
//!
//! ```text
//!   coordinator's answers, links           any worker                    the worker that carries it
//!      | moves_told, move_link_up, ...        | whereabouts, knows_gone      | Worker::carry: a step after a batch
//!      v                                      v                              v
//!   Moves: by number ---> Move: a Leaver or an Arriver, behind a lock that is held for a step
//! ```
//! `docs/design/moves.md` is the protocol, `mbal_migration` the two sides of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use mbal_locks::{Mutex, MutexGuard, RwLock, ranks};
use mbal_migration::{Arriver, Leaver, State, Strain, destination, source};
use mbal_model::{Instant, MoveId, MoveLink, Prefix, ServerId, WorkerId};
use mbal_wire::Gone;

use crate::time::Now;

/// No coordinator gives a move that number: what is on its way by it comes by itself.
pub(crate) const NO_MOVE: MoveId = MoveId(0);

/// Where a key is that another server's, or nobody's, route leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    Here,
    At(Owning),
    /// Its slice is on its way: in a moment it is here, or there.
    OnItsWay,
}

impl Whereabouts {
    /// The other server that serves it, if one does.
    pub fn server(self) -> Option<ServerId> {
        match self {
            Whereabouts::At(owning) => Some(owning.server),
            Whereabouts::Here | Whereabouts::OnItsWay => None,
        }
    }
}

/// The server that serves a key. `gone`: it got it by a move, of which it may not have heard yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owning {
    pub server: ServerId,
    pub gone: Option<Gone>,
}

/// A cachelet that leaves or comes.
pub(crate) struct Move {
    pub id: MoveId,
    pub prefix: Prefix,
    /// The other server.
    pub peer: ServerId,
    /// Who does its steps.
    pub worker: WorkerId,
    /// This server is the source.
    pub leaves: bool,
    /// The map that was followed when it began here.
    pub since: u64,
    /// Of the source, for routes: the last hash that is gone; 0 is none.
    pub gone: AtomicU64,
    /// Of what comes: words of the coordinator since, by which no move has had this number yet.
    pub unknown: AtomicU32,
    pub sides: Mutex<ranks::MoveSides, Sides>,
}

/// What only one thread at a time has.
pub(crate) struct Sides {
    /// Over which the two sides talk; what is said over an older one is not heard.
    pub link: Option<MoveLink>,
    pub side: Side,
}

pub(crate) enum Side {
    Leaves(Box<Leaver>),
    Comes(Box<Arriver>),
}

/// The moves of one server.
#[derive(Default)]
pub(crate) struct Moves {
    pub incarnation: AtomicU64,
    all: RwLock<ranks::Moves, BTreeMap<MoveId, Arc<Move>>>,
    /// So that who looks for none takes no lock.
    any: AtomicBool,
    /// What comes was chosen.
    pub chosen: AtomicBool,
    /// This process is about to end: nothing more comes.
    pub leaving: AtomicBool,
    /// Bytes of parts that were taken, by all moves from here so far.
    pub carried: AtomicU64,
    /// Those that this server dialed, and that are up.
    links: Mutex<ranks::MoveLinks, BTreeMap<ServerId, MoveLink>>,
}

impl Move {
    pub fn lock(&self) -> MutexGuard<'_, ranks::MoveSides, Sides> {
        self.sides.lock()
    }

    /// A map says whose the cachelet is: one that is newer than the move.
    pub fn follow(&self, map_version: u64, is_owned_here: bool) {
        if map_version <= self.since {
            return;
        }
        match (&mut self.lock().side, is_owned_here) {
            (Side::Leaves(leaver), false) => {
                // Times are of no account for it.
                let heard = leaver.source.handle(Instant::ZERO, source::Event::HandedOver);
                heard.expect("a map is no answer");
            }
            (Side::Comes(arriver), true) => {
                let heard = arriver.destination.handle(destination::Event::Owned);
                heard.expect("a map is no message");
            }
            _ => {}
        }
    }

    /// What routes go by, as the source says it now.
    pub fn publish(&self, side: &Side) {
        if let Side::Leaves(leaver) = side {
            self.gone.store(leaver.source.gone().unwrap_or(0), Release);
        }
    }
}

impl Side {
    /// What clients of the worker that carries it feel.
    pub fn strain(&mut self, strain: Strain) {
        let is_fine = match self {
            Side::Leaves(leaver) => {
                leaver.source.handle(Instant::ZERO, source::Event::Strained(strain)).is_ok()
            }
            Side::Comes(arriver) => {
                let strained = destination::Event::Strained(strain != Strain::None);
                arriver.destination.handle(strained).is_ok()
            }
        };
        assert!(is_fine, "it is no message");
    }

    pub fn link_is_down(&mut self, now: Now) {
        let is_fine = match self {
            Side::Leaves(leaver) => {
                leaver.source.handle(now.instant(), source::Event::LinkDown).is_ok()
            }
            Side::Comes(arriver) => {
                arriver.destination.handle(destination::Event::LinkDown).is_ok()
            }
        };
        assert!(is_fine, "a link that breaks says nothing");
    }

    /// What it does next has a slice frozen, here or there.
    pub fn begins_slice(&self, now: Instant) -> bool {
        match self {
            Side::Leaves(leaver) => leaver.source.is_to_freeze(now),
            Side::Comes(arriver) => arriver.destination.calls_for_slice(),
        }
    }

    /// Nothing comes any more.
    pub fn has_ended(&self) -> bool {
        matches!(self, Side::Comes(arriver) if arriver.destination.has_ended())
    }

    /// It is over, and nobody is to hear of it any more. Of one that came back the coordinator is.
    pub fn is_done(&self) -> bool {
        match self {
            Side::Leaves(leaver) => {
                leaver.source.is_over() && leaver.source.state() == State::HandedOver
            }
            Side::Comes(arriver) => arriver.destination.is_over(),
        }
    }
}

impl Moves {
    pub fn is_empty(&self) -> bool {
        !self.any.load(Acquire)
    }

    pub fn len(&self) -> usize {
        if self.is_empty() { 0 } else { self.all.read().len() }
    }

    /// Whether what comes from now on was chosen.
    pub fn choose(&self, is_chosen: bool) {
        self.chosen.store(is_chosen, Relaxed);
    }

    pub fn carried(&self) -> u64 {
        self.carried.load(Relaxed)
    }

    pub fn get(&self, id: MoveId) -> Option<Arc<Move>> {
        self.all.read().get(&id).cloned()
    }

    /// Those that `is_meant` says.
    pub fn list(&self, is_meant: impl Fn(&Move) -> bool) -> Vec<Arc<Move>> {
        if self.is_empty() {
            return Vec::new();
        }
        let all = self.all.read();
        all.values().filter(|one| is_meant(one)).cloned().collect()
    }

    /// What comes of all of them, while none begins or ends.
    pub fn with_all<T>(&self, what: impl FnOnce(Vec<Arc<Move>>) -> T) -> T {
        let all = self.all.read();
        what(all.values().cloned().collect())
    }

    pub fn remove(&self, id: MoveId) {
        let mut all = self.all.write();
        all.remove(&id);
        self.any.store(!all.is_empty(), Release);
    }

    pub fn insert(&self, one: Move) -> Arc<Move> {
        let one = Arc::new(one);
        let mut all = self.all.write();
        all.insert(one.id, Arc::clone(&one));
        self.any.store(true, Release);
        one
    }

    pub fn links(&self) -> MutexGuard<'_, ranks::MoveLinks, BTreeMap<ServerId, MoveLink>> {
        self.links.lock()
    }

    /// Of a key whose route is this move.
    pub fn whereabouts(&self, id: MoveId, hash: u64) -> Whereabouts {
        // Without an entry it has just begun, or ended: the route is another in a moment.
        let Some(one) = self.get(id) else { return Whereabouts::OnItsWay };
        match one.gone.load(Acquire) {
            last if hash <= last && last != 0 => {
                let gone = Some(Gone { by_move: id.0, last });
                Whereabouts::At(Owning { server: one.peer, gone })
            }
            _ => Whereabouts::OnItsWay,
        }
    }
}
