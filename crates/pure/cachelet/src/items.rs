//! The items of a cachelet: where their bytes are, what is counted of them, and the counter of their cas.

use crate::cas::Counter;
use crate::counts::Counts;
use crate::kinds::Target;
use crate::log::Logs;
use crate::memory::Offset;
use crate::site::Site;
use crate::types::Full;

/// First what every write changes.
#[derive(Default)]
#[repr(C)]
pub struct Items {
    pub counter: Counter,
    pub counts: Counts,
    pub logs: Logs,
}

impl Items {
    /// See [`Logs::append`].
    #[inline]
    pub fn append(&mut self, site: &Site, target: Target, bytes: usize) -> Result<Offset, Full> {
        self.logs.append(site, self.counter.last(), target, bytes)
    }
}
