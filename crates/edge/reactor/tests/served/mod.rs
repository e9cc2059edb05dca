//! Event loops and a listener around a worker that a test writes as a closure.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mbal_reactor::process::Signals;
use mbal_reactor::socket::listen_tcp;
use mbal_reactor::{Clock, Ended, EventLoop, Letter, Listener, Mailbox, Post, Request, Tally};
use mbal_worker::{Action, Actions, ConnId, Event};

pub struct Served {
    pub tally: Arc<Tally>,
    pub background_calls: Arc<AtomicUsize>,
    main: Mailbox<Request>,
    /// By worker.
    pub workers: Vec<Mailbox<Letter>>,
    threads: Vec<JoinHandle<()>>,
    listener: JoinHandle<Ended>,
}

pub struct Setup {
    pub workers: usize,
    pub limit: usize,
    pub waits_at_limit: bool,
    pub listening: Vec<OwnedFd>,
    pub own_ports: Vec<OwnedFd>,
}

impl Setup {
    pub fn new(workers: usize) -> Setup {
        Setup {
            workers,
            limit: 1024,
            waits_at_limit: false,
            listening: Vec::new(),
            own_ports: Vec::new(),
        }
    }

    /// Listens on a free port of `host` too.
    pub fn listen(mut self, host: &str) -> (Setup, SocketAddr) {
        let (socket, address) = free_port(host);
        self.listening.push(socket);
        (self, address)
    }

    /// `worker(i)` makes the i-th worker.
    pub fn serve<H>(self, worker: impl Fn(usize) -> H) -> Served
    where
        H: FnMut(Event, &mut Actions) + Send + 'static,
    {
        let tally = Arc::new(Tally::new(self.workers, self.limit, self.waits_at_limit));
        let main = Mailbox::new().unwrap();
        let background_calls = Arc::new(AtomicUsize::new(0));
        let mailboxes: Vec<Mailbox<Letter>> =
            (0..self.workers).map(|_| Mailbox::new().unwrap()).collect();
        let balancer = Arc::new(|_| ());
        let workers = mailboxes.clone().into();
        let said: Arc<mbal_reactor::Said> = Arc::new(|_| {});
        let post = Post { main: main.clone(), workers, balancer, migrator: None, said };
        let mut threads = Vec::new();
        let mut own_ports = self.own_ports.into_iter();
        for index in 0..self.workers {
            let own = own_ports.next().into_iter().collect();
            let event_loop =
                EventLoop::new(index, own, post.clone(), Arc::clone(&tally), Clock::start())
                    .unwrap();
            let mut handle = worker(index);
            let calls = Arc::clone(&background_calls);
            threads.push(thread::spawn(move || {
                let background = move |_now, _is_idle, _: &mut Actions| {
                    calls.fetch_add(1, SeqCst);
                    mbal_worker::Background::Rests
                };
                event_loop
                    .run(move |_now, event, actions| handle(event, actions), background, || None)
                    .unwrap();
            }));
        }
        let listener = Listener::new(
            self.listening,
            Signals::take().unwrap(),
            main.clone(),
            mailboxes.clone(),
            Arc::clone(&tally),
            Clock::start(),
        )
        .unwrap();
        let listener = thread::spawn(move || listener.run(|| (), || (), || false).unwrap());
        Served { tally, background_calls, main, workers: mailboxes, threads, listener }
    }
}

impl Served {
    pub fn end(self) -> Ended {
        self.main.post(Request::Shutdown { graceful: false });
        self.wait_for_end()
    }

    pub fn wait_for_end(self) -> Ended {
        let ended = self.listener.join().unwrap();
        for thread in self.threads {
            thread.join().unwrap();
        }
        ended
    }
}

pub fn free_port(host: &str) -> (OwnedFd, SocketAddr) {
    let listener: TcpListener = listen_tcp(format!("{host}:0").parse().unwrap(), 1024).unwrap();
    let address = listener.local_addr().unwrap();
    (listener.into(), address)
}

pub fn send(conn: ConnId, bytes: &[u8], actions: &mut Actions) {
    let start = actions.bytes.len();
    actions.bytes.extend_from_slice(bytes);
    actions.list.push(Action::Send { conn, bytes: start..start + bytes.len() });
}

/// Answers every receive with the same bytes.
pub fn echo(_worker: usize) -> impl FnMut(Event, &mut Actions) + Send {
    |event, actions| {
        if let Event::Received { conn, bytes } = event {
            send(conn, bytes, actions);
        }
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "not within ten seconds: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
