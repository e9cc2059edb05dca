//! `stats`, in memcached's words. What there is not here (slab pages, LRU lists, extstore) is told
//! as memcached tells it when it has none: as 0 or `no`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mbal_wire::{CLASSES_MAX, Tokens, parse_u32, push_u64};

use crate::details::DELIMITER;
use crate::turn::Turn;

impl Turn<'_> {
    pub fn stats(&mut self, tokens: &Tokens<'_>) {
        match (tokens.count, tokens.get(1)) {
            (1, _) => self.stats_general(),
            (_, b"reset") => {
                self.server.reset();
                self.line(b"RESET");
            }
            (_, b"hot") => self.stats_hot(tokens.get(2)),
            (_, b"latency") => self.stats_latency(tokens.get(2)),
            (_, b"detail") => self.stats_detail(tokens.get(2)),
            (_, b"settings") => self.stats_settings(),
            // Classes are not kept apart: the pages are logs.
            (_, b"items") => self.line(b"END"),
            (_, b"slabs") => {
                self.stat("active_slabs", 0);
                self.stat("total_malloced", self.server.store.options().memory_bytes as u64);
                self.line(b"END");
            }
            (_, b"sizes" | b"sizes_disable") => {
                self.stat_text("sizes_status", "disabled");
                self.line(b"END");
            }
            (_, b"sizes_enable") => {
                self.stat_text("sizes_status", "error");
                self.stat_text("sizes_error", "no_memory");
                self.line(b"END");
            }
            (_, b"cachedump") => self.stats_cachedump(tokens),
            _ => self.line(b"ERROR"),
        }
    }

    /// What it would list is of classes of size, which there are not.
    fn stats_cachedump(&mut self, tokens: &Tokens<'_>) {
        let class = parse_u32(tokens.get(2));
        self.line(match (tokens.count, class, parse_u32(tokens.get(3))) {
            (..4, ..) => b"CLIENT_ERROR bad command line",
            (_, Some(0..CLASSES_MAX), Some(_)) => b"CLIENT_ERROR stats cachedump not allowed",
            (_, Some(_), Some(_)) => b"CLIENT_ERROR Illegal slab id",
            _ => b"CLIENT_ERROR bad command line format",
        });
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
        let details = &self.server.details;
        match what {
            b"on" | b"off" => {
                details.switch(what == b"on");
                self.line(b"OK");
            }
            b"dump" => details.dump(self.out),
            _ => self.line(b"CLIENT_ERROR usage: stats detail on|off|dump"),
        }
    }

    fn stats_general(&mut self) {
        let server = self.server;
        let (settings, gauges) = (&server.settings, &server.gauges);
        let since = server.since_reset();
        let (sums, store) = (since.sums, since.store);
        let gauge = |gauge: &AtomicU64| gauge.load(Relaxed);
        let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        self.stat("pid", gauge(&gauges.pid));
        self.stat("uptime", self.now.second.into());
        self.stat("time", self.now.unix);
        self.stat_text("version", settings.version);
        // There is none; clients look for the name.
        self.stat_text("libevent", "none");
        self.stat("pointer_size", gauge(&gauges.pointer_bits));
        self.stat_text("rusage_user", &seconds(gauge(&gauges.user_us)));
        self.stat_text("rusage_system", &seconds(gauge(&gauges.system_us)));
        let connections = gauge(&gauges.curr_connections);
        for (name, value) in [
            ("max_connections", settings.connections_max.into()),
            ("curr_connections", connections),
            ("total_connections", since.total_connections),
            ("rejected_connections", since.rejected_connections),
            ("connection_structures", connections),
            ("response_obj_oom", 0),
            ("response_obj_count", 0),
            ("response_obj_bytes", 0),
            ("read_buf_count", 0),
            ("read_buf_bytes", 0),
            ("read_buf_bytes_free", 0),
            ("read_buf_oom", 0),
            ("reserved_fds", 0),
            ("cmd_get", sums.cmd_get),
            ("cmd_set", sums.cmd_set),
            ("cmd_flush", sums.cmd_flush),
            ("cmd_touch", sums.cmd_touch),
            ("cmd_meta", sums.cmd_meta),
            ("get_hits", sums.get_hits),
            ("get_misses", sums.get_misses),
            ("get_expired", store.expired),
            ("get_flushed", 0),
            ("delete_misses", sums.delete_misses),
            ("delete_hits", sums.delete_hits),
            ("incr_misses", sums.incr_misses),
            ("incr_hits", sums.incr_hits),
            ("decr_misses", sums.decr_misses),
            ("decr_hits", sums.decr_hits),
            ("cas_misses", sums.cas_misses),
            ("cas_hits", sums.cas_hits),
            ("cas_badval", sums.cas_badval),
            ("touch_hits", sums.touch_hits),
            ("touch_misses", sums.touch_misses),
            ("store_too_large", sums.store_too_large),
            ("store_no_memory", sums.store_no_memory),
            ("auth_cmds", sums.auth_cmds),
            ("auth_errors", sums.auth_errors),
            ("bytes_read", sums.bytes_read),
            ("bytes_written", sums.bytes_written),
            ("limit_maxbytes", settings.memory_bytes),
            ("accepting_conns", 1),
            ("listen_disabled_num", gauge(&gauges.listen_disabled)),
            ("time_in_listen_disabled_us", 0),
            ("threads", settings.workers.into()),
            ("conn_yields", sums.conn_yields),
            ("hash_power_level", 0),
            ("hash_bytes", store.index_bytes),
            ("hash_is_expanding", 0),
            ("slab_reassign_rescues", 0),
            ("slab_reassign_chunk_rescues", 0),
            ("slab_reassign_evictions_nomem", 0),
            ("slab_reassign_inline_reclaim", 0),
            ("slab_reassign_busy_items", 0),
            ("slab_reassign_busy_deletes", 0),
            ("slab_reassign_running", 0),
            ("slabs_moved", 0),
            ("malloc_fails", 0),
            ("log_worker_dropped", 0),
            ("log_worker_written", 0),
            ("log_watcher_skipped", 0),
            ("log_watcher_sent", 0),
            ("log_watchers", 0),
            ("unexpected_napi_ids", 0),
            ("round_robin_fallback", 0),
            ("bytes", store.bytes),
            ("curr_items", store.items),
            ("total_items", store.total_items),
            ("slab_global_page_pool", 0),
            ("expired_unfetched", store.expired_unfetched),
            ("evicted_unfetched", store.evicted_unfetched),
            ("evictions", store.evictions),
            ("reclaimed", 0),
            ("crawler_reclaimed", 0),
            ("crawler_items_checked", 0),
            ("lrutail_reflocked", 0),
        ] {
            self.stat(name, value);
        }
        self.line(b"END");
    }

    fn stats_settings(&mut self) {
        let settings = &self.server.settings;
        let yes = |set: bool| if set { "yes" } else { "no" }.to_owned();
        let null = |text: &Option<String>| text.clone().unwrap_or("NULL".to_owned());
        let number = |number: u64| number.to_string();
        let verbosity = self.server.gauges.verbosity.load(Relaxed);
        for (name, value) in [
            ("maxbytes", number(settings.memory_bytes)),
            ("maxconns", number(settings.connections_max.into())),
            ("tcpport", number(settings.tcp_port.into())),
            ("udpport", number(settings.udp_port.into())),
            ("inter", null(&settings.interface)),
            ("verbosity", number(verbosity)),
            ("oldest", number(0)),
            ("evictions", if settings.evict { "on" } else { "off" }.to_owned()),
            ("domain_socket", null(&settings.socket_path)),
            ("umask", "700".to_owned()),
            ("shutdown_command", yes(settings.shutdown_enabled)),
            ("growth_factor", "1.25".to_owned()),
            ("chunk_size", number(48)),
            ("num_threads", number(settings.workers.into())),
            ("num_threads_per_udp", number(settings.workers.into())),
            ("stat_key_prefix", char::from(DELIMITER).to_string()),
            ("detail_enabled", yes(self.server.details.is_on())),
            ("reqs_per_event", number(settings.requests_per_event.into())),
            ("cas_enabled", yes(true)),
            ("tcp_backlog", number(settings.backlog.into())),
            ("binding_protocol", settings.protocol.name().to_owned()),
            ("auth_enabled_sasl", yes(settings.sasl)),
            ("auth_enabled_ascii", settings.auth_file.clone().unwrap_or(yes(false))),
            ("item_size_max", number(settings.item_bytes_max as u64)),
            ("maxconns_fast", yes(true)),
            ("hashpower_init", number(0)),
            ("slab_reassign", yes(false)),
            ("slab_automove", number(0)),
            ("lru_crawler", yes(true)),
            ("flush_enabled", yes(settings.flush_enabled)),
            ("dump_enabled", yes(false)),
            ("hash_algorithm", "xxh3".to_owned()),
            ("lru_maintainer_thread", yes(false)),
            ("lru_segmented", yes(false)),
            ("temp_lru", yes(false)),
            ("idle_timeout", number(0)),
            ("track_sizes", yes(false)),
            ("inline_ascii_response", yes(false)),
            ("ssl_enabled", yes(false)),
        ] {
            self.stat_text(name, &value);
        }
        self.line(b"END");
    }
}

/// The slab class that memcached (growth factor 1.25, 512 KiB the largest) would put an item of
/// `bytes` into: the size class of statistics.
pub(crate) fn size_class(bytes: usize) -> usize {
    const LARGEST: usize = 512 << 10;
    let mut size = 96;
    let mut class = 1;
    while size * 5 / 4 < LARGEST && class < 63 {
        if bytes <= size {
            return class;
        }
        size = (size * 5 / 4).next_multiple_of(8);
        class += 1;
    }
    class
}
