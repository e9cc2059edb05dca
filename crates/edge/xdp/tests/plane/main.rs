//! The packet program by `BPF_PROG_TEST_RUN`: packets in, packets out. Root is needed, and a kernel that knows how.
#![cfg(feature = "kernel")]

mod agree;
mod coherence;
mod forward;
mod hot;
mod packet;
mod pass;
#[cfg(feature = "planted")]
mod planted;
