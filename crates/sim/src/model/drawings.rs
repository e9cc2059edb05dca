//! All plots that are drawn from CSV.

use super::drawing::{Drawing, PLAIN};

/// Latency against rate, a line for each of what is compared.
const BY_RATE: Drawing =
    Drawing { x: ("per_second", "requests/s", false), by: Some(("line", "")), ..PLAIN };

pub const DRAWINGS: [Drawing; 26] = [
    Drawing {
        name: "curves-items",
        csv: "curves-points",
        title: "Miss ratio by size: exact and from 16,384 samples",
        x: ("size", "items", true),
        y: (&[("exact", "exact"), ("sampled", "sampled")], "miss ratio", false),
        panels: Some("trace"),
        only: &[("unit", "items")],
        ..PLAIN
    },
    Drawing {
        name: "curves-bytes",
        csv: "curves-points",
        title: "Miss ratio by memory: exact and from 16,384 samples",
        x: ("size", "bytes", true),
        y: (&[("exact", "exact"), ("sampled", "sampled")], "miss ratio", false),
        panels: Some("trace"),
        only: &[("unit", "bytes")],
        ..PLAIN
    },
    Drawing {
        name: "figure-18",
        csv: "figure-18-keys",
        title: "NetKV's Figure 18: estimated requests of the hottest keys",
        x: ("rank", "key, by popularity", true),
        y: (&[("estimated_count", "")], "requests", true),
        by: Some(("one_in", "1 in ")),
        ..PLAIN
    },
    Drawing {
        name: "figure-7",
        csv: "figure-7",
        title: "ElMem's Figure 7: items moved by age score, 10 servers",
        x: ("age_score", "weighted median age, requests", false),
        y: (&[("items_moved", "items moved")], "items moved", false),
        ..PLAIN
    },
    Drawing {
        name: "fusecache-growth",
        csv: "fusecache-growth",
        title: "FuseCache: time against k log² n",
        x: ("k_log2n_squared", "k log² n", true),
        y: (&[("ms_median", "")], "ms", true),
        by: Some(("k", "k ")),
        ..PLAIN
    },
    Drawing {
        name: "autoscale-servers",
        csv: "autoscale-minutes",
        title: "Autoscaler: servers in use, first seed",
        x: ("minute", "minute (the first day teaches)", false),
        y: (&[("servers", "")], "servers", false),
        by: Some(("policy", "")),
        ..PLAIN
    },
    Drawing {
        name: "autoscale-hit-ratio",
        csv: "autoscale-minutes",
        title: "Autoscaler, reactive: needed, predicted and observed hit ratio",
        x: ("minute", "minute (the first day teaches)", false),
        y: (
            &[("p_min", "needed"), ("predicted", "predicted"), ("observed", "observed")],
            "hit ratio",
            false,
        ),
        only: &[("policy", "reactive")],
        ..PLAIN
    },
    Drawing {
        name: "planners",
        csv: "planners-shakes",
        title: "16 cachelets x 8 workers: within 1% of the optimum, by effort",
        x: ("shakes", "shakes", true),
        y: (&[("within_1pct", "")], "share of clusters", false),
        by: Some(("recipe", "")),
        ..PLAIN
    },
    Drawing {
        name: "netkv-figure-5",
        csv: "netkv-figure-5",
        title: "Figure 5: imbalance against threshold, 100 servers",
        x: ("threshold", "threshold T, requests", true),
        y: (
            &[
                ("observed", "observed"),
                ("predicted_equal", "equal balls (Eq. 1-5)"),
                ("predicted_weighed", "bound"),
                ("predicted_weighed_sampled", "bound, sampled"),
                ("predicted_typical", "typical"),
            ],
            "max / average load",
            false,
        ),
        only: &[("trace", "wikipedia")],
        ..PLAIN
    },
    Drawing {
        name: "netkv-figure-12",
        csv: "netkv-figure-12",
        title: "Figure 12: replicas per hot key, 100 servers",
        x: ("rank", "key, by popularity", false),
        y: (&[("replicas", "")], "replicas", false),
        by: Some(("threshold", "T ")),
        ..PLAIN
    },
    Drawing {
        name: "netkv-figure-14",
        csv: "netkv-figure-14",
        title: "Figure 14: requests by server, 100 servers",
        x: ("server_by_load", "server, by load", false),
        y: (&[("requests", "")], "requests", false),
        by: Some(("policy", "")),
        ..PLAIN
    },
    Drawing {
        name: "netkv-figure-15",
        csv: "netkv-figure-15",
        title: "Figure 15: mean deviation (Eq. 6) against skew, 100 servers",
        x: ("skew", "Zipf skew", false),
        y: (&[("mean_deviation", "")], "sum |rate - average| / total", false),
        by: Some(("policy", "")),
        ..PLAIN
    },
    Drawing {
        name: "netkv-figure-17",
        csv: "netkv-figure-17",
        title: "Figure 17: imbalance against servers",
        x: ("servers", "servers", true),
        y: (&[("observed_mean", "")], "max / average load", true),
        by: Some(("policy", "")),
        ..PLAIN
    },
    Drawing {
        name: "phases-10-p90",
        csv: "phases-10",
        title: "MBal's Figure 10: 95% reads, 90th percentile of reads",
        y: (&[("p90_ms", "")], "p90, ms", false),
        ..BY_RATE
    },
    Drawing {
        name: "phases-10-p95",
        csv: "phases-10",
        title: "MBal's Figure 10: 95% reads, 95th percentile of reads",
        y: (&[("p95_ms", "")], "p95, ms", false),
        ..BY_RATE
    },
    Drawing {
        name: "phases-10-p99",
        csv: "phases-10",
        title: "MBal's Figure 10: 95% reads, 99th percentile of reads",
        y: (&[("p99_ms", "")], "p99, ms", false),
        ..BY_RATE
    },
    Drawing {
        name: "phases-11",
        csv: "phases-11",
        title: "MBal's Figure 11: percentiles of read latency, 576 clients",
        x: ("percentile", "percentile", false),
        y: (&[("read_ms", "")], "ms", true),
        by: Some(("line", "")),
        ..PLAIN
    },
    Drawing {
        name: "phases-12",
        csv: "phases-12",
        title: "MBal's Figure 12: workloads A, B and C, 90th percentile of reads",
        x: ("second", "seconds", false),
        y: (&[("read_p90_ms", "")], "p90, ms", false),
        by: Some(("line", "")),
        ..PLAIN
    },
    Drawing {
        name: "phases-13",
        csv: "phases-13",
        title: "MBal's Figure 13: what each phase has begun, of all",
        x: ("second", "seconds", false),
        y: (&[("share", "")], "share", false),
        by: Some(("phase", "phase ")),
        panels: Some("line"),
        ..PLAIN
    },
    Drawing {
        name: "spore-6a",
        csv: "spore-6a",
        title: "SPORE's Figure 6a: 12 servers, 99% reads",
        y: (&[("p90_ms", "")], "p90 of reads, ms", false),
        panels: Some("panel"),
        ..BY_RATE
    },
    Drawing {
        name: "spore-8",
        csv: "spore-8",
        title: "SPORE's Figure 8: the 500 hottest keys are a fifth read-only",
        y: (&[("p90_ms", "")], "p90 of reads, ms", false),
        panels: Some("panel"),
        ..BY_RATE
    },
    Drawing {
        name: "spore-9",
        csv: "spore-9",
        title: "SPORE's Figure 9: 64 servers, reads alone",
        y: (&[("p90_ms", "")], "p90 of reads, ms", false),
        panels: Some("panel"),
        ..BY_RATE
    },
    Drawing {
        name: "spore-10a",
        csv: "spore-10a",
        title: "SPORE's Figure 10a: copies of a key, async",
        y: (&[("p90_ms", "")], "p90 of reads, ms", false),
        panels: Some("panel"),
        ..BY_RATE
    },
    Drawing {
        name: "spore-10b",
        csv: "spore-10b",
        title: "SPORE's Figure 10b: how long leases are; 1 s as built",
        y: (&[("p90_ms", "")], "p90 of reads, ms", false),
        panels: Some("panel"),
        ..BY_RATE
    },
    Drawing {
        name: "spore-7-reads",
        csv: "spore-7",
        title: "SPORE's Figure 7a: how writes are told, reads",
        y: (&[("p90_ms", "")], "p90 of reads, ms", false),
        panels: Some("panel"),
        ..BY_RATE
    },
    Drawing {
        name: "spore-7-writes",
        csv: "spore-7",
        title: "SPORE's Figure 7b: how writes are told, writes",
        y: (&[("write_p90_ms", "")], "p90 of writes, ms", false),
        panels: Some("panel"),
        ..BY_RATE
    },
];
