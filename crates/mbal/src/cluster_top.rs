//! `mbal top --coordinator URL`: servers, loads, moves and the last decisions of a cluster, over and over.

use std::process::ExitCode;

use mbal_top::{Args, Page};
use mbal_wire::printable;

use crate::cluster::{Token, caller, clock, events_of, read, table, text};
use crate::hot_keys;

/// Decisions that are shown, the newest first.
const EVENTS: usize = 12;
/// Hot keys that are shown, the hottest first.
const HOT_KEYS: usize = 8;

pub fn top(args: &Args, url: &str, token: &Token) -> ExitCode {
    let caller = match caller(url, token) {
        Ok(caller) => caller,
        Err(why) => {
            eprintln!("mbal top: {}", printable(&why));
            return ExitCode::FAILURE;
        }
    };
    mbal_top::run_pages(args, || {
        let status = text(&caller, "GET", "/v1/status", None)?;
        let mut page = table(&read(&status)?);
        if let Some(told) = hot_keys::of(&caller).ok().filter(|told| !told.keys.is_empty()) {
            page += "\n";
            page += &hot_keys::table(&told, HOT_KEYS);
        }
        page += "\nlast decisions\n";
        for event in events_of(&caller)?.iter().take(EVENTS) {
            page += &format!("{} {:>5} {}\n", clock(event.unix), event.number, event.text);
        }
        Ok(Page { text: printable(&page), json: status })
    })
}
