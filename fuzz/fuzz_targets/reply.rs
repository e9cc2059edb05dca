//! Replies as whoever asked reads them: nothing is told before it is whole, and then the same however much follows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mbal_wire::{
    BinaryReply, MetaHead, MetaStatus, VALUE_BYTES_MAX, ValueHead, push_value, reply_block,
    reply_line,
};

fuzz_target!(|bytes: &[u8]| {
    if let Some(head) = bytes.first_chunk() {
        let reply = BinaryReply::parse(head);
        assert!(reply.is_none_or(|reply| reply.before_value() <= reply.body_bytes));
    }
    let Ok(Some((line, behind))) = reply_line(bytes) else { return };
    assert_eq!(behind, line.len() + 2);
    for cut in 0..behind {
        assert_eq!(reply_line(&bytes[..cut]), Ok(None));
    }
    if let Some(head) = ValueHead::parse(line) {
        assert!(head.bytes <= VALUE_BYTES_MAX);
        let mut written = Vec::new();
        push_value(&mut written, head.key, head.flags, head.bytes as u32, head.cas);
        let (line, _) = reply_line(&written).expect("a reply").expect("whole");
        assert_eq!(ValueHead::parse(line), Some(head));
        if let Ok(Some(value)) = reply_block(&bytes[behind..], head.bytes, b"\r\n") {
            assert_eq!(value.len(), head.bytes);
        }
    }
    if let Some(head) = MetaHead::parse(line) {
        assert!(head.bytes == 0 || head.status == MetaStatus::Value);
        assert!(head.flags().count() <= line.len());
    }
});
