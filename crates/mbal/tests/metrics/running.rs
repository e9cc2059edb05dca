//! A server of its own for each test.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub const MBAL: &str = env!("CARGO_BIN_EXE_mbal");

/// A server that tells metrics; it ends with its test.
pub struct Running {
    pub child: Child,
    pub folder: PathBuf,
    pub port: u16,
    pub metrics: u16,
}

impl Running {
    pub fn serve(test: &str, arguments: &[&str]) -> Running {
        Running::serve_in(test, arguments, &[])
    }

    pub fn serve_in(test: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Running {
        let folder = std::env::temp_dir().join(format!("mbal-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let ports = folder.join("ports");
        let mut child = Command::new(MBAL)
            .args(["serve", "-p", "-1", "--metrics", "127.0.0.1:0"])
            .args(arguments)
            .envs(environment.iter().copied())
            .env("MEMCACHED_PORT_FILENAME", &ports)
            .stdin(Stdio::null())
            .stderr(fs::File::create(folder.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        eventually("the server has its ports", || {
            assert_eq!(child.try_wait().unwrap(), None, "the server ended");
            ports.exists()
        });
        let lines = fs::read_to_string(&ports).unwrap();
        let port = |prefix: &str| {
            let port = lines.lines().find_map(|line| line.strip_prefix(prefix));
            port.map(|port| port.parse().unwrap())
        };
        // One of a unix socket has no port.
        let port_of_clients = port("TCP INET: ").unwrap_or(0);
        let (port, metrics) = (port_of_clients, port("HTTP: ").expect("it tells metrics"));
        Running { child, folder, port, metrics }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// All that is answered to a request that ends with `quit`.
    pub fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub fn http(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub fn page(&self) -> String {
        let answer = self.http("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, page) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", page.len())), "{head}");
        page.to_owned()
    }

    pub fn stats(&self, command: &str) -> BTreeMap<String, String> {
        let told = self.ask(&format!("{command}\r\nquit\r\n"));
        let words = told.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if !thread::panicking() {
            fs::remove_dir_all(&self.folder).unwrap();
        }
    }
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "not within thirty seconds: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
