//! Clients that speak binary. Their requests go over connections of their own, which upstreams take for binary.

use mbal_model::Key;
use mbal_wire::{Binary, Command, Frame, Status, binary_delete};

use crate::administering::{NO_STATS, Voice};
use crate::client::Slot;
use crate::expect::Expect;
use crate::promises::Course;
use crate::proxy::Proxy;
use crate::reply::Kind;
use crate::upstream::{Hide, InFlight, Who};

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
        if writes {
            self.note_write(key, false);
        }
        let hash = Key::new(key).map_or(0, |key| key.hash());
        let routed = self.course_of(client, hash).and_then(|course| match course {
            Course::Pass(member) => self.pass_binary(member, key),
            Course::Own | Course::Hold => self.route_binary(key),
        });
        let is_too_large = matches!(command, Command::TooLarge { .. });
        let conn = match routed {
            Ok(conn) => conn,
            Err(_) if is_too_large => return self.say_status(client, frame, Status::TooLarge),
            Err(_) => {
                self.counters.errors += 1;
                return self.say_status(client, frame, Status::TemporaryFailure);
            }
        };
        if self.owing && self.is_in_doubt(conn, key, false, None) {
            match command {
                Command::Get { .. } => {
                    self.counters.get_misses += 1;
                    return match frame.quiet {
                        true => {}
                        false => self.say_status(client, frame, Status::NotFound),
                    };
                }
                Command::Arithmetic { .. } => {
                    self.counters.errors += 1;
                    return self.say_status(client, frame, Status::TemporaryFailure);
                }
                _ => {}
            }
        }
        if let Some(key) = Key::new(key).filter(|_| writes && !self.hot.is_empty()) {
            self.end_copies(key.hash(), key.bytes());
        }
        if is_too_large {
            // What was there before would be read on.
            let this = &mut self.conns[conn];
            this.out.bytes.extend_from_slice(&binary_delete(key));
            let expect = Expect::Binary { opcode: 0x04, opaque: [0; 4] };
            let deletion = InFlight::own(Who::Nobody, Kind::Binary, expect, self.now);
            this.ask(InFlight { writes: true, ..deletion }, Some((key, false)));
            self.counters.forwarded += 1;
            self.tell_conn(conn);
            return self.say_status(client, frame, Status::TooLarge);
        }
        let number = self.clients[client as usize].push(Slot::Waiting);
        let this = &mut self.conns[conn];
        push_loud(&mut this.out.bytes, frame, raw);
        let status = if frame.quiet { hidden as u16 as u8 } else { NEVER };
        let hide = Hide::Binary { opcode: frame.opcode, opaque: frame.opaque, status };
        let who = Who::Client { client, number };
        let (kind, at) = (Kind::Binary, self.now);
        let expect = Expect::Binary { opcode: frame.loud(), opaque: frame.opaque };
        let asked = InFlight { who, kind, expect, hide, writes, renamed: false, at };
        this.ask(asked, writes.then_some((key, false)));
        self.resting.asked(asked.keys());
        self.counters.forwarded += 1;
        self.tell_conn(conn);
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
                let mut lines = Vec::new();
                self.push_stats(&mut lines);
                push_stats_framed(&mut reply, frame, &lines);
            }
            Command::Stats { topic: b"settings" } => {
                let mut lines = Vec::new();
                self.push_settings(&mut lines);
                push_stats_framed(&mut reply, frame, &lines);
            }
            Command::Stats { topic } if NO_STATS.contains(topic) => {
                frame.push_stat(&mut reply, b"", b"");
            }
            Command::Stats { topic: b"reset" } => frame.push_stat(&mut reply, b"", b""),
            Command::Stats { .. } => frame.push_error(&mut reply, Status::NotFound),
            Command::Noop => frame.push(&mut reply, Status::Success, b"", 0),
            Command::Version => {
                frame.push(&mut reply, Status::Success, self.settings.version.as_bytes(), 0);
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
            self.end(client);
        }
    }

    fn say_status(&mut self, client: u32, frame: &Frame, status: Status) {
        let mut reply = Vec::new();
        frame.push_error(&mut reply, status);
        self.say(client, &reply);
    }
}

/// Appends a request, as one that is always answered.
pub(crate) fn push_loud(out: &mut Vec<u8>, frame: &Frame, raw: &[u8]) {
    out.extend_from_slice(&[raw[0], frame.loud()]);
    out.extend_from_slice(&raw[2..]);
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

/// Appends the answer to a request whose upstream has failed.
pub(crate) fn push_failure(out: &mut Vec<u8>, asked: &InFlight) {
    if let Hide::Binary { opcode, opaque, .. } = asked.hide {
        let frame = Frame { opcode, quiet: false, vbucket: 0, suffix: 0, opaque, cas: 0 };
        frame.push_error(out, Status::TemporaryFailure);
    }
}
