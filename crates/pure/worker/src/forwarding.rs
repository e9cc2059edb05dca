//! Requests for keys of other servers: out to them, and in from them. `docs/design/links.md` is the protocol.

pub(crate) mod asked;
pub(crate) mod everywhere;
pub(crate) mod flush;
pub(crate) mod forwarded;
pub(crate) mod held;
pub(crate) mod links;
pub(crate) mod once;
pub(crate) mod peers;
pub(crate) mod reply_bytes;
pub(crate) mod unreachable;
