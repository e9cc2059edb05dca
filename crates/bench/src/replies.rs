//! Reads replies against what was asked, in order: scanned, not parsed, but never believed.

use std::collections::VecDeque;

use mbal_model::{Hint, ReplicaVersion};
use mbal_replica::Announcement;
use mbal_wire::{MetaHead, MetaStatus, ValueHead};
use memchr::memchr;

use crate::batches::BatchId;
use crate::binary;
use crate::request::{LABEL_BYTES, Protocol, Write, label};
use crate::wording::Wording;

#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Kind {
    #[default]
    Get,
    Write(Write),
    /// The line that ends a classic get, after the values of its hits.
    End,
}

/// A reply that must still come: one per key, and one more for the end of a classic get.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Awaited {
    pub kind: Kind,
    pub key: u64,
    /// What a set stores; what a get should find, or store after a miss.
    pub value_bytes: u32,
    pub ttl: u32,
    /// With this reply the request is answered.
    pub last: bool,
    /// Whatever is read, a set follows.
    pub then_set: bool,
    /// How often it was sent to a worker that no longer had the key.
    pub turned_away: u8,
    /// When the request was to be sent, in ns of the generator's clock.
    pub intended_ns: u64,
    /// When it was.
    pub asked_ns: u64,
    /// A copy was to answer.
    pub by_lease: bool,
    /// The batch of whose parts it is one, with all replies of this request.
    pub batch: Option<BatchId>,
}

impl Awaited {
    /// It is about the counter beside the key.
    pub fn is_counter(&self) -> bool {
        self.kind == Kind::Write(Write::Incr)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Hit,
    Miss,
    Stored,
    /// Deleted or not there to be deleted, counted up, not added to what was there.
    Done,
    /// No such counter: text makes none.
    NoCounter,
    Ended,
    /// Not executed: another worker has the key now.
    Elsewhere,
    /// A datagram went missing on either way.
    Lost,
    /// What came instead, for a person to read.
    Wrong(String),
}

/// The `L` token of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseToken {
    Hint(Hint),
    Announcement(Announcement),
    /// A copy has answered with this.
    ReplicaVersion(ReplicaVersion),
}

impl LeaseToken {
    pub fn parse(text: &[u8]) -> Option<LeaseToken> {
        let replica_version = || {
            text.strip_prefix(b"@").and_then(ReplicaVersion::parse).map(LeaseToken::ReplicaVersion)
        };
        let hint = || Hint::parse(text).map(LeaseToken::Hint);
        Announcement::parse(text)
            .map(LeaseToken::Announcement)
            .or_else(replica_version)
            .or_else(hint)
    }
}

/// What a get knows of its value's length.
#[derive(Clone, Copy, PartialEq)]
pub enum Lengths {
    /// A key's value always has the same.
    Known,
    /// A key's size changes over a trace, so only the value's own label is a witness.
    Labelled,
}

/// Consumes whole replies and tells what became of every awaited one, and where its cachelet or its copies are, if the
/// reply has a word on that; returns the bytes consumed.
/// An error means that replies and requests can no longer be matched.
pub fn scan(
    wording: &Wording,
    lengths: Lengths,
    bytes: &[u8],
    awaited: &mut VecDeque<Awaited>,
    mut tell: impl FnMut(Awaited, Answer, Option<LeaseToken>),
) -> Result<usize, String> {
    if wording.protocol == Protocol::Binary {
        return binary::scan(lengths, bytes, awaited, tell);
    }
    let mut at = 0;
    while let Some(line_bytes) = memchr(b'\n', &bytes[at..]) {
        let line = &bytes[at..at + line_bytes + 1];
        let value_at = at + line.len();
        let Some(&front) = awaited.front() else {
            return Err(format!("a reply that nobody asked for: {}", shown(line)));
        };
        // A reply of several values says first how many there are.
        if wording.protocol == Protocol::Resp && front.kind == Kind::Get && line[0] == b'*' {
            at = value_at;
            continue;
        }
        let word = wording.follows().then(|| token(line)).flatten();
        at = match (front.kind, value_line(wording.protocol, line)) {
            (Kind::Get | Kind::End, Some(value)) => {
                let end = value_at + value.bytes + 2;
                if bytes.len() < end {
                    return Ok(at);
                }
                let asked = match value.name {
                    None => awaited.pop_front(),
                    Some(name) => find(wording, name, awaited, &mut tell),
                };
                let asked = asked.ok_or_else(|| format!("not asked for: {}", shown(line)))?;
                let (value, close) = bytes[value_at..end].split_at(value.bytes);
                let outcome = match close {
                    b"\r\n" => judge(asked, lengths, value),
                    _ => Answer::Wrong(format!("value of key {}: no end", asked.key)),
                };
                tell(asked, outcome, word);
                end
            }
            (kind, _) => {
                let outcome = plain(line, wording.protocol, kind).unwrap_or_else(|| {
                    Answer::Wrong(format!("{kind:?} of key {}: {}", front.key, shown(line)))
                });
                drop_through(awaited, wording.protocol, |reply| {
                    let ended = outcome == Answer::Miss && reply.kind == Kind::End;
                    let told = if ended { Answer::Ended } else { outcome.clone() };
                    tell(reply, told, word.clone());
                });
                value_at
            }
        };
    }
    Ok(at)
}

/// What a line without a value says in good order; in meta flags may follow its word.
fn plain(line: &[u8], protocol: Protocol, kind: Kind) -> Option<Answer> {
    let line = line.strip_suffix(b"\r\n")?;
    let word = match line.iter().position(|byte| *byte == b' ') {
        None => line,
        Some(end) if protocol == Protocol::Meta && line.get(end + 1)?.is_ascii_alphabetic() => {
            &line[..end]
        }
        Some(_) => return None,
    };
    let counted = || number(word.strip_prefix(b":").unwrap_or(word)).map(|_| Answer::Done);
    match (protocol, kind, word) {
        (Protocol::Text, Kind::Get | Kind::End, b"END") => Some(Answer::Miss),
        (Protocol::Text, Kind::Write(Write::Set | Write::Add), b"STORED") => Some(Answer::Stored),
        (Protocol::Text, Kind::Write(Write::Add), b"NOT_STORED") => Some(Answer::Done),
        (Protocol::Text, Kind::Write(Write::Delete), b"DELETED" | b"NOT_FOUND") => {
            Some(Answer::Done)
        }
        (Protocol::Text, Kind::Write(Write::Incr), b"NOT_FOUND") => Some(Answer::NoCounter),
        (Protocol::Text, Kind::Write(Write::Incr), _) => counted(),
        (Protocol::Meta, Kind::Get, b"EN") => Some(Answer::Miss),
        (Protocol::Meta, Kind::Write(Write::Set | Write::Add), b"HD") => Some(Answer::Stored),
        (Protocol::Meta, Kind::Write(Write::Add), b"NS") => Some(Answer::Done),
        (Protocol::Meta, Kind::Write(Write::Delete), b"HD" | b"NF") => Some(Answer::Done),
        (Protocol::Meta, Kind::Write(Write::Incr), b"HD") => Some(Answer::Done),
        (Protocol::Resp, Kind::Get, b"$-1") => Some(Answer::Miss),
        (Protocol::Resp, Kind::Write(Write::Set | Write::Add), b"+OK") => Some(Answer::Stored),
        (Protocol::Resp, Kind::Write(Write::Add), b"$-1") => Some(Answer::Done),
        (Protocol::Resp, Kind::Write(Write::Delete | Write::Incr), _)
            if word.first() == Some(&b':') =>
        {
            counted()
        }
        _ => None,
    }
}

/// The `L` token of a meta reply.
fn token(line: &[u8]) -> Option<LeaseToken> {
    let flags = line.strip_suffix(b"\r\n")?.split(|byte| *byte == b' ').skip(1);
    flags.filter_map(|flag| flag.strip_prefix(b"L")).find_map(LeaseToken::parse)
}

/// One line answers one key, but all the rest of a classic get.
fn drop_through(
    awaited: &mut VecDeque<Awaited>,
    protocol: Protocol,
    mut tell: impl FnMut(Awaited),
) {
    while let Some(reply) = awaited.pop_front() {
        tell(reply);
        if reply.last || protocol != Protocol::Text {
            return;
        }
    }
}

struct ValueLine<'a> {
    name: Option<&'a [u8]>,
    bytes: usize,
}

/// `VA <bytes> <flags>*`, `$<bytes>` or `VALUE <key> <flags> <bytes>`.
fn value_line(protocol: Protocol, line: &[u8]) -> Option<ValueLine<'_>> {
    let line = line.strip_suffix(b"\r\n")?;
    match protocol {
        Protocol::Binary => None,
        Protocol::Meta => {
            let head = MetaHead::parse(line).filter(|head| head.status == MetaStatus::Value)?;
            Some(ValueLine { name: None, bytes: head.bytes })
        }
        Protocol::Resp => Some(ValueLine { name: None, bytes: number(line.strip_prefix(b"$")?)? }),
        Protocol::Text => {
            let ValueHead { key, bytes, .. } = ValueHead::parse(line)?;
            Some(ValueLine { name: Some(key), bytes })
        }
    }
}

fn number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 9 {
        return None;
    }
    digits.iter().try_fold(0usize, |sum, &digit| {
        digit.is_ascii_digit().then(|| sum * 10 + usize::from(digit - b'0'))
    })
}

/// Hits come in the order of the request: keys passed over are misses.
fn find(
    wording: &Wording,
    name: &[u8],
    awaited: &mut VecDeque<Awaited>,
    tell: &mut impl FnMut(Awaited, Answer, Option<LeaseToken>),
) -> Option<Awaited> {
    while let Some(reply) = awaited.front().copied().filter(|reply| reply.kind == Kind::Get) {
        awaited.pop_front();
        if wording.names(name, reply.key) {
            return Some(reply);
        }
        tell(reply, Answer::Miss, None);
    }
    None
}

/// Checks a value.
pub fn judge(asked: Awaited, lengths: Lengths, value: &[u8]) -> Answer {
    let labelled = LABEL_BYTES.min(value.len());
    let right = (lengths == Lengths::Labelled || value.len() == asked.value_bytes as usize)
        && value[..labelled] == label(asked.key, value.len() as u32)[..labelled];
    if right {
        return Answer::Hit;
    }
    Answer::Wrong(format!("value of key {}: {} bytes, {}", asked.key, value.len(), shown(value)))
}

/// The first bytes of a reply, for a person to read.
fn shown(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes[..bytes.len().min(80)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use mbal_model::MapVersion;

    use super::*;
    use crate::sizes::Sizes;

    fn get(key: u64, last: bool) -> Awaited {
        Awaited { key, value_bytes: 14, last, ..Awaited::default() }
    }

    fn wording(protocol: Protocol) -> Wording {
        Wording::new(protocol, Sizes::Constant(5), Sizes::Constant(14))
    }

    fn asked(protocol: Protocol, keys: &[u64]) -> VecDeque<Awaited> {
        let end = Awaited { kind: Kind::End, ..get(0, true) };
        match protocol {
            Protocol::Text => keys.iter().map(|&key| get(key, false)).chain([end]).collect(),
            _ => keys.iter().enumerate().map(|(i, &key)| get(key, i + 1 == keys.len())).collect(),
        }
    }

    fn value(key: u64) -> Vec<u8> {
        [&label(key, 14)[..], b".."].concat()
    }

    fn text_value(key: u64) -> Vec<u8> {
        [format!("VALUE {key:05} 0 14\r\n").as_bytes(), &value(key), b"\r\n"].concat()
    }

    fn meta_value(key: u64) -> Vec<u8> {
        [b"VA 14\r\n", &value(key)[..], b"\r\n"].concat()
    }

    /// Outcomes as one letter per key: Hit, Miss, Stored, Ended, Wrong.
    fn outcomes(
        protocol: Protocol,
        lengths: Lengths,
        mut awaited: VecDeque<Awaited>,
        bytes: &[u8],
    ) -> Result<String, String> {
        let wording = wording(protocol);
        let mut letters = String::new();
        let taken = scan(&wording, lengths, bytes, &mut awaited, |reply, outcome, _| {
            let letter = match outcome {
                Answer::Hit => 'H',
                Answer::Miss => 'M',
                Answer::Stored => 'S',
                Answer::Done => 'D',
                Answer::NoCounter => 'N',
                Answer::Ended => 'E',
                Answer::Elsewhere | Answer::Lost => 'L',
                Answer::Wrong(_) => 'W',
            };
            letters.push(letter);
            if reply.last {
                letters.push(' ');
            }
        })?;
        if taken < bytes.len() || !awaited.is_empty() {
            letters.push('…');
        }
        Ok(letters)
    }

    fn check(protocol: Protocol, keys: &[u64], bytes: &[u8], letters: &str) {
        let told = outcomes(protocol, Lengths::Known, asked(protocol, keys), bytes);
        assert_eq!(told.as_deref(), Ok(letters), "{}", bytes.escape_ascii());
    }

    #[test]
    fn right_replies_are_hits_and_misses() {
        use Protocol::{Meta, Text};
        check(Text, &[7], &[&text_value(7)[..], b"END\r\n"].concat(), "HE ");
        check(Text, &[7], b"END\r\n", "ME ");
        check(Text, &[1, 7, 9], &[&text_value(7)[..], b"END\r\n"].concat(), "MHME ");
        check(Meta, &[7], &meta_value(7), "H ");
        check(Meta, &[7, 8], &[&meta_value(7)[..], b"EN\r\n"].concat(), "HM ");
        let resp_value = [b"$14\r\n", &value(7)[..], b"\r\n"].concat();
        check(Protocol::Resp, &[7], &resp_value, "H ");
        check(Protocol::Resp, &[7], b"$-1\r\n", "M ");
        check(Protocol::Resp, &[7], b"-ERR unknown command\r\n", "W ");
        check(Protocol::Resp, &[8], &resp_value, "W ");
        check(Protocol::Resp, &[7, 8], &[b"*2\r\n", &resp_value[..], b"$-1\r\n"].concat(), "HM ");
    }

    #[test]
    fn planted_wrong_replies_are_caught() {
        use Protocol::{Meta, Text};
        let swap = |from: &[u8], to: &str| {
            let text = [&text_value(7)[..], b"END\r\n"].concat();
            let at = text.windows(from.len()).position(|window| window == from).unwrap();
            [&text[..at], to.as_bytes(), &text[at + from.len()..]].concat()
        };
        check(Meta, &[7], &meta_value(8), "W ");
        check(Meta, &[7], b"VA 3\r\n\x07\0\0\r\n", "W ");
        check(Meta, &[7], b"VA 14\r\n\x07\0\0\0\0\0\0\0\x0d\0\0\0..\r\n", "W ");
        check(Meta, &[7], &[&meta_value(7)[..21], b"xx"].concat(), "W ");
        check(Meta, &[7], b"HD\r\n", "W ");
        check(Meta, &[7], b"EN \r\n", "W ");
        check(Meta, &[7], b"SERVER_ERROR out of memory\r\n", "W ");
        check(Text, &[7], b"ERROR\r\n", "WW ");
        check(Text, &[7], b"STORED\r\n", "WW ");
        check(Text, &[1, 7], b"SERVER_ERROR busy\r\n", "WWW ");
        check(Text, &[7], &swap(b"\x07\0", "\x08\0"), "WE ");
        for (from, to) in [(&b"00007"[..], "00008"), (b"END\r\n", "")] {
            let told = outcomes(Text, Lengths::Known, asked(Text, &[7]), &swap(from, to));
            assert!(told.is_err() || told.as_deref() == Ok("H…"), "{told:?}");
        }
        let doubled = [&text_value(7)[..], &text_value(7), b"END\r\n"].concat();
        assert!(outcomes(Text, Lengths::Known, asked(Text, &[7]), &doubled).is_err());
        let extra = [&meta_value(7)[..], b"EN\r\n"].concat();
        assert!(outcomes(Meta, Lengths::Known, asked(Meta, &[7]), &extra).is_err());
    }

    #[test]
    fn sets_are_stored_or_wrong() {
        let set = || VecDeque::from([Awaited { kind: Kind::Write(Write::Set), ..get(7, true) }]);
        let told = |protocol, bytes: &[u8]| outcomes(protocol, Lengths::Known, set(), bytes);
        assert_eq!(told(Protocol::Text, b"STORED\r\n").as_deref(), Ok("S "));
        assert_eq!(told(Protocol::Meta, b"HD\r\n").as_deref(), Ok("S "));
        assert_eq!(told(Protocol::Meta, b"HD L12\r\n").as_deref(), Ok("S "));
        assert_eq!(told(Protocol::Resp, b"+OK\r\n").as_deref(), Ok("S "));
        assert_eq!(told(Protocol::Resp, b"*1\r\n").as_deref(), Ok("W "));
        for wrong in [&b"NOT_STORED\r\n"[..], b"SERVER_ERROR object too large for cache\r\n"] {
            assert_eq!(told(Protocol::Text, wrong).as_deref(), Ok("W "));
        }
        assert_eq!(told(Protocol::Meta, b"NS\r\n").as_deref(), Ok("W "));
    }

    #[test]
    fn other_operations_are_done_or_wrong() {
        use Protocol::{Meta, Resp, Text};
        for (protocol, kind, line, letter) in [
            (Text, Kind::Write(Write::Add), "STORED", "S "),
            (Text, Kind::Write(Write::Add), "NOT_STORED", "D "),
            (Text, Kind::Write(Write::Delete), "DELETED", "D "),
            (Text, Kind::Write(Write::Delete), "NOT_FOUND", "D "),
            (Text, Kind::Write(Write::Incr), "12", "D "),
            (Text, Kind::Write(Write::Incr), "NOT_FOUND", "N "),
            (Text, Kind::Write(Write::Incr), "OK", "W "),
            (Meta, Kind::Write(Write::Add), "NS", "D "),
            (Meta, Kind::Write(Write::Set), "NS", "W "),
            (Meta, Kind::Write(Write::Delete), "NF", "D "),
            (Meta, Kind::Write(Write::Incr), "HD", "D "),
            (Meta, Kind::Write(Write::Incr), "NF", "W "),
            (Resp, Kind::Write(Write::Add), "$-1", "D "),
            (Resp, Kind::Write(Write::Delete), ":1", "D "),
            (Resp, Kind::Write(Write::Incr), ":5", "D "),
            (Resp, Kind::Write(Write::Incr), "+OK", "W "),
        ] {
            let awaited = VecDeque::from([Awaited { kind, ..get(7, true) }]);
            let told =
                outcomes(protocol, Lengths::Known, awaited, format!("{line}\r\n").as_bytes());
            assert_eq!(told.as_deref(), Ok(letter), "{protocol:?} {kind:?} {line}");
        }
    }

    #[test]
    fn labelled_values_may_have_any_length_but_their_own() {
        let told = |bytes: &[u8]| {
            let awaited = VecDeque::from([Awaited { value_bytes: 99, ..get(7, true) }]);
            outcomes(Protocol::Meta, Lengths::Labelled, awaited, bytes)
        };
        assert_eq!(told(&meta_value(7)).as_deref(), Ok("H "));
        assert_eq!(told(b"VA 13\r\n\x07\0\0\0\0\0\0\0\x0e\0\0\0.\r\n").as_deref(), Ok("W "));
    }

    #[test]
    fn tokens_say_where_a_cachelet_is_now() {
        let told = |bytes: &[u8]| {
            let (mut wording, mut awaited) = (wording(Protocol::Meta), asked(Protocol::Meta, &[7]));
            wording.tell(MapVersion { map: 1, local: 17 });
            let mut all = Vec::new();
            let tell = |_, outcome, word: Option<LeaseToken>| {
                let text = |word| match word {
                    LeaseToken::Hint(hint) => hint.to_string(),
                    LeaseToken::Announcement(told) => told.to_string(),
                    LeaseToken::ReplicaVersion(replica_version) => format!("@{replica_version}"),
                };
                all.push((outcome, word.map(text)));
            };
            scan(&wording, Lengths::Known, bytes, &mut awaited, tell).unwrap();
            all
        };
        let value = &meta_value(7)[b"VA 14".len()..];
        for (head, hint) in [
            ("VA 14", None),
            ("VA 14 f0 L1.18.3", Some("1.18.3")),
            ("VA 14 L~1000.1,3@5.2", Some("~1000.1,3@5.2")),
            ("VA 14 L@9.2", Some("@9.2")),
            ("VA 14 L1.x.3", None),
        ] {
            let hint = hint.map(String::from);
            assert_eq!(told(&[head.as_bytes(), value].concat()), [(Answer::Hit, hint)], "{head}");
        }
        assert_eq!(told(b"EN L1.18.4/2\r\n"), [(Answer::Miss, Some("1.18.4/2".into()))]);
    }

    #[test]
    fn replies_cut_anywhere_are_told_the_same() {
        for protocol in [Protocol::Text, Protocol::Meta, Protocol::Resp] {
            let bytes = match protocol {
                Protocol::Text => [&text_value(1)[..], &text_value(9), b"END\r\n"].concat(),
                Protocol::Meta => [&meta_value(1)[..], b"EN\r\n", &meta_value(9)].concat(),
                _ => {
                    let resp = |key| [b"$14\r\n", &value(key)[..], b"\r\n"].concat();
                    [b"*3\r\n", &resp(1)[..], b"$-1\r\n", &resp(9)].concat()
                }
            };
            for cut in 0..bytes.len() {
                let wording = wording(protocol);
                let mut awaited = asked(protocol, &[1, 5, 9]);
                let mut told = Vec::new();
                let mut tell = |reply: Awaited, outcome, _| told.push((reply.key, outcome));
                let taken =
                    scan(&wording, Lengths::Known, &bytes[..cut], &mut awaited, &mut tell).unwrap();
                scan(&wording, Lengths::Known, &bytes[taken..], &mut awaited, &mut tell).unwrap();
                let wanted = [(1, Answer::Hit), (5, Answer::Miss), (9, Answer::Hit)];
                assert_eq!(&told[..3], &wanted, "cut at {cut}");
                assert!(awaited.is_empty(), "cut at {cut}");
            }
        }
    }
}
