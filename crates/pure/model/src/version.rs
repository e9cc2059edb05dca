//! How new somebody's knowledge of owners is.

use std::fmt;

/// Which ownership somebody knows: the cluster map's version, and how often this server has lent
/// or taken back a cachelet since. Both only grow; in text `<map>.<local>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapVersion {
    pub map: u64,
    pub local: u64,
}

impl MapVersion {
    pub fn parse(text: &[u8]) -> Option<MapVersion> {
        let (map, local) = two_numbers(text)?;
        Some(MapVersion { map, local })
    }
}

/// Of `<number>.<number>`.
pub(crate) fn two_numbers(text: &[u8]) -> Option<(u64, u64)> {
    let (first, second) = std::str::from_utf8(text).ok()?.split_once('.')?;
    let number = |digits: &str| {
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| plain)
    };
    Some((number(first)?, number(second)?))
}

impl fmt::Display for MapVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.map, self.local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_it_is_written() {
        let version = MapVersion { map: 1, local: 17 };
        assert_eq!(version.to_string(), "1.17");
        assert_eq!(MapVersion::parse(b"1.17"), Some(version));
        for text in ["", "1", "1.", ".1", "1.2.3", "+1.2", "1.-2", "1.99999999999999999999"] {
            assert_eq!(MapVersion::parse(text.as_bytes()), None, "{text}");
        }
    }
}
