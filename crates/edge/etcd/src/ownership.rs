//! Servers' keys: a server renews its own, and a leading coordinator looks at all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mbal_election::{KeySeen, LeaseId, OwnerRequest, OwnerResponse, Terms};
use mbal_model::ServerId;
use serde_json::json;

use crate::client::{ANSWERS_WITHIN, Etcd, Failed, decoded};
use crate::json::{Range, TimeToLive, Txn};

const SERVERS: &str = "servers/";

/// The key of one server, `mbal/NAME/servers/ID`: its incarnation, bound to its lease.
pub struct OwnKey {
    etcd: Etcd,
    /// Both in base64.
    key: String,
    incarnation: String,
}

impl OwnKey {
    pub fn new(etcd: Etcd, server: ServerId, incarnation: &str) -> OwnKey {
        let key = etcd.key(&format!("{SERVERS}{}", server.0));
        OwnKey { etcd, key, incarnation: STANDARD.encode(incarnation) }
    }

    /// # Panics
    /// If coordinators are to be asked.
    pub fn ask(&self, request: OwnerRequest, terms: Terms) -> Result<OwnerResponse, Failed> {
        match request {
            OwnerRequest::Grant => {
                let (lease, _) = self.etcd.grant(terms.key_lasts().as_secs())?;
                Ok(OwnerResponse::Granted { lease })
            }
            OwnerRequest::Write { lease } => {
                let put = json!({ "key": self.key, "value": self.incarnation, "lease": lease.to_string() });
                match self.etcd.post::<serde_json::Value>("/v3/kv/put", &put, ANSWERS_WITHIN) {
                    Ok(_) => Ok(OwnerResponse::Written),
                    // The lease has ended meanwhile.
                    Err(failed) if failed.is_certain && failed.has_answered => {
                        Ok(OwnerResponse::NoLease)
                    }
                    Err(failed) => Err(failed),
                }
            }
            OwnerRequest::Renew { lease } => match self.etcd.renew(lease)? {
                (lasts, _) if lasts.is_zero() => Ok(OwnerResponse::NoLease),
                // What is counted is the terms' lease, which is shorter.
                (_, raft_term) => Ok(OwnerResponse::Renewed { raft_term }),
            },
            OwnerRequest::Look { lease } => self.look(lease),
            OwnerRequest::WhoLeads => panic!("etcd knows only one of them"),
        }
    }

    /// A transaction is linearizable.
    fn look(&self, lease: LeaseId) -> Result<OwnerResponse, Failed> {
        let body = json!({ "success": [{ "requestRange": { "key": self.key } }] });
        let txn: Txn = self.etcd.post("/v3/kv/txn", &body, ANSWERS_WITHIN)?;
        let is_ours = |kv: &crate::json::Kv| kv.value == self.incarnation && kv.lease == lease;
        let is_there = txn.kv(0).is_some_and(is_ours);
        Ok(OwnerResponse::Seen { is_there, raft_term: txn.header.raft_term })
    }
}

/// The keys of all servers.
pub struct OwnersKeys {
    etcd: Etcd,
    first: String,
    end: String,
}

impl OwnersKeys {
    pub fn new(etcd: Etcd) -> OwnersKeys {
        // `0` comes after `/`.
        let (first, end) = (etcd.key(SERVERS), etcd.key("servers0"));
        OwnersKeys { etcd, first, end }
    }

    /// What there is, linearizable, of these servers: for each its incarnation, and whether its lease is asked about too.
    pub fn look(
        &self,
        of: &BTreeMap<ServerId, (String, bool)>,
    ) -> Result<BTreeMap<ServerId, KeySeen>, Failed> {
        let range = json!({ "key": self.first, "range_end": self.end });
        let mut seen: BTreeMap<ServerId, KeySeen> =
            of.keys().map(|server| (*server, KeySeen::Absent)).collect();
        let mut doubtful = Vec::new();
        let before: Range = self.etcd.post("/v3/kv/range", &range, ANSWERS_WITHIN)?;
        for kv in &before.kvs {
            let name = String::from_utf8_lossy(&decoded(&kv.key)?).into_owned();
            let number = name.rsplit_once('/').and_then(|(_, id)| id.parse().ok());
            let Some(server) = number.map(ServerId) else { continue };
            let Some((incarnation, is_asked_about)) = of.get(&server) else { continue };
            if decoded(&kv.value)? == incarnation.as_bytes() {
                seen.insert(server, KeySeen::Present { unrenewed: Duration::ZERO });
                if *is_asked_about {
                    doubtful.push((server, kv.lease));
                }
            }
        }
        if doubtful.is_empty() {
            return Ok(seen);
        }
        let mut leases = BTreeMap::new();
        for (server, lease) in doubtful {
            let body = json!({ "ID": lease.to_string() });
            let left: TimeToLive = self.etcd.post("/v3/lease/timetolive", &body, ANSWERS_WITHIN)?;
            leases.insert(server, left);
        }
        // A member of etcd that was replaced as its leader tells of leases that others have renewed since. What was told before a
        // linearizable answer of the same term was told by the leader.
        let after: Range = self.etcd.post("/v3/kv/range", &range, ANSWERS_WITHIN)?;
        for (server, left) in leases {
            if left.header.raft_term == after.header.raft_term {
                let unrenewed = Duration::from_secs(left.unrenewed_seconds());
                seen.insert(server, KeySeen::Present { unrenewed });
            }
        }
        Ok(seen)
    }
}
