//! The coordinator as a state machine: who is a member, who has which cachelet, what moves.
//!
//! An event and a time go in, an answer comes out. Each event is one transaction: whoever drives this saves the state
//! that it led to ([`Coordinator::state`]) before anybody hears the answer, or puts the old state back
//! ([`Coordinator::restore`]). Knows no socket, file or clock. `docs/design/cluster.md` says what is asked and answered.
//!
//! ```
//! use mbal_control::{Ask, Coordinator, Micros, Settings};
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
//! let done = coordinator.handle(Micros(0), Ask::Register(registration));
//! assert!(done.before.is_some() && done.answer.is_ok());
//! assert_eq!(coordinator.state().map.as_ref().map(|map| map.version()), Some(1));
//! ```

#![forbid(unsafe_code)]

mod autoscaling;
mod balancing;
mod bounds;
mod changes;
mod choosing;
mod coordinator;
mod forecast;
mod hot;
mod leases;
mod linked;
mod members;
mod moves;
mod placement;
mod scaling;

pub mod api;
mod state;
pub mod web;

pub use autoscaling::{Autoscaled, Look};
pub use balancing::Balanced;
pub use choosing::choose;
pub use coordinator::{Answer, Ask, Coordinator, Done, Micros, Refusal, Settings};
pub use forecast::Demand;
pub use hot::Rates;
pub use leases::{Leases, Owners};
pub use moves::Move;
pub use placement::{deal, redeal};
pub use scaling::Inventory;
pub use state::{Member, State, Unreadable};
