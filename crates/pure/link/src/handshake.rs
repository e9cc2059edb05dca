//! Who is at the other end: both sides show that they know the cluster's secret, without sending it.
//!
//! ```text
//!   dialing                                                            accepting
//!      |-- Hello: versions, cluster, from (server, worker), to, nonce ---->|  a server of this cluster? for us?
//!      |<- Challenge: version, nonce, HMAC("accepts", all so far) ---------|
//!      |  the same secret?                                                 |
//!      |-- Proof: HMAC("dials", all so far) ------------------------------>|  the same secret?
//!      |<- Welcome: requests that may be unanswered, what the clock shows --|
//! ```
//! Instead of its next message the accepting side may send a [`Kind::Refusal`], which says why, and close.

use std::fmt;
use std::ops::RangeInclusive;

use ring::hmac;

use crate::frame::{Frame, Kind, push_frame};

/// Versions of the protocol that are spoken, the first byte after the handshake included.
pub const VERSIONS: RangeInclusive<u16> = 1..=NEWEST;
const NEWEST: u16 = if cfg!(feature = "next-protocol") { NEXT } else { DEADLINES };
/// From this version on requests say until when they may be executed, and welcomes and pongs what the accepting side's clock shows.
pub const DEADLINES: u16 = 2;
/// A version that only tests of an upgrade speak. Its welcome has a zero byte more, so that who took one version for the
/// other is found out.
const NEXT: u16 = 3;
pub const NONCE_BYTES: usize = 32;
pub const CLUSTER_BYTES_MAX: usize = 64;
/// No payload of the handshake is longer.
pub const HANDSHAKE_FRAME_BYTES_MAX: usize = 256;

const MAGIC: &[u8; 4] = b"MBAL";
const PROOF_BYTES: usize = 32;

/// What all servers of a cluster know, and which of them this is.
#[derive(Clone)]
pub struct Cluster {
    pub name: String,
    pub here: u16,
    key: hmac::Key,
}

impl Cluster {
    /// # Panics
    /// If the name has more than [`CLUSTER_BYTES_MAX`] bytes.
    pub fn new(name: &str, here: u16, secret: &[u8]) -> Cluster {
        assert!(name.len() <= CLUSTER_BYTES_MAX);
        Cluster { name: name.into(), here, key: hmac::Key::new(hmac::HMAC_SHA256, secret) }
    }

    fn proof(&self, side: Side, transcript: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(side.label());
        context.update(transcript);
        context.sign()
    }

    fn is_proof(&self, side: Side, transcript: &[u8], proof: &[u8]) -> bool {
        let signed = [side.label(), transcript].concat();
        hmac::verify(&self.key, &signed, proof).is_ok()
    }
}

/// Who proves: a proof of one side is none of the other's.
#[derive(Clone, Copy)]
enum Side {
    Dials,
    Accepts,
}

impl Side {
    fn label(self) -> &'static [u8] {
        match self {
            Side::Dials => b"mbal link: dials\0",
            Side::Accepts => b"mbal link: accepts\0",
        }
    }
}

/// Why there is no link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No handshake, or not this far into one.
    Malformed,
    /// The other side speaks these versions alone.
    Version(u16, u16),
    Cluster,
    /// It is not, or does not look for, the server that it should.
    Server(u16),
    Secret,
    /// The other side said that it refuses, and why.
    ByPeer(Box<Refused>),
}

impl Refused {
    /// In a [`Kind::Refusal`].
    fn code(&self) -> u8 {
        match self {
            Refused::Malformed | Refused::ByPeer(_) => 0,
            Refused::Version(..) => 1,
            Refused::Cluster => 2,
            Refused::Server(_) => 3,
            Refused::Secret => 4,
        }
    }

    fn told(payload: &[u8]) -> Refused {
        let why = match *payload {
            [1, a, b, c, d] => {
                Refused::Version(u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
            }
            [2] => Refused::Cluster,
            [3, a, b] => Refused::Server(u16::from_le_bytes([a, b])),
            [4] => Refused::Secret,
            _ => Refused::Malformed,
        };
        Refused::ByPeer(Box::new(why))
    }

    /// The message to the other side.
    fn tell(&self, cluster: &Cluster) -> Vec<u8> {
        let mut payload = vec![self.code()];
        match self {
            Refused::Version(..) => {
                payload.extend_from_slice(&VERSIONS.start().to_le_bytes());
                payload.extend_from_slice(&VERSIONS.end().to_le_bytes());
            }
            Refused::Server(_) => payload.extend_from_slice(&cluster.here.to_le_bytes()),
            _ => {}
        }
        message(Kind::Refusal, &payload)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Malformed => write!(out, "it does not speak the protocol of links"),
            Refused::Version(low, high) => {
                write!(out, "it speaks versions {low} to {high} of the protocol")
            }
            Refused::Cluster => write!(out, "it belongs to another cluster"),
            Refused::Server(server) => write!(out, "it is, or wants, server {server}"),
            Refused::Secret => write!(out, "its secret is another"),
            Refused::ByPeer(why) => write!(out, "it refuses: of us it says that {why}"),
        }
    }
}

/// How a handshake goes on.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this, and wait.
    Send(Vec<u8>),
    /// Send this; from now on there are requests and replies.
    Up(Vec<u8>, Established),
    /// Send this, and close.
    Refuse(Vec<u8>, Refused),
}

/// A link, as both sides know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Established {
    pub version: u16,
    /// The server at the other end, and the dialing side's worker.
    pub server: u16,
    pub worker: u16,
    /// Requests that may be unanswered.
    pub credits: u32,
    /// What the accepting side's clock showed, in microseconds; 0 by a version without deadlines.
    pub reading: u64,
}

/// The side that opened the connection, and will send requests.
pub struct Dialing {
    cluster: Cluster,
    worker: u16,
    to: u16,
    /// The payloads so far.
    transcript: Vec<u8>,
    version: Option<u16>,
}

impl Dialing {
    /// What to send first, too. `binding` is what only the two ends of this connection know, if it is encrypted.
    pub fn new(
        cluster: &Cluster,
        worker: u16,
        to: u16,
        nonce: &[u8; NONCE_BYTES],
        binding: &[u8],
    ) -> (Dialing, Vec<u8>) {
        let mut hello = MAGIC.to_vec();
        for number in [*VERSIONS.start(), *VERSIONS.end(), cluster.here, worker, to] {
            hello.extend_from_slice(&number.to_le_bytes());
        }
        hello.extend_from_slice(nonce);
        hello.extend_from_slice(cluster.name.as_bytes());
        let transcript = begin(binding, &hello);
        let first = message(Kind::Hello, &hello);
        (Dialing { cluster: cluster.clone(), worker, to, transcript, version: None }, first)
    }

    pub fn step(&mut self, frame: &Frame<'_>) -> Step {
        self.try_step(frame).unwrap_or_else(|refused| Step::Refuse(Vec::new(), refused))
    }

    fn try_step(&mut self, frame: &Frame<'_>) -> Result<Step, Refused> {
        match (frame.kind, self.version) {
            (Kind::Refusal, _) => Err(Refused::told(frame.payload)),
            (Kind::Challenge, None) => {
                let challenge = Challenge::read(frame.payload).ok_or(Refused::Malformed)?;
                let version = challenge.version;
                if !VERSIONS.contains(&version) {
                    return Err(Refused::Version(version, version));
                }
                self.transcript.extend_from_slice(challenge.head);
                if !self.cluster.is_proof(Side::Accepts, &self.transcript, challenge.proof) {
                    return Err(Refused::Secret);
                }
                self.version = Some(version);
                let proof = self.cluster.proof(Side::Dials, &self.transcript);
                Ok(Step::Send(message(Kind::Proof, proof.as_ref())))
            }
            (Kind::Welcome, Some(version)) => {
                let (credits, reading) =
                    read_welcome(version, frame.payload).ok_or(Refused::Malformed)?;
                let (server, worker) = (self.to, self.worker);
                let established = Established { version, server, worker, credits, reading };
                Ok(Step::Up(Vec::new(), established))
            }
            _ => Err(Refused::Malformed),
        }
    }
}

/// The other side.
pub struct Accepting {
    cluster: Cluster,
    nonce: [u8; NONCE_BYTES],
    binding: Vec<u8>,
    credits: u32,
    /// After the challenge: all so far, and who dials.
    challenged: Option<(Vec<u8>, Established)>,
}

impl Accepting {
    pub fn new(
        cluster: &Cluster,
        credits: u32,
        nonce: &[u8; NONCE_BYTES],
        binding: &[u8],
    ) -> Accepting {
        let (nonce, binding) = (*nonce, binding.to_vec());
        Accepting { cluster: cluster.clone(), nonce, binding, credits, challenged: None }
    }

    /// `reading` is what the clock shows, in microseconds.
    pub fn step(&mut self, frame: &Frame<'_>, reading: u64) -> Step {
        self.try_step(frame, reading)
            .unwrap_or_else(|refused| Step::Refuse(refused.tell(&self.cluster), refused))
    }

    fn try_step(&mut self, frame: &Frame<'_>, reading: u64) -> Result<Step, Refused> {
        match (frame.kind, &self.challenged) {
            (Kind::Hello, None) => {
                let hello = Hello::read(frame.payload).ok_or(Refused::Malformed)?;
                let here = self.cluster.here;
                let version = hello.high.min(*VERSIONS.end());
                if hello.high < *VERSIONS.start() || *VERSIONS.end() < hello.low {
                    return Err(Refused::Version(hello.low, hello.high));
                } else if hello.cluster != self.cluster.name.as_bytes() {
                    return Err(Refused::Cluster);
                } else if hello.to != here {
                    return Err(Refused::Server(hello.to));
                } else if hello.from == here {
                    return Err(Refused::Server(hello.from));
                }
                let mut payload = version.to_le_bytes().to_vec();
                payload.extend_from_slice(&self.nonce);
                let mut transcript = begin(&self.binding, frame.payload);
                transcript.extend_from_slice(&payload);
                payload.extend_from_slice(self.cluster.proof(Side::Accepts, &transcript).as_ref());
                let (server, worker, credits) = (hello.from, hello.worker, self.credits);
                let established = Established { version, server, worker, credits, reading: 0 };
                self.challenged = Some((transcript, established));
                Ok(Step::Send(message(Kind::Challenge, &payload)))
            }
            (Kind::Proof, Some((transcript, established))) => {
                if !self.cluster.is_proof(Side::Dials, transcript, frame.payload) {
                    return Err(Refused::Secret);
                }
                let welcome = welcome(established.version, self.credits, reading);
                Ok(Step::Up(message(Kind::Welcome, &welcome), *established))
            }
            _ => Err(Refused::Malformed),
        }
    }
}

fn welcome(version: u16, credits: u32, reading: u64) -> Vec<u8> {
    let mut payload = credits.to_le_bytes().to_vec();
    if version >= DEADLINES {
        payload.extend_from_slice(&reading.to_le_bytes());
    }
    if version == NEXT {
        payload.push(0);
    }
    payload
}

/// Credits, and what the clock shows.
fn read_welcome(version: u16, payload: &[u8]) -> Option<(u32, u64)> {
    let (credits, rest) = payload.split_first_chunk()?;
    let (reading, rest) = match version >= DEADLINES {
        true => rest.split_first_chunk().map(|(reading, rest)| (*reading, rest))?,
        false => ([0; 8], rest),
    };
    let more: &[u8] = if version == NEXT { &[0] } else { &[] };
    (rest == more).then_some((u32::from_le_bytes(*credits), u64::from_le_bytes(reading)))
}

fn message(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    push_frame(&mut out, &Frame { kind, ticket: 0, payload });
    out
}

/// The beginning of what is proved. Lengths stand before what varies in length.
fn begin(binding: &[u8], hello: &[u8]) -> Vec<u8> {
    let lengths = [binding.len() as u32, hello.len() as u32].map(u32::to_le_bytes);
    [lengths.as_flattened(), binding, hello].concat()
}

struct Hello<'a> {
    low: u16,
    high: u16,
    from: u16,
    worker: u16,
    to: u16,
    cluster: &'a [u8],
}

impl<'a> Hello<'a> {
    fn read(payload: &'a [u8]) -> Option<Hello<'a>> {
        let (numbers, rest) = payload.strip_prefix(MAGIC)?.split_first_chunk::<10>()?;
        let [low, high, from, worker, to] =
            [0, 2, 4, 6, 8].map(|at| u16::from_le_bytes([numbers[at], numbers[at + 1]]));
        let (_nonce, cluster) = rest.split_first_chunk::<NONCE_BYTES>()?;
        (cluster.len() <= CLUSTER_BYTES_MAX).then_some(Hello {
            low,
            high,
            from,
            worker,
            to,
            cluster,
        })
    }
}

struct Challenge<'a> {
    version: u16,
    /// What the proof is about.
    head: &'a [u8],
    proof: &'a [u8],
}

impl<'a> Challenge<'a> {
    fn read(payload: &'a [u8]) -> Option<Challenge<'a>> {
        let (head, proof) = payload.split_at_checked(2 + NONCE_BYTES)?;
        let version = u16::from_le_bytes([head[0], head[1]]);
        (proof.len() == PROOF_BYTES).then_some(Challenge { version, head, proof })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::next_frame;

    const READING: u64 = 1 << 40;

    fn cluster(name: &str, here: u16, secret: &str) -> Cluster {
        Cluster::new(name, here, secret.as_bytes())
    }

    /// Lets two sides talk: what becomes of each.
    fn shake(dials: &Cluster, to: u16, accepts: &Cluster) -> (Step, Step) {
        shake_bound(dials, to, accepts, [b"", b""])
    }

    fn shake_bound(
        dials: &Cluster,
        to: u16,
        accepts: &Cluster,
        bindings: [&[u8]; 2],
    ) -> (Step, Step) {
        let (mut dialing, first) = Dialing::new(dials, 3, to, &[1; 32], bindings[0]);
        let mut accepting = Accepting::new(accepts, 9, &[2; 32], bindings[1]);
        let mut bytes = first;
        loop {
            let accepted = accepting.step(&only(&bytes), READING);
            let (Step::Send(answer) | Step::Up(answer, _) | Step::Refuse(answer, _)) = &accepted;
            let dialed = dialing.step(&only(answer));
            match dialed {
                Step::Send(next) => bytes = next,
                _ => return (dialed, accepted),
            }
        }
    }

    fn only(bytes: &[u8]) -> Frame<'_> {
        let (frame, rest) =
            next_frame(bytes, HANDSHAKE_FRAME_BYTES_MAX).expect("well formed").expect("whole");
        assert_eq!(rest, b"");
        frame
    }

    #[test]
    fn two_servers_of_a_cluster_find_each_other() {
        let (one, two) = (cluster("shop", 1, "secret"), cluster("shop", 2, "secret"));
        let (dialed, accepted) = shake(&one, 2, &two);
        let up = |server, reading| Established {
            version: NEWEST,
            server,
            worker: 3,
            credits: 9,
            reading,
        };
        assert_eq!(dialed, Step::Up(vec![], up(2, READING)));
        assert!(matches!(accepted, Step::Up(_, established) if established == up(1, 0)));
    }

    #[test]
    fn the_hello_is_these_bytes() {
        let (_, first) = Dialing::new(&cluster("shop", 0x102, "s"), 3, 4, &[b'n'; 32], b"");
        let mut expected = b"\x32\0\0\0\x10\0\0\0\0MBAL\x01\0".to_vec();
        expected.extend_from_slice(&NEWEST.to_le_bytes());
        expected.extend_from_slice(b"\x02\x01\x03\0\x04\0");
        expected.extend_from_slice(&[b'n'; 32]);
        expected.extend_from_slice(b"shop");
        assert_eq!(first, expected);
    }

    #[test]
    fn whoever_does_not_belong_here_is_refused_and_told_why() {
        let here = cluster("shop", 2, "secret");
        for (dials, to, refused) in [
            (cluster("shop", 1, "secret"), 3, Refused::Server(3)),
            (cluster("shop", 2, "secret"), 2, Refused::Server(2)),
            (cluster("shop2", 1, "secret"), 2, Refused::Cluster),
        ] {
            let (dialed, accepted) = shake(&dials, to, &here);
            assert!(matches!(&accepted, Step::Refuse(_, why) if *why == refused), "{accepted:?}");
            let Step::Refuse(_, Refused::ByPeer(why)) = dialed else { panic!("{dialed:?}") };
            assert_eq!(why.code(), refused.code());
        }
        // Of two that have not the same secret the dialing one hears the first proof.
        let (dialed, accepted) = shake(&cluster("shop", 1, "other"), 2, &here);
        assert_eq!(dialed, Step::Refuse(vec![], Refused::Secret));
        assert!(matches!(accepted, Step::Send(_)));
    }

    #[test]
    fn a_proof_is_of_one_connection_and_one_side() {
        let (one, two) = (cluster("shop", 1, "secret"), cluster("shop", 2, "secret"));
        let (dialed, _) = shake_bound(&one, 2, &two, [b"here", b"there"]);
        assert_eq!(dialed, Step::Refuse(vec![], Refused::Secret));
        // Who does not know the secret sends the accepting side's proof back.
        let mut accepting = Accepting::new(&two, 9, &[2; 32], b"");
        let (_, first) = Dialing::new(&one, 3, 2, &[1; 32], b"");
        let Step::Send(challenge) = accepting.step(&only(&first), READING) else {
            panic!("no challenge")
        };
        let proof = &only(&challenge).payload[34..];
        let step = accepting.step(&Frame { kind: Kind::Proof, ticket: 0, payload: proof }, READING);
        assert!(matches!(step, Step::Refuse(_, Refused::Secret)), "{step:?}");
    }

    #[test]
    fn versions_live_side_by_side_if_they_share_one() {
        let two = cluster("shop", 2, "secret");
        for (low, high, is_spoken) in
            [(0u16, 1u16, true), (1, 9, true), (NEWEST + 1, 9, false), (0, 0, false)]
        {
            let (_, first) = Dialing::new(&cluster("shop", 1, "secret"), 3, 2, &[1; 32], b"");
            let mut hello = only(&first).payload.to_vec();
            hello[4..6].copy_from_slice(&low.to_le_bytes());
            hello[6..8].copy_from_slice(&high.to_le_bytes());
            let mut accepting = Accepting::new(&two, 9, &[2; 32], b"");
            let step =
                accepting.step(&Frame { kind: Kind::Hello, ticket: 0, payload: &hello }, READING);
            match step {
                Step::Send(challenge) if is_spoken => {
                    let newest = high.min(NEWEST).to_le_bytes();
                    assert_eq!(only(&challenge).payload[..2], newest);
                }
                Step::Refuse(told, why) if !is_spoken => {
                    assert_eq!(why, Refused::Version(low, high));
                    let newest = NEWEST.to_le_bytes();
                    assert_eq!(only(&told).payload, [1, 1, 0, newest[0], newest[1]]);
                }
                other => panic!("{low} to {high}: {other:?}"),
            }
        }
    }

    /// A server of an older build dials: what it says, and is told, as that build does it.
    #[test]
    fn older_versions_are_spoken_with_who_knows_no_other() {
        let (one, two) = (cluster("shop", 1, "secret"), cluster("shop", 2, "secret"));
        let told = [9u32.to_le_bytes().to_vec(), READING.to_le_bytes().to_vec()].concat();
        for (high, expected) in [(1, &told[..4]), (DEADLINES, &told[..])] {
            let mut accepting = Accepting::new(&two, 9, &[2; 32], b"");
            let (_, first) = Dialing::new(&one, 3, 2, &[1; 32], b"");
            let mut hello = only(&first).payload.to_vec();
            hello[6..8].copy_from_slice(&u16::to_le_bytes(high));
            let payload = &hello;
            let step = accepting.step(&Frame { kind: Kind::Hello, ticket: 0, payload }, READING);
            let Step::Send(challenge) = step else { panic!("{step:?}") };
            let transcript = [begin(b"", &hello), only(&challenge).payload[..34].to_vec()].concat();
            let proof = one.proof(Side::Dials, &transcript);
            let payload = proof.as_ref();
            let step = accepting.step(&Frame { kind: Kind::Proof, ticket: 0, payload }, READING);
            let Step::Up(welcome, established) = step else { panic!("{step:?}") };
            assert_eq!((only(&welcome).payload, established.version), (expected, high));
            assert_eq!(read_welcome(high, expected).map(|(credits, _)| credits), Some(9));
            assert_eq!(read_welcome(3 - high, expected), None);
        }
    }

    #[test]
    fn nothing_but_the_next_message_is_taken() {
        let two = cluster("shop", 2, "secret");
        for kind in [Kind::Request, Kind::Proof, Kind::Ping, Kind::Challenge, Kind::Welcome] {
            let mut accepting = Accepting::new(&two, 9, &[2; 32], b"");
            let step = accepting.step(&Frame { kind, ticket: 0, payload: b"" }, READING);
            assert!(matches!(step, Step::Refuse(_, Refused::Malformed)), "{kind:?}");
        }
        for kind in [Kind::Reply, Kind::Welcome, Kind::Hello] {
            let (mut dialing, _) = Dialing::new(&two, 3, 1, &[1; 32], b"");
            let step = dialing.step(&Frame { kind, ticket: 0, payload: &[0; 4] });
            assert_eq!(step, Step::Refuse(vec![], Refused::Malformed), "{kind:?}");
        }
    }
}
