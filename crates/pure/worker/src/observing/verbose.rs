//! `-vv`: connections, requests and replies as lines for standard error, in memcached's forms. `-vvv`: what a
//! connection does next as well. Neither costs anything while it is off: a turn looks at one word that it has.
//!
//! ```text
//!   <28 new auto-negotiating client connection
//!   28: Client using the ascii protocol
//!   <28 get a
//!   >28 sending key a
//!   >28 END
//!   <28 connection closed.
//! ```

use crate::settings::Protocol;

/// Bytes in front of every binary request and reply.
const HEADER_BYTES: usize = 24;

pub(crate) fn opened(said: &mut Vec<u8>, fd: u32, protocol: Protocol) {
    let kind = match protocol {
        Protocol::Auto => "auto-negotiating client connection",
        Protocol::Text => "ascii client connection.",
        Protocol::Binary => "binary client connection.",
    };
    line(said, format_args!("<{fd} new "), kind.as_bytes());
}

pub(crate) fn closed(said: &mut Vec<u8>, fd: u32) {
    line(said, format_args!("<{fd} "), b"connection closed.");
}

pub(crate) fn idle(said: &mut Vec<u8>, fd: u32) {
    line(said, format_args!("Closing idle fd {fd}"), b"");
}

pub(crate) fn negotiated(said: &mut Vec<u8>, fd: u32, protocol: Protocol) {
    let name = protocol.name();
    line(said, format_args!("{fd}: Client using the {name} protocol"), b"");
}

pub(crate) fn changed(said: &mut Vec<u8>, fd: u32, from: &str, to: &str) {
    if from != to {
        line(said, format_args!("{fd}: going from {from} to {to}"), b"");
    }
}

/// A request of who has to log in first. A line may be a password that came with another command than the one that logs in: only that one's
/// is told.
pub(crate) fn before_login(said: &mut Vec<u8>, fd: u32, request: &[u8]) {
    let (first, _) = first_line(request);
    let is_login = first.starts_with(b"set ");
    line(said, format_args!("<{fd} "), if is_login { first } else { b"(not told before a login)" });
}

/// The request's line, or its header; never a value.
pub(crate) fn request(said: &mut Vec<u8>, fd: u32, protocol: Protocol, request: &[u8]) {
    if protocol == Protocol::Binary {
        return header(said, format_args!("<{fd} Read binary protocol data:"), '<', fd, request);
    }
    let (first, _) = first_line(request);
    line(said, format_args!("<{fd} "), first);
}

/// Replies without their values. What `stats` and its kind tell is not told again.
pub(crate) fn replies(said: &mut Vec<u8>, fd: u32, protocol: Protocol, mut replies: &[u8]) {
    while !replies.is_empty() {
        let past = match protocol {
            Protocol::Binary => {
                header(said, format_args!(">{fd} Writing bin response:"), '>', fd, replies);
                let body = replies.get(8..12).map(|bytes| bytes.try_into().expect("four of them"));
                HEADER_BYTES + u32::from_be_bytes(body.unwrap_or_default()) as usize
            }
            Protocol::Auto | Protocol::Text => {
                let (first, past) = first_line(replies);
                past + reply(said, fd, first)
            }
        };
        replies = replies.get(past..).unwrap_or_default();
    }
}

/// One line of a reply; how many bytes behind it are its value.
fn reply(said: &mut Vec<u8>, fd: u32, first: &[u8]) -> usize {
    let mut words = first.split(|byte| *byte == b' ');
    let number = |word: Option<&[u8]>| std::str::from_utf8(word?).ok()?.parse::<usize>().ok();
    let (key, value) = match words.next() {
        Some(b"VALUE") => (words.next(), number(words.nth(1))),
        Some(b"VA") => (None, number(words.next())),
        Some(b"STAT" | b"ITEM") => return 0,
        _ => (None, None),
    };
    match key {
        Some(key) => line(said, format_args!(">{fd} sending key "), key),
        None => line(said, format_args!(">{fd} "), first),
    }
    value.map_or(0, |bytes| bytes + 2)
}

/// The first line without its end, and where the next one begins.
fn first_line(bytes: &[u8]) -> (&[u8], usize) {
    let end = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
    let first = &bytes[..end];
    (first.strip_suffix(b"\r").unwrap_or(first), end + 1)
}

fn header(
    said: &mut Vec<u8>,
    what: std::fmt::Arguments<'_>,
    direction: char,
    fd: u32,
    bytes: &[u8],
) {
    let mut text = what.to_string();
    for four in bytes[..bytes.len().min(HEADER_BYTES)].chunks(4) {
        // memcached indents what it reads by one blank more.
        let blank = if direction == '<' { "   " } else { "  " };
        text.push_str(&format!("\n{direction}{fd}{blank}"));
        four.iter().for_each(|byte| text.push_str(&format!(" 0x{byte:02x}")));
    }
    text.push('\n');
    said.extend_from_slice(text.as_bytes());
}

/// What clients send may be meant for the terminal, and is written as [`mbal_wire::push_printable`] does.
fn line(said: &mut Vec<u8>, start: std::fmt::Arguments<'_>, rest: &[u8]) {
    said.extend_from_slice(start.to_string().as_bytes());
    mbal_wire::push_printable(said, rest);
    said.push(b'\n');
}
