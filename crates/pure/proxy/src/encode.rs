//! Requests as an upstream gets them: without what would keep it from answering, the key by the name that it has there.

use mbal_wire::{
    BINARY_REQUEST, Chunk, Direction, Frame, Meta, Request, Storage, Verb, base64_encode,
    binary_delete, push_i64, push_u64,
};

/// Appends a request that has one key. It always has a reply.
pub(crate) fn push(out: &mut Vec<u8>, request: &Request<'_>, key: &[u8]) {
    match request {
        Request::Get(get) => {
            get.push_head(out);
            out.extend_from_slice(key);
        }
        Request::Store(storage) => return push_store(out, storage, key),
        Request::Arithmetic { direction, delta, .. } => {
            let verb: &[u8] = match direction {
                Direction::Increment => b"incr ",
                Direction::Decrement => b"decr ",
            };
            words(out, &[verb, key, b" "]);
            push_u64(out, *delta);
        }
        Request::Touch { exptime, .. } => {
            words(out, &[b"touch ", key, b" "]);
            push_i64(out, i64::from(*exptime));
        }
        Request::Delete { .. } | Request::TooLarge { base64: false, .. } => {
            // To memcached the word `noreply` at the end asks for silence, even where it is a key.
            let end: &[u8] = if key == b"noreply" { b" 0" } else { b"" };
            words(out, &[b"delete ", key, end]);
        }
        Request::TooLarge { .. } => words(out, &[b"md ", key, b" b"]),
        Request::MetaGet(meta) => push_meta(out, b"mg ", meta, key),
        Request::MetaDelete(meta) => push_meta(out, b"md ", meta, key),
        Request::MetaArithmetic(meta) => push_meta(out, b"ma ", meta, key),
        Request::MetaSet(meta, chunk) => {
            let Chunk::Value(value) = chunk else { unreachable!("it was answered") };
            words(out, &[b"ms ", key, b" "]);
            push_u64(out, value.len() as u64);
            push_words(out, meta);
            return words(out, &[b"\r\n", value, b"\r\n"]);
        }
        Request::MetaDebug { base64, .. } => {
            words(out, &[b"me ", key, if *base64 { b" b b" } else { b"" }]);
        }
        _ => unreachable!("it has a key"),
    }
    out.extend_from_slice(b"\r\n");
}

fn push_store(out: &mut Vec<u8>, storage: &Storage<'_>, key: &[u8]) {
    let verb: &[u8] = match storage.verb {
        Verb::Set => b"set ",
        Verb::Add => b"add ",
        Verb::Replace => b"replace ",
        Verb::Append => b"append ",
        Verb::Prepend => b"prepend ",
        Verb::Cas => b"cas ",
    };
    let Chunk::Value(value) = storage.chunk else { unreachable!("it was answered") };
    words(out, &[verb, key, b" "]);
    push_u64(out, u64::from(storage.flags));
    out.push(b' ');
    push_i64(out, storage.exptime);
    out.push(b' ');
    push_u64(out, value.len() as u64);
    if storage.verb == Verb::Cas {
        out.push(b' ');
        push_u64(out, storage.cas);
    }
    words(out, &[b"\r\n", value, b"\r\n"]);
}

fn push_meta(out: &mut Vec<u8>, verb: &[u8], meta: &Meta<'_>, key: &[u8]) {
    words(out, &[verb, key]);
    push_words(out, meta);
}

/// All flags but `q`: an upstream always answers.
fn push_words(out: &mut Vec<u8>, meta: &Meta<'_>) {
    if !meta.flags.has(b'q') {
        if !meta.words.is_empty() {
            words(out, &[b" ", meta.words]);
        }
        return;
    }
    for word in meta.words().filter(|word| word[0] != b'q') {
        words(out, &[b" ", word]);
    }
}

#[inline]
fn words(out: &mut Vec<u8>, words: &[&[u8]]) {
    words.iter().for_each(|word| out.extend_from_slice(word));
}

pub(crate) fn push_flush(out: &mut Vec<u8>, binary: bool) {
    match binary {
        true => push_bare(out, 0x08),
        false => out.extend_from_slice(b"flush_all\r\n"),
    }
}

/// Appends a binary request that is nothing but its opcode.
pub(crate) fn push_bare(out: &mut Vec<u8>, opcode: u8) {
    let mut frame = [0; 24];
    frame[..2].copy_from_slice(&[BINARY_REQUEST, opcode]);
    out.extend_from_slice(&frame);
}

pub(crate) fn push_delete(out: &mut Vec<u8>, key: &[u8], base64: bool, binary: bool) {
    if binary {
        return out.extend_from_slice(&binary_delete(key));
    }
    out.extend_from_slice(b"md ");
    if base64 {
        base64_encode(key, out);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a request, as one that is always answered.
pub(crate) fn push_loud(out: &mut Vec<u8>, frame: &Frame, raw: &[u8]) {
    out.extend_from_slice(&[raw[0], frame.loud()]);
    out.extend_from_slice(&raw[2..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use mbal_wire::{Limits, Login, Parsed, parse};

    #[test]
    fn a_request_comes_out_as_it_came_in_but_for_its_silence() {
        let limits = Limits { item_bytes_max: 1 << 20, login: Login::NotAsked };
        for (from, to) in [
            ("get a\r\n", "get k\r\n"),
            ("gats  -1 a\n", "gats -1 k\r\n"),
            ("set a 7 -1 3 noreply\r\na\r\n\r\n", "set k 7 -1 3\r\na\r\n\r\n"),
            ("cas a 7 0 1 99\r\nx\r\n", "cas k 7 0 1 99\r\nx\r\n"),
            ("incr a 5 noreply\r\n", "incr k 5\r\n"),
            ("touch a 5\r\n", "touch k 5\r\n"),
            ("delete a noreply\r\n", "delete k\r\n"),
            ("delete noreply\r\n", "delete k\r\n"),
            ("mg a v q k\r\n", "mg k v k\r\n"),
            ("mg a\r\n", "mg k\r\n"),
            ("ms a 2 q T5\r\nab\r\n", "ms k 2 T5\r\nab\r\n"),
            ("ma a D2  v\r\n", "ma k D2  v\r\n"),
            ("me a\r\n", "me k\r\n"),
        ] {
            let Parsed::Request { request, .. } = parse(from.as_bytes(), &limits) else {
                panic!("{from}")
            };
            let mut out = Vec::new();
            push(&mut out, &request, b"k");
            assert_eq!(String::from_utf8(out).expect("text"), to);
        }
    }
    #[test]
    fn a_key_that_asks_for_silence_is_answered() {
        let mut out = Vec::new();
        push(&mut out, &Request::Delete { key: b"noreply", noreply: true }, b"noreply");
        assert_eq!(out, b"delete noreply 0\r\n");
    }
}
