//! Commands for operators, and whatever is no command at all.

use mbal_model::MapVersion;

use crate::number::{parse_f64, parse_i32, parse_u32};
use crate::request::{Admin, ClassSet, Request, Shutdown, Tokens, Tune, Walk};
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
        (b"lru", 2..) => match lru(&tokens) {
            Request::Answer(line) => line,
            tune => return Some(tune),
        },
        (b"watch", _) => {
            return Some(Request::Admin { command: Admin::Watch(watch(&tokens)), noreply });
        }
        (b"refresh_certs", _) => {
            return Some(Request::Admin { command: Admin::RefreshCerts, noreply });
        }
        (b"debugtime", _) => return loud(Admin::DebugTime { seconds: parse_i32(tokens.get(1)) }),
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
fn lru<'a>(tokens: &Tokens<'a>) -> Request<'a> {
    if tokens.get(1) != b"tune" || tokens.count < 6 {
        return Request::Answer("ERROR");
    }
    let [hot, warm, hot_age, warm_age] = [2, 3, 4, 5].map(|index| tokens.get(index));
    let numbers = (parse_u32(hot), parse_u32(warm), parse_f64(hot_age), parse_f64(warm_age));
    let (Some(hot_pct), Some(warm_pct), Some(hot_age), Some(warm_age)) = numbers else {
        return Request::Answer("ERROR");
    };
    if hot_pct.wrapping_add(warm_pct) > 80 {
        return Request::Answer("ERROR hot and warm pcts must not exceed 80");
    }
    if hot_age <= 0.0 || warm_age <= 0.0 {
        return Request::Answer("ERROR hot/warm age factors must be greater than 0");
    }
    let (hot_factor, warm_factor) = (hundredths(hot_age), hundredths(warm_age));
    tune(Tune::Lru { hot_pct, warm_pct, hot_factor, warm_factor }, tokens.noreply())
}

fn hundredths(number: f64) -> u32 {
    (number * 100.0).round() as u32
}

fn tune<'a>(tune: Tune, noreply: bool) -> Request<'a> {
    Request::Admin { command: Admin::Tune(tune), noreply }
}

/// There are no slab pages to reassign, as in memcached with `no_slab_reassign`.
fn slabs<'a>(tokens: &Tokens<'a>) -> Request<'a> {
    let noreply = tokens.noreply();
    match (tokens.get(1), tokens.count) {
        (b"reassign", 4) => Request::Answer("CLIENT_ERROR slab reassignment disabled"),
        (b"automove", 3..) => {
            let line = match tokens.get(2) {
                b"ratio" => match parse_f64(tokens.get(3)).filter(|_| tokens.count > 3) {
                    Some(ratio) => return tune(Tune::AutomoveRatio(hundredths(ratio)), noreply),
                    None => "ERROR",
                },
                level => match parse_u32(level) {
                    Some(level @ 0..=2) => return tune(Tune::Automove(level), noreply),
                    Some(_) => "ERROR",
                    None => BAD_FORMAT,
                },
            };
            if noreply { Request::Silence } else { Request::Answer(line) }
        }
        _ => Request::Answer("ERROR"),
    }
}

fn crawler<'a>(tokens: &Tokens<'a>) -> Request<'a> {
    let admin = |command| Request::Admin { command, noreply: false };
    let number = || parse_u32(tokens.get(2));
    Request::Answer(match (tokens.get(1), tokens.count) {
        (b"crawl", 3) => return admin(Admin::Walk(Walk::Crawl, classes(tokens.get(2)))),
        (b"metadump", 3) => return admin(Admin::Walk(Walk::Metadump, classes(tokens.get(2)))),
        (b"mgdump", 3) => return admin(Admin::Walk(Walk::Mgdump, classes(tokens.get(2)))),
        (b"tocrawl", 3) => match number() {
            Some(items) => return tune(Tune::CrawlerItems(items), false),
            None => BAD_FORMAT,
        },
        (b"sleep", 3) => match number() {
            Some(us @ 0..=1_000_000) => return tune(Tune::CrawlerSleep(us), false),
            Some(_) => "CLIENT_ERROR sleep must be one second or less",
            None => BAD_FORMAT,
        },
        (b"enable", 2) => return admin(Admin::Crawler { on: true }),
        (b"disable", 2) => return admin(Admin::Crawler { on: false }),
        _ => "ERROR",
    })
}

fn classes(word: &[u8]) -> Option<ClassSet> {
    if word == b"all" || word == b"hash" {
        return Some(ClassSet::ALL);
    }
    let mut set = ClassSet(0);
    for class in word.split(|byte| *byte == b',').filter(|class| !class.is_empty()) {
        let class = parse_u32(class).filter(|class| (1..CLASSES_MAX).contains(class))?;
        set.0 |= 1 << class;
    }
    Some(set)
}

/// What a watcher may ask for, by bit, as memcached numbers them.
pub mod streams {
    pub const SYSTEM: u32 = 1 << 1;
    pub const FETCHERS: u32 = 1 << 2;
    pub const MUTATIONS: u32 = 1 << 3;
    pub const CONNECTIONS: u32 = 1 << 5;
    pub const EVICTIONS: u32 = 1 << 6;
    /// Accepted, and silent, as in a memcached that is built without its proxy.
    pub const SILENT: u32 = 1 << 9;
    pub const DELETIONS: u32 = 1 << 13;
}

/// In the order in which memcached compares them, each as far as it was written: `e` is evictions.
const STREAMS: [(&str, u32); 10] = [
    ("rawcmds", streams::SILENT),
    ("evictions", streams::EVICTIONS),
    ("fetchers", streams::FETCHERS),
    ("mutations", streams::MUTATIONS),
    ("sysevents", streams::SYSTEM),
    ("connevents", streams::CONNECTIONS),
    ("proxyreqs", streams::SILENT),
    ("proxyevents", streams::SILENT),
    ("proxyuser", streams::SILENT),
    ("deletions", streams::DELETIONS),
];

fn watch(tokens: &Tokens<'_>) -> Option<u32> {
    if tokens.count == 1 {
        return Some(streams::FETCHERS);
    }
    let named = |word| STREAMS.iter().find(|(name, _)| name.as_bytes().starts_with(word));
    tokens.iter().skip(1).try_fold(0, |all, word| Some(all | named(word)?.1))
}

/// Only where no command of memcached begins with the same letter does it look for HTTP.
fn is_http(tokens: &Tokens<'_>) -> bool {
    let first = tokens.get(0)[0];
    !b"mgsacidt".contains(&first) && tokens.get(tokens.count - 1).starts_with(b"HTTP/")
}
