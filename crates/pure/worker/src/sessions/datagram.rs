//! UDP: each datagram is a session of its own, from its first request to its last.

use std::collections::BTreeMap;

use mbal_model::{Instant, KEY_BYTES_MAX, Key, Route};
use mbal_wire::{
    BINARY_REQUEST, Limits, Login, Request, base64_decode, datagrams, push_line, words_of,
};

use crate::commands::context::Here;
use crate::commands::turn::Then;
use crate::event::{Action, Actions};
use crate::forwarding::peers::GATHER_KEYS_MAX;
use crate::ids::Sender;
use crate::moving::moves::Whereabouts;
use crate::observing::counters::Counters;
use crate::sessions::batch::Batch;
use crate::sessions::job::{Job, next_job, no_jobs};
use crate::sessions::room::Haste;
use crate::sessions::session::{OUTPUT_BYTES_MAX, Session};
use crate::sessions::slice_wait::SliceWait;
use crate::shared::Shared;

/// A longer reply is told as an error.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// Told instead of the reply to a `get` that has too many values for datagrams.
const TOO_MUCH: &[u8] = b"SERVER_ERROR reply too large for UDP";
/// Datagrams that wait for a slice that moves; one more is lost, as any may be on its way.
const LATE_MAX: usize = 256;

/// A datagram that asks for a slice that moves.
pub(crate) struct Late {
    pub from: Sender,
    pub bytes: Vec<u8>,
    wait: SliceWait,
}

/// Those that wait, by serial number.
#[derive(Default)]
pub(crate) struct LateDatagrams(BTreeMap<u64, Late>);

impl LateDatagrams {
    /// When to try again one that is not new; `None` if there are too many.
    pub fn wait(&mut self, serial: u64, mut late: Late, now: Instant) -> Option<Instant> {
        let at = late.wait.again(now);
        (self.0.len() < LATE_MAX).then(|| {
            self.0.insert(serial, late);
            at
        })
    }

    pub fn take(&mut self, serial: u64) -> Option<Late> {
        self.0.remove(&serial)
    }
}

impl Late {
    pub fn new(from: Sender, bytes: &[u8]) -> Late {
        Late { from, bytes: bytes.to_vec(), wait: SliceWait::default() }
    }

    pub fn is_over(&self, now: Instant) -> bool {
        self.wait.is_over(now)
    }
}

/// True if a key of these requests is of a slice that moves: then none of them is executed yet.
pub(crate) fn is_on_its_way(shared: &Shared, here: &Here, requests: &[u8]) -> bool {
    if shared.moves.is_empty() {
        return false;
    }
    let limits = Limits { item_bytes_max: shared.settings.item_bytes_max, login: Login::NotAsked };
    let moves = |word: &[u8]| {
        let route = Key::new(word)
            .map(|key| (key.hash(), shared.store.route(here.owner.worker, key.hash())));
        let Some((hash, Route::Moving(id))) = route else { return false };
        shared.moves.whereabouts(id, hash) == Whereabouts::OnItsWay
    };
    let binary = requests[0] == BINARY_REQUEST;
    let mut at = 0;
    while let Ok(job) = next_job(binary, &limits, requests, at, &mut None) {
        at = job.end + job.skip;
        let is_moving = match &job.request {
            Request::Get(get) => words_of(get.keys).any(moves),
            request => match request.key() {
                Some((key, false)) => moves(key),
                Some((key, true)) => {
                    let mut bytes = [0; KEY_BYTES_MAX];
                    let length = base64_decode(key, &mut bytes).expect("the parser tried it");
                    moves(&bytes[..length])
                }
                None => false,
            },
        };
        if is_moving {
            return true;
        }
        if at >= requests.len() {
            break;
        }
    }
    false
}

/// Sends what may leave of a datagram's replies, as one message.
pub(crate) fn answer_datagram(
    counters: &Counters,
    to: Sender,
    request_id: u16,
    mut reply: Vec<u8>,
    actions: &mut Actions,
) {
    if reply.len() > REPLY_BYTES_MAX {
        reply.clear();
        push_line(&mut reply, TOO_MUCH);
    }
    send_datagrams(counters, to, request_id, &reply, actions);
}

pub(crate) fn send_datagrams(
    counters: &Counters,
    to: Sender,
    request_id: u16,
    reply: &[u8],
    actions: &mut Actions,
) {
    for (header, chunk) in datagrams(request_id, reply) {
        let at = actions.bytes.len();
        actions.bytes.extend_from_slice(&header);
        actions.bytes.extend_from_slice(chunk);
        let bytes = at..actions.bytes.len();
        counters.bytes_written.add(bytes.len() as u64);
        actions.list.push(Action::Datagram { to, bytes });
    }
}

impl Batch<'_> {
    /// Executes requests that have arrived in one piece, and says where each reply ends. Those beyond a bound are dropped.
    pub fn run_datagram(
        &mut self,
        session: &mut Session,
        input: &[u8],
        decoded: &mut Vec<u8>,
        ends: &mut Vec<usize>,
    ) {
        // Nothing is kept of a datagram: it is executed now or never.
        self.turn.haste = Haste::Last;
        let limits = self.turn.on.limits(Login::NotAsked);
        let binary = input[0] == BINARY_REQUEST;
        let requests_max = self.turn.on.shared.settings.requests_per_event;
        let mut at = 0;
        loop {
            let mut jobs = no_jobs();
            for slot in &mut jobs {
                let Ok(job) = next_job(binary, &limits, input, at, slot) else { break };
                let end = job.end + job.skip;
                // What is not there to its end is dropped, and what stands behind it.
                if end > input.len() {
                    *slot = None;
                    break;
                }
                at = end;
            }
            if jobs[0].is_none() {
                return;
            }
            let stopped = self.run_group(&jobs, decoded, |batch, job, key| {
                if batch.requests >= requests_max || batch.turn.replied_bytes() >= OUTPUT_BYTES_MAX
                {
                    return Some(());
                }
                let before = batch.turn.out.len();
                let closes = batch.execute_from_datagram(session, job, key);
                batch.requests += 1;
                session.order(before, batch.turn.out);
                ends.push(batch.turn.out.len());
                // Nobody is closed, and no server ended, by a sender that anybody can pretend to be.
                closes.then_some(())
            });
            if stopped.is_some() {
                return;
            }
        }
    }

    /// True if the request is to close its connection.
    fn execute_from_datagram(
        &mut self,
        session: &mut Session,
        job: &Job<'_>,
        key: Option<Key<'_>>,
    ) -> bool {
        let before = self.turn.out.len();
        if let (false, Request::Get(get)) = (self.turn.on.here.alone, &job.request) {
            if words_of(get.keys).nth(GATHER_KEYS_MAX).is_some() {
                self.turn.line(TOO_MUCH);
                return false;
            }
        }
        let then = match self.elsewhere(session, job, key.as_ref()) {
            Some(then) => then,
            None => self.execute_here(job, key),
        };
        let closes = matches!(then, Then::Close(_));
        match then {
            Then::Resume(_) => {
                self.turn.out.truncate(before);
                self.turn.line(TOO_MUCH);
            }
            // What needs a connection to go on, memcached does not answer here.
            Then::Walk(walk) if walk.is_a_dump() => {}
            Then::Walk(walk) => walk.at_once(&self.turn.on, self.turn.out),
            Then::Watch(watcher) => {
                self.turn.on.shared.log.unwatch(&watcher);
                self.turn.out.truncate(before);
            }
            _ => {}
        }
        closes
    }
}
