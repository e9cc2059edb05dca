//! Replies from bytes, as they arrive. What cannot be a reply ends the connection.

use mbal_model::{Hint, ReplicaVersion};
use mbal_replica::Announcement;
use mbal_wire::{
    MetaHead, MetaStatus, NotAReply, is_error, reply_block, reply_line, word_u32, word_u64,
};

/// What a request is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A meta command's reply.
    Meta,
    /// One line.
    Line,
    /// `STAT` lines and `END`.
    Stats,
    /// The reply to `config get mbal`.
    View,
}

/// A whole reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Meta(MetaReply),
    Line(String),
    Stats(Vec<(String, String)>),
    /// `None`: what the client knows is what there is.
    View(Option<String>),
    /// `ERROR`, `CLIENT_ERROR ...` or `SERVER_ERROR ...`.
    Refused(String),
}

/// The reply to a meta command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaReply {
    pub status: MetaStatus,
    pub value: Vec<u8>,
    pub flags: u32,
    pub cas: u64,
    /// `X`
    pub stale: bool,
    /// `W`
    pub won: bool,
    /// It has an `L` token: a home has answered, or tells why it was asked in vain.
    pub has_token: bool,
    pub hint: Option<Hint>,
    /// Where copies of the key are.
    pub told: Option<Announcement>,
    /// What a copy has answered with.
    pub replica_version: Option<ReplicaVersion>,
}

/// A map of 2^15 cachelets and a thousand servers has less.
const VIEW_BYTES_MAX: usize = 16 << 20;
/// More statistics no server has.
const STATS_BYTES_MAX: usize = 16 << 20;

/// The reply at the start of `input`, and its length; `None`: more must come.
pub fn parse(form: Form, input: &[u8]) -> Result<Option<(Reply, usize)>, NotAReply> {
    let Some((line, after)) = reply_line(input)? else { return Ok(None) };
    if is_error(line) {
        return Ok(Some((Reply::Refused(text(line)?), after)));
    }
    match form {
        Form::Line => Ok(Some((Reply::Line(text(line)?), after))),
        Form::Meta => parse_meta(line, &input[after..], after),
        Form::Stats => parse_stats(input),
        Form::View => match line.strip_prefix(b"CONFIG mbal 0 ") {
            None if line == b"END" => Ok(Some((Reply::View(None), after))),
            None => Err(NotAReply),
            Some(bytes) => {
                let bytes = word_u32(bytes).ok_or(NotAReply)? as usize;
                if VIEW_BYTES_MAX < bytes {
                    return Err(NotAReply);
                }
                let Some(page) = reply_block(&input[after..], bytes, b"\r\nEND\r\n")? else {
                    return Ok(None);
                };
                Ok(Some((Reply::View(Some(text(page)?)), after + bytes + b"\r\nEND\r\n".len())))
            }
        },
    }
}

fn parse_meta(line: &[u8], rest: &[u8], after: usize) -> Result<Option<(Reply, usize)>, NotAReply> {
    let head = MetaHead::parse(line).ok_or(NotAReply)?;
    let mut reply = MetaReply { status: head.status, ..MetaReply::default() };
    let mut bytes = after;
    if head.status == MetaStatus::Value {
        let Some(value) = reply_block(rest, head.bytes, b"\r\n")? else { return Ok(None) };
        reply.value = value.to_vec();
        bytes += head.bytes + 2;
    }
    for flag in head.flags() {
        match flag {
            (b'f', flags) => reply.flags = word_u32(flags).ok_or(NotAReply)?,
            (b'X', []) => reply.stale = true,
            (b'W', []) => reply.won = true,
            (b'c', cas) => reply.cas = word_u64(cas).ok_or(NotAReply)?,
            // One that is not understood says nothing: it is advice.
            (b'L', token) => {
                reply.has_token = true;
                reply.told = Announcement::parse(token);
                reply.hint = Hint::parse(token);
                reply.replica_version = token.strip_prefix(b"@").and_then(ReplicaVersion::parse);
            }
            _ => {}
        }
    }
    Ok(Some((Reply::Meta(reply), bytes)))
}

fn parse_stats(input: &[u8]) -> Result<Option<(Reply, usize)>, NotAReply> {
    let mut stats = Vec::new();
    let mut at = 0;
    loop {
        let Some((line, after)) = reply_line(&input[at..])? else {
            return if at > STATS_BYTES_MAX { Err(NotAReply) } else { Ok(None) };
        };
        at += after;
        match line.strip_prefix(b"STAT ") {
            Some(stat) => {
                let stat = text(stat)?;
                let (name, value) = stat.split_once(' ').unwrap_or((&stat, ""));
                stats.push((name.to_owned(), value.to_owned()));
            }
            None if matches!(line, b"END" | b"RESET" | b"OK") => {
                return Ok(Some((Reply::Stats(stats), at)));
            }
            None => return Err(NotAReply),
        }
    }
}

fn text(bytes: &[u8]) -> Result<String, NotAReply> {
    String::from_utf8(bytes.to_vec()).map_err(|_| NotAReply)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the input is cut into, nothing is told before the end, and then the same.
    #[track_caller]
    fn check(form: Form, input: &str, reply: Reply) {
        let bytes = input.as_bytes();
        for cut in 0..bytes.len() {
            assert_eq!(parse(form, &bytes[..cut]), Ok(None), "{input:?} up to {cut}");
        }
        let behind = [bytes, b"HD\r\n"].concat();
        assert_eq!(parse(form, &behind), Ok(Some((reply, bytes.len()))), "{input:?}");
    }

    fn meta(status: MetaStatus) -> MetaReply {
        MetaReply { status, ..MetaReply::default() }
    }

    #[test]
    fn replies_are_read_wherever_they_are_cut() {
        check(Form::Meta, "HD\r\n", Reply::Meta(meta(MetaStatus::Done)));
        let told = |hint, told| MetaReply { has_token: true, hint, told, ..meta(MetaStatus::Miss) };
        let hint = Hint::parse(b"5.3.2/1");
        check(Form::Meta, "EN L5.3.2/1\r\n", Reply::Meta(told(hint, None)));
        let copies = Announcement::parse(b"~1000.1,3@7.2");
        check(Form::Meta, "EN L~1000.1,3@7.2\r\n", Reply::Meta(told(None, copies)));
        let replica_version = Some(ReplicaVersion { grant: 9, version: 2 });
        let shown = MetaReply { replica_version, ..told(None, None) };
        check(Form::Meta, "EN L@9.2\r\n", Reply::Meta(shown));
        let value = b"a\r\nb".to_vec();
        let hit =
            MetaReply { value, flags: 7, cas: 99, has_token: true, ..meta(MetaStatus::Value) };
        check(Form::Meta, "VA 4 f7 c99 Lx\r\na\r\nb\r\n", Reply::Meta(hit));
        let stale = MetaReply { stale: true, won: true, ..meta(MetaStatus::Value) };
        check(Form::Meta, "VA 0 f0 c0 W X\r\n\r\n", Reply::Meta(stale));
        check(Form::Meta, "SERVER_ERROR no\r\n", Reply::Refused("SERVER_ERROR no".into()));
        check(Form::Line, "VERSION 1\r\n", Reply::Line("VERSION 1".into()));
        let stats = vec![("a".into(), "1 2".into()), ("b".into(), String::new())];
        check(Form::Stats, "STAT a 1 2\r\nSTAT b \r\nEND\r\n", Reply::Stats(stats));
        check(Form::View, "END\r\n", Reply::View(None));
        check(Form::View, "CONFIG mbal 0 2\r\nx\n\r\nEND\r\n", Reply::View(Some("x\n".into())));
        check(Form::View, "ERROR\r\n", Reply::Refused("ERROR".into()));
    }

    #[test]
    fn garbage_is_known_as_soon_as_it_is_there() {
        let long = "x".repeat(mbal_wire::REPLY_LINE_BYTES_MAX);
        for (form, input) in [
            (Form::Meta, "OK\r\n"),
            (Form::Meta, "HD\n"),
            (Form::Meta, "VA\r\n"),
            (Form::Meta, "VA x\r\n"),
            (Form::Meta, "VA +1\r\nv\r\n"),
            (Form::Meta, "VA 9999999999\r\n"),
            (Form::Meta, "VA 1\r\nvv\r\n"),
            (Form::Meta, "VA 1 f-1\r\nv\r\n"),
            (Form::Meta, &long),
            (Form::Line, &long),
            (Form::Stats, "VALUE k 0 1\r\n"),
            (Form::View, "CONFIG cluster 0 2\r\n"),
            (Form::View, "CONFIG mbal 0 99999999\r\n"),
            (Form::View, "CONFIG mbal 0 1\r\nxx\r\nEND\r\n"),
        ] {
            assert_eq!(parse(form, input.as_bytes()), Err(NotAReply), "{input:.20}");
        }
        assert_eq!(parse(Form::Line, b"\xff\xfe\r\n"), Err(NotAReply));
    }
}
