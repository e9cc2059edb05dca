//! What goes into a store and comes out of it.

use mbal_model::Seconds;

/// What a store is made of; checked once, at start.
#[derive(Clone, Debug)]
pub struct Options {
    /// `-m`: bytes for items and their index together.
    pub memory_bytes: usize,
    pub workers: usize,
    /// Cachelets that the memory is laid out for: a power of two, at most 4,096. [`crate::Store::new`] begins with so many.
    pub cachelets: usize,
    /// `-I`: the largest key and value together, in bytes.
    pub item_bytes_max: usize,
    /// False for `-M`: a full cache answers [`Full::OutOfMemory`] rather than evict.
    pub evict: bool,
    /// The generation of the cachelets that [`crate::Store::new`] begins with: differs from one start of the process to the
    /// next. Its lower 15 bits count, so that a cas is a positive number where clients have signed ones.
    pub generation: u16,
}

/// What a cachelet is born with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Birth {
    /// The upper part of every cas that it gives; its lower 15 bits count.
    pub generation: u16,
    /// Of the last `flush_all` that the cachelet has seen, wherever it was.
    pub flush_number: u32,
}

/// All that is known of an item beside its key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub flags: u32,
    /// Second at which the item dies; 0 is never.
    pub deadline: Seconds,
    pub cas: u64,
    /// Second of the last read or write.
    pub last_access: Seconds,
    /// Read at least once since it was written.
    pub fetched: bool,
    /// Marked by `md I`: served to one client that may recache it.
    pub stale: bool,
    /// Somebody has been told to recache it (meta's W token was sent).
    pub win: bool,
    /// Stored under a key that was sent in base64 (meta's b flag): replies repeat it so.
    pub binary_key: bool,
    pub value_bytes: u32,
}

/// An item to be stored: its value may come in parts, which are joined.
#[derive(Clone, Copy, Debug, Default)]
pub struct Draft<'a> {
    pub flags: u32,
    /// Second at which the item dies; 0 is never. A deadline that has passed stores nothing visible.
    pub deadline: Seconds,
    pub parts: &'a [&'a [u8]],
    /// `None`: the cachelet's next cas. `Some`: this one (meta's E flag, or an import).
    pub cas: Option<u64>,
    pub stale: bool,
    pub win: bool,
    pub binary_key: bool,
}

/// Why an item could not be stored. The old item of the key, if any, is untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Over [`Options::item_bytes_max`].
    TooLarge,
    /// Nothing could be evicted, or nothing may be.
    OutOfMemory,
}

impl StoreStats {
    pub(crate) fn add(&mut self, other: &StoreStats) {
        self.items += other.items;
        self.index_bytes += other.index_bytes;
        self.bytes += other.bytes;
        self.total_items += other.total_items;
        self.evictions += other.evictions;
        self.evicted_unfetched += other.evicted_unfetched;
        self.expired += other.expired;
        self.expired_unfetched += other.expired_unfetched;
        self.copied_bytes += other.copied_bytes;
        self.left_behind += other.left_behind;
    }
}

/// Sums over all cachelets; gauges unless they say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    pub items: u64,
    /// Bytes of keys, values and headers of live items.
    pub bytes: u64,
    /// Counter: items ever stored, overwrites included.
    pub total_items: u64,
    /// Counter: items that went for want of memory.
    pub evictions: u64,
    /// Counter: evicted without ever having been read.
    pub evicted_unfetched: u64,
    /// Counter: items found dead by their own deadline.
    pub expired: u64,
    /// Counter: expired without ever having been read.
    pub expired_unfetched: u64,
    /// Counter: bytes of items that were copied from one place to another, by cleaning, or for want of
    /// room in the item. A change of owner adds none.
    pub copied_bytes: u64,
    /// Counter: items that were not chosen when their slice went to another server.
    pub left_behind: u64,
    /// Bytes of the index, counted in `-m`.
    pub index_bytes: u64,
    /// Bytes of pages in use, of `Options::memory_bytes`.
    pub used_bytes: u64,
    /// Bytes of pages that nobody has.
    pub free_bytes: u64,
}
