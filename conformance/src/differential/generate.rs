//! Makes epochs: few keys, so that states are interesting; valid commands and broken ones.

mod administration;
mod broken;
mod meta;

use super::command::{Batch, Command, End, Piece};
use super::random::Random;

/// A key in both of its spellings.
pub struct Key {
    /// As text commands name it; `None` where no text command can.
    pub text: Option<&'static str>,
    pub bytes: &'static [u8],
    pub base64: &'static str,
}

const fn key(text: &'static str, base64: &'static str) -> Key {
    Key { text: Some(text), bytes: text.as_bytes(), base64 }
}

/// As long as a key may be.
const LONGEST: [u8; 250] = [b'k'; 250];

pub const KEYS: [Key; 9] = [
    key("a", "YQ=="),
    key("b", "Yg=="),
    key("foo", "Zm9v"),
    key("key:two", "a2V5OnR3bw=="),
    key("n1", "bjE="),
    key("n2", "bjI="),
    key("noreply", "bm9yZXBseQ=="),
    key("\u{e4}\t\u{ff}", "w6QJw78="),
    Key { text: None, bytes: b" \0\xff\x01", base64: "IAD/AQ==" },
];

/// The number of the key that a reply names.
pub fn key_number(bytes: &[u8]) -> Option<usize> {
    KEYS.iter().position(|key| key.bytes == bytes)
}

/// Times that mean the same however long an epoch takes, also when a broken line loses some digits.
const EXPTIMES: [&str; 10] =
    ["0", "0", "0", "88888", "99999", "2147483647", "-1", "1000000000", "2592000", "-99"];
/// Longer than an epoch takes.
const SOON_S: i64 = 600;
const BAD_NUMBERS: [&str; 12] = [
    "x",
    "-1",
    "1x",
    "99999999999999999999",
    "0x10",
    "1.5",
    "",
    "+",
    "-",
    "18446744073709551616",
    "1e3",
    "--1",
];
const ODD_NUMBERS: [&str; 12] = [
    "+9",
    "009",
    "\t9",
    "4294967295",
    "4294967296",
    "4294967305",
    "9\t",
    "9\0x",
    "00000000009",
    "000000000009",
    "0000000000000000000009",
    "00000000000000000000009",
];
/// What a wrong size leaves over is read as a line, and a long line's meaning depends on how it arrives.
const TORN_BYTES_MAX: usize = 1500;
/// Numbers that stand above any cas that either server gives, so that what is lower is so on both.
const CHOSEN_CAS: [&str; 4] =
    ["9223372036854775809", "13835058055282163712", "18446744073709551615", "0"];
const NUMBERS: [&str; 8] =
    ["0", "1", "7", "10", "99", "18446744073709551615", "9223372036854775808", "1000000"];

/// The words behind a meta command's key, each with the blank before it.
type Flags = Vec<Vec<Piece>>;

pub struct Generator {
    random: Random,
    /// Rows of administration that are left out.
    without: Vec<String>,
    /// The key that was marked stale last: those who find one so are worth watching.
    stale: Option<usize>,
}

/// A batch's line that must come whole and first, since how it arrives decides what it means.
enum Shape {
    Ordinary,
    LongLine,
    Ends,
}

impl Generator {
    pub fn new(seed: u64, without: &[String]) -> Generator {
        Generator { random: Random::new(seed), without: without.to_vec(), stale: None }
    }

    /// About `commands` commands.
    pub fn epoch(&mut self, commands: usize) -> Vec<Batch> {
        let mut batches = Vec::new();
        let mut left = commands;
        while left > 0 {
            let batch = self.batch(left);
            left -= batch.commands.len().min(left);
            batches.push(batch);
        }
        batches
    }

    fn batch(&mut self, most: usize) -> Batch {
        let conn = self.random.below(4);
        let shape = match self.random.below(100) {
            0..3 => Shape::LongLine,
            3..11 => Shape::Ends,
            _ => Shape::Ordinary,
        };
        if let Shape::LongLine = shape {
            let (command, end) = self.long_line();
            return Batch { conn, commands: vec![command], cuts: vec![], held: 0, end };
        }
        let length = match self.random.below(10) {
            0..3 => 1,
            3..6 => 1 + self.random.below(5),
            6..9 => 1 + self.random.below(20),
            _ => 1 + self.random.below(80),
        };
        let mut commands: Vec<Command> = (0..length.min(most)).map(|_| self.command()).collect();
        let mut end = End::Sync;
        if let Shape::Ends = shape {
            let (command, how) = self.ending();
            commands.push(command);
            end = how;
        }
        let bytes: usize = commands.iter().enumerate().map(|(at, command)| size(command, at)).sum();
        let cuts = self.cuts(bytes);
        let held = if self.random.percent(8) { self.hold(&commands[0]) } else { 0 };
        Batch { conn, commands, cuts, held, end }
    }

    fn cuts(&mut self, bytes: usize) -> Vec<usize> {
        let mut cuts: Vec<usize> = match self.random.below(100) {
            0..50 => Vec::new(),
            50..90 => (0..1 + self.random.below(4)).map(|_| self.random.below(bytes)).collect(),
            90..94 if bytes < 200 => (1..bytes).collect(),
            _ => (0..1 + self.random.below(30)).map(|_| self.random.below(bytes)).collect(),
        };
        cuts.sort_unstable();
        cuts.dedup();
        cuts.retain(|cut| *cut > 0);
        cuts
    }

    /// A place inside the first command, where nothing of it has been done yet.
    fn hold(&mut self, first: &Command) -> usize {
        let [Piece::Bytes(bytes), ..] = first.pieces.as_slice() else { return 0 };
        let line = bytes.windows(2).position(|pair| pair == b"\r\n").unwrap_or(0);
        if first.is_fenced || line < 2 { 0 } else { 1 + self.random.below(line - 1) }
    }

    fn command(&mut self) -> Command {
        let command = match self.random.below(100) {
            0..19 => self.storage(),
            19..30 => self.fetch(),
            30..38 => self.arithmetic(),
            38..42 => self.delete(),
            42..47 => self.touch(),
            47..64 => self.meta_get(),
            64..72 => self.meta_set(),
            72..79 => self.meta_delete(),
            79..86 => self.meta_arithmetic(),
            86..98 => self.administration(),
            _ => self.junk(),
        };
        let is_left_out = self.without.iter().any(|row| row == command.row);
        let command = if is_left_out { self.meta_get() } else { command };
        if self.random.percent(6) { self.broken(command) } else { command }
    }

    fn key(&mut self) -> usize {
        self.random.below(KEYS.len() - 1)
    }

    /// A key for a text command: a known one or, seldom, one that is too long or just fits.
    fn key_text(&mut self, key: usize) -> String {
        match self.random.below(60) {
            0..3 => "k".repeat(251 + self.random.below(50)),
            3 => String::from_utf8_lossy(&LONGEST).into_owned(),
            _ => KEYS[key].text.expect("key() leaves out those without").to_string(),
        }
    }

    fn number(&mut self) -> String {
        match self.random.below(20) {
            0 | 1 => self.random.pick(&BAD_NUMBERS).to_string(),
            2 => self.random.pick(&ODD_NUMBERS).to_string(),
            _ => self.random.pick(&NUMBERS).to_string(),
        }
    }

    fn exptime(&mut self) -> String {
        match self.random.below(24) {
            0 | 1 => self.random.pick(&BAD_NUMBERS).to_string(),
            _ => self.random.pick(&EXPTIMES).to_string(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.random.below(400) {
            0..140 => self.random.pick(&NUMBERS).as_bytes().to_vec(),
            140..160 => Vec::new(),
            160..170 => b" 7 ".to_vec(),
            170..180 => b"184467440737095516150".to_vec(),
            180..200 => b"a\r\nb\0\xff\n".to_vec(),
            200..300 => vec![b'v'; self.random.below(40)],
            300..390 => vec![b'w'; self.random.below(2000)],
            390..399 => vec![b'x'; self.random.below(20_000)],
            _ => vec![b'y'; 500_000 + self.random.below(100_000)],
        }
    }

    fn storage(&mut self) -> Command {
        const NAMES: [&str; 7] = ["set", "add", "replace", "append", "prepend", "cas", "cas"];
        let row = if self.random.percent(5) { "set" } else { *self.random.pick(&NAMES) };
        let key = self.key();
        if self.random.percent(40) {
            self.doubtful_storage(row, key)
        } else {
            self.good_storage(row, key)
        }
    }

    /// A line without fault; the value may have any size.
    fn good_storage(&mut self, row: &'static str, key: usize) -> Command {
        let text = KEYS[key].text.expect("key() leaves out those without");
        let flags = self.random.pick(&["0", "0", "7", "4294967295"]);
        let exptime = self.random.pick(&EXPTIMES);
        let value = if self.random.below(1000) < 90 { vec![b'z'; 1_048_577] } else { self.value() };
        let mut pieces = vec![Piece::Bytes(
            format!("{row} {text} {flags} {exptime} {}", value.len()).into_bytes(),
        )];
        if row == "cas" {
            let back = usize::from(self.random.percent(10));
            pieces.extend([Piece::Bytes(b" ".to_vec()), Piece::Cas { key, back }]);
        }
        let noreply = self.random.percent(15);
        let end: &[u8] = if noreply { b" noreply\r\n" } else { b"\r\n" };
        pieces.push(Piece::Bytes([end, &value, b"\r\n"].concat()));
        Command {
            row,
            key: Some(key),
            pieces,
            is_marked: noreply,
            is_filled: false,
            is_fenced: false,
        }
    }

    /// Key, numbers and size may be wrong. The value is short: where the line is refused it is read
    /// as commands.
    fn doubtful_storage(&mut self, row: &'static str, key: usize) -> Command {
        let mut value = self.value();
        value.truncate(TORN_BYTES_MAX);
        let declared = if self.random.percent(40) {
            self.wrong_size(value.len())
        } else {
            value.len().to_string()
        };
        let flags = if self.random.percent(70) { "0".to_string() } else { self.number() };
        let head = format!("{row} {} {flags} {} {declared}", self.key_text(key), self.exptime());
        let named = named(&head, key);
        // Where a word is missing, the cas is read as the value's length.
        let is_whole = head.split(' ').all(|word| !word.is_empty());
        let mut pieces = vec![Piece::Bytes(head.into_bytes())];
        if row == "cas" {
            let cas = if is_whole { self.cas(key) } else { Piece::Bytes(b"1".to_vec()) };
            pieces.extend([Piece::Bytes(b" ".to_vec()), cas]);
        }
        if self.random.percent(10) {
            pieces.push(Piece::Bytes(b" noreply".to_vec()));
        }
        value.splice(0..0, *b"\r\n");
        if self.random.percent(85) {
            value.extend_from_slice(b"\r\n");
        }
        pieces.push(Piece::Bytes(value));
        Command { row, key: named, pieces, is_marked: true, is_filled: true, is_fenced: false }
    }

    /// What a line may say of a block of `length` bytes that is not so.
    fn wrong_size(&mut self, length: usize) -> String {
        match self.random.below(7) {
            0 | 1 => (length + 1 + self.random.below(20)).to_string(),
            2 | 3 => self.random.below(length + 1).to_string(),
            4 => self.random.pick(&BAD_NUMBERS).to_string(),
            5 => format!("+0{length}"),
            _ => "2147483646".to_string(),
        }
    }

    /// A cas that was seen for this key, mostly; never a number that only one server might reach.
    fn cas(&mut self, key: usize) -> Piece {
        match self.random.below(20) {
            0 => Piece::Bytes(b"0".to_vec()),
            1 => Piece::Bytes(self.random.pick(&BAD_NUMBERS).as_bytes().to_vec()),
            2 => Piece::Bytes(b"18446744073709551615".to_vec()),
            3..8 => Piece::Cas { key, back: 1 + self.random.below(3) },
            8 => Piece::Cas { key: self.key(), back: 0 },
            _ => Piece::Cas { key, back: 0 },
        }
    }

    fn fetch(&mut self) -> Command {
        const NAMES: [&str; 5] = ["get", "gets", "gat", "gats", "gets"];
        let row = *self.random.pick(&NAMES);
        let mut line = row.to_string();
        if row.starts_with("gat") && self.random.percent(12) {
            let pieces = vec![Piece::Bytes(format!("{row}\r\n").into_bytes())];
            return Command {
                row,
                key: None,
                pieces,
                is_marked: false,
                is_filled: false,
                is_fenced: false,
            };
        }
        if row.starts_with("gat") {
            line.push_str(&format!(" {}", self.exptime()));
        }
        let keys = match self.random.below(20) {
            0 | 1 => 0,
            2..12 => 1,
            12..17 => 1 + self.random.below(6),
            17..19 => 20 + self.random.below(10),
            _ => 60,
        };
        let mut fenced = false;
        let first_key = line.len();
        for _ in 0..keys {
            let key = self.key();
            let text = self.key_text(key);
            // A key that is too long comes first: memcached looks at those before it, MBal at none.
            if text.len() >= 250 {
                fenced = true;
                line.truncate(first_key);
            }
            line.push_str(&format!(" {text}"));
        }
        let key = None;
        // A long line must not be torn by the end of memcached's buffer; only get and gets may have one.
        let mut line = line.into_bytes();
        if line.len() > 1800 {
            line.truncate(1800);
            fenced = true;
        }
        if fenced {
            // What memcached says of a key that is too long to one who wants no answer, is half of one.
            let quiet = b" noreply";
            while let Some(at) = line.windows(quiet.len()).position(|words| words == quiet) {
                line.drain(at..at + quiet.len());
            }
        }
        line.extend_from_slice(if self.random.percent(5) { b"\n" } else { b"\r\n" });
        let pieces = vec![Piece::Bytes(line)];
        Command { row, key, pieces, is_marked: false, is_filled: false, is_fenced: fenced }
    }

    fn simple(&mut self, row: &'static str, key: Option<usize>, mut line: String) -> Command {
        let noreply = self.random.percent(20);
        if noreply {
            line.push_str(" noreply");
        }
        let marked = noreply || line.contains("noreply");
        line.push_str("\r\n");
        let pieces = vec![Piece::Bytes(line.into_bytes())];
        Command { row, key, pieces, is_marked: marked, is_filled: false, is_fenced: false }
    }

    fn arithmetic(&mut self) -> Command {
        let row = *self.random.pick(&["incr", "decr"]);
        let key = self.key();
        let line = format!("{row} {} {}", self.key_text(key), self.number());
        let command = self.simple(row, Some(key), line);
        // How a shorter number is stored depends on whether a reply still holds the item.
        Command { is_fenced: true, ..command }
    }

    fn delete(&mut self) -> Command {
        let key = self.key();
        let mut line = format!("delete {}", self.key_text(key));
        match self.random.below(10) {
            0 => line.push_str(" 0"),
            1 => line.push_str(&format!(" {}", self.number())),
            _ => {}
        }
        self.simple("delete", Some(key), line)
    }

    fn touch(&mut self) -> Command {
        let key = self.key();
        let line = format!("touch {} {}", self.key_text(key), self.exptime());
        self.simple("touch", Some(key), line)
    }
}

fn line_of(row: &'static str, line: &str, is_marked: bool) -> Command {
    let pieces = vec![Piece::Bytes(line.as_bytes().to_vec())];
    Command { row, key: None, pieces, is_marked, is_filled: false, is_fenced: false }
}

fn size(command: &Command, at: usize) -> usize {
    command
        .pieces(at)
        .iter()
        .map(|piece| match piece {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Cas { .. } => 4,
        })
        .sum()
}

/// `key`, if it is the one that the line names.
fn named(line: &str, key: usize) -> Option<usize> {
    let word = line.split(' ').nth(1);
    (word == KEYS[key].text || word == Some(KEYS[key].base64)).then_some(key)
}

fn closing(row: &'static str, line: &str) -> Command {
    Command { is_fenced: true, ..line_of(row, line, false) }
}

/// True for a flag that makes memcached read the value behind the line as lines.
fn makes_no_command(flag: &[Piece]) -> bool {
    matches!(flag, [Piece::Bytes(word), ..]
        if word.windows(2).any(|pair| pair[0] == b' ' && !matches!(pair[1], b'A'..=b'z' | b'0'..=b'9')))
}

fn is_of(flag: &[Piece], letter: u8) -> bool {
    matches!(flag, [Piece::Bytes(word), ..] if word.starts_with(&[b' ', letter]))
}

fn flag(word: &str) -> Vec<Piece> {
    vec![Piece::Bytes(word.as_bytes().to_vec())]
}

/// True if a line names a time that may end while an epoch lasts.
fn ends_soon(line: &[u8]) -> bool {
    let words: Vec<&[u8]> =
        line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
    let is_soon = |word: &[u8]| {
        // As memcached reads it: up to a blank or a zero.
        let number =
            word.trim_ascii().split(|byte| byte.is_ascii_whitespace() || *byte == 0).next();
        let number =
            number.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<i64>().ok());
        number.is_some_and(|seconds| (1..=SOON_S).contains(&seconds))
    };
    match words[..] {
        [b"gat" | b"gats", time, ..] | [b"touch", _, time, ..] => is_soon(time),
        [b"mg" | b"ms" | b"md" | b"ma", _, ref flags @ ..] => {
            flags.iter().any(|flag| matches!(flag, [b'T' | b'N', time @ ..] if is_soon(time)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_ends_while_an_epoch_lasts() {
        for seed in 0..60 {
            for batch in Generator::new(seed, &[]).epoch(1000) {
                for command in &batch.commands {
                    let sent: Vec<u8> = command
                        .pieces
                        .iter()
                        .flat_map(|piece| match piece {
                            Piece::Bytes(bytes) => bytes.clone(),
                            Piece::Cas { .. } => b"1".to_vec(),
                        })
                        .collect();
                    let line = sent.split(|byte| *byte == b'\n').next().unwrap_or(&[]);
                    assert!(!ends_soon(line), "seed {seed}: {}", crate::script::quoted(line));
                }
            }
        }
    }

    #[test]
    fn a_time_is_read_as_memcached_reads_it() {
        for soon in ["touch a 1\r", "gat 8 8888 a", "gats  +9 a", "mg a T1\t0 v", "ma a N7\x00"] {
            assert!(ends_soon(soon.as_bytes()), "{soon:?}");
        }
        for late in
            ["touch a 88888", "gat -1 5", "mg a R5 T0", "mg a 5 T1x", "set a 0 5 7", "incr a 5"]
        {
            assert!(!ends_soon(late.as_bytes()), "{late:?}");
        }
    }
}
