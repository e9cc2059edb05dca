//! All scripts against the pure worker, in whole requests and byte by byte.

use mbal_conformance::play::Cut;
use mbal_conformance::runner::{self, Against};
use std::path::{Path, PathBuf};

fn not_yet() -> Vec<String> {
    let list = include_str!("../not-yet.txt");
    let names = list.lines().filter(|line| !line.starts_with('#'));
    names.filter_map(|line| Some(line.split_whitespace().next()?.to_string())).collect()
}

#[test]
fn every_script_holds_for_the_pure_worker_however_its_bytes_arrive() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders: Vec<PathBuf> = ["text", "meta"].iter().map(|folder| here.join(folder)).collect();
    let scripts = runner::load(&folders).unwrap();
    for workers in [1, 3] {
        for cut in [Cut::Whole, Cut::Bytes] {
            // Cut into bytes, scripts that depend on their arrival are left out, on the list or not.
            let outcome = runner::run(&scripts, &Against::Pure(workers), cut, &not_yet(), &[], 2);
            assert_eq!(outcome.failed, [""; 0]);
            assert!(outcome.passed > 50);
        }
    }
}
