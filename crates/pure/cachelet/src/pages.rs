//! The pages of a store: their bytes, what is known of each, who has them, and in which order they were sealed.

use std::ops::Deref;
use std::slice;

use mbal_model::Seconds;

use crate::eras::Eras;
use crate::item::Item;
use crate::kinds::{TTL_CLASSES_MAX, temper_of};
use crate::memory::{Memory, Offset};
use crate::policy::Temper;
use crate::pool::{PageId, Pool};
use crate::shim::{AtomicU32, AtomicU64, Ordering::*};
use crate::types::Options;
use crate::zeroed::ZeroedBytes;

/// Pages are this part of a cachelet's share of the memory, within bounds.
const PAGES_PER_CACHELET: usize = 128;
const PAGE_BYTES_MIN: usize = 4 << 10;
const PAGE_BYTES_MAX: usize = 64 << 10;

/// Longer items are chained, so that less than this part of a page is lost at its end.
pub const INLINE_PER_PAGE: usize = 8;

pub struct Pages {
    pub memory: Memory,
    pub pool: Pool,
    pub eras: Eras,
    /// Of one.
    pub bytes: usize,
    pub shift: u32,
    pub inline_bytes_max: usize,
    /// Logs by remaining time that this memory has room for.
    pub ttl_classes: usize,
    all: Known,
    /// Cachelets with pages that a flush has dropped, and that are still to be given back.
    with_dropped: AtomicU32,
}

/// What is known of a page. Written under the lock of the cachelet that has the page, with every item that comes or goes: so none shares
/// a cache line with a page of another worker.
#[repr(align(64))]
pub struct Page {
    /// Sequence 0 of this page's items; readers load it too, to tell a cas.
    base: AtomicU64,
    /// Place in the order of sealing, which is the order of eviction; 0 while open, free or being cleaned.
    sealed: AtomicU64,
    /// Bytes appended so far.
    fill: AtomicU32,
    /// Records that are not dead.
    live_records: AtomicU32,
    live_bytes: AtomicU32,
    /// The second at which the last of its items dies; `u32::MAX` if one never does.
    latest: AtomicU32,
    /// The log that it belongs to, by index.
    log: AtomicU32,
    /// Bytes from the start that cleaning has been through.
    cleaned: AtomicU32,
}

impl Pages {
    /// `None`: the allocator has no memory for what is known of each page.
    pub fn new(options: &Options, memory: Memory) -> Option<Pages> {
        assert!(memory.commit(options.memory_bytes), "the memory has room for -m");
        let share = options.memory_bytes / options.cachelets;
        let bytes = (share / PAGES_PER_CACHELET).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX);
        let bytes = 1usize << bytes.ilog2();
        let count = (options.memory_bytes / bytes) as u32;
        let chunk = (count / (16 * options.workers as u32)).clamp(1, (1 << 20) / bytes as u32);
        Some(Pages {
            bytes,
            shift: bytes.trailing_zeros(),
            inline_bytes_max: bytes / INLINE_PER_PAGE,
            ttl_classes: (share / bytes / 16).min(TTL_CLASSES_MAX),
            all: Known::untouched(memory.bytes() / bytes)?,
            pool: Pool::new(count, options.workers, chunk),
            eras: Eras::new(options.workers, count),
            with_dropped: AtomicU32::new(0),
            memory,
        })
    }

    /// The memory, zeroed, of pages that nobody needs any more.
    pub fn into_memory(self) -> Memory {
        let Pages { mut memory, pool, bytes, .. } = self;
        memory.zero(pool.untouched() as usize * bytes);
        memory
    }

    /// Has memory touched, by another thread if there is one, before a worker has to.
    #[inline]
    pub fn populate_ahead(&self) {
        let used = self.start(self.pool.untouched());
        self.memory.populate_behind(used, self.start(self.pool.limit()));
    }

    #[inline(always)]
    pub fn get(&self, id: PageId) -> &Page {
        &self.all[id as usize]
    }

    #[inline]
    pub fn id_at(&self, offset: Offset) -> PageId {
        (self.memory.position(offset) >> self.shift) as PageId
    }

    /// The page of a record.
    #[inline]
    pub fn at(&self, offset: Offset) -> &Page {
        self.get(self.id_at(offset))
    }

    #[inline(always)]
    pub fn of(&self, item: Item) -> &Page {
        &self.all[item.position_in(&self.memory) >> self.shift]
    }

    /// Where a page begins, in bytes.
    pub fn start(&self, id: PageId) -> usize {
        (id as usize) << self.shift
    }

    /// The order of a page that is sealed now for `worker`.
    pub fn next_seal(&self, worker: usize) -> u64 {
        self.eras.seal(worker, self.pool.limit())
    }

    /// Where the records begin that cleaning has not come to yet, dead ones too.
    pub fn records(&self, id: PageId) -> impl Iterator<Item = Offset> + use<'_> {
        let (start, page) = (self.start(id), self.get(id));
        let (mut at, end) = (start + page.cleaned() as usize, start + page.fill() as usize);
        std::iter::from_fn(move || {
            let offset = (at < end).then(|| self.memory.offset(at))?;
            at += Item::at(&self.memory, offset).stride(&self.memory);
            Some(offset)
        })
    }

    /// A cachelet has dropped pages, or has given back the last of them.
    pub fn count_dropped(&self, change: i32) {
        self.with_dropped.fetch_add(change as u32, Relaxed);
    }

    pub fn any_dropped(&self) -> bool {
        self.with_dropped.load(Relaxed) != 0
    }
}

/// What is known of each page that there may ever be.
struct Known {
    words: ZeroedBytes,
    pages: usize,
}

impl Known {
    /// `None`: there is no memory for so many.
    fn untouched(pages: usize) -> Option<Known> {
        let words = ZeroedBytes::new(pages.checked_mul(size_of::<Page>())?, align_of::<Page>())?;
        Some(Known { words, pages })
    }
}

impl Deref for Known {
    type Target = [Page];

    #[inline(always)]
    fn deref(&self) -> &[Page] {
        // SAFETY: so many were allocated, and zeroed integers are a page by default. (Those of loom are not; its models make no pages.)
        unsafe { slice::from_raw_parts(self.words.start().cast().as_ptr(), self.pages) }
    }
}

const _: () = assert!(cfg!(loom) || size_of::<Page>() == 64, "a page's words are a cache line");

impl Page {
    /// Without records, it is this log's.
    pub fn begin(&self, log: usize, base: u64) {
        self.base.store(base, Relaxed);
        self.fill.store(0, Relaxed);
        self.live_records.store(0, Relaxed);
        self.live_bytes.store(0, Relaxed);
        self.latest.store(0, Relaxed);
        self.log.store(log as u32, Relaxed);
        self.cleaned.store(0, Relaxed);
    }

    /// A record is appended; where in the page it begins.
    #[inline]
    pub fn append(&self, bytes: u32) -> u32 {
        let fill = self.fill.load(Relaxed);
        self.fill.store(fill + bytes, Relaxed);
        self.live_records.store(self.live_records.load(Relaxed) + 1, Relaxed);
        self.live_bytes.store(self.live_bytes.load(Relaxed) + bytes, Relaxed);
        fill
    }

    /// A record is dead; how many are not.
    #[inline]
    pub fn kill(&self, bytes: u32) -> u32 {
        let live = self.live_records.load(Relaxed) - 1;
        self.live_records.store(live, Relaxed);
        self.live_bytes.store(self.live_bytes.load(Relaxed) - bytes, Relaxed);
        live
    }

    /// Notes that it has an item that dies at `deadline`.
    #[inline]
    pub fn outlive(&self, deadline: Seconds) {
        let deadline = if deadline == 0 { Seconds::MAX } else { deadline };
        // Only where it changes: most often it is as late already.
        if self.latest.load(Relaxed) < deadline {
            self.latest.store(deadline, Relaxed);
        }
    }

    #[inline(always)]
    pub fn base(&self) -> u64 {
        self.base.load(Relaxed)
    }

    /// 0 unless it is sealed.
    #[inline]
    pub fn order(&self) -> u64 {
        self.sealed.load(Relaxed)
    }

    pub fn set_order(&self, order: u64) {
        self.sealed.store(order, Relaxed);
    }

    #[inline]
    pub fn fill(&self) -> u32 {
        self.fill.load(Relaxed)
    }

    #[inline]
    pub fn live_records(&self) -> u32 {
        self.live_records.load(Relaxed)
    }

    pub fn live_bytes(&self) -> u32 {
        self.live_bytes.load(Relaxed)
    }

    pub fn dead_bytes(&self) -> u32 {
        self.fill() - self.live_bytes()
    }

    pub fn latest(&self) -> Seconds {
        self.latest.load(Relaxed)
    }

    /// All that lives in it is past its deadline.
    pub fn is_expired(&self, now: Seconds) -> bool {
        self.live_records() > 0 && self.latest() <= now
    }

    #[inline]
    pub fn log(&self) -> usize {
        self.log.load(Relaxed) as usize
    }

    #[inline]
    pub fn temper(&self) -> Temper {
        temper_of(self.log())
    }

    pub fn cleaned(&self) -> u32 {
        self.cleaned.load(Relaxed)
    }

    pub fn set_cleaned(&self, bytes: u32) {
        self.cleaned.store(bytes, Relaxed);
    }
}
