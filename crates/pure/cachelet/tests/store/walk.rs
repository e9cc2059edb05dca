//! A walk shows every item once, whatever splits meanwhile, and the classes add up to it.

use std::collections::BTreeMap;

use mbal_cachelet::{Dead, Draft, Options, Store};
use mbal_model::{CLASSES, Key, WorkerId, item_bytes, size_class};

use crate::support::make_room;

const NOW: u32 = 100;

fn filled(items: u32, deadline: impl Fn(u32) -> u32) -> Store {
    let options = Options {
        memory_bytes: 16 << 20,
        workers: 1,
        cachelets: 2,
        item_bytes_max: 1 << 20,
        evict: true,
        generation: 1,
    };
    let store = Store::new(options);
    store.enter(WorkerId(0));
    for number in 0..items {
        let (name, value) = (number.to_string(), vec![b'v'; number as usize % 300]);
        let key = Key::new(name.as_bytes()).expect("short");
        make_room(&store, WorkerId(0), key.hash(), value.len(), NOW);
        let draft = Draft { parts: &[&value], deadline: deadline(number), ..Draft::default() };
        store.lock(key.hash(), NOW).put(&key, &draft).expect("there is room");
    }
    store
}

/// Walks to the end, doing `between` after each slice; how often each key was shown.
fn walk(store: &Store, dead: Dead, mut between: impl FnMut()) -> BTreeMap<Vec<u8>, u32> {
    let mut seen = BTreeMap::new();
    let mut from = Some(0);
    while let Some(at) = from {
        let show = |view: &mbal_cachelet::View| {
            *seen.entry(view.key().to_vec()).or_insert(0) += 1;
        };
        let (next, _) = store.walk(at, NOW, dead, u64::MAX, show);
        assert!(next.is_none_or(|next| next > at), "it goes forward");
        from = next;
        between();
    }
    seen
}

#[test]
fn every_item_is_shown_once() {
    let store = filled(20_000, |_| 0);
    let seen = walk(&store, Dead::PassOver, || {});
    assert_eq!(seen.len(), 20_000);
    assert!(seen.values().all(|times| *times == 1));
}

#[test]
fn splits_hide_nothing_from_a_walk() {
    let store = filled(20_000, |_| 0);
    // Every split is in every state during one of these walks.
    for steps in [0, 1, 3] {
        for cachelet in store.prefixes() {
            store.leave(WorkerId(0));
            store.enter(WorkerId(0));
            store.split(cachelet, NOW);
        }
        let seen = walk(&store, Dead::PassOver, || {
            for cachelet in store.prefixes() {
                for _ in 0..steps {
                    store.split_step(cachelet, NOW);
                }
            }
        });
        // A split may find no place for an item in its new block; that is an eviction.
        let there = (0..20_000u32).filter(|number| {
            let name = number.to_string();
            let key = Key::new(name.as_bytes()).expect("short");
            store.read(&key, NOW, false, &mut Vec::new(), |_, _| ()).is_some()
        });
        let there: Vec<u32> = there.collect();
        assert!(there.len() > 19_900 && there.len() as u64 == store.stats().items);
        for number in there {
            let times = seen.get(number.to_string().as_bytes());
            assert_eq!(times, Some(&1), "{number}, {steps} steps between two slices");
        }
    }
}

#[test]
fn the_dead_are_passed_over_or_removed() {
    let store = filled(2000, |number| number % 2 * 50);
    assert_eq!(walk(&store, Dead::PassOver, || {}).len(), 1000);
    assert_eq!(store.stats().items, 2000);
    assert_eq!(walk(&store, Dead::Remove, || {}).len(), 1000);
    assert_eq!((store.stats().items, store.stats().expired), (1000, 1000));
}

#[test]
fn classes_add_up_to_what_a_walk_finds() {
    let store = filled(20_000, |_| 0);
    for number in 0..20_000u32 {
        let name = number.to_string();
        let key = Key::new(name.as_bytes()).expect("short");
        let mut locked = store.lock(key.hash(), NOW);
        match number % 4 {
            0 => {
                let found = locked.find(&key).expect("it was stored");
                locked.remove(&found);
            }
            1 => drop(locked.put(&key, &Draft { parts: &[b"other"], ..Draft::default() })),
            2 => {
                let found = locked.find(&key).expect("it was stored");
                locked.touch(&found, NOW + 50).expect("there is room");
            }
            _ => {}
        }
    }
    let mut counted = [(0, 0); CLASSES];
    let mut from = Some(0);
    while let Some(at) = from {
        from = store
            .walk(at, NOW, Dead::PassOver, 0, |view| {
                let meta = view.meta();
                let bytes = item_bytes(view.key().len(), meta.flags, meta.value_bytes as usize);
                let class = &mut counted[size_class(bytes)];
                *class = (class.0 + 1, class.1 + bytes as u64);
            })
            .0;
    }
    let told = store.class_stats();
    for (class, counted) in counted.into_iter().enumerate() {
        assert_eq!((told[class].items, told[class].bytes), counted, "class {class}");
    }
}
