//! Plays one script against one peer.

use crate::peer::{Arrival, Conn, Peer};
use crate::script::{Atom, Name, Script, Step, What, quoted};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a reply may take; more than any stall of a busy machine, since it is paid only by a failure.
const PATIENCE: Duration = Duration::from_secs(20);

/// How requests are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Requests that follow each other in one write.
    Whole,
    /// Every byte in a write of its own.
    Bytes,
}

/// Plays `script`; the error names its line, what was expected there and what came.
pub fn play(script: &Script, peer: &mut dyn Peer, cut: Cut) -> Result<(), String> {
    let mut player = Player { peer, cut, conns: BTreeMap::new(), cas: BTreeMap::new() };
    let mut at = 0;
    while at < script.steps.len() {
        let step = &script.steps[at];
        let taken = player.play(&script.steps[at..]);
        at += taken.map_err(|error| format!("{}:{}: {error}", script.name, step.line))?;
    }
    player.finish().map_err(|error| format!("{}: at the end: {error}", script.name))
}

struct Seat {
    conn: Conn,
    arrived: Vec<u8>,
    over: bool,
}

struct Player<'a> {
    peer: &'a mut dyn Peer,
    cut: Cut,
    conns: BTreeMap<Name, Seat>,
    cas: BTreeMap<String, u64>,
}

impl Player<'_> {
    /// Plays the first step, or the run of requests that begins with it; says how many that were.
    fn play(&mut self, steps: &[Step]) -> Result<usize, String> {
        let conn = &steps[0].conn;
        match &steps[0].what {
            What::Send(_) => {
                let mut bytes = Vec::new();
                let mut count = 0;
                for step in steps {
                    let What::Send(atoms) = &step.what else { break };
                    if step.conn != *conn {
                        break;
                    }
                    self.render(atoms, &mut bytes)?;
                    count += 1;
                }
                self.send(conn, &bytes);
                return Ok(count);
            }
            What::Expect { pattern, many: false } => self.expect(conn, pattern)?,
            What::Expect { pattern, many: true } => {
                let next = steps[1..].iter().find(|step| step.conn == *conn);
                let Some(What::Expect { pattern: next, many: false }) = next.map(|s| &s.what)
                else {
                    return Err("a plain expected line follows `<*`".to_string());
                };
                self.expect_many(conn, pattern, next)?;
            }
            What::Wait(seconds) => self.peer.wait(*seconds),
            What::Finish => {
                let conn = self.seat(conn).conn;
                self.peer.finish(conn);
            }
            What::Closed => self.expect_closed(conn)?,
            What::Hangup => {
                let seat = self.seat(conn);
                seat.over = true;
                let conn = seat.conn;
                self.peer.close(conn);
            }
        }
        Ok(1)
    }

    fn seat(&mut self, name: &Name) -> &mut Seat {
        let Player { conns, peer, .. } = self;
        conns.entry(name.clone()).or_insert_with(|| Seat {
            conn: peer.open(),
            arrived: Vec::new(),
            over: false,
        })
    }

    fn render(&self, atoms: &[Atom], bytes: &mut Vec<u8>) -> Result<(), String> {
        for atom in atoms {
            match atom {
                Atom::Bytes(plain) => bytes.extend_from_slice(plain),
                Atom::Cas(name) => {
                    let cas = self.cas.get(name).ok_or_else(|| format!("${name} is not known"))?;
                    bytes.extend_from_slice(cas.to_string().as_bytes());
                }
                other => return Err(format!("a request holds no {other:?}")),
            }
        }
        Ok(())
    }

    fn send(&mut self, name: &Name, bytes: &[u8]) {
        let conn = self.seat(name).conn;
        match self.cut {
            Cut::Whole => self.peer.send(conn, bytes),
            Cut::Bytes => bytes.chunks(1).for_each(|byte| self.peer.send(conn, byte)),
        }
    }

    /// Waits for more bytes; false when none can come.
    fn more(&mut self, name: &Name, deadline: Instant) -> bool {
        let Player { conns, peer, .. } = self;
        let seat = conns.get_mut(name).expect("the caller has used this connection");
        let patience = deadline.saturating_duration_since(Instant::now());
        if patience.is_zero() {
            return false;
        }
        peer.receive(seat.conn, &mut seat.arrived, patience) == Arrival::Bytes
    }

    /// Takes one line that matches; `None` when the next line does not.
    fn take(&mut self, name: &Name, pattern: &[Atom], deadline: Instant) -> Option<()> {
        loop {
            let arrived = self.seat(name).arrived.clone();
            let mut learnt = BTreeMap::new();
            match matched(pattern, &arrived, &self.cas, &mut learnt) {
                Match::Whole(length) => {
                    self.seat(name).arrived.drain(..length);
                    self.cas.append(&mut learnt);
                    return Some(());
                }
                Match::Not => return None,
                Match::SoFar => {
                    if !self.more(name, deadline) {
                        return None;
                    }
                }
            }
        }
    }

    fn expect(&mut self, name: &Name, pattern: &[Atom]) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        match self.take(name, pattern, deadline) {
            Some(()) => Ok(()),
            None => Err(format!(
                "expected {}\n    got {:?}",
                described(pattern),
                shown(&self.seat(name).arrived)
            )),
        }
    }

    fn expect_many(&mut self, name: &Name, many: &[Atom], next: &[Atom]) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            while !self.seat(name).arrived.contains(&b'\n') {
                if !self.more(name, deadline) {
                    return Err(format!("no line came, expected {}", described(next)));
                }
            }
            let arrived = self.seat(name).arrived.clone();
            let is_next = matched(next, &arrived, &self.cas, &mut BTreeMap::new());
            if matches!(is_next, Match::Whole(_)) {
                return Ok(());
            }
            if self.take(name, many, deadline).is_none() {
                return Err(format!(
                    "expected {} or {}\n    got {:?}",
                    described(many),
                    described(next),
                    shown(&arrived)
                ));
            }
        }
    }

    fn expect_closed(&mut self, name: &Name) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        self.seat(name).over = true;
        while self.more(name, deadline) {}
        let Player { conns, peer, .. } = self;
        let seat = conns.get_mut(name).expect("the line above has made it");
        if !seat.arrived.is_empty() {
            return Err(format!("expected a close\n    got {:?}", shown(&seat.arrived)));
        }
        match peer.receive(seat.conn, &mut seat.arrived, Duration::from_millis(1)) {
            Arrival::Closed => Ok(()),
            _ => Err("expected a close; the connection stays open".to_string()),
        }
    }

    /// Nothing may be left over on any connection that the script leaves open.
    fn finish(&mut self) -> Result<(), String> {
        let open: Vec<Name> = self
            .conns
            .iter()
            .filter(|(_, seat)| !seat.over)
            .map(|(name, _)| name.clone())
            .collect();
        for name in open {
            self.send(&name, b"mn\r\n");
            self.expect(&name, &[Atom::Bytes(b"MN\r\n".to_vec())])
                .map_err(|error| format!("{name}< {error}"))?;
        }
        Ok(())
    }
}

enum Match {
    Whole(usize),
    /// Everything that is there agrees, but it is not all there.
    SoFar,
    Not,
}

fn matched(
    pattern: &[Atom],
    bytes: &[u8],
    known: &BTreeMap<String, u64>,
    learnt: &mut BTreeMap<String, u64>,
) -> Match {
    let mut at = 0;
    for atom in pattern {
        let rest = &bytes[at..];
        let word = rest.iter().position(|byte| matches!(byte, b' ' | b'\r' | b'\n'));
        match atom {
            Atom::Bytes(plain) => {
                let length = plain.len().min(rest.len());
                if plain[..length] != rest[..length] {
                    return Match::Not;
                }
                if length < plain.len() {
                    return Match::SoFar;
                }
                at += length;
            }
            Atom::Rest => match rest.windows(2).position(|pair| pair == b"\r\n") {
                Some(length) => at += length,
                None => return Match::SoFar,
            },
            Atom::OneOf(words) => {
                let whole = words.iter().filter(|word| rest.starts_with(word));
                match whole.max_by_key(|word| word.len()) {
                    Some(word) => at += word.len(),
                    None if words.iter().any(|word| word.starts_with(rest)) => return Match::SoFar,
                    None => return Match::Not,
                }
            }
            Atom::Word | Atom::Cas(_) | Atom::Near(..) => {
                let Some(length) = word else { return Match::SoFar };
                let text = std::str::from_utf8(&rest[..length]).unwrap_or("");
                let agrees = match atom {
                    // One to one: a name has one value, and no other name has it.
                    Atom::Cas(name) => text.parse().is_ok_and(|cas| {
                        learnt.insert(name.clone(), cas);
                        known.iter().all(|(other, value)| (other == name) == (*value == cas))
                    }),
                    Atom::Near(number, tolerance) => {
                        text.parse().is_ok_and(|seen: i64| (seen - number).abs() <= *tolerance)
                    }
                    _ => length > 0,
                };
                if !agrees {
                    return Match::Not;
                }
                at += length;
            }
        }
    }
    Match::Whole(at)
}

fn described(pattern: &[Atom]) -> String {
    pattern
        .iter()
        .map(|atom| match atom {
            Atom::Bytes(plain) => quoted(plain),
            Atom::Cas(name) => format!("${name}"),
            Atom::Word => "{*}".to_string(),
            Atom::Rest => "{**}".to_string(),
            Atom::Near(number, tolerance) => format!("{{{number}~{tolerance}}}"),
            Atom::OneOf(words) => {
                let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
                format!("{{{}}}", words.join("|"))
            }
        })
        .collect()
}

fn shown(bytes: &[u8]) -> String {
    let mut text = quoted(&bytes[..bytes.len().min(400)]);
    if bytes.len() > 400 {
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, bytes: &[u8]) -> bool {
        let script = Script::parse("t", &format!("< {line}")).unwrap();
        let What::Expect { pattern, .. } = &script.steps[0].what else {
            panic!("an expected line")
        };
        let known = BTreeMap::from([("old".to_string(), 7)]);
        matches!(matched(pattern, bytes, &known, &mut BTreeMap::new()),
            Match::Whole(length) if length == bytes.len())
    }

    #[test]
    fn patterns_match_what_they_say_and_nothing_else() {
        assert!(check("VALUE {*} 0 1 $new", b"VALUE a 0 1 99\r\n"));
        assert!(check("HD c$old", b"HD c7\r\n"));
        assert!(!check("HD c$old", b"HD c8\r\n"));
        assert!(!check("HD c$new", b"HD c7\r\n"));
        assert!(check("HD t{10~1}", b"HD t9\r\n"));
        assert!(!check("HD t{10~1}", b"HD t8\r\n"));
        assert!(check("{EN|ERROR}", b"ERROR\r\n"));
        assert!(!check("END", b"END\r\nEND\r\n"));
    }
}
