//! Clients that speak binary. Their requests go over connections of their own, which upstreams take for binary.

use mbal_model::Key;
use mbal_wire::{Binary, Command, Frame, ReplyKind, Status, binary_delete};

use crate::administering::{NO_STATS, Voice, settings, stats};
use crate::backend::Backend;
use crate::encode::push_loud;
use crate::expect::Expect;
use crate::inflight::{Hide, InFlight, Who};
use crate::promises::Course;
use crate::proxy::Proxy;
use crate::replies::Slot;
use crate::switching::Passage;

/// No reply has this status.
const NEVER: u8 = u8::MAX;

impl Proxy {
    /// `raw` is the whole request.
    pub(crate) fn ask_binary(&mut self, client: u32, binary: &Binary<'_>, raw: &[u8]) {
        let Binary { frame, command } = binary;
        let hidden = match command {
            Command::Get { .. } => Status::NotFound,
            _ => Status::Success,
        };
        let (key, writes) = match command {
            Command::Get { key, touch, .. } => (key, touch.is_some()),
            Command::Store(storage) => (&storage.key, true),
            Command::Arithmetic { key, .. } | Command::Delete { key } => (key, true),
            Command::TooLarge { key, remove: true } => (key, true),
            _ => return self.administer_binary(client, binary, raw),
        };
        if self.backend.switching.is_active() {
            let (switching, now) = (&self.backend.switching, self.ledger.now);
            match switching.passage(key, false, writes, writes && frame.cas != 0, now) {
                Passage::Passes => {}
                Passage::Misses if frame.quiet => return,
                Passage::Misses => return self.say_status(client, frame, Status::NotFound),
                Passage::Refused => return self.refuse_status(client, frame),
                Passage::Differs => return self.say_status(client, frame, Status::Exists),
            }
        }
        let is_peer = self.sessions.get(client).is_peer;
        let may_copy = !writes && !self.backend.copied.is_empty();
        let copy = may_copy.then(|| self.backend.copy(key, true, &mut self.ledger)).flatten();
        let Backend { upstreams, placing, notes, hot, peering, .. } = &mut self.backend;
        let ledger = &mut self.ledger;
        if writes {
            notes.write(key, false, placing, upstreams);
        }
        let hash = Key::new(key).map_or(0, |key| key.hash());
        let routed = peering.course_of(is_peer, hash).and_then(|course| match course {
            Course::Pass(member) => peering.pass_binary(member, key, upstreams, ledger),
            Course::Own | Course::Hold => {
                copy.map_or_else(|| placing.route_binary(key, upstreams, ledger), Ok)
            }
        });
        let is_too_large = matches!(command, Command::TooLarge { .. });
        let conn = match routed {
            Ok(conn) => conn,
            Err(_) if is_too_large => return self.say_status(client, frame, Status::TooLarge),
            Err(_) => return self.refuse_status(client, frame),
        };
        if upstreams.is_owing() && upstreams.owes_key(conn, key, false, None) {
            match command {
                Command::Get { .. } => {
                    ledger.counters.get_misses += 1;
                    return match frame.quiet {
                        true => {}
                        false => self.say_status(client, frame, Status::NotFound),
                    };
                }
                Command::Arithmetic { .. } => return self.refuse_status(client, frame),
                _ => {}
            }
        }
        if let Some(key) = Key::new(key).filter(|_| writes && !hot.table.is_empty()) {
            hot.end_copies(key.hash(), key.bytes(), upstreams, ledger);
        }
        let (kind, at) = (ReplyKind::Binary, ledger.now);
        if is_too_large {
            // What was there before would be read on.
            upstreams.out(conn).extend_from_slice(&binary_delete(key));
            let expect = Expect::Binary { opcode: 0x04, opaque: [0; 4] };
            let deletion = InFlight::own(Who::Nobody, kind, expect, at);
            upstreams.ask(conn, InFlight { writes: true, ..deletion }, Some((key, false)));
            ledger.counters.forwarded += 1;
            return self.say_status(client, frame, Status::TooLarge);
        }
        let number = self.sessions.push(client, Slot::Waiting);
        push_loud(upstreams.out(conn), frame, raw);
        let status = if frame.quiet { hidden as u16 as u8 } else { NEVER };
        let hide = Hide::Binary { opcode: frame.opcode, opaque: frame.opaque, status };
        let who = Who::Client { client, number };
        let expect = Expect::Binary { opcode: frame.loud(), opaque: frame.opaque };
        let asked = InFlight { who, kind, expect, hide, writes, renamed: false, at };
        upstreams.ask(conn, asked, writes.then_some((key, false)));
        ledger.resting.asked(asked.keys());
        ledger.counters.forwarded += 1;
    }

    /// What has no key.
    fn administer_binary(&mut self, client: u32, binary: &Binary<'_>, raw: &[u8]) {
        let Binary { frame, command } = binary;
        let mut reply = Vec::new();
        let mut ends = false;
        match command {
            Command::Flush { exptime } => {
                let exptime = i32::try_from(*exptime).unwrap_or(i32::MAX);
                return self.flush(client, exptime, Voice::Binary { frame, raw });
            }
            Command::Stats { topic: b"" } => {
                let lines = stats(&self.stats(), &self.backend, &self.ledger);
                push_stats_framed(&mut reply, frame, &lines);
            }
            Command::Stats { topic: b"settings" } => {
                push_stats_framed(&mut reply, frame, &settings(&self.ledger));
            }
            Command::Stats { topic } if NO_STATS.contains(topic) => {
                frame.push_stat(&mut reply, b"", b"");
            }
            Command::Stats { topic: b"reset" } => frame.push_stat(&mut reply, b"", b""),
            Command::Stats { .. } => frame.push_error(&mut reply, Status::NotFound),
            Command::Noop => frame.push(&mut reply, Status::Success, b"", 0),
            Command::Version => {
                frame.push(&mut reply, Status::Success, self.ledger.settings.version.as_bytes(), 0);
            }
            Command::Quit => {
                ends = true;
                if !frame.quiet {
                    frame.push(&mut reply, Status::Success, b"", 0);
                }
            }
            Command::TooLarge { .. } => frame.push_error(&mut reply, Status::TooLarge),
            Command::Refused { status, close } => {
                frame.push_error(&mut reply, *status);
                ends = *close;
            }
            _ => frame.push_error(&mut reply, Status::UnknownCommand),
        }
        self.say(client, &reply);
        if ends {
            self.sessions.end(client, &mut self.ledger);
        }
    }

    fn refuse_status(&mut self, client: u32, frame: &Frame) {
        self.ledger.counters.errors += 1;
        self.say_status(client, frame, Status::TemporaryFailure);
    }

    fn say_status(&mut self, client: u32, frame: &Frame, status: Status) {
        let mut reply = Vec::new();
        frame.push_error(&mut reply, status);
        self.say(client, &reply);
    }
}

/// Appends the lines of `stats` as packets.
fn push_stats_framed(out: &mut Vec<u8>, frame: &Frame, lines: &[u8]) {
    for line in lines.split(|byte| *byte == b'\n') {
        let mut words = line.trim_ascii_end().splitn(3, |byte| *byte == b' ');
        if let (Some(b"STAT"), Some(name), Some(value)) = (words.next(), words.next(), words.next())
        {
            frame.push_stat(out, name, value);
        }
    }
    frame.push_stat(out, b"", b"");
}
