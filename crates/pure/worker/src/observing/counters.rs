//! What a worker counts. Each is written by its own worker alone, so counting is a load and a
//! store, and summed by `stats`, which may read a moment's halves.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mbal_model::planted::{Fault, is_planted};

macro_rules! counters {
    ($(#[$about:meta])* $counters:ident $sums:ident: $($name:ident)*) => {
        $(#[$about])*
        #[derive(Default)]
        #[repr(align(128))]
        pub struct $counters {
            $(pub(crate) $name: Counter,)*
        }

        /// Sums over workers at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $sums {
            $(pub $name: u64,)*
        }

        impl $counters {
            pub(crate) fn add_to(&self, sums: &mut $sums) {
                $(sums.$name += self.$name.get();)*
            }
        }

        impl $sums {
            /// Every counter's name and value.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// What was counted since `earlier`.
            pub(crate) fn since(mut self, earlier: &$sums) -> $sums {
                $(self.$name = self.$name.wrapping_sub(earlier.$name);)*
                self
            }
        }
    };
}

counters! {
    /// One worker's counters, named as `stats` names them.
    Counters Sums:
    cmd_get cmd_set cmd_flush cmd_touch cmd_meta
    get_hits get_misses delete_hits delete_misses
    incr_hits incr_misses decr_hits decr_misses
    cas_hits cas_misses cas_badval touch_hits touch_misses
    store_too_large store_no_memory auth_cmds auth_errors
    bytes_read bytes_written conn_yields
    requests_own requests_neighbour requests_peer conns_handed_over
    get_unreachable
    get_expired idle_kicks crawler_items_checked crawler_reclaimed crawler_starts
    busy_ns ran_ns waited_ns turns turns_followed keys_followed
    work work_followed work_linked work_handable
    caused_followed caused_linked
}

counters! {
    /// One worker's counters of what is done to the items of one class.
    ClassCounters ClassSums:
    get_hits cmd_set delete_hits incr_hits decr_hits cas_hits cas_badval touch_hits
    outofmemory crawler_items_checked crawler_reclaimed
}

impl Counters {
    /// Requests for a key so far, each key of a multi-get counted; not those that others execute.
    #[inline]
    pub(crate) fn keyed(&self) -> u64 {
        self.requests_own.get() + self.requests_neighbour.get()
    }
}

/// What all workers have counted since the start.
pub(crate) fn sum(counters: &[Counters]) -> Sums {
    let mut sums = Sums::default();
    counters.iter().for_each(|counters| counters.add_to(&mut sums));
    sums
}

/// A number that one thread adds to and any thread may read.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn add(&self, more: u64) {
        if is_planted(Fault::CountersAreOne) {
            // What several workers count is not lost, so that only lines tell of the fault.
            self.0.fetch_add(more, Relaxed);
            return;
        }
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
