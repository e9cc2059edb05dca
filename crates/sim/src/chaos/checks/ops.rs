//! What a request and its answer say of an item.

use crate::chaos::history::{Asks, NEVER, Observed, Op, State, When};

/// True if `op` shows or makes a state from which `state` may have come.
pub fn leads_to(op: &Op, state: &State) -> bool {
    match (&op.asks, &op.told) {
        (_, Observed::Hit { state: seen, .. }) => seen.leads_to(state),
        (Asks::Store { tag, .. }, _) => *tag == state.base,
        (Asks::Append { tag }, _) => state.tokens.contains(tag),
        _ => false,
    }
}

/// True if the item was, at the moment of `op`, certainly not on its way to `state`.
pub fn is_elsewhere(op: &Op, state: &State) -> bool {
    match (&op.asks, &op.told) {
        (_, Observed::Hit { state: seen, .. }) => !seen.leads_to(state),
        (Asks::Store { tag, .. }, Observed::Done { .. }) => *tag != state.base,
        (Asks::Append { tag }, Observed::Done { .. }) => !state.tokens.contains(tag),
        _ => ends(op),
    }
}

/// True if `op` may have left its own item.
pub fn may_store(op: &Op) -> bool {
    matches!(op.asks, Asks::Store { .. })
        && !matches!(op.told, Observed::Absent | Observed::Refused)
}

/// True if `op` may have set a deadline.
pub fn may_expire(op: &Op) -> bool {
    let fails = matches!(op.told, Observed::Absent | Observed::Refused | Observed::Error);
    !fails && exptime(op).is_some_and(|exptime| exptime != 0)
}

/// True if `op` itself may have removed the item.
pub fn may_remove(op: &Op) -> bool {
    match op.asks {
        Asks::Delete => op.told != Observed::Absent,
        Asks::Flush { .. } => op.told != Observed::Error,
        // memcached rather has no item than a stale one.
        Asks::Store { .. } => matches!(op.told, Observed::Error | Observed::Nothing),
        _ => false,
    }
}

/// True if there certainly was no item at the end of `op`.
pub fn ends(op: &Op) -> bool {
    match op.told {
        Observed::Absent => true,
        Observed::Done { .. } => matches!(op.asks, Asks::Delete | Asks::Flush { .. }),
        _ => false,
    }
}

pub fn finds_nothing(op: &Op) -> bool {
    let adds = matches!(op.asks, Asks::Store { when: When::Absent, .. });
    op.told == Observed::Absent || (adds && matches!(op.told, Observed::Done { .. }))
}

/// True if there was an item, and nobody says which.
pub fn finds_something(op: &Op) -> bool {
    match op.asks {
        Asks::Flush { .. } => false,
        Asks::Store { when: When::Present, .. }
        | Asks::Append { .. }
        | Asks::Touch { .. }
        | Asks::Delete => {
            matches!(op.told, Observed::Done { .. }) && op.answered != NEVER && !is_quiet(op)
        }
        _ => op.told == Observed::Refused,
    }
}

/// Settled as done, though the server did not say so.
pub fn is_quiet(op: &Op) -> bool {
    op.told == Observed::Done { cas: 0 } && op.quiet
}

pub fn leaves_something(op: &Op) -> bool {
    match op.told {
        Observed::Hit { .. } | Observed::Refused => true,
        Observed::Done { .. } => !matches!(op.asks, Asks::Delete | Asks::Flush { .. }),
        _ => false,
    }
}

pub fn exptime(op: &Op) -> Option<i32> {
    match op.asks {
        Asks::Store { exptime, .. } | Asks::Touch { exptime } => Some(exptime),
        _ => None,
    }
}

pub fn say(op: &Op) -> String {
    let answered = match op.answered {
        NEVER => "never".to_owned(),
        at => at.to_string(),
    };
    format!(
        "[{}..{answered} connection {}.{}] {:?} -> {:?}",
        op.asked, op.connection, op.place, op.asks, op.told
    )
}
