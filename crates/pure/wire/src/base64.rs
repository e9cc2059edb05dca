//! Base64 as the meta protocol's `b` flag uses it, with memcached's leniency.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const NONE: u8 = 0x80;

const SEXTETS: [u8; 256] = {
    let mut sextets = [NONE; 256];
    let mut at = 0;
    while at < 64 {
        sextets[ALPHABET[at] as usize] = at as u8;
        at += 1;
    }
    sextets[b'=' as usize] = 0;
    sextets
};

/// Appends `bytes` in base64, with padding.
pub fn base64_encode(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let sextet = (bits >> (18 - 6 * at)) as usize & 63;
            out.push(if at <= chunk.len() { ALPHABET[sextet] } else { b'=' });
        }
    }
}

/// Writes what `text` stands for to the start of `out`, which must be as long as `text`, and says
/// how many bytes that was; `None` if it stands for nothing.
///
/// Characters outside the alphabet are skipped; what follows the padding is ignored.
pub fn base64_decode(text: &[u8], out: &mut [u8]) -> Option<usize> {
    let sextets = text.iter().filter(|byte| SEXTETS[**byte as usize] != NONE).count();
    if sextets == 0 || sextets % 4 != 0 {
        return None;
    }
    let (mut bits, mut count, mut padding, mut decoded) = (0u32, 0, 0, 0);
    for byte in text {
        let sextet = SEXTETS[*byte as usize];
        if sextet == NONE {
            continue;
        }
        padding += usize::from(*byte == b'=');
        bits = bits << 6 | u32::from(sextet);
        count += 1;
        if count == 4 {
            out[decoded..decoded + 3].copy_from_slice(&bits.to_be_bytes()[1..]);
            decoded += 3;
            (bits, count) = (0, 0);
            if padding > 2 {
                return None;
            }
            if padding > 0 {
                decoded -= padding;
                break;
            }
        }
    }
    (decoded > 0).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Option<Vec<u8>> {
        let mut out = vec![0; text.len()];
        base64_decode(text.as_bytes(), &mut out).map(|length| out[..length].to_vec())
    }

    #[test]
    fn known_words() {
        for (word, text) in [("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            let mut out = Vec::new();
            base64_encode(word.as_bytes(), &mut out);
            assert_eq!(out, text.as_bytes());
            assert_eq!(decoded(text), Some(word.as_bytes().to_vec()));
        }
    }

    #[test]
    fn odd_text_is_read_as_memcached_reads_it() {
        assert_eq!(decoded(""), None);
        assert_eq!(decoded("Zg"), None);
        assert_eq!(decoded("A==="), None);
        assert_eq!(decoded("!Z!m9v"), Some(b"foo".to_vec()));
        assert_eq!(decoded("Zg==Zm9v"), Some(b"f".to_vec()));
        assert_eq!(decoded("Z=9v"), Some(vec![0x64, 0x0f]));
    }

    #[test]
    fn every_byte_survives_the_round_trip() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in 1..=bytes.len() {
            let (mut text, mut back) = (Vec::new(), [0; 344]);
            base64_encode(&bytes[..length], &mut text);
            assert_eq!(base64_decode(&text, &mut back), Some(length));
            assert_eq!(back[..length], bytes[..length]);
        }
    }
}
