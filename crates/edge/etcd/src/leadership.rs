//! What a coordinator asks of etcd: who leads, and the state.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mbal_election::{
    Condition, Fence, LEASE, Leader, LeaseId, NOBODY_LEADS, Request, Response, SaveResponse, Sight,
    Stored,
};
use serde_json::{Value, json};

use crate::client::{ANSWERS_WITHIN, Etcd, Failed, decoded};
use crate::json::{Kv, Txn};

/// A save has so long, and more for each MiB.
const SAVED_WITHIN: Duration = Duration::from_secs(1);

/// The leader key and the state, as one coordinator asks for them.
pub struct Leadership {
    etcd: Etcd,
    /// The keys, in base64.
    leader: String,
    state: String,
    /// What the leader key says, in base64: this coordinator's URL.
    address: String,
}

impl Leadership {
    /// `address` is this coordinator's URL.
    pub fn new(etcd: Etcd, address: &str) -> Leadership {
        let (leader, state) = (etcd.key("leader"), etcd.key("state"));
        Leadership { etcd, leader, state, address: STANDARD.encode(address) }
    }

    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    pub fn ask(&self, request: Request) -> Result<Response, Failed> {
        match request {
            Request::Look => {
                let body = json!({ "success": [self.get_leader(), self.get_state(true)] });
                let txn: Txn = self.etcd.post("/v3/kv/txn", &body, ANSWERS_WITHIN)?;
                Ok(Response::Seen(sight(&txn)?))
            }
            Request::Grant => {
                let (lease, lasts) = self.etcd.grant(LEASE.as_secs())?;
                Ok(Response::Granted { lease, lasts })
            }
            Request::Campaign { lease } => self.campaign(lease),
            Request::Renew { lease } => {
                let (lasts, raft_term) = self.etcd.renew(lease)?;
                Ok(Response::Renewed { lasts, raft_term })
            }
            Request::Revoke { lease } => {
                let body = json!({ "ID": lease.to_string() });
                match self.etcd.post::<Value>("/v3/lease/revoke", &body, ANSWERS_WITHIN) {
                    // It was over already.
                    Err(failed) if !failed.has_answered => Err(failed),
                    _ => Ok(Response::Revoked),
                }
            }
        }
    }

    fn campaign(&self, lease: LeaseId) -> Result<Response, Failed> {
        let put = json!({ "requestPut":
            { "key": self.leader, "value": self.address, "lease": lease.to_string() } });
        let body = json!({
            "compare": [self.compare(NOBODY_LEADS)],
            "success": [put, self.get_state(false)],
            "failure": [self.get_leader(), self.get_state(true)],
        });
        let txn: Txn = self.etcd.post("/v3/kv/txn", &body, SAVED_WITHIN)?;
        if !txn.succeeded {
            return Ok(Response::Lost(sight(&txn)?));
        }
        let state = match txn.kv(1) {
            Some(kv) => Some(Stored { revision: kv.mod_revision, bytes: decoded(&kv.value)? }),
            None => None,
        };
        // The revision of this transaction is the one that created the key.
        Ok(Response::Won { term: txn.header.revision, state })
    }

    /// One attempt; why it failed comes beside the answer.
    pub fn save(&self, fence: Fence, state: &[u8]) -> (SaveResponse, Option<String>) {
        let value = STANDARD.encode(state);
        let compare: Vec<Value> =
            fence.conditions().into_iter().map(|condition| self.compare(condition)).collect();
        let body = json!({
            "compare": compare,
            "success": [{ "requestPut": { "key": self.state, "value": value } }],
            "failure": [self.get_leader(), self.get_state(false)],
        });
        let within = SAVED_WITHIN + SAVED_WITHIN * (state.len() >> 20) as u32;
        match self.etcd.post::<Txn>("/v3/kv/txn", &body, within) {
            Ok(txn) if txn.succeeded => (SaveResponse::Written(txn.header.revision), None),
            Ok(txn) => {
                let leader = txn.kv(0).map(|kv| kv.create_revision);
                let ours = txn.kv(1).filter(|kv| kv.value == value).map(|kv| kv.mod_revision);
                (SaveResponse::Refused { leader, ours }, None)
            }
            Err(Failed { is_certain: true, why, .. }) => (SaveResponse::NotExecuted, Some(why)),
            Err(Failed { why, .. }) => (SaveResponse::Unknown, Some(why)),
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
