//! Datagrams: whatever comes, replies are framed, numbered, and so many.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mbal_fuzz::{CONN, Rig};
use mbal_wire::{DATAGRAM_BYTES_MAX, parse_datagram};
use mbal_worker::{Action, Event, OUTPUT_BYTES_MAX, Sender, Settings};

fuzz_target!(|bytes: &[u8]| {
    let mut rig = Rig::new(Settings { shutdown_enabled: true, ..Settings::default() });
    let mut nothing = Vec::new();
    rig.send(b"set k 0 0 9 noreply\r\nnine byte\r\n", &mut nothing);
    // As it comes, and in a frame that is right.
    let framed = [&b"\x12\x34\0\0\0\x01\0\0"[..], bytes].concat();
    for datagram in [bytes, &framed] {
        let from = Sender { socket: 0, address: ([127, 0, 0, 1], 9).into() };
        let actions = rig.handle(Event::Datagram { from, bytes: datagram });
        let asked = parse_datagram(datagram).map(|(id, _)| id.to_be_bytes());
        let (mut sequence, mut total) = (0, 0);
        for action in &actions.list {
            let Action::Datagram { to, bytes } = action else { panic!("{action:?}") };
            assert_eq!(*to, from);
            let sent = &actions.bytes[bytes.clone()];
            let number = |at: usize| u16::from_be_bytes([sent[at], sent[at + 1]]);
            if sequence == total {
                (sequence, total) = (0, number(4));
            }
            assert_eq!(Some([sent[0], sent[1]]), asked);
            assert_eq!([number(2), number(4), number(6)], [sequence, total, 0]);
            assert!((9..=DATAGRAM_BYTES_MAX).contains(&sent.len()));
            sequence += 1;
            assert!(sequence == total || sent.len() == DATAGRAM_BYTES_MAX);
        }
        assert_eq!(sequence, total, "a message without its end");
        assert!(actions.bytes.len() < 2 * OUTPUT_BYTES_MAX);
    }
    // The connection beside it has noticed nothing.
    let mut replies = Vec::new();
    rig.send(b"mn\r\n", &mut replies);
    assert_eq!((replies.as_slice(), CONN.0, rig.closed), (&b"MN\r\n"[..], 0, false));
});
