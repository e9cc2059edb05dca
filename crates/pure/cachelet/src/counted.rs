//! The atomics of [`crate::shim`], counted by cache line and thread: which lines do threads share? Only under
//! `RUSTFLAGS="--cfg counted" cargo test -p mbal-cachelet --release --lib lines`, see `lines`.
//!
//! What threads share without a lock are these atomics; what is behind a lock is shared with it. Not seen: plain words behind a lock beside
//! words of others, and what the allocator puts side by side.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{self, Ordering};

const LINE_BYTES: usize = 64;

/// A thread's accesses to a line.
#[derive(Clone, Copy, Default, Debug)]
pub struct Accesses {
    pub reads: u64,
    pub writes: u64,
}

pub type ByLine = HashMap<usize, Accesses>;

thread_local! {
    static SEEN: RefCell<Option<ByLine>> = const { RefCell::new(None) };
}

/// What this thread does inside of `act`.
pub fn counted(act: impl FnOnce()) -> ByLine {
    SEEN.with(|seen| *seen.borrow_mut() = Some(ByLine::new()));
    act();
    SEEN.with(|seen| seen.borrow_mut().take()).expect("it was begun")
}

fn see<T>(word: &T, writes: bool) {
    SEEN.with(|seen| {
        if let Some(lines) = &mut *seen.borrow_mut() {
            let line = lines.entry(&raw const *word as usize / LINE_BYTES).or_default();
            *(if writes { &mut line.writes } else { &mut line.reads }) += 1;
        }
    });
}

macro_rules! words {
    ($($name:ident$(<$t:ident>)?: $of:ty, $std:ty;)*) => {$(
        #[derive(Default, Debug)]
        #[repr(transparent)]
        pub struct $name$(<$t>)?($std);

        #[allow(dead_code)]
        impl$(<$t>)? $name$(<$t>)? {
            pub const fn new(value: $of) -> Self {
                Self(<$std>::new(value))
            }

            pub fn load(&self, order: Ordering) -> $of {
                see(self, false);
                self.0.load(order)
            }

            pub fn store(&self, value: $of, order: Ordering) {
                see(self, true);
                self.0.store(value, order);
            }

            pub fn swap(&self, value: $of, order: Ordering) -> $of {
                see(self, true);
                self.0.swap(value, order)
            }

            pub fn compare_exchange(
                &self,
                old: $of,
                new: $of,
                order: Ordering,
                failed: Ordering,
            ) -> Result<$of, $of> {
                see(self, true);
                self.0.compare_exchange(old, new, order, failed)
            }
        }
    )*};
}

words! {
    AtomicU32: u32, atomic::AtomicU32;
    AtomicU64: u64, atomic::AtomicU64;
    AtomicPtr<T>: *mut T, atomic::AtomicPtr<T>;
}

macro_rules! numbers {
    ($($name:ident: $of:ty;)*) => {$(
        #[allow(dead_code)]
        impl $name {
            pub fn fetch_add(&self, value: $of, order: Ordering) -> $of {
                see(self, true);
                self.0.fetch_add(value, order)
            }

            pub fn fetch_sub(&self, value: $of, order: Ordering) -> $of {
                see(self, true);
                self.0.fetch_sub(value, order)
            }

            pub fn fetch_max(&self, value: $of, order: Ordering) -> $of {
                see(self, true);
                self.0.fetch_max(value, order)
            }
        }
    )*};
}

numbers! {
    AtomicU32: u32;
    AtomicU64: u64;
}
