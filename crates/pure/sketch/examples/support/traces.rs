use std::path::Path;
use std::process::Command;

/// Requests of (key, bytes). Traces without sizes get memcached-like ones, fixed by the key.
pub struct Trace {
    pub name: &'static str,
    pub requests: Vec<(u64, u32)>,
}

pub const NAMES: [&str; 6] = [
    "cloudphysics-w106.u32le.xz",
    "cache2k-web12.i32be.xz",
    "cache2k-web07.i32be.xz",
    "sprite.txt.gz",
    "two-pools.txt.gz",
    "adaptsize-request.txt.xz",
];

/// One trace; `None`, said loudly, where the data folder is absent.
pub fn load(name: &'static str) -> Option<Trace> {
    let path = super::root().join("../shared/data/traces").join(name);
    if !path.exists() {
        eprintln!("SKIPPED: no trace {name} in ../shared/data/traces");
        return None;
    }
    let bytes = decompressed(&path);
    let requests = match name {
        _ if name.ends_with(".u32le.xz") => {
            words(&bytes).map(|word| sized(u32::from_le_bytes(word))).collect()
        }
        _ if name.ends_with(".i32be.xz") => {
            words(&bytes).map(|word| sized(u32::from_be_bytes(word))).collect()
        }
        _ => lines(&bytes).collect(),
    };
    Some(Trace { name: name.split('.').next().expect("a name"), requests })
}

fn decompressed(path: &Path) -> Vec<u8> {
    let tool = if path.extension().is_some_and(|end| end == "gz") { "gzip" } else { "xz" };
    let output = Command::new(tool).arg("-dc").arg(path).output().expect("gzip and xz run");
    assert!(output.status.success(), "{tool} cannot read {}", path.display());
    output.stdout
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.chunks_exact(4).map(|word| word.try_into().expect("four bytes"))
}

// Either `key`, or `time key bytes`; `*` marks a boundary and is no request.
fn lines(bytes: &[u8]) -> impl Iterator<Item = (u64, u32)> {
    let text = std::str::from_utf8(bytes).expect("traces are text");
    text.lines().filter(|line| !matches!(line.trim(), "" | "*")).map(|line| {
        let mut fields = line.split_ascii_whitespace().map(|f| f.parse::<u64>().expect("a number"));
        match (fields.next(), fields.next(), fields.next()) {
            (Some(key), None, None) => sized(key as u32),
            (Some(_), Some(key), Some(bytes)) => {
                (mbal_sketch::mix(key + 1), bytes.min(1 << 26) as u32)
            }
            _ => panic!("neither `key` nor `time key bytes`: {line}"),
        }
    })
}

// Facebook's value sizes (ElMem, ICDCS 2018, §V.A.2), generalised Pareto, plus key and header.
fn sized(key: u32) -> (u64, u32) {
    let hash = mbal_sketch::mix(u64::from(key) + 1);
    (hash, value_bytes(hash) + 16 + 20)
}

/// A value's size by its key's hash: 1 to 1,000 bytes, scale 250.476, shape 0.348238.
pub fn value_bytes(hash: u64) -> u32 {
    let unit = mbal_sketch::Random::new(hash).unit();
    let size = 250.476 / 0.348_238 * (unit.powf(-0.348_238) - 1.0);
    size.clamp(1.0, 1_000.0) as u32
}
