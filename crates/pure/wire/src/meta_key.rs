//! How whoever asks a server by meta commands names a key: as it is, or encoded.

use mbal_model::KEY_BYTES_MAX;

use crate::base64::base64_encode;

/// Appends a key as it can be said; the flag that goes with it, after a blank.
pub fn push_meta_key(out: &mut Vec<u8>, key: &[u8]) -> &'static str {
    if is_plain(key) {
        out.extend_from_slice(key);
        return "";
    }
    base64_encode(key, out);
    " b"
}

/// Whether the meta commands can name the key: one with blanks or control bytes is encoded, and becomes longer.
pub fn is_meta_key(key: &[u8]) -> bool {
    let bytes = if is_plain(key) { key.len() } else { key.len().div_ceil(3) * 4 };
    (1..=KEY_BYTES_MAX).contains(&bytes)
}

/// It needs no encoding: printable, and not cut by a blank.
fn is_plain(key: &[u8]) -> bool {
    key.iter().all(|&byte| byte > b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_keys_can_be_named_and_how() {
        assert!(is_meta_key(&[b'x'; 250]) && is_meta_key(&[0xff; 250]));
        assert!(is_meta_key(&[b' '; 186]) && !is_meta_key(&[b' '; 190]));
        assert!(!is_meta_key(b"") && !is_meta_key(&[b'x'; 251]));
        let named = |key: &[u8]| {
            let mut out = Vec::new();
            let flag = push_meta_key(&mut out, key);
            (String::from_utf8(out).expect("text"), flag)
        };
        assert_eq!(named(b"a-key"), ("a-key".into(), ""));
        assert_eq!(named(b"b b"), ("YiBi".into(), " b"));
        assert_eq!(named(b"\x7f"), ("fw==".into(), " b"));
    }
}
