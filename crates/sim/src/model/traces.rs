//! Real traces of keys, as `../shared/data` holds them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The keys of a trace, numbered in order of first appearance.
pub struct Trace {
    pub name: String,
    pub keys: Vec<u32>,
    pub distinct: u32,
}

/// All traces of a folder that a name's ending says how to read, in order of names.
pub fn read_all(folder: &Path) -> Result<Vec<Trace>, String> {
    let listing =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<_> = listing.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<Trace, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // The decompressors that every Linux has; a trace is read once.
    let unpack = if name.ends_with(".xz") { "xz" } else { "gzip" };
    let unpacked = Command::new(unpack).arg("-dc").arg(path).output();
    let bytes = unpacked.map_err(|error| format!("{unpack}: {error}"))?.stdout;
    let words = |from: fn([u8; 4]) -> u32| {
        let word = |chunk: &[u8]| u64::from(from(chunk.try_into().expect("four bytes")));
        bytes.chunks_exact(4).map(word).collect::<Vec<u64>>()
    };
    let column = |index: usize| {
        let text = String::from_utf8_lossy(&bytes);
        let field = |line: &str| line.split_whitespace().nth(index)?.parse::<u64>().ok();
        text.lines().filter_map(field).collect::<Vec<u64>>()
    };
    let raw = match name.trim_end_matches(".xz").trim_end_matches(".gz") {
        binary if binary.ends_with(".u32le") => words(u32::from_le_bytes),
        binary if binary.ends_with(".i32be") => words(u32::from_be_bytes),
        // `time key bytes`
        text if text.starts_with("adaptsize") => column(1),
        _ => column(0),
    };
    if raw.is_empty() {
        return Err(format!("{name}: no requests"));
    }
    let mut numbers = BTreeMap::new();
    let keys = raw
        .iter()
        .map(|key| {
            let next = numbers.len() as u32;
            *numbers.entry(*key).or_insert(next)
        })
        .collect();
    Ok(Trace {
        name: name.split('.').next().unwrap_or_default().to_owned(),
        keys,
        distinct: numbers.len() as u32,
    })
}
