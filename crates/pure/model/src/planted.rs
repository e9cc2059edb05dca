//! Faults that the checkers must catch, planted where they would be made (decision 0210).
//!
//! Nothing of this is in a server: without the feature `planted` every question is answered by a constant.

/// A fault in product code, by the invariant that it breaks (docs/design/invariants.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 1: a cachelet changes its owner, and the version stays.
    OwnerWithoutVersion,
    /// 2: a split sends requests to the new half before the items are there.
    RoutesBeforeItems,
    /// 2: a slice is exported while batches go on in which somebody was told that it is here.
    ExportBeforeBatchesEnd,
    /// 3: parts of a slice are imported over what a client has stored since.
    ImportOverNewer,
    /// 3: a part is imported again, when its items may have been deleted.
    ImportAgain,
    /// 3: what arrived of a slice stays, and its source serves it again.
    KeepsWhatArrived,
    /// 3: what was exported before a `flush_all` is imported after it.
    FlushNumberIgnored,
    /// 3: `flush_all` in the middle of a split passes over the new half.
    FlushSkipsNewHalf,
    /// 5: a connection is handed over while it waits for its output to leave.
    StalledIsIdle,
    /// 6: a key that is no base64 is taken for one that is.
    Base64Unchecked,
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Plants a fault, or none, for all that this thread does.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// True if this fault is to be made here.
#[inline(always)]
pub fn is_planted(_fault: Fault) -> bool {
    #[cfg(feature = "planted")]
    return PLANTED.get() == Some(_fault);
    #[cfg(not(feature = "planted"))]
    false
}
