//! Requests as bytes: encoded once, then only the key's digits and the value's first bytes are stamped in.
//!
//! A key is its number in decimal, zero-padded. A value starts with its key's number (8 bytes) and its own
//! length (4 bytes), both little-endian and cut off by a shorter value: so the reply alone says whether it is
//! the right item, whoever stored it.

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
    get: Template,
    set: Template,
}

#[derive(Clone)]
struct Template {
    bytes: Vec<u8>,
    key_at: usize,
    value_at: usize,
    value_bytes: u32,
}

impl Wording {
    pub fn new(protocol: Protocol, key_bytes: usize, value_bytes: u32) -> Self {
        let get = match protocol {
            Protocol::Text => Template::get(b" ", key_bytes, b""),
            Protocol::Meta => Template::get(b"mg ", key_bytes, b" v\r\n"),
            Protocol::Resp => {
                Template::get(format!("${key_bytes}\r\n").as_bytes(), key_bytes, b"\r\n")
            }
        };
        Self { protocol, key_bytes, get, set: Template::set(protocol, key_bytes, value_bytes) }
    }

    /// One get of all the keys: a line in text, as many pipelined lines in meta, an array in RESP.
    pub fn get(&self, out: &mut Vec<u8>, keys: &[u64]) {
        match (self.protocol, keys.len()) {
            (Protocol::Text, _) => out.extend_from_slice(b"get"),
            (Protocol::Meta, _) => {}
            (Protocol::Resp, 1) => out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n"),
            (Protocol::Resp, n) => {
                out.extend_from_slice(format!("*{}\r\n$4\r\nMGET\r\n", n + 1).as_bytes());
            }
        }
        for &key in keys {
            let start = out.len();
            out.extend_from_slice(&self.get.bytes);
            stamp_key(&mut out[start + self.get.key_at..], self.key_bytes, key);
        }
        if self.protocol == Protocol::Text {
            out.extend_from_slice(b"\r\n");
        }
    }

    pub fn name(&self, key: u64) -> Vec<u8> {
        let mut name = vec![b'0'; self.key_bytes];
        stamp_key(&mut name, self.key_bytes, key);
        name
    }

    pub fn set(&mut self, out: &mut Vec<u8>, key: u64, value_bytes: u32) {
        if value_bytes != self.set.value_bytes {
            self.set = Template::set(self.protocol, self.key_bytes, value_bytes);
        }
        let start = out.len();
        out.extend_from_slice(&self.set.bytes);
        stamp_key(&mut out[start + self.set.key_at..], self.key_bytes, key);
        let labelled = LABEL_BYTES.min(value_bytes as usize);
        let value_at = start + self.set.value_at;
        out[value_at..value_at + labelled].copy_from_slice(&label(key, value_bytes)[..labelled]);
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

impl Template {
    fn get(head: &[u8], key_bytes: usize, tail: &[u8]) -> Self {
        let mut bytes = head.to_vec();
        bytes.resize(head.len() + key_bytes, b'0');
        bytes.extend_from_slice(tail);
        Self { bytes, key_at: head.len(), value_at: 0, value_bytes: 0 }
    }

    fn set(protocol: Protocol, key_bytes: usize, value_bytes: u32) -> Self {
        let (head, arguments) = match protocol {
            Protocol::Text => ("set ".to_owned(), format!(" 0 0 {value_bytes}\r\n")),
            Protocol::Meta => ("ms ".to_owned(), format!(" {value_bytes}\r\n")),
            Protocol::Resp => {
                (format!("*3\r\n$3\r\nSET\r\n${key_bytes}\r\n"), format!("\r\n${value_bytes}\r\n"))
            }
        };
        let mut template = Self::get(head.as_bytes(), key_bytes, arguments.as_bytes());
        template.value_at = template.bytes.len();
        template.value_bytes = value_bytes;
        template.bytes.resize(template.value_at + value_bytes as usize, b'.');
        template.bytes.extend_from_slice(b"\r\n");
        template
    }
}

/// Digits from the last to the first; what they leave is zeros already.
fn stamp_key(at: &mut [u8], key_bytes: usize, key: u64) {
    let mut rest = key;
    for digit in at[..key_bytes].iter_mut().rev() {
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

    fn words(protocol: Protocol, act: impl Fn(&mut Wording, &mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        act(&mut Wording::new(protocol, 5, 3), &mut out);
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
        let wording = Wording::new(Protocol::Text, 5, 3);
        assert!(wording.names(b"00042", 42));
        for (name, key) in [(&b"00042"[..], 43), (b"0042", 42), (b"10042", 42), (b"00042", 100_042)]
        {
            assert!(!wording.names(name, key), "{name:?} {key}");
        }
    }
}
