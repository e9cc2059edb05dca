//! Keys that are answered, or passed, by a rule of their own.

use mbal_routing::ketama::KeyHash;
use mbal_xdp::{ANSWER_BYTES_MAX, Error, Plane, Rule, now_ns};

use crate::packet::*;

pub const FOREVER: u64 = u64::MAX;

/// What the client has to get.
fn answered(packet: &Packet, text: impl AsRef<[u8]>) -> Vec<u8> {
    let answer = Packet {
        to_mac: packet.from_mac,
        from_mac: packet.to_mac,
        from: packet.to,
        to: packet.from,
        frame: [0, 1, 0],
        text: text.as_ref().to_vec(),
        with_checksum: true,
        ..packet.clone()
    };
    answer.bytes()
}

pub fn hot_keys_are_answered(plane: &Plane) -> Result<(), String> {
    for (key, size) in
        [(1, 0), (3, 1), (8, 31), (31, 32), (64, 500), (249, 512), (250, 1000), (7, 1363)]
    {
        let (key, value) = (vec![b'k'; key], vec![b'v'; size]);
        plane.put(&key, Rule::Answer { flags: 7, value: &value, until_ns: FOREVER }).unwrap();
        for packet in [get(&key), Packet { with_checksum: false, ..get(&key) }] {
            let ran = plane.run(&packet.bytes(), 1).unwrap();
            let head = [b"VALUE ", &key[..], format!(" 7 {size}\r\n").as_bytes()].concat();
            let mut expected = answered(&packet, [&head[..], &value, b"\r\nEND\r\n"].concat());
            // The frame's identification is the request's.
            expected[18..20].copy_from_slice(&packet.bytes()[18..20]);
            assert!(checksums_hold(&expected));
            if (ran.verdict, &ran.packet) != (TX, &expected) {
                return Err(format!("{packet:?}\nbecame {ran:?}\ninstead of {expected:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn a_hot_key_is_answered_with_its_value() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    hot_keys_are_answered(&plane).unwrap();
    let counters = plane.counters().unwrap();
    assert_eq!((counters.answered, counters.forwarded), (16, 0));
}

/// A key whose hash is another's, by one of them.
pub fn colliding() -> (Vec<u8>, Vec<u8>) {
    let mut seen = std::collections::HashMap::new();
    for i in 0.. {
        let key = format!("key{i:05}").into_bytes();
        if let Some(other) = seen.insert(KeyHash::Murmur.place(&key), key.clone()) {
            return (other, key);
        }
    }
    unreachable!()
}

pub fn keys_are_compared(plane: &Plane) -> Result<(), String> {
    let (hot, other) = colliding();
    plane.put(&hot, Rule::Answer { flags: 0, value: b"v", until_ns: FOREVER }).unwrap();
    assert_eq!(plane.run(&get(&hot).bytes(), 1).unwrap().packet[..6], CLIENT_MAC);
    let ran = plane.run(&get(&other).bytes(), 1).unwrap();
    if ran.packet[..6] == CLIENT_MAC {
        return Err("a key got another's answer".to_owned());
    }
    // One way of a set leads to one key of a hash.
    let refused = plane.put(&other, Rule::Pass).unwrap_err();
    assert!(matches!(refused, Error::HotFull));
    Ok(())
}

#[test]
fn keys_with_one_hash_are_not_mixed_up() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    keys_are_compared(&plane).unwrap();
    // Prefixes and neighbours of a hot key are forwarded.
    plane.put(b"foobar12", Rule::Pass).unwrap();
    for key in [&b"foobar1"[..], b"foobar13", b"foobar123", b"goobar12"] {
        assert_eq!(plane.run(&get(key).bytes(), 1).unwrap().verdict, TX);
    }
    assert_eq!(plane.run(&get(b"foobar12").bytes(), 1).unwrap().verdict, PASS);
}

pub fn keys_pass_by_rule(plane: &Plane) -> Result<(), String> {
    plane.put(b"foobar", Rule::Pass).unwrap();
    for packet in [get(b"foobar"), request("mg foobar v\r\n")] {
        let ran = plane.run(&packet.bytes(), 1).unwrap();
        if (ran.verdict, &ran.packet) != (PASS, &packet.bytes()) {
            return Err(format!("{ran:?}"));
        }
    }
    Ok(())
}

#[test]
fn a_key_passes_to_the_sockets_by_its_rule() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    keys_pass_by_rule(&plane).unwrap();
    assert_eq!(plane.counters().unwrap().by_rule, 2);
    assert!(plane.remove(b"foobar").unwrap());
    assert_eq!(plane.run(&get(b"foobar").bytes(), 1).unwrap().verdict, TX);
    assert!(!plane.remove(b"foobar").unwrap(), "it has no rule any more");
}

pub fn answers_end_with_their_lease(plane: &Plane) -> Result<(), String> {
    let to = |plane: &Plane| plane.run(&get(b"foobar").bytes(), 1).unwrap().packet[..6].to_vec();
    plane.put(b"foobar", Rule::Answer { flags: 0, value: b"v", until_ns: now_ns() }).unwrap();
    if to(plane) == CLIENT_MAC {
        return Err("answered after its time".to_owned());
    }
    assert!(plane.renew(b"foobar", FOREVER));
    assert_eq!(to(plane), CLIENT_MAC);
    assert!(plane.renew(b"foobar", 0));
    assert_ne!(to(plane), CLIENT_MAC);
    assert!(!plane.renew(b"other", 0));
    Ok(())
}

#[test]
fn an_answer_ends_with_its_lease_and_then_the_upstream_is_asked() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    answers_end_with_their_lease(&plane).unwrap();
    let counters = plane.counters().unwrap();
    assert_eq!((counters.answered, counters.expired, counters.forwarded), (1, 2, 2));
}

#[test]
fn meta_gets_of_a_hot_key_go_to_its_upstream() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    plane.put(b"foobar", Rule::Answer { flags: 0, value: b"v", until_ns: FOREVER }).unwrap();
    let ran = plane.run(&request("mg foobar v\r\n").bytes(), 1).unwrap();
    assert_ne!((ran.verdict, &ran.packet[..6]), (TX, &CLIENT_MAC[..]));
    assert_eq!(plane.counters().unwrap().forwarded, 1);
}

#[test]
fn a_new_value_takes_the_place_of_the_old_one() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    // More often than there are places: those of old values come back.
    for round in 0..3000 {
        let value = round.to_string();
        let rule = Rule::Answer { flags: 0, value: value.as_bytes(), until_ns: FOREVER };
        plane.put(b"foobar", rule).unwrap();
        let ran = plane.run(&get(b"foobar").bytes(), 1).unwrap();
        let text = format!("VALUE foobar 0 {}\r\n{value}\r\nEND\r\n", value.len());
        assert!(ran.packet.ends_with(text.as_bytes()));
    }
}

#[test]
fn hot_keys_are_many_but_not_more_than_there_is_room_for() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    let key = |i: u32| format!("key{i}").into_bytes();
    let put: Vec<u32> = (0..1100).filter(|i| plane.put(&key(*i), Rule::Pass).is_ok()).collect();
    // Places are for 1,024 keys; some more find their set's four ways taken.
    assert!((1000..=1024).contains(&put.len()), "{}", put.len());
    for i in 0..1100 {
        let expected = if put.contains(&i) { PASS } else { TX };
        assert_eq!(plane.run(&get(&key(i)).bytes(), 1).unwrap().verdict, expected, "{i}");
    }
    for i in &put {
        assert!(plane.retract(&key(*i)));
    }
    plane.settle().unwrap();
    assert!((0..900).filter(|i| plane.put(&key(*i), Rule::Pass).is_ok()).count() > 850);
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    let put = |plane: &Plane, key: &[u8], value: &[u8]| {
        let rule = Rule::Answer { flags: 0, value, until_ns: FOREVER };
        plane.put(key, rule).map_err(|error| error.to_string())
    };
    // "VALUE k 0 1369\r\n" and "\r\nEND\r\n" around it.
    let most = ANSWER_BYTES_MAX - 16 - 7;
    assert_eq!(put(&plane, b"k", &vec![0; most]), Ok(()));
    assert_eq!(put(&plane, b"k", &vec![0; most + 1]), Err("an answer of 1393 bytes".to_owned()));
    assert_eq!(put(&plane, b"", b"v"), Err("a key of 0 bytes".to_owned()));
    assert_eq!(put(&plane, &[b'k'; 251], b"v"), Err("a key of 251 bytes".to_owned()));
}
