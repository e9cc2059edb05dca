//! Hosts, calls, clients and trouble; time goes from one event to the next.

use std::collections::BTreeSet;
use std::time::Duration;

use mbal_election::{
    Election, Fence, News, Next, Request, Response, SaveResponse, Term, Verdict, Why,
};
use mbal_model::Instant;
use mbal_testkit::{Failed, Met, Sim};

use crate::etcd::{Answered, Etcd, Value};

mod calls;

const HOSTS: usize = 3;
const SECOND: u64 = 1_000_000;
/// Trouble ends then.
const TROUBLE: u64 = 60 * SECOND;
/// And the run.
const END: u64 = 85 * SECOND;
/// In what comes last a change is saved.
const LAST: u64 = 10 * SECOND;
/// By the caller's clock.
const ANSWERS_WITHIN: [u64; 2] = [700_000, 1_000_000];
/// A caller knows by then, if its coordinator was not stopped meanwhile.
const TOLD_WITHIN: u64 = 8 * SECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Election,
    Save,
}

#[derive(Clone, Debug)]
enum Call {
    Ask(Request),
    Save(Fence, Value),
}

#[derive(Clone, Debug)]
enum Back {
    Told(Response),
    Settled(SaveResponse),
}

enum Event {
    Wake(usize),
    /// A call is at etcd; its answer goes back, or not.
    Arrives {
        host: usize,
        number: u64,
        call: Call,
        is_answered: bool,
    },
    Back {
        host: usize,
        number: u64,
        back: Back,
    },
    Late {
        host: usize,
        number: u64,
        lane: Lane,
    },
    Change(usize),
    Read(usize),
    EtcdTicks,
    Trouble,
}

struct Host {
    election: Election,
    /// Its seconds to the world's.
    rate: f64,
    /// The calls that it waits for, by lane.
    waits: [Option<u64>; 2],
    /// What it answers by, once it has been made leader.
    installed: Option<(Term, u64)>,
    to_install: Option<(Term, u64)>,
    saving: Option<Saving>,
    stopped_until: u64,
    /// Its calls are lost.
    cut_until: u64,
    saves_hang_until: u64,
}

#[derive(Clone, Copy)]
struct Saving {
    fence: Fence,
    value: Value,
    begun: u64,
    attempts: u64,
}

pub struct World {
    sim: Sim<Event>,
    calls_ever: u64,
    etcd: Etcd,
    etcd_rate: f64,
    etcd_away_until: u64,
    slow_until: u64,
    hosts: Vec<Host>,
    states_ever: u64,
    /// Of those it was said that they did not happen.
    undone: BTreeSet<u64>,
    given_up: BTreeSet<u64>,
    last_saved: u64,
}

impl World {
    pub fn new(seed: u64, tells: bool) -> World {
        let mut sim = Sim::new(seed, tells);
        let mut rate = || 0.96 + 0.08 * sim.random.unit();
        let etcd_rate = rate();
        let hosts = (0..HOSTS).map(|_| Host {
            election: Election::new(),
            rate: rate(),
            waits: [None; 2],
            installed: None,
            to_install: None,
            saving: None,
            stopped_until: 0,
            cut_until: 0,
            saves_hang_until: 0,
        });
        let hosts = hosts.collect();
        let mut world = World {
            sim,
            calls_ever: 0,
            etcd: Etcd::default(),
            etcd_rate,
            etcd_away_until: 0,
            slow_until: 0,
            hosts,
            states_ever: 0,
            undone: BTreeSet::new(),
            given_up: BTreeSet::new(),
            last_saved: 0,
        };
        for host in 0..HOSTS {
            let later = world.sim.random.below(SECOND);
            world.sim.at(later, Event::Wake(host));
            world.sim.at(0, Event::Change(host));
            world.sim.at(0, Event::Read(host));
        }
        world.sim.at(0, Event::EtcdTicks);
        world.sim.at(0, Event::Trouble);
        world
    }

    fn say(&self, host: usize, text: impl FnOnce() -> String) {
        self.sim.tell(|| format!("{host}: {}", text()));
    }

    pub fn run(mut self) -> Result<Met, Failed> {
        while let Some(event) = self.sim.advance_until(END) {
            let time = self.sim.now;
            let of = match &event {
                Event::Wake(host)
                | Event::Change(host)
                | Event::Read(host)
                | Event::Back { host, .. }
                | Event::Late { host, .. } => Some(*host),
                _ => None,
            };
            match of.map(|host| self.hosts[host].stopped_until) {
                Some(until) if time < until => self.sim.at(until, event),
                _ => self.happens(event)?,
            }
        }
        if let Some(undone) = self.undone.iter().find(|id| self.etcd.history.contains(id)) {
            return Err(Failed::new(2, format!("state {undone} was said not to be saved, and is")));
        }
        if self.last_saved < END - LAST {
            return Err(Failed::new(5, "nobody saves any more, though all is well"));
        }
        Ok(self.sim.met)
    }

    fn happens(&mut self, event: Event) -> Result<(), Failed> {
        match event {
            Event::Wake(host) => self.step(host),
            Event::Arrives { host, number, call, is_answered } => {
                self.arrives(host, number, call, is_answered)?;
            }
            Event::Back { host, number, back: Back::Told(answer) } => {
                if self.hosts[host].waits[0].take_if(|waits| *waits == number).is_some() {
                    self.told(host, answer);
                }
            }
            Event::Back { host, number, back: Back::Settled(answer) } => {
                if self.hosts[host].waits[1].take_if(|waits| *waits == number).is_some() {
                    self.settled(host, answer)?;
                }
            }
            Event::Late { host, number, lane } => {
                if self.hosts[host].waits[lane as usize].take_if(|waits| *waits == number).is_some()
                {
                    match lane {
                        Lane::Election => self.told(host, Response::Nothing),
                        Lane::Save => self.settled(host, SaveResponse::Unknown)?,
                    }
                }
            }
            Event::Change(host) => {
                self.change(host);
                let gap = self.sim.about(SECOND / 4);
                self.sim.after(gap, Event::Change(host));
            }
            Event::Read(host) => {
                self.read(host)?;
                let gap = self.sim.about(SECOND / 40);
                self.sim.after(gap, Event::Read(host));
            }
            Event::EtcdTicks => {
                let takes = self.sim.random.below(2) * self.sim.random.below(SECOND / 2);
                let now = self.etcd_now();
                self.etcd.tick(now, Duration::from_micros(takes));
                self.sim.after(20_000, Event::EtcdTicks);
            }
            Event::Trouble => self.trouble(),
        }
        Ok(())
    }

    fn etcd_now(&self) -> Instant {
        Instant::from_micros((self.sim.now as f64 * self.etcd_rate) as u64)
    }

    fn clock(&self, host: usize) -> Instant {
        Instant::from_micros((self.sim.now as f64 * self.hosts[host].rate) as u64)
    }

    /// When a host's clock shows that.
    fn when(&self, host: usize, moment: Instant) -> u64 {
        (moment.as_micros() as f64 / self.hosts[host].rate) as u64 + 1
    }

    fn step(&mut self, host: usize) {
        if self.hosts[host].waits[0].is_some() {
            return;
        }
        let clock = self.clock(host);
        let next = self.hosts[host].election.next(clock);
        self.hear(host);
        match next {
            Next::Ask(question) => {
                self.say(host, || format!("asks {question:?}"));
                self.call(host, Lane::Election, Call::Ask(question));
            }
            Next::Wait(until) => {
                let when = self.when(host, until);
                self.sim.at(when.max(self.sim.now + 1), Event::Wake(host));
            }
        }
    }

    fn told(&mut self, host: usize, answer: Response) {
        self.say(host, || format!("is told {answer:?}"));
        if matches!(answer, Response::Lost(_)) {
            self.sim.met.count("lost a campaign");
        }
        let clock = self.clock(host);
        self.hosts[host].election.answered(clock, answer);
        self.hear(host);
        self.step(host);
    }

    fn hear(&mut self, host: usize) {
        for news in self.hosts[host].election.take_news() {
            self.say(host, || format!("{news:?}"));
            match news {
                News::Elected { term, state } => {
                    self.sim.met.count("elected");
                    if state.is_some() {
                        self.sim.met.count("elected with a state");
                    }
                    let state = state.as_ref().map_or(0, Value::of);
                    self.hosts[host].to_install = Some((term, state));
                }
                News::Deposed { why, .. } => {
                    match why {
                        Why::LeaseOver | Why::Replaced | Why::Unsettled => {
                            self.sim.met.count(&format!("deposed: {why:?}"));
                        }
                        other => panic!("{other:?} happens to nobody here"),
                    }
                    (self.hosts[host].installed, self.hosts[host].to_install) = (None, None);
                }
            }
        }
        // A process does so when its last save is settled.
        if self.hosts[host].saving.is_none() {
            if let Some(installed) = self.hosts[host].to_install.take() {
                self.hosts[host].installed = Some(installed);
            }
        }
    }

    /// What a client asks: answered if this host leads when the answer is made.
    fn read(&mut self, host: usize) -> Result<(), Failed> {
        let one = &self.hosts[host];
        let (Some((term, state)), None) = (one.installed, one.saving) else { return Ok(()) };
        if one.election.leads(self.clock(host)) != Some(term) {
            return Ok(());
        }
        self.sim.met.count("read as leader");
        if self.etcd.term() != Some(term) {
            let text =
                format!("{host} answers as leader of {term}, which is {:?}", self.etcd.term());
            return Err(Failed::new(1, text));
        }
        if self.etcd.state() != state {
            let text = format!("{host} tells of state {state}, which is {}", self.etcd.state());
            return Err(Failed::new(1, text));
        }
        Ok(())
    }

    fn change(&mut self, host: usize) {
        let clock = self.clock(host);
        let one = &mut self.hosts[host];
        let (Some((term, state)), None) = (one.installed, one.saving) else { return };
        if one.election.leads(clock) != Some(term) {
            return;
        }
        let Some(fence) = one.election.begin_save(clock) else { return };
        self.states_ever += 1;
        let value = Value { id: self.states_ever, from: state };
        one.saving = Some(Saving { fence, value, begun: self.sim.now, attempts: 1 });
        self.say(host, || format!("saves {value:?} under {fence:?}"));
        self.call(host, Lane::Save, Call::Save(fence, value));
    }

    fn settled(&mut self, host: usize, answer: SaveResponse) -> Result<(), Failed> {
        let clock = self.clock(host);
        let saving = self.hosts[host].saving.expect("it saves");
        let Saving { fence, value, begun, attempts } = saving;
        match answer {
            SaveResponse::Refused { ours: Some(_), .. } => {
                self.sim.met.count("saved by an attempt that was not answered");
            }
            SaveResponse::Refused { leader, .. } if leader != Some(fence.term) => {
                self.sim.met.count("save refused by its term");
            }
            _ => {}
        }
        let verdict = self.hosts[host].election.settle(clock, answer);
        self.say(host, || format!("state {} is told {answer:?}: {verdict:?}", value.id));
        let was_stopped = begun <= self.hosts[host].stopped_until;
        if begun + TOLD_WITHIN < self.sim.now && !was_stopped {
            return Err(Failed::new(
                5,
                format!("who asked for state {} is told nothing", value.id),
            ));
        }
        let is_written = self.etcd.history.contains(&value.id);
        match verdict {
            Verdict::Again => {
                self.sim.met.count("save asked again");
                self.hosts[host].saving = Some(Saving { attempts: attempts + 1, ..saving });
                self.call(host, Lane::Save, Call::Save(fence, value));
                return Ok(());
            }
            Verdict::Saved if !is_written => {
                return Err(Failed::new(2, format!("state {} is said to be saved", value.id)));
            }
            Verdict::NotSaved if is_written => {
                return Err(Failed::new(2, format!("state {} is said not to be saved", value.id)));
            }
            Verdict::Saved => {
                self.last_saved = self.sim.now;
                if let Some((term, state)) = &mut self.hosts[host].installed {
                    if *term == fence.term {
                        *state = value.id;
                    }
                }
            }
            Verdict::NotSaved => drop(self.undone.insert(value.id)),
            Verdict::Unknown => drop(self.given_up.insert(value.id)),
        }
        self.sim.met.count(&format!("told: {verdict:?}"));
        self.hosts[host].saving = None;
        self.hear(host);
        // Whoever was deposed by that has something to do.
        self.step(host);
        Ok(())
    }
}
