//! Where a server's control socket is: named by what the server serves, in a folder that nobody else may write.
//!
//! A server and its operators work out the same places. A server takes the first folder that it may write. An
//! operator looks into all of them.
//!
//! ```text
//!   127.0.0.1:11211     /run/mbal/127.0.0.1:11211.control
//!   /var/cache.sock     /run/mbal/cache.sock-6f512c9dd1bb9e0f.control
//! ```

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use mbal_model::{KEY_BYTES_MAX, Key};
use mbal_reactor::process;

/// What a server serves: one of its addresses, or its unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    Address(SocketAddr),
    /// A port of this host's loopback addresses.
    Port(u16),
    Unix(PathBuf),
}

impl fmt::Display for Served {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Served::Address(address) => write!(out, "{address}"),
            Served::Port(port) => write!(out, "port {port}"),
            Served::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

/// Folders of control sockets, in the order in which a server tries them and an operator looks into them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Where nobody but root makes folders, it is trusted whomever it belongs to.
    pub(crate) of_host: bool,
}

/// `/run/mbal` of the host, and in it what root has made for a user; what the user's session has; what the user makes without one.
pub(crate) fn folders() -> Vec<Folder> {
    let user = process::user_id();
    let mut all = folders_of(env::var_os("XDG_RUNTIME_DIR"), user);
    let host = of_host().path;
    // Root looks after the servers of all users.
    let users: Vec<u32> = if user == 0 { users_in(&host) } else { vec![user] };
    let theirs = users.into_iter().map(|user| of_user(&host, user));
    all.splice(1..1, theirs.filter(|folder| folder.path.is_dir()));
    all
}

pub(crate) fn of_host() -> Folder {
    Folder { path: "/run/mbal".into(), of_host: true }
}

const OF_USER: &str = "user-";

/// Where a server that began as root and became this user has its sockets.
pub(crate) fn of_user(host: &Path, user: u32) -> Folder {
    Folder { path: host.join(format!("{OF_USER}{user}")), of_host: true }
}

fn users_in(host: &Path) -> Vec<u32> {
    let found = fs::read_dir(host).into_iter().flatten().flatten();
    let names = found.filter_map(|entry| entry.file_name().into_string().ok());
    let mut users: Vec<u32> =
        names.filter_map(|name| name.strip_prefix(OF_USER)?.parse().ok()).collect();
    users.sort_unstable();
    users
}

fn folders_of(session: Option<OsString>, user: u32) -> Vec<Folder> {
    let session = session.map(PathBuf::from).filter(|path| path.is_absolute());
    let own = [session.map(|path| path.join("mbal")), Some(format!("/tmp/mbal-{user}").into())];
    let own = own.into_iter().flatten().map(|path| Folder { path, of_host: false });
    std::iter::once(of_host()).chain(own).collect()
}

/// Where the control socket of the server of `served` may be, the likeliest place first.
pub fn control_paths(served: &Served) -> Vec<PathBuf> {
    paths_in(&folders(), served)
}

fn paths_in(folders: &[Folder], served: &Served) -> Vec<PathBuf> {
    let in_folders = |name: String| folders.iter().map(move |Folder { path, .. }| path.join(&name));
    names(served).into_iter().flat_map(in_folders).collect()
}

/// The names of what is served. Whoever listens on all addresses of a family listens on each of them.
fn names(served: &Served) -> Vec<String> {
    let of = |address: SocketAddr| name(&Served::Address(address));
    match served {
        Served::Address(address) => {
            let any: IpAddr = match address {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let mut names = vec![name(served)];
            if address.ip() != any {
                names.push(of((any, address.port()).into()));
            }
            names
        }
        Served::Port(port) => [
            of((Ipv4Addr::LOCALHOST, *port).into()),
            of((Ipv6Addr::LOCALHOST, *port).into()),
            of((Ipv4Addr::UNSPECIFIED, *port).into()),
            of((Ipv6Addr::UNSPECIFIED, *port).into()),
        ]
        .into(),
        Served::Unix(_) => vec![name(served)],
    }
}

/// The name that a server gives its control socket.
pub(crate) fn name(served: &Served) -> String {
    match served {
        Served::Address(address) => format!("{address}.control"),
        Served::Port(port) => name(&Served::Address((Ipv4Addr::LOCALHOST, *port).into())),
        Served::Unix(path) => {
            // A path may be longer than what is left of a socket's name behind the folder's.
            const CHARACTERS_MAX: usize = 24;
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            let bytes = path.as_os_str().as_bytes();
            let key = Key::new(&bytes[..bytes.len().min(KEY_BYTES_MAX)]);
            let hash = key.map_or(0, |key| key.hash());
            let last = path.file_name().unwrap_or_default().to_string_lossy();
            let plain = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
            let last: String = last.chars().filter(plain).take(CHARACTERS_MAX).collect();
            format!("{last}-{hash:016x}.control")
        }
    }
}

/// Whether what is in the folder was put there by this user, by root, or by whom root gave the folder to.
pub(crate) fn is_trusted(folder: &Folder) -> bool {
    let Ok(found) = fs::symlink_metadata(&folder.path) else { return false };
    let (me, owner) = (process::user_id(), found.uid());
    let others_write = |found: &fs::Metadata| found.mode() & 0o022 != 0;
    let made_by_root = || {
        let parent = folder.path.parent().and_then(|parent| fs::metadata(parent).ok());
        folder.of_host && parent.is_some_and(|parent| parent.uid() == 0 && !others_write(&parent))
    };
    found.is_dir()
        && !others_write(&found)
        && (owner == me || owner == 0 || me == 0 && made_by_root())
}

/// The places of [`control_paths`] where there is a socket that nobody else can have put there.
pub(crate) fn trusted_paths(served: &Served) -> Vec<PathBuf> {
    let folders: Vec<Folder> = folders().into_iter().filter(is_trusted).collect();
    let is_socket = |path: &PathBuf| is_socket(path);
    paths_in(&folders, served).into_iter().filter(is_socket).collect()
}

/// Not a link to one.
pub(crate) fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(session: Option<&str>, served: &Served) -> Vec<String> {
        let found = paths_in(&folders_of(session.map(OsString::from), 7), served);
        found.into_iter().map(|path| path.to_str().expect("it is ASCII").to_owned()).collect()
    }

    #[test]
    fn the_host_comes_before_the_session_and_the_address_before_the_wildcard() {
        let served = Served::Address("10.0.0.5:11211".parse().unwrap());
        assert_eq!(
            paths(Some("/run/user/7"), &served),
            [
                "/run/mbal/10.0.0.5:11211.control",
                "/run/user/7/mbal/10.0.0.5:11211.control",
                "/tmp/mbal-7/10.0.0.5:11211.control",
                "/run/mbal/0.0.0.0:11211.control",
                "/run/user/7/mbal/0.0.0.0:11211.control",
                "/tmp/mbal-7/0.0.0.0:11211.control",
            ]
        );
    }

    #[test]
    fn a_port_is_one_of_loopback_or_of_all_addresses() {
        assert_eq!(
            paths(None, &Served::Port(5)).iter().step_by(2).collect::<Vec<_>>(),
            [
                "/run/mbal/127.0.0.1:5.control",
                "/run/mbal/[::1]:5.control",
                "/run/mbal/0.0.0.0:5.control",
                "/run/mbal/[::]:5.control",
            ]
        );
    }

    #[test]
    fn a_session_folder_that_is_not_absolute_is_none() {
        let served = Served::Address("[::]:5".parse().unwrap());
        assert_eq!(
            paths(Some("here"), &served),
            ["/run/mbal/[::]:5.control", "/tmp/mbal-7/[::]:5.control"]
        );
    }

    #[test]
    fn a_folder_that_others_may_write_and_a_link_are_not_trusted() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let path = env::temp_dir().join(format!("mbal-trusted-{}", std::process::id()));
        let link = path.with_extension("link");
        fs::create_dir(&path).unwrap();
        symlink(&path, &link).unwrap();
        let trusted = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            is_trusted(&Folder { path: path.to_owned(), of_host: false })
        };
        let found = [0o700, 0o755, 0o770, 0o777].map(|mode| trusted(&path, mode));
        let by_link = trusted(&link, 0o700);
        fs::remove_file(&link).unwrap();
        fs::remove_dir(&path).unwrap();
        assert_eq!((found, by_link), ([true, true, false, false], false));
        assert!(!is_trusted(&Folder { path, of_host: true }), "it is gone");
    }

    #[test]
    fn unix_sockets_of_one_name_in_two_folders_have_two_control_sockets() {
        let path = |served: &str| paths(None, &Served::Unix(served.into())).remove(0);
        assert_eq!(path("/var/cache.sock"), "/run/mbal/cache.sock-6f512c9dd1bb9e0f.control");
        assert_ne!(path("/var/cache.sock"), path("/run/cache.sock"));
        let long = path(&format!("/{}/{}", "d".repeat(60), "n ".repeat(20)));
        assert!(long.len() < 80, "{long}");
        assert!(long.starts_with("/run/mbal/nnnnnnnnnnnnnnnnnnnn-"), "{long}");
    }
}
