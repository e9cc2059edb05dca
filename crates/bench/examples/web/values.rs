//! Values that carry their version, and what the database has acknowledged of each.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use mbal_bench::Random;

const SCALE: f64 = 250.476;
const SHAPE: f64 = 0.348238;
const BYTES: (f64, f64) = (1.0, 1000.0);

/// 11 bytes.
pub fn name(key: u32) -> String {
    format!("k{key:010}")
}

/// Generalised Pareto, from 1 to 1000, the same for a key at any time.
pub fn bytes(key: u32) -> usize {
    let unit = Random::new(u64::from(key) ^ 0x76616c7565).unit();
    let drawn = SCALE / SHAPE * (unit.powf(-SHAPE) - 1.0);
    drawn.clamp(BYTES.0, BYTES.1) as usize
}

/// The version, and as much of the padding as makes the key's size; a version that is longer makes the value longer.
pub fn value(version: u64, padding: &[u8]) -> Vec<u8> {
    let mut value = format!("{version}:").into_bytes();
    let rest = padding.len().saturating_sub(value.len());
    value.extend_from_slice(&padding[..rest]);
    value
}

pub fn version(value: &[u8]) -> Option<u64> {
    let end = value.iter().position(|&byte| byte == b':')?;
    std::str::from_utf8(&value[..end]).ok()?.parse().ok()
}

/// By key, the newest version whose writer has been told that it is stored, and has deleted it from the caches.
pub struct Acknowledged(Vec<AtomicU64>);

impl Acknowledged {
    pub fn new(keys: u32) -> Acknowledged {
        Acknowledged((0..keys).map(|_| AtomicU64::new(1)).collect())
    }

    pub fn get(&self, key: u32) -> u64 {
        self.0[key as usize].load(SeqCst)
    }

    pub fn raise(&self, key: u32, version: u64) {
        self.0[key as usize].fetch_max(version, SeqCst);
    }
}
