//! Connections: their sessions, what waits in them, and turns in which their requests are executed.

pub(crate) mod batch;
pub(crate) mod datagram;
pub(crate) mod gather;
pub(crate) mod job;
pub(crate) mod retry;
pub(crate) mod room;
pub(crate) mod run;
pub(crate) mod session;
pub(crate) mod slice_wait;
pub(crate) mod slots;
pub(crate) mod table;
pub(crate) mod wakes;
