//! Everything that is not a get of one key passes to the sockets, as it came.

use std::net::{Ipv4Addr, SocketAddrV4};

use mbal_routing::ketama::KeyHash;
use mbal_xdp::Counters;

use crate::packet::*;

/// Changes bytes of a good request, whose checksums nobody looks at here.
fn with(changes: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = get(b"foobar").bytes();
    for (at, byte) in changes {
        bytes[*at] = *byte;
    }
    bytes
}

#[test]
fn what_is_not_a_get_of_one_key_passes_unchanged() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    let good = get(b"foobar").bytes();
    let other_port = SocketAddrV4::new(*SERVICE.ip(), 11_212);
    let other_host = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 101), 11_211);
    let vlan = [&good[..12], &[0x81, 0, 0, 5], &good[12..]].concat();
    let mut ipv6 = good[..14].to_vec();
    ipv6[12..14].copy_from_slice(&[0x86, 0xdd]);
    ipv6.extend([0x60, 0, 0, 0, 0, 28, 17, 64]);
    ipv6.extend([0; 32]);
    ipv6.extend(&good[34..]);

    let foreign = [
        ("another port", Packet { to: other_port, ..get(b"foobar") }.bytes()),
        ("another host", Packet { to: other_host, ..get(b"foobar") }.bytes()),
        ("for another's interface", Packet { to_mac: CLIENT_MAC, ..get(b"foobar") }.bytes()),
        ("for all", Packet { to_mac: [0xff; 6], ..get(b"foobar") }.bytes()),
        ("VLAN", vlan),
        ("IPv6", ipv6),
        ("ARP", with(&[(12, 8), (13, 6)])),
        ("TCP", with(&[(23, 6)])),
        ("ICMP", with(&[(23, 1)])),
        ("nothing in the datagram", request("").bytes().into_iter().take(42).collect()),
        ("a header alone", good[..14].to_vec()),
        ("three bytes of text", good[..53].to_vec()),
    ];
    let unusual = [
        ("IP options", with(&[(14, 0x46)])),
        ("a shorter IP header than there is", with(&[(14, 0x44)])),
        ("another version of IP", with(&[(14, 0x65)])),
        ("the first fragment", with(&[(20, 0x20)])),
        ("a later fragment", with(&[(20, 0), (21, 10)])),
        ("more text than the packet has", good[..good.len() - 1].to_vec()),
        ("much more", with(&[(16, 1), (17, 0x10), (38, 0), (39, 0xfc)])),
        ("UDP longer than IP", with(&[(39, good[39] + 1)])),
        ("UDP shorter than IP", with(&[(39, good[39] - 1)])),
        ("UDP's length is 0", with(&[(38, 0), (39, 0)])),
        ("the second datagram", Packet { frame: [1, 1, 0], ..get(b"k") }.bytes()),
        ("one of two datagrams", Packet { frame: [0, 2, 0], ..get(b"k") }.bytes()),
        ("of no datagrams", Packet { frame: [0, 0, 0], ..get(b"k") }.bytes()),
        ("a reserved word", Packet { frame: [0, 1, 1], ..get(b"k") }.bytes()),
    ];
    let long = "k".repeat(251);
    let texts: &[&str] = &[
        "get a b\r\n",
        "get  a\r\n",
        "get a \r\n",
        "get a\r\nget b\r\n",
        "get a\n\r\n",
        "get a\tb\r\n",
        "get abcdefg\0ijk\r\n",
        "get abcdefghi jklmnopq\r\n",
        "get abcdefgh \r\n",
        "get a\n",
        "get abc",
        "get abcd\rx",
        "gets a\r\n",
        "GET a\r\n",
        " get a\r\n",
        "get\r\n",
        "get \r\n",
        "gat 1 a\r\n",
        "mg a v t\r\n",
        "mg a t\r\n",
        "mg a\r\n",
        "mg  v\r\n",
        "mg a b v\r\n",
        "mn\r\n\r\n\r\n",
        "set a 0 0 1\r\nb\r\n",
        "delete a\r\n",
        "version\r\n",
        "\u{80}\0\0\u{1}a\r\n",
    ];
    let bounds =
        [format!("get {long}\r\n"), format!("mg {long} v\r\n"), format!("get {long}{long}\r\n")];
    let texts = texts.iter().map(|text| (*text).to_owned()).chain(bounds);
    let other: Vec<(String, Vec<u8>)> =
        texts.map(|text| (text.clone(), request(text).bytes())).collect();

    let passes = |what: &str, bytes: &[u8]| {
        let ran = plane.run(bytes, 1).unwrap();
        assert_eq!((ran.verdict, &ran.packet[..]), (PASS, bytes), "{what:?}");
    };
    foreign.iter().chain(&unusual).for_each(|(what, bytes)| passes(what, bytes));
    other.iter().for_each(|(what, bytes)| passes(what, bytes));
    let expected = Counters {
        foreign: foreign.len() as u64,
        unusual: unusual.len() as u64,
        other: other.len() as u64,
        ..Counters::default()
    };
    assert_eq!(plane.counters().unwrap(), expected);
}

/// Whatever a stranger sends either passes as it came, or leaves with the same length to an upstream.
#[test]
fn damaged_requests_never_leave_as_something_else() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    let mut random = mbal_random::Random::new(1);
    let mut sent = 0;
    for round in 0..20_000 {
        let key: Vec<u8> =
            (0..1 + random.below(40)).map(|_| b'a' + random.below(26) as u8).collect();
        let mut bytes = match round % 2 {
            0 => get(&key).bytes(),
            _ => request([b"mg ", &key[..], b" v\r\n"].concat()).bytes(),
        };
        for _ in 0..1 + random.below(3) {
            let at = 12 + random.below(bytes.len() as u64 - 12) as usize;
            bytes[at] = random.word() as u8;
        }
        bytes.truncate(bytes.len() - random.below(4) as usize / 3);
        let ran = plane.run(&bytes, 1).unwrap();
        match ran.verdict {
            PASS => assert_eq!(ran.packet, bytes),
            TX => {
                sent += 1;
                assert_eq!(ran.packet.len(), bytes.len());
                assert_eq!(ran.packet[42..], bytes[42..], "the request itself");
                assert_eq!(checksums_hold(&ran.packet), checksums_hold(&bytes));
            }
            verdict => panic!("{verdict} for {bytes:?}"),
        }
    }
    assert!(sent > 1000, "{sent}");
}
