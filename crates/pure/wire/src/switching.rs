//! What `mbal pool resize --through` asks proxies, and what they answer: lines of text (docs/design/switching.md).

use std::str::from_utf8;

use crate::{parse_u64, push_escaped, push_readable, push_u64, unescaped};

/// What each of the tool's lines begins with.
pub const SWITCH: &[u8] = b"switch ";
/// No line is longer.
pub const SWITCH_LINE_BYTES_MAX: usize = 64 << 10;
/// A proxy tells so many keys at a time.
pub const SWITCH_KEYS_MAX: usize = 4096;

/// Why not yet: to be asked again.
pub const SWITCH_AT_WORK: &str = "it is at work";

pub const SWITCH_IN_DOUBT: &str = "too many writes are in doubt";

/// What a proxy is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchOrder {
    /// Begin a session, which ends any other.
    Hello,
    /// Note writes of keys that move from one list to the other. So many proxies take part.
    Begin { lease_ms: u64, proxies: u64, from: Vec<String>, to: Vec<String> },
    /// Tell which keys were written. It keeps the lease, as every order does.
    Written,
    /// Let writes of keys that move wait.
    Hold,
    /// Read at the new places.
    Turn,
    /// Write there, too. It is over.
    End,
    /// The pool is as it was. It is over.
    Back,
}

/// One line of the tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchLine<'a> {
    pub token: &'a [u8],
    /// Of the proxy's; 0 with [`SwitchOrder::Hello`].
    pub session: u64,
    pub order: SwitchOrder,
}

/// How far a proxy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchStep {
    /// It knows one list.
    Old,
    Copying,
    Held,
    Turned,
    /// It has begun anew, and does not know whether others have turned: keys that move are not served.
    Lost,
}

/// What a proxy answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchReply {
    Session(SwitchSession),
    Done,
    Written(SwitchWritten),
    /// Why not. Nothing has changed.
    Refused(String),
    /// The session is over: it has begun anew, was silent for a lease, was flushed, or got another list.
    Gone,
    /// Likewise: another one has begun.
    Taken,
}

/// A session begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchSession {
    pub session: u64,
    pub step: SwitchStep,
    /// How keys are placed.
    pub ring: String,
    pub servers: Vec<String>,
    /// The list of the switch that is under way, else none; and how many proxies take part, 0 if it does not know.
    pub next: Vec<String>,
    pub proxies: u64,
}

/// Keys that were written since this was asked last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchWritten {
    pub keys: Vec<Vec<u8>>,
    /// Keys whose last write has no known outcome.
    pub lost: Vec<Vec<u8>>,
    /// There are more than these.
    pub more: bool,
}

const STEPS: [(SwitchStep, &str); 5] = [
    (SwitchStep::Old, "old"),
    (SwitchStep::Copying, "copying"),
    (SwitchStep::Held, "held"),
    (SwitchStep::Turned, "turned"),
    (SwitchStep::Lost, "lost"),
];

/// Of a list that is not there.
const NONE: &str = "-";

impl SwitchStep {
    pub fn name(self) -> &'static str {
        STEPS.iter().find(|(step, _)| *step == self).expect("the table has all").1
    }

    fn parse(name: &str) -> Option<SwitchStep> {
        Some(STEPS.iter().find(|(_, known)| *known == name)?.0)
    }
}

impl<'a> SwitchLine<'a> {
    /// Of a line without its end.
    pub fn parse(line: &'a [u8]) -> Option<SwitchLine<'a>> {
        let mut words = line.strip_prefix(SWITCH)?.split(|byte| *byte == b' ');
        let token = words.next()?;
        let session = words.next().and_then(parse_u64)?;
        let order = match words.next()? {
            b"hello" => SwitchOrder::Hello,
            b"begin" => SwitchOrder::Begin {
                lease_ms: words.next().and_then(parse_u64)?,
                proxies: words.next().and_then(parse_u64)?,
                from: parse_list(from_utf8(words.next()?).ok()?)?,
                to: parse_list(from_utf8(words.next()?).ok()?)?,
            },
            b"written" => SwitchOrder::Written,
            b"hold" => SwitchOrder::Hold,
            b"turn" => SwitchOrder::Turn,
            b"end" => SwitchOrder::End,
            b"back" => SwitchOrder::Back,
            _ => return None,
        };
        words.next().is_none().then_some(SwitchLine { token, session, order })
    }

    pub fn push(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(SWITCH);
        out.extend_from_slice(self.token);
        out.push(b' ');
        push_u64(out, self.session);
        let name: &[u8] = match &self.order {
            SwitchOrder::Hello => b" hello",
            SwitchOrder::Begin { .. } => b" begin",
            SwitchOrder::Written => b" written",
            SwitchOrder::Hold => b" hold",
            SwitchOrder::Turn => b" turn",
            SwitchOrder::End => b" end",
            SwitchOrder::Back => b" back",
        };
        out.extend_from_slice(name);
        if let SwitchOrder::Begin { lease_ms, proxies, from, to } = &self.order {
            let rest = format!(" {lease_ms} {proxies} {} {}", list(from), list(to));
            out.extend_from_slice(rest.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

impl SwitchReply {
    pub fn push(&self, out: &mut Vec<u8>) {
        let line = match self {
            SwitchReply::Session(SwitchSession { session, step, ring, servers, next, proxies }) => {
                let (servers, next) = (list(servers), list(next));
                format!("SESSION {session} {} {ring} {servers} {next} {proxies}", step.name())
            }
            SwitchReply::Done => "DONE".to_owned(),
            SwitchReply::Refused(why) => format!("REFUSED {why}"),
            SwitchReply::Gone => "GONE".to_owned(),
            SwitchReply::Taken => "TAKEN".to_owned(),
            SwitchReply::Written(SwitchWritten { keys, lost, more }) => {
                format!("WRITTEN {} {} {}", keys.len(), lost.len(), u8::from(*more))
            }
        };
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(b"\r\n");
        if let SwitchReply::Written(SwitchWritten { keys, lost, .. }) = self {
            for key in keys.iter().chain(lost) {
                push_readable(out, key);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// The reply that `input` begins with, and its length. `Ok(None)`: more is to come. An error is what it says instead.
    pub fn parse(input: &[u8]) -> Result<Option<(SwitchReply, usize)>, String> {
        let Some(end) = memchr::memchr(b'\n', input) else { return Ok(None) };
        let line = String::from_utf8_lossy(&input[..end]).trim_end().to_owned();
        let mut at = end + 1;
        let parsed = match line.split_once(' ').unwrap_or((&line, "")) {
            ("DONE", "") => SwitchReply::Done,
            ("GONE", "") => SwitchReply::Gone,
            ("TAKEN", "") => SwitchReply::Taken,
            ("REFUSED", why) => SwitchReply::Refused(why.to_owned()),
            ("SESSION", rest) => {
                SwitchReply::Session(SwitchSession::parse(rest).ok_or_else(|| line.clone())?)
            }
            ("WRITTEN", rest) => {
                let counts: Vec<u64> =
                    rest.split(' ').filter_map(|word| parse_u64(word.as_bytes())).collect();
                let [keys, lost, more] = counts[..] else { return Err(line) };
                let mut all = Vec::new();
                for _ in 0..keys.saturating_add(lost) {
                    let Some(end) = memchr::memchr(b'\n', &input[at..]) else { return Ok(None) };
                    all.push(unescaped(input[at..at + end].trim_ascii_end()));
                    at += end + 1;
                }
                let lost = all.split_off(keys as usize);
                SwitchReply::Written(SwitchWritten { keys: all, lost, more: more != 0 })
            }
            _ => return Err(line),
        };
        Ok(Some((parsed, at)))
    }
}

impl SwitchSession {
    fn parse(text: &str) -> Option<SwitchSession> {
        let words: Vec<&str> = text.split(' ').collect();
        let [session, step, ring, servers, next, proxies] = words[..] else { return None };
        Some(SwitchSession {
            session: parse_u64(session.as_bytes())?,
            step: SwitchStep::parse(step)?,
            ring: ring.to_owned(),
            servers: parse_list(servers)?,
            next: parse_list(next)?,
            proxies: parse_u64(proxies.as_bytes())?,
        })
    }
}

fn list(servers: &[String]) -> String {
    let mut out = Vec::new();
    for server in servers {
        if !out.is_empty() {
            out.push(b',');
        }
        push_escaped(&mut out, server.as_bytes());
    }
    if out.is_empty() {
        return NONE.to_owned();
    }
    String::from_utf8(out).expect("it is escaped")
}

fn parse_list(text: &str) -> Option<Vec<String>> {
    if text == NONE {
        return Some(Vec::new());
    }
    text.split(',').map(|one| String::from_utf8(unescaped(one.as_bytes())).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let from = vec!["10.0.0.1:11211".to_owned(), "b:2:3 long, name".to_owned()];
        let to = vec!["[::1]:5".to_owned()];
        let begin = SwitchOrder::Begin { lease_ms: 2000, proxies: 2, from, to };
        for order in [SwitchOrder::Hello, begin, SwitchOrder::Written, SwitchOrder::Turn] {
            let line = SwitchLine { token: b"secret", session: 7, order };
            let mut out = Vec::new();
            line.push(&mut out);
            let text = out.strip_suffix(b"\r\n").expect("a line");
            assert_eq!(SwitchLine::parse(text), Some(line));
        }
        for wrong in ["switch t 1 begin 5", "switch t 1 turn 2", "switch t hello", "get a"] {
            assert_eq!(SwitchLine::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_reply_is_whole_when_all_its_keys_are_there() {
        let session = SwitchSession {
            session: 9,
            step: SwitchStep::Held,
            ring: "twemproxy/fnv1a_64".to_owned(),
            servers: vec!["a:1".to_owned()],
            next: Vec::new(),
            proxies: 0,
        };
        let written = SwitchWritten {
            keys: vec![b"a b".to_vec(), b"c".to_vec()],
            lost: vec![b"\n".to_vec()],
            more: true,
        };
        for reply in [
            SwitchReply::Session(session),
            SwitchReply::Done,
            SwitchReply::Written(written),
            SwitchReply::Refused("a write is in doubt".to_owned()),
            SwitchReply::Gone,
            SwitchReply::Taken,
        ] {
            let mut out = Vec::new();
            reply.push(&mut out);
            for end in 0..out.len() {
                assert_eq!(SwitchReply::parse(&out[..end]), Ok(None));
            }
            let length = out.len();
            out.extend_from_slice(b"DONE\r\n");
            assert_eq!(SwitchReply::parse(&out), Ok(Some((reply, length))));
        }
        assert_eq!(SwitchReply::parse(b"ERROR\r\n"), Err("ERROR".to_owned()));
    }
}
