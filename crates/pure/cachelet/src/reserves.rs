//! How many pages are kept free, and for what.

use crate::pages::{INLINE_PER_PAGE, Pages};
use crate::shared::Shared;

/// Memory that is kept free for each worker's writes.
const RESERVE_BYTES: usize = 256 << 10;
/// What one that is alone keeps free ahead of its writes is no more than this part of all.
const RESERVES_PER_SHARE: u32 = 512;
/// And the pages that a write may need at once: one to write to, and one for the index.
const PAGES_OF_A_WRITE: u32 = 2;
/// With no more every write cleans a part of a page, so that none has to clean a whole one: those two, and two that
/// writes may open meanwhile.
pub const PAGES_AHEAD_OF_A_WRITE: u32 = PAGES_OF_A_WRITE + 2;
/// Of workers that wait for each other's batches: so many that a batch is over when its pages are needed.
const PAGES_AHEAD_OF_BATCHES: u32 = PAGES_AHEAD_OF_A_WRITE + 4;

/// That an item of so many bytes may need. A page's end may be lost with every piece.
#[inline]
pub fn pages_for(pages: &Pages, bytes: usize) -> u32 {
    ((bytes + bytes / INLINE_PER_PAGE) >> pages.shift) as u32 + PAGES_OF_A_WRITE
}

/// A worker's part of all pages.
pub fn share(shared: &Shared) -> u32 {
    shared.pages.pool.limit() / shared.options.workers as u32
}

/// Pages that a worker is left for its writes while another needs many at once.
pub fn pages_left(shared: &Shared) -> u32 {
    let pages = (RESERVE_BYTES / shared.pages.bytes) as u32 + PAGES_OF_A_WRITE;
    pages.min(share(shared) / 16).max(PAGES_OF_A_WRITE)
}

/// With fewer, those that wait for others' batches counted, a write cleans a part of a page. One that is alone has what it
/// cleans at once.
pub fn pages_to_refill(shared: &Shared) -> u32 {
    let is_alone = shared.options.workers == 1;
    let enough = if is_alone { PAGES_AHEAD_OF_A_WRITE + 1 } else { PAGES_AHEAD_OF_BATCHES };
    pages_left(shared).min(enough)
}

/// Pages that a worker has made free ahead of its writes. One that is alone waits for nobody's batch until they are
/// free, so few will do.
pub fn pages_ahead(shared: &Shared) -> u32 {
    match shared.options.workers {
        1 => {
            let part = share(shared) / RESERVES_PER_SHARE + PAGES_OF_A_WRITE;
            pages_left(shared).min(part.max(PAGES_AHEAD_OF_A_WRITE + 1))
        }
        _ => pages_left(shared),
    }
}
