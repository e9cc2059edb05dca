//! `mbal cluster hotkeys`, and what `status`, `explain` and `top` say of hot keys.

use std::fmt::Write;

use mbal_control::api::{HotCall, HotKeys, HotMode, HotReport, HotState, HotStatus};
use mbal_model::ServerId;
use mbal_server::Caller;

use crate::cluster::{Token, caller, read, text, text_with};

const PATH: &str = "/v1/hotkeys";

/// `mbal cluster hotkeys --coordinator URL`.
pub fn of_cluster(url: &str, token: &Token, json: bool) -> Result<String, String> {
    let told = caller(url, token).and_then(|caller| text(&caller, "GET", PATH, None))?;
    shown(told, json)
}

/// What a coordinator or a server has answered, for people unless they want the JSON.
pub fn shown(told: String, json: bool) -> Result<String, String> {
    if json { Ok(told.trim_end().to_owned() + "\n") } else { Ok(table(&read(&told)?, usize::MAX)) }
}

pub fn set_mode(url: &str, token: &Token, mode: HotMode) -> Result<(), String> {
    let asked = caller(url, token);
    asked.and_then(|caller| text_with(&caller, "PUT", PATH, Some(&HotCall { mode }))).map(drop)
}

pub fn of(caller: &Caller) -> Result<HotKeys, String> {
    read(&text(caller, "GET", PATH, None)?)
}

/// The hottest, so many at most.
pub fn table(told: &HotKeys, count: usize) -> String {
    let mut out = summary(&told.status);
    if told.keys.is_empty() {
        return out;
    }
    out += "   reads/s  by copies   writes/s     r:w  state    home  copies          key\n";
    for key in told.keys.iter().take(count) {
        let HotReport { reads, copy_reads, writes, copies, state, .. } = &key.report;
        let ratio = if *writes > 0.0 { format!("{:.0}", reads / writes) } else { "-".into() };
        let servers = if state.is_some() { servers(copies) } else { "-".into() };
        let _ = writeln!(
            out,
            "{reads:>10.0} {copy_reads:>10.0} {writes:>10.0} {ratio:>7}  {:<7} {:>5}  {servers:<15} {}",
            in_a_word(*state, told.status.told.mode),
            key.server,
            key.report.key,
        );
    }
    out
}

/// One line: how hot keys are copied, and how many are.
pub fn summary(hot: &HotStatus) -> String {
    let mode = match hot.told.mode {
        HotMode::Off => return "hot keys are not copied\n".into(),
        HotMode::Async => "async",
        HotMode::Atomic => "atomic",
    };
    let lease_ms = hot.told.lease_ms;
    let copied = format!("{} with {}", counted(hot.copied, "key"), counted(hot.copies, "copy"));
    format!("hot keys are copied {mode}, lease {lease_ms} ms; {}: {copied}\n", threshold(hot))
}

fn threshold(hot: &HotStatus) -> String {
    match hot.told.threshold {
        _ if hot.told.mode == HotMode::Off => "hot keys are not copied".into(),
        None => "T is not known yet, the last one stands".into(),
        Some(rate) if rate > 0.0 => format!("T is {rate:.0}/s"),
        Some(_) => "T is each server's own".into(),
    }
}

fn counted(count: usize, what: &str) -> String {
    match (count, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (_, Some(stem)) if what == "copy" => format!("{count} {stem}ies"),
        _ => format!("{count} {what}s"),
    }
}

fn servers(copies: &[u16]) -> String {
    let numbers: Vec<String> = copies.iter().map(u16::to_string).collect();
    numbers.join(",")
}

fn in_a_word(state: Option<HotState>, mode: HotMode) -> &'static str {
    match state {
        // However often it is read.
        None if mode == HotMode::Off => "-",
        None => "cold",
        Some(HotState::HotPending) => "pending",
        Some(HotState::Hot) => "hot",
        Some(HotState::ColdPending) => "cooling",
    }
}

/// A key's story, of which `server` is the home.
pub fn of_key(key: &str, server: ServerId, told: &HotKeys) -> String {
    let at = threshold(&told.status);
    let listed = |one: &&mbal_control::api::HotKey| one.server == server.0 && one.report.key == key;
    let Some(one) = told.keys.iter().find(listed) else {
        return format!("not among the hottest keys of its server; {at}\n");
    };
    let HotReport { reads, copy_reads, writes, state, copies, copied_ms, .. } = &one.report;
    let elsewhere = match state {
        Some(_) => format!(" ({copy_reads:.0}/s of that from copies)"),
        None => String::new(),
    };
    let rates = format!("read {reads:.0}/s{elsewhere}, written {writes:.0}/s; {at}");
    match state {
        None if one.report.is_write_hot(told.status.told.mode) => {
            format!("{rates}: cold, it is written too often for copies\n")
        }
        None if told.status.told.mode == HotMode::Off => format!("{rates}\n"),
        None => format!("{rates}: cold, no copies\n"),
        Some(_) => format!(
            "{rates}: {} for {} s, gamma {}, copies on servers {}\n",
            in_a_word(*state, told.status.told.mode),
            copied_ms / 1000,
            one.report.gamma(),
            servers(copies),
        ),
    }
}

#[cfg(test)]
mod tests {
    use mbal_control::api::{HotKey, HotTold};

    use super::*;

    fn key(server: u16, name: &str, rates: [f64; 2], copies: &[u16]) -> HotKey {
        let state = (!copies.is_empty()).then_some(HotState::Hot);
        let [reads, writes] = rates;
        let copies = copies.to_vec();
        let copy_reads = if copies.is_empty() { 0.0 } else { reads * 0.75 };
        let key = name.into();
        let rest = HotReport::default();
        let report = HotReport { key, reads, copy_reads, writes, state, copies, ..rest };
        HotKey { server, report }
    }

    fn told() -> HotKeys {
        let told = HotTold { mode: HotMode::Atomic, lease_ms: 1000, threshold: Some(24_700.4) };
        let status = HotStatus { told, servers: 9, requests: 2e5, copied: 1, copies: 3 };
        let keys = vec![
            key(2, "user:1", [98_800.0, 3.0], &[3, 5, 7]),
            key(1, "a%20b", [900.0, 0.0], &[]),
            key(1, "counter", [90.0, 60.0], &[]),
        ];
        HotKeys { status, keys }
    }

    #[test]
    fn a_table_says_how_hot_keys_are_and_where_their_copies_are() {
        let expected = "\
hot keys are copied atomic, lease 1000 ms; T is 24700/s: 1 key with 3 copies
   reads/s  by copies   writes/s     r:w  state    home  copies          key
     98800      74100          3   32933  hot         2  3,5,7           user:1
       900          0          0       -  cold        1  -               a%20b
        90          0         60       2  cold        1  -               counter
";
        assert_eq!(table(&told(), 10), expected);
        assert_eq!(table(&told(), 1).lines().count(), 3);
        // Nobody looks whether it is hot.
        let mut off = told();
        off.status.told.mode = HotMode::Off;
        assert!(table(&off, 10).contains(" -       "), "{}", table(&off, 10));
        assert!(!table(&off, 10).contains("cold"));
        let said = "read 900/s, written 0/s; hot keys are not copied\n";
        assert_eq!(of_key("a%20b", ServerId(1), &off), said);
    }

    #[test]
    fn one_line_says_whether_anything_is_copied() {
        let with = |threshold| {
            let told = HotTold { mode: HotMode::Async, lease_ms: 500, threshold };
            summary(&HotStatus { told, copied: 2, copies: 1, ..HotStatus::default() })
        };
        assert_eq!(summary(&HotStatus::default()), "hot keys are not copied\n");
        let cases = [
            (None, "T is not known yet, the last one stands"),
            (Some(0.0), "T is each server's own"),
            (Some(7.0), "T is 7/s"),
        ];
        for (threshold, said) in cases {
            let line =
                format!("hot keys are copied async, lease 500 ms; {said}: 2 keys with 1 copy\n");
            assert_eq!(with(threshold), line);
        }
    }

    #[test]
    fn a_key_says_why_it_has_no_copies() {
        let server = ServerId(1);
        let cold = "read 900/s, written 0/s; T is 24700/s: cold, no copies\n";
        assert_eq!(of_key("a%20b", server, &told()), cold);
        let written =
            "read 90/s, written 60/s; T is 24700/s: cold, it is written too often for copies\n";
        assert_eq!(of_key("counter", server, &told()), written);
        // Eleven reads a write are enough for a copy that is told afterwards, and not for one that lets go first.
        for (mode, is_too_often) in [(HotMode::Atomic, true), (HotMode::Async, false)] {
            let mut told = told();
            told.status.told.mode = mode;
            told.keys[2].report.reads = 660.0;
            let said = of_key("counter", server, &told);
            assert_eq!(said.contains("it is written too often"), is_too_often, "{said}");
        }
        let hot = "read 98800/s (74100/s of that from copies), written 3/s; T is 24700/s: hot for 0 s, gamma 3, copies on servers 3,5,7\n";
        assert_eq!(of_key("user:1", ServerId(2), &told()), hot);
        let mut idle = told();
        let counter = idle.keys.iter_mut().find(|one| one.report.key == "counter");
        let report = &mut counter.expect("it is listed").report;
        (report.reads, report.writes) = (0.0, 0.0);
        let nothing = "read 0/s, written 0/s; T is 24700/s: cold, no copies\n";
        assert_eq!(of_key("counter", server, &idle), nothing);
        let off = "not among the hottest keys of its server; hot keys are not copied\n";
        assert_eq!(of_key("user:1", server, &HotKeys::default()), off);
    }
}
