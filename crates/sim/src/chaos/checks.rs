//! Invariants 2, 3 and 4 of docs/design/invariants.md, from what clients asked and were told.
//!
//! Nothing here knows how the server works. One request *precedes* another if it came earlier on the same
//! connection, or was answered before the other was asked; a read that a copy may have answered a lease before, unless both are of one
//! session (docs/design/hotkeys.md). A reply is wrong only if no order that respects this can
//! explain it, so that whatever is reported is a fault; and values are unique, so that little can hide.

use std::collections::BTreeMap;

mod flushes;
mod ops;

use flushes::flushes;
pub use ops::say;
use ops::{
    ends, exptime, finds_nothing, finds_something, is_elsewhere, leads_to, leaves_something,
    may_expire, may_remove, may_store,
};

use super::cases;
use super::history::{
    ALL_KEYS, Asks, History, Kind, Micros, NEVER, Observed, Op, SECOND, State, When,
};

/// An invariant of docs/design/invariants.md that did not hold.
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

pub const LOST: u8 = 2;
pub const WENT_BACK: u8 = 3;
pub const AFTER_LEASE: u8 = 4;

/// What the checks must know of the run.
pub struct Facts<'a> {
    /// By key: what its values are like, and the server that has it; `None` if several have had it.
    pub kinds: &'a [Kind],
    pub homes: &'a [Option<usize>],
    /// By key: by how long its deadlines may have been put off.
    pub put_off: &'a [Micros],
    /// By key: moves that may have left it behind, each with the moment of its order, and the one since when who was used was chosen.
    pub cuts: &'a [Vec<(Micros, Micros)>],
    /// The longest that a worker's clock was behind.
    pub lag: Micros,
    /// How far clocks show other seconds than the run's; 0 if they all show its.
    pub skew: Micros,
    /// No memory was ever short: what wanted no answer was done.
    pub calm: bool,
    /// Keys may be copied, and read so long by whoever has a copy.
    pub lease: Option<Micros>,
}

pub fn check(history: &mut History, facts: &Facts<'_>) -> Result<(), Violation> {
    history.ops.iter_mut().for_each(|op| settle(op, facts));
    if facts.lease.is_some() {
        doubt_misses(history);
    }
    let mut by_home: BTreeMap<Option<usize>, Vec<Op>> = BTreeMap::new();
    for home in facts.homes {
        by_home.entry(*home).or_insert_with(|| flushes(history, facts, *home));
    }
    let mut by_key: Vec<Vec<&Op>> = vec![Vec::new(); facts.kinds.len()];
    for op in history.ops.iter().filter(|op| op.key != ALL_KEYS) {
        by_key[op.key].push(op);
    }
    for (index, mut ops) in by_key.into_iter().enumerate().filter(|(_, ops)| !ops.is_empty()) {
        ops.extend(&by_home[&facts.homes[index]]);
        let key = Key::new(index, ops, history, facts);
        key.check().map_err(|Violation { invariant, what }| {
            Violation::new(invariant, format!("key {index}, {what}\n{}", key.story()))
        })?;
    }
    Ok(())
}

/// What an answer means where it can mean two things.
fn settle(op: &mut Op, facts: &Facts<'_>) {
    let needs_an_item =
        matches!(op.asks, Asks::Append { .. } | Asks::Store { when: When::Present, .. });
    match op.told {
        // A request that wanted no answer is as good as done if nothing could keep it from it.
        Observed::Quiet if op.asks == Asks::Delete => op.told = Observed::Done { cas: 0 },
        Observed::Quiet
            if facts.calm && matches!(op.asks, Asks::Store { when: When::Always, .. }) =>
        {
            op.told = Observed::Done { cas: 0 };
        }
        // Else it may have found no memory, and have taken the old item along.
        Observed::Quiet if !facts.calm && matches!(op.asks, Asks::Store { .. }) => {
            op.told = Observed::Nothing;
        }
        // NOT_STORED is no item, or no room for it.
        Observed::Refused if needs_an_item && facts.calm => op.told = Observed::Absent,
        Observed::Refused if needs_an_item => op.told = Observed::Nothing,
        _ => {}
    }
}

/// Copies are read until a `flush_all` has reached all servers, and the key's home may have done it before: until then a miss says nothing.
fn doubt_misses(history: &mut History) {
    let flushes = history.ops.iter().filter(|op| matches!(op.asks, Asks::Flush { .. }));
    let flushes: Vec<(Micros, Micros)> = flushes
        .map(|op| match op.told {
            Observed::Done { .. } if !op.is_forgotten => (op.asked, op.answered),
            _ => (op.asked, NEVER),
        })
        .collect();
    let meets = |op: &Op| flushes.iter().any(|(from, to)| *from <= op.answered && op.asked <= *to);
    for op in history.ops.iter_mut().filter(|op| op.told == Observed::Absent && op.key != ALL_KEYS)
    {
        let meets = meets(op);
        if meets {
            op.told = Observed::Nothing;
        }
    }
}

/// The requests of one key, and those of them that a check looks for.
struct Key<'a> {
    index: usize,
    /// In the order in which they were asked.
    ops: Vec<&'a Op>,
    /// By base: those that wrote it or saw it.
    by_base: BTreeMap<u32, Vec<&'a Op>>,
    stores: Vec<&'a Op>,
    sightings: Vec<&'a Op>,
    removers: Vec<&'a Op>,
    expiring: Vec<&'a Op>,
    ends: Vec<&'a Op>,
    history: &'a History,
    facts: &'a Facts<'a>,
}

impl<'a> Key<'a> {
    fn new(
        index: usize,
        mut ops: Vec<&'a Op>,
        history: &'a History,
        facts: &'a Facts<'a>,
    ) -> Key<'a> {
        ops.sort_by_key(|op| (op.asked, op.place));
        let mut by_base: BTreeMap<u32, Vec<&Op>> = BTreeMap::new();
        for op in &ops {
            let wrote = match op.asks {
                Asks::Store { tag, .. } => Some(tag),
                _ => None,
            };
            let saw = match &op.told {
                Observed::Hit { state, .. } => Some(state.base),
                _ => None,
            };
            for base in wrote.into_iter().chain(saw.filter(|_| saw != wrote)) {
                by_base.entry(base).or_default().push(op);
            }
        }
        let those = |are: &dyn Fn(&Op) -> bool| -> Vec<&Op> {
            ops.iter().copied().filter(|op| are(op)).collect()
        };
        Key {
            index,
            by_base,
            stores: those(&may_store),
            sightings: those(&leaves_something),
            removers: those(&may_remove),
            expiring: those(&may_expire),
            ends: those(&ends),
            ops,
            history,
            facts,
        }
    }

    fn check(&self) -> Result<(), Violation> {
        for op in &self.ops {
            if let Observed::Hit { state, .. } = &op.told {
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
        }
        cases::check(&self.ops)
    }

    fn writer(&self, tag: u32) -> Option<&'a Op> {
        let writer = self.history.ops.get(*self.history.by_tag.get(tag as usize)?)?;
        (writer.key == self.index).then_some(writer)
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
        if read.asks == Asks::Increment && self.by_base[&state.base].iter().any(twin) {
            return Err(Violation::new(
                LOST,
                format!("two increments made one number: {}", say(read)),
            ));
        }
        Ok(())
    }

    /// Between a moment on the way to the state that `read` saw and `read` lies no moment that is off that way.
    fn never_goes_back(&self, read: &Op, state: &State) -> Result<(), Violation> {
        let appends = state.tokens.iter().filter_map(|tag| self.writer(*tag));
        let on_the_way: Vec<&Op> = self.by_base[&state.base]
            .iter()
            .copied()
            .chain(appends)
            .filter(|op| leads_to(op, state))
            .collect();
        let first_answered = on_the_way.iter().map(|op| op.answered).min().unwrap_or(NEVER);
        // What is preceded by something was not asked before it, and what precedes something not after.
        let first_asked = on_the_way.iter().map(|op| op.asked).min().unwrap_or(NEVER);
        let begin = self.ops.partition_point(|op| op.asked < first_asked);
        let between = self.ops[begin..].iter().take_while(|op| op.asked <= read.asked);
        for op in between.filter(|op| op.precedes(read) && is_elsewhere(op, state)) {
            let follows =
                first_answered < op.since() || on_the_way.iter().any(|before| before.precedes(op));
            if follows {
                // An append that is missing is lost; anything else was overtaken by the past.
                let invariant = match op.asks {
                    _ if self.facts.lease.is_some_and(|lease| op.asked + lease < read.asked) => {
                        AFTER_LEASE
                    }
                    Asks::Append { .. } | Asks::Increment => LOST,
                    _ => WENT_BACK,
                };
                let what = format!("{} does not know of {}", say(read), say(op));
                return Err(Violation::new(invariant, what));
            }
        }
        Ok(())
    }

    fn has_not_expired(&self, read: &Op, state: &State) -> Result<(), Violation> {
        let write = self.writer(state.base).expect("looked for before");
        let late = self.facts.lag + self.facts.put_off[self.index];
        let seen = second(read.since().saturating_sub(late));
        let keeps = |op: &Op| match exptime(op) {
            Some(0) => true,
            Some(..0) | None => false,
            Some(some) => op.answered == NEVER || second(op.answered) + some as u64 > seen,
        };
        let touches = |op: &&Op| {
            matches!(op.asks, Asks::Touch { .. }) && !op.precedes(write) && !read.precedes(op)
        };
        if keeps(write) || self.ops.iter().copied().filter(touches).any(keeps) {
            return Ok(());
        }
        Err(Violation::new(WENT_BACK, format!("expired: {}", say(read))))
    }

    /// Whoever finds nothing: since every sighting before, something may have removed the item.
    fn may_be_gone(&self, miss: &Op) -> Result<(), Violation> {
        // The last ones are the likely ones.
        let removers = || not_after(&self.removers, miss.answered).iter().rev();
        let expiring: Vec<&Op> = not_after(&self.expiring, miss.answered)
            .iter()
            .copied()
            .filter(|op| self.expires_before(op, miss))
            .collect();
        let sightings = not_after(&self.sightings, miss.asked);
        for sighting in sightings.iter().filter(|op| op.precedes(miss)) {
            let evicted = sighting.evictions.0 != miss.evictions.1;
            let removed =
                || removers().any(|remover| !remover.precedes(sighting) && !miss.precedes(remover));
            let expired = || expiring.iter().rev().any(|op| self.may_hold_for(op, sighting));
            let left_behind = || self.may_be_left_behind(sighting, miss);
            if !evicted && !removed() && !expired() && !left_behind() {
                let what = format!("{} though {} came before", say(miss), say(sighting));
                return Err(Violation::new(LOST, what));
            }
        }
        Ok(())
    }

    /// True if a move may have carried what was used later alone. A copy is read without its home's knowledge.
    fn may_be_left_behind(&self, sighting: &Op, miss: &Op) -> bool {
        let counts = match &sighting.told {
            Observed::Done { .. } => matches!(sighting.asks, Asks::Store { .. }),
            Observed::Hit { .. } => self.facts.lease.is_none(),
            _ => false,
        };
        // A use may be as old as its worker's clock.
        let late = self.facts.lag;
        self.facts.cuts[self.index].iter().any(|(ordered, chosen_since)| {
            *ordered <= miss.answered && (!counts || sighting.asked < chosen_since + late)
        })
    }

    /// True if `op` set a deadline that may have passed when `miss` was answered.
    fn expires_before(&self, op: &Op, miss: &Op) -> bool {
        let exptime = exptime(op).expect("it may expire");
        let earliest =
            second(op.asked.saturating_sub(self.facts.lag)) as i64 + i64::from(exptime.max(0));
        let in_time =
            miss.answered == NEVER || earliest <= second(miss.answered + self.facts.skew) as i64;
        in_time && !miss.precedes(op)
    }

    /// True if the deadline that `op` set may be that of what `sighting` saw, or of a later item.
    fn may_hold_for(&self, op: &Op, sighting: &Op) -> bool {
        let seen = match (&sighting.told, sighting.asks) {
            (Observed::Hit { state, .. }, _) => Some(state.base),
            (Observed::Done { .. }, Asks::Store { tag, .. }) => Some(tag),
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
        let gone = |write: &Op| self.ends.iter().any(|end| write.precedes(end) && end.precedes(op));
        let stores = not_after(&self.stores, op.answered);
        if stores.iter().rev().any(|write| !op.precedes(write) && !gone(write)) {
            return Ok(());
        }
        Err(Violation::new(WENT_BACK, format!("nothing can be there: {}", say(op))))
    }

    fn story(&self) -> String {
        self.ops.iter().map(|op| format!("    {}\n", say(op))).collect()
    }
}

/// Those that were not asked after this.
fn not_after<'a, 'b>(ops: &'b [&'a Op], at: Micros) -> &'b [&'a Op] {
    &ops[..ops.partition_point(|op| op.asked <= at)]
}

fn second(at: Micros) -> u64 {
    at / SECOND
}

#[cfg(test)]
mod tests;
