//! What `stats` and `mbal top` tell of a proxy.

use std::process::Command;

use crate::json::{self, Value, number, read, text};
use crate::pool::{Memcached, Proxied, list};
use crate::running::{Folder, MBAL, eventually};

/// One moment, as JSON.
fn top(proxy: &Proxied) -> Value {
    let at = format!("127.0.0.1:{}", proxy.running.port);
    let flags = ["top", &at, "--once", "--json", "--interval", "0.2"];
    let said = Command::new(MBAL).args(flags).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    read(&String::from_utf8(said.stdout).unwrap())
}

#[test]
fn a_proxy_counts_as_memcached_does() {
    let Some(pool) = Memcached::some(2) else { return };
    let folder = Folder::new("proxy-stats");
    let proxy = Proxied::start(&folder, &["--upstream", &list(&pool)]);
    proxy.ask(
        "set a 0 0 1\r\nx\r\nget a\r\nget a b c d\r\nmg a v\r\nmg z v\r\ntouch a 0\r\ndelete a\r\n",
    );
    let expected = [
        ("cmd_get", "7"),
        ("get_hits", "3"),
        ("get_misses", "4"),
        ("cmd_set", "1"),
        ("cmd_touch", "1"),
        ("threads", "1"),
        // This one's.
        ("curr_connections", "1"),
    ];
    for (name, value) in expected {
        assert_eq!(proxy.stat(name).as_deref(), Some(value), "{name}");
    }
    let count = |name| proxy.stat(name).unwrap().parse::<u64>().unwrap();
    assert!(count("bytes_read") > 100 && count("bytes_written") > 500);
    assert!(count("total_connections") >= 8);
    assert!(proxy.stat("version").is_some() && proxy.stat("uptime").is_some());
    assert!(proxy.ask("stats hot\r\n").starts_with("END"), "nothing is copied");
}

#[test]
fn top_shows_rates_hits_latency_and_hot_keys() {
    let Some(pool) = Memcached::some(3) else { return };
    let folder = Folder::new("proxy-top");
    let upstreams = list(&pool);
    let flags = ["--upstream", &upstreams, "--imbalance-target", "1.1", "--interval", "100ms"];
    let proxy = Proxied::start(&folder, &flags);
    proxy.set("hot", "x");
    let many = "get hot\r\n".repeat(2000);
    let mut shown = top(&proxy);
    std::thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let asked = &proxy;
        scope.spawn(move || {
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                asked.ask(&many);
            }
        });
        eventually("a hot key has copies", || {
            shown = top(&proxy);
            let hottest = json::list(&shown["hottest_keys"]);
            hottest.first().is_some_and(|key| text(&key["state"]) == "hot")
        });
        drop(stop);
    });
    assert_eq!((text(&shown["kind"]), &shown["mbal"]), ("proxy", &Value::Bool(true)));
    let key = &json::list(&shown["hottest_keys"])[0];
    assert_eq!((text(&key["key"]), &key["value_bytes"]), ("hot", &Value::Null));
    assert!(number(&key["reads"]) > 0.0 && number(&key["copies"]) >= 1.0, "{key:?}");
    assert!(number(&shown["requests_per_second"]) > 0.0);
    assert_eq!(number(&shown["hit_ratio"]), 1.0);
    assert!(number(&shown["p99_us"]) >= number(&shown["p50_us"]));
    assert!(number(&shown["connections"]) >= 1.0);
    let at = format!("127.0.0.1:{}", proxy.running.port);
    let text = Command::new(MBAL).args(["top", &at, "--once", "--interval", "0.1"]).output();
    let text = String::from_utf8(text.unwrap().stdout).unwrap();
    assert!(
        text.contains("proxy as memcached") && text.contains("upstreams: 3 up, 0 down"),
        "{text}"
    );
}
