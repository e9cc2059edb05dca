//! Transcripts of hot keys that are often written: what the proxy answers from its own memory.

mod common;

use common::memcached::{Memcached, Wire, requests};
use common::transcript::{TIMEOUT, World};
use common::{MS, replication, settings};
use mbal_proxy::{ClientId, ConnId, Event, Settings};

const INTERVAL: u64 = 100 * MS;

/// A proxy whose key `k` is hot and often written; who writes, and who reads.
struct Hot {
    world: World,
    upstreams: [Memcached; 2],
    writer: ClientId,
    reader: ClientId,
}

impl Hot {
    fn new() -> Hot {
        let mut world = World::new(Settings { replication: replication(100, 1.05), ..settings(2) });
        let (writer, reader) = (world.client(), world.client());
        let mut hot = Hot { world, upstreams: Default::default(), writer, reader };
        // In the first interval it becomes hot, in the second it is known to be often written.
        for _ in 0..2 {
            for round in 0..100 {
                match round % 10 {
                    0 => hot.world.says(writer, "set k 7 0 1\r\n1\r\n"),
                    _ => hot.world.says(writer, "get k\r\n"),
                }
                hot.serve();
            }
            hot.world.wait(INTERVAL);
        }
        // Its copies end.
        hot.set("0");
        hot.serve();
        hot.world.told[writer.0 as usize].clear();
        hot
    }

    /// Upstreams answer all that they were asked.
    fn serve(&mut self) {
        for (at, upstream) in self.upstreams.iter_mut().enumerate() {
            let mut wire = Wire::default();
            wire.requests.extend(requests(&std::mem::take(&mut self.world.asked[2 * at])));
            let count = wire.requests.len() as u64;
            upstream.turn(&mut wire, count);
            let replies: String = wire.replies.into_iter().collect();
            self.world.replies(at, &replies);
        }
    }

    /// What the upstreams were asked, and have not answered.
    fn asked(&self) -> String {
        self.world.asked[0].clone() + &self.world.asked[2]
    }

    fn set(&mut self, value: &str) {
        let text = format!("set k 7 0 {}\r\n{value}\r\n", value.len());
        self.world.says(self.writer, &text);
    }

    fn reads(&mut self, value: &str) {
        self.world.says(self.reader, "get k\r\n");
        let bytes = value.len();
        self.world.hears(self.reader, &format!("VALUE k 7 {bytes}\r\n{value}\r\nEND\r\n"));
    }

    fn home(&self) -> usize {
        self.upstreams.iter().position(|upstream| upstream.items.contains_key("k")).expect("is set")
    }
}

#[test]
fn a_read_waits_for_the_last_write_and_what_was_written_is_kept() {
    let mut hot = Hot::new();
    hot.set("one");
    hot.serve();
    hot.reads("one");
    hot.set("two");
    hot.world.says(hot.reader, "get k\r\nmg k f s k Oab v\r\n");
    hot.set("three");
    hot.world.says(hot.writer, "get k\r\n");
    let home = hot.home();
    assert_eq!(hot.asked(), "set k 7 0 3\r\ntwo\r\nset k 7 0 5\r\nthree\r\n");
    hot.world.hears(hot.reader, "");
    hot.world.told[hot.writer.0 as usize].clear();
    hot.world.replies(home, "STORED\r\n");
    hot.world.hears(hot.reader, "VALUE k 7 3\r\ntwo\r\nEND\r\nVA 3 f7 s3 kk Oab\r\ntwo\r\n");
    hot.world.hears(hot.writer, "STORED\r\n");
    hot.world.replies(home, "STORED\r\n");
    hot.world.hears(hot.writer, "STORED\r\nVALUE k 7 5\r\nthree\r\nEND\r\n");
    hot.reads("three");
    hot.world.asked[2 * home].clear();
    hot.world.says(hot.writer, "ms k 4 F7 T60\r\nfour\r\n");
    hot.world.replies(home, "HD\r\n");
    hot.reads("four");
    assert_eq!(hot.asked(), "ms k 4 F7 T60\r\nfour\r\n");
}

#[test]
fn what_a_copy_does_not_know_is_asked_behind_the_writes() {
    let mut hot = Hot::new();
    hot.set("one");
    let asked = hot.asked();
    for read in ["gets k\r\n", "mg k c\r\n", "get k other\r\n"] {
        hot.world.says(hot.reader, read);
    }
    assert_eq!(
        hot.asked().strip_prefix(&asked).map(|rest| rest.starts_with("gets k\r\nmg k c\r\nget k")),
        Some(true)
    );
}

#[test]
fn what_may_change_the_item_otherwise_ends_what_is_kept() {
    for request in ["delete k\r\n", "set k 7 0 2\r\n22\r\nmd k\r\n", "set k 7 -1 2\r\n22\r\n"] {
        let mut hot = Hot::new();
        hot.set("one");
        hot.serve();
        hot.reads("one");
        hot.world.says(hot.writer, request);
        hot.world.says(hot.reader, "get k\r\n");
        hot.world.hears(hot.reader, "");
        assert!(hot.asked().contains("get k\r\n"), "{:?}", hot.asked());
    }
}

#[test]
fn who_waits_for_a_write_that_is_refused_or_lost_gets_nothing_old() {
    let lost = "SERVER_ERROR upstream connection lost\r\n";
    for (reply, hears) in [("SERVER_ERROR out of memory storing object\r\n", "END\r\n"), ("", lost)]
    {
        let mut hot = Hot::new();
        hot.set("one");
        hot.serve();
        let home = hot.home();
        hot.set("two");
        hot.world.asked[2 * home].clear();
        hot.world.says(hot.reader, "get k\r\n");
        if reply.is_empty() {
            hot.world.event(Event::Lost { conn: ConnId(2 * home as u32) });
        } else {
            hot.world.replies(home, reply);
        }
        hot.world.hears(hot.reader, hears);
        hot.world.connect_all();
        // The second time for good, when the write cannot be executed any more.
        for _ in 0..2 {
            hot.serve();
            hot.world.wait(MS);
        }
        hot.world.wait(10 * TIMEOUT);
        hot.world.says(hot.reader, "get k\r\n");
        hot.world.hears(hot.reader, "");
    }
}

#[test]
fn who_is_gone_is_not_waited_for() {
    let mut hot = Hot::new();
    hot.set("one");
    hot.world.says(hot.reader, "get k\r\n");
    hot.world.event(Event::Closed { client: hot.reader });
    hot.serve();
    let reader = hot.world.client();
    hot.reader = reader;
    hot.reads("one");
}

#[test]
fn nothing_is_kept_or_copied_while_a_write_in_binary_is_not_answered() {
    let mut hot = Hot::new();
    let client = hot.world.client();
    hot.world.event(Event::Received { client, bytes: &mbal_wire::binary_delete(b"k") });
    hot.set("one");
    hot.world.says(hot.reader, "get k\r\n");
    assert_eq!(hot.asked(), "set k 7 0 3\r\none\r\nget k\r\n");
}
