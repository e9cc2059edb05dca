//! Fresh memory, untouched until it is used.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// ZeroedBytes bytes from the allocator.
pub struct ZeroedBytes {
    start: NonNull<u8>,
    whole: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is nothing but the right to free what it names.
unsafe impl Send for ZeroedBytes {}
// SAFETY: as above.
unsafe impl Sync for ZeroedBytes {}

impl ZeroedBytes {
    /// `None`: there is no memory for so much.
    pub fn new(bytes: usize, alignment: usize) -> Option<ZeroedBytes> {
        // Only at the allocator's own alignment does it know that fresh memory is zero already, and
        // leaves it untouched; so the range is aligned here.
        let layout = Layout::from_size_align(bytes.checked_add(alignment)?, 16).ok()?;
        // SAFETY: the layout's size is not zero.
        let whole = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let ahead = whole.as_ptr().align_offset(alignment);
        // SAFETY: the layout has so many bytes more than are needed behind it.
        let start = unsafe { whole.add(ahead) };
        Some(ZeroedBytes { start, whole, layout })
    }

    /// The first of its bytes, aligned.
    #[inline(always)]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for ZeroedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this very layout.
        unsafe { dealloc(self.whole.as_ptr(), self.layout) }
    }
}
