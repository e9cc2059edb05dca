//! Binary requests at random, and their replies.

use super::random::Random;
use super::reply::{Allowed, Comparer};
use std::collections::BTreeMap;

/// Ends a batch: a no-op with this opaque, so its reply says that everything before it is answered.
pub const SENTINEL: u32 = u32::MAX;

const HEADER_BYTES: usize = 24;

pub const KEYS: usize = 6;

pub fn key(number: usize) -> Vec<u8> {
    match number {
        0..3 => vec![b'a' + number as u8],
        3 => b"n".to_vec(),
        4 => b"a b\r\n\0\x80".to_vec(),
        _ => vec![b'k'; 250],
    }
}

/// What the cas field says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cas {
    None,
    /// What this key's replies showed last, or before that.
    Seen {
        key: usize,
        back: usize,
    },
    Wrong,
}

#[derive(Clone, Debug)]
pub struct Packet {
    pub magic: u8,
    pub opcode: u8,
    pub data_type: u8,
    pub extras: Vec<u8>,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub cas: Cas,
    /// What is added to the body's true length.
    pub lie: i32,
    /// Bytes behind it that memcached takes for a part of it.
    pub filler: usize,
    pub key_number: Option<usize>,
}

/// Rows of the table, by opcode.
const NAMES: [&str; 0x25] = [
    "get",
    "set",
    "add",
    "replace",
    "delete",
    "incr",
    "decr",
    "quit",
    "flush",
    "getq",
    "noop",
    "version",
    "getk",
    "getkq",
    "append",
    "prepend",
    "stat",
    "setq",
    "addq",
    "replaceq",
    "deleteq",
    "incrq",
    "decrq",
    "quitq",
    "flushq",
    "appendq",
    "prependq",
    "verbosity",
    "touch",
    "gat",
    "gatq",
    "unknown",
    "sasl list",
    "sasl auth",
    "sasl step",
    "gatk",
    "gatkq",
];

impl Packet {
    pub fn new(opcode: u8) -> Packet {
        Packet {
            magic: 0x80,
            opcode,
            data_type: 0,
            extras: Vec::new(),
            key: Vec::new(),
            value: Vec::new(),
            cas: Cas::None,
            lie: 0,
            filler: 0,
            key_number: None,
        }
    }

    pub fn row(&self) -> &'static str {
        NAMES.get(usize::from(self.opcode)).copied().unwrap_or("unknown")
    }

    /// memcached counts in another way while a reply that shows the item has not left.
    pub fn is_fenced(&self) -> bool {
        matches!(self.opcode, 5 | 6 | 0x15 | 0x16) || self.magic != 0x80
    }

    pub fn encode(&self, opaque: u32, cas: u64, bytes: &mut Vec<u8>) {
        let body = (self.extras.len() + self.key.len() + self.value.len()) as i32 + self.lie;
        bytes.extend([self.magic, self.opcode]);
        bytes.extend((self.key.len() as u16).to_be_bytes());
        bytes.extend([self.extras.len() as u8, self.data_type, 0, 0]);
        bytes.extend(body.to_be_bytes());
        bytes.extend(opaque.to_be_bytes());
        bytes.extend(cas.to_be_bytes());
        for part in [&self.extras, &self.key, &self.value] {
            bytes.extend(part);
        }
        bytes.resize(bytes.len() + self.filler, 0x80);
    }
}

fn exptime(random: &mut Random) -> u32 {
    // Past ones too: 3,000,000 is in February 1970.
    *random.pick(&[0, 0, 0, 100, 2_592_000, 3_000_000, u32::MAX])
}

fn value(random: &mut Random) -> Vec<u8> {
    let numbers: [&[u8]; 5] = [b"1", b"99", b"9007199254740993", b"", b"12 "];
    match random.below(40) {
        0 => vec![b'v'; 20_000],
        1 => vec![b'v'; 600_000],
        2..15 => random.pick(&numbers).to_vec(),
        _ => (0..random.below(40)).map(|_| 0x80 | random.next() as u8).collect(),
    }
}

/// A request that is answered, or not, and leaves the connection open.
pub fn packet(random: &mut Random) -> Packet {
    let opcodes = [
        &[0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x0c, 0x0e, 0x0f][..],
        &[0x09, 0x0d, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a, 0x1c, 0x1d, 0x1e, 0x23, 0x24],
        &[0x00, 0x01, 0x0a, 0x0b, 0x08, 0x18, 0x10, 0x1b, 0x20, 0x21, 0x22, 0x1f, 0x41],
    ];
    // Half of all requests are the ones that every client uses.
    let group = opcodes[*random.pick(&[0, 0, 0, 1, 1, 2])];
    let opcode = *random.pick(group);
    let mut packet = Packet::new(opcode);
    let number = random.below(KEYS);
    let keyed = |packet: &mut Packet| {
        packet.key = key(number);
        packet.key_number = Some(number);
    };
    packet.data_type = if random.percent(5) { 7 } else { 0 };
    if random.percent(20) {
        packet.cas = match random.below(3) {
            0 => Cas::Wrong,
            back => Cas::Seen { key: number, back: back - 1 },
        };
    }
    match opcode {
        0x00 | 0x09 | 0x0c | 0x0d | 0x04 | 0x14 => keyed(&mut packet),
        0x01..=0x03 | 0x11..=0x13 => {
            keyed(&mut packet);
            let flags = *random.pick(&[0, 0, 1, u32::MAX]);
            packet.extras = [flags.to_be_bytes(), exptime(random).to_be_bytes()].concat();
            packet.value = if random.below(60) == 0 { vec![b'v'; 1 << 20] } else { value(random) };
        }
        0x0e | 0x0f | 0x19 | 0x1a => {
            keyed(&mut packet);
            packet.value = (0..random.below(20)).map(|_| b'a' + random.below(10) as u8).collect();
        }
        0x05 | 0x06 | 0x15 | 0x16 => {
            keyed(&mut packet);
            let delta = *random.pick(&[0u64, 1, 10, 1 << 40, 1 << 63, u64::MAX]);
            let initial = *random.pick(&[0u64, 7, 1 << 62, u64::MAX]);
            packet.extras = [delta.to_be_bytes(), initial.to_be_bytes()].concat();
            packet.extras.extend(exptime(random).to_be_bytes());
        }
        0x1c..=0x1e | 0x23 | 0x24 => {
            keyed(&mut packet);
            packet.extras = exptime(random).to_be_bytes().to_vec();
        }
        0x08 | 0x18 if random.percent(50) => packet.extras = vec![0; 4],
        0x10 => {
            let topics: [&[u8]; 12] = [
                b"",
                b"settings",
                b"reset",
                b"detail on",
                b"detail dump",
                b"detail off",
                b"detail",
                b"nonsense",
                b"items x",
                b"se",
                b"extstore",
                b"resetting",
            ];
            packet.key = random.pick(&topics).to_vec();
        }
        0x21 | 0x22 => {
            packet.key = b"PLAIN".to_vec();
            packet.value = b"\0ann\0secret".to_vec();
        }
        0x1b | 0x1f | 0x41 => {
            packet.extras = vec![1; random.below(5)];
            packet.value = vec![b'x'; random.below(50)];
            // It swallows the body once more behind the extras.
            packet.filler = packet.extras.len();
        }
        _ => {}
    }
    packet
}

/// Shows a key, if it is there.
pub fn look(number: usize) -> Packet {
    Packet { key: key(number), key_number: Some(number), ..Packet::new(0x0d) }
}

/// A request after which the server closes.
pub fn last_packet(random: &mut Random) -> Packet {
    let mut packet = Packet::new(0);
    match random.below(9) {
        0 => packet.opcode = 0x07,
        1 => packet.opcode = 0x17,
        2 => packet.key = vec![b'k'; 251],
        3 => packet.magic = *random.pick(&[0x81, 0, b'g']),
        4 => {
            packet.key = b"key".to_vec();
            packet.lie = -1;
        }
        // A get without a key, a no-op with one, a set without flags, an incr with some extras.
        5 => packet.opcode = *random.pick(&[0x00, 0x0d, 0x04, 0x0e]),
        6 => {
            packet.opcode = *random.pick(&[0x0a, 0x0b, 0x07, 0x08, 0x01, 0x05, 0x1c]);
            packet.key = b"k".to_vec();
        }
        // A body over the bound of 1 GiB, whatever is to be done with it.
        7 => {
            packet.opcode = *random.pick(&[0x00, 0x01, 0x0a, 0x1b, 0x41]);
            packet.key = b"k".to_vec();
            packet.lie = *random.pick(&[1 << 30, i32::MAX - 1, i32::MIN]);
        }
        _ => {
            packet.opcode = *random.pick(&[0x00, 0x04, 0x05, 0x0e, 0x10, 0x1d]);
            packet.key = b"k".to_vec();
            packet.extras = vec![0; 3];
        }
    }
    packet
}

/// A reply, cut out of a stream of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    pub head: &'a [u8],
    pub body: &'a [u8],
}

impl<'a> Reply<'a> {
    /// The first reply of `bytes`, if it is there to its end, and the rest.
    pub fn cut(bytes: &'a [u8]) -> Option<(Reply<'a>, &'a [u8])> {
        let (head, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        let body = u32::from_be_bytes(head[8..12].try_into().expect("four bytes")) as usize;
        let (body, rest) = rest.split_at_checked(body)?;
        Some((Reply { head, body }, rest))
    }

    pub fn all(mut bytes: &'a [u8]) -> (Vec<Reply<'a>>, &'a [u8]) {
        let mut replies = Vec::new();
        while let Some((reply, rest)) = Reply::cut(bytes) {
            replies.push(reply);
            bytes = rest;
        }
        (replies, bytes)
    }

    pub fn opaque(&self) -> u32 {
        u32::from_be_bytes(self.head[12..16].try_into().expect("four bytes"))
    }

    pub fn cas(&self) -> u64 {
        u64::from_be_bytes(self.head[16..].try_into().expect("eight bytes"))
    }

    fn is_version(&self) -> bool {
        self.head[1] == 0x0b && self.head[6..8] == [0, 0]
    }

    fn is_statistic(&self) -> bool {
        self.head[..2] == [0x81, 0x10] && self.head[2..4] != [0, 0] && self.head[6..8] == [0, 0]
    }

    /// The column of the table.
    pub fn kind(&self) -> String {
        let status = u16::from_be_bytes([self.head[6], self.head[7]]);
        match status {
            0 => "success".to_string(),
            _ if self.head[2..4] != [0, 0] => format!("status {status:#x} with key"),
            _ => format!("status {status:#x} {}", String::from_utf8_lossy(self.body)),
        }
    }
}

/// `None` when both streams say the same; else the first replies that do not.
pub fn difference(comparer: &mut Comparer, left: &[u8], right: &[u8]) -> Option<String> {
    let ((left, left_rest), (right, right_rest)) = (Reply::all(left), Reply::all(right));
    // There are as many as a server has statistics, and they are another engine's.
    let is_telling = |reply: &&Reply<'_>| !reply.is_statistic();
    let statistics = left.len() - left.iter().filter(is_telling).count();
    *comparer.used.entry(Allowed::Statistics).or_default() += statistics as u64;
    let (mut left, mut right) = (left.iter().filter(is_telling), right.iter().filter(is_telling));
    loop {
        return match (left.next(), right.next()) {
            (None, None) if left_rest == right_rest => None,
            (Some(left), Some(right)) if same(comparer, left, right) => continue,
            (left, right) => Some(format!(
                "{left:02x?} against {right:02x?}, then {left_rest:02x?} against {right_rest:02x?}"
            )),
        };
    }
}

fn same(comparer: &mut Comparer, left: &Reply<'_>, right: &Reply<'_>) -> bool {
    if left.is_version() && right.is_version() {
        *comparer.used.entry(Allowed::Version).or_default() += u64::from(left.body != right.body);
        return left.head[..8] == right.head[..8] && left.head[12..] == right.head[12..];
    }
    left.head[..16] == right.head[..16]
        && left.body == right.body
        && comparer.same_cas(left.cas(), right.cas())
}

/// By key: the cas that each server showed, oldest first.
#[derive(Default)]
pub struct Seen(BTreeMap<usize, Vec<(u64, u64)>>);

impl Seen {
    pub fn learn(&mut self, key: usize, left: u64, right: u64) {
        let seen = self.0.entry(key).or_default();
        if left != 0 && seen.last() != Some(&(left, right)) {
            seen.push((left, right));
        }
    }

    /// What the field holds for each server.
    pub fn cas(&self, cas: Cas) -> (u64, u64) {
        match cas {
            Cas::None => (0, 0),
            Cas::Wrong => (1, 1),
            Cas::Seen { key, back } => {
                let seen = self.0.get(&key).and_then(|seen| seen.iter().rev().nth(back));
                seen.copied().unwrap_or((1, 1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(cas: u64) -> Vec<u8> {
        let mut bytes = vec![0x81, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9];
        bytes.extend(cas.to_be_bytes());
        bytes.extend(b"\0\0\0\x01v");
        bytes
    }

    #[test]
    fn every_byte_but_the_cas_counts() {
        let left = [reply(7), reply(7)].concat();
        assert_eq!(
            difference(&mut Comparer::default(), &left, &[reply(5), reply(5)].concat()),
            None
        );
        let renamed_twice = [reply(5), reply(6)].concat();
        assert!(difference(&mut Comparer::default(), &left, &renamed_twice).is_some());
        let whole = reply(5);
        for at in (0..16).chain(24..whole.len()) {
            let mut spoilt = whole.clone();
            spoilt[at] ^= 1;
            let different = difference(&mut Comparer::default(), &whole, &spoilt);
            assert!(different.is_some(), "byte {at}");
        }
        assert!(difference(&mut Comparer::default(), &whole, &whole[..28]).is_some());
    }
}
