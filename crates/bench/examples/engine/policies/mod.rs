//! What decides whom to evict, one file per idea, for caches of equal items: the rivals of the engine's
//! own policy. Keys are numbered from 0; a miss is followed by an insertion, as a look-aside cache does.

mod belady;
#[cfg(test)]
mod naive;
mod order;
mod queues;
mod s3_fifo;
mod tiny_lfu;

use belady::Belady;
use queues::{Clock, Fifo, Lru, Sieve};
use s3_fifo::S3Fifo;
use tiny_lfu::TinyLfu;

/// A cache of a fixed number of items.
pub trait Policy {
    /// Reads `key`, and inserts it where it is missing; whether it was there.
    fn request(&mut self, key: u32) -> bool;
}

pub const NAMES: [&str; 7] = ["FIFO", "LRU", "CLOCK", "SIEVE", "S3-FIFO", "W-TinyLFU", "Belady"];

/// A cache of `items` for the requests `trace`, whose keys are below `keys`.
pub fn named(name: &str, trace: &[u32], keys: usize, items: usize) -> Box<dyn Policy> {
    match name {
        "FIFO" => Box::new(Fifo::new(keys, items)),
        "LRU" => Box::new(Lru::new(keys, items)),
        "CLOCK" => Box::new(Clock::new(keys, items)),
        "SIEVE" => Box::new(Sieve::new(keys, items)),
        "S3-FIFO" => Box::new(S3Fifo::new(keys, items)),
        "W-TinyLFU" => Box::new(TinyLfu::new(keys, items)),
        "Belady" => Box::new(Belady::new(trace, keys, items)),
        other => panic!("{other} is not among the policies' names"),
    }
}

pub fn hits(policy: &mut dyn Policy, trace: &[u32]) -> u64 {
    trace.iter().map(|&key| u64::from(policy.request(key))).sum()
}
