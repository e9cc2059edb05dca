//! A server that is loaded by its protocol without waiting for replies, and asked how it does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Server {
    child: Child,
    stream: BufReader<TcpStream>,
}

impl Server {
    /// Starts `command` with `-m`, and with a port of its own.
    pub fn start(command: &str, memory_mib: usize) -> Result<Server, String> {
        const START_MAX: Duration = Duration::from_secs(20);
        let fail = |error: std::io::Error| format!("{command}: {error}");
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).map_err(fail)?.port();
        let mut words = command.split_ascii_whitespace();
        let mut child = Command::new(words.next().ok_or("no command")?)
            .args(words)
            .args(["-m", &memory_mib.to_string(), "-p", &port.to_string(), "-l", "127.0.0.1"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(fail)?;
        let begin = Instant::now();
        loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => return Ok(Server { child, stream: BufReader::new(stream) }),
                Err(error) if begin.elapsed() > START_MAX => {
                    child.kill().and_then(|()| child.wait()).map_err(fail)?;
                    return Err(fail(error));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Sets keys `from..to` of 10 B to values of this length.
    pub fn set(&mut self, from: u64, to: u64, value_bytes: usize) -> Result<(), String> {
        let mut requests = Vec::new();
        let value = vec![b'v'; value_bytes];
        for number in from..to {
            write!(requests, "set {number:010} 0 0 {value_bytes} noreply\r\n").expect("to memory");
            requests.extend_from_slice(&value);
            requests.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&requests).map_err(|error| error.to_string())
    }

    /// The named numbers of `stats`, after everything that was sent has been done.
    pub fn stats<const N: usize>(&mut self, names: [&str; N]) -> Result<[u64; N], String> {
        self.stream.get_mut().write_all(b"stats\r\n").map_err(|error| error.to_string())?;
        let mut found = [0; N];
        loop {
            let mut line = String::new();
            let read = self.stream.by_ref().take(4096).read_line(&mut line);
            if read.map_err(|error| error.to_string())? == 0 {
                return Err("the server closed the connection".into());
            }
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words[..] {
                ["END"] => return Ok(found),
                ["STAT", name, value] => {
                    if let Some(at) = names.iter().position(|wanted| *wanted == name) {
                        found[at] = value.parse().map_err(|_| format!("{name} is {value:?}"))?;
                    }
                }
                _ => return Err(format!("stats answered {line:?}")),
            }
        }
    }

    pub fn rss_bytes(&self) -> Result<u64, String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.map_err(|error| error.to_string())?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| "a process without VmRSS".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("server {}: {error}", self.child.id());
        }
    }
}
