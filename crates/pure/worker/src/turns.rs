//! Turns: requests are executed for a connection, and what comes of them is asked for.

use std::sync::atomic::Ordering::Relaxed;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};

use crate::commands::context::Context;
use crate::commands::turn::Turn;
use crate::event::{Action, Actions};
use crate::ids::ConnId;
use crate::observing::conns::ConnInfo;
use crate::observing::load::turn_work;
use crate::observing::log::STATES;
use crate::observing::observer::Observer;
use crate::observing::verbose;
use crate::sessions::batch::Batch;
use crate::sessions::run::{Ended, run_pending};
use crate::sessions::session::{OUTPUT_BYTES_MAX, Pause, Session, Wait};
use crate::sessions::wakes::Sleeper;
use crate::watching::send_lines_to;
use crate::worker::Worker;

impl Worker {
    /// What requests are executed with, and how many keys were asked for before.
    #[inline]
    pub(crate) fn batch<'w>(
        &'w mut self,
        info: &'w ConnInfo,
        out: &'w mut Vec<u8>,
        to_peers: &'w mut Vec<u8>,
        actions: &'w mut Vec<Action>,
    ) -> (Batch<'w>, u64) {
        let on = Context::new(&self.shared, self.here, info);
        let observer = Observer { sampler: &mut self.sampler, shown: &mut self.shown };
        let turn = Turn::new(on, observer, &mut self.scratch, out);
        let batch = Batch {
            turn,
            links: &mut self.links,
            relays: &mut self.once,
            hops: 0,
            passed_by: None,
            until: Instant::MAX,
            to_peers,
            actions,
            held: &mut self.held,
            again: None,
            wakes: &mut self.wakes,
            leases: &mut self.leases,
            random: &mut self.random,
            decoded: &mut self.decoded,
            requests: 0,
            said: &mut self.said,
        };
        (batch, on.counters.keyed())
    }

    /// Lets `run` execute on a connection, unless that is closing, and sends what comes of it.
    /// True if the connection is due to leave for another worker.
    pub(crate) fn turn(
        &mut self,
        conn: ConnId,
        arrived_bytes: usize,
        actions: &mut Actions,
        run: impl FnOnce(&mut Batch<'_>, &mut Session) -> Ended,
    ) -> bool {
        let mut session = self.sessions.take(conn).expect("opened before");
        let start = actions.bytes.len();
        let info = session.info.take().expect("no turn within a turn");
        let Actions { bytes, requests, list } = actions;
        let (mut batch, keys_before) = self.batch(&info, bytes, requests, list);
        let began_empty = session.slots.is_empty();
        let ended = run(&mut batch, &mut session);
        if !session.slots.is_empty() {
            if began_empty {
                session.slots.keep_ahead(start, batch.turn.out);
            }
            session.slots.release(batch.turn.out);
        }
        let (follows, counters) = (batch.turn.follows, batch.turn.on.counters);
        if batch.requests > 0 {
            info.commanded(batch.turn.now().second);
            counters.turns.add(1);
        }
        let end = batch.turn.out.len();
        let keys = counters.keyed() - keys_before;
        let work = turn_work(keys, (arrived_bytes + end - start) as u64);
        counters.work.add(work);
        if follows {
            counters.work_followed.add(work);
            counters.turns_followed.add(1);
            counters.keys_followed.add(keys);
        } else if !session.own_port {
            counters.work_handable.add(work);
        }
        session.work.add(work, batch.turn.on.shared.counted.epoch.load(Relaxed));
        if start < end {
            counters.bytes_written.add((end - start) as u64);
            session.unsent += end - start;
            batch.actions.push(Action::Send { conn, bytes: start..end });
        }
        match ended {
            Ended::Hungry => {}
            Ended::Waits(mut wait) => {
                let held = session.slots.held_bytes();
                let is_over = match wait {
                    // All that was to leave first has just left.
                    Wait::Peers(Pause::Order) => held < OUTPUT_BYTES_MAX,
                    // No answer is to come.
                    Wait::Peers(Pause::Window) => !session.slots.waits(),
                    _ => false,
                };
                if is_over {
                    wait = Wait::Output;
                }
                match wait {
                    Wait::Output | Wait::Walk(_) => actions.list.push(Action::Stall { conn }),
                    Wait::Peers(_) => actions.list.push(Action::Pause { conn }),
                    Wait::Until(at) => {
                        actions.list.push(Action::Pause { conn });
                        if !is_planted(Fault::NobodyIsWoken) {
                            self.wakes.set(at, Sleeper::Conn(conn));
                        }
                    }
                    Wait::End { .. } => session.pending = Vec::new(),
                    Wait::No | Wait::Certificates | Wait::Watching { .. } => {}
                }
                session.wait = wait;
            }
        }
        if session.slots.is_empty() {
            close(conn, &mut session, actions);
        }
        let due = session.due.is_some();
        if session.wait.watcher().is_some() {
            if !self.sessions.watching.contains(&conn) {
                self.sessions.watching.push(conn);
            }
            send_lines_to(conn, &mut session, actions);
        }
        let state = session.state();
        if self.shared.log.watched() & STATES != 0 {
            verbose::changed(&mut self.said, info.fd, info.state_name(), state.name());
        }
        info.set_state(state);
        session.info = Some(info);
        self.sessions.put_back(conn, session);
        due
    }

    /// A connection that waited for peers or for room, perhaps no longer does.
    pub(crate) fn go_on(&mut self, conn: ConnId, actions: &mut Actions) {
        let at = actions.list.len();
        self.turn(conn, 0, actions, |batch, session| {
            session.wait = Wait::No;
            run_pending(batch, session)
        });
        // To wait again is no news.
        match actions.list[at..].iter().position(|action| *action == Action::Pause { conn }) {
            Some(pause) => drop(actions.list.remove(at + pause)),
            None => actions.list.push(Action::Resume { conn }),
        }
        self.leave_if_due(conn, actions);
    }

    pub(crate) fn certs_refreshed(
        &mut self,
        conn: ConnId,
        refreshed: Result<(), String>,
        actions: &mut Actions,
    ) {
        let waits = self.sessions.get(conn);
        if !waits.is_some_and(|session| matches!(session.wait, Wait::Certificates)) {
            return;
        }
        if refreshed.is_ok() {
            self.shared.gauges.certs_read.store(self.here.now.second.into(), Relaxed);
        }
        self.turn(conn, 0, actions, |batch, session| {
            session.wait = Wait::No;
            let before = batch.turn.out.len();
            batch.turn.line(refreshed.err().unwrap_or("OK".into()).as_bytes());
            session.order(before, batch.turn.out);
            run_pending(batch, session)
        });
        self.leave_if_due(conn, actions);
    }
}

fn close(conn: ConnId, session: &mut Session, actions: &mut Actions) {
    let Wait::End { shutdown, asked: asked @ false } = &mut session.wait else { return };
    *asked = true;
    actions.list.push(Action::Close { conn });
    if let Some(graceful) = *shutdown {
        actions.list.push(Action::Shutdown { graceful });
    }
}
