//! One worker's event loop: sockets and mailbox on one side, events and actions on the other.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use mbal_model::WorkerId;
use mbal_worker::{Action, Actions, Carried, ConnId, Event, Report, Sender};

use crate::greeter::Guest;
use crate::linker::{LinkNote, Linked};
use crate::listener::{Doors, RETRY_MS, Request};
use crate::output::Output;
use crate::socket;
use crate::stopwatch::Stopwatch;
use crate::sys::{self, Epoll, HUNG_UP, READABLE, Ready, WRITABLE};
use crate::tls::{Broken, ClientCertificate, Tls, TlsDoor};
use crate::{Clock, Mailbox, Tally};

mod links;

use links::Links;

/// One receive takes at most this much; what is left in the kernel is reported again.
pub const RECEIVE_BYTES: usize = 64 * 1024;

const TICK_NS: u64 = 1_000_000_000;
const BACKGROUND_EVERY_NS: u64 = 1_000_000;
const BACKGROUND_NS: u64 = 50_000;
const READY_PER_WAIT: usize = 256;
/// Actions keep their memory from one event to the next, up to this much.
const REPLY_BYTES_KEPT: usize = 1 << 20;

/// What a connection is watched for. Nobody here asks who has hung up: the listener does, in [`Tally::hung_up`].
const RECEIVING: u32 = READABLE | HUNG_UP;

const MAILBOX: u64 = u64::MAX;
/// Tokens from here up are listening sockets, below are connections.
const DOORS: u64 = 1 << 32;

/// Tokens from here up are sockets for datagrams.
const DATAGRAMS: u64 = 1 << 33;
/// Tokens from here up are links to other servers.
const LINKS: u64 = 1 << 34;
/// Of one socket, before the others have their turn.
const DATAGRAMS_PER_WAKEUP: usize = 32;

/// What other threads tell an event loop.
pub enum Letter {
    /// Serve this connection, with or without TLS; its place in the [`Tally`] is taken already.
    Adopt { fd: OwnedFd, tls: Option<ClientCertificate> },
    /// Serve this connection, whose handshake is over.
    Welcome(Guest),
    /// Serve this connection, which another worker hands over.
    Take(Handed),
    /// Send requests over this link, or serve those that come over it.
    Linked(Linked),
    /// This has happened to the worker.
    Tell(Event<'static>),
    /// Leave [`EventLoop::run`]. Replies to what was received have been sent, as far as sockets took them.
    Stop,
}

/// A connection between two workers, with what each of their threads knew of it.
pub struct Handed {
    conn: Conn,
    session: Carried,
}

/// Takes lines, each with its end, and keeps no worker waiting.
pub type Said = dyn Fn(&[u8]) + Send + Sync;

/// Whom an event loop writes to.
#[derive(Clone)]
pub struct Post {
    pub main: Mailbox<Request>,
    /// By worker, itself included.
    pub workers: Arc<[Mailbox<Letter>]>,
    /// The balancer, which must not keep a worker waiting.
    pub balancer: Arc<dyn Fn(Report) + Send + Sync>,
    /// Standard error, for lines that a worker says.
    pub said: Arc<Said>,
}

/// The connections of one worker, and the loop that carries bytes between them and it.
pub struct EventLoop {
    worker: usize,
    epoll: Arc<Epoll>,
    post: Post,
    tally: Arc<Tally>,
    clock: Clock,
    doors: Doors,
    /// Came through an own door; adopted at the end of the turn.
    arrived: Vec<(OwnedFd, Option<ClientCertificate>)>,
    datagrams: Vec<UdpSocket>,
    tls: Option<Arc<TlsDoor>>,
    /// Who shakes hands with those who come by TLS.
    greeter: Option<Mailbox<Guest>>,
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

struct Conn {
    fd: OwnedFd,
    /// `None` is plain text.
    tls: Option<Box<Tls>>,
    output: Output,
    stalled: bool,
    /// It waits for other servers, and is not read.
    paused: bool,
    closing: bool,
    /// It goes to this worker when its output has left; here it has no session any more.
    leaving: Option<(WorkerId, Carried)>,
}

impl Conn {
    /// What is worth waking up for while there is no output.
    fn interest(&self) -> u32 {
        if self.paused { 0 } else { RECEIVING }
    }
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
        let doors = Doors::new(own_ports, DOORS);
        doors.watch(&epoll)?;
        Ok(EventLoop {
            worker,
            epoll,
            post,
            tally,
            clock,
            doors,
            arrived: Vec::new(),
            datagrams: Vec::new(),
            tls: None,
            greeter: None,
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

    /// Connections may speak TLS: those whose letter says so, and those that come in by the own ports
    /// that are marked. `greeter` shakes hands with them first.
    pub fn with_tls(
        mut self,
        door: Arc<TlsDoor>,
        secured: Vec<Option<ClientCertificate>>,
        greeter: Mailbox<Guest>,
    ) -> EventLoop {
        self.tls = Some(door);
        self.greeter = Some(greeter);
        self.doors.secure(secured);
        self
    }

    /// Serves until [`Letter::Stop`].
    ///
    /// `handle` is the worker: time in nanoseconds of the loop's clock, what happened, what to do.
    /// `background` does a step of work that can wait, and says whether there is more. Once a millisecond at most, after the
    /// ready connections have had their turn, steps are begun for 50 µs. While there is more, the loop wakes up for it.
    pub fn run<H, B>(mut self, mut handle: H, mut background: B) -> io::Result<()>
    where
        H: FnMut(u64, Event, &mut Actions),
        B: FnMut(u64) -> bool,
    {
        let mut ready = [Ready::NONE; READY_PER_WAIT];
        let mut next_tick = TICK_NS;
        let mut next_background = 0;
        let mut more_background = false;
        let mut timeout_ms = 0;
        let mut stopwatch = Stopwatch::new();
        loop {
            let count = self.epoll.wait(&mut ready, timeout_ms)?;
            // Once per wake-up: everything that had arrived by now is handled at this time.
            let now = self.clock.now_ns();
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
                        self.doors.open(door, now, &self.epoll, &self.tally, &mut self.arrived)?;
                    }
                    conn => self.serve(ConnId(conn as u32), now, &mut handle),
                }
            }
            self.resume_drained(now, &mut handle);
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
                        Letter::Tell(event) => {
                            handle(now, event, &mut self.actions);
                            self.settle(now, &mut handle);
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
            if next_background <= now {
                next_background = now + BACKGROUND_EVERY_NS;
                more_background = self.work_in_background(&mut background);
            }
            self.doors.retry(now, &self.epoll, &self.tally)?;
            timeout_ms = if !self.drained.is_empty() {
                0
            } else if more_background {
                1
            } else if self.doors.paused() {
                RETRY_MS
            } else {
                let next_link = self.links.as_ref().and_then(|links| links.next_deadline());
                let next = next_link.map_or(next_tick, |link| next_tick.min(link.max(now)));
                (next - now).div_ceil(1_000_000) as i32
            };
            let busy_ns = self.clock.now_ns() - now;
            handle(now, Event::Rests { busy_ns }, &mut self.actions);
        }
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

    #[cold]
    fn serve_tls(
        &mut self,
        id: ConnId,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        let conn = self.conns[id.0 as usize].as_mut().expect("it is there: serve looked");
        let tls = conn.tls.as_mut().expect("it has TLS: serve looked");
        let count = match sys::recv(conn.fd.as_fd(), &mut self.buffer) {
            Ok(count @ 1..) => count,
            Err(error) if sys::is_transient(&error) => return,
            Ok(0) => {
                self.half_closed(id, now, handle);
                return self.settle(now, handle);
            }
            Err(_) => {
                self.close(id);
                return self.settle(now, handle);
            }
        };
        let (mut plain, mut cipher) =
            (std::mem::take(&mut self.plain), std::mem::take(&mut self.cipher));
        let received = tls.receive(&self.buffer[..count], &mut plain, &mut cipher);
        if !cipher.is_empty() {
            self.send_raw(id, &cipher);
        }
        match received {
            Ok(()) if plain.is_empty() => {}
            Ok(()) => {
                let bytes = plain.as_slice();
                handle(now, Event::Received { conn: id, bytes }, &mut self.actions);
            }
            Err(Broken(why)) => {
                let conn = self.conns[id.0 as usize].as_ref();
                let fd = conn.map_or(0, |conn| conn.fd.as_raw_fd() as u32);
                handle(now, Event::TlsBroke { fd, why }, &mut self.actions);
                self.close_when_sent(id);
            }
        }
        plain.clear();
        cipher.clear();
        (self.plain, self.cipher) = (plain, cipher);
        self.settle(now, handle);
    }

    /// Carries out what the worker asked for, and tells it of connections that went on the way.
    #[inline]
    fn settle(&mut self, now: u64, handle: &mut impl FnMut(u64, Event, &mut Actions)) {
        loop {
            if !self.actions.list.is_empty() {
                self.carry_out();
            }
            if let Some(conn) = self.refreshed.pop() {
                let refreshed = self.tls.as_ref().map_or(Ok(()), |door| door.refresh());
                handle(now, Event::CertsRefreshed { conn, refreshed }, &mut self.actions);
                continue;
            }
            if let Some(server) = self.links.as_mut().and_then(|links| links.broken.pop()) {
                handle(now, Event::LinkBroken { server }, &mut self.actions);
                continue;
            }
            let Some(conn) = self.closed.pop() else { return };
            handle(now, Event::Closed { conn }, &mut self.actions);
            self.free.push(conn);
        }
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
                Action::Forward { server, ticket, request } => {
                    self.links().forward(server, ticket, &actions.requests[request]);
                }
                Action::Answer { ticket, reply, .. } => {
                    self.links().answer(ticket, &actions.bytes[reply]);
                }
            }
        }
        drop(list);
        actions.clear();
        actions.bytes.shrink_to(REPLY_BYTES_KEPT);
        actions.requests.shrink_to(REPLY_BYTES_KEPT);
        self.actions = actions;
    }

    fn links(&mut self) -> &mut Links {
        self.links.as_mut().expect("what is of links comes from links")
    }

    #[cold]
    fn pause(&mut self, id: ConnId, paused: bool) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        conn.paused = paused;
        // One that has output is not read until that has left.
        if conn.output.is_empty()
            && self.epoll.modify(conn.fd.as_fd(), conn.interest(), u64::from(id.0)).is_err()
        {
            self.close(id);
        }
    }

    /// Who has no other servers has sent all replies already.
    fn half_closed(
        &mut self,
        id: ConnId,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        if self.links.is_none() {
            return self.close(id);
        }
        self.pause(id, true);
        handle(now, Event::HalfClosed { conn: id }, &mut self.actions);
    }

    /// Nobody listens to it, so it broke, or was ready before it paused.
    #[cold]
    fn serve_paused(&mut self, id: ConnId) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        match sys::peek(conn.fd.as_fd()) {
            Err(error) if !sys::is_transient(&error) => self.close(id),
            _ => {}
        }
    }

    #[inline]
    fn send(&mut self, id: ConnId, bytes: &[u8]) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        let Some(tls) = &mut conn.tls else { return self.send_raw(id, bytes) };
        let mut cipher = Vec::new();
        tls.send(bytes, &mut cipher);
        self.send_raw(id, &cipher);
    }

    #[inline]
    fn send_raw(&mut self, id: ConnId, bytes: &[u8]) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        if !conn.output.is_empty() {
            conn.output.push(bytes);
            return;
        }
        match sys::send(conn.fd.as_fd(), bytes) {
            Ok(sent) if sent == bytes.len() => {}
            Ok(sent) => self.queue(id, &bytes[sent..]),
            Err(error) if sys::is_transient(&error) => self.queue(id, bytes),
            Err(_) => self.close(id),
        }
    }

    /// Keeps what the kernel did not take, and stops reading until it has.
    fn queue(&mut self, id: ConnId, rest: &[u8]) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        conn.output.push(rest);
        if self.epoll.modify(conn.fd.as_fd(), WRITABLE, u64::from(id.0)).is_err() {
            self.close(id);
        }
    }

    fn flush(&mut self, id: ConnId) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        match sys::send(conn.fd.as_fd(), conn.output.unsent()) {
            Ok(sent) => conn.output.sent(sent),
            Err(error) if sys::is_transient(&error) => return,
            Err(_) => return self.close(id),
        }
        if !conn.output.is_empty() {
            return;
        }
        if conn.leaving.is_some() {
            self.leave(id);
        } else if conn.closing
            || self.epoll.modify(conn.fd.as_fd(), conn.interest(), u64::from(id.0)).is_err()
        {
            self.close(id);
        } else if conn.stalled {
            self.drained.push(id);
        }
    }

    fn stall(&mut self, id: ConnId) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        conn.stalled = true;
        if conn.output.is_empty() {
            self.drained.push(id);
        }
    }

    fn resume_drained(&mut self, now: u64, handle: &mut impl FnMut(u64, Event, &mut Actions)) {
        let due = self.drained.len();
        for turn in 0..due {
            let id = self.drained[turn];
            let Some(conn) = &mut self.conns[id.0 as usize] else { continue };
            if std::mem::take(&mut conn.stalled) {
                handle(now, Event::Drained { conn: id }, &mut self.actions);
                self.settle(now, handle);
            }
        }
        // Those that stalled again meanwhile wait for the next turn, so that nobody is starved.
        self.drained.drain(..due);
    }

    fn close_when_sent(&mut self, id: ConnId) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        conn.closing = true;
        if let Some(tls) = &mut conn.tls {
            let mut goodbye = Vec::new();
            tls.close(&mut goodbye);
            self.send_raw(id, &goodbye);
        }
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        if conn.output.is_empty() {
            self.close(id);
        }
    }

    fn close(&mut self, id: ConnId) {
        if self.conns[id.0 as usize].take().is_some() {
            self.tally.leave(self.worker);
            self.closed.push(id);
        }
    }

    fn hand_over(&mut self, id: ConnId, to: WorkerId, session: Carried) {
        match &mut self.conns[id.0 as usize] {
            // It broke while its last reply was sent: the session goes with it.
            None => {}
            Some(conn) => {
                conn.leaving = Some((to, session));
                if conn.output.is_empty() {
                    self.leave(id);
                }
            }
        }
    }

    fn leave(&mut self, id: ConnId) {
        let Some(mut conn) = self.conns[id.0 as usize].take() else { return };
        self.free.push(id);
        let (to, session) = conn.leaving.take().expect("it was asked to leave");
        if self.epoll.remove(conn.fd.as_fd()).is_err() {
            return self.tally.leave(self.worker);
        }
        let to = usize::from(to.0);
        self.tally.hand_over(self.worker, to);
        self.post.workers[to].post(Letter::Take(Handed { conn, session }));
    }

    /// A connection has come: who speaks TLS shakes hands first.
    fn receive(
        &mut self,
        fd: OwnedFd,
        tls: Option<ClientCertificate>,
        own_port: bool,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        match (&self.tls, &self.greeter, tls) {
            (Some(door), Some(greeter), Some(certificate)) => match door.open(certificate) {
                Some(tls) => greeter.post(Guest::new(fd, tls, self.worker, own_port)),
                None => self.tally.leave(self.worker),
            },
            _ => drop(self.adopt(fd, None, own_port, now, handle)),
        }
    }

    fn welcome(
        &mut self,
        guest: Guest,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        let Guest { fd, tls, own_port, plain, .. } = guest;
        let Some(conn) = self.adopt(fd, Some(tls), own_port, now, handle) else { return };
        if !plain.is_empty() && self.conns[conn.0 as usize].is_some() {
            handle(now, Event::Received { conn, bytes: &plain }, &mut self.actions);
            self.settle(now, handle);
        }
    }

    fn adopt(
        &mut self,
        fd: OwnedFd,
        tls: Option<Box<Tls>>,
        own_port: bool,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) -> Option<ConnId> {
        let card = socket::card(fd.as_fd()).map(Arc::new);
        let output = Output::default();
        let conn =
            Conn { fd, tls, output, stalled: false, paused: false, closing: false, leaving: None };
        let conn = self.admit(conn)?;
        handle(now, Event::Opened { conn, own_port }, &mut self.actions);
        if let Some(card) = card {
            handle(now, Event::Introduced { conn, card }, &mut self.actions);
        }
        self.settle(now, handle);
        Some(conn)
    }

    fn take(
        &mut self,
        handed: Handed,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        let Handed { conn, session } = handed;
        let Some(conn) = self.admit(conn) else { return };
        handle(now, Event::Adopted { conn, session }, &mut self.actions);
        self.settle(now, handle);
    }

    /// Names a connection that the tally counts here, and listens to it.
    fn admit(&mut self, conn: Conn) -> Option<ConnId> {
        let id = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            ConnId(self.conns.len() as u32 - 1)
        });
        if self.epoll.add(conn.fd.as_fd(), RECEIVING, u64::from(id.0)).is_err() {
            self.tally.leave(self.worker);
            self.free.push(id);
            return None;
        }
        self.conns[id.0 as usize] = Some(conn);
        Some(id)
    }

    /// False when nothing is left to do in the background.
    fn work_in_background(&self, background: &mut impl FnMut(u64) -> bool) -> bool {
        let start = self.clock.now_ns();
        let mut now = start;
        while background(now) {
            now = self.clock.now_ns();
            if start + BACKGROUND_NS <= now {
                return true;
            }
        }
        false
    }
}

fn continues(action: &Action, conn: ConnId, end: usize) -> bool {
    matches!(action, Action::Send { conn: to, bytes } if *to == conn && bytes.start == end)
}
