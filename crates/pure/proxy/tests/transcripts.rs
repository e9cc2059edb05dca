//! Transcripts: what clients and upstreams say, and what the proxy says to them.

mod common;

use std::time::Duration;

use common::transcript::{TIMEOUT, World};
use common::{MS, settings};
use mbal_model::Instant;
use mbal_proxy::{ClientId, ConnId, Event, Limits, Settings};

#[test]
fn many_clients_share_a_connection_and_each_gets_its_own_replies() {
    let mut world = World::new(settings(1));
    let (a, b) = (world.client(), world.client());
    world.says(a, "get x\r\nset y 0 0 1\r\n");
    world.says(b, "mg x v\r\n");
    world.says(a, "1\r\nmn\r\n");
    world.answers(0, "get x\r\nmg x v\r\nset y 0 0 1\r\n1\r\n", "VALUE x 0 3\r\nEN");
    world.hears(a, "");
    world.replies(0, "D\r\nEND\r\nVA 2\r\nhi\r\nSTORED\r\n");
    world.hears(a, "VALUE x 0 3\r\nEND\r\nEND\r\nSTORED\r\nMN\r\n");
    world.hears(b, "VA 2\r\nhi\r\n");
}

#[test]
fn a_multi_get_is_split_and_merged() {
    let mut world = World::new(settings(2));
    let (a, b) = (world.key(0), world.key(1));
    let client = world.client();
    world.says(client, &format!("get {b} {a} {b}\r\nget {a}\r\n"));
    world.answers(
        1,
        &format!("get {b} {b}\r\n"),
        &format!("VALUE {b} 0 1\r\nB\r\nVALUE {b} 0 1\r\nB\r\nEND\r\n"),
    );
    world.hears(client, "");
    world.answers(0, &format!("get {a}\r\nget {a}\r\n"), "END\r\nEND\r\n");
    world.hears(client, &format!("VALUE {b} 0 1\r\nB\r\nVALUE {b} 0 1\r\nB\r\nEND\r\nEND\r\n"));
}

#[test]
fn hits_and_misses_are_counted_by_key_as_memcached_does() {
    let mut world = World::new(settings(2));
    let client = world.client();
    let (a, b) = (world.key(0), world.key(1));
    let count = |world: &World| {
        let told = world.proxy.counters();
        (told.get_hits, told.get_misses)
    };
    for (request, reply, expected) in [
        ("get {a}", "VALUE {a} 0 1\r\nx\r\nEND", (1, 0)),
        ("get {a}", "END", (1, 1)),
        ("get {a}", "SERVER_ERROR out of memory", (1, 1)),
        ("mg {a} v", "VA 1\r\nx", (2, 1)),
        ("mg {a}", "HD", (3, 1)),
        ("mg {a} v", "EN", (3, 2)),
        // It changes the item, and says HD of that.
        ("md {a}", "HD", (3, 2)),
        ("delete {a}", "NOT_FOUND", (3, 2)),
    ] {
        let [request, reply] = [request, reply].map(|text| text.replace("{a}", &a) + "\r\n");
        world.says(client, &request);
        world.replies(0, &reply);
        assert_eq!(count(&world), expected, "{request} {reply}");
    }
    // Of three keys one is there.
    world.says(client, &format!("get {a} {b} {b}x\r\n"));
    world.asked.iter_mut().for_each(String::clear);
    world.replies(0, &format!("VALUE {a} 0 1\r\nx\r\nEND\r\n"));
    world.replies(1, "END\r\n");
    assert_eq!(count(&world), (4, 4));
    world.told[client.0 as usize].clear();
    world.says(client, "stats\r\n");
    let told = std::mem::take(&mut world.told[client.0 as usize]);
    for line in ["cmd_get 9", "get_hits 4", "get_misses 4", "cmd_set 0", "threads 1"] {
        assert!(told.contains(&format!("STAT {line}\r\n")), "{line}: {told}");
    }
}

#[test]
fn who_asks_quietly_hears_no_more_than_from_a_server() {
    let mut world = World::new(settings(1));
    let client = world.client();
    world.says(client, "set a 0 0 1 noreply\r\nx\r\nmg a q v\r\nmg b q\r\nms a 1 q\r\nx\r\nmd a q\r\nma n q\r\nmn\r\n");
    world.answers(
        0,
        "set a 0 0 1\r\nx\r\nmg a v\r\nmg b\r\nms a 1\r\nx\r\nmd a\r\nma n\r\n",
        "NOT_STORED\r\nVA 1\r\nx\r\nEN\r\nHD\r\nNF\r\nHD\r\n",
    );
    world.hears(client, "VA 1\r\nx\r\nNF\r\nMN\r\n");
}

#[test]
fn a_silent_upstream_fails_for_its_keys_and_its_late_replies_reach_nobody() {
    let mut world = World::new(settings(2));
    let (a, b) = (world.key(0), world.key(1));
    let client = world.client();
    world.says(client, &format!("set {a} 0 0 1\r\nx\r\n"));
    world.answers(0, &format!("set {a} 0 0 1\r\nx\r\n"), "");
    let other = world.client();
    world.says(other, &format!("get {b}\r\n"));
    world.answers(1, &format!("get {b}\r\n"), "END\r\n");
    world.hears(other, "END\r\n");
    world.wait(TIMEOUT);
    world.hears(client, "SERVER_ERROR upstream timed out\r\n");
    world.replies(0, "STORED\r\n");
    world.connect_all();
    // Nobody knows what became of the write: its key goes first, and nobody is shown what it brings.
    let (shown, unseen) = (format!("get {a} {b}\r\nmg {a} v q\r\nmg {a}\r\n"), "END\r\nEN\r\n");
    world.says(client, &format!("{shown}incr {a} 1\r\n"));
    world.answers(1, &format!("get {b}\r\n"), "END\r\n");
    world.hears(client, &format!("{unseen}SERVER_ERROR upstream write in doubt\r\n"));
    // What shows nothing is sent.
    world.says(client, &format!("set {a} 0 0 1\r\ny\r\n"));
    world.answers(0, &format!("md {a}\r\nset {a} 0 0 1\r\ny\r\n"), "HD\r\n");
    world.replies(0, "STORED\r\n");
    world.hears(client, "STORED\r\n");
    // It has answered: the write is done, or never will be.
    world.wait(MS);
    world.says(client, &format!("get {a}\r\n"));
    world.hears(client, "END\r\n");
    world.answers(0, &format!("md {a}\r\n"), "HD\r\n");
    assert_eq!(world.proxy.counters().deleted_unsure, 1);
    world.says(client, &format!("get {a}\r\n"));
    world.wait(MS);
    world.answers(0, &format!("get {a}\r\n"), "END\r\n");
    world.hears(client, "END\r\n");
}

#[test]
fn a_write_that_its_upstream_has_is_over_when_that_closes() {
    let mut world = World::new(Settings { doubt: Duration::from_nanos(1 << 60), ..settings(1) });
    let client = world.client();
    world.says(client, "set a 0 0 1\r\nx\r\n");
    world.wait(TIMEOUT);
    world.hears(client, "SERVER_ERROR upstream timed out\r\n");
    world.event(Event::Lingers { conn: ConnId(0) });
    world.connect_all();
    world.answers(0, "md a\r\n", "NF\r\n");
    world.wait(50 * TIMEOUT);
    world.says(client, "get a\r\nmg YQ== b v\r\n");
    world.hears(client, "END\r\nEN\r\n");
    world.event(Event::Ended { conn: ConnId(0), closed: true });
    world.wait(MS);
    world.says(client, "get a\r\n");
    world.answers(0, "md a\r\n", "HD\r\n");
    world.hears(client, "END\r\n");
    world.says(client, "get a\r\n");
    world.wait(MS);
    world.answers(0, "get a\r\n", "END\r\n");
    // One that does not close in time is in doubt as one that was reset.
    world.says(client, "set b 0 0 1\r\nx\r\n");
    world.wait(2 * TIMEOUT);
    world.event(Event::Lingers { conn: ConnId(0) });
    world.event(Event::Ended { conn: ConnId(0), closed: false });
    world.wait(1000 * MS);
    world.connect_all();
    world.answers(0, "md b\r\n", "NF\r\n");
    world.wait(50 * TIMEOUT);
    world.answers(0, "", "");
}

#[test]
fn a_connection_that_is_closed_while_nobody_uses_it_is_no_failure() {
    let eject = Settings { eject: true, failures_max: 2, conns_per_server: 4, ..settings(1) };
    let mut world = World::new(eject);
    let client = world.client();
    for round in 0..5 {
        world.wait(20 * TIMEOUT);
        for conn in 0..4 {
            world.event(Event::Lost { conn: ConnId(conn) });
        }
        world.connect_all();
        if round % 2 == 0 {
            world.says(client, "get a\r\n");
            world.wait(MS);
            let at =
                world.asked.iter().position(|asked| asked == "get a\r\n").expect("it is asked");
            world.asked[at].clear();
            world.event(Event::Replied { conn: ConnId(at as u32), bytes: b"END\r\n" });
            world.hears(client, "END\r\n");
        }
    }
    let counters = world.proxy.counters();
    assert_eq!((counters.ejections, counters.upstream_failures), (0, 0));
}

#[test]
fn what_was_not_sent_when_the_connection_was_closed_goes_over_the_next_one() {
    let mut world = World::new(settings(1));
    let client = world.client();
    world.wait(20 * TIMEOUT);
    let bytes = b"set a 0 0 1\r\nx\r\nget a\r\n";
    world.proxy.handle(Instant::from_nanos(world.now), Event::Received { client, bytes });
    world.event(Event::Lost { conn: ConnId(0) });
    world.hears(client, "");
    world.connect_all();
    world.answers(0, "set a 0 0 1\r\nx\r\nget a\r\n", "STORED\r\nEND\r\n");
    world.hears(client, "STORED\r\nEND\r\n");
    // What was on its way when the upstream closed is asked again, if it changes nothing.
    world.wait(20 * TIMEOUT);
    world.says(client, "get a\r\nmg b v\r\n");
    assert_eq!(std::mem::take(&mut world.asked[0]), "get a\r\nmg b v\r\n");
    world.event(Event::Lost { conn: ConnId(0) });
    world.hears(client, "");
    world.connect_all();
    world.answers(0, "get a\r\nmg b v\r\n", "END\r\nEN\r\n");
    world.hears(client, "END\r\nEN\r\n");
    world.wait(20 * TIMEOUT);
    world.says(client, "get a\r\ndelete b\r\n");
    world.event(Event::Lost { conn: ConnId(0) });
    world.hears(client, &"SERVER_ERROR upstream connection lost\r\n".repeat(2));
    world.asked[0].clear();
    world.connect_all();
    world.answers(0, "md b\r\n", "NF\r\n");
    world.answers(0, "md b\r\n", "NF\r\n");
    // One that does so at once is not believed for ever.
    world.event(Event::Lost { conn: ConnId(0) });
    for _ in 0..2 {
        world.connect_all();
        world.proxy.handle(
            Instant::from_nanos(world.now),
            Event::Received { client, bytes: b"get a\r\n" },
        );
        world.event(Event::Lost { conn: ConnId(0) });
        world.hears(client, "SERVER_ERROR upstream connection lost\r\n");
    }
}

fn ejections_when_four_connections_are_silent() -> u64 {
    let eject = Settings { eject: true, failures_max: 2, conns_per_server: 4, ..settings(1) };
    let mut world = World::new(eject);
    let client = world.client();
    (0..64).for_each(|key| world.says(client, &format!("set k{key} 0 0 1\r\nx\r\n")));
    world.wait(TIMEOUT);
    assert_eq!(world.proxy.counters().upstream_timeouts, 4);
    world.proxy.counters().ejections
}

#[test]
fn one_event_on_several_connections_is_one_failure() {
    assert_eq!(ejections_when_four_connections_are_silent(), 0);
}

#[cfg(feature = "planted")]
#[test]
fn planted_each_connection_fails() {
    use mbal_model::planted::{Fault, plant};
    plant(Some(Fault::EachConnectionFails));
    let ejections = ejections_when_four_connections_are_silent();
    plant(None);
    assert_eq!(ejections, 1);
}

/// A firewall has forgotten connections that nobody used.
#[test]
fn when_one_connection_is_silent_those_that_were_idle_are_made_again() {
    let eject = Settings { eject: true, failures_max: 2, conns_per_server: 4, ..settings(1) };
    let mut world = World::new(eject);
    let client = world.client();
    world.wait(1000 * TIMEOUT);
    for round in 0..4 {
        world.says(client, &format!("get k{round}\r\n"));
        world.wait(TIMEOUT);
        world.hears(client, "SERVER_ERROR upstream timed out\r\n");
        let mut again: Vec<u32> = world.dialing.iter().map(|conn| conn.0).collect();
        again.sort_unstable();
        assert_eq!(again, [0, 1, 2, 3], "round {round}");
        world.connect_all();
        // It is asked whether it answers, whoever wants to know something.
        for conn in 0..4 {
            assert_eq!(std::mem::take(&mut world.asked[conn]), "version\r\n");
            let conn = ConnId(conn as u32);
            world.event(Event::Replied { conn, bytes: b"VERSION 1\r\n" });
        }
        world.wait(1000 * TIMEOUT);
    }
    assert_eq!(world.proxy.counters().ejections, 0);
}

#[test]
fn a_socket_that_takes_nothing_silences_no_later_one() {
    for is_gone in [false, true] {
        let mut world = World::new(settings(2));
        let (key, client) = (world.key(0), world.client());
        let request = format!("get {key}\r\n");
        world.proxy.handle(
            Instant::from_nanos(world.now),
            Event::Received { client, bytes: request.as_bytes() },
        );
        world.proxy.take_actions(&mut Vec::new());
        if is_gone {
            world.event(Event::Lost { conn: ConnId(0) });
        } else {
            world.now += TIMEOUT;
            world.event(Event::Woken);
        }
        if is_gone {
            // It has answered before: what it could not have heard is asked again.
            world.connect_all();
            world.answers(0, &request, "END\r\n");
            world.hears(client, "END\r\n");
            continue;
        }
        world.hears(client, "SERVER_ERROR upstream timed out\r\n");
        world.connect_all();
        world.says(client, &request);
        world.answers(0, &format!("version\r\n{request}"), "VERSION 1\r\nEND\r\n");
        world.hears(client, "END\r\n");
    }
}

#[test]
fn an_upstream_that_returns_deletes_what_it_has_missed_before_it_serves() {
    let mut world = World::new(Settings { eject: true, ..settings(2) });
    let a = world.key(0);
    let client = world.client();
    world.says(client, &format!("get {a}\r\n"));
    world.answers(0, &format!("get {a}\r\n"), "");
    world.event(Event::Lost { conn: ConnId(0) });
    world.hears(client, "SERVER_ERROR upstream connection lost\r\n");
    // Elsewhere the key has another name, which the client does not see.
    world.says(client, &format!("set {a} 0 0 1\r\nx\r\n"));
    world.says(client, &format!("get {a}\r\n"));
    let asked = std::mem::take(&mut world.asked[2]);
    let name = asked.split(' ').nth(1).expect("a key").to_owned();
    assert!(name.starts_with(&a) && name.len() > a.len(), "{name}");
    assert_eq!(asked, format!("set {name} 0 0 1\r\nx\r\nget {name}\r\n"));
    world.replies(1, &format!("STORED\r\nVALUE {name} 0 1\r\nx\r\nEND\r\n"));
    world.hears(client, &format!("STORED\r\nVALUE {a} 0 1\r\nx\r\nEND\r\n"));
    // It is back, and has what it had.
    world.wait(1000 * MS);
    world.connect_all();
    world.says(client, &format!("get {a}\r\n"));
    world.answers(1, &format!("get {name}\r\n"), "END\r\n");
    world.answers(0, "version\r\n", "VERSION 1\r\n");
    // That alone was written meanwhile.
    world.answers(0, &format!("md {a}\r\nversion\r\n"), "HD\r\nVERSION 1\r\n");
    world.says(client, &format!("get {a}\r\n"));
    world.answers(0, &format!("get {a}\r\n"), "END\r\n");
    world.hears(client, "END\r\nEND\r\n");
    // The next time the name is another: what was left under the first one is never read.
    world.event(Event::Lost { conn: ConnId(0) });
    world.says(client, &format!("get {a}\r\n"));
    let lost_idle = std::mem::take(&mut world.asked[2]);
    assert_eq!(lost_idle, "", "an upstream may close a connection that nobody uses");
    world.connect_all();
    world.answers(0, &format!("get {a}\r\n"), "");
    world.event(Event::Lost { conn: ConnId(0) });
    world.hears(client, "SERVER_ERROR upstream connection lost\r\n");
    world.says(client, &format!("get {a}\r\n"));
    let asked = std::mem::take(&mut world.asked[2]);
    assert!(asked.starts_with(&format!("get {a}~")) && !asked.contains(&name), "{asked}");
}

#[test]
fn who_speaks_out_of_turn_is_not_believed() {
    let mut world = World::new(settings(1));
    let client = world.client();
    world.replies(0, "STORED\r\n");
    world.connect_all();
    world.says(client, "get a\r\n");
    let reply = "VERSION 1\r\nVALUE a 0 1\r\nxx\r\nEND\r\n";
    world.answers(0, "version\r\nget a\r\n", reply);
    world.hears(client, "SERVER_ERROR upstream sent no reply\r\n");
}

#[test]
fn a_client_that_asks_too_much_waits_and_loses_nothing() {
    let limits = Limits { client_requests_max: 4, ..Limits::default() };
    let mut world = World::new(Settings { limits, ..settings(1) });
    let client = world.client();
    world.says(client, &"get a\r\n".repeat(10));
    assert_eq!(world.paused, [client]);
    let mut replies = 0;
    while replies < 10 {
        let asked = std::mem::take(&mut world.asked[0]).matches("get a\r\n").count();
        assert!(asked > 0 && asked <= 4, "{asked} at a time");
        world.replies(0, &"END\r\n".repeat(asked));
        replies += asked;
    }
    world.hears(client, &"END\r\n".repeat(10));
    assert_eq!(world.paused, []);
}

/// Client `client` gets `count` replies; how many were asked for at a time, at most.
fn most_on_their_way(world: &mut World, client: ClientId, count: usize, reply: &str) -> usize {
    world.says(client, &"get a\r\n".repeat(count));
    let (mut replies, mut most) = (0, 0);
    while replies < count {
        // What was gathered has left.
        world.wait(MS);
        let asked = std::mem::take(&mut world.asked[0]).matches("get a\r\n").count();
        assert!(asked > 0, "it stands still after {replies}");
        most = asked.max(most);
        world.replies(0, &reply.repeat(asked));
        world.wait(MS);
        world.hears(client, &reply.repeat(asked));
        replies += asked;
    }
    most
}

#[test]
fn as_many_replies_are_on_their_way_as_a_client_may_leave_untaken() {
    let mut world = World::new(settings(1));
    let client = world.client();
    let large = format!("VALUE a 0 100000\r\n{}\r\nEND\r\n", "v".repeat(100_000));
    assert_eq!(most_on_their_way(&mut world, client, 1000, "END\r\n"), 992);
    assert_eq!(most_on_their_way(&mut world, client, 1, &large), 1);
    assert_eq!(most_on_their_way(&mut world, client, 100, &large), 11);
    // An error says nothing of the replies to come.
    for _ in 0..20 {
        world.says(client, &"get a\r\n".repeat(3));
        world.wait(TIMEOUT);
        let told = std::mem::take(&mut world.told[client.0 as usize]);
        assert_eq!(told.matches("SERVER_ERROR upstream").count(), 3, "{told}");
    }
    while world.dialing.is_empty() {
        world.wait(10 * MS);
    }
    world.connect_all();
    world.asked[0].clear();
    world.replies(0, "VERSION 1\r\n");
    assert_eq!(most_on_their_way(&mut world, client, 100, &large), 11);
    assert!(most_on_their_way(&mut world, client, 3000, "END\r\n") > 500);
    // How large they are is not known before the first one.
    let newcomer = world.client();
    world.says(newcomer, &"get a\r\n".repeat(1000));
    world.wait(MS);
    assert_eq!(world.asked[0].matches("get a\r\n").count(), 8);
}

#[test]
fn who_has_most_of_too_many_replies_is_cut_off() {
    let limits = Limits { kept_bytes_max: 1000, ..Limits::default() };
    let mut world = World::new(Settings { limits, ..settings(2) });
    let (late, other) = (world.key(0), world.key(1));
    let reply = format!("VALUE {other} 0 100\r\n{}\r\nEND\r\n", "v".repeat(100));
    let (greedy, modest) = (world.client(), world.client());
    // Their other replies wait for the first one.
    world.says(greedy, &format!("get {late}\r\n{}", format!("get {other}\r\n").repeat(5)));
    world.says(modest, &format!("get {late}\r\n{}", format!("get {other}\r\n").repeat(2)));
    world.says(greedy, &format!("get {other} {late}\r\n"));
    world.replies(1, &reply.repeat(7));
    world.replies(1, &reply);
    assert_eq!(world.closed, []);
    world.says(greedy, &format!("get {other}\r\n"));
    world.replies(1, &reply);
    assert_eq!(world.closed, []);
    world.says(modest, &format!("get {other}\r\n"));
    world.replies(1, &reply);
    assert_eq!(world.closed, [greedy]);
    assert_eq!(world.proxy.counters().clients_cut_off, 1);
    world.event(Event::Closed { client: greedy });
    world.replies(0, "END\r\nEND\r\nEND\r\n");
    world.wait(MS);
    world.hears(greedy, "");
    world.hears(modest, &format!("END\r\n{}", reply.repeat(3)));
    assert_eq!(world.client(), greedy, "its number is free");
}

#[test]
fn who_takes_the_last_replies_late_is_read_on_without_another_event() {
    let limits =
        Limits { client_requests_max: 4, client_output_bytes_max: 400, ..Limits::default() };
    let mut world = World::new(Settings { limits, ..settings(1) });
    let client = world.client();
    world.says(client, &"get a\r\n".repeat(10));
    let reply = format!("VALUE a 0 60\r\n{}\r\nEND\r\n", "v".repeat(60));
    world.asked[0].clear();
    let bytes = reply.repeat(4);
    world.proxy.handle(
        Instant::from_nanos(world.now),
        Event::Replied { conn: ConnId(0), bytes: bytes.as_bytes() },
    );
    // Its socket takes them when all have come, and nothing else happens.
    world.carry_out();
    world.hears(client, &bytes);
    assert_eq!(world.asked[0], "get a\r\n".repeat(4));
}

#[test]
fn an_upstream_that_is_busy_says_so() {
    let limits = Limits { conn_requests_max: 1, ..Limits::default() };
    let mut world = World::new(Settings { limits, ..settings(1) });
    let client = world.client();
    world.says(client, "get a\r\nget b\r\n");
    world.answers(0, "get a\r\n", "END\r\n");
    world.hears(client, "END\r\nSERVER_ERROR upstream is busy\r\n");
}

#[test]
fn a_flush_is_done_by_all() {
    let mut world = World::new(settings(2));
    let client = world.client();
    world.says(client, "flush_all\r\n");
    world.answers(0, "flush_all\r\n", "OK\r\n");
    world.hears(client, "");
    world.answers(1, "flush_all\r\n", "ERROR\r\n");
    world.hears(client, "ERROR\r\n");
}

#[test]
fn what_is_asked_behind_a_flush_waits_until_all_have_flushed() {
    let mut world = World::new(Settings { conns_per_server: 2, ..settings(2) });
    let client = world.client();
    let requests = "flush_all noreply\r\nset a 0 0 1\r\nx\r\nflush_all\r\nget a\r\n";
    world.says(client, requests);
    // Two connections for text to each of two upstreams.
    let text = [0, 1, 4, 5];
    let asked = |world: &mut World| text.map(|conn| std::mem::take(&mut world.asked[conn]));
    let reply = |world: &mut World, conn: usize, bytes: &str| {
        world.event(Event::Replied { conn: ConnId(conn as u32), bytes: bytes.as_bytes() });
    };
    assert_eq!(asked(&mut world), ["flush_all\r\n"; 4]);
    for conn in text {
        assert_eq!(asked(&mut world), [""; 4]);
        reply(&mut world, conn, "OK\r\n");
    }
    let second = asked(&mut world);
    let (set, flush) = ("set a 0 0 1\r\nx\r\n", "flush_all\r\n");
    let home = second.iter().position(|bytes| *bytes == set.to_owned() + flush);
    let home = text[home.expect("one of them has the key")];
    assert_eq!(second.iter().filter(|bytes| *bytes == flush).count(), 3);
    reply(&mut world, home, "STORED\r\n");
    // A connection that is lost has not said so: the client hears that, and goes on.
    let lost = if home == 5 { 4 } else { 5 };
    world.event(Event::Lost { conn: ConnId(lost as u32) });
    for conn in text.into_iter().filter(|conn| *conn != lost) {
        assert_eq!(asked(&mut world), [""; 4]);
        reply(&mut world, conn, "OK\r\n");
    }
    assert_eq!(asked(&mut world).concat(), "get a\r\n");
    world.hears(client, "STORED\r\nSERVER_ERROR upstream connection lost\r\n");
}

#[test]
fn who_leaves_is_answered_first_and_who_is_gone_never() {
    let mut world = World::new(settings(1));
    let (quits, is_gone) = (world.client(), world.client());
    world.says(quits, "get a\r\nquit\r\nget b\r\n");
    world.says(is_gone, "get c\r\n");
    world.event(Event::Closed { client: is_gone });
    assert_eq!(world.closed, []);
    world.answers(0, "get a\r\nget c\r\n", "END\r\nEND\r\n");
    world.hears(quits, "END\r\n");
    assert_eq!(world.closed, [quits]);
    world.hears(is_gone, "");
    world.event(Event::Closed { client: quits });
    // Both names are free again.
    let names = [world.client(), world.client()];
    assert!(names.contains(&quits) && names.contains(&is_gone));
}

#[test]
fn binary_has_connections_of_its_own_and_quiet_requests_keep_their_silence() {
    let mut world = World::new(settings(1));
    let client = world.client();
    let request = |opcode: u8, key: &[u8]| {
        let mut bytes = mbal_wire::binary_delete(key);
        bytes[1] = opcode;
        bytes[12..16].copy_from_slice(b"opaq");
        bytes
    };
    let reply = |opcode: u8, status: u8| {
        let mut bytes = request(opcode, b"");
        bytes[0] = 0x81;
        bytes[7] = status;
        bytes
    };
    // getq, getq, noop: an upstream always answers, so it is asked for get.
    let asked = [request(0x09, b"a"), request(0x09, b"b"), request(0x0a, b"")].concat();
    world.event(Event::Received { client, bytes: &asked });
    world.connect_all();
    let binary = ConnId(1);
    assert_eq!(world.asked[1].matches("opaq").count(), 2);
    assert!(world.asked[1].contains(&*String::from_utf8_lossy(&request(0x00, b"b"))));
    let replies = [reply(0x00, 1), reply(0x00, 0)].concat();
    world.event(Event::Replied { conn: binary, bytes: &replies });
    let heard = [reply(0x09, 0), reply(0x0a, 0)].concat();
    world.hears(client, &String::from_utf8_lossy(&heard));
    // A lost upstream is told in binary.
    world.event(Event::Received { client, bytes: &request(0x00, b"a") });
    world.event(Event::Lost { conn: binary });
    assert!(world.told[0].contains("opaq") && world.told[0].contains("no route to owner"));
}

/// A binary request, and the reply to one.
fn packet(magic: u8, opcode: u8, status: u8, extras: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 24];
    [bytes[0], bytes[1], bytes[4], bytes[7], bytes[11]] =
        [magic, opcode, extras.len() as u8, status, extras.len() as u8];
    bytes[12..16].copy_from_slice(b"opaq");
    bytes.extend_from_slice(extras);
    bytes
}

#[test]
fn a_flush_in_binary_is_done_by_all() {
    let mut world = World::new(settings(2));
    let client = world.client();
    // flushq in ten seconds, flush, noop.
    let request = [
        packet(0x80, 0x18, 0, &[0, 0, 0, 10]),
        packet(0x80, 0x08, 0, b""),
        packet(0x80, 0x0a, 0, b""),
    ];
    world.event(Event::Received { client, bytes: &request.concat() });
    world.connect_all();
    let flushes = [packet(0x80, 0x08, 0, &[0, 0, 0, 10]), packet(0x80, 0x08, 0, b"")];
    let done = packet(0x81, 0x08, 0, b"");
    let refused = packet(0x81, 0x08, 0x20, b"");
    // What is behind a flush waits until it is done everywhere.
    for (flush, reply) in flushes.iter().zip([&done, &refused]) {
        for conn in [1, 3] {
            assert_eq!(std::mem::take(&mut world.asked[conn]), String::from_utf8_lossy(flush));
            assert_eq!(world.asked[conn - 1], "");
        }
        world.event(Event::Replied { conn: ConnId(1), bytes: &done });
        world.hears(client, "");
        world.event(Event::Replied { conn: ConnId(3), bytes: reply });
    }
    let noop = packet(0x81, 0x0a, 0, b"");
    world.hears(client, &String::from_utf8_lossy(&[&refused[..], &noop].concat()));
    // Who is lost has not done it, though nobody wanted to hear of success.
    world.event(Event::Received { client, bytes: &packet(0x80, 0x18, 0, b"") });
    world.event(Event::Replied { conn: ConnId(1), bytes: &done });
    world.event(Event::Lost { conn: ConnId(3) });
    assert!(world.told[0].contains("opaq") && world.told[0].contains("no route to owner"));
}

#[test]
fn a_key_may_be_the_word_noreply() {
    let mut world = World::new(settings(1));
    let client = world.client();
    world.says(client, "delete noreply 7\r\n");
    world.answers(0, "delete noreply 0\r\n", "NOT_FOUND\r\n");
    world.hears(client, "NOT_FOUND\r\n");
}

#[test]
fn a_command_of_debug_builds_is_unknown() {
    let mut world = World::new(settings(1));
    let client = world.client();
    world.says(client, "debugtime 1\r\n");
    world.hears(client, "ERROR\r\n");
}

#[test]
fn a_refusal_is_told_when_the_value_has_come() {
    let limits = Limits { item_bytes_max: 5000, ..Limits::default() };
    let mut world = World::new(Settings { limits, ..settings(1) });
    let client = world.client();
    world.says(client, "get b\r\nset a 0 0 6000\r\nxx");
    world.answers(0, "get b\r\ndelete a\r\n", "END\r\nDELETED\r\n");
    world.wait(1_000_000);
    world.hears(client, "END\r\n");
    world.says(client, &"x".repeat(5998));
    world.hears(client, "");
    world.says(client, "\r\nmn\r\n");
    world.hears(client, "SERVER_ERROR object too large for cache\r\nMN\r\n");
    // In one piece; and never, if the rest does not come.
    let value = "x".repeat(6000);
    world.says(client, &format!("set a 0 0 6000\r\n{value}\r\nget b\r\nset a 0 0 6000\r\nx"));
    world.event(Event::HalfClosed { client });
    world.answers(0, "delete a\r\nget b\r\ndelete a\r\n", "DELETED\r\nEND\r\nDELETED\r\n");
    world.hears(client, "SERVER_ERROR object too large for cache\r\nEND\r\n");
    assert_eq!(world.closed, [client]);
    world.event(Event::Closed { client });
    // Nor after a connection that is gone, whose number is free again.
    let gone = world.client();
    world.says(gone, "set a 0 0 6000\r\nx");
    world.event(Event::Closed { client: gone });
    world.answers(0, "delete a\r\n", "DELETED\r\n");
    assert_eq!(world.client(), gone);
}

/// A `set` in binary of a key of one byte, up to its value.
fn binary_set(opcode: u8, value_bytes: u32) -> Vec<u8> {
    let mut bytes = packet(0x80, opcode, 0, &[0; 8]);
    bytes[3] = 1;
    bytes[8..12].copy_from_slice(&(9 + value_bytes).to_be_bytes());
    bytes.push(b'a');
    bytes
}

#[test]
fn what_is_too_large_takes_the_value_before_it_away_in_binary_too() {
    let limits = Limits { item_bytes_max: 5000, ..Limits::default() };
    // Set and setq. A server that refuses add, replace, append and prepend keeps what it has.
    for (opcode, deletes) in [(0x01, true), (0x11, true), (0x02, false), (0x03, false)] {
        let mut world = World::new(Settings { limits, ..settings(1) });
        let client = world.client();
        world.event(Event::Received { client, bytes: &binary_set(opcode, 6000) });
        world.connect_all();
        let asked = std::mem::take(&mut world.asked[1]);
        let deletion = String::from_utf8_lossy(&mbal_wire::binary_delete(b"a")).into_owned();
        assert_eq!(asked, if deletes { &*deletion } else { "" }, "{opcode:#x}");
        world.hears(client, "");
        world.event(Event::Received { client, bytes: &[b'x'; 6000] });
        let heard = std::mem::take(&mut world.told[0]);
        assert!(heard.ends_with("Too large.") && heard.contains("opaq"), "{heard:?}");
    }
}

#[test]
fn a_reply_to_another_request_ends_the_connection() {
    for (request, reply) in [
        ("get a", "VALUE other 0 1\r\nx\r\nEND"),
        ("get a", "STORED"),
        ("gets a", "VALUE a 0 1\r\nx\r\nEND"),
        ("get a b", "VALUE a 0 1\r\nx\r\nVALUE other 0 1\r\nx\r\nEND"),
        ("get a b", "VALUE b 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nEND"),
        ("get a b", "DELETED"),
        ("mg a v k", "VA 1 kother\r\nx"),
        ("mg a O1", "HD O2"),
        ("set a 0 0 1\r\nx", "END"),
        ("ms a 1\r\nx", "EN"),
        ("delete a", "STORED"),
        ("incr a 1", "OK"),
        ("touch a 1", "NOT_STORED"),
        ("flush_all", "VERSION 1"),
        ("set a 0 0 1\r\nx", "ERROR Too many open connections"),
    ] {
        let mut world = World::new(settings(1));
        let (client, other) = (world.client(), world.client());
        world.says(client, &format!("{request}\r\n"));
        world.says(other, "get z\r\n");
        world.wait(MS);
        world.replies(0, &format!("{reply}\r\nEND\r\n"));
        // Whose the next reply is, is not known any more.
        for client in [client, other] {
            world.hears(client, "SERVER_ERROR upstream sent no reply\r\n");
        }
        assert_eq!(world.hung_up, [ConnId(0)], "{request}");
    }
    let mut world = World::new(settings(1));
    let client = world.client();
    let mut get = mbal_wire::binary_delete(b"a");
    get[1] = 0;
    get[12..16].copy_from_slice(b"opaq");
    for byte in [1, 12] {
        world.event(Event::Received { client, bytes: &get });
        world.connect_all();
        world.wait(MS);
        let mut reply = packet(0x81, 0, 1, b"");
        reply[byte] ^= 1;
        let before = world.hung_up.len();
        world.event(Event::Replied { conn: ConnId(1), bytes: &reply });
        assert_eq!(world.hung_up.len(), before + 1, "byte {byte}");
    }
}

#[test]
fn settings_are_the_proxys_own() {
    let limits = Limits { item_bytes_max: 5000, ..Limits::default() };
    let mut world = World::new(Settings { limits, ..settings(1) });
    let client = world.client();
    world.says(client, "stats settings\r\nstats slabs\r\nstats items\r\nstats nothing\r\n");
    let told = "STAT item_size_max 5000\r\nSTAT client_flags_size 4\r\nEND\r\n";
    world.hears(client, &format!("{told}END\r\nEND\r\nSERVER_ERROR not through a proxy\r\n"));
}

#[test]
fn binary_clients_are_told_statistics() {
    let mut world = World::new(settings(1));
    let client = world.client();
    world.event(Event::Received { client, bytes: &packet(0x80, 0x10, 0, b"") });
    let told = std::mem::take(&mut world.told[0]);
    assert!(told.contains("upstream:"), "{told}");
    assert!(told.contains("curr_connections1"), "{told}");
    // The last one has no name.
    assert!(told.ends_with(&*String::from_utf8_lossy(&packet(0x81, 0x10, 0, b""))), "{told:?}");
}

#[test]
fn a_key_has_one_place_however_it_is_spelled() {
    let mut world = World::new(settings(5));
    let client = world.client();
    world.says(client, "mg foo v\r\nmg Zm9v v b\r\n");
    let asked: Vec<&String> = world.asked.iter().filter(|asked| !asked.is_empty()).collect();
    assert_eq!(asked, ["mg foo v\r\nmg Zm9v v b\r\n"]);
}

#[test]
fn who_sends_no_more_is_answered_all_the_same() {
    let limits = Limits { client_requests_max: 2, ..Limits::default() };
    let mut world = World::new(Settings { limits, ..settings(1) });
    let client = world.client();
    world.says(client, &"get a\r\n".repeat(3));
    world.event(Event::HalfClosed { client });
    world.answers(0, "get a\r\nget a\r\n", "END\r\nEND\r\n");
    world.answers(0, "get a\r\n", "END\r\n");
    world.hears(client, &"END\r\n".repeat(3));
    assert_eq!(world.closed, [client]);
}

fn told_by_cluster(upstreams: usize) -> String {
    let servers = |at| format!("server {at} link s{at}:1 client s{at}:11211\n");
    let told =
        "cluster mbal\nversion 1.1\n".to_owned() + &(0..upstreams).map(servers).collect::<String>();
    format!("CONFIG mbal 0 {}\r\n{told}\r\nEND\r\n", told.len())
}

fn a_cluster(upstreams: usize) -> World {
    let mut world = World::of(settings(upstreams), &told_by_cluster(upstreams));
    world.carry_out();
    world
}

/// One that turns out to be of a cluster when it comes back serves at once, whatever its other connection still waits for.
#[test]
fn a_connection_that_deletes_what_it_owes_does_so_once_though_its_upstream_comes_back() {
    let retry = 10 * MS;
    let eject = Settings {
        eject: true,
        failures_max: 2,
        retry: Duration::from_nanos(retry),
        ..settings(1)
    };
    let mut world = World::new(Settings { conns_per_server: 2, ..eject });
    let client = world.client();
    let mut key_of = |conn: usize| {
        (0..)
            .map(|number| format!("k{number}"))
            .find(|key| {
                world.says(client, &format!("get {key}\r\n"));
                let is_its = !world.asked[conn].is_empty();
                for conn in 0..2 {
                    if !std::mem::take(&mut world.asked[conn]).is_empty() {
                        let conn = ConnId(conn as u32);
                        world.event(Event::Replied { conn, bytes: b"END\r\n" });
                    }
                }
                is_its
            })
            .expect("there are many")
    };
    let (first, second) = (key_of(0), key_of(1));
    world.told[client.0 as usize].clear();
    let lost = "SERVER_ERROR upstream connection lost\r\n";
    for (conn, key) in [(1, &second), (0, &first)] {
        world.says(client, &format!("set {key} 0 0 1\r\nx\r\n"));
        world.asked[conn as usize].clear();
        world.event(Event::Lost { conn: ConnId(conn) });
        world.hears(client, lost);
        if conn == 1 {
            world.connect_all();
            assert_eq!(std::mem::take(&mut world.asked[1]), format!("md {second}\r\n"));
        }
    }
    assert_eq!(world.proxy.counters().ejections, 1);
    world.cluster = told_by_cluster(1);
    world.asked[0].clear();
    world.wait(retry);
    world.connect_all();
    world.answers(0, "version\r\n", "VERSION 1\r\n");
    assert_eq!((world.proxy.counters().returns, &*world.asked[1]), (1, ""));
    let done = || Event::Replied { conn: ConnId(1), bytes: b"HD\r\n" };
    world.event(done());
    // No older write can come any more: once for good.
    world.says(client, &format!("get {second}\r\n"));
    world.hears(client, "END\r\n");
    assert_eq!(std::mem::take(&mut world.asked[1]), format!("md {second}\r\n"));
    world.event(done());
    world.says(client, &format!("get {second}\r\n"));
    assert_eq!(world.asked[1], format!("get {second}\r\n"));
}

#[test]
fn any_server_of_a_cluster_is_asked_for_the_keys_of_one_that_is_down() {
    let mut world = a_cluster(2);
    let (a, client) = (world.key(0), world.client());
    world.event(Event::Lost { conn: ConnId(0) });
    let requests = [format!("set {a} 0 0 1\r\nx\r\n"), format!("get {a}\r\n")];
    requests.iter().for_each(|request| world.says(client, request));
    world.answers(1, &requests.concat(), "STORED\r\n");
    world.hears(client, "STORED\r\n");
    // It is back: what the other one was asked is answered first, and it is not flushed.
    world.connect_all();
    world.says(client, &format!("delete {a}\r\n"));
    assert_eq!((&*world.asked[0], &*world.asked[2]), ("", ""));
    world.replies(1, &format!("VALUE {a} 0 1\r\nx\r\nEND\r\n"));
    world.answers(0, &format!("delete {a}\r\n"), "DELETED\r\n");
    world.hears(client, &format!("VALUE {a} 0 1\r\nx\r\nEND\r\nDELETED\r\n"));
    assert_eq!(world.proxy.counters().failovers, 2);
}

#[test]
fn a_flush_of_a_cluster_goes_to_one_server_between_what_is_before_and_behind_it() {
    let mut world = a_cluster(2);
    let (b, client) = (world.key(1), world.client());
    let set = format!("set {b} 0 0 1\r\nx\r\n");
    world.says(
        client,
        &format!("{}flush_all noreply\r\n{set}", set.replace("\r\nx", " noreply\r\nx")),
    );
    assert_eq!(world.asked[0], "");
    world.answers(1, &set, "STORED\r\n");
    assert_eq!(world.asked[2], "");
    world.answers(0, "flush_all\r\n", "OK\r\n");
    world.answers(1, &set, "STORED\r\n");
    world.hears(client, "STORED\r\n");
}

#[test]
fn what_an_autoscaler_reads_is_told_of_text_and_meta() {
    let mut world = World::new(settings(1));
    let client = world.client();
    world.says(client, "stats distances\r\n");
    world.hears(client, "SERVER_ERROR stack distances are off: --stack-distances\r\n");
    let mut world = World::new(Settings { stack_distances: true, ..settings(1) });
    let client = world.client();
    world.says(client, "stats distances 1048576\r\n");
    world.told[client.0 as usize].clear();
    for (request, reply) in [
        ("get a", "END"),
        ("set a 0 0 1\r\nx", "STORED"),
        ("get a", "VALUE a 0 1\r\nx\r\nEND"),
        ("mg a v", "VA 1\r\nx"),
        ("mg YQ== b v", "VA 1 b\r\nx"),
        ("get a b", "VALUE a 0 1\r\nx\r\nEND"),
        // It was there before.
        ("get c", "VALUE c 0 1\r\nx\r\nEND"),
        ("delete a", "DELETED"),
        ("get a", "END"),
    ] {
        world.wait(TIMEOUT / 4);
        world.says(client, &format!("{request}\r\n"));
        world.replies(0, &format!("{reply}\r\n"));
    }
    world.told[client.0 as usize].clear();
    world.says(client, "stats distances\r\n");
    let told = std::mem::take(&mut world.told[client.0 as usize]);
    let value = |name: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.unwrap_or_else(|| panic!("{name}: {told}")).to_owned()
    };
    let values = ["servers", "resize", "reads", "hits", "counted"].map(value);
    assert_eq!(values, ["s0:11211", "none", "8", "5", "8.0"]);
    // Those of a at each size, and that of c where there is as much as the pool has: 2^20 bytes are the point 24 of 16 KiB.
    let points: Vec<String> = value("points").split(',').map(str::to_owned).collect();
    assert!(points[..24].iter().all(|hits| hits == "4"), "{points:?}");
    assert_eq!(points.last().map(String::as_str), Some("5"), "{points:?}");
    // The one that was stored when it had been missed: 25 ms later.
    let fills = told.lines().filter(|line| line.starts_with("STAT fill:") && !line.ends_with(" 0"));
    assert_eq!(fills.collect::<Vec<_>>(), ["STAT fill:32768000 1"]);
}
