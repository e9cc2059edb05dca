//! Keys as memcached's `watch fetchers mutations` names them.

use std::collections::BTreeMap;

use mbal_wire::{push_readable, unescaped};

/// Keys told apart in one moment; what is done to further ones is not seen.
const KEYS_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KeyCounts {
    pub reads: u64,
    pub writes: u64,
    pub value_bytes: u64,
}

/// What lines like these tell:
/// `ts=1.5 gid=1 type=item_get key=k status=found clsid=1 cfd=25 size=5`.
pub fn read(said: &[u8]) -> BTreeMap<String, KeyCounts> {
    let mut keys: BTreeMap<String, KeyCounts> = BTreeMap::new();
    for line in String::from_utf8_lossy(said).lines() {
        let word = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name));
        let (Some(kind), Some(key)) = (word("type="), word("key=")) else { continue };
        let key = readable(key);
        if keys.len() >= KEYS_MAX && !keys.contains_key(&key) {
            continue;
        }
        let seen = keys.entry(key).or_default();
        match kind {
            "item_get" => seen.reads += 1,
            _ => seen.writes += 1,
        }
        if let Some(bytes) = word("size=").and_then(|size| size.parse().ok()) {
            seen.value_bytes = seen.value_bytes.max(bytes);
        }
    }
    keys
}

/// Memcached's way to write a key, as MBal's `stats hot` writes it.
fn readable(key: &str) -> String {
    let mut readable = Vec::new();
    push_readable(&mut readable, &unescaped(key.as_bytes()));
    String::from_utf8(readable).expect("what is readable is ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_memcached_says_is_counted_by_key() {
        let said = "OK\r\n\
            ts=1.1 gid=1 type=item_get key=a%20%3Ab status=found clsid=1 cfd=25 size=5\r\n\
            ts=1.2 gid=2 type=item_get key=none status=not_found clsid=0 cfd=25 size=0\r\n\
            ts=1.3 gid=3 type=item_store key=a%20%3Ab status=stored cmd=set ttl=0 clsid=1 cfd=25 size=7\r\n\
            ts=1.4 gid=4 type=eviction ke";
        let seen = |reads, writes, value_bytes| KeyCounts { reads, writes, value_bytes };
        let expected = [("a%20:b".to_owned(), seen(1, 1, 7)), ("none".to_owned(), seen(1, 0, 0))];
        assert_eq!(read(said.as_bytes()), BTreeMap::from(expected));
    }
}
