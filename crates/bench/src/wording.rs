//! Requests as bytes.
//!
//! A key is its number in decimal, zero-padded. A value starts with its key's number (8 bytes) and its own
//! length (4 bytes), both little-endian and cut off by a shorter value: so the reply alone says whether it is
//! the right item, whoever stored it.

use std::io::Write as _;

use mbal_model::{KEY_BYTES_MAX, Key, MapVersion};

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Protocol {
    /// `get` and `set`
    Text,
    /// `mg KEY v` and `ms KEY N`
    Meta,
    /// Redis's: `GET`, `MGET` and `SET`; a compared redis-server or valkey-server is spoken to so in any case
    Resp,
}

/// Bytes of a value that say whose it is, and how long.
pub const LABEL_BYTES: usize = 12;

pub fn label(key: u64, value_bytes: u32) -> [u8; LABEL_BYTES] {
    let mut label = [0; LABEL_BYTES];
    label[..8].copy_from_slice(&key.to_le_bytes());
    label[8..].copy_from_slice(&value_bytes.to_le_bytes());
    label
}

/// How this run words its requests.
#[derive(Clone)]
pub struct Wording {
    pub protocol: Protocol,
    key_bytes: usize,
    /// The smart client's token with the version that it knows; meta only.
    token: Vec<u8>,
}

impl Wording {
    pub fn new(protocol: Protocol, key_bytes: usize) -> Self {
        Self { protocol, key_bytes, token: Vec::new() }
    }

    /// Every request tells this version of who owns what from now on.
    pub fn tell(&mut self, version: MapVersion) {
        self.token = format!(" L{version}").into_bytes();
    }

    /// One get of all the keys: a line in text, as many pipelined lines in meta, an array in RESP.
    pub fn get(&self, out: &mut Vec<u8>, keys: &[u64]) {
        match self.protocol {
            Protocol::Text => {
                out.extend_from_slice(b"get");
                for &key in keys {
                    out.push(b' ');
                    self.name(out, key);
                }
                out.extend_from_slice(b"\r\n");
            }
            Protocol::Meta => {
                for &key in keys {
                    out.extend_from_slice(b"mg ");
                    self.name(out, key);
                    out.extend_from_slice(b" v");
                    out.extend_from_slice(&self.token);
                    out.extend_from_slice(b"\r\n");
                }
            }
            Protocol::Resp => {
                let command = if keys.len() == 1 { "$3\r\nGET" } else { "$4\r\nMGET" };
                put(out, format_args!("*{}\r\n{command}\r\n", keys.len() + 1));
                keys.iter().for_each(|&key| self.bulk_name(out, key));
            }
        }
    }

    pub fn set(&self, out: &mut Vec<u8>, key: u64, value_bytes: u32) {
        match self.protocol {
            Protocol::Text => {
                out.extend_from_slice(b"set ");
                self.name(out, key);
                put(out, format_args!(" 0 0 {value_bytes}\r\n"));
            }
            Protocol::Meta => {
                out.extend_from_slice(b"ms ");
                self.name(out, key);
                put(out, format_args!(" {value_bytes}"));
                out.extend_from_slice(&self.token);
                out.extend_from_slice(b"\r\n");
            }
            Protocol::Resp => {
                out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
                self.bulk_name(out, key);
                put(out, format_args!("${value_bytes}\r\n"));
            }
        }
        let labelled = LABEL_BYTES.min(value_bytes as usize);
        let end = out.len() + value_bytes as usize;
        out.extend_from_slice(&label(key, value_bytes)[..labelled]);
        out.resize(end, b'.');
        out.extend_from_slice(b"\r\n");
    }

    fn name(&self, out: &mut Vec<u8>, key: u64) {
        let start = out.len();
        out.resize(start + self.key_bytes, b'0');
        stamp_key(&mut out[start..], key);
    }

    /// A key as RESP has it: with its length before.
    fn bulk_name(&self, out: &mut Vec<u8>, key: u64) {
        put(out, format_args!("${}\r\n", self.key_bytes));
        self.name(out, key);
        out.extend_from_slice(b"\r\n");
    }

    /// What places the key on a cachelet.
    pub fn hash(&self, key: u64) -> u64 {
        let mut name = [b'0'; KEY_BYTES_MAX];
        let name = &mut name[..self.key_bytes];
        stamp_key(name, key);
        Key::new(name).expect("its length was checked").hash()
    }
    /// Is this the key's name, as `VALUE` lines repeat it?
    pub fn names(&self, name: &[u8], key: u64) -> bool {
        if name.len() != self.key_bytes {
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
    use super::*;

    fn words(protocol: Protocol, act: impl Fn(&Wording, &mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        act(&Wording::new(protocol, 5), &mut out);
        out
    }

    #[test]
    fn requests_have_the_bytes_that_their_protocol_asks_for() {
        assert_eq!(words(Protocol::Text, |w, out| w.get(out, &[7])), b"get 00007\r\n");
        assert_eq!(words(Protocol::Text, |w, out| w.get(out, &[7, 12])), b"get 00007 00012\r\n");
        assert_eq!(words(Protocol::Meta, |w, out| w.get(out, &[7])), b"mg 00007 v\r\n");
        assert_eq!(
            words(Protocol::Meta, |w, out| w.get(out, &[7, 12])),
            b"mg 00007 v\r\nmg 00012 v\r\n"
        );
        assert_eq!(
            words(Protocol::Resp, |w, out| w.get(out, &[7])),
            b"*2\r\n$3\r\nGET\r\n$5\r\n00007\r\n"
        );
        assert_eq!(
            words(Protocol::Resp, |w, out| w.get(out, &[7, 12])),
            b"*3\r\n$4\r\nMGET\r\n$5\r\n00007\r\n$5\r\n00012\r\n"
        );
        assert_eq!(
            words(Protocol::Resp, |w, out| w.set(out, 258, 3)),
            b"*3\r\n$3\r\nSET\r\n$5\r\n00258\r\n$3\r\n\x02\x01\x00\r\n"
        );
        assert_eq!(
            words(Protocol::Text, |w, out| w.set(out, 258, 3)),
            b"set 00258 0 0 3\r\n\x02\x01\x00\r\n"
        );
        assert_eq!(
            words(Protocol::Meta, |w, out| w.set(out, 258, 14)),
            b"ms 00258 14\r\n\x02\x01\0\0\0\0\0\0\x0e\0\0\0..\r\n"
        );
    }

    #[test]
    fn a_size_does_not_stick_to_the_next_set() {
        let out = words(Protocol::Meta, |w, out| {
            w.set(out, 1, 2);
            w.set(out, 1, 3);
        });
        assert_eq!(out, b"ms 00001 2\r\n\x01\0\r\nms 00001 3\r\n\x01\0\0\r\n");
    }

    #[test]
    fn a_name_is_its_key_only_in_full() {
        let wording = Wording::new(Protocol::Text, 5);
        assert!(wording.names(b"00042", 42));
        for (name, key) in [(&b"00042"[..], 43), (b"0042", 42), (b"10042", 42), (b"00042", 100_042)]
        {
            assert!(!wording.names(name, key), "{name:?} {key}");
        }
    }
}
