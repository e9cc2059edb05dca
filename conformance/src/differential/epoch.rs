//! Plays an epoch against two peers at once.

use super::cells::Cells;
use super::command::{Batch, Command, End, HEIR, Piece, sync};
use super::generate::{KEYS, key_number};
use super::random::Random;
use super::reply::{Comparer, Part, Unit, cas_values, kind, units};
use crate::peer::{Arrival, Conn, Peer};
use crate::script::quoted;
use std::fmt::Write;
use std::time::Duration;

/// The reference says nothing for so long: the batch has left it waiting for more.
const STARVED_AFTER: Duration = Duration::from_millis(300);
/// How long the other one may take where the reference has answered.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where and how the two differed.
#[derive(Clone, Debug)]
pub struct Fault {
    pub batch: usize,
    pub what: String,
}

/// How a batch's replies ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Synced,
    Closed,
    Starved,
}

/// Two servers, the connections to both, and what has been learnt about them.
pub struct Pair<'a> {
    left: Side<'a>,
    right: Side<'a>,
    pub comparer: Comparer,
    pub cells: Cells,
    /// Writes the epoch down as a script.
    pub transcript: Option<String>,
    /// Spoils a reply of the right one now and then, to see that it is noticed.
    pub plant: Option<Plant>,
    /// By key: the cas values seen, left and right, in the order of their arrival.
    seen: Vec<Vec<(u64, u64)>>,
    syncs: u64,
}

struct Side<'a> {
    peer: &'a mut dyn Peer,
    conns: Vec<Option<Conn>>,
    arrived: Vec<u8>,
}

/// Spoils one batch in `every`.
pub struct Plant {
    pub every: usize,
    pub random: Random,
    pub planted: u64,
    pub kinds: std::collections::BTreeMap<&'static str, u64>,
}

impl<'a> Pair<'a> {
    pub fn new(left: &'a mut dyn Peer, right: &'a mut dyn Peer) -> Pair<'a> {
        let side = |peer| Side { peer, conns: Vec::new(), arrived: Vec::new() };
        Pair {
            left: side(left),
            right: side(right),
            comparer: Comparer::default(),
            cells: Cells::default(),
            transcript: None,
            plant: None,
            seen: vec![Vec::new(); KEYS.len()],
            syncs: 0,
        }
    }

    /// Empties both servers and plays `batches` on connections of its own.
    pub fn play(&mut self, batches: &[Batch]) -> Result<(), Fault> {
        self.reset();
        let mut at = 0;
        while at < batches.len() {
            let batch = &batches[at];
            let other = batches
                .get(at + 1)
                .filter(|next| batch.held > 0 && next.conn != batch.conn && next.held == 0);
            self.play_batch(at, batch, other.map(|other| (at + 1, other)))?;
            at += 1 + usize::from(other.is_some());
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.seen.iter_mut().for_each(Vec::clear);
        for side in [&mut self.left, &mut self.right] {
            for conn in side.conns.drain(..).flatten() {
                side.peer.close(conn);
            }
        }
        let mut bytes = Vec::new();
        for key in KEYS {
            bytes.extend_from_slice(format!("md {} b q\r\n", key.base64).as_bytes());
        }
        bytes.extend_from_slice(b"flush_all noreply\r\n");
        self.open(0);
        self.send(0, &[bytes.clone(), bytes]);
        self.settle(0);
    }

    fn open(&mut self, conn: usize) {
        let mut fresh = false;
        for side in [&mut self.left, &mut self.right] {
            if side.conns.len() <= conn {
                side.conns.resize(conn + 1, None);
            }
            if side.conns[conn].is_none() {
                side.conns[conn] = Some(side.peer.open());
                fresh = true;
            }
        }
        if fresh {
            self.settle(conn);
        }
    }

    /// Sends a sync of its own and drops all replies up to its answer.
    fn settle(&mut self, conn: usize) {
        self.syncs += 1;
        let (request, reply) = sync(self.syncs);
        // memcached's connections have what was left behind on those with the same descriptor before.
        let request = [HEIR, &request].concat();
        self.send(conn, &[request.clone(), request]);
        for side in [&mut self.left, &mut self.right] {
            side.arrived.clear();
            side.receive(conn, &reply, PATIENCE);
        }
    }

    fn send(&mut self, conn: usize, bytes: &[Vec<u8>; 2]) {
        for (side, bytes) in [&mut self.left, &mut self.right].into_iter().zip(bytes) {
            side.send(conn, bytes);
        }
    }

    fn play_batch(
        &mut self,
        at: usize,
        batch: &Batch,
        meanwhile: Option<(usize, &Batch)>,
    ) -> Result<(), Fault> {
        self.open(batch.conn);
        let mut bytes = self.rendered(batch);
        let mut start = 0;
        if let Some((other_at, other)) = meanwhile {
            start = batch.held.min(bytes[0].len()).min(bytes[1].len());
            let first = [bytes[0][..start].to_vec(), bytes[1][..start].to_vec()];
            self.note_request(batch, &first[0], false);
            self.send(batch.conn, &first);
            self.play_batch(other_at, other, None)?;
        }
        self.note_request(batch, &bytes[0][start..], true);
        self.syncs += 1;
        let (request, reply) = sync(self.syncs);
        if batch.end == End::Sync {
            bytes.iter_mut().for_each(|bytes| bytes.extend_from_slice(&request));
        }
        for (side, bytes) in [&mut self.left, &mut self.right].into_iter().zip(&bytes) {
            side.arrived.clear();
            let mut from = start;
            for cut in batch.cuts.iter().copied().filter(|cut| (start..bytes.len()).contains(cut)) {
                side.send(batch.conn, &bytes[from..cut]);
                from = cut;
            }
            side.send(batch.conn, &bytes[from..]);
            if batch.end == End::Finish {
                side.finish(batch.conn);
            }
        }
        let ended = self.collect(batch.conn, batch.end, &reply);
        self.settle_batch(at, batch, ended, reply.len())
    }

    fn collect(&mut self, conn: usize, end: End, reply: &[u8]) -> [Ended; 2] {
        if end == End::Finish {
            return [self.left.drain(conn), self.right.drain(conn)];
        }
        let left = self.left.receive(conn, reply, STARVED_AFTER);
        match left {
            Ended::Synced => [left, self.right.receive(conn, reply, PATIENCE)],
            Ended::Closed => [left, self.right.drain(conn)],
            Ended::Starved => {
                // The reference waits for more: so must the other, and end of file ends both.
                self.left.finish(conn);
                self.right.finish(conn);
                [self.left.drain(conn), self.right.drain(conn)]
            }
        }
    }

    fn settle_batch(
        &mut self,
        at: usize,
        batch: &Batch,
        mut ended: [Ended; 2],
        sync_length: usize,
    ) -> Result<(), Fault> {
        let mut left = std::mem::take(&mut self.left.arrived);
        let mut right = std::mem::take(&mut self.right.arrived);
        if ended == [Ended::Synced; 2] {
            left.truncate(left.len() - sync_length);
            right.truncate(right.len() - sync_length);
        }
        self.comparer.pass_over_empty_lines(&mut left, &mut right);
        for (side, ended) in [&mut self.left, &mut self.right].into_iter().zip(&ended) {
            if *ended != Ended::Synced {
                let conn = side.conns[batch.conn].take().expect("the batch was sent on it");
                side.peer.close(conn);
            }
        }
        self.note_reply(batch.conn, &left, ended[0]);
        let spoilt = self.plant.as_mut().and_then(|plant| plant.spoil(&mut right, &mut ended[1]));
        let what = match self.comparer.difference(&left, &right) {
            None if ended[0] == ended[1] => None,
            None => Some(format!("{:?} against {:?}", ended[0], ended[1])),
            some => some,
        };
        if let Some(what) = what {
            return Err(Fault { batch: at, what });
        }
        if let Some(kind) = spoilt {
            println!(
                "not caught in batch {at}: {kind}, {:?} for {:?}",
                quoted(&right),
                quoted(&left)
            );
        }
        self.learn(batch, &units(&left), &units(&right), ended[0]);
        self.left.arrived = left;
        self.right.arrived = right;
        Ok(())
    }

    fn rendered(&self, batch: &Batch) -> [Vec<u8>; 2] {
        let mut both = [Vec::new(), Vec::new()];
        let pieces = batch.commands.iter().enumerate().flat_map(|(at, command)| command.pieces(at));
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => {
                    both.iter_mut().for_each(|side| side.extend_from_slice(&bytes));
                }
                Piece::Cas { key, back } => {
                    let (left, right) =
                        self.seen[key].iter().rev().nth(back).copied().unwrap_or((1, 1));
                    both[0].extend_from_slice(left.to_string().as_bytes());
                    both[1].extend_from_slice(right.to_string().as_bytes());
                }
            }
        }
        both
    }

    /// Counts what kind of reply each command got, and remembers new cas values by key.
    fn learn(&mut self, batch: &Batch, left: &[Unit], right: &[Unit], ended: Ended) {
        let mut replies = left.iter().zip(right).peekable();
        let line = |unit: &Unit, text: &str| matches!(unit[0], Part::Line(line) if line == text.as_bytes());
        for (at, command) in batch.commands.iter().enumerate() {
            if command.is_fenced && replies.next_if(|(unit, _)| line(unit, "MN")).is_none() {
                break;
            }
            if !command.is_marked {
                match replies.next() {
                    Some((left, right)) => {
                        self.cells.count(command.row, &kind(left));
                        self.learn_cas(command, left, right);
                    }
                    None => {
                        if ended == Ended::Closed {
                            self.cells.count(command.row, "closed");
                        }
                        break;
                    }
                }
                continue;
            }
            let marker = Command::marker(at);
            let mut first = None;
            let mut found = false;
            for (left, right) in replies.by_ref() {
                if line(left, &marker) {
                    found = true;
                    break;
                }
                self.learn_cas(command, left, right);
                first.get_or_insert(kind(left));
            }
            // A filler that answers at once says that the command itself did not.
            let first = first.filter(|kind| !(command.is_filled && kind == "MN"));
            let silent = if found { "silent" } else { "closed" };
            if found || ended == Ended::Closed {
                self.cells.count(command.row, first.as_deref().unwrap_or(silent));
            }
            if !found {
                break;
            }
        }
    }

    fn learn_cas(&mut self, command: &Command, left: &Unit, right: &Unit) {
        for (left, right) in cas_values(left).into_iter().zip(cas_values(right)) {
            let key = left.0.and_then(key_number).or(command.key);
            if let Some(key) = key {
                let pair = (left.1, right.1);
                if self.seen[key].last() != Some(&pair) {
                    self.seen[key].push(pair);
                }
            }
        }
    }

    fn note_request(&mut self, batch: &Batch, bytes: &[u8], is_last: bool) {
        let Some(transcript) = &mut self.transcript else { return };
        let conn = conn_name(batch.conn);
        if is_last && !batch.cuts.is_empty() {
            writeln!(transcript, "# cut at {:?}", batch.cuts).expect("a string takes all");
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let end = rest.windows(2).position(|pair| pair == b"\r\n");
            let (line, open) = match end {
                Some(end) => (&rest[..end], ""),
                None => (rest, "\\"),
            };
            rest = &rest[end.map_or(rest.len(), |end| end + 2)..];
            writeln!(transcript, "{conn}> {}{open}", quoted(line)).expect("a string takes all");
        }
        if is_last && batch.end == End::Finish {
            writeln!(transcript, "finish {conn}").expect("a string takes all");
        }
    }

    fn note_reply(&mut self, conn: usize, bytes: &[u8], ended: Ended) {
        let Some(transcript) = &mut self.transcript else { return };
        let conn = conn_name(conn);
        for part in units(bytes).iter().flatten() {
            let text = match part {
                Part::Line(bytes) | Part::Data(bytes) => quoted(bytes),
                Part::Torn(bytes) => quoted(bytes) + "\\",
            };
            writeln!(transcript, "{conn}< {text}").expect("a string takes all");
        }
        if ended != Ended::Synced {
            writeln!(transcript, "closed {conn}").expect("a string takes all");
        }
    }
}

fn conn_name(conn: usize) -> String {
    String::from(char::from(b'a' + conn as u8))
}

impl Side<'_> {
    fn conn(&self, conn: usize) -> Conn {
        self.conns[conn].expect("a batch opens its connection")
    }

    fn send(&mut self, conn: usize, bytes: &[u8]) {
        let conn = self.conn(conn);
        self.peer.send(conn, bytes);
    }

    fn finish(&mut self, conn: usize) {
        let conn = self.conn(conn);
        self.peer.finish(conn);
    }

    /// Takes replies until `last` has come.
    fn receive(&mut self, conn: usize, last: &[u8], patience: Duration) -> Ended {
        let conn = self.conn(conn);
        loop {
            match self.peer.receive(conn, &mut self.arrived, patience) {
                Arrival::Bytes if self.arrived.ends_with(last) => return Ended::Synced,
                Arrival::Bytes => {}
                Arrival::Closed => return Ended::Closed,
                Arrival::Nothing => return Ended::Starved,
            }
        }
    }

    /// Takes replies until the server closes.
    fn drain(&mut self, conn: usize) -> Ended {
        let conn = self.conn(conn);
        loop {
            match self.peer.receive(conn, &mut self.arrived, PATIENCE) {
                Arrival::Bytes => {}
                Arrival::Closed => return Ended::Closed,
                Arrival::Nothing => return Ended::Starved,
            }
        }
    }
}

impl Plant {
    pub fn new(every: usize, seed: u64) -> Plant {
        Plant { every, random: Random::new(seed), planted: 0, kinds: Default::default() }
    }

    /// Spoils one reply now and then, and says how.
    fn spoil(&mut self, reply: &mut Vec<u8>, ended: &mut Ended) -> Option<&'static str> {
        if self.random.below(self.every) > 0 {
            return None;
        }
        let found = units(reply);
        // What is allowed to differ shows nothing.
        let telling: Vec<usize> = (0..found.len())
            .filter(|at| !matches!(kind(&found[*at]).as_str(), "VERSION" | "STAT" | "ME" | "torn"))
            .collect();
        let start_of = |at: usize| -> usize {
            found[..at].iter().flatten().map(|part| part_length(part)).sum()
        };
        let length_of = |at: usize| -> usize { found[at].iter().map(part_length).sum() };
        let mut spoilt = reply.clone();
        let name = if telling.is_empty() {
            *ended = if *ended == Ended::Synced { Ended::Closed } else { Ended::Synced };
            "end"
        } else {
            let at = *self.random.pick(&telling);
            let (start, length) = (start_of(at), length_of(at));
            match self.random.below(5) {
                0 => {
                    spoilt.drain(start..start + length);
                    "reply lost"
                }
                1 => {
                    let unit = spoilt[start..start + length].to_vec();
                    spoilt.splice(start..start, unit);
                    "reply doubled"
                }
                2 => {
                    spoilt[start] ^= 0x20;
                    "first byte"
                }
                3 => {
                    spoilt[start + length - 2] = b' ';
                    "line end"
                }
                _ => {
                    *ended = if *ended == Ended::Synced { Ended::Closed } else { Ended::Synced };
                    "end"
                }
            }
        };
        self.planted += 1;
        *self.kinds.entry(name).or_default() += 1;
        *reply = spoilt;
        Some(name)
    }
}

fn part_length(part: &Part) -> usize {
    match part {
        Part::Line(bytes) | Part::Data(bytes) => bytes.len() + 2,
        Part::Torn(bytes) => bytes.len(),
    }
}
