//! All that has arrived on one connection: parsed, hashed, prefetched, executed in groups, so
//! that the cache misses of a group overlap instead of being paid in turn (DESIGN §3).

use std::ops::Range;

use mbal_cachelet::Store;
use mbal_model::{KEY_BYTES_MAX, Key, ServerId};
use mbal_wire::{Parsed, Request, base64_decode, parse};

use crate::links::Links;
use crate::session::{OUTPUT_BYTES_MAX, Session};
use crate::turn::{Then, Turn};
use crate::{Action, ConnId};

/// Requests whose cache misses overlap.
pub(crate) const GROUP: usize = 16;

/// One connection's turn to be executed.
pub(crate) struct Batch<'w> {
    pub conn: ConnId,
    pub turn: Turn<'w>,
    pub links: &'w mut Links,
    pub actions: &'w mut Vec<Action>,
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
    /// Peers have to answer first.
    Paused(Pause),
    /// The connection is to be closed, and perhaps the server (gracefully or not).
    Closed(Option<bool>),
}

/// What a paused connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// A credit of the link to this server.
    Credit(ServerId),
    /// Replies that wait for a peer's have come to [`OUTPUT_BYTES_MAX`].
    Order,
}

pub(crate) struct Ran {
    pub used: usize,
    /// What stands in for the last of the used bytes: a `get` that was stopped halfway, from its
    /// first unanswered key on.
    pub rewritten: Vec<u8>,
    pub ended: Ended,
}

#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub request: Request<'a>,
    /// The request as it came, with its value.
    pub bytes: &'a [u8],
    /// Where the request ends in the input.
    end: usize,
    skip: usize,
}

impl Batch<'_> {
    /// Executes the requests in `input`, from its start.
    pub fn run(&mut self, session: &mut Session, input: &[u8]) -> Ran {
        let mut decoded = std::mem::take(self.decoded);
        let ran = self.run_groups(session, input, &mut decoded);
        *self.decoded = decoded;
        if ran.ended != Ended::Hungry {
            session.need = 0;
        }
        ran
    }

    fn run_groups(&mut self, session: &mut Session, input: &[u8], decoded: &mut Vec<u8>) -> Ran {
        let limits = self.turn.limits();
        let mut at = session.skipped(input.len());
        session.need = 0;
        let ran = |used, ended| Ran { used, rewritten: Vec::new(), ended };
        if session.skip == 0 {
            self.turn.out.append(&mut session.refusal);
        }
        while session.skip == 0 && at < input.len() {
            let nothing = Job { request: Request::Silence, bytes: &[], end: 0, skip: 0 };
            let mut jobs = [nothing; GROUP];
            let mut count = 0;
            let mut parsed = at;
            let mut stop = None;
            while count < GROUP && parsed < input.len() {
                match parse(&input[parsed..], &limits) {
                    Parsed::Request { request, bytes, skip } => {
                        let end = parsed + bytes;
                        jobs[count] = Job { request, bytes: &input[parsed..end], end, skip };
                        parsed = end + skip;
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
            let ranges = decode_keys(jobs, decoded);
            let keys = prefetch(&self.turn.server.store, jobs, decoded, &ranges);
            for (job, key) in jobs.iter().zip(keys) {
                let before = self.turn.out.len();
                let then = match self.elsewhere(session, job, key.as_ref()) {
                    None => self.turn.execute(&job.request, key),
                    Some(then) => then,
                };
                if let Then::Wait(pause) = then {
                    return ran(at, Ended::Paused(pause));
                }
                session.order(before, self.turn.out);
                at = job.end;
                if job.skip > 0 {
                    session.skip = job.skip;
                    at += session.skipped(input.len() - at);
                }
                if session.skip > 0 {
                    // Told when the value has been swallowed, as a client that sends it expects.
                    session.refusal = self.turn.out.split_off(before);
                }
                self.requests += 1;
                let ended = match then {
                    Then::Resume(rewritten) => {
                        return Ran { used: at, rewritten, ended: Ended::Stalled };
                    }
                    Then::Close(shutdown) => Some(Ended::Closed(shutdown)),
                    _ => self.bound(session, at < input.len()),
                };
                if let Some(ended) = ended {
                    return ran(at, ended);
                }
            }
            if let Some(ended) = stop {
                return ran(at, ended);
            }
        }
        ran(at, Ended::Hungry)
    }

    /// The bound that has been reached, if any.
    fn bound(&mut self, session: &Session, more: bool) -> Option<Ended> {
        let yields = self.requests >= self.turn.server.settings.requests_per_event && more;
        if yields {
            self.turn.counters.conn_yields.add(1);
        }
        if session.slots.held_bytes() >= OUTPUT_BYTES_MAX {
            Some(Ended::Paused(Pause::Order))
        } else if yields || self.turn.replied_bytes() >= OUTPUT_BYTES_MAX {
            Some(Ended::Stalled)
        } else {
            None
        }
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
