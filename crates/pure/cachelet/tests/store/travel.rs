//! Slices that travel to another store: nothing lost, nothing older over newer, nothing back after a flush.

use mbal_cachelet::{
    Arriving, Birth, Broken, Crowded, Cursor, Draft, Due, ImportStep, Memory, Meta, Part, Store,
};
use mbal_model::{Elsewhere, Key, Prefix, Route, ServerId, WorkerId};
use mbal_random::Random;

use crate::support::{
    MOVE, NOW, WORKER, absent, fill, hash, import, look, make_room, name, options, parts_of, put,
    put_all, remove, small, travel, vacant,
};

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
fn slices_of_long_values_are_short_and_nothing_is_lost() {
    let (source, target) = (Store::new(options(1024, 1, 1)), Store::new(options(1024, 1, 1)));
    put_all(&source, 0..900, |n| vec![n as u8; 16_000]);
    let stored = (0..900).filter(|&n| look(&source, n, NOW).is_some()).count();
    assert!(stored > 800, "{stored} have room");
    let prefix = Prefix::ALL;
    assert!(source.begin_to_leave(prefix, MOVE));
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(prefix));
    loop {
        while source.halve_next_slice(prefix, NOW) {}
        if source.freeze(prefix, NOW).is_none() {
            break;
        }
        let parts = parts_of(&source, prefix, &mut cursor);
        let bytes: usize = parts.iter().map(Vec::len).sum();
        assert!(bytes < 300_000, "{bytes} bytes in a slice");
        for part in parts {
            assert_eq!(import(&target, &mut arriving, &part, NOW), Ok(Due::Now));
        }
        while source.forget(prefix, &mut cursor, NOW) {}
    }
    assert_eq!(target.stats().items, stored as u64);
}

#[test]
fn a_slice_of_short_items_is_not_halved() {
    let source = Store::new(options(256, 1, 4));
    put_all(&source, 0..8_000, |_| vec![b'v'; 100]);
    let prefix = source.prefixes()[0];
    assert!(source.begin_to_leave(prefix, MOVE));
    assert!(!source.halve_next_slice(prefix, NOW));
}

#[test]
fn an_import_goes_on_where_it_was_left() {
    let (source, target) = (small(), small());
    put_all(&source, 0..200, |n| vec![n as u8; 200]);
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let bytes = parts_of(&source, Prefix::ALL, &mut Cursor::default()).remove(0);
    let part = Part::read(&bytes).expect("whole");
    let mut arriving = Arriving::new(Prefix::ALL);
    assert_eq!(arriving.due(&part.heading), Due::Now);
    let (mut left, mut steps, mut more) = (part.left(), 0, true);
    while more {
        let mut part = Part::resume(&bytes, left);
        target.enter(WORKER);
        let step = target.import(WORKER, &mut arriving, &mut part, NOW, Crowded::Drops);
        more = step.expect("whole") == ImportStep::More;
        target.leave(WORKER);
        assert!(part.left() < left || !more, "it goes on");
        (left, steps) = (part.left(), steps + 1);
    }
    assert!(steps > 3, "{steps} steps");
    assert_eq!((left, target.stats().items), (0, 200));
    assert!((0..200).all(|n| look(&target, n, NOW).is_some()));
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
    source.thaw(prefix, &mut cursor, NOW);
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
    let target = absent();
    assert!(target.adopt(Prefix::ALL, WORKER, birth));
    let highest = (0..500).map(|n| put(&source, n, b"v")).max().expect("some");
    travel(&source, Prefix::ALL, &target, NOW);
    let cas = put(&target, 3, b"w");
    assert_eq!((cas >> 48, cas), (7, highest + 1), "it goes on where the source was");
    let given = small();
    put(&given, 1_000, b"own");
    let other = absent();
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
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(Prefix::ALL));
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
    source.thaw(Prefix::ALL, &mut cursor, NOW);
    while target.give_up(&mut arriving, NOW) {}
    target.flush(0, NOW);
    source.flush(0, NOW);
    put(&source, 8, b"new");
    let late = small();
    put(&late, 9, b"flushed");
    source.freeze(Prefix::ALL, NOW).expect("again");
    for part in parts_of(&source, Prefix::ALL, &mut cursor) {
        import(&late, &mut Arriving::new(Prefix::ALL), &part, NOW).expect("whole");
        import(&target, &mut arriving, &part, NOW).expect("whole");
    }
    assert_eq!((late.stats().items, look(&late, 8, NOW).unwrap().1), (1, b"new".to_vec()));
    assert_eq!((target.stats().items, look(&target, 8, NOW).unwrap().1), (1, b"new".to_vec()));
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
fn a_slice_that_is_split_while_it_freezes_travels_whole() {
    let source = Store::new(options(64, 2, 1));
    put_all(&source, 0..1_000, |_| b"v".to_vec());
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.enter(WorkerId(1));
    let stamp = source.freeze(Prefix::ALL, NOW).expect("a slice");
    // Worker 1 was told before: it writes until there are several slices.
    put_all(&source, 1_000..4_000, |_| b"v".to_vec());
    source.leave(WorkerId(1));
    assert!(source.all_have_left(stamp));
    let target = Store::new(options(64, 1, 1));
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(Prefix::ALL));
    for part in parts_of(&source, Prefix::ALL, &mut cursor) {
        assert_eq!(import(&target, &mut arriving, &part, NOW), Ok(Due::Now));
    }
    assert_eq!(target.stats().items, 4_000);
    while source.forget(Prefix::ALL, &mut cursor, NOW) {}
    assert_eq!((source.stats().items, source.freeze(Prefix::ALL, NOW)), (0, None));
}

#[test]
fn slices_in_the_order_of_their_hashes_find_room_in_the_index() {
    let (source, target) = (Store::new(options(64, 1, 1)), Store::new(options(64, 1, 1)));
    put_all(&source, 0..200_000, |_| b"v".to_vec());
    assert!(travel(&source, Prefix::ALL, &target, NOW) > 100);
    let stats = target.stats();
    assert_eq!((stats.items, stats.evictions), (200_000, 0));
    assert!((0..200_000).all(|n| look(&target, n, NOW).is_some()));
    // What the destination has stored by itself between two slices does not stand in their way.
    let (source, target) = (Store::new(options(64, 1, 1)), Store::new(options(64, 1, 1)));
    put_all(&source, (0..200_000).filter(|n| hash(*n) >> 60 != 1), |_| b"v".to_vec());
    put_all(&target, (0..100).filter(|n| hash(*n) >> 60 == 1), |_| b"own".to_vec());
    let items = source.stats().items + target.stats().items;
    travel(&source, Prefix::ALL, &target, NOW);
    assert_eq!((target.stats().items, target.stats().evictions), (items, 0));
}

#[test]
fn a_slice_without_items_tells_of_the_cas_that_were_given() {
    let (source, target) = (small(), vacant());
    let given = put(&source, 3, b"v");
    remove(&source, 3);
    travel(&source, Prefix::ALL, &target, NOW);
    assert_eq!(put(&target, 3, b"w"), given + 1);
    // So does one that was flushed at the destination before it came.
    let (source, target) = (small(), vacant());
    let given = put(&source, 3, b"v");
    target.flush(0, NOW);
    travel(&source, Prefix::ALL, &target, NOW);
    assert_eq!(target.stats().items, 0);
    assert_eq!(put(&target, 3, b"w"), given + 1);
}

#[test]
fn a_flush_that_travels_ahead_of_itself_is_the_same_flush() {
    let (source, target) = (small(), small());
    put_all(&target, 0..10, |_| b"flushed".to_vec());
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(Prefix::ALL));
    let mut slice = || {
        source.freeze(Prefix::ALL, NOW).expect("a slice");
        for part in parts_of(&source, Prefix::ALL, &mut cursor) {
            assert_eq!(import(&target, &mut arriving, &part, NOW), Ok(Due::Now));
        }
        source.thaw(Prefix::ALL, &mut cursor, NOW);
        target.stats().items
    };
    let number = source.flush(0, NOW);
    assert_eq!(slice(), 0, "word of the flush has come");
    put(&source, 1, b"after");
    // The destination is asked to flush only now: what is stored at the source since is not older.
    target.flush_as(number, 0, NOW);
    assert_eq!(slice(), 1);
    assert_eq!(target.flush(0, NOW), number + 1);
    assert_eq!(slice(), 0, "the source has not heard of this one");
    source.flush_as(number + 1, 0, NOW);
    put(&source, 1, b"after");
    assert_eq!(slice(), 1);
}

#[test]
fn what_a_flush_has_not_reached_leaves_when_that_is_over_and_arrives() {
    let (source, target) = (small(), small());
    let number = target.flush(0, NOW);
    put(&source, 1, b"after");
    source.know_flush(number);
    assert!(!source.begin_to_leave(Prefix::ALL, MOVE), "it may be about to be asked");
    source.flushes_are_over(number);
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(Prefix::ALL));
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    for part in parts_of(&source, Prefix::ALL, &mut cursor) {
        assert_eq!(import(&target, &mut arriving, &part, NOW), Ok(Due::Now));
    }
    assert_eq!(target.stats().items, 1);
}

#[test]
fn what_a_source_has_that_has_not_heard_of_a_flush_arrives_when_that_is_over() {
    for is_over in [false, true] {
        let (source, target) = (small(), absent());
        let number = target.flush(0, NOW);
        put(&source, 1, b"after");
        if is_over {
            target.flushes_are_over(number);
        }
        let birth = mbal_cachelet::Birth { generation: 9, flush_number: 0 };
        assert!(target.begin_to_arrive(Prefix::ALL, WORKER, birth, ServerId(2)));
        assert!(source.begin_to_leave(Prefix::ALL, MOVE));
        source.freeze(Prefix::ALL, NOW).expect("a slice");
        let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(Prefix::ALL));
        for part in parts_of(&source, Prefix::ALL, &mut cursor) {
            assert_eq!(import(&target, &mut arriving, &part, NOW), Ok(Due::Now));
            // Another look at the flush makes nothing older that still comes.
            target.flushes_are_over(if is_over { number } else { 0 });
        }
        assert_eq!(target.stats().items, u64::from(is_over));
        target.serve_until(Prefix::ALL, u64::MAX);
        assert_eq!(target.flushed_at(0, NOW), number, "it is not behind");
        assert!(target.begin_to_leave(Prefix::ALL, MOVE));
    }
}

#[test]
fn a_source_that_hears_of_a_flush_on_the_way_empties_nobody() {
    let (source, target) = (small(), absent());
    put(&source, 1, b"after");
    let birth = mbal_cachelet::Birth { generation: 9, flush_number: 0 };
    assert!(target.begin_to_arrive(Prefix::ALL, WORKER, birth, ServerId(2)));
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(Prefix::ALL));
    for heard in [0, 7] {
        source.know_flush(heard);
        source.flushes_are_over(heard);
        source.freeze(Prefix::ALL, NOW).expect("a slice");
        for part in parts_of(&source, Prefix::ALL, &mut cursor) {
            assert_eq!(import(&target, &mut arriving, &part, NOW), Ok(Due::Now));
        }
        assert_eq!((target.stats().items, target.flushed_at(0, NOW)), (1, 0));
        source.thaw(Prefix::ALL, &mut cursor, NOW);
    }
    source.stay(Prefix::ALL, NOW);
    assert_eq!(source.flushed_at(0, NOW), 7, "what it has came after it");
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
}

#[test]
fn a_server_without_a_cachelet_tells_of_a_flush() {
    let (empty, other) = (small(), small());
    empty.release(Prefix::ALL, Elsewhere::Peer(ServerId(2)));
    let number = empty.flush(0, NOW);
    assert_eq!(empty.flushed(), number);
    empty.flush_as(number + 1, 0, NOW);
    assert_eq!(empty.flushed(), number + 1);
    // What begins elsewhere, and hears of it, is not older than what comes here then.
    other.know_flush(empty.flushed());
    assert!(!other.begin_to_leave(Prefix::ALL, MOVE), "it may be about to be asked");
}

#[test]
fn a_flush_to_come_is_kept_beside_one_of_the_same_number() {
    let (source, target) = (small(), small());
    // The destination has joined, and the source does not know it yet: it is not asked to flush.
    let number = source.flush(0, NOW);
    put(&source, 1, b"after");
    assert_eq!(target.flush(NOW + 2, NOW), number);
    source.flush_as(number, NOW + 2, NOW);
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(Prefix::ALL));
    for part in parts_of(&source, Prefix::ALL, &mut cursor) {
        assert_eq!(import(&target, &mut arriving, &part, NOW), Ok(Due::Now));
    }
    assert!(look(&target, 1, NOW + 1).is_some());
    assert!(look(&target, 1, NOW + 2).is_none());
}

#[test]
fn what_is_born_before_a_flush_to_come_is_flushed_though_an_earlier_one_has_its_number() {
    // A server began a flush, died, and began another of the same number, since nobody had told it of the first.
    for delay in [0, 2] {
        let store = absent();
        store.flush_as(1, 0, NOW);
        store.flush_as(1, NOW + delay, NOW);
        let birth = Birth { generation: 1, flush_number: 0 };
        assert!(store.adopt(Prefix::ALL, WORKER, birth));
        put(&store, 1, b"before");
        assert!(look(&store, 1, NOW + 1).is_some());
        assert_eq!(look(&store, 1, NOW + 2).is_some(), delay == 0);
    }
}

#[test]
fn a_flush_to_come_is_kept_beside_word_of_an_earlier_one() {
    let (source, target) = (small(), small());
    // The destination is new, and has not heard of the first.
    let first = source.flush(0, NOW);
    put(&source, 1, b"after");
    source.flush_as(first + 1, NOW + 2, NOW);
    target.flush_as(first + 1, NOW + 2, NOW);
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(Prefix::ALL));
    for part in parts_of(&source, Prefix::ALL, &mut cursor) {
        assert_eq!(import(&target, &mut arriving, &part, NOW), Ok(Due::Now));
    }
    // Who asked for the first is late.
    target.flush_as(first, 0, NOW);
    put(&target, 2, b"after");
    assert!(look(&target, 1, NOW + 1).is_none() && look(&target, 2, NOW + 1).is_some());
    assert!(look(&target, 2, NOW + 2).is_none());
}

#[test]
fn a_part_that_is_a_second_late_lets_nothing_live_longer() {
    // The destination's clock began 70 seconds before; then by another wall clock.
    for (start, arrives, deadline) in
        [(1_000, 81, 90), (1_000, 80, 90), (1_000, 79, 90), (40, 81, 91)]
    {
        let (source, target) = (small(), small());
        source.starts_at(1_070);
        target.starts_at(start);
        let key = Key::new(b"k").expect("short");
        let draft = Draft { parts: &[b"v"], deadline: 20, ..Draft::default() };
        source.lock(key.hash(), 10).put(&key, &draft).expect("room");
        assert!(source.begin_to_leave(Prefix::ALL, MOVE));
        source.freeze(Prefix::ALL, 10).expect("a slice");
        let mut part = Vec::new();
        while source.export(Prefix::ALL, &mut Cursor::default(), 10, &mut part) {}
        let mut arriving = Arriving::new(Prefix::ALL);
        assert_eq!(import(&target, &mut arriving, &part, arrives), Ok(Due::Now));
        let mut locked = target.lock(key.hash(), arrives);
        let found = locked.find(&key).expect("it has arrived");
        let is = locked.view(&found, |view| view.meta().deadline);
        assert_eq!(is, deadline, "from {start}, at {arrives}");
    }
}

#[test]
fn a_flush_that_is_asked_for_later_is_the_one_that_comes() {
    let (source, target) = (small(), small());
    put_all(&source, 0..10, |_| b"v".to_vec());
    let first = source.flush(NOW + 60, NOW);
    target.flush_as(first, NOW + 60, NOW);
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let parts = parts_of(&source, Prefix::ALL, &mut Cursor::default());
    target.flush_as(first + 1, NOW + 10, NOW);
    let mut arriving = Arriving::new(Prefix::ALL);
    for part in parts {
        assert_eq!(import(&target, &mut arriving, &part, NOW), Ok(Due::Now));
    }
    assert!(look(&target, 1, NOW + 9).is_some());
    assert!(look(&target, 1, NOW + 10).is_none(), "what was sent before says nothing newer");
}

#[test]
fn what_changed_while_a_slice_was_served_again_is_what_arrives() {
    let (source, target) = (small(), small());
    put_all(&source, 0..100, |_| b"old".to_vec());
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(Prefix::ALL));
    let mut send = |arriving: &mut Arriving, gives_up: bool| {
        source.freeze(Prefix::ALL, NOW).expect("a slice");
        let parts = parts_of(&source, Prefix::ALL, &mut cursor);
        for part in &parts {
            assert_eq!(import(&target, arriving, part, NOW), Ok(Due::Now));
        }
        while gives_up && target.give_up(arriving, NOW) {}
        if gives_up {
            assert_eq!(target.stats().items, 0);
            assert_eq!(import(&target, arriving, &parts[0], NOW), Ok(Due::Over));
        }
        source.thaw(Prefix::ALL, &mut cursor, NOW);
    };
    send(&mut arriving, true);
    assert!(!target.give_up(&mut arriving, NOW));
    // Once without a word to the destination: it finds out by itself.
    send(&mut arriving, false);
    put_all(&source, (0..100).step_by(2), |_| b"newer".to_vec());
    (1..100).step_by(2).for_each(|n| remove(&source, n));
    send(&mut arriving, false);
    for n in 0..100 {
        let value = look(&target, n, NOW).map(|(_, value)| value);
        assert_eq!(value, (n % 2 == 0).then(|| b"newer".to_vec()), "{n}");
    }
}

#[test]
fn an_item_that_has_expired_here_is_newer_all_the_same() {
    let (source, target) = (small(), small());
    put(&source, 1, b"old");
    let text = name(1);
    let key = Key::new(text.as_bytes()).expect("short");
    let draft = Draft { parts: &[b"newer"], deadline: NOW + 1, ..Draft::default() };
    target.lock(key.hash(), NOW).put(&key, &draft).expect("there is room");
    travel(&source, Prefix::ALL, &target, NOW + 5);
    assert_eq!(look(&target, 1, NOW + 5), None);
}

#[test]
fn nothing_is_imported_into_what_is_released_or_another_cachelet() {
    let (source, target) = (small(), Store::new(options(16, 2, 2)));
    put_all(&source, 0..100, |_| b"v".to_vec());
    assert!(target.release(Prefix::nth(0, 1), Elsewhere::Peer(ServerId(2))));
    travel(&source, Prefix::ALL, &target, NOW);
    let lower = (0..100).filter(|n| hash(*n) >> 63 == 0).count() as u64;
    assert_eq!(target.stats().items, 100 - lower);
    let source = small();
    put_all(&source, 0..100, |_| b"v".to_vec());
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let part = parts_of(&source, Prefix::ALL, &mut Cursor::default()).remove(0);
    let mut arriving = Arriving::new(Prefix::nth(1, 1));
    assert_eq!(import(&small(), &mut arriving, &part, NOW), Err(Broken));
}

#[test]
fn what_arrives_is_served_as_soon_as_it_is_gone_at_its_source() {
    let source = Store::new(options(64, 1, 2));
    put_all(&source, 0..20_000, |_| b"v".to_vec());
    let (prefix, other) = (Prefix::nth(1, 1), Prefix::nth(0, 1));
    let target = Store::vacant(options(64, 2, 2), Memory::heap(64 << 20)).expect("memory");
    let birth = mbal_cachelet::Birth { generation: 9, flush_number: 0 };
    assert!(target.begin_to_arrive(prefix, WorkerId(1), birth, ServerId(4)));
    assert!(!target.adopt(prefix, WORKER, birth), "it is taken");
    let hashes: Vec<u64> = (0..20_000).map(hash).filter(|hash| prefix.contains(*hash)).collect();
    let here_up_to = |last: Option<u64>| {
        for &hash in &hashes {
            let wanted = match Some(hash) <= last {
                true => Route::Neighbour(WorkerId(1)),
                false => Route::Peer(ServerId(4)),
            };
            assert_eq!(target.route(WORKER, hash), wanted, "{hash:x} of {last:x?}");
            // Never from two places.
            let at_source = source.route(WORKER, hash);
            assert!(at_source != Route::Own || wanted == Route::Peer(ServerId(4)));
        }
    };
    here_up_to(None);
    assert!(source.begin_to_leave(prefix, MOVE));
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(prefix));
    let (mut slices, mut gone) = (0, None);
    while source.freeze(prefix, NOW).is_some() {
        for part in parts_of(&source, prefix, &mut cursor) {
            assert_eq!(import(&target, &mut arriving, &part, NOW), Ok(Due::Now));
            // Of the slices before this one it is known by now.
            here_up_to(gone);
        }
        while source.forget(prefix, &mut cursor, NOW) {}
        gone = Some(arriving.last());
        slices += 1;
        if slices % 2 == 0 {
            target.serve_until(prefix, arriving.last());
            here_up_to(gone);
        }
        if gone < Some(prefix.last_hash()) {
            assert!(!target.begin_to_leave(prefix, MOVE) && !target.split(prefix, NOW));
            assert!(target.prefixes().is_empty(), "the map says that it is the source's");
        }
    }
    assert!(slices > 3 && gone == Some(prefix.last_hash()));
    target.serve_until(prefix, prefix.last_hash());
    here_up_to(gone);
    assert_eq!((target.prefixes(), source.prefixes()), (vec![prefix], vec![other, prefix]));
    assert_eq!(target.stats().items, hashes.len() as u64);
    assert!(target.is_here(prefix) && target.begin_to_leave(prefix, MOVE), "as any other");
}

#[test]
fn what_arrives_can_be_sent_away_again() {
    let (source, target) = (small(), Store::vacant(options(16, 1, 1), Memory::heap(16 << 20)));
    let target = target.expect("memory");
    put_all(&source, 0..100, |_| b"v".to_vec());
    let birth = mbal_cachelet::Birth::default();
    assert!(target.begin_to_arrive(Prefix::ALL, WORKER, birth, ServerId(4)));
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let mut arriving = Arriving::new(Prefix::ALL);
    for part in parts_of(&source, Prefix::ALL, &mut Cursor::default()) {
        assert_eq!(import(&target, &mut arriving, &part, NOW), Ok(Due::Now));
    }
    assert_eq!((target.stats().items, target.route(WORKER, 0)), (100, Route::Peer(ServerId(4))));
    assert!(target.release(Prefix::ALL, Elsewhere::Peer(ServerId(5))));
    target.serve_until(Prefix::ALL, u64::MAX);
    target.background(WORKER, NOW, 4);
    assert_eq!((target.stats().items, target.route(WORKER, 0)), (0, Route::Peer(ServerId(5))));
    assert!(target.adopt(Prefix::ALL, WORKER, birth));
    assert_eq!(target.route(WORKER, u64::MAX), Route::Own, "nothing is left of the other");
}

/// Pages are sealed as quickly as items arrive, and nobody reads meanwhile: that says nothing of what main pages are worth.
#[test]
fn what_is_hot_survives_a_burst_of_arrivals() {
    const KEYS: u64 = 120_000;
    for seed in 1..=3 {
        // A quarter of the memory, and of the keys, is at the source.
        let [target, source] = [6, 2].map(|mib| {
            Store::vacant(options(mib, 1, 16), Memory::heap(mib << 20)).expect("memory")
        });
        let home = |hash: u64| if hash >> 62 == 3 { &source } else { &target };
        for prefix in Prefix::equal(6) {
            assert!(home(prefix.first_hash()).adopt(prefix, WORKER, Birth::default()));
        }
        let mut random = Random::new(seed);
        let ask = |rank: u64, now: u32| {
            let (hash, text) = (hash(rank), name(rank));
            let (store, key) = (home(hash), Key::new(text.as_bytes()).expect("short"));
            store.enter(WORKER);
            if store.read(&key, now, true, &mut Vec::new(), |_, _| ()).is_none() {
                let value = vec![0; 40 + rank as usize * 7_919 % 361];
                make_room(store, WORKER, hash, value.len(), now);
                let draft = Draft { parts: &[&value], ..Draft::default() };
                let _full = store.lock(hash, now).put(&key, &draft);
            }
            store.leave(WORKER);
        };
        (0..KEYS).for_each(|rank| ask(rank, NOW));
        // As Zipf's law with an exponent of 1.
        for n in 0..KEYS {
            ask((KEYS as f64).powf(random.unit()) as u64 - 1, NOW + (n / 20_000) as u32);
        }
        for prefix in source.prefixes() {
            let from = ServerId(2);
            assert!(target.begin_to_arrive(prefix, WORKER, Birth::default(), from));
            travel(&source, prefix, &target, NOW + 6);
        }
        let lost: Vec<u64> =
            (0..100).filter(|rank| look(&target, *rank, NOW + 6).is_none()).collect();
        assert_eq!(lost, [], "seed {seed}");
    }
}
