//! A memory limit that moves while the store is in use.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use mbal_cachelet::{Memory, Region, Store};

use crate::bounds::{WORKER, get, put};
use crate::support::options;

const ALIGNMENT: usize = 2 << 20;

/// Memory whose content does not survive being given back, so that whoever still looks finds nonsense.
pub struct Fragile {
    base: NonNull<u8>,
    layout: Layout,
    decommitted: Arc<AtomicUsize>,
}

// SAFETY: it is nothing but the right to write to, and to free, what it names.
unsafe impl Send for Fragile {}
// SAFETY: as above.
unsafe impl Sync for Fragile {}

impl Fragile {
    pub fn new(bytes: usize) -> Fragile {
        let layout = Layout::from_size_align(bytes, ALIGNMENT).expect("a size of a few mebibytes");
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("a few mebibytes");
        Fragile { base, layout, decommitted: Arc::default() }
    }
}

// SAFETY: it is allocated, aligned, until it is dropped; all of it can be used at any time.
unsafe impl Region for Fragile {
    fn range(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.base, self.layout.size())
    }

    fn commit(&self, bytes: usize) -> bool {
        bytes <= self.layout.size()
    }

    fn decommit(&self, part: Range<usize>) {
        self.decommitted.fetch_add(part.len(), Relaxed);
        // SAFETY: a part of the range, which nobody uses now.
        unsafe { self.base.add(part.start).write_bytes(0xff, part.len()) };
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        // SAFETY: allocated with this very layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

fn fill(store: &Store, items: usize, bytes: usize) {
    for n in 0..items {
        put(store, &format!("k{n}"), &vec![n as u8; bytes], 0, 1).expect("eviction makes room");
    }
}

fn settle(store: &Store) {
    for _ in 0..20_000 {
        store.background(WORKER, 1, 1);
    }
}

#[test]
fn a_limit_is_raised_and_lowered_again() {
    let region = Fragile::new(64 << 20);
    let decommitted = Arc::clone(&region.decommitted);
    let store = Store::with_memory(options(16, 2, 8), Memory::of(Box::new(region)));
    fill(&store, 30_000, 1_000);
    let used = store.stats().used_bytes;
    assert!((14 << 20..=16 << 20).contains(&used), "{used} of 16 MiB");

    assert!(store.set_memory_limit(48 << 20));
    let evictions = store.stats().evictions;
    fill(&store, 30_000, 1_000);
    assert_eq!(store.stats().evictions, evictions, "all of them fit");
    assert_eq!(store.stats().items, 30_000);

    assert!(store.set_memory_limit(16 << 20));
    settle(&store);
    let stats = store.stats();
    assert!((14 << 20..=16 << 20).contains(&stats.used_bytes), "{stats:?}");
    let returned = decommitted.load(Relaxed);
    assert!(returned >= 14 << 20, "{returned} bytes were given back");
    let kept = (0..30_000).filter(|n| match get(&store, &format!("k{n}"), 1) {
        Some(value) => value == vec![*n as u8; 1_000],
        None => false,
    });
    assert_eq!(kept.count() as u64, stats.items, "what is left is whole");

    assert!(!store.set_memory_limit(65 << 20), "more than there is");
    fill(&store, 30_000, 1_000);
    assert!(store.stats().used_bytes <= 16 << 20, "it stands at 16 MiB");
}

#[test]
fn no_limit_is_too_low_to_store_something() {
    let store = Store::new(options(64, 2, 32));
    fill(&store, 300_000, 100);
    let index = store.stats().index_bytes;
    assert!(store.set_memory_limit(1));
    settle(&store);
    let used = store.stats().used_bytes;
    assert!(used <= index + (4 << 20), "{used} with an index of {index}");
    for bytes in [10, 10_000, 1_000_000] {
        put(&store, "k", &vec![1; bytes], 0, 1).expect("there is room for each");
        assert_eq!(get(&store, "k", 1), Some(vec![1; bytes]));
    }
}

#[test]
fn without_evictions_a_lower_limit_waits_for_deletions() {
    let mut options = options(32, 1, 8);
    options.evict = false;
    let store = Store::new(options);
    fill(&store, 20_000, 1_000);
    assert!(store.set_memory_limit(12 << 20));
    settle(&store);
    assert_eq!(store.stats().items, 20_000);
    let refused = (0..500).any(|n| put(&store, &format!("more{n}"), &[0; 1_000], 0, 1).is_err());
    assert!(refused, "the memory is over its limit");
    store.flush(0, 1);
    settle(&store);
    put(&store, "again", &[0; 1_000], 0, 1).expect("it is empty");
}
