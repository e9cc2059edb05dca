//! What is asked next: a random mix, every key once, or a trace in its order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::popularity::Popularity;
use crate::random::Random;
use crate::trace::Trace;

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ask {
    pub set: bool,
    pub value_bytes: u32,
}

#[derive(Clone)]
pub enum Source {
    Mix {
        popularity: Popularity,
        random: Random,
        set_share: f64,
        value_bytes: u32,
    },
    /// Keys `next`, `next + step`, … below `keys`: the threads of a generator share them out.
    Each {
        next: u64,
        step: u64,
        keys: u64,
        ask: Ask,
    },
    /// One cursor for all threads: they read one trace together.
    Replay {
        trace: Arc<Trace>,
        cursor: Arc<AtomicUsize>,
        sizes: Sizes,
    },
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sizes {
    Constant(u32),
    FromTrace { value_bytes_max: u32 },
}

impl Source {
    /// Moves on to the `shift`-th hot set.
    pub fn shift(&mut self, shift: u64) {
        if let Self::Mix { popularity, .. } = self {
            popularity.shift(shift);
        }
    }

    /// Fills `keys` for one request: `keys_per_get` of them for a get, one for a set. `None` at the end.
    /// What is drawn at random is drawn until it `fits` the request's first key.
    pub fn next(
        &mut self,
        keys_per_get: usize,
        fits: impl Fn(u64, u64) -> bool,
        keys: &mut Vec<u64>,
    ) -> Option<Ask> {
        keys.clear();
        match self {
            Self::Mix { popularity, random, set_share, value_bytes } => {
                let set = *set_share > 0.0 && random.unit() <= *set_share;
                let count = if set { 1 } else { keys_per_get };
                let first = popularity.draw(random);
                keys.push(first);
                while keys.len() < count {
                    keys.extend(Some(popularity.draw(random)).filter(|&key| fits(first, key)));
                }
                Some(Ask { set, value_bytes: *value_bytes })
            }
            Self::Each { next, step, keys: end, ask } => {
                let count = if ask.set { 1 } else { keys_per_get };
                while keys.len() < count && *next < *end {
                    keys.push(*next);
                    *next += *step;
                }
                (!keys.is_empty()).then_some(*ask)
            }
            Self::Replay { trace, cursor, sizes } => {
                let at = cursor.fetch_add(1, Ordering::Relaxed);
                keys.push(*trace.keys.get(at)?);
                let value_bytes = match (*sizes, &trace.value_bytes) {
                    (Sizes::FromTrace { value_bytes_max }, Some(sizes)) => {
                        sizes[at].min(value_bytes_max)
                    }
                    (Sizes::FromTrace { value_bytes_max }, None) => value_bytes_max,
                    (Sizes::Constant(value_bytes), _) => value_bytes,
                };
                Some(Ask { set: false, value_bytes })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(mut source: Source, keys_per_get: usize, count: usize) -> Vec<(bool, u32, Vec<u64>)> {
        let mut keys = Vec::new();
        std::iter::from_fn(|| {
            let ask = source.next(keys_per_get, |_, _| true, &mut keys)?;
            Some((ask.set, ask.value_bytes, keys.clone()))
        })
        .take(count)
        .collect()
    }

    #[test]
    fn every_key_is_asked_for_once_by_some_thread() {
        let ask = Ask { set: false, value_bytes: 5 };
        let mut seen: Vec<u64> = (0..3)
            .flat_map(|next| asks(Source::Each { next, step: 3, keys: 100, ask }, 7, 100))
            .flat_map(|(_, _, keys)| keys)
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<u64>>());
    }

    #[test]
    fn a_mix_has_the_share_of_sets_that_was_asked() {
        for (set_share, low, high) in [(0.0, 0, 0), (0.5, 4_850, 5_150), (1.0, 10_000, 10_000)] {
            let source = Source::Mix {
                popularity: Popularity::new(10, 0.0),
                random: Random::new(3),
                set_share,
                value_bytes: 1,
            };
            let sets = asks(source, 4, 10_000).iter().filter(|(set, _, _)| *set).count();
            assert!((low..=high).contains(&sets), "{set_share}: {sets}");
        }
    }

    #[test]
    fn a_replay_keeps_order_and_caps_sizes() {
        let trace = Trace { keys: vec![4, 2, 4], value_bytes: Some(vec![10, 500, 20]) };
        let source = Source::Replay {
            trace: Arc::new(trace),
            cursor: Arc::new(AtomicUsize::new(0)),
            sizes: Sizes::FromTrace { value_bytes_max: 100 },
        };
        let wanted = [(false, 10, vec![4]), (false, 100, vec![2]), (false, 20, vec![4])];
        assert_eq!(asks(source, 1, 9), wanted);
    }
}
