//! What a link carries: a request that reads is written again by the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mbal_wire::PeerRequest;

fuzz_target!(|bytes: &[u8]| {
    let Some(request) = PeerRequest::decode(bytes) else { return };
    assert!(!request.request.is_empty());
    let mut again = Vec::new();
    request.encode(&mut again);
    assert_eq!(again, bytes);
});
