//! `-P`: the file with the process id, which appears complete and goes with its server.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::log;

pub(crate) struct PidFile(PathBuf);

impl PidFile {
    /// A server that may not write it serves all the same, as memcached does.
    pub(crate) fn write(path: &Path) -> Option<PidFile> {
        match written(path) {
            Ok(()) => Some(PidFile(path.to_owned())),
            Err(error) => {
                let path = path.display();
                let text = format!("Could not open the pid file {path} for writing: {error}");
                log::warn("pid_file_not_written", &text);
                None
            }
        }
    }
}

fn written(path: &Path) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let unfinished = PathBuf::from(unfinished);
    // What is left of a server that was killed; a link of somebody else's is not followed.
    drop(fs::remove_file(&unfinished));
    let mut file = File::create_new(&unfinished)?;
    let put = writeln!(file, "{}", std::process::id()).and_then(|()| fs::rename(&unfinished, path));
    if put.is_err() {
        drop(fs::remove_file(&unfinished));
    }
    put
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // It may be in a folder that only root, who is gone, may write.
        if let Err(error) = fs::remove_file(&self.0) {
            log::warn("pid_file_stays", &format!("mbal: {} stays: {error}", self.0.display()));
        }
    }
}
