//! Plans on paper.

use mbal_model::{Move, Snapshot};

/// Carries moves out on a snapshot.
pub(crate) fn apply(snapshot: &mut Snapshot, moves: &[Move]) {
    for step in moves {
        let from = snapshot.workers.iter_mut().find(|worker| worker.at == step.from);
        let from = from.expect("a plan names workers of its snapshot");
        let index = from.cachelets.iter().position(|held| held.cachelet == step.cachelet);
        let cachelet = from.cachelets.remove(index.expect("a plan moves what its source holds"));
        let to = snapshot.workers.iter_mut().find(|worker| worker.at == step.to);
        to.expect("a plan names workers of its snapshot").cachelets.push(cachelet);
    }
}
