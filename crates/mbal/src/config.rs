//! Configuration files: what stands in one is put in front of the command line, but for what flags and the environment say.

pub mod file;
mod printed;
pub mod schema;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, value_parser};
use file::{File, Setting};

use crate::output::say;

/// sysexits' codes: a file that cannot be read, and one that is wrong.
const EX_NOINPUT: u8 = 66;
const EX_CONFIG: u8 = 78;

pub const ABOUT: &str = "Checks a configuration file, and prints what is set where.";
const EXAMPLES: &str = "\
EXAMPLES
  mbal config print --defaults >mbal.toml
                        all settings with their defaults, commented out
  mbal config check mbal.toml
                        what is wrong in it, by line and column
  mbal serve --config mbal.toml
                        a server as [serve] says
  mbal config print serve --config mbal.toml -m 512
                        what that command line would mean, and where each setting comes from

A flag outdoes the environment, the environment the file, the file the default.
Exit codes of check, and of what reads a file: 0, 66 if it cannot be read, 78 if it is wrong.";

/// Why nothing is started.
#[derive(Debug)]
pub struct Refusal {
    pub text: String,
    pub code: u8,
}

/// What a command line means together with its file.
pub struct CommandLine {
    pub words: Vec<OsString>,
    /// Ids of the flags that the file says.
    from_file: Vec<Setting>,
    pub file: Option<(PathBuf, File)>,
}

/// The flag that names the file.
pub fn flag() -> Arg {
    Arg::new("config")
        .long("config")
        .env("MBAL_CONFIG")
        .value_name("file")
        .value_parser(value_parser!(PathBuf))
        // Not below the heading of the flags before it.
        .help_heading(None::<&str>)
        .help("Configuration file in TOML: `mbal config print --defaults` shows one. Flags and the environment outdo it")
}

pub fn command() -> Command {
    let file = Arg::new("file").value_name("file").value_parser(value_parser!(PathBuf));
    let check = Command::new("check")
        .about("Says what is wrong in a configuration file.")
        .arg(file.env("MBAL_CONFIG").required(true).help("The file"));
    let print = Command::new("print")
        .about("Prints settings as a file, with where each comes from.")
        .arg(flag())
        .arg(
            Arg::new("defaults")
                .long("defaults")
                .action(clap::ArgAction::SetTrue)
                .help("All that there is to be set, with its default, commented out"),
        )
        .arg(
            Arg::new("line")
                .value_name("command")
                .num_args(0..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString))
                .help("serve, coordinator, proxy or up, and its flags; without it, all of them without flags"),
        );
    Command::new("config")
        .about(ABOUT)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(EXAMPLES)
        .subcommand(check)
        .subcommand(print)
}

/// Puts what the file of `words` says in front of them. `command` is the one that `words` are of, which begin with its name;
/// `all` has the subcommands that are sections.
pub fn layered(
    command: &Command,
    section: &str,
    all: &Command,
    words: Vec<OsString>,
) -> Result<CommandLine, Refusal> {
    let lenient = command.clone().ignore_errors(true);
    // Help and version need no file.
    let Ok(matches) = lenient.try_get_matches_from(&words) else {
        return Ok(CommandLine::without_file(words));
    };
    let path = matches.get_one::<PathBuf>("config").filter(|path| !path.as_os_str().is_empty());
    let Some(path) = path else { return Ok(CommandLine::without_file(words)) };
    let file = read(path, all)?;
    let from_file: Vec<Setting> =
        file.section(section).iter().filter(|one| !is_said(&matches, &one.id)).cloned().collect();
    let mut rest = words.into_iter();
    let first = rest.next();
    let said = from_file.iter().flat_map(|one| one.words.iter().map(OsString::from));
    let words = first.into_iter().chain(said).chain(rest).collect();
    Ok(CommandLine { words, from_file, file: Some((path.clone(), file)) })
}

/// By a flag or the environment.
fn is_said(matches: &ArgMatches, id: &str) -> bool {
    let said = [Some(ValueSource::CommandLine), Some(ValueSource::EnvVariable)];
    said.contains(&matches.value_source(id))
}

fn read(path: &Path, all: &Command) -> Result<File, Refusal> {
    let text = file::text_of(path).map_err(|text| Refusal { text, code: EX_NOINPUT })?;
    file::parse(&text, all).map_err(|mistakes| {
        let lines = mistakes.iter().map(|mistake| format!("{}:{mistake}", path.display()));
        Refusal { text: lines.collect::<Vec<_>>().join("\n"), code: EX_CONFIG }
    })
}

impl CommandLine {
    pub fn without_file(words: Vec<OsString>) -> CommandLine {
        CommandLine { words, from_file: Vec::new(), file: None }
    }

    /// Where the flags that an error is about stand in the file, if they do.
    pub fn places(&self, error: &clap::Error) -> Option<String> {
        let (path, _) = self.file.as_ref()?;
        let kinds = [ContextKind::InvalidArg, ContextKind::PriorArg];
        let named =
            kinds.iter().filter_map(|kind| error.get(*kind)).flat_map(|value| match value {
                ContextValue::String(one) => vec![one.clone()],
                ContextValue::Strings(several) => several.clone(),
                _ => Vec::new(),
            });
        let named: Vec<String> = named.collect();
        let is_named = |setting: &&Setting| named.iter().any(|flag| names(flag, &setting.name));
        let places = self.from_file.iter().filter(is_named).map(|setting| {
            format!("{} is in {}:{}", setting.name, path.display(), setting.place.line)
        });
        let places: Vec<String> = places.collect();
        (!places.is_empty()).then(|| places.join("; "))
    }
}

/// `--port <num>` is the flag `port`.
fn names(flag: &str, name: &str) -> bool {
    flag.strip_prefix("--").is_some_and(|flag| flag.split([' ', '=']).next() == Some(name))
}

/// `all` has the subcommands that are sections; `refusal` says what the process itself does not like of the flags of a section.
pub fn run(
    matches: &ArgMatches,
    all: &Command,
    refusal: impl Fn(&str, &ArgMatches) -> Option<String>,
) -> ExitCode {
    let done = match matches.subcommand() {
        Some(("check", matches)) => {
            let path = matches.get_one::<PathBuf>("file").expect("it is required");
            check(path, all, refusal).map(|()| ExitCode::SUCCESS)
        }
        Some(("print", matches)) if matches.get_flag("defaults") => {
            Ok(say(&printed::defaults(all)))
        }
        Some(("print", matches)) => print(matches, all).map(|text| say(&text)),
        _ => unreachable!("clap asks for one of its subcommands"),
    };
    done.unwrap_or_else(|Refusal { text, code }| {
        eprintln!("{text}");
        ExitCode::from(code)
    })
}

fn check(
    path: &Path,
    all: &Command,
    refusal: impl Fn(&str, &ArgMatches) -> Option<String>,
) -> Result<(), Refusal> {
    let file = read(path, all)?;
    let mut wrong = Vec::new();
    let shown = path.display();
    for (section, settings) in file.sections() {
        let command = all.find_subcommand(section).expect("a section is a subcommand");
        let words = settings.iter().flat_map(|one| one.words.iter().cloned());
        let words = std::iter::once(section.to_owned()).chain(words);
        let found = command.clone().try_get_matches_from(words);
        let why = match &found {
            Ok(matches) => refusal(section, matches),
            // The rest of it may come by flags.
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
                println!("{shown}: [{section}] needs more than the file says: {}", first(error));
                None
            }
            Err(error) => Some(first(error)),
        };
        let Some(why) = why else { continue };
        let said = |setting: &&Setting| why.contains(&format!("--{}", setting.name));
        wrong.push(match settings.iter().find(said) {
            Some(setting) => {
                format!("{shown}:{}:{}: {why}", setting.place.line, setting.place.column)
            }
            None => format!("{shown}: [{section}]: {why}"),
        });
    }
    if !wrong.is_empty() {
        return Err(Refusal { text: wrong.join("\n"), code: EX_CONFIG });
    }
    let count: usize = file.sections().map(|(_, settings)| settings.len()).sum();
    println!("{shown}: {count} settings, all of them right");
    Ok(())
}

/// What an error says, in one line.
fn first(error: &clap::Error) -> String {
    let text = error.to_string();
    let said = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn print(matches: &ArgMatches, all: &Command) -> Result<String, Refusal> {
    let line: Vec<OsString> = matches.get_many("line").unwrap_or_default().cloned().collect();
    let path = matches.get_one::<PathBuf>("config");
    let sections: Vec<&str> = match line.first() {
        None => schema::SECTIONS.to_vec(),
        Some(name) => {
            let known = schema::SECTIONS.iter().find(|section| *name == **section);
            vec![known.ok_or_else(|| {
                let shown = name.to_string_lossy();
                let all = schema::SECTIONS.join(", ");
                Refusal { text: format!("mbal config print {shown}: it prints {all}"), code: 64 }
            })?]
        }
    };
    let mut text = String::new();
    for (at, section) in sections.into_iter().enumerate() {
        let command = all.find_subcommand(section).expect("a section is a subcommand");
        // The flag of this command is one of that command's, too, which the other words may outdo.
        let mut words = vec![OsString::from(section)];
        words.extend(path.iter().flat_map(|path| ["--config".into(), path.as_os_str().to_owned()]));
        words.extend(line.iter().skip(1).cloned());
        // The last one counts, as `serve` has it.
        let command = command.clone().args_override_self(true);
        let layered = layered(&command, section, all, words)?;
        // A proxy may be without upstreams here: they come when it is started.
        let strict = command.clone().try_get_matches_from(&layered.words);
        if let Err(error) = strict {
            if error.kind() != ErrorKind::MissingRequiredArgument {
                let text = format!("mbal config print: [{section}]: {}", first(&error));
                return Err(Refusal { text, code: EX_CONFIG });
            }
        }
        let lenient = command.clone().ignore_errors(true);
        let found = lenient.try_get_matches_from(&layered.words);
        let matches = found.map_err(|error| Refusal { text: first(&error), code: EX_CONFIG })?;
        if at > 0 {
            text.push('\n');
        }
        text += &printed::effective(section, &command, &matches, &layered);
    }
    Ok(text)
}
