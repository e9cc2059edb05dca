//! A pool changes behind its proxies while clients write (docs/design/switching.md), in virtual time: real proxies, the tool's own
//! [`Pilot`] and [`Batch`]; memcacheds that stop, die, and execute what a connection that is gone has brought; proxies and tools
//! that are killed. Nobody reads what was overwritten before his read began.

mod common;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use common::history::{Asking, Heard, History};
use common::{KETAMA, MS, server};
use mbal_elastic::switch::{Batch, Ending, Pilot, PilotAction, PilotEvent, Side};
use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};
use mbal_proxy::{
    Action, ClientId, ConnId, Dialect, Event, Proxy, RingServer, Settings, SwitchSettings,
    SwitchTask, SwitchWork,
};
use mbal_routing::ketama::Ring;
use mbal_testkit::{Failed, Met, Seeds, Sim, planted};
use mbal_wire::{SwitchLine, SwitchReply};

#[path = "switch/memcached.rs"]
mod memcached;
#[path = "switch/tool.rs"]
mod tool;

use memcached::{Cache, Late, requests};
use tool::Tool;

const SERVERS: usize = 3;
const CLIENTS: usize = 6;
const KEYS: u64 = 12;
const STEPS: usize = 9_000;
const LEASE: u64 = 60 * MS;
/// What a connection that is gone has brought is executed so long after an answer over the next one, at the latest.
const DOUBT: u64 = 40 * MS;
const TIMEOUT: u64 = 50 * MS;
const TOKEN: &[u8] = b"0123456789abcdef";

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn servers(count: usize) -> Vec<RingServer> {
    (0..count).map(server).collect()
}

/// A proxy's process, and its disk.
struct Node {
    proxy: Option<Proxy>,
    life: u64,
    starts_at: u64,
    stopped_until: u64,
    wires: BTreeMap<usize, Wire>,
    dialing: VecDeque<usize>,
    tasks: VecDeque<SwitchTask>,
    /// What a restart begins with.
    file: Vec<RingServer>,
    record: Option<Vec<RingServer>>,
    /// Where each upstream of the proxy's numbers is.
    places: Vec<usize>,
}

/// A connection from a proxy to an upstream.
#[derive(Default)]
struct Wire {
    requests: VecDeque<String>,
    replies: VecDeque<String>,
    /// Whose replies these are.
    executed: VecDeque<String>,
}

struct Client {
    node: usize,
    id: ClientId,
    asking: Option<Asking>,
    /// What it has read for a `cas`: key, number, and since when. What it compares with is the last one.
    seen: Option<(String, u64, u64)>,
    compares: Option<(String, u64, u64)>,
    /// It reads a key that was stored before.
    was_stored: bool,
}

struct World {
    sim: Sim<()>,
    nodes: Vec<Node>,
    caches: Vec<Cache>,
    clients: Vec<Client>,
    history: History,
    tool: Option<Tool>,
    tools: u64,
    /// The pool's size, as far as the tools have told, and the size that is wanted.
    size: usize,
    faults: bool,
    /// Of tools that are dead.
    late_lines: Vec<(usize, u64, ClientId, String)>,
    stored: BTreeSet<String>,
}

impl World {
    fn new(seed: u64, tells: bool) -> World {
        let mut sim = Sim::new(seed, tells);
        sim.now = 1;
        let count = 1 + (seed % 2) as usize;
        let size = 2 + (seed / 2 % 2) as usize;
        let node = |_| Node {
            proxy: None,
            life: 0,
            starts_at: 0,
            stopped_until: 0,
            wires: BTreeMap::new(),
            dialing: VecDeque::new(),
            tasks: VecDeque::new(),
            file: servers(size),
            record: None,
            places: Vec::new(),
        };
        let clients = (0..CLIENTS).map(|client| Client {
            node: client % count,
            id: ClientId(0),
            asking: None,
            seen: None,
            compares: None,
            was_stored: false,
        });
        World {
            nodes: (0..count).map(node).collect(),
            caches: (0..SERVERS).map(|_| Cache::default()).collect(),
            clients: clients.collect(),
            history: History::default(),
            tool: None,
            tools: 0,
            size,
            faults: seed % 3 > 0,
            late_lines: Vec::new(),
            stored: BTreeSet::new(),
            sim,
        }
    }

    fn run(mut self) -> Result<Met, Failed> {
        self.steps().map_err(|why| Failed::new(if why.starts_with("2: ") { 2 } else { 3 }, why))?;
        Ok(self.sim.met)
    }

    fn steps(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            self.start(node)?;
        }
        for step in 0..STEPS {
            self.sim.now += self.sim.random.below(MS / 4);
            if self.faults && step < STEPS * 3 / 4 {
                if self.sim.one_in(200) {
                    self.fault()?;
                }
                self.fault_of_switch()?;
            }
            for node in 0..self.nodes.len() {
                if self.nodes[node].proxy.is_none() && self.nodes[node].starts_at <= self.sim.now {
                    self.start(node)?;
                }
                self.wake(node)?;
            }
            if self.tool.is_none() && self.sim.one_in(100) {
                self.begin();
            }
            match self.sim.random.below(12) {
                0..3 => self.ask()?,
                3..6 => self.execute(),
                6..9 => self.reply()?,
                9 => self.connect()?,
                10 => self.work()?,
                _ => {}
            }
            self.run_tool()?;
            self.run_late()?;
        }
        Ok(())
    }

    fn begin(&mut self) {
        let count = self.nodes.len();
        // A tool that is run again goes on with what the earlier one wanted.
        let next = match self.nodes.iter().find_map(|node| node.record.as_ref()) {
            Some(record) => record.len(),
            None => 5 - self.size,
        };
        let has_next = self.nodes.iter().any(|node| node.file.len() == next);
        let list = if has_next { 5 - next } else { self.size };
        // All servers answer it first.
        let now = self.sim.now;
        if self.caches.iter().any(|cache| now < cache.stopped_until.max(cache.away_until)) {
            return;
        }
        self.caches.iter_mut().for_each(|cache| cache.late_until(now + DOUBT));
        let proxies = (0..count).collect();
        self.tools += 1;
        let (list, next) = (servers(list), servers(next));
        self.tool = Some(Tool::new(self.tools, proxies, list, next, now));
        self.sim.met.count("a resize begins");
    }

    fn runs(&self, node: usize) -> bool {
        self.nodes[node].proxy.is_some() && self.nodes[node].stopped_until <= self.sim.now
    }

    fn start(&mut self, node: usize) -> Result<(), String> {
        let now = self.sim.now;
        let seed = self.sim.random.below(u64::MAX);
        let this = &mut self.nodes[node];
        this.life += 1;
        let settings = Settings {
            servers: this.file.clone(),
            distribution: KETAMA,
            timeout: Duration::from_nanos(TIMEOUT),
            retry: Duration::from_millis(1),
            doubt: Duration::from_nanos(DOUBT),
            switch: Some(SwitchSettings {
                token: TOKEN.to_vec(),
                interrupted: this.record.clone(),
            }),
            seed,
            ..common::settings(1)
        };
        this.places = (0..this.file.len()).collect();
        let mut proxy = Proxy::new(settings);
        proxy.start(at(now));
        for client in self.clients.iter_mut().filter(|client| client.node == node) {
            client.id = proxy.open();
            (client.asking, client.seen, client.compares) = (None, None, None);
        }
        this.proxy = Some(proxy);
        self.carry_out(node)
    }

    fn event(&mut self, node: usize, event: Event<'_>) -> Result<(), String> {
        let now = at(self.sim.now);
        if let Some(proxy) = &mut self.nodes[node].proxy {
            proxy.handle(now, event);
        }
        self.carry_out(node)
    }

    fn wake(&mut self, node: usize) -> Result<(), String> {
        if !self.runs(node) {
            return Ok(());
        }
        let due = self.nodes[node].proxy.as_mut().and_then(Proxy::next_wake);
        if due.is_some_and(|wake| wake.as_nanos() <= self.sim.now) {
            self.event(node, Event::Woken)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, node: usize) -> Result<(), String> {
        loop {
            let Some(proxy) = &mut self.nodes[node].proxy else { return Ok(()) };
            let Some(actions) = common::actions(proxy) else { return Ok(()) };
            for action in actions {
                self.act(node, action)?;
            }
        }
    }

    fn act(&mut self, node: usize, action: Action) -> Result<(), String> {
        let this = &mut self.nodes[node];
        let proxy = this.proxy.as_mut().expect("it acts");
        match action {
            Action::ToClient(id) => {
                let out = common::to_client(proxy, id);
                self.hear(node, id, &out)?;
            }
            Action::ToUpstream(conn) => {
                let out = common::to_upstream(proxy, conn);
                let wire = this.wires.entry(conn.0 as usize).or_default();
                wire.requests.extend(requests(&String::from_utf8_lossy(&out)));
            }
            Action::Dial { conn, .. } => this.dialing.push_back(conn.0 as usize),
            Action::HangUp(conn) | Action::Abandon(conn) => self.hang_up(node, conn.0 as usize),
            Action::Switch => this.tasks.extend(proxy.take_switch_task()),
            Action::Close(_) | Action::CutOff(_) | Action::Pause(_) | Action::Resume(_) => {}
        }
        Ok(())
    }

    fn hang_up(&mut self, node: usize, conn: usize) {
        let this = &mut self.nodes[node];
        this.dialing.retain(|other| *other != conn);
        let upstream = this.places[conn / 2];
        let Some(wire) = this.wires.remove(&conn) else { return };
        self.caches[upstream].late.push(Late { requests: wire.requests, until: u64::MAX });
    }

    /// The pool's thread of the process does what the proxy has asked for.
    fn work(&mut self) -> Result<(), String> {
        let node = self.sim.random.below(self.nodes.len() as u64) as usize;
        if !self.runs(node) {
            return Ok(());
        }
        let now = at(self.sim.now);
        let this = &mut self.nodes[node];
        let Some(SwitchTask { number, work }) = this.tasks.pop_front() else { return Ok(()) };
        let changed = match work {
            SwitchWork::Resolve(_) => None,
            SwitchWork::Record(list) => {
                this.record = Some(list);
                None
            }
            SwitchWork::Follow(list) => Some(list),
            SwitchWork::Save(list) => {
                (this.file, this.record) = (list, None);
                None
            }
            SwitchWork::Restore(list) => {
                (this.file, this.record) = (list.clone(), None);
                Some(list)
            }
        };
        let proxy = this.proxy.as_mut().expect("it runs");
        let before: Vec<String> = proxy.upstreams().map(|upstream| upstream.name).collect();
        if let Some(list) =
            changed.filter(|list| !list.iter().map(ToString::to_string).eq(before.iter().cloned()))
        {
            let numbers = proxy.change(now, list.clone(), |_, _| true);
            for (number, place) in numbers.into_iter().zip(0..) {
                if this.places.len() <= number {
                    this.places.resize(number + 1, place);
                }
                this.places[number] = place;
            }
        }
        proxy.switch_done(now, number, Ok(()));
        if proxy.counters().deleted_missed > 0 {
            return Err("2: what was filled is deleted again".into());
        }
        self.carry_out(node)
    }

    fn a_key(&mut self) -> String {
        format!("k{}", self.sim.random.below(KEYS))
    }

    fn ask(&mut self) -> Result<(), String> {
        let number = self.sim.random.below(CLIENTS as u64) as usize;
        let client = &self.clients[number];
        if client.asking.is_some() || !self.runs(client.node) {
            return Ok(());
        }
        let (key, now) = (self.a_key(), self.sim.now);
        let choice = self.sim.random.below(20);
        let (text, asking) = match choice {
            0..4 => self.history.set(key, now),
            // Where nothing goes wrong, all that was stored is found.
            4 if self.faults => self.history.delete(key, now),
            5 => self.history.read(&format!("gat 0 {key}"), &key, now),
            6 | 7 => self.history.read(&format!("gets {key}"), &key, now),
            8 | 9 => match self.clients[number].seen.take() {
                Some((key, cas, since)) => {
                    self.clients[number].compares = Some((key.clone(), since, now));
                    let (text, asking) = self.history.set(key.clone(), now);
                    let text = text.replacen("set ", "cas ", 1);
                    let text = text.replacen("\r\n", &format!(" {cas}\r\n"), 1);
                    (text, asking)
                }
                None => return Ok(()),
            },
            _ => self.history.read(&format!("get {key}"), &key, now),
        };
        self.send(number, &text, asking)
    }

    fn send(&mut self, number: usize, text: &str, asking: Asking) -> Result<(), String> {
        let was_stored = self.stored.contains(&asking.keys[0]);
        let client = &mut self.clients[number];
        let (node, id) = (client.node, client.id);
        (client.asking, client.was_stored) = (Some(asking), was_stored);
        self.sim.tell(|| format!("c{number} asks {text:?}"));
        self.event(node, Event::Received { client: id, bytes: text.as_bytes() })
    }

    fn hear(&mut self, node: usize, id: ClientId, bytes: &[u8]) -> Result<(), String> {
        let life = self.nodes[node].life;
        if self.tool.as_mut().is_some_and(|tool| tool.hears(node, life, id, bytes)) {
            return Ok(());
        }
        let is_it = |client: &&mut Client| client.node == node && client.id == id;
        let Some(client) = self.clients.iter_mut().find(is_it) else { return Ok(()) };
        let text = String::from_utf8_lossy(bytes).into_owned();
        self.sim.tell(|| format!("c{id:?} of p{node} hears {:?}", String::from_utf8_lossy(bytes)));
        // A compare that fails changes nothing.
        let fails = ["EXISTS\r\n", "NOT_FOUND\r\n"].contains(&text.as_str());
        if fails && client.compares.is_some() {
            (client.asking, client.compares) = (None, None);
            return Ok(());
        }
        let words: Vec<&str> = text.split([' ', '\r']).collect();
        if let ["VALUE", key, _, _, cas, ..] = words[..] {
            if let Ok(cas) = cas.parse() {
                client.seen = Some((key.to_owned(), cas, self.sim.now));
            }
        }
        let key = client.asking.as_ref().map(|asking| asking.keys[0].clone());
        let (was_stored, compares) = (client.was_stored, client.compares.take());
        match self.history.hear_for(&mut client.asking, bytes, self.sim.now)? {
            Heard::Hit => self.sim.met.count("hit"),
            Heard::Miss if was_stored && !self.faults => {
                return Err(format!("2: {key:?} was stored, and is lost"));
            }
            Heard::Miss => self.sim.met.count("miss"),
            Heard::Done => {
                self.sim.met.count("written");
                if text == "STORED\r\n" {
                    self.stored.extend(key);
                }
                if let Some((key, since, until)) = compares {
                    self.sim.met.count("compared");
                    if self.history.is_changed(&key, since, until) {
                        return Err(format!("{key}: an old cas number is taken"));
                    }
                }
            }
            Heard::Error => self.sim.met.count("error"),
            Heard::NotAll => {}
        }
        Ok(())
    }

    /// Some upstream executes some of what some proxy has asked.
    fn execute(&mut self) {
        let node = self.sim.random.below(self.nodes.len() as u64) as usize;
        let this = &mut self.nodes[node];
        let conns: Vec<usize> = this.wires.keys().copied().collect();
        let Some(conn) = conns.get(self.sim.random.below(conns.len().max(1) as u64) as usize)
        else {
            return;
        };
        let upstream = this.places[conn / 2];
        let cache = &mut self.caches[upstream];
        if self.sim.now < cache.stopped_until {
            return;
        }
        let wire = this.wires.get_mut(conn).expect("it is listed");
        for _ in 0..1 + self.sim.random.below(3) {
            let Some(request) = wire.requests.pop_front() else { break };
            wire.replies.push_back(cache.execute(&request, self.sim.now));
            wire.executed.push_back(request);
        }
        // Who answers over a connection has soon executed what earlier ones have brought.
        cache.late_until(self.sim.now + DOUBT);
    }

    fn reply(&mut self) -> Result<(), String> {
        let node = self.sim.random.below(self.nodes.len() as u64) as usize;
        if !self.runs(node) {
            return Ok(());
        }
        let this = &mut self.nodes[node];
        let conns: Vec<usize> = this.wires.keys().copied().collect();
        let Some(conn) = conns.get(self.sim.random.below(conns.len().max(1) as u64) as usize)
        else {
            return Ok(());
        };
        let wire = this.wires.get_mut(conn).expect("it is listed");
        let Some(reply) = wire.replies.pop_front() else { return Ok(()) };
        wire.executed.pop_front();
        self.event(node, Event::Replied { conn: ConnId(*conn as u32), bytes: reply.as_bytes() })
    }

    fn connect(&mut self) -> Result<(), String> {
        let node = self.sim.random.below(self.nodes.len() as u64) as usize;
        if !self.runs(node) {
            return Ok(());
        }
        let Some(conn) = self.nodes[node].dialing.pop_front() else { return Ok(()) };
        let upstream = self.nodes[node].places[conn / 2];
        if self.sim.now < self.caches[upstream].away_until {
            return self.event(node, Event::Lost { conn: ConnId(conn as u32) });
        }
        self.nodes[node].wires.entry(conn).or_default();
        self.event(node, Event::Connected { conn: ConnId(conn as u32) })
    }

    fn run_late(&mut self) -> Result<(), String> {
        if !self.late_lines.is_empty() && self.sim.one_in(100) {
            let (node, life, id, line) = self.late_lines.remove(0);
            if self.nodes[node].life == life && self.runs(node) {
                self.sim.tell(|| format!("p{node} hears late {}", line.trim_end()));
                self.sim.met.count("heard late");
                return self.event(node, Event::Received { client: id, bytes: line.as_bytes() });
            }
        }
        for cache in &mut self.caches {
            let late = cache.execute_late(self.sim.now, &mut self.sim.random);
            self.sim.met.count_all("executed late", late);
        }
        Ok(())
    }

    fn fault(&mut self) -> Result<(), String> {
        let node = self.sim.random.below(self.nodes.len() as u64) as usize;
        let upstream = self.sim.random.below(SERVERS as u64) as usize;
        let now = self.sim.now;
        let soon = now + self.sim.random.below(LEASE);
        match self.sim.random.below(12) {
            0 => self.caches[upstream].stopped_until = now + self.sim.random.below(2 * TIMEOUT),
            1..4 => {
                let conns: Vec<usize> = self.nodes[node].wires.keys().copied().collect();
                let conn = conns.get(self.sim.random.below(conns.len().max(1) as u64) as usize);
                if let Some(conn) = conn.copied().filter(|_| self.runs(node)) {
                    self.hang_up(node, conn);
                    return self.event(node, Event::Lost { conn: ConnId(conn as u32) });
                }
            }
            4 => {
                self.sim.met.count("an upstream dies");
                return self.kill_upstream(upstream);
            }
            5 | 6 => self.nodes[node].stopped_until = now + self.sim.random.below(2 * LEASE),
            7 | 8 => {
                self.sim.met.count("a proxy dies");
                self.kill_proxy(node, soon);
            }
            9 | 10 => {
                if let Some(tool) = self.tool.take() {
                    self.sim.met.count("a tool dies");
                    self.kill_tool(tool)?;
                }
            }
            _ => {
                if let Some(tool) = &mut self.tool {
                    self.sim.met.count("a tool is stopped");
                    tool.stop();
                }
            }
        }
        Ok(())
    }

    /// What goes wrong at the worst moment.
    fn fault_of_switch(&mut self) -> Result<(), String> {
        let Some(tool) = &self.tool else { return Ok(()) };
        let lines = tool.lines();
        let says = |what: &str| lines.iter().any(|(.., line)| line.contains(what));
        if (says(" turn") || says(" end")) && self.sim.one_in(40) {
            self.sim.met.count("a tool dies late");
            let tool = self.tool.take().expect("it was looked at");
            return self.kill_tool(tool);
        }
        if says(" turn") && self.sim.one_in(40) {
            let node = self.sim.random.below(self.nodes.len() as u64) as usize;
            self.nodes[node].stopped_until = self.sim.now + self.sim.random.below(3 * LEASE);
        }
        if self.sim.one_in(if tool.has_copied() { 4 } else { 60 }) {
            return self.lose_a_write();
        }
        Ok(())
    }

    /// A write is executed, and its reply is lost. Somebody reads it through another proxy before this one can delete it.
    fn lose_a_write(&mut self) -> Result<(), String> {
        let node = self.sim.random.below(self.nodes.len() as u64) as usize;
        let key = |wire: &Wire| {
            let sets = wire.executed.iter().filter(|request| request.starts_with("set "));
            let mut keys = sets.map(|set| set.split(' ').nth(1).expect("it has a key").to_owned());
            let copied = |key: &String| {
                let tool = self.tool.as_ref();
                tool.is_none_or(|tool| !tool.has_copied() || tool.copied(key))
            };
            keys.find(copied)
        };
        let mut wires = self.nodes[node].wires.iter();
        let found = wires.find_map(|(conn, wire)| Some((*conn, key(wire)?)));
        let Some((conn, key)) = found.filter(|_| self.runs(node)) else { return Ok(()) };
        self.sim.met.count("a write is lost");
        self.hang_up(node, conn);
        let upstream = self.nodes[node].places[conn / 2];
        self.caches[upstream].away_until = self.sim.now + self.sim.random.below(20 * MS);
        self.event(node, Event::Lost { conn: ConnId(conn as u32) })?;
        let is_other = |client: &Client| client.node != node && client.asking.is_none();
        let other = self.clients.iter().position(is_other);
        match other.filter(|other| self.runs(self.clients[*other].node)) {
            Some(other) => {
                let (text, asking) = self.history.read(&format!("get {key}"), &key, self.sim.now);
                self.send(other, &text, asking)
            }
            None => Ok(()),
        }
    }

    fn kill_upstream(&mut self, upstream: usize) -> Result<(), String> {
        let cache = &mut self.caches[upstream];
        cache.die();
        cache.away_until = self.sim.now + self.sim.random.below(20 * MS);
        if let Some(tool) = &mut self.tool {
            tool.loses(upstream);
        }
        for node in 0..self.nodes.len() {
            let this = &mut self.nodes[node];
            let places = &this.places;
            let conns: Vec<usize> =
                this.wires.keys().copied().filter(|conn| places[conn / 2] == upstream).collect();
            for conn in conns {
                self.nodes[node].wires.remove(&conn);
                self.event(node, Event::Lost { conn: ConnId(conn as u32) })?;
            }
        }
        Ok(())
    }

    fn kill_proxy(&mut self, node: usize, starts_at: u64) {
        let conns: Vec<usize> = self.nodes[node].wires.keys().copied().collect();
        for conn in conns {
            self.hang_up(node, conn);
        }
        let this = &mut self.nodes[node];
        (this.proxy, this.starts_at) = (None, starts_at);
        this.dialing.clear();
        // What its thread has begun may be done, or not.
        this.tasks.clear();
        if let Some(tool) = &mut self.tool {
            tool.loses_proxy(node, self.sim.now);
        }
        for client in self.clients.iter_mut().filter(|client| client.node == node) {
            client.asking = None;
        }
    }

    /// kill -9: what it has sent to proxies and upstreams may arrive all the same.
    fn kill_tool(&mut self, tool: Tool) -> Result<(), String> {
        for (upstream, requests) in tool.on_its_way() {
            self.caches[upstream].late.push(Late { requests, until: u64::MAX });
        }
        let lines = tool.lines();
        for (node, life, id, line) in lines {
            if self.nodes[node].life == life && self.sim.one_in(2) && self.runs(node) {
                self.event(node, Event::Received { client: id, bytes: line.as_bytes() })?;
            } else if self.nodes[node].life == life {
                self.late_lines.push((node, life, id, line));
            }
        }
        Ok(())
    }
}

static SWITCHES: Seeds = Seeds {
    name: "SWITCH",
    test: "cargo test -p mbal-proxy --test switch",
    usual: 200,
    complete: 200,
    to_meet: &[
        "hit",
        "miss",
        "written",
        "error",
        "a resize begins",
        "switched",
        "was switched",
        "undone",
        "unfinished",
        "refused",
        "a proxy dies",
        "a tool dies",
        "a tool is stopped",
        "an upstream dies",
        "executed late",
        "heard late",
        "compared",
        "a tool dies late",
        "a write is lost",
    ],
    run: |seed, tells| World::new(seed, tells).run(),
};

#[test]
fn nobody_reads_what_was_overwritten_when_a_pool_changes_under_its_writers() {
    SWITCHES.hold();
}

planted! {
    SWITCHES up to 2000:
    writes_untold: WritesUntold breaks 3,
    lost_writes_untold: LostWritesUntold breaks 3,
    writes_do_not_hold: WritesDoNotHold breaks 3,
    held_in_flight: HeldInFlight breaks 3,
    restart_forgets_switch: RestartForgetsSwitch breaks 3,
    earlier_tool_heard: EarlierToolHeard breaks 3,
    copied_at_once: CopiedAtOnce breaks 3,
    old_cas_taken: OldCasTaken breaks 3,
    strays_stay: StraysStay breaks 3,
    copied_without_lease: CopiedWithoutLease breaks 3,
    ended_before_all_turned: EndedBeforeAllTurned breaks 3,
    turned_before_copied: TurnedBeforeCopied breaks 3,
    switch_forgets_filled: SwitchForgetsFilled breaks 2,
}
