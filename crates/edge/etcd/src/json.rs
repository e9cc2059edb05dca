//! etcd's answers as JSON. 64-bit numbers are strings there, and what is 0, false or empty is left out.

use std::str::FromStr;

use serde::{Deserialize, Deserializer};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Header {
    #[serde(deserialize_with = "number")]
    pub cluster_id: u64,
    #[serde(deserialize_with = "number")]
    pub revision: u64,
    /// Of etcd's own leader.
    #[serde(deserialize_with = "number")]
    pub raft_term: u64,
}

#[derive(Debug, Deserialize)]
pub struct Grant {
    #[serde(rename = "ID", deserialize_with = "number")]
    pub id: i64,
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub ttl: u64,
}

#[derive(Debug, Deserialize)]
pub struct KeepAlive {
    pub result: Kept,
}

#[derive(Debug, Deserialize)]
pub struct Kept {
    pub header: Header,
    /// Seconds; none of a lease that is gone.
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    pub ttl: u64,
}

#[derive(Debug, Deserialize)]
pub struct Txn {
    pub header: Header,
    #[serde(default)]
    pub succeeded: bool,
    #[serde(default)]
    responses: Vec<Done>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Done {
    response_range: Option<Range>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Range {
    pub header: Header,
    pub kvs: Vec<Kv>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Kv {
    #[serde(deserialize_with = "number")]
    pub create_revision: u64,
    #[serde(deserialize_with = "number")]
    pub mod_revision: u64,
    /// Both in base64.
    pub key: String,
    pub value: String,
    /// 0 is none.
    #[serde(deserialize_with = "number")]
    pub lease: i64,
}

/// How long a lease lasts.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct TimeToLive {
    pub header: Header,
    /// Seconds that are left, rounded down; -1 of a lease that is gone.
    #[serde(rename = "TTL", deserialize_with = "number")]
    left: i64,
    /// Seconds that it was granted.
    #[serde(rename = "grantedTTL", deserialize_with = "number")]
    granted: i64,
}

impl TimeToLive {
    /// Since its last renewal, at least.
    pub fn unrenewed_seconds(&self) -> u64 {
        (self.granted - self.left.max(0) - 1).max(0) as u64
    }
}

impl Txn {
    /// The key that its request at this place asked for, if there is one.
    pub fn kv(&self, at: usize) -> Option<&Kv> {
        self.responses.get(at)?.response_range.as_ref()?.kvs.first()
    }
}

/// Why not.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Refused {
    pub error: String,
    /// gRPC's.
    pub code: u32,
}

/// A number, as one or as text.
fn number<'a, D: Deserializer<'a>, N: FromStr + Deserialize<'a>>(from: D) -> Result<N, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either<N> {
        Number(N),
        Text(String),
    }
    match Either::deserialize(from)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => {
            text.parse().map_err(|_| serde::de::Error::custom(format!("{text} is no number")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_gone_has_no_time_left() {
        let text = r#"{"result":{"header":{"cluster_id":"14841639068965178418","raft_term":"2"},"ID":"7"}}"#;
        let told: KeepAlive = serde_json::from_str(text).expect("etcd 3.4 says so");
        assert_eq!((told.result.ttl, told.result.header.raft_term), (0, 2));
    }

    #[test]
    fn a_transaction_tells_what_its_requests_found() {
        let text = r#"{"header":{"revision":"9"},"responses":[
            {"response_range":{"header":{"revision":"9"},"kvs":[{"key":"YQ==","create_revision":"2","mod_revision":"3","value":"aGk="}],"count":"1"}},
            {"response_range":{"header":{"revision":"9"}}}]}"#;
        let txn: Txn = serde_json::from_str(text).expect("etcd 3.4 says so");
        assert!(!txn.succeeded && txn.header.revision == 9);
        let kv = txn.kv(0).expect("there is one");
        assert_eq!((kv.create_revision, kv.mod_revision, kv.value.as_str()), (2, 3, "aGk="));
        assert!(txn.kv(1).is_none() && txn.kv(2).is_none());
    }
}
