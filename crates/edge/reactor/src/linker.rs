//! Brings links to other servers up, on a thread of its own: dials, shakes hands, tries again, and keeps strangers away
//! from the workers.
//!
//! ```text
//!   worker's event loop ──LinkNote::Lost──► Linker ──Letter::Linked──► the event loop of the link's worker
//!                                            dials each (worker, server), accepts at --link-port
//! ```
//! A worker sees a link only when both sides have proved who they are; it sees none of the time that takes.

use std::collections::BTreeMap;
use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use mbal_link::{
    Accepting, Cluster, Dial, Dialing, Dials, Established, HANDSHAKE_FRAME_BYTES_MAX, NONCE_BYTES,
    Step, next_frame,
};
use mbal_locks::{Mutex, ranks};
use mbal_model::ServerId;
use rustls::{ClientConfig, ServerConfig};

use crate::letters::{Letter, LinkNote, Linked, MIGRATOR, MigratorNote};
use crate::link_tls::LinkTls;
use crate::output::Output;
use crate::socket::{connect_tcp, peer_name};
use crate::sys::{self, Epoll, READABLE, Ready, WRITABLE};
use crate::watchdog::Pulse;
use crate::{Clock, Mailbox};

/// Connections at a time that have not proved who they are; one more is closed.
pub const STRANGERS_MAX: usize = 64;
/// Requests on a link that may be unanswered.
pub const LINK_CREDITS: u32 = 1024;

const RECEIVE_BYTES: usize = 4096;
const READY_PER_WAIT: usize = 64;
const MAILBOX: u64 = u64::MAX;
/// Tokens from here up are listening sockets, below are handshakes.
const DOORS: u64 = 1 << 32;
/// Without descriptors, accepting pauses for so long.
const SHUT_NS: u64 = 100_000_000;
/// Why a handshake has failed that took too long, and for how long it may before that is said.
const LATE: &str = "no handshake in time";
const LATE_FOR_NS: u64 = 3_000_000_000;
/// Refused strangers are said at most this often.
const SAY_EVERY_NS: u64 = 1_000_000_000;

/// Takes news: whether it is a warning, its name, its text.
pub type Say = dyn Fn(bool, &'static str, &str) + Send;

/// What has become of the links to each other server, for whoever tells of it. Locked for a moment, with nothing else.
pub type LinksSeen = Arc<Mutex<ranks::LinksSeen, BTreeMap<ServerId, LinkSeen>>>;

/// The links of all workers to one other server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkSeen {
    pub up: usize,
    pub wanted: usize,
    /// Since when some are missing.
    pub down_since_ns: Option<u64>,
    /// Of the last attempt that failed; empty before one has.
    pub why: String,
}

/// What a server is told of its cluster, as far as links go.
pub struct LinkPlan {
    pub cluster: Cluster,
    /// The other servers at first, and where each takes links ([`LinkNote::Peers`]).
    pub peers: Vec<(ServerId, String)>,
    /// A request that is unanswered for so long has failed; so has a handshake.
    pub timeout_ns: u64,
    /// The longest request or reply.
    pub payload_bytes_max: usize,
    /// Who serves links for moves, if cachelets move.
    pub migrator: Option<Mailbox<MigratorNote>>,
    /// Links are encrypted.
    pub tls: Option<(Arc<ServerConfig>, Arc<ClientConfig>)>,
    /// For the log.
    pub say: Box<Say>,
    pub seen: LinksSeen,
    /// Called once, when all links to the others are up by which requests go.
    pub ready: Option<Box<dyn FnOnce() + Send>>,
}

pub struct Linker {
    plan: LinkPlan,
    epoll: Epoll,
    inbox: Mailbox<LinkNote>,
    workers: Arc<[Mailbox<Letter>]>,
    clock: Clock,
    sockets: Vec<OwnedFd>,
    shut_until: Option<u64>,
    dials: Dials,
    news: BTreeMap<ServerId, News>,
    talks: Vec<Option<Talk>>,
    /// Accepted ones among them.
    strangers: usize,
    next_say: u64,
    unsaid: u64,
    buffer: Box<[u8]>,
    /// While it runs.
    pulse: Option<Pulse>,
}

/// What the log has been told of a server.
#[derive(Default)]
struct News {
    /// Workers whose links to it are up.
    up: usize,
    said: String,
    /// No link to it has come up since the first of these attempts.
    failing_since: Option<u64>,
}

/// A handshake that goes on.
struct Talk {
    fd: OwnedFd,
    tls: Option<LinkTls>,
    side: Side,
    input: Vec<u8>,
    output: Output,
    deadline: u64,
    /// Once all output has left, the link is up.
    up: Option<Established>,
}

enum Side {
    /// `None` while the connection is being made, or TLS shakes hands.
    Dials(usize, Option<Dialing>),
    Accepts(Option<Accepting>),
}

/// How it goes on with a handshake.
enum Next {
    Waits,
    Up,
    Ends(String),
}

impl Linker {
    /// `sockets` are the listening sockets at which other servers dial, `inbox` is where event loops tell what became of their links.
    pub fn new(
        plan: LinkPlan,
        sockets: Vec<OwnedFd>,
        inbox: Mailbox<LinkNote>,
        workers: Arc<[Mailbox<Letter>]>,
        clock: Clock,
    ) -> io::Result<Linker> {
        let epoll = Epoll::new()?;
        epoll.add(inbox.bell(), READABLE, MAILBOX)?;
        for (door, token) in sockets.iter().zip(DOORS..) {
            epoll.add(door.as_fd(), READABLE, token)?;
        }
        let peers = plan.peers.clone();
        let migrator = plan.migrator.as_ref().map(|_| MIGRATOR);
        let dials = Dials::new((0..workers.len()).chain(migrator).collect());
        let mut linker = Linker {
            plan,
            epoll,
            inbox,
            workers,
            clock,
            sockets,
            shut_until: None,
            dials,
            news: BTreeMap::new(),
            talks: Vec::new(),
            strangers: 0,
            next_say: 0,
            unsaid: 0,
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            pulse: None,
        };
        linker.know(peers, clock.now_ns());
        Ok(linker)
    }

    fn know(&mut self, peers: Vec<(ServerId, String)>, now: u64) {
        self.dials.know(&peers, now);
        let gone: Vec<ServerId> = self.news.keys().copied().collect();
        for server in peers.into_iter().map(|(server, _)| server).chain(gone) {
            self.show(server, None, now);
        }
    }

    /// What there is of links to a server; `why` is of one that has just failed.
    fn show(&self, server: ServerId, why: Option<&str>, now: u64) {
        let wanted = self.dials.wanted().filter(|dial| dial.server == server).count();
        let up = self.news.get(&server).map_or(0, |news| news.up);
        let mut seen = self.plan.seen.lock();
        if wanted == 0 {
            seen.remove(&server);
            return;
        }
        let link = seen.entry(server).or_default();
        (link.up, link.wanted) = (up, wanted);
        if up >= wanted {
            *link = LinkSeen { up, wanted, ..LinkSeen::default() };
            return;
        }
        link.down_since_ns.get_or_insert(now);
        if let Some(why) = why {
            link.why = why.to_owned();
        }
    }

    /// Links for the life of the process.
    pub fn run(mut self) -> io::Result<()> {
        self.pulse = Some(self.inbox.watched());
        let mut ready = [Ready::NONE; READY_PER_WAIT];
        loop {
            self.tell_ready();
            let timeout_ms = self.timeout_ms(self.clock.now_ns());
            let count = self.epoll.wait(&mut ready, timeout_ms)?;
            self.pulse.iter().for_each(Pulse::beat);
            let now = self.clock.now_ns();
            let is_talk = |event: &&Ready| event.token() < DOORS;
            for event in ready[..count].iter().filter(is_talk) {
                self.go_on(event.token() as usize, now);
            }
            // After those, so that no place changes hands while events name the last one.
            for event in &ready[..count] {
                match event.token() {
                    MAILBOX => self.hear(now),
                    door if door >= DOORS => self.accept((door - DOORS) as usize, now)?,
                    _ => {}
                }
            }
            self.end_late(now);
            self.dial_due(now);
            if self.shut_until.is_some_and(|until| until <= now) {
                self.shut_until = None;
                self.set_interest(READABLE)?;
            }
        }
    }

    fn tell_ready(&mut self) {
        let is_missing = |dial: &Dial| dial.part != MIGRATOR && !dial.is_up;
        if self.plan.ready.is_some() && !self.dials.wanted().any(is_missing) {
            self.plan.ready.take().into_iter().for_each(|ready| ready());
        }
    }

    fn timeout_ms(&self, now: u64) -> i32 {
        let talks = self.talks.iter().flatten().map(|talk| talk.deadline);
        let next = self.dials.next_wake().into_iter().chain(talks).chain(self.shut_until).min();
        let ms = next.map(|next| next.saturating_sub(now).div_ceil(1_000_000));
        ms.map_or(-1, |ms| i32::try_from(ms).unwrap_or(i32::MAX))
    }

    fn hear(&mut self, now: u64) {
        for note in self.inbox.collect() {
            match note {
                LinkNote::Lost { worker, server, why } => self.lost(worker, server, why, now),
                LinkNote::Peers(peers) => self.know(peers, now),
            }
        }
    }

    fn lost(&mut self, worker: usize, server: ServerId, why: String, now: u64) {
        let news = self.news.entry(server).or_default();
        news.up -= 1;
        if news.up == 0 {
            let text = format!("mbal: the link to server {} is lost: {why}", server.0);
            (self.plan.say)(true, "link_lost", &text);
            news.said = why.clone();
        }
        self.dials.lost(worker, server, now, random());
        self.show(server, Some(&why), now);
    }

    fn dial_due(&mut self, now: u64) {
        while let Some(at) = self.dials.due(now) {
            if let Err(error) = self.dial(at, now) {
                self.dial_failed(at, &error.to_string(), now);
            }
        }
    }

    fn dial(&mut self, at: usize, now: u64) -> io::Result<()> {
        let address = self.dials.at(at).address.as_deref().unwrap_or_default();
        let look_up = || address.to_socket_addrs();
        // Who serves names may be silent for long.
        let found = self.pulse.as_ref().map_or_else(look_up, |pulse| pulse.rests(look_up));
        let address = found?.next();
        let fd = connect_tcp(address.ok_or(io::ErrorKind::NotFound)?)?;
        // Closed in order, the kernel would send for minutes what it had taken: writes whose clients have been told that they failed, and have
        // written again. Moves number what they say, and look for what has arrived when they are linked again.
        if self.dials.at(at).part != MIGRATOR {
            sys::reset_when_closed(fd.as_fd())?;
        }
        let client = self.plan.tls.as_ref().map(|(_, client)| client);
        let tls = client.map(LinkTls::dial).transpose()?;
        self.begin(fd, tls, Side::Dials(at, None), WRITABLE, now)
    }

    fn begin(
        &mut self,
        fd: OwnedFd,
        tls: Option<LinkTls>,
        side: Side,
        interest: u32,
        now: u64,
    ) -> io::Result<()> {
        let free = self.talks.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.talks.push(None);
            self.talks.len() - 1
        });
        self.epoll.add(fd.as_fd(), interest, place as u64)?;
        let deadline = now + self.plan.timeout_ns;
        let (input, output) = (Vec::new(), Output::default());
        self.strangers += usize::from(matches!(side, Side::Accepts(_)));
        self.talks[place] = Some(Talk { fd, tls, side, input, output, deadline, up: None });
        Ok(())
    }

    fn dial_failed(&mut self, at: usize, why: &str, now: u64) {
        self.dials.failed(at, now, random());
        let server = self.dials.at(at).server;
        let news = self.news.entry(server).or_default();
        let since = *news.failing_since.get_or_insert(now);
        // A server that does not know the map yet shakes no hands: what passes is no news.
        let passes = why == LATE && now - since < LATE_FOR_NS;
        // Who tries every second says it once.
        if news.up == 0 && news.said != why && !passes {
            let text = format!("mbal: no link to server {}: {why}", server.0);
            (self.plan.say)(true, "link_failed", &text);
            news.said = why.to_owned();
        }
        self.show(server, Some(why), now);
    }

    fn accept(&mut self, door: usize, now: u64) -> io::Result<()> {
        loop {
            let fd = match sys::accept(self.sockets[door].as_fd()) {
                Ok(fd) => fd,
                Err(error) if sys::is_transient(&error) => return Ok(()),
                Err(error) if matches!(error.raw_os_error(), Some(libc::ECONNABORTED)) => continue,
                // No descriptors, or no network: whoever knocks waits in the kernel.
                Err(_) => {
                    self.shut_until = Some(now + SHUT_NS);
                    return self.set_interest(0);
                }
            };
            if self.strangers >= STRANGERS_MAX {
                self.turned_away("somebody", "too many handshakes at a time", now);
                continue;
            }
            let server = self.plan.tls.as_ref().map(|(server, _)| server);
            let begun = server
                .map(LinkTls::accept)
                .transpose()
                .and_then(|tls| self.begin(fd, tls, Side::Accepts(None), READABLE, now));
            if let Err(error) = begun {
                self.turned_away("somebody", &error.to_string(), now);
            }
        }
    }

    fn turned_away(&mut self, who: &str, why: &str, now: u64) {
        self.unsaid += 1;
        if now < self.next_say {
            return;
        }
        let more = match std::mem::take(&mut self.unsaid) {
            1 => String::new(),
            more => format!(" ({} more since the last of these lines)", more - 1),
        };
        self.next_say = now + SAY_EVERY_NS;
        let text = format!("mbal: {who} at the port of links was turned away: {why}{more}");
        (self.plan.say)(true, "link_refused", &text);
    }

    fn set_interest(&self, interest: u32) -> io::Result<()> {
        for (door, token) in self.sockets.iter().zip(DOORS..) {
            self.epoll.modify(door.as_fd(), interest, token)?;
        }
        Ok(())
    }

    fn go_on(&mut self, place: usize, now: u64) {
        let Some(mut talk) = self.talks[place].take() else { return };
        let next = talk.go_on(&self.plan, &self.dials, &self.clock, &mut self.buffer);
        let interest = if talk.output.is_empty() { READABLE } else { WRITABLE };
        match next {
            Next::Waits if self.epoll.modify(talk.fd.as_fd(), interest, place as u64).is_ok() => {
                self.talks[place] = Some(talk);
            }
            Next::Waits => self.end(talk, "epoll", now),
            Next::Up if self.epoll.remove(talk.fd.as_fd()).is_ok() => self.hand_over(talk, now),
            Next::Up => self.end(talk, "epoll", now),
            Next::Ends(why) => self.end(talk, &why, now),
        }
    }

    fn hand_over(&mut self, talk: Talk, now: u64) {
        let Talk { fd, tls, side, input, up, .. } = talk;
        let established = up.expect("it is up");
        let dialed = matches!(side, Side::Dials(..));
        let worker = match side {
            Side::Dials(at, _) => {
                self.dials.up(at);
                let server = ServerId(established.server);
                let news = self.news.entry(server).or_default();
                news.up += 1;
                if news.up == 1 {
                    news.said.clear();
                    news.failing_since = None;
                    let text = format!("mbal: linked to server {}", server.0);
                    (self.plan.say)(false, "linked", &text);
                }
                self.show(server, None, now);
                self.dials.at(at).part
            }
            // The links of another server's workers are spread over ours.
            Side::Accepts(_) => {
                self.strangers -= 1;
                usize::from(established.server) + usize::from(established.worker)
            }
        };
        let linked = Linked { fd, tls, established, dialed, input };
        match &self.plan.migrator {
            _ if usize::from(established.worker) != MIGRATOR => {
                self.workers[worker % self.workers.len()].post(Letter::Linked(linked));
            }
            Some(migrator) => migrator.post(MigratorNote::Linked(linked)),
            // Who wants to move cachelets here, where none move, finds nobody.
            None => drop(linked),
        }
    }

    fn end(&mut self, talk: Talk, why: &str, now: u64) {
        match talk.side {
            Side::Dials(at, _) => self.dial_failed(at, why, now),
            Side::Accepts(_) => {
                self.strangers -= 1;
                let who = peer_name(talk.fd.as_fd());
                self.turned_away(who.as_deref().unwrap_or("somebody"), why, now);
            }
        }
    }

    fn end_late(&mut self, now: u64) {
        for place in 0..self.talks.len() {
            if self.talks[place].as_ref().is_some_and(|talk| talk.deadline <= now) {
                let talk = self.talks[place].take().expect("it was just there");
                self.end(talk, LATE, now);
            }
        }
    }
}

impl Talk {
    fn go_on(&mut self, plan: &LinkPlan, dials: &Dials, clock: &Clock, buffer: &mut [u8]) -> Next {
        if let Err(why) = self.try_go_on(plan, dials, clock, buffer) {
            // What it says of that, if it still gets there.
            drop(sys::send(self.fd.as_fd(), self.output.unsent()));
            return Next::Ends(why);
        }
        if !self.output.is_empty() {
            match sys::send(self.fd.as_fd(), self.output.unsent()) {
                Ok(sent) => self.output.sent(sent),
                Err(error) if sys::is_transient(&error) => {}
                Err(error) => return Next::Ends(error.to_string()),
            }
        }
        if self.up.is_some() && self.output.is_empty() { Next::Up } else { Next::Waits }
    }

    fn try_go_on(
        &mut self,
        plan: &LinkPlan,
        dials: &Dials,
        clock: &Clock,
        buffer: &mut [u8],
    ) -> Result<(), String> {
        self.receive(buffer)?;
        self.begin(plan, dials);
        let mut used = 0;
        while self.up.is_none() {
            let rest = &self.input[used..];
            let frame = next_frame(rest, HANDSHAKE_FRAME_BYTES_MAX);
            let Ok(found) = frame else {
                return Err("it does not speak the protocol of links".into());
            };
            let Some((frame, after)) = found else { break };
            let step = match &mut self.side {
                Side::Dials(_, Some(dialing)) => dialing.step(&frame),
                Side::Accepts(Some(accepting)) => accepting.step(&frame, clock.now_us()),
                _ => return Err("it spoke before its turn".into()),
            };
            used = self.input.len() - after.len();
            let (bytes, ends) = match step {
                Step::Send(bytes) => (bytes, None),
                Step::Up(bytes, established) => {
                    self.up = Some(established);
                    (bytes, None)
                }
                Step::Refuse(bytes, why) => (bytes, Some(why.to_string())),
            };
            self.push(&bytes);
            if let Some(why) = ends {
                return Err(why);
            }
        }
        self.input.drain(..used);
        Ok(())
    }

    /// The handshake begins when there is a connection, and TLS has shaken hands.
    fn begin(&mut self, plan: &LinkPlan, dials: &Dials) {
        let binding = match &self.tls {
            Some(tls) => match tls.binding() {
                Some(binding) => binding.to_vec(),
                None => return,
            },
            None => Vec::new(),
        };
        let mut nonce = [0; NONCE_BYTES];
        fill_random(&mut nonce);
        match &mut self.side {
            Side::Dials(at, dialing @ None) => {
                let dial = dials.at(*at);
                let to = dial.server.0;
                let (begun, hello) =
                    Dialing::new(&plan.cluster, dial.part as u16, to, &nonce, &binding);
                *dialing = Some(begun);
                self.push(&hello);
            }
            Side::Accepts(accepting @ None) => {
                *accepting = Some(Accepting::new(&plan.cluster, LINK_CREDITS, &nonce, &binding));
            }
            _ => {}
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), String> {
        let count = match sys::recv(self.fd.as_fd(), buffer) {
            Ok(0) => return Err("it closed".into()),
            Ok(count) => count,
            Err(error) if sys::is_transient(&error) => 0,
            Err(error) => return Err(error.to_string()),
        };
        match &mut self.tls {
            None => self.input.extend_from_slice(&buffer[..count]),
            Some(tls) => {
                let mut cipher = Vec::new();
                let received = tls.receive(&buffer[..count], &mut self.input, &mut cipher);
                self.output.push(&cipher);
                received.map_err(|why| format!("TLS: {why}"))?;
            }
        }
        // What nobody could mean is not kept.
        if self.input.len() > 2 * RECEIVE_BYTES {
            return Err("it does not speak the protocol of links".into());
        }
        Ok(())
    }

    fn push(&mut self, bytes: &[u8]) {
        match &mut self.tls {
            None => self.output.push(bytes),
            Some(tls) => {
                let mut cipher = Vec::new();
                tls.send(bytes, &mut cipher);
                self.output.push(&cipher);
            }
        }
    }
}

fn fill_random(bytes: &mut [u8]) {
    use ring::rand::SecureRandom;
    ring::rand::SystemRandom::new().fill(bytes).expect("the kernel has random bytes");
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    fill_random(&mut bytes);
    u64::from_le_bytes(bytes)
}
