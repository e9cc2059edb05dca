//! A hot key that is often written.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::pool::{Memcached, Proxied, list};
use crate::running::{Ends, Folder, eventually};

/// A connection that is kept, and asked many things at once.
struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn of(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Client { stream: BufReader::new(stream) }
    }

    fn send(&mut self, requests: &str) {
        self.stream.get_mut().write_all(requests.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The number in the reply to a `get` of `hot`.
    fn number(&mut self) -> u64 {
        let head = self.line();
        assert!(head.starts_with("VALUE hot 0 "), "{head}");
        let number = self.line().parse().unwrap();
        assert_eq!(self.line(), "END");
        number
    }
}

/// One client counts up, three read: none reads what is older than what was stored when it asked,
/// or older than it has read before.
#[test]
fn a_hot_key_that_is_written_is_read_from_the_proxy_and_never_stale() {
    let Some(pool) = Memcached::some(3) else { return };
    let folder = Folder::new("proxy-written");
    let upstreams = list(&pool);
    // 800 requests an interval tell what is hot: on a busy machine they may take as long. And nobody is to give up waiting.
    let hot = ["--imbalance-target", "1.1", "--interval", "1s", "--timeout", "20s"];
    let proxy = Proxied::start(&folder, &[&["--upstream", &upstreams], &hot[..]].concat());
    proxy.set("hot", "0");
    let port = proxy.running.port;
    let (stored, sent, ends) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::of(port);
            for number in 1.. {
                if ends.load(SeqCst) {
                    break;
                }
                let value = number.to_string();
                sent.store(number, SeqCst);
                client.send(&format!("set hot 0 0 {}\r\n{value}\r\n", value.len()));
                assert_eq!(client.line(), "STORED");
                stored.store(number, SeqCst);
            }
        });
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = Client::of(port);
                let mut least = 0;
                while !ends.load(SeqCst) {
                    least = stored.load(SeqCst).max(least);
                    // More than one request in 20 has to be a write, though the writer is the slowest of all.
                    client.send(&"get hot\r\n".repeat(3));
                    for _ in 0..3 {
                        let number = client.number();
                        assert!(number >= least, "{number} was read when {least} was stored");
                        least = number;
                    }
                    assert!(least <= sent.load(SeqCst), "{least} was never sent");
                }
            });
        }
        let _ends = Ends(&ends);
        let count = |name| proxy.stat(name).map_or(0, |count| count.parse::<u64>().unwrap());
        // For five seconds it keeps nothing: an earlier proxy may have sent what is not executed yet.
        eventually("a read waits for a write", || count("written_hits") > 0);
        eventually("reads wait for writes, and get what they stored", || {
            count("written_hits") > 100 && count("cache_writes") > 10
        });
    });
    let last = stored.load(SeqCst).to_string();
    assert_eq!(proxy.value("hot"), Some(last.clone()));
    let homes: Vec<String> = pool.iter().filter_map(|one| one.value("hot")).collect();
    assert_eq!(homes, [last], "its home has the last value, and nobody else has one");
}
