//! What a worker does for moves: step by step, after its batches.

use std::sync::Arc;
use std::time::Duration;

use mbal_migration::{Advance, State, destination};
use mbal_model::{Elsewhere, Instant, Prefix};

use crate::moves::{Move, Side, Sides};
use crate::shared::Shared;
use crate::worker::Worker;
use crate::{Action, Actions, Now};

/// A cachelet does not begin to leave before its keys have no copies; it is looked whether they do this often.
const COPIES_AGAIN: Duration = Duration::from_millis(2);

/// Who has no lease looks whether it has one again, or gives up what comes, so often.
const LEASE_AGAIN: Duration = Duration::from_millis(2);

/// Steps of a move at a time, some ten microseconds each.
const STEPS: usize = 2;

/// What is left to do when everything that had arrived is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Background {
    /// Nothing.
    Rests,
    /// There is more, which can wait.
    GoesOn,
    /// There is more, and somebody waits for it.
    Hastens,
}

impl Worker {
    /// Does some of what can wait: `steps` of the store's, and some of each move's. Between two events.
    /// `is_idle`: clients have left this worker some time since the last call. Moves slow down while they do not.
    pub fn background(
        &mut self,
        now: Now,
        steps: usize,
        is_idle: bool,
        actions: &mut Actions,
    ) -> Background {
        self.is_strained = !is_idle;
        let hastens = self.carry(now, actions);
        let goes_on = self.shared.store.background(self.here.worker, now.second, steps);
        match (hastens, goes_on) {
            (true, _) => Background::Hastens,
            (false, true) => Background::GoesOn,
            (false, false) => Background::Rests,
        }
    }

    /// Goes on with the moves that this worker carries; true if one of them has more to do at once. In no batch.
    pub(crate) fn carry(&mut self, now: Now, actions: &mut Actions) -> bool {
        if self.shared.moves.is_empty() {
            self.carries_at = None;
            return false;
        }
        let here = self.here.worker;
        let mut more = false;
        let mut until: Option<Instant> = None;
        for one in self.shared.moves.list(|one| one.worker == here) {
            match self.carry_one(now, &one, actions) {
                Pause::None => more = true,
                Pause::Until(at) => until = Some(until.map_or(at, |other| other.min(at))),
                Pause::Told => {}
            }
        }
        // Workers' clocks show whole microseconds.
        self.carries_at = until.map(|at| Instant::from_micros(at.as_nanos().div_ceil(1_000)));
        more
    }

    fn carry_one(&mut self, now: Now, one: &Arc<Move>, actions: &mut Actions) -> Pause {
        let owner = self.shared.owner_of(one.prefix);
        let at = now.instant();
        let (mut steps, mut pause) = (0, Pause::None);
        // The locks of keys that have copies are not taken with a move's held.
        let begins = match &one.lock().side {
            Side::Leaves(leaver) => leaver.source.state() == State::Asking,
            Side::Comes(_) => false,
        };
        if begins && !self.shared.has_no_copies(one.prefix, now) {
            return Pause::Until(at + COPIES_AGAIN);
        }
        let mut sides = one.lock();
        // What is called taken is gone at its source: a server that owns nothing calls nothing so.
        let is_lapsed = self.lapsed && matches!(sides.side, Side::Comes(_));
        if is_lapsed && !sides.side.has_ended() {
            return Pause::Until(at + LEASE_AGAIN);
        }
        sides.side.strain(self.is_strained);
        while steps < STEPS {
            let Sides { link, side } = &mut *sides;
            if side.begins_slice(at) {
                if let Err(next) = self.shared.cpu_budget.begin_slice(now) {
                    pause = Pause::Until(next);
                    break;
                }
                if let Side::Leaves(leaver) = side {
                    leaver.hurry(self.shared.hurried(now));
                }
            }
            let said = match side {
                Side::Leaves(leaver) => match leaver.advance(at, &self.shared.store, owner) {
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
                    let worker = self.here.worker;
                    let store = &self.shared.store;
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
            let said = said.filter(|_| !is_lapsed);
            if let (Some((kind, payload)), Some(link)) = (said, *link) {
                actions.list.push(Action::TellMove { link, id: one.id, kind, payload });
            }
        }
        one.publish(&sides.side);
        let is_done = sides.side.is_done();
        drop(sides);
        if is_done {
            self.shared.moves.remove(one.id);
            self.shared.look_at_map_again();
            self.settle_later(now);
            return Pause::Told;
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
}

impl Shared {
    /// Who has a cachelet by the newest map.
    fn owner_of(&self, prefix: Prefix) -> Elsewhere {
        let cluster = self.cluster().expect("who moves cachelets follows a map").1;
        Elsewhere::Peer(cluster.map.at(prefix.first_hash()).1.server)
    }
}
