//! Long values that travel, or are split: a piece at a time.

use mbal_cachelet::{Arriving, Crowded, Cursor, Draft, Due, ImportStep, Options, Part, Store};
use mbal_model::{Key, Prefix};

use crate::support::{
    MOVE, NOW, WORKER, import, look, make_room, options, put, put_all, remove, small, travel,
};

fn value(n: u64) -> Vec<u8> {
    (0..900_000u64).map(|at| (at * 31 + n) as u8).collect()
}

fn store() -> Store {
    Store::new(options(64, 1, 1))
}

#[test]
fn a_long_value_travels_in_pieces_and_is_given_up_if_it_is_evicted_on_its_way() {
    let (source, target) = (store(), store());
    put_all(&source, 0..4, value);
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let (mut cursor, mut out) = (Cursor::default(), Vec::new());
    for _ in 0..10 {
        assert!(source.export(Prefix::ALL, &mut cursor, NOW, &mut out));
    }
    // The slice thaws, and the items are replaced; it freezes, and is sent from its beginning.
    let mut arriving = Arriving::new(Prefix::ALL);
    cursor.end_part();
    assert_eq!(import(&target, &mut arriving, &out, NOW), Ok(Due::Now));
    source.thaw(Prefix::ALL, &mut cursor, NOW);
    put_all(&source, 0..4, |n| value(n + 4));
    source.freeze(Prefix::ALL, NOW).expect("the same");
    out.clear();
    while source.export(Prefix::ALL, &mut cursor, NOW, &mut out) {
        if out.len() > 400_000 && out.len() < 420_000 {
            remove(&source, (0..4).find(|n| look(&source, *n, NOW).is_some()).expect("four"));
        }
    }
    assert_eq!(import(&target, &mut arriving, &out, NOW), Ok(Due::Now));
    let there = (0..4).filter(|n| look(&target, *n, NOW).is_some());
    assert!(there.clone().all(|n| look(&target, n, NOW).expect("seen").1 == value(n + 4)));
    assert_eq!(
        (there.count() as u64, source.stats().items),
        (target.stats().items, target.stats().items)
    );
    assert!(out.len() < 5 * 900_000);
}

#[test]
fn what_is_longer_than_an_item_may_be_here_is_left_out() {
    let source = small();
    let target = Store::new(Options { item_bytes_max: 1_000, ..options(16, 1, 1) });
    put_all(&source, 0..30, |n| vec![7; [100, 5_000, 50_000][n as usize % 3]]);
    travel(&source, Prefix::ALL, &target, NOW);
    let stats = target.stats();
    assert_eq!((stats.items, stats.total_items), (10, 0));
    assert!((0..30).step_by(3).all(|n| look(&target, n, NOW).is_some()));
}

/// Values of 60 KB that find room without any being evicted.
fn room(store: &Store) -> usize {
    let put = |n: &u64| {
        let text = format!("room:{n}");
        let key = Key::new(text.as_bytes()).expect("short");
        let draft = Draft { parts: &[&[7; 60_000]], ..Draft::default() };
        store.lock(key.hash(), NOW).put(&key, &draft).is_ok()
    };
    (0..10_000).take_while(put).count()
}

/// Values of 60 KB that have room in a new store, and have none here: each is about a page.
fn room_lost(store: &Store) -> usize {
    while store.background(WORKER, NOW, 16) {}
    room(&Store::new(store.options().clone())) - room(store)
}

/// The frozen slice as one part.
fn part_of(source: &Store) -> Vec<u8> {
    assert!(source.begin_to_leave(Prefix::ALL, MOVE));
    source.freeze(Prefix::ALL, NOW).expect("a slice");
    let (mut cursor, mut out) = (Cursor::default(), Vec::new());
    while source.export(Prefix::ALL, &mut cursor, NOW, &mut out) {}
    out
}

/// One step after the other, with `between` before each; how many steps.
fn import_slowly(target: &Store, bytes: &[u8], mut between: impl FnMut(usize)) -> usize {
    let mut arriving = Arriving::new(Prefix::ALL);
    let mut part = Part::read(bytes).expect("whole");
    assert_eq!(arriving.due(&part.heading), Due::Now);
    let (mut steps, mut more) = (0, true);
    while more {
        between(steps);
        target.enter(WORKER);
        let step = target.import(WORKER, &mut arriving, &mut part, NOW, Crowded::Drops);
        more = step.expect("whole") == ImportStep::More;
        target.leave(WORKER);
        steps += 1;
    }
    steps
}

#[test]
fn a_long_value_is_written_as_it_comes_and_seen_when_it_is_whole() {
    let (source, target) = (store(), store());
    put(&source, 1, &value(1));
    let (mut used, mut most) = (target.stats().used_bytes, 0);
    let steps = import_slowly(&target, &part_of(&source), |_| {
        assert!(look(&target, 1, NOW).is_none());
        let now = target.stats().used_bytes;
        most = most.max(now - used);
        used = now;
    });
    assert_eq!(look(&target, 1, NOW).expect("it has come").1, value(1));
    let (page, piece) = (64 << 10, 16 << 10);
    assert!(steps > value(1).len() / piece, "{steps} steps");
    // What has been written before the last step is most of it.
    assert!(used as usize > value(1).len() - 2 * page, "{used} bytes");
    // The first step makes the index too.
    assert!(most <= 2 * page as u64, "{most} bytes in one step");
}

#[test]
fn a_flush_between_two_pieces_drops_the_value_and_its_memory() {
    let (source, target) = (store(), store());
    put(&source, 1, &value(1));
    let before = target.stats();
    import_slowly(&target, &part_of(&source), |step| {
        if step == 20 {
            assert!(target.stats().used_bytes > before.used_bytes + 200_000);
            target.flush(0, NOW);
        }
    });
    let after = target.stats();
    assert_eq!((after.items, after.evictions), (0, 0));
    assert!(room_lost(&target) <= 3);
}

#[test]
fn what_the_destination_gets_between_two_pieces_stays() {
    let (source, target) = (store(), store());
    put(&source, 1, &value(1));
    import_slowly(&target, &part_of(&source), |step| {
        if step == 20 {
            put(&target, 1, b"newer");
        }
    });
    assert_eq!(look(&target, 1, NOW).expect("it is there").1, b"newer");
    assert!(room_lost(&target) <= 3);
}

#[test]
fn a_value_is_begun_anew_when_its_slice_comes_again() {
    let (source, target) = (store(), store());
    put(&source, 1, &value(1));
    let part = part_of(&source);
    let (mut arriving, mut cursor) = (Arriving::new(Prefix::ALL), Cursor::default());
    let mut half = Part::read(&part).expect("whole");
    assert_eq!(arriving.due(&half.heading), Due::Now);
    target.enter(WORKER);
    for _ in 0..20 {
        let step = target.import(WORKER, &mut arriving, &mut half, NOW, Crowded::Drops);
        assert_eq!(step, Ok(ImportStep::More));
    }
    target.leave(WORKER);
    cursor.restart_slice();
    let mut again = Vec::new();
    while source.export(Prefix::ALL, &mut cursor, NOW, &mut again) {}
    assert_eq!(import(&target, &mut arriving, &again, NOW), Ok(Due::Now));
    assert_eq!(look(&target, 1, NOW).expect("it has come").1, value(1));
    assert_eq!(target.stats().items, 1);
}

#[test]
fn a_value_that_finds_no_room_leaves_none_taken() {
    let source = store();
    put(&source, 1, &value(1));
    let part = part_of(&source);
    let target = Store::new(Options { evict: false, ..options(2, 1, 1) });
    let filled = (2..40).take_while(|n| {
        let text = format!("item:{n}");
        let key = Key::new(text.as_bytes()).expect("short");
        let draft = Draft { parts: &[&value(*n)[..60_000]], ..Draft::default() };
        target.lock(key.hash(), NOW).put(&key, &draft).is_ok()
    });
    let filled = filled.count();
    import_slowly(&target, &part, |_| ());
    let stats = target.stats();
    assert_eq!((stats.items as usize, stats.evictions), (filled, 0), "nothing may be evicted");
    target.flush(0, NOW);
    assert!(room_lost(&target) <= 3);
}

#[test]
fn a_split_copies_no_more_of_a_long_value_than_its_ends() {
    let split = |store: &Store, whole: Prefix| {
        let before = store.stats().copied_bytes;
        assert!(store.split(whole, NOW));
        while store.split_step(whole, NOW) {}
        store.stats().copied_bytes - before
    };
    let store = store();
    put_all(&store, 0..40, value);
    let copied = split(&store, Prefix::ALL);
    let moved = store.stats_of(Prefix::nth(1, 1)).expect("it is here").items;
    assert!(moved > 10 && copied < moved * 130_000, "{copied} bytes of {moved} values");
    // They are its own now, and go on as any other's.
    assert_eq!(store.stats().evictions, 0);
    assert!((0..40).all(|n| look(&store, n, NOW).expect("kept").1 == value(n)));
    split(&store, Prefix::nth(1, 1));
    assert!((0..40).all(|n| look(&store, n, NOW).expect("kept").1 == value(n)));
    (0..40).for_each(|n| remove(&store, n));
    assert_eq!((store.stats().items, store.stats().bytes), (0, 0));
    let lost = room_lost(&store);
    assert!(lost <= 3 * 3, "each cachelet has pages for its index, and to write to: {lost}");
}

#[test]
fn long_values_that_were_split_are_cleaned_and_travel() {
    let long = |n: u64| value(n)[..100_000 + 7_000 * (n as usize % 90)].to_vec();
    let source = store();
    let put_and_read = |keys: std::ops::Range<u64>| {
        for n in keys {
            source.enter(WORKER);
            make_room(&source, WORKER, crate::support::hash(n), 800_000, NOW);
            source.leave(WORKER);
            put(&source, n, &long(n));
            if n % 3 == 0 {
                source.enter(WORKER);
                let text = crate::support::name(n);
                let key = Key::new(text.as_bytes()).expect("short");
                source.read(&key, NOW, true, &mut Vec::new(), |_, _| ());
                source.leave(WORKER);
            }
        }
    };
    // What is read moves on while pages are cleaned: runs of chunks no longer begin where pages do.
    put_and_read(0..400);
    assert!(source.stats().evictions > 50);
    for whole in [Prefix::ALL, Prefix::nth(1, 1), Prefix::nth(0, 1)] {
        assert!(source.split(whole, NOW));
        while source.background(WORKER, NOW, 4) {}
        assert_eq!(source.owner(whole), None, "it is done");
        put_and_read(400..500);
    }
    let whole = |store: &Store| {
        let seen = (0..500).filter_map(|n| Some((n, look(store, n, NOW)?.1)));
        let seen: Vec<u64> = seen
            .map(|(n, value)| (n, value == long(n)))
            .map(|(n, is_whole)| {
                assert!(is_whole, "{n}");
                n
            })
            .collect();
        seen
    };
    let kept = whole(&source);
    assert!(kept.len() > 50, "{}", kept.len());
    let target = Store::new(options(128, 1, 1));
    for prefix in source.prefixes() {
        travel(&source, prefix, &target, NOW);
    }
    assert_eq!(whole(&target), kept);
    assert_eq!((source.stats().items, source.stats().bytes), (0, 0));
}
