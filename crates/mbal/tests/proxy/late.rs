//! Writes that were answered by an error are not executed over newer ones.

use std::io::Read;
use std::net::TcpListener;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use crate::fake::{Fake, Habit};
use crate::pool::{Memcached, Proxied};
use crate::running::{Folder, eventually};

/// The kernel keeps what an upstream has no room for, and would go on sending it when the connection is closed in order.
#[test]
fn what_has_not_arrived_when_a_client_hears_an_error_never_arrives() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = listener.local_addr().unwrap().to_string();
    let folder = Folder::new("proxy-reset");
    let proxy = Proxied::start(&folder, &["--upstream", &name, "--timeout", "300ms"]);
    let (mut first, _) = listener.accept().unwrap();
    let value = "x".repeat(1_000_000);
    let request = format!("set k 0 0 {}\r\n{value}\r\n", value.len());
    assert_eq!(proxy.ask(&request), "SERVER_ERROR upstream timed out\r\n");
    first.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let (mut arrived, mut bytes) = (0, [0; 65536]);
    while let Ok(count @ 1..) = first.read(&mut bytes) {
        arrived += count;
    }
    assert!(arrived < request.len(), "all {arrived} bytes arrived");
}

/// A thread of the upstream stands still with a write that it has, and goes on when others have served newer ones.
#[test]
fn what_an_upstream_has_and_executes_later_is_not_read() {
    let fake = Fake::start(Habit::None);
    let folder = Folder::new("proxy-late");
    let proxy = Proxied::start(&folder, &["--upstream", &fake.name(), "--timeout", "300ms"]);
    proxy.set("k", "older");
    let stuck = fake.stick();
    assert_eq!(proxy.ask("set k 0 0 3\r\nold\r\n"), "SERVER_ERROR upstream timed out\r\n");
    eventually("it goes on over another connection", || {
        proxy.ask("set k 0 0 3\r\nnew\r\n") == "STORED\r\n"
    });
    stuck.store(false, SeqCst);
    eventually("the late write is executed and taken back", || {
        assert_ne!(proxy.value("k").as_deref(), Some("old"));
        proxy.stat("deleted_unsure").as_deref() == Some("1")
    });
    assert_eq!(fake.value("k"), None);
    proxy.set("k", "newer");
    assert_eq!(proxy.value("k").as_deref(), Some("newer"));
}

#[test]
fn a_stopped_memcached_that_goes_on_shows_nothing_of_a_write_that_failed() {
    let Some(memcached) = Memcached::start() else { return };
    let folder = Folder::new("proxy-stopped");
    let flags = ["--upstream", &memcached.name(), "--timeout", "200ms", "--retry", "200ms"];
    let proxy = Proxied::start(&folder, &flags);
    proxy.set("k", "older");
    memcached.signal("STOP");
    assert_eq!(proxy.ask("set k 0 0 3\r\nold\r\n"), "SERVER_ERROR upstream timed out\r\n");
    thread::sleep(Duration::from_millis(500));
    memcached.signal("CONT");
    eventually("it is served again", || {
        assert_ne!(proxy.value("k").as_deref(), Some("old"));
        proxy.ask("set k 0 0 3\r\nnew\r\n") == "STORED\r\n"
    });
    eventually("nothing is in doubt", || {
        assert_ne!(proxy.value("k").as_deref(), Some("old"));
        proxy.stat("deleted_unsure").as_deref() == Some("1")
    });
    assert_ne!(memcached.value("k").as_deref(), Some("old"));
}
