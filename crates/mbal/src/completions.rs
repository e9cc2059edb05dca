//! `mbal completions`: what a shell needs to complete commands and flags.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::{Shell, generate};

#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES
  mbal completions bash >~/.local/share/bash-completion/completions/mbal
  mbal completions zsh >/usr/local/share/zsh/site-functions/_mbal
  mbal completions fish >~/.config/fish/completions/mbal.fish

The Debian package has them where bash, zsh and fish look.")]
pub struct Completions {
    /// For which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub fn run(asked: &Completions, mut command: Command) -> ExitCode {
    let mut script = Vec::new();
    generate(asked.shell, &mut command, "mbal", &mut script);
    match io::stdout().write_all(&script) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mbal: {error}");
            ExitCode::FAILURE
        }
    }
}
