//! The state in etcd: broken, gone, changed by hand, heavy.

use std::time::Duration;

use serde_json::{Value, json};

use crate::coordinators::{Cluster, registration};
use crate::members::{STATE, base64, text};

/// With a server; the state, in base64.
fn begun(test: &str) -> (Cluster, String) {
    let cluster = Cluster::start(test, &[]);
    let leader = cluster.leader();
    let told = cluster.coordinators[leader].call("POST", "/v1/servers", Some(registration(1)));
    assert_eq!(told.status, 200, "{told:?}");
    let (state, _) = cluster.etcd.get(STATE).expect("etcd is well").expect("there is a state");
    (cluster, state)
}

fn everybody_says(cluster: &Cluster, why: &str) {
    for at in 0..3 {
        cluster.eventually(&format!("coordinator {at} says: {why}"), |cluster| {
            let told = cluster.coordinators[at].get("/v1/status");
            told.status == 503 && told.error().contains(why)
        });
    }
}

#[test]
#[ignore = "needs etcd; ./test runs it"]
fn a_state_that_cannot_be_read_is_told_and_nobody_leads_by_it() {
    let (cluster, state) = begun("broken");
    let leader = cluster.leader();
    let other = text(&state).replace("\"cluster\": \"shop\"", "\"cluster\": \"other\"");
    let cases = [
        ("not a state", "not a coordinator's state"),
        ("x\u{9c} compressed", "it is compressed, and broken"),
        ("{\"format\":9}", "not a coordinator's state"),
        (other.as_str(), "the state is of cluster other, not shop"),
    ];
    for (at, (broken, why)) in cases.into_iter().enumerate() {
        cluster.etcd.put(STATE, &base64(broken.as_bytes()));
        if at == 0 {
            // It notices when it saves.
            let lost = cluster.coordinators[leader].call(
                "POST",
                "/v1/servers/1/lost",
                Some(serde_json::json!({ "force": true })),
            );
            assert_eq!(lost.status, 503);
            assert!(lost.error().contains("changed by somebody who does not lead"), "{lost:?}");
        }
        everybody_says(&cluster, &format!("the state in etcd, {STATE}: {why}"));
    }
    let (left, _) = cluster.etcd.get(STATE).expect("etcd is well").expect("it is there");
    assert_eq!(left, base64(other.as_bytes()), "nobody writes over it");
    cluster.etcd.put(STATE, &state);
    let leader = cluster.leader();
    let status = cluster.coordinators[leader].get("/v1/status");
    assert_eq!(status.body["servers"][0]["client"], "10.0.0.1:11211");
}

#[test]
#[ignore = "needs etcd; ./test runs it"]
fn a_state_that_is_gone_is_not_begun_anew() {
    let (cluster, state) = begun("gone");
    let leader = cluster.leader();
    // The others look four times a second, and remember that there was one.
    std::thread::sleep(Duration::from_secs(2));
    cluster.etcd.delete(STATE);
    let lost = cluster.coordinators[leader].call(
        "POST",
        "/v1/servers/1/lost",
        Some(serde_json::json!({ "force": true })),
    );
    assert_eq!(lost.status, 503, "{lost:?}");
    everybody_says(&cluster, "the state that was in etcd is gone");
    cluster.etcd.put(STATE, &state);
    let leader = cluster.leader();
    let status = cluster.coordinators[leader].get("/v1/status");
    assert_eq!(status.body["servers"][0]["state"], "awaited");
}

/// As heavy as 1,000 servers of 64 workers, whose ports are in no order.
#[test]
#[ignore = "needs etcd; ./test runs it"]
fn a_state_of_64_000_workers_is_saved_and_read_by_the_next_leader() {
    let mut cluster = Cluster::start("heavy", &["--servers", "2"]);
    let leader = cluster.leader();
    let heavy = |host: u64| -> Value {
        let port = |at: u64| (host * 7919 + at * 40_503) % 50_000 + 10_000;
        let workers: Vec<String> =
            (0..32_000).map(|at| format!("10.0.{}.{}:{}", host, at / 64 % 250, port(at))).collect();
        let mut one = registration(host as u8);
        one["workers"] = json!(workers);
        one
    };
    for host in [1, 2] {
        let told = cluster.coordinators[leader].call("POST", "/v1/servers", Some(heavy(host)));
        assert_eq!(told.status, 200, "{:?}", told.error());
    }
    let map = cluster.coordinators[leader].get("/v1/map").body;
    let (document, etcd_takes) = (map.as_str().expect("a document"), 3 << 19);
    assert!(
        document.len() > etcd_takes,
        "{}: the map alone is more than etcd takes",
        document.len()
    );
    drop(cluster.coordinators[leader].child.kill());
    let others: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    let next = cluster.leader_of(&others);
    assert!(cluster.coordinators[next].get("/v1/map").body == map, "it is the same map");
}
