//! The one binary: `mbal serve` and its companions; `mbal serve` alone when called `memcached`.

#![forbid(unsafe_code)]

mod balance;
mod cluster;
mod cluster_top;
mod completions;
mod config;
mod coordinator;
mod demo;
mod doctor;
#[cfg(test)]
mod documented;
mod explaining;
mod extended;
mod flags;
#[cfg(test)]
mod flags_table;
mod hot_keys;
mod listen;
mod man;
mod named;
mod operator;
mod output;
mod passwords;
mod pool;
mod proxy;
mod scale;
mod up;
mod wording;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use config::CommandLine;
use config::schema::SECTIONS;
use flags::{Checked, Flags};
use mbal_server::log::{self, Level};
use mbal_server::{Ended, Server};

const MBAL: &str = env!("CARGO_PKG_VERSION");
/// Tools read memcached's number from `-V`, which is one line, and from the first line of `-h`.
const AS_MEMCACHED: &str = "1.6.45";

const HELP: &str = "{name} {version}\n{about}\n\n{usage-heading} {usage}\n\n{all-args}{after-help}";
const SERVE: &str = "A cache server that any memcached client can use.";
const SERVE_AS_MEMCACHED: &str = concat!(
    "Served by MBal ",
    env!("CARGO_PKG_VERSION"),
    ", a cache server that any memcached client can use."
);
const UP: &str = "A cluster on this machine: a coordinator and some servers, until Ctrl-C.";
const DEMO: &str = "Shows a cluster beside a pool of memcacheds: a hot key, a hot set that moves, a dead server, one that retires.";
const COORDINATOR: &str = "Says which servers a cluster has, and which of them has which keys.";
const PROXY: &str =
    "Stands in front of memcached servers: few connections, one address, no hot server.";
const BENCH: &str = "Loads memcached-compatible servers and says what a request costs them.";
const TOP: &str =
    "Shows what a server does now: rate, hits, latency, workers, the hottest cachelets and keys.";
const CLUSTER: &str = "Looks at a cluster, and changes it.";
const POOL: &str = "Resizes a pool of stock memcacheds without a cold start.";
const COMPLETIONS: &str = "Prints what a shell needs to complete commands and flags.";
const MANUAL: &str = "Writes the manual pages, one for each command.";
const SERVE_AFTER: &str = "\
Flags of the first list, but -v, can come from the environment instead: MBAL_MEMORY_LIMIT=1024.

  mbal serve -m 1024 -p 11211          a gigabyte, on loopback
  mbal serve -l '*' -c 10000           for other hosts too, which need no password: mind who can reach it
  mbal serve -s /run/mbal.sock -a 770  for this host alone, by file permissions";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let called = arguments.first().map(Path::new).and_then(Path::file_name);
    let as_memcached = called.is_some_and(|name| name.to_string_lossy().starts_with("memcached"));
    let mut command = if as_memcached { as_memcached_command() } else { mbal_command() };
    let layered = match with_file(&command, as_memcached, arguments) {
        Ok(layered) => layered,
        Err(refused) => {
            log::error("config_refused", &refused.text);
            return ExitCode::from(refused.code);
        }
    };
    let matches = match command.try_get_matches_from_mut(&layered.words) {
        Ok(matches) => matches,
        Err(error) => {
            let subcommand = layered.words.get(1).and_then(|name| command.find_subcommand(name));
            let code = told(subcommand.unwrap_or(&command), &error);
            if let Some(places) = layered.places(&error) {
                eprintln!("{places}");
            }
            return code;
        }
    };
    if as_memcached {
        return serve(&matches, true);
    }
    match matches.subcommand() {
        Some(("serve", matches)) => serve(matches, false),
        Some(("up", matches)) => up::run(&read(matches), layered.file.as_ref()),
        Some(("coordinator", matches)) => coordinator::run(&read(matches)),
        Some(("proxy", matches)) => proxy::run(read(matches), read(matches), &layered.words[2..]),
        Some(("cluster", matches)) => of_cluster(matches),
        Some(("pool", matches)) => match matches.subcommand() {
            Some(("resize", matches)) => pool::resize(&read(matches)),
            Some(("autoscale", matches)) => pool::autoscale(&read(matches)),
            _ => unreachable!("clap asks for one of its subcommands"),
        },
        Some(("config", matches)) => config::run(matches, &command, refusal),
        Some(("demo", matches)) => demo::run(&read(matches)),
        Some(("doctor", matches)) => examine(matches, &command),
        Some(("bench", matches)) => mbal_bench::run(read(matches)),
        Some(("top", matches)) => {
            asked(matches, |server| operator::top(&read(matches), &read(matches), server))
        }
        Some(("completions", matches)) => completions::run(&read(matches), mbal_command()),
        Some(("man", matches)) => man::run(&read(matches), mbal_command()),
        _ => unreachable!("clap asks for one of its subcommands"),
    }
}

/// What the command line means together with its configuration file.
fn with_file(
    command: &Command,
    as_memcached: bool,
    arguments: Vec<OsString>,
) -> Result<CommandLine, config::Refusal> {
    if as_memcached {
        return config::layered(command, "serve", &mbal_command(), arguments);
    }
    let reads = |name: &OsString| SECTIONS.into_iter().find(|section| *name == **section);
    let Some(section) = arguments.get(1).and_then(reads) else {
        return Ok(CommandLine::without_file(arguments));
    };
    let of = command.find_subcommand(section).expect("a section is a subcommand");
    let mut arguments = arguments.into_iter();
    let program = arguments.next();
    let mut layered = config::layered(of, section, command, arguments.collect())?;
    layered.words.splice(0..0, program);
    Ok(layered)
}

/// For a server as flags, environment and file set it.
fn examine(matches: &ArgMatches, all: &Command) -> ExitCode {
    let serve = doctor::of_server(all.find_subcommand("serve").expect("it is a subcommand"));
    let layered = match config::layered(&serve, "serve", all, doctor::words(matches)) {
        Ok(layered) => layered,
        Err(refused) => {
            eprintln!("{}", refused.text);
            return ExitCode::from(refused.code);
        }
    };
    match serve.clone().try_get_matches_from(&layered.words) {
        Ok(of_server) => {
            doctor::run(read(&of_server), matches.get_flag("running"), matches.get_flag("json"))
        }
        Err(error) => told(&serve, &error),
    }
}

/// What a process would say against flags that clap takes.
fn refusal(section: &str, matches: &ArgMatches) -> Option<String> {
    match section {
        "serve" => read::<Flags>(matches).check(false, None).err().map(|refused| refused.reason),
        "coordinator" => read::<coordinator::Coordinator>(matches).refusal(),
        _ => None,
    }
}

/// What a cluster and a server answer alike, of the server that is named, if one is. What the environment says names none, but where no
/// coordinator is said either.
fn asked(matches: &ArgMatches, ask: impl FnOnce(bool) -> ExitCode) -> ExitCode {
    let said = |id: &&str, source| {
        matches.try_contains_id(id).is_ok_and(|has| has) && matches.value_source(id) == Some(source)
    };
    let typed = |id: &&str| said(id, ValueSource::CommandLine);
    let is_named = ["named", "flagged", "port", "control"].iter().any(typed);
    if is_named && typed(&"coordinator") {
        eprintln!("mbal: a server is named, and --coordinator asks a cluster: say one of them");
        return ExitCode::FAILURE;
    }
    let has_coordinator = said(&"coordinator", ValueSource::EnvVariable);
    ask(is_named || said(&"control", ValueSource::EnvVariable) && !has_coordinator)
}

fn of_cluster(matches: &ArgMatches) -> ExitCode {
    match matches.subcommand() {
        Some(("status", matches)) => {
            asked(matches, |server| operator::status(&read(matches), server))
        }
        Some(("map", matches)) => cluster::map(&read(matches)),
        Some(("events", matches)) => cluster::events(&read(matches)),
        Some(("hotkeys", matches)) => {
            asked(matches, |server| operator::hot_keys(&read(matches), server))
        }
        Some(("explain", matches)) => {
            asked(matches, |server| operator::explain(&read(matches), server))
        }
        Some(("move", matches)) => {
            asked(matches, |server| operator::move_cachelet(&read(matches), server))
        }
        Some(("split", matches)) => cluster::split(&read(matches)),
        Some(("balance", matches)) => balance::balance(&read(matches)),
        Some(("drain", matches)) => balance::drain(&read(matches)),
        Some(("lost", matches)) => cluster::lost(&read(matches)),
        Some(("scale", matches)) => scale::scale(&read(matches)),
        Some(("autoscale", matches)) => scale::autoscale(&read(matches)),
        Some(("forecast", matches)) => scale::forecast(&read(matches)),
        _ => unreachable!("clap asks for one of its subcommands"),
    }
}

fn read<F: FromArgMatches>(matches: &ArgMatches) -> F {
    F::from_arg_matches(matches).expect("clap has checked them")
}

fn mbal_command() -> Command {
    Command::new("mbal")
        .version(MBAL)
        .about("A memcached-compatible cache that keeps itself balanced.")
        .help_template(HELP)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve_command("serve", MBAL).display_name("mbal"))
        .subcommand(up::Up::augment_args(Command::new("up").about(UP)).arg(config::flag()))
        .subcommand(
            coordinator::Coordinator::augment_args(Command::new("coordinator").about(COORDINATOR))
                .arg(config::flag()),
        )
        .subcommand(proxy::command().about(PROXY))
        .subcommand(config::command())
        .subcommand(doctor::command())
        .subcommand(demo::Demo::augment_args(Command::new("demo").about(DEMO)))
        .subcommand(cluster_command())
        .subcommand(pool_command())
        .subcommand(mbal_bench::Args::augment_args(Command::new("bench").about(BENCH)))
        .subcommand(operator::OfCluster::augment_args(mbal_top::Args::augment_args(
            Command::new("top").about(TOP),
        )))
        .subcommand(completions::Completions::augment_args(
            Command::new("completions").about(COMPLETIONS),
        ))
        .subcommand(man::Manual::augment_args(Command::new("man").about(MANUAL)))
}

fn group(name: &'static str, about: &'static str) -> Command {
    Command::new(name).about(about).subcommand_required(true).arg_required_else_help(true)
}

/// In the order in which people need them: to look, to move, to change.
fn cluster_command() -> Command {
    let one = |name, about| Command::new(name).about(about);
    group("cluster", CLUSTER)
        .subcommand(operator::Status::augment_args(one(
            "status",
            "Servers and loads of a cluster, or the workers of one server.",
        )))
        .subcommand(cluster::Map::augment_args(one(
            "map",
            "A cluster's servers, and who has which cachelet.",
        )))
        .subcommand(cluster::Events::augment_args(one(
            "events",
            "What a cluster's coordinator has decided.",
        )))
        .subcommand(operator::HotKeys::augment_args(one(
            "hotkeys",
            "The hottest keys, and where their copies are.",
        )))
        .subcommand(operator::Explain::augment_args(one(
            "explain",
            "Why a key or a cachelet is where it is.",
        )))
        .subcommand(operator::Move::augment_args(one(
            "move",
            "Moves a cachelet to another server, or lends it to another worker.",
        )))
        .subcommand(cluster::Split::augment_args(one(
            "split",
            "Splits a cachelet of a cluster into its two halves.",
        )))
        .subcommand(balance::Balance::augment_args(one(
            "balance",
            "Turns a cluster's balance between servers on or off.",
        )))
        .subcommand(balance::Drain::augment_args(one(
            "drain",
            "Empties a server of a cluster, so that it may be stopped.",
        )))
        .subcommand(cluster::Lost::augment_args(one(
            "lost",
            "Says that a server of a cluster is dead.",
        )))
        .subcommand(scale::Scale::augment_args(one(
            "scale",
            "Changes how many servers share the keys.",
        )))
        .subcommand(scale::Autoscale::augment_args(one(
            "autoscale",
            "Has the coordinator change how many servers there are.",
        )))
        .subcommand(scale::Forecast::augment_args(one(
            "forecast",
            "The hit ratio that every number of servers would have.",
        )))
}

fn pool_command() -> Command {
    group("pool", POOL)
        .subcommand(pool::Pool::augment_args(
            Command::new("resize").about("Moves items to where clients will look for them."),
        ))
        .subcommand(pool::AutoPool::augment_args(
            Command::new("autoscale")
                .about("Has a pool behind proxies grow and shrink by what its database bears."),
        ))
}

fn as_memcached_command() -> Command {
    serve_command("memcached", AS_MEMCACHED).about(SERVE_AS_MEMCACHED)
}

fn serve_command(name: &'static str, version: &'static str) -> Command {
    Flags::augment_args(Command::new(name))
        .arg(config::flag())
        .version(version)
        .about(SERVE)
        .after_help(SERVE_AFTER)
        .help_template(HELP)
        .infer_long_args(true)
        .args_override_self(true)
        .mut_args(|flag| flag.hide_env(true))
}

/// Help and version are an answer; what cannot be read is a failure, by memcached's exit code.
fn told(command: &Command, error: &clap::Error) -> ExitCode {
    // Nothing is left to say it to when stdout and stderr are gone.
    drop(match wording::reworded(command, error) {
        Some(text) => std::io::stderr().write_all(text.as_bytes()),
        None => error.print(),
    });
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn serve(matches: &ArgMatches, as_memcached: bool) -> ExitCode {
    let port_file = std::env::var_os("MEMCACHED_PORT_FILENAME").map(Into::into);
    let flags = read::<Flags>(matches);
    if flags.license {
        print!("{}", include_str!("../../../LICENSE"));
        return ExitCode::SUCCESS;
    }
    flags.log.set();
    let Checked { config, notices } = match flags.check(as_memcached, port_file) {
        Ok(checked) => checked,
        Err(refused) => {
            log::error("flags_refused", &refused.reason);
            return ExitCode::from(refused.exit_code);
        }
    };
    for notice in notices {
        log::warn("flag_without_effect", &format!("mbal: {notice}"));
    }
    let verbose = config.settings.verbosity > 0;
    let running = match Server::open(config).and_then(Server::start) {
        Ok(running) => running,
        Err(error) => {
            log::error("not_started", &error.to_string());
            return ExitCode::from(error.exit_code());
        }
    };
    // memcached starts without a word.
    if verbose || !as_memcached {
        let starting = running.starting();
        let mut fields =
            vec![("version", MBAL.to_owned()), ("pid", std::process::id().to_string())];
        fields.extend(starting.fields());
        log::say(Level::Info, "started", &format!("mbal {MBAL}: {starting}"), &fields);
        if let Some(example) = &starting.example {
            log::info("example", &format!("try it: {example}"));
        }
    }
    match running.wait() {
        Ok(Ended::Gracefully) => log::info("stopping_gracefully", "Gracefully stopping"),
        Ok(Ended::Normally) if verbose => log::info("stopped", "Exiting normally"),
        Ok(Ended::Normally) => {}
        Err(error) => {
            log::error("failed", &error.to_string());
            return ExitCode::from(error.exit_code());
        }
    }
    ExitCode::SUCCESS
}
