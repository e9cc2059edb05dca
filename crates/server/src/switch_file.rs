//! A proxy's upstreams' file, and the one beside it while `mbal pool resize` switches the pool (docs/design/switching.md).
//!
//! ```text
//!   FILE           the list before      ──────────────────────────────► the new list
//!   FILE.switch    none ──► the new list, before the proxy holds ────► none, when FILE has it; or when all is as it was
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use mbal_proxy::RingServer;

const HEAD: &str = "# Written by mbal pool resize --through.\n";

/// The file of upstreams that is read at SIGHUP.
#[derive(Clone, Debug)]
pub struct UpstreamsFile(PathBuf);

impl UpstreamsFile {
    pub fn new(path: PathBuf) -> UpstreamsFile {
        UpstreamsFile(path)
    }

    /// The file that is there while a switch is under way.
    pub fn record(&self) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        name.push(".switch");
        name.into()
    }

    /// Whether files can be written beside it.
    pub(crate) fn is_writable(&self) -> Result<(), String> {
        let at = self.beside();
        File::create(&at).and_then(|_| fs::remove_file(&at)).map_err(|why| refused(&at, &why))
    }

    pub(crate) fn set_record(&self, list: &[RingServer]) -> Result<(), String> {
        self.write(&self.record(), list)
    }

    /// The list, and no switch any more.
    pub(crate) fn save(&self, list: &[RingServer]) -> Result<(), String> {
        self.write(&self.0, list)?;
        self.forget()
    }

    pub(crate) fn forget(&self) -> Result<(), String> {
        let record = self.record();
        match fs::remove_file(&record) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => Err(refused(&record, &why)),
            _ => Ok(()),
        }
    }

    fn beside(&self) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        name.push(".new");
        name.into()
    }

    /// All of it, or what was there before.
    fn write(&self, path: &Path, list: &[RingServer]) -> Result<(), String> {
        let at = self.beside();
        let lines: String = list.iter().map(|server| server.entry() + "\n").collect();
        let write = || {
            let mut file = File::create(&at)?;
            file.write_all((HEAD.to_owned() + &lines).as_bytes())?;
            if let Ok(before) = fs::metadata(&self.0) {
                file.set_permissions(before.permissions())?;
            }
            file.sync_all()?;
            fs::rename(&at, path)?;
            // The name, too.
            match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                Some(folder) => File::open(folder)?.sync_all(),
                None => Ok(()),
            }
        };
        write().map_err(|why: io::Error| refused(path, &why))
    }
}

fn refused(path: &Path, why: &io::Error) -> String {
    format!("{}: {why}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_written_whole_and_the_record_goes() {
        let folder = std::env::temp_dir().join(format!("mbal-switch-file-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("pool");
        fs::write(&path, "a:1\n").expect("a file");
        let file = UpstreamsFile::new(path.clone());
        let list = ["a:1", "b:2:3 two"].map(|one| one.parse().expect("a server"));
        assert_eq!((file.is_writable(), file.set_record(&list)), (Ok(()), Ok(())));
        let text = format!("{HEAD}a:1\nb:2:3 two\n");
        let read = |path: &Path| fs::read_to_string(path).ok();
        assert_eq!(read(&file.record()).as_ref(), Some(&text));
        assert_eq!(read(&path).as_deref(), Some("a:1\n"));
        assert_eq!(file.save(&list), Ok(()));
        assert_eq!((read(&path), read(&file.record())), (Some(text), None));
        assert_eq!(file.forget(), Ok(()), "it may be gone");
        fs::remove_dir_all(&folder).expect("it is there");
        assert!(file.is_writable().is_err() && file.set_record(&list).is_err());
    }
}
