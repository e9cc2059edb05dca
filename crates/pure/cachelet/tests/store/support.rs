//! What the tests of stores do often.

use mbal_cachelet::{
    Arriving, Birth, Broken, Crowded, Cursor, Draft, Due, ImportStep, Memory, Meta, Options, Part,
    Room, Store,
};
use mbal_model::{Key, MoveId, Prefix, WorkerId};
use mbal_random::Random;

pub const WORKER: WorkerId = WorkerId(0);
pub const NOW: u32 = 1_000;
pub const MOVE: MoveId = MoveId(5);
const PART_BYTES: usize = 64 << 10;

pub fn options(memory_mib: usize, workers: usize, cachelets: usize) -> Options {
    Options {
        memory_bytes: memory_mib << 20,
        workers,
        cachelets,
        item_bytes_max: 1 << 20,
        evict: true,
        generation: 7,
    }
}

pub fn small() -> Store {
    Store::new(options(16, 1, 1))
}

/// A store without a cachelet.
pub fn absent() -> Store {
    Store::vacant(options(16, 1, 1), Memory::heap(16 << 20)).expect("memory")
}

/// Has the whole hash space, by a generation of its own.
pub fn vacant() -> Store {
    let birth = Birth { generation: 9, flush_number: 0 };
    let store = absent();
    assert!(store.adopt(Prefix::ALL, WORKER, birth));
    store
}

pub fn name(n: u64) -> String {
    format!("item:{n}")
}

pub fn hash(n: u64) -> u64 {
    Key::new(name(n).as_bytes()).expect("short").hash()
}

pub fn fill(store: &Store, items: u64) {
    let mut random = Random::new(3);
    store.enter(WORKER);
    for n in 0..items {
        let text = name(n);
        let key = Key::new(text.as_bytes()).expect("a valid key");
        let bytes = [0, 30, 500, 20_000][random.below(4) as usize];
        let value = vec![n as u8; bytes / (1 + n as usize % 3)];
        let draft = Draft {
            flags: n as u32 % 5,
            deadline: if n % 4 == 0 { NOW + 50 + n as u32 } else { 0 },
            parts: &[&value],
            cas: (n % 7 == 0).then_some(n << 20),
            stale: n % 11 == 0,
            win: n % 13 == 0,
            binary_key: n % 17 == 0,
        };
        store.lock(key.hash(), NOW).put(&key, &draft).expect("there is room");
        if n % 2 == 0 {
            store.read(&key, NOW, true, &mut Vec::new(), |_, _| ());
        }
    }
    store.leave(WORKER);
}

pub fn look(store: &Store, n: u64, now: u32) -> Option<(Meta, Vec<u8>)> {
    let text = name(n);
    let key = Key::new(text.as_bytes()).expect("a valid key");
    let mut value = Vec::new();
    store.enter(WORKER);
    let meta = store.read(&key, now, false, &mut value, |view, out| {
        view.copy_value(out);
        view.meta()
    });
    store.leave(WORKER);
    Some((meta?, value))
}

pub fn put(store: &Store, n: u64, value: &[u8]) -> u64 {
    let text = name(n);
    let key = Key::new(text.as_bytes()).expect("short");
    store.enter(WORKER);
    let draft = Draft { parts: &[value], ..Draft::default() };
    let cas = store.lock(key.hash(), NOW).put(&key, &draft).expect("there is room");
    store.leave(WORKER);
    cas
}

pub fn put_all(store: &Store, keys: impl Iterator<Item = u64>, value: impl Fn(u64) -> Vec<u8>) {
    for n in keys {
        put(store, n, &value(n));
    }
}

pub fn remove(store: &Store, n: u64) {
    let text = name(n);
    let key = Key::new(text.as_bytes()).expect("short");
    let mut locked = store.lock(key.hash(), NOW);
    let found = locked.find(&key).expect("it is there");
    locked.remove(&found);
}

/// Parts of the slice that is frozen now.
pub fn parts_of(source: &Store, prefix: Prefix, cursor: &mut Cursor) -> Vec<Vec<u8>> {
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

pub fn import(
    target: &Store,
    arriving: &mut Arriving,
    bytes: &[u8],
    now: u32,
) -> Result<Due, Broken> {
    let mut part = Part::read(bytes)?;
    let due = arriving.due(&part.heading);
    if due == Due::Now {
        target.enter(WORKER);
        loop {
            match target.import(WORKER, arriving, &mut part, now, Crowded::Drops)? {
                ImportStep::More => {}
                ImportStep::All => break,
                ImportStep::NoRoom => panic!("it is dropped, as if evicted"),
            }
        }
        target.leave(WORKER);
    }
    Ok(due)
}

/// Moves all of a cachelet; the number of slices.
pub fn travel(source: &Store, prefix: Prefix, target: &Store, now: u32) -> usize {
    assert!(source.begin_to_leave(prefix, MOVE));
    let (mut cursor, mut arriving, mut slices) = (Cursor::default(), Arriving::new(prefix), 0);
    while let Some(stamp) = source.freeze(prefix, NOW) {
        assert!(source.all_have_left(stamp), "nobody is in it");
        for part in parts_of(source, prefix, &mut cursor) {
            assert_eq!(import(target, &mut arriving, &part, now), Ok(Due::Now));
            assert_eq!(import(target, &mut arriving, &part, now), Ok(Due::Over), "once only");
        }
        while source.forget(prefix, &mut cursor, NOW) {}
        slices += 1;
    }
    slices
}

/// Tries before a test's worker goes on without room.
const TRIES: u32 = 200_000;

/// [`Store::reserve`], coming again while memory is in use, as a server's worker does.
pub fn make_room(store: &Store, worker: WorkerId, hash: u64, bytes: usize, now: u32) {
    for _ in 0..TRIES {
        match store.reserve_at_once(worker, hash, bytes, now) {
            Room::InUse | Room::Partly => std::thread::yield_now(),
            _ => return,
        }
    }
}
