//! Which cache a key is asked of: a ring, with a secondary one for a while, or the map of a cluster.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use mbal_model::{Address, ClusterView, Key};
use mbal_routing::Routes;
use mbal_routing::ketama::{Dialect, Ring, RingServer};

#[derive(Clone)]
pub enum Routing {
    Ring { ring: Ring, servers: Vec<RingServer>, secondary: Option<(Ring, Vec<RingServer>)> },
    Map(Box<Routes>),
}

impl Routing {
    pub fn of(servers: &[RingServer]) -> Routing {
        let ring = Ring::new(Dialect::Libmemcached, None, servers);
        Routing::Ring { ring, servers: servers.to_vec(), secondary: None }
    }

    /// Those servers; what they miss is looked for where it was before (CacheScale). A map stays.
    pub fn with_secondary(&self, servers: &[RingServer]) -> Routing {
        let Routing::Ring { ring: old, servers: before, .. } = self else { return self.clone() };
        let ring = Ring::new(Dialect::Libmemcached, None, servers);
        let secondary = Some((old.clone(), before.clone()));
        Routing::Ring { ring, servers: servers.to_vec(), secondary }
    }

    /// Asks any of the servers of a cluster for its map.
    pub fn map(servers: &[RingServer]) -> Option<Routing> {
        servers.iter().find_map(|server| ask_map(server).ok()).map(|r| Routing::Map(Box::new(r)))
    }

    /// Host and port.
    pub fn primary(&self, key: &str) -> String {
        match self {
            Routing::Ring { ring, servers, .. } => servers[ring.owner(key.as_bytes())].to_string(),
            Routing::Map(routes) => {
                let hash = Key::new(key.as_bytes()).expect("names are keys").hash();
                let owner = routes.route(hash).owner;
                routes.address(owner).expect("a map has addresses").to_string()
            }
        }
    }

    /// Where else it may be; none if that is the same.
    pub fn secondary(&self, key: &str) -> Option<String> {
        let Routing::Ring { secondary: Some((ring, servers)), .. } = self else { return None };
        let server = servers[ring.owner(key.as_bytes())].to_string();
        (server != self.primary(key)).then_some(server)
    }
}

fn ask_map(server: &RingServer) -> Result<Routes, String> {
    let fail = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect((&server.host[..], server.port)).map_err(fail)?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).map_err(fail)?;
    stream.write_all(b"config get mbal 0.0\r\n").map_err(fail)?;
    let mut input = BufReader::new(stream);
    let mut line = String::new();
    input.read_line(&mut line).map_err(fail)?;
    let bytes = line.trim_end().strip_prefix("CONFIG mbal 0 ").ok_or("no map")?;
    let mut page = vec![0; bytes.parse().map_err(|_| "no length")?];
    input.read_exact(&mut page).map_err(fail)?;
    let view = ClusterView::parse(&String::from_utf8_lossy(&page))?;
    Ok(Routes::new(&view, &Address { host: server.host.clone(), port: server.port }))
}
