//! Upstreams by ElastiCache's auto-discovery, which servers of a cluster of MBal's answer, too (decision 0260).

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mbal_proxy::RingServer;

/// Somebody who has not answered by then is not asked any longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of a reply: some thousands of servers.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// What to ask, older servers last.
const QUESTIONS: [&str; 2] = ["config get cluster\r\n", "get AmazonElastiCache:cluster\r\n"];

/// Where a proxy asks for its upstreams.
pub struct Discovery {
    /// `HOST:PORT` each; the first that answers is believed.
    endpoints: Vec<String>,
    /// The newest version that was seen.
    version: AtomicU64,
}

impl Discovery {
    pub fn new(endpoints: Vec<String>) -> Discovery {
        Discovery { endpoints, version: AtomicU64::new(0) }
    }

    /// The servers that there are now. A list that is older than one before is refused: upstreams would leave, and return flushed.
    pub fn servers(&self) -> Result<Vec<RingServer>, String> {
        let mut whys = Vec::new();
        for endpoint in &self.endpoints {
            match ask(endpoint).and_then(|found| self.newest(found)) {
                Ok(servers) => return Ok(servers),
                Err(why) => whys.push(format!("{endpoint}: {why}")),
            }
        }
        Err(whys.join("; "))
    }

    fn newest(
        &self,
        (version, servers): (u64, Vec<RingServer>),
    ) -> Result<Vec<RingServer>, String> {
        let newest = self.version.fetch_max(version, Relaxed);
        match version < newest {
            true => Err(format!("its list is version {version}, there was {newest} before")),
            false => Ok(servers),
        }
    }
}

fn ask(endpoint: &str) -> Result<(u64, Vec<RingServer>), String> {
    let told = |why: io::Error| why.to_string();
    let mut said = "no such host".to_owned();
    for address in endpoint.to_socket_addrs().map_err(told)? {
        let deadline = Instant::now() + PATIENCE;
        let mut stream = match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => stream,
            Err(why) => {
                said = why.to_string();
                continue;
            }
        };
        for question in QUESTIONS {
            stream.write_all(question.as_bytes()).map_err(told)?;
            if let Some(payload) = payload(&mut stream, deadline)? {
                return parse(&payload);
            }
        }
        return Err("it knows of no cluster".into());
    }
    Err(said)
}

/// What stands in the reply; none if it is another one.
fn payload(stream: &mut TcpStream, deadline: Instant) -> Result<Option<String>, String> {
    let mut reply = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = reply.iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&reply[..end]).into_owned();
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let length = match words[..] {
                ["CONFIG", "cluster", _, length] => length,
                ["VALUE", "AmazonElastiCache:cluster", _, length] => length,
                _ => return Ok(None),
            };
            let wrong = || format!("{line:?} is no reply");
            let length: usize = length.parse().map_err(|_| wrong())?;
            if REPLY_BYTES_MAX < length {
                return Err(wrong());
            }
            if let Some(payload) = reply.get(end + 1..end + 1 + length) {
                let text = String::from_utf8(payload.to_vec());
                return text.map(Some).map_err(|_| "its list is no text".into());
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("it does not answer".into());
        }
        let told = |why: io::Error| match why.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it does not answer".to_owned(),
            _ => why.to_string(),
        };
        stream.set_read_timeout(Some(left)).map_err(told)?;
        match stream.read(&mut buffer).map_err(told)? {
            0 => return Err("it has closed the connection".into()),
            count => reply.extend_from_slice(&buffer[..count]),
        }
        if 2 * REPLY_BYTES_MAX < reply.len() {
            return Err("its reply has no end".into());
        }
    }
}

/// A version, and a line of `NAME|ADDRESS|PORT` with blanks between. Who has an address is dialed there.
fn parse(payload: &str) -> Result<(u64, Vec<RingServer>), String> {
    let mut lines = payload.lines();
    let version = lines.next().and_then(|line| line.trim().parse().ok());
    let version = version.ok_or("its list has no version")?;
    let one = |entry: &str| {
        let [name, address, port] = entry.split('|').collect::<Vec<_>>()[..] else { return None };
        let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
        let host = if address.is_empty() { name } else { address };
        if host.is_empty() {
            return None;
        }
        // On a ring of names it stays where it is when its address becomes another.
        let is_named = !name.is_empty() && name != host;
        let name = is_named.then(|| format!("{name}:{port}"));
        Some(RingServer { host: host.into(), port, weight: 1, name })
    };
    let entries = lines.next().unwrap_or_default().split_ascii_whitespace();
    let servers = entries.map(|entry| one(entry).ok_or(format!("{entry:?} is no server")));
    Ok((version, servers.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_dialed_at_its_address_and_placed_by_its_name() {
        let (version, servers) = parse(
            "12\nn1.cache|10.0.0.1|11211 n2.cache||11212 |10.0.0.3|1 10.0.0.4|10.0.0.4|2\n\n",
        )
        .expect("it is a list");
        let expected =
            ["10.0.0.1:11211:1 n1.cache:11211", "n2.cache:11212", "10.0.0.3:1", "10.0.0.4:2"];
        let expected = expected.map(|one| one.parse::<RingServer>().expect("a server"));
        assert_eq!((version, &servers[..]), (12, &expected[..]));
        for wrong in ["", "x\n", "1\na|b\n", "1\n||1\n", "1\na||0\n", "1\na|b|c|d\n"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_older_list_is_refused() {
        let discovery = Discovery::new(Vec::new());
        assert!(discovery.newest((2, Vec::new())).is_ok());
        assert!(discovery.newest((2, Vec::new())).is_ok());
        let older = discovery.newest((1, Vec::new()));
        assert_eq!(older, Err("its list is version 1, there was 2 before".into()));
    }
}
