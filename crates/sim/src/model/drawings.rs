//! All plots that are drawn from CSV.

use super::drawing::{Drawing, PLAIN};

pub const DRAWINGS: [Drawing; 13] = [
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
];
