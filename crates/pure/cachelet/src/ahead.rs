//! Where a key's item is looked for, for those who look next.

use mbal_model::WorkerId;

use crate::bucket::Bucket;
use crate::cachelet::Cachelet;
use crate::dir::Dir;

/// What [`crate::Cachelets::prefetch_bucket`] found out of a key.
#[derive(Clone, Copy)]
pub struct Ahead<'s>(pub(crate) Option<Home<'s>>);

/// A key's home bucket.
#[derive(Clone, Copy)]
pub(crate) struct Home<'s> {
    pub cachelet: &'s Cachelet,
    /// Another one as soon as the cachelet has been flushed.
    pub dir: *const Dir,
    pub bucket: &'s Bucket,
}

impl<'s> Ahead<'s> {
    /// Of no key.
    pub const NONE: Ahead<'static> = Ahead(None);

    /// Who owns the key's cachelet, if that is here and known.
    #[inline]
    pub fn owner(&self) -> Option<WorkerId> {
        self.cachelet().map(|cachelet| WorkerId(cachelet.front.owner() as u16))
    }

    /// The cachelet in which the key's slice was seen.
    #[inline]
    pub(crate) fn cachelet(&self) -> Option<&'s Cachelet> {
        self.0.map(|home| home.cachelet)
    }
}
