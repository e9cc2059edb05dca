//! `mbal cluster explain KEY|CACHELET --coordinator URL`: which server has it, why, and what was decided about it.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use mbal_control::Subject;
use mbal_control::api::{HotKeys, ServerStatus, Status};
use mbal_dial::{Access, ServerName};
use mbal_model::{Cluster, Owner, Prefix, ServerId};

use crate::cluster::{Decided, Token, caller, clock, events_of, read, text, told};
use crate::hot_keys;

/// A proxy that has not answered by then does not.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn explain(url: &str, token: &Token, what: &str) -> ExitCode {
    told(caller(url, token).and_then(|caller| {
        let map = text(&caller, "GET", "/v1/map", None)?;
        let map = Cluster::parse(&map).map_err(|why| format!("a map that is none: {why}"))?;
        let status: Status = read(&text(&caller, "GET", "/v1/status", None)?)?;
        // A coordinator of an older version knows none.
        let hot = hot_keys::of(&caller).unwrap_or_default();
        explained(what, &map, &status, &hot, &events_of(&caller)?)
    }))
}

/// What a proxy says of a key, whatever port of its own it is asked at.
pub fn by_proxy(proxy: &ServerName, access: &Access, key: &str) -> Result<String, String> {
    let told = |why: io::Error| format!("{proxy}: {why}");
    let mut stream = access.open()?.connect(proxy).map_err(told)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(told)?;
    let mut request = b"stats explain ".to_vec();
    mbal_wire::push_readable(&mut request, &mbal_wire::unescaped(key.as_bytes()));
    request.extend_from_slice(b"\r\nquit\r\n");
    stream.write_all(&request).map_err(told)?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).map_err(told)?;
    let lines = reply.lines().filter_map(|line| line.strip_prefix("STAT explain "));
    let lines: String = lines.flat_map(|line| [line, "\n"]).collect();
    match lines.is_empty() {
        true => Err(format!("{proxy}: {}: is it a proxy?", reply.trim())),
        false => Ok(lines),
    }
}

/// `events` newest first.
fn explained(
    what: &str,
    map: &Cluster,
    status: &Status,
    hot: &HotKeys,
    events: &[Decided],
) -> Result<String, String> {
    let subject = Subject::of(what, &map.map)?;
    let Subject { hash, cachelet: prefix, owner, .. } = subject;
    let mut out = String::new();
    if subject.key.is_some() && Prefix::parse(what.as_bytes()).is_some() {
        let _ = writeln!(out, "{what} is no cachelet of the map: it is taken for a key");
    }
    if subject.key.is_some() {
        let _ = writeln!(out, "key {what}: hash {hash:016x}, cachelet {prefix}");
    }
    out += &where_it_is(prefix, owner, map);
    let servers = status.servers.iter();
    if let Some(server) = servers.clone().find(|server| server.id == owner.server.0) {
        out += &of_server(server);
    }
    if let Some(key) = &subject.key {
        out += &hot_keys::of_key(key, owner.server, hot);
    }
    for one in status.moves.iter().filter(|one| one.prefix == prefix.to_string()) {
        let gone = one.report.as_ref().map_or(0.0, |report| report.part_gone * 100.0);
        let _ = writeln!(out, "move {} takes it to server {}: {gone:.0}% gone", one.number, one.to);
    }
    if status.balance.too_heavy.contains(&prefix.to_string()) {
        out += "its load is more than any worker may have\n";
    }
    let concerns = |event: &&Decided| subject.is_in(&event.text) || may_concern_any(&event.text);
    let mut decided: Vec<&Decided> = events.iter().filter(concerns).collect();
    decided.reverse();
    if decided.is_empty() {
        out += "no decision about it is remembered: it is where the first map, or another coordinator, has put it\n";
    }
    for event in decided {
        let _ = writeln!(out, "{} {:>5} {}", clock(event.unix), event.number, event.text);
    }
    Ok(out)
}

/// A decision that names no cachelet, and may concern any.
fn may_concern_any(event: &str) -> bool {
    event.starts_with("the first map") || event.contains("begin empty elsewhere")
}

fn where_it_is(prefix: Prefix, owner: Owner, map: &Cluster) -> String {
    let Owner { server: ServerId(server), worker } = owner;
    let mut out = format!(
        "cachelet {prefix}: server {server}, worker {} by map {}; lent to another worker of it, if its balancer chose so\n",
        worker.0,
        map.map.version()
    );
    if let Some(addresses) = map.servers.get(&owner.server) {
        let _ = writeln!(
            out,
            "mbal cluster explain {prefix} {} on that host says who asks for it, and what it costs",
            addresses.client
        );
    }
    out
}

fn of_server(server: &ServerStatus) -> String {
    format!(
        "server {}: {}, load {:.2}, {} cachelets, {:.1}% of all hashes\n",
        server.id,
        server.state,
        server.load,
        server.cachelets,
        server.share * 100.0
    )
}

#[cfg(test)]
mod tests {
    use mbal_control::api::{
        HotKey, HotMode, HotReport, HotState, HotStatus, HotTold, MoveDecision, MoveReport,
        MoveStatus,
    };

    use super::*;

    const MAP: &str = "cluster shop\nversion 7\nserver 1 link 10.0.0.1:11311 client 10.0.0.1:11211\n\
        server 2 link 10.0.0.2:11311 client 10.0.0.2:11211\nequal 2\n";

    fn events() -> Vec<Decided> {
        let event = |number, text: &str| Decided { number, unix: number, text: text.into() };
        vec![
            event(5, "key a%20b of server 1 is hot: 900 reads/s"),
            event(4, "move 2: 4000/2 from server 1 to 2: to lighten its worker; it has load 0.5"),
            event(3, "move 1: 0000/2 from server 2 to 1"),
            event(2, "server 2 registers: 10.0.0.2:11211"),
            event(1, "the first map: 4 cachelets"),
        ]
    }

    fn status() -> Status {
        let server = |id, state: &str| ServerStatus {
            id,
            state: state.into(),
            load: 0.25,
            share: 0.5,
            cachelets: 2,
            ..ServerStatus::default()
        };
        Status {
            servers: vec![server(1, "serving"), server(2, "draining")],
            moves: vec![MoveStatus {
                number: 2,
                prefix: "4000/2".into(),
                from: 2,
                to: 1,
                word: MoveDecision::Go,
                report: Some(MoveReport { part_gone: 0.25, ..MoveReport::default() }),
            }],
            ..Status::default()
        }
    }

    fn told(what: &str) -> Result<String, String> {
        let map = Cluster::parse(MAP).expect("well formed");
        explained(what, &map, &status(), &hot(), &events())
    }

    /// The key `a b` has copies.
    fn hot() -> HotKeys {
        let report = HotReport {
            key: "a%20b".into(),
            reads: 900.0,
            writes: 3.0,
            state: Some(HotState::Hot),
            copies: vec![2],
            copied_ms: 12_345,
            ..HotReport::default()
        };
        let told = HotTold { mode: HotMode::Async, lease_ms: 1000, threshold: Some(500.0) };
        let status = HotStatus { told, ..HotStatus::default() };
        HotKeys { status, keys: vec![HotKey { server: 1, report }] }
    }

    #[test]
    fn a_cachelet_is_told_of_with_its_server_its_move_and_what_was_decided() {
        let expected = "\
cachelet 4000/2: server 2, worker 0 by map 7; lent to another worker of it, if its balancer chose so
mbal cluster explain 4000/2 10.0.0.2:11211 on that host says who asks for it, and what it costs
server 2: draining, load 0.25, 2 cachelets, 50.0% of all hashes
move 2 takes it to server 1: 25% gone
00:00:01     1 the first map: 4 cachelets
00:00:04     4 move 2: 4000/2 from server 1 to 2: to lighten its worker; it has load 0.5
";
        assert_eq!(told("4000/2").as_deref(), Ok(expected));
    }

    #[test]
    fn a_hot_key_is_told_of_with_its_copies_and_what_was_decided() {
        let text = told("a%20b").expect("it is a key");
        let line = "read 900/s (0/s of that from copies), written 3/s; T is 500/s: hot for 12 s, gamma 1, copies on servers 2\n";
        assert!(text.contains(line), "{text}");
        assert!(
            text.ends_with("00:00:05     5 key a%20b of server 1 is hot: 900 reads/s\n"),
            "{text}"
        );
        let text = told("cold").expect("it is a key");
        assert!(
            text.contains("\nnot among the hottest keys of its server; T is 500/s\n"),
            "{text}"
        );
    }

    #[test]
    fn a_key_is_told_of_by_its_hash_however_it_is_written() {
        // The hash of `a` begins with e6.
        let text = told("%61").expect("it is a key");
        assert!(text.starts_with("key %61: hash e6c632b61e964e1f, cachelet c000/2\n"), "{text}");
        let text = told("2800/5").expect("no cachelet of this map: it is a key of that name");
        let said = "2800/5 is no cachelet of the map: it is taken for a key\nkey 2800/5: ";
        assert!(text.starts_with(said), "{text}");
        assert!(told("").is_err());
    }
}
