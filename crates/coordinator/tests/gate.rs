//! Who is let in: not a web page in the browser of somebody who gets to the coordinator, and not more bodies than there is room for.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mbal_coordinator::{Autoscale, Config, Running, Settings, StateIn, start};

const TOKEN: &str = "0123456789abcdef";
const PATIENCE: Duration = Duration::from_secs(30);

struct Coordinator {
    running: Option<Running>,
    folder: PathBuf,
}

impl Coordinator {
    fn start(test: &str, token: Option<&str>) -> Coordinator {
        let folder = std::env::temp_dir().join(format!("mbal-gate-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the system's folder can be written");
        let config = Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            state: StateIn::File(folder.join("state.json")),
            settings: Settings { servers_first: 1, ..Settings::default() },
            token: token.map(str::to_owned),
            allow_hosts: vec!["cache.example".into()],
            autoscale: Autoscale::default(),
            says_each_move: false,
        };
        let running = start(config, Box::new(|_| {})).expect("it starts");
        Coordinator { running: Some(running), folder }
    }

    fn connect(&self) -> TcpStream {
        let address = self.running.as_ref().expect("it runs").address;
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        stream
    }

    /// Status and body of what comes of a request whose lines these are.
    fn ask(&self, lines: &[&str], body: &str) -> (u16, String) {
        let mut stream = self.connect();
        let head = format!("{}\r\nConnection: close\r\n\r\n{body}", lines.join("\r\n"));
        stream.write_all(head.as_bytes()).expect("it is taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it is text");
        let status = answer.get(9..12).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("{lines:?}: {answer:?}")), answer)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        drop(self.running.take());
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

const JSON: &str = "Content-Type: application/json";
const TEXT: &str = "Content-Type: text/plain";
const FORM: &str = "Content-Type: application/x-www-form-urlencoded";
const EVIL: &str = "Origin: http://evil.example";

#[test]
fn what_a_web_page_may_have_sent_is_not_obeyed() {
    let coordinator = Coordinator::start("pages", None);
    let host = format!("Host: {}", coordinator.running.as_ref().expect("it runs").address);
    let own = format!("Origin: http://{}", host.trim_start_matches("Host: "));
    let host = host.as_str();
    let cases: [(&str, &[&str], &str, u16); 32] = [
        // As servers and tools call.
        ("PUT /v1/balance", &[host, JSON], r#"{"mode":"on"}"#, 200),
        (
            "PUT /v1/balance",
            &[host, "content-type: application/json;charset=utf-8"],
            r#"{"mode":"on"}"#,
            200,
        ),
        ("DELETE /v1/scale", &[host], "", 404),
        ("POST /v1/servers/7/lost", &[host], "", 404),
        ("GET /v1/status", &[host], "", 200),
        ("GET /v1/status", &["Host: localhost:9"], "", 200),
        ("GET /v1/status", &["Host: coordinator:11210"], "", 200),
        ("GET /v1/status", &["Host: Cache.example:11210"], "", 200),
        // A page of its own, without a token.
        ("PUT /v1/balance", &[host, &own, JSON], r#"{"mode":"on"}"#, 401),
        ("PUT /v1/balance", &[host, "Sec-Fetch-Site: same-origin", JSON], r#"{"mode":"on"}"#, 401),
        ("GET /v1/status", &[host, &own, "Sec-Fetch-Site: same-origin"], "", 200),
        ("GET /v1/status", &[host, "Sec-Fetch-Site: cross-site"], "", 403),
        ("GET /v1/live", &[host, "Sec-Fetch-Site: same-site"], "", 403),
        ("GET /", &[host, "Sec-Fetch-Site: cross-site"], "", 200),
        ("GET /", &["Host: evil.example:11210"], "", 403),
        ("DELETE /v1/scale", &[host, "Sec-Fetch-Site: cross-site"], "", 403),
        // fetch(..., {mode: "no-cors"}), a form, and a fetch without a body.
        ("POST /v1/servers/7/lost", &[host, EVIL, TEXT], "{}", 403),
        ("POST /v1/servers/7/lost", &[host, TEXT], "{}", 415),
        ("POST /v1/servers/7/lost", &[host, FORM], "{}", 415),
        ("POST /v1/servers/7/lost", &[host, FORM], "", 415),
        ("POST /v1/servers/7/lost", &[host, EVIL], "", 403),
        ("POST /v1/servers/7/lost", &[host, "Origin: null"], "", 403),
        ("POST /v1/scale", &[host, EVIL, JSON], r#"{"servers":1}"#, 403),
        ("PUT /v1/balance", &[host], r#"{"mode":"on"}"#, 415),
        ("OPTIONS /v1/balance", &[host, EVIL], "", 403),
        ("GET /v1/status", &[host, EVIL], "", 403),
        // A name of the page's own that was made to point here.
        ("GET /v1/status", &["Host: evil.example:11210"], "", 403),
        ("GET /v1/hotkeys", &["Host: 127.0.0.1.evil.example"], "", 403),
        ("GET /metrics", &["Host: evil.example:11210"], "", 403),
        (
            "POST /v1/servers/7/lost",
            &["Host: evil.example:11210", "Origin: http://evil.example:11210", JSON],
            "{}",
            403,
        ),
        ("GET http://evil.example/v1/status", &[host], "", 403),
        ("GET /v1/status", &[host, "Host: evil.example"], "", 400),
    ];
    for (call, headers, body, status) in cases {
        let (line, length) =
            (format!("{call} HTTP/1.1"), format!("Content-Length: {}", body.len()));
        let lines: Vec<&str> = [line.as_str(), &length].iter().chain(headers).copied().collect();
        let (answered, told) = coordinator.ask(&lines, body);
        assert_eq!(answered, status, "{call} {headers:?}: {told}");
    }
    let (_, told) = coordinator.ask(&["GET /v1/status HTTP/1.1", "Host: evil.example:11210"], "");
    assert!(
        told.contains("evil.example:11210 is no name") && told.contains("--allow-host"),
        "{told}"
    );
}

#[test]
fn who_brings_the_token_may_call_it_by_any_name() {
    let coordinator = Coordinator::start("token", Some(TOKEN));
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let (bearer, other) = (bearer.as_str(), "Host: c1.cache.svc.cluster.local:11210");
    let own: &[&str] = &[
        "Host: localhost:11210",
        "Origin: http://localhost:11210",
        "Sec-Fetch-Site: same-origin",
        bearer,
    ];
    let cases: [(&str, &[&str], u16); 9] = [
        ("DELETE /v1/scale", own, 404),
        ("DELETE /v1/scale", &own[..3], 401),
        ("GET /v1/leads", &[other, bearer], 200),
        ("DELETE /v1/scale", &[other, bearer], 404),
        ("DELETE /v1/scale", &[other, bearer, EVIL], 403),
        ("GET /v1/leads", &[other], 403),
        ("GET /v1/leads", &[other, "Authorization: Bearer 0123456789abcdeF"], 403),
        ("DELETE /v1/scale", &["Host: localhost"], 401),
        ("GET /v1/status", &["Host: localhost"], 200),
    ];
    for (call, headers, status) in cases {
        let line = format!("{call} HTTP/1.1");
        let lines: Vec<&str> = [line.as_str()].iter().chain(headers).copied().collect();
        let (answered, told) = coordinator.ask(&lines, "");
        assert_eq!(answered, status, "{call} {headers:?}: {told}");
    }
    // Who has no token does not have 4 MiB taken from him.
    let head = ["POST /v1/servers HTTP/1.1", "Host: localhost", JSON, "Content-Length: 4000000"];
    assert_eq!(coordinator.ask(&head, "").0, 401, "before the body has come");
}

/// A dry run of a scaling, and nothing else, needs no token. There is no map yet, which is the driver's answer.
#[test]
fn who_has_no_token_may_ask_what_a_scaling_would_do() {
    let coordinator = Coordinator::start("dry", Some(TOKEN));
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let long = format!(r#"{{"servers":1,"dry_run":true{}}}"#, " ".repeat(64 << 10));
    let cases: [(&str, &[&str], &str, u16); 9] = [
        ("POST /v1/scale", &[JSON], r#"{"servers":1,"dry_run":true}"#, 409),
        ("POST /v1/scale", &[JSON], r#"{"servers":1,"dry_run":false}"#, 401),
        ("POST /v1/scale", &[JSON], r#"{"servers":1}"#, 401),
        ("POST /v1/scale", &[JSON, &bearer], r#"{"servers":1}"#, 409),
        ("POST /v1/scale", &[JSON, EVIL], r#"{"servers":1,"dry_run":true}"#, 403),
        ("POST /v1/scale", &[TEXT], r#"{"servers":1,"dry_run":true}"#, 415),
        ("POST /v1/scale", &[JSON], &long, 413),
        ("DELETE /v1/scale", &[JSON], r#"{"dry_run":true}"#, 401),
        ("PUT /v1/balance", &[JSON], r#"{"mode":"on","dry_run":true}"#, 401),
    ];
    for (call, headers, body, status) in cases {
        let line = format!("{call} HTTP/1.1");
        let length = format!("Content-Length: {}", body.len());
        let always = [line.as_str(), "Host: localhost", &length];
        let lines: Vec<&str> = always.iter().chain(headers).copied().collect();
        let (answered, told) = coordinator.ask(&lines, body);
        assert_eq!(answered, status, "{call} {headers:?}: {told}");
    }
}

#[test]
fn bodies_that_do_not_come_have_a_bound_and_keep_no_heartbeat_waiting() {
    let coordinator = Coordinator::start("bodies", None);
    let begun: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = coordinator.connect();
            let head = format!("POST /v1/servers HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 4000000\r\n\r\n");
            stream.write_all(head.as_bytes()).expect("it is taken");
            stream
        })
        .collect();
    let begins = Instant::now();
    let head = ["PUT /v1/balance HTTP/1.1", "Host: localhost", JSON, "Content-Length: 13"];
    assert_eq!(coordinator.ask(&head, r#"{"mode":"on"}"#).0, 200);
    assert!(begins.elapsed() < Duration::from_secs(8), "it did not wait for them");
    let answers = begun.into_iter().map(|mut stream| {
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("it is answered");
        String::from_utf8_lossy(&status).into_owned()
    });
    let mut answers: Vec<String> = answers.collect();
    answers.sort();
    let (late, refused) = (["HTTP/1.1 408"; 8], ["HTTP/1.1 503"; 32]);
    assert_eq!(answers, [&late[..], &refused].concat(), "there is room for eight");
}
