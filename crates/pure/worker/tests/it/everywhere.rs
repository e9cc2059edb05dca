//! `flush_all`, which is the cluster's.

use std::time::Duration;

use crate::neighbours::{Client, HERE, PEERS, a_second_later, ask, cluster, key};
use crate::rig::Rig;
use mbal_model::{MoveId, Prefix};
use mbal_worker::Event;

#[test]
fn flush_all_is_the_clusters() {
    let mut client = Client::new(8);
    let here = key(1, 0);
    client.send(&format!("set {here} 0 0 1\r\nH\r\nflush_all\r\nget {here}\r\n"));
    let to_all = |exptime, number| {
        [2, 3].map(|server| (server, format!("flush_all {exptime} {number} 2,3\r\n")))
    };
    assert_eq!(client.requests(), to_all(0, 1));
    client.answer(1, "OK\r\n");
    client.check("");
    client.answer(0, "OK\r\n");
    client.check("STORED\r\nOK\r\nEND\r\n");
    // A server that does not, and one that is not there.
    client.send("flush_all 10\r\n");
    assert_eq!(client.requests(), to_all(10, 2));
    client.answer(0, "CLIENT_ERROR flush_all not allowed\r\n");
    client.event(Event::LinkBroken { server: PEERS[1] });
    client.check("");
    a_second_later(&mut client);
    client.check("SERVER_ERROR flush_all did not reach 2 of 3 servers\r\n");
    client.forwarded.clear();
    client.send("flush_all\r\nflush_all noreply\r\nflush_all x\r\n");
    // One after the other: who has not heard of the first could take what is stored between.
    for number in [3, 4] {
        assert_eq!(client.requests(), [(2, format!("flush_all 0 {number} 2,3\r\n"))]);
        client.answer(0, "OK\r\n");
    }
    client.check(
        "SERVER_ERROR flush_all did not reach 1 of 3 servers\r\n\
         CLIENT_ERROR invalid exptime argument\r\n",
    );
}

#[test]
fn who_begins_before_a_flush_that_is_to_come_is_told_of_it() {
    let mut client = Client::new(8);
    client.send("flush_all 10\r\n");
    client.answer(0, "OK\r\n");
    client.answer(0, "OK\r\n");
    client.check("OK\r\n");
    let begins_anew = |client: &mut Client| {
        client.event(Event::LinkBroken { server: PEERS[0] });
        client.event(Event::LinkUp { server: PEERS[0], credits: 8 });
    };
    client.rig.now.second += 3;
    begins_anew(&mut client);
    assert_eq!(client.requests(), [(2, "flush_all 7 1\r\n".into())]);
    client.answer(0, "OK\r\n");
    client.check("");
    client.rig.now.second += 6;
    begins_anew(&mut client);
    assert_eq!(client.requests(), []);
}

#[test]
fn word_of_a_flush_that_is_to_come_does_not_put_it_off() {
    let mut client = Client::new(8);
    let here = key(1, 0);
    client.send(&format!("set {here} 0 0 1\r\nH\r\n"));
    for seconds in [4, 4] {
        assert_eq!(ask(&mut client.rig, 1, "flush_all 10 1\r\n"), Ok("OK\r\n".into()));
        client.rig.now.second += seconds;
    }
    client.send(&format!("get {here}\r\n"));
    client.rig.now.second += 1;
    client.send(&format!("get {here}\r\n"));
    client.check(&format!("STORED\r\nVALUE {here} 0 1\r\nH\r\nEND\r\nEND\r\n"));
}

#[test]
fn a_flush_has_one_number_on_all_servers() {
    let mut client = Client::new(8);
    let here = key(1, 0);
    client.send(&format!("set {here} 0 0 1\r\nH\r\n"));
    assert_eq!(ask(&mut client.rig, 1, "flush_all 0 41\r\n"), Ok("OK\r\n".into()));
    client.send(&format!("get {here}\r\n"));
    client.check("STORED\r\nEND\r\n");
    client.send("flush_all\r\n");
    assert_eq!(client.requests(), [2, 3].map(|server| (server, "flush_all 0 42 2,3\r\n".into())));
}

#[test]
fn what_a_flush_was_not_asked_for_may_leave_when_nobody_waits_for_its_answer() {
    let mut rig = Rig::new();
    rig.handle(Event::Mapped { here: HERE, cluster: cluster() });
    let prefix = Prefix::equal(2).next().expect("four");
    rig.server.store.know_flush(5);
    rig.handle(Event::Tick);
    rig.pass_until(rig.now.instant() + Duration::from_secs(1));
    rig.handle(Event::Tick);
    assert!(!rig.server.store.begin_to_leave(prefix, MoveId(1)));
    rig.pass_until(rig.now.instant() + Duration::from_secs(1));
    rig.handle(Event::Tick);
    assert!(rig.server.store.begin_to_leave(prefix, MoveId(1)));
}
