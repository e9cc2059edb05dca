//! Datagrams to a proxy.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

use crate::pool::{Memcached, Proxied, list};
use crate::running::Folder;

fn client(port: u16) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client
}

fn send(client: &UdpSocket, id: u8, requests: &[u8]) {
    client.send(&[&[0, id, 0, 0, 0, 1, 0, 0], requests].concat()).unwrap();
}

/// The next message, which comes in one datagram or in several.
fn message(client: &UdpSocket, id: u8) -> Vec<u8> {
    let (mut parts, mut total) = (BTreeMap::new(), 1);
    let mut buffer = [0; 2000];
    while parts.len() < total {
        let length = client.recv(&mut buffer).unwrap();
        let number = |at: usize| u16::from_be_bytes([buffer[at], buffer[at + 1]]);
        assert_eq!((number(0), number(6)), (id.into(), 0));
        total = number(4).into();
        assert_eq!(parts.insert(number(2), buffer[8..length].to_vec()), None);
    }
    parts.into_values().flatten().collect()
}

#[test]
fn datagrams_are_answered_to_their_sender() {
    let Some(pool) = Memcached::some(3) else { return };
    let folder = Folder::new("proxy-udp");
    let proxy = Proxied::start(&folder, &["--upstream", &list(&pool), "-U", "-1", "--hash", "md5"]);
    let port = proxy.udp.unwrap();
    let big = "v".repeat(10_000);
    proxy.set("big", &big);
    (0..20).for_each(|key| proxy.set(&format!("k{key}"), &key.to_string()));
    let (a, b) = (client(port), client(port));
    send(&a, 1, b"get k1\r\n");
    send(&b, 2, b"get big\r\n");
    assert_eq!(message(&a, 1), b"VALUE k1 0 1\r\n1\r\nEND\r\n");
    assert_eq!(message(&b, 2), format!("VALUE big 0 10000\r\n{big}\r\nEND\r\n").as_bytes());
    // Keys of all upstreams: one reply. Several requests: a message each, in their order.
    let mut get = "get".to_owned();
    let mut expected = String::new();
    for key in 0..20 {
        get += &format!(" k{key}");
        expected += &format!("VALUE k{key} 0 {}\r\n{key}\r\n", key.to_string().len());
    }
    send(&a, 3, (get + "\r\n").as_bytes());
    assert_eq!(message(&a, 3), (expected + "END\r\n").as_bytes());
    send(&a, 4, b"get k3\r\nset k3 0 0 2 noreply\r\n33\r\nget k3\r\nget k4\r\nmn\r\nget k");
    for reply in ["VALUE k3 0 1\r\n3\r\nEND\r\n", "VALUE k3 0 2\r\n33\r\nEND\r\n"] {
        assert_eq!(message(&a, 4), reply.as_bytes());
    }
    for reply in ["VALUE k4 0 1\r\n4\r\nEND\r\n", "MN\r\n"] {
        assert_eq!(message(&a, 4), reply.as_bytes());
    }
    // Binary: a get that misses.
    let mut frame = [0; 25];
    frame[0] = 0x80;
    (frame[3], frame[11], frame[24]) = (1, 1, b'x');
    send(&b, 5, &frame);
    assert_eq!(message(&b, 5)[..8], [0x81, 0, 0, 0, 0, 0, 0, 1]);
    // What is no request, or no whole one, is answered to nobody; `quit` and `shutdown` end nothing.
    a.send(b"get k1\r\n").unwrap();
    send(&a, 6, b"get k1");
    send(&a, 7, b"quit\r\n");
    send(&a, 8, b"shutdown\r\n");
    assert_eq!(message(&a, 8), b"SERVER_ERROR: shutdown not enabled\r\n");
    send(&a, 9, b"get k1\r\n");
    assert_eq!(message(&a, 9), b"VALUE k1 0 1\r\n1\r\nEND\r\n");
    assert_eq!(proxy.stat("curr_connections").as_deref(), Some("1"), "each session has ended");
}

#[test]
fn a_datagram_hears_that_its_upstream_is_gone() {
    let Some(mut pool) = Memcached::some(1) else { return };
    let folder = Folder::new("proxy-udp-down");
    let flags = ["--upstream", &pool[0].name(), "-U", "-1", "--timeout", "100ms"];
    let proxy = Proxied::start(&folder, &flags);
    let sender = client(proxy.udp.unwrap());
    pool[0].signal("STOP");
    send(&sender, 1, b"get a\r\n");
    assert_eq!(message(&sender, 1), b"SERVER_ERROR upstream timed out\r\n");
    pool.clear();
}
