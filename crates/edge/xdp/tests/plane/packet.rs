//! Packets as a reader sees them, and the checks that every packet which leaves has to stand.

use std::net::{Ipv4Addr, SocketAddrV4};

use mbal_random::Random;
use mbal_routing::ketama::KeyHash;
use mbal_routing::{Continuum, Point};
use mbal_xdp::{Error, Plane, Service, Upstream};

pub const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 40_001);
pub const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 100), 11_211);
pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 100];

pub const PASS: u32 = 2;
pub const TX: u32 = 3;

/// A datagram of memcached's protocol in Ethernet.
#[derive(Clone, Debug)]
pub struct Packet {
    pub to_mac: [u8; 6],
    pub from_mac: [u8; 6],
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    pub id: u16,
    /// Number and count of the datagram, then zero.
    pub frame: [u16; 3],
    pub text: Vec<u8>,
    pub with_checksum: bool,
}

pub fn request(text: impl AsRef<[u8]>) -> Packet {
    Packet {
        to_mac: OUR_MAC,
        from_mac: CLIENT_MAC,
        from: CLIENT,
        to: SERVICE,
        id: 0xbeef,
        frame: [0, 1, 0],
        text: text.as_ref().to_vec(),
        with_checksum: true,
    }
}

pub fn get(key: &[u8]) -> Packet {
    request([b"get ", key, b"\r\n"].concat())
}

impl Packet {
    pub fn bytes(&self) -> Vec<u8> {
        let mut payload = self.id.to_be_bytes().to_vec();
        payload.extend(self.frame.iter().flat_map(|word| word.to_be_bytes()));
        payload.extend(&self.text);
        let udp_length = 8 + payload.len() as u16;
        let mut udp = [self.from.port(), self.to.port(), udp_length, 0]
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect::<Vec<u8>>();
        udp.extend(payload);
        let (from, to) = (self.from.ip().octets(), self.to.ip().octets());
        if self.with_checksum {
            let check = match checksum(&[&pseudo(from, to, udp_length), &udp[..]].concat()) {
                0 => 0xffff,
                check => check,
            };
            udp[6..8].copy_from_slice(&check.to_be_bytes());
        }
        let mut ip = vec![0x45, 0];
        ip.extend((20 + udp_length).to_be_bytes());
        ip.extend([0x12, 0x34, 0x40, 0, 64, 17, 0, 0]);
        ip.extend(from);
        ip.extend(to);
        let check = checksum(&ip);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        [&self.to_mac[..], &self.from_mac, &[8, 0], &ip, &udp].concat()
    }
}

fn pseudo(from: [u8; 4], to: [u8; 4], udp_length: u16) -> Vec<u8> {
    [&from[..], &to, &[0, 17], &udp_length.to_be_bytes()].concat()
}

/// The internet's, of big-endian words.
pub fn checksum(bytes: &[u8]) -> u16 {
    let word = |word: &[u8]| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Both checksums of a packet without options are what they have to be.
pub fn checksums_hold(packet: &[u8]) -> bool {
    let length = usize::from(u16::from_be_bytes([packet[16], packet[17]]));
    let (ip, udp) = (&packet[14..34], &packet[34..14 + length]);
    let (from, to) = (ip[12..16].try_into().unwrap(), ip[16..20].try_into().unwrap());
    let all = [&pseudo(from, to, udp.len() as u16), udp].concat();
    checksum(ip) == 0 && (udp[6..8] == [0, 0] || checksum(&all) == 0)
}

/// The address and next hop of the upstream at a place.
pub fn upstream(place: u32) -> Upstream {
    let [_, _, high, low] = place.to_be_bytes();
    Upstream {
        address: SocketAddrV4::new(Ipv4Addr::new(10, 1, high, low), 12_000 + place as u16),
        mac: Some([2, 0, 0, 1, high, low]),
    }
}

/// 160 points for each.
pub fn continuum(upstreams: u32) -> Continuum {
    let mut random = Random::new(7);
    let points = (0..160 * upstreams)
        .map(|i| Point { at: random.word() as u32, upstream: i % upstreams })
        .collect();
    Continuum::new(points).unwrap()
}

pub fn service(hash: KeyHash) -> Service {
    Service { address: SERVICE, mac: OUR_MAC, hash, sample: 0 }
}

/// With a ring of so many upstreams. `None` where packet programs cannot be loaded: not root, or no kernel for it.
pub fn plane(service: Service, upstreams: u32) -> Option<Plane> {
    let plane = match Plane::load(service) {
        Ok(plane) => plane,
        // Maps come before programs: who may make some, has to be able to load the program.
        Err(error @ Error::Load(_)) => {
            eprintln!("SKIPPED, NOT TESTED: {error}");
            assert!(std::env::var_os("MBAL_XDP_MUST_LOAD").is_none(), "{error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    Some(with_ring(plane, upstreams))
}

pub fn with_ring(plane: Plane, upstreams: u32) -> Plane {
    let all: Vec<Upstream> = (0..upstreams).map(upstream).collect();
    plane.update_ring(&continuum(upstreams), &all).unwrap();
    plane
}
