//! Cachelets that move between three servers of two workers each, while clients ask at any of them. The test is the network: what is sent
//! over one connection arrives in order, and connections overtake each other by a seed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mbal_cachelet::{Options, Store};
use mbal_migration::{Begin, Incarnation, Order, Request, State};
use mbal_model::{
    Address, Addresses, Cluster, ClusterMap, Instant, Key, MoveId, MoveLink, Owner, Prefix, Route,
    ServerId, WorkerId,
};
use mbal_random::Random;
use mbal_wire::{Gone, PeerRequest};
use mbal_worker::{
    Action, Actions, ConnId, Event, MoveDecision, MoveMessage, MoveTold, NO_ROUTE, Now, Quota,
    Sender, Settings, Shared, Ticket, Ticketed, Worker,
};

use crate::rig::START;

const SERVERS: u16 = 3;
const WORKERS: u16 = 2;
const CREDITS: u32 = 64;
/// A step of the network takes so long.
const STEP_MICROS: u64 = 20;

/// What a source says when a slice has gone.
const GONE: u8 = 34;

/// Who is at an end: a worker of a server.
type Seat = (u16, u16);

/// What is on its way; each of these is one connection's one direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Way {
    Requests(Seat, u16),
    Replies(Seat, u16),
    /// From the source of moves to a destination, and back.
    Asks(u16, u16),
    Answers(u16, u16),
}

enum Message {
    Request(Ticket, Vec<u8>),
    Reply(Ticket, Vec<u8>),
    Move(MoveId, u8, Vec<u8>),
}

struct Net {
    now: Now,
    shared: Vec<Arc<Shared>>,
    workers: BTreeMap<Seat, Worker>,
    ways: BTreeMap<Way, VecDeque<Message>>,
    /// Links for moves, by source and destination; those that are up.
    links: BTreeMap<(u16, u16), MoveLink>,
    links_ever: u64,
    /// By seat and connection, what a client has got.
    replies: BTreeMap<(Seat, u32), String>,
    datagrams: Vec<String>,
    map: Arc<ClusterMap>,
    moves: BTreeMap<u32, MoveTold>,
    random: Random,
}

fn server_of(id: ServerId) -> u16 {
    id.0 - 1
}

fn id_of(server: u16) -> ServerId {
    ServerId(server + 1)
}

impl Net {
    fn new(seed: u64) -> Net {
        let owners = Prefix::equal(3).zip((0..).map(|nth: u16| Owner {
            server: id_of(nth % SERVERS),
            worker: WorkerId(nth % WORKERS),
        }));
        let map = ClusterMap::new(1, owners.collect()).expect("they cover all");
        let settings = Settings { workers: WORKERS, memory_bytes: 64 << 20, ..Settings::default() };
        let options = || Options {
            memory_bytes: 64 << 20,
            workers: WORKERS.into(),
            cachelets: 16,
            item_bytes_max: 1 << 20,
            evict: true,
            generation: 0,
        };
        let shared = (0..SERVERS).map(|server| {
            let memory = mbal_cachelet::Memory::heap(64 << 20);
            let store = Store::vacant(options(), memory).expect("there is memory");
            let shared = Shared::new(settings.clone(), store);
            shared.set_incarnation(Incarnation(100 + u64::from(server)));
            Arc::new(shared)
        });
        let mut net = Net {
            now: START,
            shared: shared.collect(),
            workers: BTreeMap::new(),
            ways: BTreeMap::new(),
            links: BTreeMap::new(),
            links_ever: 0,
            replies: BTreeMap::new(),
            datagrams: Vec::new(),
            map: Arc::new(map),
            moves: BTreeMap::new(),
            random: Random::new(seed),
        };
        for server in 0..SERVERS {
            for worker in 0..WORKERS {
                let shared = Arc::clone(&net.shared[usize::from(server)]);
                net.workers.insert((server, worker), Worker::new(WorkerId(worker), shared));
            }
        }
        for server in 0..SERVERS {
            net.map_reaches(server);
            for worker in 0..WORKERS {
                net.handle((server, worker), Event::Opened { conn: ConnId(0), own_port: false });
                for peer in (0..SERVERS).filter(|peer| *peer != server) {
                    let up = Event::LinkUp { server: id_of(peer), credits: CREDITS };
                    net.handle((server, worker), up);
                }
            }
            (0..SERVERS).filter(|to| *to != server).for_each(|to| net.link_up(server, to));
        }
        net
    }

    fn map_reaches(&mut self, server: u16) {
        self.follow_map(server);
        self.map_reaches_workers(server);
    }

    /// The newest map, and all servers: also those that have no cachelets by it.
    fn cluster(&self) -> Arc<Cluster> {
        let cluster = Cluster::without_addresses(ClusterMap::clone(&self.map));
        let nowhere = || Address { host: "h".into(), port: 1 };
        let addresses =
            || Addresses { link: None, client: nowhere(), workers: vec![], resolved: None };
        let servers = (0..SERVERS).map(|server| (id_of(server), addresses())).collect();
        Arc::new(Cluster { servers, ..cluster })
    }

    fn follow_map(&mut self, server: u16) {
        let cluster = self.cluster();
        self.shared[usize::from(server)].follow(id_of(server), cluster, self.now.second);
    }

    fn map_reaches_workers(&mut self, server: u16) {
        let cluster = self.cluster();
        for worker in 0..WORKERS {
            let mapped = Event::Mapped { here: id_of(server), cluster: Arc::clone(&cluster) };
            self.handle((server, worker), mapped);
        }
    }

    fn link_up(&mut self, from: u16, to: u16) {
        self.links_ever += 1;
        let link = MoveLink(self.links_ever);
        self.links.insert((from, to), link);
        let woken = self.shared[usize::from(from)].move_link_up(self.now, id_of(to), link);
        self.carry(from, woken);
    }

    fn break_link(&mut self, from: u16, to: u16) {
        let Some(link) = self.links.remove(&(from, to)) else { return };
        self.ways.remove(&Way::Asks(from, to));
        self.ways.remove(&Way::Answers(from, to));
        for server in [from, to] {
            let woken = self.shared[usize::from(server)].move_link_down(self.now, link);
            self.carry(server, woken);
        }
    }

    fn carry(&mut self, server: u16, workers: impl IntoIterator<Item = WorkerId>) {
        for worker in workers {
            self.handle((server, worker.0), Event::Carry);
        }
    }

    fn handle(&mut self, seat: Seat, event: Event<'_>) {
        let mut actions = Actions::default();
        let worker = self.workers.get_mut(&seat).expect("it is there");
        worker.handle(self.now, event, &mut actions);
        self.carry_out(seat, actions);
    }

    fn carry_out(&mut self, seat: Seat, actions: Actions) {
        let Actions { bytes, requests, list } = actions;
        for action in list {
            match action {
                Action::Send { conn, bytes: range } => {
                    let text = std::str::from_utf8(&bytes[range]).expect("text");
                    *self.replies.entry((seat, conn.0)).or_default() += text;
                }
                Action::Forward { server, ticket, request, .. } => {
                    let way = Way::Requests(seat, server_of(server));
                    let message = Message::Request(ticket, requests[request].to_vec());
                    self.ways.entry(way).or_default().push_back(message);
                }
                Action::Answer { server, ticket, reply } => {
                    // The worker that asked is the one of the same number.
                    let way = Way::Replies((server_of(server), seat.1), seat.0);
                    let message = Message::Reply(ticket, bytes[reply].to_vec());
                    self.ways.entry(way).or_default().push_back(message);
                }
                Action::TellMove { link, id, kind, payload } => {
                    let ends = self.links.iter().find(|(_, up)| **up == link);
                    let Some((&(from, to), _)) = ends else { continue };
                    let way = match from == seat.0 {
                        true => Way::Asks(from, to),
                        false => Way::Answers(from, to),
                    };
                    let message = Message::Move(id, kind, payload);
                    self.ways.entry(way).or_default().push_back(message);
                }
                Action::Stall { conn } => self.handle(seat, Event::Drained { conn }),
                Action::Datagram { bytes: range, .. } => {
                    let text = std::str::from_utf8(&bytes[range][8..]).expect("text");
                    self.datagrams.push(text.into());
                }
                Action::Pause { .. } | Action::Resume { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// One thing happens: a message arrives, a worker's moment comes, or it goes on in the background.
    fn step(&mut self) {
        let micros = u64::from(self.now.micros) + STEP_MICROS;
        self.now.second += (micros / 1_000_000) as u32;
        self.now.micros = (micros % 1_000_000) as u32;
        let due: Vec<Seat> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.next_wake().is_some_and(|at| at <= self.now.instant()))
            .map(|(seat, _)| *seat)
            .collect();
        due.into_iter().for_each(|seat| self.handle(seat, Event::Woken));
        let seat = (self.random.below(SERVERS.into()) as u16, self.random.below(2) as u16);
        let mut actions = Actions::default();
        let worker = self.workers.get_mut(&seat).expect("it is there");
        worker.background(self.now, true, &mut actions);
        self.carry_out(seat, actions);
        let ways: Vec<Way> =
            self.ways.iter().filter(|(_, queue)| !queue.is_empty()).map(|(way, _)| *way).collect();
        if ways.is_empty() {
            return;
        }
        let way = ways[self.random.below(ways.len() as u64) as usize];
        let message = self.ways.get_mut(&way).and_then(VecDeque::pop_front).expect("not empty");
        self.deliver(way, message);
    }

    fn deliver(&mut self, way: Way, message: Message) {
        match (way, message) {
            (Way::Requests(from, to), Message::Request(ticket, bytes)) => {
                let requests = [Ticketed::new(ticket, &bytes)];
                let asked = Event::Forwarded { server: id_of(from.0), requests: &requests };
                self.handle((to, from.1), asked);
            }
            (Way::Replies(to, from), Message::Reply(ticket, bytes)) => {
                let replies = [Ticketed::new(ticket, &bytes)];
                self.handle(to, Event::Answered { server: id_of(from), replies: &replies });
            }
            (Way::Asks(from, to), Message::Move(id, kind, payload)) => {
                let link = self.links[&(from, to)];
                let message = MoveMessage { from: id_of(from), link, id, kind, payload: &payload };
                let heard = self.shared[usize::from(to)].move_asked(self.now, &message);
                match heard {
                    Ok(heard) => {
                        if let Some((kind, payload)) = heard.answer {
                            let message = Message::Move(id, kind, payload);
                            self.ways.entry(Way::Answers(from, to)).or_default().push_back(message);
                        }
                        self.carry(to, heard.worker);
                    }
                    Err(_) => panic!("move {} cannot be asked {kind}", id.0),
                }
            }
            (Way::Answers(from, to), Message::Move(id, kind, payload)) => {
                let link = self.links[&(from, to)];
                let message = MoveMessage { from: id_of(to), link, id, kind, payload: &payload };
                let heard = self.shared[usize::from(from)].move_answered(self.now, &message);
                self.carry(from, heard.expect("an answer").worker);
            }
            _ => unreachable!("messages keep to their ways"),
        }
    }

    /// The coordinator orders a move of the cachelet of `hash` to another server.
    fn order(&mut self, hash: u64, to: u16) {
        let (prefix, owner) = self.map.at(hash);
        if self.moves.values().any(|told| told.order.prefix == prefix) || owner.server == id_of(to)
        {
            return;
        }
        let id = self.moves.keys().last().copied().unwrap_or(0).max(self.map.version() as u32) + 1;
        let incarnation = |server: ServerId| Incarnation(100 + u64::from(server_of(server)));
        let order = Order {
            id: MoveId(id),
            prefix,
            source: incarnation(owner.server),
            destination: incarnation(id_of(to)),
            worker: WorkerId(self.random.below(2) as u16),
            generation: self.map.version() as u16,
        };
        let told = MoveTold {
            order,
            from: owner.server,
            to: id_of(to),
            word: MoveDecision::Go,
            age_thresholds: None,
        };
        self.moves.insert(id, told);
        self.heartbeats();
    }

    /// What servers say of their moves, and are told.
    fn heartbeats(&mut self) {
        for server in 0..SERVERS {
            for report in self.shared[usize::from(server)].move_reports() {
                match report.state {
                    State::Sealed => {
                        let Some(told) = self.moves.remove(&report.id.0) else { continue };
                        let mut owners = self.map.cachelets().to_vec();
                        let moved =
                            owners.iter_mut().find(|(prefix, _)| *prefix == told.order.prefix);
                        moved.expect("it is there").1 =
                            Owner { server: told.to, worker: told.order.worker };
                        let map = ClusterMap::new(self.map.version() + 1, owners);
                        self.map = Arc::new(map.expect("they cover all"));
                    }
                    State::Back(_) => drop(self.moves.remove(&report.id.0)),
                    _ => {}
                }
            }
        }
        for server in 0..SERVERS {
            if self.random.below(3) > 0 {
                // Its workers may hear of what has become of moves before they hear of the map.
                self.follow_map(server);
                let late = self.random.below(2) == 0;
                if !late {
                    self.map_reaches_workers(server);
                }
                let of_it =
                    |told: &&MoveTold| told.from == id_of(server) || told.to == id_of(server);
                let told: Vec<MoveTold> = self.moves.values().filter(of_it).copied().collect();
                let woken =
                    self.shared[usize::from(server)].moves_told(self.now, &told, u32::MAX >> 3);
                self.carry(server, woken);
                if late {
                    self.map_reaches_workers(server);
                }
            }
        }
    }

    fn run(&mut self, steps: usize) {
        for step in 0..steps {
            self.step();
            if step % 50 == 0 {
                self.heartbeats();
            }
        }
    }

    fn ask(&mut self, seat: Seat, request: &str) -> String {
        self.ask_lines(seat, request, 1)
    }

    /// The replies to several requests that are sent at once: so many lines, or more.
    fn ask_lines(&mut self, seat: Seat, request: &str, lines: usize) -> String {
        self.handle(seat, Event::Received { conn: ConnId(0), bytes: request.as_bytes() });
        let mut replies = String::new();
        for step in 0..200_000 {
            if let Some(reply) = self.replies.remove(&(seat, 0)) {
                replies += &reply;
                if replies.lines().count() >= lines {
                    return replies;
                }
            }
            self.step();
            if step % 500 == 499 {
                self.heartbeats();
            }
        }
        panic!(
            "no answer to {request}: {replies}, map {:?}, moves {:?}",
            self.map.at(hash_of("key0")),
            self.moves
        )
    }
}

fn hash_of(key: &str) -> u64 {
    Key::new(key.as_bytes()).expect("short").hash()
}

/// How long a move of a cachelet of several slices takes, and how many they are. `thrifty` has 1 ms of CPU in 20 ms.
fn travels(thrifty: Option<u16>) -> (Duration, u32) {
    let mut net = Net::new(3);
    if let Some(server) = thrifty {
        net.shared[usize::from(server)].has_quota(Quota::of(1_000, 20_000));
    }
    let (prefix, owner) = net.map.at(hash_of("key0"));
    let source = server_of(owner.server);
    let keys = (0..40_000).map(|number| format!("key{number}"));
    let keys: Vec<String> = keys.filter(|key| prefix.contains(hash_of(key))).collect();
    for key in &keys {
        assert_eq!(net.ask((source, 0), &format!("set {key} 0 0 1\r\nv\r\n")), "STORED\r\n");
    }
    let begin = net.now.instant();
    net.order(hash_of("key0"), (source + 1) % SERVERS);
    let mut slices = 0;
    while net.map.at(hash_of("key0")).1 == owner {
        net.run(50);
        let reports = net.shared[usize::from(source)].move_reports();
        slices = slices.max(reports.iter().map(|one| one.progress.slices).max().unwrap_or(0));
    }
    let took = net.now.instant() - begin;
    net.run(10_000);
    for key in &keys {
        let found = format!("VALUE {key} 0 1\r\nv\r\nEND\r\n");
        assert_eq!(net.ask((source, 0), &format!("get {key}\r\n")), found);
    }
    (took, slices as u32)
}

#[test]
fn under_a_small_quota_slices_leave_and_come_one_in_eighty_milliseconds() {
    let (took, slices) = travels(None);
    assert!(slices > 3 && took < slices * Duration::from_millis(10), "{took:?} for {slices}");
    let source = server_of(Net::new(3).map.at(hash_of("key0")).1.server);
    for thrifty in [source, (source + 1) % SERVERS] {
        let (took, slices) = travels(Some(thrifty));
        assert!(took > (slices - 1) * Duration::from_millis(80), "{took:?} for {slices}");
    }
}

#[test]
fn a_cachelet_that_comes_back_by_a_map_after_its_source_has_missed_one_is_served_again() {
    comes_back(false);
}

#[test]
fn a_cachelet_that_comes_back_is_served_again_though_a_move_of_it_has_ended_before_it_was_there() {
    comes_back(true);
}

/// `again`: it is to leave once more, before its source has it, and then to stay.
fn comes_back(again: bool) {
    let mut net = Net::new(1);
    let (hash, set, get) = (hash_of("k"), "set k 0 0 1\r\nv\r\n", "get k\r\n");
    let (prefix, owner) = net.map.at(hash);
    let source = server_of(owner.server);
    assert_eq!(net.ask((source, 0), set), "STORED\r\n");
    net.order(hash, (source + 1) % SERVERS);
    let server = |net: &Net| Arc::clone(&net.shared[usize::from(source)]);
    let is_sealed =
        |net: &Net| server(net).move_reports().iter().any(|one| one.state == State::Sealed);
    while net.moves.is_empty() || !is_sealed(&net) {
        let order = net.moves.values().copied().collect::<Vec<_>>();
        let woken = server(&net).moves_told(net.now, &order, u32::MAX >> 3);
        net.carry(source, woken);
        net.step();
    }
    // The destination gets it by one map, and dies: by the next it begins at its source again, which hears of that one alone.
    let ordered = net.moves.pop_first().map(|(_, told)| told).expect("it goes on");
    let mut owners = net.map.cachelets().to_vec();
    owners.iter_mut().for_each(|(at, to)| {
        if *at == prefix {
            *to = owner
        }
    });
    let map = ClusterMap::new(net.map.version() + 2, owners).expect("they cover all");
    net.map = Arc::new(map);
    net.map_reaches(source);
    let mut order = ordered.order;
    order.id.0 += 1;
    let cancelled = MoveTold { order, word: MoveDecision::Cancel, ..ordered };
    let words: &[&[MoveTold]] = if again { &[&[cancelled], &[]] } else { &[&[]] };
    for word in words {
        let woken = server(&net).moves_told(net.now, word, u32::MAX >> 3);
        net.carry(source, woken);
        (0..200).for_each(|_| net.step());
    }
    net.run(200);
    assert_eq!(server(&net).moves_under_way(), 0);
    assert_eq!(net.ask((source, 0), get), "END\r\n", "it began empty");
    assert_eq!(net.ask((source, 1), set), "STORED\r\n");
}

#[test]
fn a_cachelet_moves_while_its_keys_are_read_and_written_at_any_server() {
    for seed in 0..12 {
        let mut net = Net::new(seed);
        let mut values: BTreeMap<String, u64> =
            (0..6_000).map(|at| (format!("key{at}"), 0)).collect();
        for (at, key) in values.keys().enumerate() {
            let seat = (at as u16 % SERVERS, 0);
            assert_eq!(net.ask(seat, &format!("set {key} 0 0 1\r\n0\r\n")), "STORED\r\n");
        }
        let keys: Vec<String> = values.keys().cloned().collect();
        let mut moved = 0;
        for round in 1..2_000 {
            let key = &keys[net.random.below(keys.len() as u64) as usize];
            let seat = (net.random.below(3) as u16, net.random.below(2) as u16);
            if round % 100 == 0 {
                let version = net.map.version();
                let to = net.random.below(SERVERS.into()) as u16;
                net.order(hash_of(key), to);
                moved += version;
                if seed % 3 == 0 && net.random.below(2) == 0 {
                    let (from, to) = (net.random.below(3) as u16, net.random.below(3) as u16);
                    net.break_link(from, to);
                    net.run(30);
                    if from != to && !net.links.contains_key(&(from, to)) {
                        net.link_up(from, to);
                    }
                }
            }
            match net.random.below(4) {
                0 => {
                    let reply = net.ask(seat, &format!("set {key} 0 0 4\r\n{round:04}\r\n"));
                    assert_eq!(reply, "STORED\r\n", "seed {seed}, round {round}, {key}");
                    values.insert(key.clone(), round);
                }
                1 => {
                    let some: Vec<&String> = (0..8)
                        .map(|_| &keys[net.random.below(keys.len() as u64) as usize])
                        .collect();
                    let words: Vec<&str> = some.iter().map(|key| key.as_str()).collect();
                    let expected: String =
                        some.iter().map(|key| shown(key, values[*key])).collect();
                    let reply = net.ask(seat, &format!("get {}\r\n", words.join(" ")));
                    assert_eq!(reply, expected + "END\r\n", "seed {seed}, round {round}");
                }
                2 => {
                    let sender = Sender { socket: 0, address: ([127, 0, 0, 1], 9).into() };
                    let bytes = [&b"\0\x01\0\0\0\x01\0\0"[..], format!("get {key}\r\n").as_bytes()]
                        .concat();
                    net.handle(seat, Event::Datagram { from: sender, bytes: &bytes });
                    for _ in 0..100_000 {
                        if !net.datagrams.is_empty() {
                            break;
                        }
                        net.step();
                    }
                    let expected = shown(key, values[key]) + "END\r\n";
                    assert_eq!(net.datagrams.pop(), Some(expected), "seed {seed}, round {round}");
                }
                _ => {
                    let reply = net.ask(seat, &format!("get {key}\r\n"));
                    let expected = shown(key, values[key]) + "END\r\n";
                    assert_eq!(reply, expected, "seed {seed}, round {round}");
                }
            }
        }
        for _ in 0..200 {
            net.run(500);
            if net.moves.is_empty() {
                break;
            }
        }
        assert!(net.moves.is_empty(), "seed {seed}: moves end");
        assert!(net.map.version() > 4, "seed {seed}: cachelets have moved, {moved}");
        for server in 0..SERVERS {
            net.map_reaches(server);
        }
        net.run(2_000);
        for key in &keys {
            let expected = shown(key, values[key]) + "END\r\n";
            assert_eq!(
                net.ask((0, 0), &format!("get {key}\r\n")),
                expected,
                "seed {seed}: at last"
            );
        }
        for server in &net.shared {
            assert_eq!(server.moves_under_way(), 0);
        }
    }
}

fn shown(key: &str, value: u64) -> String {
    match value {
        0 => format!("VALUE {key} 0 1\r\n0\r\n"),
        value => format!("VALUE {key} 0 4\r\n{value:04}\r\n"),
    }
}

#[test]
fn what_a_client_asks_at_once_is_executed_in_its_order_while_maps_change() {
    for seed in 0..40 {
        let mut net = Net::new(seed);
        let keys: Vec<String> = (0..40).map(|at| format!("key{at}")).collect();
        for round in 0..400 {
            let seat = (net.random.below(3) as u16, net.random.below(2) as u16);
            if round % 4 == 0 {
                let key = &keys[net.random.below(keys.len() as u64) as usize];
                let (hash, to) = (hash_of(key), net.random.below(SERVERS.into()) as u16);
                net.order(hash, to);
            }
            let (mut request, mut expected) = (String::new(), String::new());
            for nth in 0..6 {
                let key = &keys[net.random.below(4) as usize];
                let value = round * 10 + nth + 1;
                request += &format!("set {key} 0 0 4\r\n{value:04}\r\nget {key}\r\n");
                expected += &format!("STORED\r\n{}END\r\n", shown(key, value));
                if net.random.below(8) == 0 {
                    request += &format!("flush_all\r\nset {key} 0 0 1\r\n0\r\nget {key}\r\n");
                    expected += &format!("OK\r\nSTORED\r\n{}END\r\n", shown(key, 0));
                }
            }
            let replies = net.ask_lines(seat, &request, expected.lines().count());
            assert_eq!(replies, expected, "seed {seed}, round {round}");
        }
    }
}

#[test]
fn every_request_of_a_datagram_is_answered() {
    let mut net = Net::new(3);
    let far = (0..).map(|at| format!("k{at}"));
    let far = far.into_iter().find(|key| net.map.at(hash_of(key)).1.server == id_of(1));
    let requests = format!("get {}\r\nflush_all\r\n", far.expect("endless"));
    let bytes = [&b"\0\x01\0\0\0\x01\0\0"[..], requests.as_bytes()].concat();
    let sender = Sender { socket: 0, address: ([127, 0, 0, 1], 9).into() };
    net.handle((0, 0), Event::Datagram { from: sender, bytes: &bytes });
    net.run(500);
    assert_eq!(net.datagrams.concat(), "END\r\nOK\r\n");
}

#[test]
fn who_waits_for_a_slice_for_too_long_is_told_that_its_owner_cannot_be_reached() {
    let mut net = Net::new(1);
    let key =
        (0..).map(|at| format!("k{at}")).find(|key| net.map.at(hash_of(key)).1.server == id_of(0));
    let key = key.expect("endless");
    assert_eq!(net.ask((0, 0), &format!("set {key} 0 0 1\r\n0\r\n")), "STORED\r\n");
    net.break_link(0, 1);
    let hash = hash_of(&key);
    let prefix = net.map.at(hash).0;
    let store = &net.shared[0].store;
    assert!(store.begin_to_leave(prefix, MoveId(9)));
    while store.route(WorkerId(0), hash) != Route::Moving(MoveId(9)) {
        store.freeze(prefix, net.now.second).expect("the key's slice comes");
    }
    net.shared[0].moves_told(net.now, &[], 0);
    let begun = net.now.instant();
    let reply = net.ask((1, 1), &format!("set {key} 0 0 1\r\n1\r\n"));
    assert_eq!(reply, format!("{NO_ROUTE}\r\n"));
    let waited = net.now.instant() - begun;
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_millis(1_100));
}

#[test]
fn a_server_whose_lease_is_over_takes_no_slice() {
    let mut net = Net::new(1);
    let (key, hash) = ("key0", hash_of("key0"));
    let source = server_of(net.map.at(hash).1.server);
    let destination = (source + 1) % SERVERS;
    assert_eq!(net.ask((source, 0), &format!("set {key} 0 0 1\r\n0\r\n")), "STORED\r\n");
    net.shared[usize::from(destination)].own_until(Instant::from_secs(1));
    for worker in 0..WORKERS {
        let worker = net.workers.get_mut(&(destination, worker)).expect("it is there");
        worker.look_at_lease(Instant::from_secs(1));
    }
    net.order(hash, destination);
    net.run(5_000);
    let reports = net.shared[usize::from(source)].move_reports();
    assert_eq!(reports.iter().map(|report| report.part_gone).collect::<Vec<f64>>(), [0.0]);
    assert_eq!(net.ask((source, 0), &format!("get {key}\r\n")), shown(key, 0) + "END\r\n");
}

/// An insider says that a cachelet comes, by a move of this number. Whether the server takes part in it then.
fn forge(net: &mut Net, to: u16, from: u16, id: u32, hash: u64) {
    let begin = Request::Begin(Begin {
        prefix: net.map.at(hash).0,
        source: Incarnation(100 + u64::from(from)),
        destination: Incarnation(100 + u64::from(to)),
        worker: WorkerId(0),
        generation: 1,
        gone: None,
    });
    let mut payload = Vec::new();
    let kind = begin.encode(&mut payload);
    let link = MoveLink(1 << 40);
    let (from, id) = (id_of(from), MoveId(id));
    let message = MoveMessage { from, link, id, kind, payload: &payload };
    let heard = net.shared[usize::from(to)].move_asked(net.now, &message).expect("it reads");
    net.carry(to, heard.worker);
}

#[test]
fn a_move_that_nobody_has_ordered_ends_and_its_cachelet_is_served() {
    let mut net = Net::new(8);
    let (key, hash) = ("key0", hash_of("key0"));
    let owner = server_of(net.map.at(hash).1.server);
    let (here, other) = ((owner + 1) % SERVERS, (owner + 2) % SERVERS);
    assert_eq!(net.ask((owner, 0), &format!("set {key} 0 0 1\r\n0\r\n")), "STORED\r\n");
    // The number is one to come; one of a move that this server does take part in; and of that, from another server.
    let told = |net: &Net, id: u32, hash: u64| {
        let (prefix, owner) = net.map.at(hash);
        let order = Order {
            id: MoveId(id),
            prefix,
            source: Incarnation(1),
            destination: Incarnation(2),
            worker: WorkerId(0),
            generation: 1,
        };
        MoveTold {
            order,
            from: owner.server,
            to: id_of(here),
            word: MoveDecision::Go,
            age_thresholds: None,
        }
    };
    let real = (0..).map(|at| hash_of(&format!("other{at}")));
    let mut real = real.filter(|hash| server_of(net.map.at(*hash).1.server) == other);
    let real = real.next().expect("some are its");
    for (id, words, ever) in [(1_000, vec![], 3), (7, vec![told(&net, 7, real)], 9)] {
        forge(&mut net, here, other, id, hash);
        assert_eq!(net.shared[usize::from(here)].moves_under_way(), 1);
        for _ in 0..2 {
            let woken = net.shared[usize::from(here)].moves_told(net.now, &words, ever);
            net.carry(here, woken);
        }
        for _ in 0..2_000 {
            net.step();
        }
        assert_eq!(net.shared[usize::from(here)].moves_under_way(), 0, "move {id}");
        assert_eq!(net.ask((here, 0), &format!("get {key}\r\n")), shown(key, 0) + "END\r\n");
    }
    // One that was saved a moment ago, and of which the word before does not know yet, goes on.
    forge(&mut net, here, owner, 12, hash);
    net.shared[usize::from(here)].moves_told(net.now, &[], 11);
    net.shared[usize::from(here)].moves_told(net.now, &[told(&net, 12, hash)], 12);
    net.shared[usize::from(here)].moves_told(net.now, &[told(&net, 12, hash)], 12);
    assert_eq!(net.shared[usize::from(here)].moves_under_way(), 1);
    net.shared[usize::from(here)].moves_told(net.now, &[], 12);
    net.order(hash, here);
    net.run(20_000);
    assert_eq!(server_of(net.map.at(hash).1.server), here, "it can move there");
    assert_eq!(net.ask((other, 0), &format!("get {key}\r\n")), shown(key, 0) + "END\r\n");
}

#[test]
fn a_move_for_which_another_was_made_up_goes_on_or_ends() {
    let mut net = Net::new(9);
    let hash = hash_of("key0");
    for key in 0..400 {
        assert_eq!(net.ask((0, 0), &format!("set key{key} 0 0 1\r\n0\r\n")), "STORED\r\n");
    }
    let owner = server_of(net.map.at(hash).1.server);
    let here = (owner + 1) % SERVERS;
    net.order(hash, here);
    let has_begun = |net: &Net| net.shared[usize::from(here)].moves_under_way() == 1;
    while !has_begun(&net) {
        net.run(1);
    }
    forge(&mut net, here, owner, 1_000_000, hash);
    for _ in 0..1_000 {
        net.run(100);
        if net.moves.is_empty() {
            break;
        }
    }
    assert!(net.moves.is_empty(), "{:?}", net.moves);
    for key in 0..400 {
        let shown = shown(&format!("key{key}"), 0) + "END\r\n";
        assert_eq!(net.ask((here, 0), &format!("get key{key}\r\n")), shown);
    }
}

#[test]
fn what_moves_before_a_flush_that_is_still_to_come_arrives() {
    let mut net = Net::new(5);
    let keys: Vec<String> = (0..400).map(|at| format!("key{at}")).collect();
    assert_eq!(net.ask((2, 0), "flush_all 60\r\n"), "OK\r\n");
    for key in &keys {
        assert_eq!(net.ask((0, 0), &format!("set {key} 0 0 1\r\n0\r\n")), "STORED\r\n");
    }
    for to in 0..SERVERS {
        let version = net.map.version();
        net.order(hash_of(&keys[0]), to);
        while !net.moves.is_empty() {
            net.run(100);
        }
        assert!(
            net.map.version() > version || to == server_of(net.map.at(hash_of(&keys[0])).1.server)
        );
    }
    for key in &keys {
        assert_eq!(net.ask((1, 1), &format!("get {key}\r\n")), shown(key, 0) + "END\r\n");
    }
    net.now.second += 60;
    for key in &keys {
        assert_eq!(net.ask((1, 1), &format!("get {key}\r\n")), "END\r\n");
    }
}

#[test]
fn a_get_of_keys_that_have_gone_says_so_of_all_of_them_though_the_first_is_here() {
    let mut net = Net::new(7);
    let prefix = net.map.at(hash_of("key0")).0;
    let is_of_it = |key: &String| net.map.at(hash_of(key)).0 == prefix;
    let mut keys: Vec<String> =
        (0..).map(|at| format!("key{at}")).filter(is_of_it).take(6_000).collect();
    keys.sort_by_key(|key| hash_of(key));
    let source = server_of(net.map.at(hash_of("key0")).1.server);
    let destination = (source + 1) % SERVERS;
    for key in &keys {
        net.ask((source, 0), &format!("set {key} 0 0 1\r\n0\r\n"));
    }
    net.order(hash_of("key0"), destination);
    let id = *net.moves.keys().next().expect("it is ordered");
    // Something is served at the destination, and it has not heard that more has gone.
    let (first, second, last) = loop {
        assert!(!net.moves.is_empty(), "it has moved");
        net.run(1);
        let said = net.ways.get(&Way::Asks(source, destination)).and_then(|way| way.front());
        let Some(Message::Move(_, GONE, payload)) = said else { continue };
        let last = u64::from_le_bytes(payload[..].try_into().expect("a hash"));
        let store = &net.shared[usize::from(destination)].store;
        let is_here = |key: &&String| {
            let route = store.route(WorkerId(0), hash_of(key));
            matches!(route, Route::Own | Route::Neighbour(_))
        };
        let first = keys.iter().find(is_here);
        let gone = keys.iter().rfind(|key| hash_of(key) <= last && !is_here(key));
        if let (Some(first), Some(gone)) = (first, gone) {
            break (first, gone, last);
        }
    };
    let (get, mut bytes) = (format!("get {first} {second}\r\n"), Vec::new());
    let gone = Some(Gone { by_move: id, last });
    PeerRequest { gone, ..PeerRequest::new(1, 1, get.as_bytes()) }.encode(&mut bytes);
    let requests = [Ticketed::new(Ticket(1), &bytes)];
    let worker = net.workers.get_mut(&(destination, 0)).expect("it is there");
    let mut actions = Actions::default();
    worker.handle(
        net.now,
        Event::Forwarded { server: id_of(source), requests: &requests },
        &mut actions,
    );
    let Some(Action::Answer { reply, .. }) = actions.list.first() else {
        panic!("{:?}", actions.list)
    };
    let told = std::str::from_utf8(&actions.bytes[reply.clone()]).expect("text");
    assert_eq!(told, shown(first, 0) + &shown(second, 0) + "END\r\n");
}
