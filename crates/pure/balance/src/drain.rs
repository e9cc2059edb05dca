//! Empties servers that an operator wants to stop: their cachelets go, a few at a time, to where most room is.

use mbal_model::{Move, ServerId, Snapshot, Why, WorkerLoad};

use crate::Thresholds;
use crate::cluster::{Board, planned};

/// Orders what draining servers may give now. Returns those for whose cachelets nobody has room: no worker would stay within
/// its limit. Memory is asked last, since a cache is usually full: what is moved into a full server evicts its
/// coldest items, which is less than to lose the cachelet.
pub(crate) fn drain(board: &mut Board, thresholds: &Thresholds) -> Vec<ServerId> {
    let mut stuck = Vec::new();
    for server in board.draining() {
        let before = board.snapshot.clone();
        let held = before.workers.iter().filter(|worker| worker.at.server == server);
        let held = held.flat_map(|worker| worker.cachelets.iter().map(move |c| (worker.at, *c)));
        for (from, cachelet) in held {
            if board.is_under_way(cachelet.cachelet) {
                continue;
            }
            if !board.may_give(server) {
                break;
            }
            let takers: Vec<ServerId> = board.takers().collect();
            let free: Vec<ServerId> =
                takers.iter().copied().filter(|taker| board.may_take(*taker)).collect();
            let Some(to) = roomiest(board, &free, cachelet.load, thresholds) else {
                // Who has room may have moves enough for now.
                if roomiest(board, &takers, cachelet.load, thresholds).is_none() {
                    stuck.push(server);
                }
                break;
            };
            let to = board.snapshot.workers[to].at;
            let step = Move { cachelet: cachelet.cachelet, from, to };
            let planned = planned(&board.snapshot, &step, Why::Drain);
            if board.order(planned) {
                board.carry_out(step);
            }
        }
    }
    stuck
}

/// The lightest worker of the server that has most room by load, then by memory, then by cachelets; none if no worker would
/// stay within its limit.
fn roomiest(
    board: &Board,
    takers: &[ServerId],
    load: f64,
    thresholds: &Thresholds,
) -> Option<usize> {
    let mut best: Option<((f64, f64, usize), usize)> = None;
    for &server in takers {
        let own: Vec<usize> = of(&board.snapshot, server).collect();
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
        if thresholds.is_over(board.snapshot.workers[lightest].load() + load) {
            continue;
        }
        let mean = workers().map(WorkerLoad::load).sum::<f64>() / own.len() as f64;
        let memory = board.memory_of(server).max(1);
        let full = workers().map(WorkerLoad::bytes).sum::<u64>() as f64 / memory as f64;
        let count = workers().map(|worker| worker.cachelets.len()).sum::<usize>() / own.len();
        // To the hundredth, so that memory counts where loads are about the same.
        let key = ((mean * 100.0).round(), (full * 100.0).round(), count);
        let is_better = best.is_none_or(|((b_mean, b_full, b_count), _)| {
            let by_load = key.0.total_cmp(&b_mean);
            by_load.then(key.1.total_cmp(&b_full)).then(key.2.cmp(&b_count)).is_lt()
        });
        if is_better {
            best = Some((key, lightest));
        }
    }
    best.map(|(_, at)| at)
}

fn of(snapshot: &Snapshot, server: ServerId) -> impl Iterator<Item = usize> + '_ {
    (0..snapshot.workers.len()).filter(move |&at| snapshot.workers[at].at.server == server)
}
