//! What somebody asks about: a cachelet of the map, or a key.

use mbal_model::{ClusterMap, Key, Owner, Prefix};

/// A key or a cachelet, and who has it by the map.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// As events and lists of hot keys write it; none of who asks about a cachelet.
    pub key: Option<String>,
    pub hash: u64,
    pub cachelet: Prefix,
    pub owner: Owner,
}

impl Subject {
    /// `what` is a cachelet of the map, like `2c00/6`; or a key, as it is or with `%` and two digits for bytes. The name of a cachelet that
    /// the map does not have is a key.
    pub fn of(what: &str, map: &ClusterMap) -> Result<Subject, &'static str> {
        let is_held = |prefix: &Prefix| map.at(prefix.first_hash()).0 == *prefix;
        let (hash, key) = match Prefix::parse(what.as_bytes()).filter(is_held) {
            Some(prefix) => (prefix.first_hash(), None),
            None => {
                let bytes = mbal_wire::unescaped(what.as_bytes());
                let neither =
                    "a key has 1 to 250 bytes, a cachelet is a prefix like 2c00/6 of the map";
                let key = Key::new(&bytes).ok_or(neither)?;
                let mut written = Vec::new();
                mbal_wire::push_readable(&mut written, key.bytes());
                (key.hash(), Some(String::from_utf8_lossy(&written).into_owned()))
            }
        };
        let (cachelet, owner) = map.at(hash);
        Ok(Subject { key, hash, cachelet, owner })
    }

    /// Whether a decision names the cachelet, or tells of the key.
    pub fn is_in(&self, event: &str) -> bool {
        let name = self.cachelet.to_string();
        let is_name = |word: &str| word.trim_end_matches([':', ',', ';']) == name;
        let begins = |key: &String| event.starts_with(&format!("key {key} of server "));
        event.split(' ').any(is_name) || self.key.as_ref().is_some_and(begins)
    }
}

#[cfg(test)]
mod tests {
    use mbal_model::Cluster;

    use super::*;

    fn of(what: &str) -> Result<Subject, &'static str> {
        let map = "cluster shop\nversion 7\nserver 1 link 10.0.0.1:11311 client 10.0.0.1:11211\n\
            server 2 link 10.0.0.2:11311 client 10.0.0.2:11211\nequal 2\n";
        Subject::of(what, &Cluster::parse(map).expect("well formed").map)
    }

    #[test]
    fn a_cachelet_of_the_map_is_one_and_all_else_is_a_key() {
        let cachelet = of("4000/2").expect("it is one");
        assert_eq!((cachelet.key.as_deref(), cachelet.hash), (None, 0x4000 << 48));
        assert_eq!(
            (cachelet.cachelet.to_string().as_str(), cachelet.owner.server.0),
            ("4000/2", 2)
        );
        for (what, key) in
            [("4000/3", "4000/3"), ("%61", "a"), ("a b", "a%20b"), ("4000%2f2", "4000/2")]
        {
            assert_eq!(of(what).expect("it is a key").key.as_deref(), Some(key));
        }
        for what in ["", &"k".repeat(251)] {
            assert!(of(what).is_err_and(|why| why.contains("1 to 250 bytes")));
        }
    }

    #[test]
    fn decisions_are_its_own_by_whole_names() {
        let key = of("%61").expect("it is a key");
        for (event, is_its) in [
            ("move 2: c000/2 from server 1 to 2: to lighten its worker", true),
            ("2800/5 of server 2 is split into 2800/6, c000/2; it alone", true),
            ("move 2: c000/20 from server 1 to 2", false),
            ("key a of server 1 is hot: 900 reads/s", true),
            ("key ab of server 1 is hot: 900 reads/s", false),
            ("the first map: 4 cachelets", false),
        ] {
            assert_eq!(key.is_in(event), is_its, "{event}");
        }
        assert!(!of("c000/2").expect("it is one").is_in("key a of server 1 is hot"));
    }
}
