//! A configuration file as text: its settings by section, or all that is wrong with it, each with its line and column.

use std::fmt;
use std::path::Path;

use clap::Command;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::schema::{self, Key, Kind, SECTIONS, keys, nearest};

/// Files beyond are not read: somebody named the wrong one.
const BYTES_MAX: u64 = 1 << 20;

/// Counted from 1, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    pub place: Place,
    pub text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.place.line, self.place.column, self.text)
    }
}

/// A key and its value.
#[derive(Clone, Debug)]
pub struct Setting {
    pub id: String,
    pub name: String,
    /// As a command line says the same.
    pub words: Vec<String>,
    pub place: Place,
}

/// What a file sets.
#[derive(Debug, Default)]
pub struct File {
    sections: Vec<(&'static str, Vec<Setting>)>,
}

impl File {
    pub fn section(&self, name: &str) -> &[Setting] {
        let section = self.sections.iter().find(|(known, _)| *known == name);
        section.map_or(&[], |(_, settings)| settings)
    }

    pub fn sections(&self) -> impl Iterator<Item = (&'static str, &[Setting])> {
        self.sections.iter().map(|(name, settings)| (*name, &settings[..]))
    }

    /// The value of a key that has one.
    pub fn value(&self, section: &str, key: &str) -> Option<&str> {
        let setting = self.section(section).iter().find(|setting| setting.name == key)?;
        setting.words.first()?.split_once('=').map(|(_, value)| value)
    }
}

/// What is in the file, or why it cannot be read.
pub fn text_of(path: &Path) -> Result<String, String> {
    let told = |error: std::io::Error| format!("{}: {error}", path.display());
    let metadata = std::fs::metadata(path).map_err(told)?;
    if metadata.is_dir() || metadata.len() > BYTES_MAX {
        let what = if metadata.is_dir() { "a folder" } else { "more than a MiB" };
        return Err(format!("{}: it is {what}, not a configuration file", path.display()));
    }
    let bytes = std::fs::read(path).map_err(told)?;
    String::from_utf8(bytes).map_err(|_| format!("{}: it is not text in UTF-8", path.display()))
}

/// `command` has the subcommands whose flags are keys.
pub fn parse(text: &str, command: &Command) -> Result<File, Vec<Mistake>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader { text, command, mistakes: Vec::new() };
    for error in &errors {
        reader.mistake(error.span().map_or(0, |span| span.start), error.message().to_owned());
    }
    let mut file = File::default();
    for (name, value) in table.get_ref() {
        match section_of(name.get_ref()) {
            // What could not be read to its end has lost keys.
            _ if !errors.is_empty() => {}
            Some(section) => match value.get_ref().as_table() {
                Some(keys) => file.sections.push((section, reader.section(section, keys))),
                None => {
                    let text =
                        format!("{section} is a section: write [{section}], and below it its keys");
                    reader.mistake(name.span().start, text);
                }
            },
            None => {
                let text = reader.no_section(name.get_ref(), value.get_ref().is_table());
                reader.mistake(name.span().start, text);
            }
        }
    }
    if reader.mistakes.is_empty() {
        return Ok(file);
    }
    reader.mistakes.sort();
    Err(reader.mistakes)
}

fn section_of(name: &str) -> Option<&'static str> {
    SECTIONS.into_iter().find(|section| *section == name)
}

struct Reader<'a> {
    text: &'a str,
    command: &'a Command,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    fn mistake(&mut self, at: usize, text: String) {
        let place = self.place(at);
        self.mistakes.push(Mistake { place, text });
    }

    fn place(&self, at: usize) -> Place {
        let before = &self.text[..at.min(self.text.len())];
        let line = before.rsplit('\n').next().unwrap_or_default();
        Place { line: before.matches('\n').count() + 1, column: line.chars().count() + 1 }
    }

    fn of(&self, section: &str) -> &Command {
        self.command.find_subcommand(section).expect("a section is a subcommand")
    }

    fn no_section(&self, name: &str, is_table: bool) -> String {
        let all = SECTIONS.map(|section| format!("[{section}]")).join(", ");
        if is_table {
            let near = schema::nearest_of(name, SECTIONS.into_iter());
            let near = near.map_or(String::new(), |near| format!("; the nearest is [{near}]"));
            return format!("there is no section [{name}]{near}. There are {all}");
        }
        let has = |section: &&str| keys(self.of(section)).iter().any(|key| key.name() == name);
        match SECTIONS.iter().find(|section| has(section)) {
            Some(section) => format!("{name} stands in no section: write [{section}] above it"),
            None => format!("{name} stands in no section. There are {all}"),
        }
    }

    fn section(&mut self, section: &'static str, table: &DeTable<'_>) -> Vec<Setting> {
        let known = keys(self.of(section));
        let mut settings = Vec::new();
        for (name, value) in table {
            let (at, name) = (name.span().start, name.get_ref());
            let Some(key) = known.iter().find(|key| key.name() == name) else {
                let text = self.unknown(section, name, &known);
                self.mistake(at, text);
                continue;
            };
            match words(key, value) {
                Ok(words) => {
                    if let Some(why) = key.refusal(self.of(section), &words) {
                        self.mistake(value.span().start, why);
                    }
                    let (id, name) = (key.id().to_owned(), key.name().to_owned());
                    settings.push(Setting { id, name, words, place: self.place(at) });
                }
                Err((at, why)) => self.mistake(at, format!("{name} is {why}")),
            }
        }
        settings.sort_by_key(|setting| setting.place);
        settings
    }

    fn unknown(&self, section: &str, name: &str, known: &[Key]) -> String {
        let elsewhere = |other: &&str| {
            *other != section && keys(self.of(other)).iter().any(|key| key.name() == name)
        };
        let hint = match (SECTIONS.iter().find(|other| elsewhere(other)), nearest(name, known)) {
            (Some(other), _) => format!("it is one of [{other}]"),
            (None, Some(near)) => format!("the nearest is {near}"),
            (None, None) => "`mbal config print --defaults` shows all".into(),
        };
        format!("[{section}] has no key {name}; {hint}")
    }
}

/// The key as words of a command line. Of a value of the wrong type: where it is, and what is wanted.
fn words(key: &Key, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, (usize, String)> {
    let kind = key.kind();
    let found = value.get_ref();
    let wrong = |value: &Spanned<DeValue<'_>>| {
        let found = match value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number with a point",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        (value.span().start, format!("{}, not {found}", kind.wanted()))
    };
    let one = |text: &str| vec![key.word(Some(text))];
    match (kind, found) {
        (Kind::Switch, DeValue::Boolean(on)) => {
            Ok(on.then(|| key.word(None)).into_iter().collect())
        }
        (Kind::OnOff, DeValue::Boolean(on)) => Ok(one(if *on { "on" } else { "off" })),
        (Kind::OnOff | Kind::IntegerOrAuto | Kind::Text | Kind::List, DeValue::String(text)) => {
            Ok(one(text))
        }
        (Kind::Count, DeValue::Integer(_)) => {
            match integer(found).and_then(|n| u8::try_from(n).ok()) {
                Some(times) => Ok(vec![key.word(None); times.into()]),
                None => Err((value.span().start, "a whole number from 0 to 255".into())),
            }
        }
        (Kind::Integer | Kind::IntegerOrAuto | Kind::Number, DeValue::Integer(_)) => {
            match integer(found) {
                Some(number) => Ok(one(&number.to_string())),
                None => Err((value.span().start, "a number of at most 64 bits".into())),
            }
        }
        // A size, a time or a mask may be a mere number; as it is written, for 0o700 is none of decimal digits.
        (Kind::Text, DeValue::Integer(number)) if number.radix() == 10 => Ok(one(number.as_str())),
        (Kind::Text | Kind::Number, DeValue::Float(number)) => Ok(one(number.as_str())),
        (Kind::List, DeValue::Array(values)) => {
            let of = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
                DeValue::String(text) => Ok(key.word(Some(text))),
                _ => Err(wrong(value)),
            };
            values.iter().map(of).collect()
        }
        _ => Err(wrong(value)),
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a table of a file, and what is said of it.
    fn said(text: &str) -> String {
        match parse(text, &crate::mbal_command()) {
            Ok(file) => {
                let settings = file.sections().flat_map(|(_, settings)| settings);
                let words = settings.flat_map(|setting| setting.words.clone());
                words.collect::<Vec<_>>().join(" ")
            }
            Err(mistakes) => {
                mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
            }
        }
    }

    #[test]
    fn values_become_the_words_of_a_command_line() {
        for (text, words) in [
            ("", ""),
            ("[serve]\n", ""),
            ("[serve]\nport = 11311\nmemory-limit = 1_024", "--port=11311 --memory-limit=1024"),
            ("[serve]\nport = -1", "--port=-1"),
            ("[serve]\nport = 0x2c2f", "--port=11311"),
            ("serve.port = 5", "--port=5"),
            ("serve = { port = 5 }", "--port=5"),
            (
                "[serve]\nunix-mask = 700\nmax-item-size = \"2m\"",
                "--unix-mask=700 --max-item-size=2m",
            ),
            ("[serve]\nload-max = 0.5\nhot-sample = 1", "--load-max=0.5 --hot-sample=1"),
            ("[serve]\nlisten = \"::1\"", "--listen=::1"),
            ("[serve]\nlisten = [\"::1\", \"10.0.0.1\"]", "--listen=::1 --listen=10.0.0.1"),
            ("[serve]\nlisten = []", ""),
            ("[serve]\nverbose = 2\npin = true\nlock-memory = false", "--verbose --verbose --pin"),
            ("[serve]\nstack-distances = false", "--stack-distances=off"),
            ("[serve]\nstack-distances = \"on\"\ndelimiter = \"=\"", "--stack-distances=on -D=="),
            ("[up]\nservers = 5\n[coordinator]\nservers = 4", "--servers=4 --servers=5"),
        ] {
            assert_eq!(said(text), words, "{text}");
        }
    }

    #[test]
    fn all_mistakes_are_told_with_their_places() {
        for (text, told) in [
            (
                "[serve]\nport = 1\nmemory-limt = 64\n  prot = 2\n",
                "3:1: [serve] has no key memory-limt; the nearest is memory-limit\n\
                 4:3: [serve] has no key prot; the nearest is port",
            ),
            (
                "[serve]\nupstream = \"a:1\"",
                "2:1: [serve] has no key upstream; it is one of [proxy]",
            ),
            (
                "[server]\n",
                "1:2: there is no section [server]; the nearest is [serve]. There are [serve], [coordinator], [proxy], [up]",
            ),
            ("conn-limit = 5", "1:1: conn-limit stands in no section: write [serve] above it"),
            ("up = 3", "1:1: up is a section: write [up], and below it its keys"),
            ("[serve]\nport = \"11211\"", "2:8: port is a whole number, not a string"),
            ("[serve]\npin = 1", "2:7: pin is true or false, not a whole number"),
            (
                "[serve]\nverbose = true",
                "2:11: verbose is a whole number, 0 or more, not true or false",
            ),
            ("[serve]\nverbose = -1", "2:11: verbose is a whole number from 0 to 255"),
            ("[serve]\nepoch = 2026-01-01", "2:9: epoch is a string, not a date"),
            ("[serve]\nunix-mask = 0o700", "2:13: unix-mask is a string, not a whole number"),
            (
                "[serve]\nlisten = [\"é\", 5]",
                "2:16: listen is a string, or an array of strings, not a whole number",
            ),
            ("[serve]\nport.number = 1", "2:1: port is a whole number, not a table"),
            ("[serve]\nport = 99999999999999999999", "2:8: port is a number of at most 64 bits"),
            (
                "[serve]\nthreads = 0\nworker-ports = 70000",
                "3:16: invalid value '70000' for '--worker-ports <base>': 70000 is not in 0..=65535",
            ),
            (
                "[coordinator]\nhot-keys = \"some\"",
                "2:12: invalid value 'some' for '--hot-keys <mode>' [possible values: off, async, atomic]",
            ),
            (
                "[proxy]\nupstream = [\"a:1\"]\nimbalance-target = 0.5",
                "3:20: invalid value '0.5' for '--imbalance-target <num>': a number from 1.01 to 100",
            ),
            (
                "[serve]\nlicense = true",
                "2:1: [serve] has no key license; `mbal config print --defaults` shows all",
            ),
        ] {
            assert_eq!(said(text), told, "{text}");
        }
        for text in ["[serve]\nport = 1\nport = 2", "[serve\nport = 1", "[serve]\nport 5", "\u{0}"]
        {
            let said = said(text);
            let place = said.split(':').next().and_then(|line| line.parse::<usize>().ok());
            assert!(place.is_some_and(|line| line <= 3), "{text}: {said}");
        }
    }

    /// For every flag of every section, by a value that its default or its type suggests: no flag is missing.
    #[test]
    fn every_flag_that_help_shows_is_a_key() {
        let command = crate::mbal_command();
        let mut count = 0;
        for section in SECTIONS {
            let of = command.find_subcommand(section).expect("it is a subcommand");
            let shown = of.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_positional());
            for arg in shown.filter(|arg| !schema::NOT_SETTINGS.contains(&arg.get_id().as_str())) {
                let name = arg.get_long().unwrap_or(arg.get_id().as_str());
                let key = keys(of).into_iter().find(|key| key.name() == name).expect("it is a key");
                let wrong = format!("[{section}]\n{name} = 1979-05-27\n");
                assert!(said(&wrong).contains(&format!("{name} is ")), "{section} {name}");
                assert!(!key.kind().wanted().is_empty());
                count += 1;
            }
        }
        assert!(count > 100, "{count}");
    }
}
