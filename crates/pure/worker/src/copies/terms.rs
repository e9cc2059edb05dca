//! How hot keys are copied, and what is said of them.

use std::time::Duration;

use mbal_balance::hot::Policy;
use mbal_model::{Instant, ServerId};
use mbal_replica::HomeState;

/// How a cluster copies its hot keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HotMode {
    #[default]
    Off,
    /// Writes are told to copies afterwards (SPORE).
    Async,
    /// Writes wait until copies have let go (SE-SPORE).
    Atomic,
}

/// What the coordinator says of hot keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotTerms {
    pub mode: HotMode,
    /// What is read is no older than this; a client's lease lasts so long.
    pub lease: Duration,
    /// T: requests a second that one copy of a key is to have at most. Infinity: the coordinator knows of nothing that is to be copied.
    pub threshold: f64,
    /// For copies of other servers' keys.
    pub memory_bytes: u64,
}

impl HotTerms {
    /// `own`: T as the server knows it by itself, which counts as long as the coordinator names none.
    pub(crate) fn policy(&self, own: f64) -> Policy {
        let threshold = if self.threshold.is_finite() { self.threshold } else { own };
        Policy::new(threshold, self.mode == HotMode::Atomic)
    }
}

impl Default for HotTerms {
    fn default() -> HotTerms {
        HotTerms {
            mode: HotMode::Off,
            lease: Duration::from_secs(1),
            threshold: f64::INFINITY,
            memory_bytes: 1 << 20,
        }
    }
}

/// A key of this server that is hot, or was lately.
#[derive(Clone, Debug, PartialEq)]
pub struct HotHome {
    pub key: Vec<u8>,
    /// Requests a second, those that copies answer included.
    pub reads: f64,
    /// Of these, what copies answer.
    pub copy_reads: f64,
    pub writes: f64,
    pub value_bytes: u32,
    /// `None`: it has no copies.
    pub state: Option<HomeState>,
    pub copies: Vec<ServerId>,
    /// When it got them, by the clock of [`crate::Worker::look_at_lease`].
    pub since: Instant,
}

/// Copies of others' keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiesHere {
    pub keys: u64,
    pub bytes: u64,
    /// Answered from them ever.
    pub reads: u64,
    /// How often a key of this server got copies.
    pub grants: u64,
}
