//! What the crate offers, line by line, held against `interface.txt`: who changes it sees that it is one, and whether programs that use it still build.
//!
//! A line that goes, or is another, is a break: a new minor version while this is 0.x. A new line is not. `MBAL_INTERFACE=write` writes the list anew.

use std::fs;
use std::path::Path;

/// What is public of the `types` that are exported: each line with the type that it is of.
fn interface(source: &str, types: &[&str]) -> Vec<String> {
    let (mut all, mut of, mut line) = (Vec::new(), None, String::new());
    for text in source.lines().take_while(|text| !text.starts_with("#[cfg(test)]")) {
        let words = || text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let begins = |start| text.starts_with(start) && text.ends_with('{');
        if begins("impl") || begins("pub struct ") || begins("pub enum ") {
            // The last one is the type: `impl Trait for Type {`.
            let of_it = words().rfind(|word| types.contains(word));
            of = of_it.map(|name| (name, text.starts_with("pub enum ")));
        } else if text == "}" {
            of = None;
        } else if let Some((name, is_enum)) = of {
            let text = text.trim();
            let is_variant = is_enum && text.starts_with(char::is_uppercase);
            if line.is_empty() && !text.starts_with("pub ") && !is_variant {
                continue;
            }
            line += if line.is_empty() { "" } else { " " };
            line += text;
            // A signature goes on in the next line.
            let is_open = line.matches('(').count() > line.matches(')').count();
            if line.ends_with(['{', ';', ',']) && !is_open {
                all.push(format!("{name}: {}", line.trim_end_matches(['{', ';', ',', ' '])));
                line.clear();
            }
        }
    }
    all
}

#[test]
fn what_programs_use_has_not_changed_unseen() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lib = fs::read_to_string(here.join("src/lib.rs")).unwrap();
    let exports = lib.lines().filter(|line| line.starts_with("pub use "));
    let mut now: Vec<String> = exports.clone().map(str::to_owned).collect();
    let words = exports.flat_map(|line| line.split(|letter: char| !letter.is_alphanumeric()));
    let types: Vec<&str> = words.filter(|word| word.starts_with(char::is_uppercase)).collect();
    for file in fs::read_dir(here.join("src")).unwrap() {
        now.extend(interface(&fs::read_to_string(file.unwrap().path()).unwrap(), &types));
    }
    now.sort();
    let list = here.join("tests/interface.txt");
    if std::env::var_os("MBAL_INTERFACE").is_some_and(|does| does == "write") {
        fs::write(&list, now.join("\n") + "\n").unwrap();
    }
    let known = fs::read_to_string(&list).unwrap();
    let known: Vec<&str> = known.lines().collect();
    let gone: Vec<&&str> =
        known.iter().filter(|line| !now.iter().any(|now| now == *line)).collect();
    let new: Vec<&String> = now.iter().filter(|line| !known.contains(&line.as_str())).collect();
    assert!(gone.is_empty(), "a break: {gone:#?}; new: {new:#?}");
    assert!(new.is_empty(), "to be listed, and told in CHANGELOG.md: {new:#?}");
}

#[test]
fn a_list_is_of_all_that_is_public_of_what_is_exported() {
    let source = "pub struct A {\n    pub a: u8,\n    b: u8,\n}\n\nimpl A {\n    pub fn long(\n        &self,\n        b: u8,\n    ) -> u8 {\n    }\n\n    fn c() {}\n}\n\nimpl B {\n    pub fn d() {\n}\npub enum C {\n    One(u8),\n}\n";
    let listed = interface(source, &["A", "C"]);
    assert_eq!(listed, ["A: pub a: u8", "A: pub fn long( &self, b: u8, ) -> u8", "C: One(u8)"]);
}
