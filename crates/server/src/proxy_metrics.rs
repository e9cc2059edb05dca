//! What a proxy counts, as Prometheus reads it.

use std::sync::mpsc;
use std::time::Duration;

use mbal_proxy::{Copies, Stats, UpstreamState};
use mbal_reactor::{Mailbox, ProxyLetter, Tally, TlsDoor};

use crate::page::Page;

/// A proxy that has not told its numbers by then is stopped, or ends.
const PATIENCE: Duration = Duration::from_secs(2);

/// The numbers as the proxy's thread has them.
pub(crate) fn ask(mailbox: &Mailbox<ProxyLetter>) -> Option<Stats> {
    let (tell, told) = mpsc::channel();
    let work = move |proxy: &mut mbal_proxy::Proxy| drop(tell.send(proxy.stats()));
    mailbox.post(ProxyLetter::Do(Box::new(work)));
    told.recv_timeout(PATIENCE).ok()
}

/// The whole page. Without numbers it has the process's alone.
pub(crate) fn page(
    stats: Option<&Stats>,
    tally: &Tally,
    limit: u32,
    door: Option<&TlsDoor>,
    started_unix: u64,
) -> String {
    let mut page = Page::default();
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.gauge("mbal_proxy_info", "The proxy's version.", &[(&version, 1)]);
    page.of_process(started_unix);
    page.clients(tally, limit);
    if let Some(door) = door {
        let help = "TLS handshakes of clients that failed.";
        let name = "mbal_proxy_tls_handshake_errors_total";
        page.counter(name, help, &[(&[], door.handshake_errors())]);
    }
    if let Some(stats) = stats {
        page.proxied(stats);
        page.upstreams(stats);
        page.copies(stats);
    }
    page.text
}

impl Page {
    fn clients(&mut self, tally: &Tally, limit: u32) {
        let help = "Client connections at a time (-c).";
        self.gauge("mbal_proxy_connections_limit", help, &[(&[], limit.into())]);
        let open = tally.current() as u64;
        self.gauge("mbal_proxy_connections", "Client connections open now.", &[(&[], open)]);
        let help = "Client connections ever made.";
        self.counter("mbal_proxy_connections_opened_total", help, &[(&[], tally.total())]);
        let help = "Client connections turned away at the limit.";
        self.counter("mbal_proxy_connections_rejected_total", help, &[(&[], tally.rejected())]);
    }

    fn proxied(&mut self, stats: &Stats) {
        let name = "mbal_proxy_requests_total";
        let help =
            "Requests of clients by what they do, in all protocols; a get of several keys is one.";
        self.family(name, "counter", help);
        for (class, requests) in stats.requests.each() {
            self.sample(name, &[("command", class.name())], requests);
        }
        let counters = &stats.counters;
        for (name, help, value) in [
            (
                "mbal_proxy_forwarded_total",
                "Requests to upstreams for clients; a get of several keys is one for each connection.",
                counters.forwarded,
            ),
            ("mbal_proxy_replies_total", "Replies of upstreams.", counters.replies),
            (
                "mbal_proxy_errors_total",
                "Requests that were answered by an error of the proxy's own.",
                counters.errors,
            ),
            (
                "mbal_proxy_upstream_timeouts_total",
                "Connections to upstreams that ended since nobody answered in time.",
                counters.upstream_timeouts,
            ),
            (
                "mbal_proxy_ejections_total",
                "Times that an upstream's keys went to the others (--eject).",
                counters.ejections,
            ),
            (
                "mbal_proxy_returns_total",
                "Times that an upstream came back, flushed.",
                counters.returns,
            ),
            (
                "mbal_proxy_pool_changes_total",
                "Times that upstreams came or left, or their weights or order changed.",
                counters.pool_changes,
            ),
            (
                "mbal_proxy_deleted_unsure_total",
                "Keys that were deleted since their last write had no known outcome.",
                counters.deleted_unsure,
            ),
            (
                "mbal_proxy_clients_cut_off_total",
                "Clients that were closed since they had most of the replies that were not taken.",
                counters.clients_cut_off,
            ),
        ] {
            self.counter(name, help, &[(&[], value)]);
        }
    }

    fn upstreams(&mut self, stats: &Stats) {
        let name = "mbal_proxy_upstream_state";
        let help = "1 for the state that an upstream is in: up, down, or ejected until it has deleted what it has missed.";
        self.family(name, "gauge", help);
        for upstream in &stats.upstreams {
            for state in UpstreamState::ALL {
                let is_in = u8::from(state == upstream.state);
                let labels = [("upstream", upstream.name.as_str()), ("state", state.name())];
                self.sample(name, &labels, is_in);
            }
        }
        let help = "Upstreams that are in the pool no more, and have not answered all.";
        self.gauge("mbal_proxy_upstreams_leaving", help, &[(&[], stats.leaving as u64)]);
        let of_each = |of: fn(&mbal_proxy::UpstreamStats) -> u64| {
            stats.upstreams.iter().map(move |one| (one.name.as_str(), of(one)))
        };
        for (name, kind, help, values) in [
            (
                "mbal_proxy_upstream_connections",
                "gauge",
                "Connections to an upstream that are up.",
                of_each(|one| one.connections as u64),
            ),
            (
                "mbal_proxy_upstream_unanswered",
                "gauge",
                "Requests that an upstream has not answered.",
                of_each(|one| one.waiting as u64),
            ),
            (
                "mbal_proxy_upstream_failures_total",
                "counter",
                "Connections to an upstream that were lost, or could not be made.",
                of_each(|one| one.failures_total),
            ),
        ] {
            self.family(name, kind, help);
            for (upstream, value) in values {
                self.sample(name, &[("upstream", upstream)], value);
            }
        }
        let name = "mbal_proxy_upstream_reply_seconds";
        let help = "Time from when a request was ready to be sent to an upstream until its reply was read; replies by upstream.";
        self.family(name, "histogram", help);
        for upstream in &stats.upstreams {
            let latency = &upstream.latency;
            let total = (latency.count(), latency.sum_ns());
            self.histogram(name, ("upstream", &upstream.name), latency.by_powers(), total);
        }
    }

    fn copies(&mut self, stats: &Stats) {
        let Some(Copies { keys, copied, cached, items, threshold }) = stats.copies else { return };
        let name = "mbal_proxy_hot_keys";
        let help = "Hot keys by where they are read: at home, from copies, or from the proxy's own memory.";
        let cold = keys.saturating_sub(copied + cached);
        self.family(name, "gauge", help);
        for (state, keys) in [("home", cold), ("copied", copied), ("cached", cached)] {
            self.sample(name, &[("state", state)], keys);
        }
        let help = "Copies that upstreams have of hot keys.";
        self.gauge("mbal_proxy_copies", help, &[(&[], items as u64)]);
        let counters = &stats.counters;
        for (name, help, value) in [
            ("mbal_proxy_copies_stored_total", "Copies ever sent.", counters.copies_stored),
            ("mbal_proxy_copy_reads_total", "Reads that went to copies.", counters.copy_reads),
            (
                "mbal_proxy_cache_hits_total",
                "Reads that were answered from the proxy's own memory.",
                counters.cache_hits,
            ),
            (
                "mbal_proxy_written_hits_total",
                "Reads that waited for a write, and got what it brought.",
                counters.written_hits,
            ),
            (
                "mbal_proxy_cache_writes_total",
                "Writes whose values the proxy's own memory has taken.",
                counters.cache_writes,
            ),
        ] {
            self.counter(name, help, &[(&[], value)]);
        }
        let Some(threshold) = threshold else { return };
        for (name, help, value) in [
            (
                "mbal_proxy_hot_threshold",
                "T in requests per second: a key gets a copy for each.",
                threshold.requests_per_copy,
            ),
            (
                "mbal_proxy_predicted_imbalance",
                "Requests of the busiest upstream by those of the average, as T promises (--imbalance-target).",
                threshold.predicted,
            ),
        ] {
            self.family(name, "gauge", help);
            self.sample(name, &[], value);
        }
    }
}
