//! `stats settings`: what the operator chose, in memcached's words.

use std::sync::atomic::Ordering::Relaxed;

use crate::commands::stats::Stats;

impl Stats<'_, '_> {
    pub(crate) fn stats_settings(&mut self) {
        let server = self.on.shared;
        let settings = &server.settings;
        let tls = &settings.tls;
        let echoed = server.tuned.echoed.lock().clone();
        let yes = |set: bool| if set { "yes" } else { "no" }.to_owned();
        let null = |text: &Option<String>| text.clone().unwrap_or("NULL".to_owned());
        let number = |number: u64| number.to_string();
        let small = |number: u32| number.to_string();
        let hundredths = |number: u32| format!("{}.{:02}", number / 100, number % 100);
        for (name, value) in [
            ("maxbytes", number(server.memory_limit())),
            ("maxconns", small(settings.connections_max)),
            ("tcpport", small(settings.tcp_port.into())),
            ("udpport", small(settings.udp_port.into())),
            ("inter", null(&settings.interface)),
            ("verbosity", number(server.gauges.verbosity.load(Relaxed))),
            ("oldest", number(0)),
            ("evictions", if settings.evict { "on" } else { "off" }.to_owned()),
            ("domain_socket", null(&settings.socket_path)),
            ("umask", format!("{:o}", settings.socket_mode)),
            ("shutdown_command", yes(settings.shutdown_enabled)),
            ("growth_factor", hundredths(echoed.growth_factor)),
            ("chunk_size", small(echoed.chunk_size)),
            ("num_threads", small(settings.workers.into())),
            ("num_threads_per_udp", small(settings.workers.into())),
            ("stat_key_prefix", char::from(server.details.delimiter).to_string()),
            ("detail_enabled", yes(server.details.is_on())),
            ("reqs_per_event", small(settings.requests_per_event)),
            ("cas_enabled", yes(echoed.cas_enabled)),
            ("tcp_backlog", settings.backlog.to_string()),
            ("binding_protocol", settings.protocol.name().to_owned()),
            ("auth_enabled_sasl", yes(settings.sasl)),
            ("auth_enabled_ascii", settings.auth_file.clone().unwrap_or(yes(false))),
            ("item_size_max", number(settings.item_bytes_max as u64)),
            ("maxconns_fast", yes(settings.maxconns_fast)),
            ("hashpower_init", small(echoed.hashpower)),
            ("slab_reassign", yes(echoed.slab_reassign)),
            ("slab_automove", small(echoed.slab_automove)),
            ("slab_automove_ratio", hundredths(echoed.slab_automove_ratio)),
            ("slab_automove_window", small(echoed.slab_automove_window)),
            ("slab_chunk_max", number(u64::from(echoed.slab_chunk_max) << 10)),
            ("lru_crawler", yes(server.tuned.crawler_enabled.load(Relaxed))),
            ("lru_crawler_sleep", small(echoed.lru_crawler_sleep)),
            ("lru_crawler_tocrawl", small(echoed.lru_crawler_tocrawl)),
            ("tail_repair_time", small(echoed.tail_repair_time)),
            ("flush_enabled", yes(settings.flush_enabled)),
            ("dump_enabled", yes(settings.dump_enabled)),
            ("hash_algorithm", "xxh3".to_owned()),
            ("lru_maintainer_thread", yes(echoed.lru_maintainer)),
            ("lru_segmented", yes(echoed.lru_maintainer)),
            ("hot_lru_pct", small(echoed.hot_lru_pct)),
            ("warm_lru_pct", small(echoed.warm_lru_pct)),
            ("hot_max_factor", hundredths(echoed.hot_max_factor)),
            ("warm_max_factor", hundredths(echoed.warm_max_factor)),
            ("temp_lru", yes(echoed.temporary_ttl.is_some())),
            ("temporary_ttl", small(echoed.temporary_ttl.unwrap_or(61))),
            ("idle_timeout", small(settings.idle_timeout)),
            ("watcher_logbuf_size", number(u64::from(settings.watcher_kib) << 10)),
            ("worker_logbuf_size", number(u64::from(echoed.worker_kib) << 10)),
            ("read_buf_mem_limit", small(echoed.read_buf_mem_limit)),
            ("track_sizes", yes(settings.sizes_enabled)),
            ("inline_ascii_response", yes(false)),
            ("ssl_enabled", yes(tls.enabled)),
            ("ssl_chain_cert", tls.chain_cert.clone().unwrap_or("(null)".into())),
            ("ssl_key", tls.key.clone().unwrap_or("(null)".into())),
            ("ssl_verify_mode", small(tls.verify_mode)),
            ("ssl_keyformat", small(tls.key_format)),
            ("ssl_ciphers", null(&tls.ciphers)),
            ("ssl_ca_cert", null(&tls.ca_cert)),
            ("ssl_wbuf_size", number(u64::from(tls.wbuf_kib) << 10)),
            ("ssl_session_cache", yes(tls.session_cache)),
            ("ssl_kernel_tls", yes(false)),
            ("ssl_min_version", tls.min_version.to_owned()),
            ("num_napi_ids", number(0)),
            ("memory_file", "(null)".to_owned()),
            ("client_flags_size", number(size_of::<u32>() as u64)),
        ] {
            self.stat_text(name, &value);
        }
        self.line(b"END");
    }
}
