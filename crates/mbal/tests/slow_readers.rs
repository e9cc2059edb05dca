//! Clients that ask for much and read late, at a server or a proxy that has to ask others for it. They get every value, it holds no more than it
//! says, others are served meanwhile, and the memory goes back. `docs/results/slow-readers.md` has figures of the long form:
//! `cargo test --release -p mbal --test slow_readers -- --ignored --nocapture`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

mod running;

use running::{Ends, Folder, Running, eventually, free_ports};

const MIB: u64 = 1 << 20;

struct Load {
    memory_mib: u64,
    clients: usize,
    /// Each asks for all of them: by one `get`, or by one for each.
    keys: usize,
    value_bytes: usize,
    unread: Duration,
    /// They ask a proxy before the servers.
    proxied: bool,
}

struct Figures {
    before: u64,
    highest: u64,
    after: u64,
    /// Of a client that asks for a small value of each server in turn.
    latency_us_p50: u128,
    latency_us_p99: u128,
    latency_us_max: u128,
}

fn start(folder: &Folder, memory_mib: u64) -> Vec<Running> {
    let mut map = "cluster test\nversion 1\nequal 5\n".to_owned();
    for (id, port) in (1..).zip(free_ports(3)) {
        map += &format!("server {id} link 127.0.0.1:{port} client 127.0.0.1:0\n");
    }
    fs::write(folder.path("map"), map).unwrap();
    folder.keep("secret", "a secret of this test\n");
    let path = |name: &str| folder.path(name).display().to_string();
    let (map, secret, memory) = (path("map"), path("secret"), memory_mib.to_string());
    let one = |id: &str| {
        drop(fs::remove_file(folder.path("ports")));
        let mut arguments = vec!["-p", "-1", "-t", "2", "-m", &memory, "--control", "off"];
        arguments.extend(["--cluster", &map, "--server-id", id, "--cluster-secret", &secret]);
        Running::serve(folder, &arguments)
    };
    ["1", "2", "3"].map(one).into()
}

fn resident_bytes(server: &Running) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn key(nth: usize) -> String {
    format!("key-{nth}")
}

fn letter(nth: usize) -> u8 {
    b'a' + (nth % 26) as u8
}

fn store(stream: &mut TcpStream, key: &str, value: &[u8]) -> bool {
    stream.write_all(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes()).unwrap();
    stream.write_all(value).unwrap();
    stream.write_all(b"\r\n").unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        reply.extend(byte);
    }
    reply == b"STORED\r\n"
}

fn expect(stream: &mut TcpStream, bytes: &[u8], buffer: &mut Vec<u8>) {
    buffer.resize(bytes.len(), 0);
    stream.read_exact(buffer).unwrap();
    let shown = String::from_utf8_lossy(&buffer[..bytes.len().min(60)]);
    assert!(buffer == bytes, "not what was stored, but {shown:?}");
}

/// All values, none missing.
fn read_all(stream: &mut TcpStream, load: &Load, apart: bool) {
    let mut buffer = Vec::new();
    for nth in 0..load.keys {
        let line = format!("VALUE {} 0 {}\r\n", key(nth), load.value_bytes);
        expect(stream, line.as_bytes(), &mut buffer);
        expect(stream, &vec![letter(nth); load.value_bytes], &mut buffer);
        expect(stream, if apart { b"\r\nEND\r\n" } else { b"\r\n" }, &mut buffer);
    }
    if !apart {
        expect(stream, b"END\r\n", &mut buffer);
    }
}

fn run(test: &str, load: &Load) -> Figures {
    let folder = Folder::new(test);
    let servers = start(&folder, load.memory_mib);
    let proxy = load.proxied.then(|| {
        drop(fs::remove_file(folder.path("ports")));
        let names: Vec<String> =
            servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        let arguments = ["proxy", "-p", "-1", "--upstream", &names.join(",")];
        Running::start(&folder, env!("CARGO_BIN_EXE_mbal").as_ref(), &arguments)
    });
    let asked = proxy.as_ref().unwrap_or(&servers[0]);
    let small: Vec<String> = (0..32).map(|nth| format!("small-{nth}")).collect();
    eventually("all owners can be reached, by all workers", || {
        let mut streams: Vec<TcpStream> = (0..8).map(|_| asked.connect()).collect();
        streams.iter_mut().all(|stream| small.iter().all(|key| store(stream, key, b"v")))
    });
    let mut stream = asked.connect();
    for nth in 0..load.keys {
        assert!(store(&mut stream, &key(nth), &vec![letter(nth); load.value_bytes]));
    }
    let before = resident_bytes(asked);
    let mut clients: Vec<TcpStream> = (0..load.clients).map(|_| asked.connect()).collect();
    for (nth, client) in clients.iter_mut().enumerate() {
        client.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let names: Vec<String> = (0..load.keys).map(key).collect();
        let request = match nth % 2 {
            0 => format!("get {}\r\n", names.join(" ")),
            _ => names.iter().map(|name| format!("get {name}\r\n")).collect(),
        };
        client.write_all(request.as_bytes()).unwrap();
    }
    // They read nothing.
    let over = AtomicBool::new(false);
    let (mut latencies, highest) = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut stream = asked.connect();
            stream.set_nodelay(true).unwrap();
            let mut latencies = Vec::new();
            for key in small.iter().cycle() {
                if over.load(Relaxed) {
                    return latencies;
                }
                let begun = Instant::now();
                running::ask(
                    &mut stream,
                    &format!("get {key}\r\n"),
                    &format!("VALUE {key} 0 1\r\nv\r\nEND\r\n"),
                );
                latencies.push(begun.elapsed().as_micros());
                thread::sleep(Duration::from_millis(5));
            }
            unreachable!("it goes round")
        });
        let ends = Ends(&over);
        let until = Instant::now() + load.unread;
        let mut highest = 0;
        while Instant::now() < until {
            highest = highest.max(resident_bytes(asked));
            thread::sleep(Duration::from_millis(20));
        }
        drop(ends);
        (other.join().unwrap(), highest)
    });
    // Now they do: four at a time.
    for (at, some) in clients.chunks_mut(4).enumerate() {
        thread::scope(|scope| {
            for (nth, client) in some.iter_mut().enumerate() {
                scope.spawn(move || read_all(client, load, (4 * at + nth) % 2 == 1));
            }
        });
    }
    drop(clients);
    eventually("what was held for them goes back", || resident_bytes(asked) <= before + 24 * MIB);
    latencies.sort_unstable();
    let quantile = |of: usize| latencies[(latencies.len() - 1) * of / 100];
    Figures {
        before,
        highest,
        after: resident_bytes(asked),
        latency_us_p50: quantile(50),
        latency_us_p99: quantile(99),
        latency_us_max: quantile(100),
    }
}

fn holds(test: &str, load: &Load) {
    let Figures { before, highest, after, latency_us_p50, latency_us_p99, latency_us_max } =
        run(test, load);
    let clients = load.clients as u64 * (MIB + load.value_bytes as u64);
    println!(
        "{} clients, {} values of {} bytes each: resident MiB before {}, highest {}, after {}; another client's get: p50 \
         {latency_us_p50} us, p99 {latency_us_p99} us, longest {latency_us_max} us",
        load.clients,
        load.keys,
        load.value_bytes,
        before / MIB,
        highest / MIB,
        after / MIB
    );
    let own = if load.proxied { 0 } else { load.memory_mib * MIB };
    let most = own + 64 * MIB + clients;
    assert!(highest <= most, "{} MiB are more than {}", highest / MIB, most / MIB);
    assert!(highest <= before + 64 * MIB + clients, "{} MiB", highest / MIB);
}

#[test]
fn clients_that_read_late_get_every_value_and_cost_what_they_may() {
    let (memory_mib, clients, keys, value_bytes) = (64, 12, 100, 400_000);
    let unread = Duration::from_secs(2);
    for (test, proxied) in [("slow-readers", false), ("slow-readers-proxied", true)] {
        holds(test, &Load { memory_mib, clients, keys, value_bytes, unread, proxied });
    }
}

#[test]
#[ignore = "takes a minute or more"]
fn forty_clients_that_read_nothing_for_half_a_minute() {
    long("slow-readers-long", false);
}

#[test]
#[ignore = "takes a minute or more"]
fn forty_clients_of_a_proxy_that_read_nothing_for_half_a_minute() {
    long("slow-readers-proxied-long", true);
}

fn long(test: &str, proxied: bool) {
    let (memory_mib, clients, keys, value_bytes) = (256, 40, 400, 900_000);
    let unread = Duration::from_secs(30);
    holds(test, &Load { memory_mib, clients, keys, value_bytes, unread, proxied });
}
