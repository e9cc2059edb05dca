//! One call to etcd: which member is asked, for how long, and what a call in vain means.
//!
//! ```text
//!   call ──► one member ── no connection ──► the next ... ── none ──► certainly not executed
//!                └── silence, or an error that says nothing ──► nobody knows; the next call goes to the next member
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mbal_election::LeaseId;
use mbal_locks::{Mutex, ranks};
use serde_json::{Value, json};

use crate::json::{Grant, Header, KeepAlive, Refused};

/// A member that does not answer a question for so long is silent.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_millis(700);
const CONNECTS_WITHIN: Duration = Duration::from_millis(300);
/// The answers of longer ones are no state.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// gRPC's codes of what was refused before anything was done: the request cannot be meant so, there is no such lease, no permission, no room or too large,
/// a condition, not understood, not logged in.
const CODES_OF_REFUSALS: [u32; 7] = [3, 5, 7, 8, 9, 12, 16];

pub struct Etcd {
    members: Vec<String>,
    /// The member that is asked next.
    current: AtomicUsize,
    agent: ureq::Agent,
    /// The cluster's name.
    name: String,
    /// The cluster of members that has answered first.
    cluster: Mutex<ranks::EtcdCluster, Option<u64>>,
}

/// A call in vain.
#[derive(Debug)]
pub struct Failed {
    /// It was not executed, and will not be.
    pub is_certain: bool,
    /// A member has refused it.
    pub has_answered: bool,
    pub why: String,
}

impl Failed {
    pub(crate) fn doubtful(why: String) -> Failed {
        Failed { is_certain: false, has_answered: false, why }
    }
}

impl Etcd {
    /// `members` are URLs like `http://10.0.0.1:2379`; the error says which is none. `name` is the cluster's.
    pub fn new(members: &[String], name: &str) -> Result<Etcd, String> {
        for member in members {
            if !member.starts_with("http://") {
                return Err(format!("--etcd {member}: it is like http://10.0.0.1:2379"));
            }
        }
        if members.is_empty() {
            return Err("--etcd: there is no URL".into());
        }
        Ok(Etcd {
            members: members.iter().map(|url| url.trim_end_matches('/').to_owned()).collect(),
            current: AtomicUsize::new(0),
            agent: ureq::AgentBuilder::new().timeout_connect(CONNECTS_WITHIN).build(),
            name: name.to_owned(),
            cluster: Mutex::new(None),
        })
    }

    /// A key of this cluster's, in base64.
    pub(crate) fn key(&self, name: &str) -> String {
        STANDARD.encode(format!("mbal/{}/{name}", self.name))
    }

    pub fn members(&self) -> &[String] {
        &self.members
    }

    /// The version that a member says.
    pub fn version(&self) -> Option<String> {
        let member = &self.members[self.current.load(Ordering::Relaxed)];
        let asked = self.agent.get(&format!("{member}/version")).timeout(ANSWERS_WITHIN).call();
        let told: Value = asked.ok()?.into_json().ok()?;
        Some(told.get("etcdserver")?.as_str()?.to_owned())
    }

    /// A lease of so many seconds, and how long it lasts: etcd may grant more.
    pub(crate) fn grant(&self, seconds: u64) -> Result<(LeaseId, Duration), Failed> {
        let body = json!({ "TTL": seconds.to_string() });
        let grant: Grant = self.post("/v3/lease/grant", &body, ANSWERS_WITHIN)?;
        Ok((grant.id, Duration::from_secs(grant.ttl)))
    }

    /// How long the lease lasts from now on, 0 if there is none any more; and etcd's own term.
    pub(crate) fn renew(&self, lease: LeaseId) -> Result<(Duration, u64), Failed> {
        let body = json!({ "ID": lease.to_string() });
        let told: KeepAlive = self.post("/v3/lease/keepalive", &body, ANSWERS_WITHIN)?;
        Ok((Duration::from_secs(told.result.ttl), told.result.header.raft_term))
    }

    /// Asks the current member; one to which there is no connection is passed over.
    pub(crate) fn post<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        within: Duration,
    ) -> Result<T, Failed> {
        let mut unreached = None;
        for _ in 0..self.members.len() {
            let at = self.current.load(Ordering::Relaxed) % self.members.len();
            let member = &self.members[at];
            let request = self.agent.post(&format!("{member}{path}")).timeout(within);
            let why = match request.send_json(body) {
                Ok(response) => {
                    return self.understood(member, response).inspect_err(|_| self.pass(at));
                }
                Err(ureq::Error::Status(status, response)) => {
                    let said = refused_with(response);
                    let is_certain = CODES_OF_REFUSALS.contains(&said.code) || status == 404;
                    if !is_certain {
                        self.pass(at);
                    }
                    let why = format!("{member}: {}", said.error);
                    return Err(Failed { is_certain, has_answered: true, why });
                }
                Err(ureq::Error::Transport(error)) => {
                    self.pass(at);
                    let has_connected = !matches!(
                        error.kind(),
                        ureq::ErrorKind::ConnectionFailed | ureq::ErrorKind::Dns
                    );
                    let why = wording(&error);
                    if has_connected {
                        return Err(Failed::doubtful(format!("{member}: {why}")));
                    }
                    format!("{member}: {why}")
                }
            };
            unreached = Some(why);
        }
        let why = unreached.expect("there is a member");
        Err(Failed { is_certain: true, has_answered: false, why })
    }

    /// The next call goes to the next member.
    fn pass(&self, at: usize) {
        let next = (at + 1) % self.members.len();
        // Another lane may have been faster.
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn understood<T: serde::de::DeserializeOwned>(
        &self,
        member: &str,
        response: ureq::Response,
    ) -> Result<T, Failed> {
        let doubtful = |why: String| Failed::doubtful(format!("{member}: {why}"));
        let mut text = String::new();
        let mut reader = std::io::Read::take(response.into_reader(), ANSWER_BYTES_MAX);
        std::io::Read::read_to_string(&mut reader, &mut text)
            .map_err(|error| doubtful(error.to_string()))?;
        #[derive(serde::Deserialize)]
        struct Headed {
            header: Option<Header>,
        }
        let headed: Headed =
            serde_json::from_str(&text).map_err(|error| doubtful(error.to_string()))?;
        if let Some(header) = headed.header {
            let mut cluster = self.cluster.lock();
            if *cluster.get_or_insert(header.cluster_id) != header.cluster_id {
                return Err(doubtful("it is a member of another etcd than the one before".into()));
            }
        }
        serde_json::from_str(&text).map_err(|error| doubtful(error.to_string()))
    }
}

/// What a member says of a refusal. Its body ends in a trailer, which is no end to this client: what came before counts.
fn refused_with(response: ureq::Response) -> Refused {
    let status = response.status();
    let mut body = Vec::new();
    let mut reader = std::io::Read::take(response.into_reader(), ANSWER_BYTES_MAX);
    let _ = std::io::Read::read_to_end(&mut reader, &mut body);
    serde_json::from_slice(&body).unwrap_or_else(|_| Refused {
        error: format!("status {status}, and no word of etcd's"),
        code: 0,
    })
}

/// Without the URL, which the caller knows.
fn wording(error: &ureq::Transport) -> String {
    let mut text = error.kind().to_string();
    if let Some(message) = error.message() {
        text = format!("{text}: {message}");
    }
    match std::error::Error::source(error) {
        Some(source) => format!("{text}: {source}"),
        None => text,
    }
}

/// A value or a key, out of base64.
pub(crate) fn decoded(value: &str) -> Result<Vec<u8>, Failed> {
    STANDARD.decode(value).map_err(|error| Failed::doubtful(format!("a value of etcd's: {error}")))
}
