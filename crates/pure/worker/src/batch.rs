//! All that has arrived on one connection: parsed, hashed, prefetched, executed in groups, so
//! that the cache misses of a group overlap instead of being paid in turn.

use mbal_cachelet::{Ahead, Store};
use mbal_model::{Instant, KEY_BYTES_MAX, Key, ServerId};
use mbal_random::Random;
use mbal_replica::Leases;
use mbal_wire::{
    BINARY_REQUEST, Limits, Login, Parsed, Request, base64_decode, parse, parse_binary,
};

use crate::held::{Again, HeldRequests};
use crate::links::Links;
use crate::log::VERBOSE;
use crate::once::AnsweredOnce;
use crate::room::Haste;
use crate::session::{Client, OUTPUT_BYTES_MAX, Session, Wait};
use crate::settings::Protocol;
use crate::slice_wait::SliceWait;
use crate::turn::{Then, Turn};
use crate::wakes::Wakes;
use crate::watching::ERROR;
use crate::{Action, verbose};

/// Requests whose cache misses overlap.
pub(crate) const GROUP: usize = 16;

/// A command for operators looks at the whole server: in a turn it counts for so many requests, so that who
/// sends many of them does not keep others waiting.
const ADMIN_WEIGHT: u32 = 64;

/// Requests that are executed in one turn.
pub(crate) struct Batch<'w> {
    pub turn: Turn<'w>,
    pub links: &'w mut Links,
    /// Peers whose requests are gathered from further ones.
    pub relays: &'w mut AnsweredOnce,
    /// Servers that have passed on what is executed now, and the last of them.
    pub hops: u8,
    pub passed_by: Option<ServerId>,
    /// Until when that may be executed, here or wherever it is passed on to.
    pub until: Instant,
    /// Requests to other servers are appended here.
    pub to_peers: &'w mut Vec<u8>,
    pub actions: &'w mut Vec<Action>,
    /// Peers' requests that are not executed yet; and the one among them that is tried again in this turn.
    pub held: &'w mut HeldRequests,
    pub again: Option<Again>,
    pub wakes: &'w mut Wakes,
    /// Copies of hot keys that clients may read, where a worker holds leases for all of them.
    pub leases: &'w mut Option<Box<Leases>>,
    pub random: &'w mut Random,
    /// Keys that came in base64, decoded; reused from group to group.
    pub decoded: &'w mut Vec<u8>,
    /// Requests executed so far.
    pub requests: u32,
    /// What is told on standard error.
    pub said: &'w mut Vec<u8>,
}

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

/// What a paused connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// A credit of the link to this server.
    Credit(ServerId),
    /// Replies that wait for a peer's have come to [`OUTPUT_BYTES_MAX`].
    Order,
    /// All that is unanswered: what comes next could overtake it.
    Answers,
    /// An answer: what is asked for and not there yet may be as long as the connection may hold.
    Window,
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

/// Why no further request was parsed.
pub(crate) enum Stop {
    NeedMore(usize),
    Close,
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

#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub request: Request<'a>,
    /// The request as it came, with its value.
    pub bytes: &'a [u8],
    /// Where the request ends in the input, and how much follows that belongs to a refused value.
    pub end: usize,
    pub skip: usize,
}

impl Batch<'_> {
    /// Executes the requests in `input`, from its start.
    pub fn run(&mut self, session: &mut Session, input: &[u8]) -> Ran {
        let mut decoded = std::mem::take(self.decoded);
        self.turn.has_waiting = !session.slots.is_empty();
        let ran = match self.turn.watched & VERBOSE {
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
        let fd = self.turn.fd;
        let mut at = 0;
        loop {
            let rest = &input[at..];
            if negotiate(session, rest) {
                verbose::negotiated(self.said, fd, session.protocol);
            }
            let protocol = session.protocol;
            let limits = self.turn.limits(session.login);
            let (bytes, request) = match session.skip {
                0 => match next_job(protocol == Protocol::Binary, &limits, rest, 0) {
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
            let limits = self.turn.limits(session.login);
            let next_job = |at| next_job(binary, &limits, input, at);
            let group = match next_job(at) {
                Ok(job) => [Some(job)],
                Err(stop) => return stopped(session, at, stop),
            };
            let first = group[0].as_ref().expect("it has just been parsed");
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
            let mut jobs = [const { None }; GROUP];
            jobs[0] = group[0];
            let mut count = 1;
            let mut stop = None;
            while count < GROUP && parsed < input.len() {
                match next_job(parsed) {
                    Ok(job) if job.request.is_login() => break,
                    Ok(job) => {
                        parsed = job.end + job.skip;
                        jobs[count] = Some(job);
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

    /// Looks for the keys of a group, all at once, and lets `execute` have one request after the other, until it says how the
    /// batch ends. Every request takes this way, by whatever way it has come. The group has no gaps.
    #[inline(always)]
    pub fn run_group<const N: usize, R>(
        &mut self,
        jobs: &[Option<Job<'_>>; N],
        decoded: &mut Vec<u8>,
        mut execute: impl FnMut(&mut Self, &Job<'_>, Option<Key<'_>>) -> Option<R>,
    ) -> Option<R> {
        decode_keys(jobs, decoded);
        self.turn.made_room = false;
        let (keys, ahead) = prefetch(&self.turn.shared.store, jobs, decoded);
        let count = jobs.iter().position(Option::is_none).unwrap_or(N);
        self.turn.look_at(&jobs[..count], &keys);
        for (at, job) in jobs.iter().enumerate() {
            let Some(job) = job else { break };
            self.turn.ahead = ahead[at];
            let ended = execute(self, job, keys[at]);
            if ended.is_some() {
                return ended;
            }
        }
        None
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
        let now = self.turn.now.instant();
        self.turn.haste = session.room.map_or(Haste::None, |wait| wait.haste(now));
        let then = match self.elsewhere(session, job, key.as_ref()) {
            None if job.request.is_login() => {
                self.turn.log_in(&job.request, session);
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
        if !self.turn.alone {
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
                self.turn.begin_walk(&walk);
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
    #[inline]
    pub fn execute_here(&mut self, job: &Job<'_>, key: Option<Key<'_>>) -> Then {
        let before = self.turn.out.len();
        let then = self.execute_told(&job.request, key);
        let is_done = !matches!(then, Then::NoRoom(_) | Then::OnItsWay);
        if let (true, Some(key), true) = (job.request.follows(), key, is_done) {
            self.turn.followed(before, job.bytes.len(), &key);
            if self.turn.shared.copies.homes.may_have(key.hash()) {
                self.tell_copies(before, job, &key);
            }
        }
        then
    }

    /// The bound that has been reached, if any.
    fn bound(&mut self, session: &Session, more: bool) -> Option<Ended> {
        let yields = self.requests >= self.turn.shared.settings.requests_per_event && more;
        if yields {
            self.turn.counters.conn_yields.add(1);
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

/// The request that begins at `at`.
#[inline(always)]
pub(crate) fn next_job<'a>(
    binary: bool,
    limits: &Limits,
    input: &'a [u8],
    at: usize,
) -> Result<Job<'a>, Stop> {
    let input_left = &input[at..];
    match if binary { parse_binary(input_left, limits) } else { parse(input_left, limits) } {
        Parsed::Request { request, bytes, skip } => {
            let end = at + bytes;
            Ok(Job { request, bytes: &input[at..end], end, skip })
        }
        Parsed::NeedMore { bytes } => Err(Stop::NeedMore(bytes)),
        Parsed::Close => Err(Stop::Close),
    }
}

/// Decodes into `decoded` the keys that came in base64, one after the other.
fn decode_keys(jobs: &[Option<Job<'_>>], decoded: &mut Vec<u8>) {
    decoded.clear();
    for job in jobs.iter().flatten() {
        let Some((key, true)) = job.request.key() else { continue };
        let mut bytes = [0; KEY_BYTES_MAX];
        let length = base64_decode(key, &mut bytes).expect("the parser tried it");
        decoded.push(length as u8);
        decoded.extend_from_slice(&bytes[..length]);
    }
}

/// The keys, and where each is looked for.
#[inline(always)]
fn prefetch<'a, 's, const N: usize>(
    store: &'s Store,
    jobs: &[Option<Job<'a>>; N],
    mut decoded: &'a [u8],
) -> ([Option<Key<'a>>; N], [Ahead<'s>; N]) {
    let mut keys = [const { None }; N];
    let mut ahead = [Ahead::NONE; N];
    for ((job, slot), ahead) in jobs.iter().flatten().zip(&mut keys).zip(&mut ahead) {
        let Some((mut bytes, base64)) = job.request.key() else { continue };
        if base64 {
            let (length, rest) = decoded.split_first().expect("decoded before");
            (bytes, decoded) = rest.split_at(usize::from(*length));
        }
        *slot = Key::new(bytes);
        if let Some(key) = slot {
            *ahead = store.prefetch_bucket(key.hash());
        }
    }
    if N > 1 {
        for (key, ahead) in keys.iter().zip(ahead) {
            key.iter().for_each(|key| store.prefetch_item(key.hash(), ahead));
        }
    }
    (keys, ahead)
}
