//! `conformance scripts|covers|differential`: see `conformance/run`, which calls all of them.

#![forbid(unsafe_code)]

use mbal_conformance::covers;
use mbal_conformance::play::Cut;
use mbal_conformance::runner::{self, Against};
use mbal_conformance::server::Launch;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage:
  conformance scripts --server COMMAND [--unix] [--cut bytes] [--newer] [--jobs N] FOLDER...
  conformance covers [--source FOLDER] LIST FOLDER...";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let result = match words.next().as_deref() {
        Some("scripts") => scripts(words.collect()),
        Some("covers") => covers(words.collect()),
        _ => Err(USAGE.to_string()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn scripts(words: Vec<String>) -> Result<bool, String> {
    let mut server = None;
    let (mut unix, mut newer, mut cut, mut jobs) = (false, false, Cut::Whole, 8);
    let mut folders = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value\n{USAGE}"));
        match word.as_str() {
            "--server" => server = Some(value()?),
            "--unix" => unix = true,
            "--newer" => newer = true,
            "--cut" if value()? == "bytes" => cut = Cut::Bytes,
            "--jobs" => jobs = value()?.parse().map_err(|_| USAGE.to_string())?,
            _ if !word.starts_with('-') => folders.push(PathBuf::from(word)),
            _ => return Err(format!("{word}?\n{USAGE}")),
        }
    }
    let command = server.ok_or(USAGE)?;
    let against = Against::Server(Launch::new(&command, unix));
    let outcome = runner::run(&runner::load(&folders)?, &against, cut, newer, jobs);
    for error in &outcome.failed {
        println!("FAILED {error}");
    }
    println!(
        "scripts against {command}: {} passed, {} failed, {} skipped",
        outcome.passed,
        outcome.failed.len(),
        outcome.skipped
    );
    Ok(outcome.failed.is_empty() && outcome.passed > 0)
}

fn covers(words: Vec<String>) -> Result<bool, String> {
    let mut source = None;
    let mut paths = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--source" => source = Some(PathBuf::from(words.next().ok_or(USAGE)?)),
            _ => paths.push(PathBuf::from(word)),
        }
    }
    let (list, folders) = paths.split_first().ok_or(USAGE)?;
    let text = std::fs::read_to_string(list).map_err(|error| format!("{list:?}: {error}"))?;
    let scripts = runner::load(folders)?;
    let missing = covers::missing(&text, &scripts, source.as_deref())?;
    for line in &missing {
        println!("FAILED {line}");
    }
    println!("covers: {} scripts, {} missing", scripts.len(), missing.len());
    Ok(missing.is_empty())
}
