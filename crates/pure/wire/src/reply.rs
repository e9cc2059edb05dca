//! The parts that replies are made of.

use crate::number::push_u64;

/// Appends a line and its end.
#[inline]
pub fn push_line(out: &mut Vec<u8>, line: &[u8]) {
    out.extend_from_slice(line);
    out.extend_from_slice(b"\r\n");
}

/// Appends the line that stands before a value in the reply to `get`; `cas` for `gets`.
#[inline(always)]
pub fn push_value(out: &mut Vec<u8>, key: &[u8], flags: u32, value_bytes: u32, cas: Option<u64>) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    push_u64(out, u64::from(flags));
    out.push(b' ');
    push_u64(out, u64::from(value_bytes));
    if let Some(cas) = cas {
        out.push(b' ');
        push_u64(out, cas);
    }
    out.extend_from_slice(b"\r\n");
}
