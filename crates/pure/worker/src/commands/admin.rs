//! Commands for operators.

use std::sync::atomic::Ordering::Relaxed;

use mbal_wire::{Admin, ClassSet, Shutdown, Tune, Walk as Purpose};

use crate::commands::context::Context;
use crate::commands::discovery;
use crate::commands::hints::{tell_servers, tell_view};
use crate::commands::stats::Stats;
use crate::commands::turn::{Then, Turn};
use crate::commands::walks::Walk;
use crate::shared::Shared;

const VERBOSITY_MAX: u32 = 2;

pub(crate) fn execute(turn: &mut Turn<'_>, command: &Admin<'_>, noreply: bool) -> Then {
    match command {
        Admin::FlushAll { exptime } => flush_all(turn, *exptime, None, noreply),
        Admin::Stats(tokens) => return Stats { on: &turn.on, out: turn.out }.answer(tokens),
        Admin::Verbosity { level } => {
            let level = (*level).min(VERBOSITY_MAX);
            turn.on.shared.gauges.verbosity.store(level.into(), Relaxed);
            turn.on.shared.log.set_verbosity(level);
            turn.reply(noreply, b"OK");
        }
        Admin::Discover => discovery::discover(&turn.on, turn.out),
        Admin::View { known, changes } => tell_view(&turn.on, turn.out, *known, *changes),
        Admin::Servers => tell_servers(&turn.on, turn.out),
        Admin::MemoryLimit { mib } => turn.reply(noreply, memory_limit(turn.on.shared, *mib)),
        Admin::Tune(what) => {
            tune(turn.on.shared, *what);
            turn.reply(noreply, b"OK");
        }
        Admin::Crawler { on } => {
            let was = turn.on.shared.tuned.crawler_enabled.swap(*on, Relaxed);
            let refused = *on && was;
            let failed = b"ERROR failed to start lru crawler thread";
            turn.reply(noreply, if refused { failed } else { b"OK" });
        }
        Admin::Walk(purpose, classes) => return walk(turn, *purpose, *classes, noreply),
        Admin::Watch(streams) => return watch(turn, *streams),
        Admin::RefreshCerts if turn.on.shared.settings.tls.enabled => return Then::RefreshCerts,
        Admin::RefreshCerts => turn.reply(noreply, b"Error TLS not enabled"),
        Admin::DebugTime { seconds: Some(seconds) } if turn.on.shared.settings.debug_time => {
            turn.on.shared.gauges.time_shift.fetch_add(*seconds, Relaxed);
            turn.line(b"OK");
        }
        Admin::DebugTime { .. } => turn.line(b"ERROR"),
        Admin::Shutdown(_) if !turn.on.shared.settings.shutdown_enabled => {
            turn.reply(noreply, b"SERVER_ERROR: shutdown not enabled");
        }
        Admin::Shutdown(None) => turn.reply(noreply, b"CLIENT_ERROR invalid shutdown mode"),
        Admin::Shutdown(Some(mode)) => {
            return Then::Close(Some(*mode == Shutdown::Graceful));
        }
    }
    Then::Next
}

fn tune(shared: &Shared, tune: Tune) {
    let mut echoed = shared.tuned.echoed.lock();
    match tune {
        Tune::Automove(level) => echoed.slab_automove = level,
        Tune::AutomoveRatio(ratio) => echoed.slab_automove_ratio = ratio,
        Tune::AutomoveFreeRatio => {}
        Tune::AutomoveWindow(window) => echoed.slab_automove_window = window,
        Tune::CrawlerSleep(us) => echoed.lru_crawler_sleep = us,
        Tune::CrawlerItems(items) => echoed.lru_crawler_tocrawl = items,
        Tune::Lru { hot_pct, warm_pct, hot_factor, warm_factor } => {
            (echoed.hot_lru_pct, echoed.warm_lru_pct) = (hot_pct, warm_pct);
            (echoed.hot_max_factor, echoed.warm_max_factor) = (hot_factor, warm_factor);
        }
    }
}

fn walk(turn: &mut Turn<'_>, purpose: Purpose, classes: Option<ClassSet>, noreply: bool) -> Then {
    let server = turn.on.shared;
    let dumps = purpose != Purpose::Crawl;
    let refusal: &[u8] = if !server.tuned.crawler_enabled.load(Relaxed) {
        b"CLIENT_ERROR lru crawler disabled"
    } else if dumps && !server.settings.dump_enabled {
        match purpose {
            Purpose::Mgdump => b"ERROR key dump not allowed",
            _ => b"ERROR metadump not allowed",
        }
    } else if dumps && turn.replies_wait() {
        match purpose {
            Purpose::Mgdump => b"ERROR cannot pipeline other commands before mgdump",
            _ => b"ERROR cannot pipeline other commands before metadump",
        }
    } else if let Some(classes) = classes {
        let echoed = server.tuned.echoed.lock();
        return Then::Walk(Box::new(Walk::of(purpose, classes, echoed.lru_crawler_tocrawl)));
    } else {
        b"BADCLASS invalid class id"
    };
    turn.reply(noreply, refusal);
    Then::Next
}

fn watch(turn: &mut Turn<'_>, streams: Option<u32>) -> Then {
    let refusal: &[u8] = if !turn.on.shared.settings.watch_enabled {
        b"CLIENT_ERROR watch commands not allowed"
    } else if turn.replies_wait() {
        b"ERROR cannot pipeline other commands before watch"
    } else if let Some(streams) = streams {
        match turn.on.shared.log.watch(streams, turn.on.here.owner.worker) {
            Some(watcher) => {
                turn.line(b"OK");
                return Then::Watch(watcher);
            }
            None => b"WATCHER_TOO_MANY log watcher limit reached",
        }
    } else {
        b"ERROR"
    };
    turn.line(refusal);
    Then::Next
}

fn memory_limit(shared: &Shared, mib: u32) -> &'static [u8] {
    let bytes = u64::from(mib) << 20;
    if !shared.store.set_memory_limit(bytes as usize) {
        return b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";
    }
    shared.tuned.memory_bytes.store(bytes, Relaxed);
    b"OK"
}

/// `number`: that of another server, which has begun it.
pub(crate) fn flush_all(
    turn: &mut Turn<'_>,
    exptime: Option<i32>,
    number: Option<u32>,
    noreply: bool,
) {
    turn.on.counters.cmd_flush.add(1);
    if !turn.on.shared.settings.flush_enabled {
        return turn.reply(noreply, b"CLIENT_ERROR flush_all not allowed");
    }
    let Some(exptime) = exptime else {
        return turn.reply(noreply, b"CLIENT_ERROR invalid exptime argument");
    };
    flush_items(&turn.on, exptime.into(), number);
    turn.reply(noreply, b"OK");
}

/// What is there when `exptime` comes (0 is now), is gone then.
pub(crate) fn flush_items(on: &Context<'_>, exptime: i64, number: Option<u32>) {
    // memcached's delayed flush takes effect a second early.
    let now = on.now().second;
    let at = if exptime > 0 { on.now().deadline(exptime).saturating_sub(1) } else { now };
    match number {
        Some(number) => on.shared.store.flush_as(number, at, now),
        None => _ = on.shared.store.flush(at, now),
    }
}
