//! The pool changes under `mbal pool resize --through`, with writers running (docs/design/switching.md).
//!
//! ```text
//!            begin               hold                 turn                  end
//!   Old ───────────► Copying ───────────► Held ───────────────► Turned ───────────► Old, of the new list
//!    ▲                  │ the tool is       │ the tool is          │ the tool is
//!    │                  │ silent, back      │ silent               │ silent
//!    └──────────────────┴──── back ────── reads go on, writes of keys that move are refused
//!
//!   after a restart: Lost, no key that moves is served ── turn ──► Turned, or back ──► Old
//! ```
//!
//! A key *moves* if the two lists have it at different servers. All others never notice.

mod moving;
mod noting;

use std::time::Duration;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};
use mbal_routing::ketama::RingServer;
use mbal_wire::{
    SWITCH_AT_WORK, SWITCH_IN_DOUBT, SwitchLine, SwitchOrder, SwitchReply, SwitchSession,
    SwitchStep,
};

use crate::event::{SwitchTask, SwitchWork};
use crate::pool::Distribution;
use crate::settings::Settings;
use moving::{MovingKeys, spelled};
use noting::{PartOf, WrittenKeys};

/// A cas number that a client has read at the old place is refused for so long at the new one.
const OLD_CAS_REFUSED: Duration = Duration::from_secs(2);

/// What becomes of a request for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    Passes,
    Misses,
    Refused,
    /// It compares a cas number that may be of the old place.
    Differs,
}

/// A switch under way.
struct Change {
    moving: MovingKeys,
    old: Vec<RingServer>,
    new: Vec<RingServer>,
    step: Step,
    /// The tool was silent for a lease.
    is_lapsed: bool,
    lease: Duration,
    lease_until: Instant,
    /// How many take part; 0 if that is not known.
    proxies: u64,
    /// An earlier process has begun it: nobody knows whether others have turned since.
    is_restarted: bool,
    noted: WrittenKeys,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Copying,
    Held,
    Turned,
}

/// What the tool, or nobody, waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// The names of the new list are known.
    Begin,
    /// Writes that are under way are answered.
    Drain,
    /// It is on the disk that there is a switch.
    Record,
    Turn,
    End,
    Back,
}

/// Somebody waits for a reply: a client, and the request's number.
pub(crate) type Waiter = (u32, u32);

pub(crate) struct Switching {
    token: Option<Vec<u8>>,
    distribution: Distribution,
    /// Why this proxy takes no part.
    refusal: Option<&'static str>,
    seed: u64,
    sessions: u64,
    session: u64,
    change: Option<Change>,
    task: Option<Task>,
    waiter: Option<Waiter>,
    /// What is said to those who waited.
    replies: Vec<(Waiter, SwitchReply)>,
    /// Of the last task that was given away.
    number: u64,
    work: Option<SwitchTask>,
    /// What has moved, and until when old cas numbers are refused.
    moved: Vec<(MovingKeys, Instant)>,
}

/// What comes of a line.
pub(crate) enum Heard {
    Said(SwitchReply),
    /// It is said when it is done.
    Later,
}

impl Change {
    fn serves(&self) -> SwitchStep {
        match self.step {
            Step::Copying => SwitchStep::Copying,
            Step::Held if self.is_restarted => SwitchStep::Lost,
            Step::Held => SwitchStep::Held,
            Step::Turned => SwitchStep::Turned,
        }
    }
}

impl Switching {
    pub fn new(settings: &Settings) -> Switching {
        let refusal = if settings.eject {
            Some("it ejects upstreams")
        } else if settings.peers.is_some() || settings.replication.is_some() {
            Some("it copies hot keys")
        } else {
            None
        };
        let mut this = Switching {
            token: settings.switch.as_ref().map(|switch| switch.token.clone()),
            distribution: settings.distribution,
            refusal,
            seed: settings.seed,
            sessions: 0,
            session: 0,
            change: None,
            task: None,
            waiter: None,
            replies: Vec::new(),
            number: 0,
            work: None,
            moved: Vec::new(),
        };
        let interrupted = settings.switch.as_ref().and_then(|switch| switch.interrupted.clone());
        if let Some(new) = interrupted.filter(|_| !is_planted(Fault::RestartForgetsSwitch)) {
            let mut change = this.change(settings.servers.clone(), new);
            (change.step, change.is_lapsed, change.is_restarted) = (Step::Held, true, true);
            this.change = Some(change);
        }
        this
    }

    fn change(&self, old: Vec<RingServer>, new: Vec<RingServer>) -> Change {
        Change {
            moving: MovingKeys::new(self.distribution, &old, &new),
            old,
            new,
            step: Step::Copying,
            is_lapsed: false,
            lease: Duration::ZERO,
            lease_until: Instant::MAX,
            proxies: 0,
            is_restarted: false,
            noted: WrittenKeys::default(),
        }
    }

    /// The kernel answers reads past the proxy.
    pub fn refuse_for_kernel(&mut self) {
        self.refusal = Some("it sends reads past itself, by --xdp");
    }

    /// Somebody may give orders.
    #[inline]
    pub fn hears(&self) -> bool {
        self.token.is_some()
    }

    /// Requests are to be looked at.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.change.is_some() || !self.moved.is_empty()
    }

    /// Answers to writes are to be looked at.
    #[inline]
    pub fn notes_writes(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.step < Step::Turned)
    }

    /// What becomes of a request for a key.
    pub fn passage(
        &self,
        key: &[u8],
        base64: bool,
        writes: bool,
        compares: bool,
        now: Instant,
    ) -> Passage {
        let is_old = |(moving, until): &(MovingKeys, Instant)| {
            now < *until && moving.moves_spelled(key, base64)
        };
        if compares && self.moved.iter().any(is_old) && !is_planted(Fault::OldCasTaken) {
            return Passage::Differs;
        }
        if let Some(change) = &self.change {
            if !change.is_lapsed || !change.moving.moves_spelled(key, base64) {
                return Passage::Passes;
            }
            // Nobody writes at the new places before this proxy has turned, nor at the old ones since it holds.
            return match (writes, change.is_restarted) {
                (true, _) => Passage::Refused,
                (false, true) => Passage::Misses,
                (false, false) => Passage::Passes,
            };
        }
        Passage::Passes
    }

    /// True if a write of this key waits.
    pub fn holds_write(&self, key: &[u8], base64: bool) -> bool {
        let holds = |change: &Change| {
            Step::Held <= change.step
                && !change.is_lapsed
                && change.moving.moves_spelled(key, base64)
        };
        self.change.as_ref().is_some_and(holds) && !is_planted(Fault::WritesDoNotHold)
    }

    /// True if a client's `flush_all` waits.
    pub fn holds_flush(&self) -> bool {
        let holds = |change: &Change| Step::Held <= change.step && !change.is_lapsed;
        self.change.as_ref().is_some_and(holds)
    }

    /// A client's `flush_all` is about to be asked. False: it is refused.
    pub fn may_flush(&mut self) -> bool {
        if self.change.as_ref().is_some_and(|change| change.is_lapsed) {
            return false;
        }
        self.drop_copying();
        true
    }

    /// Copies may be wrong now, or the list is another one.
    fn drop_copying(&mut self) -> bool {
        let is_copying = |change: &Change| change.step == Step::Copying;
        let drops = self.change.as_ref().is_some_and(is_copying);
        if drops {
            (self.change, self.session) = (None, 0);
            (self.task, self.work) = (None, None);
            let waiter = self.waiter.take();
            self.replies.extend(waiter.map(|waiter| (waiter, SwitchReply::Gone)));
        }
        drops
    }

    /// A write of a key, as it was spelled, has been answered.
    pub fn wrote(&mut self, key: &[u8], base64: bool) {
        if let Some(change) = self.change.as_mut().filter(|_| !is_planted(Fault::WritesUntold)) {
            change.noted.wrote(key, base64, &change.moving);
        }
        self.bound();
    }

    /// Writes are lost with their connection; each key stands behind its length and whether it is in base64.
    pub fn lost(&mut self, keys: &[u8]) {
        if let Some(change) = self.change.as_mut().filter(|_| !is_planted(Fault::LostWritesUntold))
        {
            spelled(keys).for_each(|(key, base64)| change.noted.lose(key, base64, &change.moving));
        }
        self.bound();
    }

    /// A multi-get that touches its keys is asked.
    pub fn touches(&mut self, of: PartOf, key: &[u8]) {
        if let Some(change) = self.change.as_mut().filter(|change| change.moving.moves(key)) {
            change.noted.touches(of, key);
        }
    }

    /// It is answered, or lost.
    pub fn touched(&mut self, of: PartOf, is_lost: bool) {
        if let Some(change) = &mut self.change {
            change.noted.touched(of, is_lost);
        }
        self.bound();
    }

    fn bound(&mut self) {
        if self.change.as_ref().is_some_and(|change| change.noted.is_full()) {
            self.drop_copying();
        }
    }

    /// A list comes. Whether it is the switch's own: who comes by it has what it has to have.
    pub fn is_own_list(&mut self, servers: &[RingServer]) -> bool {
        if self.drop_copying() {
            return false;
        }
        let Some(change) = &mut self.change else { return false };
        let is_own = servers == change.new || servers == change.old;
        change.is_lapsed |= !is_own;
        is_own && !is_planted(Fault::SwitchForgetsFilled)
    }

    /// A line of the tool's, without its end; `servers` are the pool's. Which keys are in doubt, if that is known.
    pub fn hear(
        &mut self,
        line: &[u8],
        servers: &[RingServer],
        in_doubt: Option<Vec<Box<[u8]>>>,
        waiter: Waiter,
        now: Instant,
    ) -> Heard {
        let refused = |why: &str| Heard::Said(SwitchReply::Refused(why.to_owned()));
        let Some(SwitchLine { token, session, order }) = SwitchLine::parse(line) else {
            return refused("no such order");
        };
        if self.token.as_ref().is_none_or(|own| !is_same(own, token)) {
            return refused("not its token: --resize-token-file");
        }
        if let Some(why) = self.refusal {
            return refused(why);
        }
        if order == SwitchOrder::Hello {
            let session = self.greet(servers, now);
            // How far it is will be known when that is done.
            return match self.task {
                Some(_) => refused(SWITCH_AT_WORK),
                None => Heard::Said(SwitchReply::Session(session)),
            };
        }
        let is_its = session == self.session && session != 0;
        let is_heard = is_its || is_planted(Fault::EarlierToolHeard) && self.change.is_some();
        if !is_heard {
            let is_taken = self.session != 0 && session != 0;
            return Heard::Said(if is_taken { SwitchReply::Taken } else { SwitchReply::Gone });
        }
        if self.task.is_some() {
            return refused(SWITCH_AT_WORK);
        }
        if let Some(change) = &mut self.change {
            change.lease_until = now + change.lease;
        }
        match order {
            SwitchOrder::Begin { lease_ms, proxies, from, to } => {
                let (Some(from), Some(next)) = (parse_list(&from), parse_list(&to)) else {
                    return refused("not a list of servers");
                };
                if from != servers {
                    return refused("its list is another one");
                }
                if self.change.is_some() {
                    return refused("a switch is under way");
                }
                let Some(in_doubt) = in_doubt else { return refused(SWITCH_IN_DOUBT) };
                let mut change = self.change(servers.to_vec(), next.clone());
                for key in in_doubt {
                    change.noted.lose(&key, false, &change.moving);
                }
                change.lease = Duration::from_millis(lease_ms);
                (change.lease_until, change.proxies) = (now + change.lease, proxies);
                self.change = Some(change);
                self.give(Task::Begin, SwitchWork::Resolve(next), waiter)
            }
            SwitchOrder::Written => match &mut self.change {
                Some(change) => Heard::Said(SwitchReply::Written(change.noted.told())),
                None => refused("no switch is under way"),
            },
            SwitchOrder::Hold => match self.step() {
                Some(Step::Copying) => {
                    let change = self.change.as_mut().expect("it was looked at");
                    change.step = Step::Held;
                    (self.task, self.waiter) = (Some(Task::Drain), Some(waiter));
                    Heard::Later
                }
                _ => refused("it does not copy"),
            },
            SwitchOrder::Turn => match self.step() {
                Some(Step::Held) => {
                    let new = self.change.as_ref().expect("it was looked at").new.clone();
                    self.give(Task::Turn, SwitchWork::Follow(new), waiter)
                }
                Some(Step::Turned) => {
                    self.change.as_mut().expect("it was looked at").is_lapsed = false;
                    Heard::Said(SwitchReply::Done)
                }
                _ => refused("it does not hold"),
            },
            SwitchOrder::End => match self.step() {
                Some(Step::Turned) => self.end(Some(waiter)),
                _ => refused("it has not turned"),
            },
            SwitchOrder::Back => match self.step() {
                Some(Step::Held) => self.restore(Some(waiter)),
                Some(Step::Turned) => refused("it has turned"),
                Some(Step::Copying) => {
                    self.change = None;
                    Heard::Said(SwitchReply::Done)
                }
                None => Heard::Said(SwitchReply::Done),
            },
            SwitchOrder::Hello => unreachable!("it was answered"),
        }
    }

    fn step(&self) -> Option<Step> {
        self.change.as_ref().map(|change| change.step)
    }

    /// Another tool, or the same one again: whatever an earlier one has on its way is not heard any more.
    fn greet(&mut self, servers: &[RingServer], now: Instant) -> SwitchSession {
        self.sessions += 1;
        self.session = (mbal_random::mix(self.seed ^ self.sessions) >> 1).max(1);
        let entries = |list: &[RingServer]| list.iter().map(RingServer::entry).collect();
        let mut step = SwitchStep::Old;
        let (mut next, mut proxies) = (Vec::new(), 0);
        if let Some(change) = &mut self.change {
            change.lease_until = now + change.lease;
            (step, next) = (change.serves(), entries(&change.new));
            proxies = change.proxies;
        }
        let ring = match self.distribution {
            Distribution::Ketama(dialect, hash) => {
                format!("{}/{}", dialect.label(), hash.unwrap_or(dialect.hash()).name())
            }
            Distribution::Modula(hash) => format!("modula/{}", hash.name()),
        };
        let servers = entries(servers);
        SwitchSession { session: self.session, step, ring, servers, next, proxies }
    }

    fn give(&mut self, task: Task, work: SwitchWork, waiter: Waiter) -> Heard {
        self.waiter = Some(waiter);
        self.give_away(task, work);
        Heard::Later
    }

    fn give_away(&mut self, task: Task, work: SwitchWork) {
        self.number += 1;
        self.task = Some(task);
        self.work = Some(SwitchTask { number: self.number, work });
    }

    fn end(&mut self, waiter: Option<Waiter>) -> Heard {
        self.waiter = waiter;
        let new = self.change.as_ref().expect("it has turned").new.clone();
        self.give_away(Task::End, SwitchWork::Save(new));
        Heard::Later
    }

    fn restore(&mut self, waiter: Option<Waiter>) -> Heard {
        self.waiter = waiter;
        let old = self.change.as_ref().expect("it holds").old.clone();
        self.give_away(Task::Back, SwitchWork::Restore(old));
        Heard::Later
    }

    /// What others are to do for it.
    pub fn take_work(&mut self) -> Option<SwitchTask> {
        self.work.take()
    }

    pub fn has_work(&self) -> bool {
        self.work.is_some()
    }

    /// Writes of moving keys are under way, and have to be answered first.
    pub fn drains(&self) -> bool {
        self.task == Some(Task::Drain)
    }

    /// True if any of the keys, each behind its length and whether it is in base64, moves.
    pub fn any_moves(&self, keys: &[u8]) -> bool {
        let moves = |change: &Change| {
            spelled(keys).any(|(key, base64)| change.moving.moves_spelled(key, base64))
        };
        self.change.as_ref().is_some_and(moves)
    }

    pub fn touches_any(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.noted.touches_any())
    }

    /// All writes that were under way are answered.
    pub fn drained(&mut self) {
        let new = self.change.as_ref().expect("it drains").new.clone();
        self.give_away(Task::Record, SwitchWork::Record(new));
    }

    /// What was given away is done, or why not. `list` is the pool's.
    pub fn done(
        &mut self,
        number: u64,
        result: Result<(), String>,
        list: &[RingServer],
        now: Instant,
    ) {
        let Some(task) = self.task.filter(|_| number == self.number) else { return };
        self.task = None;
        let reply = match (task, result) {
            (Task::Begin, Err(why)) => {
                self.change = None;
                SwitchReply::Refused(why)
            }
            (_, Err(why)) => SwitchReply::Refused(why),
            (Task::Begin | Task::Drain | Task::Record, Ok(())) => SwitchReply::Done,
            (Task::Turn, Ok(())) => match &mut self.change {
                Some(change) if change.new == list => {
                    (change.step, change.is_lapsed, change.is_restarted) =
                        (Step::Turned, false, false);
                    SwitchReply::Done
                }
                _ => SwitchReply::Refused("its list is another one".to_owned()),
            },
            (Task::End, Ok(())) => {
                let change = self.change.take().expect("it has turned");
                self.moved.push((change.moving, now + OLD_CAS_REFUSED));
                SwitchReply::Done
            }
            (Task::Back, Ok(())) => {
                self.change = None;
                SwitchReply::Done
            }
        };
        if let Some(change) = &mut self.change {
            change.lease_until = now + change.lease;
        }
        let waiter = self.waiter.take();
        self.replies.extend(waiter.map(|waiter| (waiter, reply)));
    }

    /// What people are told of it; `None`: there is none.
    pub fn state(&self) -> Option<&'static str> {
        let change = self.change.as_ref()?;
        Some(match (change.serves(), change.is_lapsed) {
            (SwitchStep::Held | SwitchStep::Turned, true) => "silent",
            (step, _) => step.name(),
        })
    }

    pub fn take_replies(&mut self) -> Vec<(Waiter, SwitchReply)> {
        std::mem::take(&mut self.replies)
    }

    /// Looks whether the tool is silent. True if clients that wait may go on.
    pub fn look(&mut self, now: Instant) -> bool {
        self.moved.retain(|(_, until)| now < *until);
        let Some(change) = &mut self.change else { return false };
        if change.is_lapsed || now < change.lease_until {
            return false;
        }
        let is_given = matches!(self.task, Some(task) if task != Task::Drain);
        match (change.step, change.proxies == 1) {
            (Step::Copying, _) => {
                self.drop_copying();
                false
            }
            // It alone knows what has become of the switch.
            (_, true) if is_given => false,
            (Step::Held, true) => {
                self.restore(None);
                false
            }
            (Step::Turned, true) => {
                self.end(None);
                false
            }
            (_, false) => {
                change.is_lapsed = true;
                true
            }
        }
    }

    /// When [`Switching::look`] is due.
    pub fn next_wake(&self) -> Option<Instant> {
        let lapse = self.change.as_ref().filter(|change| !change.is_lapsed);
        let lapse = lapse.filter(|change| self.task.is_none() || change.proxies != 1);
        let lapse = lapse.map(|change| change.lease_until);
        lapse.or(self.moved.first().map(|(_, until)| *until))
    }
}

fn parse_list(list: &[String]) -> Option<Vec<RingServer>> {
    let parsed: Option<Vec<RingServer>> = list.iter().map(|one| one.parse().ok()).collect();
    parsed.filter(|list| !list.is_empty())
}

/// In a time that does not tell where they differ.
fn is_same(own: &[u8], other: &[u8]) -> bool {
    let differ = own.iter().zip(other).fold(0, |sum, (one, two)| sum | (one ^ two));
    own.len() == other.len() && differ == 0
}
