//! Keys that are hot and often written (NetKV, ICAC 2016, §IV.F): what is written to them is kept, and reads wait for it.
//!
//! A read that waits for the last write of its key gets what it would have got behind it, at the key's home. Reads of the home are
//! answered on the connection of the writes.

use mbal_wire::{Chunk, Get, Meta, Request, Storage, Verb, push_u64, push_value, words_of};

use crate::hot::{AskId, Kept, Reader};
use crate::proxy::Proxy;
use crate::steering::{COPY_SECONDS_MAX, SECOND, is_plain};

/// A longer value is not kept in the proxy's own cache.
pub(crate) const KEPT_BYTES_MAX: usize = 64 << 10;
/// A longer time to live is a moment of the calendar.
const RELATIVE_SECONDS_MAX: i64 = 60 * 60 * 24 * 30;
/// Servers refuse longer ones.
const OPAQUE_BYTES_MAX: usize = 32;

/// How a read is answered.
#[derive(Debug)]
pub(crate) enum Shape {
    Get,
    /// `mg` with these flag words.
    Meta(Box<[u8]>),
}

impl Shape {
    /// `None`: its home answers it. A `get` of several keys is asked as a whole.
    pub fn of(request: &Request<'_>) -> Option<Shape> {
        let is_known = |word: &[u8]| word[0] != b'O' || word.len() <= 1 + OPAQUE_BYTES_MAX;
        match request {
            _ if !is_plain(request) => None,
            Request::Get(Get { further, .. }) => further.is_empty().then_some(Shape::Get),
            Request::MetaGet(meta) => {
                meta.words().all(is_known).then(|| Shape::Meta(meta.words.into()))
            }
            _ => None,
        }
    }

    /// Appends the reply; a miss, if there is nothing.
    pub fn push(&self, out: &mut Vec<u8>, key: &[u8], kept: Option<&Kept>) {
        match (self, kept) {
            (Shape::Get, None) => out.extend_from_slice(b"END\r\n"),
            (Shape::Get, Some(Kept { flags, value })) => {
                push_value(out, key, *flags, value.len() as u32, None);
                for part in [value, &b"\r\nEND\r\n"[..]] {
                    out.extend_from_slice(part);
                }
            }
            (Shape::Meta(words), None) => {
                if words_of(words).all(|word| word[0] != b'q') {
                    out.extend_from_slice(b"EN\r\n");
                }
            }
            (Shape::Meta(words), Some(kept)) => push_meta(out, key, kept, words),
        }
    }
}

/// Appends the reply to `mg`. Flags come in the order of the request.
fn push_meta(out: &mut Vec<u8>, key: &[u8], Kept { flags, value }: &Kept, words: &[u8]) {
    let shows_value = words_of(words).any(|word| word[0] == b'v');
    match shows_value {
        true => {
            out.extend_from_slice(b"VA ");
            push_u64(out, value.len() as u64);
        }
        false => out.extend_from_slice(b"HD"),
    }
    for word in words_of(words) {
        if b"fskO".contains(&word[0]) {
            out.extend_from_slice(&[b' ', word[0]]);
        }
        match word[0] {
            b'f' => push_u64(out, u64::from(*flags)),
            b's' => push_u64(out, value.len() as u64),
            b'k' => out.extend_from_slice(key),
            b'O' => out.extend_from_slice(&word[1..]),
            _ => {}
        }
    }
    out.extend_from_slice(b"\r\n");
    if shows_value {
        for part in [value, &b"\r\n"[..]] {
            out.extend_from_slice(part);
        }
    }
}

/// What a request writes, and for how many seconds it is kept: a whole value under no condition. The time that it lives has to be
/// known here.
fn written(request: &Request<'_>) -> Option<(Kept, i64)> {
    let is_plain = |meta: &Meta<'_>| meta.words().all(|word| b"FTkOq".contains(&word[0]));
    let (flags, exptime, chunk) = match *request {
        Request::Store(Storage { verb: Verb::Set, flags, exptime, chunk, .. }) => {
            (flags, exptime, chunk)
        }
        Request::MetaSet(meta, chunk) if is_plain(&meta) => {
            (meta.client_flags, meta.exptime.into(), chunk)
        }
        _ => return None,
    };
    let seconds = match exptime {
        0 => COPY_SECONDS_MAX,
        2..=RELATIVE_SECONDS_MAX => (exptime - 1).min(COPY_SECONDS_MAX),
        _ => return None,
    };
    match chunk {
        Chunk::Value(value) if value.len() <= KEPT_BYTES_MAX => {
            Some((Kept { flags, value: value.into() }, seconds))
        }
        _ => None,
    }
}

impl Proxy {
    /// A request that may change a key is about to be sent to its home.
    pub(crate) fn writes(&mut self, request: &Request<'_>, hash: u64, key: &[u8]) {
        self.end_copies(hash, key);
        let Some((kept, seconds)) = written(request) else { return };
        let may_keep = self.hot.takes_writes(hash, key, kept.value.len(), self.now)
            && self.may_fill(hash, key);
        if !may_keep {
            return;
        }
        let home = self.full.place(key).expect("it may be filled");
        let conn = self.conn_of(home, key);
        if self.admit(conn).is_ok() {
            let ask = (conn as u32, self.conns[conn].asked_in_all());
            self.hot.write_through(hash, ask, kept, self.now + seconds as u64 * SECOND);
        }
    }

    /// A read gets what a write brings, when the home has stored that.
    pub(crate) fn read_behind(&mut self, ask: AskId, client: u32, shape: Shape) {
        let number = self.clients[client as usize].push(crate::client::Slot::Waiting);
        self.hot.wait(ask, Reader { client, number, shape });
    }

    /// The reply to a write.
    pub(crate) fn wrote(&mut self, ask: AskId, reply: &[u8]) {
        // A server that refuses a value has dropped the one before.
        let stored = reply == b"STORED\r\n" || reply.starts_with(b"HD");
        let Some((through, is_kept)) = self.hot.wrote(ask, stored) else { return };
        let (hits, misses) = (&mut self.counters.written_hits, &mut self.counters.get_misses);
        *if stored { hits } else { misses } += through.readers.len() as u64;
        self.counters.get_hits += if stored { through.readers.len() as u64 } else { 0 };
        self.counters.cache_writes += u64::from(is_kept);
        let kept = Some(&through.kept).filter(|_| stored);
        for Reader { client, number, shape } in through.readers {
            self.clients[client as usize]
                .answer(number, &mut self.spare, |out| shape.push(out, &through.key, kept));
            self.answered(client);
        }
    }

    /// A connection is gone.
    pub(crate) fn lose_written(&mut self, conn: usize, error: &'static [u8]) {
        for Reader { client, number, .. } in self.hot.lost(conn as u32) {
            self.counters.errors += 1;
            let push = |out: &mut Vec<u8>| out.extend_from_slice(error);
            self.clients[client as usize].answer(number, &mut self.spare, push);
            self.answered(client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_as_a_servers() {
        let kept = Kept { flags: 7, value: b"abc".to_vec() };
        let meta = |words: &str| Shape::Meta(words.as_bytes().into());
        for (shape, hit, miss) in [
            (Shape::Get, "VALUE key 7 3\r\nabc\r\nEND\r\n", "END\r\n"),
            (meta("v"), "VA 3\r\nabc\r\n", "EN\r\n"),
            (meta("k f v s Oxy q"), "VA 3 kkey f7 s3 Oxy\r\nabc\r\n", ""),
            (meta("s q"), "HD s3\r\n", ""),
            (meta(""), "HD\r\n", "EN\r\n"),
        ] {
            let said = |kept| {
                let mut out = Vec::new();
                shape.push(&mut out, b"key", kept);
                String::from_utf8(out).expect("text")
            };
            assert_eq!((said(Some(&kept)).as_str(), said(None).as_str()), (hit, miss));
        }
    }
}
