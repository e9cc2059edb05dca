//! Latency of reads over veth by size of the value, as CSV: docs/results/xdp.md.

#[path = "../tests/wire/net.rs"]
#[allow(dead_code)]
mod net;

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::process::{Child, Stdio};
use std::time::Instant;

use mbal_xdp::Rule;

use net::*;

const READS: usize = 10_000;
const ROUNDS: usize = 5;
const TWEMPROXY: u16 = 22_121;

/// Nanoseconds of each read, and how many were lost. A read that was lost has none.
type Reads = (Vec<u64>, usize);

fn measure(mut read: impl FnMut() -> bool) -> Reads {
    let (mut times, mut lost) = (Vec::with_capacity(READS), 0);
    for _ in 0..READS {
        let begin = Instant::now();
        match read() {
            true => times.push(begin.elapsed().as_nanos() as u64),
            false => lost += 1,
        }
    }
    (times, lost)
}

fn by_udp(net: &Net, to: SocketAddrV4, key: &[u8], value: &[u8]) -> Reads {
    let expected = reply(key, value);
    net.at("client", || {
        let mut client = Client::new(to);
        measure(|| client.get(key).is_some_and(|text| text == expected))
    })
}

fn by_tcp(net: &Net, to: SocketAddrV4, key: &[u8], value: &[u8]) -> Reads {
    let (request, expected) = ([b"get ", key, b"\r\n"].concat(), reply(key, value));
    net.at("client", || {
        let mut stream = connect(to);
        let mut text = vec![0; expected.len()];
        measure(|| {
            stream.write_all(&request).unwrap();
            stream.read_exact(&mut text).unwrap();
            text == expected
        })
    })
}

/// On the proxy's host, before the same servers.
fn twemproxy(net: &Net) -> Option<Child> {
    let listen = SocketAddrV4::new(*SERVICE.ip(), TWEMPROXY);
    let mut command = net.twemproxy(listen, "murmur");
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

fn main() {
    let net = Net::new().expect("namespaces, memcached and ethtool");
    let plane = net.plane();
    let mut nutcracker = twemproxy(&net);
    println!("way,value bytes,p50 us,p99 us,least p50,most p50,lost,reads");
    let key = b"user:00000000000000000000000042";
    let through = SocketAddrV4::new(*SERVICE.ip(), TWEMPROXY);
    for bytes in [32, 128, 512, 1024, 1300] {
        let value = vec![b'v'; bytes];
        net.at("proxy", || {
            set(&mut connect(home(key)), key, &value);
            let mut stream: TcpStream = connect(through);
            set(&mut stream, b"by-twemproxy:000000000000000042", &value);
        });
        let mut ways: [(&str, Vec<Reads>); 5] = [
            "UDP to memcached",
            "TCP to memcached",
            "forwarded by the plane",
            "answered by the plane",
            "twemproxy by TCP",
        ]
        .map(|name| (name, Vec::new()));
        for _ in 0..ROUNDS {
            ways[0].1.push(by_udp(&net, home(key), key, &value));
            ways[1].1.push(by_tcp(&net, home(key), key, &value));
            ways[2].1.push(by_udp(&net, SERVICE, key, &value));
            let rule = Rule::Answer { flags: 0, value: &value, until_ns: u64::MAX };
            plane.put(key, rule).unwrap();
            let before = plane.counters().unwrap().answered;
            let reads = by_udp(&net, SERVICE, key, &value);
            // Where a packet has no room for the answer, this would be the row before.
            if plane.counters().unwrap().answered - before == READS as u64 {
                ways[3].1.push(reads);
            }
            plane.remove(key).unwrap();
            ways[4].1.push(by_tcp(&net, through, b"by-twemproxy:000000000000000042", &value));
        }
        for (name, rounds) in ways.into_iter().filter(|(_, rounds)| rounds.len() == ROUNDS) {
            row(name, bytes, rounds);
        }
    }
    if let Some(child) = &mut nutcracker {
        child.kill().and_then(|()| child.wait()).unwrap();
    }
}

fn row(name: &str, bytes: usize, rounds: Vec<Reads>) {
    let at = |times: &[u64], part: f64| times[(times.len() as f64 * part) as usize] as f64 / 1e3;
    let lost: usize = rounds.iter().map(|(_, lost)| lost).sum();
    let mut medians: Vec<f64> = Vec::new();
    let mut all: Vec<u64> = Vec::new();
    for (mut times, _) in rounds {
        times.sort_unstable();
        medians.push(at(&times, 0.5));
        all.append(&mut times);
    }
    all.sort_unstable();
    medians.sort_by(f64::total_cmp);
    let (least, most) = (medians[0], medians[medians.len() - 1]);
    println!(
        "{name},{bytes},{:.1},{:.1},{least:.1},{most:.1},{lost},{}",
        at(&all, 0.5),
        at(&all, 0.99),
        ROUNDS * READS
    );
}
