//! How a journey ends when it does not arrive: the cachelet stays, or its destination inherits it.

use mbal_cachelet::{
    Arriving, Birth, Crowded, Cursor, Draft, Due, ImportStep, Memory, Part, Store,
};
use mbal_model::{Key, MoveId, Prefix, Route, ServerId, WorkerId};

use crate::support::options;
use crate::support::{NOW, WORKER, look, name};

const MOVE: MoveId = MoveId(5);
const KEYS: u64 = 4_000;

fn put(store: &Store, n: u64) -> u64 {
    let text = name(n);
    let key = Key::new(text.as_bytes()).expect("short");
    let draft = Draft { parts: &[b"v"], ..Draft::default() };
    store.lock(key.hash(), NOW).put(&key, &draft).expect("there is room")
}

fn hash(n: u64) -> u64 {
    Key::new(name(n).as_bytes()).expect("short").hash()
}

/// A source whose first slice is gone, and a destination that serves it; up to which hash. Keys that it does not name are at the source.
fn after_one_slice() -> (Store, Store, Arriving, Cursor, u64) {
    let source = Store::new(options(64, 1, 1));
    (0..KEYS).for_each(|n| _ = put(&source, n));
    let target = Store::vacant(options(64, 1, 1), Memory::heap(64 << 20)).expect("memory");
    let birth = Birth { generation: 9, flush_number: 0 };
    assert!(target.begin_to_arrive(Prefix::ALL, WORKER, birth, ServerId(1)));
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(Prefix::ALL));
    send_slice(&source, &target, &mut cursor, &mut arriving);
    while source.forget(Prefix::ALL, &mut cursor, NOW) {}
    let gone = arriving.last();
    target.serve_until(Prefix::ALL, gone);
    assert!(gone < u64::MAX);
    (source, target, arriving, cursor, gone)
}

fn send_slice(source: &Store, target: &Store, cursor: &mut Cursor, arriving: &mut Arriving) {
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let mut out = Vec::new();
    while source.export(Prefix::ALL, cursor, NOW, &mut out) {}
    cursor.end_part();
    let mut part = Part::read(&out).expect("whole");
    assert_eq!(arriving.due(&part.heading), Due::Now);
    target.enter(WORKER);
    let mut step = || target.import(WORKER, arriving, &mut part, NOW, Crowded::Drops);
    while step().expect("whole") == ImportStep::More {}
    target.leave(WORKER);
}

#[test]
fn a_cachelet_that_stays_is_whole_but_for_what_has_gone() {
    let (source, target, _, _, gone) = after_one_slice();
    let there: Vec<u64> = (0..KEYS).filter(|n| hash(*n) <= gone).collect();
    let newest = there.iter().map(|n| put(&target, *n)).max().expect("some");
    drop(target);
    source.stay(Prefix::ALL, NOW);
    for n in 0..KEYS {
        assert_eq!(source.route(WORKER, hash(n)), Route::Own);
        assert_eq!(look(&source, n, NOW).is_some(), hash(n) > gone, "{n}");
    }
    assert!(put(&source, there[0]) > newest, "no cas comes again");
    assert!(look(&source, there[0], NOW).is_some());
    assert!(source.split(Prefix::ALL, NOW), "as any other");
}

#[test]
fn a_cachelet_of_which_nothing_has_gone_stays_as_it_was() {
    let source = Store::new(options(64, 1, 1));
    let last = (0..KEYS).map(|n| put(&source, n)).max().expect("some");
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let mut cursor = Cursor::default();
    source.thaw(Prefix::ALL, &mut cursor, NOW);
    source.stay(Prefix::ALL, NOW);
    assert!((0..KEYS).all(|n| look(&source, n, NOW).is_some()));
    assert_eq!(put(&source, 1), last + 1, "nobody else has given a cas");
    assert!(source.begin_to_leave(Prefix::ALL, MOVE), "it can leave again");
}

#[test]
fn what_is_inherited_is_what_had_gone() {
    let (source, target, mut arriving, mut cursor, gone) = after_one_slice();
    // A second slice comes, and its source serves it again; then the source dies.
    send_slice(&source, &target, &mut cursor, &mut arriving);
    source.thaw(Prefix::ALL, &mut cursor, NOW);
    let newest = (0..KEYS).filter(|n| hash(*n) > gone).map(|n| put(&source, n)).max();
    drop(source);
    while target.give_up(&mut arriving, NOW) {}
    target.inherit(Prefix::ALL, NOW);
    for n in 0..KEYS {
        assert_eq!(target.route(WorkerId(0), hash(n)), Route::Own);
        assert_eq!(look(&target, n, NOW).is_some(), hash(n) <= gone, "{n}");
    }
    let key = (0..KEYS).find(|n| hash(*n) > gone).expect("some are");
    assert!(put(&target, key) > newest.expect("some are"), "no cas comes again");
    assert_eq!(target.prefixes(), [Prefix::ALL]);
}
