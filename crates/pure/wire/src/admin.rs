//! Commands for operators, and whatever is no command at all.

use mbal_model::MapVersion;

use crate::number::{parse_f64, parse_i32, parse_u32, word_i32, word_u32};
use crate::request::{Admin, ClassSet, Request, Shutdown, Tune, Walk};
use crate::text::quiet;
use crate::words::{BAD_FORMAT, Tokens};

/// memcached numbers its classes of size from 1 to one less.
pub const CLASSES_MAX: u32 = 64;

/// What begins with no other command. `None` is somebody who speaks HTTP: a browser, or worse.
pub(crate) fn parse<'a>(tokens: Tokens<'a>) -> Option<Request<'a>> {
    let noreply = tokens.noreply();
    let admin = |command| Ok(Request::Admin { command, noreply });
    let request = match tokens.get(0) {
        b"shutdown" => admin(Admin::Shutdown(shutdown(&tokens))),
        b"flush_all" => {
            let bare = tokens.count == if noreply { 2 } else { 1 };
            let exptime = if bare { Some(0) } else { word_i32(tokens.get(1)) };
            admin(Admin::FlushAll { exptime })
        }
        b"verbosity" => match word_u32(tokens.get(1)) {
            Some(level) => admin(Admin::Verbosity { level }),
            None => Err(BAD_FORMAT),
        },
        b"cache_memlimit" => match word_u32(tokens.get(1)) {
            None => Err("ERROR"),
            Some(0..8) => Err("MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m"),
            Some(1_000_000_001..) => {
                Err("MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes")
            }
            Some(mib) => admin(Admin::MemoryLimit { mib }),
        },
        b"lru" => lru(&tokens).and_then(|tune| admin(Admin::Tune(tune))),
        b"slabs" => slabs(&tokens).and_then(|tune| admin(Admin::Tune(tune))),
        b"lru_crawler" => crawler(&tokens).and_then(admin),
        b"refresh_certs" => admin(Admin::RefreshCerts),
        b"debugtime" => admin(Admin::DebugTime { seconds: parse_i32(tokens.get(1)) }),
        b"config" if tokens.get(1) == b"get" => config(&tokens),
        _ if is_http(&tokens) => return None,
        _ => Err("ERROR"),
    };
    Some(request.unwrap_or_else(|line| quiet(noreply, line)))
}

pub(crate) fn stats(line: &[u8]) -> Request<'_> {
    Request::Admin { command: Admin::Stats(Tokens::new(line)), noreply: false }
}

pub(crate) fn watch(line: &[u8]) -> Request<'_> {
    Request::Admin { command: Admin::Watch(watched(&Tokens::new(line))), noreply: false }
}

/// The first of `names` that `word` begins, or the word: memcached compares as many bytes as it was sent, up to
/// the end of either, and a zero byte is one.
pub fn full_name<'a>(word: &'a [u8], names: &[&'a str]) -> &'a [u8] {
    let begins = |name: &&&str| match word.iter().position(|byte| *byte == 0) {
        Some(zero) => name.as_bytes() == &word[..zero],
        None => name.as_bytes().starts_with(word),
    };
    names.iter().find(begins).map_or(word, |name| name.as_bytes())
}

/// Who there is: for clients that know ElastiCache's auto-discovery, and for those that know MBal.
fn config<'a>(tokens: &Tokens<'a>) -> Result<Request<'a>, &'static str> {
    let command = match (tokens.get(2), tokens.count) {
        (b"cluster", 3) => Admin::Discover,
        (b"mbal", 3) => Admin::View { known: None, changes: false },
        (b"mbal", 4) if tokens.get(3) == b"servers" => Admin::Servers,
        (b"mbal", count @ (4 | 5)) => {
            let known = MapVersion::parse(tokens.get(3)).ok_or(BAD_FORMAT)?;
            if count == 5 && tokens.get(4) != b"changes" {
                return Err(BAD_FORMAT);
            }
            Admin::View { known: Some(known), changes: count == 5 }
        }
        _ => return Err("ERROR"),
    };
    Ok(Request::Admin { command, noreply: false })
}

fn shutdown(tokens: &Tokens<'_>) -> Option<Shutdown> {
    match (tokens.count, full_name(tokens.get(1), &["graceful"])) {
        (1, _) => Some(Shutdown::Now),
        (2, b"graceful") => Some(Shutdown::Graceful),
        _ => None,
    }
}

/// There are no LRU lists: what tunes them is accepted where memcached without its maintainer
/// thread accepts it.
fn lru(tokens: &Tokens<'_>) -> Result<Tune, &'static str> {
    if tokens.count < 6 || full_name(tokens.get(1), &["tune"]) != b"tune" {
        return Err("ERROR");
    }
    let [hot, warm, hot_age, warm_age] = [2, 3, 4, 5].map(|index| tokens.get(index));
    let numbers = (word_u32(hot), word_u32(warm), fraction(hot_age), fraction(warm_age));
    let (Some(hot_pct), Some(warm_pct), Some(hot_age), Some(warm_age)) = numbers else {
        return Err("ERROR");
    };
    if hot_pct.wrapping_add(warm_pct) > 80 {
        return Err("ERROR hot and warm pcts must not exceed 80");
    }
    if hot_age <= 0.0 || warm_age <= 0.0 {
        return Err("ERROR hot/warm age factors must be greater than 0");
    }
    let (hot_factor, warm_factor) = (hundredths(hot_age), hundredths(warm_age));
    Ok(Tune::Lru { hot_pct, warm_pct, hot_factor, warm_factor })
}

/// memcached copies the word to where 31 bytes fit.
fn fraction(word: &[u8]) -> Option<f64> {
    if word.len() > 31 { None } else { parse_f64(word) }
}

fn hundredths(number: f64) -> u32 {
    (number * 100.0).round() as u32
}

/// There are no slab pages to reassign, as in memcached with `no_slab_reassign`.
fn slabs(tokens: &Tokens<'_>) -> Result<Tune, &'static str> {
    match (full_name(tokens.get(1), &["reassign", "automove"]), tokens.count) {
        (b"reassign", 4) => Err("CLIENT_ERROR slab reassignment disabled"),
        (b"automove", 3..) => {
            let ratio = || fraction(tokens.get(3)).map(hundredths).ok_or("ERROR");
            match full_name(tokens.get(2), &["ratio", "freeratio", "window"]) {
                b"ratio" => ratio().map(Tune::AutomoveRatio),
                b"freeratio" => ratio().map(|_| Tune::AutomoveFreeRatio),
                b"window" => match word_u32(tokens.get(3)) {
                    Some(window @ 3..=1800) => Ok(Tune::AutomoveWindow(window)),
                    Some(_) => Err("CLIENT_ERROR automove window too low or too high"),
                    None => Err(BAD_FORMAT),
                },
                level => match word_u32(level) {
                    Some(level @ 0..=2) => Ok(Tune::Automove(level)),
                    Some(_) => Err("ERROR"),
                    None => Err(BAD_FORMAT),
                },
            }
        }
        _ => Err("ERROR"),
    }
}

fn crawler<'a>(tokens: &Tokens<'a>) -> Result<Admin<'a>, &'static str> {
    const OF_TWO: [&str; 2] = ["enable", "disable"];
    const OF_THREE: [&str; 5] = ["crawl", "metadump", "mgdump", "tocrawl", "sleep"];
    let names: &[&str] = if tokens.count == 2 { &OF_TWO } else { &OF_THREE };
    let word = tokens.get(2);
    Ok(match (full_name(tokens.get(1), names), tokens.count) {
        (b"crawl", 3) => Admin::Walk(Walk::Crawl, classes(word)),
        (b"metadump", 3) => Admin::Walk(Walk::Metadump, classes(word)),
        (b"mgdump", 3) => Admin::Walk(Walk::Mgdump, classes(word)),
        (b"tocrawl", 3) => Admin::Tune(Tune::CrawlerItems(word_u32(word).ok_or(BAD_FORMAT)?)),
        (b"sleep", 3) => match word_u32(word).ok_or(BAD_FORMAT)? {
            us @ 0..=1_000_000 => Admin::Tune(Tune::CrawlerSleep(us)),
            _ => return Err("CLIENT_ERROR sleep must be one second or less"),
        },
        (b"enable", 2) => Admin::Crawler { on: true },
        (b"disable", 2) => Admin::Crawler { on: false },
        _ => return Err("ERROR"),
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

fn watched(tokens: &Tokens<'_>) -> Option<u32> {
    if tokens.count == 1 {
        return Some(streams::FETCHERS);
    }
    let named = |word| STREAMS.iter().find(|(name, _)| name.as_bytes().starts_with(word));
    tokens.iter().skip(1).try_fold(0, |all, word| Some(all | named(word)?.1))
}

fn is_http(tokens: &Tokens<'_>) -> bool {
    tokens.count > 1 && tokens.last().starts_with(b"HTTP/")
}
