//! The coordinator as a state machine: who is a member, who has which cachelet, what moves.
//!
//! An event and a time go in, an answer comes out. Each event is one transaction: whoever drives this saves the state
//! that it led to ([`Coordinator::state`]) before anybody hears the answer, or puts the old state back
//! ([`Coordinator::restore`]). Knows no socket, file or clock. `docs/design/cluster.md` says what is asked and answered.
//!
//! ```
//! use mbal_control::{Request, Coordinator, Settings};
//! use mbal_model::Instant;
//!
//! let mut coordinator = Coordinator::new(Settings { cluster: "shop".into(), servers_first: 1, ..Settings::default() });
//! let registration = mbal_control::api::Registration {
//!     cluster: "shop".into(),
//!     incarnation: 7.into(),
//!     client: "127.0.0.1:11211".into(),
//!     link: "127.0.0.1:11311".into(),
//!     workers: vec!["127.0.0.1:11300".into()],
//!     ..Default::default()
//! };
//! let done = coordinator.handle(Instant::ZERO, Request::Register(registration));
//! assert!(done.before.is_some() && done.answer.is_ok());
//! assert_eq!(coordinator.state().map.as_ref().map(|map| map.version()), Some(1));
//! ```

#![forbid(unsafe_code)]

mod bounds;
mod coordinator;
mod request;
mod settings;

mod leases;
mod ledger;
mod linked;
mod members;
mod placement;

mod balancing;
mod draining;
mod hot;
mod moves;
mod outlook;
mod overview;
mod remedies;

mod autoscaling;
mod choosing;
mod forecast;
mod inventory;
mod retiring;
mod scaling;
mod selection;

pub mod api;
mod changes;
mod refusal;
mod saved;
mod state;
mod subject;
pub mod web;

pub use autoscaling::{Autoscaled, Look};
pub use balancing::Balanced;
pub use choosing::choose;
pub use coordinator::Coordinator;
pub use forecast::Demand;
pub use hot::Rates;
pub use inventory::Inventory;
pub use leases::Owners;
pub use overview::{Overview, ServerOverview, WorkerOverview};
pub use placement::{deal, redeal};
pub use refusal::Refusal;
pub use request::{Done, Request, Response};
pub use saved::Unreadable;
pub use settings::{Leases, Settings};
pub use state::{Member, Move, State};
pub use subject::Subject;
