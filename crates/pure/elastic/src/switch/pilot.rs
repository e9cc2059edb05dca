//! Leads proxies through a switch, step by step: none is begun before every proxy has said that it took the one before.
//!
//! ```text
//!   Greet ─► (Back, of an earlier tool's) ─► Begin ─► Copy ─► Again, until few keys are left ─► Hold ─► Last ─► Turn ─► End
//!     └─ some have turned: an earlier tool died late ────────────────────────────────────────────────────────────┘
//!   a proxy is silent, a copy fails, somebody presses Ctrl-C: before Turn ─► Back; behind it: the same command again
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};
use mbal_wire::{
    SWITCH_AT_WORK, SWITCH_IN_DOUBT, SwitchOrder, SwitchReply, SwitchSession, SwitchStep,
};

/// Fewer keys than this are copied while writes wait.
const FEW: usize = 1000;
/// After so many rounds writes wait, however many keys are left.
const ROUNDS_MAX: u32 = 60;
/// Of those, so many are copied; the rest begins cold.
const LAST_MAX: usize = 20_000;
/// A round copies so many keys at most, so that Ctrl-C is heard.
const ROUND_MAX: usize = 50_000;
/// Within a lease, a proxy is asked so often which keys were written.
const ASKED_PER_LEASE: u32 = 40;
/// What a proxy could not do yet is asked for again so long.
const RETRIED_MAX: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PilotEvent {
    Said {
        proxy: usize,
        reply: SwitchReply,
    },
    /// It does not answer, or not as a proxy does.
    Silent {
        proxy: usize,
        why: String,
    },
    /// [`PilotAction::CopyAll`], [`PilotAction::Copy`] or [`PilotAction::Drop`] is done, or why not.
    Copied(Result<(), String>),
    /// Somebody wants it to end.
    Stop,
    Woken,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PilotAction {
    Ask {
        proxy: usize,
        session: u64,
        order: SwitchOrder,
    },
    /// Strays at the new places go, and all that travels is copied.
    CopyAll,
    /// These keys are copied once more, or deleted at their new places if they are gone.
    Copy(Vec<Vec<u8>>),
    /// These are deleted at their new places.
    Drop(Vec<Vec<u8>>),
    End(Ending),
}

/// How it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All proxies have the list. So many keys begin cold: their last write has no known outcome, or there were too many.
    Switched { cold: usize },
    /// They had it before, or an earlier tool had got so far.
    WasSwitched,
    /// The pool is as it was: what was copied is to be deleted.
    Undone(String),
    /// Nothing was begun.
    Refused(String),
    /// Another tool is at work: nothing that was copied may be touched any more.
    TakenOver,
    /// Some may have turned: the same command goes on.
    Unfinished(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greet,
    /// An earlier tool's switch ends.
    Clear,
    Begin,
    /// What earlier connections have brought is executed.
    Wait,
    Copy,
    Again,
    Hold,
    /// Which keys were written last.
    Last,
    /// They are copied.
    LastCopied,
    Turn,
    End,
    Back,
    Over,
}

struct Proxy {
    name: String,
    session: Option<SwitchSession>,
    number: u64,
    /// What it was asked, and since when it has not answered.
    asked: Option<SwitchOrder>,
    asked_at: Instant,
    /// It has done what the phase wants of it.
    is_done: bool,
    /// It is not to be asked any more.
    is_silent: bool,
    /// It had the new list before.
    is_over: bool,
    /// It could not yet, and is asked again.
    again_at: Option<Instant>,
}

/// The tool's side of a switch.
pub struct Pilot {
    proxies: Vec<Proxy>,
    list: Vec<String>,
    next: Vec<String>,
    ring: String,
    lease: Duration,
    /// So long after a server has answered, it has executed all that earlier connections have brought.
    doubt: Duration,
    phase: Phase,
    born: Instant,
    phase_began: Instant,
    /// Keys that are to be copied again, and those that must not.
    written: BTreeSet<Vec<u8>>,
    lost: BTreeSet<Vec<u8>>,
    cold: usize,
    rounds: u32,
    is_copying: bool,
    /// Why it goes back.
    why: Option<Ending>,
    actions: Vec<PilotAction>,
}

impl Pilot {
    /// Of proxies by their names, of the list that they have and the one that they are to have. All servers of both have just answered.
    pub fn new(
        names: Vec<String>,
        list: Vec<String>,
        next: Vec<String>,
        ring: String,
        (lease, doubt): (Duration, Duration),
        now: Instant,
    ) -> Pilot {
        let proxy = |name| Proxy {
            name,
            session: None,
            number: 0,
            asked: None,
            asked_at: now,
            is_done: false,
            is_silent: false,
            is_over: false,
            again_at: None,
        };
        let mut pilot = Pilot {
            proxies: names.into_iter().map(proxy).collect(),
            list,
            next,
            ring,
            lease,
            doubt,
            phase: Phase::Greet,
            born: now,
            phase_began: now,
            written: BTreeSet::new(),
            lost: BTreeSet::new(),
            cold: 0,
            rounds: 0,
            is_copying: false,
            why: None,
            actions: Vec::new(),
        };
        pilot.enter(Phase::Greet, now);
        pilot
    }

    pub fn take_actions(&mut self) -> Vec<PilotAction> {
        std::mem::take(&mut self.actions)
    }

    /// Some proxies may read at the new places.
    pub fn has_turned(&self) -> bool {
        matches!(self.phase, Phase::Turn | Phase::End)
    }

    /// What is copied now is not needed any more.
    pub fn goes_back(&self) -> bool {
        self.phase == Phase::Back
    }

    /// When [`PilotEvent::Woken`] is due, or earlier.
    pub fn next_wake(&self) -> Instant {
        let phase = match self.phase {
            Phase::Wait => self.born + self.doubt,
            _ => Instant::MAX,
        };
        let asked = self.proxies.iter().filter_map(|proxy| Some(self.next_order(proxy)?.1));
        asked.fold(phase, Instant::min)
    }

    fn every(&self) -> Duration {
        self.lease / ASKED_PER_LEASE
    }

    pub fn handle(&mut self, now: Instant, event: PilotEvent) {
        if self.phase == Phase::Over {
            return;
        }
        match event {
            PilotEvent::Said { proxy, reply } => self.said(proxy, reply, now),
            PilotEvent::Silent { proxy, why } => {
                let this = &mut self.proxies[proxy];
                (this.is_silent, this.asked) = (true, None);
                let why = format!("{}: {why}", this.name);
                self.fail(why, now);
            }
            PilotEvent::Copied(result) => {
                self.is_copying = false;
                if let Err(why) = result {
                    self.fail(why, now);
                }
            }
            PilotEvent::Stop => {
                if !self.has_turned() {
                    self.fail("interrupted".to_owned(), now);
                }
            }
            PilotEvent::Woken => {}
        }
        self.go_on(now);
    }

    fn said(&mut self, proxy: usize, reply: SwitchReply, now: Instant) {
        let wanted = self.order();
        let this = &mut self.proxies[proxy];
        let Some(asked) = this.asked.take() else { return };
        // What keeps the lease says nothing of the phase.
        let is_wanted = wanted.as_ref() == Some(&asked);
        match (reply, asked) {
            (SwitchReply::Session(session), SwitchOrder::Hello) => {
                (this.number, this.is_done) = (session.session, true);
                this.session = Some(session);
            }
            (SwitchReply::Written(written), SwitchOrder::Written) => {
                if is_wanted {
                    this.is_done = !written.more;
                    this.again_at = written.more.then_some(now);
                }
                for key in written.lost {
                    self.written.remove(&key);
                    self.lost.insert(key);
                }
                let lost = &self.lost;
                self.written.extend(written.keys.into_iter().filter(|key| !lost.contains(key)));
            }
            (SwitchReply::Done, _) => this.is_done |= is_wanted,
            (SwitchReply::Refused(why), _)
                if (why == SWITCH_AT_WORK || why == SWITCH_IN_DOUBT)
                    && now < self.phase_began + RETRIED_MAX =>
            {
                this.again_at = Some(now + self.lease / ASKED_PER_LEASE);
            }
            (SwitchReply::Taken, _) if self.phase != Phase::Greet => {
                self.end(Ending::TakenOver);
            }
            (SwitchReply::Refused(why), _) => {
                let why = format!("{}: {why}", this.name);
                this.is_silent = true;
                self.fail(why, now);
            }
            (SwitchReply::Gone | SwitchReply::Taken, _) => {
                let why =
                    format!("{}: it has begun anew, was flushed, or got another list", this.name);
                this.is_silent = true;
                self.fail(why, now);
            }
            (reply, _) => {
                let why = format!("{}: it answers {reply:?}", this.name);
                this.is_silent = true;
                self.fail(why, now);
            }
        }
    }

    /// Something has gone wrong.
    fn fail(&mut self, why: String, now: Instant) {
        match self.phase {
            Phase::Over => {}
            Phase::Greet | Phase::Clear => self.end(Ending::Refused(why)),
            Phase::Turn | Phase::End => {
                // Those that can be reached get on as far as they may.
                self.why.get_or_insert(Ending::Unfinished(why));
            }
            Phase::Back => {}
            Phase::Begin
            | Phase::Wait
            | Phase::Copy
            | Phase::Again
            | Phase::Hold
            | Phase::Last
            | Phase::LastCopied => {
                self.why.get_or_insert(Ending::Undone(why));
                self.enter(Phase::Back, now);
            }
        }
    }

    fn end(&mut self, ending: Ending) {
        self.phase = Phase::Over;
        self.actions.push(PilotAction::End(ending));
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        (self.phase, self.phase_began) = (phase, now);
        for proxy in &mut self.proxies {
            (proxy.is_done, proxy.again_at) = (false, None);
        }
        self.ask_all(now);
    }

    /// What the phase wants of a proxy.
    fn order(&self) -> Option<SwitchOrder> {
        Some(match self.phase {
            Phase::Greet => SwitchOrder::Hello,
            Phase::Clear | Phase::Back => SwitchOrder::Back,
            Phase::Begin => SwitchOrder::Begin {
                lease_ms: self.lease.as_millis() as u64,
                proxies: self.proxies.len() as u64,
                from: self.list.clone(),
                to: self.next.clone(),
            },
            Phase::Wait | Phase::Copy | Phase::Again | Phase::Last | Phase::LastCopied => {
                SwitchOrder::Written
            }
            Phase::Hold => SwitchOrder::Hold,
            Phase::Turn => SwitchOrder::Turn,
            Phase::End => SwitchOrder::End,
            Phase::Over => return None,
        })
    }

    /// What a proxy is asked next, and when.
    fn next_order(&self, proxy: &Proxy) -> Option<(SwitchOrder, Instant)> {
        if proxy.asked.is_some() || proxy.is_silent || proxy.is_over {
            return None;
        }
        if !proxy.is_done {
            return Some((self.order()?, proxy.again_at.unwrap_or(Instant::ZERO)));
        }
        // The lease is to be kept, too, of those that have done what is wanted of all.
        let keeps = match self.phase {
            Phase::Wait | Phase::Copy | Phase::Again | Phase::Last | Phase::LastCopied => {
                self.order()
            }
            Phase::Hold => Some(SwitchOrder::Written),
            Phase::Turn => Some(SwitchOrder::Turn),
            _ => None,
        };
        Some((keeps?, proxy.asked_at + self.every()))
    }

    fn ask_all(&mut self, now: Instant) {
        for number in 0..self.proxies.len() {
            let Some((order, due)) = self.next_order(&self.proxies[number]) else { continue };
            if now < due {
                continue;
            }
            let proxy = &mut self.proxies[number];
            (proxy.asked, proxy.asked_at, proxy.again_at) = (Some(order.clone()), now, None);
            let session = if order == SwitchOrder::Hello { 0 } else { proxy.number };
            self.actions.push(PilotAction::Ask { proxy: number, session, order });
        }
    }

    fn all_done(&self) -> bool {
        let is_done = |proxy: &Proxy| proxy.is_over || proxy.is_done && proxy.asked.is_none();
        self.proxies.iter().all(is_done)
    }

    fn go_on(&mut self, now: Instant) {
        loop {
            let before = self.phase;
            self.step(now);
            if before == self.phase {
                break;
            }
        }
        self.ask_all(now);
    }

    fn step(&mut self, now: Instant) {
        match self.phase {
            Phase::Greet if self.all_done() => self.decide(now),
            Phase::Clear if self.all_done() => self.enter(Phase::Begin, now),
            Phase::Begin if self.all_done() => self.enter(Phase::Wait, now),
            Phase::Wait if self.born + self.doubt <= now || is_planted(Fault::CopiedAtOnce) => {
                self.enter(Phase::Copy, now);
                self.copy(PilotAction::CopyAll);
            }
            Phase::Copy if !self.is_copying => self.enter(Phase::Again, now),
            Phase::Again if !self.is_copying => {
                let is_few = self.written.len() <= FEW || ROUNDS_MAX <= self.rounds;
                if is_few {
                    return self.enter(Phase::Hold, now);
                }
                let keys = self.take_written(ROUND_MAX);
                if !keys.is_empty() {
                    self.rounds += 1;
                    self.copy(PilotAction::Copy(keys));
                }
            }
            Phase::Hold if self.all_done() => self.enter(Phase::Last, now),
            Phase::Last if self.all_done() => {
                self.enter(Phase::LastCopied, now);
                if is_planted(Fault::TurnedBeforeCopied) {
                    self.written.clear();
                }
                let keys = self.take_written(LAST_MAX);
                if !keys.is_empty() {
                    self.copy(PilotAction::Copy(keys));
                }
            }
            Phase::LastCopied if !self.is_copying => {
                let mut keys: Vec<_> = std::mem::take(&mut self.lost).into_iter().collect();
                keys.extend(std::mem::take(&mut self.written));
                if keys.is_empty() {
                    return self.enter(Phase::Turn, now);
                }
                self.cold += keys.len();
                self.copy(PilotAction::Drop(keys));
            }
            Phase::Turn => self.turn(now),
            Phase::End => {
                let is_over = |proxy: &Proxy| proxy.is_over || proxy.is_silent || proxy.is_done;
                if self.proxies.iter().all(is_over) {
                    let cold = self.cold;
                    let ending = self.why.take().unwrap_or(Ending::Switched { cold });
                    self.end(ending);
                }
            }
            Phase::Back => {
                let is_over = |proxy: &Proxy| proxy.is_silent || proxy.is_done;
                if self.proxies.iter().all(is_over) && !self.is_copying {
                    let why = self.why.take().expect("something has gone wrong");
                    self.end(why);
                }
            }
            _ => {}
        }
    }

    fn turn(&mut self, now: Instant) {
        if self.all_done() || is_planted(Fault::EndedBeforeAllTurned) && self.proxies[0].is_done {
            return self.enter(Phase::End, now);
        }
        let is_over = |proxy: &Proxy| proxy.is_over || proxy.is_silent || proxy.is_done;
        if self.why.is_some() && self.proxies.iter().all(is_over) {
            let why = self.why.take().expect("it was looked at");
            self.end(why);
        }
    }

    fn copy(&mut self, action: PilotAction) {
        self.is_copying = true;
        self.actions.push(action);
    }

    fn take_written(&mut self, most: usize) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.written.pop_first()).take(most).collect()
    }

    /// All have said how far they are.
    fn decide(&mut self, now: Instant) {
        let sessions = self.proxies.iter().map(|proxy| {
            let session = proxy.session.as_ref().expect("all have answered");
            (proxy.name.as_str(), session)
        });
        let sessions: Vec<_> = sessions.collect();
        let has_next = |session: &SwitchSession| session.servers == self.next;
        let has_turned =
            |session: &SwitchSession| session.step == SwitchStep::Turned || has_next(session);
        let odd = sessions.iter().find_map(|(name, session)| {
            let knows = session.servers == self.list || has_next(session);
            let follows = session.next.is_empty() || session.next == self.next;
            if session.ring != self.ring {
                return Some(format!("{name} places keys by {}, not {}", session.ring, self.ring));
            }
            if !knows || !follows {
                let list = session.servers.join(",");
                let next = match session.next.is_empty() {
                    true => String::new(),
                    false => format!(" and is on its way to {}", session.next.join(",")),
                };
                return Some(format!("{name} has the list {list}{next}"));
            }
            None
        });
        if let Some(why) = odd {
            return self.end(Ending::Refused(why));
        }
        let begun_with = sessions.iter().map(|(_, session)| session.proxies).max().unwrap_or(0);
        if sessions.len() < begun_with as usize {
            let why = format!("the switch was begun with {begun_with} proxies: name all of them");
            return self.end(Ending::Refused(why));
        }
        let is_same = self.list == self.next;
        if sessions.iter().any(|(_, session)| has_turned(session)) && !is_same {
            let behind = sessions.iter().find(|(_, session)| {
                !has_next(session) && matches!(session.step, SwitchStep::Old | SwitchStep::Copying)
            });
            if let Some((name, _)) = behind {
                let why = format!("others have the new list, and {name} serves the old one");
                return self.end(Ending::Refused(why));
            }
            let over: Vec<bool> = sessions
                .iter()
                .map(|(_, session)| has_next(session) && session.step == SwitchStep::Old)
                .collect();
            if over.iter().all(|over| *over) {
                return self.end(Ending::WasSwitched);
            }
            self.why = None;
            for (proxy, over) in self.proxies.iter_mut().zip(over) {
                proxy.is_over = over;
            }
            return self.enter(Phase::Turn, now);
        }
        let all_old = sessions.iter().all(|(_, session)| session.step == SwitchStep::Old);
        match all_old {
            true => self.enter(Phase::Begin, now),
            false => self.enter(Phase::Clear, now),
        }
    }
}
