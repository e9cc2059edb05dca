//! Gives servers that have come, or have come back, their even share: no overload is waited for.

use std::collections::BTreeSet;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{CacheletLoad, Move, ServerId, Standing, Why, WorkerLoad};

use crate::Thresholds;
use crate::cluster::{Board, planned};

/// Planned ahead in an epoch, beyond what has a place: moves end between two epochs, and others may begin.
const LATER_MAX: usize = 16;

/// A difference between workers, in time, that no user can feel.
const GAP_MIN: f64 = 0.05;

/// What is to be evened out, by server.
struct Count {
    server: ServerId,
    workers: usize,
    cachelets: usize,
    load: f64,
}

impl Count {
    fn of(board: &Board, server: ServerId) -> Count {
        let own = board.snapshot.workers.iter().filter(|worker| worker.at.server == server);
        let mut count = Count { server, workers: 0, cachelets: 0, load: 0.0 };
        for worker in own {
            count.workers += 1;
            count.cachelets += worker.cachelets.len();
            count.load += worker.load();
        }
        count
    }
}

/// Orders moves to servers that have less than half of their share and do little, until they have their share. `filling` is who was
/// found so before, and is not done.
///
/// A server's share is as many cachelets a worker as all that are to stay have. It is done too when it does more than the mean:
/// few cachelets may be heavy. Whom moves did not reach lately is left alone for a while.
pub(crate) fn fill(board: &mut Board, filling: &mut BTreeSet<ServerId>, thresholds: &Thresholds) {
    if is_planted(Fault::EmptyStaysEmpty) {
        return;
    }
    let takers: BTreeSet<ServerId> = board.takers().collect();
    let donors: Vec<ServerId> = board.donors().collect();
    let counts: Vec<Count> = donors.iter().map(|server| Count::of(board, *server)).collect();
    let workers: usize = counts.iter().map(|count| count.workers).sum();
    let cachelets: usize = counts.iter().map(|count| count.cachelets).sum();
    let load = counts.iter().map(|count| count.load).sum::<f64>() / workers.max(1) as f64;
    // Who is not heard of for a while goes on afterwards.
    let may_go_on = |id: &ServerId| {
        let mut servers = board.servers();
        let standing = servers.find(|one| one.server == *id).map(|one| one.standing);
        matches!(standing, Some(Standing::Serving | Standing::Silent))
    };
    filling.retain(may_go_on);
    let mut later = 0;
    for count in counts.iter().filter(|count| takers.contains(&count.server)) {
        let share = cachelets * count.workers / workers.max(1);
        let own_load = count.load / count.workers.max(1) as f64;
        let has_little = 2 * count.cachelets < share && 2.0 * own_load <= load;
        if count.cachelets == 0 || has_little && !board.gives(count.server) {
            filling.insert(count.server);
        }
        let has_enough = share <= count.cachelets || load + GAP_MIN < own_load;
        // What is under way counts where it goes, and may come to nothing.
        if has_enough && (!board.awaits(count.server) || is_planted(Fault::FilledOnPaper)) {
            filling.remove(&count.server);
        }
        // Who gives has too much to do as it is: few cachelets are what is planned for it.
        if has_enough
            || !filling.contains(&count.server)
            || board.refuses(count.server)
            || board.gives(count.server)
        {
            continue;
        }
        for _ in count.cachelets..share {
            if later == LATER_MAX {
                return;
            }
            let is_ordered = match one(board, count.server, &donors, load, thresholds) {
                Some(is_ordered) => is_ordered,
                None => break,
            };
            later += usize::from(!is_ordered);
        }
    }
}

/// One cachelet more: whether it sets out now, and not later. `None`: nobody has one to give.
fn one(
    board: &mut Board,
    to: ServerId,
    donors: &[ServerId],
    load: f64,
    thresholds: &Thresholds,
) -> Option<bool> {
    let workers = || board.snapshot.workers.iter();
    let by_fill = |a: &&WorkerLoad, b: &&WorkerLoad| {
        let by_count = a.cachelets.len().cmp(&b.cachelets.len());
        by_count.then(a.load().total_cmp(&b.load())).then(b.at.cmp(&a.at))
    };
    let taker = workers().filter(|worker| worker.at.server == to).min_by(by_fill)?;
    let can_go = |held: &&CacheletLoad| {
        !held.pinned
            && !board.is_under_way(held.cachelet)
            && !thresholds.is_over(taker.load() + held.load)
            && taker.bytes() + held.bytes <= taker.bytes_max
    };
    let gives = |worker: &&WorkerLoad| {
        donors.contains(&worker.at.server)
            && worker.at.server != to
            && taker.cachelets.len() + 1 < worker.cachelets.len()
            && worker.cachelets.iter().any(|held| can_go(&held))
    };
    // Who may give one now, however long it is, goes before who has more.
    let is_free = |one: &&WorkerLoad| board.fits(one.at.server, to, u64::MAX);
    let now = workers().filter(gives).filter(is_free);
    let (giver, is_now) = match now.max_by(by_fill) {
        Some(giver) => (giver, true),
        None => (workers().filter(gives).max_by(by_fill)?, false),
    };
    // The heaviest with which the taker does no more than all do; else the lightest.
    let held = giver.cachelets.iter().filter(can_go);
    let light = |held: &&CacheletLoad| taker.load() + held.load <= load;
    let by_load = |a: &&CacheletLoad, b: &&CacheletLoad| a.load.total_cmp(&b.load);
    let heaviest = held.clone().filter(light).max_by(by_load);
    let cachelet = heaviest.or_else(|| held.min_by(by_load))?.cachelet;
    let step = Move { cachelet, from: giver.at, to: taker.at };
    let planned = planned(&board.snapshot, &step, Why::Share);
    match is_now {
        true => drop(board.order(planned)),
        false => board.later.push(planned),
    }
    board.carry_out(step);
    Some(is_now)
}

/// Servers that may give: they are well, and to stay.
impl Board<'_> {
    fn donors(&self) -> impl Iterator<Item = ServerId> + '_ {
        let serving = self.servers().filter(|one| one.standing == Standing::Serving);
        serving.map(|one| one.server)
    }

    /// Something was under way to it before this plan.
    fn awaits(&self, server: ServerId) -> bool {
        self.outlook.under_way.iter().any(|step| step.to.server == server)
    }

    /// Something is on its way from it, or is to be.
    fn gives(&self, server: ServerId) -> bool {
        self.giving.get(&server).is_some_and(|count| *count > 0)
    }

    fn refuses(&self, server: ServerId) -> bool {
        self.servers().any(|one| one.server == server && one.refuses)
    }
}
