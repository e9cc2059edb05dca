//! Cachelets that move between servers: the thread that has their links, and what the coordinator is told and says.
//!
//! ```text
//!   coordinator ◄── heartbeat: reports ── mbal-member ── its word: moves_told ──► Shared ──Event::Carry──► workers
//!   other servers' migrators ◄── frames ── mbal-migrator ── move_asked, move_answered ──┘  ▲
//!                                              └──────────────── Tell ─────────────────────┘
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use mbal_control::api::{self, AgesAsked, AgesReport, MoveNews, MoveReport, Progress, Selected};
use mbal_migration::{Incarnation, Order, Refusal, State, Why};
use mbal_model::{MoveId, Prefix, ServerId, WorkerId};
use mbal_reactor::{Letter, LinkNote, Mailbox, Migrator, MigratorEvent, MigratorNote};
use mbal_worker::{AgeThresholds, BrokenLink, Event, Heard, MoveDecision, MoveTold, Now, Shared};

use crate::started::Started;

/// A part and its heading, an item that no part divides, and some.
const PAYLOAD_BYTES_MAX: usize = 4 << 20;

/// What moves need of a server, on any thread.
#[derive(Clone)]
pub(crate) struct Moving {
    pub shared: Arc<Shared>,
    pub workers: Arc<[Mailbox<Letter>]>,
    pub started: Started,
}

impl Moving {
    /// The time as workers have it.
    pub fn now(&self) -> Now {
        let shift = self.shared.gauges.time_shift.load(Relaxed);
        self.started.at(self.started.clock.now_ns()).moved(shift)
    }

    pub(crate) fn wake(&self, workers: impl IntoIterator<Item = WorkerId>) {
        for worker in workers {
            self.workers[usize::from(worker.0)].post(Letter::Tell(Event::Carry));
        }
    }

    /// Starts the thread that carries what the sides of moves say to each other.
    pub fn start(
        self,
        inbox: Mailbox<MigratorNote>,
        linker: Mailbox<LinkNote>,
        timeout_ns: u64,
    ) -> io::Result<()> {
        let clock = self.started.clock;
        let handle = move |_, event: MigratorEvent<'_>| {
            let now = self.now();
            let shared = &self.shared;
            let heard = match event {
                MigratorEvent::Up { server, link } => {
                    self.wake(shared.move_link_up(now, server, link));
                    Heard::default()
                }
                MigratorEvent::Down { link } => {
                    self.wake(shared.move_link_down(now, link));
                    Heard::default()
                }
                MigratorEvent::Asked(message) => shared.move_asked(now, &message)?,
                MigratorEvent::Answered(message) => shared.move_answered(now, &message)?,
            };
            self.wake(heard.worker);
            Ok::<_, BrokenLink>(heard.answer)
        };
        let bytes_max = PAYLOAD_BYTES_MAX;
        let migrator =
            Migrator::new(inbox, linker, clock, timeout_ns, bytes_max, Box::new(handle))?;
        thread::Builder::new().name("mbal-migrator".into()).spawn(move || {
            migrator.run().expect("epoll fails only for want of kernel memory");
        })?;
        Ok(())
    }

    /// What the coordinator says of this server's moves. The map that came with it has been followed.
    pub fn told(&self, server: ServerId, here: api::Incarnation, moves: &[MoveNews], ever: u32) {
        let map_version = self.shared.map_version();
        let read = |news: &MoveNews| {
            let told = read(here, news, map_version)?;
            let selected = news.selected.as_ref().filter(|_| told.from == server);
            Some(MoveTold {
                age_thresholds: selected.and_then(|selected| self.age_thresholds(selected)),
                ..told
            })
        };
        let told: Vec<MoveTold> = moves.iter().filter_map(read).collect();
        self.wake(self.shared.moves_told(self.now(), &told, ever));
    }

    fn age_thresholds(&self, selected: &Selected) -> Option<AgeThresholds> {
        let classes =
            selected.classes.iter().map(|class| (class.class, class.younger_than, class.tied));
        self.shared.age_thresholds(self.now(), selected.number, classes)
    }

    /// What stays here while chosen items come.
    pub fn keep(&self, selected: Option<&Selected>) {
        self.shared.keep(selected.and_then(|selected| self.age_thresholds(selected)));
    }

    /// The server is to be empty by then.
    pub fn hurry(&self, left: Duration) {
        let now = self.now();
        self.shared.hurry(now, now.instant() + left);
    }

    /// The ages of items that were asked for.
    pub fn ages(&self, asked: &AgesAsked) -> AgesReport {
        let number = asked.number;
        let (memory_bytes, used_bytes) = self.shared.memory_and_used();
        let all = self.shared.ages(self.now(), number, asked.ago_ms);
        let class = |(class, ages): (usize, mbal_worker::ClassAges)| {
            let mbal_worker::ClassAges { items, bytes, ages } = ages;
            api::ClassAges { class: class as u8, items, bytes, ages }
        };
        let classes = all.into_iter().enumerate().filter(|(_, ages)| ages.items > 0).map(class);
        AgesReport { number, memory_bytes, used_bytes, classes: classes.collect() }
    }

    /// For a heartbeat.
    pub fn reports(&self) -> Vec<MoveReport> {
        self.shared.move_reports().iter().map(report).collect()
    }
}

/// `None` of what this program does not understand.
fn read(here: api::Incarnation, news: &MoveNews, map_version: u64) -> Option<MoveTold> {
    let order = Order {
        id: MoveId(news.number),
        prefix: Prefix::parse(news.prefix.as_bytes())?,
        source: Incarnation(here.0),
        destination: Incarnation(news.to_incarnation.0),
        worker: WorkerId(news.worker),
        // Of the map by which it was ordered, or a newer one: no other cachelet of this prefix is born by that.
        generation: map_version as u16 & 0x7fff,
    };
    let word = match news.word {
        api::MoveDecision::Go => MoveDecision::Go,
        api::MoveDecision::Cancel => MoveDecision::Cancel,
        api::MoveDecision::DestinationLost => MoveDecision::DestinationLost,
    };
    Some(MoveTold {
        order,
        from: ServerId(news.from),
        to: ServerId(news.to),
        word,
        age_thresholds: None,
    })
}

fn report(one: &mbal_worker::MoveReport) -> MoveReport {
    let &mbal_worker::MoveReport { id, state, progress, part_gone } = one;
    let (said, why) = match state {
        State::Back(why) => (Progress::Back, Some(why)),
        // The map says so already.
        State::Sealed | State::HandedOver => (Progress::Sealed, None),
        State::Asking | State::Moving => match progress.refused {
            Some(refusal) => (Progress::Refused, Some(Why::Refused(refusal))),
            None if progress.cancelled_too_late => (Progress::TooLate, None),
            None if state == State::Asking => (Progress::Asking, None),
            None => (Progress::Moving, None),
        },
    };
    MoveReport {
        number: id.0,
        progress: said,
        why: why.map(|why| told(why).into()),
        slices_gone: progress.slices,
        part_gone,
        slices_again: progress.again,
        bytes: progress.bytes,
        paused_us_max: progress.paused_ns_longest / 1_000,
        paused_us: progress.paused_ns_sum / 1_000,
        slowed: progress.is_slowed,
    }
}

fn told(why: Why) -> &'static str {
    match why {
        Why::Cancelled => "it was cancelled",
        Why::Lost => "the destination is dead",
        Why::CannotLeave => "it could not leave: it is being split, or has hardly come",
        Why::Refused(Refusal::Incarnation) => "the destination is another process",
        Why::Refused(Refusal::NoRoom) => "the destination has no room for it",
        Why::Refused(Refusal::OtherMove) => "the destination knows another move of it",
    }
}
