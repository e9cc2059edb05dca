//! The autoscaler of a coordinator, with servers that only say how they are and a Kubernetes that only listens.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use mbal_control::Settings;
use mbal_coordinator::{
    Autoscale, Config, MachineOrder, Machines, Running, StateIn, StatefulSet, start,
};
use serde_json::{Value, json};

mod api_server;
mod servers;

use api_server::{certified, kubernetes};
use servers::Servers;

const EVERY: Duration = Duration::from_millis(100);

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

fn begin(folder: &Folder, machines: Machines, servers_first: usize) -> Running {
    let config = Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        state: StateIn::File(folder.0.join("mbal.json")),
        settings: Settings { servers_first, epoch: EVERY, ..Settings::default() },
        token: None,
        allow_hosts: Vec::new(),
        autoscale: Autoscale { machines, every: EVERY },
        says_each_move: false,
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

#[test]
fn servers_that_are_wanted_are_asked_of_kubernetes_with_the_pod_s_token() {
    let folder = Folder::new("statefulset");
    std::fs::write(folder.0.join("token"), "t0ken\n").expect("it can be written");
    let (address, heard) = kubernetes("200 OK", None);
    let set = StatefulSet::at(&format!("http://{address}"), "cache/mbal", Some(&folder.0));
    let running = begin(&folder, Machines::Kubernetes(set.expect("a name")), 2);
    let mut servers = Servers::register(&running, 2);
    call(
        &running,
        "PUT",
        "/v1/autoscale",
        Some(json!({"min": 1, "max": 5, "database_rate": 2000, "headroom": 1.0})),
    );
    let (line, headers, body) = servers.until(|| heard.try_recv().ok());
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
    let (address, _heard) = kubernetes("403 Forbidden", None);
    let set = StatefulSet::at(&format!("http://{address}"), "cache/mbal", None);
    let running = begin(&folder, Machines::Kubernetes(set.expect("a name")), 2);
    let mut servers = Servers::register(&running, 2);
    call(&running, "PUT", "/v1/autoscale", Some(json!({"min": 4, "max": 5, "database_rate": 1e9})));
    servers.until(|| {
        let events = call(&running, "GET", "/v1/events", None).to_string();
        events.contains("403: statefulsets.apps is forbidden").then_some(())
    });
}

#[test]
fn kubernetes_is_asked_by_tls_if_the_pod_s_authority_has_signed_for_it() {
    let folder = Folder::new("statefulset-tls");
    std::fs::write(folder.0.join("token"), "t0ken\n").expect("it can be written");
    let Some(tls) = certified(&folder) else { return eprintln!("SKIPPED: this needs openssl") };
    let (address, heard) = kubernetes("200 OK", Some(tls));
    let url = format!("https://{address}");
    let set = StatefulSet::at(&url, "cache/mbal", Some(&folder.0)).expect("its files are there");
    assert_eq!(set.scale(3), Ok(()));
    let (line, headers, body) = heard.recv().expect("it was asked");
    assert_eq!(line, "PATCH /apis/apps/v1/namespaces/cache/statefulsets/mbal/scale HTTP/1.1");
    assert!(headers.contains(&"Authorization: Bearer t0ken".to_owned()), "{headers:?}");
    assert_eq!(serde_json::from_str::<Value>(&body).expect("JSON")["spec"]["replicas"], 3);
    // Kubernetes renews it.
    std::fs::write(folder.0.join("token"), "t1ken\n").expect("it can be written");
    assert_eq!(set.scale(4), Ok(()));
    let (_, headers, _) = heard.recv().expect("it was asked");
    assert!(headers.contains(&"Authorization: Bearer t1ken".to_owned()), "{headers:?}");
    // Another cluster's authority: the token is not shown.
    let other = Folder::new("statefulset-other");
    std::fs::write(other.0.join("token"), "t0ken\n").expect("it can be written");
    certified(&other).expect("openssl is there");
    let set = StatefulSet::at(&url, "cache/mbal", Some(&other.0)).expect("its files are there");
    let why = set.scale(3).expect_err("nobody whom it knows");
    assert!(why.contains("certificate"), "{why}");
    assert!(heard.try_recv().is_err());
    std::fs::write(other.0.join("ca.crt"), "").expect("it can be written");
    for account in [Some(&*other.0), None] {
        assert!(StatefulSet::at(&url, "cache/mbal", account).is_err(), "no authority");
    }
}

/// Kubernetes stops no other pod, however warm this one is.
#[test]
fn of_a_statefulset_the_last_pod_retires_and_what_travels_is_chosen() {
    let folder = Folder::new("statefulset-in");
    let (address, heard) = kubernetes("200 OK", None);
    let set = StatefulSet::at(&format!("http://{address}"), "cache/mbal", None);
    let running = begin(&folder, Machines::Kubernetes(set.expect("a name")), 3);
    let mut servers = Servers::register(&running, 3);
    call(&running, "PUT", "/v1/autoscale", Some(json!({"min": 2, "max": 2, "database_rate": 1e9})));
    let (_, _, body) = servers.until(|| heard.try_recv().ok());
    assert_eq!(serde_json::from_str::<Value>(&body).expect("JSON")["spec"]["replicas"], 2);
    let status = call(&running, "GET", "/v1/status", None);
    assert_eq!(status["servers"][0]["state"], "drained", "{status}");
    let scaling = call(&running, "GET", "/v1/scale", None);
    assert_eq!((&scaling["state"], &scaling["stops"]), (&json!("done"), &json!(true)));
    let retiring = &scaling["plan"]["retiring"];
    assert_eq!((retiring[0]["server"].as_u64(), retiring[1].is_null()), (Some(1), true));
    assert!(scaling["plan"]["cuts"][0]["from"] == 1, "not everything fits: {scaling}");
    let autoscale = call(&running, "GET", "/v1/autoscale", None);
    assert_eq!(autoscale["stopping"], json!([1]), "until its process has ended");
}

/// Whoever can stop any server is told to stop the coldest.
#[test]
fn elsewhere_the_coldest_retires_and_is_stopped_when_it_is_empty() {
    let folder = Folder::new("machines-in");
    let (told, orders) = channel();
    let running = begin(&folder, Machines::Told(told), 3);
    let mut servers = Servers::register(&running, 3);
    call(&running, "PUT", "/v1/autoscale", Some(json!({"min": 2, "max": 2, "database_rate": 1e9})));
    let order = servers.until(|| orders.try_recv().ok());
    assert_eq!(order, MachineOrder::Stop { id: 3 });
    let status = call(&running, "GET", "/v1/status", None);
    assert_eq!(status["servers"][2]["state"], "drained", "{status}");
}

#[test]
fn a_dry_run_tells_what_it_would_do_and_does_nothing() {
    let folder = Folder::new("dry-run");
    let (told, orders) = channel();
    let running = begin(&folder, Machines::Told(told), 2);
    let mut servers = Servers::register(&running, 2);
    let wish = json!({"min": 4, "max": 5, "database_rate": 1e9, "dry_run": true});
    call(&running, "PUT", "/v1/autoscale", Some(wish));
    servers.until(|| {
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
    let running = begin(&folder, Machines::Nobody, 2);
    Servers::register(&running, 2).beat();
    let told = call(&running, "GET", "/v1/forecast?servers=4&database_rate=100", None);
    assert_eq!(told["sizes"].as_array().map(Vec::len), Some(4), "{told}");
    let ratio = |at: usize| told["sizes"][at]["hit_ratio"].as_f64().expect("a number");
    assert!(ratio(0) < ratio(1) && ratio(1) < ratio(3), "{told}");
    let wrong = ureq::get(&format!("http://{}/v1/forecast?servers=x", running.address)).call();
    assert!(matches!(wrong, Err(ureq::Error::Status(400, _))), "{wrong:?}");
}
