//! The event loop of a proxy: clients' and upstreams' sockets on one side, [`Proxy`] on the other.
//!
//! Everything that had arrived by a wake-up is handled first. Then each connection that has output gets one send.

mod clients;
mod datagrams;
mod entrance;
mod lingering;
mod secured;
mod socket;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use datagrams::{DATAGRAMS, Datagrams};
use lingering::{LINGERING, Lingering};
use mbal_model::Instant;
use mbal_proxy::{Action, ConnId, Event, KernelChange, PoolTold, Proxy, SwitchTask};

use entrance::Entrance;
use socket::{Socket, send};

use crate::guest::Guest;
use crate::letters::ProxyLetter;
use crate::listening::{ListeningSockets, RETRY_NS};
use crate::output::RECEIVE_BYTES;
use crate::socket::connect_upstream;
use crate::sys::{self, Epoll, READABLE, Ready};
use crate::{ClientCertificate, Clock, Mailbox, Tally, TlsDoor};

const READY_PER_WAIT: usize = 256;
/// A loop that nothing wakes looks around so often.
const IDLE: Duration = Duration::from_secs(1);

const MAILBOX: u64 = u64::MAX;
/// Tokens from here up are listening sockets, below are clients.
const DOORS: u64 = 1 << 32;
/// Likewise, sockets for other proxies.
const PEER_DOORS: u64 = DOORS + (1 << 16);
/// Tokens from here up are connections to upstreams.
const UPSTREAMS: u64 = 1 << 33;

/// Where an upstream is whose name nobody knows: it cannot be dialed.
pub const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Hears that a connection to an upstream is gone: its name may lead elsewhere now.
pub type NamesWanted = Box<dyn Fn() + Send>;

/// Begins what a switch of the pool needs, and says later that it is done.
pub type SwitchTasks = Box<dyn Fn(SwitchTask) + Send>;

/// Does what the kernel's data plane is to do, with where each upstream is dialed, by its number. Nothing else happens meanwhile.
pub type KernelPlane = Box<dyn FnMut(Vec<KernelChange>, &[SocketAddr]) + Send>;

/// The sockets of a proxy.
pub struct ProxyLoop {
    proxy: Proxy,
    epoll: Arc<Epoll>,
    mailbox: Mailbox<ProxyLetter>,
    sockets: ListeningSockets,
    entrance: Option<Entrance>,
    datagrams: Datagrams,
    peer_doors: ListeningSockets,
    kernel: Option<KernelPlane>,
    names_wanted: Option<NamesWanted>,
    switch_tasks: Option<SwitchTasks>,
    tally: Arc<Tally>,
    clock: Clock,
    /// By upstream, and the other proxies behind them, twice.
    addresses: Vec<SocketAddr>,
    clients: Vec<Option<Socket>>,
    upstreams: Vec<Option<Socket>>,
    lingering: Lingering,
    buffer: Box<[u8]>,
    actions: Vec<Action>,
    /// Sockets that may have more than was received, and no event will say so.
    unread: Vec<u64>,
}

impl ProxyLoop {
    /// `listening` are sockets for clients; `addresses` those of the proxy's upstreams, in their order.
    pub fn new(
        proxy: Proxy,
        listening: Vec<OwnedFd>,
        addresses: Vec<SocketAddr>,
        mailbox: Mailbox<ProxyLetter>,
        tally: Arc<Tally>,
        clock: Clock,
    ) -> io::Result<ProxyLoop> {
        let epoll = Arc::new(Epoll::new()?);
        tally.watch(0, Arc::clone(&epoll));
        epoll.add(mailbox.bell(), READABLE, MAILBOX)?;
        let sockets = ListeningSockets::new(listening, DOORS);
        sockets.watch(&epoll)?;
        Ok(ProxyLoop {
            proxy,
            epoll,
            mailbox,
            sockets,
            entrance: None,
            datagrams: Datagrams::default(),
            peer_doors: ListeningSockets::new(Vec::new(), PEER_DOORS),
            kernel: None,
            names_wanted: None,
            switch_tasks: None,
            tally,
            clock,
            addresses,
            clients: Vec::new(),
            upstreams: Vec::new(),
            lingering: Lingering::default(),
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            actions: Vec::new(),
            unread: Vec::new(),
        })
    }

    /// Whoever comes in by the sockets that are marked, in the order of `listening`, speaks TLS; `tls_acceptor` shakes hands.
    pub fn secured(
        mut self,
        secured: Vec<Option<ClientCertificate>>,
        door: Arc<TlsDoor>,
        tls_acceptor: Mailbox<Guest>,
    ) -> ProxyLoop {
        self.sockets.secure(secured);
        self.entrance = Some(Entrance { door, tls_acceptor });
        self
    }

    /// Sockets for datagrams of clients.
    pub fn with_datagrams(mut self, sockets: Vec<UdpSocket>) -> io::Result<ProxyLoop> {
        self.datagrams = Datagrams::new(sockets, &self.epoll)?;
        Ok(self)
    }

    /// `wanted` is called when a connection to an upstream is gone.
    pub fn with_names(mut self, wanted: NamesWanted) -> ProxyLoop {
        self.names_wanted = Some(wanted);
        self
    }

    /// `tasks` gets what a switch of the pool needs.
    pub fn with_switch_tasks(mut self, tasks: SwitchTasks) -> ProxyLoop {
        self.switch_tasks = Some(tasks);
        self
    }

    fn give_switch_task(&mut self) {
        if let (Some(task), Some(tasks)) = (self.proxy.take_switch_task(), &self.switch_tasks) {
            tasks(task);
        }
    }

    fn ask_for_names(&self) {
        if let Some(wanted) = &self.names_wanted {
            wanted();
        }
    }

    /// The proxy uses the kernel's data plane, which this leads to.
    pub fn with_kernel(mut self, kernel: KernelPlane) -> ProxyLoop {
        self.kernel = Some(kernel);
        self
    }

    /// `listening` are sockets for other proxies, `addresses` theirs, in the order of `--peers`.
    pub fn with_peers(
        mut self,
        listening: Vec<OwnedFd>,
        addresses: &[SocketAddr],
    ) -> io::Result<ProxyLoop> {
        self.peer_doors = ListeningSockets::new(listening, PEER_DOORS);
        self.peer_doors.watch(&self.epoll)?;
        for _ in 0..2 {
            self.addresses.extend_from_slice(addresses);
        }
        Ok(self)
    }

    /// Serves until [`ProxyLetter::Stop`].
    pub fn run(mut self) -> io::Result<()> {
        let pulse = self.mailbox.watched();
        let mut ready = [Ready::NONE; READY_PER_WAIT];
        let (mut arrived, mut peers) = (Vec::new(), Vec::new());
        let mut datagrams = Vec::new();
        let mut unread = Vec::new();
        self.proxy.start(self.clock.now());
        loop {
            self.carry_out();
            std::mem::swap(&mut self.unread, &mut unread);
            let began = self.clock.now();
            let rest = if unread.is_empty() { self.proxy.rest() } else { Duration::ZERO };
            let now = match rest {
                Duration::ZERO => began,
                _ => {
                    thread::sleep(rest);
                    self.clock.now()
                }
            };
            let paused = self.sockets.paused() || self.peer_doors.paused();
            let wake = self.proxy.next_wake();
            let wait = match unread.is_empty() {
                true => {
                    let longest = if paused { Duration::from_nanos(RETRY_NS) } else { IDLE };
                    wake.map_or(longest, |wake| longest.min(wake - now))
                }
                false => Duration::ZERO,
            };
            let count = self.epoll.wait_ns(&mut ready, wait.as_nanos() as u64)?;
            pulse.beat();
            let now = self.clock.now();
            self.proxy.idled(now, now - began);
            let mut letters = false;
            for socket in unread.drain(..) {
                self.receive_more(socket);
            }
            for event in &ready[..count] {
                if event.is_ending() && event.token() < DATAGRAMS {
                    self.unread.push(event.token());
                }
                match event.token() {
                    MAILBOX => letters = true,
                    given_up if given_up >= LINGERING => self.serve_lingering(given_up),
                    socket if socket >= DATAGRAMS => datagrams.push(socket),
                    conn if conn >= UPSTREAMS => {
                        self.serve_upstream((conn - UPSTREAMS) as usize);
                    }
                    door if door >= PEER_DOORS => {
                        self.peer_doors.open(
                            door,
                            now.as_nanos(),
                            &self.epoll,
                            &self.tally,
                            &mut peers,
                        )?;
                    }
                    door if door >= DOORS => {
                        self.sockets.open(
                            door,
                            now.as_nanos(),
                            &self.epoll,
                            &self.tally,
                            &mut arrived,
                        )?;
                    }
                    client => self.serve_client(client as usize),
                }
            }
            let now = now.max(self.proxy.now());
            while let Some(conn) = self.lingering.next_over(now) {
                self.proxy.handle(now, Event::Ended { conn, closed: false });
            }
            // Looked at once more where it was due: what it was for may have been done. What is due since is found before the next wait.
            let is_due = |wake: Option<Instant>| wake.is_some_and(|wake| wake <= now);
            if is_due(wake) && is_due(self.proxy.next_wake()) {
                self.proxy.handle(now, Event::Woken);
            }
            // Before a client gets the number of one that has gone: what is asked for is of the latter.
            self.carry_out();
            for (fd, tls) in arrived.drain(..) {
                self.tally.assign(0);
                match (&self.entrance, tls) {
                    (Some(entrance), Some(certificate)) => {
                        entrance.send_in(fd, certificate, &self.tally);
                    }
                    _ => {
                        let client = self.proxy.open();
                        self.admit(fd, client, None);
                    }
                }
            }
            for (fd, _) in peers.drain(..) {
                self.tally.assign(0);
                let client = self.proxy.open_peer();
                self.admit(fd, client, None);
            }
            datagrams.drain(..).for_each(|socket| self.receive_datagrams(socket));
            self.sockets.retry(now.as_nanos(), &self.epoll, &self.tally)?;
            self.peer_doors.retry(now.as_nanos(), &self.epoll, &self.tally)?;
            if letters {
                for letter in self.mailbox.collect() {
                    match letter {
                        ProxyLetter::Do(work) => work(&mut self.proxy),
                        ProxyLetter::Upstreams(pool, addresses) => {
                            self.change(pool, addresses, now)
                        }
                        ProxyLetter::Welcome(guest) => self.welcome(guest, now),
                        ProxyLetter::Stop => return Ok(()),
                    }
                }
            }
        }
    }

    /// Of a socket that has had more than was received, or has come to its end.
    #[cold]
    fn receive_more(&mut self, token: u64) {
        if let Some(at) = token.checked_sub(UPSTREAMS) {
            // One that is dialed anew has nothing yet.
            if self.upstreams[at as usize].as_ref().is_some_and(|socket| !socket.dialing) {
                self.serve_upstream(at as usize);
            }
        } else if token < DOORS {
            self.serve_client(token as usize);
        }
    }

    /// `addresses`: of the pool's servers.
    fn change(&mut self, pool: PoolTold, addresses: Vec<SocketAddr>, now: Instant) {
        let before = &self.addresses;
        let is_same = |number: usize, place: usize| {
            before[number] == addresses[place] || before[number] == NOWHERE
        };
        let numbers = self.proxy.change(now, pool, is_same);
        for (number, address) in numbers.into_iter().zip(addresses) {
            match self.addresses.get_mut(number) {
                Some(known) => *known = address,
                // Those that come get the next numbers, in their order.
                None => self.addresses.push(address),
            }
        }
    }

    #[inline]
    fn serve_upstream(&mut self, at: usize) {
        let Some(socket) = &mut self.upstreams[at] else { return };
        let conn = ConnId(at as u32);
        if socket.dialing {
            return self.dialed(conn, self.clock.now());
        }
        if socket.blocked {
            self.send_to_upstream(conn, true);
        }
        let Some(socket) = &mut self.upstreams[at] else { return };
        let received = sys::recv(socket.fd.as_fd(), &mut self.buffer);
        let now = self.clock.now();
        match received {
            Ok(0) => self.lose(conn, now),
            Ok(count) => {
                if count == self.buffer.len() {
                    self.unread.push(UPSTREAMS + at as u64);
                }
                let bytes = &self.buffer[..count];
                self.proxy.handle(now, Event::Replied { conn, bytes });
            }
            Err(error) if sys::is_transient(&error) => {}
            Err(_) => self.lose(conn, now),
        }
    }

    fn dialed(&mut self, conn: ConnId, now: Instant) {
        let at = conn.0 as usize;
        let socket = self.upstreams[at].as_mut().expect("it was looked at");
        if sys::peer_of(socket.fd.as_fd()).is_err() {
            return self.lose(conn, now);
        }
        socket.dialing = false;
        let (fd, interest) = (socket.fd.as_fd(), socket.interest());
        match self.epoll.modify(fd, interest, UPSTREAMS + at as u64) {
            Ok(()) => self.proxy.handle(now, Event::Connected { conn }),
            Err(_) => self.lose(conn, now),
        }
    }

    fn lose(&mut self, conn: ConnId, now: Instant) {
        self.upstreams[conn.0 as usize] = None;
        self.ask_for_names();
        self.proxy.handle(now, Event::Lost { conn });
        // Clients may hear of it by an action that was asked for before.
        self.tell_kernel();
    }

    /// A write on it is not answered.
    fn abandon(&mut self, conn: ConnId) {
        let Some(socket) = self.upstreams[conn.0 as usize].take() else { return };
        let now = self.clock.now();
        let kept = self.lingering.keep(&self.epoll, socket.fd, conn, now);
        if kept.is_ok_and(|kept| kept) {
            self.proxy.handle(now, Event::Lingers { conn });
        }
    }

    #[cold]
    fn serve_lingering(&mut self, token: u64) {
        if let Some((conn, closed)) = self.lingering.serve(token, &mut self.buffer) {
            self.proxy.handle(self.clock.now(), Event::Ended { conn, closed });
        }
    }

    #[inline]
    fn tell_kernel(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            let changes = self.proxy.take_kernel_changes();
            if !changes.is_empty() {
                kernel(changes, &self.addresses);
            }
        }
    }

    /// Does what the proxy has asked for, and what it asks for because of that.
    #[inline]
    fn carry_out(&mut self) {
        self.tell_kernel();
        if self.proxy.may_act() {
            self.act();
        }
    }

    /// Of its own: inlined, it would have the loop save what only it needs.
    #[inline(never)]
    fn act(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        while self.proxy.may_act() {
            self.proxy.take_actions(&mut actions);
            if actions.is_empty() {
                break;
            }
            for action in &actions {
                match *action {
                    Action::ToClient(client) => self.send_to_client(client, false),
                    Action::ToUpstream(conn) => self.send_to_upstream(conn, false),
                    Action::Dial { conn, upstream } => self.dial(conn, upstream),
                    Action::HangUp(conn) => {
                        self.upstreams[conn.0 as usize] = None;
                        self.ask_for_names();
                    }
                    Action::Abandon(conn) => self.abandon(conn),
                    Action::Close(client) => self.finish(client),
                    Action::CutOff(client) => self.close(client),
                    Action::Pause(client) => self.pause(client, true),
                    Action::Resume(client) => self.pause(client, false),
                    Action::Switch => self.give_switch_task(),
                }
            }
            self.tell_kernel();
        }
        self.actions = actions;
    }

    #[inline]
    fn send_to_upstream(&mut self, conn: ConnId, has_room: bool) {
        let Some(socket) = &mut self.upstreams[conn.0 as usize] else { return };
        if socket.blocked && !has_room {
            return;
        }
        let unsent = self.proxy.conn_output(conn);
        match send(socket, &self.epoll, unsent, UPSTREAMS + u64::from(conn.0)) {
            Ok(sent) => self.proxy.conn_took(conn, sent),
            Err(_) => self.lose(conn, self.clock.now()),
        }
    }

    fn dial(&mut self, conn: ConnId, upstream: usize) {
        let at = conn.0 as usize;
        if self.upstreams.len() <= at {
            self.upstreams.resize_with(at + 1, || None);
        }
        let address = Some(self.addresses[upstream]).filter(|address| *address != NOWHERE);
        let fd = address.ok_or(io::ErrorKind::NotFound.into()).and_then(connect_upstream);
        let dialed = fd.and_then(|fd| {
            let socket = Socket::to_upstream(fd);
            let token = UPSTREAMS + at as u64;
            self.epoll.add(socket.fd.as_fd(), socket.interest(), token).map(|()| socket)
        });
        match dialed {
            Ok(socket) => self.upstreams[at] = Some(socket),
            Err(_) => self.lose(conn, self.clock.now()),
        }
    }
}
