//! What a cluster's processes are told by who should not be there, or is ill: each a clear error, and nothing is lost.
//! `docs/design/cluster.md`, *Bad input*, has the rules.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

mod running;

use mbal_link::{Frame, Kind, next_frame, push_frame};
use running::led::{folder, free_port};
use running::{Folder, Killed, MBAL, Running, ask, eventually};

fn serve(folder: &Folder, url: &str, more: &[&str]) -> Running {
    drop(std::fs::remove_file(folder.path("ports")));
    let secret = folder.path("secret").display().to_string();
    let mut words = vec!["-p", "-1", "-t", "1", "--control", "off", "--drain-timeout", "0"];
    words.extend(["--coordinator", url, "--cluster-secret", &secret]);
    words.extend(more);
    Running::serve(folder, &words)
}

/// A coordinator that registers whoever comes by this map, and answers heartbeats with these texts in turn, with the last one for ever.
fn fake_coordinator(first: &str, beats: Vec<String>) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
    let url = format!("http://{}", listener.local_addr().expect("it has an address"));
    let first = registered(first);
    std::thread::spawn(move || {
        let mut turn = 0;
        for mut stream in listener.incoming().flatten() {
            let Some(head) = request(&mut stream) else { continue };
            let mut body = &first;
            if head.contains("/heartbeat") {
                body = &beats[turn.min(beats.len() - 1)];
                turn += 1;
            }
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n";
            let length = body.len();
            drop(write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}"));
        }
    });
    url
}

/// The head of a request whose body has been read, too.
fn request(stream: &mut TcpStream) -> Option<String> {
    let (mut said, mut room) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut room).ok().filter(|count| *count > 0)?;
        said.extend_from_slice(&room[..count]);
        let text = String::from_utf8_lossy(&said);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_it = name.eq_ignore_ascii_case("content-length");
            is_it.then(|| value.trim().parse::<usize>().ok())?
        });
        if body.len() >= length.unwrap_or(0) {
            return Some(head.to_owned());
        }
    }
}

/// The answer to a registration.
fn registered(map: &str) -> String {
    serde_json::json!({ "id": 1, "epoch_ms": 50, "flush_number": 0, "map": map }).to_string()
}

fn news(map: &str) -> String {
    serde_json::json!({ "map": map }).to_string()
}

fn map(cluster: &str, version: u64, owner: u16) -> String {
    format!(
        "cluster {cluster}\nversion {version}\nserver 1 link 127.0.0.1:1 client 127.0.0.1:2\n\
         server 2 link 127.0.0.1:3 client 127.0.0.1:4\ncachelet 0000/0 {owner}/0\n"
    )
}

#[test]
fn a_map_of_another_cluster_is_not_followed() {
    let folder = folder("other-map");
    let url = fake_coordinator(&map("other", 1, 1), vec![news(&map("other", 2, 1))]);
    let server = serve(&folder, &url, &[]);
    std::thread::sleep(Duration::from_millis(300));
    let refused = TcpStream::connect(("127.0.0.1", server.port)).is_err();
    assert!(refused, "without a map of its own it lets nobody in");
    let (_, said) = server.signal("INT");
    assert!(said.contains("a map of cluster other, not mbal"), "{said}");
    assert!(!said.contains("follows map"), "{said}");
}

#[test]
fn a_map_that_is_none_or_old_takes_nothing_from_the_one_that_is_followed() {
    let folder = folder("no-map");
    let answers = vec![
        news("version 6\ncachelet 0000/1 1/0\n"),
        "this is no JSON".into(),
        news(&map("mbal", 4, 2)),
        news(&map("mbal", 5, 1)),
    ];
    let url = fake_coordinator(&map("mbal", 5, 1), answers);
    let server = serve(&folder, &url, &[]);
    let mut stream = server.connect();
    eventually("it follows the map", || {
        stream.write_all(b"set k 0 0 1\r\nv\r\n").expect("it is taken");
        let mut reply = [0; 64];
        let count = stream.read(&mut reply).expect("it answers");
        reply[..count] == *b"STORED\r\n"
    });
    // All of them have been told by then.
    std::thread::sleep(Duration::from_millis(600));
    ask(&mut stream, "get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    let (_, said) = server.signal("INT");
    assert!(said.contains("a map that is none: "), "{said}");
    assert!(said.contains("no coordinator, the last map is used"), "{said}");
}

/// What a server's link port says to a first frame: kind and payload.
fn told(port: u16, payload: &[u8]) -> (Kind, Vec<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("it can be set");
    let mut bytes = Vec::new();
    let kind = Kind::Hello;
    push_frame(&mut bytes, &Frame { kind, ticket: 0, payload });
    stream.write_all(&bytes).expect("it is taken");
    let mut said = Vec::new();
    stream.read_to_end(&mut said).expect("it answers, and closes");
    let (frame, _) = next_frame(&said, 256).expect("well formed").expect("whole");
    (frame.kind, frame.payload.to_vec())
}

fn hello(versions: [u16; 2], to: u16, cluster: &str) -> Vec<u8> {
    let numbers = [versions[0], versions[1], 7, 0, to];
    let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    [&b"MBAL"[..], &numbers, &[0; 32], cluster.as_bytes()].concat()
}

#[test]
fn other_versions_and_other_clusters_are_told_so_at_the_port_of_links_and_the_log_says_it() {
    let folder = folder("links");
    let url = fake_coordinator(&map("mbal", 1, 1), vec!["{}".into()]);
    let port = free_port();
    let server = serve(&folder, &url, &["--link-port", &port.to_string()]);
    eventually("it accepts links", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    // Who looked just now was turned away, too; of strangers the log has a line a second.
    std::thread::sleep(Duration::from_millis(1_200));
    let spoken = [1, 1, 0, 2, 0].to_vec();
    assert_eq!(
        told(port, &hello([9, 12], 1, "mbal")),
        (Kind::Refusal, spoken.clone()),
        "a newer one"
    );
    assert_eq!(told(port, &hello([0, 0], 1, "mbal")), (Kind::Refusal, spoken), "an older one");
    assert_eq!(told(port, &hello([1, 1], 1, "shop")), (Kind::Refusal, vec![2]), "another cluster");
    assert_eq!(
        told(port, &hello([1, 1], 9, "mbal")),
        (Kind::Refusal, vec![3, 1, 0]),
        "another server"
    );
    ask(&mut server.connect(), "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    let (_, said) = server.signal("INT");
    assert!(said.contains("it speaks versions 9 to 12 of the protocol"), "{said}");
}

#[test]
fn a_coordinator_whose_disk_is_full_refuses_changes_keeps_what_was_and_goes_on_when_there_is_room()
{
    let folder = folder("full");
    let disk = folder.path("disk");
    std::fs::create_dir(&disk).expect("it can be made");
    let (port, disk) = (free_port(), disk.display().to_string());
    let script = format!(
        "mount -t tmpfs -o size=64k none {disk} && exec {MBAL} coordinator --listen 127.0.0.1:{port} --state {disk}/state.json"
    );
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", &script]).stderr(Stdio::null());
    let Ok(child) = command.spawn() else {
        return println!("SKIPPED: no unshare");
    };
    let mut coordinator = Killed(child);
    let url = format!("http://127.0.0.1:{port}");
    let mut has_ended = false;
    eventually("it listens", || {
        has_ended = coordinator.0.try_wait().expect("it is a child").is_some();
        has_ended || TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    if has_ended {
        return println!("SKIPPED: no tmpfs can be mounted here");
    }
    let call = |method: &str, path: &str, body: serde_json::Value| {
        let answer = ureq::request(method, &format!("{url}{path}")).send_json(body);
        match answer {
            Ok(response) | Err(ureq::Error::Status(_, response)) => {
                (response.status(), response.into_string().expect("text"))
            }
            Err(error) => panic!("{error}"),
        }
    };
    let registration = serde_json::json!({
        "incarnation": "00000000000000aa", "cluster": "mbal", "client": "10.0.0.1:1",
        "link": "10.0.0.1:2", "workers": ["10.0.0.1:3"], "moves": true,
    });
    assert_eq!(call("POST", "/v1/servers", registration).0, 200);
    // From outside, its folder is to be seen by way of the process.
    let seen = format!("/proc/{}/root{disk}", coordinator.0.id());
    let filler = Path::new(&seen).join("filler");
    let mut file = std::fs::File::create(&filler).expect("there is room");
    while file.write_all(&[0; 512]).is_ok() {}
    let saved = std::fs::read_to_string(Path::new(&seen).join("state.json")).expect("it is there");
    let (status, why) = call("PUT", "/v1/balance", serde_json::json!({ "mode": "off" }));
    assert_eq!(status, 503, "{why}");
    assert!(why.contains("cannot be saved") && why.contains("No space left"), "{why}");
    let now = std::fs::read_to_string(Path::new(&seen).join("state.json")).expect("it is there");
    assert_eq!(now, saved);
    std::fs::remove_file(&filler).expect("it is ours");
    drop(file);
    assert_eq!(call("PUT", "/v1/balance", serde_json::json!({ "mode": "off" })).0, 200);
}
