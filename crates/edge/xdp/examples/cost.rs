//! What a packet costs by `BPF_PROG_TEST_RUN`, as CSV: docs/results/xdp.md.

#[path = "../tests/plane/packet.rs"]
#[allow(dead_code)]
mod packet;

use std::time::Instant;

use mbal_routing::ketama::KeyHash;
use mbal_xdp::{Plane, Rule, Service, Upstream};

use packet::*;

const REPEAT: u32 = 2_000_000;
const ROUNDS: usize = 7;

/// Median, least and most of the rounds.
fn spread(mut figures: Vec<u64>) -> [u64; 3] {
    figures.sort_unstable();
    [figures[figures.len() / 2], figures[0], figures[figures.len() - 1]]
}

/// Rounds of the program and of one that does nothing alternate.
fn row(what: &str, plane: &Plane, packet: &[u8]) {
    let (mut whole, mut nothing) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        whole.push(plane.run(packet, REPEAT).unwrap().ns);
        nothing.push(plane.run_nothing(packet, REPEAT).unwrap().ns);
    }
    let ([median, least, most], [harness, ..]) = (spread(whole), spread(nothing));
    println!("{what},{},{median},{least},{most},{harness}", median.saturating_sub(harness));
}

/// Packets in turn, each by a call of its own: the kernel's clock and cold caches weigh more, but what comes is not foreseen,
/// and a packet that becomes an answer can be measured at all.
fn single(what: &str, plane: &Plane, packets: &[Vec<u8>]) {
    let (mut whole, mut nothing) = (Vec::new(), Vec::new());
    for packet in packets.iter().cycle().take(50_000) {
        whole.push(plane.run(packet, 1).unwrap().ns);
        nothing.push(plane.run_nothing(packet, 1).unwrap().ns);
    }
    let ([median, ..], [harness, ..]) = (spread(whole), spread(nothing));
    println!("{what},{},{median},,,{harness}", median.saturating_sub(harness));
}

/// The upstreams have the service's addresses: the packet stays the same however often it is rewritten.
fn load(hash: KeyHash, upstreams: u32, sample: u32) -> Plane {
    let plane = Plane::load(Service { sample, ..service(hash) }).unwrap();
    let same = |_| Upstream { address: SERVICE, mac: Some(OUR_MAC) };
    let all: Vec<Upstream> = (0..upstreams).map(same).collect();
    plane.update_ring(&continuum(upstreams), &all).unwrap();
    plane
}

fn main() {
    println!("what,ns,with harness,least,most,harness");
    for (name, hash, upstreams, sample) in [
        ("murmur 12 upstreams", KeyHash::Murmur, 12, 0),
        ("murmur 12 upstreams sampled 1 in 1000", KeyHash::Murmur, 12, 1000),
        ("murmur 100 upstreams", KeyHash::Murmur, 100, 0),
        ("fnv1a_64 12 upstreams", KeyHash::Fnv1a64, 12, 0),
    ] {
        let plane = load(hash, upstreams, sample);
        for length in [4, 8, 16, 31, 64, 128, 250] {
            let packet = get(&vec![b'k'; length]).bytes();
            row(&format!("{name} key {length}"), &plane, &packet);
        }
        let packets = 7 * ROUNDS as u64 * u64::from(REPEAT);
        assert_eq!(plane.counters().unwrap().forwarded, packets, "each was forwarded");
    }
    let plane = load(KeyHash::Murmur, 12, 0);
    row("not for the service", &plane, &Packet { to: CLIENT, ..get(b"k") }.bytes());
    row("a set", &plane, &request("set k 0 0 1\r\nv\r\n").bytes());
    let held = vec![b'h'; 31];
    plane.put(&held, Rule::Pass).unwrap();
    row("passed by rule: key 31", &plane, &get(&held).bytes());

    let keys: Vec<Vec<u8>> = (0..10_000).map(|i| format!("user:{i:026}").into_bytes()).collect();
    let packets: Vec<Vec<u8>> = keys.iter().map(|key| get(key).bytes()).collect();
    single("one by one: key 31", &plane, &packets);
    for bytes in [32, 500, 1000] {
        for key in &keys[..100] {
            let rule = Rule::Answer { flags: 0, value: &vec![b'v'; bytes], until_ns: u64::MAX };
            plane.put(key, rule).unwrap();
        }
        let what = format!("one by one: key 31 answered with {bytes} bytes");
        single(&what, &plane, &packets[..100]);
    }

    let mut waits = Vec::new();
    for _ in 0..100 {
        let begin = Instant::now();
        plane.settle().unwrap();
        waits.push(begin.elapsed().as_micros() as u64);
    }
    let [median, least, most] = spread(waits);
    println!("settle us,{median},,{least},{most},");
}
