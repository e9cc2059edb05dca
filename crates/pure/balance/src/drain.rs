//! Empties servers that are to be stopped: their cachelets go, a few at a time, to where most room is. The heaviest go first:
//! time may be short, and they are missed most.

use std::collections::BTreeMap;

use mbal_model::{CacheletLoad, Move, Owner, ServerId, Why, WorkerLoad};

use crate::Thresholds;
use crate::cluster::{Board, planned};

/// Planned ahead for each server that is emptied, beyond what has a place: as much as ends between two epochs of a second, at
/// three or four times four moves a second.
const LATER_MAX: usize = 16;
/// Cachelets of a server for which nobody has room: after so many the others, which are lighter, wait for the next epoch.
const VAIN_MAX: usize = 4;

/// Orders what draining servers may give now, and plans what may follow before the next epoch. Returns those for whose
/// cachelets nobody has room: no worker would stay within its limit, which counts nothing for who is about to end. Memory is
/// asked last, since a cache is usually full: what is moved into a full server evicts its coldest items, which is less than
/// to lose the cachelet. A server that evicts nothing is given what fits alone.
pub(crate) fn drain(board: &mut Board, thresholds: &Thresholds) -> Vec<ServerId> {
    let mut stuck = Vec::new();
    for (server, is_ending) in board.draining() {
        let limit = (!is_ending).then_some(thresholds);
        let takers = Takers::new(board);
        let held = board.snapshot.workers.iter().filter(|worker| worker.at.server == server);
        let held = held.flat_map(|worker| worker.cachelets.iter().map(move |c| (worker.at, *c)));
        let mut held: Vec<(Owner, CacheletLoad)> =
            held.filter(|(_, cachelet)| !board.is_under_way(cachelet.cachelet)).collect();
        // Those of the same load stay in their order.
        held.sort_by(|(_, a), (_, b)| b.load.total_cmp(&a.load));
        let (mut later, mut in_vain) = (0, 0);
        for (from, cachelet) in held {
            if later == LATER_MAX || in_vain == VAIN_MAX {
                break;
            }
            let has_room = |taker| board.has_room(taker, cachelet.bytes);
            let is_free = |taker| board.fits(server, taker, cachelet.bytes) && has_room(taker);
            let now = takers.roomiest(board, is_free, cachelet.load, limit);
            let Some(to) = now.or_else(|| takers.roomiest(board, has_room, cachelet.load, limit))
            else {
                in_vain += 1;
                continue;
            };
            let to = board.snapshot.workers[to].at;
            let step = Move { cachelet: cachelet.cachelet, from, to };
            let planned = planned(&board.snapshot, &step, Why::Drain);
            if now.is_some() {
                board.order(planned);
            } else {
                board.later.push(planned);
                later += 1;
            }
            board.carry_out(step);
        }
        if in_vain > 0 {
            stuck.push(server);
        }
    }
    stuck
}

/// Servers that may be given something, each with the places of its workers in the snapshot.
struct Takers(BTreeMap<ServerId, Vec<usize>>);

impl Takers {
    fn new(board: &Board) -> Takers {
        let mut places: BTreeMap<ServerId, Vec<usize>> =
            board.takers().map(|taker| (taker, Vec::new())).collect();
        for (at, worker) in board.snapshot.workers.iter().enumerate() {
            if let Some(places) = places.get_mut(&worker.at.server) {
                places.push(at);
            }
        }
        Takers(places)
    }

    /// The lightest worker of the server that has most room by what is scarcer there, load or memory, then by load, then by
    /// cachelets, of those that `may` take; none if no worker would stay within its limit.
    fn roomiest(
        &self,
        board: &Board,
        may: impl Fn(ServerId) -> bool,
        load: f64,
        limit: Option<&Thresholds>,
    ) -> Option<usize> {
        let mut best: Option<((f64, f64, usize), usize)> = None;
        for (&server, own) in self.0.iter().filter(|(server, _)| may(**server)) {
            let workers = || own.iter().map(|&at| &board.snapshot.workers[at]);
            let lightest = own.iter().copied().min_by(|&a, &b| {
                let key = |at: usize| {
                    let worker = &board.snapshot.workers[at];
                    (worker.load(), worker.cachelets.len())
                };
                let ((a_load, a_count), (b_load, b_count)) = (key(a), key(b));
                a_load.total_cmp(&b_load).then(a_count.cmp(&b_count))
            });
            let Some(lightest) = lightest else { continue };
            let after = board.snapshot.workers[lightest].load() + load;
            if limit.is_some_and(|thresholds| thresholds.is_over(after)) {
                continue;
            }
            let mean = workers().map(WorkerLoad::load).sum::<f64>() / own.len() as f64;
            let memory = board.memory_of(server).max(1);
            let full = workers().map(WorkerLoad::bytes).sum::<u64>() as f64 / memory as f64;
            let count = workers().map(|worker| worker.cachelets.len()).sum::<usize>() / own.len();
            // To the hundredth, so that load counts where caches are full.
            let key = ((mean.max(full) * 100.0).round(), (mean * 100.0).round(), count);
            let is_better = best.is_none_or(|((b_scarcer, b_mean, b_count), _)| {
                let by_scarcer = key.0.total_cmp(&b_scarcer);
                by_scarcer.then(key.1.total_cmp(&b_mean)).then(key.2.cmp(&b_count)).is_lt()
            });
            if is_better {
                best = Some((key, lightest));
            }
        }
        best.map(|(_, at)| at)
    }
}
