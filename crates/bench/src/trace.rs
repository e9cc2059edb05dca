//! Recorded request traces: which key was read, in what order, sometimes how large it was.
//!
//! Formats go by the file's name, under an optional `.xz` or `.gz` that `xz` and `gzip` unpack through a pipe:
//! `.u32le` and `.i32be` (a word per request), `.txt` (a decimal key per line, or `time key bytes`). A line `*`,
//! which collections of traces use as a mark between phases, is no request.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub struct Trace {
    pub keys: Vec<u64>,
    /// One per request, in bytes, where the trace knows.
    pub value_bytes: Option<Vec<u32>>,
    /// When each request came, likewise.
    pub seconds: Option<Vec<f64>>,
}

const ENDINGS: [&str; 3] = [".u32le", ".i32be", ".txt"];

#[derive(Clone, Copy)]
enum Format {
    U32Le,
    I32Be,
    Lines,
}

impl Trace {
    /// Reads the first `requests_max` requests of the file.
    pub fn read(path: &Path, requests_max: usize) -> Result<Self, String> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let (name, unpacker) = match name.rsplit_once('.') {
            Some((inner, "xz")) => (inner, Some("xz")),
            Some((inner, "gz")) => (inner, Some("gzip")),
            _ => (name, None),
        };
        let format = match name.rsplit_once('.') {
            Some((_, "u32le")) => Format::U32Le,
            Some((_, "i32be")) => Format::I32Be,
            Some((_, "txt")) => Format::Lines,
            _ => {
                let path = path.display();
                return Err(format!("{path}: not .u32le, .i32be or .txt, plain, .xz or .gz"));
            }
        };
        let fail = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("{}: no such file{}", path.display(), beside(path))
            }
            _ => format!("{}: {error}", path.display()),
        };
        // Before an unpacker says it in its own words.
        let file = File::open(path).map_err(fail)?;
        let Some(unpacker) = unpacker else {
            return parse(BufReader::new(file), format, requests_max)
                .map_err(|error| format!("{}: {error}", path.display()));
        };
        let mut child = Command::new(unpacker)
            .arg("-dc")
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{unpacker}: {error}"))?;
        let pipe = BufReader::new(child.stdout.take().expect("stdout was asked to be a pipe"));
        let trace = parse(pipe, format, requests_max);
        let whole = trace.as_ref().is_ok_and(|trace| trace.keys.len() < requests_max);
        finish(&mut child, unpacker, whole)?;
        trace.map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// So many names are help; more are a listing.
const NAMES_MAX: usize = 8;

/// Which traces there are where one was not found.
fn beside(path: &Path) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let Ok(files) = folder.read_dir() else {
        return format!("; there is no folder {}", folder.display());
    };
    let mut names: Vec<String> =
        files.filter_map(|file| file.ok()?.file_name().into_string().ok()).collect();
    names.retain(|name| {
        let plain = name.trim_end_matches(".xz").trim_end_matches(".gz");
        ENDINGS.iter().any(|ending| plain.ends_with(ending))
    });
    names.sort();
    match names.len() {
        0 => format!("; {} has no trace", folder.display()),
        NAMES_MAX.. => format!("; {} has {} others", folder.display(), names.len()),
        _ => format!("; {} has {}", folder.display(), names.join(", ")),
    }
}

/// An unpacker that we read to its end must have liked its input; one that we cut off need not.
fn finish(child: &mut Child, unpacker: &str, whole: bool) -> Result<(), String> {
    let status = child.wait().map_err(|error| format!("{unpacker}: {error}"))?;
    if whole && !status.success() {
        return Err(format!("{unpacker} ended with {status}"));
    }
    Ok(())
}

fn parse(input: impl BufRead, format: Format, requests_max: usize) -> Result<Trace, String> {
    match format {
        Format::U32Le => words(input, requests_max, u32::from_le_bytes),
        Format::I32Be => words(input, requests_max, u32::from_be_bytes),
        Format::Lines => lines(input, requests_max),
    }
}

fn words(
    mut input: impl Read,
    requests_max: usize,
    word: fn([u8; 4]) -> u32,
) -> Result<Trace, String> {
    let mut bytes = Vec::new();
    let limit = (requests_max as u64).saturating_mul(4);
    input.by_ref().take(limit).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    let words = bytes.chunks_exact(4);
    if !words.remainder().is_empty() {
        return Err(format!("{} bytes after the last whole word", words.remainder().len()));
    }
    let keys = words.map(|w| u64::from(word([w[0], w[1], w[2], w[3]]))).collect();
    Ok(Trace { keys, value_bytes: None, seconds: None })
}

fn lines(input: impl BufRead, requests_max: usize) -> Result<Trace, String> {
    let (mut keys, mut sizes, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
    for (index, line) in input.lines().enumerate() {
        if keys.len() == requests_max {
            break;
        }
        let line = line.map_err(|error| error.to_string())?;
        if line == "*" {
            continue;
        }
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let bad = || format!("line {}: neither a key nor `time key bytes`: {line:?}", index + 1);
        let (key, size) = match fields[..] {
            [key] => (key, None),
            [second, key, size] => {
                seconds.push(second.parse::<f64>().map_err(|_| bad())?);
                (key, Some(size.parse::<u32>().map_err(|_| bad())?))
            }
            _ => return Err(bad()),
        };
        keys.push(key.parse::<u64>().map_err(|_| bad())?);
        sizes.extend(size);
        if !sizes.is_empty() && sizes.len() != keys.len() {
            return Err(bad());
        }
    }
    let some = !sizes.is_empty();
    Ok(Trace { value_bytes: some.then_some(sizes), seconds: some.then_some(seconds), keys })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn keys(format: Format, bytes: &[u8], max: usize) -> Result<Vec<u64>, String> {
        parse(bytes, format, max).map(|trace| trace.keys)
    }

    #[test]
    fn words_are_read_in_their_byte_order_and_cut_words_refused() {
        assert_eq!(keys(Format::U32Le, b"\x01\0\0\0\0\0\0\x80", 9), Ok(vec![1, 1 << 31]));
        assert_eq!(keys(Format::I32Be, b"\0\0\0\x01\0\0\x01\0", 9), Ok(vec![1, 256]));
        assert_eq!(keys(Format::I32Be, b"\0\0\0\x01\0\0\x01\0", 1), Ok(vec![1]));
        assert!(keys(Format::U32Le, b"\x01\0\0\0\x02", 9).is_err());
    }

    #[test]
    fn lines_carry_a_key_or_time_key_and_bytes_but_never_both() {
        let trace = parse(&b"1 0 68\n2 7 7454\n"[..], Format::Lines, 9).unwrap();
        assert_eq!((trace.keys, trace.value_bytes), (vec![0, 7], Some(vec![68, 7454])));
        assert_eq!(keys(Format::Lines, b"5\n*\n6\n7\n", 2), Ok(vec![5, 6]));
        for broken in ["5\n1 2 3\n", "1 2 3\n5\n", "1 2\n", "x\n", "1 2 -3\n"] {
            assert!(keys(Format::Lines, broken.as_bytes(), 9).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn the_traces_have_the_counts_that_their_page_states() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
        let Ok(page) = std::fs::read_to_string(folder.join("README.md")) else {
            eprintln!("SKIPPED: {} is absent", folder.display());
            return;
        };
        let number = |field: &str| field.trim().replace(',', "").parse::<usize>().unwrap();
        let rows: Vec<Vec<&str>> = page
            .lines()
            .filter(|line| line.starts_with("| `"))
            .map(|line| line.split('|').collect())
            .collect();
        assert_eq!(rows.len(), 6);
        for row in rows {
            let name = row[1].trim().trim_matches('`');
            let trace = Trace::read(&folder.join("traces").join(name), usize::MAX).unwrap();
            let distinct: HashSet<u64> = trace.keys.iter().copied().collect();
            // The page counts the two marks in this trace as requests of one more key.
            let (marks, mark_keys) = if name == "two-pools.txt.gz" { (2, 1) } else { (0, 0) };
            assert_eq!(
                (trace.keys.len() + marks, distinct.len() + mark_keys),
                (number(row[3]), number(row[4])),
                "{name}"
            );
            assert_eq!(trace.value_bytes.is_some(), row[2].contains("bytes"), "{name}");
        }
    }

    #[test]
    fn a_trace_that_is_missing_is_told_with_those_that_are_there() {
        let folder = std::env::temp_dir().join(format!("mbal-traces-{}", std::process::id()));
        let told = |name: &str| Trace::read(&folder.join(name), 1).err().unwrap();
        let here = folder.display();
        assert_eq!(
            told("a.txt.gz"),
            format!("{here}/a.txt.gz: no such file; there is no folder {here}")
        );
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(told("a.txt.gz"), format!("{here}/a.txt.gz: no such file; {here} has no trace"));
        for name in ["b.txt.gz", "a.u32le.xz", "notes.md"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let end = format!("{here} has a.u32le.xz, b.txt.gz");
        assert_eq!(told("a.txt.gz"), format!("{here}/a.txt.gz: no such file; {end}"));
        assert_eq!(
            told("a.csv"),
            format!("{here}/a.csv: not .u32le, .i32be or .txt, plain, .xz or .gz")
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_packed_trace_can_be_cut_and_a_broken_pack_is_an_error() {
        let path = std::env::temp_dir().join(format!("mbal-trace-{}.txt.gz", std::process::id()));
        let pack = |bytes: &[u8]| {
            let mut gzip = Command::new("gzip")
                .arg("-c")
                .stdin(Stdio::piped())
                .stdout(File::create(&path).unwrap())
                .spawn()
                .unwrap();
            std::io::Write::write_all(&mut gzip.stdin.take().unwrap(), bytes).unwrap();
            assert!(gzip.wait().unwrap().success());
        };
        pack("123456\n".repeat(100_000).as_bytes());
        assert_eq!(Trace::read(&path, 10).unwrap().keys, vec![123_456; 10]);
        let packed = std::fs::read(&path).unwrap();
        std::fs::write(&path, &packed[..packed.len() / 2]).unwrap();
        assert!(Trace::read(&path, usize::MAX).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
