//! Recorded traces, as the figures play them.

use std::path::PathBuf;

use mbal_bench::Trace;
use mbal_sketch::{Random, mix};

const FILES: [&str; 6] = [
    "cloudphysics-w106.u32le.xz",
    "cache2k-web12.i32be.xz",
    "cache2k-web07.i32be.xz",
    "sprite.txt.gz",
    "two-pools.txt.gz",
    "adaptsize-request.txt.xz",
];

/// Of figures in which nothing ages.
pub const NOW: u32 = 1;

#[derive(clap::Args)]
pub struct Traces {
    /// Folder of the traces
    #[arg(long, default_value = "../shared/data/traces")]
    data: PathBuf,
    /// Only traces whose file has this in its name: a quick look
    #[arg(long)]
    only: Option<String>,
}

impl Traces {
    /// What is made of each trace and its name; nothing, and a word about it, if the folder is not there.
    pub fn read<T>(&self, make: impl Fn(String, Trace) -> T) -> Result<Vec<T>, String> {
        if !self.data.exists() {
            eprintln!("SKIPPED: no traces in {}", self.data.display());
            return Ok(Vec::new());
        }
        let wanted = |file: &&&str| self.only.as_ref().is_none_or(|part| file.contains(part));
        let read = |file: &&str| {
            let name = file.split('.').next().unwrap_or_default().to_owned();
            Ok(make(name, Trace::read(&self.data.join(file), usize::MAX)?))
        };
        FILES.iter().filter(wanted).map(read).collect()
    }
}

/// As long for every key, as those of real caches nearly are.
pub fn key_text(number: u64) -> [u8; 16] {
    let digit = |at: usize| b"0123456789abcdef"[(number >> (60 - 4 * at)) as usize & 0xf];
    std::array::from_fn(digit)
}

/// Facebook's sizes of values (ElMem, ICDCS 2018, §V.A.2): generalised Pareto, 1 to 1,000 bytes.
pub fn drawn(key: u64) -> f64 {
    let unit = Random::new(mix(key + 1)).unit();
    (250.476 / 0.348_238 * (unit.powf(-0.348_238) - 1.0)).clamp(1.0, 1_000.0)
}
