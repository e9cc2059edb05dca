//! `flush_all`, as the checks see it: when it takes effect, and for which keys.

use super::Facts;
use crate::chaos::history::{ALL_KEYS, Asks, History, Micros, NEVER, Observed, Op, SECOND};

/// `flush_all`, when it takes effect at the server `home`. A later one takes a delayed one's place; then nobody knows whether it did.
pub fn flushes(history: &History, facts: &Facts<'_>, home: Option<usize>) -> Vec<Op> {
    let put_off = match home {
        Some(_) => 0,
        None => facts.put_off.iter().copied().max().unwrap_or(0),
    };
    let of_all = history.ops.iter().filter(|op| op.key == ALL_KEYS).cloned();
    let all: Vec<Op> = of_all.map(|op| at_home(op, home, facts.lease.is_some())).collect();
    let effect = |(at, op): (usize, &Op)| {
        let Asks::Flush { delay } = op.asks else { unreachable!("nothing else is of all keys") };
        let mut effect = op.clone();
        // Two that two servers begin at the same moment have one number: a part may travel between them (decision 0011).
        let meets = |other: &Op| {
            other.place_of() != op.place_of() && !other.precedes(op) && !op.precedes(other)
        };
        if home.is_none() && all.iter().any(meets) {
            effect.told = Observed::Nothing;
        }
        if delay > 0 {
            // memcached's delayed flush takes effect a second early.
            let wait = u64::from(delay - 1) * SECOND;
            effect.connection = usize::MAX - at;
            effect.asked = start_of_second(op.asked.saturating_sub(facts.lag)) + wait;
            effect.asked = effect.asked.saturating_sub(facts.skew).max(op.asked);
            if op.answered != NEVER {
                effect.answered =
                    start_of_second(op.answered) + wait + facts.lag + facts.skew + put_off;
                effect.answered = effect.answered.max(op.answered);
            }
            let disturbs = |other: &Op| {
                other.place_of() != op.place_of() && !other.precedes(op) && !effect.precedes(other)
            };
            if all.iter().any(disturbs) {
                effect.told = Observed::Nothing;
            }
        }
        if op.is_forgotten {
            effect.told = Observed::Nothing;
        }
        effect
    };
    all.iter().enumerate().map(effect).collect()
}

/// What a `flush_all` that has not reached every server means for keys of one: the server that was asked has done it.
fn at_home(op: Op, home: Option<usize>, copied: bool) -> Op {
    match op.told {
        // Copies on servers that it has not reached are read on.
        Observed::NotEverywhere { .. } if home == Some(op.host) && !copied => {
            Op { told: Observed::Done { cas: 0 }, ..op }
        }
        Observed::NotEverywhere { .. } => {
            Op { told: Observed::Nothing, answered: NEVER, unordered: true, ..op }
        }
        _ => op,
    }
}

fn start_of_second(at: Micros) -> Micros {
    at / SECOND * SECOND
}
