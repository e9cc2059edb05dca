//! Settings as a configuration file has them: those of a command line with where each comes from, or all defaults.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use super::CommandLine;
use super::schema::{Key, Kind, SECTIONS, keys};

/// Of a comment's lines.
const COLUMNS: usize = 100;

/// What is set, one a line; what is not, behind it as comments.
pub fn effective(
    section: &str,
    command: &Command,
    matches: &ArgMatches,
    layered: &CommandLine,
) -> String {
    let mut unset = Vec::new();
    let mut lines = Vec::new();
    for key in keys(command) {
        match shown(&key, matches) {
            Some(value) => {
                let source = source(&key, matches, layered);
                lines.push((format!("{} = {value}", key.name()), source));
            }
            None => unset.push(key.name().to_owned()),
        }
    }
    let width = lines.iter().map(|(line, _)| line.len()).filter(|width| *width < 60).max();
    let mut text = format!("[{section}]\n");
    for (line, source) in lines {
        text += &format!("{line:width$}  # {source}\n", width = width.unwrap_or(0));
    }
    if !unset.is_empty() {
        let unset = wrapped(&format!("Not set: {}", unset.join(", ")));
        text.extend(unset.iter().map(|line| format!("# {line}\n")));
    }
    text
}

fn source(key: &Key, matches: &ArgMatches, layered: &CommandLine) -> String {
    let from_file = layered.from_file.iter().find(|setting| setting.id == key.id());
    if let (Some(setting), Some((path, _))) = (from_file, &layered.file) {
        return format!("file: {}:{}", path.display(), setting.place.line);
    }
    match matches.value_source(key.id()) {
        Some(ValueSource::CommandLine) => "flag".into(),
        Some(ValueSource::EnvVariable) => {
            let name = key.arg().get_env().unwrap_or_default().to_string_lossy();
            format!("environment: {name}")
        }
        _ => "default".into(),
    }
}

/// The value as a file has it; none if there is none.
fn shown(key: &Key, matches: &ArgMatches) -> Option<String> {
    match key.kind() {
        Kind::Switch => return Some(matches.get_flag(key.id()).to_string()),
        Kind::Count => return Some(matches.get_count(key.id()).to_string()),
        _ => {}
    }
    let raw = matches.get_raw(key.id())?;
    let values: Vec<String> = raw.map(|value| value.to_string_lossy().into_owned()).collect();
    literal(key.kind(), &values)
}

fn literal(kind: Kind, values: &[String]) -> Option<String> {
    let [.., last] = values else { return None };
    Some(match kind {
        Kind::List => {
            let all = values.iter().map(|value| quoted(value)).collect::<Vec<_>>();
            format!("[{}]", all.join(", "))
        }
        Kind::IntegerOrAuto if last == "auto" => quoted(last),
        Kind::Text => quoted(last),
        Kind::OnOff => (last == "on").to_string(),
        Kind::Switch | Kind::Count | Kind::Integer | Kind::IntegerOrAuto | Kind::Number => {
            last.clone()
        }
    })
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                quoted += &format!("\\u{:04X}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

/// A file that sets nothing: what there is to be set, and what it is without.
pub fn defaults(all: &Command) -> String {
    let mut text = String::from(
        "# Settings of MBal: mbal serve|coordinator|proxy|up --config FILE, or MBAL_CONFIG=FILE. Each command reads its own\n\
         # section. A key is a flag's long name; flags and the environment outdo the file. Remove a # to set something.\n",
    );
    for section in SECTIONS {
        let command = all.find_subcommand(section).expect("a section is a subcommand");
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        text += &format!("\n# {about}\n[{section}]\n");
        for key in keys(command) {
            let help = key.arg().get_help().map(ToString::to_string).unwrap_or_default();
            let choices = key.arg().get_possible_values();
            let choices: Vec<&str> = choices.iter().map(|choice| choice.get_name()).collect();
            let is_choice = key.kind() == Kind::Text && !choices.is_empty();
            let help = match is_choice {
                true => format!("{help}: {}", choices.join(", ")),
                false => help,
            };
            text.push('\n');
            wrapped(&help).iter().for_each(|line| text += &format!("# {line}\n"));
            text += &format!("#{}\n", example(&key));
        }
    }
    text
}

/// The default, or what a value would be.
fn example(key: &Key) -> String {
    let name = key.name();
    match key.kind() {
        Kind::Switch => return format!("{name} = false"),
        Kind::Count => return format!("{name} = 0"),
        _ => {}
    }
    let values: Vec<String> =
        key.arg().get_default_values().iter().map(|value| value.to_string_lossy().into()).collect();
    match literal(key.kind(), &values) {
        Some(value) => format!("{name} = {value}"),
        None => {
            let names = key.arg().get_value_names().unwrap_or_default();
            let of = names.first().map(ToString::to_string).unwrap_or_default();
            let value = match key.kind() {
                Kind::List => format!("[\"{of}\"]"),
                Kind::Text => format!("\"{of}\""),
                _ => of,
            };
            format!("{name} = {value}   # not set")
        }
    }
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < COLUMNS => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::parse;

    /// Every default that the file shows is one that the command takes, and changes nothing.
    #[test]
    fn a_file_with_all_defaults_is_right_and_sets_what_is_set_anyway() {
        let all = crate::mbal_command();
        let defaults = defaults(&all);
        assert!(
            parse(&defaults, &all)
                .expect("it sets nothing")
                .sections()
                .all(|(_, set)| set.is_empty())
        );
        let is_default = |line: &&str| !line.starts_with("# ") && !line.ends_with("# not set");
        let lines = defaults.lines().filter(is_default);
        let text = lines.map(|line| line.trim_start_matches('#')).collect::<Vec<_>>().join("\n");
        let file = parse(&text, &all).expect("defaults are right");
        let mut count = 0;
        for (section, settings) in file.sections() {
            let command = all.find_subcommand(section).expect("it is a subcommand").clone();
            let command = command.ignore_errors(true);
            let words = settings.iter().flat_map(|one| one.words.iter().map(String::as_str));
            let told = command.clone().get_matches_from(std::iter::once(section).chain(words));
            let plain = command.clone().get_matches_from([section]);
            for key in keys(&command) {
                assert_eq!(shown(&key, &told), shown(&key, &plain), "{section} {}", key.name());
            }
            count += settings.len();
        }
        assert!(count > 50, "{count}");
    }

    #[test]
    fn strings_are_written_as_toml_reads_them() {
        let text = "a\"b\\c\nd\u{7f}é";
        let line = format!("[serve]\nuser = {}", quoted(text));
        let file = parse(&line, &crate::mbal_command()).expect("it is a string");
        assert_eq!(file.value("serve", "user"), Some(text));
    }
}
