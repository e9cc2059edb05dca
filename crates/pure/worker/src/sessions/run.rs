//! All that has arrived on one connection: parsed, and executed in groups.

use mbal_model::Key;
use mbal_wire::{BINARY_REQUEST, Login, Request};

use crate::commands::hints::followed;
use crate::commands::login::log_in;
use crate::commands::turn::Then;
use crate::commands::walks::Walk;
use crate::copies::{execute_told, tell_copies};
use crate::event::Action;
use crate::ids::Client;
use crate::observing::log::VERBOSE;
use crate::observing::verbose;
use crate::sessions::batch::Batch;
use crate::sessions::job::{GROUP, Job, Stop, next_job, no_jobs};
use crate::sessions::room::Haste;
use crate::sessions::session::{ERROR, OUTPUT_BYTES_MAX, Pause, Session, Wait};
use crate::sessions::slice_wait::SliceWait;
use crate::settings::Protocol;

/// A command for operators looks at the whole server: in a turn it counts for so many requests, so that who
/// sends many of them does not keep others waiting.
const ADMIN_WEIGHT: u32 = 64;

/// Why a batch came to its end.
pub(crate) enum Ended {
    /// The input holds no further whole request.
    Hungry,
    /// The session waits for something else first.
    Waits(Wait),
}

impl Ended {
    /// The connection is to be closed, and perhaps the server (gracefully or not).
    pub fn closed(shutdown: Option<bool>) -> Ended {
        Ended::Waits(Wait::End { shutdown, asked: false })
    }
}

pub(crate) struct Ran {
    pub used: usize,
    /// What stands in for the last of the used bytes: a `get` that was stopped halfway, from its
    /// first unanswered key on.
    pub rewritten: Vec<u8>,
    pub ended: Ended,
}

fn ended(used: usize, ended: Ended) -> Ran {
    Ran { used, rewritten: Vec::new(), ended }
}

fn stopped(session: &mut Session, used: usize, stop: Stop) -> Ran {
    match stop {
        Stop::NeedMore(bytes) => {
            session.need = bytes;
            ended(used, Ended::Hungry)
        }
        Stop::Close => {
            session.closes = Some(ERROR);
            ended(used, Ended::closed(None))
        }
    }
}

/// The first byte decides what a connection speaks; true if it just has.
fn negotiate(session: &mut Session, input: &[u8]) -> bool {
    let decides = session.protocol == Protocol::Auto && !input.is_empty();
    if decides {
        session.protocol = match input[0] {
            BINARY_REQUEST => Protocol::Binary,
            _ => Protocol::Text,
        };
    }
    decides
}

impl Batch<'_> {
    /// Executes the requests in `input`, from its start.
    pub fn run(&mut self, session: &mut Session, input: &[u8]) -> Ran {
        let mut decoded = std::mem::take(self.decoded);
        self.turn.has_waiting = !session.slots.is_empty();
        let ran = match self.turn.on.watched & VERBOSE {
            0 => self.run_groups(session, input, &mut decoded),
            _ => self.run_verbose(session, input, &mut decoded),
        };
        *self.decoded = decoded;
        if !matches!(ran.ended, Ended::Hungry) {
            session.need = 0;
        }
        ran
    }

    /// One request after the other, each told with its replies.
    #[cold]
    fn run_verbose(&mut self, session: &mut Session, input: &[u8], decoded: &mut Vec<u8>) -> Ran {
        let fd = self.turn.on.info.fd;
        let mut at = 0;
        loop {
            let rest = &input[at..];
            if negotiate(session, rest) {
                verbose::negotiated(self.said, fd, session.protocol);
            }
            let protocol = session.protocol;
            let limits = self.turn.on.limits(session.login);
            let (bytes, request) = match session.skip {
                0 => match next_job(protocol == Protocol::Binary, &limits, rest, 0, &mut None) {
                    Ok(job) => (rest.len().min(job.end + job.skip), job.bytes),
                    Err(_) => (rest.len(), &[][..]),
                },
                skip => (rest.len().min(skip), &[][..]),
            };
            let before = self.turn.out.len();
            let is_stranger = session.login == Login::Needed && protocol != Protocol::Binary;
            let mut ran = self.run_groups(session, &rest[..bytes], decoded);
            if ran.used > 0 && !request.is_empty() {
                match is_stranger {
                    true => verbose::before_login(self.said, fd, request),
                    false => verbose::request(self.said, fd, protocol, request),
                }
            }
            verbose::replies(self.said, fd, protocol, &self.turn.out[before..]);
            at += ran.used;
            let is_hungry = matches!(ran.ended, Ended::Hungry);
            let goes_on = is_hungry && 0 < ran.used && at < input.len();
            if goes_on {
                let Some(bound) = self.bound(session, true) else { continue };
                ran.ended = bound;
            }
            return Ran { used: at, ..ran };
        }
    }

    fn run_groups(&mut self, session: &mut Session, input: &[u8], decoded: &mut Vec<u8>) -> Ran {
        let mut at = session.skipped(input.len());
        session.need = 0;
        if session.skip == 0 {
            let before = self.turn.out.len();
            self.turn.out.append(&mut session.refusal);
            session.order(before, self.turn.out);
        }
        negotiate(session, input);
        let binary = session.protocol == Protocol::Binary;
        while session.skip == 0 && at < input.len() {
            let limits = self.turn.on.limits(session.login);
            let mut group = [None];
            let first = match next_job(binary, &limits, input, at, &mut group[0]) {
                Ok(job) => job,
                Err(stop) => return stopped(session, at, stop),
            };
            let mut parsed = first.end + first.skip;
            // A client that waits for its answer sends one request at a time; and what comes behind a
            // login is read with its outcome known.
            if parsed >= input.len() || first.request.is_login() {
                let ran = self.run_group(&group, decoded, |batch, job, key| {
                    batch.execute(session, job, key, input.len(), &mut at)
                });
                match ran {
                    Some(ran) => return ran,
                    None => continue,
                }
            }
            let mut jobs = no_jobs();
            jobs[0] = group[0];
            let mut count = 1;
            let mut stop = None;
            while count < GROUP && parsed < input.len() {
                match next_job(binary, &limits, input, parsed, &mut jobs[count]) {
                    Ok(job) if job.request.is_login() => {
                        jobs[count] = None;
                        break;
                    }
                    Ok(job) => {
                        parsed = job.end + job.skip;
                        count += 1;
                    }
                    Err(why) => {
                        stop = Some(why);
                        break;
                    }
                }
            }
            let ran = self.run_group(&jobs, decoded, |batch, job, key| {
                batch.execute(session, job, key, input.len(), &mut at)
            });
            if let Some(ran) = ran {
                return ran;
            }
            if let Some(stop) = stop {
                return stopped(session, at, stop);
            }
        }
        ended(at, Ended::Hungry)
    }

    /// One request of a connection; how the batch ends, if it does. `at` moves behind it once it is executed.
    #[inline]
    fn execute(
        &mut self,
        session: &mut Session,
        job: &Job<'_>,
        key: Option<Key<'_>>,
        input_bytes: usize,
        at: &mut usize,
    ) -> Option<Ran> {
        let before = self.turn.out.len();
        let now = self.turn.now().instant();
        self.turn.haste = session.room.map_or(Haste::None, |wait| wait.haste(now));
        let then = match self.elsewhere(session, job, key.as_ref()) {
            None if job.request.is_login() => {
                log_in(&mut self.turn, &job.request, session);
                Then::Next
            }
            None => self.execute_here(job, key),
            Some(then) => then,
        };
        if let Then::Wait(pause) = then {
            return Some(ended(*at, Ended::Waits(Wait::Peers(pause))));
        }
        if let Then::NoRoom(room) = then {
            let again = session.room.get_or_insert_default().again(room, now);
            return Some(ended(*at, Ended::Waits(Wait::Until(again))));
        }
        if let Then::OnItsWay = then {
            return Some(ended(*at, Ended::Waits(Wait::Until(session.slice.again(now)))));
        }
        session.room = None;
        if !self.turn.on.here.alone {
            session.slice = SliceWait::default();
        }
        *at = job.end;
        if job.skip > 0 {
            session.skip = job.skip;
            *at += session.skipped(input_bytes - *at);
        }
        if session.skip > 0 {
            // Told when the value has been swallowed, as a client that sends it expects.
            session.refusal = self.turn.out.split_off(before);
        } else {
            session.order(before, self.turn.out);
        }
        self.requests += match job.request {
            Request::Admin { .. } => ADMIN_WEIGHT,
            _ => 1,
        };
        match then {
            Then::Walk(walk) => {
                walk.begin(&self.turn.on, self.turn.out);
                Some(ended(*at, Ended::Waits(Wait::Walk(walk))))
            }
            Then::RefreshCerts => {
                if let Client::Conn { conn, .. } = session.client {
                    self.actions.push(Action::RefreshCerts { conn });
                }
                Some(ended(*at, Ended::Waits(Wait::Certificates)))
            }
            Then::Watch(watcher) => {
                let watching = Wait::Watching { watcher, full: false };
                Some(ended(input_bytes, Ended::Waits(watching)))
            }
            Then::Resume(rewritten) => {
                Some(Ran { used: *at, rewritten, ended: Ended::Waits(Wait::Output) })
            }
            Then::Close(shutdown) => Some(ended(*at, Ended::closed(shutdown))),
            _ => self.bound(session, *at < input_bytes).map(|bound| ended(*at, bound)),
        }
    }

    /// One whose key is here, or that has none.
    #[inline(always)]
    pub fn execute_here(&mut self, job: &Job<'_>, key: Option<Key<'_>>) -> Then {
        let before = self.turn.out.len();
        let then = execute_told(self, &job.request, key);
        let is_done = !matches!(then, Then::NoRoom(_) | Then::OnItsWay);
        if let (true, Some(key), true) = (job.request.follows(), key, is_done) {
            followed(&mut self.turn, before, job.bytes.len(), &key);
            if self.turn.on.shared.copies.homes.may_have(key.hash()) {
                tell_copies(&mut self.turn, before, job, &key);
            }
        }
        then
    }

    /// The bound that has been reached, if any.
    fn bound(&mut self, session: &Session, more: bool) -> Option<Ended> {
        let yields = self.requests >= self.turn.on.shared.settings.requests_per_event && more;
        if yields {
            self.turn.on.counters.conn_yields.add(1);
        }
        if session.slots.held_bytes() >= OUTPUT_BYTES_MAX {
            Some(Ended::Waits(Wait::Peers(Pause::Order)))
        } else if yields || session.unsent + self.turn.replied_bytes() >= OUTPUT_BYTES_MAX {
            Some(Ended::Waits(Wait::Output))
        } else {
            None
        }
    }
}

pub(crate) fn received(batch: &mut Batch<'_>, session: &mut Session, mut bytes: &[u8]) -> Ended {
    // A connection is not read while it has output.
    session.unsent = 0;
    if session.wait.drops_input() {
        return Ended::Hungry;
    }
    if !session.wait.is_no() {
        session.pending.extend_from_slice(bytes);
        return Ended::Hungry;
    }
    while !session.pending.is_empty() && !bytes.is_empty() {
        if !session.complete(&mut bytes) {
            return Ended::Hungry;
        }
        match run_pending(batch, session) {
            Ended::Hungry => {}
            Ended::Waits(wait) if wait.drops_input() => return Ended::Waits(wait),
            bound => {
                session.pending.extend_from_slice(bytes);
                return bound;
            }
        }
    }
    if bytes.is_empty() {
        return Ended::Hungry;
    }
    let ran = batch.run(session, bytes);
    session.pending.extend_from_slice(&ran.rewritten);
    session.pending.extend_from_slice(&bytes[ran.used..]);
    ran.ended
}

/// One step of the command that has not ended.
pub(crate) fn go_on_walking(
    batch: &mut Batch<'_>,
    session: &mut Session,
    mut walk: Box<Walk>,
) -> Ended {
    let before = batch.turn.out.len();
    let more = walk.step(&batch.turn.on, batch.turn.out);
    session.order(before, batch.turn.out);
    if more { Ended::Waits(Wait::Walk(walk)) } else { run_pending(batch, session) }
}

/// Executes what is there, if nothing stands in the way.
pub(crate) fn run_pending(batch: &mut Batch<'_>, session: &mut Session) -> Ended {
    if !session.wait.is_no() {
        return Ended::Hungry;
    }
    let pending = std::mem::take(&mut session.pending);
    let ran = batch.run(session, &pending);
    if ran.rewritten.is_empty() {
        session.keep(pending, ran.used);
    } else {
        session.pending = ran.rewritten;
        session.pending.extend_from_slice(&pending[ran.used..]);
    }
    ran.ended
}
