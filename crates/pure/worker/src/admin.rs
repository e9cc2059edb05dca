//! Commands for operators.

use std::sync::atomic::Ordering::Relaxed;

use mbal_wire::{Admin, Shutdown};

use crate::turn::{Then, Turn};

const VERBOSITY_MAX: u32 = 2;

impl Turn<'_> {
    pub fn admin(&mut self, command: &Admin<'_>, noreply: bool) -> Then {
        match command {
            Admin::FlushAll { exptime } => self.flush_all(*exptime, noreply),
            Admin::Stats(tokens) => self.stats(tokens),
            Admin::Verbosity { level } => {
                let level = (*level).min(VERBOSITY_MAX);
                self.server.gauges.verbosity.store(level.into(), Relaxed);
                self.reply(noreply, b"OK");
            }
            Admin::Map { known } => self.ownership(*known),
            Admin::MemoryLimit { mib } => self.reply(noreply, self.memory_limit(*mib)),
            Admin::Shutdown(_) if !self.server.settings.shutdown_enabled => {
                self.line(b"ERROR: shutdown not enabled");
            }
            Admin::Shutdown(None) => self.line(b"CLIENT_ERROR invalid shutdown mode"),
            Admin::Shutdown(Some(mode)) => {
                return Then::Close(Some(*mode == Shutdown::Graceful));
            }
        }
        Then::Next
    }

    /// The memory of a running server does not change.
    fn memory_limit(&self, mib: u32) -> &'static [u8] {
        if u64::from(mib) << 20 == self.server.settings.memory_bytes {
            b"OK"
        } else {
            b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust"
        }
    }

    fn flush_all(&mut self, exptime: Option<i32>, noreply: bool) {
        self.counters.cmd_flush.add(1);
        if !self.server.settings.flush_enabled {
            return self.reply(noreply, b"CLIENT_ERROR flush_all not allowed");
        }
        let Some(exptime) = exptime else {
            return self.reply(noreply, b"CLIENT_ERROR invalid exptime argument");
        };
        self.flush_items(exptime.into());
        self.reply(noreply, b"OK");
    }

    /// What is there when `exptime` comes (0 is now), is gone then.
    pub fn flush_items(&mut self, exptime: i64) {
        // memcached's delayed flush takes effect a second early.
        let now = self.now.second;
        let at = if exptime > 0 { self.now.deadline(exptime).saturating_sub(1) } else { now };
        self.server.store.flush(at, now);
    }
}
