//! Cachelets that take along what was chosen, and stores that make room for it.

use mbal_cachelet::{AgeThresholds, Arriving, Cursor, Draft, Due, Room, Store};
use mbal_model::{CLASSES, Key, Prefix};

use super::support::*;

/// Stored, and read as often as counts, so many seconds before [`NOW`]: its age is what it counts by.
fn put_aged(store: &Store, n: u64, age: u32, bytes: usize) {
    let text = name(n);
    let key = Key::new(text.as_bytes()).expect("short");
    let value = vec![b'v'; bytes];
    store.enter(WORKER);
    let room = store.reserve_at_once(WORKER, key.hash(), bytes, NOW - age);
    assert!(matches!(room, Room::There | Room::Made));
    let draft = Draft { parts: &[&value], ..Draft::default() };
    let mut locked = store.lock(key.hash(), NOW - age);
    locked.put(&key, &draft).expect("there is room");
    for _ in 0..3 {
        let found = locked.find(&key).expect("it was stored");
        locked.accessed(&found);
    }
    drop(locked);
    store.leave(WORKER);
}

/// A thousand items of the ages 0 to 49, the oldest first: a store's clock does not go back.
fn put_all_aged(store: &Store) {
    for age in (0..50).rev() {
        (0..1_000).filter(|n| n % 50 == age).for_each(|n| put_aged(store, n, age as u32, 100));
    }
}

fn is_there(store: &Store, n: u64) -> bool {
    let text = name(n);
    let key = Key::new(text.as_bytes()).expect("short");
    store.lock(key.hash(), NOW).find(&key).is_some()
}

fn younger_than(age: u32) -> AgeThresholds {
    let mut age_thresholds = AgeThresholds::at(NOW);
    (0..CLASSES).for_each(|class| age_thresholds.younger_than(class, age, 0));
    age_thresholds
}

#[test]
fn ages_are_those_of_the_last_access_by_class() {
    let store = small();
    put_all_aged(&store);
    let ages = store.ages(NOW, NOW, 10_000);
    let class = ages.iter().find(|class| class.items > 0).expect("there are some");
    assert_eq!((class.items, class.ages.len()), (1_000, 1_000));
    let expected: Vec<u32> = (0..50).flat_map(|age| [age; 20]).collect();
    assert_eq!(class.ages, expected);
    // As they were ten seconds ago; what was used since has no age.
    assert_eq!(
        store.ages(NOW - 10, NOW, 10_000).iter().flat_map(|class| &class.ages).max(),
        Some(&39)
    );
    let sampled: usize = store.ages(NOW, NOW, 100).iter().map(|class| class.ages.len()).sum();
    assert_eq!(sampled, 100);
}

/// Moves all of a store that was chosen to another one, which has none.
fn travel_chosen(source: &Store, target: &Store, chosen: AgeThresholds) {
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.take_along(Prefix::ALL, chosen);
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(Prefix::ALL));
    arriving.is_chosen = true;
    while source.freeze(Prefix::ALL, NOW).is_some() {
        for part in parts_of(source, Prefix::ALL, &mut cursor) {
            assert_eq!(import(target, &mut arriving, &part, NOW), Ok(Due::Now));
        }
        while source.forget(Prefix::ALL, &mut cursor, NOW) {}
    }
}

fn one(memory_mib: usize) -> Store {
    Store::new(options(memory_mib, 1, 1))
}

#[test]
fn what_was_not_chosen_stays_behind_and_is_counted() {
    let (source, target) = (one(16), one(16));
    put_all_aged(&source);
    travel_chosen(&source, &target, younger_than(10));
    let there: Vec<u64> = (0..1_000).filter(|n| is_there(&target, *n)).collect();
    let expected: Vec<u64> = (0..1_000).filter(|n| n % 50 < 10).collect();
    assert_eq!(there, expected);
    assert_eq!(source.stats().left_behind, 800);
}

#[test]
fn what_makes_room_for_those_that_were_chosen_is_old_however_often_it_was_read() {
    let (source, target) = (one(16), one(4));
    let (old, young, comes) = (0..1_500, 1_500..3_000, 3_000..4_000);
    // Policy would keep them: all were read.
    old.clone().for_each(|n| put_aged(&target, n, 500, 1_000));
    young.clone().for_each(|n| put_aged(&target, n, 5, 1_000));
    comes.clone().for_each(|n| put_aged(&source, n, 5, 1_000));
    let evicted = target.stats().evictions;
    assert_eq!(evicted, 0, "all of it fits");
    target.keep(younger_than(100));
    travel_chosen(&source, &target, younger_than(100));
    let there = |of: std::ops::Range<u64>| of.filter(|n| is_there(&target, *n)).count();
    assert_eq!((there(young), there(comes)), (1_500, 1_000));
    assert!(there(old) < 1_500, "something has made room");
}

#[test]
fn of_items_of_one_age_a_part_travels() {
    let (source, target) = (one(16), one(16));
    (0..1_000).for_each(|n| put_aged(&source, n, 5, 100));
    let mut age_thresholds = AgeThresholds::at(NOW);
    (0..CLASSES)
        .for_each(|class| age_thresholds.younger_than(class, 5, 65_536_u32.div_ceil(4) as u16));
    travel_chosen(&source, &target, age_thresholds);
    let there = (0..1_000).filter(|n| is_there(&target, *n)).count();
    assert!((200..300).contains(&there), "{there} of 1,000");
}
