//! What tests of proxies share: memcacheds of few commands, histories of keys against which reads are held, links, and transcripts.

#![allow(dead_code, reason = "each test uses some of it")]

use mbal_proxy::Limits;

pub mod history;
pub mod links;
pub mod memcached;
pub mod transcript;

/// How many seeds; `MBAL_PROXY_SEEDS` says another number.
pub fn seeds(usual: u64) -> u64 {
    std::env::var("MBAL_PROXY_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

/// In half of the runs a client may leave little untaken: each of its multi-gets is asked for key by key.
pub fn limits(is_narrow: bool) -> Limits {
    let usual = Limits::default();
    let client_output_bytes_max = if is_narrow { 8 } else { usual.client_output_bytes_max };
    Limits { client_output_bytes_max, ..usual }
}
