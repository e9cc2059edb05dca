//! What time it is to a coordinator.

/// Microseconds since the coordinator's start, by a clock that never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);
