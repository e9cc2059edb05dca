//! Words that one thread writes while others read their neighbours.

use std::ops::Deref;

/// What a core fetches at a time: a cache line and the one beside it.
pub const APART_BYTES: usize = 128;

/// Begins and ends with cache lines of its own.
#[derive(Default)]
#[cfg_attr(not(planted = "together"), repr(align(128)))]
pub struct Apart<T>(pub T);

const _: () = assert!(cfg!(planted = "together") || align_of::<Apart<u8>>() == APART_BYTES);

impl<T> Deref for Apart<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
