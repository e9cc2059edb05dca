//! Transcripts of hot keys that are often written: what the proxy answers from its own memory.

mod common;

use common::memcached::{Memcached, Wire, requests};
use common::transcript::{MS, TIMEOUT, World, settings};
use mbal_proxy::{ClientId, ConnId, Event, Replication, Settings};

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
        let replication = Replication { interval: INTERVAL, target: 1.05, sampling: 1.0 };
        let mut world = World::new(Settings { replication: Some(replication), ..settings(2) });
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
        hot.world.told[writer.0 as usize].clear();
        hot
    }

    /// Upstreams answer all that they were asked.
    fn serve(&mut self) {
        for (at, upstream) in self.upstreams.iter_mut().enumerate() {
            let mut wire = Wire::default();
            wire.requests.extend(requests(&std::mem::take(&mut self.world.asked[2 * at])));
            let count = wire.requests.len() as u64;
            upstream.turn(0, &mut wire, count, false);
            let replies: String = wire.replies.into_iter().collect();
            self.world.replies(at, &replies);
        }
    }

    /// Which upstream has the key, and what it was asked and has not answered.
    fn asked(&mut self) -> String {
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

    /// A read is asked at the key's home.
    fn reads_home(&mut self) {
        self.serve();
        self.world.told[self.reader.0 as usize].clear();
        self.world.says(self.reader, "get k\r\n");
        self.world.hears(self.reader, "");
        assert!(self.asked().contains("get k\r\n"), "{:?}", self.asked());
        self.serve();
        self.world.told[self.reader.0 as usize].clear();
    }

    fn home(&self) -> usize {
        self.upstreams.iter().position(|upstream| upstream.items.contains_key("k")).expect("is set")
    }
}

#[test]
fn what_is_stored_is_read_from_memory_until_the_next_value_is() {
    let mut hot = Hot::new();
    hot.set("one");
    hot.serve();
    hot.reads("one");
    hot.set("two");
    hot.set("three");
    hot.reads("one");
    assert_eq!(hot.asked(), "set k 7 0 3\r\ntwo\r\nset k 7 0 5\r\nthree\r\n");
    let home = hot.home();
    hot.world.replies(home, "STORED\r\n");
    hot.reads("two");
    hot.world.replies(home, "STORED\r\n");
    hot.reads("three");
    hot.world.asked[2 * home].clear();
    hot.world.says(hot.writer, "ms k 4 F7 T60\r\nfour\r\n");
    hot.world.replies(home, "HD\r\n");
    hot.reads("four");
}

#[test]
fn who_writes_reads_behind_its_own_write() {
    let mut hot = Hot::new();
    hot.set("one");
    hot.serve();
    hot.set("two");
    hot.world.says(hot.writer, "get k\r\n");
    hot.reads("one");
    assert_eq!(hot.asked(), "set k 7 0 3\r\ntwo\r\nget k\r\n");
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
    }
}

#[test]
fn a_write_that_is_not_stored_or_whose_reply_is_lost_ends_what_is_kept() {
    for reply in ["SERVER_ERROR out of memory storing object\r\n", ""] {
        let mut hot = Hot::new();
        hot.set("one");
        hot.serve();
        let home = hot.home();
        hot.set("two");
        hot.reads("one");
        hot.world.asked[2 * home].clear();
        if reply.is_empty() {
            hot.world.event(Event::Lost { conn: ConnId(2 * home as u32) });
            hot.world.wait(10 * TIMEOUT);
            hot.world.connect_all();
        } else {
            hot.world.replies(home, reply);
        }
        hot.reads_home();
    }
}

#[test]
fn a_read_in_binary_may_see_a_write_before_its_reply_comes() {
    let mut hot = Hot::new();
    hot.set("one");
    hot.serve();
    let mut get = mbal_wire::binary_delete(b"k");
    get[1] = 0;
    hot.set("two");
    hot.reads("one");
    let client = hot.world.client();
    hot.world.event(Event::Received { client, bytes: &get });
    hot.reads_home();
}

#[test]
fn no_copy_is_made_while_a_write_in_binary_is_not_answered() {
    let mut hot = Hot::new();
    hot.set("one");
    hot.world.says(hot.writer, "delete k\r\n");
    hot.serve();
    let client = hot.world.client();
    hot.world.event(Event::Received { client, bytes: &mbal_wire::binary_delete(b"k") });
    hot.world.says(hot.reader, "get k\r\n");
    assert_eq!(hot.asked(), "get k\r\n");
}
