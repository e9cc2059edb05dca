//! Commands for operators, and whatever is no command at all.

use crate::number::{parse_i32, parse_u32};
use crate::request::{Admin, Request, Shutdown, Tokens};
use crate::text::BAD_FORMAT;

/// `None` is somebody who speaks HTTP: a browser, or worse.
pub(crate) fn parse<'a>(tokens: Tokens<'a>) -> Option<Request<'a>> {
    let words = [0, 1, 2, 3, 4, 5].map(|index| tokens.get(index));
    let noreply = tokens.noreply();
    let admin = |command| Request::Admin { command, noreply };
    let loud = |command| Request::Admin { command, noreply: false };
    let says = |line| if noreply { Request::Silence } else { Request::Answer(line) };
    Some(match words[0] {
        b"stats" => loud(Admin::Stats(tokens)),
        b"shutdown" => loud(Admin::Shutdown(match (tokens.count, words[1]) {
            (1, _) => Some(Shutdown::Now),
            (2, b"graceful") => Some(Shutdown::Graceful),
            _ => None,
        })),
        b"flush_all" if tokens.count <= 3 => {
            let bare = tokens.count == if noreply { 2 } else { 1 };
            let exptime = if bare { Some(0) } else { parse_i32(words[1]) };
            admin(Admin::FlushAll { exptime })
        }
        b"verbosity" if tokens.count == 2 || tokens.count == 3 => match parse_u32(words[1]) {
            Some(level) => admin(Admin::Verbosity { level }),
            None => says(BAD_FORMAT),
        },
        b"cache_memlimit" if tokens.count == 2 || tokens.count == 3 => match parse_u32(words[1]) {
            None => says("ERROR"),
            Some(0..8) => says("MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m"),
            Some(1_000_000_001..) => {
                says("MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes")
            }
            Some(mebibytes) => admin(Admin::MemoryLimit { mebibytes }),
        },
        _ if is_http(&tokens) => return None,
        _ => Request::Answer("ERROR"),
    })
}

/// Only where no command of memcached begins with the same letter does it look for HTTP.
fn is_http(tokens: &Tokens<'_>) -> bool {
    let first = tokens.get(0)[0];
    !b"mgsacidt".contains(&first) && tokens.get(tokens.count - 1).starts_with(b"HTTP/")
}
