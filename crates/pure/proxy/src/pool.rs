//! Which upstream has a key.

use mbal_routing::Point;
use mbal_routing::ketama::{Dialect, KeyHash, Ring, RingServer};

use crate::mapped::Slots;

/// How keys are placed. A pool that other clients use too needs the way in which they place them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// On a ring, as these clients do; by another hash than theirs, if there is one.
    Ketama(Dialect, Option<KeyHash>),
    /// By the remainder of the key's hash, as twemproxy's `modula` does.
    Modula(KeyHash),
}

/// Places keys on those upstreams that serve.
pub(crate) struct Pool {
    /// Numbers of upstreams: by their place on the ring, or by remainder, repeated by weight.
    members: Vec<u16>,
    places: Places,
}

enum Places {
    Nobody,
    Ring(Ring),
    Remainder(KeyHash),
    Slots(Slots),
}

impl Pool {
    /// Of upstreams by their numbers, in the order of the pool.
    pub fn new(distribution: Distribution, upstreams: &[(usize, &RingServer)]) -> Pool {
        let members: Vec<u16> = upstreams.iter().map(|(number, _)| *number as u16).collect();
        match distribution {
            _ if members.is_empty() => Pool { members, places: Places::Nobody },
            Distribution::Ketama(dialect, hash) => {
                let servers: Vec<RingServer> =
                    upstreams.iter().map(|(_, server)| (*server).clone()).collect();
                Pool { members, places: Places::Ring(Ring::new(dialect, hash, &servers)) }
            }
            Distribution::Modula(hash) => {
                // twemproxy sorts servers by their names, the shorter one first.
                let mut sorted = upstreams.to_vec();
                sorted.sort_by_cached_key(|(_, server)| {
                    let name = Dialect::Twemproxy.name(server);
                    (name.len(), name)
                });
                let repeated = sorted
                    .iter()
                    .flat_map(|(at, one)| std::iter::repeat_n(*at as u16, one.weight as usize));
                Pool { members: repeated.collect(), places: Places::Remainder(hash) }
            }
        }
    }

    /// Of a cluster's workers, as its map says.
    pub fn mapped(upstreams: &[usize], slots: &Slots) -> Pool {
        let members = upstreams.iter().map(|number| *number as u16).collect();
        Pool { members, places: Places::Slots(slots.clone()) }
    }

    /// Of the ring, in order. None if keys are placed otherwise.
    pub fn points(&self) -> Vec<Point> {
        match &self.places {
            Places::Ring(ring) => ring.points().collect(),
            Places::Nobody | Places::Remainder(_) | Places::Slots(_) => Vec::new(),
        }
    }

    /// `None`: nobody serves.
    #[inline]
    pub fn place(&self, key: &[u8]) -> Option<usize> {
        let member = match &self.places {
            Places::Nobody => return None,
            Places::Ring(ring) => ring.owner(key),
            Places::Remainder(hash) => hash.place(key) as usize % self.members.len(),
            Places::Slots(slots) => slots.member(key),
        };
        Some(self.members[member].into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers() -> Vec<RingServer> {
        ["a:1", "b:2:2", "c:3"].map(|text| text.parse().expect("a server")).to_vec()
    }

    #[test]
    fn the_order_of_modula_is_that_of_names() {
        let servers = ["b:22", "b:3:1 long name", "c:1", "a:11211"].map(|text| text.parse());
        let servers: Vec<RingServer> = servers.into_iter().map(|one| one.expect("ok")).collect();
        let members: Vec<_> = servers.iter().enumerate().collect();
        let pool = Pool::new(Distribution::Modula(KeyHash::Md5), &members);
        assert_eq!(pool.members, [3, 2, 0, 1], "a, c:1, b:22, long name");
    }

    #[test]
    fn who_is_left_has_the_keys_of_those_who_are_not() {
        for distribution in
            [Distribution::Ketama(Dialect::Twemproxy, None), Distribution::Modula(KeyHash::Fnv1a64)]
        {
            let servers = servers();
            let pool = |absent| {
                let members = servers.iter().enumerate().filter(|(at, _)| *at != absent);
                Pool::new(distribution, &members.collect::<Vec<_>>())
            };
            let mut counts = [[0; 3]; 2];
            for key in 0..4000 {
                let key = format!("key:{key}");
                for (count, absent) in counts.iter_mut().zip([9, 1]) {
                    count[pool(absent).place(key.as_bytes()).expect("some are left")] += 1;
                }
            }
            assert!(counts[0].iter().all(|count| *count > 400), "{counts:?}");
            assert_eq!(counts[1][1], 0);
            assert!(Pool::new(distribution, &[]).place(b"a").is_none());
        }
    }
}
