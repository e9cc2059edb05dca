//! Packet programs with one mistake each, which the tests have to find.

use aya::include_bytes_aligned;

macro_rules! planted {
    ($name:literal) => {
        ($name, include_bytes_aligned!(concat!(env!("OUT_DIR"), "/", $name, ".o")))
    };
}

/// By name; build.rs compiles them.
pub static PROGRAMS: &[(&str, &[u8])] = &[
    planted!("keys_are_not_compared"),
    planted!("udp_checksum_stays"),
    planted!("answers_outlive_their_lease"),
    planted!("bytes_are_unsigned"),
    planted!("hot_keys_are_passed_by"),
    planted!("tail_is_not_hashed"),
];

/// Without a mistake, but it counts a hot key as `by_rule`, then takes tens of milliseconds to answer.
pub static SLOW: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/slowness.o"));
