//! Words that one thread writes while others read their neighbours.

use std::ops::Deref;

/// Begins and ends with cache lines of its own: a core fetches a line and the one beside it at a time.
#[derive(Default)]
#[repr(align(128))]
pub struct Apart<T>(pub T);

impl<T> Deref for Apart<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
