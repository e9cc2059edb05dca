//! The keys of a configuration file: the flags of the commands that read one, by their long names.

use std::any::TypeId;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};

use crate::flags::MemoryLimit;
use crate::wording;

/// Each is the subcommand that reads it.
pub const SECTIONS: [&str; 4] = ["serve", "coordinator", "proxy", "up"];

/// Flags that ask for an answer instead of setting something, and the one that names the file.
pub const NOT_SETTINGS: [&str; 5] = ["config", "help", "version", "license", "print"];

/// What a value of a key may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Switch,
    /// How often a flag is given: `-vv` is 2.
    Count,
    /// `on` or `off`.
    OnOff,
    Integer,
    /// Or the word `auto`.
    IntegerOrAuto,
    Number,
    Text,
    List,
}

impl Kind {
    fn of(arg: &Arg) -> Kind {
        let parser = arg.get_value_parser();
        let is = |ids: &[TypeId]| ids.iter().any(|id| parser.type_id() == *id);
        match arg.get_action() {
            ArgAction::SetTrue | ArgAction::SetFalse => Kind::Switch,
            ArgAction::Count => Kind::Count,
            ArgAction::Append => Kind::List,
            _ if is(&[TypeId::of::<bool>()]) => Kind::OnOff,
            _ if is(&integers()) => Kind::Integer,
            _ if is(&[TypeId::of::<MemoryLimit>()]) => Kind::IntegerOrAuto,
            _ if is(&[TypeId::of::<f64>()]) => Kind::Number,
            _ => Kind::Text,
        }
    }

    pub fn wanted(self) -> &'static str {
        match self {
            Kind::Switch => "true or false",
            Kind::Count => "a whole number, 0 or more",
            Kind::OnOff => "true or false",
            Kind::Integer => "a whole number",
            Kind::IntegerOrAuto => "a whole number, or \"auto\"",
            Kind::Number => "a number",
            Kind::Text => "a string",
            Kind::List => "a string, or an array of strings",
        }
    }
}

fn integers() -> [TypeId; 7] {
    [
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
        TypeId::of::<u8>(),
    ]
}

/// A flag that may stand in a file.
#[derive(Clone, Debug)]
pub struct Key(Arg);

impl Key {
    /// The flag's long name. The one that has none goes by clap's name for it.
    pub fn name(&self) -> &str {
        self.0.get_long().unwrap_or(self.0.get_id().as_str())
    }

    pub fn id(&self) -> &str {
        self.0.get_id().as_str()
    }

    pub fn kind(&self) -> Kind {
        Kind::of(&self.0)
    }

    pub fn arg(&self) -> &Arg {
        &self.0
    }

    /// The flag as a word of a command line, with its value if it has one.
    pub fn word(&self, value: Option<&str>) -> String {
        let flag = match (self.0.get_long(), self.0.get_short()) {
            (Some(long), _) => format!("--{long}"),
            (None, Some(short)) => format!("-{short}"),
            (None, None) => unreachable!("a positional argument is no key"),
        };
        value.map_or(flag.clone(), |value| format!("{flag}={value}"))
    }

    /// Why the command does not take these words of this key, if only by the value.
    pub fn refusal(&self, command: &Command, words: &[String]) -> Option<String> {
        let line = std::iter::once("mbal").chain(words.iter().map(String::as_str));
        let error = command.clone().try_get_matches_from(line).err()?;
        let about = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(about)) => about,
            _ => return None,
        };
        let by_value = [ErrorKind::ValueValidation, ErrorKind::InvalidValue];
        if !by_value.contains(&error.kind()) || *about != self.0.to_string() {
            return None;
        }
        let text = wording::reworded(command, &error).unwrap_or_else(|| error.to_string());
        let said = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
        Some(said.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

/// In the order of the command's help. What help does not show is not for a file.
pub fn keys(command: &Command) -> Vec<Key> {
    let is_setting = |arg: &&Arg| {
        !arg.is_hide_set() && !arg.is_positional() && !NOT_SETTINGS.contains(&arg.get_id().as_str())
    };
    // An argument knows how it is written once its command is built.
    let mut built = command.clone();
    built.build();
    built.get_arguments().filter(is_setting).cloned().map(Key).collect()
}

/// The name that was probably meant: by the flag's letter, by its beginning, or by the fewest slips of the hand.
pub fn nearest<'a>(said: &str, keys: &'a [Key]) -> Option<&'a str> {
    let mut letters = said.chars();
    if let (Some(letter), None) = (letters.next(), letters.next()) {
        let by_letter = keys.iter().find(|key| key.arg().get_short() == Some(letter));
        return by_letter.map(Key::name);
    }
    nearest_of(said, keys.iter().map(Key::name))
}

pub fn nearest_of<'a>(said: &str, names: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let said = said.to_lowercase().replace('_', "-");
    let near = names.clone().map(|name| (slips(&said, name), name));
    let near = near.min_by_key(|(slips, _)| *slips)?;
    let mut beginning = names.filter(|name| name.starts_with(&said));
    if let (2.., Some(only), None) = (near.0, beginning.next(), beginning.next()) {
        return Some(only);
    }
    (2 * near.0 <= said.len().max(4)).then_some(near.1)
}

/// Letters that are to be changed, put in, left out or exchanged with the next one.
fn slips(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows = vec![vec![0; to.len() + 1]; from.len() + 1];
    for at in 0..=from.len() {
        for to_at in 0..=to.len() {
            if at == 0 || to_at == 0 {
                rows[at][to_at] = at + to_at;
                continue;
            }
            let differ = usize::from(from[at - 1] != to[to_at - 1]);
            let mut least = rows[at - 1][to_at - 1] + differ;
            least = least.min(rows[at - 1][to_at] + 1).min(rows[at][to_at - 1] + 1);
            let exchanged = at > 1
                && to_at > 1
                && from[at - 1] == to[to_at - 2]
                && from[at - 2] == to[to_at - 1];
            if exchanged {
                least = least.min(rows[at - 2][to_at - 2] + 1);
            }
            rows[at][to_at] = least;
        }
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_hand_are_counted() {
        for (from, to, count) in [
            ("", "", 0),
            ("port", "port", 0),
            ("prot", "port", 1),
            ("por", "port", 1),
            ("a", "bc", 2),
        ] {
            assert_eq!((slips(from, to), slips(to, from)), (count, count), "{from} {to}");
        }
    }

    #[test]
    fn the_nearest_name_is_the_one_that_was_meant() {
        let command = crate::mbal_command();
        let keys = keys(command.find_subcommand("serve").expect("it is a subcommand"));
        for (said, meant) in [
            ("memroy-limit", Some("memory-limit")),
            ("memory_limit", Some("memory-limit")),
            ("memory", Some("memory-limit")),
            ("MaxItemSize", Some("max-item-size")),
            ("m", Some("memory-limit")),
            ("D", Some("delimiter")),
            ("ports", Some("port")),
            ("q", None),
            ("a-cache-of-something-else", None),
        ] {
            assert_eq!(nearest(said, &keys), meant, "{said}");
        }
    }
}
