//! Which upstream has a key.

use mbal_routing::ketama::{Dialect, KeyHash, Ring, RingServer};

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
}

impl Pool {
    /// Of `servers`, those that are `present`.
    pub fn new(
        distribution: Distribution,
        servers: &[RingServer],
        present: impl Fn(usize) -> bool,
    ) -> Pool {
        let here = || servers.iter().enumerate().filter(|(at, _)| present(*at));
        let members: Vec<u16> = here().map(|(at, _)| at as u16).collect();
        match distribution {
            _ if members.is_empty() => Pool { members, places: Places::Nobody },
            Distribution::Ketama(dialect, hash) => {
                let servers: Vec<RingServer> = here().map(|(_, server)| server.clone()).collect();
                Pool { members, places: Places::Ring(Ring::new(dialect, hash, &servers)) }
            }
            Distribution::Modula(hash) => {
                let repeated = here()
                    .flat_map(|(at, one)| std::iter::repeat_n(at as u16, one.weight as usize));
                Pool { members: repeated.collect(), places: Places::Remainder(hash) }
            }
        }
    }

    /// `None`: nobody serves.
    #[inline]
    pub fn place(&self, key: &[u8]) -> Option<usize> {
        let member = match &self.places {
            Places::Nobody => return None,
            Places::Ring(ring) => ring.owner(key),
            Places::Remainder(hash) => hash.place(key) as usize % self.members.len(),
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
    fn who_is_left_has_the_keys_of_those_who_are_not() {
        for distribution in
            [Distribution::Ketama(Dialect::Twemproxy, None), Distribution::Modula(KeyHash::Fnv1a64)]
        {
            let servers = servers();
            let pool = |absent| Pool::new(distribution, &servers, move |at| at != absent);
            let mut counts = [[0; 3]; 2];
            for key in 0..4000 {
                let key = format!("key:{key}");
                for (count, absent) in counts.iter_mut().zip([9, 1]) {
                    count[pool(absent).place(key.as_bytes()).expect("some are left")] += 1;
                }
            }
            assert!(counts[0].iter().all(|count| *count > 400), "{counts:?}");
            assert_eq!(counts[1][1], 0);
            assert!(Pool::new(distribution, &servers, |_| false).place(b"a").is_none());
        }
    }
}
