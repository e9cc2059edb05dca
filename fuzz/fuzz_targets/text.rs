//! The text protocol's parser; the first byte says whether somebody has to log in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mbal_fuzz::check_parser;
use mbal_wire::{Login, parse};

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, input)) = bytes.split_first() else { return };
    let login = if choice & 1 == 0 { Login::NotAsked } else { Login::Needed };
    check_parser(input, parse, login);
});
