//! `stats`, and the operators' other commands.

use mbal_worker::{Action, Echoed, Event, PREFIXES_MAX, Settings, TlsSettings};

use crate::rig::{CONN, Rig};

fn stat(rig: &mut Rig, command: &str, name: &str) -> String {
    let replies = String::from_utf8(rig.send(format!("{command}\r\n").as_bytes())).expect("text");
    assert!(replies.ends_with("END\r\n"));
    let prefix = format!("STAT {name} ");
    let line = replies.lines().find_map(|line| line.strip_prefix(&prefix));
    line.unwrap_or_else(|| panic!("no {name}")).to_owned()
}

#[test]
fn what_is_done_is_counted_until_it_is_reset() {
    let mut rig = Rig::new();
    rig.send(
        b"set k 0 0 1\r\n1\r\nget k x\r\nmg k\r\nincr k 1\r\ndecr x 1\r\ncas k 0 0 1 9\r\nv\r\n",
    );
    rig.send(b"touch k 0\r\ngat 0 x\r\ndelete k\r\ndelete k\r\nflush_all\r\nme k\r\n");
    let counted = [
        ("cmd_get", 3),
        ("get_hits", 2),
        ("get_misses", 1),
        ("cmd_set", 2),
        ("cas_badval", 1),
        ("incr_hits", 1),
        ("decr_misses", 1),
        ("cmd_touch", 2),
        ("touch_hits", 1),
        ("touch_misses", 1),
        ("delete_hits", 1),
        ("delete_misses", 1),
        ("cmd_flush", 1),
        ("cmd_meta", 1),
    ];
    for (name, count) in counted {
        assert_eq!(stat(&mut rig, "stats", name), count.to_string(), "{name}");
    }
    rig.check("stats reset\r\n", "RESET\r\n");
    for (name, _) in counted {
        assert_eq!(stat(&mut rig, "stats", name), "0", "{name}");
    }
    assert_eq!(stat(&mut rig, "stats", "total_items"), "0");
}

/// What is subtracted was counted before what it is subtracted from.
#[test]
fn statistics_are_no_less_than_nothing_while_another_worker_resets_them() {
    let mut rig = Rig::with(Settings { workers: 2, ..Settings::default() });
    let mut other = rig.another_worker();
    other.open(CONN);
    std::thread::scope(|scope| {
        let resets = scope.spawn(move || {
            for _ in 0..20_000 {
                other.check("set k 0 0 1\r\nv\r\nstats reset\r\n", "STORED\r\nRESET\r\n");
            }
        });
        while !resets.is_finished() {
            for name in ["cmd_set", "total_items"] {
                let count: u64 = stat(&mut rig, "stats", name).parse().expect("a number");
                assert!(count <= 20_000, "{name} {count}");
            }
        }
    });
}

#[test]
fn there_are_as_many_statistics_as_clients_of_memcached_expect() {
    // As memcached's own test counts them: without crawler and maintainer.
    let echoed = Echoed { lru_maintainer: false, ..Echoed::default() };
    let settings = Settings { crawler_enabled: false, echoed, ..Settings::default() };
    let replies = String::from_utf8(Rig::with(settings).send(b"stats\r\n")).expect("text");
    assert_eq!(replies.matches("STAT ").count(), 84);
}

#[test]
fn settings_tell_what_was_chosen() {
    let settings = Settings { item_bytes_max: 1024, evict: false, ..Settings::default() };
    let mut rig = Rig::with(settings);
    assert_eq!(stat(&mut rig, "stats settings", "item_size_max"), "1024");
    assert_eq!(stat(&mut rig, "stats settings", "evictions"), "off");
    rig.check("verbosity 9\r\n", "OK\r\n");
    assert_eq!(stat(&mut rig, "stats settings", "verbosity"), "2");
}

#[test]
fn details_are_kept_by_prefix_and_bounded() {
    let mut rig = Rig::new();
    rig.check("stats detail\r\n", "CLIENT_ERROR usage: stats detail on|off|dump\r\n");
    rig.check("set foo:0 0 0 0\r\n\r\nstats detail on\r\n", "STORED\r\nOK\r\n");
    rig.send(b"set foo:1 0 0 1\r\nv\r\nget foo:1 foo:2 bar\r\ndelete foo:3\r\ngat 0 foo:1\r\n");
    rig.check("stats detail dump\r\n", "PREFIX foo get 3 hit 2 set 1 del 1\r\nEND\r\n");
    rig.check(
        "stats detail off\r\nget foo:1\r\nstats reset\r\nstats detail dump\r\n",
        "OK\r\nVALUE foo:1 0 1\r\nv\r\nEND\r\nRESET\r\nEND\r\n",
    );
    rig.check("stats detail on\r\n", "OK\r\n");
    for number in 0..=PREFIXES_MAX {
        rig.send(format!("get {number}:\r\n").as_bytes());
    }
    let dump = String::from_utf8(rig.send(b"stats detail dump\r\n")).expect("text");
    assert_eq!(dump.matches("PREFIX").count(), PREFIXES_MAX);
}

#[test]
fn a_flush_takes_what_was_there() {
    let mut rig = Rig::new();
    let set = "set k 0 0 1\r\nv\r\n";
    rig.check(
        &format!("{set}flush_all\r\nget k\r\n{set}get k\r\n"),
        "STORED\r\nOK\r\nEND\r\nSTORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n",
    );
    rig.check("flush_all 10\r\nget k\r\n", "OK\r\nVALUE k 0 1\r\nv\r\nEND\r\n");
    rig.now.second += 10;
    rig.check("get k\r\n", "END\r\n");
    rig.check("flush_all x\r\n", "CLIENT_ERROR invalid exptime argument\r\n");
    rig.check("flush_all noreply\r\nflush_all 0 noreply\r\nflush_all 0 0 0\r\n", "OK\r\n");
    let mut rig = Rig::with(Settings { flush_enabled: false, ..Settings::default() });
    rig.check("flush_all x\r\n", "CLIENT_ERROR flush_all not allowed\r\n");
}

#[test]
fn shutdown_must_be_enabled() {
    Rig::new().check("shutdown x\r\n", "SERVER_ERROR: shutdown not enabled\r\n");
    let mut rig = Rig::with(Settings { shutdown_enabled: true, ..Settings::default() });
    rig.check("shutdown x\r\n", "CLIENT_ERROR invalid shutdown mode\r\n");
    let list =
        rig.handle(Event::Received { conn: CONN, bytes: b"shutdown graceful\r\nmn\r\n" }).list;
    assert_eq!(list, [Action::Close { conn: CONN }, Action::Shutdown { graceful: true }]);
}

#[test]
fn what_makes_no_sense_here_is_answered_as_memcached_does_without_it() {
    let mut rig = Rig::new();
    for (input, reply) in [
        ("slabs reassign 1 2", "CLIENT_ERROR slab reassignment disabled"),
        ("slabs automove 1", "OK"),
        ("stats extstore", "END"),
        ("stats ext\0", "ERROR"),
        ("stats reset\0x", "RESET"),
        ("slabs automove 3", "ERROR"),
        ("lru tune 10 20 0.5 2.0", "OK"),
        ("lru tune 50 50 0.5 2.0", "ERROR hot and warm pcts must not exceed 80"),
        ("lru tune 10 20 0 2.0", "ERROR hot/warm age factors must be greater than 0"),
        ("lru mode flat", "ERROR"),
        ("lru_crawler crawl all", "OK"),
        ("lru_crawler crawl 1,64", "BADCLASS invalid class id"),
        ("lru_crawler sleep 1000001", "CLIENT_ERROR sleep must be one second or less"),
        ("cache_memlimit 7", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m"),
        ("cache_memlimit 64", "OK"),
        ("cache_memlimit 65", "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust"),
        ("refresh_certs", "Error TLS not enabled"),
        ("stats cachedump 1", "CLIENT_ERROR bad command line"),
        ("stats cachedump x 1", "CLIENT_ERROR bad command line format"),
        ("stats cachedump 64 1", "CLIENT_ERROR Illegal slab id"),
        ("stats nosuch", "ERROR"),
    ] {
        rig.check(&format!("{input}\r\n"), &format!("{reply}\r\n"));
    }
}

#[test]
fn certificates_are_read_by_the_driver_and_answered_in_order() {
    let tls = TlsSettings { enabled: true, ..TlsSettings::default() };
    let mut rig = Rig::with(Settings { tls, ..Settings::default() });
    let asked = rig.handle(Event::Received { conn: CONN, bytes: b"mn\r\nrefresh_certs\r\nmn\r\n" });
    assert_eq!(asked.bytes, b"MN\r\n");
    assert!(asked.list.contains(&Action::RefreshCerts { conn: CONN }));
    assert_eq!(rig.handle(Event::Received { conn: CONN, bytes: b"mn\r\n" }).list, []);
    rig.now.second += 50;
    assert_eq!(
        rig.handle(Event::CertsRefreshed { conn: CONN, refreshed: Ok(()) }).bytes,
        b"OK\r\nMN\r\nMN\r\n"
    );
    assert_eq!(stat(&mut rig, "stats", "time_since_server_cert_refresh"), "0");
    rig.handle(Event::Received { conn: CONN, bytes: b"refresh_certs\r\n" });
    let refreshed = Err("no such file".to_owned());
    assert_eq!(
        rig.handle(Event::CertsRefreshed { conn: CONN, refreshed }).bytes,
        b"no such file\r\n"
    );
}

#[test]
fn tuning_that_wants_no_answer_gets_none() {
    let mut rig = Rig::new();
    rig.check("lru x noreply\r\nlru tune 10 20 0.5 2.0 noreply\r\nmn\r\n", "MN\r\n");
    rig.check("lru tune 10 25 0 2.0 noreply\r\nlru noreply\r\nmn\r\n", "MN\r\n");
}
