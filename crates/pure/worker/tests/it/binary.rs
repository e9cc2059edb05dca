//! The binary protocol: what each command answers, to the byte.

use std::sync::Arc;

use mbal_worker::{Action, Event, Passwords, Protocol, Settings};

use crate::rig::{CONN, Rig};

/// A request: opcode, cas, extras, key, value.
fn request(opcode: u8, cas: u64, extras: &[u8], key: &str, value: &str) -> Vec<u8> {
    let body = (extras.len() + key.len() + value.len()) as u32;
    let mut bytes = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    bytes.extend(body.to_be_bytes());
    bytes.extend(b"opaq");
    bytes.extend(cas.to_be_bytes());
    [&bytes, extras, key.as_bytes(), value.as_bytes()].concat()
}

fn set(opcode: u8, cas: u64, key: &str, value: &str) -> Vec<u8> {
    request(opcode, cas, &[0, 0, 0, 5, 0, 0, 0, 0], key, value)
}

fn key(opcode: u8, key: &str) -> Vec<u8> {
    request(opcode, 0, b"", key, "")
}

fn count(opcode: u8, key: &str, delta: u64, initial: u64, exptime: u32) -> Vec<u8> {
    let parts = [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &exptime.to_be_bytes()];
    request(opcode, 0, &parts.concat(), key, "")
}

/// `op status cas extras|key|value` of every reply.
fn replies(mut bytes: &[u8]) -> Vec<String> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        let number = |at: usize, length: usize| {
            bytes[at..at + length].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        assert_eq!((bytes[0], bytes[5]), (0x81, 0));
        assert_eq!(&bytes[12..16], b"opaq");
        let (key, extras) = (number(2, 2) as usize, number(4, 1) as usize);
        let (body, rest) = bytes[24..].split_at(number(8, 4) as usize);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let shown = match &body[..extras] {
            [] => String::new(),
            flags => format!("{}|", flags[3]),
        };
        let (key, value) = body[extras..].split_at(key);
        let key = if key.is_empty() { String::new() } else { text(key) + "|" };
        let (op, status, cas) = (number(1, 1), number(6, 2), number(16, 8));
        replies.push(format!("{op:02x} {status:x} {cas} {shown}{key}{}", text(value)));
        bytes = rest;
    }
    replies
}

#[track_caller]
fn check(rig: &mut Rig, requests: &[Vec<u8>], expected: &[&str]) {
    assert_eq!(replies(&rig.send(&requests.concat())), expected);
}

#[test]
fn storing() {
    let mut rig = Rig::new();
    check(
        &mut rig,
        &[
            set(0x01, 0, "k", "one"),
            key(0x00, "k"),
            set(0x02, 0, "k", "no"),
            set(0x03, 0, "k", "two"),
            set(0x03, 0, "absent", "no"),
            set(0x01, 9, "k", "no"),
            set(0x01, 9, "absent", "no"),
            set(0x01, 2, "k", "three"),
            request(0x0e, 0, b"", "k", "+"),
            request(0x0f, 4, b"", "k", "+"),
            request(0x0f, 4, b"", "k", "no"),
            request(0x0e, 0, b"", "absent", "no"),
            key(0x0c, "k"),
        ],
        &[
            "01 0 1 ",
            "00 0 1 5|one",
            "02 2 0 Data exists for key.",
            "03 0 2 ",
            "03 1 0 Not found",
            "01 2 0 Data exists for key.",
            "01 1 0 Not found",
            "01 0 3 ",
            "0e 0 4 ",
            "0f 0 5 ",
            "0f 2 0 Data exists for key.",
            "0e 5 0 Not stored.",
            "0c 0 5 5|k|+three+",
        ],
    );
}

#[test]
fn quiet_commands_tell_errors_and_hits() {
    let mut rig = Rig::new();
    check(
        &mut rig,
        &[
            set(0x11, 0, "k", "v"),
            set(0x12, 0, "k", "no"),
            key(0x09, "k"),
            key(0x0d, "k"),
            key(0x09, "absent"),
            key(0x0d, "absent"),
            key(0x0c, "absent"),
            request(0x24, 0, &[0; 4], "k", ""),
            request(0x1e, 0, &[0; 4], "absent", ""),
            count(0x15, "n", 1, 7, 0),
            count(0x15, "n", 1, 7, 0),
            count(0x05, "n", 1, 7, 0),
            key(0x14, "k"),
            key(0x14, "k"),
            request(0x18, 0, b"", "", ""),
            key(0x00, "n"),
            key(0x0a, ""),
        ],
        &[
            "12 2 0 Data exists for key.",
            "09 0 1 5|v",
            "0d 0 1 5|k|v",
            "0c 1 0 absent|",
            "24 0 1 5|k|v",
            "05 0 4 \0\0\0\0\0\0\0\t",
            "14 1 0 Not found",
            "00 1 0 Not found",
            "0a 0 0 ",
        ],
    );
}

#[test]
fn counting() {
    let mut rig = Rig::new();
    check(
        &mut rig,
        &[
            count(0x05, "n", 1, 7, u32::MAX),
            count(0x06, "n", 1, 65, 0),
            count(0x06, "n", 70, 0, 0),
            count(0x05, "n", 66, 0, 0),
            set(0x01, 0, "s", "text"),
            count(0x05, "s", 1, 0, 0),
        ],
        &[
            "05 1 0 Not found",
            "06 0 1 \0\0\0\0\0\0\0A",
            "06 0 2 \0\0\0\0\0\0\0\0",
            "05 0 3 \0\0\0\0\0\0\0B",
            "01 0 4 ",
            "05 6 0 Non-numeric server-side value for incr or decr",
        ],
    );
    rig.now.second += 1;
    check(&mut rig, &[count(0x05, "e", 1, 7, 1)], &["05 0 5 \0\0\0\0\0\0\0\x07"]);
    rig.now.second += 1;
    check(&mut rig, &[key(0x00, "e")], &["00 1 0 Not found"]);
}

#[test]
fn touch_shows_flags_alone_and_gat_the_value() {
    let mut rig = Rig::new();
    check(
        &mut rig,
        &[
            set(0x01, 0, "k", "v"),
            request(0x1c, 0, &[0, 0, 0, 9], "k", ""),
            request(0x1d, 0, &[0, 0, 0, 1], "k", ""),
            request(0x1c, 0, &[0; 4], "absent", ""),
            request(0x23, 0, &[0; 4], "absent", ""),
        ],
        &["01 0 1 ", "1c 0 1 5|", "1d 0 1 5|v", "1c 1 0 Not found", "23 1 0 absent|"],
    );
    rig.now.second += 1;
    check(&mut rig, &[key(0x00, "k")], &["00 1 0 Not found"]);
}

#[test]
fn values_that_are_too_large_take_the_old_one_along() {
    let mut rig = Rig::new();
    let large = "v".repeat(1 << 20);
    check(
        &mut rig,
        &[set(0x01, 0, "k", "v"), set(0x02, 0, "k", &large), key(0x00, "k")],
        &["01 0 1 ", "02 3 0 Too large.", "00 0 1 5|v"],
    );
    check(
        &mut rig,
        &[set(0x11, 0, "k", &large), key(0x00, "k")],
        &["11 3 0 Too large.", "00 1 0 Not found"],
    );
}

#[test]
fn keys_may_hold_any_byte() {
    let mut rig = Rig::new();
    let odd = "a b\r\n\0c";
    let got = ["01 0 1 ", "0c 0 1 5|a b\r\n\0c|v", "00 1 0 Not found"];
    check(&mut rig, &[set(0x01, 0, odd, "v"), key(0x0c, odd), key(0x00, "a")], &got);
}

#[test]
fn what_ends_a_connection() {
    for (bytes, reply) in [
        (key(0x07, ""), "07 0 0 "),
        (key(0x17, ""), ""),
        (key(0x0a, "k"), "0a 4 0 Invalid arguments"),
        (key(0x00, &"k".repeat(251)), "00 4 0 Invalid arguments"),
        (b"get a\r\n and what fills a header\r\n".to_vec(), ""),
    ] {
        let mut rig = Rig::new();
        let input = [key(0x0a, ""), bytes].concat();
        let actions = rig.handle(Event::Received { conn: CONN, bytes: &input });
        let told: Vec<String> = ["0a 0 0 ", reply].into_iter().map(str::to_owned).collect();
        let told: Vec<String> = told.into_iter().filter(|reply| !reply.is_empty()).collect();
        assert_eq!(replies(&actions.bytes), told);
        assert_eq!(actions.list.last(), Some(&Action::Close { conn: CONN }));
    }
}

#[test]
fn unknown_commands_take_their_body_along() {
    let mut rig = Rig::new();
    let unknown = request(0x41, 0, b"", "", "value");
    let expected = ["41 81 0 Unknown command", "0b 0 0 1.6.45"];
    check(&mut rig, &[unknown, key(0x0b, "")], &expected);
    let sasl = ["20 81 0 Unknown command", "21 81 0 Unknown command", "0a 0 0 "];
    let auth = request(0x21, 0, b"", "PLAIN", "\0ann\0secret");
    check(&mut rig, &[key(0x20, ""), auth, key(0x0a, "")], &sasl);
}

#[test]
fn the_hottest_keys_are_told_in_packets() {
    let mut rig = Rig::with(Settings { hot_sample: 1.0, ..Settings::default() });
    let requests = [set(0x01, 0, "hot", "abc"), key(0x00, "hot"), key(0x00, "none")];
    rig.send(&requests.concat());
    let told = |topic: &str, rig: &mut Rig| replies(&rig.send(&key(0x10, topic)));
    let hottest = ["1:key|hot", "1:rate|2", "1:reads|1", "1:writes|1", "1:bytes|3"];
    let packet = |text: &str| format!("10 0 0 {text}");
    let one: Vec<String> = hottest.iter().chain(&[""]).map(|text| packet(text)).collect();
    assert_eq!(told("hot 1", &mut rig), one);
    let all = told("hot", &mut rig);
    assert_eq!((&all[..5], all[5].as_str(), all.len()), (&one[..5], "10 0 0 2:key|none", 11));
    assert_eq!(told("latency buckets", &mut rig), [packet("")]);
}

#[test]
fn statistics_are_packets() {
    let mut rig = Rig::new();
    let told = replies(&rig.send(&key(0x10, "settings")));
    assert_eq!(told[0], "10 0 0 maxbytes|67108864");
    assert_eq!(told.last().map(String::as_str), Some("10 0 0 "));
    let told = replies(&rig.send(&key(0x10, "")));
    assert!(told.len() > 50 && told[0].starts_with("10 0 0 pid|"), "{told:?}");
    check(
        &mut rig,
        &[
            key(0x10, "reset"),
            key(0x10, "detail on"),
            set(0x11, 0, "a:b", "v"),
            key(0x10, "detail dump"),
            key(0x10, "conns"),
            key(0x10, "nonsense"),
        ],
        &[
            "10 0 0 ",
            "10 0 0 ",
            "10 0 0 detailed|PREFIX a get 0 hit 0 set 1 del 0\r\nEND\r\n",
            "10 0 0 ",
            "10 1 0 Not found",
            "10 1 0 Not found",
        ],
    );
}

#[test]
fn input_may_be_cut_anywhere() {
    let input = [
        set(0x01, 0, "k", "value"),
        key(0x0c, "k"),
        set(0x01, 0, "k", &"v".repeat(1 << 20)),
        count(0x05, "n", 1, 7, 0),
        request(0x41, 0, b"", "", "value"),
        set(0x0e, 0, "k", "value"),
    ];
    let input = input.concat();
    let expected = Rig::new().send(&input);
    let cuts = (1..200).chain((1..200).map(|end| input.len() - end));
    for cut in cuts {
        let mut rig = Rig::new();
        let got = [rig.send(&input[..cut]), rig.send(&input[cut..])].concat();
        assert!(got == expected, "cut at {cut}");
    }
    let mut rig = Rig::new();
    let start = &input[..80];
    let got: Vec<u8> = start.iter().flat_map(|byte| rig.send(&[*byte])).collect();
    assert_eq!(got, Rig::new().send(start));
}

#[test]
fn a_connection_keeps_to_the_protocol_that_it_began_with() {
    let mut rig = Rig::new();
    rig.check("mn\r\n", "MN\r\n");
    assert_eq!(rig.send(b"\x80\x01\r\n"), b"ERROR\r\n");
    let mut rig = Rig::with(Settings { protocol: Protocol::Binary, ..Settings::default() });
    let actions =
        rig.handle(Event::Received { conn: CONN, bytes: b"set k 0 0 5\r\nhello\r\nmn\r\n" });
    assert_eq!(actions.list, [Action::Close { conn: CONN }]);
    let mut rig = Rig::with(Settings { protocol: Protocol::Text, ..Settings::default() });
    assert_eq!(rig.send(b"\x80\x01\0\0\r\n"), b"ERROR\r\n");
}

#[test]
fn a_client_that_names_a_cachelet_is_told_its_owner() {
    let worker_addresses = vec![([127, 0, 0, 1], 1).into()];
    let mut rig = Rig::with(Settings { worker_addresses, ..Settings::default() });
    let mut get = key(0x0c, "k");
    get[7] = 1;
    check(&mut rig, &[get.clone()], &["0c 1 0 k|"]);
    get[7] = 2;
    check(&mut rig, &[get], &["0c 7 0 1.0.0"]);
}

fn guarded(settings: Settings) -> Rig {
    let passwords = Passwords::parse(b"ann:secret\n", false).expect("a colon");
    Rig::guarded_by(settings, Arc::new(move |user, word| passwords.admits(user, word)))
}

#[test]
fn sasl_plain() {
    let settings = Settings { protocol: Protocol::Binary, sasl: true, ..Settings::default() };
    let mut rig = guarded(settings);
    let auth = |mechanism, text| request(0x21, 0, b"", mechanism, text);
    let step = |text| request(0x22, 0, b"", "PLAIN", text);
    check(
        &mut rig,
        &[
            key(0x0b, ""),
            key(0x20, ""),
            step("\0ann\0secret"),
            auth("PLAIN", "\0ann\0wrong"),
            auth("CRAM-MD5", "\0ann\0secret"),
            auth(&"X".repeat(40), ""),
            auth("PLAIN", "\0ann\0secret"),
            set(0x01, 0, "k", "v"),
            auth("PLAIN", ""),
            step("\0ann\0secret"),
            key(0x0c, "k"),
            auth("PLAIN", "ann"),
            key(0x0c, "k"),
            key(0x0c, "k"),
        ],
        &[
            "0b 0 0 1.6.45",
            "20 0 0 PLAIN",
            "22 20 0 Auth failure.",
            "21 20 0 Auth failure.",
            "21 20 0 Auth failure.",
            "21 4 0 Invalid arguments",
            "21 0 0 Authenticated",
            "01 0 1 ",
            "21 21 0 ",
            "22 0 0 Authenticated",
            "0c 0 1 5|k|v",
            "21 20 0 Auth failure.",
            "0c 20 0 Auth failure.",
        ],
    );
}

#[test]
fn a_first_set_logs_in() {
    let settings = Settings {
        protocol: Protocol::Text,
        auth_file: Some("file".into()),
        ..Settings::default()
    };
    let mut rig = guarded(settings);
    rig.check("get k\r\nset k 0 0 9\r\nann wrong\r\n", {
        "CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR authentication failure\r\n"
    });
    rig.check("set k 0 0 3\r\nann\r\nset k 0 0 10\r\nann secret\r\nget ann\r\n", {
        "CLIENT_ERROR bad authentication token format\r\nSTORED\r\nEND\r\n"
    });
}

#[test]
fn a_login_is_read_as_memcached_reads_it() {
    let settings = || Settings {
        protocol: Protocol::Text,
        auth_file: Some("file".into()),
        ..Settings::default()
    };
    for (input, reply) in [
        ("set k 0 0 16385\r\n", "CLIENT_ERROR auth token too long\r\n"),
        ("set k 0 0 2147483646\r\n", "CLIENT_ERROR auth token too long\r\n"),
        // Some of it may follow.
        ("set k 0 0 16384\r\n", ""),
        ("\r\n", ""),
        ("settle a b c 10 d\r\nann secret\r\n", "STORED\r\n"),
        (" set k 0 0 10\r\n", "CLIENT_ERROR unauthenticated\r\n"),
        ("set k 0 0\r\n", "CLIENT_ERROR unauthenticated\r\n"),
        // A blank belongs to the password.
        ("set k 0 0 11\r\nann secret \r\n", "CLIENT_ERROR authentication failure\r\n"),
        ("set k 0 0 11\r\nann  secret\r\n", "CLIENT_ERROR authentication failure\r\n"),
    ] {
        guarded(settings()).check(input, reply);
    }
    for short in ["\r\n\r\n", "get\r\n", "quit\r\n"] {
        let mut rig = guarded(settings());
        let done = rig.handle(Event::Received { conn: CONN, bytes: short.as_bytes() });
        assert_eq!(done.list, [Action::Close { conn: CONN }], "{short:?}");
    }
}

#[test]
fn sizes_are_a_packet_each() {
    let mut rig = Rig::with(Settings { sizes_enabled: true, ..Settings::default() });
    rig.send(&[set(0x11, 0, "a", "v"), set(0x11, 0, "b", "v")].concat());
    check(&mut rig, &[key(0x10, "sizes"), key(0x0a, "")], &["10 0 0 96|2", "10 0 0 ", "0a 0 0 "]);
}
