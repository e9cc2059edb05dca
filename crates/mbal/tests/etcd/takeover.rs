//! The leader dies, ends, or sleeps: the next one knows what it knew.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::coordinators::{Cluster, registration};
use crate::running::Running;
use crate::signal;

#[test]
#[ignore = "needs etcd; ./test runs it"]
fn another_leads_when_the_leader_dies_and_when_it_ends() {
    let mut cluster = Cluster::start("dies", &[]);
    let first = cluster.leader();
    let registered = cluster.coordinators[first].call("POST", "/v1/servers", Some(registration(1)));
    assert_eq!(registered.status, 200, "{registered:?}");
    let map = cluster.coordinators[first].get("/v1/map");
    let url = cluster.coordinators[first].url.clone();
    let others: Vec<usize> = (0..3).filter(|at| *at != first).collect();
    for at in &others {
        cluster.eventually("who stands by names the leader", |cluster| {
            let told = cluster.coordinators[*at].get("/v1/map");
            told.status == 503 && told.leader.as_ref() == Some(&url) && told.body["leader"] == *url
        });
    }
    drop(cluster.coordinators[first].child.kill());
    let second = cluster.leader_of(&others);
    let same = cluster.coordinators[second].get("/v1/map");
    assert_eq!(same.body, map.body);
    assert!(map.term < same.term, "{:?}, {:?}", map.term, same.term);
    let status = cluster.coordinators[second].get("/v1/status");
    assert_eq!(status.body["servers"][0]["state"], "awaited", "it has had no time to report");
    signal(&cluster.coordinators[second].child, "TERM");
    let third = *others.iter().find(|at| **at != second).expect("there are three");
    cluster.leader_of(&[third]);
    assert_eq!(cluster.coordinators[third].get("/v1/map").body, map.body);
}

#[test]
#[ignore = "needs etcd; ./test runs it"]
fn a_leader_that_was_asleep_writes_nothing_and_does_not_answer_as_leader() {
    let cluster = Cluster::start("asleep", &[]);
    let first = cluster.leader();
    let sleeper = &cluster.coordinators[first];
    assert_eq!(sleeper.call("POST", "/v1/servers", Some(registration(1))).status, 200);
    signal(&sleeper.child, "STOP");
    // The kernel takes these for it.
    let asked = [("GET", "/v1/map", ""), ("POST", "/v1/servers/1/lost", r#"{"force":true}"#)].map(|(method, path, body)| {
        let mut stream = TcpStream::connect(&sleeper.url["http://".len()..]).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
        let request = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).expect("it is taken");
        stream
    });
    let others: Vec<usize> = (0..3).filter(|at| *at != first).collect();
    let second = cluster.leader_of(&others);
    let told = cluster.coordinators[second].call("POST", "/v1/servers", Some(registration(2)));
    assert_eq!(told.status, 200, "{told:?}");
    let written = cluster.etcd.get(crate::members::STATE).expect("etcd is well");
    signal(&sleeper.child, "CONT");
    for mut stream in asked {
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("it answers");
        assert!(said.starts_with("HTTP/1.1 503"), "{said}");
    }
    cluster.eventually("it says why", |cluster| {
        cluster.coordinators[first].said().contains("its lease was not renewed in time")
    });
    assert_eq!(cluster.etcd.get(crate::members::STATE).expect("etcd is well"), written);
    cluster.eventually("it stands by", |cluster| {
        let told = cluster.coordinators[first].get("/v1/status");
        told.leader.as_ref() == Some(&cluster.coordinators[second].url)
    });
}

fn stores(server: &Running) -> bool {
    let mut stream = server.connect();
    (0..20).all(|n| {
        stream.write_all(format!("set k{n} 0 0 1\r\nv\r\n").as_bytes()).expect("it is taken");
        let mut reply = [0; 64];
        let count = stream.read(&mut reply).expect("it answers");
        reply[..count] == *b"STORED\r\n"
    })
}

#[test]
#[ignore = "needs etcd; ./test runs it"]
fn servers_and_tools_follow_whoever_leads_and_serve_on_without_etcd() {
    let mut cluster = Cluster::start("follow", &["--servers", "2"]);
    cluster.leader();
    let servers = [cluster.serve(), cluster.serve()];
    cluster.eventually("all keys can be stored at either", |_| servers.iter().all(stores));
    let first = cluster.leader();
    drop(cluster.coordinators[first].child.kill());
    cluster.eventually("both report to the next leader", |cluster| {
        let (worked, said) = cluster.tool(&["cluster", "status"]);
        worked && said.matches("serving").count() == 2
    });
    assert!(servers.iter().all(stores));
    let third = cluster.serve();
    cluster.eventually("a server joins by the next leader", |_| stores(&third));
    assert!(cluster.tool(&["cluster", "map"]).1.contains("server 3 "));
    assert!(cluster.tool(&["cluster", "events"]).1.contains("server 3 registers"));
    let (worked, said) = cluster.tool(&["cluster", "move", "0000/5", "3"]);
    assert!(worked && said.contains("move 1 begins"), "{said}");

    (0..3).for_each(|at| cluster.etcd.kill(at));
    cluster.eventually("the API says why nothing can be changed", |cluster| {
        let (worked, said) = cluster.tool(&["cluster", "lost", "3", "--force"]);
        !worked && said.contains("this coordinator does not lead, and etcd cannot be used: ")
    });
    assert!(servers.iter().all(stores), "clients notice nothing");
    (0..3).for_each(|at| cluster.etcd.begin(at));
    cluster.eventually("etcd is back, and a coordinator leads", |cluster| {
        cluster.tool(&["cluster", "lost", "3", "--force"]).0
    });
    cluster.eventually("its cachelets are the others'", |_| servers.iter().all(stores));
}
