//! A request on its way to another server: self-contained, so that it can wait in a queue, cross
//! a link and be passed on.

use mbal_model::ReplicaVersion;

use crate::framing::{plain_value_bytes, value_length};

/// One request in the text or meta protocol, value included, with what a server must know to pass
/// it on. The answer is the reply that the client would have got from the owner, which for a quiet
/// request may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRequest<'a> {
    /// Servers that have passed it on: 1 when it leaves the server that the client is connected to.
    pub hops: u8,
    /// The map by which the sender chose the receiver.
    pub map_version: u64,
    /// Its sender is the source of a move, and its key has gone to the receiver.
    pub gone: Option<Gone>,
    /// The sender wants to hear of copies of the key (docs/design/hotkeys.md).
    pub wants_leases: bool,
    /// The receiver may answer from a copy that is no older than that.
    pub by_lease: Option<ReplicaVersion>,
    pub request: &'a [u8],
}

/// What the source of a move says with a request that it sends on to the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The move's number.
    pub by_move: u32,
    /// Everything of the cachelet up to this hash is the receiver's to serve.
    pub last: u64,
}

/// A request that this many servers have passed on is refused by whoever does not own its key. A cachelet may move twice
/// before every server has heard of it: the server that is asked, an older owner, the source and the destination.
pub const HOPS_MAX: u8 = 4;

const HEADER_BYTES: usize = 9;
/// In the byte of hops: a [`Gone`] follows the header.
const HAS_GONE: u8 = 1 << 7;
/// And what it says of copies.
const WANTS_LEASES: u8 = 1 << 6;
const BY_LEASE: u8 = 1 << 5;
const HOPS: u8 = BY_LEASE - 1;

impl<'a> PeerRequest<'a> {
    /// One that says nothing else.
    pub fn new(hops: u8, map_version: u64, request: &'a [u8]) -> PeerRequest<'a> {
        let (gone, wants_leases, by_lease) = (None, false, None);
        PeerRequest { hops, map_version, gone, wants_leases, by_lease, request }
    }

    /// Appends: hops (1 byte), map version (8, big-endian), request. With a [`Gone`] the highest bit of the hops is set, and its move
    /// (4) and hash (8) stand before the request; by a lease the third one, and grant and version (8 each).
    pub fn encode(&self, out: &mut Vec<u8>) {
        let bit = |says: bool, bit: u8| if says { bit } else { 0 };
        out.push(
            self.hops
                | bit(self.gone.is_some(), HAS_GONE)
                | bit(self.wants_leases, WANTS_LEASES)
                | bit(self.by_lease.is_some(), BY_LEASE),
        );
        out.extend_from_slice(&self.map_version.to_be_bytes());
        if let Some(Gone { by_move, last }) = self.gone {
            out.extend_from_slice(&by_move.to_be_bytes());
            out.extend_from_slice(&last.to_be_bytes());
        }
        if let Some(ReplicaVersion { grant, version }) = self.by_lease {
            out.extend_from_slice(&grant.to_be_bytes());
            out.extend_from_slice(&version.to_be_bytes());
        }
        out.extend_from_slice(self.request);
    }

    /// `None` if that is too short to be one.
    pub fn decode(bytes: &'a [u8]) -> Option<PeerRequest<'a>> {
        let (header, mut request) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let [hops, version @ ..] = *header;
        let mut gone = None;
        if hops & HAS_GONE != 0 {
            let (by_move, rest) = request.split_first_chunk::<4>()?;
            let (last, rest) = rest.split_first_chunk::<8>()?;
            let (by_move, last) = (u32::from_be_bytes(*by_move), u64::from_be_bytes(*last));
            (gone, request) = (Some(Gone { by_move, last }), rest);
        }
        let mut by_lease = None;
        if hops & BY_LEASE != 0 {
            let (grant, rest) = request.split_first_chunk::<8>()?;
            let (version, rest) = rest.split_first_chunk::<8>()?;
            let (grant, version) = (u64::from_be_bytes(*grant), u64::from_be_bytes(*version));
            (by_lease, request) = (Some(ReplicaVersion { grant, version }), rest);
        }
        let wants_leases = hops & WANTS_LEASES != 0;
        let (hops, map_version) = (hops & HOPS, u64::from_be_bytes(version));
        let peer = PeerRequest { hops, map_version, gone, wants_leases, by_lease, request };
        (!request.is_empty()).then_some(peer)
    }
}

/// The first value of a reply to `get`, its line included, and what follows; `None` at the end.
#[inline]
pub fn next_value<'a>(reply: &'a [u8], key: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let behind_key = b"VALUE ".len() + key.len();
    let head = reply.get(..=behind_key)?;
    if !head.starts_with(b"VALUE ") || head[b"VALUE ".len()..behind_key] != *key {
        return None;
    }
    let bytes = match plain_value_bytes(reply, behind_key) {
        _ if head[behind_key] != b' ' => return None,
        Some(bytes) => bytes,
        None => {
            let end = memchr::memchr(b'\n', reply)?;
            end + 1 + value_length(&reply[..end])? + 2
        }
    };
    reply.split_at_checked(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_the_link() {
        let request = b"get k\r\n";
        let gone = Some(Gone { by_move: 7, last: 1 << 60 });
        let by_lease = Some(ReplicaVersion { grant: 5 << 32, version: 3 });
        for (gone, by_lease, header_bytes) in
            [(None, None, 9), (gone, None, 21), (None, by_lease, 25), (gone, by_lease, 37)]
        {
            let wants_leases = gone.is_some();
            let peer = PeerRequest::new(2, 1 << 40, request);
            let request = PeerRequest { gone, wants_leases, by_lease, ..peer };
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            assert_eq!(PeerRequest::decode(&bytes), Some(request));
            for end in 0..=header_bytes {
                assert_eq!(PeerRequest::decode(&bytes[..end]), None, "{end}");
            }
        }
    }

    #[test]
    fn values_are_taken_one_by_one() {
        let reply = b"VALUE a 0 3\r\nx\r\n\r\nVALUE b 0 0 7\r\n\r\nEND\r\n";
        let (first, rest) = next_value(reply, b"a").expect("a is there");
        assert_eq!(first, b"VALUE a 0 3\r\nx\r\n\r\n");
        assert_eq!(next_value(rest, b"a"), None);
        assert_eq!(next_value(rest, b"b"), Some((&b"VALUE b 0 0 7\r\n\r\n"[..], &b"END\r\n"[..])));
        assert_eq!(next_value(b"VALUE a 0 99\r\nx\r\n", b"a"), None);
    }
}
