//! Cachelets come and go: what is here is found, what is not is sent where it is.

use mbal_cachelet::{Birth, Draft, Memory, Store};
use mbal_model::{Elsewhere, Key, MoveId, Prefix, Route, ServerId, WorkerId};

use crate::support::options;

const HERE: WorkerId = WorkerId(0);
const OTHER: WorkerId = WorkerId(1);
const NOW: u32 = 5;
const PEER: Elsewhere = Elsewhere::Peer(ServerId(3));

fn prefix(text: &str) -> Prefix {
    Prefix::parse(text.as_bytes()).expect("a prefix")
}

fn vacant() -> Store {
    Store::vacant(options(16, 2, 4), Memory::heap(16 << 20)).expect("memory")
}

fn birth(generation: u16) -> Birth {
    Birth { generation, flush_number: 0 }
}

/// Stores under every key of these that is here; their cas.
fn fill(store: &Store, keys: std::ops::Range<u32>) -> Vec<u64> {
    store.enter(HERE);
    let cas = keys.filter_map(|n| {
        let text = format!("key{n}");
        let key = Key::new(text.as_bytes()).expect("short");
        let Route::Own = store.route(HERE, key.hash()) else { return None };
        let draft = Draft { parts: &[text.as_bytes()], ..Draft::default() };
        Some(store.lock(key.hash(), NOW).put(&key, &draft).expect("there is room"))
    });
    let cas = cas.collect();
    store.leave(HERE);
    cas
}

#[test]
fn prefixes_of_any_widths_live_beside_each_other() {
    let store = vacant();
    assert_eq!(store.route(HERE, 0), Route::Peer(ServerId(u16::MAX)), "nobody was named");
    assert!(store.adopt(prefix("8000/1"), HERE, birth(1)));
    assert!(store.adopt(prefix("2c00/6"), OTHER, birth(1)));
    assert!(store.adopt(prefix("2bfe/15"), HERE, birth(1)));
    assert!(store.point(prefix("0000/3"), PEER));
    assert!(store.point(prefix("3000/4"), Elsewhere::Moving(MoveId(70_000))));
    for overlap in ["8000/1", "0000/0", "c000/2", "2c00/7", "2800/5", "2bfe/15"] {
        assert!(!store.adopt(prefix(overlap), HERE, birth(2)), "{overlap}");
        assert!(!store.point(prefix(overlap), PEER), "{overlap}");
    }
    let route = |text: &str| store.route(HERE, prefix(text).last_hash());
    assert_eq!(route("8000/1"), Route::Own);
    assert_eq!(route("2c00/6"), Route::Neighbour(OTHER));
    assert_eq!(route("2bfe/15"), Route::Own);
    assert_eq!(route("0000/3"), Route::Peer(ServerId(3)));
    assert_eq!(route("3000/4"), Route::Moving(MoveId(70_000)));
    assert_eq!(store.route(OTHER, prefix("2c00/6").first_hash()), Route::Own);
    assert_eq!(store.prefixes(), ["2bfe/15", "2c00/6", "8000/1"].map(prefix));
    assert_eq!(store.owner(prefix("2c00/6")), Some(OTHER));
    assert_eq!(store.owner(prefix("2c00/7")), None);
}

#[test]
fn a_walk_passes_over_what_is_absent() {
    let store = vacant();
    store.adopt(prefix("4000/2"), HERE, birth(1));
    store.adopt(prefix("e000/4"), HERE, birth(1));
    let stored = fill(&store, 0..2_000).len();
    let (mut from, mut seen) = (Some(0), 0);
    store.enter(HERE);
    while let Some(at) = from {
        from = store.walk(at, NOW, mbal_cachelet::Dead::PassOver, 0, |_| seen += 1).0;
    }
    store.leave(HERE);
    assert!(stored > 500 && seen == stored);
}

#[test]
fn what_is_released_is_elsewhere_at_once_and_goes_when_nobody_can_be_in_it() {
    let store = Store::new(options(16, 2, 4));
    let stored = fill(&store, 0..1_000).len();
    let (whole, version) = (prefix("0000/2"), store.version());
    let items = store.stats_of(whole).expect("it is here").items;
    let text = (0..).map(|n| format!("key{n}"));
    let mut text = text;
    let text = text.find(|text| whole.contains(Key::new(text.as_bytes()).unwrap().hash()));
    let text = text.expect("a quarter of them");
    let key = Key::new(text.as_bytes()).expect("short");
    // This worker has asked for the route, and is not yet done.
    store.enter(OTHER);
    assert_eq!(store.route(OTHER, key.hash()), Route::Neighbour(HERE));
    assert!(store.release(whole, PEER));
    assert!(store.version() > version);
    assert!(!store.release(whole, PEER), "it has gone");
    assert!(!store.give(whole, HERE, OTHER, u64::MAX));
    assert_eq!(store.route(HERE, key.hash()), Route::Peer(ServerId(3)));
    assert_eq!((store.stats_of(whole), store.owner(whole)), (None, None));
    store.background(HERE, NOW, 10);
    assert!(!store.adopt(whole, HERE, birth(9)), "somebody may still be in it");
    assert_eq!(
        store.read(&key, NOW, false, &mut vec![], |view, _| view.meta().value_bytes),
        Some(text.len() as u32)
    );
    store.leave(OTHER);
    store.background(HERE, NOW, 10);
    assert_eq!(store.stats().items, stored as u64 - items);
    assert_eq!(store.route(OTHER, key.hash()), Route::Peer(ServerId(3)));
    assert!(store.point(whole, Elsewhere::Moving(MoveId(1))));
    assert_eq!(store.route(OTHER, key.hash()), Route::Moving(MoveId(1)));
    // It comes back: empty, and under another generation.
    assert!(store.adopt(whole, HERE, birth(9)));
    assert_eq!(store.read(&key, NOW, false, &mut vec![], |_, _| ()), None);
    let cas = fill(&store, 0..1_000);
    assert_eq!(cas.iter().filter(|cas| *cas >> 48 == 9).count() as u64, items);
}

#[test]
fn no_cas_of_one_cachelet_is_anothers() {
    let store = Store::new(options(16, 1, 16));
    let mut cas = fill(&store, 0..5_000);
    cas.sort_unstable();
    cas.dedup();
    assert_eq!(cas.len(), 5_000);
}

#[test]
fn slots_are_used_again() {
    let store = Store::vacant(options(16, 1, 1), Memory::heap(16 << 20)).expect("memory");
    // More than a store has room for, one after the other.
    for round in 0..10_000u32 {
        let prefix = Prefix::of(u64::from(round) << 40, 10);
        assert!(store.adopt(prefix, HERE, birth(round as u16)), "{round}");
        assert!(store.release(prefix, PEER));
        store.background(HERE, NOW, 4);
    }
    let held = Prefix::equal(15).take_while(|prefix| store.adopt(*prefix, HERE, birth(1))).count();
    assert_eq!(held, 1 << 12, "as many at a time as a store has room for");
}
