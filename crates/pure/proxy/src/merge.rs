//! A multi-get of several upstreams: its parts come back in any order, its values leave in the order of its keys.

use crate::buffers::Spare;
use mbal_wire::{Framed, ReplyKind, frame, is_error_reply, plain_value_bytes, value_length};
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
    /// Of what has been read.
    hits: u64,
    longest: usize,
}

/// A key, where it begins and how long it is, and the part that asks for it.
struct Wanted {
    start: u32,
    bytes: u8,
    part: u8,
    /// The part's next key, or `NONE`: whose key comes next is chance, so that no branch that looks for it can be foretold.
    next: u32,
    /// Of its value, with its line; 0 is a miss.
    value_bytes: u32,
}

/// Behind the last key of a part.
const NONE: u32 = u32::MAX;

struct Part {
    conn: u32,
    keys: u32,
    renamed: bool,
    /// Its last key.
    last: u32,
    /// So many bytes of its reply have been read, and its keys before this one cannot come any more.
    scanned: usize,
    next: u32,
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
        let (forgotten, error) = (false, Vec::new());
        Merge { keys, wanted, parts, missing: 0, forgotten, error, hits: 0, longest: 0 }
    }

    /// The next key is asked for there. False if that is one part too many.
    #[inline]
    pub fn ask(&mut self, place: &Place) -> bool {
        let (conn, renamed) = (place.conn, place.name.is_some());
        let is_its = |part: &Part| part.conn == conn && part.renamed == renamed;
        let at = self.wanted.len() as u32;
        let part = self.parts.iter().position(is_its).unwrap_or_else(|| {
            let (last, next, values) = (at, at, Vec::new());
            self.parts.push(Part {
                conn,
                keys: 0,
                renamed,
                last,
                scanned: 0,
                next,
                values,
                taken: 0,
            });
            self.missing += 1;
            self.parts.len() - 1
        });
        let (start, bytes) = (place.start, place.bytes);
        self.wanted.push(Wanted { start, bytes, part: part as u8, next: NONE, value_bytes: 0 });
        let this = &mut self.parts[part];
        if this.keys > 0 {
            self.wanted[this.last as usize].next = at;
        }
        (this.keys, this.last) = (this.keys + 1, at);
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

    /// Reads the reply of one part as far as it has come, `input`: nothing but values of the part's keys, in their order, as often as
    /// they are asked for.
    pub fn read(&mut self, part: u8, input: &[u8], cas: bool) -> Framed {
        let Merge { keys, wanted, parts, hits, longest, .. } = self;
        let this = &mut parts[usize::from(part)];
        loop {
            let (at, rest) = (this.scanned, &input[this.scanned..]);
            if !rest.starts_with(b"VALUE ") {
                return match frame(ReplyKind::Values, input, at) {
                    Framed::Whole(end) if !is_end(&input[at..end]) => Framed::Broken,
                    framed => framed,
                };
            }
            let found = find(wanted, this.next, rest, keys);
            let length = found.and_then(|found| {
                let behind_key = b"VALUE ".len() + usize::from(wanted[found].bytes);
                plain_value_bytes(rest, behind_key).filter(|_| !cas)
            });
            let (Some(found), Some(bytes)) = (found, length.or_else(|| unusual_length(rest, cas)))
            else {
                return match frame(ReplyKind::Line, rest, 0) {
                    Framed::NeedMore { .. } => {
                        Framed::NeedMore { bytes: input.len() + 1, scanned: at }
                    }
                    _ => Framed::Broken,
                };
            };
            match rest.get(bytes - 2..bytes) {
                Some(b"\r\n") => {}
                Some(_) => return Framed::Broken,
                None => return Framed::NeedMore { bytes: at + bytes + 5, scanned: at },
            }
            let one = &mut wanted[found];
            one.value_bytes = bytes as u32;
            (*hits, *longest) = (*hits + 1, bytes.max(*longest));
            (this.next, this.scanned) = (one.next, at + bytes);
        }
    }

    /// Takes the whole reply of one part, which has been read. True if that was the last one.
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

    /// Each key, and the bytes of its value with its line, if it has one; none of a reply that is an error.
    pub fn found(&self) -> impl Iterator<Item = (&[u8], Option<usize>)> {
        let wanted = if self.error.is_empty() { self.wanted.as_slice() } else { &[] };
        wanted.iter().map(|one| {
            let key = &self.keys[one.start as usize..][..usize::from(one.bytes)];
            (key, Some(one.value_bytes as usize).filter(|bytes| *bytes > 0))
        })
    }

    /// Appends the reply, with its end if it is the `last` of its `get`. `None`: it is an error.
    pub fn finish(mut self, out: &mut Vec<u8>, spare: &mut Spare, last: bool) -> Option<Found> {
        let mut found = None;
        if self.error.is_empty() {
            self.push_values(out);
            let misses = self.wanted.len() as u64 - self.hits;
            found = Some(Found { hits: self.hits, misses, longest: self.longest });
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

    fn push_values(&mut self, out: &mut Vec<u8>) {
        if self.forgotten {
            return;
        }
        out.reserve(self.parts.iter().map(|part| part.values.len()).sum::<usize>() + 5);
        if let [only] = self.parts.as_slice() {
            return out.extend_from_slice(&only.values);
        }
        for wanted in &self.wanted {
            self.parts[usize::from(wanted.part)].push(wanted.value_bytes as usize, out);
        }
    }
}

/// The key from `next` on, of those of its part, whose value `input` begins with.
#[inline]
fn find(wanted: &[Wanted], mut next: u32, input: &[u8], keys: &[u8]) -> Option<usize> {
    while let Some(this) = wanted.get(next as usize) {
        if this.is_of(input, keys) {
            return Some(next as usize);
        }
        next = this.next;
    }
    None
}

impl Wanted {
    /// Whether the value that `input` begins with is this key's.
    #[inline]
    fn is_of(&self, input: &[u8], keys: &[u8]) -> bool {
        let key = &keys[self.start as usize..][..usize::from(self.bytes)];
        let behind = b"VALUE ".len() + key.len();
        input.get(b"VALUE ".len()..behind) == Some(key) && input.get(behind) == Some(&b' ')
    }
}

impl Part {
    /// Appends the next of its values.
    #[inline]
    fn push(&mut self, bytes: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.values[self.taken..][..bytes]);
        self.taken += bytes;
    }
}

/// What a reply ends with.
fn is_end(line: &[u8]) -> bool {
    line == b"END\r\n" || is_error_reply(line)
}

/// Of the value that `input` begins with, with its line, where that is none of the usual ones. `None`: it is not whole, or no value.
#[cold]
fn unusual_length(input: &[u8], cas: bool) -> Option<usize> {
    let end = memchr(b'\n', input)?;
    let line = &input[..end];
    let has_cas = line.iter().filter(|byte| **byte == b' ').count() == 4;
    Some(end + 1 + value_length(line)? + 2).filter(|_| has_cas == cas)
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
            for end in 1..reply.len() {
                let framed = merge.read(*part, &reply[..end], false);
                assert!(
                    matches!(framed, Framed::NeedMore { bytes, .. } if end < bytes),
                    "{framed:?}"
                );
            }
            assert_eq!(merge.read(*part, reply, false), Framed::Whole(reply.len()));
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
    fn keys_that_are_absent_are_stepped_over() {
        let a = b"VALUE c 0 1\r\nx\r\nEND\r\n";
        let b = b"VALUE b 0 1\r\ny\r\nEND\r\n";
        assert_eq!(merged(&[(0, a), (1, b)]), "VALUE b 0 1\r\ny\r\nVALUE c 0 1\r\nx\r\nEND\r\n");
    }

    #[test]
    fn what_nobody_asked_for_is_no_reply() {
        for (reply, cas) in [
            ("VALUE b 0 1\r\nx\r\nEND\r\n", false),
            ("VALUE c 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nEND\r\n", false),
            ("VALUE c 0 1\r\nx\r\nVALUE c 0 1\r\nx\r\nEND\r\n", false),
            ("VALUE a 0 1 7\r\nx\r\nEND\r\n", false),
            ("VALUE a 0 1\r\nx\r\nEND\r\n", true),
            ("VALUE a 0 1\r\nxy\r\nEND\r\n", false),
            ("VALUE a 0 y\r\nxy\r\nEND\r\n", false),
            ("VALUE a 0 1\r\nx\r\nSTORED\r\n", false),
            ("OK\r\n", false),
        ] {
            let mut merge = Merge::new(Vec::new(), b"a b c", 3);
            for (start, conn) in [(0, 7), (2, 9), (4, 7)] {
                assert!(merge.ask(&Place { start, bytes: 1, conn, name: None }));
            }
            assert_eq!(merge.read(0, reply.as_bytes(), cas), Framed::Broken, "{reply:?}");
        }
    }

    #[test]
    fn values_with_a_cas_are_read_where_they_are_wanted() {
        let mut merge = Merge::new(Vec::new(), b"a", 1);
        assert!(merge.ask(&Place { start: 0, bytes: 1, conn: 7, name: None }));
        let reply = b"VALUE a 0 1 77\r\nx\r\nEND\r\n";
        assert_eq!(merge.read(0, reply, true), Framed::Whole(reply.len()));
        let (mut spare, mut out) = (Spare::default(), Vec::new());
        assert!(merge.came(0, reply, &mut spare));
        let found = merge.finish(&mut out, &mut spare, true).expect("no error");
        assert_eq!((found.hits, found.misses, found.longest), (1, 0, reply.len() - 5));
        assert_eq!(out, reply);
    }

    #[test]
    fn an_error_is_the_whole_reply() {
        let a = b"VALUE a 0 1\r\nx\r\nSERVER_ERROR out of memory\r\n";
        assert_eq!(merged(&[(0, a), (1, b"END\r\n")]), "SERVER_ERROR out of memory\r\n");
    }
}
