//! Memory goes from run to run: to get it from the kernel, page by page, takes longer than many a run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hint::black_box;

use mbal_cachelet::Memory;

/// Freed once, this is what glibc's thresholds go by; more than 32 MiB would not count.
const LARGE_BYTES: usize = 16 << 20;

thread_local! {
    /// By size, what the runs of this thread have left, zeroed.
    static LEFT: RefCell<BTreeMap<usize, Vec<Memory>>> = const { RefCell::new(BTreeMap::new()) };
}

/// From now on the allocator keeps what is freed: as long as nothing large was freed, glibc gives every buffer of
/// more than 128 KiB back to the kernel, and the next one comes page by page.
pub fn keep_what_is_freed() {
    drop(black_box(vec![0u8; LARGE_BYTES]));
}

pub fn of(bytes: usize) -> Memory {
    let left = LEFT.with_borrow_mut(|left| left.get_mut(&bytes)?.pop());
    left.unwrap_or_else(|| Memory::heap(bytes))
}

pub fn keep(memory: Memory) {
    LEFT.with_borrow_mut(|left| left.entry(memory.bytes()).or_default().push(memory));
}
