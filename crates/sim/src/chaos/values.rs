//! Values that say who wrote them, and betray every changed byte.

use std::io::Write;

use super::history::{Kind, State};

/// `0000002a.000064.` and filling up to the length that it says.
const HEAD_BYTES: usize = 16;
const TOKEN_BYTES: usize = 9;
/// A number is its tag times this, and what was counted.
const COUNTS_MAX: u64 = 1_000_000;

/// How long a new value is that should be `bytes` long.
pub fn length(kind: Kind, tag: u32, bytes: usize) -> usize {
    match kind {
        Kind::Number => number(tag).to_string().len(),
        Kind::Log => HEAD_BYTES,
        Kind::Register => bytes.max(HEAD_BYTES),
    }
}

/// Appends a new value, as long as [`length`] says.
pub fn write(kind: Kind, tag: u32, bytes: usize, out: &mut Vec<u8>) {
    let end = out.len() + bytes;
    match kind {
        Kind::Number => write!(out, "{}", number(tag)),
        _ => write!(out, "{tag:08x}.{bytes:06}."),
    }
    .expect("memory takes everything");
    out.resize(end, filling(tag));
}

fn number(tag: u32) -> u64 {
    u64::from(tag) * COUNTS_MAX
}

pub fn appended(tag: u32) -> Vec<u8> {
    format!("{tag:08x};").into_bytes()
}

fn filling(tag: u32) -> u8 {
    b'a' + (tag % 26) as u8
}

/// What a value says; `None` if nobody wrote it like that.
pub fn read(kind: Kind, value: &[u8]) -> Option<State> {
    match kind {
        Kind::Number => {
            // A shorter number than the one before it is padded with blanks.
            let number: u64 = std::str::from_utf8(value).ok()?.trim_end().parse().ok()?;
            let (base, count) = ((number / COUNTS_MAX) as u32, (number % COUNTS_MAX) as u32);
            Some(State { base, count, tokens: Vec::new() })
        }
        Kind::Log => {
            let (head, rest) = value.split_at_checked(HEAD_BYTES)?;
            let mut state = read(Kind::Register, head)?;
            for token in rest.chunks(TOKEN_BYTES) {
                state.tokens.push(hex(token.strip_suffix(b";")?)?);
            }
            Some(state)
        }
        Kind::Register => {
            let (head, rest) = value.split_at_checked(HEAD_BYTES)?;
            let base = hex(&head[..8])?;
            let bytes: usize = std::str::from_utf8(&head[9..15]).ok()?.parse().ok()?;
            let whole = bytes == value.len() && is_all(rest, filling(base));
            whole.then_some(State { base, count: 0, tokens: Vec::new() })
        }
    }
}

/// True if all bytes are this one: the first is, and each is what the one before it is.
fn is_all(bytes: &[u8], byte: u8) -> bool {
    let Some((first, others)) = bytes.split_first() else { return true };
    *first == byte && others == &bytes[..others.len()]
}

fn hex(digits: &[u8]) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(kind: Kind, tag: u32, bytes: usize) -> Vec<u8> {
        let mut value = Vec::new();
        write(kind, tag, length(kind, tag, bytes), &mut value);
        value
    }

    fn state(base: u32, count: u32, tokens: &[u32]) -> Option<State> {
        Some(State { base, count, tokens: tokens.to_vec() })
    }

    #[test]
    fn values_say_who_wrote_them() {
        assert_eq!(read(Kind::Register, &written(Kind::Register, 42, 100)), state(42, 0, &[]));
        let log = [written(Kind::Log, 7, 0), appended(8), appended(9)].concat();
        assert_eq!(read(Kind::Log, &log), state(7, 0, &[8, 9]));
        assert_eq!(read(Kind::Number, b"5000012 "), state(5, 12, &[]));
    }

    #[test]
    fn a_changed_byte_or_a_lost_end_is_noticed() {
        let mut value = written(Kind::Register, 42, 100);
        assert_eq!(read(Kind::Register, &value[..99]), None);
        value[60] ^= 1;
        assert_eq!(read(Kind::Register, &value), None);
    }
}
