//! The packet program and `mbal_routing` agree on hashes and upstreams.

use mbal_random::Random;
use mbal_routing::ketama::KeyHash;
use mbal_xdp::{Plane, Service};

use crate::packet::*;

const UPSTREAMS: u32 = 100;

/// Of a plane that samples every key and has a ring of 100 upstreams.
pub fn agrees(plane: &Plane, hash: KeyHash) -> Result<(), String> {
    let continuum = continuum(UPSTREAMS);
    let mut random = Random::new(3);
    for round in 0..20_000 {
        let length = 1 + round % 250;
        let key: Vec<u8> = (0..length).map(|_| 0x21 + random.below(0xdf) as u8).collect();
        let ran = plane.run(&get(&key).bytes(), 1).unwrap();
        let mut seen = Vec::new();
        plane.samples(|sample| seen.push((sample.hash, sample.key.to_vec())));
        let expected = hash.place(&key);
        if seen != [(expected, key.clone())] {
            return Err(format!("{key:?} was sampled as {seen:?}, its hash is {expected:x}"));
        }
        let Some(mac) = upstream(continuum.upstream(expected)).mac else { unreachable!() };
        if ran.packet[..6] != mac {
            return Err(format!("{key:?} of {expected:x} went to {:?}", &ran.packet[..6]));
        }
    }
    Ok(())
}

pub fn sampling(hash: KeyHash) -> Service {
    Service { sample: 1, ..service(hash) }
}

#[test]
fn both_agree_on_twenty_thousand_keys_by_each_hash() {
    for hash in [KeyHash::Murmur, KeyHash::Fnv1a64] {
        let Some(plane) = plane(sampling(hash), UPSTREAMS) else { return };
        agrees(&plane, hash).unwrap();
    }
}

#[test]
fn one_key_of_so_many_is_sampled() {
    let Some(plane) = plane(Service { sample: 64, ..service(KeyHash::Murmur) }, 1) else {
        return;
    };
    for _ in 0..64_000 {
        plane.run(&get(b"foobar").bytes(), 1).unwrap();
    }
    let mut seen = 0;
    plane.samples(|sample| {
        assert_eq!(sample.key, b"foobar");
        seen += 1;
    });
    // 1,000 are expected, with a standard deviation of 32.
    assert!((850..1150).contains(&seen), "{seen}");
    assert_eq!(plane.counters().unwrap().sampled, seen);
}

#[test]
fn samples_that_nobody_fetches_are_counted_and_harm_nothing() {
    let Some(plane) = plane(sampling(KeyHash::Murmur), 1) else { return };
    for _ in 0..5_000 {
        assert_eq!(plane.run(&get(b"foobar").bytes(), 1).unwrap().verdict, TX);
    }
    let counters = plane.counters().unwrap();
    assert!(counters.lost > 0 && counters.sampled + counters.lost == 5_000, "{counters:?}");
    let mut seen = 0;
    plane.samples(|_| seen += 1);
    assert_eq!(seen, counters.sampled);
}
