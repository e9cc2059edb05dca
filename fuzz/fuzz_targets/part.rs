//! Parts of a slice: whatever arrives, the store stays whole, and what it takes in is what a part says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mbal_cachelet::{
    Arriving, Crowded, Cursor, Dead, Due, ImportStep, Options, Part, Store,
};
use mbal_model::{Key, MoveId, Prefix, WorkerId};

const WORKER: WorkerId = WorkerId(0);
const NOW: u32 = 100;
const ITEM_BYTES_MAX: usize = 16 << 10;

fn store() -> Store {
    Store::new(Options {
        memory_bytes: 512 << 10,
        workers: 1,
        cachelets: 2,
        item_bytes_max: ITEM_BYTES_MAX,
        evict: true,
        generation: 1,
    })
}

/// The items of a store, one by one; they add up to what it says of itself.
fn check(store: &Store) -> u64 {
    let (mut from, mut items) = (Some(0), 0);
    store.enter(WORKER);
    while let Some(at) = from {
        let show = |view: &mbal_cachelet::View| {
            let key = Key::new(view.key()).expect("a stored key has a valid length");
            assert!(key.hash() >> 63 == 1, "imported beyond the prefix");
            let mut value = Vec::new();
            view.copy_value(&mut value);
            assert_eq!(value.len(), view.meta().value_bytes as usize);
            assert!(key.bytes().len() + value.len() <= ITEM_BYTES_MAX);
            items += 1;
        };
        from = store.walk(at, NOW, Dead::PassOver, 0, show).0;
    }
    store.leave(WORKER);
    let stats = store.stats();
    assert!(items <= stats.items, "{items} of {}", stats.items);
    assert_eq!(stats.total_items, 0, "they were stored elsewhere");
    items
}

// A byte for the length of each part but the last, then the parts, one behind the other.
fuzz_target!(|bytes: &[u8]| {
    let store = store();
    let upper = Prefix::nth(1, 1);
    let mut arriving = Arriving::new(upper);
    let mut rest = bytes;
    while let Some((&length, behind)) = rest.split_first() {
        let length = if length == 255 { behind.len() } else { usize::from(length) };
        let (one, behind) = behind.split_at(length.min(behind.len()));
        rest = behind;
        let Ok(mut part) = Part::read(one) else { continue };
        if arriving.due(&part.heading) != Due::Now {
            continue;
        }
        assert_ne!(arriving.due(&part.heading), Due::Now, "once only");
        let mut more = true;
        while more {
            store.enter(WORKER);
            let step = store.import(WORKER, &mut arriving, &mut part, NOW, Crowded::Drops);
            more = step == Ok(ImportStep::More);
            store.leave(WORKER);
            store.background(WORKER, NOW, 4);
        }
        check(&store);
    }
    let items = check(&store);
    // What has come goes on: all of it arrives, or was evicted for want of memory.
    let target = self::store();
    assert!(store.begin_to_leave(upper, MoveId(1)));
    let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(upper));
    while store.freeze(upper, NOW).is_some() {
        let mut out = Vec::new();
        while store.export(upper, &mut cursor, NOW, &mut out) {}
        cursor.end_part();
        let mut part = Part::read(&out).expect("what is exported reads");
        assert_eq!(arriving.due(&part.heading), Due::Now);
        target.enter(WORKER);
        let mut import =
            || target.import(WORKER, &mut arriving, &mut part, NOW, Crowded::Drops).expect("whole");
        while import() == ImportStep::More {}
        target.leave(WORKER);
        while store.forget(upper, &mut cursor, NOW) {}
    }
    assert_eq!(store.stats().items, 0);
    assert!(check(&target) + target.stats().evictions >= items);
});
