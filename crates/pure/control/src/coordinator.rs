//! One event after the other: what is asked, what changes, what is answered. Alone knows all parts.
//!
//! ```text
//!   Ask ──► Coordinator ─┬─► balanced, scaling, hot, forecasts, links, leases: each remembers its own ─┐
//!                        └─► members, moves, draining, retiring, outlook: remember nothing ────────────┤
//!   Done ◄── changed state, log ◄── Ledger: the state, what servers have said, this event ◄────────────┘
//! ```

use std::sync::Arc;

use mbal_model::Instant;

use crate::ask::{Answer, Ask, Done};
use crate::autoscaling::{self, Autoscaled};
use crate::balancing::{self, Balanced};
use crate::changes::Changes;
use crate::draining::drain;
use crate::forecast::Forecasts;
use crate::hot::Hot;
use crate::leases::Watched;
use crate::ledger::Ledger;
use crate::linked::Links;
use crate::moves;
use crate::outlook::outlook;
use crate::refusal::Refusal;
use crate::scaling::Resizing;
use crate::settings::Settings;
use crate::state::State;

mod membership;
mod status;

/// Who is a member, who has what, what moves. Everything but the state is lost with the process.
#[derive(Debug)]
pub struct Coordinator {
    settings: Settings,
    ledger: Ledger,
    changes: Changes,
    links: Links,
    leases: Watched,
    balanced: Balanced,
    scaling: Resizing,
    hot: Hot,
    forecasts: Forecasts,
    autoscaled: Autoscaled,
}

impl Coordinator {
    /// Without a past.
    pub fn new(settings: Settings) -> Coordinator {
        let state = State { cluster: settings.cluster.clone(), ..State::default() };
        Coordinator::with(settings, state)
    }

    fn with(settings: Settings, state: State) -> Coordinator {
        Coordinator {
            ledger: Ledger::new(&settings, state),
            changes: Changes::default(),
            links: Links::default(),
            leases: Watched::new(settings.leases.clone()),
            balanced: Balanced::default(),
            scaling: Resizing::default(),
            hot: Hot::new(&settings),
            forecasts: Forecasts::default(),
            autoscaled: Autoscaled::default(),
            settings,
        }
    }

    /// With what was saved. A name that is another one is refused: it is the state of another cluster.
    pub fn resume(settings: Settings, state: State) -> Result<Coordinator, Refusal> {
        if state.cluster != settings.cluster {
            let why =
                format!("the state is of cluster {}, not {}", state.cluster, settings.cluster);
            return Err(Refusal::Conflict(why));
        }
        Ok(Coordinator::with(settings, state))
    }

    pub fn state(&self) -> &State {
        self.ledger.state()
    }

    pub fn balanced(&self) -> &Balanced {
        &self.balanced
    }

    pub fn autoscaled(&self) -> &Autoscaled {
        &self.autoscaled
    }

    /// The state as it was, since the new one could not be saved.
    pub fn restore(&mut self, state: Arc<State>) {
        self.ledger.restore(state);
        self.changes.forget();
    }

    /// One transaction. A refusal changes nothing but what is known of heartbeats.
    pub fn handle(&mut self, now: Instant, ask: Ask) -> Done {
        let before = self.ledger.begin(now);
        let answer = ask.check().and_then(|()| self.answer(ask));
        let (said, is_pressing) = self.ledger.end();
        if answer.is_err() {
            self.ledger.restore(before);
            return Done { before: None, answer, said: Vec::new(), is_pressing: false };
        }
        let state = self.ledger.state();
        let is_same = Arc::ptr_eq(state, &before) || *state == before;
        let before = (!is_same).then_some(before);
        if before.is_some() {
            self.changes.look_at(state);
        }
        Done { before, answer, said, is_pressing }
    }

    fn answer(&mut self, ask: Ask) -> Result<Answer, Refusal> {
        let (ledger, balanced) = (&mut self.ledger, &mut self.balanced);
        let done = |()| Answer::Done;
        let answer = match ask {
            Ask::Register(call) => Answer::Registered(self.register(call)?),
            Ask::Heartbeat(server, heard) => Answer::News(self.heartbeat(server, heard)?),
            Ask::Leave(server, incarnation) => self.leave(server, incarnation).map(done)?,
            Ask::Lost(server) => self.lost(server).map(done)?,
            Ask::SaidLost(server, call) => self.said_lost(server, call).map(done)?,
            Ask::Map => Answer::Map(ledger.document()?.to_string()),
            Ask::Status => Answer::Status(self.status()),
            Ask::Move(call) => Answer::Move(moves::begin(ledger, &call)?),
            Ask::CancelMove(number) => moves::cancel(ledger, number).map(done)?,
            Ask::Split(call) => moves::split(ledger, &call).map(done)?,
            Ask::Drain(server, wanted) => drain(ledger, server, wanted).map(done)?,
            Ask::Balance(mode) => {
                balancing::set_mode(ledger, mode);
                Answer::Done
            }
            Ask::CopyHotKeys(mode) => {
                self.hot.set_mode(ledger, mode);
                Answer::Done
            }
            Ask::Outlook(epoch) => Answer::Outlook(outlook(ledger, balanced, epoch)),
            Ask::Planned(plan) => {
                balanced.planned(ledger, &self.scaling, plan);
                Answer::Done
            }
            Ask::Rates => Answer::Rates(self.hot.rates(ledger)),
            Ask::Threshold(threshold) => {
                self.hot.set_threshold(threshold);
                Answer::Done
            }
            Ask::HotKeys => Answer::HotKeys(self.hot.keys(ledger)),
            Ask::Forecast { servers, database_rate } => {
                let demand = self.forecasts.demand(ledger, &balanced.plan);
                Answer::Forecast(self.forecasts.told(&demand, servers, database_rate))
            }
            Ask::Demand => Answer::Demand(Box::new(self.forecasts.demand(ledger, &balanced.plan))),
            Ask::Autoscale(config) => autoscaling::set_up(ledger, config).map(done)?,
            Ask::AutoscaleStatus => Answer::Autoscale(self.autoscaled.status(ledger.state())),
            Ask::Looked(look) => {
                self.autoscaled.looked(ledger, look);
                Answer::Done
            }
            Ask::Scale(call) => {
                self.scaling.scale(ledger, &balanced.drains, call)?;
                Answer::Scale(Box::new(self.scaling.status(ledger, &balanced.drains)))
            }
            Ask::Scaling => Answer::Scale(Box::new(self.scaling.status(ledger, &balanced.drains))),
            Ask::EndScaling => self.scaling.end(ledger, &balanced.drains).map(done)?,
            Ask::Inventory => Answer::Inventory(self.scaling.inventory(ledger)),
            Ask::Resized(number, plan) => {
                let stops = self.scaling.resized(ledger, number, plan);
                self.autoscaled.changes[1] += u64::from(stops);
                Answer::Done
            }
            Ask::Owners => Answer::Owners(self.leases.owners(ledger)),
            Ask::KeysSeen(begun, keys) => {
                for (server, seen) in keys {
                    if self.leases.is_over(&mut self.ledger, begun, server, seen) {
                        self.ledger.say(format!("the lease of server {} is over", server.0));
                        self.lost(server)?;
                    }
                }
                Answer::Done
            }
        };
        Ok(answer)
    }
}
