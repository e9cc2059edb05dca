//! The packet program between a client and memcached, each on a host of its own: network namespaces and veth. Root is needed.
#![cfg(feature = "kernel")]

#[allow(dead_code, reason = "each test file uses a part of it")]
mod net;

use std::net::UdpSocket;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::Duration;

use mbal_xdp::{Plane, Rule};

use net::*;

const FOREVER: u64 = u64::MAX;

fn key(i: usize) -> Vec<u8> {
    format!("key:{i:0width$}", width = 1 + i % 200).into_bytes()
}

fn value(i: usize) -> Vec<u8> {
    vec![b'a' + (i % 26) as u8; i * 7 % 1100]
}

fn fill(net: &Net, keys: usize) {
    net.at("proxy", || {
        for i in 0..keys {
            set(&mut connect(home(&key(i))), &key(i), &value(i));
        }
    });
}

#[test]
fn reads_go_to_the_server_that_has_the_key_and_the_client_gets_its_answer() {
    let Some(net) = Net::new() else { return };
    const KEYS: usize = 300;
    const READS: usize = 20_000;
    fill(&net, KEYS);
    let plane = net.plane();
    for i in (0..KEYS).step_by(10) {
        let rule = Rule::Answer { flags: 0, value: &value(i), until_ns: FOREVER };
        plane.put(&key(i), rule).unwrap();
    }
    let lost = net.at("client", || {
        let mut client = Client::new(SERVICE);
        let mut lost = 0;
        for read in 0..READS {
            let i = read * 7 % KEYS;
            match client.get(&key(i)) {
                Some(text) => assert_eq!(text, reply(&key(i), &value(i)), "key {i}"),
                None => lost += 1,
            }
        }
        assert_eq!(client.get(b"missing").unwrap(), b"END\r\n");
        assert_eq!(client.ask(b"mg missing v\r\n").unwrap(), b"EN\r\n");
        lost
    });
    let counters = plane.counters().unwrap();
    println!("{READS} reads, {lost} lost: {counters:?}");
    assert!(lost * 100 < READS);
    // Between veth pairs a packet's memory has room for short answers only.
    assert!(counters.answered > 0);
    assert_eq!(counters.answered + counters.cramped, READS as u64 / 10);
    assert_eq!(counters.forwarded, READS as u64 * 9 / 10 + counters.cramped + 2);
}

#[test]
fn everything_else_reaches_the_sockets_and_all_of_it_when_the_plane_is_dropped() {
    let Some(net) = Net::new() else { return };
    let plane = net.plane();
    let socket = net.at("proxy", || UdpSocket::bind(SERVICE).unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let heard = |text: &[u8]| {
        net.at("client", || Client::new(SERVICE).ask(text));
        let mut bytes = [0; 2048];
        let (length, _) = socket.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[8..length], text);
    };
    heard(b"get a b\r\n");
    heard(b"set a 0 0 1\r\nb\r\n");
    plane.put(b"by", Rule::Pass).unwrap();
    heard(b"get by\r\n");
    let missing = || net.at("client", || Client::new(SERVICE).get(b"a"));
    assert_eq!(missing().unwrap(), b"END\r\n", "by a server");
    drop(plane);
    heard(b"get a\r\n");
}

/// Reads through the plane while `write` writes versions 1, 2, ... of a hot key; it tells what it has acknowledged.
fn reads_while_a_key_is_written(
    net: &Net,
    plane: &Plane,
    writes: u64,
    write: impl Fn(&Plane, u64, &AtomicU64) + Sync,
) -> Result<u64, String> {
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let read = || {
        net.at("client", || {
            let (mut client, mut last, mut reads) = (Client::new(SERVICE), 0, 0);
            while !stop.load(SeqCst) {
                let least = acknowledged.load(SeqCst).max(last);
                let Some(text) = client.get(b"hot") else { continue };
                let text = String::from_utf8(text).unwrap();
                let version = text.lines().nth(1).map_or(0, |line| line.parse().unwrap());
                if version < least {
                    return Err(format!("{version} after {least}"));
                }
                (last, reads) = (version, reads + 1);
            }
            Ok(reads)
        })
    };
    thread::scope(|scope| {
        let readers = [scope.spawn(read), scope.spawn(read)];
        net.at("proxy", || {
            for version in 1..=writes {
                write(plane, version, &acknowledged);
                if readers.iter().any(|reader| reader.is_finished()) {
                    break;
                }
            }
        });
        stop.store(true, SeqCst);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    })
}

fn store(version: u64) {
    set(&mut connect(home(b"hot")), b"hot", version.to_string().as_bytes());
}

fn put(plane: &Plane, version: u64) {
    let value = version.to_string();
    plane
        .put(b"hot", Rule::Answer { flags: 0, value: value.as_bytes(), until_ns: FOREVER })
        .unwrap();
}

#[test]
fn no_client_reads_an_older_value_than_was_acknowledged_or_read() {
    let Some(net) = Net::new() else { return };
    let plane = net.plane();
    let reads = reads_while_a_key_is_written(&net, &plane, 300, |plane, version, acknowledged| {
        plane.remove(b"hot").unwrap();
        store(version);
        acknowledged.store(version, SeqCst);
        put(plane, version);
        thread::sleep(Duration::from_millis(2));
    });
    println!("{} reads: {:?}", reads.unwrap(), plane.counters().unwrap());
    let counters = plane.counters().unwrap();
    assert!(counters.answered > 0 && counters.forwarded > 0, "{counters:?}");
}

/// A coordinator that removes the rule only after the server has the new value is found out.
#[test]
fn a_rule_that_goes_too_late_is_found() {
    let Some(net) = Net::new() else { return };
    let plane = net.plane();
    let found = reads_while_a_key_is_written(&net, &plane, 2000, |plane, version, acknowledged| {
        store(version);
        acknowledged.store(version, SeqCst);
        thread::sleep(Duration::from_millis(1));
        plane.remove(b"hot").unwrap();
        put(plane, version);
    });
    println!("{}", found.unwrap_err());
}
