//! `watch`: what is told, to whom, and what happens when nobody reads it.

use std::sync::Arc;

use mbal_worker::{Action, ConnId, ConnInfo, Endpoint, Event, Settings};

use crate::rig::{CONN, Rig};

const WATCHER: ConnId = ConnId(5);

/// A rig with a watcher; what it is told is what it is sent.
fn watched(settings: Settings, streams: &str) -> Rig {
    let mut rig = Rig::with(settings);
    let peer = Endpoint::Tcp("10.0.0.9:77".parse().expect("an address"));
    let info = Arc::new(ConnInfo::new(33, peer, Endpoint::Unix("/s".into())));
    rig.handle(Event::Introduced { conn: CONN, info });
    rig.open(WATCHER);
    let command = format!("watch {streams}\r\n");
    let begun = rig.handle(Event::Received { conn: WATCHER, bytes: command.as_bytes() });
    assert_eq!(begun.bytes, b"OK\r\n");
    rig
}

/// What the watcher is sent because of this event.
fn told(rig: &mut Rig, event: Event<'_>) -> String {
    let actions = rig.handle(event);
    let mut told = String::new();
    for action in &actions.list {
        if let Action::Send { conn: WATCHER, bytes } = action {
            told += std::str::from_utf8(&actions.bytes[bytes.clone()]).expect("text");
        }
    }
    rig.handle(Event::Drained { conn: WATCHER });
    told
}

fn told_of(rig: &mut Rig, input: &[u8]) -> String {
    told(rig, Event::Received { conn: CONN, bytes: input })
}

#[test]
fn fetchers_and_mutations() {
    let mut rig = watched(Settings::default(), "fetchers mutations");
    let ts = "ts=1700000000.0";
    assert_eq!(
        told_of(&mut rig, b"set a 0 9 2\r\nhi\r\n"),
        format!(
            "{ts} gid=1 type=item_get key=a status=not_found clsid=0 cfd=33 size=0\n\
             {ts} gid=2 type=item_store key=a status=stored cmd=set ttl=9 clsid=1 cfd=33 size=2\n"
        )
    );
    assert_eq!(
        told_of(&mut rig, b"get a %\r\nmg a\r\n"),
        format!(
            "{ts} gid=3 type=item_get key=a status=found clsid=1 cfd=33 size=2\n\
             {ts} gid=4 type=item_get key=%25 status=not_found clsid=0 cfd=33 size=0\n\
             {ts} gid=5 type=item_get key=a status=found clsid=1 cfd=33 size=2\n"
        )
    );
    rig.now.micros = 42;
    let told = told_of(&mut rig, b"get a\r\n");
    assert!(told.starts_with("ts=1700000000.42 gid=6 "), "{told}");
    let told = told_of(&mut rig, b"cas a 0 0 1 99\r\nv\r\nadd a 0 0 1\r\nv\r\n");
    assert!(told.contains("status=exists cmd=cas") && told.contains("status=not_stored cmd=add"));
}

#[test]
fn deletions() {
    let mut rig = watched(Settings::default(), "deletions");
    let ts = "ts=1700000000.0";
    assert_eq!(
        told_of(&mut rig, b"set a% 0 0 2\r\nhi\r\ndelete none\r\nmd none\r\ndelete a%\r\n"),
        format!("{ts} gid=1 type=deleted key=a%25 cmd=delete clsid=1 size=2\n")
    );
    // What is marked as stale is still there.
    assert_eq!(
        told_of(&mut rig, b"set a 0 0 0\r\n\r\nmd a I\r\nmd a C9\r\nmd a q\r\n"),
        format!("{ts} gid=2 type=deleted key=a cmd=md clsid=1 size=0\n")
    );
    // memcached tells of none of these.
    let [mut delete_b, mut delete_quietly_c] = [[0; 25]; 2];
    delete_b[..4].copy_from_slice(b"\x80\x04\0\x01");
    delete_quietly_c[..4].copy_from_slice(b"\x80\x14\0\x01");
    for (request, key) in [(&mut delete_b, b'b'), (&mut delete_quietly_c, b'c')] {
        request[11] = 1;
        request[24] = key;
    }
    rig.send(b"set b 0 0 0\r\n\r\nset c 0 0 0\r\n\r\n");
    let other = ConnId(8);
    rig.open(other);
    let requests = [delete_b, delete_quietly_c].concat();
    assert_eq!(told(&mut rig, Event::Received { conn: other, bytes: &requests }), "");
    rig.check("get b c\r\n", "END\r\n");
    assert_eq!(told_of(&mut rig, b"set d 0 -1 0\r\n\r\nflush_all\r\n"), "");
}

#[test]
fn streams_are_named_as_far_as_memcached_compares_them() {
    for (word, told) in [
        ("d", "ts=1700000000.0 gid=1 type=deleted key=k cmd=delete clsid=1 size=0\n"),
        ("rawcmds sysevents proxyreqs proxyevents proxyuser", ""),
        ("p e r", ""),
    ] {
        let mut rig = watched(Settings::default(), word);
        assert_eq!(told_of(&mut rig, b"set k 0 0 0\r\n\r\ndelete k\r\n"), told, "{word}");
    }
    for wrong in ["fetcherss", "x", "fetchers x", "fetchers noreply"] {
        Rig::new().check(&format!("watch {wrong}\r\n"), "ERROR\r\n");
    }
}

#[test]
fn connections() {
    let mut rig = watched(Settings::default(), "connevents");
    let conn = ConnId(7);
    rig.open(conn);
    let peer = Endpoint::Tcp("10.0.0.1:99".parse().expect("an address"));
    let info = Arc::new(ConnInfo::new(44, peer, Endpoint::Unix("/s".into())));
    assert_eq!(
        told(&mut rig, Event::Introduced { conn, info }),
        "ts=1700000000.0 gid=1 type=conn_new rip=10.0.0.1 rport=99 transport=tcp cfd=44\n"
    );
    rig.handle(Event::Received { conn, bytes: b"GET / HTTP/1.1\r\n" });
    assert_eq!(
        told(&mut rig, Event::Closed { conn }),
        "ts=1700000000.0 gid=2 type=conn_close rip=10.0.0.1 rport=99 transport=tcp reason=error \
         cfd=44\n"
    );
}

#[test]
fn tls_errors_are_events_of_connections() {
    let mut rig = watched(Settings::default(), "connevents");
    let broke = || Event::TlsBroke { fd: 44, why: "received corrupt message".into() };
    assert_eq!(
        told(&mut rig, broke()),
        "ts=1700000000.0 gid=1 type=conntlserr fd=44 msg=received corrupt message\n"
    );
    assert_eq!(told(&mut watched(Settings::default(), "fetchers"), broke()), "");
}

#[test]
fn evictions() {
    let settings = Settings { memory_bytes: 4 << 20, ..Settings::default() };
    let mut rig = watched(settings, "evictions");
    let mut all = String::new();
    for number in 0..200 {
        let value = "v".repeat(30_000);
        all += &told_of(&mut rig, format!("set {number} 0 0 30000\r\n{value}\r\n").as_bytes());
    }
    let line = all.lines().next().expect("some are evicted");
    assert!(
        line.contains(" type=eviction key=") && line.contains(" fetch=no ttl=-1 la="),
        "{line}"
    );
    assert!(line.ends_with(" size=30000"), "{line}");
}

#[test]
fn who_does_not_read_misses_lines_and_is_told_how_many() {
    let settings = Settings { watcher_kib: 1, ..Settings::default() };
    let mut rig = watched(settings, "fetchers");
    rig.handle(Event::Received { conn: CONN, bytes: b"get first\r\n" });
    // The first line is on its way: what comes now waits, and only a KiB of it.
    for _ in 0..100 {
        rig.handle(Event::Received { conn: CONN, bytes: b"get k\r\n" });
    }
    // It is told as soon as it has read on, whether anything happens then or not.
    let queued = rig.handle(Event::Drained { conn: WATCHER });
    let queued = std::str::from_utf8(&queued.bytes).expect("text");
    let (lines, skipped) = queued.trim_end().rsplit_once('\n').expect("several lines");
    assert!(lines.len() < 1024);
    assert_eq!(skipped, format!("skipped={}", 100 - lines.lines().count()));
    rig.handle(Event::Drained { conn: WATCHER });
    let told = told_of(&mut rig, b"get k\r\n");
    assert_eq!(told.lines().count(), 1, "{told}");
}

#[test]
fn a_watcher_is_not_a_client_any_more() {
    let mut rig = watched(Settings::default(), "fetchers");
    assert_eq!(rig.handle(Event::Received { conn: WATCHER, bytes: b"get k\r\n" }).list, []);
    rig.handle(Event::Closed { conn: WATCHER });
    assert_eq!(rig.send(b"get k\r\n"), b"END\r\n");
    let stats = String::from_utf8(rig.send(b"stats\r\n")).expect("text");
    assert!(stats.contains("STAT log_watchers 0\r\n"));
}

#[test]
fn another_workers_watcher_is_nudged() {
    let mut rig = watched(Settings { workers: 2, ..Settings::default() }, "fetchers");
    let mut other = rig.another_worker();
    other.open(CONN);
    let list = other.handle(Event::Received { conn: CONN, bytes: b"get k\r\n" }).list;
    assert!(list.contains(&Action::Nudge { worker: mbal_model::WorkerId(0) }), "{list:?}");
    assert!(told(&mut rig, Event::Nudged).contains("type=item_get key=k"));
}
