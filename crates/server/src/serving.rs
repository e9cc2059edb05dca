use std::fmt;
use std::fs;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use mbal_cachelet::{Memory, Options, Store};
use mbal_model::WorkerId;
use mbal_reactor::process::{self, Signals};
use mbal_reactor::socket::{datagrams_card, listening_card};
use mbal_reactor::{
    Clock, Ended, EventLoop, Greeter, Guest, Letter, Listener, Mailbox, Mapping, Post, Tally,
    TlsDoor,
};
use mbal_worker::{Event, Now, Settings, Worker};

use crate::balancing::{Balancing, Note, Planner};
use crate::listening::{Listening, SocketFile, write_port_file};
use crate::passwords::Door;
use crate::{Config, Login, StartError, control, log, metrics, panics, scrapes, tls};

/// DESIGN §4: what a worker has alone, so that there is something to balance.
const CACHELETS_PER_WORKER: usize = 16;
/// Steps of background work between two looks at the clock: a part of a page each, some 100 µs at most.
const BACKGROUND_STEPS: usize = 1;
/// Descriptors beside the clients': standard streams, epolls, bells, listening sockets and some.
const DESCRIPTORS_SPARE: u64 = 64;

/// A server with its sockets open, about to serve.
pub struct Server {
    config: Config,
    listening: Listening,
    signals: Signals,
    pid_file: Option<PathBuf>,
    door: Option<Door>,
    tls: Option<Arc<TlsDoor>>,
    planner: Planner,
}

impl Server {
    /// Opens sockets and files, and becomes what the configuration says: user, background.
    /// There must be no other threads yet.
    pub fn open(config: Config) -> Result<Server, StartError> {
        let settings = &config.settings;
        if config.core_dumps {
            process::raise_core_limit().map_err(StartError::System)?;
        }
        let per_worker = 2 + 2 * (config.listen.len() + config.udp.len()) as u64;
        let wanted = settings.connections_max as u64
            + settings.workers as u64 * per_worker
            + DESCRIPTORS_SPARE;
        process::raise_descriptor_limit(wanted)
            .map_err(|error| StartError::Descriptors { wanted, error })?;
        // Before there is a user who may not read it.
        let door = Door::open(&config.login)?;
        let tls = match settings.tls.enabled {
            true => Some(Arc::new(tls::door(settings.tls.clone()).map_err(StartError::Tls)?)),
            false => None,
        };
        let mut listening = Listening::open_tcp(&config)?;
        if let Some(user) = config.user.as_ref().filter(|_| process::is_root()) {
            process::become_user(user)
                .map_err(|error| StartError::User { user: user.clone(), error })?;
        }
        // The socket's file belongs to the user that serves it.
        listening.open_unix(&config)?;
        listening.open_control(&config)?;
        let pid_file = config.pid_file.as_deref().map(std::path::absolute);
        let pid_file = pid_file.transpose().map_err(StartError::System)?;
        if let Some(path) = &config.port_file {
            let written = write_port_file(path, &listening);
            written.map_err(|error| StartError::File { path: path.clone(), error })?;
        }
        if config.daemon {
            process::daemonize(config.core_dumps, 0 < settings.verbosity)
                .map_err(StartError::System)?;
        }
        if config.lock_memory {
            if let Err(error) = process::lock_memory() {
                let text = format!("warning: -k invalid, mlockall() failed: {error}");
                log::warn("memory_not_locked", &text);
            }
        }
        let signals = Signals::take().map_err(StartError::System)?;
        if let Some(path) = &pid_file {
            let written = fs::write(path, format!("{}\n", std::process::id()));
            written.map_err(|error| StartError::File { path: path.clone(), error })?;
        }
        Ok(Server {
            config,
            listening,
            signals,
            pid_file,
            door,
            tls,
            planner: mbal_balance::propose,
        })
    }

    /// With another planner: tests have worse ones.
    pub fn planned_by(self, planner: Planner) -> Server {
        Server { planner, ..self }
    }

    /// A line for the shell that stores something and reads it back, with nothing but bash.
    pub fn example(&self) -> Option<String> {
        let address = self.listening.addresses.first()?;
        let host = match address.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let requests = r"set k 0 0 5\r\nhello\r\nget k\r\nquit\r\n";
        let port = address.port();
        Some(format!(
            "bash -c 'exec 3<>/dev/tcp/{host}/{port}; printf \"{requests}\" >&3; cat <&3'"
        ))
    }

    /// Serves until a signal or a client ends it.
    pub fn run(self) -> Result<Ended, StartError> {
        panics::end_the_process();
        self.serve().map_err(StartError::System)
    }

    fn serve(mut self) -> io::Result<Ended> {
        let started = Started::now();
        let Settings { workers, connections_max, maxconns_fast, .. } = self.config.settings;
        let workers = usize::from(workers);
        let shared = self.shared(&started)?;
        let tally = Arc::new(Tally::new(workers, connections_max as usize, !maxconns_fast));
        let main = Mailbox::new()?;
        let mailboxes: Vec<Mailbox<Letter>> =
            (0..workers).map(|_| Mailbox::new()).collect::<io::Result<_>>()?;
        let (notes, inbox) = mpsc::channel();
        let reports = notes.clone();
        let post = Post {
            main: main.clone(),
            workers: mailboxes.clone().into(),
            // Without a balancer nobody waits for it.
            balancer: Arc::new(move |report| drop(reports.send(Note::Reported(report)))),
        };

        let scraped = (Arc::clone(&shared), started.unix);
        let page = move || {
            let now = started.at(started.clock.now_ns());
            metrics::page(&scraped.0, scraped.1, now.second)
        };
        scrapes::serve(mem::take(&mut self.listening.metrics), page)?;

        let threads = self.start_workers(&shared, &tally, &post, started)?;
        if let Some(listener) = self.listening.control.take() {
            control::start(listener, notes.clone())?;
        }
        let balancing = Balancing {
            config: self.config.balance,
            planner: self.planner,
            server: Arc::clone(&shared),
            tally: Arc::clone(&tally),
            workers: post.workers,
            clock: started.clock,
        };
        balancing.start(inbox, notes)?;
        let common = mem::take(&mut self.listening.common);
        let secured = match &self.tls {
            Some(_) => mem::take(&mut self.listening.may_have_tls),
            None => Vec::new(),
        };
        let (files, pid_file, door) = (self.listening.socket_files, self.pid_file, self.door);
        let listener = Listener::new(
            common,
            self.signals,
            main,
            mailboxes,
            Arc::clone(&tally),
            started.clock,
        )?
        .secured(secured);
        let reload = || door.iter().for_each(Door::reload);
        let ended = listener.run(|| observe(&shared, &tally), reload)?;
        for thread in threads {
            thread.join().expect("a worker's panic has ended the process");
        }
        files.iter().for_each(SocketFile::remove);
        if let Some(path) = &pid_file {
            remove_pid_file(path);
        }
        Ok(ended)
    }

    /// What all workers share, which knows the listening sockets.
    fn shared(&self, started: &Started) -> io::Result<Arc<mbal_worker::Server>> {
        let options = self.store_options(started);
        let room = match self.config.lock_memory {
            // What the kernel keeps in memory grows by being read and zeroed as a whole.
            true => options.memory_bytes,
            false => Memory::reach(options.memory_bytes),
        };
        let memory = memory(options.memory_bytes, room)?;
        let store = Store::with_memory(options, memory);
        let mut shared = mbal_worker::Server::new(self.settings(), store);
        if let Some(door) = &self.door {
            shared = shared.guarded_by(Arc::clone(&door.doorkeeper));
        }
        shared.gauges.pid.store(std::process::id().into(), Relaxed);
        shared.gauges.pointer_bits.store(usize::BITS.into(), Relaxed);
        shared.gauges.certs_read.store(Started::FIRST_SECOND, Relaxed);
        for fd in self.listening.common.iter().chain(self.listening.of_worker.iter().flatten()) {
            shared.conns.enter(&Arc::new(listening_card(fd.as_fd())?));
        }
        // The other workers' sockets have the same addresses.
        for socket in self.listening.datagrams.iter().take(1).flatten() {
            shared.conns.enter(&Arc::new(datagrams_card(socket)?));
        }
        Ok(Arc::new(shared))
    }

    /// A thread for each worker, with the sockets that are its own.
    fn start_workers(
        &mut self,
        shared: &Arc<mbal_worker::Server>,
        tally: &Arc<Tally>,
        post: &Post,
        started: Started,
    ) -> io::Result<Vec<JoinHandle<()>>> {
        let greeter = match &self.tls {
            Some(_) => Some(greet(post, tally, started.clock)?),
            None => None,
        };
        let own_ports = mem::take(&mut self.listening.of_worker);
        let sockets = own_ports.into_iter().zip(mem::take(&mut self.listening.datagrams));
        let start = |(index, (own_ports, datagrams))| {
            let mut event_loop =
                EventLoop::new(index, own_ports, post.clone(), Arc::clone(tally), started.clock)?;
            if let (Some(tls), Some(greeter)) = (&self.tls, &greeter) {
                let secured = self.listening.own_may_have_tls.clone();
                event_loop = event_loop.with_tls(Arc::clone(tls), secured, greeter.clone());
            }
            for socket in datagrams {
                event_loop.add_datagrams(socket)?;
            }
            let (shared, tally, tls) = (Arc::clone(shared), Arc::clone(tally), self.tls.clone());
            let pin = self.config.pin;
            thread::Builder::new().name(format!("mbal-worker-{index}")).spawn(move || {
                if pin {
                    pin_to_core(index);
                }
                work(index, event_loop, &shared, &tally, tls, started);
            })
        };
        sockets.enumerate().map(start).collect()
    }

    fn settings(&self) -> Settings {
        let config = &self.config;
        Settings {
            tcp_port: self.listening.addresses.first().map_or(0, |address| address.port()),
            udp_port: self.listening.udp_addresses.first().map_or(0, |address| address.port()),
            interface: config.interfaces(),
            socket_path: config.unix_socket.as_ref().map(|unix| unix.path.display().to_string()),
            socket_mode: config.unix_socket.as_ref().map_or(0o700, |unix| unix.mode),
            sasl: matches!(config.login, Login::Sasl(_)),
            auth_file: match &config.login {
                Login::Text(file) => Some(file.display().to_string()),
                _ => None,
            },
            worker_addresses: self.listening.worker_addresses.clone(),
            ..config.settings.clone()
        }
    }

    fn store_options(&self, started: &Started) -> Options {
        let settings = &self.config.settings;
        let workers = usize::from(settings.workers);
        Options {
            memory_bytes: settings.memory_bytes as usize,
            workers,
            cachelets: (workers * CACHELETS_PER_WORKER).next_power_of_two(),
            item_bytes_max: settings.item_bytes_max,
            evict: settings.evict,
            generation: started.generation,
        }
    }
}

/// `2 workers, 64 MiB, on 127.0.0.1:11211 [::1]:11211`
impl fmt::Display for Server {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let config = &self.config;
        let workers = config.settings.workers;
        let plural = if workers == 1 { "" } else { "s" };
        let mib = config.settings.memory_bytes >> 20;
        write!(out, "{workers} worker{plural}, {mib} MiB, on")?;
        for address in &self.listening.addresses {
            write!(out, " {address}")?;
        }
        for address in &self.listening.udp_addresses {
            write!(out, " {address}/udp")?;
        }
        if let Some(unix) = &config.unix_socket {
            write!(out, " {}", unix.path.display())?;
        }
        if let Some(base) = config.worker_ports {
            write!(out, ", worker ports from {base}")?;
        }
        if let Some(address) = self.listening.metrics_address() {
            write!(out, ", metrics on http://{address}/metrics")?;
        }
        Ok(())
    }
}

/// Addresses are free, but use of them may be limited: by what processes may have, or all of them together.
fn memory(bytes: usize, room: usize) -> io::Result<Memory> {
    let memory = Memory::of(Box::new(Mapping::reserve(bytes, room)?));
    if !memory.commit(bytes) {
        let why = format!("-m {}: the kernel does not give so much memory", bytes >> 20);
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, why));
    }
    Ok(memory)
}

/// Starts the thread that shakes hands with those who come by TLS; where they are left for it.
fn greet(post: &Post, tally: &Arc<Tally>, clock: Clock) -> io::Result<Mailbox<Guest>> {
    let greeter = Greeter::new(Arc::clone(&post.workers), Arc::clone(tally), clock)?;
    let inbox = greeter.inbox();
    thread::Builder::new().name("mbal-greeter".into()).spawn(move || {
        process::give_way();
        greeter.run().expect("epoll fails only for want of kernel memory");
    })?;
    Ok(inbox)
}

fn pin_to_core(index: usize) {
    if let Err(error) = process::pin_to_core(index) {
        let text = format!("mbal: worker {index} is not bound to a core: {error}");
        log::warn("worker_not_bound", &text);
    }
}

/// One worker's thread, from its first event to its last.
fn work(
    index: usize,
    event_loop: EventLoop,
    shared: &Arc<mbal_worker::Server>,
    tally: &Tally,
    tls: Option<Arc<TlsDoor>>,
    started: Started,
) {
    let id = WorkerId(index as u16);
    let mut worker = Worker::new(id, Arc::clone(shared));
    let shifted = |now: Now| now.moved(shared.gauges.time_shift.load(Relaxed));
    // All events of a wake-up have its time: it is worked out once.
    let mut last = (0, started.at(0));
    let handle = |now_ns, event: Event, actions: &mut _| {
        if let Some(tls) = &tls {
            shared.gauges.handshake_errors.store(tls.errors(), Relaxed);
            shared.gauges.new_sessions.store(tls.new_sessions(), Relaxed);
        }
        match event {
            Event::Opened { .. } | Event::Adopted { .. } | Event::Closed { .. } => {
                observe(shared, tally)
            }
            Event::Tick if index == 0 => observe_cpu(shared),
            _ => {}
        }
        if last.0 != now_ns {
            last = (now_ns, started.at(now_ns));
        }
        worker.handle(shifted(last.1), event, actions);
    };
    let background =
        |now_ns| shared.store.background(id, shifted(started.at(now_ns)).second, BACKGROUND_STEPS);
    event_loop.run(handle, background).expect("epoll fails only for want of kernel memory");
}

fn observe(shared: &mbal_worker::Server, tally: &Tally) {
    let gauges = &shared.gauges;
    gauges.curr_connections.store(tally.current() as u64, Relaxed);
    gauges.total_connections.store(tally.total(), Relaxed);
    gauges.rejected_connections.store(tally.rejected(), Relaxed);
    gauges.listen_disabled.store(tally.pauses(), Relaxed);
    gauges.accepting.store(tally.accepting().into(), Relaxed);
    gauges.listen_disabled_us.store(tally.paused_us(), Relaxed);
    gauges.reserved_fds.store(DESCRIPTORS_SPARE, Relaxed);
}

fn observe_cpu(shared: &mbal_worker::Server) {
    let (user_us, system_us) = process::cpu_time_us();
    shared.gauges.user_us.store(user_us, Relaxed);
    shared.gauges.system_us.store(system_us, Relaxed);
}

fn remove_pid_file(path: &Path) {
    // It may be in a folder that only root, who is gone, may write.
    if let Err(error) = fs::remove_file(path) {
        log::warn("pid_file_stays", &format!("mbal: {} stays: {error}", path.display()));
    }
}

/// When the server started, by both clocks.
#[derive(Clone, Copy)]
struct Started {
    clock: Clock,
    unix: u64,
    /// Nanoseconds of a second that had passed: both clocks' seconds begin together.
    fraction_ns: u64,
    generation: u16,
}

impl Started {
    /// See [`Now::second`].
    const FIRST_SECOND: u64 = 2;

    fn now() -> Started {
        let since_1970 =
            SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
        Started {
            clock: Clock::start(),
            unix: since_1970.as_secs(),
            fraction_ns: since_1970.subsec_nanos().into(),
            // Two starts are milliseconds apart at least.
            generation: since_1970.as_millis() as u16,
        }
    }

    /// The wall clock is not read again: a step of it moves no deadline.
    #[inline]
    fn at(&self, now_ns: u64) -> Now {
        let since = now_ns + self.fraction_ns;
        let elapsed = since / 1_000_000_000;
        Now {
            second: (Self::FIRST_SECOND + elapsed) as u32,
            unix: self.unix + elapsed,
            micros: (since % 1_000_000_000 / 1_000) as u32,
        }
    }
}
