//! Why a request is not passed on.

pub(crate) type Refusal = &'static [u8];

pub(crate) const DOWN: Refusal = b"SERVER_ERROR upstream is down\r\n";
pub(crate) const BUSY: Refusal = b"SERVER_ERROR upstream is busy\r\n";
pub(crate) const SWITCHING: Refusal =
    b"SERVER_ERROR a resize of the pool is not over: run mbal pool resize again\r\n";
pub(crate) const BAD_FORMAT: Refusal = b"CLIENT_ERROR bad command line format\r\n";
