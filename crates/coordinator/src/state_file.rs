//! The coordinator's memory as one file, written whole before anybody hears of a change.
//!
//! ```text
//!   shop.json.new ── written, fsynced ──► shop.json ── what it was before ──► shop.json.before
//!   shop.json, shop.json.lock   both held by the coordinator that uses them
//! ```

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mbal_control::State;
use mbal_reactor::process::{lock_file, try_lock};

/// More is no coordinator's state: 32,768 cachelets, 65,534 servers and a move of each are under it.
const BYTES_MAX: u64 = 64 << 20;

pub struct StateFile {
    path: PathBuf,
    /// In which it lies.
    folder: PathBuf,
    /// Locked as long as it is open, if it is still the one that others find.
    lock: File,
    /// The state itself, locked too: somebody may remove the other lock.
    held: RefCell<Option<File>>,
    /// For tests: written in the place of the new file.
    #[cfg(test)]
    disk: Option<PathBuf>,
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
        if !folder.is_dir() {
            return Err(format!("{}: there is no folder {}", path.display(), folder.display()));
        }
        let lock_at = beside(path, "lock");
        let lock =
            lock_file(&lock_at).map_err(|error| format!("{}: {error}", lock_at.display()))?;
        let used = || format!("{}: another coordinator uses it", path.display());
        if !try_lock(&lock).map_err(failed)? {
            return Err(used());
        }
        let mut held = None;
        let state = match read(path) {
            Ok((text, file)) => {
                if !try_lock(&file).map_err(failed)? {
                    return Err(used());
                }
                held = Some(file);
                Some(State::from_json(&text).map_err(|why| unreadable(path, &why.to_string()))?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(unreadable(path, &error.to_string()));
            }
            Err(error) => return Err(failed(error)),
        };
        let file = StateFile {
            path: path.into(),
            folder: folder.into(),
            lock,
            held: RefCell::new(held),
            #[cfg(test)]
            disk: None,
        };
        Ok((file, state))
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
        self.look_at_lock()?;
        let text = state.to_json();
        if text.len() as u64 > BYTES_MAX {
            let why = format!("it has {} bytes, and {BYTES_MAX} at most", text.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let new = beside(&self.path, "new");
        let mut file = self.begin(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        if !try_lock(&file)? {
            return Err(io::Error::other("another coordinator uses it"));
        }
        let before = beside(&self.path, "before");
        match fs::remove_file(&before) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match fs::hard_link(&self.path, &before) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(&new, &self.path)?;
        // What was held until now is no longer the state.
        self.held.replace(Some(file));
        Ok(())
    }

    fn begin(&self, new: &Path) -> io::Result<File> {
        #[cfg(test)]
        if let Some(disk) = &self.disk {
            return File::options().write(true).open(disk);
        }
        anew(new)
    }

    /// Whoever has removed the lock may have started another coordinator.
    fn look_at_lock(&self) -> io::Result<()> {
        let at = beside(&self.path, "lock");
        let (found, own) = (fs::symlink_metadata(&at), self.lock.metadata()?);
        match found {
            Ok(found) if (found.dev(), found.ino()) == (own.dev(), own.ino()) => Ok(()),
            _ => {
                let why = format!(
                    "{} was removed or replaced: another coordinator may use the state; start this one anew",
                    at.display()
                );
                Err(io::Error::other(why))
            }
        }
    }
}

/// An empty file in the place of what may be there, be it a link.
fn anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).open(path)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn read(path: &Path) -> io::Result<(String, File)> {
    let mut text = String::new();
    let file = File::open(path)?;
    if file.metadata()?.len() > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than any state"));
    }
    (&file).take(BYTES_MAX).read_to_string(&mut text)?;
    Ok((text, file))
}

/// A copy is kept, since whoever begins anew overwrites the file.
fn unreadable(path: &Path, why: &str) -> String {
    let copy = beside(path, "unreadable");
    let copied = File::open(path).and_then(|mut from| io::copy(&mut from, &mut anew(&copy)?));
    let kept = match copied {
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
        let (mut file, _) = StateFile::open(&path).expect("it can be made");
        file.save(&state(1)).expect("there is room");
        // A device on which there is never room.
        file.disk = Some("/dev/full".into());
        let not = file.save(&state(2)).expect_err("there is no room");
        assert!(not.is_certain && not.error.kind() == io::ErrorKind::StorageFull, "{not:?}");
        drop(file);
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

    #[test]
    fn links_beside_the_state_lead_to_nobody_elses_file() {
        let folder = folder("links");
        let (path, victim) = (folder.join("shop.json"), folder.join("victim"));
        fs::write(&victim, "precious").expect("it can be written");
        let link = |suffix| {
            std::os::unix::fs::symlink(&victim, beside(&path, suffix)).expect("it is free")
        };
        link("lock");
        let why = StateFile::open(&path).map(drop).expect_err("it is a link");
        assert!(why.contains("shop.json.lock"), "{why}");
        fs::remove_file(beside(&path, "lock")).expect("it is there");
        let (file, _) = StateFile::open(&path).expect("it can be made");
        link("new");
        link("before");
        file.save(&state(1)).expect("it is replaced");
        drop(file);
        fs::write(&path, "broken").expect("it can be written");
        link("unreadable");
        let why = StateFile::open(&path).map(drop).expect_err("it is broken");
        assert!(why.contains("a copy is"), "{why}");
        assert_eq!(fs::read_to_string(&victim).expect("it is there"), "precious");
        fs::remove_dir_all(folder).expect("it is the test's");
    }

    #[test]
    fn without_its_lock_a_state_has_one_coordinator_all_the_same() {
        let folder = folder("locks");
        let path = folder.join("shop.json");
        let (first, _) = StateFile::open(&path).expect("it can be made");
        first.save(&state(1)).expect("it is its own");
        fs::remove_file(beside(&path, "lock")).expect("it is there");
        let why = StateFile::open(&path).map(drop).expect_err("the state itself is locked");
        assert!(why.contains("another coordinator uses it"), "{why}");
        // The attempt has left a lock, which is not the first one's.
        let not = first.save(&state(2)).expect_err("it may not be alone any more");
        assert!(
            not.is_certain && not.error.to_string().contains("was removed or replaced"),
            "{not:?}"
        );
        drop(first);
        assert_eq!(StateFile::open(&path).expect("it is free").1, Some(state(1)));
        fs::remove_dir_all(folder).expect("it is the test's");
    }

    #[test]
    fn a_folder_that_is_not_there_is_not_made() {
        let folder = folder("folders").join("no").join("such");
        let why = StateFile::open(&folder.join("shop.json")).map(drop).expect_err("there is none");
        assert!(why.contains("there is no folder") && !folder.exists(), "{why}");
        fs::remove_dir_all(self::folder("folders")).expect("it is the test's");
    }
}
