//! Copies some keys from one memcached to another, by leases at the destination.
//!
//! ```text
//!   destination   mg k N30 c   ──► W, a cas number: an empty mark stands there, for 30 s
//!   source        mg k v t f c ──► the value, or none
//!   destination   ms k … C<cas>    only if nobody has written, deleted or evicted the mark; or md k C<cas>
//! ```
//!
//! A request that is executed late does nothing: the mark that it names is gone. A mark alone outlives its batch, for 30 s.

use mbal_model::planted::{Fault, is_planted};
use mbal_wire::{ItemHead, MetaHead, MetaStatus, is_meta_key, push_meta_key, word_u64};

/// A relative time to live beyond it would be read as a time of day.
const TTL_RELATIVE_MAX: i64 = 30 * 24 * 3600;

/// Whom a batch asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Source,
    Destination,
}

/// What has come of its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    pub copied: u64,
    /// Keys and values.
    pub bytes: u64,
    /// No more at the source.
    pub gone: u64,
    /// The destination did not take them, or their keys cannot be said.
    pub refused: u64,
}

#[derive(Clone, Debug)]
enum State {
    /// It is not asked for: nothing is to be done any more.
    Over,
    Waits,
    /// The mark's cas.
    Leased(u64),
    Read {
        cas: u64,
        value: Value,
    },
    /// The mark is to be taken back.
    Left(u64),
}

#[derive(Clone, Debug)]
struct Value {
    bytes: Vec<u8>,
    flags: u64,
    ttl: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Lease,
    Read,
    Store,
    TakeBack,
}

/// Keys that are copied together.
#[derive(Debug)]
pub struct Batch {
    keys: Vec<(Vec<u8>, State)>,
    stage: Option<Stage>,
    /// What stands there is deleted first.
    overwrites: bool,
    /// Of the keys, by number, that are waited for.
    asked: Vec<usize>,
    /// So many of their replies have come.
    heard: usize,
    /// Keys that somebody else has stored there, or is storing.
    there: Vec<Vec<u8>>,
    counts: BatchCounts,
    /// What the destination's clock shows, in seconds since 1970.
    clock: u64,
}

impl Batch {
    pub fn new(keys: Vec<Vec<u8>>, overwrites: bool, clock: u64) -> Batch {
        let (said, unsaid): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| is_meta_key(key));
        let counts = BatchCounts { refused: unsaid.len() as u64, ..BatchCounts::default() };
        let keys = said.into_iter().map(|key| (key, State::Waits)).collect();
        let (asked, there) = (Vec::new(), Vec::new());
        let stage = Some(Stage::Lease);
        Batch { keys, stage, overwrites, asked, heard: 0, there, counts, clock }
    }

    /// The next requests, and who gets them; `None` at its end.
    pub fn ask(&mut self) -> Option<(Side, Vec<u8>)> {
        while let Some(stage) = self.stage {
            let mut out = Vec::new();
            self.asked.clear();
            self.heard = 0;
            for (number, (key, state)) in self.keys.iter().enumerate() {
                let times = push(&mut out, stage, key, state, self.overwrites, self.clock);
                self.asked.extend(std::iter::repeat_n(number, times));
            }
            if !self.asked.is_empty() {
                let side = if stage == Stage::Read { Side::Source } else { Side::Destination };
                return Some((side, out));
            }
            self.stage = stage.next();
        }
        None
    }

    /// How many bytes of `input` are replies that were waited for. An error is a reply that is none.
    pub fn hear(&mut self, input: &[u8]) -> Result<usize, String> {
        let Some(stage) = self.stage else { return Ok(0) };
        let mut at = 0;
        while self.heard < self.asked.len() {
            let Some(length) = self.hear_one(stage, &input[at..])? else { break };
            at += length;
            self.heard += 1;
        }
        if self.is_heard() {
            self.stage = stage.next();
        }
        Ok(at)
    }

    /// All replies to what was asked last have come.
    pub fn is_heard(&self) -> bool {
        self.heard == self.asked.len()
    }

    pub fn counts(&self) -> BatchCounts {
        self.counts
    }

    /// Keys that were not copied, since something stands there.
    pub fn take_there(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.there)
    }

    fn hear_one(&mut self, stage: Stage, input: &[u8]) -> Result<Option<usize>, String> {
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        let strange = || String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
        let number = self.asked[self.heard];
        let is_second = self.heard > 0 && self.asked[self.heard - 1] == number;
        let (key, state) = &mut self.keys[number];
        let refused = line.starts_with(b"SERVER_ERROR");
        match (stage, &*state) {
            (Stage::Lease, _) if self.overwrites && !is_second => {
                if line != b"HD" && line != b"NF" {
                    return Err(strange());
                }
            }
            (Stage::Lease, _) if refused => {
                self.counts.refused += 1;
                *state = State::Over;
            }
            (Stage::Lease, _) => {
                let (cas, won) = parse_lease(line).ok_or_else(strange)?;
                *state = if won { State::Leased(cas) } else { State::Over };
                if !won {
                    self.there.push(key.clone());
                }
            }
            (Stage::Read, State::Leased(cas)) => {
                let cas = *cas;
                if line == b"EN" {
                    self.counts.gone += 1;
                    *state = State::Left(cas);
                    return Ok(Some(end + 1));
                }
                let ItemHead { bytes, flags, ttl, is_settled, .. } =
                    ItemHead::parse(line).ok_or_else(strange)?;
                let Some(found) = input.get(end + 1..end + 1 + bytes + 2) else { return Ok(None) };
                // What is about to expire is gone.
                *state = if is_settled && ttl != Some(0) {
                    let (bytes, ttl) = (found[..bytes].to_vec(), ttl.map(i64::from));
                    State::Read { cas, value: Value { bytes, flags, ttl } }
                } else {
                    self.counts.gone += 1;
                    State::Left(cas)
                };
                return Ok(Some(end + 1 + bytes + 2));
            }
            (Stage::Store, State::Read { cas, value }) => {
                let (cas, bytes) = (*cas, (key.len() + value.bytes.len()) as u64);
                *state = State::Over;
                match line {
                    b"HD" => {
                        self.counts.copied += 1;
                        self.counts.bytes += bytes;
                    }
                    // The mark was evicted, or somebody has written there.
                    b"EX" | b"NF" | b"NS" => self.counts.refused += 1,
                    _ if refused => {
                        self.counts.refused += 1;
                        *state = State::Left(cas);
                    }
                    _ => return Err(strange()),
                }
            }
            (Stage::TakeBack, _) => {
                if ![&b"HD"[..], b"NF", b"EX"].contains(&line) {
                    return Err(strange());
                }
                *state = State::Over;
            }
            _ => return Err(strange()),
        }
        Ok(Some(end + 1))
    }
}

impl Stage {
    fn next(self) -> Option<Stage> {
        match self {
            Stage::Lease => Some(Stage::Read),
            Stage::Read => Some(Stage::Store),
            Stage::Store => Some(Stage::TakeBack),
            Stage::TakeBack => None,
        }
    }
}

/// Appends what a stage asks for a key; how many replies it has.
fn push(
    out: &mut Vec<u8>,
    stage: Stage,
    key: &[u8],
    state: &State,
    overwrites: bool,
    clock: u64,
) -> usize {
    match (stage, state) {
        (Stage::Lease, State::Waits) => {
            if overwrites {
                push_words(out, b"md ", key, "\r\n");
            }
            push_words(out, b"mg ", key, " N30 c\r\n");
            1 + usize::from(overwrites)
        }
        (Stage::Read, State::Leased(_)) => {
            push_words(out, b"mg ", key, " v t f c\r\n");
            1
        }
        (Stage::Store, State::Read { cas, value }) => {
            let ttl = match value.ttl {
                None => 0,
                Some(ttl) if ttl <= TTL_RELATIVE_MAX => ttl,
                Some(ttl) => ttl.saturating_add_unsigned(clock),
            };
            let lease = match is_planted(Fault::CopiedWithoutLease) {
                true => String::new(),
                false => format!(" C{cas}"),
            };
            // The length stands between the key and its flags.
            out.extend_from_slice(b"ms ");
            let encoded = push_meta_key(out, key);
            let Value { bytes, flags, .. } = value;
            let rest = format!(" {}{encoded} T{ttl} F{flags}{lease}\r\n", bytes.len());
            out.extend_from_slice(rest.as_bytes());
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
            1
        }
        (Stage::TakeBack, State::Left(cas)) => {
            push_words(out, b"md ", key, &format!(" C{cas}\r\n"));
            1
        }
        _ => 0,
    }
}

fn push_words(out: &mut Vec<u8>, verb: &[u8], key: &[u8], rest: &str) {
    out.extend_from_slice(verb);
    let encoded = push_meta_key(out, key);
    out.extend_from_slice(encoded.as_bytes());
    out.extend_from_slice(rest.as_bytes());
}

/// The cas of what stands there, and whether it is the own mark.
fn parse_lease(line: &[u8]) -> Option<(u64, bool)> {
    let head = MetaHead::parse(line).filter(|head| head.status == MetaStatus::Done)?;
    let (mut cas, mut won) = (None, false);
    for (letter, rest) in head.flags() {
        match letter {
            b'c' => cas = word_u64(rest),
            b'W' => won = true,
            _ => {}
        }
    }
    Some((cas?, won))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each request, and what is answered.
    fn check(batch: &mut Batch, turns: &[(Side, &str, &str)]) {
        for (side, request, reply) in turns {
            let (asked, out) = batch.ask().expect("there is more");
            assert_eq!((asked, String::from_utf8(out).expect("text")), (*side, (*request).into()));
            for end in 0..reply.len() {
                let mut part = Batch { keys: batch.keys.clone(), ..Batch::new(vec![], false, 0) };
                part.asked.clone_from(&batch.asked);
                (part.stage, part.overwrites) = (batch.stage, batch.overwrites);
                assert!(part.hear(&reply.as_bytes()[..end]).is_ok_and(|used| used <= end));
                assert!(!part.is_heard(), "{reply:?} to {end}");
            }
            assert_eq!(batch.hear(reply.as_bytes()), Ok(reply.len()));
        }
        assert_eq!(batch.ask(), None);
    }

    #[test]
    fn a_value_goes_where_its_lease_is() {
        let keys = vec![b"a".to_vec(), b"b b".to_vec(), b"c".to_vec(), b"d".to_vec()];
        let mut batch = Batch::new(keys, false, 1_000_000_000);
        check(
            &mut batch,
            &[
                (
                    Side::Destination,
                    "mg a N30 c\r\nmg YiBi b N30 c\r\nmg c N30 c\r\nmg d N30 c\r\n",
                    "HD c1 W\r\nHD c2 W\r\nHD c3 W\r\nHD c9 Z\r\n",
                ),
                (
                    Side::Source,
                    "mg a v t f c\r\nmg YiBi b v t f c\r\nmg c v t f c\r\n",
                    "VA 2 t-1 f5 c7\r\nxy\r\nVA 0 t5000000 f0 c8\r\n\r\nEN\r\n",
                ),
                (
                    Side::Destination,
                    "ms a 2 T0 F5 C1\r\nxy\r\nms YiBi 0 b T1005000000 F0 C2\r\n\r\n",
                    "HD\r\nSERVER_ERROR out of memory storing object\r\n",
                ),
                (Side::Destination, "md YiBi b C2\r\nmd c C3\r\n", "NF\r\nHD\r\n"),
            ],
        );
        let counts = BatchCounts { copied: 1, bytes: 3, gone: 1, refused: 1 };
        assert_eq!((batch.counts(), batch.take_there()), (counts, vec![b"d".to_vec()]));
    }

    #[test]
    fn what_was_copied_before_is_deleted_first() {
        let mut batch = Batch::new(vec![b"a".to_vec(), b"b".to_vec()], true, 0);
        check(
            &mut batch,
            &[
                (
                    Side::Destination,
                    "md a\r\nmg a N30 c\r\nmd b\r\nmg b N30 c\r\n",
                    "HD\r\nHD c5 W\r\nNF\r\nHD c6 W\r\n",
                ),
                (
                    Side::Source,
                    "mg a v t f c\r\nmg b v t f c\r\n",
                    "EN\r\nVA 1 t9 f0 c1 Z\r\nx\r\n",
                ),
                (Side::Destination, "md a C5\r\nmd b C6\r\n", "HD\r\nNF\r\n"),
            ],
        );
        assert_eq!(batch.counts().gone, 2);
    }

    #[test]
    fn another_reply_is_an_error() {
        let mut batch = Batch::new(vec![b"a".to_vec()], false, 0);
        batch.ask();
        assert_eq!(batch.hear(b"STORED\r\n"), Err("STORED".into()));
    }
}
