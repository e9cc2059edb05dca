//! Streams summarised in little memory: which keys are hot, how many keys there are,
//! and how many would hit in a cache of any size.
//!
//! Workers feed it sampled requests, the proxy every interval's keys, the autoscaler reads the
//! curves. It never sees a clock or a source of randomness: keys are their 64-bit hashes (of the hottest
//! their names are kept), epochs are ticked by the caller, random bits come from a seed.
//!
//! Start with [`Sampler`] (which requests to look at), then [`HotKeys`] (SPORE, SoCC 2013, §3.3, the
//! tracker of workers and of the proxy), [`HyperLogLog`] (NetKV, ICAC 2016, §IV.A), and [`StackDistances`] (ElMem, ICDCS 2018, §III.B, the autoscaler's curve).
//!
//! | sketch | merges | bound after merging |
//! |---|---|---|
//! | [`HyperLogLog`] | yes | the same registers as one sketch of the whole stream |
//! | [`Curve`] | yes, as parts of a hash-partitioned cache | exact where the cache is partitioned alike |
//! | [`HotKeys`] | no: what it tells is summed | |

#![forbid(unsafe_code)]

mod ages;

mod curve;
mod distances;
mod hot_keys;
mod hyperloglog;
mod sampling;
mod table;

pub use curve::{Curve, point_bytes};
pub use distances::StackDistances;
pub use distances::lasting::LastingDistances;
pub use distances::of_cache::{Chosen, Found};
pub use hot_keys::{Access, HotKeys, KeyRates, Rates, Slot};
pub use hyperloglog::HyperLogLog;
// Every sketch mixes first. A cachelet is a *prefix* of the hash, so the hashes that one worker sees share their high bits: a
// threshold or a register chosen by raw high bits would look at all of one cachelet and at nothing of the next.
pub use mbal_random::{Random, mix};
pub use sampling::Sampler;
