//! Meta commands: parsed, and executed on an item that is there. The first byte chooses the command.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mbal_fuzz::{Rig, check_parser};
use mbal_wire::{Login, parse};
use mbal_worker::Settings;

const STATUSES: [&[u8]; 11] = [
    b"HD",
    b"VA",
    b"EN",
    b"NF",
    b"NS",
    b"EX",
    b"ME",
    b"MN",
    b"CLIENT_ERROR ",
    b"SERVER_ERROR ",
    b"ERROR",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let command: &[u8] = match choice % 5 {
        0 => b"mg k ",
        1 => b"ms k ",
        2 => b"md k ",
        3 => b"ma k ",
        _ => b"me k ",
    };
    let input = [command, rest].concat();
    check_parser(&input, parse, Login::NotAsked);

    let line_end = input.iter().position(|byte| *byte == b'\n').map_or(input.len(), |at| at + 1);
    let mut rig = Rig::new(Settings::default());
    let mut replies = Vec::new();
    rig.send(b"set k 5 0 1 noreply\r\n7\r\n", &mut replies);
    rig.send(&input[..line_end], &mut replies);
    if !replies.is_empty() {
        assert!(replies.ends_with(b"\r\n"));
        assert!(STATUSES.iter().any(|status| replies.starts_with(status)), "{replies:?}");
    }
});
