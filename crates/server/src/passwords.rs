//! Files of names and passwords, and who is let in by them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mbal_locks::{Mutex, ranks};
use mbal_worker::{Authenticator, Passwords};

use crate::secrets::is_open_to_others;
use crate::{Login, StartError, log};

/// What `-S` or `-Y` names.
pub(crate) struct Door {
    /// The passwords of `-Y`; `None` where they are read at every login.
    kept: Option<(PathBuf, Arc<Mutex<ranks::Passwords, Passwords>>)>,
    pub(crate) authenticator: Arc<Authenticator>,
}

impl Door {
    /// `None`: everybody may come in.
    pub(crate) fn open(login: &Login) -> Result<Option<Door>, StartError> {
        match login {
            Login::NotAsked => Ok(None),
            Login::Sasl(file) => {
                // A daemon changes its folder.
                let file = absolute(file)?;
                warn_if_open(&file);
                let authenticator: Arc<Authenticator> = Arc::new(move |user, password| {
                    let passwords =
                        fs::read(&file).ok().and_then(|text| Passwords::parse(&text, true).ok());
                    passwords.is_some_and(|passwords| passwords.admits(user, password))
                });
                Ok(Some(Door { kept: None, authenticator }))
            }
            Login::Text(file) => {
                let file = absolute(file)?;
                warn_if_open(&file);
                let passwords = load(&file)
                    .map_err(|error| StartError::Passwords { path: file.clone(), error })?;
                let passwords = Arc::new(Mutex::new(passwords));
                let kept = Some((file, Arc::clone(&passwords)));
                let authenticator: Arc<Authenticator> = Arc::new(move |user, password| {
                    let passwords = passwords.lock();
                    passwords.admits(user, password)
                });
                Ok(Some(Door { kept, authenticator }))
            }
        }
    }

    /// Reads the file of `-Y` again. One that cannot be used changes nothing.
    pub(crate) fn reload(&self) {
        let Some((file, kept)) = &self.kept else { return };
        match load(file) {
            Ok(passwords) => *kept.lock() = passwords,
            Err(error) => log::warn(
                "passwords_not_read",
                &format!("mbal: the passwords stay as they are: {}: {error}", file.display()),
            ),
        }
    }
}

/// memcached takes them as they are, and so do we.
pub(crate) fn warn_if_open(file: &Path) {
    if is_open_to_others(file) {
        let text = format!("mbal: {}: others can read it; chmod o= it", file.display());
        log::warn("readable_by_others", &text);
    }
}

fn absolute(file: &Path) -> Result<PathBuf, StartError> {
    std::path::absolute(file).map_err(|error| StartError::Passwords { path: file.into(), error })
}

fn load(file: &Path) -> io::Result<Passwords> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let text = fs::read(file)?;
    if text.trim_ascii().is_empty() {
        return Err(invalid("it is empty, so nobody could log in".into()));
    }
    Passwords::parse(&text, false)
        .map_err(|line| invalid(format!("line {line} is not user:password")))
}
