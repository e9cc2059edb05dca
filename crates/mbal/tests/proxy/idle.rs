//! Connections to upstreams that nobody uses for a while.

use std::thread;
use std::time::Duration;

use crate::fake::{Fake, Habit};
use crate::pool::Proxied;
use crate::running::Folder;

const IDLE: Duration = Duration::from_millis(300);

/// Rounds of requests with pauses between them: what clients heard that was wrong.
fn rounds(name: &str, fake: &Fake, more: &[&str]) -> Vec<String> {
    let folder = Folder::new(name);
    let name = fake.name();
    let flags = ["--upstream", &name, "--server-connections", "4"];
    let proxy = Proxied::start(&folder, &[&flags[..], more].concat());
    let key = |at: usize| format!("k{at}");
    (0..8).for_each(|at| proxy.set(&key(at), "warm"));
    let mut wrong = Vec::new();
    for round in 0..6 {
        thread::sleep(IDLE * 2);
        // At each other time, at short intervals: several connections are used one after the other.
        for at in 0..8 {
            let heard = proxy.ask(&format!("get {}\r\n", key(at)));
            if heard != format!("VALUE {} 0 4\r\nwarm\r\nEND\r\n", key(at)) {
                wrong.push(heard);
            }
            thread::sleep(Duration::from_millis(30 * (round % 2)));
        }
    }
    assert_eq!(proxy.stat("ejections").as_deref(), Some("0"));
    wrong
}

#[test]
fn an_upstream_that_closes_idle_connections_is_well_and_nobody_hears_of_it() {
    // Nobody waits for a connection that is closed. A busy machine is to let nobody time out.
    for flags in [&["--timeout", "10s", "--eject"][..], &["--timeout", "10s"]] {
        let fake = Fake::start(Habit::ClosesIdle(IDLE));
        assert_eq!(rounds("proxy-idle", &fake, flags), [""; 0], "{flags:?}");
        assert_eq!(fake.flushes.load(std::sync::atomic::Ordering::SeqCst), 0);
    }
}

#[test]
fn connections_that_a_firewall_has_forgotten_fail_once_and_the_upstream_is_well() {
    let fake = Fake::start(Habit::ForgetsIdle(IDLE));
    let wrong = rounds("proxy-forgotten", &fake, &["--timeout", "200ms", "--eject"]);
    // One in each round: then all others were made again, too. If each failed by itself there would be 24. On a busy machine one is
    // idle for too long within a round, now and then.
    assert!(wrong.len() <= 12, "{wrong:?}");
    assert!(wrong.iter().all(|heard| heard == "SERVER_ERROR upstream timed out\r\n"), "{wrong:?}");
    assert_eq!(fake.flushes.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(fake.value("k0").as_deref(), Some("warm"));
}
