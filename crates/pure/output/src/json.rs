//! JSON for those who have names and numbers, and no need of a parser.

use std::fmt::Write;

/// A JSON string, with its quotes.
pub fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\n' => out.push_str("\\n"),
            control if control < ' ' => {
                write!(out, "\\u{:04x}", u32::from(control)).expect("a string takes everything");
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_text_it_is_one_string_on_one_line() {
        for (text, string) in [
            ("", r#""""#),
            ("a b", r#""a b""#),
            ("\"a\\\"", r#""\"a\\\"""#),
            ("one\ntwo\t\u{7}", r#""one\ntwo\u0009\u0007""#),
            ("µs", r#""µs""#),
        ] {
            assert_eq!(quoted(text), string);
        }
    }
}
