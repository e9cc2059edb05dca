//! Which value of a hot key a copy has.

use std::fmt;

use crate::version::two_numbers;

/// A higher one is newer; in text `<grant>.<version>`. The default is older than any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edition {
    /// One life of the key's copies.
    pub grant: u64,
    /// Counts what copies have been told in it.
    pub version: u64,
}

impl Edition {
    pub fn parse(text: &[u8]) -> Option<Edition> {
        let (grant, version) = two_numbers(text)?;
        Some(Edition { grant, version })
    }
}

impl fmt::Display for Edition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.grant, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_it_is_written_and_is_compared_by_grant_first() {
        let [older, newer] = [(7, 9), (8, 1)].map(|(grant, version)| Edition { grant, version });
        assert!(Edition::default() < older && older < newer);
        assert_eq!(Edition::parse(b"7.9"), Some(older));
        assert_eq!(older.to_string(), "7.9");
        assert_eq!(Edition::parse(b"7"), None);
    }
}
