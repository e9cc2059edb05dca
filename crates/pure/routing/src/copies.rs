//! Where the copies of a hot key are: found by renaming, so that nobody has to be told (SPORE, SoCC 2013, §3.1).

use mbal_model::{Key, ServerId, WorkerId, renamed_hash};
use mbal_random::mix;

/// Suffixes that are tried for each server of the cluster, before there are fewer copies than wanted.
const TRIES: usize = 8;

/// The place of one suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub server: ServerId,
    /// Chooses the server's worker.
    hash: u64,
}

impl Place {
    /// The worker, of so many.
    pub fn worker(&self, workers: usize) -> WorkerId {
        WorkerId(((self.hash & 0xffff_ffff) % workers.max(1) as u64) as u16)
    }
}

/// Where the copy of this suffix is: on the server that wins the rendezvous. `None` without servers. O(servers).
pub fn place(
    key: &Key<'_>,
    suffix: u8,
    servers: impl IntoIterator<Item = ServerId>,
) -> Option<Place> {
    let hash = renamed_hash(key, suffix);
    let score = |server: &ServerId| (mix(hash ^ mix(u64::from(server.0) + 1)), *server);
    let server = servers.into_iter().max_by_key(score)?;
    Some(Place { server, hash })
}

/// The first `count` suffixes that count, with their servers: each is on a server of its own that is not the home. Fewer, if there are
/// not as many servers, or if chance passes one over.
pub fn copies(
    key: &Key<'_>,
    home: ServerId,
    servers: &[ServerId],
    count: usize,
) -> Vec<(u8, ServerId)> {
    let mut found: Vec<(u8, ServerId)> = Vec::new();
    let suffixes = 1..=(servers.len() * TRIES).min(u8::MAX.into()) as u8;
    for suffix in suffixes {
        if found.len() >= count || found.len() + 1 >= servers.len() {
            break;
        }
        let Some(place) = place(key, suffix, servers.iter().copied()) else { break };
        if place.server != home && found.iter().all(|(_, server)| *server != place.server) {
            found.push((suffix, place.server));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(count: u16) -> Vec<ServerId> {
        (1..=count).map(ServerId).collect()
    }

    fn key(number: u32) -> Vec<u8> {
        format!("key-{number}").into_bytes()
    }

    #[test]
    fn copies_are_on_other_servers_each_on_one() {
        for number in 0..200 {
            let bytes = key(number);
            let key = Key::new(&bytes).expect("short");
            let home = ServerId(number as u16 % 12 + 1);
            let all = copies(&key, home, &servers(12), 11);
            let mut on: Vec<ServerId> = all.iter().map(|(_, server)| *server).collect();
            on.sort();
            on.dedup();
            assert_eq!((on.len(), on.contains(&home)), (all.len(), false));
            assert!(all.len() >= 10, "{} of 11 for key {number}", all.len());
            assert_eq!(copies(&key, home, &servers(12), 3), all[..3]);
        }
        let key = Key::new(b"k").expect("short");
        assert_eq!(copies(&key, ServerId(1), &servers(1), 5), []);
        assert_eq!(place(&key, 1, []), None);
    }

    #[test]
    fn a_server_more_takes_over_its_share_of_the_places_and_no_other_changes() {
        let mut moved = 0;
        for number in 0..4_000 {
            let bytes = key(number);
            let key = Key::new(&bytes).expect("short");
            let before = place(&key, 1, servers(9)).expect("there are servers");
            let after = place(&key, 1, servers(10)).expect("there are servers");
            if before != after {
                assert_eq!(after.server, ServerId(10));
                moved += 1;
            }
        }
        assert!((320..480).contains(&moved), "{moved} of 4,000, a tenth");
    }

    #[test]
    fn the_places_of_one_key_and_of_many_are_spread_evenly() {
        let mut on = [0; 13];
        let mut at = [0; 4];
        for number in 0..12_000 {
            let bytes = key(number);
            let key = Key::new(&bytes).expect("short");
            let place = place(&key, 1, servers(12)).expect("there are servers");
            on[usize::from(place.server.0)] += 1;
            at[usize::from(place.worker(4).0)] += 1;
        }
        assert!(on[1..].iter().all(|count| (850..1_150).contains(count)), "{on:?}");
        assert!(at.iter().all(|count| (2_800..3_200).contains(count)), "{at:?}");
    }
}
