//! Several servers that share the keys, started for one test and known by one of their ports. Their map is fixed, or a coordinator's
//! by whose orders cachelets move.

use crate::mover::{Coordinator, Mover};
use crate::peer::{Address, Arrival, Peer, SocketPeer, await_listener};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    pub servers: u16,
    /// The server that clients know, from 1.
    pub at: u16,
    /// A cachelet moves each time that so long has passed.
    pub moves_every: Option<Duration>,
}

/// The map or the coordinator, and the secret, which go when the servers do.
pub struct Files {
    folder: PathBuf,
    /// Where the servers take links, if a map says so.
    links: Vec<u16>,
    mover: Option<Mover>,
    coordinator: Option<Coordinator>,
}

/// Cachelets of the map: dealt in turn, so that every third key is where the client is connected.
const CACHELET_BITS: u32 = 6;
const LOGIN_PATIENCE: Duration = Duration::from_millis(300);
const LINKS_MAX: Duration = Duration::from_secs(10);
/// Connections go to the worker with the fewest, so that as many as there are workers reach them all.
const WORKERS_MAX: usize = 8;

/// What a command line says of a cluster.
#[derive(Default)]
pub struct Words {
    servers: Option<u16>,
    at: Option<u16>,
    moves_ms: Option<u16>,
}

impl Words {
    /// True if the word is one of these: then its value has been taken.
    pub fn take(
        &mut self,
        word: &str,
        value: impl FnOnce() -> Result<String, String>,
    ) -> Result<bool, String> {
        let place = match word {
            "--cluster" => &mut self.servers,
            "--at" => &mut self.at,
            "--moves" => &mut self.moves_ms,
            _ => return Ok(false),
        };
        *place = Some(value()?.parse().map_err(|error| format!("{word}: {error}"))?);
        Ok(true)
    }
}

impl Cluster {
    /// What `--cluster N`, `--at N` and `--moves MS` say; `None` without the first.
    pub fn of(words: &Words) -> Result<Option<Cluster>, String> {
        let Some(servers) = words.servers else { return Ok(None) };
        let at = words.at.unwrap_or(1);
        if !(1..=servers).contains(&at) {
            return Err(format!("--at {at}: there are servers 1 to {servers}"));
        }
        let moves_every = words.moves_ms.map(|ms| Duration::from_millis(ms.into()));
        Ok(Some(Cluster { servers, at, moves_every }))
    }

    /// The one that clients know first.
    pub fn ids(self) -> impl Iterator<Item = u16> {
        (0..self.servers).map(move |step| (self.at - 1 + step) % self.servers + 1)
    }

    /// Waits until every worker of the server at `address` reaches the owners of all keys.
    pub fn await_links(address: &Address) -> Result<(), String> {
        let deadline = Instant::now() + LINKS_MAX;
        await_listener(address, LINKS_MAX)
            .map_err(|error| format!("it does not listen: {error}"))?;
        let mut peer = SocketPeer::new(address.clone());
        let conns: Vec<_> = (0..WORKERS_MAX).map(|_| peer.open()).collect();
        let mut request: Vec<u8> =
            (0..100).flat_map(|n| format!("me probe{n}\r\n").into_bytes()).collect();
        request.extend_from_slice(b"mn\r\n");
        for conn in &conns {
            loop {
                peer.send(*conn, &request);
                let mut reply = Vec::new();
                while !reply.ends_with(b"MN\r\n") && !reply.ends_with(b"unauthenticated\r\n") {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let patience = left.max(Duration::from_millis(1));
                    if peer.receive(*conn, &mut reply, patience) != Arrival::Bytes {
                        let reply = String::from_utf8_lossy(&reply);
                        return Err(format!("links are not up in time: {reply}"));
                    }
                }
                // Who has to log in cannot ask: what is near is up as soon as it listens.
                if reply.starts_with(b"CLIENT_ERROR unauthenticated") {
                    std::thread::sleep(LOGIN_PATIENCE);
                    return Ok(());
                }
                let is_error = |line: &[u8]| line.starts_with(b"SERVER_ERROR");
                if !reply.split(|byte| *byte == b'\n').any(is_error) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        // As if nobody had asked yet.
        let mut reply = Vec::new();
        peer.send(conns[0], b"stats reset\r\n");
        while !reply.ends_with(b"\n") {
            if peer.receive(conns[0], &mut reply, LINKS_MAX) != Arrival::Bytes {
                return Err("it does not forget what it counted".into());
            }
        }
        conns.into_iter().for_each(|conn| peer.close(conn));
        Ok(())
    }
}

impl Files {
    /// `mbal` is the servers' program.
    pub fn write(
        cluster: &Cluster,
        mbal: &str,
        free_port: impl Fn() -> u16,
    ) -> Result<Files, String> {
        static WRITTEN: AtomicU32 = AtomicU32::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-cluster.{}.{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let links: Vec<u16> = (1..=cluster.servers).map(|_| free_port()).collect();
        let mut map = "cluster conformance\nversion 1\n".to_owned();
        for (id, port) in (1..).zip(&links) {
            // Nobody asks where clients go.
            map += &format!("server {id} link 127.0.0.1:{port} client 127.0.0.1:0\n");
        }
        let mut files = Files { folder, links, mover: None, coordinator: None };
        map += &format!("equal {CACHELET_BITS}\n");
        let written = std::fs::create_dir(&files.folder)
            .and_then(|()| std::fs::write(files.folder.join("map"), map))
            .and_then(|()| secret(&files.folder.join("secret")));
        written.map_err(|error| format!("{}: {error}", files.folder.display()))?;
        if cluster.moves_every.is_some() {
            let state = files.path("state");
            let started = Coordinator::start(mbal, free_port(), cluster.servers, &state)?;
            files.coordinator = Some(started);
        }
        Ok(files)
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    pub fn flags(&self, id: u16) -> Vec<String> {
        let mut flags =
            vec![("--server-id", id.to_string()), ("--cluster-secret", self.path("secret"))];
        match &self.coordinator {
            None => flags.push(("--cluster", self.path("map"))),
            Some(coordinator) => {
                flags.push(("--coordinator", coordinator.url()));
                flags.push(("--cluster-name", "conformance".into()));
            }
        }
        flags.into_iter().flat_map(|(flag, value)| [flag.to_string(), value]).collect()
    }

    /// Waits until links of these servers wait for no more than their map. They let no client in yet.
    pub fn await_begun(&self, ids: impl Iterator<Item = u16>) -> Result<(), String> {
        if self.coordinator.is_some() {
            return Ok(());
        }
        for port in ids.map(|id| self.links[usize::from(id) - 1]) {
            await_listener(&Address::Tcp(port), LINKS_MAX)
                .map_err(|error| format!("it takes no links at {port}: {error}"))?;
        }
        Ok(())
    }

    /// From now on cachelets move, if they are to.
    pub fn begin_to_move(&mut self, cluster: &Cluster) {
        if let (Some(every), Some(coordinator)) = (cluster.moves_every, &self.coordinator) {
            self.mover = Some(Mover::start(coordinator, cluster.servers, every));
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // It asks the coordinator, which writes to the folder.
        drop((self.mover.take(), self.coordinator.take()));
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// For its user alone: servers take no other.
fn secret(path: &Path) -> std::io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(b"conformance-conformance")
}
