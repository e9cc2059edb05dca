//! What the server counts, as Prometheus reads it.
//!
//! Counters count from the server's start: `stats reset` does not touch them.

use std::sync::atomic::Ordering::Relaxed;

use mbal_cachelet::StoreStats;
use mbal_model::Seconds;
use mbal_worker::{CHORES, Shared, Sums, TIMED};

use crate::balancing::Balanced;
use crate::page::{Labels, Page};

/// The whole page, in the text format 0.0.4.
pub(crate) fn page(
    server: &Shared,
    balanced: &Balanced,
    started_unix: u64,
    second: Seconds,
) -> String {
    let mut page = Page::default();
    let store = server.store.stats();
    page.process(server, started_unix);
    page.requests(server);
    page.cachelets(server, second);
    page.balancer(server, balanced);
    page.hot_keys(server);
    page.latency(server);
    page.background(server);
    page.memory(server, &store);
    page.connections(server);
    page.text
}

impl Page {
    /// One counter of each worker's, by other labels too.
    fn by_worker<const N: usize>(
        &mut self,
        server: &Shared,
        name: &str,
        help: &str,
        of: impl Fn(&Sums) -> [(Labels<'static>, u64); N],
    ) {
        self.family(name, "counter", help);
        for worker in 0..server.settings.workers {
            let id = worker.to_string();
            for (labels, value) in of(&server.sums_of(worker.into())) {
                let labels: Vec<_> =
                    [("worker", id.as_str())].iter().chain(labels).copied().collect();
                self.sample(name, &labels, value);
            }
        }
    }

    fn seconds_by_worker(
        &mut self,
        server: &Shared,
        name: &str,
        help: &str,
        ns_of: impl Fn(&Sums) -> u64,
    ) {
        self.family(name, "counter", help);
        for worker in 0..server.settings.workers {
            let seconds = ns_of(&server.sums_of(worker.into())) as f64 / 1e9;
            self.sample(name, &[("worker", &worker.to_string())], seconds);
        }
    }

    fn process(&mut self, server: &Shared, started_unix: u64) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        self.gauge("mbal_info", "The server's version.", &[(&version, 1)]);
        self.of_process(started_unix);
        let name = "mbal_cpu_seconds_total";
        self.family(name, "counter", "CPU time of the process in seconds.");
        let gauges = &server.gauges;
        for (mode, us) in [("user", &gauges.user_us), ("system", &gauges.system_us)] {
            self.sample(name, &[("mode", mode)], us.load(Relaxed) as f64 / 1e6);
        }
    }

    fn requests(&mut self, server: &Shared) {
        let help =
            "Commands executed, as `stats` counts them: cmd_get and so on; gets count each key.";
        self.by_worker(server, "mbal_commands_total", help, |sums| {
            [
                (&[("command", "get")], sums.cmd_get),
                (&[("command", "set")], sums.cmd_set),
                (&[("command", "touch")], sums.cmd_touch),
                (&[("command", "flush")], sums.cmd_flush),
                (&[("command", "meta")], sums.cmd_meta),
            ]
        });
        let help = "Keys that were looked for, by what came of it.";
        self.by_worker(server, "mbal_lookups_total", help, |sums| {
            [
                (&[("command", "get"), ("result", "hit")], sums.get_hits),
                (&[("command", "get"), ("result", "miss")], sums.get_misses),
                (&[("command", "delete"), ("result", "hit")], sums.delete_hits),
                (&[("command", "delete"), ("result", "miss")], sums.delete_misses),
                (&[("command", "incr"), ("result", "hit")], sums.incr_hits),
                (&[("command", "incr"), ("result", "miss")], sums.incr_misses),
                (&[("command", "decr"), ("result", "hit")], sums.decr_hits),
                (&[("command", "decr"), ("result", "miss")], sums.decr_misses),
                (&[("command", "touch"), ("result", "hit")], sums.touch_hits),
                (&[("command", "touch"), ("result", "miss")], sums.touch_misses),
                (&[("command", "cas"), ("result", "hit")], sums.cas_hits),
                (&[("command", "cas"), ("result", "miss")], sums.cas_misses),
                (&[("command", "cas"), ("result", "changed")], sums.cas_badval),
            ]
        });
        let help = "Keys of requests by where they live: own of the worker that executed the request, of its \
                    neighbour, or of a peer that was asked.";
        self.by_worker(server, "mbal_requests_total", help, |sums| {
            [
                (&[("route", "own")], sums.requests_own),
                (&[("route", "neighbour")], sums.requests_neighbour),
                (&[("route", "peer")], sums.requests_peer),
            ]
        });
        let help =
            "Keys of gets that missed because the server that owns them could not be reached.";
        self.by_worker(server, "mbal_gets_unreachable_total", help, |sums| {
            [(&[], sums.get_unreachable)]
        });
        let help = "Time in which the worker was busy in seconds.";
        self.seconds_by_worker(server, "mbal_worker_busy_seconds_total", help, |sums| sums.busy_ns);
        let help = "Time that requests stood waiting before the worker served them, in seconds: all of them together.";
        let name = "mbal_worker_waiting_seconds_total";
        self.seconds_by_worker(server, name, help, |sums| sums.waited_ns);
        let help = "Items that were refused.";
        self.by_worker(server, "mbal_stores_refused_total", help, |sums| {
            [
                (&[("cause", "too_large")], sums.store_too_large),
                (&[("cause", "no_memory")], sums.store_no_memory),
            ]
        });
        let help = "Bytes received from clients.";
        self.by_worker(server, "mbal_received_bytes_total", help, |sums| [(&[], sums.bytes_read)]);
        let help = "Bytes sent to clients.";
        self.by_worker(server, "mbal_sent_bytes_total", help, |sums| [(&[], sums.bytes_written)]);
        let help =
            "Turns that a connection ended with requests left, so that others had theirs (-R).";
        self.by_worker(server, "mbal_yields_total", help, |sums| [(&[], sums.conn_yields)]);
    }

    fn cachelets(&mut self, server: &Shared, second: Seconds) {
        let name = "mbal_cachelet_owner";
        self.family(name, "gauge", "The worker that owns the cachelet.");
        let held = server.store.held();
        for cachelet in &held {
            self.sample(name, &[("cachelet", &cachelet.prefix.to_string())], cachelet.owner.0);
        }
        let name = "mbal_cachelet_requests_total";
        let help = "Keys of requests by cachelet, estimated from those that were looked at (--hot-sample).";
        self.family(name, "counter", help);
        for (cachelet, (ever, _)) in server.cachelet_requests(second) {
            self.sample(name, &[("cachelet", &cachelet.to_string())], ever.round());
        }
        let name = "mbal_cachelet_items";
        self.family(name, "gauge", "Items stored now by cachelet.");
        for cachelet in &held {
            let items = server.store.stats_of(cachelet.prefix).map_or(0, |stats| stats.items);
            self.sample(name, &[("cachelet", &cachelet.prefix.to_string())], items);
        }
    }

    fn balancer(&mut self, server: &Shared, balanced: &Balanced) {
        let name = "mbal_balancer_decisions_total";
        let help = "Decisions of the balancer, by why they were taken and what came of the plan.";
        self.family(name, "counter", help);
        for ([cause, verdict], count) in balanced.decisions() {
            self.sample(name, &[("cause", cause), ("verdict", verdict)], count);
        }
        let loans = balanced.loans.load(Relaxed);
        let help = "Cachelets on loan now: owned by another worker than their home's.";
        self.gauge("mbal_balancer_loans", help, &[(&[], loans)]);
        let help = "Connections that the worker handed over to another one.";
        let name = "mbal_connections_handed_over_total";
        self.by_worker(server, name, help, |sums| [(&[], sums.conns_handed_over)]);
    }

    fn hot_keys(&mut self, server: &Shared) {
        let homes = server.hot_homes(usize::MAX);
        let copied = homes.iter().filter(|home| home.state.is_some()).count() as u64;
        let help = "Keys of this server that have copies on other servers.";
        self.gauge("mbal_hot_keys", help, &[(&[], copied)]);
        let here = server.copies_here();
        let help = "Copies of other servers' keys.";
        self.gauge("mbal_copies", help, &[(&[], here.keys)]);
        let help = "Memory of these copies in bytes; --replica-memory is its limit.";
        self.gauge("mbal_copy_bytes", help, &[(&[], here.bytes)]);
        let help = "Reads that were answered from copies of other servers' keys.";
        self.counter("mbal_copy_reads_total", help, &[(&[], here.reads)]);
        let help = "How often a key of this server got copies on other servers.";
        self.counter("mbal_hot_grants_total", help, &[(&[], here.grants)]);
    }

    fn latency(&mut self, server: &Shared) {
        let name = "mbal_request_duration_seconds";
        let help = "Time from the wake-up that received a request until its reply was the kernel's; of a busy \
                    server's wake-ups one in up to 64 is timed and stands for all.";
        self.family(name, "histogram", help);
        let histograms = server.latencies_ever();
        for class in TIMED {
            let of = histograms.of(class);
            let total = (of.count(), of.sum_ns());
            self.histogram(name, ("class", class.name()), of.by_powers(), total);
        }
    }

    fn background(&mut self, server: &Shared) {
        let name = "mbal_background_step_seconds";
        let help = "How long a worker was kept from its clients by a step of background work.";
        self.family(name, "histogram", help);
        for (chore, of) in CHORES.iter().zip(server.background_steps()) {
            self.histogram(name, ("chore", chore), of.by_powers(), (of.count(), of.sum_ns()));
        }
    }

    fn memory(&mut self, server: &Shared, store: &StoreStats) {
        let limit = server.memory_limit();
        let help = "Memory for items and their index (-m) in bytes.";
        self.gauge("mbal_memory_limit_bytes", help, &[(&[], limit)]);
        let used = store.used_bytes;
        let help = "Memory by use in bytes: pages of items, of the index, free pages; together the limit, \
                    or more while a lower one is being reached.";
        self.gauge(
            "mbal_memory_bytes",
            help,
            &[
                (&[("use", "items")], used.saturating_sub(store.index_bytes)),
                (&[("use", "index")], store.index_bytes),
                (&[("use", "free")], limit.saturating_sub(used)),
            ],
        );
        self.gauge("mbal_items", "Items stored now.", &[(&[], store.items)]);
        let help = "Keys, values and headers of the items stored now in bytes.";
        self.gauge("mbal_items_bytes", help, &[(&[], store.bytes)]);
        let help = "Items ever stored, overwrites included.";
        self.counter("mbal_items_stored_total", help, &[(&[], store.total_items)]);
        let help = "Items that went by themselves: evicted for want of memory, or found expired; and whether \
                    they had been read since they were stored.";
        let (evicted, expired) = (store.evicted_unfetched, store.expired_unfetched);
        self.counter(
            "mbal_items_gone_total",
            help,
            &[
                (&[("cause", "evicted"), ("read", "yes")], store.evictions - evicted),
                (&[("cause", "evicted"), ("read", "no")], evicted),
                (&[("cause", "expired"), ("read", "yes")], store.expired - expired),
                (&[("cause", "expired"), ("read", "no")], expired),
            ],
        );
    }

    fn connections(&mut self, server: &Shared) {
        let gauges = &server.gauges;
        let limit = server.settings.connections_max.into();
        self.gauge("mbal_connections_limit", "Client connections at a time (-c).", &[(&[], limit)]);
        let open = gauges.curr_connections.load(Relaxed);
        self.gauge("mbal_connections", "Client connections open now.", &[(&[], open)]);
        let help = "Client connections ever made.";
        let total = gauges.total_connections.load(Relaxed);
        self.counter("mbal_connections_opened_total", help, &[(&[], total)]);
        let help = "Client connections turned away at the limit.";
        let rejected = gauges.rejected_connections.load(Relaxed);
        self.counter("mbal_connections_rejected_total", help, &[(&[], rejected)]);
        let help = "Times that accepting paused for want of descriptors or at the limit.";
        let pauses = gauges.listen_disabled.load(Relaxed);
        self.counter("mbal_accept_pauses_total", help, &[(&[], pauses)]);
    }
}
