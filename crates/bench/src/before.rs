//! What can be known to be wrong before anything runs: a file that cannot be written after minutes of load, a core that
//! this machine does not have.

use std::fs::{self, OpenOptions};
use std::path::Path;

use crate::args::Args;
use crate::cpu::Cores;

/// Refuses what would fail later, and says what would be right.
pub fn check(args: &Args) -> Result<(), String> {
    for (flag, path) in [("--csv", &args.csv), ("--over-time", &args.over_time)] {
        path.as_ref().map_or(Ok(()), |path| writable(flag, path))?;
    }
    for (flag, cores) in
        [("--server-cores", &args.server_cores), ("--client-cores", &args.client_cores)]
    {
        cores.as_ref().map_or(Ok(()), |cores| usable(flag, cores))?;
    }
    Ok(())
}

/// Leaves no file where there was none.
fn writable(flag: &str, path: &Path) -> Result<(), String> {
    let is_new = fs::symlink_metadata(path).is_err();
    let opened = OpenOptions::new().create(true).append(true).open(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let missing = folder.filter(|folder| !folder.exists());
    match (opened, missing) {
        (Ok(_), _) if is_new => fs::remove_file(path),
        (Ok(_), _) => Ok(()),
        (Err(_), Some(folder)) => {
            let (path, folder) = (path.display(), folder.display());
            return Err(format!("{flag} {path}: there is no folder {folder}; mkdir -p {folder}"));
        }
        (Err(error), None) => Err(error),
    }
    .map_err(|error| format!("{flag} {}: {error}", path.display()))
}

fn usable(flag: &str, cores: &Cores) -> Result<(), String> {
    let unusable = cores.unusable();
    if unusable.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{flag} {cores}: no core {} here; this process may use {}",
        Cores(unusable),
        Cores::usable()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::against_servers::args;

    #[test]
    fn a_file_that_cannot_be_written_is_told_before_the_run() {
        let folder = std::env::temp_dir().join(format!("mbal-bench-before-{}", std::process::id()));
        let missing = folder.join("none/out.csv");
        let refused = |flag: &str, path: &Path| check(&args(&format!("{flag} {}", path.display())));
        fs::create_dir(&folder).unwrap();
        let none = folder.join("none");
        for flag in ["--csv", "--over-time"] {
            let (path, none) = (missing.display(), none.display());
            let expected = format!("{flag} {path}: there is no folder {none}; mkdir -p {none}");
            assert_eq!(refused(flag, &missing), Err(expected));
        }
        let expected = format!("--csv {}: Is a directory (os error 21)", folder.display());
        assert_eq!(refused("--csv", &folder), Err(expected));

        let (new, old) = (folder.join("new.csv"), folder.join("old.csv"));
        fs::write(&old, "a row").unwrap();
        assert_eq!((refused("--csv", &new), refused("--csv", &old)), (Ok(()), Ok(())));
        assert!(!new.exists(), "looking leaves nothing behind");
        assert_eq!(fs::read(&old).unwrap(), b"a row");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn cores_that_there_are_not_are_told_with_those_that_there_are() {
        let usable = Cores::usable();
        assert_eq!(check(&args(&format!("--client-cores {usable}"))), Ok(()));
        let one = usable.0[0];
        let expected = format!(
            "--client-cores {one},1000-1002: no core 1000-1002 here; this process may use {usable}"
        );
        assert_eq!(check(&args(&format!("--client-cores {one},1000-1002"))), Err(expected));
    }
}
