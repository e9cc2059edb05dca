//! What is built in may be passed on: each crate that is linked or used to build has a licence of this list.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

/// They ask for their text and a name to be passed on, and for nothing else.
const PERMISSIVE: [&str; 9] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// An SPDX expression without nested choices, or the older form with slashes.
fn is_permissive(licence: &str) -> bool {
    let one = |name: &str| PERMISSIVE.contains(&name.trim_matches(['(', ')', ' ']));
    let any = |part: &str| part.replace('/', " OR ").split(" OR ").any(one);
    licence.split(" AND ").all(any)
}

#[test]
fn every_dependency_may_be_passed_on() {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1", "--filter-platform", &platform])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let packages = metadata["packages"].as_array().expect("it lists packages");
    assert!(packages.len() > 50, "only {} packages", packages.len());
    let text = |package: &Value, name: &str| package[name].as_str().unwrap_or("none").to_owned();
    let refused = |package: &&Value| !is_permissive(&text(package, "license"));
    let refused: BTreeSet<String> = packages
        .iter()
        .filter(refused)
        .map(|package| format!("{}: {}", text(package, "name"), text(package, "license")))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn a_licence_that_asks_for_more_is_found() {
    for (licence, wanted) in [
        ("MIT OR Apache-2.0", true),
        ("Apache-2.0/MIT", true),
        ("Unlicense OR MIT", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("GPL-3.0-only", false),
        ("MIT AND GPL-2.0", false),
        ("none", false),
    ] {
        assert_eq!(is_permissive(licence), wanted, "{licence}");
    }
}
