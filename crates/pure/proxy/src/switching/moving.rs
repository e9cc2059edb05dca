//! Which keys move when a pool changes.

use mbal_model::KEY_BYTES_MAX;
use mbal_routing::ketama::RingServer;
use mbal_wire::base64_decode;

use crate::pool::{Distribution, Pool};

/// Keys that the two lists have at different servers.
pub(super) struct MovingKeys {
    old: Pool,
    new: Pool,
}

impl MovingKeys {
    pub fn new(distribution: Distribution, old: &[RingServer], new: &[RingServer]) -> MovingKeys {
        let place = |at: usize, server: &RingServer| {
            let is_it = |one: &RingServer| (&one.host, one.port) == (&server.host, server.port);
            old.iter().position(is_it).unwrap_or(old.len() + at)
        };
        let olds: Vec<(usize, &RingServer)> = old.iter().enumerate().collect();
        let news: Vec<(usize, &RingServer)> =
            new.iter().enumerate().map(|(at, server)| (place(at, server), server)).collect();
        MovingKeys { old: Pool::new(distribution, &olds), new: Pool::new(distribution, &news) }
    }

    #[inline]
    pub fn moves(&self, key: &[u8]) -> bool {
        self.old.place(key) != self.new.place(key)
    }

    /// Likewise, of a key as it was spelled.
    pub fn moves_spelled(&self, key: &[u8], base64: bool) -> bool {
        let mut decoded = [0; KEY_BYTES_MAX];
        self.moves(unspelled(key, base64, &mut decoded))
    }
}

/// A key as it is hashed.
pub(super) fn unspelled<'a>(
    key: &'a [u8],
    base64: bool,
    decoded: &'a mut [u8; KEY_BYTES_MAX],
) -> &'a [u8] {
    let length = if base64 { base64_decode(key, decoded) } else { None };
    length.map_or(key, |length| &decoded[..length])
}

/// Keys, each behind its length and whether it is in base64.
pub(super) fn spelled(mut keys: &[u8]) -> impl Iterator<Item = (&[u8], bool)> {
    std::iter::from_fn(move || {
        let [length, base64, rest @ ..] = keys else { return None };
        let (key, rest) = rest.split_at(usize::from(*length));
        keys = rest;
        Some((key, *base64 != 0))
    })
}
