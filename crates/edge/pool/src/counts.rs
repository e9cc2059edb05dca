//! What a resize has done, in numbers.

use std::ops::AddAssign;

/// What came of items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Copies that were stored.
    pub copied: u64,
    /// Keys and values.
    pub bytes: u64,
    /// Keys that the destination had.
    pub there: u64,
    /// Items that were no more where they had been listed.
    pub gone: u64,
    /// Items that the destination did not take, or whose key cannot be said.
    pub refused: u64,
    /// Copies that were deleted, since the item has been written or deleted.
    pub outdated: u64,
    /// Deletes of items that were not where clients look for them.
    pub strays: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.copied += other.copied;
        self.bytes += other.bytes;
        self.there += other.there;
        self.gone += other.gone;
        self.refused += other.refused;
        self.outdated += other.outdated;
        self.strays += other.strays;
    }
}
