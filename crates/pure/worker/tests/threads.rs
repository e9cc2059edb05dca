//! Three servers of eight workers on real threads, in one process: cachelets move as fast as they can while clients write, read and flush.
//!
//! ```text
//!   clients ──► inbox of a worker ──► Worker::handle ──► replies, others' inboxes, inboxes of migrators
//!   one thread a server: what a heartbeat says and is told          one thread a server: words of moves
//! ```
//! The coordinator is a lock: it orders moves at random, and hands sealed cachelets over. Debug builds check the order of locks. Of what
//! the soak does with processes this is what needs no system calls, and it takes seconds. `MBAL_THREADS_SECONDS` says how many.
#![allow(clippy::disallowed_methods, reason = "it is about threads")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use mbal_cachelet::{Memory, Options, Store};
use mbal_migration::{Incarnation, Order, State};
use mbal_model::{
    Address, Addresses, Cluster, ClusterMap, MoveId, MoveLink, Owner, Prefix, ServerId, WorkerId,
};
use mbal_random::Random;
use mbal_worker::{
    Action, Actions, ConnId, Event, MoveDecision, MoveMessage, MoveTold, Now, Settings, Shared,
    Ticket, Ticketed, Worker,
};

const SERVERS: u16 = 3;
const WORKERS: u16 = 8;
const CLIENTS: usize = 6;
const KEYS: u64 = 300;
const CREDITS: u32 = 64;
const MEMORY: usize = 64 << 20;
/// Cachelets that move at a time.
const MOVES: usize = 40;
/// Between two heartbeats of a server.
const BEAT: Duration = Duration::from_micros(500);
/// Who has got no answer by then waits for ever.
const ANSWERS: Duration = Duration::from_secs(30);
/// A worker that nobody tells anything looks after itself so often.
const IDLE: Duration = Duration::from_millis(1);

/// What can be in a worker's inbox.
enum Note {
    /// Of a client's connection; replies go there.
    Opened(u32, Sender<Vec<u8>>),
    Received(u32, Vec<u8>),
    Asked(ServerId, Ticket, u64, Vec<u8>),
    Answered(ServerId, Ticket, Vec<u8>),
    Mapped(Arc<Cluster>),
    Carry,
}

/// A word of a move.
struct Said {
    from: ServerId,
    link: MoveLink,
    id: MoveId,
    kind: u8,
    payload: Vec<u8>,
    asks: bool,
}

struct Server {
    shared: Arc<Shared>,
    workers: Vec<Sender<Note>>,
    migrator: Sender<Said>,
}

/// Who says what moves.
struct Coordinator {
    map: Arc<ClusterMap>,
    moves: BTreeMap<u32, MoveTold>,
    ordered: u32,
    done: u64,
    random: Random,
}

struct World {
    servers: Vec<Server>,
    coordinator: Mutex<Coordinator>,
    begin: Instant,
    over: AtomicBool,
    /// Odd while a flush goes on.
    flushes: AtomicU64,
}

fn id_of(server: usize) -> ServerId {
    ServerId(server as u16 + 1)
}

fn at(server: ServerId) -> usize {
    usize::from(server.0 - 1)
}

fn incarnation(server: ServerId) -> Incarnation {
    Incarnation(100 + u64::from(server.0))
}

/// Between these two the first one dials.
fn link(from: ServerId, to: ServerId) -> MoveLink {
    MoveLink(u64::from(from.0) * 100 + u64::from(to.0))
}

fn cluster(map: &ClusterMap) -> Arc<Cluster> {
    let cluster = Cluster::without_addresses(map.clone());
    let nowhere = || Address { host: "h".into(), port: 1 };
    let addresses = || Addresses { link: None, client: nowhere(), workers: vec![], resolved: None };
    let servers = (0..usize::from(SERVERS)).map(|server| (id_of(server), addresses())).collect();
    Arc::new(Cluster { servers, ..cluster })
}

fn server() -> Arc<Shared> {
    let options = Options {
        memory_bytes: MEMORY,
        workers: WORKERS.into(),
        cachelets: 64,
        item_bytes_max: 1 << 20,
        evict: true,
        generation: 0,
    };
    let store = Store::vacant(options, Memory::heap(MEMORY)).expect("there is memory");
    let settings =
        Settings { workers: WORKERS, memory_bytes: MEMORY as u64, ..Settings::default() };
    Arc::new(Shared::new(settings, store))
}

impl World {
    fn now(&self) -> Now {
        let passed = self.begin.elapsed();
        let second = passed.as_secs() as u32;
        Now {
            second: 100 + second,
            unix: 1_700_000_000 + u64::from(second),
            micros: passed.subsec_micros(),
        }
    }

    fn goes_on(&self) -> bool {
        !self.over.load(SeqCst)
    }

    fn tell(&self, server: usize, worker: WorkerId, note: Note) {
        // Nobody reads it any more at the end.
        let _ = self.servers[server].workers[usize::from(worker.0)].send(note);
    }

    fn carry(&self, server: usize, workers: impl IntoIterator<Item = WorkerId>) {
        workers.into_iter().for_each(|worker| self.tell(server, worker, Note::Carry));
    }

    fn worker(&self, server: usize, number: u16, inbox: &Receiver<Note>) {
        let mut worker = Worker::new(WorkerId(number), Arc::clone(&self.servers[server].shared));
        let mut clients: BTreeMap<u32, Sender<Vec<u8>>> = BTreeMap::new();
        let mut actions = Actions::default();
        for peer in (0..usize::from(SERVERS)).filter(|peer| *peer != server) {
            let up = Event::LinkUp { server: id_of(peer), credits: CREDITS };
            worker.handle(self.now(), up, &mut actions);
        }
        let mut second = 0;
        while self.goes_on() {
            let now = self.now();
            let left = worker.next_wake().map_or(IDLE, |wake| wake.left(now.instant()));
            let note = inbox.recv_timeout(left.min(IDLE));
            let now = self.now();
            match &note {
                Ok(Note::Opened(conn, replies)) => {
                    clients.insert(*conn, replies.clone());
                    let opened = Event::Opened { conn: ConnId(*conn), own_port: false };
                    worker.handle(now, opened, &mut actions);
                }
                Ok(Note::Received(conn, bytes)) => {
                    let received = Event::Received { conn: ConnId(*conn), bytes };
                    worker.handle(now, received, &mut actions);
                }
                Ok(Note::Asked(from, ticket, micros_left, bytes)) => {
                    let micros_left = *micros_left;
                    let requests = [Ticketed { ticket: *ticket, micros_left, bytes }];
                    let asked = Event::Forwarded { server: *from, requests: &requests };
                    worker.handle(now, asked, &mut actions);
                }
                Ok(Note::Answered(from, ticket, bytes)) => {
                    let replies = [Ticketed::new(*ticket, bytes)];
                    let answered = Event::Answered { server: *from, replies: &replies };
                    worker.handle(now, answered, &mut actions);
                }
                Ok(Note::Mapped(cluster)) => {
                    let cluster = Arc::clone(cluster);
                    let mapped = Event::Mapped { here: id_of(server), cluster };
                    worker.handle(now, mapped, &mut actions);
                }
                Ok(Note::Carry) => worker.handle(now, Event::Carry, &mut actions),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.carry_out(server, number, &mut worker, &clients, &mut actions);
            let event = match now.second == second {
                true => Event::Woken,
                false => Event::Tick,
            };
            second = now.second;
            worker.handle(self.now(), event, &mut actions);
            worker.background(self.now(), true, &mut actions);
            self.carry_out(server, number, &mut worker, &clients, &mut actions);
        }
    }

    fn carry_out(
        &self,
        server: usize,
        number: u16,
        worker: &mut Worker,
        clients: &BTreeMap<u32, Sender<Vec<u8>>>,
        actions: &mut Actions,
    ) {
        while !actions.list.is_empty() {
            let Actions { bytes, requests, list } = std::mem::take(actions);
            for action in list {
                match action {
                    Action::Send { conn, bytes: range } => {
                        let _ = clients[&conn.0].send(bytes[range].to_vec());
                    }
                    // Links of a worker are to the worker of its number.
                    Action::Forward { server: to, ticket, micros_left, request } => {
                        let request = requests[request].to_vec();
                        let note = Note::Asked(id_of(server), ticket, micros_left, request);
                        self.tell(at(to), WorkerId(number), note);
                    }
                    Action::Answer { server: to, ticket, reply } => {
                        let note = Note::Answered(id_of(server), ticket, bytes[reply].to_vec());
                        self.tell(at(to), WorkerId(number), note);
                    }
                    Action::TellMove { link, id, kind, payload } => {
                        let (from, to) = ((link.0 / 100) as u16, (link.0 % 100) as u16);
                        let asks = ServerId(from) == id_of(server);
                        let other = ServerId(if asks { to } else { from });
                        let from = id_of(server);
                        let said = Said { from, link, id, kind, payload, asks };
                        let _ = self.servers[at(other)].migrator.send(said);
                    }
                    Action::Stall { conn } => {
                        worker.handle(self.now(), Event::Drained { conn }, actions);
                    }
                    Action::Nudge { worker } => self.tell(server, worker, Note::Carry),
                    Action::Pause { .. } | Action::Resume { .. } | Action::Say { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn migrator(&self, server: usize, inbox: &Receiver<Said>) {
        let shared = &self.servers[server].shared;
        while self.goes_on() {
            let Ok(said) = inbox.recv_timeout(IDLE) else { continue };
            let Said { from, link, id, kind, payload, asks } = said;
            let message = MoveMessage { from, link, id, kind, payload: &payload };
            let heard = match asks {
                true => shared.move_asked(self.now(), &message),
                false => shared.move_answered(self.now(), &message),
            };
            let heard = heard.expect("no link breaks");
            if let Some((kind, payload)) = heard.answer {
                let said = Said { from: id_of(server), link, id, kind, payload, asks: false };
                let _ = self.servers[at(from)].migrator.send(said);
            }
            self.carry(server, heard.worker);
        }
    }

    /// What a server says of its moves, and is told.
    fn member(&self, server: usize) {
        let (here, shared) = (id_of(server), &self.servers[server].shared);
        let mut followed = 1;
        while self.goes_on() {
            let reports = shared.move_reports();
            let (map, told, ever) = {
                let mut coordinator = self.coordinator.lock().expect("nobody has failed");
                reports.iter().for_each(|one| coordinator.hears(one.id, one.state));
                coordinator.orders();
                let of_it = |told: &&MoveTold| told.from == here || told.to == here;
                let told: Vec<MoveTold> =
                    coordinator.moves.values().filter(of_it).copied().collect();
                (Arc::clone(&coordinator.map), told, coordinator.ordered)
            };
            if map.version() > followed {
                followed = map.version();
                let cluster = cluster(&map);
                shared.follow(here, Arc::clone(&cluster), self.now().second);
                for worker in 0..WORKERS {
                    self.tell(server, WorkerId(worker), Note::Mapped(Arc::clone(&cluster)));
                }
            }
            self.carry(server, shared.moves_told(self.now(), &told, ever));
            thread::sleep(BEAT);
        }
    }

    fn client(&self, number: usize, mut random: Random) -> u64 {
        let (replies, answers) = channel();
        let conn = number as u32;
        let seats = u64::from(SERVERS * WORKERS);
        let seat = |random: &mut Random| {
            let seat = random.below(seats) as u16;
            (usize::from(seat / WORKERS), WorkerId(seat % WORKERS))
        };
        for seat in 0..SERVERS * WORKERS {
            let opened = Note::Opened(conn, replies.clone());
            self.tell(usize::from(seat / WORKERS), WorkerId(seat % WORKERS), opened);
        }
        // What each key is, and how many flushes there were before it was written.
        let mut known: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut requests = 0;
        while self.goes_on() {
            let (server, worker) = seat(&mut random);
            let ask = |request: String, end: &str| -> String {
                self.tell(server, worker, Note::Received(conn, request.clone().into_bytes()));
                let (mut reply, until) = (String::new(), Instant::now() + ANSWERS);
                while !reply.ends_with(end) && !reply.starts_with("SERVER_ERROR") {
                    match answers.recv_timeout(IDLE) {
                        Ok(bytes) => reply += std::str::from_utf8(&bytes).expect("text"),
                        Err(_) if !self.goes_on() => return String::new(),
                        Err(_) => assert!(Instant::now() < until, "no answer to {request:?}"),
                    }
                }
                reply
            };
            requests += 1;
            let key = random.below(KEYS);
            let name = format!("client{number}key{key}");
            let flushes = self.flushes.load(SeqCst);
            if random.below(3) == 0 {
                let reply = ask(format!("set {name} 0 0 12\r\n{requests:012}\r\n"), "\r\n");
                if reply == "STORED\r\n" {
                    known.insert(key, (requests, flushes));
                } else {
                    assert_eq!(reply, "", "nothing is in its way");
                }
                continue;
            }
            let reply = ask(format!("get {name}\r\n"), "END\r\n");
            let Some((value, since)) = known.get(&key).filter(|_| !reply.is_empty()) else {
                continue;
            };
            if reply != format!("VALUE {name} 0 12\r\n{value:012}\r\nEND\r\n") {
                let flushed = since % 2 == 1 || *since != self.flushes.load(SeqCst);
                assert!(flushed && reply == "END\r\n", "{name} was {value}, and is {reply:?}");
                known.remove(&key);
            }
        }
        requests
    }

    fn flusher(&self) {
        let (replies, answers) = channel();
        self.tell(0, WorkerId(0), Note::Opened(99, replies));
        while self.goes_on() {
            (0..400).take_while(|_| self.goes_on()).for_each(|_| thread::sleep(IDLE));
            self.flushes.fetch_add(1, SeqCst);
            self.tell(0, WorkerId(0), Note::Received(99, b"flush_all\r\n".to_vec()));
            let until = Instant::now() + ANSWERS;
            while let Err(_silent) = answers.recv_timeout(IDLE) {
                if !self.goes_on() {
                    return;
                }
                assert!(Instant::now() < until, "no answer to a flush_all");
            }
            self.flushes.fetch_add(1, SeqCst);
        }
    }
}

impl Coordinator {
    fn hears(&mut self, id: MoveId, state: State) {
        match state {
            State::Sealed => {
                let Some(told) = self.moves.remove(&id.0) else { return };
                let mut owners = self.map.cachelets().to_vec();
                let moved = owners.iter_mut().find(|(prefix, _)| *prefix == told.order.prefix);
                moved.expect("it is there").1 =
                    Owner { server: told.to, worker: told.order.worker };
                let map = ClusterMap::new(self.map.version() + 1, owners);
                self.map = Arc::new(map.expect("they cover all"));
                self.done += 1;
            }
            State::Back(_) => drop(self.moves.remove(&id.0)),
            _ => {}
        }
    }

    fn orders(&mut self) {
        let cachelets = self.map.cachelets();
        for _ in self.moves.len()..MOVES {
            let (prefix, owner) = cachelets[self.random.below(cachelets.len() as u64) as usize];
            let to = id_of(self.random.below(SERVERS.into()) as usize);
            if owner.server == to || self.moves.values().any(|told| told.order.prefix == prefix) {
                continue;
            }
            self.ordered += 1;
            let order = Order {
                id: MoveId(self.ordered),
                prefix,
                source: incarnation(owner.server),
                destination: incarnation(to),
                worker: WorkerId(self.random.below(WORKERS.into()) as u16),
                generation: self.map.version() as u16 & 0x7fff,
            };
            let told = MoveTold {
                order,
                from: owner.server,
                to,
                word: MoveDecision::Go,
                age_thresholds: None,
            };
            self.moves.insert(self.ordered, told);
        }
    }
}

#[test]
fn nothing_hangs_and_nothing_is_lost_while_cachelets_move_on_threads() {
    let seconds = std::env::var("MBAL_THREADS_SECONDS");
    let seconds = seconds.map_or(3, |text| text.parse().expect("a number"));
    let seed = u64::from(std::process::id());
    println!("seed {seed}, {seconds} s");
    let mut random = Random::new(seed);
    let owners = Prefix::equal(7).zip((0..).map(|nth: u16| Owner {
        server: id_of(usize::from(nth % SERVERS)),
        worker: WorkerId(nth / SERVERS % WORKERS),
    }));
    let map = Arc::new(ClusterMap::new(1, owners.collect()).expect("they cover all"));
    let (mut servers, mut inboxes, mut said) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..SERVERS {
        let (workers, of_it): (_, Vec<_>) = (0..WORKERS).map(|_| channel()).unzip();
        let (migrator, words) = channel();
        servers.push(Server { shared: server(), workers, migrator });
        inboxes.push(of_it);
        said.push(words);
    }
    let coordinator = Mutex::new(Coordinator {
        map: Arc::clone(&map),
        moves: BTreeMap::new(),
        ordered: 0,
        done: 0,
        random: Random::new(random.word()),
    });
    let (over, flushes) = (AtomicBool::new(false), AtomicU64::new(0));
    let world = World { servers, coordinator, begin: Instant::now(), over, flushes };
    for (server, one) in world.servers.iter().enumerate() {
        one.shared.set_incarnation(incarnation(id_of(server)));
        one.shared.follow(id_of(server), cluster(&map), world.now().second);
        for to in (0..usize::from(SERVERS)).filter(|to| *to != server) {
            let of_it = link(id_of(server), id_of(to));
            assert_eq!(one.shared.move_link_up(world.now(), id_of(to), of_it), []);
        }
    }
    let requests = thread::scope(|scope| {
        let world = &world;
        // Whoever fails ends it for all.
        struct Ends<'a>(&'a AtomicBool);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        for (server, (inboxes, said)) in inboxes.into_iter().zip(said).enumerate() {
            for (number, inbox) in (0..).zip(inboxes) {
                scope.spawn(move || {
                    let _ends = Ends(&world.over);
                    world.worker(server, number, &inbox);
                });
            }
            scope.spawn(move || {
                let _ends = Ends(&world.over);
                world.migrator(server, &said);
            });
            scope.spawn(move || {
                let _ends = Ends(&world.over);
                world.member(server);
            });
        }
        scope.spawn(|| {
            let _ends = Ends(&world.over);
            world.flusher();
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let random = Random::new(random.word());
                scope.spawn(move || {
                    let _ends = Ends(&world.over);
                    world.client(number, random)
                })
            })
            .collect();
        let until = world.begin + Duration::from_secs(seconds);
        while world.goes_on() && Instant::now() < until {
            thread::sleep(IDLE);
        }
        world.over.store(true, SeqCst);
        clients.into_iter().map(|one| one.join().expect("it has not failed")).sum::<u64>()
    });
    let done = world.coordinator.lock().expect("nobody has failed").done;
    println!("{done} moves, {} flushes, {requests} requests", world.flushes.load(SeqCst) / 2);
    assert!(done > 0 && requests > 0);
}
