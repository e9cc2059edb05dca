//! How many servers a cluster needs, which ones go, and which items travel (ElMem, ICDCS 2018).
//!
//! The coordinator calls it, in this order: an [`Autoscaler`] says how many servers,
//! [`plan_resize`] which ones, by [`choose_retiring`], and what each destination keeps and gets, by
//! [`fuse`]. It never moves anything itself, and knows no clock: rates, ages and curves are
//! arguments. `mbal pool resize` calls [`pool`], which does the same for servers of stock memcached.

#![forbid(unsafe_code)]

mod autoscale;
mod cuts;
mod database;
mod forecast;
mod fusecache;
mod plan;
pub mod pool;
mod resize;
mod resizing;
mod schedule;
mod score;
pub mod switch;

pub use autoscale::{Autoscaler, Demand, Predictive, Reactive, ScalingConfig, Wish, hit_ratio_min};
pub use database::{Bears, DatabaseProfile};
pub use forecast::{Forecast, Measured};
pub use fusecache::{Age, Effort, Pick, WeightedAges, fuse, fuse_by_weight, fuse_counting};
pub use plan::{Inventory, SizeClass, Transfer, plan_transfer};
pub use resize::{ClassSample, Cut, Kept, Resize, ServerSample, plan_for, plan_resize, score};
pub use resizing::{Aims, Decision, Outcome, Policy, Resizer, Seen};
pub use schedule::Rule;
pub use score::{ClassAge, SHORTLIST, choose_retiring};
