//! Binary requests: parsed, and executed; the replies are whole, and of requests that were made.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mbal_fuzz::{ITEM_BYTES_MAX, Rig, check_parser};
use mbal_wire::{BINARY_REQUEST, Limits, Login, Parsed, Request, parse_binary};
use mbal_worker::{Protocol, Settings};

const HEADER_BYTES: usize = 24;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, input)) = bytes.split_first() else { return };
    let sasl = choice & 1 == 1;
    check_parser(input, parse_binary, if sasl { Login::Needed } else { Login::NotAsked });
    check_parser(input, parse_binary, Login::Done);

    let mut rig = Rig::new(Settings { protocol: Protocol::Binary, sasl, ..Settings::default() });
    let mut replies = Vec::new();
    rig.send(input, &mut replies);
    let mut asked = opaques(input);
    let mut rest = &replies[..];
    let mut last = None;
    while !rest.is_empty() {
        assert!(rest.len() >= 24 && rest[0] == 0x81 && rest[5] == 0, "no reply: {rest:?}");
        let body = u32::from_be_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
        let head = usize::from(u16::from_be_bytes([rest[2], rest[3]])) + usize::from(rest[4]);
        assert!(head <= body && 24 + body <= rest.len(), "half a reply");
        // In the order of the requests; statistics are several replies of one.
        let opaque = &rest[12..16];
        if last != Some(opaque) {
            assert!(asked.any(|one| one == opaque), "nobody asked for {opaque:?}");
            last = Some(opaque);
        }
        rest = &rest[24 + body..];
    }
});

/// Of all requests, however a login changes what becomes of them: who has to log in is refused by the header
/// alone, so one whose body has not come counts too.
fn opaques(mut input: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    let limits = Limits { item_bytes_max: ITEM_BYTES_MAX, login: Login::Done };
    let mut opaques = Vec::new();
    while let Parsed::Request { request: Request::Binary(binary), bytes, skip } =
        parse_binary(input, &limits)
    {
        assert_eq!(input[0], BINARY_REQUEST);
        opaques.push(binary.frame.opaque);
        input = &input[bytes..];
        input = &input[skip.min(input.len())..];
    }
    if input.len() >= HEADER_BYTES && input[0] == BINARY_REQUEST {
        opaques.push(input[12..16].try_into().expect("four bytes"));
    }
    opaques.into_iter()
}
