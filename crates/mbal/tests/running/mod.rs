//! Servers that tests start, and what they say.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub mod heard;
pub mod led;
pub mod memcached;
pub mod signals;

pub const MBAL: &str = env!("CARGO_BIN_EXE_mbal");

/// A folder of its own for each test, which goes when the test has passed.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("mbal-serve-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes what nobody else may read.
    pub fn keep(&self, name: &str, text: &str) {
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(self.path(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !thread::panicking() {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

/// So many ports, one behind the other. They lie below those that the system gives to whoever asks for any: nobody else takes one
/// before its server does, or while that is away.
pub fn free_ports(count: u16) -> Vec<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 12_000;
    const PORTS: u16 = 18_000;
    loop {
        let taken = NEXT.fetch_add(count, Ordering::Relaxed);
        // Another process begins elsewhere.
        let first = (std::process::id() as u16).wrapping_mul(97).wrapping_add(taken) % PORTS;
        let ports: Vec<u16> = (FIRST + first..FIRST + first + count).collect();
        let bound = ports.iter().map(|port| TcpListener::bind(("127.0.0.1", *port)));
        if bound.collect::<Result<Vec<_>, _>>().is_ok() {
            return ports;
        }
    }
}

/// A running server, ended by its test or, if that fails, with it.
pub struct Running {
    pub child: Child,
    /// 0 where it has none: of a Unix socket, or without metrics.
    pub port: u16,
    pub metrics: u16,
}

impl Running {
    /// Starts `program` on a free port, which it writes into a file of `folder`.
    pub fn start(folder: &Folder, program: &Path, arguments: &[&str]) -> Running {
        Running::try_start(folder, program, arguments)
            .unwrap_or_else(|said| panic!("the server ended: {said}"))
    }

    /// Likewise; what a server said that ended before it had its ports is the error.
    pub fn try_start(
        folder: &Folder,
        program: &Path,
        arguments: &[&str],
    ) -> Result<Running, String> {
        Running::of(folder, Command::new(program).args(arguments))
    }

    /// Likewise, by a command that a test has made.
    pub fn of(folder: &Folder, command: &mut Command) -> Result<Running, String> {
        let ports = folder.path("ports");
        let mut child = command
            .env("MEMCACHED_PORT_FILENAME", &ports)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ended = false;
        eventually("the server has taken its ports", || {
            ended = child.try_wait().unwrap().is_some();
            ended || ports.exists()
        });
        if ended {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            return Err(said);
        }
        let lines = fs::read_to_string(&ports).unwrap();
        let port = |prefix: &str| {
            let port = lines.lines().find_map(|line| line.strip_prefix(prefix));
            port.map_or(0, |port| port.parse().unwrap())
        };
        Ok(Running { child, port: port("TCP INET: "), metrics: port("HTTP: ") })
    }

    pub fn serve(folder: &Folder, arguments: &[&str]) -> Running {
        let all: Vec<&str> = ["serve"].iter().chain(arguments).copied().collect();
        Running::start(folder, MBAL.as_ref(), &all)
    }

    /// Who has to share the keys with others lets nobody in at first.
    pub fn connect(&self) -> TcpStream {
        let mut stream = None;
        eventually("it lets clients in", || {
            stream = TcpStream::connect(("127.0.0.1", self.port)).ok();
            stream.is_some()
        });
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    pub fn signal(mut self, name: &str) -> (ExitStatus, String) {
        signal(&self.child, name);
        self.wait()
    }

    pub fn wait(&mut self) -> (ExitStatus, String) {
        eventually("the server ends", || self.child.try_wait().unwrap().is_some());
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }
}

/// A process that is killed with its test, which has waited for it, or has failed and says so itself.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// All that is answered to a request, until the connection is closed.
pub fn told(mut stream: TcpStream, request: &str) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The metrics at a port.
pub fn page(port: u16) -> String {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let answer = told(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", page.len())), "{head}");
    page.to_owned()
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "not within half a minute: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub fn ask(stream: &mut (impl Read + Write), request: &str, reply: &str) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = vec![0; reply.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), reply, "to {request:?}");
}

pub fn stats(stream: &mut TcpStream) -> String {
    stream.write_all(b"stats\r\n").unwrap();
    let mut said = Vec::new();
    while !said.ends_with(b"END\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        said.extend(byte);
    }
    String::from_utf8(said).unwrap()
}

pub fn output_of(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// A daemon is nobody's child: it is told to end even if its test fails.
pub struct Daemon(pub String);

impl Drop for Daemon {
    fn drop(&mut self) {
        signals::send(self.0.parse().expect("a process"), "TERM");
    }
}

/// A certificate and its key, if openssl is there to make them.
pub fn certificate(folder: &Folder) -> Option<String> {
    let (key, chain) = (folder.path("key.pem"), folder.path("chain.pem"));
    let request =
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=test -keyout";
    let made = Command::new("openssl")
        .args(request.split(' '))
        .args([&key, Path::new("-out"), &chain])
        .stderr(Stdio::null())
        .status();
    let options = format!("ssl_chain_cert={},ssl_key={}", chain.display(), key.display());
    made.is_ok_and(|status| status.success()).then_some(options)
}

/// Sets it at the end of a test or a part of it, passed or not: threads that wait for it end, and nobody waits for them in vain.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// [`signals::send`] to a child.
pub fn signal(child: &Child, name: &str) {
    signals::send(child.id(), name);
}
