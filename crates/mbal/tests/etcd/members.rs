//! Three members of etcd on this host.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::running::{Folder, eventually, free_ports};

pub struct Member {
    child: Option<Child>,
    name: String,
    pub url: String,
    peer: String,
    folder: PathBuf,
}

/// All are killed with the test.
pub struct Members {
    pub members: Vec<Member>,
    cluster: String,
}

/// The key of a cluster's state.
pub const STATE: &str = "mbal/shop/state";

impl Members {
    pub fn start(folder: &Folder) -> Members {
        let ports = free_ports(6);
        let url = |at: usize| format!("http://127.0.0.1:{}", ports[at]);
        let member = |at: usize| Member {
            child: None,
            name: format!("member{at}"),
            url: url(at),
            peer: url(at + 3),
            folder: folder.path(&format!("etcd{at}")),
        };
        let members: Vec<Member> = (0..3).map(member).collect();
        let cluster: Vec<String> =
            members.iter().map(|one| format!("{}={}", one.name, one.peer)).collect();
        let mut all = Members { members, cluster: cluster.join(",") };
        for at in 0..3 {
            all.begin(at);
        }
        all.wait();
        all
    }

    /// Starts a member, or starts it again with what it knew.
    pub fn begin(&mut self, at: usize) {
        let cluster = self.cluster.clone();
        let Member { child, name, url, peer, folder } = &mut self.members[at];
        let mut command = Command::new("etcd");
        command.args(["--name", name, "--initial-cluster", &cluster, "--logger", "zap"]);
        command.args(["--listen-client-urls", url, "--advertise-client-urls", url]);
        command.args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]);
        command.arg("--data-dir").arg(folder);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        *child = Some(command.spawn().expect("etcd is installed"));
    }

    /// Until a majority answers.
    pub fn wait(&self) {
        eventually("etcd answers", || self.get(STATE).is_ok());
    }

    pub fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.members[at].child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }

    /// STOP or CONT.
    pub fn signal(&self, at: usize, name: &str) {
        let child = self.members[at].child.as_ref().expect("it runs");
        crate::signal(child, name);
    }

    /// For a coordinator's `--etcd`.
    pub fn urls(&self) -> String {
        let urls: Vec<&str> = self.members.iter().map(|one| one.url.as_str()).collect();
        urls.join(",")
    }

    /// A key's value in base64, and the revision that wrote it.
    pub fn get(&self, key: &str) -> Result<Option<(String, String)>, String> {
        let told = self.call("/v3/kv/range", &json!({ "key": base64(key.as_bytes()) }))?;
        let text = |kv: &Value, name: &str| kv[name].as_str().unwrap_or_default().to_owned();
        let kv = told["kvs"].get(0);
        Ok(kv.map(|kv| (text(kv, "value"), text(kv, "mod_revision"))))
    }

    /// `value` is in base64.
    pub fn put(&self, key: &str, value: &str) {
        let body = json!({ "key": base64(key.as_bytes()), "value": value });
        self.call("/v3/kv/put", &body).expect("etcd is well");
    }

    pub fn delete(&self, key: &str) {
        let body = json!({ "key": base64(key.as_bytes()) });
        self.call("/v3/kv/deleterange", &body).expect("etcd is well");
    }

    /// By any member.
    fn call(&self, path: &str, body: &Value) -> Result<Value, String> {
        let mut why = String::new();
        for member in &self.members {
            let request = ureq::post(&format!("{}{path}", member.url));
            match request.timeout(std::time::Duration::from_secs(2)).send_json(body) {
                Ok(response) => return response.into_json().map_err(|error| error.to_string()),
                Err(error) => why = error.to_string(),
            }
        }
        Err(why)
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        (0..3).for_each(|at| self.kill(at));
    }
}

pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Of a state that is not compressed.
pub fn text(base64: &str) -> String {
    String::from_utf8(STANDARD.decode(base64).expect("etcd says it so")).expect("it is JSON")
}
