//! Requests as bytes: meta commands, with the token of a client that knows the workers.

use mbal_model::{KEY_BYTES_MAX, Key, MapVersion, ReplicaVersion};
use mbal_wire::base64_encode;

use crate::error::Error;

/// A key as it is sent, and its hash.
#[derive(Clone, Debug)]
pub struct SentKey {
    pub hash: u64,
    bytes: Vec<u8>,
    /// What the protocol wants instead of a key with blanks or control characters.
    base64: Option<Vec<u8>>,
}

impl SentKey {
    pub fn new(key: &[u8]) -> Result<SentKey, Error> {
        let hash = Key::new(key).filter(|_| !key.is_empty()).ok_or(Error::Key)?.hash();
        let is_no_word = key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f);
        let base64 = is_no_word.then(|| {
            let mut text = Vec::new();
            base64_encode(key, &mut text);
            text
        });
        let key = SentKey { hash, bytes: key.to_vec(), base64 };
        if key.text().len() > KEY_BYTES_MAX { Err(Error::Key) } else { Ok(key) }
    }

    pub fn key(&self) -> Key<'_> {
        Key::new(&self.bytes).expect("its length was checked")
    }

    fn text(&self) -> &[u8] {
        self.base64.as_deref().unwrap_or(&self.bytes)
    }
}

/// What is asked of a key.
#[derive(Clone, Debug)]
pub enum Command<'a> {
    Get,
    /// The exptime that the item is to have.
    GetAndTouch {
        exptime: i64,
    },
    Touch {
        exptime: i64,
    },
    Store {
        mode: Mode,
        value: &'a [u8],
        exptime: i64,
        flags: u32,
        cas: Option<u64>,
    },
    Delete,
    /// `initial`: value and exptime of a counter that is not there.
    Count {
        up: bool,
        delta: u64,
        initial: Option<(u64, i64)>,
    },
}

/// How a value is stored; its letter in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Set = b'S' as isize,
    Add = b'E' as isize,
    Replace = b'R' as isize,
    Append = b'A' as isize,
    Prepend = b'P' as isize,
}

impl Command<'_> {
    /// True if it may be executed twice, and nobody could tell.
    pub fn reads(&self) -> bool {
        matches!(self, Command::Get)
    }

    /// Appends the request, with what the client knows of the owners. `by_lease` marks it as one that a copy is to answer which is no older
    /// than that.
    pub fn push(
        &self,
        out: &mut Vec<u8>,
        key: &SentKey,
        known: MapVersion,
        by_lease: Option<ReplicaVersion>,
    ) {
        let name: &[u8] = match self {
            Command::Get | Command::GetAndTouch { .. } | Command::Touch { .. } => b"mg ",
            Command::Store { .. } => b"ms ",
            Command::Delete => b"md ",
            Command::Count { .. } => b"ma ",
        };
        out.extend_from_slice(name);
        out.extend_from_slice(key.text());
        let mut words = String::new();
        match self {
            Command::Get => words += " v f c",
            Command::GetAndTouch { exptime } => words += &format!(" v f c T{exptime}"),
            Command::Touch { exptime } => words += &format!(" T{exptime}"),
            Command::Store { mode, value, exptime, flags, cas } => {
                words += &format!(" {} M{} T{exptime}", value.len(), char::from(*mode as u8));
                if *flags != 0 {
                    words += &format!(" F{flags}");
                }
                if let Some(cas) = cas {
                    words += &format!(" C{cas}");
                }
            }
            Command::Delete => {}
            Command::Count { up, delta, initial } => {
                words += &format!(" v M{} D{delta}", if *up { 'I' } else { 'D' });
                if let Some((value, exptime)) = initial {
                    words += &format!(" J{value} N{exptime}");
                }
            }
        }
        if key.base64.is_some() {
            words += " b";
        }
        words += &format!(" L{known}");
        if let Some(seen) = by_lease {
            words += &format!("*{seen}");
        }
        words += "\r\n";
        out.extend_from_slice(words.as_bytes());
        if let Command::Store { value, .. } = self {
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_meta_commands() {
        let store = |mode, cas| Command::Store { mode, value: b"v\r\n", exptime: 9, flags: 7, cas };
        for (command, request) in [
            (Command::Get, "mg k v f c L5.3\r\n"),
            (Command::GetAndTouch { exptime: 9 }, "mg k v f c T9 L5.3\r\n"),
            (Command::Touch { exptime: 0 }, "mg k T0 L5.3\r\n"),
            (store(Mode::Set, None), "ms k 3 MS T9 F7 L5.3\r\nv\r\n\r\n"),
            (store(Mode::Add, None), "ms k 3 ME T9 F7 L5.3\r\nv\r\n\r\n"),
            (store(Mode::Set, Some(4)), "ms k 3 MS T9 F7 C4 L5.3\r\nv\r\n\r\n"),
            (Command::Delete, "md k L5.3\r\n"),
            (Command::Count { up: true, delta: 2, initial: None }, "ma k v MI D2 L5.3\r\n"),
            (
                Command::Count { up: false, delta: 2, initial: Some((10, 60)) },
                "ma k v MD D2 J10 N60 L5.3\r\n",
            ),
        ] {
            let mut out = Vec::new();
            let key = SentKey::new(b"k").expect("a key");
            command.push(&mut out, &key, MapVersion { map: 5, local: 3 }, None);
            assert_eq!(String::from_utf8_lossy(&out), request);
        }
        let (mut out, key) = (Vec::new(), SentKey::new(b"k").expect("a key"));
        Command::Get.push(
            &mut out,
            &key,
            MapVersion { map: 5, local: 3 },
            Some(ReplicaVersion { grant: 9, version: 2 }),
        );
        assert_eq!(out, b"mg k v f c L5.3*9.2\r\n");
    }

    #[test]
    fn a_key_that_is_no_word_is_sent_in_base64_and_hashed_as_it_is() {
        let key = SentKey::new(b"a b").expect("a key");
        assert_eq!(key.hash, Key::new(b"a b").expect("short").hash());
        let mut out = Vec::new();
        Command::Delete.push(&mut out, &key, MapVersion { map: 1, local: 0 }, None);
        assert_eq!(out, b"md YSBi b L1.0\r\n");
        assert!(SentKey::new(&[b'k'; 250]).is_ok() && SentKey::new(&[1; 186]).is_ok());
        for key in [&b""[..], &[b'k'; 251], &[1; 187]] {
            assert_eq!(SentKey::new(key).err(), Some(Error::Key));
        }
    }
}
