//! A key's cas grows with every write of it, and a change under a cas is a change of that very item.

use std::collections::BTreeMap;

use super::checks::{LOST, Violation, WENT_BACK, say};
use super::history::{Asks, Micros, Observed, Op, State, When};

/// The requests of one key, in the order in which they were asked.
pub fn check(ops: &[&Op]) -> Result<(), Violation> {
    let told: Vec<(u64, &Op)> = ops.iter().filter_map(|op| Some((cas(op)?, *op))).collect();
    let mut by_cas = told.clone();
    by_cas.sort_by_key(|(cas, _)| *cas);
    grows(&told)?;
    one_item_each(&by_cas)?;
    changes_that_item(&by_cas)
}

/// Nobody is told a cas below what was told before.
fn grows(told: &[(u64, &Op)]) -> Result<(), Violation> {
    let of_all = Greatest::of(told.iter().copied());
    let mut by_session: BTreeMap<usize, Vec<(u64, &Op)>> = BTreeMap::new();
    for (cas, op) in told {
        by_session.entry(op.session).or_default().push((*cas, op));
    }
    let by_session: BTreeMap<usize, Greatest> =
        by_session.into_iter().map(|(session, told)| (session, Greatest::of(told))).collect();
    let mut by_connection: BTreeMap<usize, u64> = BTreeMap::new();
    for (now, op) in told {
        let before = of_all.before(op.since()).max(by_session[&op.session].before(op.asked));
        let on_connection = by_connection.entry(op.connection).or_default();
        if *now < before.max(*on_connection) {
            let mut greater = told.iter().filter(|(cas, other)| now < cas && other.precedes(op));
            let (_, other) = greater.next().expect("one has been seen");
            return Err(strange_cas(op, other));
        }
        if !op.unordered {
            *on_connection = *now;
        }
    }
    Ok(())
}

/// When something was answered, and the greatest cas that was told until then.
struct Greatest(Vec<(Micros, u64)>);

impl Greatest {
    fn of<'a>(told: impl IntoIterator<Item = (u64, &'a Op)>) -> Greatest {
        let mut answers: Vec<(Micros, u64)> =
            told.into_iter().map(|(cas, op)| (op.answered, cas)).collect();
        answers.sort_unstable();
        let mut greatest = 0;
        for (_, cas) in &mut answers {
            greatest = greatest.max(*cas);
            *cas = greatest;
        }
        Greatest(answers)
    }

    fn before(&self, moment: Micros) -> u64 {
        let answered = self.0.partition_point(|(at, _)| *at < moment);
        answered.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

/// What has the same cas is the same.
fn one_item_each(by_cas: &[(u64, &Op)]) -> Result<(), Violation> {
    for alike in by_cas.chunk_by(|(one, _), (other, _)| one == other) {
        let mut seen = alike.iter().filter_map(|(_, op)| Some((item(op)?, *op)));
        let Some((first, one)) = seen.next() else { continue };
        if let Some((_, other)) = seen.find(|(state, _)| *state != first) {
            return Err(strange_cas(one, other));
        }
    }
    Ok(())
}

/// Between the cas that a change names and its own lies no other.
fn changes_that_item(by_cas: &[(u64, &Op)]) -> Result<(), Violation> {
    for (now, op) in by_cas {
        let Asks::Store { when: When::Unchanged(expected), .. } = op.asks else { continue };
        let next = by_cas.partition_point(|(cas, _)| *cas <= expected);
        if let Some((_, other)) = by_cas.get(next).filter(|(cas, _)| cas < now) {
            return Err(Violation::new(LOST, format!("{} overwrote {}", say(op), say(other))));
        }
    }
    Ok(())
}

fn strange_cas(op: &Op, other: &Op) -> Violation {
    Violation::new(WENT_BACK, format!("cas of {} after {}", say(op), say(other)))
}

/// The cas that the item had at the end of `op`, as far as it was told.
fn cas(op: &Op) -> Option<u64> {
    match op.told {
        Observed::Hit { cas, .. } | Observed::Done { cas } => Some(cas).filter(|cas| *cas != 0),
        _ => None,
    }
}

/// The item that `op` saw or made: what it began as, how often it was counted up, what was appended.
fn item(op: &Op) -> Option<(u32, u32, &[u32])> {
    match (&op.told, op.asks) {
        (Observed::Hit { state: State { base, count, tokens }, .. }, _) => {
            Some((*base, *count, tokens.as_slice()))
        }
        (_, Asks::Store { tag, .. }) => Some((tag, 0, &[])),
        _ => None,
    }
}
