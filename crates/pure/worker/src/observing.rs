//! What is counted and seen of requests, and told of it.

pub(crate) mod chores;
pub(crate) mod conns;
pub(crate) mod counted;
pub(crate) mod counters;
pub(crate) mod details;
pub(crate) mod distances;
pub(crate) mod figures;
pub(crate) mod hot;
pub(crate) mod latency;
pub(crate) mod links_up;
pub(crate) mod load;
pub(crate) mod log;
pub(crate) mod observer;
pub(crate) mod verbose;
pub(crate) mod waiting;
