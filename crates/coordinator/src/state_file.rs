//! The coordinator's memory as one file, written whole before anybody hears of a change.
//!
//! ```text
//!   shop.json.new ── written, fsynced ──► shop.json ── what it was before ──► shop.json.before
//!   shop.json.lock   held by the coordinator that uses it
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use mbal_control::State;
use mbal_reactor::process::try_lock;

/// More is no coordinator's state: 32,768 cachelets, 65,534 servers and a move of each are under it.
const BYTES_MAX: u64 = 64 << 20;

pub struct StateFile {
    path: PathBuf,
    /// In which it lies.
    folder: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

/// Why a state is not on the disk.
#[derive(Debug)]
pub struct NotWritten {
    pub error: io::Error,
    /// The file is as it was. Else it is the new one now, and the disk may know of either.
    pub is_certain: bool,
}

impl StateFile {
    /// Takes the file, and reads it if there is one. The error says what to do.
    pub fn open(path: &Path) -> Result<(StateFile, Option<State>), String> {
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let folder = folder_of(path);
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = File::create(beside(path, "lock")).map_err(failed)?;
        if !try_lock(&lock).map_err(failed)? {
            return Err(format!("{}: another coordinator uses it", path.display()));
        }
        let state = match read(path) {
            Ok(text) => {
                Some(State::from_json(&text).map_err(|why| unreadable(path, &why.to_string()))?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(unreadable(path, &error.to_string()));
            }
            Err(error) => return Err(failed(error)),
        };
        Ok((StateFile { path: path.into(), folder: folder.into(), _lock: lock }, state))
    }

    /// On the disk when this returns.
    pub fn save(&self, state: &State) -> Result<(), NotWritten> {
        self.replace(state).map_err(|error| NotWritten { error, is_certain: true })?;
        let folder = File::open(&self.folder).and_then(|folder| folder.sync_all());
        folder.map_err(|error| NotWritten { error, is_certain: false })
    }

    /// For tests: the folder that is synced, which was another one. One that there is not cannot be.
    #[cfg(test)]
    pub fn syncs_in(&mut self, folder: PathBuf) -> PathBuf {
        std::mem::replace(&mut self.folder, folder)
    }

    /// If it fails the file is as it was.
    fn replace(&self, state: &State) -> io::Result<()> {
        let new = beside(&self.path, "new");
        let mut file = File::create(&new)?;
        file.write_all(state.to_json().as_bytes())?;
        file.sync_all()?;
        let before = beside(&self.path, "before");
        match fs::remove_file(&before) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match fs::hard_link(&self.path, &before) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(&new, &self.path)
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?;
    if file.metadata()?.len() > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than any state"));
    }
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// A copy is kept, since whoever begins anew overwrites the file.
fn unreadable(path: &Path, why: &str) -> String {
    let copy = beside(path, "unreadable");
    let kept = match fs::copy(path, &copy) {
        Ok(_) => format!("a copy is {}", copy.display()),
        Err(error) => format!("no copy could be made: {error}"),
    };
    let before = beside(path, "before");
    let advice = match before.exists() {
        true => format!("{} is what it was before the last change", before.display()),
        false => "remove it to begin with a new cluster".to_owned(),
    };
    format!("{}: {why}; {kept}; {advice}", path.display())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(test: &str) -> PathBuf {
        let name = format!("mbal-state-file-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("the system's folder can be written");
        folder
    }

    fn state(moves_ever: u32) -> State {
        State { cluster: "shop".into(), moves_ever, ..State::default() }
    }

    #[test]
    fn on_a_full_disk_the_file_is_as_it_was() {
        let folder = folder("full");
        let path = folder.join("shop.json");
        let (file, _) = StateFile::open(&path).expect("it can be made");
        file.save(&state(1)).expect("there is room");
        // A device on which there is never room.
        std::os::unix::fs::symlink("/dev/full", folder.join("shop.json.new")).expect("it is free");
        let not = file.save(&state(2)).expect_err("there is no room");
        assert!(not.is_certain && not.error.kind() == io::ErrorKind::StorageFull, "{not:?}");
        drop(file);
        fs::remove_file(folder.join("shop.json.new")).expect("it is there");
        assert_eq!(StateFile::open(&path).expect("it can be read").1, Some(state(1)));
        fs::remove_dir_all(folder).expect("it is the test's");
    }

    #[test]
    fn a_file_of_which_the_disk_may_not_know_is_in_doubt() {
        let folder = folder("doubt");
        let path = folder.join("shop.json");
        let (mut file, _) = StateFile::open(&path).expect("it can be made");
        file.syncs_in(folder.join("gone"));
        let not = file.save(&state(1)).expect_err("its folder cannot be synced");
        assert!(!not.is_certain, "{not:?}");
        assert!(path.exists(), "it is there, though a crash may undo that");
        fs::remove_dir_all(folder).expect("it is the test's");
    }
}
