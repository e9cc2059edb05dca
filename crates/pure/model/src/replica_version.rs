//! Which value of a hot key a copy has.

use std::fmt;

use crate::version::two_numbers;

/// A higher one is newer; in text `<grant>.<version>`. The default is older than any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaVersion {
    /// One life of the key's copies.
    pub grant: u64,
    /// Counts what copies have been told in it.
    pub version: u64,
}

impl ReplicaVersion {
    pub fn parse(text: &[u8]) -> Option<ReplicaVersion> {
        let (grant, version) = two_numbers(text)?;
        Some(ReplicaVersion { grant, version })
    }
}

impl fmt::Display for ReplicaVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.grant, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_it_is_written_and_is_compared_by_grant_first() {
        let [older, newer] =
            [(7, 9), (8, 1)].map(|(grant, version)| ReplicaVersion { grant, version });
        assert!(ReplicaVersion::default() < older && older < newer);
        assert_eq!(ReplicaVersion::parse(b"7.9"), Some(older));
        assert_eq!(older.to_string(), "7.9");
        assert_eq!(ReplicaVersion::parse(b"7"), None);
    }
}
