//! What comes back: replies, their kinds, and when two of them say the same.

use std::collections::{BTreeMap, HashMap};

use mbal_wire::{MetaHead, MetaStatus, ValueHead};

/// A line or a data block of a stream of replies, line ends left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    Line(&'a [u8]),
    Data(&'a [u8]),
    /// What stands behind the last whole part.
    Torn(&'a [u8]),
}

/// All parts that answer one request.
pub type Unit<'a> = Vec<Part<'a>>;

/// Cuts a stream of replies into those of single requests.
pub fn units(mut bytes: &[u8]) -> Vec<Unit<'_>> {
    let mut units = Vec::new();
    let mut unit = Vec::new();
    while !bytes.is_empty() {
        let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
            unit.push(Part::Torn(bytes));
            break;
        };
        let line = &bytes[..end];
        bytes = &bytes[end + 2..];
        unit.push(Part::Line(line));
        if let Some(length) = data_length(line) {
            if !bytes.get(length..).is_some_and(|rest| rest.starts_with(b"\r\n")) {
                unit.push(Part::Torn(bytes));
                break;
            }
            unit.push(Part::Data(&bytes[..length]));
            bytes = &bytes[length + 2..];
        }
        if !line.starts_with(b"VALUE ") && !line.starts_with(b"STAT ") {
            units.push(std::mem::take(&mut unit));
        }
    }
    if !unit.is_empty() {
        units.push(unit);
    }
    units
}

/// How many bytes of data follow a line.
fn data_length(line: &[u8]) -> Option<usize> {
    match MetaHead::parse(line) {
        Some(head) => (head.status == MetaStatus::Value).then_some(head.bytes),
        None => ValueHead::parse(line).map(|head| head.bytes),
    }
}

/// The column of the table that a reply belongs to.
pub fn kind(unit: &Unit) -> String {
    let line = match unit[0] {
        Part::Line(line) => String::from_utf8_lossy(line).into_owned(),
        Part::Data(_) | Part::Torn(_) => return "torn".to_string(),
    };
    let first = line.split(' ').next().unwrap_or("");
    match first {
        "VALUE" => {
            let hits = unit.iter().filter(|part| matches!(part, Part::Data(_))).count();
            if hits == 1 { "VALUE".to_string() } else { "VALUE VALUE".to_string() }
        }
        "HD" | "VA" | "EN" | "NF" | "NS" | "EX" => {
            let told = line.split(' ').skip(1).filter(|word| matches!(*word, "W" | "X" | "Z"));
            std::iter::once(first).chain(told).collect::<Vec<_>>().join(" ")
        }
        "ME" | "STAT" | "VERSION" => first.to_string(),
        _ if !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit()) => {
            "number".to_string()
        }
        _ => line,
    }
}

/// Differences that are allowed: `conformance/differences.md` has a paragraph on each of these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allowed {
    CasRenamed,
    SecondTurned,
    LastAccess,
    Version,
    EmptyLine,
    Statistics,
}

impl Allowed {
    pub const ALL: [(Allowed, &str); 6] = [
        (Allowed::CasRenamed, "cas-renamed"),
        (Allowed::SecondTurned, "second-turned"),
        (Allowed::LastAccess, "last-access"),
        (Allowed::Version, "version"),
        (Allowed::EmptyLine, "empty-line"),
        (Allowed::Statistics, "statistics"),
    ];
}

/// Compares replies; remembers which cas of the one server is which of the other.
#[derive(Default)]
pub struct Comparer {
    to_right: HashMap<u64, u64>,
    to_left: HashMap<u64, u64>,
    pub used: BTreeMap<Allowed, u64>,
}

impl Comparer {
    /// `None` when both streams say the same; else the first parts that do not.
    pub fn difference(&mut self, left: &[u8], right: &[u8]) -> Option<String> {
        let (left, right) = (units(left), units(right));
        for (left, right) in left.iter().zip(&right) {
            if is_statistics(left) && is_statistics(right) {
                *self.used.entry(Allowed::Statistics).or_default() += 1;
                continue;
            }
            for at in 0..left.len().max(right.len()) {
                let (left, right) = (left.get(at), right.get(at));
                let same = match (left, right) {
                    (Some(Part::Line(left)), Some(Part::Line(right))) => {
                        self.same_line(left, right)
                    }
                    (left, right) => left == right,
                };
                if !same {
                    return Some(format!("{} against {}", shown(left), shown(right)));
                }
            }
        }
        if left.len() == right.len() {
            return None;
        }
        let at = left.len().min(right.len());
        let first = |units: &[Unit]| units.get(at).map(|unit| shown(unit.first()));
        Some(format!("{:?} against {:?}", first(&left), first(&right)))
    }

    /// memcached ends the error that a `get` earns by a key that is too long with a line of its own.
    pub fn pass_over_empty_lines(&mut self, left: &mut Vec<u8>, right: &mut Vec<u8>) {
        let (short_left, short_right) = (without_empty_lines(left), without_empty_lines(right));
        let count = left.len() - short_left.len();
        if count > 0 {
            *self.used.entry(Allowed::EmptyLine).or_default() += 1;
        }
        // A memcached compared with itself has them on the right too.
        if count == right.len() - short_right.len() {
            *right = short_right;
        }
        *left = short_left;
    }

    fn same_line(&mut self, left: &[u8], right: &[u8]) -> bool {
        let left: Vec<&[u8]> = left.split(|byte| *byte == b' ').collect();
        let right: Vec<&[u8]> = right.split(|byte| *byte == b' ').collect();
        if left[0] == b"VERSION" && right[0] == b"VERSION" {
            *self.used.entry(Allowed::Version).or_default() += u64::from(left != right);
            return true;
        }
        left.len() == right.len()
            && left[0] == right[0]
            && (1..left.len()).all(|at| self.same_word(left[0], at, left[at], right[at]))
    }

    fn same_word(&mut self, reply: &[u8], at: usize, left: &[u8], right: &[u8]) -> bool {
        let name = match reply {
            b"VALUE" if at == 4 => "c",
            b"HD" | b"VA" if left.first() == right.first() => match left.first() {
                Some(b'c') => "c",
                Some(b't') => "t",
                Some(b'l') => "l",
                _ => "",
            },
            b"ME" => {
                let end = left.iter().position(|byte| *byte == b'=').unwrap_or(0);
                match &left[..end] {
                    b"cas" => "cas=",
                    b"exp" => "exp=",
                    b"la" => "la=",
                    _ => "",
                }
            }
            _ => "",
        };
        let number = |word: &[u8]| -> Option<i64> {
            let digits = word.strip_prefix(name.as_bytes()).unwrap_or(word);
            // A cas has up to 64 bits; two's complement keeps them apart.
            let text = std::str::from_utf8(digits).ok()?;
            text.parse().ok().or_else(|| text.parse::<u64>().ok().map(|cas| cas as i64))
        };
        let allowed = match (name, number(left), number(right)) {
            ("", ..) | (_, None, _) | (_, _, None) => return left == right,
            ("c" | "cas=", Some(left), Some(right)) => {
                return self.same_cas(left as u64, right as u64);
            }
            ("t" | "exp=", Some(left), Some(right)) => {
                if left != right && !is_close(left, right) {
                    return false;
                }
                Allowed::SecondTurned
            }
            ("l" | "la=", ..) => Allowed::LastAccess,
            _ => unreachable!("the names above are all"),
        };
        *self.used.entry(allowed).or_default() += u64::from(left != right);
        true
    }

    /// One to one, for the whole run; 0 says that there is none, on both sides.
    pub(super) fn same_cas(&mut self, left: u64, right: u64) -> bool {
        if left == 0 || right == 0 {
            return left == right;
        }
        *self.used.entry(Allowed::CasRenamed).or_default() += u64::from(left != right);
        *self.to_right.entry(left).or_insert(right) == right
            && *self.to_left.entry(right).or_insert(left) == left
    }
}

fn without_empty_lines(replies: &[u8]) -> Vec<u8> {
    const ERROR: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
    let line = [ERROR, b"\r\n"].concat();
    let mut rest = replies;
    let mut kept = Vec::new();
    while let Some(at) = rest.windows(line.len()).position(|window| window == line) {
        kept.extend_from_slice(&rest[..at + ERROR.len()]);
        rest = &rest[at + line.len()..];
    }
    kept.extend_from_slice(rest);
    kept
}

/// The servers' seconds turn at different moments, at the write and at the read. A time that has passed already shows as a number
/// below 2^32 that counts from the start of the process.
fn is_close(left: i64, right: i64) -> bool {
    const PAST: i64 = 1 << 31;
    (left - right).abs() <= 2 || left > PAST && right > PAST
}

fn is_statistics(unit: &Unit) -> bool {
    matches!(unit[0], Part::Line(line) if line.starts_with(b"STAT "))
}

fn shown(part: Option<&Part>) -> String {
    match part {
        None => "nothing".to_string(),
        Some(Part::Line(bytes)) => format!("line {:?}", short(bytes)),
        Some(Part::Data(bytes)) => format!("{} bytes {:?}", bytes.len(), short(bytes)),
        Some(Part::Torn(bytes)) => format!("torn {:?}", short(bytes)),
    }
}

fn short(bytes: &[u8]) -> String {
    crate::script::quoted(&bytes[..bytes.len().min(120)])
}

/// Every cas in a reply, with the key where the reply names it.
pub fn cas_values<'a>(unit: &Unit<'a>) -> Vec<(Option<&'a [u8]>, u64)> {
    let mut found = Vec::new();
    for part in unit {
        let Part::Line(line) = part else { continue };
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let number =
            |word: &[u8]| std::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
        match words[0] {
            b"VALUE" => {
                if let Some(cas) = words.get(4).and_then(|word| number(word)) {
                    found.push((Some(words[1]), cas));
                }
            }
            b"HD" | b"VA" => {
                let cas = words[1..].iter().find_map(|word| number(word.strip_prefix(b"c")?));
                found.extend(cas.filter(|cas| *cas > 0).map(|cas| (None, cas)));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differ(left: &str, right: &str) -> bool {
        Comparer::default().difference(left.as_bytes(), right.as_bytes()).is_some()
    }

    #[test]
    fn a_cas_has_one_name_on_each_side() {
        assert!(!differ("HD c5\r\nHD c5\r\nHD c6\r\n", "HD c17\r\nHD c17\r\nHD c19\r\n"));
        assert!(differ("HD c5\r\nHD c5\r\n", "HD c17\r\nHD c18\r\n"));
        assert!(differ("HD c5\r\nHD c6\r\n", "HD c17\r\nHD c17\r\n"));
        assert!(differ("HD c0\r\n", "HD c17\r\n"));
        assert!(!differ("VALUE c1 0 2 7\r\nc1\r\nEND\r\n", "VALUE c1 0 2 8\r\nc1\r\nEND\r\n"));
    }

    #[test]
    fn values_keys_and_opaque_tokens_are_compared_to_the_byte() {
        assert!(differ("VA 2 Oc1\r\nc1\r\n", "VA 2 Oc1\r\nc2\r\n"));
        assert!(differ("HD Oc1\r\n", "HD Oc2\r\n"));
        assert!(differ("HD kt1\r\n", "HD kt2\r\n"));
        assert!(differ("VALUE a 0 2\r\nc1\r\nEND\r\n", "VALUE a 1 2\r\nc1\r\nEND\r\n"));
        assert!(differ("END\r\n", "END\r\nEND\r\n"));
        assert!(differ("END\r\n", "END\n"));
        assert!(differ("VA 0 W\r\n\r\n", "VA 0 W\r\n \n"));
    }

    #[test]
    fn a_remaining_time_may_differ_by_the_turn_of_a_second() {
        assert!(!differ("HD t100\r\n", "HD t99\r\n"));
        assert!(differ("HD t100\r\n", "HD t97\r\n"));
        assert!(differ("HD t-1\r\n", "HD t100\r\n"));
        assert!(!differ("ME a exp=100\r\n", "ME a exp=99\r\n"));
        assert!(differ("ME a exp=100\r\n", "ME a exp=-1\r\n"));
        assert!(differ("ME a exp=-100\r\n", "ME a exp=100\r\n"));
    }

    #[test]
    fn the_empty_line_behind_an_error_is_passed_over_on_the_left_alone() {
        let [with, without] = [
            "MN\r\nCLIENT_ERROR bad command line format\r\n\r\nEND\r\n",
            "MN\r\nCLIENT_ERROR bad command line format\r\nEND\r\n",
        ];
        let passed = |left: &str, right: &str| {
            let (mut left, mut right) = (left.as_bytes().to_vec(), right.as_bytes().to_vec());
            Comparer::default().pass_over_empty_lines(&mut left, &mut right);
            left == right
        };
        assert!(passed(with, without));
        assert!(passed(with, with));
        assert!(passed(without, without));
        assert!(!passed(without, with));
        assert!(!passed(&with.repeat(2), with));
    }

    #[test]
    fn a_reply_ends_where_its_length_says() {
        let stream = b"VALUE a 0 5\r\nEND\r\n\r\nEND\r\nVA 4 s4\r\n\r\n\r\n\r\nHD W\r\n12\r\n";
        let kinds: Vec<String> = units(stream).iter().map(kind).collect();
        assert_eq!(kinds, ["VALUE", "VA", "HD W", "number"]);
    }
}
