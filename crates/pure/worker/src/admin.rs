//! Commands for operators.

use std::sync::atomic::Ordering::Relaxed;

use mbal_wire::{Admin, ClassSet, Shutdown, Tune, Walk as Purpose};

use crate::turn::{Then, Turn};
use crate::walks::Walk;

const VERBOSITY_MAX: u32 = 2;

impl Turn<'_> {
    pub fn admin(&mut self, command: &Admin<'_>, noreply: bool) -> Then {
        match command {
            Admin::FlushAll { exptime } => self.flush_all(*exptime, None, noreply),
            Admin::Stats(tokens) => return self.stats(tokens),
            Admin::Verbosity { level } => {
                let level = (*level).min(VERBOSITY_MAX);
                self.shared.gauges.verbosity.store(level.into(), Relaxed);
                self.shared.log.set_verbosity(level);
                self.reply(noreply, b"OK");
            }
            Admin::Discover => self.discover(),
            Admin::View { known } => self.tell_view(*known),
            Admin::MemoryLimit { mib } => self.reply(noreply, self.memory_limit(*mib)),
            Admin::Tune(tune) => {
                self.tune(*tune);
                self.reply(noreply, b"OK");
            }
            Admin::Crawler { on } => {
                let was = self.shared.crawler_enabled.swap(*on, Relaxed);
                let refused = *on && was;
                let failed = b"ERROR failed to start lru crawler thread";
                self.reply(noreply, if refused { failed } else { b"OK" });
            }
            Admin::Walk(purpose, classes) => return self.walk(*purpose, *classes, noreply),
            Admin::Watch(streams) => return self.watch(*streams),
            Admin::RefreshCerts if self.shared.settings.tls.enabled => return Then::RefreshCerts,
            Admin::RefreshCerts => self.reply(noreply, b"Error TLS not enabled"),
            Admin::DebugTime { seconds: Some(seconds) } if self.shared.settings.debug_time => {
                self.shared.gauges.time_shift.fetch_add(*seconds, Relaxed);
                self.line(b"OK");
            }
            Admin::DebugTime { .. } => self.line(b"ERROR"),
            Admin::Shutdown(_) if !self.shared.settings.shutdown_enabled => {
                self.reply(noreply, b"SERVER_ERROR: shutdown not enabled");
            }
            Admin::Shutdown(None) => self.reply(noreply, b"CLIENT_ERROR invalid shutdown mode"),
            Admin::Shutdown(Some(mode)) => {
                return Then::Close(Some(*mode == Shutdown::Graceful));
            }
        }
        Then::Next
    }

    fn tune(&self, tune: Tune) {
        let mut echoed = self.shared.echoed.lock();
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

    fn walk(&mut self, purpose: Purpose, classes: Option<ClassSet>, noreply: bool) -> Then {
        let server = self.shared;
        let dumps = purpose != Purpose::Crawl;
        let refusal: &[u8] = if !server.crawler_enabled.load(Relaxed) {
            b"CLIENT_ERROR lru crawler disabled"
        } else if dumps && !server.settings.dump_enabled {
            match purpose {
                Purpose::Mgdump => b"ERROR key dump not allowed",
                _ => b"ERROR metadump not allowed",
            }
        } else if dumps && self.replies_wait() {
            match purpose {
                Purpose::Mgdump => b"ERROR cannot pipeline other commands before mgdump",
                _ => b"ERROR cannot pipeline other commands before metadump",
            }
        } else if let Some(classes) = classes {
            let echoed = server.echoed.lock();
            return Then::Walk(Box::new(Walk::of(purpose, classes, echoed.lru_crawler_tocrawl)));
        } else {
            b"BADCLASS invalid class id"
        };
        self.reply(noreply, refusal);
        Then::Next
    }

    fn watch(&mut self, streams: Option<u32>) -> Then {
        let refusal: &[u8] = if !self.shared.settings.watch_enabled {
            b"CLIENT_ERROR watch commands not allowed"
        } else if self.replies_wait() {
            b"ERROR cannot pipeline other commands before watch"
        } else if let Some(streams) = streams {
            match self.shared.log.watch(streams, self.here.worker) {
                Some(watcher) => {
                    self.line(b"OK");
                    return Then::Watch(watcher);
                }
                None => b"WATCHER_TOO_MANY log watcher limit reached",
            }
        } else {
            b"ERROR"
        };
        self.line(refusal);
        Then::Next
    }

    fn memory_limit(&self, mib: u32) -> &'static [u8] {
        let bytes = u64::from(mib) << 20;
        if !self.shared.store.set_memory_limit(bytes as usize) {
            return b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";
        }
        self.shared.memory_bytes.store(bytes, Relaxed);
        b"OK"
    }

    /// `number`: that of another server, which has begun it.
    pub fn flush_all(&mut self, exptime: Option<i32>, number: Option<u32>, noreply: bool) {
        self.counters.cmd_flush.add(1);
        if !self.shared.settings.flush_enabled {
            return self.reply(noreply, b"CLIENT_ERROR flush_all not allowed");
        }
        let Some(exptime) = exptime else {
            return self.reply(noreply, b"CLIENT_ERROR invalid exptime argument");
        };
        self.flush_items(exptime.into(), number);
        self.reply(noreply, b"OK");
    }

    /// What is there when `exptime` comes (0 is now), is gone then.
    pub fn flush_items(&mut self, exptime: i64, number: Option<u32>) {
        // memcached's delayed flush takes effect a second early.
        let now = self.now.second;
        let at = if exptime > 0 { self.now.deadline(exptime).saturating_sub(1) } else { now };
        match number {
            Some(number) => self.shared.store.flush_as(number, at, now),
            None => _ = self.shared.store.flush(at, now),
        }
    }
}
