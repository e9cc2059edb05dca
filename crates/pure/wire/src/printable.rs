//! What strangers and other processes say, on a terminal or in a log: what would do something there is written out.

/// Whether a character is shown, and does nothing else. Controls of terminals (C0, DEL, C1), what changes the direction of
/// text, and what ends a line are not.
pub fn is_printable(character: char) -> bool {
    !character.is_control()
        && !matches!(character,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// Bytes as a line shows them: `\x1b` and the like for each byte of what is not printable, or no UTF-8.
pub fn push_printable(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            let mut encoded = [0; 4];
            let encoded = character.encode_utf8(&mut encoded).as_bytes();
            match is_printable(character) {
                true => out.extend_from_slice(encoded),
                false => push_written_out(out, encoded),
            }
        }
        push_written_out(out, chunk.invalid());
    }
}

fn push_written_out(out: &mut Vec<u8>, bytes: &[u8]) {
    bytes.iter().for_each(|byte| out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()));
}

/// Lines of text, each as it is shown. Tabs stay.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => out.push(character),
            _ if is_printable(character) => out.push(character),
            _ => {
                let mut encoded = [0; 4];
                let bytes = character.encode_utf8(&mut encoded).bytes();
                bytes.for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_letters_reaches_the_terminal() {
        for (said, shown) in [
            ("plain \u{e4}\u{20ac}\u{1f600}", "plain \u{e4}\u{20ac}\u{1f600}"),
            ("\u{1b}[2J", "\\x1b[2J"),
            ("a\u{7f}", "a\\x7f"),
            ("\u{9b}31m", "\\xc2\\x9b31m"),
            ("gpj.\u{202e}exe", "gpj.\\xe2\\x80\\xaeexe"),
            ("\u{2066}\u{200f}\u{feff}", "\\xe2\\x81\\xa6\\xe2\\x80\\x8f\\xef\\xbb\\xbf"),
            ("a\rb", "a\\x0db"),
        ] {
            assert_eq!(printable(said), shown);
            let mut bytes = Vec::new();
            push_printable(&mut bytes, said.as_bytes());
            assert_eq!(bytes, shown.as_bytes());
        }
        assert_eq!(printable("one\n\ttwo\n"), "one\n\ttwo\n");
        let mut bytes = Vec::new();
        push_printable(&mut bytes, b"one\ntwo \x9b \xff\xc3");
        assert_eq!(bytes, b"one\\x0atwo \\x9b \\xff\\xc3");
    }
}
