//! What a server tells of itself, in all ways, after the same requests.

mod board;
mod json;
mod reaching;
#[path = "../running/mod.rs"]
mod running;
mod served;
mod terminal;
mod watched;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use json::{number, read, text};
use running::{MBAL, eventually};
use served::Served;

/// The sum over all lines of a family that have these labels.
fn sum(page: &str, family: &str, labels: &[&str]) -> u64 {
    let lines = page.lines().filter(|line| {
        line.strip_prefix(family).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    });
    let values: Vec<u64> =
        lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(!values.is_empty(), "no {family} {labels:?} in {page}");
    values.iter().sum()
}

/// On three workers: sets, hits and misses, one of everything that is counted.
fn known_sequence(server: &Served) {
    for conn in 0..4 {
        let mut request = String::new();
        for key in 0..5 {
            request += &format!("set k{conn}{key} 0 0 5\r\nvalue\r\nget k{conn}{key} none\r\n");
        }
        request += "set n 0 0 1\r\n1\r\nincr n 1\r\ndecr none 1\r\ntouch n 0\r\ntouch none 0\r\n";
        request += "delete none\r\ncas n 0 0 1 1\r\nx\r\nms m 1\r\nv\r\nmg m v\r\nmn\r\n";
        server.ask(&(request + "quit\r\n"));
    }
}

#[test]
fn metrics_and_stats_agree() {
    let server = Served::start("agree", &["-t", "3"]);
    known_sequence(&server);
    let counts = [("get", 44), ("set", 32), ("touch", 8), ("delete", 4), ("arithmetic", 8)];
    // So few wake-ups are timed all, each a moment after its last reply was sent.
    eventually("all wake-ups are timed", || {
        let latency = server.stats("stats latency");
        counts.iter().all(|(class, count)| latency[&format!("{class}:count")] == count.to_string())
    });
    let page = server.page();
    let stats = server.stats("stats");
    for (name, family, labels) in [
        ("cmd_get", "mbal_commands_total", "command=\"get\""),
        ("cmd_set", "mbal_commands_total", "command=\"set\""),
        ("cmd_touch", "mbal_commands_total", "command=\"touch\""),
        ("cmd_meta", "mbal_commands_total", "command=\"meta\""),
        ("get_hits", "mbal_lookups_total", "command=\"get\",result=\"hit\""),
        ("get_misses", "mbal_lookups_total", "command=\"get\",result=\"miss\""),
        ("incr_hits", "mbal_lookups_total", "command=\"incr\",result=\"hit\""),
        ("decr_misses", "mbal_lookups_total", "command=\"decr\",result=\"miss\""),
        ("touch_hits", "mbal_lookups_total", "command=\"touch\",result=\"hit\""),
        ("touch_misses", "mbal_lookups_total", "command=\"touch\",result=\"miss\""),
        ("delete_misses", "mbal_lookups_total", "command=\"delete\",result=\"miss\""),
        ("cas_badval", "mbal_lookups_total", "command=\"cas\",result=\"changed\""),
        ("curr_items", "mbal_items", ""),
        ("bytes", "mbal_items_bytes", ""),
        ("total_items", "mbal_items_stored_total", ""),
        ("limit_maxbytes", "mbal_memory_limit_bytes", ""),
        ("limit_maxbytes", "mbal_memory_bytes", ""),
        ("evictions", "mbal_items_gone_total", "cause=\"evicted\""),
    ] {
        assert_eq!(stats[name], sum(&page, family, &[labels]).to_string(), "{name}");
    }
    let counted = ["cmd_get", "get_hits", "cmd_set", "cmd_touch", "delete_misses"];
    assert_eq!(counted.map(|name| stats[name].as_str()), ["44", "24", "32", "8", "4"]);
    let top = Command::new(MBAL)
        .args(["top", &format!("127.0.0.1:{}", server.port), "--once", "--json"])
        .output()
        .unwrap();
    let told = String::from_utf8(top.stdout).unwrap();
    for name in ["cmd_get", "cmd_set", "get_hits", "get_misses", "delete_misses", "evictions"] {
        let field = format!("\"{name}\":{}", stats[name]);
        assert!(told.contains(&field), "{field} in {told}");
    }
    let timed: u64 = counts.iter().map(|(_, count)| count).sum();
    assert!(told.ends_with(&format!("\"timed\":{timed}}}\n")), "{timed} in {told}");
    for (class, count) in counts {
        let label = format!("class=\"{class}\"");
        let told = sum(&page, "mbal_request_duration_seconds_count", &[&label]);
        let most = sum(&page, "mbal_request_duration_seconds_bucket", &[&label, "le=\"+Inf\""]);
        assert_eq!((told, most), (count, count), "{class}");
    }
}

#[test]
fn the_balancers_decisions_loans_and_connections_are_counted() {
    let server = Served::start("balancer", &["-t", "2"]);
    let page = server.page();
    let decisions = |page: &str, labels| sum(page, "mbal_balancer_decisions_total", &[labels]);
    assert_eq!((decisions(&page, "cause"), sum(&page, "mbal_balancer_loans", &[])), (0, 0));
    let address = format!("127.0.0.1:{}", server.port);
    let moved =
        Command::new(MBAL).args(["cluster", "move", "1800/5", "1", &address]).output().unwrap();
    assert!(moved.status.success(), "{moved:?}");
    eventually("the loan is counted", || {
        let page = server.page();
        let operator = decisions(&page, "cause=\"operator\",verdict=\"ordered\"");
        (operator, decisions(&page, "cause"), sum(&page, "mbal_balancer_loans", &[])) == (1, 1, 1)
    });
    // Whose connections go to and fro by chance.
    let server = Served::start("handed-over", &["-t", "2", "--chaos", "1000"]);
    let _idle: Vec<TcpStream> = (0..4).map(|_| server.connect()).collect();
    eventually("connections are handed over", || {
        let page = server.page();
        let of = |worker| sum(&page, "mbal_connections_handed_over_total", &[worker]);
        of("worker=\"0\"") > 0 && of("worker=\"1\"") > 0
    });
}

#[test]
fn resident_memory_is_told_as_it_grows() {
    let server = Served::start("resident", &["-t", "1", "-m", "128"]);
    let resident = || sum(&server.page(), "process_resident_memory_bytes", &[]);
    let before = resident();
    let value = "v".repeat(1_000_000);
    (0..30)
        .for_each(|key| drop(server.ask(&format!("set {key} 0 0 1000000\r\n{value}\r\nquit\r\n"))));
    let grown = resident() - before;
    assert!((25 << 20..60 << 20).contains(&grown), "{before} and {grown} more");
}

/// The part of a JSON object's text behind a name.
fn part<'a>(json: &'a str, name: &str) -> &'a str {
    json.split_once(&format!("\"{name}\":")).expect(name).1
}

#[test]
fn top_shows_the_hottest_key_and_its_cachelet() {
    // Every request is looked at, so nothing is left to chance.
    let server = Served::start("hottest", &["-t", "2", "--hot-sample", "1"]);
    let mut stream = server.connect();
    let address = format!("127.0.0.1:{}", server.port);
    let request =
        "get cold1\r\nget cold2\r\nset hot:1 0 0 1\r\nx\r\nget cold3\r\nset hot:1 0 0 1\r\nx\r\n";
    let mut reply = vec![0; "END\r\nEND\r\nSTORED\r\nEND\r\nSTORED\r\n".len()];
    // If this thread was kept waiting for longer than a second there is nothing to be seen: again, then.
    eventually("the hottest key is shown", || {
        let mut top = Command::new(MBAL)
            .args(["top", &address, "--once", "--json", "--interval", "0.3"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        while top.try_wait().unwrap().is_none() {
            stream.write_all(request.as_bytes()).unwrap();
            stream.read_exact(&mut reply).unwrap();
        }
        let told = String::from_utf8(top.wait_with_output().unwrap().stdout).unwrap();
        let hottest = part(&told, "cachelet").split('"').nth(1).unwrap();
        let items = server.stats("stats cachelets")[&format!("{hottest}:items")].clone();
        part(&told, "hottest_keys").starts_with("[{\"key\":\"hot:1\",") && items == "1"
    });
}

#[test]
fn top_ends_when_its_server_does() {
    let mut server = Served::start("lost", &["-t", "1"]);
    let address = format!("127.0.0.1:{}", server.port);
    let mut top = Command::new(MBAL)
        .args(["top", &address, "--json", "--interval", "0.1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut byte = [0];
    top.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let mut rest = String::new();
    top.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    let output = top.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with(&format!("mbal top: {address}: ")), "{said}");
}

#[test]
fn promtool_finds_nothing_to_complain_of() {
    let Ok(mut promtool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        eprintln!("SKIPPED, NOT TESTED: no promtool");
        return;
    };
    let server = Served::start("promtool", &["-t", "2"]);
    known_sequence(&server);
    promtool.stdin.take().unwrap().write_all(server.page().as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&said)), (Some(0), ""));
}

#[test]
fn scrapers_are_told_what_there_is() {
    let server = Served::start("scrapers", &["-t", "1"]);
    for (request, answer) in [
        ("GET /other HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
        ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
        ("HEAD /metrics HTTP/1.0\r\n\r\n", "HTTP/1.1 200 "),
        ("GET / HTTP/1.0\r\n\r\n", "HTTP/1.1 200 "),
        ("\r\n\r\n", "HTTP/1.1 405 "),
    ] {
        assert!(server.http(request).starts_with(answer), "{request:?}");
    }
    // One that says nothing, and one that says too much, do not keep the next one waiting for ever.
    let silent = TcpStream::connect(("127.0.0.1", server.metrics)).unwrap();
    let mut endless = TcpStream::connect(("127.0.0.1", server.metrics)).unwrap();
    drop(endless.write_all(&[b'x'; 100_000]));
    assert!(server.page().contains("mbal_info"));
    drop((silent, endless));
}

#[test]
fn what_is_said_can_be_an_object_a_line() {
    let mut server = Served::start("json", &["-t", "1", "-v", "--log-format", "json", "-n", "48"]);
    // It serves, so it has its signals.
    server.ask("quit\r\n");
    running::signal(&server.child, "TERM");
    let (_, said) = server.wait();
    let lines: Vec<&str> = said.lines().collect();
    for (line, event) in lines.iter().zip(["flag_without_effect", "started", "example", "stopped"])
    {
        let line = read(line);
        assert!(number(&line["time"]) > 1.7e9, "{line:?}");
        assert!(["info", "warning"].contains(&text(&line["level"])), "{line:?}");
        assert_eq!((text(&line["event"]), text(&line["text"]).is_empty()), (event, false));
    }
    assert_eq!(text(&read(lines[1])["pid"]), server.child.id().to_string());
    assert_eq!(lines.len(), 4, "{said}");
}
