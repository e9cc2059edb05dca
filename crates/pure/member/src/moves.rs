//! Moves, as the coordinator and a server's workers speak of them.

use mbal_control::api::{self, MoveNews, MoveReport, Progress};
use mbal_migration::{Incarnation, Order, Refusal, State, Why};
use mbal_model::{MoveId, Prefix, ServerId, WorkerId};
use mbal_worker::{MoveDecision, MoveTold, Now, Shared};

use crate::ages::thresholds;

/// What the coordinator says of a move of `server`, whose process is `incarnation`, by a map that is followed. `None` of what this program does not understand.
pub(crate) fn told(
    shared: &Shared,
    now: Now,
    server: ServerId,
    incarnation: api::Incarnation,
    news: &MoveNews,
) -> Option<MoveTold> {
    let order = Order {
        id: MoveId(news.number),
        prefix: Prefix::parse(news.prefix.as_bytes())?,
        source: Incarnation(incarnation.0),
        destination: Incarnation(news.to_incarnation.0),
        worker: WorkerId(news.worker),
        // Of the map by which it was ordered, or a newer one: no other cachelet of this prefix is born by that.
        generation: shared.map_version() as u16 & 0x7fff,
    };
    let word = match news.word {
        api::MoveDecision::Go => MoveDecision::Go,
        api::MoveDecision::Cancel => MoveDecision::Cancel,
        api::MoveDecision::DestinationLost => MoveDecision::DestinationLost,
    };
    let (from, to) = (ServerId(news.from), ServerId(news.to));
    let selected = news.selected.as_ref().filter(|_| from == server);
    let age_thresholds = selected.and_then(|selected| thresholds(shared, now, selected));
    Some(MoveTold { order, from, to, word, age_thresholds })
}

/// Of all moves that a server is the source of, for a heartbeat.
pub(crate) fn reports(shared: &Shared) -> Vec<MoveReport> {
    shared.move_reports().iter().map(report).collect()
}

fn report(one: &mbal_worker::MoveReport) -> MoveReport {
    let &mbal_worker::MoveReport { id, state, progress, part_gone } = one;
    let (said, why) = match state {
        State::Back(why) => (Progress::Back, Some(why)),
        // The map says so already.
        State::Sealed | State::HandedOver => (Progress::Sealed, None),
        State::Asking | State::Moving => match progress.refused {
            Some(refusal) => (Progress::Refused, Some(Why::Refused(refusal))),
            None if progress.cancelled_too_late => (Progress::TooLate, None),
            None if state == State::Asking => (Progress::Asking, None),
            None => (Progress::Moving, None),
        },
    };
    MoveReport {
        number: id.0,
        progress: said,
        why: why.map(|why| in_words(why).into()),
        slices_gone: progress.slices,
        part_gone,
        slices_again: progress.again,
        bytes: progress.bytes,
        paused_us_max: progress.paused_ns_longest / 1_000,
        paused_us: progress.paused_ns_sum / 1_000,
        moved_ms: progress.moved_for.as_millis() as u64,
        slowed: progress.is_slowed,
    }
}

fn in_words(why: Why) -> &'static str {
    match why {
        Why::Cancelled => "it was cancelled",
        Why::Lost => "the destination is dead",
        Why::CannotLeave => "it could not leave: it is being split, or has hardly come",
        Why::Refused(Refusal::Incarnation) => "the destination is another process",
        Why::Refused(Refusal::NoRoom) => "the destination has no room for it",
        Why::Refused(Refusal::OtherMove) => "the destination knows another move of it",
    }
}
