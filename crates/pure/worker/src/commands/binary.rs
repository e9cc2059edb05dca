//! The binary protocol's commands: what the classic ones do, told in another way.

use mbal_cachelet::{Full, View};
use mbal_model::{Key, Route};
use mbal_wire::{
    Binary, Command, Direction, Frame, Head, Status, Storage, Tokens, Verb, full_name,
};

use crate::commands::admin::flush_items;
use crate::commands::change::{Changed, New, Removed, Sum};
use crate::commands::discovery::discover_binary;
use crate::commands::stats::{STATS_TOPICS, Stats};
use crate::commands::turn::{Then, Turn};
use crate::passwords::MECHANISMS;

impl Turn<'_> {
    /// `key` is the command's, if it has one.
    pub fn binary(&mut self, request: &Binary<'_>, key: Option<Key<'_>>) -> Then {
        let Binary { frame, command } = request;
        if let Some(key) = key.filter(|key| !self.is_where_the_client_thinks(frame, key)) {
            match self.on.owner_elsewhere(&key) {
                Some(hint) => frame.push(self.out, Status::NotMine, hint.to_string().as_bytes(), 0),
                None => frame.push_error(self.out, Status::TemporaryFailure),
            }
            return Then::Next;
        }
        let the_key = || key.expect("the parser measured it");
        match command {
            Command::Get { with_key, with_value, touch, .. } => {
                let parts = Parts { with_key: *with_key, with_value: *with_value };
                self.binary_get(frame, &the_key(), parts, *touch);
            }
            Command::Store(storage) => self.binary_store(frame, storage, &the_key()),
            Command::TooLarge { remove, .. } => {
                if *remove {
                    self.remove_item(&the_key());
                }
                self.binary_too_large(frame);
            }
            Command::Arithmetic { direction, delta, initial, .. } => {
                self.binary_arithmetic(frame, &the_key(), *direction, *delta, *initial);
            }
            Command::Delete { .. } => match self.delete_item(&the_key(), frame.cas) {
                Removed::Done(_) => self.succeed(frame, b"", 0),
                Removed::Exists => frame.push_error(self.out, Status::Exists),
                Removed::NotFound => frame.push_error(self.out, Status::NotFound),
            },
            Command::Flush { .. } if !self.on.shared.settings.flush_enabled => {
                frame.push_error(self.out, Status::AuthError);
            }
            Command::Flush { exptime } => {
                self.on.counters.cmd_flush.add(1);
                flush_items(&self.on, (*exptime).into(), None);
                self.succeed(frame, b"", 0);
            }
            Command::Stats { topic } => return self.binary_stats(frame, topic),
            Command::Noop => self.succeed(frame, b"", 0),
            Command::Version => self.succeed(frame, self.on.shared.settings.version.as_bytes(), 0),
            Command::Quit => {
                self.succeed(frame, b"", 0);
                return Then::Close(None);
            }
            Command::Discover => discover_binary(&self.on, frame, self.out),
            Command::Mechanisms => self.succeed(frame, MECHANISMS, 0),
            Command::Authenticate { .. } => unreachable!("the batch logs in"),
            Command::Refused { status, close } => {
                frame.push_error(self.out, *status);
                if *close {
                    return Then::Close(None);
                }
            }
        }
        Then::Next
    }

    /// A client that names no cachelet is always right, and so is everybody at a server that is alone and has no ports of its workers'
    /// own: nobody could follow its hints. There a vbucket is another system's, and passed over as in memcached.
    fn is_where_the_client_thinks(&self, frame: &Frame, key: &Key<'_>) -> bool {
        let first = frame.vbucket & !1;
        let node = (key.hash() >> 48) as u16;
        // Some cachelet that begins there holds the key, be it narrower now or not.
        let begins_there = u32::from(first ^ node) >> first.trailing_zeros() == 0;
        frame.vbucket == 0
            || (begins_there && self.on.route(key) == Route::Own)
            || (self.on.here.alone && self.on.shared.settings.worker_addresses.is_empty())
    }

    pub fn binary_too_large(&mut self, frame: &Frame) {
        self.count_full(Full::TooLarge);
        frame.push_error(self.out, Status::TooLarge);
    }

    fn succeed(&mut self, frame: &Frame, value: &[u8], cas: u64) {
        if !frame.quiet {
            frame.push(self.out, Status::Success, value, cas);
        }
    }

    fn binary_get(&mut self, frame: &Frame, key: &Key<'_>, parts: Parts, touch: Option<u32>) {
        let shown_key = if parts.with_key { key.bytes() } else { b"" };
        let show = |view: &View<'_>, out: &mut Vec<u8>| {
            let head = Head {
                extras: &view.flags().to_be_bytes(),
                key: shown_key,
                value_bytes: if parts.with_value { view.value_bytes() } else { 0 },
                cas: view.cas(),
            };
            frame.push_head(out, Status::Success, &head);
            if parts.with_value {
                view.copy_value(out);
            }
        };
        let hit = match touch {
            Some(exptime) => self.get_and_touch_item(key, exptime.into(), show),
            None => {
                let ahead = self.take_ahead();
                self.get_item(key, ahead, show)
            }
        };
        if hit || frame.quiet {
        } else if parts.with_key {
            let head = Head { key: shown_key, ..Head::default() };
            frame.push_head(self.out, Status::NotFound, &head);
        } else {
            frame.push_error(self.out, Status::NotFound);
        }
    }

    fn binary_store(&mut self, frame: &Frame, storage: &Storage<'_>, key: &Key<'_>) {
        let status = match self.store_counted(storage, key) {
            Some(Changed::Done { cas, .. }) => return self.succeed(frame, b"", cas),
            Some(Changed::Exists) => Status::Exists,
            Some(Changed::NotFound) => Status::NotFound,
            Some(Changed::Full(Full::TooLarge)) => Status::TooLarge,
            Some(Changed::Full(Full::OutOfMemory)) => {
                return self.out_of_memory(frame, "allocating item");
            }
            Some(Changed::Refused) => match storage.verb {
                Verb::Add => Status::Exists,
                Verb::Replace => Status::NotFound,
                _ => Status::NotStored,
            },
            Some(Changed::NoRoom) => return,
            None => unreachable!("a binary value is as long as it says"),
        };
        frame.push_error(self.out, status);
    }

    fn out_of_memory(&mut self, frame: &Frame, doing: &str) {
        let text = format!("Out of memory {doing}");
        frame.push(self.out, Status::OutOfMemory, text.as_bytes(), 0);
    }

    fn binary_arithmetic(
        &mut self,
        frame: &Frame,
        key: &Key<'_>,
        direction: Direction,
        delta: u64,
        initial: Option<(u64, u32)>,
    ) {
        let initial = initial.map(|(value, exptime)| (value, self.now().deadline(exptime)));
        let status =
            match self.count_or_create(key, direction, delta, frame.cas, New::default(), initial) {
                Sum::Done { value, meta } => {
                    return self.succeed(frame, &value.to_be_bytes(), meta.cas);
                }
                Sum::Created { value, cas } => {
                    return self.succeed(frame, &value.to_be_bytes(), cas);
                }
                Sum::NotNumeric => Status::NotNumeric,
                Sum::Exists => Status::Exists,
                Sum::Full => return self.out_of_memory(frame, "incrementing value"),
                Sum::NoRoom => return,
                Sum::NotFound => {
                    self.count_missed(direction);
                    Status::NotFound
                }
            };
        frame.push_error(self.out, status);
    }

    /// What `stats` says, a packet for each line.
    fn binary_stats(&mut self, frame: &Frame, topic: &[u8]) -> Then {
        // memcached compares the beginning of some topics, and the whole of others.
        let line: &[u8] = match topic {
            _ if topic.starts_with(b"reset") => b"stats reset",
            _ if topic.starts_with(b"settings") => b"stats settings",
            _ if topic.starts_with(b"detail") && !self.on.shared.settings.dump_enabled => {
                frame.push_error(self.out, Status::NotFound);
                return Then::Next;
            }
            _ if topic.starts_with(b"detail dump") => b"stats detail dump",
            _ if topic.starts_with(b"detail on") => b"stats detail on",
            _ if topic.starts_with(b"detail off") => b"stats detail off",
            b"conns" | b"cachedump" | b"extstore" => {
                frame.push_error(self.out, Status::NotFound);
                return Then::Next;
            }
            // Ours may say how many, or of what kind.
            _ if topic.starts_with(b"hot ") || topic == b"latency buckets" => {
                &[b"stats ", topic].concat()
            }
            // Words or a part of one say something in text alone.
            _ if topic.iter().any(u8::is_ascii_whitespace)
                || full_name(topic, &STATS_TOPICS) != topic && !topic.is_empty() =>
            {
                frame.push_error(self.out, Status::NotFound);
                return Then::Next;
            }
            _ => &[b"stats ", topic].concat(),
        };
        let start = self.out.len();
        let mut stats = Stats { on: &self.on, out: self.out };
        if let Then::Walk(walk) = stats.answer(&Tokens::new(line)) {
            return Then::Walk(Box::new(walk.answering(*frame)));
        }
        let text = self.out.split_off(start);
        if line == b"stats detail dump" {
            frame.push_stat(self.out, b"detailed", &text);
            frame.push_stat(self.out, b"", b"");
            return Then::Next;
        }
        let mut ended = false;
        for line in text.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if let Some(stat) = line.strip_prefix(b"STAT ") {
                let end = stat.iter().position(|byte| *byte == b' ').unwrap_or(stat.len());
                frame.push_stat(self.out, &stat[..end], stat.get(end + 1..).unwrap_or_default());
            } else if matches!(line, b"END" | b"RESET" | b"OK") {
                ended = true;
                frame.push_stat(self.out, b"", b"");
            } else if !line.is_empty() {
                self.out.truncate(start);
                frame.push_error(self.out, Status::NotFound);
                return Then::Next;
            }
        }
        if !ended {
            frame.push_stat(self.out, b"", b"");
        }
        Then::Next
    }
}

/// What a get's reply is made of.
#[derive(Clone, Copy)]
struct Parts {
    with_key: bool,
    with_value: bool,
}
