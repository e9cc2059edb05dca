//! Compiles the packet program with clang, if the crate is built with it.

use std::path::Path;
use std::process::Command;
use std::{env, process};

/// Mistakes that the tests have to find, as the packet program names them.
const PLANTED: [&str; 7] = [
    "KEYS_ARE_NOT_COMPARED",
    "UDP_CHECKSUM_STAYS",
    "ANSWERS_OUTLIVE_THEIR_LEASE",
    "BYTES_ARE_UNSIGNED",
    "HOT_KEYS_ARE_PASSED_BY",
    "TAIL_IS_NOT_HASHED",
    // No mistake, but a program that takes its time between the look at a hot key and its answer.
    "SLOWNESS",
];

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_KERNEL").is_none() {
        return;
    }
    compile("plane", None);
    if env::var_os("CARGO_FEATURE_PLANTED").is_some() {
        for fault in PLANTED {
            compile(&fault.to_lowercase(), Some(fault));
        }
    }
}

fn compile(name: &str, planted: Option<&str>) {
    let folder = env::var("OUT_DIR").expect("cargo sets it");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror"]);
    // Debian keeps <asm/types.h> there, where clang does not look for this target.
    clang.arg(format!("-I/usr/include/{arch}-linux-gnu"));
    clang.args(planted.map(|fault| format!("-DPLANTED_{fault}")));
    clang.args(["-c", "bpf/plane.c", "-o"]).arg(Path::new(&folder).join(format!("{name}.o")));
    if !clang.status().is_ok_and(|status| status.success()) {
        eprintln!(
            "the packet program needs clang and libbpf's headers: apt install clang libbpf-dev"
        );
        process::exit(1);
    }
}
