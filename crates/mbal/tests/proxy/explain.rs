//! Why a key is where it is.

use std::process::Output;

use crate::pool::{Memcached, Proxied, list};
use crate::running::{Folder, MBAL, certificate, eventually, output_of};

fn explain(proxy: &Proxied, flags: &[&str]) -> Output {
    let at = format!("127.0.0.1:{}", proxy.running.port);
    output_of(MBAL.as_ref(), &[&["cluster", "explain", "--proxy", &at], flags].concat())
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_keys_home_its_ring_and_who_stands_in_are_told() {
    let Some(mut pool) = Memcached::some(2) else { return };
    let folder = Folder::new("proxy-explain");
    let upstreams = list(&pool);
    let flags = ["--upstream", &upstreams, "--eject", "--failures", "1", "--retry", "50ms"];
    let proxy = Proxied::start(&folder, &flags);
    proxy.set("a%b", "x");
    let home = pool.iter().position(|one| one.value("a%b").is_some()).unwrap();
    let name = pool[home].name();
    let text = said(&explain(&proxy, &["a%25b"]));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("key a%25b: hash fnv1a_64 "), "{text}");
    assert!(
        lines[0].ends_with("the next point on the ring of twemproxy among 2 upstreams"),
        "{text}"
    );
    assert_eq!(lines[1], format!("home {name}: up, 0 requests not answered"));
    assert_eq!(lines[2..], ["no key is copied: --imbalance-target is not given"]);
    let other = pool[1 - home].name();
    drop(pool.remove(home));
    eventually("another one stands in", || {
        let text = said(&explain(&proxy, &["a%25b"]));
        text.contains(&format!("home {name}: left out until it has deleted what it has missed"))
            && text.contains(&format!("meanwhile {other} stands in, under the name a%25b~"))
    });
    // What is no key, and who is no proxy.
    assert_eq!(explain(&proxy, &[&"k".repeat(251)]).status.code(), Some(1));
    let at = pool[0].name();
    let output = output_of(MBAL.as_ref(), &["cluster", "explain", "--proxy", &at, "a"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("is it a proxy?"), "{output:?}");
    // A line end in a key is part of the key.
    let text = said(&explain(&proxy, &["a\r\nflush_all"]));
    assert!(text.starts_with("key a%0D%0Aflush_all: "), "{text}");
}

#[test]
fn a_hot_keys_copies_are_told_and_who_writes_it() {
    let Some(pool) = Memcached::some(3) else { return };
    let folder = Folder::new("proxy-explain-hot");
    let upstreams = list(&pool);
    let flags = ["--upstream", &upstreams, "--imbalance-target", "1.1", "--interval", "100ms"];
    let proxy = Proxied::start(&folder, &flags);
    assert!(said(&explain(&proxy, &["hot"])).contains("\nnot hot; nothing was hot yet\n"));
    proxy.set("hot", "x");
    let many = "get hot\r\n".repeat(2000);
    eventually("its copies are told", || {
        proxy.ask(&many);
        let text = said(&explain(&proxy, &["hot"]));
        let copies: Vec<&str> =
            text.lines().filter(|line| line.starts_with("copy on 127.0.0.1:")).collect();
        text.contains("\nhot: ")
            && text.contains("virtual copies, home included\ncopied for ")
            && copies.len() == 3
            && copies.iter().filter(|line| line.contains(", under the name hot~")).count() == 2
            && text.contains("\nwrites: this proxy coordinates them; ")
    });
}

#[test]
fn a_proxy_is_asked_over_tls() {
    let Some(pool) = Memcached::some(1) else { return };
    let folder = Folder::new("proxy-explain-tls");
    let Some(options) = certificate(&folder) else { return };
    let upstream = pool[0].name();
    let flags = ["--upstream", &upstream, "--placement", "modula", "-Z", "-o", &options];
    let proxy = Proxied::start(&folder, &flags);
    let text = said(&explain(&proxy, &["a", "--tls-insecure"]));
    assert!(
        text.contains("its remainder by 1 among 1 upstreams in the order of their names"),
        "{text}"
    );
}
