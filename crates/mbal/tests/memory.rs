//! `cache_memlimit` on a running server: the kernel sees the memory come and go.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

mod running;

use running::{Folder, Running, eventually};

const MIB: u64 = 1 << 20;
const VALUE_BYTES: usize = 100_000;

struct Server {
    running: Running,
    client: BufReader<TcpStream>,
    _folder: Folder,
}

impl Server {
    fn start(test: &str, arguments: &[&str]) -> Server {
        let folder = Folder::new(test);
        let flags = ["-p", "-1", "-l", "127.0.0.1", "--control", "off"];
        let running = Running::serve(&folder, &[&flags[..], arguments].concat());
        Server { client: BufReader::new(running.connect()), running, _folder: folder }
    }

    fn ask(&mut self, request: &[u8]) -> String {
        self.client.get_mut().write_all(request).unwrap();
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.client.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn fill(&mut self, mib: u64) {
        for number in 0..mib * MIB / VALUE_BYTES as u64 {
            let mut request = format!("set k{number} 0 0 {VALUE_BYTES}\r\n").into_bytes();
            request.resize(request.len() + VALUE_BYTES, b'v');
            request.extend(b"\r\n");
            assert_eq!(self.ask(&request), "STORED");
        }
    }

    fn stat(&mut self, wanted: &str) -> u64 {
        self.client.get_mut().write_all(b"stats\r\n").unwrap();
        let mut value = None;
        loop {
            let line = self.line();
            match line.strip_prefix("STAT ").and_then(|stat| stat.split_once(' ')) {
                Some((name, number)) if name == wanted => value = number.parse().ok(),
                Some(_) => {}
                None => return value.expect("the field is there, and a number"),
            }
        }
    }

    /// Its resident memory, in mebibytes.
    fn resident(&self) -> u64 {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.running.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    }
}

#[test]
fn resident_memory_follows_the_limit_down_and_up() {
    let mut server = Server::start("memory", &["-m", "128", "-t", "2"]);
    let empty = server.resident();
    server.fill(140);
    assert!(server.stat("evictions") > 0);
    let full = server.resident();
    assert!((110..160).contains(&(full - empty)), "{full} MiB of 128, {empty} when empty");

    assert_eq!(server.ask(b"cache_memlimit 48\r\n"), "OK");
    assert_eq!(server.stat("limit_maxbytes"), 48 * MIB);
    eventually("80 MiB are given back", || server.resident() < full - 75);
    assert_eq!(server.ask(b"set k 0 0 1\r\nv\r\n"), "STORED");

    assert_eq!(server.ask(b"cache_memlimit 256\r\n"), "OK");
    let evictions = server.stat("evictions");
    server.fill(200);
    assert_eq!(server.stat("evictions"), evictions, "there is room for all");
    assert!(server.resident() > full + 50, "{} MiB after {full}", server.resident());

    let refusal = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";
    assert_eq!(server.ask(b"cache_memlimit 1000000000\r\n"), refusal);
    assert_eq!(server.stat("limit_maxbytes"), 256 * MIB);
}

#[test]
fn memory_that_is_locked_does_not_grow() {
    let mut server = Server::start("memory-locked", &["-m", "32", "-t", "1", "-k"]);
    let refusal = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";
    assert_eq!(server.ask(b"cache_memlimit 33\r\n"), refusal);
    assert_eq!(server.ask(b"cache_memlimit 16\r\n"), "OK");
}
