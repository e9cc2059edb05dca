//! The store against the naive one, on random operations.

use crate::naive;
use crate::support::{make_room, options};
use mbal_cachelet::{Draft, Meta, Store};
use mbal_model::{Key, WorkerId};
use mbal_random::Random;

const WORKER: WorkerId = WorkerId(0);

/// What differs by nature: the naive store gives all keys of a cachelet the same counter, and so
/// does ours, so even cas is compared.
fn seen(meta: Meta, value: Vec<u8>) -> (Meta, Vec<u8>) {
    (meta, value)
}

fn read(store: &Store, key: &Key, now: u32) -> Option<(Meta, Vec<u8>)> {
    let mut out = b"before".to_vec();
    let meta = store.read(key, now, true, &mut out, |view, out| {
        let meta = view.meta();
        view.copy_value(out);
        meta
    })?;
    assert!(out.starts_with(b"before"));
    Some(seen(meta, out.split_off(6)))
}

fn read_naive(store: &naive::Store, key: &Key, now: u32) -> Option<(Meta, Vec<u8>)> {
    let mut value = Vec::new();
    let meta = store.read(key, now, true, &mut value, |view, out| {
        view.copy_value(out);
        view.meta()
    })?;
    Some(seen(meta, value))
}

/// Values from empty to 200 KB, most of them small, whose bytes tell where they belong.
fn value(random: &mut Random) -> Vec<u8> {
    let bytes = match random.below(20) {
        0 => random.below(200_000),
        1..4 => random.below(3_000),
        _ => random.below(120),
    };
    let first = random.word();
    (0..bytes).map(|i| (first.wrapping_add(i) >> (i % 7)) as u8).collect()
}

macro_rules! both {
    ($real:expr, $naive:expr, $locked:ident => $body:expr) => {{
        let ours = {
            let mut $locked = $real;
            $body
        };
        let theirs = {
            let mut $locked = $naive;
            $body
        };
        assert_eq!(ours, theirs);
        ours
    }};
}

fn compare(seed: u64, memory_mib: usize, cachelets: usize, keys: u64, steps: usize) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let store = Store::new(options(memory_mib, 2, cachelets));
    let naive = naive::Store::new(options(memory_mib, 2, cachelets));
    let mut now = 100;
    for _ in 0..steps {
        let text = format!("key:{}", random.below(keys));
        let key = Key::new(text.as_bytes()).expect("a valid key");
        let hash = key.hash();
        store.enter(WORKER);
        match random.below(100) {
            0..50 => assert_eq!(read(&store, &key, now), read_naive(&naive, &key, now), "{text}"),
            50..80 => {
                let value = value(&mut random);
                let (left, right) = value.split_at(value.len() / 3);
                let draft = Draft {
                    flags: if random.below(2) == 0 { 0 } else { random.word() as u32 },
                    deadline: if random.below(3) == 0 { now + random.below(400) as u32 } else { 0 },
                    parts: &[left, right],
                    cas: (random.below(10) == 0).then(|| random.word()),
                    stale: random.below(10) == 0,
                    win: random.below(10) == 0,
                    binary_key: random.below(10) == 0,
                };
                make_room(&store, WORKER, hash, value.len(), now);
                let looks_first = random.below(2) == 0;
                both!(store.lock(hash, now), naive.lock(hash, now), locked => match looks_first {
                    true => {
                        let found = locked.find(&key);
                        locked.put_found(&key, found.as_ref(), &draft)
                    }
                    false => locked.put(&key, &draft),
                })
                .expect("memory for all");
            }
            80..86 => {
                both!(store.lock(hash, now), naive.lock(hash, now), locked => {
                    locked.find(&key).map(|found| locked.remove(&found))
                });
            }
            86..92 => {
                let deadline =
                    if random.below(4) == 0 { 0 } else { now + random.below(300) as u32 };
                both!(store.lock(hash, now), naive.lock(hash, now), locked => {
                    locked.find(&key).map(|found| locked.touch(&found, deadline))
                });
            }
            92..97 => {
                let (stale, win) = (random.below(2) == 0, random.below(2) == 0);
                let cas = random.below(2) == 0;
                both!(store.lock(hash, now), naive.lock(hash, now), locked => {
                    let cas = cas.then(|| locked.next_cas());
                    locked.find(&key).map(|found| locked.mark(&found, stale, win, cas))
                });
            }
            97 => now += random.below(20) as u32,
            98 if random.below(40) == 0 => {
                let at = now + random.below(3) as u32;
                store.flush(at, now);
                naive.flush(at, now);
            }
            _ => {
                store.leave(WORKER);
                store.background(WORKER, now, 4);
                store.enter(WORKER);
            }
        }
        store.leave(WORKER);
    }
    for n in 0..keys {
        let text = format!("key:{n}");
        let key = Key::new(text.as_bytes()).expect("a valid key");
        assert_eq!(read(&store, &key, now), read_naive(&naive, &key, now), "{text}");
    }
}

#[test]
fn a_few_keys_in_much_memory_are_as_in_the_naive_store() {
    for seed in 1..6 {
        compare(seed, 256, 4, 300, 20_000);
    }
}

#[test]
fn many_keys_split_their_slices_without_loss() {
    compare(11, 1024, 2, 40_000, 150_000);
}

#[test]
fn cleaning_without_eviction_loses_nothing() {
    let mut random = Random::new(5);
    let mut limits = options(8, 1, 2);
    limits.evict = false;
    let store = Store::new(limits);
    let mut expected = std::collections::BTreeMap::new();
    let mut refused = 0;
    for step in 0..60_000_u32 {
        let text = format!("{}", random.below(5_000));
        let key = Key::new(text.as_bytes()).expect("a valid key");
        let value = vec![step as u8; random.below(4_000) as usize];
        store.enter(WORKER);
        make_room(&store, WORKER, key.hash(), value.len(), 1);
        let stored =
            store.lock(key.hash(), 1).put(&key, &Draft { parts: &[&value], ..Draft::default() });
        store.leave(WORKER);
        match stored {
            Ok(_) => drop(expected.insert(text, value)),
            Err(_) => refused += 1,
        }
        store.background(WORKER, 1, 1);
    }
    assert!(refused > 0, "8 MiB are not enough for 5,000 items of 2 KB in the mean");
    for (text, value) in &expected {
        let key = Key::new(text.as_bytes()).expect("a valid key");
        assert!(read(&store, &key, 1).is_some_and(|(_, found)| found == *value), "{text}");
    }
    assert_eq!(store.stats().items, expected.len() as u64);
    assert_eq!(store.stats().evictions, 0);
}
