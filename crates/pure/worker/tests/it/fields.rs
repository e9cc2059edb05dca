//! Every field of `stats` moves in one of these tests, or stands here with the reason why it never does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mbal_worker::{ConnId, ConnInfo, Echoed, Endpoint, Event, Protocol, Settings, TlsSettings};

use crate::rig::{CONN, Rig};

const NO_LISTS: &str = "items lie in logs, there are no LRU lists to move them between";
const NO_SLABS: &str = "memory is not cut into slab pages, so none are reassigned";
const NO_POOLS: &str =
    "replies and input have no pools of objects: each connection has its own, bounded";

const GENERAL: &[(&str, &str)] = &[
    ("version", "the memcached whose protocol this is"),
    ("libevent", "there is none; clients look for the name"),
    ("max_connections", "chosen at the start"),
    ("threads", "chosen at the start"),
    ("response_obj_oom", NO_POOLS),
    ("response_obj_count", NO_POOLS),
    ("response_obj_bytes", NO_POOLS),
    ("read_buf_count", NO_POOLS),
    ("read_buf_bytes", NO_POOLS),
    ("read_buf_bytes_free", NO_POOLS),
    ("read_buf_oom", NO_POOLS),
    ("get_flushed", "a flushed item is gone at once, and nobody remembers its key"),
    ("hash_is_expanding", "the index grows slice by slice, within a request"),
    ("slab_reassign_rescues", NO_SLABS),
    ("slab_reassign_chunk_rescues", NO_SLABS),
    ("slab_reassign_busy_nomem", NO_SLABS),
    ("slab_reassign_last_busy_status", NO_SLABS),
    ("slab_reassign_inline_reclaim", NO_SLABS),
    ("slab_reassign_busy_items", NO_SLABS),
    ("slab_reassign_busy_deletes", NO_SLABS),
    ("slab_reassign_running", NO_SLABS),
    ("slabs_moved", NO_SLABS),
    ("lru_crawler_running", "a walk that is under way when `stats` is asked: shown in walks.rs"),
    ("lru_maintainer_juggles", NO_LISTS),
    ("malloc_fails", "all memory for items is the server's from the start"),
    (
        "log_worker_dropped",
        "lines go to their watchers' queues at once; those drop (log_watcher_skipped)",
    ),
    ("unexpected_napi_ids", "-N is refused"),
    ("round_robin_fallback", "-N is refused"),
    ("evicted_active", NO_LISTS),
    ("lrutail_reflocked", NO_LISTS),
    ("moves_to_cold", NO_LISTS),
    ("moves_to_warm", NO_LISTS),
    ("moves_within_lru", NO_LISTS),
    ("direct_reclaims", NO_LISTS),
    ("lru_bumps_dropped", NO_LISTS),
];

const ITEMS: &[(&str, &str)] = &[
    ("number_hot", NO_LISTS),
    ("number_warm", NO_LISTS),
    ("age_hot", NO_LISTS),
    ("age_warm", NO_LISTS),
    ("tailrepairs", NO_LISTS),
    ("evicted_active", NO_LISTS),
    ("lrutail_reflocked", NO_LISTS),
    ("moves_to_cold", NO_LISTS),
    ("moves_to_warm", NO_LISTS),
    ("moves_within_lru", NO_LISTS),
    ("direct_reclaims", NO_LISTS),
    ("hits_to_hot", NO_LISTS),
    ("hits_to_warm", NO_LISTS),
    ("hits_to_temp", NO_LISTS),
];

const SLABS: &[(&str, &str)] = &[("free_chunks_end", "memcached's is 0 too")];

const SETTINGS: &[(&str, &str)] = &[
    ("oldest", "a flush is done at once"),
    ("hash_algorithm", "clients in other languages must find the same cachelet"),
    ("inline_ascii_response", "memcached's is always no"),
    ("ssl_kernel_tls", "it is refused"),
    ("num_napi_ids", "-N is refused"),
    ("memory_file", "-e is refused"),
    ("client_flags_size", "32 bits, as memcached's unless it is built otherwise"),
];

type Fields = BTreeMap<String, String>;

fn fields(rig: &mut Rig, command: &str) -> Fields {
    let replies = String::from_utf8(rig.send(format!("{command}\r\n").as_bytes())).expect("text");
    let lines = replies.lines().filter_map(|line| line.strip_prefix("STAT "));
    lines.map(|line| line.split_once(' ').expect("a name and a value")).map(owned).collect()
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// The fields whose value is the same all over.
fn still(stages: &[Fields]) -> BTreeSet<String> {
    let names = stages.iter().flat_map(|stage| stage.keys()).collect::<BTreeSet<_>>();
    let moves = |name: &&&String| {
        let values: BTreeSet<_> = stages.iter().filter_map(|stage| stage.get(**name)).collect();
        values.len() > 1
    };
    names.iter().filter(|name| !moves(name)).map(|name| name.to_string()).collect()
}

#[track_caller]
fn check_constants(stages: &[Fields], constants: &[(&str, &str)]) {
    let expected: BTreeSet<String> = constants.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(still(stages), expected, "what stands still, and what is said to");
}

/// Does what makes every counter count.
fn exercise(rig: &mut Rig) {
    rig.send(b"set k 0 0 1\r\n1\r\n");
    let cas = String::from_utf8(rig.send(b"mg k c\r\n")).expect("text");
    let hit = format!("cas k 0 0 1 {}\r\n1\r\n", cas.trim().strip_prefix("HD c").expect("a cas"));
    rig.send(hit.as_bytes());
    for commands in [
        "set k 0 0 1\r\n1\r\nget k x\r\nincr k 1\r\nincr x 1\r\ndecr k 1\r\ndecr x 1\r\nmg k v\r\nme k\r\n",
        "cas k 0 0 1 9\r\n1\r\ncas x 0 0 1 9\r\n1\r\n",
        "touch k 0\r\ntouch x 0\r\ngat 0 k\r\ndelete k\r\ndelete k\r\nset k 0 0 2000000\r\n",
    ] {
        rig.send(commands.as_bytes());
    }
    rig.send(&[b'x'; 2_000_002]);
    rig.send(
        b"set old 0 5 1\r\nv\r\nset unread 0 5 1\r\nv\r\nset k 0 0 1\r\nv\r\nget k\r\nincr k 1\r\n",
    );
    rig.now.second += 10;
    rig.now.unix += 10;
    rig.send(b"get old\r\nflush_all 1000\r\nlru_crawler crawl all\r\n");
}

#[test]
fn general_fields_move_or_are_known_not_to() {
    let mut rig = Rig::with(Settings {
        memory_bytes: 9 << 20,
        requests_per_event: 20,
        idle_timeout: 100,
        watcher_kib: 1,
        tls: TlsSettings { enabled: true, session_cache: true, ..TlsSettings::default() },
        ..Settings::default()
    });
    let before = fields(&mut rig, "stats");
    let gauges = &rig.server.gauges;
    for (gauge, value) in [
        (&gauges.pid, 7),
        (&gauges.pointer_bits, 64),
        (&gauges.user_us, 5),
        (&gauges.system_us, 6),
        (&gauges.curr_connections, 3),
        (&gauges.total_connections, 4),
        (&gauges.rejected_connections, 1),
        (&gauges.listen_disabled, 2),
        (&gauges.listen_disabled_us, 30),
        (&gauges.accepting, 0),
        (&gauges.reserved_fds, 64),
        (&gauges.handshake_errors, 1),
        (&gauges.tls_errors, 1),
        (&gauges.new_sessions, 2),
    ] {
        gauge.store(value, Relaxed);
    }
    exercise(&mut rig);
    rig.check("cache_memlimit 8\r\n", "OK\r\n");
    rig.send("mn\r\n".repeat(50).as_bytes());
    let watcher = ConnId(1);
    rig.open(watcher);
    rig.handle(Event::Received { conn: watcher, bytes: b"watch mutations\r\n" });
    for number in 0..500 {
        let value = "v".repeat(30_000);
        rig.send(format!("set {number} 0 0 30000\r\n{value}\r\n").as_bytes());
    }
    let middle = fields(&mut rig, "stats");
    rig.now.second += 200;
    let idle = ConnId(2);
    rig.open(idle);
    rig.check("mn\r\n", "MN\r\n");
    let closed = rig.handle(Event::Tick).list;
    assert_eq!(closed, [mbal_worker::Action::Close { conn: idle }]);
    let after = fields(&mut rig, "stats");
    // Without evictions a full server says so.
    let mut full =
        Rig::with(Settings { memory_bytes: 8 << 20, evict: false, ..Settings::default() });
    for number in 0..400 {
        let value = "v".repeat(30_000);
        full.send(format!("set {number} 0 0 30000\r\n{value}\r\n").as_bytes());
    }
    let refused = fields(&mut full, "stats");
    assert_ne!(refused["store_no_memory"], "0");
    let full = BTreeMap::from([owned(("store_no_memory", &refused["store_no_memory"]))]);
    let stages = [before, middle, after, full, logins()];
    check_constants(&stages, GENERAL);
}

/// What is counted of logins, after one that failed and one that did not.
fn logins() -> Fields {
    let settings =
        Settings { protocol: Protocol::Text, auth_file: Some("/f".into()), ..Settings::default() };
    let mut rig = Rig::guarded_by(settings, Arc::new(|_, word| word == b"right"));
    rig.send(b"set login 0 0 10\r\nuser wrong\r\n");
    rig.send(b"set login 0 0 10\r\nuser right\r\n");
    let mut fields = fields(&mut rig, "stats");
    fields.retain(|name, _| name.starts_with("auth_"));
    assert_eq!((&*fields["auth_cmds"], &*fields["auth_errors"]), ("2", "1"));
    fields
}

/// `items:1:number` and `1:chunk_size` without the class.
fn without_class(fields: Fields, class: &str) -> Fields {
    let of_class = |name: &String| name.contains(class) || !name.contains(':');
    let last = |name: String| name.rsplit(':').next().expect("a split has a part").to_owned();
    fields.into_iter().filter(|(name, _)| of_class(name)).map(|(n, v)| (last(n), v)).collect()
}

#[test]
fn fields_of_classes_move_or_are_known_not_to() {
    let mut rig = Rig::with(Settings { memory_bytes: 8 << 20, ..Settings::default() });
    rig.send(b"set first 0 0 1\r\nv\r\n");
    let small = |rig: &mut Rig, what| without_class(fields(rig, what), ":1:");
    let slabs = |rig: &mut Rig| without_class(fields(rig, "stats slabs"), "1:");
    let items_before = small(&mut rig, "stats items");
    let slabs_before = slabs(&mut rig);
    exercise(&mut rig);
    let mut full =
        Rig::with(Settings { memory_bytes: 2 << 20, evict: false, ..Settings::default() });
    for number in 0..150_000 {
        full.send(format!("set {number} 0 0 1\r\nv\r\n").as_bytes());
        rig.send(format!("set {number} 0 1000 1\r\nv\r\n").as_bytes());
    }
    let slabs_between = slabs(&mut rig);
    for number in 0..500 {
        let value = "v".repeat(30_000);
        rig.send(format!("set b{number} 0 0 30000\r\n{value}\r\n").as_bytes());
    }
    rig.send(b"set last 0 0 1\r\nv\r\nget last\r\n");
    rig.now.second += 30;
    let slabs_after = slabs(&mut rig);
    let items = [items_before, small(&mut rig, "stats items"), small(&mut full, "stats items")];
    check_constants(&items, ITEMS);
    // Another class has another size.
    let mut other = Rig::new();
    other.send(format!("set k 0 0 1000\r\n{}\r\n", "v".repeat(1000)).as_bytes());
    let other = without_class(fields(&mut other, "stats slabs"), ":chunk");
    let two = Rig::new().send(b"set k 0 0 1\r\nv\r\n");
    assert_eq!(two, b"STORED\r\n");
    rig.send(format!("set k 0 0 1000\r\n{}\r\n", "v".repeat(1000)).as_bytes());
    check_constants(&[slabs_before, slabs_between, slabs_after, other, slabs(&mut rig)], SLABS);
}

/// What memcached-tool's `Full?` is about: `used_chunks` is `total_chunks`.
#[test]
fn a_class_is_full_when_the_server_is() {
    let classes = |rig: &mut Rig| {
        let told = fields(rig, "stats slabs");
        let number = |name: String| told[&name].parse::<u64>().expect("a number");
        let classes = told.keys().filter_map(|name| name.strip_suffix(":used_chunks"));
        let mut full = Vec::new();
        for class in classes {
            let [total, used, free, pages] =
                ["total_chunks", "used_chunks", "free_chunks", "total_pages"]
                    .map(|name| number(format!("{class}:{name}")));
            assert_eq!(total, used + free, "class {class}");
            // All that is free lies in the page that was begun last, or is one chunk.
            let chunk = number(format!("{class}:chunk_size"));
            assert!(free <= ((1 << 20) / chunk).max(1) && pages > 0, "class {class}: {free}");
            full.push(free == 0);
        }
        assert_eq!(number("total_malloced".into()), 16 << 20);
        full
    };
    for evict in [true, false] {
        let mut rig = Rig::with(Settings { memory_bytes: 16 << 20, evict, ..Settings::default() });
        rig.send(b"set small 0 0 1\r\nv\r\n");
        rig.send(format!("set large 0 0 200000\r\n{}\r\n", "v".repeat(200_000)).as_bytes());
        assert_eq!(classes(&mut rig), [false; 2]);
        let value = "v".repeat(5_000);
        for number in 0..4_000 {
            rig.send(format!("set {number} 0 0 5000\r\n{value}\r\n").as_bytes());
        }
        let full = classes(&mut rig);
        assert!(!full.is_empty() && full.iter().all(|one| *one), "{evict}: {full:?}");
    }
}

#[test]
fn settings_move_or_are_known_not_to() {
    let other = Settings {
        memory_bytes: 128 << 20,
        connections_max: 9,
        tcp_port: 1,
        udp_port: 2,
        interface: Some("::1".into()),
        socket_path: Some("/s".into()),
        verbosity: 1,
        workers: 2,
        item_bytes_max: 9999,
        evict: false,
        requests_per_event: 9,
        backlog: 9,
        flush_enabled: false,
        shutdown_enabled: true,
        socket_mode: 0o777,
        maxconns_fast: false,
        dump_enabled: false,
        idle_timeout: 9,
        crawler_enabled: false,
        sizes_enabled: true,
        delimiter: Some(b'/'),
        watcher_kib: 9,
        echoed: Echoed {
            growth_factor: 200,
            chunk_size: 96,
            cas_enabled: false,
            hashpower: 9,
            slab_reassign: false,
            slab_automove: 2,
            slab_automove_ratio: 9,
            slab_automove_window: 9,
            slab_chunk_max: 9,
            lru_crawler_sleep: 9,
            lru_crawler_tocrawl: 9,
            tail_repair_time: 9,
            lru_maintainer: false,
            hot_lru_pct: 9,
            warm_lru_pct: 9,
            hot_max_factor: 9,
            warm_max_factor: 9,
            temporary_ttl: Some(9),
            worker_kib: 9,
            read_buf_mem_limit: 9,
        },
        tls: TlsSettings {
            enabled: true,
            chain_cert: Some("/c".into()),
            key: Some("/k".into()),
            ca_cert: Some("/a".into()),
            ciphers: Some("HIGH".into()),
            verify_mode: 1,
            key_format: 2,
            wbuf_kib: 9,
            session_cache: true,
            min_version: "tlsv1.3",
        },
        protocol: Protocol::Text,
        sasl: true,
        auth_file: Some("/f".into()),
        ..Settings::default()
    };
    let mut guarded = Rig::guarded_by(other, Arc::new(|_, _| true));
    guarded.send(b"set login 0 0 3\r\na b\r\n");
    let before = fields(&mut Rig::new(), "stats settings");
    let after = fields(&mut guarded, "stats settings");
    check_constants(&[before, after], SETTINGS);
}

#[test]
fn what_tunes_changes_what_is_told() {
    let mut rig = Rig::new();
    for (command, name, value) in [
        ("slabs automove 2", "slab_automove", "2"),
        ("slabs automove ratio 0.5", "slab_automove_ratio", "0.50"),
        ("lru_crawler sleep 5", "lru_crawler_sleep", "5"),
        ("lru_crawler tocrawl 6", "lru_crawler_tocrawl", "6"),
        ("lru tune 11 12 0.3 4", "hot_lru_pct", "11"),
        ("lru tune 11 12 0.3 4", "warm_max_factor", "4.00"),
        ("lru_crawler disable", "lru_crawler", "no"),
        ("lru_crawler enable", "lru_crawler", "yes"),
    ] {
        rig.check(&format!("{command}\r\n"), "OK\r\n");
        assert_eq!(fields(&mut rig, "stats settings")[name], value, "{command}");
    }
    rig.check("lru_crawler enable\r\n", "ERROR failed to start lru crawler thread\r\n");
}

#[test]
fn connections_are_listed_with_what_they_do() {
    let mut rig = Rig::new();
    let address = |text: &str| Endpoint::Tcp(text.parse::<SocketAddr>().expect("an address"));
    let here = address("127.0.0.1:11211");
    let listening = Arc::new(ConnInfo::listening(3, here.clone()));
    rig.server.conns.enter(&listening);
    let other = ConnId(1);
    rig.open(other);
    for (conn, fd, peer) in [(CONN, 8, "127.0.0.1:999"), (other, 9, "[::1]:998")] {
        let info = Arc::new(ConnInfo::new(fd, address(peer), here.clone()));
        rig.handle(Event::Introduced { conn, info });
    }
    rig.handle(Event::Received { conn: other, bytes: b"set k 0 0 100\r\nhalf" });
    rig.now.second += 5;
    rig.check(
        "stats conns\r\n",
        "STAT 3:addr tcp:127.0.0.1:11211\r\nSTAT 3:state conn_listening\r\n\
         STAT 3:secs_since_last_cmd 105\r\n\
         STAT 8:addr tcp:127.0.0.1:999\r\nSTAT 8:listen_addr tcp:127.0.0.1:11211\r\n\
         STAT 8:state conn_parse_cmd\r\nSTAT 8:secs_since_last_cmd 5\r\n\
         STAT 9:addr tcp6:[::1]:998\r\nSTAT 9:listen_addr tcp:127.0.0.1:11211\r\n\
         STAT 9:state conn_nread\r\nSTAT 9:secs_since_last_cmd 5\r\nEND\r\n",
    );
    rig.handle(Event::Closed { conn: other });
    assert!(!String::from_utf8_lossy(&rig.send(b"stats conns\r\n")).contains("STAT 9:"));
}
