//! `mbal pool resize --through` as a process: its [`Pilot`], and what it copies.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;

/// A connection to a proxy.
struct Channel {
    node: usize,
    /// Of which life of the proxy, and as which client.
    to: Option<(u64, ClientId)>,
    lines: VecDeque<String>,
    heard: Vec<u8>,
    is_lost: bool,
}

enum Work {
    Delete { at: usize, key: String },
    Copy { source: usize, destination: usize, keys: Vec<Vec<u8>>, overwrites: bool },
}

enum Current {
    Delete { at: usize },
    Copy { batch: Batch, source: usize, destination: usize, heard: Vec<u8> },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Job {
    Nothing,
    ForPilot,
    Undo,
    Sweep,
}

pub struct Tool {
    number: u64,
    pub pilot: Pilot,
    list: Vec<RingServer>,
    next: Vec<RingServer>,
    channels: Vec<Channel>,
    job: Job,
    work: VecDeque<Work>,
    current: Option<Current>,
    /// What upstreams have not executed, and what they have said.
    wires: BTreeMap<usize, Wire>,
    /// What was copied where.
    copied: BTreeSet<(usize, String)>,
    /// Reads that were on their way to old places are answered by then.
    sweeps_at: u64,
    is_lost: bool,
    stops: bool,
    ending: Option<Ending>,
}

fn ring(servers: &[RingServer]) -> Ring {
    Ring::new(Dialect::Twemproxy, None, servers)
}

impl Tool {
    pub fn new(
        number: u64,
        proxies: Vec<usize>,
        list: Vec<RingServer>,
        next: Vec<RingServer>,
        now: u64,
    ) -> Tool {
        let entries = |list: &[RingServer]| list.iter().map(RingServer::entry).collect();
        let names = proxies.iter().map(|node| format!("p{node}")).collect();
        let times = (Duration::from_nanos(LEASE), Duration::from_nanos(DOUBT));
        let ring = "twemproxy/fnv1a_64".to_owned();
        let channel = |node| Channel {
            node,
            to: None,
            lines: VecDeque::new(),
            heard: Vec::new(),
            is_lost: false,
        };
        Tool {
            number,
            pilot: Pilot::new(names, entries(&list), entries(&next), ring, times, at(now)),
            list,
            next,
            channels: proxies.into_iter().map(channel).collect(),
            job: Job::Nothing,
            work: VecDeque::new(),
            current: None,
            wires: BTreeMap::new(),
            copied: BTreeSet::new(),
            sweeps_at: 0,
            is_lost: false,
            stops: false,
            ending: None,
        }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// True if this was for it.
    pub fn hears(&mut self, node: usize, life: u64, id: ClientId, bytes: &[u8]) -> bool {
        let is_its =
            |channel: &&mut Channel| channel.node == node && channel.to == Some((life, id));
        let channel = self.channels.iter_mut().find(is_its);
        let is_its = channel.is_some();
        channel.into_iter().for_each(|channel| channel.heard.extend_from_slice(bytes));
        is_its
    }

    /// It copies, and no proxy has turned.
    pub fn has_copied(&self) -> bool {
        !self.copied.is_empty() && !self.pilot.has_turned() && self.ending.is_none()
    }

    pub fn copied(&self, key: &str) -> bool {
        self.copied.iter().any(|(_, copied)| copied == key)
    }

    /// Ctrl-C.
    pub fn stop(&mut self) {
        self.stops = true;
    }

    /// An upstream has died.
    pub fn loses(&mut self, upstream: usize) {
        let wire = self.wires.remove(&upstream).unwrap_or_default();
        self.is_lost |= !wire.requests.is_empty() || !wire.replies.is_empty();
    }

    pub fn loses_proxy(&mut self, node: usize, _: u64) {
        for channel in self.channels.iter_mut().filter(|channel| channel.node == node) {
            channel.is_lost |= channel.to.is_some();
        }
    }

    /// What upstreams have not executed.
    pub fn on_its_way(&self) -> Vec<(usize, VecDeque<String>)> {
        self.wires.iter().map(|(at, wire)| (*at, wire.requests.clone())).collect()
    }

    /// What proxies have not received: each one's node, life and client.
    pub fn lines(&self) -> Vec<(usize, u64, ClientId, String)> {
        let mut all = Vec::new();
        for channel in &self.channels {
            let Some((life, id)) = channel.to else { continue };
            all.extend(channel.lines.iter().map(|line| (channel.node, life, id, line.clone())));
        }
        all
    }

    /// The old and new owner of a key.
    fn owners(&self, key: &[u8]) -> (usize, usize) {
        (ring(&self.list).owner(key), ring(&self.next).owner(key))
    }

    fn take_actions(&mut self, caches: &[Cache], now: u64) {
        for action in self.pilot.take_actions() {
            match action {
                PilotAction::Ask { proxy, session, order } => {
                    let mut line = Vec::new();
                    SwitchLine { token: TOKEN, session, order }.push(&mut line);
                    let line = String::from_utf8(line).expect("text");
                    self.channels[proxy].lines.push_back(line);
                }
                PilotAction::CopyAll => self.plan_all(caches),
                PilotAction::Copy(keys) => {
                    self.job = Job::ForPilot;
                    for key in keys {
                        let (source, destination) = self.owners(&key);
                        let work =
                            Work::Copy { source, destination, keys: vec![key], overwrites: true };
                        self.work.push_back(work);
                    }
                }
                PilotAction::Drop(keys) => {
                    self.job = Job::ForPilot;
                    for key in keys {
                        let (_, at) = self.owners(&key);
                        let key = String::from_utf8(key).expect("text");
                        self.work.push_back(Work::Delete { at, key });
                    }
                }
                PilotAction::End(ending) => self.end(ending, caches, now),
            }
        }
    }

    fn plan_all(&mut self, caches: &[Cache]) {
        self.job = Job::ForPilot;
        let mut batches: BTreeMap<(usize, usize), Vec<Vec<u8>>> = BTreeMap::new();
        for (place, cache) in caches.iter().enumerate() {
            for key in cache.items.keys() {
                let (source, destination) = self.owners(key.as_bytes());
                if source != place && !is_planted(Fault::StraysStay) {
                    self.work.push_back(Work::Delete { at: place, key: key.clone() });
                } else if source == place && source != destination {
                    batches.entry((source, destination)).or_default().push(key.clone().into());
                }
            }
        }
        for ((source, destination), keys) in batches {
            for keys in keys.chunks(2) {
                let keys = keys.to_vec();
                self.work.push_back(Work::Copy { source, destination, keys, overwrites: false });
            }
        }
    }

    fn end(&mut self, ending: Ending, caches: &[Cache], now: u64) {
        self.work.clear();
        match &ending {
            Ending::Undone(_) => {
                self.job = Job::Undo;
                for (at, key) in std::mem::take(&mut self.copied) {
                    self.work.push_back(Work::Delete { at, key });
                }
            }
            Ending::Switched { .. } | Ending::WasSwitched => {
                (self.job, self.sweeps_at) = (Job::Sweep, now + 2 * TIMEOUT);
                for (place, cache) in caches.iter().enumerate().take(self.next.len()) {
                    for key in cache.items.keys() {
                        if self.owners(key.as_bytes()).1 != place {
                            self.work.push_back(Work::Delete { at: place, key: key.clone() });
                        }
                    }
                }
            }
            _ => self.job = Job::Nothing,
        }
        self.ending = Some(ending);
    }

    fn next_work(&mut self, caches: &[Cache], now: u64) {
        if self.current.is_some()
            || now < self.sweeps_at
            || self.pilot.goes_back() && self.job == Job::ForPilot
        {
            return;
        }
        let Some(work) = self.work.pop_front() else { return };
        let upstreams: Vec<usize> = match &work {
            Work::Delete { at, .. } => vec![*at],
            Work::Copy { source, destination, .. } => vec![*source, *destination],
        };
        if upstreams.iter().any(|at| now < caches[*at].away_until) {
            self.is_lost = true;
            return;
        }
        self.current = Some(match work {
            Work::Delete { at, key } => {
                self.wires.entry(at).or_default().requests.push_back(format!("md {key}\r\n"));
                Current::Delete { at }
            }
            Work::Copy { source, destination, keys, overwrites } => {
                let of = keys
                    .iter()
                    .map(|key| (destination, String::from_utf8(key.clone()).expect("text")));
                self.copied.extend(of);
                let batch = Batch::new(keys, overwrites, 0);
                Current::Copy { batch, source, destination, heard: Vec::new() }
            }
        });
        self.ask_batch();
    }

    fn ask_batch(&mut self) {
        let Some(Current::Copy { batch, source, destination, .. }) = &mut self.current else {
            return;
        };
        match batch.ask() {
            Some((side, out)) => {
                let at = if side == Side::Source { *source } else { *destination };
                let all = requests(&String::from_utf8_lossy(&out));
                self.wires.entry(at).or_default().requests.extend(all);
            }
            None => {
                for key in batch.take_there() {
                    let (source, destination) = (*source, *destination);
                    let keys = vec![key];
                    let work = Work::Copy { source, destination, keys, overwrites: true };
                    self.work.push_back(work);
                }
                self.current = None;
            }
        }
    }

    /// Replies of upstreams.
    fn hear_upstreams(&mut self) -> Result<(), String> {
        match &mut self.current {
            None => {}
            Some(Current::Delete { at }) => {
                let wire = self.wires.entry(*at).or_default();
                if wire.replies.pop_front().is_some() {
                    self.current = None;
                }
            }
            Some(Current::Copy { batch, source, destination, heard }) => {
                for at in [*source, *destination] {
                    if let Some(wire) = self.wires.get_mut(&at) {
                        heard.extend(wire.replies.drain(..).flat_map(String::into_bytes));
                    }
                }
                if !heard.is_empty() {
                    let used = batch.hear(heard)?;
                    heard.drain(..used);
                    if batch.is_heard() {
                        self.ask_batch();
                    }
                }
            }
        }
        Ok(())
    }
}

impl World {
    /// The tool does something, or what it has sent arrives.
    pub fn run_tool(&mut self) -> Result<(), String> {
        let Some(mut tool) = self.tool.take() else { return Ok(()) };
        let now = self.sim.now;
        tool.take_actions(&self.caches, now);
        match self.sim.random.below(8) {
            0 => self.deliver(&mut tool)?,
            1 => self.say(&mut tool),
            2..5 => self.execute_for(&mut tool),
            5 => tool.hear_upstreams()?,
            6 => tool.next_work(&self.caches, now),
            _ if tool.pilot.next_wake().as_nanos() <= now => {
                tool.pilot.handle(at(now), PilotEvent::Woken);
            }
            _ => {}
        }
        if std::mem::take(&mut tool.stops) {
            tool.pilot.handle(at(now), PilotEvent::Stop);
        }
        if std::mem::take(&mut tool.is_lost) {
            tool.current = None;
            for (upstream, wire) in std::mem::take(&mut tool.wires) {
                let late = Late { requests: wire.requests, until: u64::MAX };
                self.caches[upstream].late.push(late);
            }
            tool.work.clear();
            if tool.job == Job::ForPilot {
                tool.job = Job::Nothing;
                let failed = PilotEvent::Copied(Err("an upstream hangs up".into()));
                tool.pilot.handle(at(now), failed);
            }
        }
        let is_idle = tool.current.is_none()
            && (tool.work.is_empty() || tool.pilot.goes_back() && tool.job == Job::ForPilot);
        if is_idle && tool.job == Job::ForPilot {
            tool.work.clear();
            tool.job = Job::Nothing;
            tool.pilot.handle(at(now), PilotEvent::Copied(Ok(())));
        }
        tool.take_actions(&self.caches, now);
        let is_over = tool.current.is_none() && tool.work.is_empty();
        match tool.ending.take() {
            Some(ending) if is_over => self.ended(tool, ending)?,
            ending => {
                tool.ending = ending;
                self.tool = Some(tool);
            }
        }
        Ok(())
    }

    fn ended(&mut self, tool: Tool, ending: Ending) -> Result<(), String> {
        self.sim.tell(|| format!("tool {} ends: {ending:?}", tool.number()));
        match ending {
            Ending::Switched { .. } => {
                self.sim.met.count("switched");
                self.size = tool.next.len();
            }
            Ending::WasSwitched => {
                self.sim.met.count("was switched");
                self.size = tool.next.len();
            }
            Ending::Undone(why) => {
                self.sim.met.count("undone");
                if !self.faults {
                    return Err(format!("2: undone, {why}"));
                }
            }
            Ending::Refused(_) => self.sim.met.count("refused"),
            Ending::TakenOver => self.sim.met.count("taken over"),
            Ending::Unfinished(_) => self.sim.met.count("unfinished"),
        }
        Ok(())
    }

    /// A line of the tool's arrives at a proxy.
    fn deliver(&mut self, tool: &mut Tool) -> Result<(), String> {
        let at = self.sim.random.below(tool.channels.len() as u64) as usize;
        let channel = &mut tool.channels[at];
        let node = channel.node;
        if !self.runs(node) {
            let is_dead = self.nodes[node].proxy.is_none();
            channel.is_lost |= is_dead && !channel.lines.is_empty();
            return Ok(());
        }
        let life = self.nodes[node].life;
        if channel.is_lost || channel.to.is_some_and(|(of, _)| of != life) {
            channel.is_lost = true;
            return Ok(());
        }
        let Some(line) = channel.lines.pop_front() else { return Ok(()) };
        let proxy = self.nodes[node].proxy.as_mut().expect("it runs");
        let (_, id) = *channel.to.get_or_insert_with(|| (life, proxy.open()));
        self.sim.tell(|| format!("p{node} hears {}", line.trim_end()));
        let current = std::mem::replace(tool, Tool::new(0, vec![], vec![], vec![], 0));
        self.tool = Some(current);
        let result = self.event(node, Event::Received { client: id, bytes: line.as_bytes() });
        *tool = self.tool.take().expect("it was put there");
        result
    }

    /// The tool hears a proxy.
    fn say(&mut self, tool: &mut Tool) {
        let proxy = self.sim.random.below(tool.channels.len() as u64) as usize;
        let now = at(self.sim.now);
        let channel = &mut tool.channels[proxy];
        if channel.is_lost {
            let why = "it hangs up".to_owned();
            (channel.is_lost, channel.to) = (false, None);
            channel.lines.clear();
            channel.heard.clear();
            return tool.pilot.handle(now, PilotEvent::Silent { proxy, why });
        }
        match SwitchReply::parse(&channel.heard) {
            Ok(None) => {}
            Ok(Some((reply, length))) => {
                channel.heard.drain(..length);
                self.sim.tell(|| format!("p{proxy} says {reply:?}"));
                tool.pilot.handle(now, PilotEvent::Said { proxy, reply });
            }
            Err(why) => tool.pilot.handle(now, PilotEvent::Silent { proxy, why }),
        }
    }

    fn execute_for(&mut self, tool: &mut Tool) {
        let upstream = self.sim.random.below(SERVERS as u64) as usize;
        let cache = &mut self.caches[upstream];
        let Some(wire) = tool.wires.get_mut(&upstream) else { return };
        if self.sim.now < cache.stopped_until {
            return;
        }
        for _ in 0..1 + self.sim.random.below(3) {
            let Some(request) = wire.requests.pop_front() else { break };
            wire.replies.push_back(cache.execute(&request, self.sim.now));
        }
        cache.late_until(self.sim.now + DOUBT);
    }
}
