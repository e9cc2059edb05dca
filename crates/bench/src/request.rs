//! What a request may be.

use mbal_model::ReplicaVersion;

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Protocol {
    /// `get` and `set`
    Text,
    /// `mg KEY v` and `ms KEY N`
    Meta,
    /// memcached's binary protocol, a get per key
    Binary,
    /// Redis's: `GET`, `MGET` and `SET`; a compared redis-server or valkey-server is spoken to so in any case
    Resp,
}

/// What is done to a single key, but reading it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    Set,
    Add,
    Delete,
    /// One more; where there is no counter yet, meta and binary make one.
    Incr,
}

/// What is written: of which key, how long, for how many seconds (0 is for ever).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Item {
    pub key: u64,
    pub value_bytes: u32,
    pub ttl: u32,
}

/// Bytes of a value that say whose it is, and how long.
pub const LABEL_BYTES: usize = 12;

pub fn label(key: u64, value_bytes: u32) -> [u8; LABEL_BYTES] {
    let mut label = [0; LABEL_BYTES];
    label[..8].copy_from_slice(&key.to_le_bytes());
    label[8..].copy_from_slice(&value_bytes.to_le_bytes());
    label
}

/// A copy is to answer that is no older than this.
pub type ByLease = Option<ReplicaVersion>;

/// A key that is asked for.
#[derive(Clone, Copy)]
pub struct Read {
    pub key: u64,
    /// What binary says about its cachelet.
    pub vbucket: u16,
    /// Meta alone.
    pub by_lease: ByLease,
}
