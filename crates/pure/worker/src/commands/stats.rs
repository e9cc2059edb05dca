//! `stats`, in memcached's words. What there is not here (slab pages, LRU lists, extstore) is told
//! as memcached tells it when it has none: as 0 or `no`. tests/it/fields.rs lists all of that.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mbal_model::CLASS_PAGE_BYTES;
use mbal_wire::{CLASSES_MAX, Tokens, full_name, push_line, push_u64, word_u32};

use crate::commands::context::Context;
use crate::commands::turn::Then;
use crate::commands::walks::Walk;

/// A part of one of these is as good as the whole, in this order.
pub(crate) const STATS_TOPICS: [&str; 6] =
    ["reset", "detail", "settings", "cachedump", "conns", "extstore"];

/// What answers them.
pub(crate) struct Stats<'t, 'w> {
    pub on: &'t Context<'w>,
    pub out: &'t mut Vec<u8>,
}

impl Stats<'_, '_> {
    pub fn answer(&mut self, tokens: &Tokens<'_>) -> Then {
        match (tokens.count, full_name(tokens.get(1), &STATS_TOPICS)) {
            (1, _) => self.stats_general(),
            (_, b"reset") => {
                self.on.shared.reset();
                self.line(b"RESET");
            }
            (_, b"hot") => self.stats_hot(tokens.get(2)),
            (_, b"cachelets") => self.stats_cachelets(),
            (_, b"workers") => self.stats_workers(),
            (_, b"cluster") => self.stats_cluster(),
            (_, b"latency") => self.stats_latency(tokens.get(2)),
            (_, b"background") => self.stats_background(),
            (_, b"detail") if !self.on.shared.settings.dump_enabled => {
                self.line(b"CLIENT_ERROR stats detail not allowed");
            }
            (_, b"detail") => self.stats_detail(tokens.get(2)),
            (_, b"settings") => self.stats_settings(),
            (_, b"items") => self.stats_items(),
            (_, b"slabs") => self.stats_slabs(),
            (_, b"conns") => {
                self.on.shared.conns.tell(self.on.info, self.on.now().second, self.out);
                self.line(b"END");
            }
            (_, b"sizes") if self.on.shared.settings.sizes_enabled => {
                return Then::Walk(Box::new(Walk::sizes()));
            }
            (_, b"sizes") => {
                self.stat_text("sizes_status", "disabled");
                self.line(b"END");
            }
            // As of a server that could have one.
            (_, b"extstore") => self.line(b"END"),
            (_, b"cachedump") => return self.stats_cachedump(tokens),
            _ => self.line(b"ERROR"),
        }
        Then::Next
    }

    fn stats_cachedump(&mut self, tokens: &Tokens<'_>) -> Then {
        if !self.on.shared.settings.dump_enabled {
            self.line(b"CLIENT_ERROR stats cachedump not allowed");
            return Then::Next;
        }
        let class = word_u32(tokens.get(2));
        self.line(match (tokens.count, class, word_u32(tokens.get(3))) {
            (..4, ..) => b"CLIENT_ERROR bad command line",
            (_, Some(class @ 0..CLASSES_MAX), Some(limit)) => {
                return Then::Walk(Box::new(Walk::cachedump(class, limit)));
            }
            (_, Some(_), Some(_)) => b"CLIENT_ERROR Illegal slab id",
            _ => b"CLIENT_ERROR bad command line format",
        });
        Then::Next
    }

    pub(crate) fn line(&mut self, line: &[u8]) {
        push_line(self.out, line);
    }

    pub(crate) fn stat_text(&mut self, name: &str, value: &str) {
        for part in ["STAT ", name, " ", value, "\r\n"] {
            self.out.extend_from_slice(part.as_bytes());
        }
    }

    pub(crate) fn stat(&mut self, name: &str, value: u64) {
        for part in ["STAT ", name, " "] {
            self.out.extend_from_slice(part.as_bytes());
        }
        push_u64(self.out, value);
        self.out.extend_from_slice(b"\r\n");
    }

    fn stats_detail(&mut self, what: &[u8]) {
        let details = &self.on.shared.details;
        let names = if what.is_empty() { &[][..] } else { &["on", "off", "dump"] };
        match full_name(what, names) {
            on @ (b"on" | b"off") => {
                details.switch(on == b"on");
                self.line(b"OK");
            }
            b"dump" => details.dump(self.out),
            _ => self.line(b"CLIENT_ERROR usage: stats detail on|off|dump"),
        }
    }

    fn stats_general(&mut self) {
        let server = self.on.shared;
        let (settings, gauges) = (&server.settings, &server.gauges);
        let since = server.since_reset();
        let (sums, store) = (since.sums, since.store);
        let gauge = |gauge: &AtomicU64| gauge.load(Relaxed);
        let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        self.stat("pid", gauge(&gauges.pid));
        self.stat("uptime", self.on.now().second.into());
        self.stat("time", self.on.now().unix);
        self.stat_text("version", settings.version);
        // There is none; clients look for the name.
        self.stat_text("libevent", "none");
        self.stat("pointer_size", gauge(&gauges.pointer_bits));
        self.stat_text("rusage_user", &seconds(gauge(&gauges.user_us)));
        self.stat_text("rusage_system", &seconds(gauge(&gauges.system_us)));
        let connections = gauge(&gauges.curr_connections);
        let echoed = server.tuned.echoed.lock().clone();
        let crawler = server.tuned.crawler_enabled.load(Relaxed);
        for (there, name, value) in [
            (true, "max_connections", settings.connections_max.into()),
            (true, "curr_connections", connections),
            (true, "total_connections", since.total_connections),
            (settings.maxconns_fast, "rejected_connections", since.rejected_connections),
            (true, "connection_structures", connections),
            (true, "response_obj_oom", 0),
            (true, "response_obj_count", 0),
            (true, "response_obj_bytes", 0),
            (true, "read_buf_count", 0),
            (true, "read_buf_bytes", 0),
            (true, "read_buf_bytes_free", 0),
            (true, "read_buf_oom", 0),
            (true, "reserved_fds", gauge(&gauges.reserved_fds)),
            (true, "cmd_get", sums.cmd_get),
            (true, "cmd_set", sums.cmd_set),
            (true, "cmd_flush", sums.cmd_flush),
            (true, "cmd_touch", sums.cmd_touch),
            (true, "cmd_meta", sums.cmd_meta),
            (true, "get_hits", sums.get_hits),
            (true, "get_misses", sums.get_misses),
            (true, "get_expired", sums.get_expired),
            (true, "get_flushed", 0),
            (!self.on.here.alone, "get_unreachable", sums.get_unreachable),
            (true, "delete_misses", sums.delete_misses),
            (true, "delete_hits", sums.delete_hits),
            (true, "incr_misses", sums.incr_misses),
            (true, "incr_hits", sums.incr_hits),
            (true, "decr_misses", sums.decr_misses),
            (true, "decr_hits", sums.decr_hits),
            (true, "cas_misses", sums.cas_misses),
            (true, "cas_hits", sums.cas_hits),
            (true, "cas_badval", sums.cas_badval),
            (true, "touch_hits", sums.touch_hits),
            (true, "touch_misses", sums.touch_misses),
            (true, "store_too_large", sums.store_too_large),
            (true, "store_no_memory", sums.store_no_memory),
            (true, "auth_cmds", sums.auth_cmds),
            (true, "auth_errors", sums.auth_errors),
            (settings.idle_timeout > 0, "idle_kicks", sums.idle_kicks),
            (true, "bytes_read", sums.bytes_read),
            (true, "bytes_written", sums.bytes_written),
            (true, "limit_maxbytes", server.memory_limit()),
            (true, "accepting_conns", gauge(&gauges.accepting)),
            (true, "listen_disabled_num", gauge(&gauges.listen_disabled)),
            (true, "time_in_listen_disabled_us", gauge(&gauges.listen_disabled_us)),
            (true, "threads", settings.workers.into()),
            (true, "conn_yields", sums.conn_yields),
            (true, "hash_power_level", store.index_bytes.checked_ilog2().unwrap_or(0).into()),
            (true, "hash_bytes", store.index_bytes),
            (true, "hash_is_expanding", 0),
            (echoed.slab_reassign, "slab_reassign_rescues", 0),
            (echoed.slab_reassign, "slab_reassign_chunk_rescues", 0),
            (echoed.slab_reassign, "slab_reassign_inline_reclaim", 0),
            (echoed.slab_reassign, "slab_reassign_busy_items", 0),
            (echoed.slab_reassign, "slab_reassign_busy_deletes", 0),
            (echoed.slab_reassign, "slab_reassign_busy_nomem", 0),
            (echoed.slab_reassign, "slab_reassign_running", 0),
            (echoed.slab_reassign, "slabs_moved", 0),
            (crawler, "lru_crawler_running", u64::from(server.tuned.crawls.load(Relaxed) > 0)),
            (crawler, "lru_crawler_starts", sums.crawler_starts),
            (echoed.lru_maintainer, "lru_maintainer_juggles", 0),
            (true, "malloc_fails", 0),
            (true, "log_worker_dropped", 0),
            (true, "log_worker_written", since.log[0]),
            (true, "log_watcher_skipped", since.log[1]),
            (true, "log_watcher_sent", since.log[2]),
            (true, "log_watchers", server.log.watchers() as u64),
            (settings.tls.session_cache, "ssl_new_sessions", gauge(&gauges.new_sessions)),
            (settings.tls.enabled, "ssl_handshake_errors", gauge(&gauges.handshake_errors)),
            (settings.tls.enabled, "ssl_proto_errors", gauge(&gauges.tls_errors)),
            (
                settings.tls.enabled,
                "time_since_server_cert_refresh",
                u64::from(self.on.now().second).saturating_sub(gauge(&gauges.certs_read)),
            ),
            (true, "unexpected_napi_ids", 0),
            (true, "round_robin_fallback", 0),
            (true, "bytes", store.bytes),
            (true, "curr_items", store.items),
            (true, "total_items", store.total_items),
            (true, "slab_global_page_pool", store.free_bytes / CLASS_PAGE_BYTES as u64),
            (true, "expired_unfetched", store.expired_unfetched),
            (true, "evicted_unfetched", store.evicted_unfetched),
            (echoed.lru_maintainer, "evicted_active", 0),
            (true, "evictions", store.evictions),
            (true, "reclaimed", store.expired),
            (true, "crawler_reclaimed", sums.crawler_reclaimed),
            (true, "crawler_items_checked", sums.crawler_items_checked),
            (true, "lrutail_reflocked", 0),
            (echoed.lru_maintainer, "moves_to_cold", 0),
            (echoed.lru_maintainer, "moves_to_warm", 0),
            (echoed.lru_maintainer, "moves_within_lru", 0),
            (echoed.lru_maintainer, "direct_reclaims", 0),
            (echoed.lru_maintainer, "lru_bumps_dropped", 0),
        ] {
            if there {
                self.stat(name, value);
            }
        }
        if echoed.slab_reassign {
            self.stat_text("slab_reassign_last_busy_status", "none");
        }
        self.line(b"END");
    }
}
