//! Coordinators that share an etcd, and how they are asked.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::members::Members;
use crate::running::led::free_port;
use crate::running::{Folder, MBAL, Running};

/// Longer than any lease and any timeout together: the machine may be busy.
const WITHIN: Duration = Duration::from_secs(40);

pub struct Coordinator {
    pub child: Child,
    pub url: String,
    said: Arc<Mutex<String>>,
}

/// Killed with the test.
impl Drop for Coordinator {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[derive(Debug)]
pub struct Told {
    /// 0 if there was no answer.
    pub status: u16,
    pub body: Value,
    pub term: Option<u64>,
    pub leader: Option<String>,
}

impl Told {
    pub fn error(&self) -> &str {
        self.body["error"].as_str().unwrap_or_default()
    }
}

impl Coordinator {
    pub fn start(etcd: &str, flags: &[&str]) -> Coordinator {
        let listen = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(MBAL);
        command.args(["coordinator", "--listen", &listen, "--etcd", etcd]);
        command.args(["--cluster-name", "shop", "--heartbeat-ms", "200"]).args(flags);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program is there");
        let said = Arc::new(Mutex::new(String::new()));
        let mut stderr = child.stderr.take().expect("it is piped");
        let into = Arc::clone(&said);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stderr.read(&mut bytes) {
                into.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Coordinator { child, url: format!("http://{listen}"), said }
    }

    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    pub fn get(&self, path: &str) -> Told {
        self.call("GET", path, None)
    }

    pub fn call(&self, method: &str, path: &str, body: Option<Value>) -> Told {
        call(&self.url, method, path, body)
    }

    pub fn leads(&self) -> bool {
        self.get("/v1/status").status == 200
    }
}

pub fn call(url: &str, method: &str, path: &str, body: Option<Value>) -> Told {
    let request = ureq::request(method, &format!("{url}{path}")).timeout(Duration::from_secs(15));
    let answer = match body {
        Some(body) => request.send_json(body),
        None => request.call(),
    };
    match answer {
        Ok(response) | Err(ureq::Error::Status(_, response)) => {
            let status = response.status();
            let term = response.header("MBal-Term").map(|text| text.parse().expect("a number"));
            let leader = response.header("MBal-Leader").map(str::to_owned);
            let text = response.into_string().expect("it is text");
            let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
            Told { status, body, term, leader }
        }
        Err(error) => {
            let body = json!({ "error": error.to_string() });
            Told { status: 0, body, term: None, leader: None }
        }
    }
}

/// Three coordinators of one etcd.
pub struct Cluster {
    pub coordinators: Vec<Coordinator>,
    pub etcd: Members,
    pub folder: Folder,
}

impl Cluster {
    pub fn start(test: &str, flags: &[&str]) -> Cluster {
        let folder = Folder::new(&format!("etcd-{test}"));
        let etcd = Members::start(&folder);
        Cluster::of(folder, etcd, flags)
    }

    pub fn of(folder: Folder, etcd: Members, flags: &[&str]) -> Cluster {
        folder.keep("secret", "a secret of this test\n");
        let start = |_| Coordinator::start(&etcd.urls(), flags);
        let coordinators = (0..3).map(start).collect();
        Cluster { coordinators, etcd, folder }
    }

    /// For `--coordinator`.
    pub fn urls(&self) -> String {
        let urls: Vec<&str> = self.coordinators.iter().map(|one| one.url.as_str()).collect();
        urls.join(",")
    }

    /// Which one leads, as soon as one does; never two.
    pub fn leader(&self) -> usize {
        self.leader_of(&[0, 1, 2])
    }

    pub fn leader_of(&self, of: &[usize]) -> usize {
        let mut found = None;
        self.eventually("one leads", |cluster| {
            found = of.iter().copied().find(|at| cluster.coordinators[*at].leads());
            found.is_some()
        });
        found.expect("it was found")
    }

    pub fn eventually(&self, what: &str, mut holds: impl FnMut(&Cluster) -> bool) {
        let deadline = Instant::now() + WITHIN;
        while !holds(self) {
            if deadline < Instant::now() {
                let said: Vec<String> = self.coordinators.iter().map(Coordinator::said).collect();
                panic!("{what}: not within {WITHIN:?}\n{}", said.join("\n--\n"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The server of that number.
    pub fn serve_as(&self, id: u16) -> Running {
        self.serve_with(&["--server-id", &id.to_string()])
    }

    /// A server that asks all coordinators.
    pub fn serve(&self) -> Running {
        self.serve_with(&[])
    }

    fn serve_with(&self, flags: &[&str]) -> Running {
        drop(std::fs::remove_file(self.folder.path("ports")));
        let secret = self.folder.path("secret").display().to_string();
        let urls = self.urls();
        let mut arguments = vec!["-p", "-1", "-t", "1", "--control", "off", "--worker-ports", "0"];
        arguments.extend(["--cluster-name", "shop", "--coordinator", &urls]);
        arguments.extend(["--cluster-secret", &secret]);
        arguments.extend(flags);
        Running::serve(&self.folder, &arguments)
    }

    /// `mbal COMMAND --coordinator ...`: whether it worked, and what it said.
    pub fn tool(&self, words: &[&str]) -> (bool, String) {
        let urls = self.urls();
        let all: Vec<&str> = words.iter().copied().chain(["--coordinator", &urls]).collect();
        let output = crate::running::output_of(MBAL.as_ref(), &all);
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }
}

pub fn registration(host: u8) -> Value {
    json!({ "incarnation": format!("{host:016x}"), "cluster": "shop", "client": format!("10.0.0.{host}:11211"),
        "link": format!("10.0.0.{host}:11311"), "workers": [format!("10.0.0.{host}:11300")], "memory_bytes": 64 << 20 })
}
