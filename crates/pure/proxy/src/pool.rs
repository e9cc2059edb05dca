//! Which upstream has a key.

/// One upstream, as placement knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// What its place depends on, as its pool's other clients spell it.
    pub name: String,
    pub weight: u32,
}

/// How keys are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    #[default]
    Modula,
}

/// Places keys on those upstreams that serve.
pub(crate) struct Pool {
    distribution: Distribution,
    /// Numbers of upstreams, repeated by weight.
    table: Vec<u16>,
}

impl Pool {
    /// Of `servers`, those that are `present`.
    pub fn new(
        distribution: Distribution,
        servers: &[Server],
        present: impl Fn(usize) -> bool,
    ) -> Pool {
        let here = servers.iter().enumerate().filter(|(at, _)| present(*at));
        let table = here
            .flat_map(|(at, server)| std::iter::repeat_n(at as u16, server.weight as usize))
            .collect();
        Pool { distribution, table }
    }

    /// `None`: nobody serves.
    #[inline]
    pub fn place(&self, hash: u32) -> Option<usize> {
        match self.distribution {
            Distribution::Modula if self.table.is_empty() => None,
            Distribution::Modula => Some(self.table[hash as usize % self.table.len()].into()),
        }
    }
}

/// twemproxy's `fnv1a_64`, which works in 32 bits.
#[inline]
pub(crate) fn fnv1a_64(key: &[u8]) -> u32 {
    const INIT: u32 = 0xcbf2_9ce4_8422_2325_u64 as u32;
    const PRIME: u32 = 0x0100_0000_01b3_u64 as u32;
    key.iter().fold(INIT, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(PRIME))
}
