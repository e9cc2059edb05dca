//! Servers come, are heard of, and go: what each of the parts makes of it.

use mbal_model::ServerId;

use super::Coordinator;
use crate::api::{Drain, Heartbeat, Incarnation, LostCall, News, Registered, Registration};
use crate::draining::{drain, end_drain, has_retired};
use crate::members;
use crate::moves::{self, Ended};
use crate::placement::deal;
use crate::refusal::Refusal;
use crate::remedies;
use crate::retiring::{keep_enough, retire_again};

impl Coordinator {
    /// A process wants to serve. One that asks again is told the same again. Another process under a known id is
    /// certain death of the one before: its cachelets stay where they are, empty, under a new version of the map, since
    /// what is born under one version gives no cas that was given under another.
    pub(super) fn register(&mut self, asked: Registration) -> Result<Registered, Refusal> {
        let (id, is_known) = members::admit(&mut self.ledger, &self.leases, &asked)?;
        self.ledger.registered(id, is_known);
        self.leases.heard(&self.ledger, id);
        if !is_known {
            self.ledger.say(format!("server {} registers: {}", id.0, asked.client));
            self.hot.copies_are_gone(id);
            // Who comes back is to serve again.
            end_drain(&mut self.ledger, id);
            retire_again(&mut self.ledger, id);
            self.balanced.refuses_no_more(id);
            moves::end_of_dead(&mut self.ledger, id);
        }
        match &self.ledger.state().map {
            // A new process at least; and if all were dead, their cachelets.
            Some(_) if !is_known => {
                self.ledger.publish(members::without_the_dead(self.ledger.state()))
            }
            None if self.ledger.missing() == 0 => {
                let owners = deal(&members::workers(self.ledger.state()));
                self.ledger.say(format!("the first map: {} cachelets", owners.len()));
                self.ledger.publish(owners);
            }
            _ => {}
        }
        let state = self.ledger.state();
        Ok(Registered {
            id: id.0,
            epoch_ms: self.settings.epoch.as_millis() as u64,
            flush_number: state.flush_number,
            lease: self.leases.told(state, id),
            hot: Some(self.hot.told(state)),
            map: state.document().map(|document| document.to_string()),
        })
    }

    /// What a server has to say, and what is new for it.
    pub(super) fn heartbeat(
        &mut self,
        server: ServerId,
        mut heartbeat: Heartbeat,
    ) -> Result<News, Refusal> {
        if self.ledger.state().member(server)?.incarnation != heartbeat.incarnation {
            let why = format!("server {} is another process now, or was said to be dead", server.0);
            return Err(Refusal::Conflict(why));
        }
        self.leases.heard(&self.ledger, server);
        for report in &heartbeat.moves {
            match moves::reported(&mut self.ledger, server, report) {
                Some(Ended::Arrived(to)) => {
                    self.scaling.moved(self.ledger.state(), server, report);
                    self.balanced.refuses_no_more(to);
                }
                Some(Ended::Refused(to)) => {
                    self.balanced.has_refused(&self.ledger, to);
                }
                None => {}
            }
        }
        if self.ledger.state().flush_number < heartbeat.flush_number {
            self.ledger.change().flush_number = heartbeat.flush_number;
        }
        if let Some(curve) = heartbeat.curve.take() {
            let process = (server, heartbeat.incarnation);
            self.forecasts.reported(&self.ledger, process, curve);
        }
        heartbeat.hot =
            self.hot.reported(&mut self.ledger, server, std::mem::take(&mut heartbeat.hot));
        let ages = self.scaling.ages_wanted(&mut self.ledger, server, heartbeat.ages.take());
        self.look_at_version(server, heartbeat.map_version);
        // It has no time to wait for the end of an epoch.
        if heartbeat.ending && !self.ledger.ends(server) {
            self.ledger.press();
        }
        for remedy in &mut heartbeat.remedies {
            (remedy.server, remedy.is_inside) = (server.0, true);
        }
        let last = self.ledger.heard(server).map(|heard| heard.last.remedies.clone());
        remedies::heard(&mut self.ledger, server, &last.unwrap_or_default(), &heartbeat.remedies);
        let Heartbeat { map_version, takes_changes, ending, .. } = heartbeat;
        self.ledger.record(server, heartbeat);
        self.links.tell_changes(&mut self.ledger, server);
        let drain = self.look_at_drain(server, ending);
        self.scaling.look_whether_done(&mut self.ledger, &self.balanced.drains);
        let (map, changes) = self.changes.told(self.ledger.state(), map_version, takes_changes);
        Ok(News {
            map,
            changes,
            moves: moves::of_server(self.ledger.state(), server),
            moves_ever: self.ledger.state().moves_ever,
            flush_number: self.ledger.state().flush_number,
            drain,
            no_room: drain.is_some() && self.balanced.plan.stuck.contains(&server),
            hot: Some(self.hot.told(self.ledger.state())),
            balance: Some(self.ledger.state().balance),
            soon: self.leases.awaits_a_death(&self.ledger) || self.scaling.asks_for_ages(),
            ages,
            keep: self.scaling.kept_by(self.ledger.state(), server),
        })
    }

    /// Says once that a server knows more than this coordinator, whose state was restored from a backup: nobody can bring them together but operators.
    fn look_at_version(&mut self, server: ServerId, map_version: u64) {
        let own = self.ledger.state().map_version();
        let heard = self.ledger.heard(server);
        let is_known = heard.is_some_and(|heard| heard.last.map_version == map_version);
        if own < map_version && !is_known {
            self.ledger.say(format!(
                "server {} follows map {map_version}, and the state has map {own}: it is an old one. Start the server anew",
                server.0
            ));
        }
    }

    /// Of a server that has just been heard of: takes note that it is to end, and says how far it is emptied.
    fn look_at_drain(&mut self, server: ServerId, is_ending: bool) -> Option<Drain> {
        if is_ending && drain(&mut self.ledger, server, true).is_err() {
            return Some(Drain::Nobody);
        }
        self.balanced.begin_later(&mut self.ledger, &self.scaling);
        self.balanced.drains.look_at(&mut self.ledger, server)
    }

    /// A process has ended: its cachelets begin empty elsewhere, if it is the one that is known.
    pub(super) fn leave(
        &mut self,
        server: ServerId,
        incarnation: Incarnation,
    ) -> Result<(), Refusal> {
        if self.ledger.state().member(server)?.incarnation != incarnation {
            let why = format!("server {} is another process now", server.0);
            return Err(Refusal::Conflict(why));
        }
        self.lost(server)
    }

    /// An operator says that it is dead. One that is heard is not, whatever he believes, unless he insists: it would lose all, and end.
    pub(super) fn said_lost(&mut self, server: ServerId, call: LostCall) -> Result<(), Refusal> {
        let member = self.ledger.state().member(server)?;
        // Of one that was said to be dead, it may be said again.
        let is_it =
            |named| named == member.incarnation || named == member.ended && !member.is_alive();
        if call.incarnation.is_some_and(|named| !is_it(named)) {
            let why = format!("server {} is another process now", server.0);
            return Err(Refusal::Conflict(why));
        }
        let id = server.0;
        let lives = match self.ledger.heard(server) {
            _ if call.force || !member.is_alive() => None,
            Some(heard) if self.ledger.is_heard(server) => {
                let seconds = (self.ledger.now - heard.at).as_secs_f64();
                Some(format!("server {id} lives: it was heard {seconds:.1} s ago"))
            }
            None if self.ledger.awaits() => {
                Some(format!("server {id} may live: this coordinator has just begun"))
            }
            _ => None,
        };
        match lives {
            Some(why) => Err(Refusal::Conflict(format!(
                "{why}. Stop it, or wait; with --force it is said to be dead, and loses all that it has"
            ))),
            None => self.lost(server),
        }
    }

    /// Certain death, by whoever knows. Saying it twice changes nothing.
    pub(super) fn lost(&mut self, server: ServerId) -> Result<(), Refusal> {
        let retired = has_retired(self.ledger.state(), server);
        if !members::bury(&mut self.ledger, server, retired)? {
            return Ok(());
        }
        self.ledger.forget(server);
        self.hot.copies_are_gone(server);
        end_drain(&mut self.ledger, server);
        self.ledger.say(match retired {
            true => format!("server {} has retired: it was empty", server.0),
            false => format!("server {} is dead", server.0),
        });
        moves::end_of_dead(&mut self.ledger, server);
        if self.ledger.state().map.is_some() {
            let owners = members::without_the_dead(self.ledger.state());
            let both = owners.iter().zip(self.ledger.state().cachelets());
            let moved = both.filter(|(new, old)| new != old).count();
            if moved > 0 {
                self.ledger
                    .say(format!("{moved} cachelets of server {} begin empty elsewhere", server.0));
            }
            // Also if it had nothing: clients and servers are to ask it no more.
            self.ledger.publish(owners);
        }
        keep_enough(&mut self.ledger, &self.balanced.drains);
        Ok(())
    }
}
