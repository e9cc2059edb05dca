//! What a coordinator asks of etcd, by the JSON that every member speaks (`/v3/...`): one call, one answer, with a time limit.
//!
//! ```text
//!   question, save ──► one member ── no connection ──► the next ... ── none ──► certainly not executed
//!                          └── silence, or an error that says nothing ──► nobody knows; the next call goes to the next member
//! ```

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mbal_election::{
    Answer, Condition, Fence, LEASE, Leader, LeaseId, NOBODY_LEADS, Question, SaveAnswer, Sight,
    Stored,
};
use serde_json::{Value, json};

use crate::etcd_json::{Grant, Header, KeepAlive, Kv, Refused, Txn};

/// A member that does not answer a question for so long is silent.
const ANSWERS_WITHIN: Duration = Duration::from_millis(700);
/// A save has so long, and more for each MiB.
const SAVED_WITHIN: Duration = Duration::from_secs(1);
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
    /// The keys, in base64.
    leader: String,
    state: String,
    /// What the leader key says, in base64: this coordinator's URL.
    address: String,
    /// The cluster of members that has answered first.
    cluster: Mutex<Option<u64>>,
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
    fn doubtful(why: String) -> Failed {
        Failed { is_certain: false, has_answered: false, why }
    }
}

impl Etcd {
    /// `members` are URLs like `http://10.0.0.1:2379`; `address` is this coordinator's. The error says which is none.
    pub fn new(members: &[String], cluster: &str, address: &str) -> Result<Etcd, String> {
        for member in members {
            if !member.starts_with("http://") {
                return Err(format!("--etcd {member}: it is like http://10.0.0.1:2379"));
            }
        }
        if members.is_empty() {
            return Err("--etcd: there is no URL".into());
        }
        let key = |name: &str| STANDARD.encode(format!("mbal/{cluster}/{name}"));
        Ok(Etcd {
            members: members.iter().map(|url| url.trim_end_matches('/').to_owned()).collect(),
            current: AtomicUsize::new(0),
            agent: ureq::AgentBuilder::new().timeout_connect(CONNECTS_WITHIN).build(),
            leader: key("leader"),
            state: key("state"),
            address: STANDARD.encode(address),
            cluster: Mutex::new(None),
        })
    }

    /// The version that a member says.
    pub fn version(&self) -> Option<String> {
        let member = &self.members[self.current.load(Ordering::Relaxed)];
        let asked = self.agent.get(&format!("{member}/version")).timeout(ANSWERS_WITHIN).call();
        let told: Value = asked.ok()?.into_json().ok()?;
        Some(told.get("etcdserver")?.as_str()?.to_owned())
    }

    pub fn ask(&self, question: Question) -> Result<Answer, Failed> {
        match question {
            Question::Look => {
                let body = json!({ "success": [self.get_leader(), self.get_state(true)] });
                let txn: Txn = self.post("/v3/kv/txn", &body, ANSWERS_WITHIN)?;
                Ok(Answer::Seen(sight(&txn)?))
            }
            Question::Grant => {
                let body = json!({ "TTL": LEASE.as_secs().to_string() });
                let grant: Grant = self.post("/v3/lease/grant", &body, ANSWERS_WITHIN)?;
                Ok(Answer::Granted { lease: grant.id, lasts: Duration::from_secs(grant.ttl) })
            }
            Question::Campaign { lease } => self.campaign(lease),
            Question::Renew { lease } => {
                let body = json!({ "ID": lease.to_string() });
                let path = "/v3/lease/keepalive";
                let told: KeepAlive = self.post(path, &body, ANSWERS_WITHIN)?;
                let lasts = Duration::from_secs(told.result.ttl);
                Ok(Answer::Renewed { lasts, raft_term: told.result.header.raft_term })
            }
            Question::Revoke { lease } => {
                let body = json!({ "ID": lease.to_string() });
                match self.post::<Value>("/v3/lease/revoke", &body, ANSWERS_WITHIN) {
                    // It was over already.
                    Err(failed) if !failed.has_answered => Err(failed),
                    _ => Ok(Answer::Revoked),
                }
            }
        }
    }

    fn campaign(&self, lease: LeaseId) -> Result<Answer, Failed> {
        let put = json!({ "requestPut":
            { "key": self.leader, "value": self.address, "lease": lease.to_string() } });
        let body = json!({
            "compare": [self.compare(NOBODY_LEADS)],
            "success": [put, self.get_state(false)],
            "failure": [self.get_leader(), self.get_state(true)],
        });
        let txn: Txn = self.post("/v3/kv/txn", &body, SAVED_WITHIN)?;
        if !txn.succeeded {
            return Ok(Answer::Lost(sight(&txn)?));
        }
        let state = match txn.kv(1) {
            Some(kv) => Some(Stored { revision: kv.mod_revision, bytes: decoded(&kv.value)? }),
            None => None,
        };
        // The revision of this transaction is the one that created the key.
        Ok(Answer::Won { term: txn.header.revision, state })
    }

    /// One attempt; why it failed comes beside the answer.
    pub fn save(&self, fence: Fence, state: &[u8]) -> (SaveAnswer, Option<String>) {
        let value = STANDARD.encode(state);
        let compare: Vec<Value> =
            fence.conditions().into_iter().map(|condition| self.compare(condition)).collect();
        let body = json!({
            "compare": compare,
            "success": [{ "requestPut": { "key": self.state, "value": value } }],
            "failure": [self.get_leader(), self.get_state(false)],
        });
        let within = SAVED_WITHIN + SAVED_WITHIN * (state.len() >> 20) as u32;
        match self.post::<Txn>("/v3/kv/txn", &body, within) {
            Ok(txn) if txn.succeeded => (SaveAnswer::Written(txn.header.revision), None),
            Ok(txn) => {
                let leader = txn.kv(0).map(|kv| kv.create_revision);
                let ours = txn.kv(1).filter(|kv| kv.value == value).map(|kv| kv.mod_revision);
                (SaveAnswer::Refused { leader, ours }, None)
            }
            Err(Failed { is_certain: true, why, .. }) => (SaveAnswer::NotExecuted, Some(why)),
            Err(Failed { why, .. }) => (SaveAnswer::Unknown, Some(why)),
        }
    }

    fn get_leader(&self) -> Value {
        json!({ "requestRange": { "key": self.leader } })
    }

    fn get_state(&self, keys_only: bool) -> Value {
        json!({ "requestRange": { "key": self.state, "keys_only": keys_only } })
    }

    fn compare(&self, condition: Condition) -> Value {
        match condition {
            Condition::LeaderCreatedAt(revision) => json!({ "key": self.leader, "result": "EQUAL",
                "target": "CREATE", "create_revision": revision.to_string() }),
            Condition::StateModifiedAt(revision) => json!({ "key": self.state, "result": "EQUAL",
                "target": "MOD", "mod_revision": revision.to_string() }),
        }
    }

    /// Asks the current member; one to which there is no connection is passed over.
    fn post<T: serde::de::DeserializeOwned>(
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
            let mut cluster = self.cluster.lock().expect("nothing panics with it held");
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

/// Leader and state, asked for in this order.
fn sight(txn: &Txn) -> Result<Sight, Failed> {
    let leader = match txn.kv(0) {
        Some(Kv { create_revision, value, .. }) => {
            let address = String::from_utf8_lossy(&decoded(value)?).into_owned();
            Some(Leader { term: *create_revision, address })
        }
        None => None,
    };
    let state = txn.kv(1).map(|kv| kv.mod_revision);
    Ok(Sight { leader, state, raft_term: txn.header.raft_term })
}

fn decoded(value: &str) -> Result<Vec<u8>, Failed> {
    STANDARD.decode(value).map_err(|error| Failed::doubtful(format!("a value of etcd's: {error}")))
}
