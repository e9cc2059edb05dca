//! Clients that speak TLS, by openssl.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;

use crate::pool::{Memcached, Proxied, list};
use crate::running::{Folder, ask, certificate, eventually};

/// All that is answered to a request that ends with `quit`, over TLS.
fn secret(port: u16, request: String) -> String {
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{port}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = client.stdin.take().unwrap();
    let writes = thread::spawn(move || drop(stdin.write_all(request.as_bytes())));
    let mut reply = String::new();
    client.stdout.take().unwrap().read_to_string(&mut reply).unwrap();
    writes.join().unwrap();
    client.wait().unwrap();
    reply
}

/// The subject of the certificate that a new client is shown.
fn subject(port: u16) -> String {
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{port}")])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.lines().find(|line| line.starts_with("subject")).unwrap_or_default().to_owned()
}

#[test]
fn clients_by_tls_get_all_of_their_replies() {
    let Some(pool) = Memcached::some(2) else { return };
    let folder = Folder::new("proxy-tls");
    let Some(options) = certificate(&folder) else {
        eprintln!("SKIPPED, NOT TESTED: no openssl");
        return;
    };
    let proxy = Proxied::start(&folder, &["--upstream", &list(&pool), "-Z", "-o", &options]);
    let port = proxy.running.port;
    assert_eq!(secret(port, "set a 0 0 1\r\nx\r\nget a\r\nquit\r\n".into()), {
        "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"
    });
    // More than sockets take at once, and more requests than a client may have on their way.
    let big = "v".repeat(100_000);
    let mut request = format!("set big 0 0 100000\r\n{big}\r\n");
    request += &"get big\r\n".repeat(40);
    request += &"get a\r\n".repeat(3000);
    let expected = format!("VALUE big 0 100000\r\n{big}\r\nEND\r\n");
    let small = "VALUE a 0 1\r\nx\r\nEND\r\n";
    let expected = format!("STORED\r\n{}{}", expected.repeat(40), small.repeat(3000));
    let reply = secret(port, request + "quit\r\n");
    assert!(reply == expected, "{} bytes instead of {}", reply.len(), expected.len());
    // One that speaks no TLS is not heard, and keeps nobody waiting.
    let mut plain = TcpStream::connect(("127.0.0.1", port)).unwrap();
    plain.write_all(b"get a\r\nget a\r\n").unwrap();
    let mut heard = Vec::new();
    drop(plain.read_to_end(&mut heard));
    assert!(!heard.starts_with(b"VALUE"), "{heard:?}");
    eventually("all have gone", || proxy.metric("mbal_proxy_connections") == Some(0.0));
    assert_eq!(proxy.metric("mbal_proxy_tls_handshake_errors_total"), Some(1.0));
}

#[test]
fn one_port_may_do_without_and_certificates_are_read_again() {
    let Some(pool) = Memcached::some(1) else { return };
    let folder = Folder::new("proxy-notls");
    let Some(options) = certificate(&folder) else {
        eprintln!("SKIPPED, NOT TESTED: no openssl");
        return;
    };
    let upstream = pool[0].name();
    let places = ["-l", "127.0.0.1", "-l", "notls:127.0.0.2"];
    let flags = ["--upstream", &upstream, "-Z", "-o", &options];
    let proxy = Proxied::start(&folder, &[&places[..], &flags[..]].concat());
    let port = proxy.running.port;
    let shown = subject(port);
    assert!(shown.contains("test"), "{shown}");
    let request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=later";
    let made = Command::new("openssl")
        .args(request.split(' '))
        .args(["-keyout".as_ref(), folder.path("key.pem").as_os_str()])
        .args(["-out".as_ref(), folder.path("chain.pem").as_os_str()])
        .stderr(Stdio::null())
        .status();
    assert!(made.unwrap().success());
    proxy.hang_up();
    eventually("the new certificate is shown", || subject(port).contains("later"));
    fs::write(folder.path("key.pem"), "none").unwrap();
    proxy.hang_up();
    assert!(subject(port).contains("later"));
    let mut plain = TcpStream::connect(("127.0.0.2", proxy.tcp[1])).unwrap();
    ask(&mut plain, "set a 0 0 1\r\nx\r\n", "STORED\r\n");
}

#[test]
fn what_is_no_option_of_tls_is_refused() {
    let folder = Folder::new("proxy-tls-refused");
    let refused = |flags: &[&str]| {
        let all = [&["--upstream", "127.0.0.1:1"], flags].concat();
        Proxied::try_start(&folder, &all).map(|_| ()).unwrap_err().trim().to_owned()
    };
    assert_eq!(refused(&["-o", "ssl_chain_cert=/x,idle_timeout=1"]), {
        "mbal proxy: -o idle_timeout=1: of these options a proxy knows ssl_* alone"
    });
    assert_eq!(refused(&["-l", "mtls:127.0.0.1"]), {
        "mbal proxy: -l btls:, mtls: are valid only when SSL is enabled (-Z)"
    });
    assert!(refused(&["-Z"]).contains("-Z needs -o ssl_chain_cert"));
}
