//! What a server tells of clients that break TLS.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use mbal_server::{
    BalanceConfig, ClientCertificate, Config, Control, Interface, Listen, Login, Mode, Server,
    Settings, TlsSettings,
};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

const PATIENCE: Duration = Duration::from_secs(60);

fn config(tls: TlsSettings, port_file: &Path) -> Config {
    let listen = |tls| Listen { interface: Interface::Loopback, port: 0, tls };
    let port_file = Some(port_file.to_owned());
    Config {
        settings: Settings { workers: 2, connections_max: 64, tls, ..Settings::default() },
        listen: vec![listen(Some(ClientCertificate::AsConfigured)), listen(None)],
        udp: Vec::new(),
        unix_socket: None,
        worker_ports: None,
        pin: false,
        login: Login::NotAsked,
        user: None,
        daemon: false,
        pid_file: None,
        core_dumps: false,
        lock_memory: false,
        balance: BalanceConfig {
            mode: Mode::Off,
            epoch: Duration::from_secs(1),
            load_max: 0.75,
            patience: 1,
            chaos: 0,
        },
        control: Control::Off,
        metrics: None,
        http: None,
        cluster: None,
        port_file,
    }
}

/// Asks again until there is an answer.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn dial(port: u16) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// A connection past its handshake, to which anything can be written.
fn past_its_handshake(port: u16, chain: &Path) -> TcpStream {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(chain).expect("a certificate")).expect("a root");
    let config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("the provider has suites")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "test".try_into().expect("a name");
    let mut session = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut socket = dial(port);
    // A reply shows that the server's side is through as well.
    let mut stream = rustls::Stream::new(&mut session, &mut socket);
    stream.write_all(b"mn\r\n").expect("it reads");
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).expect("it answers");
    assert_eq!(&reply, b"MN\r\n");
    socket
}

#[test]
fn who_breaks_tls_is_counted_and_told_of() {
    let folder = std::env::temp_dir().join(format!("mbal-broken-tls-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder of our own");
    let (key, chain, ports) = (folder.join("key"), folder.join("chain"), folder.join("ports"));
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=test \
                 -addext subjectAltName=DNS:test -addext basicConstraints=critical,CA:FALSE -keyout";
    let made = Command::new("openssl")
        .args(words.split_whitespace())
        .args([&key, Path::new("-out"), &chain])
        .stderr(Stdio::null())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: this needs openssl");
        return;
    }
    let text = |path: &Path| Some(path.to_str().expect("text").to_owned());
    let tls = TlsSettings {
        enabled: true,
        chain_cert: text(&chain),
        key: text(&key),
        ..TlsSettings::default()
    };
    let server = Server::open(config(tls, &ports)).expect("its sockets open");
    let running = server.start().expect("its threads start");
    thread::spawn(move || running.wait().map(drop));
    let ports: Vec<u16> = until("both ports", || {
        let text = fs::read_to_string(&ports).ok()?;
        let ports = text.lines().filter_map(|line| line.strip_prefix("TCP INET: "));
        Some(ports.map(|port| port.parse().expect("a number")).collect())
    });
    let [secured, plain] = ports[..] else { panic!("{ports:?}") };

    let mut client = dial(plain);
    let mut counts = || {
        client.write_all(b"stats\r\n").expect("it reads");
        let lines = BufReader::new(&client).lines().map(|line| line.expect("it answers"));
        let lines: Vec<_> = lines.take_while(|line| line != "END").collect();
        ["STAT ssl_handshake_errors ", "STAT ssl_proto_errors "].map(|name| {
            let count = lines.iter().find_map(|line| line.strip_prefix(name));
            count.expect("it is told").parse::<u32>().expect("a number")
        })
    };
    let mut watcher = dial(plain);
    watcher.write_all(b"watch connevents\r\n").expect("it reads");
    let mut told = BufReader::new(watcher).lines().map(|line| line.expect("it tells"));
    assert_eq!(told.next().as_deref(), Some("OK"));
    let mut error = || {
        let line = told.find(|line| line.contains(" type=conntlserr fd=")).expect("it goes on");
        line.split_once(" msg=").expect("a message").1.to_owned()
    };

    dial(secured).write_all(b"version\r\n").expect("it reads");
    assert_eq!(error(), "received corrupt message of type InvalidContentType");
    until("a handshake's error", || (counts() == [1, 0]).then_some(()));
    past_its_handshake(secured, &chain).write_all(b"version\r\n").expect("it reads");
    assert_eq!(error(), "received corrupt message of type InvalidContentType");
    until("an error after it", || (counts() == [1, 1]).then_some(()));
    fs::remove_dir_all(&folder).expect("it is ours");
}
