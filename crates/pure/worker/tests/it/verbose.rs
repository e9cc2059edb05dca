//! `-vv` and `-vvv`: the lines for standard error, as memcached has them.

use std::net::SocketAddr;
use std::sync::Arc;

use mbal_worker::{Action, Actions, ConnInfo, Endpoint, Event, Protocol, Settings};

use crate::rig::{CONN, Rig};

fn rig(verbosity: u32) -> Rig {
    Rig::with(Settings { verbosity, ..Settings::default() })
}

fn asking_for_a_login(verbosity: u32) -> Rig {
    let auth_file = Some("/f".into());
    let settings =
        Settings { verbosity, protocol: Protocol::Text, auth_file, ..Settings::default() };
    Rig::guarded_by(settings, Arc::new(|_, word| word == b"right"))
}

fn said(actions: &Actions) -> String {
    let lines = actions.list.iter().filter_map(|action| match action {
        Action::Say { lines } => Some(std::str::from_utf8(lines).expect("text")),
        _ => None,
    });
    lines.collect()
}

fn introduced() -> Event<'static> {
    let at = |port| Endpoint::Tcp(SocketAddr::from(([127, 0, 0, 1], port)));
    Event::Introduced { conn: CONN, info: Arc::new(ConnInfo::new(28, at(40000), at(11211))) }
}

fn said_of(rig: &mut Rig, bytes: &[u8]) -> String {
    said(&rig.handle(Event::Received { conn: CONN, bytes }))
}

#[test]
fn a_conversation_is_told_as_memcached_tells_it() {
    let mut rig = rig(2);
    assert_eq!(said(&rig.handle(introduced())), "<28 new auto-negotiating client connection\n");
    assert_eq!(
        said_of(&mut rig, b"set a 0 0 3\r\nabc\r\n"),
        "28: Client using the ascii protocol\n<28 set a 0 0 3\n>28 STORED\n"
    );
    assert_eq!(said_of(&mut rig, b"get a b\r\n"), "<28 get a b\n>28 sending key a\n>28 END\n");
    assert_eq!(said_of(&mut rig, b"nonsense\r\n"), "<28 nonsense\n>28 ERROR\n");
    assert_eq!(said_of(&mut rig, b"mg a v\r\n"), "<28 mg a v\n>28 VA 3\n");
    assert_eq!(said(&rig.handle(Event::Closed { conn: CONN })), "<28 connection closed.\n");
}

#[test]
fn requests_that_come_together_are_told_one_by_one_and_answered_as_ever() {
    let mut rig = rig(2);
    rig.handle(introduced());
    let actions = rig.handle(Event::Received {
        conn: CONN,
        bytes: b"set a 0 0 7\r\nVALUE b\r\nget a\r\ndelete a noreply\r\nget a\r\nget ",
    });
    assert_eq!(actions.bytes, b"STORED\r\nVALUE a 0 7\r\nVALUE b\r\nEND\r\nEND\r\n");
    assert_eq!(
        said(&actions),
        "28: Client using the ascii protocol\n\
         <28 set a 0 0 7\n>28 STORED\n\
         <28 get a\n>28 sending key a\n>28 END\n\
         <28 delete a noreply\n\
         <28 get a\n>28 END\n"
    );
    assert_eq!(said_of(&mut rig, b"a\r\n"), "<28 get a\n>28 END\n");
}

#[test]
fn a_value_that_is_refused_is_swallowed_in_silence() {
    let mut rig = rig(2);
    rig.handle(introduced());
    let mut bytes = b"set a 0 0 2000000\r\n".to_vec();
    bytes.resize(bytes.len() + 2_000_000, b'v');
    bytes.extend_from_slice(b"\r\nget a\r\n");
    assert_eq!(
        said_of(&mut rig, &bytes),
        "28: Client using the ascii protocol\n\
         <28 set a 0 0 2000000\n>28 SERVER_ERROR object too large for cache\n\
         <28 get a\n>28 END\n"
    );
}

#[test]
fn binary_headers_are_told_byte_by_byte() {
    let mut rig = rig(2);
    rig.handle(introduced());
    let mut noop = [0; 24];
    (noop[0], noop[1]) = (0x80, 0x0a);
    let rest = " 0x00 0x00 0x00 0x00";
    let expected = format!(
        "28: Client using the binary protocol\n\
         <28 Read binary protocol data:\n<28    0x80 0x0a 0x00 0x00{read}\n\
         >28 Writing bin response:\n>28   0x81 0x0a 0x00 0x00{written}\n",
        read = format!("\n<28   {rest}").repeat(5),
        written = format!("\n>28  {rest}").repeat(5),
    );
    assert_eq!(said_of(&mut rig, &noop), expected);
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let mut rig = rig(2);
    rig.handle(introduced());
    let said = said_of(&mut rig, b"get \x1b[2J\r\n");
    assert!(said.contains("<28 get \\x1b[2J\n"), "{said}");
}

#[test]
fn three_times_says_what_connections_do_next() {
    let mut rig = rig(3);
    rig.handle(introduced());
    let said = said_of(&mut rig, b"set a 0 0 100\r\nabc");
    assert!(said.ends_with("28: going from conn_read to conn_nread\n"), "{said}");
}

#[test]
fn verbosity_is_switched_while_it_runs() {
    let mut rig = rig(1);
    rig.handle(introduced());
    assert_eq!(said_of(&mut rig, b"get a\r\n"), "");
    assert_eq!(rig.send(b"verbosity 2\r\n"), b"OK\r\n");
    assert_eq!(said_of(&mut rig, b"get a\r\n"), "<28 get a\n>28 END\n");
    assert_eq!(rig.send(b"verbosity 0\r\n"), b"OK\r\n");
    assert_eq!(said_of(&mut rig, b"get a\r\n"), "");
}

#[test]
fn what_would_change_a_terminal_or_the_order_of_its_letters_is_written_out() {
    let mut rig = rig(2);
    rig.handle(introduced());
    let said = said_of(&mut rig, "get \u{9b}31m a\u{202e}b \u{e4}\r\n".as_bytes());
    assert!(said.contains("<28 get \\xc2\\x9b31m a\\xe2\\x80\\xaeb \u{e4}\n"), "{said}");
    let said = said_of(&mut rig, b"get a\x9bb\r\n");
    assert!(said.contains("<28 get a\\x9bb\n"), "{said}");
}

#[test]
fn what_comes_before_a_login_may_be_a_password() {
    let login = "letmein hunter2";
    for (request, length) in [
        ("add", login.len()),
        ("replace", login.len()),
        ("set", login.len()),
        ("set", 3),
        ("cas", 1),
        ("append", 0),
    ] {
        let mut rig = asking_for_a_login(2);
        rig.handle(introduced());
        let bytes = format!("{request} auth 0 0 {length}\r\n{login}\r\n{login}\r\n");
        let said = said_of(&mut rig, bytes.as_bytes());
        assert!(
            said.contains("<28 ") && !said.contains("hunter2") && !said.contains("letmein"),
            "{said}"
        );
    }
    for request in [
        format!("ms auth {}\r\n{login}\r\n", login.len()),
        format!("ms auth S3\r\n{login}\r\n"),
        format!("{login}\r\n"),
    ] {
        let mut rig = asking_for_a_login(2);
        rig.handle(introduced());
        let said = said_of(&mut rig, request.as_bytes());
        assert!(!said.contains("hunter2") && said.contains("(not told before a login)"), "{said}");
    }
}
