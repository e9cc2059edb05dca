//! A multi-get of several upstreams: its parts come back in any order, its values leave in the order of its keys.

use crate::buffers::Spare;
use crate::expect::own_key;
use mbal_wire::{Values, is_error_reply, plain_value_bytes, value_length};
use memchr::memchr;

/// A key of a `get`, and where it is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Where it begins in the line's keys.
    pub start: u32,
    pub bytes: u8,
    pub conn: u32,
    /// What the name is made of that it has there, if it has another.
    pub name: Option<u64>,
}

impl Place {
    /// The key, one of the line's `keys`.
    #[inline]
    pub fn key<'a>(&self, keys: &'a [u8]) -> &'a [u8] {
        &keys[self.start as usize..][..usize::from(self.bytes)]
    }
}

/// A reply that is put together.
pub(crate) struct Merge {
    /// The line's keys.
    keys: Vec<u8>,
    wanted: Vec<Wanted>,
    parts: Vec<Part>,
    missing: usize,
    /// Nobody waits for it.
    forgotten: bool,
    /// What went wrong with one of the parts: the whole reply, a line with its end.
    error: Vec<u8>,
}

/// A key, where it begins and how long it is, and the part that asks for it.
struct Wanted {
    start: u32,
    bytes: u8,
    part: u8,
}

struct Part {
    conn: u32,
    keys: u32,
    renamed: bool,
    values: Vec<u8>,
    /// So many bytes of them have left.
    taken: usize,
}

/// Of the keys of a `get`.
pub(crate) struct Found {
    pub hits: u64,
    pub misses: u64,
    /// Bytes of a value, with its line.
    pub longest: usize,
}

/// A `get` is split over so many connections at most.
const PARTS_MAX: usize = 256;

impl Merge {
    /// Of so many keys, the `asked` of a line. `keys` is an empty buffer.
    pub fn new(mut keys: Vec<u8>, asked: &[u8], count: usize) -> Merge {
        keys.extend_from_slice(asked);
        let (wanted, parts) = (Vec::with_capacity(count), Vec::with_capacity(8.min(count)));
        Merge { keys, wanted, parts, missing: 0, forgotten: false, error: Vec::new() }
    }

    /// The next key is asked for there. False if that is one part too many.
    #[inline]
    pub fn ask(&mut self, place: &Place) -> bool {
        let (conn, renamed) = (place.conn, place.name.is_some());
        let is_its = |part: &Part| part.conn == conn && part.renamed == renamed;
        let part = self.parts.iter().position(is_its).unwrap_or_else(|| {
            self.parts.push(Part { conn, keys: 0, renamed, values: Vec::new(), taken: 0 });
            self.missing += 1;
            self.parts.len() - 1
        });
        self.parts[part].keys += 1;
        self.wanted.push(Wanted { start: place.start, bytes: place.bytes, part: part as u8 });
        part < PARTS_MAX
    }

    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// The part that asks for the key at `at`.
    #[inline]
    pub fn part_of(&self, at: usize) -> usize {
        self.wanted[at].part.into()
    }

    /// So many keys a part asks for.
    pub fn keys_of(&self, part: usize) -> u32 {
        self.parts[part].keys
    }

    /// The connection of a part, and whether its keys have other names there.
    pub fn part(&self, part: usize) -> (usize, bool) {
        (self.parts[part].conn as usize, self.parts[part].renamed)
    }

    pub fn kept_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.values.len()).sum()
    }

    /// The values that have come, and those that will, are for nobody.
    pub fn forget(&mut self) {
        self.forgotten = true;
        self.parts.iter_mut().for_each(|part| part.values = Vec::new());
    }

    /// Whether a whole reply has nothing but values of the part's keys, in their order, as often as they are asked for.
    pub fn is_reply_to(&self, part: u8, reply: &[u8], renamed: bool, cas: bool) -> bool {
        let mut wanted = self
            .wanted
            .iter()
            .filter(|wanted| wanted.part == part)
            .map(|wanted| &self.keys[wanted.start as usize..][..usize::from(wanted.bytes)]);
        let mut values = Values(reply);
        let are_its = values
            .by_ref()
            .all(|(found, has)| has == cas && wanted.any(|key| key == own_key(found, renamed)));
        are_its && (values.0 == b"END\r\n" || is_error_reply(values.0))
    }

    /// Takes the whole reply of one part. True if that was the last one.
    pub fn came(&mut self, part: u8, reply: &[u8], spare: &mut Spare) -> bool {
        self.missing -= 1;
        match reply.strip_suffix(b"END\r\n") {
            _ if self.forgotten => {}
            Some(values) if !values.is_empty() => {
                let part = &mut self.parts[usize::from(part)];
                part.values = spare.take();
                part.values.extend_from_slice(values);
            }
            Some(_) => {}
            None => self.fail(last_line(reply)),
        }
        self.missing == 0
    }

    /// A part has no reply. True if it was the last one.
    pub fn lost(&mut self, error: &[u8]) -> bool {
        self.missing -= 1;
        self.fail(error);
        self.missing == 0
    }

    fn fail(&mut self, error: &[u8]) {
        self.error.clear();
        self.error.extend_from_slice(error);
    }

    /// Appends the reply, with its end if it is the `last` of its `get`. `None`: it is an error.
    pub fn finish(mut self, out: &mut Vec<u8>, spare: &mut Spare, last: bool) -> Option<Found> {
        let mut found = None;
        if self.error.is_empty() {
            found = Some(self.push_values(out));
            if last {
                out.extend_from_slice(b"END\r\n");
            }
        } else {
            out.extend_from_slice(&self.error);
        }
        spare.give(self.keys);
        self.parts.into_iter().for_each(|part| spare.give(part.values));
        found
    }

    fn push_values(&mut self, out: &mut Vec<u8>) -> Found {
        let (mut hits, mut longest) = (0, 0);
        out.reserve(self.parts.iter().map(|part| part.values.len()).sum::<usize>() + 5);
        for wanted in &self.wanted {
            let key = &self.keys[wanted.start as usize..][..usize::from(wanted.bytes)];
            let part = &mut self.parts[usize::from(wanted.part)];
            let values = &part.values[part.taken..];
            if let Some(bytes) = value_of(values, key) {
                out.extend_from_slice(&values[..bytes]);
                part.taken += bytes;
                hits += 1;
                longest = bytes.max(longest);
            }
        }
        Found { hits, misses: self.wanted.len() as u64 - hits, longest }
    }
}

/// The length of the first value, its line included, if it is `key`'s.
#[inline]
fn value_of(values: &[u8], key: &[u8]) -> Option<usize> {
    let behind = b"VALUE ".len() + key.len();
    if values.get(b"VALUE ".len()..behind)? != key || values.get(behind) != Some(&b' ') {
        return None;
    }
    plain_value_bytes(values, behind).or_else(|| {
        let end = memchr(b'\n', values)?;
        Some(end + 1 + value_length(&values[..end])? + 2)
    })
}

fn last_line(reply: &[u8]) -> &[u8] {
    let body = &reply[..reply.len().saturating_sub(1)];
    let start = memchr::memrchr(b'\n', body).map_or(0, |at| at + 1);
    &reply[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(replies: &[(u8, &[u8])]) -> String {
        let mut spare = Spare::default();
        let mut merge = Merge::new(Vec::new(), b"a b  a c d", 5);
        for (start, conn) in [(0, 7), (2, 9), (5, 7), (7, 7), (9, 9)] {
            assert!(merge.ask(&Place { start, bytes: 1, conn, name: None }));
        }
        for (at, (part, reply)) in replies.iter().enumerate() {
            assert_eq!(merge.came(*part, reply, &mut spare), at == 1);
        }
        let mut out = Vec::new();
        merge.finish(&mut out, &mut spare, true);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn values_leave_in_the_order_of_the_keys() {
        let a = b"VALUE a 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nVALUE c 0 0\r\n\r\nEND\r\n";
        let b = b"VALUE d 0 2\r\nyy\r\nEND\r\n";
        let all = "VALUE a 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nVALUE c 0 0\r\n\r\nVALUE d 0 2\r\nyy\r\nEND\r\n";
        assert_eq!(merged(&[(0, a), (1, b)]), all);
        assert_eq!(merged(&[(1, b), (0, a)]), all);
        assert_eq!(merged(&[(1, b"END\r\n"), (0, b"END\r\n")]), "END\r\n");
    }

    #[test]
    fn an_error_is_the_whole_reply() {
        let a = b"VALUE a 0 1\r\nx\r\nSERVER_ERROR out of memory\r\n";
        assert_eq!(merged(&[(0, a), (1, b"END\r\n")]), "SERVER_ERROR out of memory\r\n");
    }
}
