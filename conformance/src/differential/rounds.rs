//! Two servers, asked the same in the binary protocol and in datagrams, a round at a time.

use super::cells::Cells;
use super::packets::{self, Packet, Reply, SENTINEL, Seen};
use super::random::Random;
use super::reply::{Allowed, Comparer, kind, units};
use crate::peer::{Arrival, Conn, Peer, SocketPeer};
use crate::server::{Launch, Server};
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

/// What is to be compared, and how long.
pub struct Rounds {
    pub left: Launch,
    pub right: Launch,
    pub seed: u64,
    /// Binary requests over TCP.
    pub requests: u64,
    /// Datagrams, text and binary.
    pub datagrams: u64,
    /// Spoils a byte of one reply in so many rounds.
    pub plant_every: Option<usize>,
}

#[derive(Default)]
pub struct RoundsReport {
    pub cells: Cells,
    pub used: BTreeMap<Allowed, u64>,
    pub requests: u64,
    pub datagrams: u64,
    pub failures: Vec<String>,
    pub planted: u64,
    pub caught: u64,
}

/// Nothing on loopback takes so long.
const PATIENCE: Duration = Duration::from_secs(30);
const FAILURES_MAX: usize = 5;

struct Side {
    peer: SocketPeer,
    conn: Option<Conn>,
    udp: UdpSocket,
    _process: Server,
}

struct Pair {
    sides: [Side; 2],
    comparer: Comparer,
    seen: Seen,
    report: RoundsReport,
    random: Random,
    plant_every: Option<usize>,
}

impl Rounds {
    pub fn run(&self) -> Result<RoundsReport, String> {
        let start = |launch: &Launch| {
            let (process, port) = launch.start_with_udp()?;
            let udp = UdpSocket::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
            udp.connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
            udp.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
            let peer = SocketPeer::new(process.address.clone());
            Ok::<_, String>(Side { peer, conn: None, udp, _process: process })
        };
        let mut pair = Pair {
            sides: [start(&self.left)?, start(&self.right)?],
            comparer: Comparer::default(),
            seen: Seen::default(),
            report: RoundsReport::default(),
            random: Random::new(self.seed),
            plant_every: self.plant_every,
        };
        let go_on = |pair: &Pair| pair.report.failures.len() < FAILURES_MAX;
        while pair.report.requests < self.requests && go_on(&pair) {
            pair.binary_round();
        }
        // Replies that do not fit into a socket's buffer would be lost.
        pair.play(vec![Packet::new(0x08)], false);
        while pair.report.datagrams < self.datagrams && go_on(&pair) {
            match pair.random.below(3) {
                0 => pair.binary_datagram(),
                _ => pair.text_datagram(),
            }
        }
        pair.report.used = pair.comparer.used;
        Ok(pair.report)
    }
}

impl Pair {
    fn binary_round(&mut self) {
        let count = 1 + self.random.below(16);
        let mut packets: Vec<Packet> =
            (0..count).map(|_| packets::packet(&mut self.random)).collect();
        // What silence has hidden, all keys together tell.
        if self.random.percent(25) {
            packets.extend((0..packets::KEYS).map(packets::look));
        }
        let closes = self.random.percent(5);
        if closes {
            packets.push(packets::last_packet(&mut self.random));
        }
        self.play(packets, closes);
    }

    fn play(&mut self, packets: Vec<Packet>, closes: bool) {
        self.report.requests += packets.len() as u64;
        let requests = self.encoded(&packets, !closes);
        let cut = self.random.percent(20).then(|| self.random.below(requests[0].len()));
        let mut replies = [Vec::new(), Vec::new()];
        let mut ended = [false; 2];
        for at in 0..2 {
            let side = &mut self.sides[at];
            let conn = *side.conn.get_or_insert_with(|| side.peer.open());
            let (first, rest) = requests[at].split_at(cut.unwrap_or(0));
            for bytes in [first, rest].into_iter().filter(|bytes| !bytes.is_empty()) {
                side.peer.send(conn, bytes);
            }
            ended[at] = side.receive(conn, &mut replies[at], closes);
        }
        let mut agree = self.compare(&mut replies, &requests[0], packets::difference);
        if ended[0] != ended[1] {
            agree = self.fail(format!("closed: {ended:?}"), &requests[0]);
        }
        if !agree || ended[0] {
            for side in &mut self.sides {
                let conn = side.conn.take().expect("it was asked on");
                side.peer.close(conn);
            }
        }
        self.learn(&packets, &replies, "binary");
    }

    /// The bytes for each server; `sentinel` at their end, unless the last packet closes.
    fn encoded(&self, packets: &[Packet], sentinel: bool) -> [Vec<u8>; 2] {
        let mut bytes = [Vec::new(), Vec::new()];
        let noop = Packet::new(0x0a);
        for (opaque, packet) in packets.iter().enumerate() {
            let (left, right) = self.seen.cas(packet.cas);
            for (bytes, cas) in bytes.iter_mut().zip([left, right]) {
                if packet.is_fenced() {
                    noop.encode(SENTINEL - 1, 0, bytes);
                }
                packet.encode(opaque as u32, cas, bytes);
            }
        }
        if sentinel {
            bytes.iter_mut().for_each(|bytes| noop.encode(SENTINEL, 0, bytes));
        }
        bytes
    }

    /// True if they agree, or were made not to.
    fn compare(
        &mut self,
        replies: &mut [Vec<u8>; 2],
        request: &[u8],
        difference: impl Fn(&mut Comparer, &[u8], &[u8]) -> Option<String>,
    ) -> bool {
        let [left, right] = replies;
        let what = difference(&mut self.comparer, left, right);
        let agree = what.is_none_or(|what| self.fail(what, request));
        let plants = self.plant_every.is_some_and(|every| self.random.below(every) == 0);
        if agree && plants && !right.is_empty() {
            let mut spoilt = right.clone();
            // A reply's first byte says what it is.
            spoilt[0] ^= 0x20;
            self.report.planted += 1;
            let caught = difference(&mut self.comparer, left, &spoilt).is_some();
            self.report.caught += u64::from(caught);
        }
        agree
    }

    fn fail(&mut self, what: String, request: &[u8]) -> bool {
        let request: String = request.iter().take(2000).map(|byte| format!("{byte:02x}")).collect();
        self.report.failures.push(format!("{what}\n  after {request}"));
        false
    }

    fn learn(&mut self, packets: &[Packet], replies: &[Vec<u8>; 2], transport: &str) {
        let (left, _) = Reply::all(&replies[0]);
        let (right, _) = Reply::all(&replies[1]);
        let mut answered = vec![false; packets.len()];
        // Statistics differ in number: replies belong together by their opaque.
        let of_right: BTreeMap<u32, Reply> =
            right.iter().map(|reply| (reply.opaque(), *reply)).collect();
        for reply in &left {
            let Some(packet) = packets.get(reply.opaque() as usize) else { continue };
            let first = !std::mem::replace(&mut answered[reply.opaque() as usize], true);
            if first && transport == "binary" {
                self.report.cells.count(packet.row(), &reply.kind());
            }
            if let (Some(key), Some(right)) = (packet.key_number, of_right.get(&reply.opaque())) {
                self.seen.learn(key, reply.cas(), right.cas());
            }
        }
        for (packet, _) in packets.iter().zip(answered).filter(|(_, answered)| !answered) {
            self.report.cells.count(packet.row(), "silent");
        }
        if transport != "binary" {
            self.report.cells.count("datagram", transport);
        }
    }

    fn binary_datagram(&mut self) {
        let mut packet = packets::packet(&mut self.random);
        // What is swallowed with what follows, would be so from the next datagram too.
        if packet.filler > 0 || packet.value.len() > 60_000 {
            packet = Packet::new(0x0b);
        }
        let requests = self.encoded(std::slice::from_ref(&packet), true);
        let packets = [packet];
        let replies = self.ask(&requests, |stream| {
            let (replies, rest) = Reply::all(stream);
            rest.is_empty() && replies.last().is_some_and(|reply| reply.opaque() == SENTINEL)
        });
        if let Some(mut replies) = replies {
            self.compare(&mut replies, &requests[0], packets::difference);
            self.learn(&packets, &replies, "a binary request");
        }
    }

    fn text_datagram(&mut self) {
        let request = text(&mut self.random);
        let both = [request.clone(), request.clone()];
        let replies = self.ask(&both, |stream| stream.ends_with(b"MN\r\n"));
        if let Some(mut replies) = replies {
            let [left, right] = &mut replies;
            self.comparer.pass_over_empty_lines(left, right);
            let same = |comparer: &mut Comparer, left: &[u8], right: &[u8]| {
                comparer.difference(left, right)
            };
            self.compare(&mut replies, &request, same);
            let first = units(&replies[0]).first().map_or("none".to_string(), kind);
            self.report.cells.count("datagram", &first);
        }
    }

    /// Sends one datagram to each server; the replies, put together, up to the sentinel's.
    fn ask(
        &mut self,
        requests: &[Vec<u8>; 2],
        is_whole: impl Fn(&[u8]) -> bool,
    ) -> Option<[Vec<u8>; 2]> {
        let request_id = self.random.next() as u16;
        let malformed = self.random.percent(5);
        self.report.datagrams += 1;
        let mut replies = [Vec::new(), Vec::new()];
        for at in 0..2 {
            let send = |id: u16, sequence: u16, total: u16| {
                let mut bytes = Vec::new();
                for number in [id, sequence, total, 0] {
                    bytes.extend(number.to_be_bytes());
                }
                bytes.extend(&requests[at]);
                self.sides[at].udp.send(&bytes).map_err(|error| error.to_string())
            };
            // One of two is dropped, whole as it is.
            let dropped = if malformed { send(!request_id, 0, 2) } else { Ok(0) };
            let sent = dropped.and_then(|_| send(request_id, 0, 1));
            let frames = Frames { request_id };
            let got = sent.and_then(|_| frames.receive(&self.sides[at].udp, &is_whole));
            match got {
                Ok(stream) => replies[at] = stream,
                Err(error) => {
                    let side = ["left", "right"][at];
                    self.fail(format!("{side}: {error}"), &requests[at]);
                    return None;
                }
            }
        }
        Some(replies)
    }
}

impl Side {
    /// Takes replies up to the sentinel's, or, if the connection `closes`, up to its end.
    fn receive(&mut self, conn: Conn, replies: &mut Vec<u8>, closes: bool) -> bool {
        let mut whole = 0;
        loop {
            while let Some((reply, rest)) = Reply::cut(&replies[whole..]) {
                let last = reply.opaque() == SENTINEL && !closes;
                whole = replies.len() - rest.len();
                if last {
                    return false;
                }
            }
            match self.peer.receive(conn, replies, PATIENCE) {
                Arrival::Bytes => {}
                Arrival::Closed => return true,
                // Told as a difference: the other side is not so patient.
                Arrival::Nothing => return false,
            }
        }
    }
}

/// The datagrams of one request's replies.
struct Frames {
    request_id: u16,
}

impl Frames {
    fn receive(
        &self,
        udp: &UdpSocket,
        is_whole: &impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<u8>, String> {
        let mut stream = Vec::new();
        let mut room = [0; 65_536];
        let (mut sequence, mut total) = (0, 0);
        while sequence < total || !is_whole(&stream) {
            let count = udp.recv(&mut room).map_err(|error| error.to_string())?;
            let number = |at: usize| u16::from_be_bytes([room[at], room[at + 1]]);
            let header = [number(0), number(2), number(4), number(6)];
            // memcached sends a header where there is nothing to say.
            if header == [self.request_id, 0, 0, 0] && count == 8 {
                continue;
            }
            if sequence == total {
                (sequence, total) = (0, header[2]);
            }
            let full = sequence + 1 < total;
            if header != [self.request_id, sequence, total, 0]
                || count > 1400
                || count <= 8
                || (full && count != 1400)
            {
                return Err(format!("{count} bytes, {header:?}, for {sequence} of {total}"));
            }
            sequence += 1;
            stream.extend_from_slice(&room[8..count]);
        }
        Ok(stream)
    }
}

/// A text request that is whole, with a no-op behind it.
fn text(random: &mut Random) -> Vec<u8> {
    let key = *random.pick(&["t", "u", "v", "absent"]);
    let value = match random.below(12) {
        0 => "v".repeat(20_000),
        1 => "v".repeat(1392 - 19),
        2..5 => random.below(300).to_string(),
        _ => "v".repeat(random.below(30)),
    };
    let length = value.len();
    let request = match random.below(20) {
        0..4 => {
            let verb = *random.pick(&["set", "set", "add", "replace", "append", "prepend"]);
            let noreply = *random.pick(&["", "", " noreply"]);
            format!("{verb} {key} {} 0 {length}{noreply}\r\n{value}\r\n", random.below(3))
        }
        4..7 => format!("get {key}\r\n"),
        7 => format!("get {key} u absent t\r\n"),
        8 => format!("gets {key} {key}\r\n"),
        9 => format!("gat 100 {key}\r\n"),
        10 => format!("{} {key} {}\r\n", random.pick(&["incr", "decr"]), random.below(20)),
        11 => format!("touch {key} 100\r\n"),
        12 => format!("delete {key}\r\n"),
        13 => format!("mg {key} v k q Oopaque\r\n"),
        14 => format!("ms {key} {length}\r\n{value}\r\n"),
        15 => format!("{} {key}\r\n", random.pick(&["md", "md", "ma", "me"])),
        17 => format!("ms {key} {length} s c MA N100\r\n{value}\r\n"),
        18 => format!("{} {key} x k\r\n", random.pick(&["md", "hello", "mg"])),
        16 => format!("get {}\r\n", "k".repeat(251)),
        _ => {
            random.pick(&["nonsense\r\n", "get\r\n", "version\r\n", "verbosity 0\r\n"]).to_string()
        }
    };
    (request + "mn\r\n").into_bytes()
}
