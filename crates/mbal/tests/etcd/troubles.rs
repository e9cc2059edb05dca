//! etcd is slow, or a part of it is gone.

use std::time::Duration;

use crate::coordinators::{Cluster, call, registration};

#[test]
#[ignore = "needs etcd; ./test runs it"]
fn a_member_that_dies_or_sleeps_is_passed_over() {
    let mut cluster = Cluster::start("member", &[]);
    cluster.leader();
    for (host, at) in (1..).zip(0..3) {
        cluster.etcd.kill(at);
        cluster.eventually("a change is saved by two members", |cluster| {
            let leader = cluster.leader();
            cluster.coordinators[leader]
                .call("POST", "/v1/servers", Some(registration(host)))
                .status
                == 200
        });
        cluster.etcd.begin(at);
        cluster.etcd.wait();
    }
    for (host, at) in (4..).zip(0..3) {
        cluster.etcd.signal(at, "STOP");
        cluster.eventually("a change is saved while a member sleeps", |cluster| {
            let leader = cluster.leader();
            cluster.coordinators[leader]
                .call("POST", "/v1/servers", Some(registration(host)))
                .status
                == 200
        });
        cluster.etcd.signal(at, "CONT");
    }
    let leader = cluster.leader();
    let status = cluster.coordinators[leader].get("/v1/status");
    assert_eq!(status.body["servers"].as_array().map(Vec::len), Some(6));
}

/// Whatever was told of each change is so, and what was asked meanwhile waited.
#[test]
#[ignore = "needs etcd; ./test runs it"]
fn a_change_that_etcd_does_not_answer_is_settled_before_anything_is_told() {
    let cluster = Cluster::start("slow", &[]);
    let (mut done, mut undone) = (Vec::new(), 0);
    // Shorter than what is left of a lease, longer than a call may take; then longer than the lease.
    for (host, asleep) in (1..).zip([1200, 1500, 4500]) {
        let leader = cluster.leader();
        let url = cluster.coordinators[leader].url.clone();
        (0..3).for_each(|at| cluster.etcd.signal(at, "STOP"));
        let changes = url.clone();
        let change = std::thread::spawn(move || {
            call(&changes, "POST", "/v1/servers", Some(registration(host)))
        });
        std::thread::sleep(Duration::from_millis(100));
        let read = std::thread::spawn(move || call(&url, "GET", "/v1/status", None));
        std::thread::sleep(Duration::from_millis(asleep));
        (0..3).for_each(|at| cluster.etcd.signal(at, "CONT"));
        let (change, read) = (change.join().expect("it ends"), read.join().expect("it ends"));
        match change.status {
            200 => {
                done.push(u64::from(host));
                let servers = read.body["servers"].as_array().map(Vec::len);
                assert!(read.status == 503 || servers == Some(done.len()), "{read:?}");
            }
            503 => {
                undone += 1;
                assert!(!change.error().is_empty() && read.status == 503, "{change:?} {read:?}");
            }
            _ => panic!("{change:?}"),
        }
        let leader = cluster.leader();
        let status = cluster.coordinators[leader].get("/v1/status");
        let servers = status.body["servers"].as_array().expect("a list");
        let known: Vec<u64> = servers
            .iter()
            .map(|server| u64::from_str_radix(server["incarnation"].as_str().unwrap(), 16).unwrap())
            .collect();
        assert!(done.iter().all(|host| known.contains(host)), "{done:?}, {known:?}");
        // Nobody knew: it may be there, and counts from now on.
        done = known;
    }
    assert!(undone > 0, "no lease outlives 4.5 s of silence");
}
