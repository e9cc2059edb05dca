//! All that has arrived on one connection: parsed, hashed, prefetched, executed in groups, so
//! that the cache misses of a group overlap instead of being paid in turn (DESIGN §3).

use std::ops::Range;

use mbal_cachelet::Store;
use mbal_model::{KEY_BYTES_MAX, Key};
use mbal_wire::{Limits, Parsed, Request, base64_decode, parse};

use crate::session::{OUTPUT_BYTES_MAX, Session};
use crate::turn::{Then, Turn};

/// Requests whose cache misses overlap.
pub(crate) const GROUP: usize = 16;

/// One connection's turn to be executed.
pub(crate) struct Batch<'w> {
    pub turn: Turn<'w>,
    /// Keys that came in base64, decoded; reused from group to group.
    pub decoded: &'w mut Vec<u8>,
    /// Requests executed so far.
    pub requests: u32,
}

/// Why a batch came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The input holds no further whole request.
    Hungry,
    /// A bound was reached: go on when the output has left.
    Stalled,
    /// The connection is to be closed, and perhaps the server (gracefully or not).
    Closed(Option<bool>),
}

pub(crate) struct Ran {
    pub used: usize,
    /// What stands in for the last of the used bytes: a `get` that was stopped halfway, from its
    /// first unanswered key on.
    pub rewritten: Vec<u8>,
    pub ended: Ended,
}

#[derive(Clone, Copy)]
struct Job<'a> {
    request: Request<'a>,
    /// Where the request ends in the input.
    end: usize,
    skip: usize,
}

impl Batch<'_> {
    /// Executes the requests in `input`, from its start.
    pub fn run(&mut self, session: &mut Session, input: &[u8]) -> Ran {
        let limits = Limits { item_bytes_max: self.turn.server.settings.item_bytes_max };
        let mut at = session.skip.min(input.len());
        session.skip -= at;
        session.need = 0;
        let ran = |used, ended| Ran { used, rewritten: Vec::new(), ended };
        while session.skip == 0 && at < input.len() {
            let mut jobs = [Job { request: Request::Silence, end: 0, skip: 0 }; GROUP];
            let mut count = 0;
            let mut parsed = at;
            let mut stop = None;
            while count < GROUP && parsed < input.len() {
                match parse(&input[parsed..], &limits) {
                    Parsed::Request { request, bytes, skip } => {
                        jobs[count] = Job { request, end: parsed + bytes, skip };
                        parsed += bytes + skip;
                        count += 1;
                    }
                    Parsed::NeedMore { bytes } => {
                        session.need = bytes;
                        stop = Some(Ended::Hungry);
                        break;
                    }
                    Parsed::Close => {
                        stop = Some(Ended::Closed(None));
                        break;
                    }
                }
            }
            let jobs = &jobs[..count];
            let ranges = decode_keys(jobs, self.decoded);
            let keys = prefetch(&self.turn.server.store, jobs, self.decoded, &ranges);
            for (job, key) in jobs.iter().zip(keys) {
                let then = self.turn.execute(&job.request, key);
                at = (job.end + job.skip).min(input.len());
                session.skip = job.end + job.skip - at;
                self.requests += 1;
                match then {
                    Then::Next => {}
                    Then::Resume(rewritten) => {
                        return Ran { used: at, rewritten, ended: Ended::Stalled };
                    }
                    Then::Close(shutdown) => return ran(at, Ended::Closed(shutdown)),
                }
                let yields = self.requests >= self.turn.server.settings.requests_per_event;
                if self.turn.replied_bytes() >= OUTPUT_BYTES_MAX || yields && at < input.len() {
                    self.turn.counters.conn_yields.add(1);
                    session.need = 0;
                    return ran(at, Ended::Stalled);
                }
            }
            if let Some(ended) = stop {
                return ran(at, ended);
            }
        }
        ran(at, Ended::Hungry)
    }
}

/// Decodes into `decoded` what came in base64; where each job's key lies there.
fn decode_keys(jobs: &[Job<'_>], decoded: &mut Vec<u8>) -> [Range<usize>; GROUP] {
    decoded.clear();
    let mut ranges = [const { 0..0 }; GROUP];
    for (job, range) in jobs.iter().zip(&mut ranges) {
        let Some((key, true)) = job.request.key() else { continue };
        let mut bytes = [0; KEY_BYTES_MAX];
        let length = base64_decode(key, &mut bytes).expect("the parser tried it");
        *range = decoded.len()..decoded.len() + length;
        decoded.extend_from_slice(&bytes[..length]);
    }
    ranges
}

fn prefetch<'a>(
    store: &Store,
    jobs: &[Job<'a>],
    decoded: &'a [u8],
    ranges: &[Range<usize>; GROUP],
) -> [Option<Key<'a>>; GROUP] {
    let mut keys = [None; GROUP];
    for ((job, range), slot) in jobs.iter().zip(ranges).zip(&mut keys) {
        let Some((bytes, base64)) = job.request.key() else { continue };
        *slot = Key::new(if base64 { &decoded[range.clone()] } else { bytes });
        if let Some(key) = slot {
            store.prefetch_bucket(key.hash());
        }
    }
    if jobs.len() > 1 {
        keys.iter().flatten().for_each(|key| store.prefetch_item(key.hash()));
    }
    keys
}
