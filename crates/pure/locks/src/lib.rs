//! Locks that are taken in one order, which [`ranks`] lists.
//!
//! A thread that holds a lock may only take locks that stand further down in the list. Two threads that keep to this never wait for each
//! other in a circle. Builds with debug assertions, or with the feature `checked`, panic where a thread breaks it; others pay nothing.
//!
//! Used by everything whose threads share state. It takes no decision, and knows nothing of what the locks guard.

#![forbid(unsafe_code)]

mod held;
mod mutex;
pub mod ranks;
mod rw_lock;
mod waiting;

pub use held::Held;
pub use mutex::{Condvar, Mutex, MutexGuard};
pub use ranks::{Rank, Ranked};
pub use rw_lock::{ReadGuard, RwLock, WriteGuard};
pub use waiting::{Waiting, waiting};

/// Whether this build looks at the order. Not under loom, whose threads share one thread of the machine.
pub const CHECKED: bool = cfg!(any(debug_assertions, feature = "checked")) && !cfg!(loom);
