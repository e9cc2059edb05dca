//! The page over real sockets: what a browser loads, what it is sent, and what becomes of who reads slowly or asks for nonsense.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mbal_coordinator::{Autoscale, Config, Running, Settings, StateIn, start};
use mbal_webpage::{ASSETS, VIEWERS_MAX};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

struct Coordinator {
    running: Option<Running>,
    folder: PathBuf,
}

impl Coordinator {
    fn start(test: &str, servers: usize, token: Option<&str>) -> Coordinator {
        let folder = std::env::temp_dir().join(format!("mbal-page-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the system's folder can be written");
        let config = Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            state: StateIn::File(folder.join("state.json")),
            settings: Settings {
                cluster: "shop".into(),
                servers_first: servers,
                epoch: Duration::from_secs(30),
                ..Settings::default()
            },
            token: token.map(str::to_owned),
            allow_hosts: Vec::new(),
            autoscale: Autoscale::default(),
            says_each_move: false,
        };
        let running = start(config, Box::new(|_| {})).expect("it starts");
        Coordinator { running: Some(running), folder }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.running.as_ref().expect("it runs").address)
    }

    fn post(&self, path: &str, body: Value) -> Value {
        let answer = ureq::post(&self.url(path)).send_json(body);
        answer.expect("it is taken").into_json().expect("it is JSON")
    }

    /// Status, and what was said.
    fn get(&self, path: &str) -> (u16, Value) {
        let response = match ureq::get(&self.url(path)).call() {
            Ok(response) | Err(ureq::Error::Status(_, response)) => response,
            Err(error) => panic!("{path}: {error}"),
        };
        let status = response.status();
        let text = response.into_string().expect("it is text");
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    fn registered(&self, host: u16) -> Value {
        self.post(
            "/v1/servers",
            json!({ "incarnation": format!("{host:016x}"), "cluster": "shop",
                "client": format!("10.0.{}.{}:11211", host / 256, host % 256),
                "link": format!("10.0.{}.{}:11311", host / 256, host % 256),
                "workers": ["10.0.0.1:1", "10.0.0.1:2"], "memory_bytes": 1u64 << 30 }),
        )
    }

    fn beats(&self, host: u16, more: Value) {
        let mut beat = json!({ "incarnation": format!("{host:016x}"), "map_version": 1 });
        let fields = more.as_object().expect("an object").clone();
        beat.as_object_mut().expect("an object").extend(fields);
        self.post(&format!("/v1/servers/{host}/heartbeat"), beat);
    }

    fn watch(&self) -> Watching {
        let address = self.running.as_ref().expect("it runs").address;
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let head = format!("GET /v1/live HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("it is taken");
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(lines.read_line(&mut head).expect("it is text") > 0, "{head}");
        }
        Watching { lines, head }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        drop(self.running.take());
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

struct Watching {
    lines: BufReader<TcpStream>,
    head: String,
}

impl Watching {
    fn frame(&mut self) -> (String, Value) {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).expect("it goes on") > 0, "it has ended");
            if let Some(data) = line.strip_prefix("data: ") {
                let frame = serde_json::from_str(data).expect("one line is JSON");
                return (line, frame);
            }
        }
    }

    fn frame_with(&mut self, what: &str, holds: impl Fn(&Value) -> bool) -> (String, Value) {
        let until = Instant::now() + PATIENCE;
        loop {
            let (line, frame) = self.frame();
            if holds(&frame) {
                return (line, frame);
            }
            assert!(Instant::now() < until, "never: {what}: {line}");
        }
    }
}

#[test]
fn every_file_comes_with_rules_and_nothing_else_is_loaded() {
    let coordinator = Coordinator::start("files", 1, None);
    for asset in &ASSETS {
        let response = ureq::get(&coordinator.url(asset.path)).call().expect(asset.path);
        let policy = response.header("content-security-policy").expect("there are rules");
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(rule), "{}: {policy}", asset.path);
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(response.header("content-type"), Some(asset.content_type));
        let mut bytes = Vec::new();
        response.into_reader().read_to_end(&mut bytes).expect("it comes whole");
        assert_eq!(bytes, asset.bytes, "{}", asset.path);
    }
    assert_eq!(coordinator.get("/page.jss").0, 404);
    assert_eq!(coordinator.get("/uplot/LICENSE").0, 404);
}

#[test]
fn a_frame_says_what_the_api_says_and_how_busy_each_worker_is() {
    let coordinator = Coordinator::start("frames", 2, Some("0123456789abcdef"));
    let mut early = coordinator.watch();
    assert!(early.head.contains("content-type: text/event-stream\r\n"), "{}", early.head);
    let (_, frame) = early.frame_with("nobody has come", |frame| frame["trouble"].is_null());
    assert_eq!(
        (&frame["shown"]["status"]["waits_for"], &frame["can_change"]),
        (&json!(2), &json!(true))
    );
    drop(coordinator);

    let coordinator = Coordinator::start("frames", 2, None);
    for host in [1, 2] {
        coordinator.registered(host);
    }
    let worker = |load: f64, reads: u64| json!({ "fixed": load, "reads": reads, "hits": reads / 2, "writes": 0 });
    let key = |name: &str, reads: f64| json!({ "key": name, "reads": reads, "writes": 1.0, "value_bytes": 100, "copied_ms": 0 });
    coordinator.beats(
        1,
        json!({ "workers": [worker(0.9, 300), worker(0.1, 100)], "requests": 4000.0,
            "hot": [key("<img%20src=x>", 3000.0), key("b", 50.0)],
            "vitals": { "used_bytes": 1000, "latency_ns": [[1000, 98], [5000, 2]] } }),
    );
    // Of an older version, which tells nothing of how fast it is.
    coordinator
        .beats(2, json!({ "workers": [worker(0.2, 10), worker(0.2, 10)], "requests": 20.0 }));
    let mut watching = coordinator.watch();
    let (_, frame) = watching.frame_with("both were heard", |frame| {
        frame["shown"]["servers"].as_array().is_some_and(|servers| servers.len() == 2)
    });
    let (_, mut status) = coordinator.get("/v1/status");
    let (_, hot) = coordinator.get("/v1/hotkeys");
    let mut shown = frame["shown"].clone();
    for one in [&mut status, &mut shown["status"]] {
        one["servers"]
            .as_array_mut()
            .expect("a list")
            .iter_mut()
            .for_each(|server| server["silent_ms"] = json!(0));
    }
    assert_eq!(shown["status"], status);
    assert_eq!(shown["hot"], hot);
    let first = &shown["servers"][0];
    assert_eq!((&first["load"], &first["rate"]), (&json!([900, 100]), &json!([3000, 1000])));
    assert_eq!(
        (&first["hits"], &first["p50"], &first["p99"]),
        (&json!(2000), &json!(1000), &json!(5000))
    );
    let point = &frame["point"];
    assert_eq!((&point["reads"], &point["hits"]), (&json!(4020), &json!(2010)));
    assert_eq!((&point["load_max"], &point["load_mean"]), (&json!(0.9), &json!(0.35)));
    assert_eq!(frame["can_change"], false, "there is no token");
    let (_, history) = coordinator.get("/v1/history?seconds=600");
    assert!(history["load_max"].as_array().expect("a column").contains(&json!(0.9)), "{history}");
    let (_, found) = coordinator.get("/v1/where?what=%3Cimg%20src%3Dx%3E");
    assert_eq!(found["key"], "<img%20src=x>", "bytes that are not printed, as hot keys have them");
}

#[test]
fn ten_thousand_hot_keys_make_no_frame_longer() {
    let coordinator = Coordinator::start("hot", 4, None);
    for host in 1..=4 {
        coordinator.registered(host);
    }
    let key = |at: usize| json!({ "key": format!("k{at}"), "reads": at as f64, "writes": 0.0 });
    for host in 1..=4u16 {
        let keys: Vec<Value> = (0..2500).map(key).collect();
        coordinator.beats(host, json!({ "workers": [{ "fixed": 0.1 }], "hot": keys }));
    }
    let mut watching = coordinator.watch();
    let (line, frame) =
        watching.frame_with("all were heard", |frame| frame["shown"]["hot_all"] == 128);
    assert_eq!(frame["shown"]["hot"]["keys"].as_array().map(Vec::len), Some(64));
    assert_eq!(frame["shown"]["hot"]["keys"][0]["key"], "k2499");
    assert!(line.len() < 32 << 10, "{}", line.len());
}

#[test]
fn all_viewers_see_the_same_frames_and_one_too_many_is_told_so() {
    let coordinator = Coordinator::start("viewers", 1, None);
    let mut watching: Vec<Watching> = (0..VIEWERS_MAX).map(|_| coordinator.watch()).collect();
    assert_eq!(coordinator.get("/v1/live").0, 503);
    // One that reads nothing keeps nobody waiting.
    let _slow = watching.pop();
    let mut others = watching.drain(..2);
    let (mut one, mut other) = (others.next().expect("one"), others.next().expect("another"));
    drop(others);
    let number = |frame: &(String, Value)| frame.1["number"].as_u64().expect("a number");
    let (mut first, mut second) = (one.frame(), other.frame());
    // Each may miss frames, and they may be different ones.
    while number(&first) != number(&second) {
        match number(&first) < number(&second) {
            true => first = one.frame(),
            false => second = other.frame(),
        }
    }
    assert_eq!(first.0, second.0, "made once");
    drop((one, other));
    drop(watching);
    let until = Instant::now() + PATIENCE;
    // Who has gone gives his place back with the next frame.
    loop {
        let head = coordinator.watch().head;
        if head.starts_with("HTTP/1.1 200") {
            break;
        }
        assert!(Instant::now() < until, "{head}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn nonsense_is_refused_in_words() {
    let coordinator = Coordinator::start("nonsense", 1, None);
    coordinator.registered(1);
    for (path, status, words) in [
        ("/v1/history?seconds=x", 400, "a number"),
        ("/v1/history?seconds=-1", 400, "a number"),
        ("/v1/history?seconds=99999999999999999999", 400, "a number"),
        ("/v1/where", 400, "1 to 250 bytes"),
        ("/v1/where?what=", 400, "1 to 250 bytes"),
    ] {
        let (answered, told) = coordinator.get(path);
        let told = told["error"].as_str().expect("why not").to_owned();
        assert!(answered == status && told.contains(words), "{path}: {answered} {told}");
    }
    let long = format!("/v1/where?what={}", "k".repeat(251));
    assert_eq!(coordinator.get(&long).0, 400);
    // Bytes that are no text are a key like others.
    let (status, found) = coordinator.get("/v1/where?what=%25FF%2500");
    assert_eq!((status, &found["key"]), (200, &json!("%FF%00")));
    assert_eq!(coordinator.get("/v1/history").1["seconds"], 600);
}
