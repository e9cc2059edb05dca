//! One event after the other: what is asked, what changes, what is answered. Alone knows all parts.
//!
//! ```text
//!   Request ──► Coordinator ─┬─► balanced, scaling, hot, forecasts, links, leases: each remembers its own ─┐
//!                            └─► members, moves, draining, retiring, outlook: remember nothing ────────────┤
//!   Done ◄── changed state, log ◄── Ledger: the state, what servers have said, this event ◄────────────────┘
//! ```

use std::sync::Arc;

use mbal_model::Instant;

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
use crate::request::{Done, Request, Response};
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
    pub fn handle(&mut self, now: Instant, request: Request) -> Done {
        let before = self.ledger.begin(now);
        let answer = request.check().and_then(|()| self.answer(request));
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

    fn answer(&mut self, request: Request) -> Result<Response, Refusal> {
        let (ledger, balanced) = (&mut self.ledger, &mut self.balanced);
        let done = |()| Response::Done;
        let answer = match request {
            Request::Register(call) => Response::Registered(self.register(call)?),
            Request::Heartbeat(server, heard) => Response::News(self.heartbeat(server, heard)?),
            Request::Leave(server, incarnation) => self.leave(server, incarnation).map(done)?,
            Request::Lost(server) => self.lost(server).map(done)?,
            Request::SaidLost(server, call) => self.said_lost(server, call).map(done)?,
            Request::Map => Response::Map(ledger.document()?.to_string()),
            Request::Status => Response::Status(self.status()),
            Request::Overview => Response::Overview(Box::new(self.overview())),
            Request::Move(call) => Response::Move(moves::begin(ledger, &call)?),
            Request::CancelMove(number) => moves::cancel(ledger, number).map(done)?,
            Request::Split(call) => moves::split(ledger, &call).map(done)?,
            Request::Drain(server, wanted) => drain(ledger, server, wanted).map(done)?,
            Request::Balance(mode) => {
                balancing::set_mode(ledger, mode);
                Response::Done
            }
            Request::CopyHotKeys(mode) => {
                self.hot.set_mode(ledger, mode);
                Response::Done
            }
            Request::Outlook(epoch) => {
                let knows_hot_keys = self.hot.is_on(ledger.state());
                Response::Outlook(outlook(ledger, balanced, knows_hot_keys, epoch))
            }
            Request::Planned(plan) => {
                balanced.planned(ledger, &self.scaling, plan);
                Response::Done
            }
            Request::Rates => Response::Rates(self.hot.rates(ledger)),
            Request::Threshold(threshold) => {
                self.hot.set_threshold(threshold);
                Response::Done
            }
            Request::HotKeys => Response::HotKeys(self.hot.keys(ledger)),
            Request::Forecast { servers, database_rate } => {
                let demand = self.forecasts.demand(ledger, &balanced.plan);
                Response::Forecast(self.forecasts.told(&demand, servers, database_rate))
            }
            Request::Demand => {
                Response::Demand(Box::new(self.forecasts.demand(ledger, &balanced.plan)))
            }
            Request::Autoscale(config) => autoscaling::set_up(ledger, config).map(done)?,
            Request::AutoscaleStatus => Response::Autoscale(self.autoscaled.status(ledger.state())),
            Request::Looked(look) => {
                self.autoscaled.looked(ledger, look);
                Response::Done
            }
            Request::Scale(call) => {
                self.scaling.scale(ledger, &balanced.drains, call)?;
                Response::Scale(Box::new(self.scaling.status(ledger, &balanced.drains)))
            }
            Request::Scaling => {
                Response::Scale(Box::new(self.scaling.status(ledger, &balanced.drains)))
            }
            Request::EndScaling => self.scaling.end(ledger, &balanced.drains).map(done)?,
            Request::Inventory => Response::Inventory(self.scaling.inventory(ledger)),
            Request::Resized(number, plan) => {
                let stops = self.scaling.resized(ledger, number, plan);
                self.autoscaled.changes[1] += u64::from(stops);
                Response::Done
            }
            Request::Owners => Response::Owners(self.leases.owners(ledger)),
            Request::KeysSeen(begun, keys) => {
                for (server, seen) in keys {
                    if self.leases.is_over(&mut self.ledger, begun, server, seen) {
                        self.ledger.say(format!("the lease of server {} is over", server.0));
                        self.lost(server)?;
                    }
                }
                Response::Done
            }
        };
        Ok(answer)
    }
}
