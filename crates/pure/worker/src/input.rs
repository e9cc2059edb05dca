//! What has arrived on a connection, and what of it waits in its session.

use crate::batch::{Batch, Ended};
use crate::session::{Session, Wait};
use crate::walks::Walk;

pub(crate) fn received(batch: &mut Batch<'_>, session: &mut Session, mut bytes: &[u8]) -> Ended {
    // A connection is not read while it has output.
    session.unsent = 0;
    if session.wait.drops_input() {
        return Ended::Hungry;
    }
    if !session.wait.is_no() {
        session.pending.extend_from_slice(bytes);
        return Ended::Hungry;
    }
    while !session.pending.is_empty() && !bytes.is_empty() {
        if !session.complete(&mut bytes) {
            return Ended::Hungry;
        }
        match run_pending(batch, session) {
            Ended::Hungry => {}
            Ended::Waits(wait) if wait.drops_input() => return Ended::Waits(wait),
            bound => {
                session.pending.extend_from_slice(bytes);
                return bound;
            }
        }
    }
    if bytes.is_empty() {
        return Ended::Hungry;
    }
    let ran = batch.run(session, bytes);
    session.pending.extend_from_slice(&ran.rewritten);
    session.pending.extend_from_slice(&bytes[ran.used..]);
    ran.ended
}

/// One step of the command that has not ended.
pub(crate) fn go_on_walking(
    batch: &mut Batch<'_>,
    session: &mut Session,
    mut walk: Box<Walk>,
) -> Ended {
    let before = batch.turn.out.len();
    let more = batch.turn.step(&mut walk);
    session.order(before, batch.turn.out);
    if more { Ended::Waits(Wait::Walk(walk)) } else { run_pending(batch, session) }
}

/// Executes what is there, if nothing stands in the way.
pub(crate) fn run_pending(batch: &mut Batch<'_>, session: &mut Session) -> Ended {
    if !session.wait.is_no() {
        return Ended::Hungry;
    }
    let pending = std::mem::take(&mut session.pending);
    let ran = batch.run(session, &pending);
    if ran.rewritten.is_empty() {
        session.keep(pending, ran.used);
    } else {
        session.pending = ran.rewritten;
        session.pending.extend_from_slice(&pending[ran.used..]);
    }
    ran.ended
}
