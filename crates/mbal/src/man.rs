//! `mbal man`: a manual page for each command, from the same definitions as `--help`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  mbal man ~/.local/share/man/man1
                            then: man mbal, man mbal-serve, man mbal-cluster-status

The Debian package has them.")]
pub struct Manual {
    /// The folder to write them to; it is made if need be
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub fn run(manual: &Manual, command: Command) -> ExitCode {
    let written = write(&manual.folder, command);
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mbal man {}: {error}", manual.folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path, command: Command) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, page) in pages(command)? {
        fs::write(folder.join(format!("{name}.1")), page)?;
    }
    Ok(())
}

/// The page of each command, by its name: `mbal-cluster-status`.
fn pages(command: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    // `mbal serve -V` is to say "mbal"; its page is one of many.
    let mut command = command
        .disable_help_subcommand(true)
        .mut_subcommand("serve", |serve| serve.display_name("mbal-serve"));
    command.build();
    let version = command.get_version().unwrap_or_default().to_owned();
    let mut pages = Vec::new();
    let mut below = vec![command];
    while let Some(command) = below.pop() {
        below.extend(command.get_subcommands().filter(|one| !one.is_hide_set()).cloned());
        let name = command.get_display_name().unwrap_or("mbal").to_owned();
        pages.push((name, page(command, &version)?));
    }
    Ok(pages)
}

fn page(command: Command, version: &str) -> io::Result<Vec<u8>> {
    let after = command.get_after_help().map(ToString::to_string);
    let above = command.get_display_name().and_then(|name| Some(name.rsplit_once('-')?.0));
    let above = above.unwrap_or("mbal").to_owned();
    let has_commands = command.has_subcommands();
    // `--help` leaves out the variables of `mbal serve` for its width. A page has room.
    let command = command.mut_args(|flag| flag.hide_env(false));
    let man = Man::new(command).source(format!("mbal {version}")).manual("MBal");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(after) = after {
        examples(&after).to_writer(&mut page)?;
    }
    let mut also = Roff::new();
    also.control("SH", ["SEE ALSO"]).text([roman(format!("{above}(1)"))]);
    also.to_writer(&mut page)?;
    Ok(page)
}

/// What stands below a help text, in its own lines: they are commands, and remarks in columns.
fn examples(after: &str) -> Roff {
    let text = after.strip_prefix("EXAMPLES\n").unwrap_or(after);
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mbal_command;

    fn named(name: &str) -> String {
        let pages = pages(mbal_command()).expect("they are written to memory");
        let (_, page) = pages.into_iter().find(|(of, _)| of == name).expect("there is a page");
        String::from_utf8(page).expect("help is text")
    }

    #[test]
    fn each_command_has_a_page_with_its_flags_variables_and_examples() {
        let page = named("mbal-serve");
        for text in [
            ".TH mbal-serve 1",
            "\\-\\-memory\\-limit",
            "MBAL_MEMORY_LIMIT",
            ".SH EXAMPLES",
            "\n  mbal serve \\-m 1024 \\-p 11211 ",
            "mbal(1)",
        ] {
            assert!(page.contains(text), "no {text:?} in {page}");
        }
        assert!(!page.contains("\\-\\-chaos"), "it is hidden: for tests");
        assert!(named("mbal-cluster-status").contains("mbal\\-cluster(1)"));
        assert!(named("mbal").contains("mbal\\-serve(1)"));
    }

    /// Of a page that is named after another one, `man` finds only one of the two.
    #[test]
    fn no_two_pages_have_a_name() {
        let mut names: Vec<String> =
            pages(mbal_command()).expect("in memory").into_iter().map(|(name, _)| name).collect();
        let all = names.len();
        assert!(all > 20, "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
