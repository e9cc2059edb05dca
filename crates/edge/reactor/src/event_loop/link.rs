//! One link to another server: its frames, and what is to leave by it.

use std::os::fd::{AsFd, OwnedFd};

use mbal_link::{
    Frame, Gathering, Kind, PeerClock, Waiting, next_frame, push_frame, push_timed, take_moment,
};
use mbal_model::ServerId;
use mbal_worker::{Event, OUTPUT_BYTES_MAX, Ticket, Ticketed, UNLIMITED};

use crate::Clock;
use crate::link_tls::LinkTls;
use crate::output::{KEPT_BYTES_MAX, Output};
use crate::sys::{self, READABLE, WRITABLE};

/// Requests or replies that a worker is told of together.
const TOLD_AT_ONCE: usize = 64;
const NOT_ITS_TO_SEND: &str = "it sent what is not its to send";
const NOTHING: Ticketed<'_> = Ticketed { ticket: Ticket(0), micros_left: 0, bytes: b"" };

pub(super) struct Link {
    pub(super) fd: OwnedFd,
    pub(super) tls: Option<LinkTls>,
    /// The start of a frame.
    pub(super) input: Vec<u8>,
    /// What is to be sent.
    pub(super) sending: Vec<u8>,
    /// What the kernel has not taken yet.
    pub(super) output: Output,
    /// `input` has whole frames, whose replies are to wait until others have left.
    pub(super) stalled: bool,
    pub(super) end: End,
}

pub(super) enum End {
    /// This side asks. `clock` is the other side's; `None` if that speaks a version without deadlines.
    Dialed { server: ServerId, waiting: Waiting, gathering: Gathering, clock: Option<PeerClock> },
    /// That worker of the other side asks. `serial` tells its tickets from those of other links. `timed`: its requests have deadlines.
    Accepted { server: ServerId, worker: u16, serial: u32, heard: u64, timed: bool },
}

impl Link {
    /// What is worth waking up for. Who does not take its replies is not read; who sends replies always is.
    pub(super) fn interest(&self) -> u32 {
        match (&self.end, self.output.is_empty()) {
            (_, true) => READABLE,
            (End::Dialed { .. }, false) => READABLE | WRITABLE,
            (End::Accepted { .. }, false) => WRITABLE,
        }
    }

    /// It has stalled, and what it stalled for has left.
    pub(super) fn can_go_on(&self) -> bool {
        self.stalled && self.output.is_empty() && self.sending.is_empty()
    }

    /// What the worker is told when the link has gone over which it was asked.
    pub(super) fn asker_gone(&self) -> Option<Event<'static>> {
        let End::Accepted { server, serial, .. } = self.end else { return None };
        let first = u64::from(serial) << 32;
        Some(Event::AskerGone { server, tickets: Ticket(first)..Ticket(first + (1 << 32)) })
    }

    /// Until when what is to be sent waits for more.
    pub(super) fn gathers_until(&self, now: u64) -> Option<u64> {
        match &self.end {
            End::Dialed { waiting, gathering, .. } if !self.sending.is_empty() => {
                gathering.waits_until(waiting.unanswered(), self.sending.len(), now)
            }
            _ => None,
        }
    }

    pub(super) fn send(&mut self, now: u64) -> Result<(), String> {
        if let End::Dialed { gathering, .. } = &mut self.end {
            gathering.sent(now);
        }
        if let Some(tls) = &mut self.tls {
            let mut cipher = Vec::new();
            tls.send(&self.sending, &mut cipher);
            self.sending = cipher;
        }
        if self.output.is_empty() {
            let sent = match sys::send(self.fd.as_fd(), &self.sending) {
                Ok(sent) => sent,
                Err(error) if sys::is_transient(&error) => 0,
                Err(error) => return Err(error.to_string()),
            };
            self.output.push(&self.sending[sent..]);
        } else {
            self.output.push(&self.sending);
        }
        self.sending.clear();
        self.sending.shrink_to(KEPT_BYTES_MAX);
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), String> {
        if self.output.is_empty() {
            return Ok(());
        }
        match sys::send(self.fd.as_fd(), self.output.unsent()) {
            Ok(sent) => self.output.sent(sent),
            Err(error) if sys::is_transient(&error) => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    /// Tells the worker what has arrived, many frames at once, up to a bound of replies; how many bytes that were. `tell` gets
    /// the time, and says how long the replies are that are there already.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        payload_bytes_max: usize,
        clock: &Clock,
        mut tell: impl FnMut(u64, Event<'_>) -> usize,
    ) -> Result<usize, String> {
        let mut rest = bytes;
        let mut reply_bytes = 0;
        self.stalled = false;
        loop {
            if reply_bytes >= OUTPUT_BYTES_MAX {
                self.stalled = true;
                return Ok(bytes.len() - rest.len());
            }
            let mut together = [NOTHING; TOLD_AT_ONCE];
            let mut count = 0;
            // Read anew: this thread may have stood still since it woke up, while other servers gave up what they had asked it for.
            let now = clock.now_ns();
            let gathered =
                self.gather(&mut rest, payload_bytes_max, now, &mut together, &mut count);
            if count > 0 {
                let together = &together[..count];
                let event = match self.end {
                    End::Dialed { server, .. } => Event::Answered { server, replies: together },
                    End::Accepted { server, .. } => Event::Forwarded { server, requests: together },
                };
                reply_bytes += tell(now, event);
            }
            if gathered? {
                return Ok(bytes.len() - rest.len());
            }
        }
    }

    /// Puts requests or replies into `together`, from the `count`th on; true if there are no more.
    fn gather<'a>(
        &mut self,
        rest: &mut &'a [u8],
        payload_bytes_max: usize,
        now: u64,
        together: &mut [Ticketed<'a>; TOLD_AT_ONCE],
        count: &mut usize,
    ) -> Result<bool, String> {
        while *count < TOLD_AT_ONCE {
            let found = next_frame(rest, payload_bytes_max);
            let found = found.map_err(|_| "it sent what is no frame".to_owned())?;
            let Some((frame, after)) = found else { return Ok(true) };
            *rest = after;
            let Frame { kind, ticket, mut payload } = frame;
            let mut micros_left = UNLIMITED;
            let ticket = match (&mut self.end, kind) {
                (End::Dialed { waiting, .. }, Kind::Reply) => match waiting.answered(ticket) {
                    Some(ticket) => ticket,
                    // One that comes too late has been answered for.
                    None => continue,
                },
                (End::Dialed { clock, .. }, Kind::Pong) => {
                    if let Some(clock) = clock {
                        let (reading, _) = take_moment(payload).ok_or(NOT_ITS_TO_SEND)?;
                        clock.heard(reading, now);
                    }
                    continue;
                }
                (End::Accepted { serial, timed, .. }, Kind::Request) => {
                    if *timed {
                        let (deadline, rest) = take_moment(payload).ok_or(NOT_ITS_TO_SEND)?;
                        (micros_left, payload) = (deadline.saturating_sub(now / 1_000), rest);
                    }
                    u64::from(*serial) << 32 | u64::from(ticket)
                }
                (End::Accepted { timed, .. }, Kind::Ping) => {
                    let pong = Frame { kind: Kind::Pong, ticket, payload: b"" };
                    match timed {
                        true => push_timed(&mut self.sending, now / 1_000, &pong),
                        false => push_frame(&mut self.sending, &pong),
                    }
                    continue;
                }
                _ => return Err(NOT_ITS_TO_SEND.into()),
            };
            together[*count] = Ticketed { ticket: Ticket(ticket), micros_left, bytes: payload };
            *count += 1;
        }
        Ok(false)
    }
}
