//! Keys among other words: `%` and two digits for what could be taken for something else.

/// A key as memcached writes it, in dumps and for watchers: letters, digits and `-._~` stand as they are.
pub fn push_escaped(out: &mut Vec<u8>, key: &[u8]) {
    push(out, key, |byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte));
}

/// A key as people read it: all that is printed stands as it is, but `%` itself.
pub fn push_readable(out: &mut Vec<u8>, key: &[u8]) {
    push(out, key, |byte| byte.is_ascii_graphic() && byte != b'%');
}

fn push(out: &mut Vec<u8>, key: &[u8], plain: impl Fn(u8) -> bool) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in key {
        if plain(byte) {
            out.push(byte);
        } else {
            out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

/// The key that was written in either way. A `%` without two digits behind it stands for itself.
pub fn unescaped(written: &[u8]) -> Vec<u8> {
    let digit = |at: usize| char::from(*written.get(at)?).to_digit(16);
    let mut key = Vec::with_capacity(written.len());
    let mut at = 0;
    while let Some(&byte) = written.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                key.push((high << 4 | low) as u8);
                at += 3;
            }
            _ => {
                key.push(byte);
                at += 1;
            }
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&[u8]; 2] = [b"user:1-a_~./?", b"\xffa b%25%\n"];

    fn written(push: fn(&mut Vec<u8>, &[u8]), key: &[u8]) -> String {
        let mut out = Vec::new();
        push(&mut out, key);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn what_could_be_taken_for_something_else_is_escaped() {
        let escaped = KEYS.map(|key| written(push_escaped, key));
        assert_eq!(escaped, ["user%3A1-a_~.%2F%3F", "%FFa%20b%2525%25%0A"]);
        let readable = KEYS.map(|key| written(push_readable, key));
        assert_eq!(readable, ["user:1-a_~./?", "%FFa%20b%2525%25%0A"]);
    }

    #[test]
    fn a_key_that_was_written_is_read_as_it_was() {
        for key in KEYS {
            for push in [push_escaped, push_readable] {
                assert_eq!(unescaped(written(push, key).as_bytes()), key);
            }
        }
        assert_eq!(unescaped(b"100%"), b"100%");
        assert_eq!(unescaped(b"%2g%zz%4"), b"%2g%zz%4");
        assert_eq!(unescaped(b"ab%25c%3a"), b"ab%c:");
    }
}
