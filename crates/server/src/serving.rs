//! A server's life: sockets, threads, serving, the end.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mbal_cachelet::{Memory, Options, Store};
use mbal_control::api::Registration;
use mbal_model::{Address, ServerId, WorkerId};
use mbal_reactor::process::{self, Background, Signals};
use mbal_reactor::socket::{datagrams_card, listening_card};
use mbal_reactor::{
    Clock, Ended, EventLoop, Guest, Letter, LinkNote, LinksSeen, Listener, Mailbox, Mapping, Post,
    Request, STRANGERS_MAX, Tally, TlsAcceptor, TlsDoor, watchdog,
};
use mbal_worker::{Actions, Event, GATHER_KEYS_MAX, Now, Settings, Worker};

use crate::balancing::{Balanced, Balancing, Note, Planner};
use crate::calling::Caller;
use crate::departure::Departure;
use crate::linking::Linking;
use crate::listening::{Listening, SocketFile, give_folder, write_port_file};
use crate::lookout::Lookout;
use crate::membership::Membership;
use crate::moving::Moving;
use crate::passwords::Door;
use crate::pid_file::PidFile;
use crate::started::Started;
use crate::starting::Starting;
use crate::stderr_lines::Saying;
use crate::{
    ClusterConfig, Config, CoordinatorConfig, Interface, Listen, Login, MapFrom, StartError,
    control, log, machine, membership, metrics, panics, scrapes, tls, tls_links, web,
};

/// What a worker has in a server that stands alone, so that there is something to balance.
const CACHELETS_PER_WORKER: usize = 16;
/// What stands around a value.
const LINE_BYTES_MAX: usize = 1024;
/// Descriptors beside the clients': standard streams, epolls, bells, listening sockets and some.
const DESCRIPTORS_SPARE: u64 = 64;

/// Room for the links of so many servers is kept if nobody says how many there are.
const SERVERS_EXPECTED: usize = 16;

/// A server with its sockets open, about to serve.
pub struct Server {
    config: Config,
    listening: Listening,
    signals: Signals,
    background: Option<Background>,
    door: Option<Door>,
    tls: Option<Arc<TlsDoor>>,
    planner: Planner,
}

/// A server whose threads run, and whose files are there until it ends.
pub struct Running {
    starting: Starting,
    listener: Listener,
    workers: Vec<JoinHandle<()>>,
    shared: Arc<mbal_worker::Shared>,
    tally: Arc<Tally>,
    saying: Saying,
    door: Option<Door>,
    background: Option<Background>,
    departure: Option<Arc<Departure>>,
    _files: (Vec<SocketFile>, Option<PidFile>),
}

/// What there is once the threads run.
struct Threads {
    workers: Vec<JoinHandle<()>>,
    mailboxes: Vec<Mailbox<Letter>>,
    main: Mailbox<Request>,
    shared: Arc<mbal_worker::Shared>,
    tally: Arc<Tally>,
    saying: Saying,
    /// Of a server that a coordinator knows.
    departure: Option<Arc<Departure>>,
}

impl Server {
    /// Opens sockets and files, and becomes what the configuration says: user, background.
    /// There must be no other threads yet. What has been made goes again if that fails.
    pub fn open(mut config: Config) -> Result<Server, StartError> {
        if config.core_dumps {
            process::raise_core_limit().map_err(StartError::System)?;
        }
        make_room(&mut config)?;
        // Before there is a user who may not read it.
        let door = Door::open(&config.login)?;
        let tls = match config.settings.tls.enabled {
            true => {
                let settings = config.settings.tls.clone();
                Some(Arc::new(tls::door(settings, &config.listen).map_err(StartError::Tls)?))
            }
            false => None,
        };
        let mut listening = Listening::open_tcp(&config)?;
        if let Some(user) = config.user.as_ref().filter(|_| process::is_root()) {
            let failed = |error| StartError::User { user: user.clone(), error };
            let numbers = process::user_named(user).map_err(failed)?;
            give_folder(&config, numbers);
            process::become_user(numbers).map_err(failed)?;
        }
        // The socket's file belongs to the user that serves it.
        listening.open_unix(&config)?;
        listening.open_control(&config)?;
        // A daemon changes its folder.
        for path in [&mut config.pid_file, &mut config.port_file].into_iter().flatten() {
            *path = std::path::absolute(&*path).map_err(StartError::System)?;
        }
        let background = match config.daemon {
            true => {
                let keep_output = 0 < config.settings.verbosity;
                let entered = Background::enter(config.core_dumps, keep_output);
                Some(entered.map_err(StartError::System)?)
            }
            false => None,
        };
        if config.lock_memory {
            if let Err(error) = process::lock_memory() {
                let text = format!("warning: -k invalid, mlockall() failed: {error}");
                log::warn("memory_not_locked", &text);
            }
        }
        mbal_reactor::process::give_memory_back();
        let signals = Signals::take().map_err(StartError::System)?;
        let planner = mbal_balance::propose;
        Ok(Server { config, listening, signals, background, door, tls, planner })
    }

    /// With another planner: tests have worse ones.
    pub fn planned_by(self, planner: Planner) -> Server {
        Server { planner, ..self }
    }

    /// Takes the memory and starts the threads.
    pub fn start(mut self) -> Result<Running, StartError> {
        #[cfg(feature = "planted")]
        crate::chaos::plant_by_environment();
        panics::end_the_process();
        watchdog::start().map_err(StartError::System)?;
        let started = Started::now();
        let starting = Starting::of(&self.config, &self.listening);
        log::stamp();
        let opening = match self.config.opens_later() {
            true => Some(self.listening.opening(self.config.settings.backlog)),
            false => None,
        };
        let opening = opening.transpose().map_err(StartError::System)?;
        let store = self.store(&started)?;
        let threads = self.start_threads(store, started).map_err(StartError::System)?;
        let Threads { workers, mailboxes, main, shared, tally, saying, departure } = threads;
        let common = mem::take(&mut self.listening.common);
        let secured = match &self.tls {
            Some(_) => mem::take(&mut self.listening.secured),
            None => Vec::new(),
        };
        let clock = started.clock;
        let listener =
            Listener::new(common, self.signals, main, mailboxes, Arc::clone(&tally), clock);
        let mut listener = listener.map_err(StartError::System)?.secured(secured);
        if let Some(opening) = opening {
            listener = listener.opened_by(opening).map_err(StartError::System)?;
        }
        if let Some(path) = &self.config.port_file {
            let Listening { addresses, udp_addresses, .. } = &self.listening;
            let written =
                write_port_file(path, addresses, udp_addresses, starting.metrics, starting.page);
            written.map_err(|error| StartError::File { path: path.clone(), error })?;
        }
        let pid_file = self.config.pid_file.as_deref().and_then(PidFile::write);
        Ok(Running {
            starting,
            listener,
            workers,
            shared,
            tally,
            saying,
            door: self.door,
            background: self.background,
            departure,
            _files: (self.listening.socket_files, pid_file),
        })
    }

    fn start_threads(&mut self, store: Store, started: Started) -> io::Result<Threads> {
        let Settings { workers, connections_max, maxconns_fast, .. } = self.config.settings;
        let workers = usize::from(workers);
        let shared = self.shared(store)?;
        self.say_what_listens();
        let (said, saying) = Saying::start()?;
        let tally = Arc::new(Tally::new(workers, connections_max as usize, !maxconns_fast));
        let main = Mailbox::new()?;
        let mailboxes: Vec<Mailbox<Letter>> =
            (0..workers).map(|_| Mailbox::new()).collect::<io::Result<_>>()?;
        let (notes, inbox) = mpsc::channel();
        let reports = notes.clone();
        let migrator = match self.config.cluster.as_ref().map(|cluster| &cluster.map) {
            Some(MapFrom::Coordinator(_)) => Some(Mailbox::new()?),
            _ => None,
        };
        let post = Post {
            main: main.clone(),
            workers: mailboxes.clone().into(),
            // Without a balancer nobody waits for it.
            balancer: Arc::new(move |report| drop(reports.send(Note::Reported(report)))),
            migrator,
            said,
        };

        let balanced = Arc::new(Balanced::default());
        let scraped = (Arc::clone(&shared), Arc::clone(&balanced));
        let page = move || {
            let now = started.at(started.clock.now_ns());
            metrics::page(&scraped.0, &scraped.1, started.unix, now.second)
        };
        scrapes::serve(mem::take(&mut self.listening.metrics), page)?;

        let linking = self.linking(&post, started.clock)?;
        let linker = linking.as_ref().map(|linking| linking.inbox.clone());
        let threads = self.start_workers(&shared, &tally, &post, linker, started)?;
        let mut departure = None;
        if let Some(linking) = linking {
            let workers = Arc::clone(&post.workers);
            let moving = Moving { shared: Arc::clone(&shared), workers, started };
            departure = self.join(linking, &balanced, notes.clone(), moving, &main)?;
        }
        let lookout = Lookout {
            server: Arc::clone(&shared),
            balanced: Arc::clone(&balanced),
            started,
            client: self
                .listening
                .addresses
                .first()
                .map_or_else(String::new, |one| one.to_string()),
            epoch: self.config.balance.epoch,
        };
        let http = mem::take(&mut self.listening.http);
        web::serve(http, self.config.page_names(), lookout, notes.clone())?;
        if let Some(listener) = self.listening.control.take() {
            control::start(listener, notes.clone())?;
        }
        let balancing = Balancing {
            config: self.config.balance,
            planner: self.planner,
            server: Arc::clone(&shared),
            tally: Arc::clone(&tally),
            workers: post.workers,
            started,
            balanced,
        };
        balancing.start(inbox, notes)?;
        Ok(Threads { workers: threads, mailboxes, main, shared, tally, saying, departure })
    }

    /// Addresses are free, but use of them may be limited: by what processes may have, or all of them together.
    fn store(&self, started: &Started) -> Result<Store, StartError> {
        let options = self.store_options(started);
        let bytes = options.memory_bytes;
        let mib = bytes as u64 >> 20;
        if machine::memory_bytes().is_some_and(|there_is| there_is < bytes as u64) {
            let text = format!("mbal: -m {mib} is more than there is: {}", machine::memory_told());
            log::warn("memory_beyond_machine", &text);
        }
        let room = match self.config.lock_memory {
            // What the kernel keeps in memory grows by being read and zeroed as a whole.
            true => bytes,
            false => Memory::reach(bytes),
        };
        let failed = |error| StartError::Memory { mib, there_is: machine::memory_told(), error };
        let memory = Memory::of(Box::new(Mapping::reserve(bytes, room).map_err(failed)?));
        if !memory.commit(bytes) {
            return Err(failed(io::Error::last_os_error()));
        }
        let store = match &self.config.cluster {
            Some(_) => Store::vacant(options, memory),
            None => Store::try_with_memory(options, memory),
        };
        let store = store.ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
        store.starts_at(started.unix - Started::FIRST_SECOND);
        Ok(store)
    }

    /// What all workers share, which knows the listening sockets.
    fn shared(&self, store: Store) -> io::Result<Arc<mbal_worker::Shared>> {
        let mut shared = mbal_worker::Shared::new(self.settings(), store);
        if let Some(door) = &self.door {
            shared = shared.guarded_by(Arc::clone(&door.authenticator));
        }
        shared.has_quota(machine::cpu_quota());
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

    /// With `-vv`, as memcached says it.
    fn say_what_listens(&self) {
        if self.config.settings.verbosity < 2 {
            return;
        }
        let protocol = self.config.settings.protocol.name();
        let streams = self.listening.common.iter().chain(self.listening.of_worker.iter().flatten());
        let streams = streams.map(|socket| (socket.as_fd(), protocol));
        let datagrams = self.listening.datagrams.iter().flatten();
        let datagrams = datagrams.map(|socket| (socket.as_fd(), "udp"));
        for (socket, kind) in streams.chain(datagrams) {
            let line = format!("<{} server listening ({kind})\n", socket.as_raw_fd());
            log::verbose(line.as_bytes());
        }
    }

    /// A thread for each worker, with the sockets that are its own.
    fn start_workers(
        &mut self,
        shared: &Arc<mbal_worker::Shared>,
        tally: &Arc<Tally>,
        post: &Post,
        linker: Option<Mailbox<LinkNote>>,
        started: Started,
    ) -> io::Result<Vec<JoinHandle<()>>> {
        let tls_acceptor = match &self.tls {
            Some(_) => Some(greet(post, tally, started.clock)?),
            None => None,
        };
        let mapped = self.config.cluster.as_ref().map(ClusterConfig::first_map);
        let own_ports = mem::take(&mut self.listening.of_worker);
        let sockets = own_ports.into_iter().zip(mem::take(&mut self.listening.datagrams));
        let start = |(index, (own_ports, datagrams))| {
            let mut event_loop =
                EventLoop::new(index, own_ports, post.clone(), Arc::clone(tally), started.clock)?;
            if let (Some(tls), Some(tls_acceptor)) = (&self.tls, &tls_acceptor) {
                let secured = self.listening.own_secured.clone();
                event_loop = event_loop.with_tls(Arc::clone(tls), secured, tls_acceptor.clone());
            }
            for socket in datagrams {
                event_loop.add_datagrams(socket)?;
            }
            if let (Some(linker), Some(cluster)) = (&linker, &self.config.cluster) {
                let (timeout_ns, bytes_max) = self.link_bounds(cluster);
                event_loop = event_loop.with_links(linker.clone(), timeout_ns, bytes_max);
            }
            if self.config.opens_later() {
                event_loop = event_loop.opens_later()?;
            }
            let mapped = mapped.clone();
            let (shared, tally, tls) = (Arc::clone(shared), Arc::clone(tally), self.tls.clone());
            let pin = self.config.pin;
            thread::Builder::new().name(format!("mbal-worker-{index}")).spawn(move || {
                if pin {
                    pin_to_core(index);
                }
                work(index, event_loop, &shared, &tally, tls, mapped, started);
            })
        };
        sockets.enumerate().map(start).collect()
    }

    /// What brings links up, if there may be other servers.
    fn linking(&mut self, post: &Post, clock: Clock) -> io::Result<Option<Linking>> {
        let Some(cluster) = &self.config.cluster else { return Ok(None) };
        let (timeout_ns, payload_bytes_max) = self.link_bounds(cluster);
        let tls = match self.config.settings.tls.enabled {
            true => Some(tls_links::configs(&self.config.settings.tls).map_err(io::Error::other)?),
            false => None,
        };
        Ok(Some(Linking {
            inbox: Mailbox::new()?,
            sockets: mem::take(&mut self.listening.links),
            workers: Arc::clone(&post.workers),
            clock,
            secret: cluster.secret.clone(),
            timeout_ns,
            payload_bytes_max,
            migrator: post.migrator.clone(),
            tls,
            seen: LinksSeen::default(),
            main: post.main.clone(),
        }))
    }

    /// Links come up at once where a file says who there is, else when the coordinator has said so.
    fn join(
        &self,
        linking: Linking,
        balanced: &Arc<Balanced>,
        balancer: mpsc::Sender<Note>,
        moving: Moving,
        main: &Mailbox<Request>,
    ) -> io::Result<Option<Arc<Departure>>> {
        match self.config.cluster.as_ref().map(|cluster| &cluster.map) {
            None => Ok(None),
            Some(MapFrom::File { cluster, here }) => {
                linking.start(*here, cluster)?;
                Ok(None)
            }
            Some(MapFrom::Coordinator(config)) => {
                if let Some(migrator) = &linking.migrator {
                    let (inbox, linker) = (migrator.clone(), linking.inbox.clone());
                    moving.clone().start(inbox, linker, linking.timeout_ns)?;
                }
                let token = config.token.clone();
                let caller = Caller::new(&config.urls, token, membership::ANSWERS_WITHIN);
                let member = Membership {
                    caller: Arc::new(caller.map_err(io::Error::other)?),
                    addresses: self.advertised(config, &linking.sockets)?,
                    config: config.clone(),
                    workers: Arc::clone(&linking.workers),
                    balanced: Arc::clone(balanced),
                    balancer,
                    is_open: Arc::clone(&self.listening.is_open),
                    links: Arc::clone(&linking.seen),
                    clock: linking.clock,
                    departure: Departure::new(
                        config.clone(),
                        main.clone(),
                        Arc::clone(&moving.shared),
                    ),
                    moving,
                };
                let departure = Arc::clone(&member.departure);
                member.start(linking)?;
                Ok(Some(departure))
            }
        }
    }

    /// Where others reach this server: the ports that were taken, at the host that they are told.
    fn advertised(
        &self,
        config: &CoordinatorConfig,
        sockets: &[OwnedFd],
    ) -> io::Result<Registration> {
        let is_local = self.config.listen.iter().all(|one| one.interface == Interface::Loopback);
        let host = match &config.advertise {
            Some(host) => host.clone(),
            None if is_local => "127.0.0.1".into(),
            None => reached_at(&self.config.listen, membership::own_host(&config.urls)?),
        };
        let at = |port: u16| Address { host: host.clone(), port }.to_string();
        let port_of =
            |door: &OwnedFd| Ok(TcpListener::from(door.try_clone()?).local_addr()?.port());
        let link: io::Result<u16> = sockets.first().map_or(Ok(0), port_of);
        Ok(Registration {
            client: at(self.listening.addresses.first().map_or(0, |address| address.port())),
            link: at(link?),
            workers: self
                .listening
                .worker_addresses
                .iter()
                .map(|address| at(address.port()))
                .collect(),
            memory_bytes: self.config.settings.memory_bytes,
            moves: true,
            leases: true,
            ..Registration::default()
        })
    }

    /// Nanoseconds that a request may take, and bytes that it or its reply may have: a `get` of as many keys as go at a time.
    fn link_bounds(&self, cluster: &ClusterConfig) -> (u64, usize) {
        let item_bytes = self.config.settings.item_bytes_max + LINE_BYTES_MAX;
        let bytes_max = item_bytes.saturating_mul(GATHER_KEYS_MAX + 1).min(u32::MAX as usize);
        (cluster.link_timeout.as_nanos() as u64, bytes_max)
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
            link_timeout: config.cluster.as_ref().map_or(Duration::ZERO, |one| one.link_timeout),
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

impl Running {
    /// What it is and where it listens, as one line and by name.
    pub fn starting(&self) -> &Starting {
        &self.starting
    }

    /// Serves until a signal or a client ends it.
    pub fn wait(self) -> Result<Ended, StartError> {
        if let Some(background) = self.background {
            background.ready().map_err(StartError::System)?;
        }
        let reload = || self.door.iter().for_each(Door::reload);
        let observe = || observe(&self.shared, &self.tally);
        let departs = || self.departure.as_ref().is_some_and(Departure::begin);
        let ended = self.listener.run(observe, reload, departs).map_err(StartError::System)?;
        for worker in self.workers {
            worker.join().expect("a worker's panic has ended the process");
        }
        self.departure.iter().for_each(|departure| departure.farewell());
        self.saying.finish();
        Ok(ended)
    }
}

/// Files that a server opens beside `-c` connections: its own, and links to and from the workers of so many servers.
fn files_beside(config: &Config, servers: Option<usize>) -> u64 {
    let per_worker = 2 + 2 * (config.listen.len() + config.udp.len()) as u64;
    let beside = u64::from(config.settings.workers) * per_worker + DESCRIPTORS_SPARE;
    // To and from every other server's workers, of which there may be more than ours.
    let links = |servers| (4 * config.settings.workers as usize * servers + STRANGERS_MAX) as u64;
    beside + servers.map_or(0, links)
}

/// Files that a server of such settings opens in all, with all its connections.
pub fn files_wanted(config: &Config, in_cluster: bool) -> u64 {
    let servers = in_cluster.then_some(SERVERS_EXPECTED);
    u64::from(config.settings.connections_max) + files_beside(config, servers)
}

/// Lets the process open as many files as `-c` connections need. Where it may not, there are fewer connections.
fn make_room(config: &mut Config) -> Result<(), StartError> {
    let servers = config.cluster.as_ref().map(|cluster| match &cluster.map {
        MapFrom::File { cluster, .. } => cluster.servers.len(),
        MapFrom::Coordinator(_) => SERVERS_EXPECTED,
    });
    let beside = files_beside(config, servers);
    let asked = config.settings.connections_max;
    let limit = process::raise_descriptor_limit(u64::from(asked) + beside);
    let limit = limit.map_err(StartError::System)?;
    let room = limit.saturating_sub(beside);
    if room == 0 {
        return Err(StartError::Descriptors { wanted: beside, limit });
    }
    if room < u64::from(asked) {
        let text = format!(
            "mbal: -c {asked}: there is room for {room} connections, by the hard limit of {limit} open files"
        );
        log::warn("fewer_connections", &text);
        config.settings.connections_max = room as u32;
    }
    Ok(())
}

/// Starts the thread that shakes hands with those who come by TLS; where they are left for it.
fn greet(post: &Post, tally: &Arc<Tally>, clock: Clock) -> io::Result<Mailbox<Guest>> {
    let tls_acceptor = TlsAcceptor::new(Arc::clone(&post.workers), Arc::clone(tally), clock)?;
    let inbox = tls_acceptor.inbox();
    thread::Builder::new().name("mbal-tls".into()).spawn(move || {
        process::give_way();
        tls_acceptor.run().expect("epoll fails only for want of kernel memory");
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
    shared: &Arc<mbal_worker::Shared>,
    tally: &Tally,
    tls: Option<Arc<TlsDoor>>,
    mapped: Option<(ServerId, Arc<mbal_model::Cluster>)>,
    started: Started,
) {
    let id = WorkerId(index as u16);
    let worker = RefCell::new(Worker::new(id, Arc::clone(shared)));
    let shifted = |now: Now| now.moved(shared.gauges.time_shift.load(Relaxed));
    if let Some((here, cluster)) = mapped {
        let mapped = Event::Mapped { here, cluster };
        worker.borrow_mut().handle(started.at(0), mapped, &mut Actions::default());
    }
    let wake = Cell::new(None);
    // All events of a wake-up have its time: it is worked out once.
    let mut last = (0, started.at(0));
    let handle = |now_ns, event: Event, actions: &mut _| {
        if let Some(tls) = &tls {
            shared.gauges.handshake_errors.store(tls.handshake_errors(), Relaxed);
            shared.gauges.tls_errors.store(tls.errors(), Relaxed);
            shared.gauges.new_sessions.store(tls.new_sessions(), Relaxed);
        }
        match event {
            Event::Opened { .. } | Event::Adopted { .. } | Event::Closed { .. } => {
                observe(shared, tally)
            }
            // It is counted, and nothing else comes of it.
            Event::Rests { .. } | Event::Unseen { .. } => {
                return worker.borrow_mut().handle(last.1, event, actions);
            }
            Event::Tick => {
                shared.worker_has_quota(id.0, machine::thread_cpu_quota());
                if index == 0 {
                    observe_cpu(shared);
                    shared.has_quota(machine::cpu_quota());
                }
            }
            _ => {}
        }
        if last.0 != now_ns {
            last = (now_ns, started.at(now_ns));
        }
        let mut worker = worker.borrow_mut();
        if shared.counts_leases(&event) {
            // Read after what is handled has arrived.
            worker.look_at_lease(started.lease_clock.now());
        }
        worker.handle(shifted(last.1), event, actions);
        wake.set(worker.next_wake());
    };
    let next_wake = || {
        let shift = shared.gauges.time_shift.load(Relaxed);
        wake.get().map(|moment| started.ns_of(moment, shift))
    };
    let background = |now_ns, is_idle, actions: &mut Actions| {
        let now = shifted(started.at(now_ns));
        let mut worker = worker.borrow_mut();
        if shared.counts_leases_now() {
            worker.look_at_lease(started.lease_clock.now());
        }
        let begun = Instant::now();
        let more = worker.background(now, is_idle, actions);
        worker.background_took(begun.elapsed().as_nanos() as u64);
        wake.set(worker.next_wake());
        more
    };
    event_loop
        .run(handle, background, next_wake)
        .expect("epoll fails only for want of kernel memory");
}

fn observe(shared: &mbal_worker::Shared, tally: &Tally) {
    let gauges = &shared.gauges;
    gauges.curr_connections.store(tally.current() as u64, Relaxed);
    gauges.total_connections.store(tally.total(), Relaxed);
    gauges.rejected_connections.store(tally.rejected(), Relaxed);
    gauges.listen_disabled.store(tally.pauses(), Relaxed);
    gauges.accepting.store(tally.accepting().into(), Relaxed);
    gauges.listen_disabled_us.store(tally.paused_us(), Relaxed);
    gauges.reserved_fds.store(DESCRIPTORS_SPARE, Relaxed);
}

fn observe_cpu(shared: &mbal_worker::Shared) {
    let (user_us, system_us) = process::cpu_time_us();
    shared.gauges.user_us.store(user_us, Relaxed);
    shared.gauges.system_us.store(system_us, Relaxed);
}

/// Where others reach a server that listens there: at the address that leads to the coordinator, or, if it does not listen at that one, at the first at
/// which it does.
fn reached_at(listen: &[Listen], own: String) -> String {
    let is_own = |one: &Listen| one.interface.covers(&Interface::Named(own.clone()));
    if listen.iter().any(is_own) {
        return own;
    }
    let named = listen.iter().find_map(|one| match &one.interface {
        Interface::Named(host) => Some(host.clone()),
        Interface::All | Interface::Loopback => None,
    });
    named.unwrap_or(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_an_address_at_which_it_listens() {
        let named = |host: &str| Interface::Named(host.into());
        for (interfaces, told) in [
            (vec![Interface::All], "10.0.0.5"),
            (vec![named("10.0.0.5"), named("10.9.0.5")], "10.0.0.5"),
            (vec![named("10.9.0.5"), named("10.0.0.5")], "10.0.0.5"),
            (vec![named("10.9.0.5")], "10.9.0.5"),
            (vec![Interface::Loopback, named("cache-1")], "cache-1"),
        ] {
            let listen = |interface| Listen { interface, port: 11211, tls: None };
            let listen: Vec<Listen> = interfaces.into_iter().map(listen).collect();
            assert_eq!(reached_at(&listen, "10.0.0.5".into()), told, "{listen:?}");
        }
    }
}
