//! What source and destination say to each other, as bytes.
//!
//! A message is the payload of a frame of a link; its kind is the frame's, and the frame's ticket is the move's number. The table is in
//! `docs/design/moves.md`. Numbers are little-endian.

use mbal_model::{Prefix, WorkerId};

use crate::order::Incarnation;

/// Of an [`Request::Part`]: 64 KiB, a step of export, and an item; far below what a link takes.
pub const PART_BYTES_MAX: usize = 2 << 20;

/// The source's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// The first message of a link, and of a link that has come up again.
    Begin(Begin),
    /// Bytes of `mbal_cachelet::Part`.
    Part(&'a [u8]),
    /// Everything up to this hash is gone at the source.
    Gone(u64),
    /// The move is over; nothing has gone.
    Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    pub prefix: Prefix,
    pub source: Incarnation,
    pub destination: Incarnation,
    /// Who is to own it.
    pub worker: WorkerId,
    pub generation: u16,
    /// The last hash that is gone at the source.
    pub gone: Option<u64>,
}

/// The destination's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// Parts may come. It serves up to this hash.
    Ready(Option<u64>),
    Refused(Refusal),
    /// A part has been imported, now or before.
    Taken {
        slice: u32,
        number: u32,
        /// The destination's worker has no time left.
        strained: bool,
    },
    /// It serves up to this hash.
    Served(u64),
}

/// Why a destination takes no part in a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// It is another process than the one that was meant.
    Incarnation = 1,
    /// It has no room for another cachelet, or move; or what it had of this one stays.
    NoRoom = 2,
    /// It serves a part of this cachelet by another move; or it knows nothing of what is said to have come.
    OtherMove = 3,
}

/// No message has this kind or these bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

pub(crate) mod kind {
    pub const BEGIN: u8 = 32;
    pub const PART: u8 = 33;
    pub const GONE: u8 = 34;
    pub const CANCEL: u8 = 35;
    pub const READY: u8 = 48;
    pub const REFUSED: u8 = 49;
    pub const TAKEN: u8 = 50;
    pub const SERVED: u8 = 51;
}

impl<'a> Request<'a> {
    /// Appends the payload; the frame's kind.
    pub fn encode(&self, out: &mut Vec<u8>) -> u8 {
        match self {
            Request::Begin(begin) => {
                out.extend(begin.prefix.code().to_le_bytes());
                out.extend(begin.source.0.to_le_bytes());
                out.extend(begin.destination.0.to_le_bytes());
                out.extend(begin.worker.0.to_le_bytes());
                out.extend(begin.generation.to_le_bytes());
                push_hash(begin.gone, out);
                kind::BEGIN
            }
            Request::Part(part) => {
                out.extend_from_slice(part);
                kind::PART
            }
            Request::Gone(last) => {
                out.extend(last.to_le_bytes());
                kind::GONE
            }
            Request::Cancel => kind::CANCEL,
        }
    }

    /// Reads what a frame of this kind carries. The bytes of a part are looked at by who imports it.
    pub fn parse(kind: u8, payload: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let mut reader = Reader(payload);
        let ask = match kind {
            kind::BEGIN => Request::Begin(Begin {
                prefix: Prefix::from_code(reader.u16()?).ok_or(Malformed)?,
                source: Incarnation(reader.u64()?),
                destination: Incarnation(reader.u64()?),
                worker: WorkerId(reader.u16()?),
                generation: reader.u16()?,
                gone: reader.hash()?,
            }),
            kind::PART if payload.len() <= PART_BYTES_MAX => return Ok(Request::Part(payload)),
            kind::GONE => Request::Gone(reader.u64()?),
            kind::CANCEL => Request::Cancel,
            _ => return Err(Malformed),
        };
        reader.end()?;
        match ask {
            Request::Begin(Begin { prefix, gone: Some(last), .. }) if !prefix.contains(last) => {
                Err(Malformed)
            }
            ask => Ok(ask),
        }
    }
}

impl Response {
    /// Appends the payload; the frame's kind.
    pub fn encode(&self, out: &mut Vec<u8>) -> u8 {
        match *self {
            Response::Ready(served) => {
                push_hash(served, out);
                kind::READY
            }
            Response::Refused(why) => {
                out.push(why as u8);
                kind::REFUSED
            }
            Response::Taken { slice, number, strained } => {
                out.extend(slice.to_le_bytes());
                out.extend(number.to_le_bytes());
                out.push(strained.into());
                kind::TAKEN
            }
            Response::Served(last) => {
                out.extend(last.to_le_bytes());
                kind::SERVED
            }
        }
    }

    /// Reads what a frame of this kind carries.
    pub fn parse(kind: u8, payload: &[u8]) -> Result<Response, Malformed> {
        let mut reader = Reader(payload);
        let answer = match kind {
            kind::READY => Response::Ready(reader.hash()?),
            kind::REFUSED => Response::Refused(match reader.u8()? {
                1 => Refusal::Incarnation,
                2 => Refusal::NoRoom,
                3 => Refusal::OtherMove,
                _ => return Err(Malformed),
            }),
            kind::TAKEN => Response::Taken {
                slice: reader.u32()?,
                number: reader.u32()?,
                strained: reader.flag()?,
            },
            kind::SERVED => Response::Served(reader.u64()?),
            _ => return Err(Malformed),
        };
        reader.end()?;
        Ok(answer)
    }
}

/// A mark, then the hash; both 0 if there is none.
fn push_hash(hash: Option<u64>, out: &mut Vec<u8>) {
    out.push(hash.is_some().into());
    out.extend(hash.unwrap_or(0).to_le_bytes());
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn hash(&mut self) -> Result<Option<u64>, Malformed> {
        match (self.flag()?, self.u64()?) {
            (true, hash) => Ok(Some(hash)),
            (false, 0) => Ok(None),
            (false, _) => Err(Malformed),
        }
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks() -> Vec<Request<'static>> {
        let begin = Begin {
            prefix: Prefix::new(0x2c00, 6).expect("a prefix"),
            source: Incarnation(0x0102030405060708),
            destination: Incarnation(9),
            worker: WorkerId(3),
            generation: 0x7fff,
            gone: None,
        };
        let later = Begin { gone: Some(0x2d00_0000_0000_0000), ..begin };
        vec![
            Request::Begin(begin),
            Request::Begin(later),
            Request::Part(b"part"),
            Request::Gone(7),
            Request::Cancel,
        ]
    }

    fn answers() -> Vec<Response> {
        vec![
            Response::Ready(None),
            Response::Ready(Some(u64::MAX)),
            Response::Refused(Refusal::Incarnation),
            Response::Refused(Refusal::NoRoom),
            Response::Refused(Refusal::OtherMove),
            Response::Taken { slice: 1, number: 2, strained: false },
            Response::Taken { slice: u32::MAX, number: 0, strained: true },
            Response::Served(0),
        ]
    }

    #[test]
    fn messages_are_these_bytes() {
        let bytes = |ask: &Request<'_>| {
            let mut out = Vec::new();
            (ask.encode(&mut out), out)
        };
        let begin = b"\x00\x2e\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0\0\0\0\0\x03\0\xff\x7f";
        let [none, some] = [[0; 9], [1, 0, 0, 0, 0, 0, 0, 0, 0x2d]];
        let asks = asks();
        assert_eq!(bytes(&asks[0]), (32, [&begin[..], &none].concat()));
        assert_eq!(bytes(&asks[1]), (32, [&begin[..], &some].concat()));
        assert_eq!(bytes(&asks[2]), (33, b"part".to_vec()));
        assert_eq!(bytes(&asks[3]), (34, b"\x07\0\0\0\0\0\0\0".to_vec()));
        assert_eq!(bytes(&asks[4]), (35, vec![]));
        let bytes = |answer: Response| {
            let mut out = Vec::new();
            (answer.encode(&mut out), out)
        };
        assert_eq!(bytes(Response::Ready(Some(2))), (48, b"\x01\x02\0\0\0\0\0\0\0".to_vec()));
        assert_eq!(bytes(Response::Refused(Refusal::OtherMove)), (49, vec![3]));
        let taken = Response::Taken { slice: 1, number: 2, strained: true };
        assert_eq!(bytes(taken), (50, b"\x01\0\0\0\x02\0\0\0\x01".to_vec()));
        assert_eq!(bytes(Response::Served(3)), (51, b"\x03\0\0\0\0\0\0\0".to_vec()));
    }

    #[test]
    fn what_is_written_reads_the_same_and_only_whole() {
        for ask in asks() {
            let mut out = Vec::new();
            let kind = ask.encode(&mut out);
            assert_eq!(Request::parse(kind, &out), Ok(ask));
            let is_part = matches!(ask, Request::Part(_));
            for end in (0..out.len()).filter(|_| !is_part) {
                assert_eq!(
                    Request::parse(kind, &out[..end]),
                    Err(Malformed),
                    "{ask:?} cut at {end}"
                );
            }
            out.push(0);
            assert_eq!(Request::parse(kind, &out).is_ok(), is_part, "{ask:?} and one more byte");
            assert_eq!(Response::parse(kind, &out), Err(Malformed), "of the other side");
        }
        for answer in answers() {
            let mut out = Vec::new();
            let kind = answer.encode(&mut out);
            assert_eq!(Response::parse(kind, &out), Ok(answer));
            for end in 0..out.len() {
                assert_eq!(Response::parse(kind, &out[..end]), Err(Malformed), "{answer:?}");
            }
            out.push(0);
            assert_eq!(Response::parse(kind, &out), Err(Malformed), "{answer:?} and one more byte");
            assert_eq!(Request::parse(kind, &out), Err(Malformed), "of the other side");
        }
    }

    /// Whatever is read is written as it came: no two byte strings are the same message.
    #[test]
    fn any_other_bytes_are_no_message() {
        let mut random = 7u64;
        let mut byte = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 56) as u8
        };
        let mut read = 0;
        for _ in 0..200_000 {
            let kind = [32, 34, 35, 48, 49, 50, 51][usize::from(byte()) % 7];
            let length = [0, 1, 8, 9, 9, 31, 31, 30, 32][usize::from(byte()) % 9];
            let mut bytes: Vec<u8> = (0..length).map(|_| byte()).collect();
            // Marks and small numbers, or nothing would be read.
            for at in [0, 8, 22] {
                if let Some(mark) = bytes.get_mut(at) {
                    *mark %= 4;
                }
            }
            if byte() % 2 == 0 {
                bytes.iter_mut().skip(23).for_each(|byte| *byte = 0);
            }
            let mut out = Vec::new();
            if let Ok(ask) = Request::parse(kind, &bytes) {
                assert_eq!((ask.encode(&mut out), &out), (kind, &bytes));
                read += 1;
            } else if let Ok(answer) = Response::parse(kind, &bytes) {
                assert_eq!((answer.encode(&mut out), &out), (kind, &bytes));
                read += 1;
            }
        }
        assert!(read > 5_000, "{read} were messages");
        assert_eq!(Request::parse(33, &vec![0; PART_BYTES_MAX + 1]), Err(Malformed));
    }

    #[test]
    fn nothing_beyond_the_cachelet_is_said_to_be_gone() {
        let Request::Begin(begin) = asks()[1] else { unreachable!("the second one is") };
        for (gone, reads) in [(begin.prefix.last_hash(), true), (u64::MAX, false), (0, false)] {
            let mut out = Vec::new();
            let kind = Request::Begin(Begin { gone: Some(gone), ..begin }).encode(&mut out);
            assert_eq!(Request::parse(kind, &out).is_ok(), reads, "{gone:x}");
        }
    }
}
