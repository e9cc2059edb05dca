//! Requests of a batch, before they are executed.

use mbal_model::KEY_BYTES_MAX;
use mbal_wire::{Limits, Parsed, Request, base64_decode, parse, parse_binary};

/// Requests whose cache misses overlap.
pub(crate) const GROUP: usize = 16;

#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub request: Request<'a>,
    /// The request as it came, with its value.
    pub bytes: &'a [u8],
    /// Where the request ends in the input, and how much follows that belongs to a refused value.
    pub end: usize,
    pub skip: usize,
}

/// Why no further request was parsed.
pub(crate) enum Stop {
    NeedMore(usize),
    Close,
}

/// A group's places. One by one: a constant would be 2 KiB to fill.
#[inline(always)]
pub(crate) fn no_jobs<'a>() -> [Option<Job<'a>>; GROUP] {
    std::array::from_fn(|_| None)
}

/// The request that begins at `at`, in `place`: it is large, and so not handed from function to function.
#[inline(always)]
pub(crate) fn next_job<'a, 'p>(
    binary: bool,
    limits: &Limits,
    input: &'a [u8],
    at: usize,
    place: &'p mut Option<Job<'a>>,
) -> Result<&'p mut Job<'a>, Stop> {
    let input_left = &input[at..];
    match if binary { parse_binary(input_left, limits) } else { parse(input_left, limits) } {
        Parsed::Request { request, bytes, skip } => {
            let end = at + bytes;
            Ok(place.insert(Job { request, bytes: &input[at..end], end, skip }))
        }
        Parsed::NeedMore { bytes } => Err(Stop::NeedMore(bytes)),
        Parsed::Close => Err(Stop::Close),
    }
}

/// Decodes into `decoded` the keys that came in base64, one after the other.
#[inline(always)]
pub(crate) fn decode_keys(jobs: &[Option<Job<'_>>], decoded: &mut Vec<u8>) {
    decoded.clear();
    for job in jobs.iter().flatten() {
        if let Some((key, true)) = job.request.key() {
            decode_key(key, decoded);
        }
    }
}

#[cold]
fn decode_key(key: &[u8], decoded: &mut Vec<u8>) {
    let mut bytes = [0; KEY_BYTES_MAX];
    let length = base64_decode(key, &mut bytes).expect("the parser tried it");
    decoded.push(length as u8);
    decoded.extend_from_slice(&bytes[..length]);
}

/// A read of which a client may be told where copies are.
pub(crate) fn is_read(request: &Request<'_>) -> bool {
    !request.writes() && request.key().is_some()
}
