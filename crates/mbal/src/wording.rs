//! What is said about a command line that cannot be read.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Rust's words for a number that cannot be read say nothing to whom knows no Rust.
const REASONS: [(&str, &str); 5] = [
    ("invalid digit found in string", "not a whole number"),
    ("cannot parse integer from empty string", "not a number"),
    ("cannot parse float from empty string", "not a number"),
    ("invalid float literal", "not a number"),
    ("number too large to fit in target type", "too large"),
];

/// `command` is the subcommand that was asked for. The value, the flag by all its names, and the flag's help; `None` where clap says it well.
pub fn reworded(command: &Command, error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind)? {
        ContextValue::String(text) => Some(text.as_str()),
        _ => None,
    };
    if error.kind() == ErrorKind::InvalidSubcommand {
        let name = text(ContextKind::InvalidSubcommand)?;
        let groups = ["cluster", "pool"];
        let has = |group: &&&str| {
            command
                .find_subcommand(group)
                .is_some_and(|group| group.find_subcommand(name).is_some())
        };
        let (named, help) = match groups.iter().find(has) {
            Some(group) => (format!("mbal {group} {name}"), format!("mbal {group} --help")),
            None if name == "sim" => ("mbal-lab".into(), "mbal-lab --help".into()),
            None => return None,
        };
        return Some(format!(
            "error: unrecognized subcommand '{name}': it is {named}\n\n\
             For more information, try '{help}'.\n"
        ));
    }
    if error.kind() != ErrorKind::ValueValidation {
        return None;
    }
    let (name, value) = (text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?);
    let said = std::error::Error::source(error)?.to_string();
    let (_, reason) = REASONS.iter().find(|(from, _)| *from == said)?;
    let reason =
        if value.parse::<i64>().is_ok_and(|number| number < 0) { "less than 0" } else { reason };
    let flag = command.get_arguments().find(|flag| flag.to_string() == name)?;
    let letter = flag.get_short().map(|letter| format!("-{letter}, ")).unwrap_or_default();
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    Some(format!(
        "error: invalid value '{value}' for '{letter}{name}': {reason}\n\n  {help}\n\n\
         For more information, try '--help'.\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_is_answered_with_the_new_one() {
        for (typed, told) in [
            ("status", Some("it is mbal cluster status")),
            ("resize", Some("it is mbal pool resize")),
            ("sim", Some("it is mbal-lab")),
            ("nonsense", None),
        ] {
            let mut command = crate::mbal_command();
            let error = command.try_get_matches_from_mut(["mbal", typed]).expect_err("it is none");
            let said = reworded(&command, &error);
            assert_eq!(said.is_some(), told.is_some(), "{typed}");
            assert!(said.is_none_or(|said| said.contains(told.expect("it is told"))), "{typed}");
        }
    }
}
