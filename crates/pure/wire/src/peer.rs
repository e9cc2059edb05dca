//! A request on its way to another server: self-contained, so that it can wait in a queue, cross
//! a link and be passed on.

/// One request in the text or meta protocol, value included, with what a server must know to pass
/// it on. The answer is the reply that the client would have got from the owner, which for a quiet
/// request may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRequest<'a> {
    /// Servers that have passed it on: 1 when it leaves the server that the client is connected to.
    pub hops: u8,
    /// The map by which the sender chose the receiver.
    pub map_version: u64,
    pub request: &'a [u8],
}

/// A request that this many servers have passed on is refused by whoever does not own its key.
pub const HOPS_MAX: u8 = 2;

const HEADER_BYTES: usize = 9;

impl<'a> PeerRequest<'a> {
    /// Appends: hops (1 byte), map version (8, big-endian), request.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.hops);
        out.extend_from_slice(&self.map_version.to_be_bytes());
        out.extend_from_slice(self.request);
    }

    /// `None` if that is too short to be one.
    pub fn decode(bytes: &'a [u8]) -> Option<PeerRequest<'a>> {
        let (header, request) = bytes.split_at_checked(HEADER_BYTES)?;
        let (hops, version) = header.split_first()?;
        let map_version = u64::from_be_bytes(version.try_into().ok()?);
        (!request.is_empty()).then_some(PeerRequest { hops: *hops, map_version, request })
    }
}

/// The first value of a reply to `get`, its line included, and what follows; `None` at the end.
pub fn next_value<'a>(reply: &'a [u8], key: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let rest = reply.strip_prefix(b"VALUE ")?.strip_prefix(key)?.strip_prefix(b" ")?;
    let line = &rest[..memchr::memchr(b'\r', rest)?];
    let value_bytes = crate::parse_u64(line.split(|byte| *byte == b' ').nth(1)?)?;
    let header = reply.len() - rest.len() + line.len() + 2;
    reply.split_at_checked(header.checked_add(usize::try_from(value_bytes).ok()?)? + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_the_link() {
        let request = PeerRequest { hops: 2, map_version: 1 << 40, request: b"get k\r\n" };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        assert_eq!(PeerRequest::decode(&bytes), Some(request));
        assert_eq!(PeerRequest::decode(&bytes[..9]), None);
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
