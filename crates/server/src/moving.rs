//! Cachelets that move between servers: the thread that has their links.
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

use mbal_model::WorkerId;
use mbal_reactor::{Letter, LinkNote, Mailbox, Migrator, MigratorEvent, MigratorNote, process};
use mbal_worker::{BrokenLink, Event, Heard, Now, Shared};

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
            process::wake_in_turn();
            migrator.run().expect("epoll fails only for want of kernel memory");
        })?;
        Ok(())
    }
}
