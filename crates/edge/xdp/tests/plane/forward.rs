//! Gets of one key that go on to its upstream.

use mbal_routing::ketama::KeyHash;
use mbal_xdp::{Plane, Upstream};

use crate::packet::*;

/// What has to become of a get that is forwarded, to the byte.
fn forwarded(packet: &Packet, key: &[u8], hash: KeyHash, upstreams: u32) -> Vec<u8> {
    let place = continuum(upstreams).upstream(hash.place(key));
    let Upstream { address, mac } = upstream(place);
    let sent =
        Packet { to_mac: mac.unwrap(), from_mac: packet.to_mac, to: address, ..packet.clone() };
    sent.bytes()
}

/// A table of requests, each forwarded.
pub fn requests_are_forwarded(plane: &Plane) -> Result<(), String> {
    let long = |length: usize| vec![b'k'; length];
    let plain: Vec<(Packet, Vec<u8>)> =
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 63, 128, 249, 250]
            .map(|length| (get(&long(length)), long(length)))
            .into();
    let special = [
        (request("mg foobar v\r\n"), b"foobar".to_vec()),
        (request([b"mg ", &long(250)[..], b" v\r\n"].concat()), long(250)),
        (get("é∞".as_bytes()), "é∞".as_bytes().to_vec()),
        (get(b"\xff\x80\x7f!"), b"\xff\x80\x7f!".to_vec()),
        (Packet { with_checksum: false, ..get(b"k") }, b"k".to_vec()),
        (Packet { id: 0, ..get(b"k") }, b"k".to_vec()),
    ];
    for (packet, key) in plain.iter().chain(&special) {
        let bytes = packet.bytes();
        // Short frames are filled up to 60 bytes on the wire.
        let filled = [&bytes[..], &vec![0; 60_usize.saturating_sub(bytes.len())]].concat();
        let mut expected = forwarded(packet, key, KeyHash::Murmur, 12);
        for bytes in [bytes, filled] {
            expected.resize(bytes.len().max(expected.len()), 0);
            let ran = plane.run(&bytes, 1).unwrap();
            if (ran.verdict, &ran.packet) != (TX, &expected) {
                return Err(format!("{packet:?}\nbecame {ran:?}\ninstead of {expected:?}"));
            }
            assert!(checksums_hold(&expected), "the builder's own");
        }
    }
    Ok(())
}

#[test]
fn a_get_of_one_key_goes_to_its_upstream_and_keeps_its_sender() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    requests_are_forwarded(&plane).unwrap();
    let counters = plane.counters().unwrap();
    assert_eq!((counters.forwarded, counters.foreign, counters.other), (48, 0, 0));
}

/// A datagram that was damaged on its way is still seen to be so behind the plane.
#[test]
fn a_wrong_checksum_stays_wrong() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    for at in [24, 40] {
        let mut bytes = get(b"foobar").bytes();
        bytes[at] ^= 0x55;
        let ran = plane.run(&bytes, 1).unwrap();
        assert_eq!((ran.verdict, checksums_hold(&ran.packet)), (TX, false));
    }
}

#[test]
fn an_upstream_that_owns_the_services_address_gets_the_packet_as_it_was() {
    let Some(plane) = plane(service(KeyHash::Murmur), 1) else { return };
    let mac = [2, 0, 0, 9, 9, 9];
    plane.update_ring(&continuum(1), &[Upstream { address: SERVICE, mac: Some(mac) }]).unwrap();
    let packet = get(b"foobar");
    let ran = plane.run(&packet.bytes(), 1).unwrap();
    let expected = Packet { to_mac: mac, from_mac: OUR_MAC, ..packet };
    assert_eq!((ran.verdict, ran.packet), (TX, expected.bytes()));
}

#[test]
fn a_new_ring_holds_from_the_next_packet_on() {
    let Some(mut plane) = plane(service(KeyHash::Murmur), 1) else { return };
    let packet = get(b"foobar");
    for upstreams in [1, 2, 5, 100, 3] {
        plane = with_ring(plane, upstreams);
        let ran = plane.run(&packet.bytes(), 1).unwrap();
        assert_eq!(ran.packet, forwarded(&packet, b"foobar", KeyHash::Murmur, upstreams));
    }
    let unknown = Upstream { mac: None, ..upstream(0) };
    plane.update_ring(&continuum(1), &[unknown]).unwrap();
    let ran = plane.run(&packet.bytes(), 1).unwrap();
    assert_eq!((ran.verdict, ran.packet), (PASS, packet.bytes()));
    assert_eq!(plane.counters().unwrap().unready, 1);
}

#[test]
fn more_upstreams_than_there_is_room_for_are_refused() {
    let Some(plane) = plane(service(KeyHash::Murmur), 1) else { return };
    let error = plane.update_ring(&continuum(1), &[upstream(0); 257]).unwrap_err();
    assert_eq!(error.to_string(), "257 upstreams, at most 256");
}
