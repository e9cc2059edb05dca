//! Several servers that share the keys by a fixed map, started for one test and known by one of their ports.

use crate::peer::{Address, Arrival, Peer, SocketPeer};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    pub servers: u16,
    /// The server that clients know, from 1.
    pub at: u16,
}

/// The map and the secret, which go when the servers do.
pub struct Files {
    folder: PathBuf,
}

/// Cachelets of the map: dealt in turn, so that every third key is where the client is connected.
const CACHELET_BITS: u32 = 6;
const LOGIN_PATIENCE: Duration = Duration::from_millis(300);
const LINKS_MAX: Duration = Duration::from_secs(10);
/// Connections go to the worker with the fewest, so that as many as there are workers reach them all.
const WORKERS_MAX: usize = 8;

impl Cluster {
    /// Those of `--cluster N` and `--at N`.
    pub fn of(servers: Option<u16>, at: Option<u16>) -> Result<Option<Cluster>, String> {
        match (servers, at.unwrap_or(1)) {
            (None, _) => Ok(None),
            (Some(servers), at) if (1..=servers).contains(&at) => Ok(Some(Cluster { servers, at })),
            (Some(servers), at) => Err(format!("--at {at}: there are servers 1 to {servers}")),
        }
    }

    /// The one that clients know first.
    pub fn ids(self) -> impl Iterator<Item = u16> {
        (0..self.servers).map(move |step| (self.at - 1 + step) % self.servers + 1)
    }

    /// Waits until every worker of the server at `address` reaches the owners of all keys.
    pub fn await_links(&self, address: &Address) -> Result<(), String> {
        let deadline = Instant::now() + LINKS_MAX;
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
    pub fn write(cluster: &Cluster, free_port: impl Fn() -> u16) -> Result<Files, String> {
        static WRITTEN: AtomicU32 = AtomicU32::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-cluster.{}.{number}", std::process::id());
        let files = Files { folder: std::env::temp_dir().join(name) };
        let mut map = "cluster conformance\nversion 1\n".to_owned();
        for id in 1..=cluster.servers {
            // Nobody asks where clients go.
            map += &format!("server {id} link 127.0.0.1:{} client 127.0.0.1:0\n", free_port());
        }
        map += &format!("equal {CACHELET_BITS}\n");
        let written = std::fs::create_dir(&files.folder)
            .and_then(|()| std::fs::write(files.folder.join("map"), map))
            .and_then(|()| std::fs::write(files.folder.join("secret"), "conformance-conformance"));
        written.map_err(|error| format!("{}: {error}", files.folder.display()))?;
        Ok(files)
    }

    pub fn flags(&self, id: u16) -> Vec<String> {
        let path = |name: &str| self.folder.join(name).display().to_string();
        [
            ("--cluster", path("map")),
            ("--server-id", id.to_string()),
            ("--cluster-secret", path("secret")),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_string(), value])
        .collect()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}
