//! A pool of stock memcacheds changes behind its proxies, with writers running (docs/design/switching.md).
//!
//! `mbal pool resize --through` calls it: [`Pilot`] says what proxies are asked and when keys are copied, [`Batch`] how.

mod batch;
mod pilot;

pub use batch::{Batch, BatchCounts, Side};
pub use pilot::{Ending, Pilot, PilotAction, PilotEvent};
