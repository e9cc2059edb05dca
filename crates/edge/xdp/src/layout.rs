//! What the packet program and its loader share, as bpf/plane.h has it.

use std::sync::atomic::{AtomicU32, AtomicU64};

use mbal_routing::{POINTS_MAX, Point, SLOTS_MAX, STEPS_MAX};

pub const UPSTREAMS_MAX: usize = 256;
pub const ANSWER_BYTES_MAX: usize = 1392;
pub const HOT_MAX: usize = 1024;
pub const SETS: usize = 1024;
pub const WAYS: usize = 4;

pub const RULE_ANSWER: u32 = 1;
pub const RULE_PASS: u32 = 2;

/// Fields in network byte order; the differences as the words are in memory.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct UpstreamEntry {
    pub mac: [u8; 6],
    pub port: [u8; 2],
    pub addr: [u8; 4],
    pub ip_difference: u16,
    pub udp_difference: u16,
}

#[repr(C)]
pub struct Ring {
    pub shift: u32,
    pub reserved: u32,
    pub first: [u16; SLOTS_MAX],
    /// `mbal_routing::Point` has two words too: its place, then its upstream.
    pub points: [[u32; 2]; POINTS_MAX + STEPS_MAX],
    pub upstreams: [UpstreamEntry; UPSTREAMS_MAX],
}

#[repr(C)]
pub struct Rings {
    pub active: AtomicU32,
    pub reserved: u32,
    pub ring: [Ring; 2],
}

#[repr(C)]
pub struct HotEntry {
    pub until_ns: AtomicU64,
    pub rule: u32,
    pub sum: u32,
    pub key_length: u16,
    pub answer_length: u16,
    pub reserved: u32,
    pub key: [u8; 256],
    pub answer: [u8; ANSWER_BYTES_MAX],
}

#[repr(C)]
pub struct Hots {
    pub ways: [[AtomicU64; WAYS]; SETS],
    pub hot: [HotEntry; HOT_MAX],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Tally {
    pub foreign: u64,
    pub unusual: u64,
    pub other: u64,
    pub by_rule: u64,
    pub unready: u64,
    pub forwarded: u64,
    pub answered: u64,
    pub expired: u64,
    pub cramped: u64,
    pub sampled: u64,
    pub lost: u64,
    pub dice: u64,
}

// SAFETY: it consists of integers, without padding.
unsafe impl aya::Pod for Tally {}

pub fn words(point: &Point) -> [u32; 2] {
    [point.at, point.upstream]
}

/// One's complement sum of 16-bit words, as they are in memory; an odd byte is followed by a zero.
pub fn sum(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|word| u32::from(u16::from_ne_bytes([word[0], *word.get(1).unwrap_or(&0)])))
        .sum()
}

/// What a checksum changes by when the words `new` stand where `old` were.
pub fn difference(old: &[u8], new: &[u8]) -> u16 {
    let complement: Vec<u8> = old.iter().map(|byte| !byte).collect();
    let sum = sum(&complement) + sum(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}
