//! JSON for those who have names and numbers, and no need of a parser.
//!
//! Called by the bench, top and the server's log. Never writes a file.
#![forbid(unsafe_code)]

use std::fmt::Write;

/// A JSON string, with its quotes.
pub fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\n' => out.push_str("\\n"),
            // Whoever reads lines on a terminal gets no more than whoever parses them.
            control if control.is_control() || is_mark(control) => {
                write!(out, "\\u{:04x}", u32::from(control)).expect("a string takes everything");
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// Marks of direction, ends of lines, and what has no width.
fn is_mark(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
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
            ("\u{9b}\u{7f}\u{202e}", r#""\u009b\u007f\u202e""#),
        ] {
            assert_eq!(quoted(text), string);
        }
    }
}
