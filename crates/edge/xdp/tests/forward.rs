//! Requests in, forwarded requests out.
#![cfg(feature = "kernel")]

mod common;

use common::*;
use mbal_routing::KeyHash;

#[test]
fn a_get_goes_on_to_its_keys_upstream() {
    let Some(plane) = plane(service(KeyHash::Murmur), 12) else { return };
    let ran = plane.run(&get(b"foobar").bytes(), 1).unwrap();
    println!("{ran:?}");
    assert_eq!(ran.verdict, TX);
}
