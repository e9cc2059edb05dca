//! The driver of a member: what it does next, and what it makes of an answer.

use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use mbal_control::api::{
    AgesReport, BalanceMode, CurveReport, Drain, Heartbeat, Incarnation, LeaseTold, MoveNews, News,
    Registered,
};
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Cluster, Instant, ServerId, WorkerId};
use mbal_worker::{CurveTold, HotTerms, Now, Shared};

use crate::balancing::Loads;
use crate::{ages, hot, moves, pace};

/// Pauses after registering in vain: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// Between two words on the hit ratio by size.
const CURVE_EVERY: Duration = Duration::from_secs(5);
/// So often who waits looks whether clients are let in now, the lease is over, or its key is to be told of.
const LOOKS_EVERY: Duration = Duration::from_millis(20);
/// While batches end and moves are given up, before that is looked at again.
const FENCE_OFF_PAUSE: Duration = Duration::from_millis(2);
/// Epochs that a coordinator may ask for.
const EPOCHS_MS: (u64, u64) = (10, 60_000);

/// What an operator has chosen.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    pub cluster: String,
    /// Which server this is to be.
    pub id: Option<ServerId>,
    /// For copies of other servers' keys, in bytes; a part of the memory without.
    pub replica_memory: Option<u64>,
}

/// The time, by the clock of leases and as workers have it.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    pub lease: Instant,
    pub worker: Now,
}

/// How the process is, beside what its threads share.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outside {
    /// Clients are let in.
    pub is_open: bool,
    /// The process is to end when its cachelets are given away, and how much time it has for that.
    pub is_ending: bool,
    pub time_left: Option<Duration>,
    /// It serves nothing any more.
    pub has_ended: bool,
    /// Of its lease, if it needs one: it owns what it has; it has owned, and does no more; a coordinator is to hear of its key.
    pub owns: bool,
    pub lease_is_over: bool,
    pub wants_word: bool,
}

pub enum Event {
    /// The moment of [`Member::next_wake`] has come, or something outside is another.
    Woken(Outside),
    /// What came of a call.
    Heard(Heard),
}

/// What the coordinator says.
pub enum Heard {
    Registered(Registered),
    News(News),
    Left,
    /// It leads, is well, and does not take this process for that server.
    Refused,
    /// Nothing, or nothing of use.
    Silent,
}

/// What is asked of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// That process is no more.
    Leave(ServerId, Incarnation),
    Register(Option<ServerId>, Incarnation),
    /// With what [`Member::heartbeat`] says.
    Beat(ServerId),
}

#[derive(Debug)]
pub enum Action {
    Call(Call),
    /// It is this server. By a lease: it owns nothing before it has one.
    Joined(ServerId, Incarnation, Option<LeaseTold>),
    /// A heartbeat that was sent at that moment was accepted. To be done before the next event, which says whether it owns.
    Accepted(Instant),
    /// It follows this map: [`Shared::follow`], and workers and links are to be told. To be done before the next event.
    Mapped(Arc<Cluster>),
    /// A map that it does not follow, and why.
    Unfit(String),
    /// Workers have something to carry.
    Carry(Vec<WorkerId>),
    /// Hot keys are copied by other terms.
    HotTerms(HotTerms),
    /// The cluster is balanced otherwise than before: for [`crate::balancing::Event::Told`].
    Balance(BalanceMode),
    /// How far it is emptied; and whether nobody has room for the rest.
    Drained(Option<Drain>, bool),
    /// It owns nothing any more: its lease is to end.
    Fence,
    /// Another process is this server, and no lease says what to do: this one is to end.
    Usurped,
    /// There is nothing more to do.
    Ends,
}

/// A server's part in its cluster.
pub struct Member {
    terms: Terms,
    shared: Arc<Shared>,
    incarnation: Incarnation,
    /// Draws one that no process has drawn, nor this one before.
    draw: Box<dyn FnMut() -> Incarnation + Send>,
    stage: Stage,
    /// What this process was before, until the coordinator has heard of its end: nobody has to wait for its lease.
    before: Option<(ServerId, Incarnation)>,
    /// A call waits for its answer.
    waits: bool,
}

enum Stage {
    Registers {
        at: Instant,
        pause: Duration,
        /// The end of what was before has been told, or tried to.
        has_said: bool,
    },
    Lives(Box<Life>),
    FencesOff {
        here: ServerId,
        at: Instant,
    },
    Ended,
}

/// One incarnation.
struct Life {
    here: ServerId,
    epoch: Duration,
    needs_lease: bool,
    /// The map that is followed, unless changes did not fit it; and the version of what workers follow.
    cluster: Option<Arc<Cluster>>,
    map_version: u64,
    /// What was heard and is not done yet; and of moves, until the map is followed that came with it.
    news: Option<News>,
    moves: Option<(Vec<MoveNews>, u32)>,
    beats_at: Option<Instant>,
    sent: Instant,
    /// As they were when the next heartbeat was set.
    was_open: bool,
    was_ending: bool,
    /// The next one is wanted sooner.
    soon: bool,
    hurries: bool,
    ages: Option<AgesReport>,
    curve_at: Instant,
    /// As it was told last.
    balance: Option<BalanceMode>,
}

impl Member {
    pub fn new(
        terms: Terms,
        shared: Arc<Shared>,
        mut draw: Box<dyn FnMut() -> Incarnation + Send>,
    ) -> Member {
        let incarnation = draw();
        let stage = Stage::Registers { at: Instant::ZERO, pause: PAUSES[0], has_said: false };
        Member { terms, shared, incarnation, draw, stage, before: None, waits: false }
    }

    /// Of the process as it is now.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Of the map that its workers follow; 0 is none.
    pub fn map_version(&self) -> u64 {
        match &self.stage {
            Stage::Lives(life) => life.map_version,
            _ => 0,
        }
    }

    pub fn is_registered(&self) -> bool {
        matches!(self.stage, Stage::Lives(_))
    }

    pub fn fences_off(&self) -> bool {
        matches!(self.stage, Stage::FencesOff { .. })
    }

    /// When it is to be woken at the latest, by the clock of leases; `None` while a call waits for its answer, or for ever.
    pub fn next_wake(&self, now: Instant) -> Option<Instant> {
        match &self.stage {
            _ if self.waits => None,
            Stage::Registers { at, .. } | Stage::FencesOff { at, .. } => Some(*at),
            Stage::Lives(life) => Some(life.next_wake(now)),
            Stage::Ended => None,
        }
    }

    pub fn handle(&mut self, time: Time, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Woken(outside) if !self.waits => self.woken(time, &outside, actions),
            Event::Woken(_) => {}
            Event::Heard(heard) => {
                self.waits = false;
                self.heard(time, heard, actions);
            }
        }
    }

    fn call(&mut self, call: Call, actions: &mut Vec<Action>) {
        self.waits = true;
        actions.push(Action::Call(call));
    }

    fn woken(&mut self, time: Time, outside: &Outside, actions: &mut Vec<Action>) {
        match &mut self.stage {
            Stage::Registers { at, .. } if time.lease < *at => {}
            Stage::Registers { has_said, .. } => match self.before {
                Some((server, before)) if !std::mem::replace(has_said, true) => {
                    self.call(Call::Leave(server, before), actions);
                }
                _ => self.call(Call::Register(self.terms.id, self.incarnation), actions),
            },
            Stage::FencesOff { at, .. } if time.lease < *at => {}
            Stage::FencesOff { here, at } => match self.shared.fence_off(time.worker) {
                Some(workers) => {
                    *at = time.lease + FENCE_OFF_PAUSE;
                    actions.push(Action::Carry(workers));
                }
                None => {
                    let here = *here;
                    self.before = Some((here, self.incarnation));
                    (self.terms.id, self.incarnation) = (Some(here), (self.draw)());
                    self.register_at(time.lease);
                }
            },
            Stage::Lives(life) if life.needs_lease && outside.lease_is_over => {
                match outside.has_ended {
                    true => self.end(actions),
                    false => self.fence_off(time.lease, actions),
                }
            }
            Stage::Lives(_) => self.live(time, outside, actions),
            Stage::Ended => {}
        }
    }

    fn register_at(&mut self, at: Instant) {
        self.stage = Stage::Registers { at, pause: PAUSES[0], has_said: false };
    }

    fn end(&mut self, actions: &mut Vec<Action>) {
        self.stage = Stage::Ended;
        actions.push(Action::Ends);
    }

    fn fence_off(&mut self, at: Instant, actions: &mut Vec<Action>) {
        if let Stage::Lives(life) = &self.stage {
            self.stage = Stage::FencesOff { here: life.here, at };
            actions.push(Action::Fence);
        }
    }

    fn live(&mut self, time: Time, outside: &Outside, actions: &mut Vec<Action>) {
        let Member { terms, shared, incarnation, stage: Stage::Lives(life), .. } = self else {
            return;
        };
        // Who needs a lease and has none goes by no map, and begins no move.
        let owns = !life.needs_lease || outside.owns;
        if let Some(news) = take(&mut life.news).filter(|_| owns) {
            life.follow(&news, &terms.cluster, actions);
            life.moves = Some((news.moves, news.moves_ever));
            return;
        }
        // After the map: it says what became of moves that are not heard of any more.
        if let Some((moves, ever)) = take(&mut life.moves) {
            let told = |one| moves::told(shared, time.worker, life.here, *incarnation, one);
            let moves: Vec<_> = moves.iter().filter_map(told).collect();
            actions.push(Action::Carry(shared.moves_told(time.worker, &moves, ever)));
        }
        if let Some(left) = outside.time_left.filter(|_| !life.hurries) {
            life.hurries = true;
            shared.hurry(time.worker, time.worker.instant() + left);
        }
        let Some(beats_at) = life.beats_at else {
            // Until there is a map nobody can be served, and other servers' links wait for it too.
            let is_busy = life.map_version == 0
                || !outside.is_open
                || life.soon
                || shared.moves_under_way() > 0
                || outside.is_ending;
            let small = shared.has_small_quota();
            let pause = pace::pause(life.epoch, outside.time_left, is_busy, small);
            (life.was_open, life.was_ending) = (outside.is_open, outside.is_ending);
            life.beats_at = Some(time.lease + pause);
            return;
        };
        // Not again at once: one that was in vain would be followed by the next.
        let may_soon = life.sent + LOOKS_EVERY <= time.lease;
        let is_other = (life.was_open, life.was_ending) != (outside.is_open, outside.is_ending);
        let is_wanted = is_other || life.needs_lease && outside.wants_word;
        if beats_at <= time.lease || may_soon && is_wanted {
            (life.beats_at, life.sent) = (None, time.lease);
            let here = life.here;
            self.call(Call::Beat(here), actions);
        }
    }

    /// What it says now, beside what only the process knows.
    pub fn heartbeat(&mut self, time: Time, outside: &Outside, loads: Loads) -> Heartbeat {
        let Member { shared, incarnation, stage: Stage::Lives(life), .. } = self else {
            return Heartbeat::default();
        };
        let mut curve = None;
        if life.curve_at <= time.lease {
            life.curve_at = time.lease + CURVE_EVERY;
            curve = shared.curve(time.worker.second).map(curve_report);
        }
        let Loads { workers, memory_bytes, helpless, requests, remedies, vitals } = loads;
        Heartbeat {
            workers,
            memory_bytes,
            helpless,
            requests,
            remedies,
            incarnation: *incarnation,
            map_version: life.map_version,
            starting: !outside.is_open,
            takes_changes: life.cluster.is_some(),
            flush_number: shared.store.flushed(),
            room_bytes: shared.store.room_bytes(),
            moves: if is_planted(Fault::MovesUnreported) {
                Vec::new()
            } else {
                moves::reports(shared)
            },
            hot: hot::hot_reports(shared, time.lease),
            curve,
            ending: outside.is_ending,
            ages: life.ages.clone(),
            vitals: Some(vitals),
            ..Heartbeat::default()
        }
    }

    fn heard(&mut self, time: Time, heard: Heard, actions: &mut Vec<Action>) {
        match (&mut self.stage, heard) {
            (Stage::Registers { .. }, Heard::Registered(registered)) => {
                self.before = None;
                self.joins(time, registered, actions);
            }
            // Its end is known, or nobody minds it: registering follows at once.
            (Stage::Registers { .. }, Heard::Left) => self.before = None,
            (Stage::Registers { has_said: true, .. }, Heard::Refused) if self.before.is_some() => {
                self.before = None;
            }
            (Stage::Registers { at, pause, has_said }, heard) => {
                // The next try is of both.
                (*at, *has_said) = (time.lease + *pause, false);
                *pause = (*pause * 2).min(PAUSES[1]);
                if let Heard::Refused = heard {
                    // It may have been said to be dead, after it had registered and did not hear of it.
                    self.incarnation = (self.draw)();
                }
            }
            (Stage::Lives(life), Heard::News(news)) => {
                self.shared.store.know_flush(news.flush_number);
                let terms = hot::obey(&self.shared, news.hot.as_ref(), self.terms.replica_memory);
                actions.extend(terms.map(Action::HotTerms));
                if life.balance != news.balance {
                    life.balance = news.balance;
                    actions.extend(news.balance.map(Action::Balance));
                }
                life.soon = news.soon;
                life.ages = news.ages.as_ref().map(|asked| {
                    let known = life.ages.take().filter(|known| known.number == asked.number);
                    known.unwrap_or_else(|| ages::report(&self.shared, time.worker, asked))
                });
                let kept = news.keep.as_ref();
                let kept = kept.and_then(|kept| ages::thresholds(&self.shared, time.worker, kept));
                self.shared.keep(kept);
                if life.needs_lease {
                    actions.push(Action::Accepted(life.sent));
                }
                actions.push(Action::Drained(news.drain, news.no_room));
                life.news = Some(news);
            }
            (Stage::Lives(life), Heard::Refused) => match life.needs_lease {
                true => self.fence_off(time.lease, actions),
                false => actions.push(Action::Usurped),
            },
            // The last map is used.
            (Stage::Lives(_), _) | (Stage::FencesOff { .. } | Stage::Ended, _) => {}
        }
    }

    fn joins(&mut self, time: Time, registered: Registered, actions: &mut Vec<Action>) {
        let Registered { id, epoch_ms, flush_number, lease, hot, map } = registered;
        let here = ServerId(id);
        self.shared.store.know_flush(flush_number);
        self.shared.set_incarnation(mbal_migration::Incarnation(self.incarnation.0));
        let needs_lease = lease.is_some();
        let terms = hot::obey(&self.shared, hot.as_ref(), self.terms.replica_memory);
        actions.push(Action::Joined(here, self.incarnation, lease));
        actions.extend(terms.map(Action::HotTerms));
        let mut life = Box::new(Life {
            here,
            epoch: Duration::from_millis(epoch_ms.clamp(EPOCHS_MS.0, EPOCHS_MS.1)),
            needs_lease,
            cluster: None,
            map_version: 0,
            news: None,
            moves: None,
            beats_at: None,
            sent: time.lease,
            was_open: false,
            was_ending: false,
            soon: false,
            hurries: false,
            ages: None,
            curve_at: time.lease,
            balance: None,
        });
        // Who needs a lease owns nothing before it has one.
        if !needs_lease {
            let news = News { map, ..News::default() };
            life.follow(&news, &self.terms.cluster, actions);
        }
        self.stage = Stage::Lives(life);
    }
}

impl Life {
    fn next_wake(&self, now: Instant) -> Instant {
        match self.beats_at {
            None => now,
            Some(at) if self.needs_lease || !self.was_open => at.min(now + LOOKS_EVERY),
            Some(at) => at,
        }
    }

    /// Where changes do not fit the map that is followed, the next one is asked for whole.
    fn follow(&mut self, news: &News, name: &str, actions: &mut Vec<Action>) {
        match news.newer(self.cluster.as_deref()) {
            Ok(None) => {}
            Ok(Some(cluster)) if cluster.name != name => {
                actions
                    .push(Action::Unfit(format!("a map of cluster {}, not {name}", cluster.name)));
            }
            Ok(Some(cluster)) => {
                let cluster = Arc::new(cluster);
                self.map_version = cluster.map.version();
                self.cluster = Some(Arc::clone(&cluster));
                actions.push(Action::Mapped(cluster));
            }
            Err(why) => {
                self.cluster = None;
                actions.push(Action::Unfit(format!("a map that is none: {why}")));
            }
        }
    }
}

fn curve_report(told: CurveTold) -> CurveReport {
    CurveReport {
        reads: told.reads,
        hits: told.hits,
        counted: told.curve.requests().round(),
        points: told.curve.points(),
        state_bytes: told.state_bytes,
        item_bytes: told.item_bytes,
    }
}
