//! Checks that nothing of the protocol is without a script, and, where memcached's source is at hand,
//! that the written list of what there is misses nothing.

use crate::script::{Atom, Script, What};
use std::path::Path;

/// Lines of the list at `list` that no script covers, and strings of `source` that it lacks.
pub fn missing(
    list: &str,
    scripts: &[Script],
    source: Option<&Path>,
) -> Result<Vec<String>, String> {
    let requests = requests(scripts);
    let replies = replies(scripts);
    let mut missing = Vec::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (kind, what) = line.split_once(' ').ok_or_else(|| format!("{line:?} says nothing"))?;
        let covered = match kind {
            "command" => requests.iter().any(|words| is_command(words, what)),
            "flag" => requests.iter().any(|words| has_flag(words, what)),
            "reply" => replies.iter().any(|reply| is_reply(reply, what)),
            "beyond" if what.contains("  ") => true,
            _ => return Err(format!("{line:?} is none of command, flag, reply, beyond")),
        };
        if !covered {
            missing.push(format!("no script for: {line}"));
        }
    }
    if let Some(source) = source {
        for string in strings_of(source)? {
            let listed = list.lines().any(|line| {
                // A text that goes on in the next line of the source ends in blanks here.
                let whole = line.strip_prefix("reply ");
                let beyond = line.strip_prefix("beyond ").and_then(|rest| rest.split_once("  "));
                whole.is_some_and(|known| known == string.trim_end())
                    || string.ends_with(' ')
                        && whole.is_some_and(|known| known.starts_with(string.as_str()))
                    || beyond.is_some_and(|(known, _)| known == string)
            });
            if !listed {
                missing.push(format!("in memcached's source, not in the list: {string}"));
            }
        }
    }
    Ok(missing)
}

fn requests(scripts: &[Script]) -> Vec<Vec<String>> {
    let lines = scripts.iter().flat_map(|script| &script.steps).filter_map(|step| {
        let What::Send(atoms) = &step.what else { return None };
        Some(
            atoms
                .iter()
                .map(|atom| match atom {
                    Atom::Bytes(plain) => String::from_utf8_lossy(plain).into_owned(),
                    _ => "$".to_string(),
                })
                .collect::<String>(),
        )
    });
    lines.map(|line| line.split_whitespace().map(str::to_string).collect()).collect()
}

/// `what` is the line's first words; `...` stands for any words between them and the last.
fn is_command(words: &[String], what: &str) -> bool {
    let (first, last) = what.split_once(" ... ").unwrap_or((what, ""));
    let first: Vec<&str> = first.split(' ').collect();
    words.len() >= first.len()
        && first.iter().zip(words).all(|(wanted, word)| wanted == word)
        && (last.is_empty() || words.last().is_some_and(|word| word == last))
}

/// `what` is a meta command and the beginning of a flag's word.
fn has_flag(words: &[String], what: &str) -> bool {
    let (command, flag) = what.split_once(' ').expect("the list says command and flag");
    let first_flag = if command == "ms" { 3 } else { 2 };
    words.first().is_some_and(|word| word == command)
        && words.iter().skip(first_flag).any(|word| word.starts_with(flag))
}

fn replies(scripts: &[Script]) -> Vec<String> {
    let mut replies = Vec::new();
    for step in scripts.iter().flat_map(|script| &script.steps) {
        let What::Expect { pattern, .. } = &step.what else { continue };
        let mut lines = vec![String::new()];
        for atom in pattern {
            let choices: Vec<String> = match atom {
                Atom::Bytes(plain) => vec![String::from_utf8_lossy(plain).into_owned()],
                Atom::OneOf(words) => {
                    words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect()
                }
                _ => vec!["*".to_string()],
            };
            lines = choices
                .iter()
                .flat_map(|choice| lines.iter().map(move |line| format!("{line}{choice}")))
                .collect();
        }
        replies.extend(lines.iter().map(|line| line.trim_end().to_string()));
    }
    replies
}

/// An error stands alone on its line; other replies may go on.
fn is_reply(reply: &str, what: &str) -> bool {
    reply == what || !what.contains("ERROR") && reply.starts_with(&format!("{what} "))
}

/// The texts that memcached's protocol code hands to its output functions.
fn strings_of(source: &Path) -> Result<Vec<String>, String> {
    const GIVEN_TO: [&str; 6] = [
        "out_string(c, ",
        "out_errstring(c, ",
        "out_of_memory(c, ",
        "pout_string(resp, ",
        "pout_errstring(resp, ",
        "errstr = ",
    ];
    let mut strings = Vec::new();
    for file in ["proto_text.c", "proto_parser.c", "memcached.c"] {
        let path = source.join(file);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        for given_to in GIVEN_TO {
            for (at, _) in text.match_indices(given_to) {
                let rest = &text[at + given_to.len()..];
                let Some(rest) = rest.strip_prefix('"') else { continue };
                let Some(end) = rest.find('"') else { continue };
                strings.push(rest[..end].to_string());
            }
        }
    }
    strings.sort();
    strings.dedup();
    Ok(strings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_script_names_is_missing() {
        let script = "> mg a v q\n< {EN|HD s1}\n> set a 0 0 1 noreply\n< CLIENT_ERROR bad\n";
        let scripts = [Script::parse("t", script).unwrap()];
        let covered =
            "command set ... noreply\nflag mg q\nreply HD\nreply EN\nreply CLIENT_ERROR bad";
        assert_eq!(missing(covered, &scripts, None).unwrap(), [""; 0]);
        let lacking = "command set 1\nflag mg k\nflag ms v\nreply VA\nreply CLIENT_ERROR";
        assert_eq!(missing(lacking, &scripts, None).unwrap().len(), 5);
    }
}
