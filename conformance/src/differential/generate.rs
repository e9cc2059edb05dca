//! Makes epochs: few keys, so that states are interesting; valid commands and broken ones.

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

    fn meta_key(&mut self, flags: &mut Flags) -> (usize, String) {
        match self.random.below(20) {
            0..4 => {
                let key = self.random.below(KEYS.len());
                flags.push(flag(" b"));
                (key, KEYS[key].base64.to_string())
            }
            4 => {
                flags.push(flag(" b"));
                (0, self.random.pick(&["!!!!", "Zm=v", "====", "Zm9v!!!!"]).to_string())
            }
            _ => {
                let key = self.key();
                (key, self.key_text(key))
            }
        }
    }

    /// Flags that any meta command takes.
    fn common_flags(&mut self, flags: &mut Flags, known: &str) {
        for name in known.chars() {
            if self.random.percent(25) {
                let mut word = format!(" {name}");
                if name == 'O' {
                    let length =
                        if self.random.percent(28) { 29 + self.random.below(6) } else { 3 };
                    word.push_str(&"o".repeat(length));
                }
                flags.push(flag(&word));
            }
        }
        match self.random.below(50) {
            0 => flags.push(flag(self.random.pick::<&str>(&[" !", " {", " @", " 7", " _", " S3"]))),
            1 => flags.extend(flags.last().cloned()),
            2 => flags.push(flag(" Pproxy Lpath")),
            3 => flags.push(vec![Piece::Bytes(b" \xe4".to_vec())]),
            4 => flags.push(flag(" b c f h k l O P L q s t u v N88888 R99 T99999 I")),
            _ => {}
        }
    }

    fn number_flag(&mut self, flags: &mut Flags, name: char, number: String) {
        flags.push(vec![Piece::Bytes(format!(" {name}{number}").into_bytes())]);
    }

    /// A cas for the item, from those that mean the same on both servers.
    fn chosen_cas(&mut self, flags: &mut Flags) {
        if self.random.percent(12) {
            let number = match self.random.below(10) {
                0 => self.random.pick(&BAD_NUMBERS).to_string(),
                _ => self.random.pick(&CHOSEN_CAS).to_string(),
            };
            self.number_flag(flags, 'E', number);
        }
    }

    fn meta(
        &mut self,
        row: &'static str,
        key: usize,
        head: String,
        mut flags: Flags,
        quiet_percent: usize,
    ) -> Command {
        if self.random.percent(30) && flags.len() > 1 {
            let at = self.random.below(flags.len());
            flags.rotate_left(at);
        }
        let quiet = self.random.percent(quiet_percent);
        if quiet {
            flags.push(flag(" q"));
        }
        let key = named(&head, key);
        let mut pieces = vec![Piece::Bytes(head.into_bytes())];
        pieces.extend(flags.into_iter().flatten());
        pieces.push(Piece::Bytes(b"\r\n".to_vec()));
        let has_quiet = pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Bytes(b) if b.windows(2).any(|w| w == b" q")));
        Command {
            row,
            key,
            pieces,
            is_marked: quiet || has_quiet,
            is_filled: false,
            is_fenced: false,
        }
    }

    fn meta_get(&mut self) -> Command {
        match self.random.below(40) {
            0 | 1 => return line_of("mn", "mn\r\n", false),
            2..6 => {
                let mut flags = Vec::new();
                let (key, text) = self.meta_key(&mut flags);
                if self.random.percent(50) {
                    flags.push(flag(self.random.pick::<&str>(&[" v", " x1", " 7", " !"])));
                }
                return self.meta("me", key, format!("me {text}"), flags, 0);
            }
            6 => return line_of("mg", self.random.pick::<&str>(&["mg\r\n", "mg \r\n"]), false),
            _ => {}
        }
        let mut flags = Vec::new();
        let stale = self.stale.filter(|_| self.random.percent(40));
        let named = stale.and_then(|key| Some((key, KEYS[key].text?.to_string())));
        let (key, text) = named.unwrap_or_else(|| self.meta_key(&mut flags));
        self.common_flags(&mut flags, "cfhklOstuvv");
        if self.random.percent(15) {
            let cas = self.cas(key);
            flags.push(vec![Piece::Bytes(b" C".to_vec()), cas]);
        }
        self.chosen_cas(&mut flags);
        if self.random.percent(22) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'N', ttl);
        }
        if self.random.percent(22) {
            let ttl = (*self.random.pick(&["77777", "95000", "0", "x", "99"])).to_string();
            self.number_flag(&mut flags, 'R', ttl);
        }
        if self.random.percent(12) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'T', ttl);
        }
        self.meta("mg", key, format!("mg {text}"), flags, 20)
    }

    fn meta_set(&mut self) -> Command {
        let mut flags = Vec::new();
        let (key, text) = self.meta_key(&mut flags);
        let is_named = named(&format!("ms {text}"), key).is_some();
        self.common_flags(&mut flags, "ckOs");
        self.chosen_cas(&mut flags);
        if self.random.percent(20) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'N', ttl);
        }
        if self.random.percent(35) {
            let is_lower = self.random.percent(40);
            // Which of two keys' cas values is lower is no question to ask.
            let cas = match self.cas(key) {
                Piece::Cas { back, .. } if is_lower && is_named => Piece::Cas { key, back },
                Piece::Cas { .. } if is_lower => Piece::Bytes(b"1".to_vec()),
                cas => cas,
            };
            flags.push(vec![Piece::Bytes(b" C".to_vec()), cas]);
            if is_lower {
                flags.push(flag(" I"));
            }
        }
        if self.random.percent(15) {
            let number = self.number();
            self.number_flag(&mut flags, 'F', number);
        }
        if self.random.percent(25) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'T', ttl);
        }
        if self.random.percent(45) {
            let mode = self
                .random
                .pick(&["E", "A", "P", "R", "S", "E", "A", "P", "R", "e", "", "SS", "set", "\0"]);
            self.number_flag(&mut flags, 'M', (*mode).to_string());
        }
        let value = match self.random.below(1000) {
            _ if text.len() > 250
                || flags.len() > 12
                || flags.iter().any(|f| makes_no_command(f)) =>
            {
                vec![b'm'; 9]
            }
            0..22 => vec![b'z'; 1_048_577],
            _ => self.value(),
        };
        self.meta_set_of(key, &text, flags, value)
    }

    fn meta_set_of(&mut self, key: usize, text: &str, flags: Flags, mut value: Vec<u8>) -> Command {
        let is_long =
            flags.iter().flatten().any(|piece| matches!(piece, Piece::Bytes(b) if b.len() > 20));
        if is_long {
            value.truncate(TORN_BYTES_MAX);
        }
        let is_wrong = value.len() < TORN_BYTES_MAX && self.random.percent(15);
        let declared =
            if is_wrong { self.wrong_size(value.len()) } else { value.len().to_string() };
        let mut command = self.meta("ms", key, format!("ms {text} {declared}"), flags, 20);
        value.extend_from_slice(b"\r\n");
        command.pieces.push(Piece::Bytes(value));
        command.is_marked = true;
        command.is_filled = is_wrong;
        command
    }

    fn meta_delete(&mut self) -> Command {
        let mut flags = Vec::new();
        let (key, text) = self.meta_key(&mut flags);
        self.common_flags(&mut flags, "kO");
        self.chosen_cas(&mut flags);
        if self.random.percent(25) {
            flags.push(flag(" x"));
            if self.random.percent(30) {
                let number = self.number();
                self.number_flag(&mut flags, 'F', number);
            }
        }
        if self.random.percent(30) {
            let cas = self.cas(key);
            flags.push(vec![Piece::Bytes(b" C".to_vec()), cas]);
        }
        if self.random.percent(85) {
            flags.push(flag(" I"));
            if self.random.percent(2) {
                flags.push(flag(" I"));
            }
            self.stale = Some(key);
        }
        if self.random.percent(35) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'T', ttl);
        }
        if self.random.percent(4) {
            return line_of("md", "md\r\n", false);
        }
        let head = format!("md {text}");
        self.meta("md", key, head, flags, 20)
    }

    fn meta_arithmetic(&mut self) -> Command {
        let mut flags = Vec::new();
        let (key, text) = self.meta_key(&mut flags);
        self.common_flags(&mut flags, "ctvkO");
        self.chosen_cas(&mut flags);
        if self.random.percent(30) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'N', ttl);
        }
        if self.random.percent(20) {
            let number = self.number();
            self.number_flag(&mut flags, 'J', number);
        }
        if self.random.percent(30) {
            let number = self.number();
            self.number_flag(&mut flags, 'D', number);
        }
        if self.random.percent(12) {
            let ttl = self.exptime();
            self.number_flag(&mut flags, 'T', ttl);
        }
        if self.random.percent(30) {
            let mode = self.random.pick(&["I", "D", "+", "-", "I", "D", "x", "II"]);
            self.number_flag(&mut flags, 'M', (*mode).to_string());
        }
        if self.random.percent(30) {
            let cas = self.cas(key);
            flags.push(vec![Piece::Bytes(b" C".to_vec()), cas]);
        }
        if self.random.percent(3) {
            return line_of("ma", "ma\r\n", false);
        }
        let head = format!("ma {text}");
        let command = self.meta("ma", key, head, flags, 30);
        Command { is_fenced: true, ..command }
    }

    fn administration(&mut self) -> Command {
        let choices: &[(&'static str, &[&str])] = &[
            ("version", &["version", "version x"]),
            (
                "verbosity",
                &[
                    "verbosity 0",
                    " verbosity 1",
                    "verbosity",
                    "verbosity x",
                    "verbosity +1",
                    "verbosity 1 2 3",
                ],
            ),
            (
                "flush_all",
                &["flush_all", "flush_all 0", "flush_all -1", "flush_all x", "flush_all 0 1 2"],
            ),
            (
                "stats",
                &[
                    "stats",
                    "stats settings",
                    "stats reset",
                    "stats nonsense",
                    "stats detail on",
                    "stats detail off",
                    "stats detail",
                    "stats detail x",
                    "stats cachedump",
                    "stats cachedump 1",
                    "stats cachedump x 1",
                    "stats cachedump 1 x",
                    "stats cachedump 64 1",
                    "stats cachedump 99 1",
                    "stats r",
                    "stats det of",
                    "stats detail ox",
                    "stats se",
                    "stats settingss",
                    "stats sizes_enable",
                    "stats extstore",
                    " stats",
                ],
            ),
            (
                "slabs",
                &[
                    "slabs",
                    "slabs automove 0",
                    "slabs automove 1",
                    "slabs automove 9",
                    "slabs automove x",
                    "slabs reassign x y",
                    "slabs automove ratio 0.8",
                    "slabs automove ratio x",
                    "slabs automove freeratio 0.01",
                    "slabs automove f x",
                    "slabs automove window 10",
                    "slabs automove window 2",
                    "slabs automove window 1",
                    "slabs automove w",
                    "slabs a r 0.8",
                    "slabs r 1 2",
                    "slabs x",
                ],
            ),
            (
                "lru",
                &[
                    "lru",
                    "lru tune 10 25 0.1 2.0",
                    "lru tune 50 40 0.1 2.0",
                    "lru tune 10 25 0 2.0",
                    "lru tune x 1 1 1",
                    "lru t 10 25 0.1 2.0 more",
                    "lru tune 10 25 0.1 2.000000000000000000000000000000000",
                    "lru x",
                ],
            ),
            (
                "lru_crawler",
                &[
                    "lru_crawler",
                    "lru_crawler x",
                    "lru_crawler tocrawl 0",
                    "lru_crawler tocrawl x",
                    "lru_crawler sleep 100",
                    "lru_crawler sleep 1000001",
                    "lru_crawler sleep 4294967295",
                    "lru_crawler sleep x",
                    "lru_crawler crawl",
                    "lru_crawler s 100",
                    "lru_crawler sleep\0x 100",
                    "lru_crawler sl\0x 100",
                    "lru_crawler sleep 100 200",
                    "lru_crawler crawl nonsense",
                    "lru_crawler crawl x,1",
                ],
            ),
            (
                "cache_memlimit",
                &[
                    "cache_memlimit",
                    "cache_memlimit 256",
                    "cache_memlimit 300",
                    "cache_memlimit x",
                    "cache_memlimit 7",
                    "cache_memlimit 1000000001",
                    "cache_memlimit 1 2 3",
                ],
            ),
            (
                "shutdown",
                &["shutdown", "shutdown graceful", "shutdown x", "shutdown 1 2 3", " shutdown"],
            ),
        ];
        let (row, lines) = *self.random.pick(choices);
        if self.without.iter().any(|without| without == row) {
            return self.meta_get();
        }
        let line = *self.random.pick(lines);
        if row == "flush_all" && !line.contains(['x', '2']) && self.random.percent(50) {
            // Rare enough that items live between.
            return self.fetch();
        }
        let takes_noreply = !matches!(row, "version" | "stats");
        if takes_noreply {
            return self.simple(row, None, line.to_string());
        }
        line_of(row, &format!("{line}\r\n"), false)
    }

    fn junk(&mut self) -> Command {
        let line = match self.random.below(16) {
            0 => "hello world".to_string(),
            1 => String::new(),
            2 => " ".repeat(self.random.below(9)),
            3 => "GET a".to_string(),
            4 => "x".to_string(),
            5 => "mz a".to_string(),
            6 => (*self.random.pick(&["gett a", "sett a 0 0 1", "incrr a 1", "touchy", "lruu"]))
                .to_string(),
            7 => "debugtime 1".to_string(),
            8 => (*self.random.pick(&[
                "set",
                "add a",
                "cas a 0 0 1",
                "incr",
                "incr n1",
                "decr",
                "touch",
                "touch a",
                "delete",
                "replace",
                "append a 0",
                "prepend",
                "delete a 0 1 2",
            ]))
            .to_string(),
            9 => "a b c d e f g h i j k l m n o p q r s t u v w x y z".to_string(),
            10 => "\u{1}\u{2}\u{7f}\u{e4}".to_string(),
            11 => (*self.random.pick(&["hello noreply", "bget a", "noreply", " get a", "get\ta"]))
                .to_string(),
            12 => (*self.random.pick(&["get a\0b", "set a\0b 0 0 0\r\n", "mg a\0b v", "\0\0\0\0"]))
                .to_string(),
            13 => (*self.random.pick(&["\n", "x\n", "mn\n", "mn\nabc", "abc", "mn x", "mnx"]))
                .to_string(),
            14 => (*self.random.pick(&["get noreply", "delete noreply", "touch noreply noreply"]))
                .to_string(),
            _ => "ms\r\nms a\r\nms a x".to_string(),
        };
        let row = match line.split(' ').next().unwrap_or("") {
            "set" => "set",
            "add" => "add",
            "cas" => "cas",
            "incr" => "incr",
            "decr" => "decr",
            "touch" => "touch",
            "delete" => "delete",
            "replace" => "replace",
            "append" => "append",
            "prepend" => "prepend",
            "ms\r\nms" => "ms",
            _ => "unknown",
        };
        line_of(row, &format!("{line}\r\n"), true)
    }

    /// Damages a good command's line.
    fn broken(&mut self, mut command: Command) -> Command {
        if command.row == "flush_all" || command.row == "cache_memlimit" || command.row == "slabs" {
            return command;
        }
        // What is in a class is compared by scripts.
        if matches!(&command.pieces[..], [Piece::Bytes(line)] if line.starts_with(b"stats cachedump"))
        {
            return command;
        }
        // Damaged base64 makes memcached read on behind it.
        if command.pieces.contains(&flag(" b")[0]) {
            return command;
        }
        // Without its size, an `ms` may find one in a flag.
        if command.row == "ms"
            && command.pieces.iter().any(|piece| is_of(std::slice::from_ref(piece), b'E'))
        {
            return command;
        }
        let (row, length) = (command.row, size(&command, 0));
        let whole = command.clone();
        let Some(Piece::Bytes(bytes)) = command.pieces.first_mut() else { return command };
        let line = bytes.windows(2).position(|pair| pair == b"\r\n").unwrap_or(bytes.len());
        if line < 2 || length > TORN_BYTES_MAX {
            return command;
        }
        // A size that falls apart asks for more than the no-ops behind the command can fill.
        let has_block =
            matches!(row, "set" | "add" | "replace" | "append" | "prepend" | "cas" | "ms");
        let damage: &[u8] = if has_block { b"\0\xffx\t" } else { b"\0\xffx -+\t" };
        let blanks = (0..line).filter(|at| bytes[*at] == b' ');
        let end = if has_block { blanks.take(2).last().unwrap_or(line) } else { line };
        let at = self.random.below(end.max(1));
        match self.random.below(7) {
            0 => bytes[at] = *self.random.pick(damage),
            1 => {
                bytes.remove(at);
            }
            2 => bytes.insert(at, *self.random.pick(damage)),
            3 if !has_block => {
                let blanks = self.random.below(5);
                bytes.splice(at..at, std::iter::repeat_n(b' ', blanks));
            }
            4 => bytes.splice(line..line, b" 7".iter().copied()).for_each(drop),
            5 => bytes
                .splice(line..line, b" 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2".iter().copied())
                .for_each(drop),
            _ => {
                let last = bytes[..line].iter().rposition(|byte| *byte == b' ').unwrap_or(line);
                bytes.drain(last..line);
            }
        }
        if ends_soon(bytes.split(|byte| *byte == b'\n').next().unwrap_or(bytes)) {
            return whole;
        }
        // It may name another key now, and a cas may have become one.
        command.key = None;
        for piece in &mut command.pieces {
            if let Piece::Cas { .. } = piece {
                *piece = Piece::Bytes(b"1".to_vec());
            }
        }
        command.is_marked = true;
        command.is_filled = true;
        command.is_fenced = true;
        command
    }

    /// A line over the limit of 2,048 bytes, with an end and without.
    fn long_line(&mut self) -> (Command, End) {
        let length = 2049 + self.random.below(3000);
        let unfinished = *self.random.pick(&["x", "set ", "mg ", " get ", "gat 0 ", "gets"]);
        match self.random.below(5) {
            0 | 1 => {
                let line = format!("{unfinished}{}", "k".repeat(length));
                (line_of("long line", &line, false), End::Closed)
            }
            2 => (
                line_of("long line", &format!("set {} 0 0 1\r\nv\r\n", "k".repeat(length)), true),
                End::Sync,
            ),
            3 => {
                (line_of("long line", &format!("mg {} v\r\n", "k".repeat(length)), true), End::Sync)
            }
            _ => (line_of("get", &format!("get{}\r\n", " k".repeat(length / 2)), true), End::Sync),
        }
    }

    /// What ends a connection.
    fn ending(&mut self) -> (Command, End) {
        match self.random.below(5) {
            // Nothing is sent after it: a close with bytes unread would take replies away with it.
            0 | 1 => (closing("quit", "quit\r\n"), End::Closed),
            2 => {
                let line = self.random.pick::<&str>(&[
                    "GET / HTTP/1.1\r\n",
                    "x HTTP/\r\n",
                    "HTTP/1.0\r\n",
                ]);
                (closing("unknown", line), End::Closed)
            }
            _ => {
                let mut command = self.storage();
                command.is_fenced = true;
                command.is_marked = false;
                command.is_filled = false;
                command.row = "torn";
                if let Some(Piece::Bytes(bytes)) = command.pieces.last_mut() {
                    bytes.truncate(self.random.below(bytes.len().max(1)));
                }
                (command, End::Finish)
            }
        }
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
