//! A `get` of several servers' keys: its values leave in the order of its keys, whoever answers first.

use mbal_model::{Key, ServerId};
use mbal_wire::next_value;

use crate::forwarding::unreachable::END;

/// A `get` of several servers' keys, or of some of them if there are many.
pub(crate) struct Gather {
    /// The keys as they came.
    pub keys: Vec<u8>,
    pub wanted: Vec<WantedKey>,
    /// The first is this server, whose reply is there from the start.
    pub sources: Vec<Source>,
    /// Not the first part of its `get`.
    pub continues: bool,
    /// The last part, which ends with `END`.
    pub ends: bool,
    /// It gives what it finds another exptime.
    pub touches: bool,
}

/// A key, where it stands among all, and which source serves it.
#[derive(Clone, Copy)]
pub(crate) struct WantedKey {
    pub start: u32,
    pub bytes: u8,
    pub source: u8,
}

/// Who has some of the keys.
pub(crate) struct Source {
    pub server: ServerId,
    /// So many keys.
    pub keys: usize,
    pub reply: Option<Vec<u8>>,
}

impl WantedKey {
    #[inline]
    fn of<'k>(&self, keys: &'k [u8]) -> &'k [u8] {
        &keys[self.start as usize..][..usize::from(self.bytes)]
    }
}

impl Gather {
    pub fn is_ready(&self) -> bool {
        self.sources.iter().all(|source| source.reply.is_some())
    }

    /// Of the replies that are there.
    pub fn bytes(&self) -> usize {
        self.sources.iter().filter_map(|source| source.reply.as_ref()).map(Vec::len).sum()
    }

    /// Keys whose values may still come.
    pub fn keys_to_come(&self) -> usize {
        let to_come = self.sources.iter().filter(|source| source.reply.is_none());
        to_come.map(|source| source.keys).sum()
    }

    pub fn asks(&self, hash: u64) -> bool {
        let mut keys = self.wanted.iter().filter_map(|one| Key::new(one.of(&self.keys)));
        keys.any(|key| key.hash() == hash)
    }

    pub fn asked_elsewhere(&self, key: &Key<'_>, to: Option<ServerId>) -> bool {
        self.wanted.iter().any(|one| {
            let source = &self.sources[usize::from(one.source)];
            source.reply.is_none() && one.of(&self.keys) == key.bytes() && Some(source.server) != to
        })
    }

    pub fn hashes_of(&self, source: usize) -> impl Iterator<Item = u64> {
        let of_it = self.wanted.iter().filter(move |one| usize::from(one.source) == source);
        of_it.filter_map(|one| Some(Key::new(one.of(&self.keys))?.hash()))
    }

    /// The values in the order of the keys; or the line of the source that failed.
    pub fn merge(&self, out: &mut Vec<u8>) -> Result<(), &[u8]> {
        out.reserve(self.bytes());
        let mut rests: Vec<&[u8]> = self
            .sources
            .iter()
            .map(|source| source.reply.as_deref().expect("it is ready"))
            .collect();
        // Values that stand behind each other in one reply are copied together.
        let (mut source, mut bytes) = (0, 0);
        let mut push = |rest: &mut &[u8], bytes: usize| {
            let (values, behind) = rest.split_at(bytes);
            out.extend_from_slice(values);
            *rest = behind;
        };
        for one in &self.wanted {
            if one.source != source {
                push(&mut rests[usize::from(source)], bytes);
                (source, bytes) = (one.source, 0);
            }
            let rest = &rests[usize::from(source)][bytes..];
            bytes += next_value(rest, one.of(&self.keys)).map_or(0, |(value, _)| value.len());
        }
        push(&mut rests[usize::from(source)], bytes);
        match rests[1..].iter().find(|rest| **rest != END) {
            Some(rest) => return Err(rest),
            None if self.ends => out.extend_from_slice(END),
            None => {}
        }
        Ok(())
    }
}
