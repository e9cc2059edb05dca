//! What a worker does for moves: step by step, after its batches.

use std::time::Duration;

use mbal_migration::{Advance, State, Strain, destination};
use mbal_model::{Elsewhere, Instant, Prefix};

use crate::commands::context::Here;
use crate::event::{Action, Actions};
use crate::moving::budget::{LatencyBudget, Waits};
use crate::moving::moves::{Move, Side, Sides};
use crate::shared::Shared;
use crate::time::Now;

/// A cachelet does not begin to leave before its keys have no copies; it is looked whether they do this often.
const COPIES_AGAIN: Duration = Duration::from_millis(2);

/// Who has no lease looks whether it has one again, or gives up what comes, so often.
const LEASE_AGAIN: Duration = Duration::from_millis(2);

/// Steps of a move at a time, some ten microseconds each.
const STEPS: usize = 2;

/// A worker's part in moves.
pub(crate) struct Carrier {
    /// When moves go on, if not before.
    pub at: Option<Instant>,
    budget: LatencyBudget,
    strain: Strain,
    /// It has gone on with a move when it last looked.
    pub went_on: bool,
}

/// What came of going on with moves.
#[derive(Default)]
pub(crate) struct Carried {
    /// One of them has more to do at once.
    pub hastens: bool,
    /// One of them is over: the map is to be looked at again.
    pub ended: bool,
}

impl Carrier {
    pub fn new(move_budget: u32) -> Carrier {
        let budget = LatencyBudget::new(move_budget);
        Carrier { at: None, budget, strain: Strain::None, went_on: false }
    }

    /// Looks how long clients wait, before what is done in the background.
    pub fn observe(&mut self, shared: &Shared, here: &Here, now: Now, is_idle: bool) {
        let counters = shared.counters(here.owner.worker.0.into());
        let counted = || Waits { requests: counters.turns.get(), ns: counters.waited_ns.get() };
        self.strain = self.budget.observe(now.instant(), is_idle, counted);
        // By a deadline: clients wait rather than miss.
        if shared.cpu_budget.hurries() && self.strain == Strain::Felt {
            self.strain = Strain::None;
        }
    }

    /// Goes on with the moves that this worker carries. In no batch.
    pub fn carry(
        &mut self,
        shared: &Shared,
        here: &Here,
        now: Now,
        actions: &mut Actions,
    ) -> Carried {
        let mut carried = Carried::default();
        self.went_on = false;
        if shared.moves.is_empty() {
            self.at = None;
            return carried;
        }
        let worker = here.owner.worker;
        let mut until: Option<Instant> = None;
        for one in shared.moves.list(|one| one.worker == worker) {
            match self.carry_one(shared, here, now, &one, actions) {
                Pause::None => carried.hastens = true,
                Pause::Until(at) => until = Some(until.map_or(at, |other| other.min(at))),
                Pause::Told => {}
                Pause::Over => carried.ended = true,
            }
        }
        // Workers' clocks show whole microseconds.
        self.at = until.map(|at| Instant::from_micros(at.as_nanos().div_ceil(1_000)));
        carried
    }

    fn carry_one(
        &mut self,
        shared: &Shared,
        here: &Here,
        now: Now,
        one: &Move,
        actions: &mut Actions,
    ) -> Pause {
        let owner = owner_of(shared, one.prefix);
        let at = now.instant();
        let (mut steps, mut pause) = (0, Pause::None);
        // The locks of keys that have copies are not taken with a move's held.
        let begins = match &one.lock().side {
            Side::Leaves(leaver) => leaver.source.state() == State::Asking,
            Side::Comes(_) => false,
        };
        if begins && !shared.has_no_copies(one.prefix, now) {
            return Pause::Until(at + COPIES_AGAIN);
        }
        let mut sides = one.lock();
        // What is called taken is gone at its source: a server that owns nothing calls nothing so.
        let is_lapsed = here.lapsed && matches!(sides.side, Side::Comes(_));
        if is_lapsed && !sides.side.has_ended() {
            return Pause::Until(at + LEASE_AGAIN);
        }
        sides.side.strain(self.strain);
        while steps < STEPS {
            let Sides { link, side } = &mut *sides;
            if side.begins_slice(at) {
                if let Err(next) = shared.cpu_budget.begin_slice(now) {
                    pause = Pause::Until(next);
                    break;
                }
                if let Side::Leaves(leaver) = side {
                    leaver.hurry(shared.hurried(now));
                }
            }
            let said = match side {
                Side::Leaves(leaver) => match leaver.advance(at, &shared.store, owner) {
                    Advance::Say { kind, payload } => Some((kind, payload)),
                    Advance::Did(_) => {
                        steps += 1;
                        None
                    }
                    Advance::Wait(until) => {
                        pause = until.map_or(Pause::Told, Pause::Until);
                        break;
                    }
                },
                Side::Comes(arriver) => {
                    let worker = here.owner.worker;
                    let store = &shared.store;
                    match arriver.advance(at, store, worker, owner) {
                        Ok(Advance::Say { kind, payload }) => Some((kind, payload)),
                        Ok(Advance::Did(_)) => {
                            steps += 1;
                            None
                        }
                        Ok(Advance::Wait(until)) => {
                            pause = until.map_or(Pause::Told, Pause::Until);
                            break;
                        }
                        Err(destination::Broken) => {
                            if let Some(link) = link.take() {
                                actions.list.push(Action::BreakMoveLink { link });
                            }
                            side.link_is_down(now);
                            None
                        }
                    }
                }
            };
            one.publish(side);
            self.went_on = true;
            self.budget.moves();
            let said = said.filter(|_| !is_lapsed);
            if let (Some((kind, payload)), Some(link)) = (said, *link) {
                actions.list.push(Action::TellMove { link, id: one.id, kind, payload });
            }
        }
        one.publish(&sides.side);
        let is_done = sides.side.is_done();
        drop(sides);
        if is_done {
            shared.moves.remove(one.id);
            shared.map.look_again();
            return Pause::Over;
        }
        pause
    }
}

/// How it goes on with a move.
enum Pause {
    /// At once.
    None,
    /// At this moment.
    Until(Instant),
    /// When it is told something.
    Told,
    /// Not at all.
    Over,
}

/// Who has a cachelet by the newest map.
fn owner_of(shared: &Shared, prefix: Prefix) -> Elsewhere {
    let cluster = shared.cluster().expect("who moves cachelets follows a map").1;
    Elsewhere::Peer(cluster.map.at(prefix.first_hash()).1.server)
}
