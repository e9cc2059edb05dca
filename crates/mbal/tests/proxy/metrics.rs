//! What a proxy tells Prometheus.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::pool::{Memcached, Proxied, list};
use crate::running::{Folder, eventually};

/// One of everything that is counted.
const SEQUENCE: &str = "set a 0 0 1\r\nx\r\nget a\r\nget a b c d e f\r\nmg a v\r\ndelete b\r\n\
    set n 0 0 1\r\n1\r\nincr n 1\r\ntouch n 0\r\nflush_all\r\nversion\r\n";

#[test]
fn metrics_tell_of_clients_requests_and_upstreams() {
    let Some(pool) = Memcached::some(2) else { return };
    let folder = Folder::new("proxy-metrics");
    let proxy = Proxied::start(&folder, &["--upstream", &list(&pool), "--retry", "100ms"]);
    proxy.ask(SEQUENCE);
    for (name, value) in [
        ("mbal_proxy_requests_total{command=\"get\"}", 3.0),
        ("mbal_proxy_requests_total{command=\"set\"}", 2.0),
        ("mbal_proxy_requests_total{command=\"delete\"}", 1.0),
        ("mbal_proxy_requests_total{command=\"arithmetic\"}", 1.0),
        ("mbal_proxy_requests_total{command=\"touch\"}", 1.0),
        ("mbal_proxy_requests_total{command=\"flush\"}", 1.0),
        // `version` and `quit`.
        ("mbal_proxy_requests_total{command=\"other\"}", 2.0),
        ("mbal_proxy_connections_opened_total", 1.0),
        ("mbal_proxy_connections_limit", 1024.0),
        ("mbal_proxy_errors_total", 0.0),
    ] {
        assert_eq!(proxy.metric(name), Some(value), "{name}");
    }
    let of = |family: &str, at: &str, more: &str| {
        proxy.metric(&format!("mbal_proxy_upstream_{family}{{upstream=\"{at}\"{more}}}"))
    };
    let names: Vec<String> = pool.iter().map(Memcached::name).collect();
    let replies: f64 = names.iter().map(|at| of("reply_seconds_count", at, "").unwrap()).sum();
    assert_eq!(proxy.metric("mbal_proxy_replies_total"), Some(replies));
    assert!(replies >= 10.0, "{replies}");
    assert_eq!(of("state", &names[0], ",state=\"up\""), Some(1.0));
    let mut pool = pool;
    drop(pool.remove(0));
    eventually("the upstream is told to be down", || {
        of("state", &names[0], ",state=\"down\"") == Some(1.0)
            && of("failures_total", &names[0], "") >= Some(1.0)
            && of("connections", &names[0], "") == Some(0.0)
    });
    assert_eq!(of("state", &names[1], ",state=\"up\""), Some(1.0));
}

#[test]
fn metrics_tell_of_hot_keys_and_their_copies() {
    let Some(pool) = Memcached::some(3) else { return };
    let folder = Folder::new("proxy-hot-metrics");
    let upstreams = list(&pool);
    let flags = ["--upstream", &upstreams, "--imbalance-target", "1.1", "--interval", "100ms"];
    let proxy = Proxied::start(&folder, &flags);
    proxy.set("hot", "x");
    let many = "get hot\r\n".repeat(2000);
    eventually("a hot key has copies", || {
        proxy.ask(&many);
        proxy.metric("mbal_proxy_hot_keys{state=\"copied\"}") == Some(1.0)
            && proxy.metric("mbal_proxy_copy_reads_total") > Some(0.0)
    });
    assert!(proxy.metric("mbal_proxy_copies_stored_total") >= Some(1.0));
    assert!(proxy.metric("mbal_proxy_hot_threshold") > Some(0.0));
    assert!(proxy.metric("mbal_proxy_predicted_imbalance") >= Some(1.0));
    complaints(&proxy);
}

#[test]
fn promtool_finds_nothing_to_complain_of() {
    let Some(pool) = Memcached::some(2) else { return };
    let folder = Folder::new("proxy-promtool");
    let proxy = Proxied::start(&folder, &["--upstream", &list(&pool)]);
    proxy.ask(SEQUENCE);
    complaints(&proxy);
}

fn complaints(proxy: &Proxied) {
    let Ok(mut promtool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        eprintln!("SKIPPED, NOT TESTED: no promtool");
        return;
    };
    promtool.stdin.take().unwrap().write_all(proxy.page().as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&said)), (Some(0), ""));
}
