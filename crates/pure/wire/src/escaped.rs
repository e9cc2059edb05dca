use std::fmt;

/// A key as it is told among other words: `%` and two digits for whatever is no letter, digit, or one of `-._~`.
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|&byte| match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' => {
                write!(out, "{}", char::from(byte))
            }
            _ => write!(out, "%{byte:02X}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_taken_for_something_else_is_escaped() {
        assert_eq!(Escaped(b"user:1-a_~.").to_string(), "user%3A1-a_~.");
        assert_eq!(Escaped(b"\xffa b%\n").to_string(), "%FFa%20b%25%0A");
    }
}
