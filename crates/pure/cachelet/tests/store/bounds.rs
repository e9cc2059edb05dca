//! Memory at its bounds.

use crate::support::{make_room, options};
use mbal_cachelet::{Draft, Full, Options, Room, Store};
use mbal_model::{Key, WorkerId};
use mbal_random::Random;

pub const WORKER: WorkerId = WorkerId(0);

pub fn put(store: &Store, text: &str, value: &[u8], deadline: u32, now: u32) -> Result<u64, Full> {
    let key = Key::new(text.as_bytes()).expect("a valid key");
    store.enter(WORKER);
    make_room(store, WORKER, key.hash(), value.len(), now);
    let stored = store
        .lock(key.hash(), now)
        .put(&key, &Draft { parts: &[value], deadline, ..Draft::default() });
    store.leave(WORKER);
    store.background(WORKER, now, 2);
    stored
}

pub fn get(store: &Store, text: &str, now: u32) -> Option<Vec<u8>> {
    let key = Key::new(text.as_bytes()).expect("a valid key");
    let mut out = Vec::new();
    store.enter(WORKER);
    let hit = store.read(&key, now, true, &mut out, |view, out| view.copy_value(out));
    store.leave(WORKER);
    hit.map(|()| out)
}

#[test]
fn a_cas_is_a_positive_number_for_those_who_have_signed_ones() {
    for generation in [0x7FFF, 0x8000, u16::MAX] {
        let store = Store::new(Options { generation, ..options(64, 2, 16) });
        for n in 0..100 {
            let cas = put(&store, &format!("key{n}"), b"value", 0, 1).expect("there is room");
            assert!(i64::try_from(cas).is_ok(), "{cas} of generation {generation:#x}");
        }
    }
}

/// Workers read the clock once for a batch, and one that lost its core in between is behind the others.
#[test]
fn what_one_worker_has_found_dead_no_other_finds_alive() {
    let store = Store::new(options(64, 2, 16));
    put(&store, "key", b"value", 5, 4).expect("there is room");
    assert_eq!(get(&store, "key", 4), Some(b"value".to_vec()));
    assert_eq!(get(&store, "key", 5), None);
    assert_eq!(get(&store, "key", 4), None, "alive again");
    let key = Key::new(b"key").expect("a valid key");
    assert!(store.lock(key.hash(), 4).find(&key).is_none(), "alive again, for a writer");
}

#[test]
fn an_item_of_one_mebibyte_fits_64_mib_with_any_number_of_cachelets() {
    for cachelets in [1, 16, 64, 256, 1024] {
        let store = Store::new(options(64, 2, cachelets));
        let value = vec![7; (1 << 20) - 100];
        for n in 0..200 {
            assert_eq!(
                put(&store, &format!("big{n}"), &value, 0, 1).map(|_| ()),
                Ok(()),
                "{cachelets}"
            );
            assert_eq!(get(&store, &format!("big{n}"), 1).as_ref(), Some(&value), "{cachelets}");
        }
        assert_eq!(put(&store, "over", &vec![7; (1 << 20) - 3], 0, 1), Err(Full::TooLarge));
        let kept = store.stats().items;
        assert!((48..=63).contains(&kept), "{kept} of 63 possible with {cachelets} cachelets");
    }
}

#[test]
fn mixed_sizes_evict_and_use_the_memory() {
    for (memory_mib, cachelets) in [(1, 32), (64, 32), (64, 256)] {
        let store = Store::new(options(memory_mib, 2, cachelets));
        let mut random = Random::new(9);
        let mut written = 0;
        for n in 0.. {
            let bytes = [2, 11, 90, 400, 4_000, 20_000][random.below(6) as usize];
            put(&store, &format!("key{n}"), &vec![1; bytes], 0, 1).expect("eviction makes room");
            written += bytes;
            if written > (memory_mib * 3) << 20 {
                break;
            }
        }
        let stats = store.stats();
        let used = stats.bytes as f64 / (memory_mib << 20) as f64;
        println!("-m {memory_mib}, {cachelets} cachelets: {stats:?}, live {used:.3}");
        let least = if memory_mib == 1 { 0.3 } else { 0.85 };
        assert!(used > least && used <= 1.0, "{used:.3} of -m {memory_mib} holds items");
    }
}

/// Value sizes of Facebook's ETC pool: a generalized Pareto (Atikoglu et al., SIGMETRICS 2012),
/// cut at what an item may hold.
fn etc_bytes(random: &mut Random) -> usize {
    const SCALE: f64 = 214.476;
    const SHAPE: f64 = 0.348_238;
    let uniform = (random.word() >> 11) as f64 / (1u64 << 53) as f64;
    let bytes = SCALE / SHAPE * ((1.0 - uniform).powf(-SHAPE) - 1.0);
    (bytes as usize).clamp(1, 1_000_000)
}

/// All that was written last is there, memory is full of items, and what is evicted was old.
#[test]
fn the_sizes_of_etc_evict_sanely_at_64_mib() {
    let store = Store::new(options(64, 2, 32));
    let mut random = Random::new(17);
    let mut sizes = Vec::new();
    for n in 0..600_000 {
        let bytes = etc_bytes(&mut random);
        put(&store, &format!("etc{n}"), &vec![n as u8; bytes], 0, 1).expect("eviction makes room");
        sizes.push(bytes);
    }
    let stats = store.stats();
    let live = stats.bytes as f64 / f64::from(64 << 20);
    assert!(live > 0.9, "{live:.3} of the memory holds items: {stats:?}");
    // Walk back from the newest: what fills 80% of the memory must be there, all of it.
    let (mut bytes, mut newest) = (0, sizes.len());
    while bytes < (64 << 20) * 8 / 10 {
        newest -= 1;
        bytes += sizes[newest] + 22;
    }
    let missing =
        (newest..sizes.len()).filter(|n| get(&store, &format!("etc{n}"), 1).is_none()).count();
    let newest = sizes.len() - newest;
    assert!(missing * 100 < newest, "{missing} of the newest {newest} items are gone");
}

#[test]
fn popular_items_survive_a_scan() {
    let store = Store::new(options(16, 1, 4));
    for round in 0..40 {
        for n in 0..2_000 {
            let hot = format!("hot{n}");
            if get(&store, &hot, 1).is_none() {
                put(&store, &hot, &[0; 1000], 0, 1).expect("eviction makes room");
            }
        }
        for n in 0..5_000 {
            put(&store, &format!("cold{round}-{n}"), &[0; 1000], 0, 1)
                .expect("eviction makes room");
        }
    }
    let kept = (0..2_000).filter(|n| get(&store, &format!("hot{n}"), 1).is_some()).count();
    assert!(kept > 1_900, "{kept} of 2,000 hot items survived");
}

/// As a look-aside cache; how many of these requests hit.
fn ask(store: &Store, random: &mut Random, phase: u32, keys: u64, requests: u32) -> u32 {
    let hits = (0..requests).map(|_| {
        let text = format!("{phase}:{}", random.below(keys));
        let hit = get(store, &text, 1).is_some();
        if !hit {
            put(store, &text, &[0; 1000], 0, 1).expect("eviction makes room");
        }
        u32::from(hit)
    });
    hits.sum()
}

#[test]
fn what_was_popular_goes_first_once_nobody_asks_for_it() {
    const KEYS: u64 = 12_000;
    let store = Store::new(options(16, 1, 4));
    let mut random = Random::new(3);
    // Their working set fills four fifths of the memory, so all are read several times over.
    for phase in 0..3 {
        ask(&store, &mut random, phase, KEYS, 100_000);
        let hits = ask(&store, &mut random, phase, KEYS, 10_000);
        println!("phase {phase}: {hits}");
        assert!(hits > 9_900, "{hits} of 10,000 hit in phase {phase}");
        let first = ask(&store, &mut random, phase + 1, KEYS, 30_000);
        println!("{first} of the first 30,000 after the change");
        assert!(first > 16_500, "{first} of the first 30,000 after phase {phase}");
    }
}

/// They are moved chunk by chunk: no room for the whole of one is ever free at once.
#[test]
fn popular_values_of_hundreds_of_pages_survive_a_scan_and_keep_their_bytes() {
    let store = Store::new(options(16, 1, 16));
    let bytes = |n: usize| -> Vec<u8> { (0..900_000).map(|i| (i / 7 + n) as u8).collect() };
    for round in 0..30 {
        for n in 0..4 {
            let hot = format!("hot{n}");
            match get(&store, &hot, 1) {
                Some(value) => assert!(value == bytes(n), "hot{n} in round {round}"),
                None => {
                    assert_eq!(round, 0, "hot{n} is gone");
                    put(&store, &hot, &bytes(n), 0, 1).expect("eviction makes room");
                }
            }
        }
        for n in 0..9 {
            put(&store, &format!("cold{round}-{n}"), &[0; 700_000], 0, 1)
                .expect("eviction makes room");
        }
    }
}

#[test]
fn expired_pages_are_given_back_before_anything_is_evicted() {
    let store = Store::new(options(32, 1, 4));
    for n in 0..20_000 {
        put(&store, &format!("lasting{n}"), &[0; 500], 0, 10).expect("there is room");
    }
    for second in 0..200 {
        let now = 100 + second;
        for n in 0..1_000 {
            put(&store, &format!("short{second}-{n}"), &[0; 500], now + 10, now)
                .expect("there is room");
        }
        while store.background(WORKER, now, 16) {}
    }
    assert_eq!(store.stats().evictions, 0);
    assert!((0..20_000).all(|n| get(&store, &format!("lasting{n}"), 400).is_some()));
}

/// A page of 32 KiB has some 700 items, and whoever cleans one keeps a worker.
#[test]
fn no_job_evicts_or_expires_more_than_a_part_of_a_page() {
    let store = Store::new(options(16, 1, 4));
    let gone = || store.stats().evictions + store.stats().expired;
    let most = |what: &str, set: &dyn Fn(u64), background: &dyn Fn()| {
        let mut most = [0, 0];
        for n in 0..100_000 {
            let before = gone();
            set(n);
            let between = gone();
            background();
            most[0] = (between - before).max(most[0]);
            most[1] = (gone() - between).max(most[1]);
        }
        assert!(most.iter().all(|most| *most <= 256), "{most:?} items at once: {what}");
        assert!(most.iter().any(|most| *most > 0), "nothing went: {what}");
    };
    let set = |n: u64, deadline: u32, now: u32| {
        let text = format!("key{n:07}");
        let key = Key::new(text.as_bytes()).expect("a valid key");
        store.enter(WORKER);
        let draft = Draft { parts: &[&[7; 20]], deadline, ..Draft::default() };
        // As a server does: the index may have taken what was reserved.
        let stored = (0..16).any(|_| {
            make_room(&store, WORKER, key.hash(), 20, now);
            store.lock(key.hash(), now).put(&key, &draft).is_ok()
        });
        store.leave(WORKER);
        assert!(stored, "there is room, or is made");
    };
    (0..350_000).for_each(|n| set(n, 0, 1));
    let background = |now: u32| {
        store.background(WORKER, now, 1);
    };
    most("sets alone", &|n| set(2_000_000 + n, 0, 1), &|| ());
    most("both", &|n| set(3_000_000 + n, 0, 1), &|| background(1));
    store.flush(0, 1);
    (0..250_000).for_each(|n| set(4_000_000 + n, 5, 1));
    most("expiry", &|_| (), &|| background(5));
}

#[test]
fn flushing_gives_all_memory_back() {
    let store = Store::new(options(16, 1, 4));
    for round in 0..20 {
        for n in 0..10_000 {
            put(&store, &format!("key{n}"), &[0; 700], 0, 1).expect("there is room");
        }
        assert_eq!(store.stats().evictions, 0, "round {round}");
        store.flush(0, 1);
        assert_eq!((store.stats().items, store.stats().bytes), (0, 0));
        assert_eq!(get(&store, "key5", 1), None);
    }
}

/// A worker that has nothing to do gives back what a flush has dropped, and keeps it: others write with it all the same.
#[test]
fn what_another_worker_keeps_free_goes_before_items() {
    let store = Store::new(options(16, 2, 1));
    for round in 0..200 {
        for n in 0..1_000 {
            put(&store, &format!("key{n}"), &[0; 700], 0, 1).expect("there is room");
        }
        assert_eq!(store.stats().evictions, 0, "round {round}");
        store.flush(0, 1);
        while store.background(WorkerId(1), 1, 16) {}
    }
}

#[test]
fn growth_loses_nothing_while_there_is_memory() {
    let store = Store::new(options(256, 1, 16));
    for n in 0..400_000 {
        put(&store, &format!("key:{n}"), b"value", 0, 1).expect("there is room");
    }
    let stats = store.stats();
    assert_eq!((stats.items, stats.evictions), (400_000, 0));
    let index_bytes_per_item = stats.index_bytes as f64 / stats.items as f64;
    assert!(index_bytes_per_item < 8.5, "{index_bytes_per_item}");
}

#[test]
fn an_index_gives_back_what_fewer_items_do_not_need() {
    let store = Store::new(options(16, 1, 4));
    for n in 0..600_000 {
        put(&store, &format!("small{n}"), b"value", 0, 1).expect("eviction makes room");
    }
    let before = store.stats();
    assert!(before.evictions > 0 && before.index_bytes > 1 << 20, "{before:?}");
    for n in 0..10_000 {
        put(&store, &format!("large{n}"), &[7; 4000], 0, 1).expect("eviction makes room");
    }
    let after = store.stats();
    assert!(after.items < 5_000, "the small items are gone: {after:?}");
    // Three 64ths of the memory are an index's for the asking, and a page for each of the four.
    assert!(after.index_bytes < (3 << 18) + (4 << 15), "{after:?}");
    let found = |what: &str, count: u32| {
        (0..count).filter(|n| get(&store, &format!("{what}{n}"), 1).is_some()).count() as u64
    };
    assert_eq!(found("small", 600_000) + found("large", 10_000), after.items, "each is found");
    for n in 0..200_000 {
        put(&store, &format!("again{n}"), b"value", 0, 1).expect("eviction makes room");
    }
    assert!(store.stats().index_bytes > after.index_bytes, "it grows again");
}

#[test]
fn memory_that_another_worker_may_see_is_in_use_until_its_batch_is_over() {
    let store = Store::new(options(16, 2, 2));
    let (slow, hash) = (WorkerId(1), 7);
    store.enter(slow);
    let room = (0..).find_map(|n| {
        let (text, bytes) = (format!("key{n}"), 700);
        let key = Key::new(text.as_bytes()).expect("a valid key");
        store.enter(WORKER);
        let room = store.reserve(WORKER, key.hash(), bytes, 1);
        let draft = Draft { parts: &[&[7; 700]], ..Draft::default() };
        let stored = store.lock(key.hash(), 1).put(&key, &draft);
        store.leave(WORKER);
        assert!(stored.is_ok() || room == Room::InUse, "{room:?}");
        stored.is_err().then_some(room)
    });
    assert_eq!(room, Some(Room::InUse));
    store.enter(WORKER);
    assert_eq!(store.reserve_at_once(WORKER, hash, 700, 1), Room::InUse);
    store.leave(slow);
    assert_eq!(store.reserve(WORKER, hash, 700, 1), Room::Made);
    // A value of many pages is made room for bit by bit.
    assert_eq!(store.reserve(WORKER, hash, 1 << 20, 1), Room::Partly);
    assert_eq!(store.reserve_at_once(WORKER, hash, 1 << 20, 1), Room::Made);
    store.leave(WORKER);
}

#[test]
fn without_eviction_a_full_memory_has_room_nowhere() {
    let store = Store::new(Options { evict: false, ..options(16, 2, 2) });
    let mut values = (0..10_000).map(|n| put(&store, &format!("key{n}"), &[7; 100_000], 0, 1));
    assert!(values.any(|put| put == Err(Full::OutOfMemory)), "there is always room");
    store.enter(WORKER);
    assert_eq!(store.reserve(WORKER, 7, 200_000, 1), Room::Nowhere);
    store.leave(WORKER);
}

/// What a full memory needs to make room for, other workers' batches hold back only for moments.
#[test]
fn two_workers_storing_long_values_are_not_refused() {
    let store = Store::new(options(64, 2, 32));
    let value = vec![5; 500_000];
    std::thread::scope(|scope| {
        for id in 0..2 {
            let (store, value, me) = (&store, &value, WorkerId(id));
            scope.spawn(move || {
                for n in 0..2_000 {
                    let text = format!("long{id}:{n}");
                    let key = Key::new(text.as_bytes()).expect("a valid key");
                    store.enter(me);
                    // The other may take what was made free, as often as it has the core; a worker tries for a second.
                    let stored = (0..1_000).any(|_| {
                        make_room(store, me, key.hash(), value.len(), 1);
                        let draft = Draft { parts: &[value], ..Draft::default() };
                        store.lock(key.hash(), 1).put(&key, &draft).is_ok()
                    });
                    store.leave(me);
                    assert!(stored, "{text} was refused");
                }
            });
        }
    });
    assert!(store.stats().evictions > 3_000, "{:?}", store.stats());
}

#[test]
fn what_has_expired_goes_before_what_lives_wherever_it_lies() {
    for cachelets in [1, 16] {
        let store = Store::new(options(16, 1, cachelets));
        let value = [3; 200];
        let evictions = || store.stats().evictions;
        // Popular items with a deadline fill the memory twice over: most pass into main logs.
        for n in 0..160_000 {
            put(&store, &format!("short{n}"), &value, 100 + n % 20, 1)
                .expect("eviction makes room");
            for _ in 0..2 {
                get(&store, &format!("short{n}"), 1);
            }
        }
        assert!(evictions() > 0, "the memory was full");
        let before = evictions();
        for n in 0..50_000 {
            put(&store, &format!("long{n}"), &value, 0, 150).expect("the dead make room");
        }
        assert_eq!(evictions(), before, "{cachelets} cachelets");
        assert!((0..50_000).all(|n| get(&store, &format!("long{n}"), 150).is_some()));
    }
}

#[test]
fn a_change_of_owner_copies_nothing_and_cleaning_does() {
    let store = Store::new(options(8, 2, 2));
    let value = [1; 100];
    let text = |n: u32| format!("key{n}");
    for n in 0..10_000 {
        put(&store, &text(n), &value, 0, 1).expect("it fits");
    }
    let before = store.stats();
    for _ in 0..100 {
        for cachelet in store.prefixes() {
            let owner = store.owner(cachelet).expect("it is here");
            assert!(store.give(cachelet, owner, WorkerId(1 - owner.0), u64::MAX));
        }
    }
    assert_eq!(store.stats(), before, "not a byte of 10,000 items");
    assert!((0..10_000).all(|n| get(&store, &text(n), 1).is_some()));
    // The counter is on the way of whatever is copied: items that were read survive a cleaning.
    for n in 10_000..200_000 {
        put(&store, &text(n), &value, 0, 1).expect("eviction makes room");
    }
    assert!(store.stats().copied_bytes > before.copied_bytes + 100_000);
}

#[test]
fn memory_that_a_store_has_left_is_as_zero_as_new() {
    for puts in [0, 10, 1_000] {
        let store = Store::new(options(4, 3, 8));
        for n in 0..puts {
            put(&store, &format!("key{n}"), &[7; 9_000], 0, 1).expect("eviction makes room");
        }
        assert_eq!(store.stats().evictions > 0, puts == 1_000);
        let memory = store.into_memory();
        // SAFETY: the memory lives, nobody writes to it, and every position is in it.
        let not_zero = |at: &usize| unsafe { memory.byte(*at).read() != 0 };
        assert_eq!((0..4 << 20).find(not_zero), None, "after {puts}");
    }
}

/// Tries of one request before a test calls them endless.
const TRIES_MAX: u32 = 2_000;

/// A small cachelet beside a large one: its sealed pages are full of what lives, an open one of what was deleted.
#[test]
fn without_eviction_compaction_that_wins_nothing_ends() {
    let store = Store::new(Options { evict: false, ..options(16, 1, 2) });
    let of = |cachelet: usize| {
        let prefix = store.prefixes()[cachelet];
        let keys = (0..).map(|n| format!("key{n}"));
        keys.filter(move |text| prefix.contains(Key::new(text.as_bytes()).expect("short").hash()))
    };
    let value = [7; 1_000];
    let live: Vec<String> = of(0).take(300).collect();
    live.iter().for_each(|text| assert!(put(&store, text, &value, 0, 1).is_ok()));
    let dead: Vec<String> = of(0).skip(300).take(50).collect();
    dead.iter().for_each(|text| assert!(put(&store, text, &value, 900, 1).is_ok()));
    let full = of(1).find(|text| put(&store, text, &value, 0, 1).is_err());
    full.expect("nothing is evicted");
    dead.iter().for_each(|text| remove_key(&store, text));
    for bytes in [1_000, 200_000, 900_000] {
        store.enter(WORKER);
        let tries = (0..TRIES_MAX).map(|_| store.reserve(WORKER, 7, bytes, 1));
        let ends = tries.into_iter().find(|room| *room != Room::Partly);
        store.leave(WORKER);
        assert!(ends.is_some(), "it compacts for ever for {bytes} bytes");
    }
    assert!(live.iter().all(|text| get(&store, text, 1).is_some()), "compaction loses nothing");
    put(&store, "small", &value, 0, 1).expect("what was deleted is room again");
    assert_eq!(store.stats().evictions, 0);
}

/// Half of what is stored is deleted, one item in two, and of many remaining times: nearly all of that is room again.
#[test]
fn without_eviction_what_is_deleted_is_room_again() {
    for (workers, cachelets) in [(1, 1), (2, 8)] {
        let store = Store::new(Options { evict: false, ..options(16, workers, cachelets) });
        let mut random = Random::new(5);
        let mut store_until_full = |what: &str| {
            let mut stored = Vec::new();
            for n in 0.. {
                let deadline = [0, 10, 200, 4_000, 60_000][random.below(5) as usize];
                let bytes = [20, 400, 3_000][random.below(3) as usize];
                let text = format!("{what}{n}");
                if put(&store, &text, &vec![1; bytes], deadline, 1).is_err() {
                    break;
                }
                stored.push(text);
            }
            stored
        };
        let first = store_until_full("first");
        first.iter().step_by(2).for_each(|text| remove_key(&store, text));
        let second = store_until_full("second");
        let (halves, again) = (first.len() / 2, second.len());
        assert!(again * 10 > halves * 7, "{again} of {halves}, {cachelets} cachelets");
        let kept = first.iter().skip(1).step_by(2).chain(&second);
        assert!(kept.clone().all(|text| get(&store, text, 1).is_some()), "nothing is lost");
        assert_eq!(store.stats().evictions, 0);
    }
}

fn remove_key(store: &Store, text: &str) {
    let key = Key::new(text.as_bytes()).expect("short");
    store.enter(WORKER);
    let mut locked = store.lock(key.hash(), 1);
    let found = locked.find(&key).expect("it is there");
    locked.remove(&found);
    drop(locked);
    store.leave(WORKER);
}
