//! What operators want of the cluster: moves, and their end; empty servers; balance or none. And that a dead server is dead.

use mbal_control::Request;
use mbal_control::api::{BalanceMode, MoveCall, ScaleCall, SplitCall};

use super::control::Caller;
use super::coverage::Sight;
use super::faults::Mending;
use super::hosts::id_of;
use super::world::{Happening, World};

/// Moves under way, of which an operator wants no more.
const MOVES_MAX: usize = 5;
/// Items without a history, so that a cachelet has several slices: one is split at 1,280.
const FILL_PERCENT: usize = 10;

/// Servers of which an operator is saying that they are dead; they do not begin before that is known.
#[derive(Default)]
pub struct Undertaker {
    buries: Vec<usize>,
}

impl World {
    pub fn wish(&mut self) {
        if self.is_calm() {
            return;
        }
        if let Some(ask) = self.wanted() {
            let delay = self.profile.call_delay;
            let delay = self.dice.skewed(1..=delay);
            // A call that was not answered is made again, though it was executed.
            let again = self.dice.percent(5);
            for _ in 0..=usize::from(again) {
                let (caller, ask) = (Caller::Operator, Box::new(ask.clone()));
                self.after(delay, Happening::Called { caller, ask });
            }
        }
        let longest = self.profile.wish;
        let pause = self.dice.skewed(1..=longest);
        self.after(pause, Happening::Wish);
    }

    fn wanted(&mut self) -> Option<Request> {
        let host = self.dice.below(self.hosts.len());
        let server = id_of(host);
        match self.dice.below(100) {
            0..12 => {
                let moves: Vec<u32> = self.control.file.moves.keys().map(|id| id.0).collect();
                self.coverage.meet(Sight::CancelWanted);
                (!moves.is_empty()).then(|| Request::CancelMove(self.dice.pick(&moves)))
            }
            12..16 => {
                if self.now % 4 == 0 && self.hosts[host].is_up {
                    self.hurry(host);
                }
                Some(Request::Drain(server, true))
            }
            16..20 => Some(Request::Drain(server, false)),
            20..24 => {
                let modes =
                    [BalanceMode::On, BalanceMode::On, BalanceMode::Off, BalanceMode::DryRun];
                Some(Request::Balance(self.dice.pick(&modes)))
            }
            24..28 => Some(self.dice.pick(&[0, 1])).map(|which| match which {
                0 => Request::Status,
                _ => Request::Map,
            }),
            28..34 => {
                let map = self.control.file.map.clone()?;
                let (prefix, _) = self.dice.pick(map.cachelets());
                self.coverage.meet(Sight::SplitWanted);
                Some(Request::Split(SplitCall { prefix: prefix.to_string() }))
            }
            34..40 if self.profile.autoscales => Some(self.autoscale()),
            34..54 if self.profile.autoscales => None,
            34..54 => {
                self.coverage.meet(Sight::ScaleWanted);
                let most = self.hosts.len() - usize::from(self.dice.percent(70));
                let servers = 1 + self.dice.below(most.max(1));
                let dry_run = self.dice.percent(10);
                let call = ScaleCall { servers, dry_run, ..ScaleCall::default() };
                Some(Request::Scale(self.naming(call)))
            }
            54 => Some(Request::EndScaling),
            _ if self.control.file.moves.len() >= MOVES_MAX => None,
            _ => {
                let map = self.control.file.map.clone()?;
                let (prefix, owner) = self.dice.pick(map.cachelets());
                if self.dice.percent(FILL_PERCENT) && owner.server != mbal_model::ServerId::NOBODY {
                    self.fill(super::hosts::host_of(owner.server), prefix);
                }
                let worker =
                    self.dice.percent(50).then(|| self.dice.below(self.profile.workers) as u16);
                let prefix = prefix.to_string();
                Some(Request::Move(MoveCall { prefix, server: server.0, worker }))
            }
        }
    }

    /// Some say who retires, as the autoscaler does of a StatefulSet.
    fn naming(&mut self, mut call: ScaleCall) -> ScaleCall {
        call.stops = self.dice.percent(30);
        if self.dice.percent(70) {
            return call;
        }
        let state = &self.control.file;
        let serves =
            state.members.iter().filter(|(id, one)| one.is_alive() && !state.draining.contains(id));
        let mut serving: Vec<u16> = serves.map(|(id, _)| id.0).collect();
        while serving.len() > call.servers {
            call.retire.push(serving.swap_remove(self.dice.below(serving.len())));
        }
        if !call.retire.is_empty() {
            self.coverage.meet(Sight::RetireesNamed);
        }
        call
    }

    /// An operator says that a server is dead; it does not come back before that is heard.
    pub fn say_lost(&mut self, host: usize) {
        if self.hosts[host].is_up {
            return;
        }
        self.coverage.meet(Sight::SaidLost);
        if !self.is_being_buried(host) {
            self.undertaker.buries.push(host);
        }
        let caller = Caller::Undertaker { host };
        self.after(1, Happening::Called { caller, ask: Box::new(Request::Lost(id_of(host))) });
    }

    pub fn is_being_buried(&self, host: usize) -> bool {
        self.undertaker.buries.contains(&host)
    }

    pub fn undertaken(&mut self, host: usize, is_heard: bool) {
        if is_heard {
            self.undertaker.buries.retain(|one| *one != host);
        }
        let life = self.hosts[host].life;
        let outage = self.profile.outage;
        let pause = self.dice.between(1..=outage);
        self.mend_after(
            pause,
            match is_heard {
                true => Mending::ServerBegins { host, life },
                false => Mending::SayLost { host, life },
            },
        );
    }
}
