//! Whether the clients of a pool place keys by a ring, as the keys that lie there show.
//!
//! By another ring than the clients' a key is where it is looked for by chance alone: one of n servers has it. Whoever deletes
//! what is elsewhere would then delete what clients use. So nothing is deleted on the word of a ring that its pool does not prove.

use std::collections::BTreeMap;

use mbal_model::Key;
use mbal_routing::ketama::{Dialect, KeyHash, Ring, RingServer};

use super::Listing;

/// So many keys of all servers are looked at, or about as many as are there.
const KEYS_MAX: usize = 200_000;
/// Fewer prove nothing: of two servers a wrong ring names the right one for every second key.
const KEYS_MIN: usize = 50;
/// Of the keys, where the ring has them. Some may lie elsewhere, since an earlier change of the pool.
const SHARE_MIN: f64 = 0.95;

/// Keys and the servers that have them. One that several servers have shows nothing, and is left out: it may have moved.
pub struct Evidence<'a> {
    keys: Vec<(&'a [u8], usize)>,
}

/// How many keys are where a ring has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    pub there: usize,
    pub keys: usize,
}

impl Fit {
    pub fn share(self) -> f64 {
        self.there as f64 / self.keys.max(1) as f64
    }

    /// Of a ring of several servers: it is by no chance that so many keys are where it has them.
    pub fn proves(self) -> bool {
        self.keys >= KEYS_MIN && self.share() >= SHARE_MIN
    }
}

impl<'a> Evidence<'a> {
    /// Of servers' listings, in the order of the pool.
    pub fn new(listings: &[&'a Listing]) -> Evidence<'a> {
        let items: usize = listings.iter().map(|listing| listing.items().len()).sum();
        // Every server is asked for the same keys.
        let one_in = items.div_ceil(KEYS_MAX).max(1) as u64;
        let mut found: BTreeMap<u64, (&[u8], Option<usize>)> = BTreeMap::new();
        for (server, listing) in listings.iter().enumerate() {
            for item in listing.items() {
                let bytes = listing.key(item);
                let Some(key) = Key::new(bytes).filter(|key| key.hash() % one_in == 0) else {
                    continue;
                };
                let only = found.entry(key.hash()).or_insert((bytes, Some(server)));
                if only.1 != Some(server) {
                    only.1 = None;
                }
            }
        }
        let keys = found.into_values().filter_map(|(key, server)| Some((key, server?)));
        Evidence { keys: keys.collect() }
    }

    pub fn fit(&self, place: impl Fn(&[u8]) -> usize) -> Fit {
        let there = self.keys.iter().filter(|(key, server)| place(key) == *server).count();
        Fit { there, keys: self.keys.len() }
    }

    /// The known way that fits best, by its name: a ring and what it hashes keys with, or a remainder.
    pub fn best(&self, servers: &[RingServer]) -> (String, Fit) {
        let mut fits: Vec<(String, Fit)> = Vec::new();
        for (name, dialect) in Dialect::NAMES {
            for (hash_name, hash) in KeyHash::NAMES {
                let ring = Ring::new(dialect, Some(hash), servers);
                let name = match hash == dialect.hash() {
                    true => format!("--ring {name}"),
                    false => format!("--ring {name} --hash {hash_name}"),
                };
                fits.push((name, self.fit(|key| ring.owner(key))));
            }
        }
        let mut by_name: Vec<usize> = (0..servers.len()).collect();
        by_name.sort_by_cached_key(|at| {
            let name = Dialect::Twemproxy.name(&servers[*at]);
            (name.len(), name)
        });
        for (order, of) in [(by_name, "names"), ((0..servers.len()).collect(), "the list")] {
            for (hash_name, hash) in KeyHash::NAMES {
                let fit = self.fit(|key| order[hash.place(key) as usize % order.len()]);
                fits.push((format!("the remainder of {hash_name} in the order of {of}"), fit));
            }
        }
        let best =
            fits.into_iter().max_by_key(|(name, fit)| (fit.there, std::cmp::Reverse(name.len())));
        best.expect("there are some")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Line;

    fn servers(count: usize) -> Vec<RingServer> {
        (0..count).map(|at| format!("10.0.0.{at}:11211").parse().expect("a server")).collect()
    }

    fn listings(count: usize, keys: usize, place: impl Fn(&[u8]) -> Vec<usize>) -> Vec<Listing> {
        let mut listings: Vec<Listing> = (0..count).map(|_| Listing::default()).collect();
        for number in 0..keys {
            let key = format!("cart:{number}").into_bytes();
            for server in place(&key) {
                let line =
                    Line { key: key.clone(), expires: None, last_access: 1, cas: 1, bytes: 60 };
                listings[server].push(&line, 1, KeyHash::Md5);
            }
        }
        listings
    }

    fn evidence(listings: &[Listing]) -> Evidence<'_> {
        Evidence::new(&listings.iter().collect::<Vec<_>>())
    }

    #[test]
    fn each_ring_is_proven_by_its_own_keys_and_by_no_others() {
        for count in 2..5 {
            let servers = servers(count);
            for (name, dialect) in Dialect::NAMES {
                let ring = Ring::new(dialect, None, &servers);
                let all = listings(count, 1000, |key| vec![ring.owner(key)]);
                let evidence = evidence(&all);
                assert!(evidence.fit(|key| ring.owner(key)).proves(), "{name}");
                assert_eq!(
                    evidence.best(&servers),
                    (format!("--ring {name}"), Fit { there: 1000, keys: 1000 })
                );
                for (other, dialect) in Dialect::NAMES.iter().filter(|(other, _)| *other != name) {
                    let wrong = Ring::new(*dialect, None, &servers);
                    assert!(!evidence.fit(|key| wrong.owner(key)).proves(), "{name} by {other}");
                }
            }
        }
    }

    #[test]
    fn few_keys_and_keys_that_several_have_prove_nothing() {
        let servers = servers(3);
        let ring = Ring::new(Dialect::Libmemcached, None, &servers);
        let few = listings(3, KEYS_MIN - 1, |key| vec![ring.owner(key)]);
        assert!(!evidence(&few).fit(|key| ring.owner(key)).proves());
        let everywhere = listings(3, 1000, |_| vec![0, 1, 2]);
        assert_eq!(evidence(&everywhere).fit(|key| ring.owner(key)), Fit { there: 0, keys: 0 });
    }

    #[test]
    fn what_an_earlier_change_has_left_is_borne_if_it_is_little() {
        let servers = servers(2);
        let ring = Ring::new(Dialect::Twemproxy, None, &servers);
        // One key in so many lies at the other server.
        for (one_in, proves) in [(25, true), (15, false)] {
            let placed = |key: &[u8]| {
                let number: usize =
                    std::str::from_utf8(&key[5..]).expect("text").parse().expect("ok");
                let other = usize::from(number % one_in == 0);
                vec![(ring.owner(key) + other) % 2]
            };
            let all = listings(2, 1000, placed);
            assert_eq!(evidence(&all).fit(|key| ring.owner(key)).proves(), proves, "1 in {one_in}");
        }
    }

    #[test]
    fn a_remainder_is_told_from_rings() {
        let servers = servers(2);
        let all = listings(2, 1000, |key| vec![KeyHash::OneAtATime.place(key) as usize % 2]);
        let (name, fit) = evidence(&all).best(&servers);
        assert_eq!(
            (&*name, fit.there),
            ("the remainder of one_at_a_time in the order of names", 1000)
        );
    }
}
