//! The API over real sockets, with a state on a real disk.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mbal_control::Settings;
use mbal_control::api::HotMode;
use mbal_coordinator::{Autoscale, Config, OPENAPI, ROUTES, Running, StateIn, start};
use serde_json::{Value, json};

/// A folder of its own, gone with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "mbal-coordinator-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("the system's folder can be written");
        Folder(folder)
    }

    fn state(&self) -> PathBuf {
        self.0.join("shop.json")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn config(state: &Path) -> Config {
    let hot_keys = HotMode::Async;
    Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        state: StateIn::File(state.into()),
        settings: Settings {
            cluster: "shop".into(),
            servers_first: 1,
            hot_keys,
            ..Settings::default()
        },
        token: None,
        allow_hosts: Vec::new(),
        autoscale: Autoscale::default(),
        says_each_move: false,
    }
}

fn begin(config: Config) -> Running {
    start(config, Box::new(|_| {})).expect("it starts")
}

/// Method, path, body: status and what was said.
fn call(running: &Running, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    call_with(running, method, path, body, None)
}

fn call_with(
    running: &Running,
    method: &str,
    path: &str,
    body: Option<Value>,
    token: Option<&str>,
) -> (u16, Value) {
    let mut request = ureq::request(method, &format!("http://{}{path}", running.address));
    if let Some(token) = token {
        request = request.set("Authorization", &format!("Bearer {token}"));
    }
    let answer = match body {
        Some(body) => request.send_json(body),
        None => request.call(),
    };
    let response = match answer {
        Ok(response) | Err(ureq::Error::Status(_, response)) => response,
        Err(error) => panic!("{error}"),
    };
    let status = response.status();
    let text = response.into_string().expect("it is text");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

fn registration(host: u8) -> Value {
    json!({ "incarnation": format!("{host:016x}"), "cluster": "shop", "client": format!("10.0.0.{host}:11211"),
        "link": format!("10.0.0.{host}:11311"), "workers": [format!("10.0.0.{host}:11300")], "memory_bytes": 1u64 << 30 })
}

#[test]
fn a_server_registers_beats_and_leaves() {
    let folder = Folder::new();
    let running = begin(config(&folder.state()));
    let (status, registered) = call(&running, "POST", "/v1/servers", Some(registration(1)));
    assert_eq!(
        (status, &registered["id"], &registered["epoch_ms"]),
        (200, &json!(1), &json!(1000))
    );
    let map = registered["map"].as_str().expect("there is a map");
    assert!(
        map.starts_with(
            "cluster shop\nversion 1\nserver 1 link 10.0.0.1:11311 client 10.0.0.1:11211"
        ),
        "{map}"
    );
    assert_eq!(call(&running, "GET", "/v1/map", None), (200, Value::String(map.into())));
    let beat = json!({ "incarnation": format!("{:016x}", 1), "map_version": 1, "workers": [{ "fixed": 0.25 }] });
    let (status, news) = call(&running, "POST", "/v1/servers/1/heartbeat", Some(beat));
    let hot = json!({ "mode": "async", "lease_ms": 1000 });
    assert_eq!(registered["hot"], hot);
    assert_eq!(
        (status, news),
        (200, json!({ "balance": "on", "flush_number": 0, "moves_ever": 0, "hot": hot }))
    );
    let (_, told) = call(&running, "GET", "/v1/status", None);
    assert_eq!(
        (&told["servers"][0]["load"], &told["servers"][0]["state"]),
        (&json!(0.25), &json!("serving"))
    );
    let leaving = json!({ "incarnation": format!("{:016x}", 1) });
    assert_eq!(call(&running, "DELETE", "/v1/servers/1", Some(leaving)).0, 200);
    assert_eq!(call(&running, "GET", "/v1/status", None).1["servers"][0]["state"], "lost");
    let (_, events) = call(&running, "GET", "/v1/events", None);
    let texts: Vec<&str> = events["events"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["text"].as_str().unwrap())
        .collect();
    assert_eq!(
        texts,
        ["server 1 is dead", "the first map: 16 cachelets", "server 1 registers: 10.0.0.1:11211"]
    );
}

#[test]
fn bad_requests_are_told_what_is_wrong() {
    let folder = Folder::new();
    let running = begin(config(&folder.state()));
    call(&running, "POST", "/v1/servers", Some(registration(1)));
    let mut other = registration(2);
    other["cluster"] = json!("other");
    let short = json!({ "incarnation": "12", "cluster": "shop" });
    let cases = [
        ("GET", "/v1/nothing", None, 404, "openapi.json"),
        ("PUT", "/v1/map", None, 405, "openapi.json"),
        ("POST", "/v1/servers", Some(json!([1, 2])), 400, "invalid type"),
        ("POST", "/v1/servers", Some(short), 400, "16 hexadecimal digits"),
        ("POST", "/v1/servers", Some(other), 409, "this is cluster shop, not other"),
        ("POST", "/v1/servers/x/heartbeat", Some(json!({})), 400, "a number from 0 to 65534"),
        ("POST", "/v1/servers/9/heartbeat", Some(json!({})), 404, "no server 9"),
        ("POST", "/v1/servers/1/heartbeat", Some(json!({})), 409, "another process"),
        ("POST", "/v1/servers/9/lost", None, 404, "no server 9"),
        ("POST", "/v1/splits", None, 400, "missing field `prefix`"),
        ("POST", "/v1/splits", Some(json!({ "prefix": "2801/5" })), 400, "2801/5"),
        (
            "POST",
            "/v1/moves",
            Some(json!({ "prefix": "0000/4", "server": 1 })),
            409,
            "has 0000/4 already",
        ),
        ("DELETE", "/v1/moves/x", None, 400, "a number"),
        ("DELETE", "/v1/moves/7", None, 404, "no move 7"),
    ];
    for (method, path, body, status, why) in cases {
        let (answered, told) = call(&running, method, path, body);
        let error = told["error"].as_str().unwrap_or_default();
        assert!(answered == status && error.contains(why), "{method} {path}: {answered} {told}");
    }
    // By a socket: who is refused in the middle of writing may not get to the answer.
    let mut long = TcpStream::connect(running.address).expect("it listens");
    let head = format!(
        "POST /v1/servers HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        5 << 20
    );
    long.write_all(head.as_bytes()).expect("it is taken");
    let chunk = vec![b'x'; 64 << 10];
    while long.write_all(&chunk).is_ok() {}
    let mut said = [0; 12];
    long.read_exact(&mut said).expect("it answers");
    assert_eq!(&said, b"HTTP/1.1 413");
    let mut stranger = TcpStream::connect(running.address).expect("it listens");
    stranger.write_all(b"get key\r\n\0\xff garbage\r\n\r\n").expect("it is taken");
    let mut said = Vec::new();
    drop(stranger.read_to_end(&mut said));
    assert!(said.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&said));
    assert_eq!(call(&running, "GET", "/healthz", None).1, "ok\n");
}

#[test]
fn a_server_of_an_older_version_says_less_and_one_of_a_newer_version_more() {
    let folder = Folder::new();
    let running = begin(config(&folder.state()));
    let older = json!({
        "incarnation": "00000000000000aa", "cluster": "shop", "client": "10.0.0.7:1", "link": "10.0.0.7:2",
    });
    let (status, told) = call(&running, "POST", "/v1/servers", Some(older));
    assert_eq!(status, 200, "{told}");
    let id = told["id"].as_u64().expect("it is given one");
    let beat = json!({ "incarnation": "00000000000000aa", "mood": { "of": ["a", "newer"] } });
    let path = format!("/v1/servers/{id}/heartbeat");
    assert_eq!(call(&running, "POST", &path, Some(beat)).0, 200);
    let (status, told) = call(&running, "POST", &format!("/v1/servers/{id}/drain"), None);
    assert_eq!(status, 409, "it takes part in no moves");
    assert!(told["error"].as_str().is_some_and(|why| why.contains("cannot give cachelets")));
}

#[test]
fn hot_keys_of_a_heartbeat_are_told_and_t_comes_with_the_next_epoch() {
    let folder = Folder::new();
    let epoch = Duration::from_millis(10);
    let settings = Settings { servers_first: 2, epoch, ..config(&folder.state()).settings };
    let running = begin(Config { settings, ..config(&folder.state()) });
    for host in [1, 2] {
        call(&running, "POST", "/v1/servers", Some(registration(host)));
    }
    let beat = |host: u8, hot: Value| {
        let body = json!({ "incarnation": format!("{host:016x}"), "map_version": 1, "workers": [{}],
            "requests": 1000.0, "hot": hot });
        call(&running, "POST", &format!("/v1/servers/{host}/heartbeat"), Some(body))
    };
    let key = json!({ "key": "a%20b", "reads": 900.5, "writes": 2.0, "value_bytes": 10, "state": "hot",
        "copies": [2], "copied_ms": 5 });
    let threshold = || {
        let told = beat(1, json!([key])).1;
        beat(2, json!([]));
        told["hot"]["threshold"].as_f64()
    };
    let told = std::iter::repeat_with(threshold).take(10_000).flatten().next();
    let told = told.expect("epochs of 10 ms pass while this asks");
    // Half of its reads on each server is even; a little more than that is even enough.
    assert!((450.0..900.0).contains(&told), "{told}");
    let (status, told) = call(&running, "GET", "/v1/hotkeys", None);
    assert_eq!((status, &told["mode"], &told["copies"]), (200, &json!("async"), &json!(1)));
    let mut listed = key.clone();
    listed["server"] = json!(1);
    assert_eq!(told["keys"], json!([listed]));
    let (_, status) = call(&running, "GET", "/v1/status", None);
    assert_eq!(status["hot"]["copied"], 1);
    let page = call(&running, "GET", "/metrics", None).1;
    let page = page.as_str().expect("it is text");
    assert!(page.contains("mbal_coordinator_hot_keys 1\n"), "{page}");
    let unknown = json!([{ "key": "a", "state": "lukewarm" }]);
    let (status, told) = beat(1, unknown);
    assert_eq!(status, 400, "{told}");
    let many: Vec<Value> =
        (0..10_000).map(|at| json!({ "key": format!("k{at}"), "reads": at })).collect();
    assert_eq!(beat(1, json!(many)).0, 200, "its hottest count");
    let (_, told) = call(&running, "GET", "/v1/hotkeys", None);
    assert_eq!(told["keys"].as_array().map(Vec::len), Some(32));
}

#[test]
fn what_changes_something_needs_the_token() {
    let folder = Folder::new();
    let running = begin(Config { token: Some("a secret".into()), ..config(&folder.state()) });
    for token in [None, Some("a guess"), Some("")] {
        let (status, told) =
            call_with(&running, "POST", "/v1/servers", Some(registration(1)), token);
        assert_eq!(status, 401, "{told}");
    }
    assert_eq!(
        call_with(&running, "POST", "/v1/servers", Some(registration(1)), Some("a secret")).0,
        200
    );
    assert_eq!(call(&running, "GET", "/v1/status", None).0, 200, "reading is free");
}

#[test]
fn a_restart_knows_everything_but_what_was_heard() {
    let folder = Folder::new();
    let running = begin(config(&folder.state()));
    call(&running, "POST", "/v1/servers", Some(registration(1)));
    let map = call(&running, "GET", "/v1/map", None);
    let second =
        start(config(&folder.state()), Box::new(|_| {})).err().expect("the file is in use");
    assert!(second.contains("another coordinator uses it"), "{second}");
    drop(running);
    let running = begin(config(&folder.state()));
    assert_eq!(call(&running, "GET", "/v1/map", None), map);
    assert_eq!(call(&running, "GET", "/v1/status", None).1["servers"][0]["state"], "awaited");
}

#[test]
fn a_broken_or_foreign_state_is_refused_with_what_is_left() {
    let folder = Folder::new();
    let running = begin(config(&folder.state()));
    call(&running, "POST", "/v1/servers", Some(registration(1)));
    drop(running);
    let text = std::fs::read_to_string(folder.state()).expect("it was written");
    let refused =
        |config: Config| start(config, Box::new(|_| {})).err().expect("it does not start");
    let settings = Settings { cluster: "other".into(), ..Settings::default() };
    let why = refused(Config { settings, ..config(&folder.state()) });
    assert!(why.contains("the state is of cluster shop, not other"), "{why}");
    for broken in [&text[..text.len() / 2], "", "\u{fffd}", "{\"format\": 9}"] {
        std::fs::write(folder.state(), broken).expect("it can be written");
        let why = refused(config(&folder.state()));
        assert!(why.contains("shop.json.unreadable") && why.contains("shop.json.before"), "{why}");
        assert_eq!(
            std::fs::read_to_string(folder.state()).ok().as_deref(),
            Some(broken),
            "it is left as it is"
        );
    }
}

#[test]
fn what_cannot_be_saved_is_refused_and_did_not_happen() {
    let folder = Folder::new();
    let running = begin(config(&folder.state()));
    call(&running, "POST", "/v1/servers", Some(registration(1)));
    // A folder in the place of the new file: like a disk that is full, nothing can be written.
    let new = folder.0.join("shop.json.new");
    std::fs::create_dir(&new).expect("it can be made");
    let (status, told) =
        call(&running, "POST", "/v1/servers/1/lost", Some(json!({ "force": true })));
    assert_eq!(status, 503, "{told}");
    assert!(told["error"].as_str().is_some_and(|why| why.contains("cannot be saved")));
    assert_ne!(call(&running, "GET", "/v1/status", None).1["servers"][0]["state"], "lost");
    std::fs::remove_dir(&new).expect("it is empty");
    let lost = call(&running, "POST", "/v1/servers/1/lost", Some(json!({ "force": true })));
    assert_eq!(lost.0, 200);
}

#[test]
fn who_is_said_to_be_dead_by_name_is_nobody_who_came_later() {
    let folder = Folder::new();
    let running = begin(config(&folder.state()));
    call(&running, "POST", "/v1/servers", Some(registration(1)));
    let another = json!({ "incarnation": "00000000000000ff" });
    let (status, told) = call(&running, "POST", "/v1/servers/1/lost", Some(another));
    assert_eq!(status, 409, "{told}");
    let told = call(&running, "GET", "/v1/status", None).1;
    assert_ne!(told["servers"][0]["state"], "lost");
    let mut same = json!({ "incarnation": told["servers"][0]["incarnation"] });
    let (status, told) = call(&running, "POST", "/v1/servers/1/lost", Some(same.clone()));
    assert!(
        status == 409 && told["error"].as_str().is_some_and(|why| why.contains("it was heard")),
        "{told}"
    );
    same["force"] = json!(true);
    assert_eq!(call(&running, "POST", "/v1/servers/1/lost", Some(same)).0, 200);
    assert_eq!(call(&running, "GET", "/v1/status", None).1["servers"][0]["state"], "lost");
    let broken = json!({ "incarnation": 7 });
    assert_eq!(call(&running, "POST", "/v1/servers/1/lost", Some(broken)).0, 400);
}

#[test]
fn the_description_has_every_call() {
    let description: Value = serde_json::from_str(OPENAPI).expect("it is JSON");
    let paths = description["paths"].as_object().expect("paths");
    let mut described: Vec<(&str, &str)> = paths
        .iter()
        .flat_map(|(path, calls)| {
            calls.as_object().unwrap().keys().map(|method| (method.as_str(), path.as_str()))
        })
        .collect();
    let mut routes = ROUTES.to_vec();
    described.sort_unstable();
    routes.sort_unstable();
    assert_eq!(described, routes);
    let folder = Folder::new();
    let running = begin(config(&folder.state()));
    // A stream of frames has no end.
    for (method, path) in routes.into_iter().filter(|(_, path)| *path != "/v1/live") {
        let path = path.replace("{id}", "1").replace("{number}", "1");
        let (status, told) = call(&running, &method.to_uppercase(), &path, None);
        assert!(
            status != 405 && !told.to_string().contains("no such path"),
            "{method} {path}: {told}"
        );
    }
    assert_eq!(call(&running, "GET", "/openapi.json", None).1, description);
}

/// Two servers of a worker each; the first one is as busy as it is said to be.
fn beat(running: &Running, load: f64) {
    let map = call(running, "GET", "/v1/map", None).1;
    let map = map.as_str().expect("it is text");
    for host in [1, 2] {
        let own = format!(" {host}/0");
        let held =
            map.lines().filter_map(|line| line.strip_prefix("cachelet ")?.strip_suffix(&own));
        let load = if host == 1 { load } else { 0.1 };
        let count = held.clone().count() as f64;
        let cachelets =
            held.map(|prefix| json!({ "prefix": prefix, "load": load / count, "bytes": 5 << 20 }));
        let cachelets: Vec<Value> = cachelets.collect();
        let beat = json!({ "incarnation": format!("{host:016x}"), "map_version": 1, "helpless": true,
            "workers": [{ "fixed": 0.0, "cachelets": cachelets }] });
        let path = format!("/v1/servers/{host}/heartbeat");
        assert_eq!(call(running, "POST", &path, Some(beat)).0, 200);
    }
}

fn two_that_move(folder: &Folder) -> Running {
    let settings = Settings {
        servers_first: 2,
        epoch: std::time::Duration::from_millis(10),
        ..config(&folder.state()).settings
    };
    let running = begin(Config { settings, ..config(&folder.state()) });
    for host in [1, 2] {
        let mut registration = registration(host);
        registration["moves"] = json!(true);
        assert_eq!(call(&running, "POST", "/v1/servers", Some(registration)).0, 200);
    }
    running
}

fn eventually(running: &Running, load: f64, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        beat(running, load);
        let (_, status) = call(running, "GET", "/v1/status", None);
        if holds(&status) {
            return status;
        }
        assert!(std::time::Instant::now() < until, "never: {what}: {status}");
    }
}

fn said(running: &Running, what: &str) -> bool {
    let (_, events) = call(running, "GET", "/v1/events", None);
    let events = events["events"].as_array().expect("a list").clone();
    events.iter().any(|one| one["text"].as_str().is_some_and(|text| text.contains(what)))
}

#[test]
fn an_overloaded_server_is_helped_unless_operators_say_no() {
    let folder = Folder::new();
    let running = two_that_move(&folder);
    assert_eq!(call(&running, "PUT", "/v1/balance", Some(json!({ "mode": "dry-run" }))).0, 200);
    assert_eq!(call(&running, "PUT", "/v1/balance", Some(json!({ "mode": "fast" }))).0, 400);
    let status = eventually(&running, 0.9, "server 1 asks", |status| {
        status["balance"]["asking"] == json!([1])
    });
    assert_eq!((&status["balance"]["mode"], &status["moves"]), (&json!("dry-run"), &json!([])));
    assert!(said(&running, "would move"));
    assert_eq!(call(&running, "PUT", "/v1/balance", Some(json!({ "mode": "on" }))).0, 200);
    let status = eventually(&running, 0.9, "it is helped", |status| status["moves"] != json!([]));
    assert_eq!(
        status["moves"].as_array().map(Vec::len),
        Some(1),
        "it shows how long they take: {status}"
    );
    assert!(said(&running, "to lighten its worker; it has load 0.0"));
    let (_, page) = call(&running, "GET", "/metrics", None);
    let page = page.as_str().expect("it is text");
    for line in [
        "mbal_coordinator_map_version 1",
        "mbal_coordinator_moves 1",
        "mbal_coordinator_balance{mode=\"on\"} 1",
        "mbal_coordinator_planned_moves_total{why=\"overload\"} 1",
        "mbal_coordinator_servers_asking 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
}

#[test]
fn a_server_is_emptied_and_emptying_is_called_off() {
    let folder = Folder::new();
    let running = two_that_move(&folder);
    assert_eq!(call(&running, "POST", "/v1/servers/2/drain", None).0, 200);
    assert_eq!(call(&running, "POST", "/v1/servers/9/drain", None).0, 404);
    let status = eventually(&running, 0.1, "it gives", |status| {
        status["servers"][1]["state"] == "draining"
            && status["moves"].as_array().is_some_and(|moves| moves.len() == 4)
    });
    assert!(status["moves"].as_array().expect("a list").iter().all(|one| one["to"] == 1));
    assert_eq!(call(&running, "DELETE", "/v1/servers/2/drain", None).0, 200);
    eventually(&running, 0.1, "it serves", |status| status["servers"][1]["state"] == "serving");
    assert!(said(&running, "server 2 is not to be emptied any more"));
}
