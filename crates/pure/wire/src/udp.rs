//! Requests and replies in datagrams: a header of four numbers of 16 bits, then as much as fits.
//!
//! ```text
//!   request id | sequence number | datagrams of this message | 0
//! ```

const HEADER_BYTES: usize = 8;

/// Of a datagram, header included: it fits through an Ethernet in one piece.
pub const DATAGRAM_BYTES_MAX: usize = 1400;

/// What a request's datagram brings, and the id that its replies repeat.
///
/// `None` for what is not a whole message: one of several datagrams is dropped, as memcached does.
/// So is its sequence number not looked at.
pub fn parse_datagram(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (header, requests) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let number = |at| u16::from_be_bytes([header[at], header[at + 1]]);
    (number(4) == 1 && !requests.is_empty()).then_some((number(0), requests))
}

/// The datagrams of one reply: header and content of each. More than 65,535 are not numbered any
/// more, as in memcached; no item and nothing that is bounded comes near.
pub fn datagrams(request_id: u16, reply: &[u8]) -> impl Iterator<Item = ([u8; 8], &[u8])> {
    let chunks = reply.chunks(DATAGRAM_BYTES_MAX - HEADER_BYTES);
    let total = u16::try_from(chunks.len()).unwrap_or(u16::MAX);
    chunks.enumerate().map(move |(sequence, chunk)| {
        let mut header = [0; HEADER_BYTES];
        for (at, number) in [request_id, sequence as u16, total].into_iter().enumerate() {
            header[2 * at..2 * at + 2].copy_from_slice(&number.to_be_bytes());
        }
        (header, chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_datagram_is_a_message() {
        assert_eq!(parse_datagram(b"\x01\x02\0\x09\0\x01\0\x07get a\r\n"), {
            Some((0x102, &b"get a\r\n"[..]))
        });
        for other in
            [&b"\0\0\0\0\0\x01\0\0"[..], b"\0\0\0\0\0\x02\0\0x", b"\0\0\0\0\0\0\0\0x", b"x"]
        {
            assert_eq!(parse_datagram(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_long_reply_is_numbered() {
        let reply: Vec<u8> = (0..3000).map(|at| at as u8).collect();
        let sent: Vec<_> = datagrams(0x105, &reply).collect();
        let headers: Vec<[u8; 8]> = sent.iter().map(|(header, _)| *header).collect();
        let header = |sequence| [1, 5, 0, sequence, 0, 3, 0, 0];
        assert_eq!(headers, [header(0), header(1), header(2)]);
        assert_eq!(sent[0].1.len() + HEADER_BYTES, DATAGRAM_BYTES_MAX);
        let joined: Vec<u8> = sent.iter().flat_map(|(_, chunk)| chunk.iter().copied()).collect();
        assert_eq!(joined, reply);
        assert_eq!(datagrams(1, b"").count(), 0);
    }
}
