//! Each planted mistake is found by a check that the program without it stands.

use mbal_routing::ketama::KeyHash;
use mbal_xdp::Plane;
use mbal_xdp::planted::PROGRAMS;

use crate::packet::{service, with_ring};
use crate::{agree, forward, hot};

#[test]
fn planted_faults_are_found() {
    for (name, program) in PROGRAMS {
        let load = |service| Plane::load_program(program, service);
        let plane = match load(service(KeyHash::Murmur)) {
            Ok(plane) => with_ring(plane, 12),
            Err(error) => return eprintln!("SKIPPED, NOT TESTED: {error}"),
        };
        let by_fnv = with_ring(load(agree::sampling(KeyHash::Fnv1a64)).unwrap(), 100);
        let found = match *name {
            "keys_are_not_compared" => hot::keys_are_compared(&plane),
            "udp_checksum_stays" => forward::requests_are_forwarded(&plane),
            "answers_outlive_their_lease" => hot::answers_end_with_their_lease(&plane),
            "bytes_are_unsigned" => agree::agrees(&by_fnv, KeyHash::Fnv1a64),
            "hot_keys_are_passed_by" => hot::keys_pass_by_rule(&plane),
            "tail_is_not_hashed" => agree::agrees(&by_fnv, KeyHash::Fnv1a64),
            _ => panic!("{name} has no check"),
        };
        assert!(found.is_err(), "{name} was not found");
        println!("{name}: found");
    }
}
