//! Files of secrets and tokens: read only where others cannot read them too, and left where a user's own tools find them.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::control_path::{Folder, folders, is_trusted};
use crate::listening::make;

/// A longer file is another one.
const BYTES_MAX: u64 = 64 << 10;
const OTHERS: u32 = 0o006;
/// What a coordinator takes for a token at least, in bytes.
pub const TOKEN_BYTES_MIN: usize = 16;

/// What stands in a file, without the blanks around it. Refused if others than its user and its group can read or write it. The error
/// names `flag` and file.
pub fn secret_of(flag: &str, path: &Path) -> Result<Vec<u8>, String> {
    let refused = |why: &dyn std::fmt::Display| format!("{flag} {}: {why}", path.display());
    let file = File::open(path).map_err(|error| refused(&error))?;
    let found = file.metadata().map_err(|error| refused(&error))?;
    if found.is_file() && found.mode() & OTHERS != 0 {
        let mode = found.mode() & 0o777;
        return Err(refused(&format_args!(
            "others can read or write it (mode {mode:03o}): chmod o= it"
        )));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| refused(&error))?;
    match bytes.len() as u64 > BYTES_MAX {
        true => Err(refused(&"it is too long")),
        false => Ok(bytes.trim_ascii().to_vec()),
    }
}

/// The token of a file; see [`secret_of`].
pub fn token_of(flag: &str, path: &Path) -> Result<String, String> {
    let token = String::from_utf8(secret_of(flag, path)?);
    // As it stands in a header.
    let is_header = |token: &String| {
        !token.is_empty() && token.bytes().all(|byte| (b' '..=b'~').contains(&byte))
    };
    let token = token.ok().filter(is_header);
    token.ok_or_else(|| format!("{flag} {}: a token is one line of ASCII", path.display()))
}

/// Whether others can read what `path` names, of which memcached says nothing.
pub fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & OTHERS != 0)
}

/// As many hexadecimal digits as nobody guesses.
pub fn random_word() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The token of a coordinator at a loopback address, for this user's own tools and servers: they look for it there. Gone with this.
pub struct TokenFile(PathBuf);

impl TokenFile {
    /// In the first folder that will do, as a control socket.
    pub fn leave(coordinator: SocketAddr, token: &str) -> io::Result<TokenFile> {
        let mut why = io::Error::other("there is no folder for it");
        for folder in folders() {
            match make(&folder).and_then(|()| put(&folder.path.join(name(coordinator)), token)) {
                Ok(file) => return Ok(file),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // One that stays is of no use to anybody: the token is another one next time.
        drop(fs::remove_file(&self.0));
    }
}

fn put(path: &Path, token: &str) -> io::Result<TokenFile> {
    // Of one that was killed.
    drop(fs::remove_file(path));
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let left = TokenFile(path.to_owned());
    writeln!(file, "{token}")?;
    Ok(left)
}

fn name(coordinator: SocketAddr) -> String {
    format!("{coordinator}.token")
}

/// The token that a coordinator of this user has left, if it is on loopback. `urls` as `--coordinator` has them: a token goes to all of
/// them.
pub fn token_left(urls: &str) -> Option<String> {
    let at: Option<Vec<SocketAddr>> = urls.split(',').map(loopback).collect();
    at?.into_iter().find_map(|at| token_in(&folders(), at))
}

fn token_in(folders: &[Folder], coordinator: SocketAddr) -> Option<String> {
    let trusted = folders.iter().filter(|folder| is_trusted(folder));
    let mut paths = trusted.map(|folder| folder.path.join(name(coordinator)));
    paths.find_map(|path| token_of("", &path).ok())
}

/// Where on loopback a URL points to.
fn loopback(url: &str) -> Option<SocketAddr> {
    let authority = url.strip_prefix("http://")?.split('/').next()?;
    let (host, port) = authority.rsplit_once(':')?;
    let host = if host.eq_ignore_ascii_case("localhost") { "127.0.0.1" } else { host };
    let ip: Ipv4Addr = host.parse().ok()?;
    ip.is_loopback().then_some((IpAddr::V4(ip), port.parse().ok()?).into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("mbal-secrets-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn what_others_can_read_or_write_is_no_secret() {
        let path = folder("modes").join("secret");
        fs::write(&path, " a secret of this test\n").unwrap();
        for mode in [0o600, 0o400, 0o640, 0o440, 0o660, 0o644, 0o604, 0o602, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = secret_of("--cluster-secret", &path);
            if mode & 0o006 == 0 {
                assert_eq!(read.as_deref(), Ok(&b"a secret of this test"[..]), "{mode:o}");
            } else {
                let why = format!(
                    "--cluster-secret {}: others can read or write it (mode {mode:03o}): chmod o= it",
                    path.display()
                );
                assert_eq!(read, Err(why));
            }
        }
        // What is no file of a disk is as private as whoever made it wanted.
        assert_eq!(secret_of("", Path::new("/dev/null")), Ok(Vec::new()));
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_token_is_one_line() {
        let path = folder("words").join("token");
        for (text, is_one) in [
            ("abc\n", true),
            ("a b", true),
            ("a\nb", false),
            ("", false),
            ("\n", false),
            ("\u{e9}", false),
        ] {
            drop(fs::remove_file(&path));
            drop(put(&path, text).map(std::mem::forget));
            assert_eq!(token_of("--token-file", &path).is_ok(), is_one, "{text:?}");
        }
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_token_is_found_where_it_was_left_and_goes_with_its_owner() {
        let path = folder("left");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let folders = [Folder { path: path.clone(), of_host: false }];
        let at: SocketAddr = "127.0.0.1:5".parse().unwrap();
        let file = put(&path.join(name(at)), "0123456789abcdef").unwrap();
        assert_eq!(fs::metadata(file.path()).unwrap().mode() & 0o777, 0o600);
        assert_eq!(token_in(&folders, at).as_deref(), Some("0123456789abcdef"));
        assert_eq!(token_in(&folders, "127.0.0.1:6".parse().unwrap()), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(token_in(&folders, at), None, "anybody may have put it there");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        drop(file);
        assert_eq!(token_in(&folders, at), None);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_token_that_was_left_goes_to_loopback_alone() {
        let some = |text: &str| Some(text.parse().unwrap());
        assert_eq!(loopback("http://127.0.0.1:11210"), some("127.0.0.1:11210"));
        assert_eq!(loopback("http://localhost:11210/"), some("127.0.0.1:11210"));
        for url in [
            "http://10.0.0.1:1",
            "http://evil.example:1",
            "http://127.0.0.1",
            "https://127.0.0.1:1",
        ] {
            assert_eq!(loopback(url), None, "{url}");
        }
    }
}
