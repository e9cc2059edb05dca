//! Names of keys that are not where their hash says: on other upstreams while their own is ejected, and copies of hot keys.
//!
//! Such a name is used while the pool stays as it is, or until its key is written, and never again: what is left under it is
//! never read.

use mbal_model::KEY_BYTES_MAX;

/// Behind a key: a mark, and 60 bits.
pub(crate) const SUFFIX_BYTES: usize = 11;
const MARK: u8 = b'~';
const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

/// Appends the name of `key` in an epoch.
pub(crate) fn push_name(out: &mut Vec<u8>, key: &[u8], epoch: u64) {
    debug_assert!(key.len() + SUFFIX_BYTES <= KEY_BYTES_MAX);
    out.extend_from_slice(key);
    out.push(MARK);
    out.extend((0..10).map(|at| DIGITS[(epoch >> (6 * at) & 63) as usize]));
}

/// Appends a reply to `get` with the keys' own names.
pub(crate) fn push_values_renamed(out: &mut Vec<u8>, reply: &[u8]) {
    let mut rest = reply;
    while let Some(words) = rest.strip_prefix(b"VALUE ") {
        let Some(blank) = memchr::memchr(b' ', words) else { break };
        let Some(end) = memchr::memchr(b'\n', rest) else { break };
        let Some(value_bytes) = mbal_wire::value_length(&rest[..end]) else { break };
        out.extend_from_slice(b"VALUE ");
        out.extend_from_slice(&words[..blank.saturating_sub(SUFFIX_BYTES)]);
        let behind = b"VALUE ".len() + blank;
        let next = end + 1 + value_bytes + 2;
        out.extend_from_slice(&rest[behind..next]);
        rest = &rest[next..];
    }
    out.extend_from_slice(rest);
}

/// Appends a reply to a meta command, its `k` with the key's own name.
pub(crate) fn push_meta_renamed(out: &mut Vec<u8>, reply: &[u8]) {
    let end = memchr::memchr(b'\r', reply).unwrap_or(reply.len());
    let mut is_first = true;
    for word in reply[..end].split(|byte| *byte == b' ') {
        if !is_first {
            out.push(b' ');
        }
        // The first word is the status, the second a length if that is VA.
        match word.first() {
            Some(b'k') if !is_first => {
                out.extend_from_slice(&word[..word.len().saturating_sub(SUFFIX_BYTES)]);
            }
            _ => out.extend_from_slice(word),
        }
        is_first = false;
    }
    out.extend_from_slice(&reply[end..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_off_again() {
        let mut name = Vec::new();
        push_name(&mut name, b"key", u64::MAX);
        assert_eq!(name.len(), 3 + SUFFIX_BYTES);
        let name = String::from_utf8(name).expect("text");
        let mut out = Vec::new();
        let reply = format!("VALUE {name} 0 5\r\nEND\r\n\r\nVALUE {name} 1 0 9\r\n\r\nEND\r\n");
        push_values_renamed(&mut out, reply.as_bytes());
        assert_eq!(out, b"VALUE key 0 5\r\nEND\r\n\r\nVALUE key 1 0 9\r\n\r\nEND\r\n");
        out.clear();
        push_meta_renamed(&mut out, format!("VA 2 k{name} t-1\r\nk~\r\n").as_bytes());
        assert_eq!(out, b"VA 2 kkey t-1\r\nk~\r\n");
        out.clear();
        push_meta_renamed(&mut out, b"EN\r\n");
        assert_eq!(out, b"EN\r\n");
    }
}
