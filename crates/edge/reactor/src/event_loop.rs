//! One worker's event loop: sockets and mailbox on one side, events and actions on the other.

use std::io;
use std::net::UdpSocket;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use mbal_worker::{Action, Actions, Background, ConnId, Event, Sender};

use crate::conn::Conn;
use crate::core_demand::{CoreTime, Wish};
use crate::guest::Guest;
use crate::letters::{Letter, LinkNote, MigratorNote, Post, Request};
use crate::listening::{ListeningSockets, RETRY_NS};
use crate::output::{KEPT_BYTES_MAX, RECEIVE_BYTES};
use crate::stopwatch::Stopwatch;
use crate::sys::{self, Epoll, READABLE, Ready};
use crate::tls::{ClientCertificate, TlsDoor};
use crate::{Clock, Mailbox, Tally};

mod conns;
mod link;
mod linked;
mod links;
mod secured;

use links::{LINKS, Links};

const TICK_NS: u64 = 1_000_000_000;
/// Between two goes of what can wait.
const BACKGROUND_EVERY_NS: u64 = 1_000_000;
const BACKGROUND_NS: u64 = 50_000;
/// What somebody waits for gets a turn so often even if the worker is never idle.
const HASTENED_EVERY_NS_MAX: u64 = 2_000_000;
/// What was ready when the loop asked is told within this time: longer, and it has slept.
const ASKING_NS: u64 = 10_000;
/// Between two looks at how long the thread wanted its core.
const WISH_EVERY_NS: u64 = 50_000_000;
const READY_PER_WAIT: usize = 256;
const MAILBOX: u64 = u64::MAX;
/// Tokens from here up are listening sockets, below are connections.
const DOORS: u64 = 1 << 32;

/// Tokens from here up are sockets for datagrams.
const DATAGRAMS: u64 = 1 << 33;
/// Of one socket, before the others have their turn.
const DATAGRAMS_PER_WAKEUP: usize = 32;
/// More of them than a socket holds are not dropped before it is served.
const DATAGRAMS_DROPPED_MAX: usize = 1 << 16;

/// The connections of one worker, and the loop that carries bytes between them and it.
pub struct EventLoop {
    worker: usize,
    epoll: Arc<Epoll>,
    post: Post,
    tally: Arc<Tally>,
    clock: Clock,
    sockets: ListeningSockets,
    /// Came through an own door; adopted at the end of the turn.
    arrived: Vec<(OwnedFd, Option<ClientCertificate>)>,
    datagrams: Vec<UdpSocket>,
    tls: Option<Arc<TlsDoor>>,
    /// Who shakes hands with those who come by TLS.
    tls_acceptor: Option<Mailbox<Guest>>,
    /// Decrypted, and encrypted; reused.
    plain: Vec<u8>,
    cipher: Vec<u8>,
    conns: Vec<Option<Conn>>,
    free: Vec<ConnId>,
    buffer: Box<[u8]>,
    actions: Actions,
    /// Stalled connections whose output has left: the worker is told after the ready ones' turn.
    drained: Vec<ConnId>,
    /// Asked for certificates to be read again.
    refreshed: Vec<ConnId>,
    /// Closed here, and the worker has not been told yet.
    closed: Vec<ConnId>,
    /// To other servers; `None` while there are none.
    links: Option<Box<Links>>,
}

impl EventLoop {
    /// `own_ports` are listening sockets whose connections stay with this worker.
    pub fn new(
        worker: usize,
        own_ports: Vec<OwnedFd>,
        post: Post,
        tally: Arc<Tally>,
        clock: Clock,
    ) -> io::Result<EventLoop> {
        let epoll = Arc::new(Epoll::new()?);
        tally.watch(worker, Arc::clone(&epoll));
        epoll.add(post.workers[worker].bell(), READABLE, MAILBOX)?;
        let sockets = ListeningSockets::new(own_ports, DOORS);
        sockets.watch(&epoll)?;
        Ok(EventLoop {
            worker,
            epoll,
            post,
            tally,
            clock,
            sockets,
            arrived: Vec::new(),
            datagrams: Vec::new(),
            tls: None,
            tls_acceptor: None,
            plain: Vec::new(),
            cipher: Vec::new(),
            conns: Vec::new(),
            free: Vec::new(),
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            actions: Actions::default(),
            drained: Vec::new(),
            refreshed: Vec::new(),
            closed: Vec::new(),
            links: None,
        })
    }

    /// There are other servers. Requests that go over links are sent together at the end of a wake-up; one that is unanswered
    /// for `timeout_ns` has failed. No request or reply is longer than `payload_bytes_max`.
    pub fn with_links(
        self,
        linker: Mailbox<LinkNote>,
        timeout_ns: u64,
        payload_bytes_max: usize,
    ) -> EventLoop {
        let links = Some(Box::new(Links::new(linker, timeout_ns, payload_bytes_max)));
        EventLoop { links, ..self }
    }

    /// Serves what comes to this socket, too.
    pub fn add_datagrams(&mut self, socket: UdpSocket) -> io::Result<()> {
        let token = DATAGRAMS + self.datagrams.len() as u64;
        self.epoll.add(socket.as_fd(), READABLE, token)?;
        self.datagrams.push(socket);
        Ok(())
    }

    /// No client comes in at the own ports before [`Letter::Open`], nor is one that sends datagrams answered.
    pub fn opens_later(self) -> io::Result<EventLoop> {
        self.sockets.ignore(&self.epoll)?;
        self.datagrams.iter().try_for_each(|socket| self.epoll.remove(socket.as_fd()))?;
        Ok(self)
    }

    fn open(&self) -> io::Result<()> {
        self.sockets.watch(&self.epoll)?;
        for (token, socket) in (DATAGRAMS..).zip(&self.datagrams) {
            // Whoever sent them has given up, and may have written something else since.
            let mut dropped = (0..DATAGRAMS_DROPPED_MAX).map(|_| socket.recv(&mut [0]));
            while matches!(dropped.next(), Some(Ok(_))) {}
            self.epoll.add(socket.as_fd(), READABLE, token)?;
        }
        Ok(())
    }

    /// Connections may speak TLS: those whose letter says so, and those that come in by the own ports
    /// that are marked. `tls_acceptor` shakes hands with them first.
    pub fn with_tls(
        mut self,
        door: Arc<TlsDoor>,
        secured: Vec<Option<ClientCertificate>>,
        tls_acceptor: Mailbox<Guest>,
    ) -> EventLoop {
        self.tls = Some(door);
        self.tls_acceptor = Some(tls_acceptor);
        self.sockets.secure(secured);
        self
    }

    /// Serves until [`Letter::Stop`].
    ///
    /// `handle` is the worker: time in nanoseconds of the loop's clock, what happened, what to do.
    /// `background` does a step of work that can wait, and says whether there is more. Once a millisecond at most, after the
    /// ready connections have had their turn, steps are begun for 50 µs. If somebody waits for it, the loop works as long as it
    /// sleeps, 50 µs at a time, and every 2 ms in any case: a worker of which clients take all but a tenth spends at most another
    /// twentieth. `background` is told whether the loop has slept at all since. While there is more, the loop wakes up for it.
    /// `next_wake` says when the worker wants to be [woken](Event::Woken), by the same clock, after what it has handled.
    pub fn run<H, B, W>(mut self, mut handle: H, mut background: B, next_wake: W) -> io::Result<()>
    where
        H: FnMut(u64, Event, &mut Actions),
        B: FnMut(u64, bool, &mut Actions) -> Background,
        W: Fn() -> Option<u64>,
    {
        let mut told_ns = 0;
        // Some events come with a later moment than the turn's: for the worker time goes on all the same.
        let mut handle = move |now: u64, event: Event<'_>, actions: &mut Actions| {
            told_ns = now.max(told_ns);
            handle(told_ns, event, actions);
        };
        let pulse = self.post.workers[self.worker].watched();
        let mut ready = [Ready::NONE; READY_PER_WAIT];
        let mut next_tick = TICK_NS;
        let mut next_background = 0;
        let mut more = Background::Rests;
        // How long the loop has slept since it last worked in the background, and how long that took.
        let (mut slept_ns, mut worked_ns) = (0, 0);
        let mut rests_at = self.clock.now_ns();
        let (mut timeout_ns, mut busy_ns) = (0, 0);
        let mut stopwatch = Stopwatch::new();
        let (mut wish, mut next_wish, mut known_ns) = (Wish::begin(), 0, 0);
        loop {
            let count = self.epoll.wait_ns(&mut ready, timeout_ns)?;
            pulse.beat();
            // Once per wake-up: everything that had arrived by now is handled at this time.
            let now = self.clock.now_ns();
            // What is longer than it was to be was another thread's time.
            slept_ns += (now - rests_at).min(timeout_ns);
            let before_ns = if now - rests_at < ASKING_NS { busy_ns } else { 0 };
            if let Some(links) = &mut self.links {
                links.now = now;
            }
            let mut letters = false;
            let timed = if count > 0 { stopwatch.choose() } else { None };
            if timed.is_some() {
                self.time(now, Event::Timing, &mut handle);
            }
            for event in &ready[..count] {
                match event.token() {
                    MAILBOX => letters = true,
                    link if link >= LINKS => {
                        self.serve_link((link - LINKS) as usize, now, &mut handle);
                    }
                    socket if socket >= DATAGRAMS => {
                        self.answer_datagrams((socket - DATAGRAMS) as usize, now, &mut handle);
                    }
                    door if door >= DOORS => {
                        self.sockets.open(
                            door,
                            now,
                            &self.epoll,
                            &self.tally,
                            &mut self.arrived,
                        )?;
                    }
                    conn => self.serve(ConnId(conn as u32), now, &mut handle),
                }
            }
            self.resume_drained(now, &mut handle);
            if next_wake().is_some_and(|wake| wake <= now) {
                // Read anew: what has been held may have been given up while this thread stood still.
                let now = self.clock.now_ns();
                handle(now, Event::Woken, &mut self.actions);
                self.settle(now, &mut handle);
                more = more.max(Background::GoesOn);
            }
            if let Some(stands_for) = timed {
                let elapsed_ns = self.clock.now_ns() - now;
                self.time(now, Event::Timed { elapsed_ns, stands_for }, &mut handle);
            }
            // Last, so that a connection's number is not given away while events name its last owner.
            if letters {
                for letter in self.post.workers[self.worker].collect() {
                    match letter {
                        Letter::Adopt { fd, tls } => {
                            self.receive(fd, tls, false, now, &mut handle);
                        }
                        Letter::Welcome(guest) => self.welcome(guest, now, &mut handle),
                        Letter::Take(handed) => self.take(handed, now, &mut handle),
                        Letter::Linked(linked) => self.link(linked, now, &mut handle),
                        Letter::Open => self.open()?,
                        Letter::Tell(event) => {
                            handle(now, event, &mut self.actions);
                            self.settle(now, &mut handle);
                            // It may have begun what needs more steps than an event has.
                            more = Background::Hastens;
                        }
                        Letter::Stop => return Ok(()),
                    }
                }
            }
            while let Some((fd, tls)) = self.arrived.pop() {
                self.tally.assign(self.worker);
                self.receive(fd, tls, true, now, &mut handle);
            }
            if next_tick <= now {
                handle(now, Event::Tick, &mut self.actions);
                self.settle(now, &mut handle);
                stopwatch.tick();
                next_tick = now + TICK_NS;
                self.ask_idle_links(now, &mut handle);
            }
            if self.links.is_some() {
                self.finish_links(now, &mut handle);
            }
            let may_hasten = more == Background::Hastens && worked_ns <= slept_ns;
            if next_background <= now || may_hasten {
                let begun = self.clock.now_ns();
                let is_idle = slept_ns > 0;
                more = self.work_in_background(&mut background, now, is_idle, &mut handle);
                worked_ns = self.clock.now_ns() - begun;
                slept_ns = 0;
                next_background = now
                    + match more {
                        Background::Hastens => HASTENED_EVERY_NS_MAX,
                        _ => BACKGROUND_EVERY_NS,
                    };
            }
            self.sockets.retry(now, &self.epoll, &self.tally)?;
            let until = match self.drained.is_empty() {
                true => self.wakes_at(now, next_tick, more, next_wake()),
                false => now,
            };
            busy_ns = self.clock.now_ns() - now;
            rests_at = now + busy_ns;
            timeout_ns = until.saturating_sub(rests_at);
            if more == Background::Hastens {
                timeout_ns = timeout_ns.min(worked_ns.saturating_sub(slept_ns));
            }
            handle(now, Event::Rests { busy_ns, before_ns }, &mut self.actions);
            known_ns += busy_ns;
            if next_wish <= now {
                // Who is kept from the core inside of the wait, as by a quota, would look idle.
                let CoreTime { ran, waited } = wish.since().unwrap_or_default();
                let busy_ns = (ran + waited).saturating_sub(known_ns);
                let unseen = Event::Unseen { busy_ns, delay_ns: busy_ns.min(waited), ran_ns: ran };
                handle(now, unseen, &mut self.actions);
                (next_wish, known_ns) = (now + WISH_EVERY_NS, 0);
            }
        }
    }

    /// When the loop goes on, even if nothing comes.
    fn wakes_at(&self, now: u64, next_tick: u64, more: Background, next_wake: Option<u64>) -> u64 {
        let background = (more > Background::Rests).then_some(now + BACKGROUND_EVERY_NS);
        let sockets = self.sockets.paused().then_some(now + RETRY_NS);
        let links = self.links.as_ref().and_then(|links| links.next_deadline());
        let moments = [background, sockets, links, next_wake];
        moments.into_iter().flatten().fold(next_tick, u64::min)
    }

    #[cold]
    fn time(&mut self, now: u64, event: Event, handle: &mut impl FnMut(u64, Event, &mut Actions)) {
        handle(now, event, &mut self.actions);
    }

    #[inline]
    fn serve(&mut self, id: ConnId, now: u64, handle: &mut impl FnMut(u64, Event, &mut Actions)) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        if !conn.output.is_empty() {
            self.flush(id);
            self.settle(now, handle);
            return;
        }
        if conn.stalled {
            return;
        }
        if conn.paused {
            self.serve_paused(id);
            return self.settle(now, handle);
        }
        if conn.tls.is_some() {
            return self.serve_tls(id, now, handle);
        }
        match sys::recv(conn.fd.as_fd(), &mut self.buffer) {
            Ok(0) => self.half_closed(id, now, handle),
            Ok(count) => {
                let bytes = &self.buffer[..count];
                handle(now, Event::Received { conn: id, bytes }, &mut self.actions);
            }
            Err(error) if sys::is_transient(&error) => {}
            Err(_) => self.close(id),
        }
        self.settle(now, handle);
    }

    fn answer_datagrams(
        &mut self,
        socket: usize,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        for _ in 0..DATAGRAMS_PER_WAKEUP {
            let received = self.datagrams[socket].recv_from(&mut self.buffer);
            // A sender that cannot be reached, or nothing more: the next wake-up knows.
            let Ok((count, address)) = received else { return };
            let (from, bytes) = (Sender { socket: socket as u16, address }, &self.buffer[..count]);
            handle(now, Event::Datagram { from, bytes }, &mut self.actions);
            self.settle(now, handle);
        }
    }

    /// Carries out what the worker asked for, and tells it of connections that went on the way.
    #[inline]
    fn settle(&mut self, now: u64, handle: &mut impl FnMut(u64, Event, &mut Actions)) {
        loop {
            match self.actions.list[..] {
                [] => {}
                [Action::Send { conn, ref bytes }] => self.send_all(conn, bytes.clone()),
                _ => self.carry_out(),
            }
            if let Some(conn) = self.refreshed.pop() {
                let refreshed = self.tls.as_ref().map_or(Ok(()), |door| door.refresh());
                handle(now, Event::CertsRefreshed { conn, refreshed }, &mut self.actions);
                continue;
            }
            if let Some(news) = self.links.as_mut().and_then(|links| links.news.pop()) {
                handle(now, news, &mut self.actions);
                continue;
            }
            let Some(conn) = self.closed.pop() else { return };
            handle(now, Event::Closed { conn }, &mut self.actions);
            self.free.push(conn);
        }
    }

    /// What a turn of a connection asks for nearly always, and alone.
    #[inline]
    fn send_all(&mut self, conn: ConnId, bytes: Range<usize>) {
        let replies = std::mem::take(&mut self.actions.bytes);
        self.send(conn, &replies[bytes]);
        self.actions.bytes = replies;
        self.actions.clear();
        self.actions.bytes.shrink_to(KEPT_BYTES_MAX);
    }

    fn carry_out(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        let mut list = actions.list.drain(..).peekable();
        while let Some(action) = list.next() {
            match action {
                Action::Send { conn, mut bytes } => {
                    while let Some(Action::Send { bytes: next, .. }) =
                        list.next_if(|next| continues(next, conn, bytes.end))
                    {
                        bytes.end = next.end;
                    }
                    self.send(conn, &actions.bytes[bytes]);
                }
                Action::Stall { conn } => self.stall(conn),
                Action::Close { conn } => self.close_when_sent(conn),
                Action::HandOver { conn, to, session } => self.hand_over(conn, to, session),
                Action::Report(report) => (self.post.balancer)(report),
                Action::Nudge { worker } => {
                    self.post.workers[usize::from(worker.0)].post(Letter::Tell(Event::Nudged));
                }
                Action::Say { lines } => (self.post.said)(&lines),
                Action::RefreshCerts { conn } => self.refreshed.push(conn),
                Action::Shutdown { graceful } => {
                    self.post.main.post(Request::Shutdown { graceful })
                }
                Action::Datagram { to, bytes } => {
                    let socket = &self.datagrams[usize::from(to.socket)];
                    // One that the kernel has no room for is lost, as any may be on its way.
                    drop(socket.send_to(&actions.bytes[bytes], to.address));
                }
                Action::Pause { conn } => self.pause(conn, true),
                Action::Resume { conn } => self.pause(conn, false),
                Action::Forward { server, ticket, micros_left, request } => {
                    let request = &actions.requests[request];
                    self.links().forward(server, ticket, micros_left, request);
                }
                Action::Answer { ticket, reply, .. } => {
                    self.links().answer(ticket, &actions.bytes[reply]);
                }
                Action::TellMove { link, id, kind, payload } => {
                    self.tell_migrator(MigratorNote::Tell { link, id, kind, payload });
                }
                Action::BreakMoveLink { link } => {
                    self.tell_migrator(MigratorNote::Break { link });
                }
            }
        }
        drop(list);
        actions.clear();
        actions.bytes.shrink_to(KEPT_BYTES_MAX);
        actions.requests.shrink_to(KEPT_BYTES_MAX);
        self.actions = actions;
    }

    fn tell_migrator(&self, note: MigratorNote) {
        self.post.migrator.as_ref().expect("who moves cachelets has a migrator").post(note);
    }

    fn links(&mut self) -> &mut Links {
        self.links.as_mut().expect("what is of links comes from links")
    }

    /// What is left to do in the background. The worker was told of all that came at `now`, and goes by that time.
    fn work_in_background(
        &mut self,
        background: &mut impl FnMut(u64, bool, &mut Actions) -> Background,
        now: u64,
        is_idle: bool,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) -> Background {
        let start = self.clock.now_ns();
        let mut at = start;
        loop {
            let more = background(at, is_idle, &mut self.actions);
            self.settle(now, handle);
            at = self.clock.now_ns();
            if more == Background::Rests || start + BACKGROUND_NS <= at {
                return more;
            }
        }
    }
}

fn continues(action: &Action, conn: ConnId, end: usize) -> bool {
    matches!(action, Action::Send { conn: to, bytes } if *to == conn && bytes.start == end)
}
