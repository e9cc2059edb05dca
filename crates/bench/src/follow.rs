//! What a smart client knows of its servers: which worker serves which cachelet, and where it listens.
//!
//! Asked for once by `config get mbal`, then kept up to date by what replies say. A route changes at once, whatever is still
//! unanswered on the old one: values here follow from their keys, so no order between requests is at stake (decision 0220).

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};

use mbal_dial::ServerName;
use mbal_model::{ClusterView, Hint, Key, MapVersion, Owner, Prefix};

/// All workers of all servers, in one row; each has an index.
#[derive(Clone, Debug)]
pub struct Routes {
    table: mbal_routing::Routes,
    owners: Vec<Owner>,
    indices: BTreeMap<Owner, usize>,
    addresses: Vec<SocketAddr>,
}

impl Routes {
    /// Each worker has an equal run of hashes, as long as nothing has been moved. `workers` is a power of two.
    pub fn even(ip: IpAddr, base: u16, workers: u16) -> Self {
        let at = |worker| SocketAddr::new(ip, base + worker).to_string();
        let ports: Vec<String> = (0..workers).map(at).collect();
        let mut page =
            format!("version 1.0\nserver 0 client {} workers {}\n", at(0), ports.join(","));
        for (prefix, worker) in Prefix::equal(workers.trailing_zeros()).zip(0..workers) {
            page += &format!("cachelet {prefix} 0/{worker}\n");
        }
        Self::parse(&page, SocketAddr::new(ip, base)).expect("equal prefixes cover the hashes")
    }

    /// Asks the server, which is at this address; `None` if it does not know the question.
    pub fn ask(server: &mut (impl Read + Write), at: SocketAddr) -> io::Result<Option<Self>> {
        server.write_all(b"config get mbal 0.0\r\n")?;
        let mut input = BufReader::new(server);
        let mut line = String::new();
        input.read_line(&mut line)?;
        let Some(head) = line.strip_prefix("CONFIG mbal 0 ") else { return Ok(None) };
        let bad = |what: &str| io::Error::other(format!("config get mbal: {what}"));
        let bytes: usize = head.trim_end().parse().map_err(|_| bad("no length"))?;
        let mut page = vec![0; bytes.min(16 << 20)];
        input.read_exact(&mut page)?;
        let page = String::from_utf8(page).map_err(|_| bad("not text"))?;
        Self::parse(&page, at).map(Some).map_err(|why| bad(&why))
    }

    /// By a document that nobody keeps up to date. `at` stands for addresses that it leaves open.
    pub fn parse(page: &str, at: SocketAddr) -> Result<Self, String> {
        let view = ClusterView::parse(page)?;
        for (server, addresses) in &view.cluster.servers {
            if addresses.workers.is_empty() {
                let server = server.0;
                return Err(format!(
                    "no worker of server {server} has a port of its own (--worker-ports)"
                ));
            }
        }
        let table = mbal_routing::Routes::new(&view, &mbal_model::Address::at(at.ip(), at.port()));
        let owners: Vec<Owner> = table.owners().collect();
        let addresses = owners.iter().map(|owner| {
            let address = table.address(*owner).expect("it is one of the table's");
            let server = ServerName::Tcp { host: address.host.clone(), port: address.port };
            let found = server.addresses().map_err(|error| format!("{address}: {error}"))?;
            found.first().copied().ok_or_else(|| format!("{address}: no such host"))
        });
        let addresses = addresses.collect::<Result<_, _>>()?;
        let indices = owners.iter().copied().zip(0..).collect();
        Ok(Self { table, owners, indices, addresses })
    }

    /// What requests say is known.
    pub fn version(&self) -> MapVersion {
        let heard = self.table.servers().map(|server| self.table.heard(server));
        heard.max().expect("a document names a server")
    }

    /// Where the workers listen.
    pub fn workers(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// How the binary protocol names the hash's cachelet.
    pub fn vbucket(&self, hash: u64) -> u16 {
        self.table.cachelet(hash).vbucket()
    }

    /// The worker that has the copy of this suffix, if it is another server's.
    pub fn copy(&self, key: &Key<'_>, suffix: u8) -> Option<usize> {
        self.indices.get(&self.table.copy(key, suffix)?).copied()
    }

    /// Where each server's first worker listens.
    pub fn servers(&self) -> Vec<SocketAddr> {
        let all = self.owners.iter().zip(&self.addresses);
        all.filter(|(owner, _)| owner.worker.0 == 0).map(|(_, address)| *address).collect()
    }

    pub fn worker(&self, hash: u64) -> usize {
        self.indices[&self.table.route(hash).owner]
    }

    /// Routes the hash's cachelet as it was told by a worker, unless something newer is known; true when what is known grew.
    pub fn heed(&mut self, hash: u64, asked: usize, hint: Hint) -> bool {
        let before = self.version();
        self.table.heed(hash, self.owners[asked].server, hint);
        before < self.version()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "version 1.17\nserver 0 client 0.0.0.0:11211 workers 0.0.0.0:4000,0.0.0.0:4001\n\
        cachelet 0000/2 0/0\ncachelet 4000/2 0/1\ncachelet 8000/1 0/1\n";

    fn at() -> SocketAddr {
        "127.0.0.1:11211".parse().unwrap()
    }

    #[test]
    fn a_hash_finds_its_worker_whatever_the_length_of_its_cachelets_prefix() {
        let routes = Routes::parse(PAGE, at()).unwrap();
        let workers = [0u64, 1, 2, 3].map(|top| routes.worker(top << 62));
        assert_eq!(workers, [0, 1, 1, 1]);
        assert_eq!(routes.vbucket(2 << 62), routes.vbucket(3 << 62));
        assert_eq!(routes.workers()[1], "127.0.0.1:4001".parse().unwrap());
    }

    #[test]
    fn workers_of_several_servers_stand_in_one_row() {
        let page = "version 3.0\nserver 1 client 127.0.0.1:1 workers 127.0.0.1:10,127.0.0.1:11\n\
            server 4 client 127.0.0.1:4 workers 127.0.0.1:40,127.0.0.1:41\n\
            cachelet 0000/1 4/1\ncachelet 8000/1 1/1\n";
        let mut routes = Routes::parse(page, at()).unwrap();
        assert_eq!([0, 1 << 63].map(|hash| routes.worker(hash)), [3, 1]);
        let hint = |text: &str| Hint::parse(text.as_bytes()).unwrap();
        assert!(routes.heed(0, 3, hint("3.1.0")));
        assert_eq!((routes.worker(0), routes.version().to_string().as_str()), (2, "3.1"));
        assert!(!routes.heed(0, 0, hint("4.0.1/0")), "the map is not here yet");
        assert_eq!(routes.worker(0), 0);
    }

    #[test]
    fn a_table_with_gaps_or_unknown_workers_is_refused() {
        for (from, to) in [
            ("cachelet 8000/1 0/1", ""),
            ("cachelet 4000/2 0/1", "cachelet 4100/2 0/1"),
            ("cachelet 4000/2 0/1", "cachelet 4000/16 0/1"),
            ("version 1.17", ""),
            (" workers 0.0.0.0:4000,0.0.0.0:4001", ""),
        ] {
            assert!(Routes::parse(&PAGE.replace(from, to), at()).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn a_newer_hint_changes_a_route_and_an_older_one_does_not() {
        let mut routes = Routes::parse(PAGE, at()).unwrap();
        let hint = |text: &str| Hint::parse(text.as_bytes()).unwrap();
        assert!(routes.heed(0, 0, hint("1.19.1")));
        assert_eq!((routes.worker(0), routes.version().to_string().as_str()), (1, "1.19"));
        assert!(!routes.heed(0, 0, hint("1.18.0")));
        assert_eq!(routes.worker(0), 1, "1.18 is older than what is known of this cachelet");
        assert!(!routes.heed(1 << 62, 1, hint("1.18.0")));
        assert_eq!(routes.worker(1 << 62), 0, "but newer than what was known of that one");
    }

    #[test]
    fn equal_runs_are_the_top_bits() {
        let routes = Routes::even("127.0.0.1".parse().unwrap(), 9_000, 4);
        assert_eq!([0u64, 1, 2, 3].map(|top| routes.worker(top << 62)), [0, 1, 2, 3]);
        assert_eq!(Routes::even("::1".parse().unwrap(), 9_000, 1).worker(u64::MAX), 0);
    }
}
