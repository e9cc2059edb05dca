//! Slices that travel to another store: nothing lost, nothing older over newer, nothing back after a flush.

use mbal_cachelet::{Arriving, Broken, Cursor, Draft, Memory, Meta, Part, Store, Turn};
use mbal_model::{Elsewhere, Key, MoveId, Prefix, Route, ServerId, WorkerId};

use crate::split::{NOW, WORKER, fill, look, name};
use crate::support::{Random, options};

const MOVE: MoveId = MoveId(5);
const PART_BYTES: usize = 64 << 10;

/// Parts of the slice that is frozen now.
fn parts_of(source: &Store, prefix: Prefix, cursor: &mut Cursor) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    loop {
        let out = parts.last_mut().expect("one at least");
        let more = source.export(prefix, cursor, NOW, out);
        assert!(out.len() < PART_BYTES + (40 << 10), "{} bytes", out.len());
        if !more || out.len() >= PART_BYTES {
            cursor.end_part();
        }
        if !more {
            return parts;
        }
        if out.len() >= PART_BYTES {
            parts.push(Vec::new());
        }
    }
}

fn import(target: &Store, arriving: &mut Arriving, bytes: &[u8], now: u32) -> Result<Turn, Broken> {
    let mut part = Part::read(bytes)?;
    let turn = arriving.turn_of(&part.heading);
    if turn == Turn::Now {
        target.enter(WORKER);
        while target.import(WORKER, arriving, &mut part, now)? {}
        target.leave(WORKER);
    }
    Ok(turn)
}

/// Moves all of a cachelet; the number of slices.
fn travel(source: &Store, prefix: Prefix, target: &Store, now: u32) -> usize {
    assert!(source.begin_to_leave(prefix, MOVE));
    let (mut cursor, mut arriving, mut slices) = (Cursor::default(), Arriving::default(), 0);
    while let Some(stamp) = source.freeze(prefix, NOW) {
        assert!(source.all_have_left(stamp), "nobody is in it");
        for part in parts_of(source, prefix, &mut cursor) {
            assert_eq!(import(target, &mut arriving, &part, now), Ok(Turn::Now));
            assert_eq!(import(target, &mut arriving, &part, now), Ok(Turn::Over), "once only");
        }
        while source.forget(prefix, &mut cursor, NOW) {}
        slices += 1;
    }
    slices
}

#[test]
fn slices_travel_to_another_server_whole() {
    let source = Store::new(options(256, 1, 4));
    fill(&source, 8_000);
    let target = Store::new(options(256, 2, 8));
    let slices: usize =
        source.prefixes().into_iter().map(|prefix| travel(&source, prefix, &target, 77)).sum();
    assert!(slices > 7, "{slices} slices");
    assert_eq!((source.stats().items, target.stats().items), (0, 8_000));
    assert_eq!(target.stats().total_items, 0, "they were stored elsewhere");
    let again = Store::new(options(256, 1, 4));
    fill(&again, 8_000);
    for n in 0..8_000 {
        let (was, value) = look(&again, n, NOW).expect("filled");
        let (is, travelled) = look(&target, n, 77).expect("imported");
        let moved = Meta {
            // The same time remains, by another clock.
            deadline: if was.deadline == 0 { 0 } else { was.deadline - NOW + 77 },
            last_access: 77,
            ..was
        };
        assert_eq!(is, moved, "{}", name(n));
        assert!(value == travelled);
    }
}

#[test]
fn a_slice_is_here_frozen_and_gone_and_nothing_else_changes() {
    let source = Store::new(options(64, 2, 2));
    fill(&source, 4_000);
    let [prefix, other] = [Prefix::nth(0, 1), Prefix::nth(1, 1)];
    assert!(source.begin_to_leave(prefix, MOVE));
    assert!(!source.begin_to_leave(prefix, MOVE) && !source.split(prefix, NOW));
    let moving = || {
        let keys = (0..4_000).map(|n| Key::new(name(n).as_bytes()).expect("short").hash());
        let moving = keys.filter(|hash| source.route(WORKER, *hash) == Route::Moving(MOVE));
        assert!(moving.clone().all(|hash| prefix.contains(hash)));
        moving.count()
    };
    assert_eq!(moving(), 0, "no slice has been frozen");
    let mut cursor = Cursor::default();
    source.enter(WorkerId(1));
    let stamp = source.freeze(prefix, NOW).expect("there is a slice");
    assert!(!source.all_have_left(stamp), "worker 1 may have been told before");
    source.leave(WorkerId(1));
    assert!(source.all_have_left(stamp));
    let frozen = moving();
    assert!(frozen > 0);
    source.thaw(prefix, NOW);
    assert_eq!(moving(), 0);
    assert!((0..4_000).all(|n| look(&source, n, NOW).is_some()));
    source.freeze(prefix, NOW).expect("again");
    let parts = parts_of(&source, prefix, &mut cursor);
    while source.forget(prefix, &mut cursor, NOW) {}
    assert!(!parts.is_empty());
    assert_eq!((moving(), source.stats().items), (frozen, 4_000 - frozen as u64));
    // All of it, then it is the other server's.
    while source.freeze(prefix, NOW).is_some() {
        while source.forget(prefix, &mut cursor, NOW) {}
    }
    assert!(source.release(prefix, Elsewhere::Peer(ServerId(2))));
    source.background(WORKER, NOW, 4);
    assert_eq!(source.prefixes(), [other]);
    assert_eq!(source.stats_of(other).map(|stats| stats.items), Some(source.stats().items));
}

fn put(store: &Store, n: u64, value: &[u8]) -> u64 {
    let text = name(n);
    let key = Key::new(text.as_bytes()).expect("short");
    store.enter(WORKER);
    let draft = Draft { parts: &[value], ..Draft::default() };
    let cas = store.lock(key.hash(), NOW).put(&key, &draft).expect("there is room");
    store.leave(WORKER);
    cas
}

fn put_all(store: &Store, keys: impl Iterator<Item = u64>, value: impl Fn(u64) -> Vec<u8>) {
    for n in keys {
        put(store, n, &value(n));
    }
}

fn small() -> Store {
    Store::new(options(16, 1, 1))
}

#[test]
fn what_the_destination_has_got_by_itself_stays() {
    let (source, target) = (small(), small());
    put_all(&source, 0..100, |_| b"old".to_vec());
    put_all(&target, (0..100).step_by(2), |_| b"newer".to_vec());
    travel(&source, Prefix::ALL, &target, NOW);
    for n in 0..100 {
        let value = look(&target, n, NOW).expect("it is there").1;
        assert_eq!(value, if n % 2 == 0 { b"newer".as_slice() } else { b"old" });
    }
}

#[test]
fn no_cas_is_given_twice() {
    let source = small();
    let birth = mbal_cachelet::Birth { generation: 9, flush_number: 0 };
    let target = Store::vacant(options(16, 1, 1), Memory::heap(16 << 20)).expect("memory");
    assert!(target.adopt(Prefix::ALL, WORKER, birth));
    let highest = (0..500).map(|n| put(&source, n, b"v")).max().expect("some");
    travel(&source, Prefix::ALL, &target, NOW);
    let cas = put(&target, 3, b"w");
    assert_eq!((cas >> 48, cas), (7, highest + 1), "it goes on where the source was");
    let given = small();
    put(&given, 1_000, b"own");
    let other = Store::vacant(options(16, 1, 1), Memory::heap(16 << 20)).expect("memory");
    assert!(other.adopt(Prefix::ALL, WORKER, birth));
    let own = put(&other, 1_000, b"own");
    travel(&given, Prefix::ALL, &other, NOW);
    assert_eq!(put(&other, 1_001, b"own"), own + 1, "it has given one, and keeps its generation");
}

#[test]
fn a_flush_meanwhile_is_not_undone() {
    let (source, target) = (small(), small());
    put_all(&source, 0..200, |_| b"v".to_vec());
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::default());
    let parts = parts_of(&source, Prefix::ALL, &mut cursor);
    // Exported before the flush, imported after it.
    source.flush(0, NOW);
    target.flush(0, NOW);
    put(&target, 7, b"after");
    for part in parts {
        import(&target, &mut arriving, &part, NOW).expect("whole");
    }
    assert_eq!((target.stats().items, look(&target, 7, NOW).unwrap().1), (1, b"after".to_vec()));
    // What is stored after it travels; and what a destination has that was not flushed yet goes.
    source.thaw(Prefix::ALL, NOW);
    put(&source, 8, b"new");
    let late = small();
    put(&late, 9, b"flushed");
    source.freeze(Prefix::ALL, NOW).expect("again");
    cursor.restart_slice();
    for part in parts_of(&source, Prefix::ALL, &mut cursor) {
        import(&late, &mut Arriving::default(), &part, NOW).expect("whole");
        import(&target, &mut arriving, &part, NOW).expect("whole");
    }
    assert_eq!((late.stats().items, look(&late, 8, NOW).unwrap().1), (1, b"new".to_vec()));
    assert_eq!(target.stats().items, 2);
}

#[test]
fn a_delayed_flush_travels() {
    let (source, target) = (small(), small());
    put(&source, 1, b"v");
    source.flush(NOW + 10, NOW);
    travel(&source, Prefix::ALL, &target, 50);
    assert!(look(&target, 1, 59).is_some() && look(&target, 1, 60).is_none());
}

#[test]
fn a_long_value_travels_in_pieces_and_is_given_up_if_it_is_evicted_on_its_way() {
    let (source, target) = (Store::new(options(64, 1, 1)), Store::new(options(64, 1, 1)));
    let value = |n: u64| (0..900_000u64).map(|at| (at * 31 + n) as u8).collect::<Vec<u8>>();
    put_all(&source, 0..4, value);
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let (mut cursor, mut out) = (Cursor::default(), Vec::new());
    for _ in 0..10 {
        assert!(source.export(Prefix::ALL, &mut cursor, NOW, &mut out));
    }
    // The slice thaws, and the item is replaced; it freezes, and goes on: what follows is another item's.
    source.thaw(Prefix::ALL, NOW);
    put_all(&source, 0..4, |n| value(n + 4));
    source.freeze(Prefix::ALL, NOW).expect("the same");
    while source.export(Prefix::ALL, &mut cursor, NOW, &mut out) {}
    let mut arriving = Arriving::default();
    assert_eq!(import(&target, &mut arriving, &out, NOW), Ok(Turn::Now));
    for n in 0..4 {
        assert!(look(&target, n, NOW).expect("it is there").1 == value(n + 4), "{n}");
    }
    assert!(out.len() < 5 * 900_000);
}

#[test]
fn a_broken_part_changes_nothing() {
    let source = small();
    fill(&source, 50);
    source.begin_to_leave(Prefix::ALL, MOVE);
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let bytes = parts_of(&source, Prefix::ALL, &mut Cursor::default()).remove(0);
    assert!(Part::read(&bytes).is_ok());
    let broken = |bytes: &[u8]| Part::read(bytes).err();
    let heading = 26;
    let whole: Vec<usize> =
        (0..bytes.len()).filter(|&cut| broken(&bytes[..cut]).is_none()).collect();
    assert!(whole[0] == heading && whole.len() < 120, "only between records: {whole:?}");
    assert_eq!(broken(&[bytes.as_slice(), b"x"].concat()), Some(Broken));
    // Pieces of nothing, and of more than there may be.
    let target = small();
    let further = |length: u32| {
        [&bytes[..heading], &[0], &length.to_le_bytes(), &vec![1; length as usize]].concat()
    };
    for orphan in [further(0), further(9)] {
        assert_eq!(import(&target, &mut Arriving::default(), &orphan, NOW), Err(Broken));
        target.leave(WORKER);
    }
    let mut huge = [&bytes[..heading], &[1, 16]].concat();
    huge.extend([0; 4 + 4 + 4 + 1 + 8]);
    huge.extend(u32::MAX.to_le_bytes());
    huge.extend(*b"k");
    huge.extend(2u32.to_le_bytes());
    huge.extend(*b"vw");
    assert_eq!(import(&target, &mut Arriving::default(), &huge, NOW), Err(Broken));
    target.leave(WORKER);
    assert_eq!(target.stats().items, 0);
}

#[test]
fn random_bytes_are_broken_or_harmless() {
    let source = small();
    fill(&source, 60);
    source.begin_to_leave(Prefix::ALL, MOVE);
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let bytes = parts_of(&source, Prefix::ALL, &mut Cursor::default()).remove(0);
    let (target, mut random) = (small(), Random(5));
    for _ in 0..2_000 {
        let mut bent = bytes.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bent.len() as u64) as usize;
            bent[at] = random.next() as u8;
        }
        import(&target, &mut Arriving::default(), &bent, NOW).ok();
        target.leave(WORKER);
    }
}
