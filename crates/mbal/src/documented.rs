//! What the pages and the help texts say can be typed: every command line is read as the binary reads it.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use clap::error::ErrorKind;

use crate::mbal_command;

/// Pages whose commands are for the present program, and not for the one that was measured or decided on.
const FOLDERS: [&str; 2] = ["docs/how-to", "docs/reference"];
const PAGES: [&str; 9] = [
    "README.md",
    "docs/index.md",
    "docs/page.md",
    "docs/tutorial.md",
    "docs/questions.md",
    "docs/clients.md",
    "docs/demo.md",
    "docs/bench.md",
    "docs/results/tools.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Of a folder, as names from the root.
fn pages_of(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).expect("it is there");
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = names.filter(|name| name.ends_with(".md"));
    pages.map(|name| format!("{folder}/{name}")).collect()
}

fn text_of(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// What stands for something in a documented command, and an example of it.
const EXAMPLES: [(&str, &str); 5] =
    [("{threads}", "2"), ("{memory}", "64"), ("{port}", "11211"), ("$m", "64"), ("$port", "11211")];

/// The command lines of a page: in its blocks, and between backticks or quotes.
fn commands(page: &str) -> Vec<String> {
    // What goes on in the next line is one command.
    let page = page.split("\\\n").map(str::trim).collect::<Vec<_>>().join(" ");
    let (blocks, prose): (Vec<&str>, Vec<&str>) =
        page.lines().partition(|line| line.starts_with("    "));
    let prose = prose.join(" ");
    let inline = prose.split('`').skip(1).step_by(2);
    blocks.into_iter().chain(inline).flat_map(in_line).collect()
}

/// Those of one line: from `mbal` and a subcommand up to what ends it, a remark behind several spaces included.
fn in_line(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (start, _) in line.match_indices("mbal ") {
        let before = line[..start].chars().next_back();
        let is_package = line[..start].ends_with("-p ");
        if is_package || !before.is_none_or(|before| " '\"".contains(before)) {
            continue;
        }
        let (mut words, mut word, mut quote) = (Vec::new(), None, None);
        let mut rest = line[start..].chars().peekable();
        while let Some(character) = rest.next() {
            match (quote, character) {
                (Some(open), character) if character == open => quote = None,
                (None, '\'' | '"') if before == Some(character) => break,
                (None, '\'' | '"') => {
                    (quote, word) = (Some(character), Some(word.unwrap_or_default()))
                }
                (None, ';' | '|' | '&' | '#' | ')' | '>') => break,
                (None, ' ') if rest.peek() == Some(&' ') => break,
                (None, ' ') => words.extend(word.take()),
                (_, character) => word.get_or_insert_with(String::new).push(character),
            }
        }
        words.extend(word);
        found.push(words.join("\0"));
    }
    found
}

/// A pattern, not a command: `[flags]`, `KEY`, `--seed N`.
fn is_pattern(command: &str) -> bool {
    let named = |word: &str| {
        word == "N" || word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || c == '|')
    };
    command.contains(['[', '…']) || command.split('\0').any(named)
}

/// What cannot be read of these command lines, and how many there are.
fn unreadable(commands: Vec<String>) -> (Vec<String>, usize) {
    let mut refused = Vec::new();
    let mut read = 0;
    for command in commands.into_iter().filter(|command| !is_pattern(command)) {
        let filled = EXAMPLES.iter().fold(command, |text, (name, with)| text.replace(name, with));
        let error = mbal_command().try_get_matches_from(filled.split('\0')).err();
        let told = |kind| matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        match error.filter(|error| !told(error.kind())) {
            Some(error) => refused.push(format!("{}: {error}", filled.replace('\0', " "))),
            None => read += 1,
        }
    }
    (refused, read)
}

#[test]
fn every_documented_command_can_be_typed() {
    let pages = FOLDERS.iter().flat_map(|folder| pages_of(folder));
    let mut read_of_all = 0;
    for page in pages.chain(PAGES.map(String::from)) {
        let (refused, read) = unreadable(commands(&text_of(&page)));
        assert!(refused.is_empty(), "{page}: {}", refused.join("\n"));
        read_of_all += read;
    }
    assert!(read_of_all > 100, "{read_of_all}");
}

/// As headings are named in links: small letters and digits, hyphens for blanks.
fn anchor(heading: &str) -> String {
    let plain = heading.trim_start_matches('#').trim().to_lowercase().replace('`', "");
    let kept = plain.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let folders = FOLDERS.into_iter().chain(["docs", "docs/design", "docs/results"]);
    let pages = folders.flat_map(pages_of);
    let (mut broken, mut followed) = (Vec::new(), 0);
    for page in pages.chain(["README.md", "CONTRIBUTING.md"].map(String::from)) {
        let text = text_of(&page);
        let links = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
        for link in links.filter(|link| !link.contains("://") && !link.contains(' ')) {
            let (path, name) = link.split_once('#').unwrap_or((link, ""));
            let beside = Path::new(&page).parent().expect("a page is in a folder").join(path);
            let target = if path.is_empty() { PathBuf::from(&page) } else { beside };
            let is_there = root().join(&target).exists();
            let has_heading = name.is_empty()
                || is_there && {
                    let text = fs::read_to_string(root().join(&target)).unwrap_or_default();
                    text.lines().any(|line| line.starts_with('#') && anchor(line) == name)
                };
            followed += 1;
            if !is_there || !has_heading {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(followed > 200, "{followed}");
}

const UNITS: [&str; 2] = [
    include_str!("../../../systemd/mbal-server.service"),
    include_str!("../../../systemd/mbal-coordinator.service"),
];

#[test]
fn the_units_of_systemd_start_what_there_is_with_settings_that_it_knows() {
    for unit in UNITS {
        let lines = |name: &str| -> Vec<&str> {
            unit.lines().filter_map(|line| line.strip_prefix(name)).collect()
        };
        let [started] = lines("ExecStart=/usr/local/bin/mbal ")[..] else {
            panic!("one command: {unit}")
        };
        let command = mbal_command();
        let subcommand = command.find_subcommand(started).expect("it is a subcommand");
        let known = subcommand.get_arguments().filter_map(|flag| flag.get_env());
        let known: Vec<&str> = known.filter_map(|name| name.to_str()).collect();
        let said = unit.split([' ', '=', '\n']).filter(|word| word.starts_with("MBAL_"));
        let unknown: Vec<&str> = said.filter(|name| !known.contains(name)).collect();
        assert!(unknown.is_empty(), "{started}: {unknown:?}");
        assert!(unit.contains("MBAL_"), "{started} is told something");
    }
}

/// Its flags have no variables of their own.
#[test]
fn the_proxys_unit_takes_flags_as_they_are_typed() {
    let unit = include_str!("../../../systemd/mbal-proxy.service");
    assert!(unit.contains("ExecStart=/usr/local/bin/mbal proxy $MBAL_PROXY_FLAGS\n"), "{unit}");
    let settings = include_str!("../../../systemd/proxy.env");
    let flags = settings.lines().find_map(|line| line.strip_prefix("#MBAL_PROXY_FLAGS="));
    let flags = flags.expect("there is an example").split(' ');
    let read = mbal_command().try_get_matches_from(["mbal", "proxy"].into_iter().chain(flags));
    assert!(read.is_ok(), "{}", read.err().map(|error| error.to_string()).unwrap_or_default());
}

#[test]
fn every_example_of_the_help_texts_can_be_typed() {
    let mut read = 0;
    for (subcommand, _) in subcommands(&mbal_command()) {
        // 0: lines are left as they are.
        let help = subcommand.term_width(0).render_long_help().to_string();
        let examples = help
            .lines()
            .filter(|line| line.trim_start().starts_with("mbal ") && line.starts_with(' '));
        let (refused, found) = unreadable(examples.flat_map(in_line).collect());
        assert!(refused.is_empty(), "{}", refused.join("\n"));
        read += found;
    }
    assert!(read >= 15, "only {read} examples were found");
}

/// Those that do something, each with the help of the one above, which may have its examples.
fn subcommands(above: &Command) -> Vec<(Command, String)> {
    let help = above.clone().term_width(0).render_long_help().to_string();
    let below = above.get_subcommands().flat_map(|one| match one.has_subcommands() {
        true => subcommands(one),
        false => vec![(one.clone(), help.clone())],
    });
    below.collect()
}

#[test]
fn every_help_has_an_example_and_describes_its_arguments() {
    let all = subcommands(&mbal_command());
    assert!(all.len() > 8, "{}", all.len());
    for (subcommand, above) in all {
        let name = subcommand.get_name().to_owned();
        for argument in subcommand.get_arguments().filter(|argument| !argument.is_hide_set()) {
            assert!(
                argument.get_help().is_some(),
                "{name}: {} has no description",
                argument.get_id()
            );
        }
        let help = subcommand.clone().term_width(0).render_long_help().to_string() + &above;
        let is_example = |line: &str| {
            line.starts_with("  ") && line.contains("mbal ") && line.contains(&format!(" {name}"))
        };
        assert!(help.lines().any(is_example), "{name} has no example: {help}");
    }
}

#[test]
fn help_is_as_wide_as_the_terminal() {
    const COLUMNS: usize = 60;
    for (subcommand, _) in subcommands(&mbal_command()) {
        let name = subcommand.get_name().to_owned();
        let help = subcommand.term_width(COLUMNS).render_long_help().to_string();
        // What has no blank is left whole.
        let is_wide = |line: &&str| line.len() > COLUMNS && line.trim().contains(' ');
        assert_eq!(help.lines().find(is_wide), None, "{name}");
    }
}

/// Long flags that a page names, `--like this`.
fn flags(page: &str) -> impl Iterator<Item = &str> {
    page.match_indices("--").filter_map(|(at, _)| {
        let before = page[..at].chars().next_back()?;
        let name = &page[at + 2..];
        let end = name.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(name.len());
        (!before.is_ascii_alphanumeric() && before != '-' && !name.starts_with('-') && end > 0)
            .then(|| &name[..end])
    })
}

#[test]
fn every_flag_that_the_page_of_the_bench_names_is_there() {
    let command = mbal_command();
    let known = |name: &str| {
        let has =
            |command: &Command| command.get_arguments().any(|flag| flag.get_long() == Some(name));
        name == "help" || command.get_subcommands().any(has)
    };
    let page = &text_of("docs/bench.md");
    let unknown: Vec<&str> = flags(page).filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    assert!(flags(page).count() > 50);
}

#[test]
fn commands_are_found_where_they_stand() {
    let page = "`mbal top --once`\n\n    for m in 1; do mbal bench --serve '' --memory $m \\\n        --keys 5; done\n    \
                mbal serve -t 4 &\n    mbal top      a remark\n    mbal bench --compare 'mbal serve -p {port}' --rate 50%\n";
    let found: Vec<String> =
        commands(page).iter().map(|command| command.replace('\0', "·")).collect();
    assert_eq!(
        found,
        [
            "mbal·bench·--serve··--memory·$m·--keys·5",
            "mbal·serve·-t·4",
            "mbal·top",
            "mbal·bench·--compare·mbal serve -p {port}·--rate·50%",
            "mbal·serve·-p·{port}",
            "mbal·top·--once",
        ]
    );
}
