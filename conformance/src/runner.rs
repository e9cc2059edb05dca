//! Runs all scripts of some folders against one kind of peer, several at a time.

use crate::peer::SocketPeer;
use crate::play::{Cut, play};
use crate::pure::PurePeer;
use crate::script::Script;
use crate::server::Launch;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Whom the scripts are played against, each against a fresh one.
pub enum Against {
    Server(Launch),
    /// So many pure workers in this process.
    Pure(usize),
}

pub struct Outcome {
    pub passed: usize,
    pub skipped: usize,
    /// Scripts on the list of what is still to come that failed, as they may.
    pub excepted: Vec<String>,
    /// One message per script.
    pub failed: Vec<String>,
}

/// Reads every `.txt` file under `folders`, in order of their names.
pub fn load(folders: &[PathBuf]) -> Result<Vec<Script>, String> {
    let mut scripts = Vec::new();
    for folder in folders {
        for path in script_files(folder)? {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            scripts.push(Script::parse(&path.display().to_string(), &text)?);
        }
    }
    Ok(scripts)
}

fn script_files(path: &Path) -> Result<Vec<PathBuf>, String> {
    if path.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries =
        std::fs::read_dir(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    Ok(files)
}

/// Plays `scripts`; `jobs` at a time, since most of a script's time is waiting.
/// A script on the list `except` has to fail: one that passes is to be taken off it. Those on the list `without` are not played.
#[allow(clippy::too_many_arguments, reason = "each is a word of the command line")]
pub fn run(
    scripts: &[Script],
    against: &Against,
    cut: Cut,
    except: &[String],
    without: &[String],
    jobs: usize,
) -> Outcome {
    let next = AtomicUsize::new(0);
    let outcome =
        Mutex::new(Outcome { passed: 0, skipped: 0, excepted: Vec::new(), failed: Vec::new() });
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(script) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let is_on = |list: &[String]| {
                        list.iter().any(|name| script.name.ends_with(name.as_str()))
                    };
                    let skip = script.whole && cut == Cut::Bytes || is_on(without);
                    let is_excepted = is_on(except);
                    let result = if skip { Ok(()) } else { run_one(script, against, cut) };
                    let mut outcome = outcome.lock().expect("no thread panics with this lock");
                    match result {
                        Ok(()) if skip => outcome.skipped += 1,
                        Err(error) if is_excepted => outcome.excepted.push(error),
                        Ok(()) if is_excepted => {
                            let name = &script.name;
                            outcome.failed.push(format!("{name}: passes, take it off the list"));
                        }
                        Ok(()) => outcome.passed += 1,
                        Err(error) => outcome.failed.push(error),
                    }
                }
            });
        }
    });
    let mut outcome = outcome.into_inner().expect("no thread panics with this lock");
    outcome.failed.sort();
    outcome
}

fn run_one(script: &Script, against: &Against, cut: Cut) -> Result<(), String> {
    let folder = Path::new(&script.name).parent().unwrap_or(Path::new("."));
    let here = |flag: &String| flag.replace("{here}", &folder.to_string_lossy());
    let flags: Vec<String> = script.flags.iter().map(here).collect();
    match against {
        Against::Server(launch) => {
            let server =
                launch.start(&flags).map_err(|error| format!("{}: {error}", script.name))?;
            let mut peer = SocketPeer::new(server.address.clone());
            play(script, &mut peer, cut)
        }
        Against::Pure(workers) => {
            let mut peer = PurePeer::new(&flags, *workers)
                .map_err(|error| format!("{}: {error}", script.name))?;
            play(script, &mut peer, cut)
        }
    }
}
