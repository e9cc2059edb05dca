//! What travels between two servers: a part of a slice, as bytes.
//!
//! ```text
//!   part:    slice 4 | number 4 | first 8 | last 8 | blocks 1 | generation 2 | counter 8 | flush number 4 | next 4 | in 4 | time 8 | records
//!   item:    key bytes 1 | marks 1 | flags 4 | remaining 4 | idle 4 | frequency 1 | cas 8 | value bytes 4 | key | value
//!   piece:   the same marked so, its value no more than the part has room for
//!   further: 0 1 | bytes 4 | bytes of that value; none of them says that the item has gone
//! ```
//!
//! Times travel as what remains and what has passed, and the wall clock's time with them: a part that comes in the next second lets nothing
//! live longer for that. Where the clocks differ by more than [`CLOCKS_DIFFER`], what remains counts from its arrival. All numbers are
//! little-endian.

use mbal_model::{KEY_BYTES_MAX, Seconds};

/// The bytes do not read as a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Before the records of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heading {
    /// Which slice of the move, counted anew when one is sent again; and which of its parts.
    pub slice: u32,
    pub number: u32,
    /// Its hashes: everything of the cachelet from `first` on is the source's still.
    pub first: u64,
    pub last: u64,
    /// Blocks of its index, of which as many will do at the destination.
    pub blocks: u8,
    /// The source's.
    pub generation: u16,
    pub counter: u64,
    pub flush_number: u32,
    /// Number of a `flush_all` that was asked for, and the seconds until then; 0 is none.
    pub flush_next: u32,
    pub flush_in: Seconds,
    /// Seconds since 1970 at the source.
    pub unix: u64,
}

/// Seconds by which two servers' clocks may seem to differ since a part was on its way.
pub(crate) const CLOCKS_DIFFER: u64 = 2;

/// The value of an item is longer than what stands beside it; see [`Record::Further`].
const PIECE: u8 = 1 << 4;

/// Of a counter that is worth going on with: a cas has 48.
const COUNTER_BITS_MAX: u32 = 47;

/// Of an item, before its key.
const ITEM_BYTES: usize = 27;

pub(crate) mod marks {
    pub const STALE: u8 = 1;
    pub const WIN: u8 = 2;
    pub const BINARY_KEY: u8 = 4;
    pub const FETCHED: u8 = 8;
    pub const ALL: u8 = 31;
}

/// An item on its way, but for its key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    pub marks: u8,
    pub flags: u32,
    /// 0 is forever.
    pub remaining: Seconds,
    pub idle: Seconds,
    pub frequency: u8,
    pub cas: u64,
    /// Of all of the value.
    pub value_bytes: u32,
}

#[derive(Clone, Copy)]
pub(crate) enum Record<'a> {
    /// With the whole value, or with a first piece of it. The key has a valid length.
    Item { fields: Fields, key: &'a [u8], value: &'a [u8] },
    /// More of the value of the last item; nothing if that has gone meanwhile.
    Further(&'a [u8]),
}

impl Heading {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.slice.to_le_bytes());
        out.extend(self.number.to_le_bytes());
        out.extend(self.first.to_le_bytes());
        out.extend(self.last.to_le_bytes());
        out.push(self.blocks);
        out.extend(self.generation.to_le_bytes());
        out.extend(self.counter.to_le_bytes());
        out.extend(self.flush_number.to_le_bytes());
        out.extend(self.flush_next.to_le_bytes());
        out.extend(self.flush_in.to_le_bytes());
        out.extend(self.unix.to_le_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Heading, Broken> {
        let heading = Heading {
            slice: u32::from_le_bytes(reader.array()?),
            number: u32::from_le_bytes(reader.array()?),
            first: u64::from_le_bytes(reader.array()?),
            last: u64::from_le_bytes(reader.array()?),
            blocks: reader.array::<1>()?[0],
            generation: u16::from_le_bytes(reader.array()?),
            counter: u64::from_le_bytes(reader.array()?),
            flush_number: u32::from_le_bytes(reader.array()?),
            flush_next: u32::from_le_bytes(reader.array()?),
            flush_in: u32::from_le_bytes(reader.array()?),
            unix: u64::from_le_bytes(reader.array()?),
        };
        // No cachelet counts so far: the next cas would be another generation's.
        let counts = heading.counter >> COUNTER_BITS_MAX == 0;
        if counts { Ok(heading) } else { Err(Broken) }
    }
}

/// Begins an item; its key follows, and its value, or a piece of that with [`write_length`] before it.
pub(crate) fn write_item(fields: &Fields, key: &[u8], in_pieces: bool, out: &mut Vec<u8>) {
    let mut bytes = [0; ITEM_BYTES];
    bytes[0] = key.len() as u8;
    bytes[1] = fields.marks | if in_pieces { PIECE } else { 0 };
    bytes[2..6].copy_from_slice(&fields.flags.to_le_bytes());
    bytes[6..10].copy_from_slice(&fields.remaining.to_le_bytes());
    bytes[10..14].copy_from_slice(&fields.idle.to_le_bytes());
    bytes[14] = fields.frequency;
    bytes[15..23].copy_from_slice(&fields.cas.to_le_bytes());
    bytes[23..].copy_from_slice(&fields.value_bytes.to_le_bytes());
    out.extend_from_slice(&bytes);
    out.extend_from_slice(key);
}

pub(crate) fn write_length(bytes: usize, out: &mut Vec<u8>) {
    out.extend((bytes as u32).to_le_bytes());
}

/// Begins a [`Record::Further`], before [`write_length`].
pub(crate) fn write_further(out: &mut Vec<u8>) {
    out.push(0);
}

/// A part that has arrived, read as far as it has been imported.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub heading: Heading,
    records: Reader<'a>,
}

impl<'a> Part<'a> {
    /// Reads it whole: a broken part changes nothing. O(bytes).
    pub fn read(bytes: &'a [u8]) -> Result<Part<'a>, Broken> {
        let mut reader = Reader(bytes);
        let heading = Heading::read(&mut reader)?;
        let part = Part { heading, records: reader };
        let mut rest = part;
        while rest.next()?.is_some() {}
        Ok(part)
    }

    /// Bytes of its records that are still to be imported.
    pub fn left(&self) -> usize {
        self.records.0.len()
    }

    /// A part again that has been read whole, and of which so many bytes are [`Part::left`].
    ///
    /// # Panics
    /// If it has fewer, or does not begin as a part.
    pub fn resume(bytes: &'a [u8], left: usize) -> Part<'a> {
        let heading = Heading::read(&mut Reader(bytes)).expect("it has been read whole");
        Part { heading, records: Reader(&bytes[bytes.len() - left..]) }
    }

    /// The next record; `None` at the end.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Record<'a>>, Broken> {
        let reader = &mut self.records;
        if reader.0.is_empty() {
            return Ok(None);
        }
        if reader.0[0] == 0 {
            reader.take(1)?;
            let bytes = u32::from_le_bytes(reader.array()?) as usize;
            return Ok(Some(Record::Further(reader.take(bytes)?)));
        }
        let head: [u8; ITEM_BYTES] = reader.array()?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (key_bytes, marks) = (usize::from(head[0]), head[1]);
        let fields = Fields {
            marks: marks & !PIECE,
            flags: word(2),
            remaining: word(6),
            idle: word(10),
            frequency: head[14],
            cas: u64::from(word(15)) | u64::from(word(19)) << 32,
            value_bytes: word(23),
        };
        if key_bytes > KEY_BYTES_MAX {
            return Err(Broken);
        }
        let key = reader.take(key_bytes)?;
        let bytes = match marks & PIECE {
            0 => fields.value_bytes as usize,
            _ => u32::from_le_bytes(reader.array()?) as usize,
        };
        if marks & !marks::ALL != 0 || bytes > fields.value_bytes as usize {
            return Err(Broken);
        }
        Ok(Some(Record::Item { fields, key, value: reader.take(bytes)? }))
    }
}

#[derive(Clone, Copy)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Broken)?;
        self.0 = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        Ok(self.take(N)?.try_into().expect("taken by this length"))
    }
}
