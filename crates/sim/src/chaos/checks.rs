//! Invariants 2 and 3 of DESIGN §13, from what clients asked and were told.
//!
//! Nothing here knows how the server works. One request *precedes* another if it came earlier on the same
//! connection, or was answered before the other was asked. A reply is wrong only if no order that respects this can
//! explain it, so that whatever is reported is a fault; and values are unique, so that little can hide.

use super::history::{ALL_KEYS, Asks, History, Kind, Micros, NEVER, Op, SECOND, State, Told, When};

/// An invariant of DESIGN §13 that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: u8,
    pub what: String,
}

impl Violation {
    pub fn new(invariant: u8, what: impl Into<String>) -> Violation {
        Violation { invariant, what: what.into() }
    }
}

const LOST: u8 = 2;
const WENT_BACK: u8 = 3;

/// What the checks must know of the run.
pub struct Facts<'a> {
    pub kinds: &'a [Kind],
    /// The longest that a worker's clock was behind.
    pub lag: Micros,
    /// No memory was ever short: what wanted no answer was done.
    pub calm: bool,
}

pub fn check(history: &History, facts: &Facts<'_>) -> Result<(), Violation> {
    let mut by_key: Vec<Vec<Op>> = vec![Vec::new(); facts.kinds.len()];
    for op in history.ops.iter().filter(|op| op.key != ALL_KEYS) {
        by_key[op.key].push(settled(op, facts));
    }
    let flushes = flushes(history, facts);
    for (index, mut ops) in by_key.into_iter().enumerate() {
        ops.extend_from_slice(&flushes);
        let key = Key { ops: &ops, history, facts };
        key.check().map_err(|Violation { invariant, what }| {
            Violation::new(invariant, format!("key {index}, {what}\n{}", key.story()))
        })?;
    }
    Ok(())
}

/// What an answer means where it can mean two things.
fn settled(op: &Op, facts: &Facts<'_>) -> Op {
    let mut op = op.clone();
    let needs_an_item =
        matches!(op.asks, Asks::Append { .. } | Asks::Store { when: When::Present, .. });
    op.told = match op.told {
        // A request that wanted no answer is as good as done if nothing could keep it from it.
        Told::Quiet if op.asks == Asks::Delete => Told::Done { cas: 0 },
        Told::Quiet if facts.calm && matches!(op.asks, Asks::Store { when: When::Always, .. }) => {
            Told::Done { cas: 0 }
        }
        // NOT_STORED is no item, or no room for it.
        Told::Refused if needs_an_item && facts.calm => Told::Absent,
        Told::Refused if needs_an_item => Told::Nothing,
        told => told,
    };
    op
}

/// `flush_all`, when it takes effect. A later one takes a delayed one's place; then nobody knows whether it did.
fn flushes(history: &History, facts: &Facts<'_>) -> Vec<Op> {
    let all: Vec<&Op> = history.ops.iter().filter(|op| op.key == ALL_KEYS).collect();
    let effect = |(at, op): (usize, &&Op)| {
        let Asks::Flush { delay } = op.asks else { unreachable!("nothing else is of all keys") };
        let mut effect = (*op).clone();
        if delay > 0 {
            // memcached's delayed flush takes effect a second early.
            let wait = u64::from(delay - 1) * SECOND;
            effect.link = usize::MAX - at;
            effect.asked = start_of_second(op.asked.saturating_sub(facts.lag)) + wait;
            effect.asked = effect.asked.max(op.asked);
            if op.answered != NEVER {
                effect.answered = start_of_second(op.answered) + wait + facts.lag;
                effect.answered = effect.answered.max(op.answered);
            }
            let disturbs = |other: &&&Op| {
                other.place_of() != op.place_of() && !other.precedes(op) && !effect.precedes(other)
            };
            if all.iter().any(|other| disturbs(&other)) {
                effect.told = Told::Nothing;
            }
        }
        effect
    };
    all.iter().enumerate().map(effect).collect()
}

fn start_of_second(at: Micros) -> Micros {
    at / SECOND * SECOND
}

struct Key<'a> {
    ops: &'a [Op],
    history: &'a History,
    facts: &'a Facts<'a>,
}

impl Key<'_> {
    fn check(&self) -> Result<(), Violation> {
        for op in self.ops {
            if let Told::Hit { state, .. } = &op.told {
                self.was_written(op, state)?;
                self.never_goes_back(op, state)?;
                self.has_not_expired(op, state)?;
            }
            if finds_nothing(op) {
                self.may_be_gone(op)?;
            }
            if finds_something(op) {
                self.may_be_there(op)?;
            }
            self.cas_grows(op)?;
        }
        Ok(())
    }

    fn writer(&self, tag: u32) -> Option<&Op> {
        let writer = self.history.ops.get(*self.history.by_tag.get(tag as usize)?)?;
        (writer.key == self.ops[0].key).then_some(writer)
    }

    /// Somebody wrote every part of it, once, and not after it was read.
    fn was_written(&self, read: &Op, state: &State) -> Result<(), Violation> {
        for tag in [state.base].iter().chain(&state.tokens) {
            match self.writer(*tag) {
                None => {
                    return Err(Violation::new(
                        WENT_BACK,
                        format!("nobody wrote {tag}: {}", say(read)),
                    ));
                }
                Some(write) if read.precedes(write) => {
                    let what = format!("read before it was written: {}", say(read));
                    return Err(Violation::new(WENT_BACK, what));
                }
                _ => {}
            }
        }
        let mut tokens = state.tokens.clone();
        tokens.sort_unstable();
        tokens.dedup();
        if tokens.len() < state.tokens.len() {
            return Err(Violation::new(LOST, format!("appended twice: {}", say(read))));
        }
        let twin = |other: &&Op| {
            other.place_of() != read.place_of()
                && other.asks == Asks::Increment
                && other.told == read.told
        };
        if read.asks == Asks::Increment && self.ops.iter().any(|other| twin(&other)) {
            return Err(Violation::new(
                LOST,
                format!("two increments made one number: {}", say(read)),
            ));
        }
        Ok(())
    }

    /// Between a moment on the way to the state that `read` saw and `read` lies no moment that is off that way.
    fn never_goes_back(&self, read: &Op, state: &State) -> Result<(), Violation> {
        let on_the_way: Vec<&Op> = self.ops.iter().filter(|op| leads_to(op, state)).collect();
        let first_answered = on_the_way.iter().map(|op| op.answered).min().unwrap_or(NEVER);
        for op in self.ops.iter().filter(|op| op.precedes(read) && is_elsewhere(op, state)) {
            let follows =
                first_answered < op.asked || on_the_way.iter().any(|before| before.precedes(op));
            if follows {
                // An append that is missing is lost; anything else was overtaken by the past.
                let invariant = if matches!(op.asks, Asks::Append { .. } | Asks::Increment) {
                    LOST
                } else {
                    WENT_BACK
                };
                let what = format!("{} does not know of {}", say(read), say(op));
                return Err(Violation::new(invariant, what));
            }
        }
        Ok(())
    }

    fn has_not_expired(&self, read: &Op, state: &State) -> Result<(), Violation> {
        let write = self.writer(state.base).expect("looked for before");
        let seen = second(read.asked.saturating_sub(self.facts.lag));
        let keeps = |op: &Op| match exptime(op) {
            Some(0) => true,
            Some(..0) | None => false,
            Some(some) => op.answered == NEVER || second(op.answered) + some as u64 > seen,
        };
        let touches = |op: &&Op| {
            matches!(op.asks, Asks::Touch { .. }) && !op.precedes(write) && !read.precedes(op)
        };
        if keeps(write) || self.ops.iter().filter(touches).any(keeps) {
            return Ok(());
        }
        Err(Violation::new(WENT_BACK, format!("expired: {}", say(read))))
    }

    /// Whoever finds nothing: since every sighting before, something may have removed the item.
    fn may_be_gone(&self, miss: &Op) -> Result<(), Violation> {
        let removers: Vec<&Op> =
            self.ops.iter().filter(|op| may_remove(op) && !miss.precedes(op)).collect();
        let expiring: Vec<&Op> =
            self.ops.iter().filter(|op| self.expires_before(op, miss)).collect();
        for sighting in self.ops.iter().filter(|op| leaves_something(op) && op.precedes(miss)) {
            let evicted = sighting.evictions.0 != miss.evictions.1;
            let removed = || removers.iter().any(|remover| !remover.precedes(sighting));
            let expired = || expiring.iter().any(|op| self.may_hold_for(op, sighting));
            if !evicted && !removed() && !expired() {
                let what = format!("{} though {} came before", say(miss), say(sighting));
                return Err(Violation::new(LOST, what));
            }
        }
        Ok(())
    }

    /// True if `op` set a deadline that may have passed when `miss` was answered.
    fn expires_before(&self, op: &Op, miss: &Op) -> bool {
        let fails = matches!(op.told, Told::Absent | Told::Refused | Told::Error);
        let Some(exptime) = exptime(op).filter(|exptime| *exptime != 0 && !fails) else {
            return false;
        };
        let earliest =
            second(op.asked.saturating_sub(self.facts.lag)) as i64 + i64::from(exptime.max(0));
        let in_time = miss.answered == NEVER || earliest <= second(miss.answered) as i64;
        in_time && !miss.precedes(op)
    }

    /// True if the deadline that `op` set may be that of what `sighting` saw, or of a later item.
    fn may_hold_for(&self, op: &Op, sighting: &Op) -> bool {
        let seen = match (&sighting.told, sighting.asks) {
            (Told::Hit { state, .. }, _) => Some(state.base),
            (Told::Done { .. }, Asks::Store { tag, .. }) => Some(tag),
            _ => None,
        };
        match (op.asks, seen) {
            (Asks::Store { tag, .. }, Some(base)) if tag == base => true,
            (Asks::Touch { .. }, Some(base)) => {
                self.writer(base).is_none_or(|write| !op.precedes(write))
            }
            (_, Some(_)) => !op.precedes(sighting),
            (_, None) => true,
        }
    }

    /// Whoever finds something: some write may have left it there.
    fn may_be_there(&self, op: &Op) -> Result<(), Violation> {
        let stores = |write: &&Op| {
            let failed = matches!(write.told, Told::Absent | Told::Refused);
            matches!(write.asks, Asks::Store { .. }) && !failed && !op.precedes(write)
        };
        let gone = |write: &Op| {
            let between = |end: &&Op| ends(end) && write.precedes(end) && end.precedes(op);
            self.ops.iter().any(|end| between(&end))
        };
        if self.ops.iter().filter(stores).any(|write| !gone(write)) {
            return Ok(());
        }
        Err(Violation::new(WENT_BACK, format!("nothing can be there: {}", say(op))))
    }

    /// A key's cas grows with every write of it, and a change under a cas is a change of that very item.
    fn cas_grows(&self, op: &Op) -> Result<(), Violation> {
        let Some(now) = cas(op) else { return Ok(()) };
        for other in self.ops {
            let Some(before) = cas(other) else { continue };
            let unlike = before == now && !alike(op, other);
            if unlike || (before > now && other.precedes(op)) {
                let what = format!("cas of {} after {}", say(op), say(other));
                return Err(Violation::new(WENT_BACK, what));
            }
            if let Asks::Store { when: When::Unchanged(expected), .. } = op.asks {
                if (expected + 1..now).contains(&before) {
                    let what = format!("{} overwrote {}", say(op), say(other));
                    return Err(Violation::new(LOST, what));
                }
            }
        }
        Ok(())
    }

    fn story(&self) -> String {
        let mut ops: Vec<&Op> = self.ops.iter().collect();
        ops.sort_by_key(|op| op.asked);
        ops.iter().map(|op| format!("    {}\n", say(op))).collect()
    }
}

/// True if `op` shows or makes a state from which `state` may have come.
fn leads_to(op: &Op, state: &State) -> bool {
    match (&op.asks, &op.told) {
        (_, Told::Hit { state: seen, .. }) => seen.leads_to(state),
        (Asks::Store { tag, .. }, _) => *tag == state.base,
        (Asks::Append { tag }, _) => state.tokens.contains(tag),
        _ => false,
    }
}

/// True if the item was, at the moment of `op`, certainly not on its way to `state`.
fn is_elsewhere(op: &Op, state: &State) -> bool {
    match (&op.asks, &op.told) {
        (_, Told::Hit { state: seen, .. }) => !seen.leads_to(state),
        (Asks::Store { tag, .. }, Told::Done { .. }) => *tag != state.base,
        (Asks::Append { tag }, Told::Done { .. }) => !state.tokens.contains(tag),
        _ => ends(op),
    }
}

/// True if `op` itself may have removed the item.
fn may_remove(op: &Op) -> bool {
    match op.asks {
        Asks::Delete => op.told != Told::Absent,
        Asks::Flush { .. } => op.told != Told::Error,
        // memcached rather has no item than a stale one.
        Asks::Store { .. } => matches!(op.told, Told::Error | Told::Nothing),
        _ => false,
    }
}

/// True if there certainly was no item at the end of `op`.
fn ends(op: &Op) -> bool {
    match op.told {
        Told::Absent => true,
        Told::Done { .. } => matches!(op.asks, Asks::Delete | Asks::Flush { .. }),
        _ => false,
    }
}

fn finds_nothing(op: &Op) -> bool {
    let adds = matches!(op.asks, Asks::Store { when: When::Absent, .. });
    op.told == Told::Absent || (adds && matches!(op.told, Told::Done { .. }))
}

/// True if there was an item, and nobody says which.
fn finds_something(op: &Op) -> bool {
    match op.asks {
        Asks::Flush { .. } => false,
        Asks::Store { when: When::Present, .. }
        | Asks::Append { .. }
        | Asks::Touch { .. }
        | Asks::Delete => {
            matches!(op.told, Told::Done { .. }) && op.answered != NEVER && !is_quiet(op)
        }
        _ => op.told == Told::Refused,
    }
}

/// Settled as done, though the server did not say so.
fn is_quiet(op: &Op) -> bool {
    op.told == Told::Done { cas: 0 } && op.quiet
}

fn leaves_something(op: &Op) -> bool {
    match op.told {
        Told::Hit { .. } | Told::Refused => true,
        Told::Done { .. } => !matches!(op.asks, Asks::Delete | Asks::Flush { .. }),
        _ => false,
    }
}

fn exptime(op: &Op) -> Option<i32> {
    match op.asks {
        Asks::Store { exptime, .. } | Asks::Touch { exptime } => Some(exptime),
        _ => None,
    }
}

/// The cas that the item had at the end of `op`, as far as it was told.
fn cas(op: &Op) -> Option<u64> {
    match op.told {
        Told::Hit { cas, .. } | Told::Done { cas } => Some(cas).filter(|cas| *cas != 0),
        _ => None,
    }
}

/// One cas, one item.
fn alike(one: &Op, other: &Op) -> bool {
    let state = |op: &Op| match (&op.told, op.asks) {
        (Told::Hit { state, .. }, _) => Some(state.clone()),
        (_, Asks::Store { tag, .. }) => Some(State { base: tag, count: 0, tokens: Vec::new() }),
        _ => None,
    };
    match (state(one), state(other)) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    }
}

fn second(at: Micros) -> u64 {
    at / SECOND
}

fn say(op: &Op) -> String {
    let answered = match op.answered {
        NEVER => "never".to_owned(),
        at => at.to_string(),
    };
    format!(
        "[{}..{answered} connection {}.{}] {:?} -> {:?}",
        op.asked, op.link, op.place, op.asks, op.told
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requests of a run: connection, times, what was asked, what was told.
    fn verdict(ops: &[(usize, Micros, Micros, Asks, Told)]) -> Option<u8> {
        let mut history = History { by_tag: vec![0; 10], ..History::default() };
        for (at, (link, asked, answered, asks, told)) in ops.iter().enumerate() {
            if let Asks::Store { tag, .. } | Asks::Append { tag } = asks {
                history.by_tag[*tag as usize] = at;
            }
            history.ops.push(Op {
                key: if matches!(asks, Asks::Flush { .. }) { ALL_KEYS } else { 0 },
                link: *link,
                place: at as u32,
                asked: *asked,
                answered: *answered,
                evictions: (0, 0),
                asks: *asks,
                told: told.clone(),
                quiet: false,
            });
        }
        let facts = Facts { kinds: &[Kind::Register], lag: 0, calm: true };
        check(&history, &facts).err().map(|violation| violation.invariant)
    }

    const DONE: Told = Told::Done { cas: 0 };

    fn set(tag: u32) -> Asks {
        Asks::Store { tag, exptime: 0, when: When::Always }
    }

    fn hit(base: u32) -> Told {
        Told::Hit { state: State { base, count: 0, tokens: Vec::new() }, cas: 0 }
    }

    fn log(base: u32, tokens: &[u32]) -> Told {
        Told::Hit { state: State { base, count: 0, tokens: tokens.to_vec() }, cas: 0 }
    }

    #[test]
    fn while_a_write_is_under_way_either_value_may_be_read() {
        let ops =
            |read| [(0, 0, 1, set(1), DONE), (0, 2, 9, set(2), DONE), (1, 3, 4, Asks::Read, read)];
        assert_eq!([hit(1), hit(2)].map(|read| verdict(&ops(read))), [None, None]);
        assert_eq!(verdict(&ops(Told::Absent)), Some(LOST));
    }

    #[test]
    fn nobody_reads_an_older_value_after_a_newer_one() {
        let write = [(0, 0, 1, set(1), DONE), (0, 2, 9, set(2), DONE)];
        let reads = [(1, 3, 4, Asks::Read, hit(2)), (2, 5, 6, Asks::Read, hit(1))];
        assert_eq!(verdict(&[write.clone(), reads].concat()), Some(WENT_BACK));
        let after = [(1, 10, 11, Asks::Read, hit(1))];
        assert_eq!(verdict(&[&write[..], &after[..]].concat()), Some(WENT_BACK));
    }

    #[test]
    fn what_was_removed_stays_away_and_what_was_not_stays() {
        let read = |told| (1, 8, 9, Asks::Read, told);
        for remove in [Asks::Delete, Asks::Flush { delay: 0 }] {
            let ops = |told| [(0, 0, 1, set(1), DONE), (2, 4, 5, remove, DONE), read(told)];
            assert_eq!(verdict(&ops(hit(1))), Some(WENT_BACK), "{remove:?}");
            assert_eq!(verdict(&ops(Told::Absent)), None, "{remove:?}");
        }
        assert_eq!(verdict(&[(0, 0, 1, set(1), DONE), read(Told::Absent)]), Some(LOST));
    }

    #[test]
    fn an_append_is_done_once() {
        let append = Asks::Append { tag: 2 };
        let ops = |tokens: &[u32]| {
            [
                (0, 0, 1, set(1), DONE),
                (1, 2, 3, append, DONE),
                (2, 4, 5, Asks::Read, log(1, tokens)),
            ]
        };
        let verdicts = [&[2][..], &[], &[2, 2]].map(|tokens| verdict(&ops(tokens)));
        assert_eq!(verdicts, [None, Some(LOST), Some(LOST)]);
    }

    #[test]
    fn a_deadline_is_kept() {
        let expiring = Asks::Store { tag: 1, exptime: 2, when: When::Always };
        let ops = |at: Micros, told| {
            [(0, 0, 1, expiring, DONE), (1, at * SECOND, at * SECOND + 1, Asks::Read, told)]
        };
        assert_eq!(verdict(&ops(1, Told::Absent)), Some(LOST));
        assert_eq!(verdict(&ops(2, Told::Absent)), None);
        assert_eq!(verdict(&ops(3, hit(1))), Some(WENT_BACK));
    }

    #[test]
    fn a_change_under_a_cas_changes_that_item() {
        let cas = |tag, expected| Asks::Store { tag, exptime: 0, when: When::Unchanged(expected) };
        let done = |cas| Told::Done { cas };
        let ops =
            [(0, 0, 9, set(1), done(5)), (1, 0, 9, set(2), done(6)), (2, 0, 9, cas(3, 5), done(7))];
        assert_eq!(verdict(&ops), Some(LOST));
        let back = [(0, 0, 1, set(1), done(5)), (1, 2, 3, set(2), done(4))];
        assert_eq!(verdict(&back), Some(WENT_BACK));
    }
}
