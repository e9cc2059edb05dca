//! What is asked next: a random mix, every key once, or a trace in its order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::args::ReadOnly;
use crate::mix::{Mix, Op, Ttls};
use crate::popularity::Popularity;
use crate::trace::Trace;
use mbal_random::Random;

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ask {
    pub op: Op,
    /// `None`: the key's own size. A trace may know better.
    pub value_bytes: Option<u32>,
    /// Of what this stores, or would store after a miss; 0 is for ever.
    pub ttl: u32,
}

#[derive(Clone)]
pub enum Source {
    Mix(Drawn),
    /// Keys `next`, `next + step`, … below `keys`: the threads of a generator share them out.
    Each {
        next: u64,
        step: u64,
        keys: u64,
        op: Op,
        ttls: Ttls,
        random: Random,
    },
    /// One cursor for all threads, step 1: they read one trace together. Or one for each, when requests have
    /// times of their own.
    Replay {
        trace: Arc<Trace>,
        cursor: Arc<AtomicUsize>,
        step: usize,
        /// Sizes are the trace's, up to this; otherwise each key has its own.
        value_bytes_max: Option<u32>,
        ttl: u32,
    },
}

#[derive(Clone)]
pub struct Drawn {
    pub popularity: Popularity,
    pub random: Random,
    pub mix: Mix,
    pub ttls: Ttls,
    pub keys: u64,
    pub scan_max: u32,
    pub read_only: Option<ReadOnly>,
    /// How many keys there are, with those that were inserted.
    pub newest: Arc<AtomicU64>,
}

impl Source {
    /// Moves on to the `shift`-th hot set.
    pub fn shift(&mut self, shift: u64) {
        if let Self::Mix(Drawn { popularity, .. }) = self {
            popularity.shift(shift);
        }
    }

    /// Fills `keys` for one request: `keys_per_get` of them for a get, one for most others. `None` at the end.
    pub fn next(&mut self, keys_per_get: usize, keys: &mut Vec<u64>) -> Option<Ask> {
        keys.clear();
        match self {
            Self::Mix(drawn) => Some(drawn.next(keys_per_get, keys)),
            Self::Each { next, step, keys: end, op, ttls, random } => {
                let count = if *op == Op::Get { keys_per_get } else { 1 };
                while keys.len() < count && *next < *end {
                    keys.push(*next);
                    *next += *step;
                }
                let ask = Ask { op: *op, value_bytes: None, ttl: ttls.draw(random) };
                (!keys.is_empty()).then_some(ask)
            }
            Self::Replay { trace, cursor, step, value_bytes_max, ttl } => {
                let at = cursor.fetch_add(*step, Ordering::Relaxed);
                keys.push(*trace.keys.get(at)?);
                let value_bytes = value_bytes_max.map(|max| match &trace.value_bytes {
                    Some(sizes) => sizes[at].min(max),
                    None => max,
                });
                Some(Ask { op: Op::Get, value_bytes, ttl: *ttl })
            }
        }
    }
}

impl Drawn {
    fn next(&mut self, keys_per_get: usize, keys: &mut Vec<u64>) -> Ask {
        let mut op = self.mix.draw(&mut self.random);
        let ttl = self.ttls.draw(&mut self.random);
        if op == Op::Insert {
            keys.push(self.newest.fetch_add(1, Ordering::Relaxed));
            return Ask { op: Op::Set, value_bytes: None, ttl };
        }
        let (rank, first) = self.popularity.draw_ranked(&mut self.random);
        keys.push(first);
        if self.read_only.is_some_and(|only| only.has(rank)) && !op.reads_only() {
            op = Op::Get;
        }
        if op == Op::Scan {
            let count = self.random.below(self.scan_max.into());
            keys.extend((1..=count).map(|next| (first + next) % self.keys));
            return Ask { op: Op::Get, value_bytes: None, ttl };
        }
        while op == Op::Get && keys.len() < keys_per_get {
            keys.push(self.popularity.draw(&mut self.random));
        }
        Ask { op, value_bytes: None, ttl }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(mut source: Source, keys_per_get: usize, count: usize) -> Vec<(Ask, Vec<u64>)> {
        let mut keys = Vec::new();
        std::iter::from_fn(|| {
            let ask = source.next(keys_per_get, &mut keys)?;
            Some((ask, keys.clone()))
        })
        .take(count)
        .collect()
    }

    fn drawn(mix: &str) -> Source {
        Source::Mix(Drawn {
            popularity: Popularity::new(10, 0.0),
            random: Random::new(3),
            mix: mix.parse().unwrap(),
            ttls: "60".parse().unwrap(),
            keys: 10,
            scan_max: 5,
            read_only: None,
            newest: Arc::new(AtomicU64::new(10)),
        })
    }

    #[test]
    fn every_key_is_asked_for_once_by_some_thread() {
        let each = |next| Source::Each {
            next,
            step: 3,
            keys: 100,
            op: Op::Get,
            ttls: Ttls::all(0),
            random: Random::new(1),
        };
        let mut seen: Vec<u64> =
            (0..3).flat_map(|next| asks(each(next), 7, 100)).flat_map(|(_, keys)| keys).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<u64>>());
    }

    #[test]
    fn requests_have_as_many_keys_as_their_operation_takes() {
        for (ask, keys) in asks(drawn("get,set,delete,rmw,scan"), 4, 10_000) {
            match ask.op {
                Op::Get => assert!((1..=5).contains(&keys.len())),
                _ => assert_eq!(keys.len(), 1),
            }
            assert_eq!(ask.ttl, 60);
        }
    }

    #[test]
    fn some_of_the_hottest_keys_are_never_written() {
        let only: ReadOnly = "500:20".parse().unwrap();
        assert_eq!((0..1_000).filter(|rank| only.has(*rank)).count(), 100);
        assert!(only.has(0) && !only.has(4) && only.has(495) && !only.has(500));
        let Source::Mix(drawn) = drawn("get,set,rmw") else { unreachable!() };
        let popularity = Popularity::new(10, 0.99);
        let source = Source::Mix(Drawn { popularity, read_only: "4:50".parse().ok(), ..drawn });
        let mut written: Vec<u64> = asks(source, 1, 10_000)
            .into_iter()
            .filter(|(ask, _)| ask.op != Op::Get)
            .map(|(_, keys)| keys[0])
            .collect();
        written.sort_unstable();
        written.dedup();
        assert_eq!(written.len(), 8);
    }

    #[test]
    fn inserts_make_new_keys_one_after_the_other() {
        let inserted: Vec<u64> = asks(drawn("insert,get"), 1, 1_000)
            .into_iter()
            .filter(|(ask, _)| ask.op == Op::Set)
            .map(|(_, keys)| keys[0])
            .collect();
        assert!(inserted.len() > 400);
        assert!(inserted.iter().copied().eq((10..).take(inserted.len())));
    }

    #[test]
    fn a_replay_keeps_order_and_caps_sizes() {
        let trace = Arc::new(Trace {
            keys: vec![4, 2, 4],
            value_bytes: Some(vec![10, 500, 20]),
            seconds: None,
        });
        let replay = |start, step| Source::Replay {
            trace: trace.clone(),
            cursor: Arc::new(AtomicUsize::new(start)),
            step,
            value_bytes_max: Some(100),
            ttl: 0,
        };
        let told = |source| -> Vec<(u32, u64)> {
            asks(source, 1, 9)
                .iter()
                .map(|(ask, keys)| (ask.value_bytes.unwrap(), keys[0]))
                .collect()
        };
        assert_eq!(told(replay(0, 1)), [(10, 4), (100, 2), (20, 4)]);
        assert_eq!(told(replay(0, 2)), [(10, 4), (20, 4)]);
    }
}
