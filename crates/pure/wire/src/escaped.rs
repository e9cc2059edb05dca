/// A key as it is told among other words: `%` and two digits for whatever is no letter, digit, or one of `-._~`.
pub fn push_escaped(out: &mut Vec<u8>, key: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_taken_for_something_else_is_escaped() {
        let escaped = |key: &[u8]| {
            let mut out = Vec::new();
            push_escaped(&mut out, key);
            String::from_utf8(out).expect("text")
        };
        assert_eq!(escaped(b"user:1-a_~."), "user%3A1-a_~.");
        assert_eq!(escaped(b"\xffa b%\n"), "%FFa%20b%25%0A");
    }
}
