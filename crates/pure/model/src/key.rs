//! A key as clients name it, with the hash that places it.

use xxhash_rust::xxh3::xxh3_64;

/// memcached's limit; longer keys are a client's error.
pub const KEY_BYTES_MAX: usize = 250;

/// An item's key with its hash, computed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    bytes: &'a [u8],
    hash: u64,
}

impl<'a> Key<'a> {
    /// The one place that knows a key's limits: `None` when empty or over [`KEY_BYTES_MAX`].
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Option<Key<'a>> {
        if bytes.is_empty() || bytes.len() > KEY_BYTES_MAX {
            return None;
        }
        Some(Key { bytes, hash: xxh3_64(bytes) })
    }

    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// `xxh3_64`, seed 0: what places the key on a cachelet, a server, a replica.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// The hash of a key that is renamed for its copy of this suffix (SPORE, SoCC 2013, §3.1): of `key ‖ 0x00 ‖ suffix`. It places
/// the copy, and names nothing.
pub fn renamed_hash(key: &Key<'_>, suffix: u8) -> u64 {
    let mut renamed = [0; KEY_BYTES_MAX + 2];
    let bytes = key.bytes();
    renamed[..bytes.len()].copy_from_slice(bytes);
    renamed[bytes.len() + 1] = suffix;
    xxh3_64(&renamed[..bytes.len() + 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_to_250_bytes() {
        assert_eq!(Key::new(b""), None);
        assert_eq!(Key::new(&[b'k'; 251]), None);
        assert_eq!(Key::new(&[b'k'; 250]).map(|key| key.bytes().len()), Some(250));
    }

    #[test]
    fn the_hash_is_xxh3_with_seed_zero() {
        assert_eq!(Key::new(b"a").map(|key| key.hash()), Some(0xe6c6_32b6_1e96_4e1f));
    }
}
