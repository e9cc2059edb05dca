//! Replies, read as a client reads them. What cannot be a reply to the request is a fault.

use mbal_model::{Hint, ReplicaVersion};
use mbal_worker::NO_ROUTE;

use super::copies::copies_of;
use super::history::{Kind, Observed};
use super::values;

/// What a reply may look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// `VALUE`s and `END`: of these keys, each with its kind and name.
    Values { keys: Vec<(Kind, String)>, cas: bool },
    /// One line of the classic commands.
    Line,
    /// The line of `incr`.
    Number,
    /// One line of a meta command, with a value behind `VA`.
    Meta { kind: Kind },
    /// The same, asked of a copy.
    Copy { kind: Kind },
    /// Only if something went wrong; the `mn` behind it is answered in any case.
    QuietMeta { kind: Kind },
    /// None.
    Silent,
    /// `MN`.
    Fence,
    /// Who owns what.
    Config,
}

/// A whole reply.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// What it says of each op.
    pub told: Vec<Observed>,
    pub bytes: usize,
    /// The payload of `config get mbal`, if the client's map was old.
    pub map: Option<String>,
    /// An `L` token.
    pub hint: Option<Hint>,
    /// Another `L` token: where copies are.
    pub copies: Option<mbal_replica::Announcement>,
    /// Another one: what a copy has answered with.
    pub replica_version: Option<ReplicaVersion>,
}

impl Reply {
    fn of(told: Observed, bytes: usize) -> Reply {
        Reply { told: vec![told], bytes, ..Reply::default() }
    }
}

/// `Ok(None)` is: more must come.
pub fn parse(form: &Form, input: &[u8]) -> Result<Option<Reply>, String> {
    let Some(line) = line(input) else { return Ok(None) };
    let after = line.len() + 2;
    let error = is_error(line);
    let failed = match (line, not_everywhere(line)) {
        (_, Some((failed, servers))) => Observed::NotEverywhere { failed, servers },
        (line, None) if line == NO_ROUTE.as_bytes() => Observed::NoRoute,
        _ => Observed::Error,
    };
    let one = |told: Observed| Ok(Some(Reply::of(told, after)));
    match form {
        Form::Values { keys, .. } if error => {
            let told = vec![failed; keys.len()];
            Ok(Some(Reply { told, bytes: after, ..Reply::default() }))
        }
        Form::Values { keys, cas } => parse_values(keys, *cas, input),
        Form::Fence if line == b"MN" => Ok(Some(Reply { bytes: after, ..Reply::default() })),
        Form::Fence => Err(strange(line)),
        Form::Config => parse_config(line, &input[after..], after),
        _ if error => match form {
            Form::QuietMeta { .. } => fenced(Reply::of(failed, after), input),
            _ => one(failed),
        },
        Form::Line => match line {
            b"STORED" | b"DELETED" | b"TOUCHED" | b"OK" => one(Observed::Done { cas: 0 }),
            b"NOT_STORED" => one(Observed::Refused),
            b"EXISTS" => one(Observed::Refused),
            b"NOT_FOUND" => one(Observed::Absent),
            _ => Err(strange(line)),
        },
        Form::Number if line == b"NOT_FOUND" => one(Observed::Absent),
        Form::Number => match values::read(Kind::Number, line) {
            Some(state) => one(Observed::Hit { state, cas: 0 }),
            None => Err(strange(line)),
        },
        Form::QuietMeta { .. } if line == b"MN" => one(Observed::Done { cas: 0 }),
        Form::QuietMeta { kind } => match parse_meta(*kind, line, &input[after..])? {
            Some(reply) => fenced(reply, input),
            None => Ok(None),
        },
        Form::Meta { kind } | Form::Copy { kind } => parse_meta(*kind, line, &input[after..]),
        Form::Silent => unreachable!("nobody waits for it"),
    }
}

/// A reply that should be followed by the fence's.
fn fenced(reply: Reply, input: &[u8]) -> Result<Option<Reply>, String> {
    match line(&input[reply.bytes..]) {
        None => Ok(None),
        Some(b"MN") => Ok(Some(Reply { bytes: reply.bytes + 4, ..reply })),
        Some(line) => Err(strange(line)),
    }
}

fn parse_config(line: &[u8], rest: &[u8], after: usize) -> Result<Option<Reply>, String> {
    if line == b"END" {
        return Ok(Some(Reply { bytes: after, ..Reply::default() }));
    }
    let bytes = line.strip_prefix(b"CONFIG mbal 0 ").and_then(|bytes| {
        let bytes: usize = std::str::from_utf8(bytes).ok()?.parse().ok()?;
        Some(bytes)
    });
    let bytes = bytes.ok_or_else(|| strange(line))?;
    const END: &[u8] = b"\r\nEND\r\n";
    let Some(payload) = rest.get(..bytes + END.len()) else { return Ok(None) };
    let payload = payload.strip_suffix(END).ok_or_else(|| strange(line))?;
    let map = String::from_utf8(payload.to_vec()).map_err(|_| strange(line))?;
    Ok(Some(Reply { bytes: after + bytes + END.len(), map: Some(map), ..Reply::default() }))
}

fn line(input: &[u8]) -> Option<&[u8]> {
    let end = input.windows(2).position(|pair| pair == b"\r\n")?;
    Some(&input[..end])
}

fn strange(line: &[u8]) -> String {
    format!("no reply to this: {:?}", String::from_utf8_lossy(line))
}

/// From the error of a `flush_all`: servers that have not confirmed it, and servers of the cluster.
fn not_everywhere(line: &[u8]) -> Option<(usize, usize)> {
    let text = std::str::from_utf8(line).ok()?;
    let counts = text.strip_prefix("SERVER_ERROR flush_all did not reach ")?;
    let (failed, servers) = counts.strip_suffix(" servers")?.split_once(" of ")?;
    Some((failed.parse().ok()?, servers.parse().ok()?))
}

fn is_error(line: &[u8]) -> bool {
    line == b"ERROR" || line.starts_with(b"CLIENT_ERROR") || line.starts_with(b"SERVER_ERROR")
}

fn parse_values(keys: &[(Kind, String)], cas: bool, input: &[u8]) -> Result<Option<Reply>, String> {
    let mut told = vec![Observed::Absent; keys.len()];
    let (mut at, mut next) = (0, 0);
    loop {
        let Some(line) = line(&input[at..]) else { return Ok(None) };
        at += line.len() + 2;
        if line == b"END" {
            return Ok(Some(Reply { told, bytes: at, ..Reply::default() }));
        }
        let text = std::str::from_utf8(line).map_err(|_| strange(line))?;
        let mut words = text.split(' ');
        let (Some("VALUE"), Some(key), Some(_flags), Some(bytes)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(strange(line));
        };
        let cas = match (cas, words.next()) {
            (true, Some(cas)) => cas.parse().map_err(|_| strange(line))?,
            (false, None) => 0,
            _ => return Err(strange(line)),
        };
        let skipped = keys[next..].iter().position(|(_, name)| name == key);
        next += skipped.ok_or_else(|| strange(line))?;
        let bytes: usize = bytes.parse().map_err(|_| strange(line))?;
        let Some(value) = input.get(at..at + bytes + 2) else { return Ok(None) };
        told[next] = seen(keys[next].0, value, cas)?;
        next += 1;
        at += bytes + 2;
    }
}

fn seen(kind: Kind, value: &[u8], cas: u64) -> Result<Observed, String> {
    let value = value.strip_suffix(b"\r\n").ok_or("a value without its end")?;
    match values::read(kind, value) {
        Some(state) => Ok(Observed::Hit { state, cas }),
        None => {
            let start = String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned();
            Err(format!("nobody wrote such a value: {start:?}, {} bytes", value.len()))
        }
    }
}

fn parse_meta(kind: Kind, line: &[u8], rest: &[u8]) -> Result<Option<Reply>, String> {
    let after = line.len() + 2;
    let text = std::str::from_utf8(line).map_err(|_| strange(line))?;
    let mut words = text.split(' ');
    let status = words.next().unwrap_or_default();
    let bytes: usize = match status {
        "VA" => words.next().and_then(|word| word.parse().ok()).ok_or_else(|| strange(line))?,
        _ => 0,
    };
    let (mut cas, mut hint, mut copies, mut replica_version) = (0, None, None, None);
    for word in words {
        match word.split_at_checked(1).unwrap_or_default() {
            ("c", number) => cas = number.parse().map_err(|_| strange(line))?,
            ("L", text) if copies_of(text).is_some() => copies = copies_of(text),
            ("L", text) if text.starts_with('@') => {
                replica_version = Some(
                    ReplicaVersion::parse(&text.as_bytes()[1..]).ok_or_else(|| strange(line))?,
                );
            }
            ("L", text) => {
                hint = Some(Hint::parse(text.as_bytes()).ok_or_else(|| strange(line))?);
            }
            _ => {}
        }
    }
    let reply = match status {
        "VA" => match rest.get(..bytes + 2) {
            Some(value) => Reply::of(seen(kind, value, cas)?, after + bytes + 2),
            None => return Ok(None),
        },
        "HD" => Reply::of(Observed::Done { cas }, after),
        "EN" | "NF" => Reply::of(Observed::Absent, after),
        "NS" | "EX" => Reply::of(Observed::Refused, after),
        _ => return Err(strange(line)),
    };
    Ok(Some(Reply { hint, copies, replica_version, ..reply }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_was_not_done() {
        let told = |line: &str| {
            let reply = parse(&Form::Line, line.as_bytes()).expect("a reply").expect("whole");
            assert_eq!(reply.bytes, line.len());
            reply.told
        };
        let not_everywhere = "SERVER_ERROR flush_all did not reach 1 of 3 servers\r\n";
        assert_eq!(told(not_everywhere), [Observed::NotEverywhere { failed: 1, servers: 3 }]);
        assert_eq!(told("SERVER_ERROR no route to owner\r\n"), [Observed::NoRoute]);
        assert_eq!(told("SERVER_ERROR out of memory\r\n"), [Observed::Error]);
        assert_eq!(told("OK\r\n"), [Observed::Done { cas: 0 }]);
    }
}
