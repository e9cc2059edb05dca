//! Rings against what other clients do.

use super::*;

const VECTORS: &str = include_str!("../../../../../conformance/vectors/ketama.txt");

fn servers(list: &str) -> Vec<RingServer> {
    list.split(',').map(|server| server.parse().unwrap()).collect()
}

#[test]
fn keys_are_where_libmemcached_and_twemproxy_put_them() {
    let mut keys: Vec<Vec<u8>> = (0..60).map(|n| format!("key:{n}").into_bytes()).collect();
    keys.extend([b"a".to_vec(), "été".into(), vec![b'x'; 250]]);
    let lines: Vec<&str> = VECTORS.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), 42);
    for line in lines {
        let fields: Vec<&str> = line.split('\t').collect();
        let (dialect, hash) = fields[0].split_once('+').unwrap_or((fields[0], ""));
        let ring = Ring::new(dialect.parse().unwrap(), hash.parse().ok(), &servers(fields[1]));
        let owners: Vec<String> = keys.iter().map(|key| ring.owner(key).to_string()).collect();
        assert_eq!(owners.join(","), fields[2], "{} {}", fields[0], fields[1]);
        let folded = (0..2000).fold(0_u32, |folded, n| {
            let owner = ring.owner(format!("k{n}").as_bytes()) as u32;
            folded.wrapping_mul(31).wrapping_add(owner)
        });
        assert_eq!(format!("{folded:08x}"), fields[3], "{} {}", fields[0], fields[1]);
    }
}

#[test]
fn keys_are_where_spymemcacheds_own_tests_say() {
    let loopback = |count: u16| -> Vec<RingServer> {
        (0..count).map(|n| format!("127.0.0.1:{}", 10_000 + n).parse().unwrap()).collect()
    };
    let subnet = (1..9).map(|n| format!("10.0.1.{n}:11211").parse().unwrap()).collect();
    for (pool, owners) in [
        (loopback(4), &[("dustin", 0), ("noelani", 2), ("some other key", 0), ("V5XS8C8N", 3)][..]),
        (
            loopback(5),
            &[("some other key", 4), ("36", 2), ("10037", 3), ("22051", 1), ("49044", 4)],
        ),
        (subnet, &[("0", 0), ("233", 6), ("466", 2), ("932", 5), ("1165", 1), ("3728", 7)]),
    ] {
        let ring = Ring::new(Dialect::Spymemcached, None, &pool);
        for (key, owner) in owners {
            assert_eq!(ring.owner(key.as_bytes()), *owner, "{key} of {}", pool.len());
        }
    }
}

#[test]
fn a_client_hashes_as_it_does_where_nothing_is_said() {
    let pool = servers("127.0.0.1:23100,127.0.0.1:23101,127.0.0.1:23102");
    for (dialect, hash) in [
        (Dialect::Libmemcached, KeyHash::Md5),
        (Dialect::Unweighted, KeyHash::OneAtATime),
        (Dialect::Spymemcached, KeyHash::Md5),
        (Dialect::Twemproxy, KeyHash::Fnv1a64),
    ] {
        let (own, said) = (Ring::new(dialect, None, &pool), Ring::new(dialect, Some(hash), &pool));
        for key in 0..1000 {
            let key = format!("{key}");
            assert_eq!(own.owner(key.as_bytes()), said.owner(key.as_bytes()));
        }
    }
}

#[test]
fn a_server_less_takes_no_key_from_one_that_stays() {
    let all = servers("10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4,10.0.0.5");
    // Of these sizes the rounding gives all servers 160 points.
    let (before, after) = (
        Ring::new(Dialect::Libmemcached, None, &all),
        Ring::new(Dialect::Libmemcached, None, &all[..4]),
    );
    for key in 0..10_000 {
        let key = format!("user:{key}");
        let was = before.owner(key.as_bytes());
        assert!(was == 4 || after.owner(key.as_bytes()) == was, "{key}");
    }
}

#[test]
fn servers_are_written_as_in_clients_lists() {
    for (text, host, port, weight, name) in [
        ("a", "a", 11211, 1, None),
        ("a:1", "a", 1, 1, None),
        ("10.0.0.1:11211:3", "10.0.0.1", 11211, 3, None),
        ("10.0.0.1:11212:1 cache-1", "10.0.0.1", 11212, 1, Some("cache-1")),
        ("[::1]:11212", "::1", 11212, 1, None),
    ] {
        let name = name.map(str::to_owned);
        assert_eq!(text.parse(), Ok(RingServer { host: host.into(), port, weight, name }));
    }
    for wrong in ["", ":1", "a:", "a:0", "a:1:0", "a:1:1:1", "a:70000", "[::1", "[::1]x"] {
        assert!(wrong.parse::<RingServer>().is_err(), "{wrong:?}");
    }
}

#[test]
fn keys_hash_as_twemproxy_hashes_them() {
    // Of src/hashkit/nc_murmur.c and nc_fnv.c, compiled.
    let vectors: [(&[u8], u32, u32); 10] = [
        (b"a", 0x4b41757c, 0x8601ec8c),
        (b"ab", 0xe3b54dfb, 0xb545986a),
        (b"abc", 0x7b0cc428, 0x0541574b),
        (b"abcd", 0xef6a86af, 0xee0724dd),
        (b"foobar", 0xabecff17, 0xf73967e8),
        (b"user:42", 0x5f6eb68a, 0xdcd221c2),
        (b"user:0000000000000000000000042", 0xe15af4f0, 0x299b9be2),
        (b"\xc3\xa9t\xc3\xa9", 0xda710acb, 0xea769c57),
        (b"\xff\x80\x7f", 0xd95850af, 0x720040af),
        (&[b'k'; 250], 0xd8b0adcb, 0x8cb408db),
    ];
    for (key, murmur, fnv1a) in vectors {
        assert_eq!(KeyHash::Murmur.place(key), murmur, "{key:?}");
        assert_eq!(KeyHash::Fnv1a64.place(key), fnv1a, "{key:?}");
    }
}

/// FNV-1a by 32 bits mixes less than Murmur: its largest of 64 shares is half as much again as the average.
#[test]
fn keys_that_count_up_spread() {
    for (kind, bound) in [(KeyHash::Murmur, 1100), (KeyHash::Fnv1a64, 1600)] {
        let mut counts = [0_u32; 64];
        for key in 0..64_000 {
            counts[(kind.place(format!("user:{key:08}").as_bytes()) >> 26) as usize] += 1;
        }
        let most = *counts.iter().max().unwrap();
        assert!(most < bound, "{kind:?}: {most}");
    }
}

#[test]
fn a_place_belongs_to_the_next_point_its_own_included() {
    for count in [1, 2, 7, 50] {
        let list: Vec<String> = (0..count).map(|at| format!("10.0.0.{at}:11211")).collect();
        let ring = Ring::new(Dialect::Twemproxy, None, &servers(&list.join(",")));
        let around = |&(point, _): &(u32, u16)| {
            [point.wrapping_sub(1), point, point.wrapping_add(1), point.swap_bytes()]
        };
        for place in ring.points.iter().flat_map(around).chain([0, u32::MAX]) {
            let next = ring.points.iter().find(|(point, _)| place <= *point);
            let (_, server) = next.unwrap_or(&ring.points[0]);
            assert_eq!(ring.at(place), usize::from(*server), "{place} of {count}");
        }
    }
}
