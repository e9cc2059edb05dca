//! The autoscaler of a coordinator, with servers that only say how they are and a Kubernetes that only listens.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use mbal_control::Settings;
use mbal_coordinator::{Autoscale, Config, Machines, Running, StateIn, StatefulSet, start};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(30);
const EVERY: Duration = Duration::from_millis(100);
const SERVER_BYTES: u64 = 16_384 << 10;

/// A folder of its own, gone with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("mbal-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the system's folder can be written");
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Answers every request with this status; tells its first line, its headers and its body.
fn kubernetes(status: &'static str) -> (SocketAddr, Receiver<(String, Vec<String>, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it listens");
    let (told, heard) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.expect("a connection"));
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).expect("a line");
                match line.trim_end() {
                    "" => break,
                    line => lines.push(line.to_owned()),
                }
            }
            let length = lines.iter().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
            });
            let mut body = vec![0; length.unwrap_or(0)];
            stream.read_exact(&mut body).expect("a body");
            let said = r#"{"message":"statefulsets.apps is forbidden"}"#;
            let length = said.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{said}"
            );
            stream.get_mut().write_all(head.as_bytes()).expect("it reads");
            let body = String::from_utf8(body).expect("text");
            if told.send((lines.remove(0), lines, body)).is_err() {
                return;
            }
        }
    });
    (address, heard)
}

fn begin(folder: &Folder, machines: Machines) -> Running {
    let config = Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        state: StateIn::File(folder.0.join("mbal.json")),
        settings: Settings { servers_first: 2, ..Settings::default() },
        token: None,
        autoscale: Autoscale { machines, every: EVERY },
    };
    start(config, Box::new(|_| {})).expect("it starts")
}

fn call(running: &Running, method: &str, path: &str, body: Option<Value>) -> Value {
    let request = ureq::request(method, &format!("http://{}{path}", running.address));
    let answer = match body {
        Some(body) => request.send_json(body),
        None => request.call(),
    };
    let answer = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    serde_json::from_str(&answer.into_string().expect("text")).unwrap_or(Value::Null)
}

/// Half of what is read hits with a server's memory, and everything with four times that.
fn beat(running: &Running, since: Instant) {
    let reads = (since.elapsed().as_secs_f64() * 10_000.0) as u64;
    // 16 KiB, and four points for each doubling: the 41st is 16 MiB.
    let points: Vec<u64> =
        (0..49).map(|at: u64| if at < 41 { 12 * at } else { 500 + 63 * (at - 40) }).collect();
    for id in [1, 2] {
        let curve = json!({"reads": reads, "hits": reads / 2, "counted": 1000, "points": points});
        let path = format!("/v1/servers/{id}/heartbeat");
        let incarnation = format!("{id:016x}");
        call(
            running,
            "POST",
            &path,
            Some(json!({"incarnation": incarnation, "map_version": 1, "curve": curve})),
        );
    }
}

fn register(running: &Running) {
    for id in [1, 2] {
        let registration = json!({
            "id": id, "incarnation": format!("{id:016x}"), "cluster": "mbal", "moves": true,
            "client": format!("mbal-{}.mbal:11211", id - 1), "link": format!("mbal-{id}.mbal:11311"),
            "workers": [format!("mbal-{id}.mbal:11411")], "memory_bytes": SERVER_BYTES,
        });
        call(running, "POST", "/v1/servers", Some(registration));
    }
}

/// Servers say how they are until this is so.
fn until<T>(running: &Running, since: Instant, mut is: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WITHIN;
    while Instant::now() < end {
        beat(running, since);
        if let Some(found) = is() {
            return found;
        }
        thread::sleep(EVERY / 2);
    }
    panic!("it is not so: {}", call(running, "GET", "/v1/autoscale", None));
}

#[test]
fn servers_that_are_wanted_are_asked_of_kubernetes_with_the_pod_s_token() {
    let folder = Folder::new("statefulset");
    std::fs::write(folder.0.join("token"), "t0ken\n").expect("it can be written");
    let (address, heard) = kubernetes("200 OK");
    let set = StatefulSet::at(&format!("http://{address}"), "cache/mbal", Some(&folder.0));
    let running = begin(&folder, Machines::Kubernetes(set.expect("a name")));
    register(&running);
    let since = Instant::now();
    call(
        &running,
        "PUT",
        "/v1/autoscale",
        Some(json!({"min": 1, "max": 5, "database_rate": 2000, "headroom": 1.0})),
    );
    let (line, headers, body) = until(&running, since, || heard.try_recv().ok());
    assert_eq!(line, "PATCH /apis/apps/v1/namespaces/cache/statefulsets/mbal/scale HTTP/1.1");
    assert!(headers.contains(&"Authorization: Bearer t0ken".to_owned()), "{headers:?}");
    assert!(
        headers.contains(&"Content-Type: application/merge-patch+json".to_owned()),
        "{headers:?}"
    );
    let replicas = serde_json::from_str::<Value>(&body).expect("JSON")["spec"]["replicas"].as_u64();
    // 20,000 reads/s, of which a database bears 2,000: 90% have to hit, which takes more than three times a server's memory.
    assert!(replicas.is_some_and(|count| (4..=5).contains(&count)), "{body}");
    let status = call(&running, "GET", "/v1/autoscale", None);
    assert_eq!(status["machines"], "kubernetes");
    assert!(
        status["last"]["why"].as_str().is_some_and(|why| why.contains("reads/s on a database")),
        "{status}"
    );
    thread::sleep(3 * EVERY);
    assert!(heard.try_recv().is_err(), "once: they are on their way");
}

#[test]
fn what_kubernetes_refuses_is_told_in_events() {
    let folder = Folder::new("forbidden");
    let (address, _heard) = kubernetes("403 Forbidden");
    let set = StatefulSet::at(&format!("http://{address}"), "cache/mbal", None);
    let running = begin(&folder, Machines::Kubernetes(set.expect("a name")));
    register(&running);
    call(&running, "PUT", "/v1/autoscale", Some(json!({"min": 4, "max": 5, "database_rate": 1e9})));
    until(&running, Instant::now(), || {
        let events = call(&running, "GET", "/v1/events", None).to_string();
        events.contains("403: statefulsets.apps is forbidden").then_some(())
    });
}

#[test]
fn a_dry_run_tells_what_it_would_do_and_does_nothing() {
    let folder = Folder::new("dry-run");
    let (told, orders) = channel();
    let running = begin(&folder, Machines::Told(told));
    register(&running);
    let wish = json!({"min": 4, "max": 5, "database_rate": 1e9, "dry_run": true});
    call(&running, "PUT", "/v1/autoscale", Some(wish));
    until(&running, Instant::now(), || {
        let events = call(&running, "GET", "/v1/events", None).to_string();
        events.contains("autoscaling would change from 2 to 4 servers").then_some(())
    });
    assert!(orders.try_recv().is_err());
    let metrics =
        ureq::get(&format!("http://{}/metrics", running.address)).call().expect("metrics");
    let metrics = metrics.into_string().expect("text");
    assert!(metrics.contains("mbal_coordinator_autoscaler_servers_wanted 4"), "{metrics}");
}

#[test]
fn the_forecast_of_every_size_is_told() {
    let folder = Folder::new("forecast");
    let running = begin(&folder, Machines::Nobody);
    register(&running);
    beat(&running, Instant::now());
    let told = call(&running, "GET", "/v1/forecast?servers=4&database_rate=100", None);
    assert_eq!(told["sizes"].as_array().map(Vec::len), Some(4), "{told}");
    let ratio = |at: usize| told["sizes"][at]["hit_ratio"].as_f64().expect("a number");
    assert!(ratio(0) < ratio(1) && ratio(1) < ratio(3), "{told}");
    let wrong = ureq::get(&format!("http://{}/v1/forecast?servers=x", running.address)).call();
    assert!(matches!(wrong, Err(ureq::Error::Status(400, _))), "{wrong:?}");
}
