//! What docs/ARCHITECTURE.md says of the source, held against the source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn architecture() -> String {
    fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap()
}

/// The part of the page under a heading, up to the next one.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let start = page.find(&format!("\n## {heading}\n")).expect("the page has this heading") + 1;
    let part = &page[start..];
    &part[..part[3..].find("\n## ").map_or(part.len(), |end| end + 3)]
}

/// What stands between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// All source files under `folder`, of this name or of any.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs")
            && path.components().any(|part| part.as_os_str() == "src")
        {
            into.push(path);
        }
    }
}

fn all_sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    files
}

fn defines(text: &str, name: &str) -> bool {
    ["fn ", "struct ", "enum ", "type "].iter().any(|kind| {
        text.match_indices(&format!("{kind}{name}")).any(|(at, found)| {
            let before = text[..at].chars().next_back();
            let after = text[at + found.len()..].chars().next();
            let in_word =
                |char: Option<char>| char.is_some_and(|c| c.is_alphanumeric() || c == '_');
            !in_word(before) && !in_word(after)
        })
    })
}

/// Sections that follow something through the code, and how many stops they have.
const WAYS: [(&str, usize); 6] = [
    ("Where to start reading", 6),
    ("A key of another server", 8),
    ("A hot key is read from a copy", 8),
    ("A multi-get through the proxy", 9),
    ("A cachelet moves to another server", 10),
    ("Servers retire", 10),
];

#[test]
fn every_stop_of_a_way_is_a_file_and_a_function_that_exist() {
    let page = architecture();
    let everything: Vec<String> =
        all_sources().iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    for (heading, count) in WAYS {
        let stops = stops(section(&page, heading));
        assert_eq!(stops.len(), count, "{heading}: {stops:?}");
        stops.iter().for_each(|stop| check_stop(stop, &everything));
    }
}

/// A stop begins with its number, and goes on in lines that begin with blanks.
fn stops(text: &str) -> Vec<String> {
    let mut stops: Vec<String> = Vec::new();
    // Drawings are between two of these.
    for part in text.split("```").step_by(2) {
        for line in part.lines() {
            if line.starts_with(|first: char| first.is_ascii_digit()) {
                stops.push(line.to_owned());
            } else if let (true, Some(stop)) = (line.starts_with("   "), stops.last_mut()) {
                *stop += line;
            }
        }
    }
    stops
}

/// A file, a function of it, and other names: of that file, of one beside it that is named, or, as `Type::name`, of any. A command or a
/// crate may be named, too.
fn check_stop(stop: &str, everything: &[String]) {
    let mut words = code(stop);
    let mut file = root().join("crates").join(words.next().unwrap());
    let mut source = fs::read_to_string(&file).unwrap_or_else(|_| panic!("{stop}: {file:?}"));
    let first = words.next().unwrap();
    assert!(defines(&source, first), "{stop}: {first} is not in {file:?}");
    for word in words {
        if word.ends_with(".rs") {
            file.set_file_name(word);
            source = fs::read_to_string(&file).unwrap_or_else(|_| panic!("{stop}: {file:?}"));
        } else if word.contains([' ', '/']) {
            let is_crate = root().join("crates").join(word).join("Cargo.toml").exists();
            assert!(is_crate || word.starts_with("mbal "), "{stop}: {word}");
        } else if word.contains("::") || word.starts_with(char::is_uppercase) {
            for name in word.split("::") {
                let known =
                    everything.iter().any(|text| defines(text, name) || has_variant(text, name));
                assert!(known, "{stop}: nothing is called {name}");
            }
        } else {
            assert!(defines(&source, word), "{stop}: {word} is not in {file:?}");
        }
    }
}

/// A variant of an enum, as code is formatted.
fn has_variant(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        let rest = line.strip_prefix("    ").and_then(|line| line.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with([',', '(', ' ']))
    })
}

#[test]
fn every_name_of_the_glossary_is_in_the_code() {
    let page = architecture();
    let everything: Vec<String> =
        all_sources().iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let rows = section(&page, "Words of our own").lines().filter(|line| line.starts_with("| "));
    let mut named = 0;
    let rows: Vec<&str> = rows.skip(1).collect();
    assert!(rows.len() <= 20, "for most ideas the field has a word: {}", rows.len());
    for row in rows {
        for name in row.split('|').skip(3).flat_map(code) {
            let (_, last) = name.rsplit_once("::").unwrap_or(("", name));
            let variant = |text: &str| text.contains(&format!("\n    {last} {{"));
            let known = everything.iter().any(|text| defines(text, last) || variant(text));
            assert!(known, "{name}: {row}");
            named += 1;
        }
    }
    assert!(named > 30, "the glossary has {named} names");
}

/// By folder under `crates`.
fn floors(page: &str) -> BTreeMap<String, u32> {
    let rows = section(page, "The floors").lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let mut cells = row.split('|').skip(1).map(str::trim);
        let (name, floor) = (cells.next().unwrap().trim_matches('`'), cells.next().unwrap());
        (name.to_owned(), floor.parse().expect("the second column is the floor"))
    })
    .collect()
}

/// The folder of each package of the workspace, and the folders that it depends on; true: its tests and examples alone do.
fn dependencies() -> Vec<(PathBuf, Vec<(PathBuf, bool)>)> {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let text = String::from_utf8(cargo.stdout).unwrap();
    let value = |rest: &str| PathBuf::from(rest.split('"').next().unwrap());
    // A package's dependencies stand before its manifest's path.
    let pieces: Vec<&str> = text.split(r#""manifest_path":""#).collect();
    let package = |pair: &[&str]| {
        // The kind of a dependency stands before its path.
        let paths: Vec<&str> = pair[0].split(r#""path":""#).collect();
        let is_dev = |before: &str| {
            before.rfind(r#""kind":"#).is_some_and(|at| before[at..].starts_with(r#""kind":"dev""#))
        };
        let used = paths.windows(2).map(|pair| (value(pair[1]), is_dev(pair[0]))).collect();
        (value(pair[1]).parent().unwrap().to_owned(), used)
    };
    pieces.windows(2).map(package).collect()
}

#[test]
fn every_crate_has_a_floor_and_uses_lower_ones_only() {
    let floors = floors(&architecture());
    for (folder, floor) in &floors {
        let fits = match folder.split('/').next().unwrap() {
            "pure" => (0..=4).contains(floor),
            "edge" => *floor == 4,
            "testkit" => *floor == 1,
            _ => *floor >= 5,
        };
        assert!(fits, "{folder} is on floor {floor}");
    }
    let crates = root().join("crates");
    let mut known = 0;
    for (folder, uses) in dependencies() {
        // What stands beside `crates` tests it, and may use all of it.
        let Ok(name) = folder.strip_prefix(&crates) else { continue };
        known += 1;
        let name = name.to_str().unwrap();
        let floor = floors.get(name).unwrap_or_else(|| panic!("{name} has no row in the table"));
        for (used, is_dev) in uses {
            let Ok(used) = used.strip_prefix(&crates) else {
                assert!(is_dev || name == "sim", "{name} is shipped, and uses {used:?}");
                continue;
            };
            let used = used.to_str().unwrap();
            assert!(floors[used] < *floor, "{name}, floor {floor}, uses {used}: {}", floors[used]);
        }
    }
    assert_eq!(known, floors.len(), "a row of the table is no crate");
}

#[test]
fn the_testkit_is_for_tests_alone() {
    for (folder, _) in dependencies() {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let product = manifest.split("[dev-dependencies]").next().unwrap();
        assert!(!product.contains("mbal-testkit."), "{} ships it", folder.display());
    }
}

#[test]
fn every_source_file_says_first_what_it_is_about() {
    let silent: Vec<PathBuf> = all_sources()
        .into_iter()
        .filter(|path| !fs::read_to_string(path).unwrap().starts_with("//!"))
        .collect();
    assert!(silent.is_empty(), "{silent:?}");
}

/// Rows are in the order of the list.
#[test]
fn the_table_of_locks_is_the_list_of_their_order() {
    let row = |rank: &mbal_locks::Rank| format!("| `{rank:?}` | {} |", rank.guards());
    let list: Vec<String> = mbal_locks::Rank::ALL.iter().map(row).collect();
    let page = architecture();
    let rows = section(&page, "Locks").lines().filter(|line| line.starts_with("| `"));
    assert_eq!(rows.collect::<Vec<_>>(), list);
}

/// A mutex without a rank is in nobody's order. Those that are listed here are of programs that measure, of one run of the simulator, and
/// of tasks, whose order no thread can check.
#[test]
fn all_that_threads_of_a_process_share_is_behind_a_lock_of_the_list() {
    let others = ["crates/pure/locks/", "crates/bench/", "crates/sim/"];
    let words = ["sync::Mutex", "sync::RwLock", "sync::Condvar"];
    for path in all_sources() {
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        if others.iter().any(|other| name.starts_with(other)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        // Tests may, and so may an asynchronous lock of tokio's.
        let text = text.split("#[cfg(test)]").next().unwrap().replace("tokio::sync::Mutex", "");
        for uses in text.split("use std::").skip(1).map(|rest| rest.split(';').next().unwrap()) {
            let locks = ["Mutex", "RwLock", "Condvar"];
            let found = uses.starts_with("sync") && locks.iter().any(|lock| uses.contains(lock));
            assert!(!found, "{name}: use std::{uses}");
        }
        for word in words {
            assert!(!text.contains(word), "{name}: {word}");
        }
    }
}

/// The crates of an invariant's sentence, and nobody else.
#[test]
fn unsafe_code_is_where_the_page_says() {
    let page = architecture();
    let line = page.lines().find(|line| line.starts_with("- **Invariant: `unsafe` is in "));
    let line = line.expect("the page says where");
    let named: BTreeSet<&str> = code(line).skip(1).collect();
    let mut found: BTreeSet<String> = BTreeSet::new();
    for path in all_sources() {
        let text = fs::read_to_string(&path).unwrap();
        let is_unsafe = |line: &str| {
            let line = line.trim_start();
            !line.starts_with("//")
                && ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern", "unsafe("]
                    .iter()
                    .any(|one| line.contains(one))
        };
        if text.lines().any(is_unsafe) {
            let parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
            let src = parts.iter().rposition(|part| *part == "src").expect("sources have one");
            found.insert(parts[src - 1].to_owned());
        }
    }
    assert_eq!(found.iter().map(String::as_str).collect::<BTreeSet<_>>(), named);
    // Elsewhere the compiler sees to it.
    for (folder, _) in dependencies() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let root = ["src/lib.rs", "src/main.rs"].map(|file| folder.join(file));
        let root = root.iter().find(|file| file.exists()).expect("a crate has a root");
        let forbids = fs::read_to_string(root).unwrap().contains("#![forbid(unsafe_code)]");
        assert_eq!(forbids, !named.contains(name), "{name}");
    }
}

/// As docs/design/papers.md has it.
#[test]
fn a_paper_has_one_venue() {
    let page = fs::read_to_string(root().join("docs/design/papers.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| name"));
    let papers: Vec<(String, String)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (cells[1].to_owned(), cells[4].to_owned())
        })
        .collect();
    assert_eq!(papers.len(), 4, "{papers:?}");
    let mut files = Vec::new();
    every_text(&root().join("crates"), &mut files);
    every_text(&root().join("docs"), &mut files);
    let mut cited = 0;
    for path in files {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (name, venue) in &papers {
            for (at, found) in text.match_indices(name.as_str()) {
                // `NetKV, ICAC 2016` and `NetKV (ICAC 2016`.
                let rest = &text[at + found.len()..];
                let Some(rest) = rest.strip_prefix(", ").or_else(|| rest.strip_prefix(" (")) else {
                    continue;
                };
                let mut words = rest.split(|char: char| !char.is_ascii_alphanumeric());
                let (Some(word), Some(year)) = (words.next(), words.next()) else { continue };
                if year.len() == 4 && year.starts_with("20") && year.parse::<u32>().is_ok() {
                    assert_eq!(&format!("{word} {year}"), venue, "{name} in {}", path.display());
                    cited += 1;
                }
            }
        }
    }
    assert!(cited > 20, "{cited}");
}

/// Code, scripts and pages.
fn every_text(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if path.is_dir() {
            every_text(&path, into);
        } else if matches!(ending, None | Some("rs" | "md" | "sh" | "toml")) {
            into.push(path);
        }
    }
}
