//! A multi-get of several upstreams: its parts come back in any order, its values leave in the order of its keys.

use crate::buffers::Spare;
use crate::reply::value_length;
use mbal_wire::next_word;
use memchr::memchr;

/// A reply that is put together.
pub(crate) struct Merge {
    /// The keys, with blanks between.
    keys: Vec<u8>,
    /// By key, which part asks for it.
    part_of: Vec<u8>,
    parts: Vec<Part>,
    missing: usize,
    /// What went wrong with one of the parts: the whole reply, a line with its end.
    error: Vec<u8>,
}

struct Part {
    conn: u32,
    renamed: bool,
    values: Vec<u8>,
}

/// A `get` is split over so many connections at most.
const PARTS_MAX: usize = 256;

impl Merge {
    pub fn new(mut keys: Vec<u8>, asked: &[u8]) -> Merge {
        keys.extend_from_slice(asked);
        Merge { keys, part_of: Vec::new(), parts: Vec::new(), missing: 0, error: Vec::new() }
    }

    /// The next key is asked for over `conn`, by another name or its own. False if that is one part too many.
    #[inline]
    pub fn ask(&mut self, conn: u32, renamed: bool) -> bool {
        let is_its = |part: &Part| part.conn == conn && part.renamed == renamed;
        let part = self.parts.iter().position(is_its).unwrap_or_else(|| {
            self.parts.push(Part { conn, renamed, values: Vec::new() });
            self.missing += 1;
            self.parts.len() - 1
        });
        self.part_of.push(part as u8);
        part < PARTS_MAX
    }

    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// The part that asks for the key at `at`.
    #[inline]
    pub fn part_of(&self, at: usize) -> usize {
        self.part_of[at].into()
    }

    /// The connection of a part, and whether its keys have other names there.
    pub fn part(&self, part: usize) -> (usize, bool) {
        (self.parts[part].conn as usize, self.parts[part].renamed)
    }

    /// Takes the whole reply of one part. True if that was the last one.
    pub fn came(&mut self, part: u8, reply: &[u8], spare: &mut Spare) -> bool {
        self.missing -= 1;
        match reply.strip_suffix(b"END\r\n") {
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

    /// Appends the reply. How many keys were found, and how many were not; an error says neither.
    pub fn finish(self, out: &mut Vec<u8>, spare: &mut Spare) -> (u64, u64) {
        let mut found = (0, 0);
        if self.error.is_empty() {
            let hits = self.push_values(out);
            found = (hits, self.part_of.len() as u64 - hits);
            out.extend_from_slice(b"END\r\n");
        } else {
            out.extend_from_slice(&self.error);
        }
        spare.give(self.keys);
        self.parts.into_iter().for_each(|part| spare.give(part.values));
        found
    }

    /// How many there are.
    fn push_values(&self, out: &mut Vec<u8>) -> u64 {
        let mut hits = 0;
        out.reserve(self.parts.iter().map(|part| part.values.len()).sum::<usize>() + 5);
        let mut taken = [0; PARTS_MAX];
        let mut rest = self.keys.as_slice();
        for part in &self.part_of {
            let Some((key, tail)) = next_word(rest) else { break };
            rest = tail;
            let (taken, part) = (&mut taken[usize::from(*part)], &self.parts[usize::from(*part)]);
            let values = &part.values[*taken..];
            if let Some(bytes) = value_of(values, key) {
                out.extend_from_slice(&values[..bytes]);
                *taken += bytes;
                hits += 1;
            }
        }
        hits
    }
}

/// The length of the first value, its line included, if it is `key`'s.
#[inline]
fn value_of(values: &[u8], key: &[u8]) -> Option<usize> {
    let behind = 6 + key.len();
    if values.get(6..behind)? != key || values.get(behind) != Some(&b' ') {
        return None;
    }
    let end = memchr(b'\n', values)?;
    Some(end + 1 + value_length(&values[..end])? + 2)
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
        let mut merge = Merge::new(Vec::new(), b"a b  a c d");
        for conn in [7, 9, 7, 7, 9] {
            assert!(merge.ask(conn, false));
        }
        for (at, (part, reply)) in replies.iter().enumerate() {
            assert_eq!(merge.came(*part, reply, &mut spare), at == 1);
        }
        let mut out = Vec::new();
        merge.finish(&mut out, &mut spare);
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
