//! Copies of one hot key on other servers: SPORE's replication (SoCC 2013, §3) as state machines.
//!
//! The home of a key says what its shadows are to have ([`Home`]), a shadow knows how long it may answer ([`Shadow`]), a client
//! knows which copy it may ask ([`Leases`]). Called by workers, by clients and by the simulator. Never holds a value, sends, waits
//! or reads a clock; `docs/design/hotkeys.md` is the protocol.
//!
//! ```text
//!   a write, a tick ──► Home ──► Say: keep, let go, drop, item ──► Shadow ──► Held: what it has ──► Home
//!                         └──► Announcement: lease, suffixes ──► Leases ──► which suffix to ask, and what it must not be older than
//! ```

#![forbid(unsafe_code)]

use std::time::Duration;

mod client;
mod fence;
mod home;
mod message;
mod shadow;

pub use client::{Choice, Leases, choose_place};
pub use fence::Newborn;
pub use home::{Home, HomeState, Say, Terms, What};
pub use message::{Announcement, Held, Hold, HoldWhat, Item, MARK, Outcome, Stamp};
pub use shadow::{Kept, Shadow};

/// One life of a key's copies. Its upper half is the map by which the home owns the key, so a later owner's grants are higher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant(pub u64);

impl Grant {
    /// `count`: how many grants this home has given before, since its process began.
    pub fn new(map_version: u64, count: u32) -> Grant {
        Grant(map_version << 32 | u64::from(count))
    }
}

/// What shadows are told under one grant, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u64);

/// Clocks run apart by one part in so many, at most.
const DRIFT: u32 = 10;

/// How long the giver of a lease waits for its end, counted from its last word.
pub fn over_after(lease: Duration) -> Duration {
    lease + lease / DRIFT
}

/// How long copies that an earlier home has made may be read, counted from the whole second in which its cachelet begins empty elsewhere.
/// `lease` is a client's.
pub fn newborn_rests(lease: Duration) -> Duration {
    Duration::from_secs(1) + lease
}
