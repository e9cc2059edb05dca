//! Servers, coordinators, their calls, and trouble; time goes by in steps of five milliseconds.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_election::{
    KeySeen, OwnerNext, OwnerRequest, OwnerResponse, Ownership, Terms, Watch, nobody_leads,
};
use mbal_model::Instant;
use mbal_testkit::{Failed, Met, Sim};

use crate::etcd::Etcd;

const SERVERS: usize = 3;
const COORDINATORS: usize = 2;
const STEP: u64 = 5;
/// Trouble ends then, and the run.
const TROUBLE: u64 = 60_000;
const END: u64 = 90_000;
/// In what comes last all servers own.
const LAST: u64 = 10_000;
const ANSWERS_WITHIN: u64 = 700;
const LOOK_EVERY: u64 = 250;
const LEASE: Duration = Duration::from_secs(5);
/// Of a coordinator.
const LEADS_FOR: u64 = 3_000;
const SAVED_WITHIN: u64 = 2_000;

struct Server {
    incarnation: u64,
    ownership: Ownership,
    is_registered: bool,
    rate: f64,
    call: u64,
    beats_at: u64,
    /// What coordinators have said in the round under way.
    said: [Option<bool>; COORDINATORS],
    stopped_until: u64,
    cut_from_etcd_until: u64,
    /// From each.
    cut_from_coordinators_until: [u64; COORDINATORS],
    /// Killed; another process begins then.
    gone_until: u64,
    owned_at: u64,
}

struct Leader {
    coordinator: usize,
    term: u64,
    watches: BTreeMap<usize, (u64, Watch)>,
    looks_at: u64,
    /// When the look that it waits for was asked.
    look: Option<Instant>,
    /// Without etcd its own lease ends then.
    ends_at: Option<u64>,
    /// It waits for a save, and answers nobody; when it gives up.
    saves_until: Option<u64>,
}

struct Coordinator {
    rate: f64,
    stopped_until: u64,
    cut_from_etcd_until: u64,
}

enum Message {
    /// At etcd.
    Asked {
        server: usize,
        incarnation: u64,
        call: u64,
        question: OwnerRequest,
    },
    Told {
        server: usize,
        incarnation: u64,
        call: u64,
        answer: OwnerResponse,
    },
    Late {
        server: usize,
        incarnation: u64,
        call: u64,
    },
    /// At a coordinator.
    WhoLeads {
        server: usize,
        incarnation: u64,
        call: u64,
        at: usize,
    },
    Leads {
        server: usize,
        incarnation: u64,
        call: u64,
        at: usize,
        leads: bool,
    },
    RoundEnds {
        server: usize,
        incarnation: u64,
        call: u64,
    },
    Registers {
        server: usize,
        incarnation: u64,
    },
    Registered {
        server: usize,
        incarnation: u64,
    },
    Beats {
        server: usize,
        incarnation: u64,
        sent: Instant,
    },
    Accepted {
        server: usize,
        incarnation: u64,
        sent: Instant,
        is_member: bool,
    },
    /// A leader's look, at etcd, and back.
    Look {
        term: u64,
        begun: Instant,
    },
    Seen {
        term: u64,
        begun: Instant,
        unrenewed: Vec<Option<Duration>>,
    },
    /// A leader's save, at etcd.
    Dead {
        term: u64,
        server: usize,
        incarnation: u64,
    },
}

pub struct World {
    sim: Sim<Message>,
    calls_ever: u64,
    etcd: Etcd,
    etcd_rate: f64,
    etcd_away_until: u64,
    slow_until: u64,
    servers: Vec<Server>,
    coordinators: Vec<Coordinator>,
    leader: Option<Leader>,
    terms_ever: u64,
    elects_at: u64,
    /// The saved state: which process each server is; none is dead.
    members: BTreeMap<usize, Option<u64>>,
    killed: BTreeMap<u64, bool>,
    terms: Terms,
    incarnations_ever: u64,
}

impl World {
    pub fn new(seed: u64, tells: bool) -> World {
        let mut sim = Sim::new(seed, tells);
        let mut rate = || 0.96 + 0.08 * sim.random.unit();
        let etcd_rate = rate();
        let rates: Vec<f64> = (0..SERVERS).map(|_| rate()).collect();
        let coordinators = (0..COORDINATORS)
            .map(|_| Coordinator { rate: rate(), stopped_until: 0, cut_from_etcd_until: 0 })
            .collect();
        let grace = [None, None, Some(Duration::ZERO), Some(Duration::from_secs(5))];
        let terms = Terms { lease: LEASE, grace: sim.one_of(&grace) };
        let server = |(at, rate)| Server {
            incarnation: at as u64 + 1,
            ownership: Ownership::new(terms),
            is_registered: false,
            rate,
            call: 0,
            beats_at: 0,
            said: [None; COORDINATORS],
            stopped_until: 0,
            cut_from_etcd_until: 0,
            cut_from_coordinators_until: [0; COORDINATORS],
            gone_until: 0,
            owned_at: 0,
        };
        World {
            sim,
            calls_ever: 0,
            etcd: Etcd::default(),
            etcd_rate,
            etcd_away_until: 0,
            slow_until: 0,
            servers: rates.into_iter().enumerate().map(server).collect(),
            coordinators,
            leader: None,
            terms_ever: 0,
            elects_at: 0,
            members: BTreeMap::new(),
            killed: BTreeMap::new(),
            terms,
            incarnations_ever: SERVERS as u64,
        }
    }

    fn clock_of(&self, server: usize) -> Instant {
        Instant::from_micros((self.sim.now as f64 * 1_000.0 * self.servers[server].rate) as u64)
    }

    fn clock_at(&self, coordinator: usize) -> Instant {
        let rate = self.coordinators[coordinator].rate;
        Instant::from_micros((self.sim.now as f64 * 1_000.0 * rate) as u64)
    }

    fn etcd_now(&self) -> Instant {
        Instant::from_millis((self.sim.now as f64 * self.etcd_rate) as u64)
    }

    /// Sends it, perhaps in vain.
    fn send(&mut self, is_cut: bool, message: Message) {
        if is_cut || self.sim.now < TROUBLE && self.sim.random.below(60) == 0 {
            return;
        }
        let most = match self.sim.now < self.slow_until {
            true => self.sim.one_of(&[50, 350, 650, 5_000]),
            false => 5,
        };
        let later = 1 + self.sim.random.below(most);
        self.sim.after(later, message);
    }

    pub fn run(mut self) -> Result<Met, Failed> {
        while self.sim.now < END {
            self.sim.now += STEP;
            if self.sim.now < TROUBLE && self.sim.random.below(200) == 0 {
                self.trouble();
            }
            if self.etcd_away_until <= self.sim.now {
                let now = self.etcd_now();
                self.etcd.tick(now);
            }
            self.lead();
            let now = self.sim.now;
            while let Some(message) = self.sim.advance_until(now) {
                self.happens(message);
            }
            for server in 0..SERVERS {
                self.go_on(server)?;
            }
        }
        Ok(self.sim.met)
    }

    fn trouble(&mut self) {
        let server = self.sim.random.below(SERVERS as u64) as usize;
        let coordinator = self.sim.random.below(COORDINATORS as u64) as usize;
        let until = self.sim.now + self.sim.random.below(8_000);
        match self.sim.random.below(12) {
            0 | 1 => self.servers[server].stopped_until = until,
            2 => self.servers[server].cut_from_etcd_until = until,
            3 => {
                let later = until.max(TROUBLE.min(until + self.sim.random.below(30_000)));
                let one = &mut self.servers[server];
                match self.sim.random.below(4) {
                    0 | 1 => one.cut_from_coordinators_until = [later; COORDINATORS],
                    // All but one side of the cluster is away.
                    _ => {
                        one.cut_from_coordinators_until[coordinator] = until;
                        one.cut_from_etcd_until = until;
                    }
                }
            }
            4 => {
                self.killed.insert(self.servers[server].incarnation, true);
                self.servers[server].gone_until = until;
                self.sim.tell(|| format!("server {server} is killed"));
                self.is_reborn(server);
            }
            5 => self.coordinators[coordinator].stopped_until = until,
            6 => self.coordinators[coordinator].cut_from_etcd_until = until,
            7 | 8 => {
                self.sim.tell(|| format!("etcd is away until {until}"));
                self.etcd_away_until = until;
            }
            9 => self.slow_until = until,
            10 => {
                let now = self.etcd_now();
                self.etcd.change_leader(now);
            }
            _ => {
                self.sim.tell(|| format!("the lease of server {server} is revoked"));
                self.sim.met.count("lease revoked");
                let key_alone = self.sim.random.below(2) == 0;
                self.etcd.revoke(server, key_alone);
            }
        }
    }

    /// One leads, if it and etcd are there; a moment after another.
    fn lead(&mut self) {
        let is_fit = |one: &Coordinator, world: &World| {
            one.cut_from_etcd_until <= world.sim.now && world.etcd_away_until <= world.sim.now
        };
        if let Some(leader) = &self.leader {
            let one = &self.coordinators[leader.coordinator];
            let is_unlucky = self.sim.now < TROUBLE && self.sim.random.below(2_000) == 0;
            let is_stopped = self.sim.now < one.stopped_until;
            let ends_at = match (leader.ends_at, is_fit(one, self)) {
                (None, false) => Some(self.sim.now + self.sim.random.below(LEADS_FOR)),
                (ends_at, _) => ends_at,
            };
            let is_unsettled = leader.saves_until.is_some_and(|until| until <= self.sim.now);
            if is_stopped
                || is_unlucky
                || is_unsettled
                || ends_at.is_some_and(|at| at <= self.sim.now)
            {
                self.sim.tell(|| "leads no more".into());
                self.leader = None;
                self.elects_at = self.sim.now + self.sim.random.below(LEADS_FOR);
                return;
            }
            self.leader.as_mut().expect("it leads").ends_at = ends_at;
            return self.look();
        }
        let coordinator = self.sim.random.below(COORDINATORS as u64) as usize;
        let one = &self.coordinators[coordinator];
        if self.elects_at <= self.sim.now && is_fit(one, self) && one.stopped_until <= self.sim.now
        {
            self.terms_ever += 1;
            self.sim.tell(|| format!("coordinator {coordinator} leads"));
            self.leader = Some(Leader {
                coordinator,
                term: self.terms_ever,
                watches: BTreeMap::new(),
                looks_at: self.sim.now,
                look: None,
                ends_at: None,
                saves_until: None,
            });
            let now = self.clock_at(coordinator);
            let members = self.members.iter();
            let watches = members
                .filter_map(|(server, of)| Some((*server, (*of.as_ref()?, Watch::new(now)))));
            self.leader.as_mut().expect("it leads").watches = watches.collect();
        }
    }

    fn look(&mut self) {
        let Some(leader) = &self.leader else { return };
        if leader.looks_at <= self.sim.now {
            let (term, begun) = (leader.term, self.clock_at(leader.coordinator));
            let leader = self.leader.as_mut().expect("it leads");
            (leader.looks_at, leader.look) = (self.sim.now + LOOK_EVERY, Some(begun));
            let is_cut = self.is_cut_off();
            self.send(is_cut, Message::Look { term, begun });
        }
    }

    /// The leader, from etcd.
    fn is_cut_off(&self) -> bool {
        let leader = self.leader.as_ref().map(|leader| &self.coordinators[leader.coordinator]);
        leader.is_some_and(|one| self.sim.now < one.cut_from_etcd_until)
    }

    fn is_reborn(&mut self, server: usize) {
        self.incarnations_ever += 1;
        let one = &mut self.servers[server];
        one.incarnation = self.incarnations_ever;
        one.ownership = Ownership::new(self.terms);
        (one.is_registered, one.call) = (false, 0);
        (one.beats_at, one.stopped_until) = (one.gone_until, 0);
    }

    fn go_on(&mut self, server: usize) -> Result<(), Failed> {
        let now = self.sim.now;
        let one = &self.servers[server];
        if now < one.stopped_until || now < one.gone_until {
            return Ok(());
        }
        let (clock, incarnation) = (self.clock_of(server), one.incarnation);
        if clock < one.ownership.until() {
            self.sim.met.count("owns");
            if now < self.etcd_away_until {
                self.sim.met.count("owns without etcd");
            }
            if self.members.get(&server) != Some(&Some(incarnation)) {
                let by = &self.servers[server].ownership;
                let who = format!("{now}: server {server}, {incarnation}");
                return Err(Failed::new(
                    1,
                    format!("{who}, owns, and is said to be dead: {by:?} at {clock:?}"),
                ));
            }
            self.servers[server].owned_at = now;
        } else if END - LAST < now && self.servers[server].owned_at + LAST < now {
            return Err(Failed::new(
                5,
                format!("{now}: server {server} owns nothing, though all is well"),
            ));
        }
        self.calls(server, clock, incarnation);
        let one = &mut self.servers[server];
        if one.beats_at <= now {
            one.beats_at = now + 200;
            let leader = self.leader.as_ref().map_or(0, |leader| leader.coordinator);
            let is_cut = now < one.cut_from_coordinators_until[leader];
            let message = match one.is_registered {
                false => Message::Registers { server, incarnation },
                true => Message::Beats { server, incarnation, sent: clock },
            };
            self.send(is_cut, message);
        }
        Ok(())
    }

    fn calls(&mut self, server: usize, clock: Instant, incarnation: u64) {
        let now = self.sim.now;
        let one = &mut self.servers[server];
        if !one.is_registered || one.call != 0 {
            return;
        }
        match one.ownership.next(clock) {
            OwnerNext::Wait(_) => {}
            OwnerNext::Over => {
                let was_stopped = now < one.stopped_until + 2 * STEP;
                self.sim.met.count("lapsed");
                if was_stopped {
                    self.sim.met.count("lapsed while it was stopped");
                }
                self.sim.tell(|| format!("server {server}, {incarnation}, has lapsed"));
                self.is_reborn(server);
            }
            OwnerNext::Ask(question) => {
                self.calls_ever += 1;
                let call = self.calls_ever;
                one.call = call;
                self.sim.tell(|| format!("server {server} asks {question:?}"));
                if question == OwnerRequest::WhoLeads {
                    self.servers[server].said = [None; COORDINATORS];
                    for at in 0..COORDINATORS {
                        let is_cut = now < self.servers[server].cut_from_coordinators_until[at];
                        self.send(is_cut, Message::WhoLeads { server, incarnation, call, at });
                    }
                    return self.sim.after(500, Message::RoundEnds { server, incarnation, call });
                }
                let is_cut = now < self.servers[server].cut_from_etcd_until;
                self.sim.after(ANSWERS_WITHIN, Message::Late { server, incarnation, call });
                self.send(is_cut, Message::Asked { server, incarnation, call, question });
            }
        }
    }

    /// Whoever is stopped hears of it when it goes on.
    fn waits(&mut self, server: usize, incarnation: u64) -> Option<u64> {
        let one = &self.servers[server];
        (one.incarnation == incarnation && self.sim.now < one.stopped_until)
            .then(|| one.stopped_until - self.sim.now)
    }

    fn told(&mut self, server: usize, incarnation: u64, call: u64, answer: OwnerResponse) {
        let clock = self.clock_of(server);
        let one = &mut self.servers[server];
        if one.incarnation == incarnation && one.call == call {
            one.call = 0;
            let had = one.ownership.until();
            one.ownership.answered(clock, answer);
            let gone = matches!(
                answer,
                OwnerResponse::NoLease | OwnerResponse::Seen { is_there: false, .. }
            );
            if gone && clock < had && clock < one.ownership.until() {
                self.sim.met.count("wrote its key anew");
            }
            self.sim.tell(|| format!("server {server} is told {answer:?}"));
        }
    }

    fn happens(&mut self, message: Message) {
        let to = match &message {
            Message::Told { server, incarnation, .. }
            | Message::Late { server, incarnation, .. }
            | Message::Leads { server, incarnation, .. }
            | Message::RoundEnds { server, incarnation, .. }
            | Message::Registered { server, incarnation }
            | Message::Accepted { server, incarnation, .. } => Some((*server, *incarnation)),
            _ => None,
        };
        if let Some(later) = to.and_then(|(server, incarnation)| self.waits(server, incarnation)) {
            return self.sim.after(later, message);
        }
        match message {
            Message::Asked { server, incarnation, call, question } => {
                if self.sim.now < self.etcd_away_until {
                    return;
                }
                let luck = self.sim.random.below(2) == 0;
                let (now, lasts) = (self.etcd_now(), self.terms.key_lasts());
                let answer = self.etcd.ask(now, server, incarnation, question, lasts, luck);
                let is_cut = self.sim.now < self.servers[server].cut_from_etcd_until;
                self.send(is_cut, Message::Told { server, incarnation, call, answer });
            }
            Message::Told { server, incarnation, call, answer } => {
                self.told(server, incarnation, call, answer);
            }
            Message::Late { server, incarnation, call } => {
                self.told(server, incarnation, call, OwnerResponse::Nothing);
            }
            Message::WhoLeads { server, incarnation, call, at } => {
                if self.sim.now < self.coordinators[at].stopped_until {
                    return;
                }
                let leads = self.leader.as_ref().is_some_and(|leader| leader.coordinator == at);
                let is_cut = self.sim.now < self.servers[server].cut_from_coordinators_until[at];
                self.send(is_cut, Message::Leads { server, incarnation, call, at, leads });
            }
            Message::Leads { server, incarnation, call, at, leads } => {
                let one = &mut self.servers[server];
                if one.incarnation == incarnation && one.call == call {
                    one.said[at] = Some(leads);
                }
            }
            Message::RoundEnds { server, incarnation, call } => {
                let answer = match nobody_leads(&self.servers[server].said) {
                    true => OwnerResponse::NobodyLeads,
                    false => OwnerResponse::Nothing,
                };
                self.told(server, incarnation, call, answer);
            }
            Message::Registers { server, incarnation } => self.registers(server, incarnation),
            Message::Registered { server, incarnation } => {
                let one = &mut self.servers[server];
                if one.incarnation == incarnation && !one.is_registered {
                    (one.is_registered, one.call) = (true, 0);
                }
            }
            Message::Beats { server, incarnation, sent } => {
                let answers = |leader: &&mut Leader| leader.saves_until.is_none();
                let Some(leader) = self.leader.as_mut().filter(answers) else { return };
                let now =
                    self.coordinators[leader.coordinator].rate * self.sim.now as f64 * 1_000.0;
                let is_member = self.members.get(&server) == Some(&Some(incarnation));
                if let (true, Some((_, watch))) = (is_member, leader.watches.get_mut(&server)) {
                    watch.heard(Instant::from_micros(now as u64));
                }
                let at = leader.coordinator;
                let is_cut = self.sim.now < self.servers[server].cut_from_coordinators_until[at];
                self.send(is_cut, Message::Accepted { server, incarnation, sent, is_member });
            }
            Message::Accepted { server, incarnation, sent, is_member } => {
                let clock = self.clock_of(server);
                if self.servers[server].incarnation != incarnation {
                    return;
                }
                match is_member {
                    true => self.servers[server].ownership.accepted(clock, sent),
                    false => {
                        self.sim.met.count("refused by a coordinator");
                        self.is_reborn(server);
                    }
                }
            }
            Message::Look { term, begun } => {
                if self.sim.now < self.etcd_away_until {
                    return;
                }
                let now = self.etcd_now();
                let of = |server| {
                    let incarnation = self.members.get(&server).copied().flatten()?;
                    self.etcd.unrenewed(now, server, incarnation)
                };
                let unrenewed = (0..SERVERS).map(of).collect();
                let is_cut = self.is_cut_off();
                self.send(is_cut, Message::Seen { term, begun, unrenewed });
            }
            Message::Seen { term, begun, unrenewed } => self.seen(term, begun, &unrenewed),
            Message::Dead { term, server, incarnation } => {
                // Executed if no other has been elected since.
                if let Some(leader) = self.leader.as_mut().filter(|leader| leader.term == term) {
                    leader.saves_until = None;
                }
                let is_fenced = self.terms_ever != term || self.sim.now < self.etcd_away_until;
                if !is_fenced && self.members.get(&server) == Some(&Some(incarnation)) {
                    self.sim.tell(|| format!("server {server}, {incarnation}, is dead"));
                    self.sim.met.count("found dead");
                    if self.killed.contains_key(&incarnation) {
                        self.sim.met.count("found dead after a kill");
                    }
                    self.members.insert(server, None);
                }
            }
        }
    }

    /// Another process is let in when the one before is known to be dead. One that has lapsed says so itself.
    fn registers(&mut self, server: usize, incarnation: u64) {
        let answers = |leader: &&mut Leader| leader.saves_until.is_none();
        let Some(leader) = self.leader.as_mut().filter(answers) else { return };
        let now = self.coordinators[leader.coordinator].rate * self.sim.now as f64 * 1_000.0;
        let now = Instant::from_micros(now as u64);
        if self.servers[server].incarnation != incarnation {
            return;
        }
        let before = self.members.get(&server).copied().flatten();
        let was_killed = before.is_some_and(|before| self.killed.contains_key(&before));
        if before.is_some_and(|before| before != incarnation) && was_killed {
            return;
        }
        if before != Some(incarnation) {
            self.members.insert(server, Some(incarnation));
            leader.watches.insert(server, (incarnation, Watch::new(now)));
        }
        if let Some((_, watch)) = leader.watches.get_mut(&server) {
            watch.heard(now);
        }
        self.send(false, Message::Registered { server, incarnation });
    }

    fn seen(&mut self, term: u64, begun: Instant, unrenewed: &[Option<Duration>]) {
        let is_awaited = |leader: &&mut Leader| leader.term == term && leader.look == Some(begun);
        let Some(leader) = self.leader.as_mut().filter(is_awaited) else { return };
        leader.look = None;
        let now = self.coordinators[leader.coordinator].rate * self.sim.now as f64 * 1_000.0;
        let now = Instant::from_micros(now as u64);
        let mut dead = Vec::new();
        for (server, (incarnation, watch)) in &mut leader.watches {
            let key = match unrenewed[*server] {
                Some(unrenewed) => KeySeen::Present { unrenewed },
                None => KeySeen::Absent,
            };
            let is_member = self.members.get(server) == Some(&Some(*incarnation));
            if is_member && watch.looked(begun, now, key, LEASE) {
                dead.push((*server, *incarnation));
            }
        }
        let is_cut = self.is_cut_off();
        if !dead.is_empty() {
            self.leader.as_mut().expect("it leads").saves_until = Some(self.sim.now + SAVED_WITHIN);
        }
        for (server, incarnation) in dead {
            self.send(is_cut, Message::Dead { term, server, incarnation });
        }
    }
}
