//! Files that import each other in circles, and structs that are spread over files: both make many files one. A table
//! holds what there still is of it, and nobody may add to it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use code::Code;

mod code;
mod tokens;

/// Files that may import each other.
const FILES_MAX: usize = 3;
/// Of a struct; and files that have an `impl` of it.
const FIELDS_MAX: usize = 20;
const IMPLS_MAX: usize = 6;

/// By crate: fields, and files with an `impl`. Flags and settings are lists of what may be said. A generator is one loop over what it has.
const LARGE: [(&str, &str, usize, usize); 5] = [
    ("bench", "Args", 53, 0),
    ("bench", "Generator", 31, 3),
    ("mbal", "Flags", 56, 1),
    ("mbal", "ProxyFlags", 30, 1),
    ("pure/worker", "Settings", 35, 1),
];

#[test]
fn no_circle_of_files_is_great() {
    let mut found = Vec::new();
    for (name, code) in product() {
        let circle = code.greatest_circle();
        if circle.len() > FILES_MAX {
            eprintln!("{name}: {circle:?}");
            found.push((name, circle.len()));
        }
    }
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn no_struct_is_larger_than_the_table_says() {
    let mut large = Vec::new();
    for (name, code) in product() {
        for (of, (fields, impls)) in code.structs() {
            if fields > FIELDS_MAX || impls > IMPLS_MAX {
                large.push((name.clone(), of, fields, impls));
            }
        }
    }
    let known =
        LARGE.map(|(name, of, fields, impls)| (name.to_owned(), of.to_owned(), fields, impls));
    assert_eq!(large, known);
}

#[test]
fn a_circle_is_found_through_re_exports_and_paths() {
    let code = Code::of([
        ("lib.rs", "mod a; pub mod b; mod c; pub use b::Beta; pub use c::*; mod d;"),
        ("a.rs", "use crate::{Beta, d::Delta}; struct Alpha;"),
        ("b.rs", "mod inner; pub struct Beta(inner::Inner);"),
        ("b/inner.rs", "pub struct Inner; fn f(_: &super::super::Gamma) {}"),
        ("c.rs", "pub struct Gamma { a: crate::a::Alpha }"),
        // None of these is an import.
        ("d.rs", "pub struct Delta; // crate::a\n #[cfg(test)] mod tests { use crate::a::Alpha; }"),
    ]);
    assert_eq!(code.greatest_circle(), ["a.rs", "b.rs", "b/inner.rs", "c.rs"]);
}

#[test]
fn fields_and_impls_are_counted() {
    let code = Code::of([
        (
            "lib.rs",
            "mod a; mod b; pub struct Of<T> { /// a: b\n pub a: Vec<(T, u8)>, #[x(y: z)] c: [T; 2] }",
        ),
        ("a.rs", "impl<T: Copy> crate::Of<T> where T: Eq {} impl<T> From<T> for Of<T> {}"),
        ("b.rs", "impl From<Of<u8>> for u8 {}"),
    ]);
    assert_eq!(code.structs(), BTreeMap::from([("Of".to_owned(), (2, 1))]));
}

/// By folder under `crates`; the simulator is not of the product.
fn product() -> Vec<(String, Code)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let inner = ["pure", "edge"].iter().flat_map(|folder| {
        fs::read_dir(crates.join(folder))
            .unwrap()
            .map(move |one| format!("{folder}/{}", one.unwrap().file_name().to_str().unwrap()))
    });
    let mut names: Vec<String> =
        inner.chain(["server", "coordinator", "mbal", "bench", "top"].map(String::from)).collect();
    names.retain(|name| crates.join(name).join("Cargo.toml").exists());
    names.sort();
    assert!(names.len() > 25, "{names:?}");
    names
        .into_iter()
        .map(|name| {
            let (source, mut files) = (crates.join(&name).join("src"), BTreeMap::new());
            read(&source, "", &mut files);
            (name, Code::new(files))
        })
        .collect()
}

fn read(source: &Path, below: &str, files: &mut BTreeMap<String, String>) {
    for one in fs::read_dir(source.join(below)).unwrap() {
        let name = format!("{below}{}", one.unwrap().file_name().to_str().unwrap());
        if source.join(&name).is_dir() {
            read(source, &format!("{name}/"), files);
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(source.join(&name)).unwrap();
            files.insert(name, text);
        }
    }
}
