//! The classic commands (protocol.txt, "Storage commands" and on).

use crate::rig::Rig;

#[track_caller]
fn check(table: &[(&str, &str)]) {
    let mut rig = Rig::new();
    for (input, replies) in table {
        rig.check(input, replies);
    }
}

#[test]
fn storage_commands_hold_to_their_conditions() {
    check(&[
        ("replace k 0 0 1\r\nr\r\n", "NOT_STORED\r\n"),
        ("append k 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("cas k 0 0 1 1\r\nx\r\n", "NOT_FOUND\r\n"),
        ("add k 5 0 1\r\nb\r\n", "STORED\r\n"),
        ("add k 0 0 1\r\nc\r\n", "NOT_STORED\r\n"),
        ("append k 9 9 2\r\ncd\r\n", "STORED\r\n"),
        ("prepend k 9 9 1\r\na\r\n", "STORED\r\n"),
        ("get k\r\n", "VALUE k 5 4\r\nabcd\r\nEND\r\n"),
        ("gets k\r\n", "VALUE k 5 4 3\r\nabcd\r\nEND\r\n"),
        ("cas k 0 0 1 0\r\nx\r\n", "EXISTS\r\n"),
        ("cas k 0 0 1 2\r\nx\r\n", "EXISTS\r\n"),
        ("cas k 0 0 1 3\r\nx\r\n", "STORED\r\n"),
        ("set k 0 0 0\r\n\r\n", "STORED\r\n"),
        ("get k k j\r\n", "VALUE k 0 0\r\n\r\nVALUE k 0 0\r\n\r\nEND\r\n"),
        ("delete k\r\ndelete k\r\n", "DELETED\r\nNOT_FOUND\r\n"),
    ]);
}

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";

#[test]
fn a_broken_line_is_answered_and_the_next_one_read() {
    check(&[
        ("\r\n", BAD_FORMAT),
        ("\n", BAD_FORMAT),
        ("a\r\n", BAD_FORMAT),
        ("mn\n", BAD_FORMAT),
        ("ab\r\n", "ERROR\r\n"),
        (" get a\r\n", "ERROR\r\n"),
        ("nosuch noreply\r\n", ""),
        ("get\r\n", BAD_FORMAT),
        ("get none  \r\n", "END\r\n"),
        ("get  \r\n", BAD_FORMAT),
        ("gat 1\r\n", BAD_FORMAT),
        ("gat x k\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("set k 0 0\r\n", BAD_FORMAT),
        ("set k x 0 1\r\nv\r\n", BAD_FORMAT),
        ("set k x 0 1 noreply\r\nv\r\n", ""),
        ("cas k 0 0 1\r\nv\r\n", BAD_FORMAT),
        ("set k 0 0 -1\r\n", BAD_FORMAT),
        ("set k 0 0 x noreply\r\n", BAD_FORMAT),
        ("set k 0 0 1\r\nabcde\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
        ("set k 0 0 1 noreply\r\nabcde\r\n", "ERROR\r\n"),
        ("delete k 1\r\n", "NOT_FOUND\r\n"),
        ("delete k 0 noreply\r\n", ""),
        ("touch k noreply\r\n", ""),
        ("get a\0b c\r\n", "END\r\n"),
        ("nosuch HTTP/\r\n", ""),
    ]);
}

#[test]
fn a_key_that_is_too_long_spoils_the_whole_get() {
    let (fits, long) = ("k".repeat(250), "k".repeat(251));
    let error = BAD_FORMAT;
    check(&[
        (&format!("set {fits} 0 0 1\r\nv\r\n"), "STORED\r\n"),
        (&format!("get {fits} {long}\r\n"), error),
        (&format!("get {fits}\r\n"), &format!("VALUE {fits} 0 1\r\nv\r\nEND\r\n")),
        (&format!("set {long} 0 0 1\r\nv\r\n"), error),
        (&format!("incr {long} 1\r\ntouch {long} 1\r\ndelete {long}\r\n"), &error.repeat(3)),
    ]);
}

#[test]
fn a_get_of_any_number_of_keys_answers_them_in_their_order() {
    let mut rig = Rig::new();
    (0..100)
        .step_by(2)
        .for_each(|key| rig.check(&format!("set {key} 0 0 1\r\nv\r\n"), "STORED\r\n"));
    for count in 1..70 {
        let keys: Vec<String> = (0..count).map(|key| (key * 7 % 100).to_string()).collect();
        let hits = keys.iter().filter(|key| key.parse::<u32>().expect("a number") % 2 == 0);
        let values: String = hits.map(|key| format!("VALUE {key} 0 1\r\nv\r\n")).collect();
        // However many blanks stand between the keys and behind them.
        rig.check(&format!("get {}\r\n", keys.join(" ")), &format!("{values}END\r\n"));
        rig.check(&format!("get {} \r\n", keys.join("  ")), &format!("{values}END\r\n"));
    }
}

#[test]
fn arithmetic_pads_in_place_and_grows_when_it_must() {
    check(&[
        ("set n 7 0 2\r\n10\r\n", "STORED\r\n"),
        ("decr n 1\r\n", "9\r\n"),
        ("get n\r\n", "VALUE n 7 2\r\n9 \r\nEND\r\n"),
        ("incr n 91\r\n", "100\r\n"),
        ("get n\r\n", "VALUE n 7 3\r\n100\r\nEND\r\n"),
        ("decr n 101\r\n", "0\r\n"),
        ("incr n 18446744073709551615\r\nincr n 2\r\n", "18446744073709551615\r\n1\r\n"),
        ("incr n x\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
        ("incr m 1\r\n", "NOT_FOUND\r\n"),
        ("set n 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("incr n 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
    ]);
}

#[test]
fn a_value_over_the_limit_is_swallowed_and_takes_the_old_one_along() {
    let mut rig = Rig::new();
    rig.check("set k 0 0 1\r\nv\r\nadd j 0 0 1\r\nv\r\n", "STORED\r\nSTORED\r\n");
    let value = "v".repeat(1 << 20);
    let error = "SERVER_ERROR object too large for cache\r\n";
    rig.check(&format!("set k 0 0 1048576\r\n{value}\r\nget k\r\n"), &format!("{error}END\r\n"));
    rig.check(&format!("append j 0 0 1048576\r\n{value}\r\n"), error);
    rig.check("get j\r\n", "VALUE j 0 1\r\nv\r\nEND\r\n");
}

#[test]
fn items_live_to_their_exptime() {
    let mut rig = Rig::new();
    rig.check("set k 0 10 1\r\nv\r\nset dead 0 -1 1\r\nv\r\n", "STORED\r\nSTORED\r\n");
    rig.check("get dead\r\ntouch k 20\r\n", "END\r\nTOUCHED\r\n");
    rig.now.second += 19;
    rig.check("gat 5 k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    rig.now.second += 5;
    rig.check("get k\r\ntouch k 0\r\n", "END\r\nNOT_FOUND\r\n");
}
