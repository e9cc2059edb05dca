//! The meta commands, from a line to a request.

use mbal_model::KEY_BYTES_MAX;

use crate::base64::base64_decode;
use crate::meta::{Refused, command, is_no_flag, opaque_too_long};
use crate::number::word_i32;
use crate::request::{Limits, Parsed, Request, answer, done};
use crate::text::{chunk, value_length};
use crate::words::{BAD_FORMAT, TOKENS_MAX, next_word, words_of};

pub(crate) fn get(rest: &[u8]) -> Request<'_> {
    let Some((key, words)) = next_word(rest) else { return Request::Answer(BAD_FORMAT) };
    match command(key, words, 2) {
        Ok(meta) => Request::MetaGet(meta),
        Err(refused) => Request::Answer(refused.reason),
    }
}

pub(crate) fn delete(rest: &[u8]) -> Request<'_> {
    let Some((key, words)) = next_word(rest) else { return Request::Answer(BAD_FORMAT) };
    match command(key, words, 2) {
        Ok(meta) => Request::MetaDelete(meta),
        Err(refused) => Request::Answer(refused.reason),
    }
}

/// `ma` does not say what it dislikes.
pub(crate) fn arithmetic(rest: &[u8]) -> Request<'_> {
    let Some((key, words)) = next_word(rest) else { return Request::Answer(BAD_FORMAT) };
    match command(key, words, 2) {
        Ok(meta) => Request::MetaArithmetic(meta),
        Err(Refused { is_unread: true, reason }) => Request::Answer(reason),
        Err(_) => Request::Answer("CLIENT_ERROR invalid or duplicate flag"),
    }
}

pub(crate) fn debug(rest: &[u8]) -> Request<'_> {
    let Some((key, words)) = next_word(rest).filter(|(key, _)| key.len() <= KEY_BYTES_MAX) else {
        return Request::Answer(BAD_FORMAT);
    };
    if words_of(words).take(TOKENS_MAX - 2).any(is_no_flag) {
        return Request::Answer(BAD_FORMAT);
    }
    // memcached counts a word too many: the key is in base64 if there is anything behind the `b`.
    let base64 = words_of(words).next() == Some(b"b") && words_of(words).count() > 1;
    if base64 && base64_decode(key, &mut [0; KEY_BYTES_MAX]).is_none() {
        return Request::Answer(BAD_FORMAT);
    }
    Request::MetaDebug { key, base64 }
}

pub(crate) fn set<'a>(
    rest: &'a [u8],
    input: &'a [u8],
    bytes: usize,
    limits: &Limits,
) -> Parsed<'a> {
    let words = || {
        let (key, rest) = next_word(rest)?;
        let (value_bytes, words) = next_word(rest)?;
        Some((key, word_i32(value_bytes).and_then(value_length)?, words))
    };
    let Some((key, value_bytes, words)) = words() else {
        return answer(BAD_FORMAT, bytes);
    };
    let skip = value_bytes + 2;
    let refuse = |refusal| Parsed::Request { request: Request::Answer(refusal), bytes, skip };
    let meta = match command(key, words, 3) {
        Ok(meta) => meta,
        Err(Refused { reason, is_unread: true }) => return answer(reason, bytes),
        Err(Refused { reason, .. }) => return refuse(reason),
    };
    if !matches!(meta.mode, 0 | b'E' | b'A' | b'P' | b'R' | b'S') {
        return refuse("CLIENT_ERROR invalid mode for ms M token");
    }
    let base64 = meta.flags.has(b'b');
    let key_bytes = if base64 { decoded_length(key) } else { key.len() };
    if limits.too_large(key_bytes, meta.client_flags, value_bytes) {
        let request = Request::TooLarge { key, base64, remove: true, noreply: false };
        return Parsed::Request { request, bytes, skip };
    }
    if meta.flags.has(b'O') && meta.words().any(opaque_too_long) {
        return refuse("CLIENT_ERROR opaque token too long");
    }
    match chunk(input, bytes, value_bytes) {
        Some((chunk, bytes)) => done(Request::MetaSet(meta, chunk), bytes),
        None => Parsed::NeedMore { bytes: bytes + skip },
    }
}

fn decoded_length(key: &[u8]) -> usize {
    base64_decode(key, &mut [0; KEY_BYTES_MAX]).unwrap_or(0)
}
