//! What the cachelets of a store share.

use crate::chosen::Kept;
use crate::clock::Clock;
use crate::flushes::Flushes;
use crate::memory::Memory;
use crate::pages::Pages;
use crate::types::Options;
use crate::witness::Witness;

pub struct Shared {
    pub options: Options,
    pub pages: Pages,
    pub clock: Clock,
    pub flushes: Flushes,
    pub witness: Witness,
    pub kept: Kept,
}

impl Shared {
    /// `None`: the allocator has no memory for what is known of each page.
    pub fn new(options: Options, memory: Memory) -> Option<Shared> {
        Some(Shared {
            pages: Pages::new(&options, memory)?,
            clock: Clock::new(),
            flushes: Flushes::new(),
            witness: Witness::new(),
            kept: Kept::nothing(),
            options,
        })
    }
}
