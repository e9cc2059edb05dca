//! What stands in front of a reply that goes from server to server.

use mbal_model::ReplicaVersion;
use mbal_replica::{Announcement, MARK};

/// What a home, or a shadow, says in front of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplyPrefix {
    /// Nothing: the home has answered, and tells of no copies.
    Without,
    /// The home tells of copies.
    Announcement(Announcement),
    /// It comes from a copy; of which version, if that is of use.
    FromCopy(Option<ReplicaVersion>),
}

impl ReplyPrefix {
    /// Puts it in front of what stands from `before` on.
    pub fn put(&self, before: usize, out: &mut Vec<u8>) {
        let text = match self {
            ReplyPrefix::Without => return,
            ReplyPrefix::Announcement(told) => told.to_string(),
            ReplyPrefix::FromCopy(replica_version) => {
                replica_version.map(token).unwrap_or_default()
            }
        };
        let Ok(length) = u8::try_from(text.len()) else { return };
        let reply = out.split_off(before);
        out.extend_from_slice(&[MARK, length]);
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(&reply);
    }

    /// Takes it from a reply. A home that holds a copy itself says what it has in another way, and is not asked by clients.
    pub fn from(reply: &[u8]) -> (ReplyPrefix, &[u8]) {
        let Some((&[MARK, length], rest)) = reply.split_first_chunk::<2>() else {
            return (ReplyPrefix::Without, reply);
        };
        let Some((text, rest)) = rest.split_at_checked(length.into()) else {
            return (ReplyPrefix::Without, reply);
        };
        if length == 0 {
            return (ReplyPrefix::FromCopy(None), rest);
        }
        let replica_version = text.strip_prefix(b"@").and_then(ReplicaVersion::parse);
        let told = || Announcement::parse(text).map(ReplyPrefix::Announcement);
        let from_copy =
            replica_version.map(|replica_version| ReplyPrefix::FromCopy(Some(replica_version)));
        (from_copy.or_else(told).unwrap_or(ReplyPrefix::Without), rest)
    }
}

/// What a copy's reply says of it.
pub(crate) fn token(replica_version: ReplicaVersion) -> String {
    format!("@{replica_version}")
}
