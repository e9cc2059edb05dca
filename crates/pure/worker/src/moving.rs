//! The cluster's map, and cachelets that move between servers. `docs/design/moves.md` is the protocol.

pub(crate) mod budget;
pub(crate) mod carrying;
pub(crate) mod followed;
pub(crate) mod following;
pub(crate) mod hurry;
pub(crate) mod lease;
pub(crate) mod moves;
pub(crate) mod quota;
pub(crate) mod scaling;
pub(crate) mod settling;
pub(crate) mod told;
