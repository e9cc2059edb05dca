//! The first reply by TLS, to a client whose kernel keeps its first request back until the end of the handshake is acknowledged: it has no
//! `TCP_NODELAY`, as pymemcache by default. A delayed acknowledgement takes 40 ms.

use std::process::Command;
use std::time::Duration;

mod running;

use running::{Folder, Running, certificate};

/// Connects so many times, asks once each time, and tells how long each took in microseconds.
const CLIENT: &str = "
import socket, ssl, sys, time
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.minimum_version = ssl.TLSVersion.TLSv1_3
for _ in range(10):
    begun = time.monotonic()
    client = context.wrap_socket(socket.create_connection(('127.0.0.1', int(sys.argv[1]))))
    client.sendall(b'mn\\r\\n')
    assert client.recv(16) == b'MN\\r\\n'
    print(int((time.monotonic() - begun) * 1e6))
    client.close()
";

#[test]
fn the_first_reply_does_not_wait_for_a_delayed_acknowledgement() {
    let folder = Folder::new("first-reply");
    let Some(options) = certificate(&folder) else {
        return eprintln!("LEFT OUT: there is no openssl to make a certificate");
    };
    let server =
        Running::serve(&folder, &["-p", "-1", "-t", "1", "--control", "off", "-Z", "-o", &options]);
    let port = server.port.to_string();
    let Ok(told) = Command::new("python3").args(["-c", CLIENT, &port]).output() else {
        return eprintln!("LEFT OUT: there is no python3 to be the client");
    };
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success(), "{said}");
    let took = String::from_utf8(told.stdout).unwrap();
    let fastest = took.lines().map(|micros| micros.parse().unwrap()).min().unwrap();
    assert!(Duration::from_micros(fastest) < Duration::from_millis(25), "{took}");
}
