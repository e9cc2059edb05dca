//! Replies, read as a client reads them. What cannot be a reply to the request is a fault.

use mbal_model::{Hint, ReplicaVersion};
use mbal_replica::Announcement;
use mbal_wire::{
    MetaHead, MetaStatus, NotAReply, ValueHead, is_error, reply_block, reply_line, word_u32,
    word_u64,
};
use mbal_worker::NO_ROUTE;

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
    pub copies: Option<Announcement>,
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
    let Some((line, after)) = line(input)? else { return Ok(None) };
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
    match line(&input[reply.bytes..])? {
        None => Ok(None),
        Some((b"MN", _)) => Ok(Some(Reply { bytes: reply.bytes + 4, ..reply })),
        Some((line, _)) => Err(strange(line)),
    }
}

fn parse_config(line: &[u8], rest: &[u8], after: usize) -> Result<Option<Reply>, String> {
    if line == b"END" {
        return Ok(Some(Reply { bytes: after, ..Reply::default() }));
    }
    let bytes = line.strip_prefix(b"CONFIG mbal 0 ").and_then(word_u32);
    let bytes = bytes.ok_or_else(|| strange(line))? as usize;
    const END: &[u8] = b"\r\nEND\r\n";
    let payload = reply_block(rest, bytes, END).map_err(|NotAReply| strange(line))?;
    let Some(payload) = payload else { return Ok(None) };
    let map = String::from_utf8(payload.to_vec()).map_err(|_| strange(line))?;
    Ok(Some(Reply { bytes: after + bytes + END.len(), map: Some(map), ..Reply::default() }))
}

fn line(input: &[u8]) -> Result<Option<(&[u8], usize)>, String> {
    reply_line(input).map_err(|NotAReply| strange(&input[..input.len().min(80)]))
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

fn parse_values(keys: &[(Kind, String)], cas: bool, input: &[u8]) -> Result<Option<Reply>, String> {
    let mut told = vec![Observed::Absent; keys.len()];
    let (mut at, mut next) = (0, 0);
    loop {
        let Some((line, after)) = line(&input[at..])? else { return Ok(None) };
        at += after;
        if line == b"END" {
            return Ok(Some(Reply { told, bytes: at, ..Reply::default() }));
        }
        let head = ValueHead::parse(line).filter(|head| head.cas.is_some() == cas);
        let ValueHead { key, bytes, cas, .. } = head.ok_or_else(|| strange(line))?;
        let skipped = keys[next..].iter().position(|(_, name)| name.as_bytes() == key);
        next += skipped.ok_or_else(|| strange(line))?;
        let Some(value) = value(&input[at..], bytes)? else { return Ok(None) };
        told[next] = seen(keys[next].0, value, cas.unwrap_or(0))?;
        next += 1;
        at += bytes + 2;
    }
}

fn value(input: &[u8], bytes: usize) -> Result<Option<&[u8]>, String> {
    reply_block(input, bytes, b"\r\n").map_err(|NotAReply| "a value without its end".into())
}

fn seen(kind: Kind, value: &[u8], cas: u64) -> Result<Observed, String> {
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
    let head = MetaHead::parse(line).ok_or_else(|| strange(line))?;
    let (mut cas, mut hint, mut copies, mut replica_version) = (0, None, None, None);
    for flag in head.flags() {
        match flag {
            (b'c', number) => cas = word_u64(number).ok_or_else(|| strange(line))?,
            (b'L', text) if Announcement::parse(text).is_some() => {
                copies = Announcement::parse(text);
            }
            (b'L', [b'@', text @ ..]) => {
                let version = ReplicaVersion::parse(text);
                replica_version = Some(version.ok_or_else(|| strange(line))?);
            }
            (b'L', text) => hint = Some(Hint::parse(text).ok_or_else(|| strange(line))?),
            _ => {}
        }
    }
    let reply = match head.status {
        MetaStatus::Value => match value(rest, head.bytes)? {
            Some(value) => Reply::of(seen(kind, value, cas)?, after + head.bytes + 2),
            None => return Ok(None),
        },
        MetaStatus::Done => Reply::of(Observed::Done { cas }, after),
        MetaStatus::Miss | MetaStatus::NotFound => Reply::of(Observed::Absent, after),
        MetaStatus::NotStored | MetaStatus::Exists => Reply::of(Observed::Refused, after),
        MetaStatus::Noop => return Err(strange(line)),
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
