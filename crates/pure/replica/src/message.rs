//! What homes, shadows and clients say to each other, in bytes. Numbers are little-endian.

use std::fmt;
use std::time::Duration;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, ReplicaVersion};

use crate::{DRIFT, Grant, Version};

/// Of what a home and its shadows say: no request, and no reply, of any protocol begins with it.
pub const MARK: u8 = 0x83;

/// A moment of a shadow's clock, which means nothing to anybody else; 0 is none. Its upper 16 bits tell the shadow's process from others
/// at the same place, the others are microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp(pub u64);

impl Stamp {
    const MICROS: u64 = (1 << 48) - 1;

    pub fn new(process: u16, now: Instant) -> Stamp {
        Stamp(u64::from(process) << 48 | now.as_micros() & Stamp::MICROS)
    }

    /// It is later than another, or of another process.
    pub(crate) fn is_news_after(self, other: Stamp) -> bool {
        self.0 >> 48 != other.0 >> 48 || self.0 > other.0
    }

    /// `None`: it is no stamp, or another process took it.
    pub fn moment(self, process: u16) -> Option<Instant> {
        let is_of = self.0 != 0 && (self.0 >> 48) as u16 == process;
        is_of.then(|| Instant::from_micros(self.0 & Stamp::MICROS))
    }
}

/// A home's word to a shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold<'a> {
    pub grant: Grant,
    pub version: Version,
    /// The last that this shadow has told: its lease counts from there.
    pub stamp: Stamp,
    /// In milliseconds; 0 without a stamp.
    pub lease_ms: u32,
    pub key: &'a [u8],
    pub what: HoldWhat<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldWhat<'a> {
    /// This version, which the shadow has, for another lease.
    Keep,
    /// No value: whoever asks is sent home.
    Invalidate,
    /// The grant is over.
    Drop,
    Item(Item<'a>),
    /// Said to the home: the key heats the server that says so, which wants a copy. Nothing else of it counts.
    Want,
    /// Said by the owner of a cachelet that has begun empty, whose prefix stands in the key's place: no copy of a lower grant is read
    /// any more.
    Fence,
}

/// A copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    pub flags: u32,
    pub cas: u64,
    /// Seconds to live from the stamp on, as [`Item::ttl_told`] has them; `None`: for ever.
    pub ttl: Option<u32>,
    /// Stored under a key that was sent in base64.
    pub binary_key: bool,
    /// Of the home when the item was read: a later `flush_all` ends it.
    pub flush_number: u32,
    pub value: &'a [u8],
}

impl Item<'_> {
    /// Seconds to live that are told of an item that has so many, by a clock that is looked at once a second: no copy outlives it,
    /// though clocks run apart.
    pub fn ttl_told(seconds: u32) -> u32 {
        let left = seconds.saturating_sub(1);
        if is_planted(Fault::TtlForgetsDrift) { left } else { left - left.div_ceil(DRIFT) }
    }

    /// When the copy dies by its shadow's clock. With a stamp that counts: without one nobody knows when the home has sent it, and
    /// [`crate::Shadow::take`] does not keep it.
    pub fn dies(&self, stamp: Stamp, process: u16, now: Instant) -> Option<Instant> {
        let from = stamp.moment(process).unwrap_or(now);
        self.ttl.map(|ttl| from + Duration::from_secs(ttl.into()))
    }
}

/// What came of a [`Hold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A value of this version.
    Has,
    /// None, and it will not come back by itself.
    Invalidate,
    /// It has no room for it.
    Refused,
}

/// A shadow's answer: what it has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub grant: Grant,
    pub version: Version,
    pub stamp: Stamp,
    /// Answered from the copy since it last said so.
    pub reads: u32,
    pub outcome: Outcome,
}

const KEEP: u8 = 0;
const INVALIDATE: u8 = 1;
const DROP: u8 = 2;
const ITEM: u8 = 3;
const WANT: u8 = 4;
const FENCE: u8 = 5;
const NO_TTL: u32 = u32::MAX;

/// Takes numbers from the front of what has come.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four")))
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight")))
    }
}

impl<'a> Hold<'a> {
    /// What the server says that wants a copy of this key.
    pub fn want(key: &'a [u8]) -> Hold<'a> {
        let (grant, version, stamp) = (Grant(0), Version(0), Stamp(0));
        Hold { grant, version, stamp, lease_ms: 0, key, what: HoldWhat::Want }
    }

    /// What the owner of a cachelet says that has begun empty. `prefix` is as text.
    pub fn fence(prefix: &'a str, grant: Grant) -> Hold<'a> {
        let (version, stamp, key) = (Version(0), Stamp(0), prefix.as_bytes());
        Hold { grant, version, stamp, lease_ms: 0, key, what: HoldWhat::Fence }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let what = match self.what {
            HoldWhat::Keep => KEEP,
            HoldWhat::Invalidate => INVALIDATE,
            HoldWhat::Drop => DROP,
            HoldWhat::Item(_) => ITEM,
            HoldWhat::Want => WANT,
            HoldWhat::Fence => FENCE,
        };
        out.extend_from_slice(&[MARK, what]);
        for number in [self.grant.0, self.version.0, self.stamp.0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.lease_ms.to_le_bytes());
        out.push(self.key.len() as u8);
        out.extend_from_slice(self.key);
        if let HoldWhat::Item(item) = &self.what {
            out.extend_from_slice(&item.flags.to_le_bytes());
            out.extend_from_slice(&item.cas.to_le_bytes());
            out.extend_from_slice(&item.ttl.unwrap_or(NO_TTL).to_le_bytes());
            out.push(u8::from(item.binary_key));
            out.extend_from_slice(&item.flush_number.to_le_bytes());
            out.extend_from_slice(item.value);
        }
    }

    /// `None` is none.
    pub fn decode(bytes: &'a [u8]) -> Option<Hold<'a>> {
        let mut from = Reader(bytes);
        if from.u8()? != MARK {
            return None;
        }
        let what = from.u8()?;
        let (grant, version) = (Grant(from.u64()?), Version(from.u64()?));
        let (stamp, lease_ms) = (Stamp(from.u64()?), from.u32()?);
        let key_bytes = from.u8()?;
        let key = from.take(key_bytes.into())?;
        let what = match what {
            KEEP => HoldWhat::Keep,
            INVALIDATE => HoldWhat::Invalidate,
            DROP => HoldWhat::Drop,
            WANT => HoldWhat::Want,
            FENCE => HoldWhat::Fence,
            ITEM => {
                let (flags, cas) = (from.u32()?, from.u64()?);
                let ttl = Some(from.u32()?).filter(|ttl| *ttl != NO_TTL);
                let binary_key = match from.u8()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
                let flush_number = from.u32()?;
                let value = std::mem::take(&mut from.0);
                HoldWhat::Item(Item { flags, cas, ttl, binary_key, flush_number, value })
            }
            _ => return None,
        };
        let is_whole = from.0.is_empty() && !key.is_empty();
        is_whole.then_some(Hold { grant, version, stamp, lease_ms, key, what })
    }
}

impl Held {
    /// The answer to a fence.
    pub fn fenced(grant: Grant) -> Held {
        let (version, stamp, outcome) = (Version(0), Stamp(0), Outcome::Invalidate);
        Held { grant, version, stamp, reads: 0, outcome }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let outcome = match self.outcome {
            Outcome::Has => 0,
            Outcome::Invalidate => 1,
            Outcome::Refused => 2,
        };
        out.extend_from_slice(&[MARK, outcome]);
        for number in [self.grant.0, self.version.0, self.stamp.0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.reads.to_le_bytes());
    }

    /// `None` is none: the other side knows nothing of copies.
    pub fn decode(bytes: &[u8]) -> Option<Held> {
        let mut from = Reader(bytes);
        if from.u8()? != MARK {
            return None;
        }
        let outcome = match from.u8()? {
            0 => Outcome::Has,
            1 => Outcome::Invalidate,
            2 => Outcome::Refused,
            _ => return None,
        };
        let (grant, version) = (Grant(from.u64()?), Version(from.u64()?));
        let (stamp, reads) = (Stamp(from.u64()?), from.u32()?);
        from.0.is_empty().then_some(Held { grant, version, stamp, reads, outcome })
    }
}

/// What a home that is HOT tells a client: the text of an `L` token, without its letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Counted from sending the request.
    pub lease: Duration,
    /// What the home has now, if copies may be older: a client says what it has seen to the copy that it asks. `None`: no copy answers with
    /// anything older than its home.
    pub newest: Option<ReplicaVersion>,
    /// Those that count.
    pub suffixes: Vec<u8>,
}

impl Announcement {
    /// `None` is another token.
    pub fn parse(text: &[u8]) -> Option<Announcement> {
        let text = std::str::from_utf8(text).ok()?;
        let (newest, text) = match text.split_at_checked(1)? {
            ("~", rest) => {
                let (rest, newest) = rest.split_once('@')?;
                (Some(ReplicaVersion::parse(newest.as_bytes())?), rest)
            }
            ("=", rest) => (None, rest),
            _ => return None,
        };
        let (lease, suffixes) = text.split_once('.')?;
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let suffixes: Option<Vec<u8>> =
            suffixes.split(',').map(|one| plain(one).then(|| one.parse().ok())?).collect();
        let suffixes = suffixes.filter(|suffixes| !suffixes.contains(&0))?;
        let lease_ms = plain(lease).then(|| lease.parse::<u32>().ok())??;
        Some(Announcement { lease: Duration::from_millis(lease_ms.into()), newest, suffixes })
    }

    /// What a binary reply can say of it: suffixes 1 to γ.
    pub fn gamma(&self) -> u8 {
        let counts = |suffix: &u8| self.suffixes.contains(suffix);
        (1..=u8::MAX).take_while(counts).count() as u8
    }
}

impl fmt::Display for Announcement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.newest.is_some() { '~' } else { '=' };
        write!(out, "{way}{}.", self.lease.as_millis())?;
        for (at, suffix) in self.suffixes.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(out, "{comma}{suffix}")?;
        }
        self.newest.map_or(Ok(()), |newest| write!(out, "@{newest}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_reads_as_it_was_written_and_no_shorter() {
        let item = Item {
            flags: 7,
            cas: 1 << 50,
            ttl: Some(3),
            binary_key: true,
            flush_number: 4,
            value: b"value",
        };
        let hold = |what| Hold {
            grant: Grant::new(12, 5),
            version: Version(9),
            stamp: Stamp(77),
            lease_ms: 1_000,
            key: b"key",
            what,
        };
        use HoldWhat::{Drop, Fence, Invalidate, Keep, Want};
        for what in [Keep, Invalidate, Drop, Want, Fence, HoldWhat::Item(item)] {
            let mut bytes = Vec::new();
            hold(what).encode(&mut bytes);
            assert_eq!(Hold::decode(&bytes), Some(hold(what)));
            let value = if what == HoldWhat::Item(item) { item.value.len() } else { 0 };
            for end in 0..bytes.len() - value {
                assert_eq!(Hold::decode(&bytes[..end]), None, "{what:?} up to {end}");
            }
        }
        for outcome in [Outcome::Has, Outcome::Invalidate, Outcome::Refused] {
            let (grant, version) = (Grant(1), Version(2));
            let held = Held { grant, version, stamp: Stamp(3), reads: 4, outcome };
            let mut bytes = Vec::new();
            held.encode(&mut bytes);
            assert_eq!(Held::decode(&bytes), Some(held));
            (0..bytes.len()).for_each(|end| assert_eq!(Held::decode(&bytes[..end]), None));
        }
        assert_eq!(Held::decode(b"SERVER_ERROR no route to owner\r\n"), None);
    }

    #[test]
    fn a_stamp_is_of_one_process() {
        let now = Instant::from_micros(1_234_567);
        assert_eq!(Stamp::new(7, now).moment(7), Some(now));
        assert_eq!(Stamp::new(7, now).moment(8), None);
        assert_eq!(Stamp::default().moment(0), None);
    }

    #[test]
    fn a_token_reads_as_it_is_written() {
        let lease = Duration::from_millis(1_000);
        let newest = Some(ReplicaVersion { grant: 12, version: 3 });
        for (text, told) in [
            ("~1000.1,2,5@12.3", Announcement { lease, newest, suffixes: vec![1, 2, 5] }),
            ("=1000.1", Announcement { lease, newest: None, suffixes: vec![1] }),
        ] {
            assert_eq!(Announcement::parse(text.as_bytes()), Some(told.clone()));
            assert_eq!(told.to_string(), text);
        }
        assert_eq!(Announcement::parse(b"=1000.1,2,5").map(|told| told.gamma()), Some(2));
        assert_eq!(Announcement::parse(b"=1000.2").map(|told| told.gamma()), Some(0));
        let no_tokens =
            ["", "=", "=1000", "=1000.", "=.1", "=1000.0", "=1000.256", "=1000.1,", "=+1.1"];
        for text in no_tokens.into_iter().chain(["12.3.1", "1000.1", "=1000.+1", "=1000.1,x"]) {
            assert_eq!(Announcement::parse(text.as_bytes()), None, "{text}");
        }
        for text in ["~1000.1", "~1000.1@", "~1000.1@3", "~1000.@12.3", "=1000.1@12.3"] {
            assert_eq!(Announcement::parse(text.as_bytes()), None, "{text}");
        }
    }
}
