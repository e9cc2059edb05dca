//! Commands for operators, and whatever is no command at all.

use mbal_model::MapVersion;

use crate::number::{parse_f64, parse_i32, parse_u32};
use crate::request::{Admin, Request, Shutdown, Tokens};
use crate::text::BAD_FORMAT;

/// memcached numbers its classes of size from 1 to one less.
pub const CLASSES_MAX: u32 = 64;

/// `None` is somebody who speaks HTTP: a browser, or worse.
pub(crate) fn parse<'a>(tokens: Tokens<'a>) -> Option<Request<'a>> {
    let noreply = tokens.noreply();
    let line = match (tokens.get(0), tokens.count) {
        (b"stats", _) => return loud(Admin::Stats(tokens)),
        (b"shutdown", _) => return loud(Admin::Shutdown(shutdown(&tokens))),
        (b"flush_all", 1..=3) => {
            let bare = tokens.count == if noreply { 2 } else { 1 };
            let exptime = if bare { Some(0) } else { parse_i32(tokens.get(1)) };
            return Some(Request::Admin { command: Admin::FlushAll { exptime }, noreply });
        }
        (b"verbosity", 2 | 3) => match parse_u32(tokens.get(1)) {
            Some(level) => {
                return Some(Request::Admin { command: Admin::Verbosity { level }, noreply });
            }
            None => BAD_FORMAT,
        },
        (b"cache_memlimit", 2 | 3) => match parse_u32(tokens.get(1)) {
            None => "ERROR",
            Some(0..8) => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
            Some(1_000_000_001..) => "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
            Some(mib) => {
                return Some(Request::Admin { command: Admin::MemoryLimit { mib }, noreply });
            }
        },
        (b"config", 3 | 4) if (tokens.get(1), tokens.get(2)) == (b"get", b"mbal") => {
            match tokens.get(3) {
                b"" => return loud(Admin::Map { known: None }),
                known => match MapVersion::parse(known) {
                    Some(known) => return loud(Admin::Map { known: Some(known) }),
                    None => BAD_FORMAT,
                },
            }
        }
        (b"lru", 2..) => lru(&tokens),
        (b"watch", _) => "CLIENT_ERROR watch commands not allowed",
        (b"slabs", _) => return Some(slabs(&tokens)),
        (b"lru_crawler", _) => return Some(crawler(&tokens)),
        _ if is_http(&tokens) => return None,
        _ => return Some(Request::Answer("ERROR")),
    };
    Some(if noreply { Request::Silence } else { Request::Answer(line) })
}

fn loud<'a>(command: Admin<'a>) -> Option<Request<'a>> {
    Some(Request::Admin { command, noreply: false })
}

fn shutdown(tokens: &Tokens<'_>) -> Option<Shutdown> {
    match (tokens.count, tokens.get(1)) {
        (1, _) => Some(Shutdown::Now),
        (2, b"graceful") => Some(Shutdown::Graceful),
        _ => None,
    }
}

/// There are no LRU lists: what tunes them is accepted where memcached without its maintainer
/// thread accepts it.
fn lru(tokens: &Tokens<'_>) -> &'static str {
    if tokens.get(1) != b"tune" || tokens.count < 6 {
        return "ERROR";
    }
    let [hot, warm, hot_age, warm_age] = [2, 3, 4, 5].map(|index| tokens.get(index));
    match (parse_u32(hot), parse_u32(warm), parse_f64(hot_age), parse_f64(warm_age)) {
        (Some(hot), Some(warm), Some(hot_age), Some(warm_age)) => {
            if hot.wrapping_add(warm) > 80 {
                "ERROR hot and warm pcts must not exceed 80"
            } else if hot_age <= 0.0 || warm_age <= 0.0 {
                "ERROR hot/warm age factors must be greater than 0"
            } else {
                "OK"
            }
        }
        _ => "ERROR",
    }
}

/// There are no slab pages to reassign, as in memcached with `no_slab_reassign`.
fn slabs<'a>(tokens: &Tokens<'a>) -> Request<'a> {
    match (tokens.get(1), tokens.count) {
        (b"reassign", 4) => Request::Answer("CLIENT_ERROR slab reassignment disabled"),
        (b"automove", 3..) => {
            let line = match tokens.get(2) {
                b"ratio" if tokens.count > 3 && parse_f64(tokens.get(3)).is_some() => "OK",
                b"ratio" => "ERROR",
                level => match parse_u32(level) {
                    Some(0..=2) => "OK",
                    Some(_) => "ERROR",
                    None => BAD_FORMAT,
                },
            };
            if tokens.noreply() { Request::Silence } else { Request::Answer(line) }
        }
        _ => Request::Answer("ERROR"),
    }
}

/// What the crawler does in memcached, a worker's background time does here, always.
fn crawler<'a>(tokens: &Tokens<'a>) -> Request<'a> {
    let number = || parse_u32(tokens.get(2));
    Request::Answer(match (tokens.get(1), tokens.count) {
        (b"crawl", 3) if is_classes(tokens.get(2)) => "OK",
        (b"crawl", 3) => "BADCLASS invalid class id",
        (b"metadump", 3) => "ERROR metadump not allowed",
        (b"tocrawl", 3) if number().is_some() => "OK",
        (b"sleep", 3) if number().is_some_and(|us| us <= 1_000_000) => "OK",
        (b"sleep", 3) if number().is_some() => "CLIENT_ERROR sleep must be one second or less",
        (b"tocrawl" | b"sleep", 3) => BAD_FORMAT,
        (b"enable", 2) => "OK",
        (b"disable", 2) => "ERROR failed to stop lru crawler thread",
        _ => "ERROR",
    })
}

fn is_classes(word: &[u8]) -> bool {
    let mut classes = word.split(|byte| *byte == b',').filter(|class| !class.is_empty());
    word == b"all"
        || word == b"hash"
        || classes
            .all(|class| parse_u32(class).is_some_and(|class| (1..CLASSES_MAX).contains(&class)))
}

/// Only where no command of memcached begins with the same letter does it look for HTTP.
fn is_http(tokens: &Tokens<'_>) -> bool {
    let first = tokens.get(0)[0];
    !b"mgsacidt".contains(&first) && tokens.get(tokens.count - 1).starts_with(b"HTTP/")
}
