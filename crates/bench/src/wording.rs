//! Requests as bytes.
//!
//! A key is its number in decimal, zero-padded to its length; a counter's name begins with `n` instead. A value
//! starts with its key's number (8 bytes) and its own length (4 bytes), both little-endian and cut off by a shorter
//! value: so the reply alone says whether it is the right item, whoever stored it.

use std::io::Write as _;

use mbal_model::{KEY_BYTES_MAX, Key, MapVersion};
use mbal_wire::{opcode, push_binary_request};

use crate::request::{Item, LABEL_BYTES, Protocol, Read, Write, label};
use crate::sizes::Sizes;

/// How this run words its requests.
#[derive(Clone)]
pub struct Wording {
    pub protocol: Protocol,
    key_bytes: Sizes,
    value_bytes: Sizes,
    digits_min: usize,
    /// The smart client's token with the version that it knows; meta only.
    token: Vec<u8>,
}

impl Wording {
    pub fn new(protocol: Protocol, key_bytes: Sizes, value_bytes: Sizes) -> Self {
        Self { protocol, key_bytes, value_bytes, digits_min: 0, token: Vec::new() }
    }

    /// Names shorter than this are lengthened: the largest key's digits must fit.
    pub fn with_digits(self, digits_min: usize) -> Self {
        Self { digits_min, ..self }
    }

    /// Every request tells this version of who owns what from now on.
    pub fn tell(&mut self, version: MapVersion) {
        self.token = format!(" L{version}").into_bytes();
    }

    /// Do replies have a word on who owns what? They do for those who tell what they know, in meta.
    pub fn follows(&self) -> bool {
        !self.token.is_empty() && self.protocol == Protocol::Meta
    }

    /// What a key's value has by its own law.
    pub fn value_bytes(&self, key: u64) -> u32 {
        self.value_bytes.value_bytes(key)
    }

    /// One get of all the keys: a line in text, as many pipelined ones in meta and binary, an array in RESP.
    pub fn get(&self, out: &mut Vec<u8>, reads: &[Read]) {
        match self.protocol {
            Protocol::Text => {
                out.extend_from_slice(b"get");
                for Read { key, .. } in reads {
                    out.push(b' ');
                    self.name(out, *key);
                }
                out.extend_from_slice(b"\r\n");
            }
            Protocol::Meta => {
                for Read { key, by_lease, .. } in reads {
                    out.extend_from_slice(b"mg ");
                    self.name(out, *key);
                    out.extend_from_slice(b" v");
                    out.extend_from_slice(&self.token);
                    match by_lease {
                        None => out.extend_from_slice(b"\r\n"),
                        Some(seen) => put(out, format_args!("*{seen}\r\n")),
                    }
                }
            }
            Protocol::Binary => reads.iter().for_each(|&Read { key, vbucket, .. }| {
                push_binary_request(out, opcode::GET, &[], self.name_bytes(key), 0, vbucket);
                self.name(out, key);
            }),
            Protocol::Resp => {
                let command = if reads.len() == 1 { "$3\r\nGET" } else { "$4\r\nMGET" };
                put(out, format_args!("*{}\r\n{command}\r\n", reads.len() + 1));
                reads.iter().for_each(|read| self.bulk_name(out, read.key));
            }
        }
    }

    pub fn write(&self, out: &mut Vec<u8>, write: Write, item: Item, vbucket: u16) {
        match self.protocol {
            Protocol::Text => self.write_text(out, write, item),
            Protocol::Meta => self.write_meta(out, write, item),
            Protocol::Binary => self.write_binary(out, write, item, vbucket),
            Protocol::Resp => self.write_resp(out, write, item),
        }
    }

    fn write_text(&self, out: &mut Vec<u8>, write: Write, item: Item) {
        let Item { key, value_bytes, ttl } = item;
        let command: &[u8] = match write {
            Write::Set => b"set ",
            Write::Add => b"add ",
            Write::Delete => b"delete ",
            Write::Incr => b"incr ",
        };
        out.extend_from_slice(command);
        match write {
            Write::Set | Write::Add => {
                self.name(out, key);
                put(out, format_args!(" 0 {ttl} {value_bytes}\r\n"));
                value(out, key, value_bytes);
                out.extend_from_slice(b"\r\n");
            }
            Write::Delete => {
                self.name(out, key);
                out.extend_from_slice(b"\r\n");
            }
            Write::Incr => {
                self.counter(out, key);
                out.extend_from_slice(b" 1\r\n");
            }
        }
    }

    fn write_meta(&self, out: &mut Vec<u8>, write: Write, item: Item) {
        let Item { key, value_bytes, ttl } = item;
        match write {
            Write::Set | Write::Add => {
                out.extend_from_slice(b"ms ");
                self.name(out, key);
                put(out, format_args!(" {value_bytes}"));
                if write == Write::Add {
                    out.extend_from_slice(b" ME");
                }
                if ttl > 0 {
                    put(out, format_args!(" T{ttl}"));
                }
            }
            Write::Delete => {
                out.extend_from_slice(b"md ");
                self.name(out, key);
            }
            Write::Incr => {
                out.extend_from_slice(b"ma ");
                self.counter(out, key);
                put(out, format_args!(" N{ttl} J0"));
            }
        }
        out.extend_from_slice(&self.token);
        out.extend_from_slice(b"\r\n");
        if matches!(write, Write::Set | Write::Add) {
            value(out, key, value_bytes);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn write_binary(&self, out: &mut Vec<u8>, write: Write, item: Item, vbucket: u16) {
        let Item { key, value_bytes, ttl } = item;
        let name_bytes = self.name_bytes(key);
        match write {
            Write::Set | Write::Add => {
                let opcode = if write == Write::Set { opcode::SET } else { opcode::ADD };
                let extras = [0u32.to_be_bytes(), ttl.to_be_bytes()].concat();
                push_binary_request(
                    out,
                    opcode,
                    &extras,
                    name_bytes,
                    value_bytes as usize,
                    vbucket,
                );
                self.name(out, key);
                value(out, key, value_bytes);
            }
            Write::Delete => {
                push_binary_request(out, opcode::DELETE, &[], name_bytes, 0, vbucket);
                self.name(out, key);
            }
            Write::Incr => {
                let extras = [&1u64.to_be_bytes()[..], &[0; 8], &ttl.to_be_bytes()].concat();
                push_binary_request(out, opcode::INCREMENT, &extras, name_bytes, 0, vbucket);
                self.counter(out, key);
            }
        }
    }

    fn write_resp(&self, out: &mut Vec<u8>, write: Write, item: Item) {
        let Item { key, value_bytes, ttl } = item;
        match write {
            Write::Set | Write::Add => {
                let words = 3 + 2 * u32::from(ttl > 0) + u32::from(write == Write::Add);
                put(out, format_args!("*{words}\r\n$3\r\nSET\r\n"));
                self.bulk_name(out, key);
                put(out, format_args!("${value_bytes}\r\n"));
                value(out, key, value_bytes);
                out.extend_from_slice(b"\r\n");
                if ttl > 0 {
                    let digits = ttl.to_string();
                    put(out, format_args!("$2\r\nEX\r\n${}\r\n{digits}\r\n", digits.len()));
                }
                if write == Write::Add {
                    out.extend_from_slice(b"$2\r\nNX\r\n");
                }
            }
            Write::Delete => {
                out.extend_from_slice(b"*2\r\n$3\r\nDEL\r\n");
                self.bulk_name(out, key);
            }
            Write::Incr => {
                put(out, format_args!("*2\r\n$4\r\nINCR\r\n${}\r\n", self.name_bytes(key)));
                self.counter(out, key);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// A counter at 1, where there is none: text's `incr` does not make one.
    pub fn add_counter(&self, out: &mut Vec<u8>, key: u64, ttl: u32) {
        out.extend_from_slice(b"add ");
        self.counter(out, key);
        put(out, format_args!(" 0 {ttl} 1\r\n1\r\n"));
    }

    fn name_bytes(&self, key: u64) -> usize {
        self.key_bytes.key_bytes(key).max(self.digits_min)
    }

    fn name(&self, out: &mut Vec<u8>, key: u64) {
        let start = out.len();
        out.resize(start + self.name_bytes(key), b'0');
        stamp_key(&mut out[start..], key);
    }

    fn counter(&self, out: &mut Vec<u8>, key: u64) {
        let start = out.len();
        self.name(out, key);
        out[start] = b'n';
    }

    /// A key as RESP has it: with its length before.
    fn bulk_name(&self, out: &mut Vec<u8>, key: u64) {
        put(out, format_args!("${}\r\n", self.name_bytes(key)));
        self.name(out, key);
        out.extend_from_slice(b"\r\n");
    }

    /// What places the key on a cachelet.
    pub fn hash(&self, key: u64) -> u64 {
        self.hash_of(key, false)
    }

    /// Of the key, or of the counter beside it.
    pub fn hash_of(&self, key: u64, counter: bool) -> u64 {
        self.with_name(key, counter, |name| name.hash())
    }

    pub fn with_name<T>(&self, key: u64, counter: bool, act: impl FnOnce(Key<'_>) -> T) -> T {
        let mut name = [b'0'; KEY_BYTES_MAX];
        let name = &mut name[..self.name_bytes(key)];
        stamp_key(name, key);
        if counter {
            name[0] = b'n';
        }
        act(Key::new(name).expect("its length was checked"))
    }

    /// Is this the key's name, as `VALUE` lines repeat it?
    pub fn names(&self, name: &[u8], key: u64) -> bool {
        if name.len() != self.name_bytes(key) {
            return false;
        }
        let mut rest = key;
        for &digit in name.iter().rev() {
            if digit != b'0' + (rest % 10) as u8 {
                return false;
            }
            rest /= 10;
        }
        rest == 0
    }
}

fn value(out: &mut Vec<u8>, key: u64, value_bytes: u32) {
    let labelled = LABEL_BYTES.min(value_bytes as usize);
    let end = out.len() + value_bytes as usize;
    out.extend_from_slice(&label(key, value_bytes)[..labelled]);
    out.resize(end, b'.');
}

fn put(out: &mut Vec<u8>, words: std::fmt::Arguments) {
    out.write_fmt(words).expect("a vector takes everything");
}

/// Digits from the last to the first; what they leave is zeros already.
fn stamp_key(at: &mut [u8], key: u64) {
    let mut rest = key;
    for digit in at.iter_mut().rev() {
        if rest == 0 {
            return;
        }
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    debug_assert!(rest == 0, "keys that do not fit are refused before the run");
}

#[cfg(test)]
mod tests {
    use mbal_model::ReplicaVersion;

    use super::*;

    fn wording(protocol: Protocol) -> Wording {
        Wording::new(protocol, Sizes::Constant(5), Sizes::Constant(3))
    }

    fn read(key: u64) -> Read {
        Read { key, vbucket: 3, by_lease: None }
    }

    fn got(protocol: Protocol, keys: &[u64]) -> String {
        let mut out = Vec::new();
        let reads: Vec<Read> = keys.iter().map(|&key| read(key)).collect();
        wording(protocol).get(&mut out, &reads);
        String::from_utf8(out).unwrap()
    }

    fn written(protocol: Protocol, write: Write, value_bytes: u32, ttl: u32) -> Vec<u8> {
        let mut out = Vec::new();
        wording(protocol).write(&mut out, write, Item { key: 258, value_bytes, ttl }, 0);
        out
    }

    #[test]
    fn gets_have_the_bytes_that_their_protocol_asks_for() {
        use Protocol::{Meta, Resp, Text};
        for (protocol, keys, bytes) in [
            (Text, &[7][..], "get 00007\r\n"),
            (Text, &[7, 12], "get 00007 00012\r\n"),
            (Meta, &[7], "mg 00007 v\r\n"),
            (Meta, &[7, 12], "mg 00007 v\r\nmg 00012 v\r\n"),
            (Resp, &[7], "*2\r\n$3\r\nGET\r\n$5\r\n00007\r\n"),
            (Resp, &[7, 12], "*3\r\n$4\r\nMGET\r\n$5\r\n00007\r\n$5\r\n00012\r\n"),
        ] {
            assert_eq!(got(protocol, keys), bytes);
        }
    }

    #[test]
    fn writes_have_the_bytes_that_their_protocol_asks_for() {
        use Protocol::{Meta, Resp, Text};
        for (protocol, write, ttl, bytes) in [
            (Text, Write::Set, 0, &b"set 00258 0 0 3\r\n\x02\x01\0\r\n"[..]),
            (Text, Write::Add, 60, b"add 00258 0 60 3\r\n\x02\x01\0\r\n"),
            (Text, Write::Delete, 0, b"delete 00258\r\n"),
            (Text, Write::Incr, 0, b"incr n0258 1\r\n"),
            (Meta, Write::Set, 0, b"ms 00258 3\r\n\x02\x01\0\r\n"),
            (Meta, Write::Add, 60, b"ms 00258 3 ME T60\r\n\x02\x01\0\r\n"),
            (Meta, Write::Delete, 0, b"md 00258\r\n"),
            (Meta, Write::Incr, 60, b"ma n0258 N60 J0\r\n"),
            (Resp, Write::Set, 0, b"*3\r\n$3\r\nSET\r\n$5\r\n00258\r\n$3\r\n\x02\x01\0\r\n"),
            (
                Resp,
                Write::Add,
                60,
                b"*6\r\n$3\r\nSET\r\n$5\r\n00258\r\n$3\r\n\x02\x01\0\r\n$2\r\nEX\r\n$2\r\n60\r\n$2\r\nNX\r\n",
            ),
            (Resp, Write::Delete, 0, b"*2\r\n$3\r\nDEL\r\n$5\r\n00258\r\n"),
            (Resp, Write::Incr, 0, b"*2\r\n$4\r\nINCR\r\n$5\r\nn0258\r\n"),
        ] {
            let told = written(protocol, write, 3, ttl);
            assert_eq!(told, bytes, "{protocol:?} {write:?}: {}", told.escape_ascii());
        }
        assert_eq!(
            written(Meta, Write::Set, 14, 0),
            b"ms 00258 14\r\n\x02\x01\0\0\0\0\0\0\x0e\0\0\0..\r\n"
        );
    }

    #[test]
    fn binary_requests_have_memcacheds_header() {
        let mut out = Vec::new();
        wording(Protocol::Binary).get(&mut out, &[read(7)]);
        let head = b"\x80\x00\x00\x05\x00\x00\x00\x03\0\0\0\x05\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(out, [&head[..], b"00007"].concat());
        let set = written(Protocol::Binary, Write::Set, 3, 60);
        assert_eq!(set[..12], *b"\x80\x01\x00\x05\x08\x00\x00\x00\0\0\0\x10");
        assert_eq!(set[24..], *b"\0\0\0\0\0\0\0\x3c00258\x02\x01\0");
        let incr = written(Protocol::Binary, Write::Incr, 0, 0);
        assert_eq!((incr[1], incr[4], &incr[44..]), (opcode::INCREMENT, 20, &b"n0258"[..]));
    }

    #[test]
    fn a_smart_client_says_what_version_it_knows() {
        let mut wording = wording(Protocol::Meta);
        wording.tell(MapVersion { map: 1, local: 17 });
        let mut out = Vec::new();
        let by_lease = Some(ReplicaVersion { grant: 9, version: 2 });
        wording.get(&mut out, &[read(7), Read { by_lease, ..read(7) }]);
        wording.write(&mut out, Write::Set, Item { key: 7, value_bytes: 1, ttl: 0 }, 0);
        let asked = b"mg 00007 v L1.17\r\nmg 00007 v L1.17*9.2\r\nms 00007 1 L1.17\r\n\x07\r\n";
        assert_eq!(out, asked);
    }

    #[test]
    fn a_name_is_its_key_only_in_full() {
        let wording = wording(Protocol::Text);
        assert!(wording.names(b"00042", 42));
        for (name, key) in [(&b"00042"[..], 43), (b"0042", 42), (b"10042", 42), (b"00042", 100_042)]
        {
            assert!(!wording.names(name, key), "{name:?} {key}");
        }
    }

    #[test]
    fn a_counter_is_placed_by_its_own_name() {
        let wording = wording(Protocol::Text);
        for (name, counter) in [(&b"00042"[..], false), (b"n0042", true)] {
            assert_eq!(Key::new(name).unwrap().hash(), wording.hash_of(42, counter));
        }
    }

    #[test]
    fn names_of_many_lengths_hold_their_digits() {
        let wording =
            Wording::new(Protocol::Text, Sizes::Range(1, 9), Sizes::Constant(1)).with_digits(4);
        for key in [0, 7, 1_234, 9_999] {
            let mut name = Vec::new();
            wording.name(&mut name, key);
            assert!((4..=9).contains(&name.len()) && wording.names(&name, key));
        }
    }
}
