//! Cachelets that are split lose nothing and invent nothing.

use mbal_cachelet::{Draft, Store};
use mbal_model::{Elsewhere, Key, Prefix, ServerId, WorkerId};
use mbal_random::Random;

use crate::support::{NOW, WORKER, fill, look, make_room, name, options};

#[test]
fn a_split_keeps_every_item_reachable_at_every_step() {
    let store = Store::new(options(256, 1, 2));
    fill(&store, 4_000);
    let before: Vec<_> = (0..4_000).map(|n| look(&store, n, NOW)).collect();
    let mut random = Random::new(8);
    for bits in 1..5 {
        for whole in store.prefixes() {
            assert_eq!(whole.bits(), bits);
            assert!(store.split(whole, NOW) && !store.split(whole, NOW));
            assert!(
                !store.release(whole, Elsewhere::Peer(ServerId(9))),
                "not in the middle of a split"
            );
            while store.split_step(whole, NOW) {
                for _ in 0..200 {
                    let n = random.below(4_000);
                    assert!(look(&store, n, NOW) == before[n as usize], "{}", name(n));
                }
            }
            assert_eq!(store.owner(whole), None, "it has another name now");
            for half in <[Prefix; 2]>::from(whole.halves().expect("wide enough")) {
                let inside = (0..4_000).filter(|n| {
                    let text = name(*n);
                    let hash = Key::new(text.as_bytes()).expect("a valid key").hash();
                    store.cachelet_of(hash) == Some((half, WORKER))
                });
                let items = store.stats_of(half).expect("it is here").items;
                assert_eq!(inside.count() as u64, items);
                assert!(items > 4_000 >> (bits + 1) >> 1, "{items} of 4,000 items in {half}");
            }
        }
    }
    assert!(store.prefixes().into_iter().eq(Prefix::equal(5)));
    assert!((0..4_000).all(|n| look(&store, n, NOW) == before[n as usize]));
    let stats = store.stats();
    assert_eq!((stats.items, stats.evictions), (4_000, 0));
}

#[test]
fn many_items_find_room_in_the_index_of_the_new_half() {
    let store = Store::new(options(128, 1, 1));
    for n in 0..1_000_000 {
        let text = name(n);
        let key = Key::new(text.as_bytes()).expect("a valid key");
        store.lock(key.hash(), NOW).put(&key, &Draft::default()).expect("there is room");
    }
    assert!(store.split(Prefix::ALL, NOW));
    while store.split_step(Prefix::ALL, NOW) {}
    assert_eq!((store.stats().items, store.stats().evictions), (1_000_000, 0));
    assert!((0..1_000_000).all(|n| look(&store, n, NOW).is_some()));
}

#[test]
fn long_values_are_split_one_by_one_and_get_room() {
    let store = Store::new(options(64, 1, 2));
    let value = |n: u64| vec![n as u8; 500_000];
    let put_all = |keys: std::ops::Range<u64>| {
        for n in keys {
            let text = name(n);
            let key = Key::new(text.as_bytes()).expect("a valid key");
            store.enter(WORKER);
            make_room(&store, WORKER, key.hash(), 500_000, NOW);
            let draft = Draft { parts: &[&value(n)], ..Draft::default() };
            store.lock(key.hash(), NOW).put(&key, &draft).expect("there is room");
            store.leave(WORKER);
        }
    };
    put_all(0..40);
    let (mut items, mut steps) = (0, 0);
    for whole in store.prefixes() {
        assert!(store.split(whole, NOW));
        while store.split_step(whole, NOW) {
            let half = store.stats_of(whole).expect("until all have moved").items;
            assert!(steps == 0 || items <= half + 3, "{items}, then {half}");
            (items, steps) = (half, steps + 1);
        }
        (items, steps) = (0, 0);
    }
    assert_eq!(store.stats().evictions, 0);
    assert!((0..40).all(|n| look(&store, n, NOW).expect("kept").1 == value(n)));
    // A memory that is full of them has to make room first: some are evicted, none for want of an attempt.
    put_all(40..200);
    let whole = store.prefixes()[0];
    assert!(store.split(whole, NOW));
    let before = store.stats().items;
    while store.split_step(whole, NOW) {}
    let after = store.stats().items;
    assert!(after * 10 > before * 7, "{after} of {before}");
}

#[test]
fn the_narrowest_cachelet_is_not_split() {
    let store = Store::new(options(16, 1, 1));
    let mut whole = Prefix::ALL;
    while let Some((_, upper)) = whole.halves() {
        assert!(store.split(whole, NOW));
        while store.split_step(whole, NOW) {}
        whole = upper;
    }
    assert_eq!(whole.to_string(), "fffe/15");
    assert!(!store.split(whole, NOW));
    assert_eq!(store.prefixes().len(), 16);
}

#[test]
fn a_flush_in_the_middle_of_a_split_gives_no_cas_again() {
    let store = Store::new(options(64, 1, 1));
    let put = |n: u64| {
        let text = name(n);
        let key = Key::new(text.as_bytes()).expect("a valid key");
        let draft = Draft { parts: &[b"v"], ..Draft::default() };
        store.lock(key.hash(), NOW).put(&key, &draft).expect("there is room")
    };
    for n in 0..100 {
        put(n);
    }
    assert!(store.split(Prefix::ALL, NOW));
    let moved = (0..100).find(|n| {
        let text = name(*n);
        Key::new(text.as_bytes()).expect("a valid key").hash() >> 63 == 1
    });
    let moved = moved.expect("half of them move");
    assert!(store.split_step(Prefix::ALL, NOW), "one slice has moved, the routes have not");
    let before = (0..50).map(|_| put(moved)).max().expect("put often");
    store.flush(0, NOW);
    assert!(put(moved) > before);
    while store.split_step(Prefix::ALL, NOW) {}
    assert!(look(&store, moved, NOW).is_some());
    assert!(store.prefixes().into_iter().eq(Prefix::equal(1)));
}

#[test]
fn cas_goes_on_where_it_was_after_a_split() {
    let store = Store::new(options(64, 1, 1));
    fill(&store, 500);
    let highest =
        (0..500).filter_map(|n| look(&store, n, NOW)).map(|(meta, _)| meta.cas & 0xffff).max();
    assert!(store.split(Prefix::ALL, NOW));
    while store.split_step(Prefix::ALL, NOW) {}
    for n in 500..1_000 {
        let text = name(n);
        let key = Key::new(text.as_bytes()).expect("a valid key");
        store.enter(WORKER);
        let cas = store.lock(key.hash(), NOW).put(&key, &Draft::default()).expect("there is room");
        store.leave(WORKER);
        assert!(Some(cas & 0xffff_ffff) > highest || n << 20 == cas, "{cas:x}");
    }
}

#[test]
fn a_split_that_has_begun_is_done_in_its_owners_background() {
    let store = Store::new(options(64, 2, 1));
    fill(&store, 2_000);
    let before: Vec<_> = (0..2_000).map(|n| look(&store, n, NOW)).collect();
    assert!(store.split(Prefix::ALL, NOW));
    while store.background(WorkerId(1), NOW, 16) {}
    assert_eq!(store.prefixes(), [Prefix::ALL], "it is another worker's");
    while store.background(WORKER, NOW, 1) {
        assert!((0..2_000).all(|n| look(&store, n, NOW) == before[n as usize]));
    }
    assert!(store.prefixes().into_iter().eq(Prefix::equal(1)));
    assert!(!store.split_step(Prefix::ALL, NOW));
    assert!((0..2_000).all(|n| look(&store, n, NOW) == before[n as usize]));
}
