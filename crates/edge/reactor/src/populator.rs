//! A thread that touches memory before a worker has to: a huge page costs its first user 0.2 ms, and 5 ms where the machine is virtual and
//! its host has to find the memory first.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::thread::{self, JoinHandle};

use crate::process;

/// So much at a time: who ends it waits no longer.
const STEP_BYTES: usize = 2 << 20;

/// Ends with what it belongs to.
pub struct Populator {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    wanted_bytes: AtomicUsize,
    ends: AtomicBool,
}

impl Populator {
    /// # Safety
    /// What is mapped at `base` stays mapped until the populator is dropped, as far as it is asked to reach.
    pub unsafe fn start(base: NonNull<u8>) -> io::Result<Populator> {
        let shared = Arc::new(Shared::default());
        let (its, base) = (Arc::clone(&shared), base.as_ptr() as usize);
        let thread =
            thread::Builder::new().name("mbal-populator".into()).spawn(move || its.run(base))?;
        Ok(Populator { shared, thread: Some(thread) })
    }

    /// So many bytes from the base are to be populated. Never waits.
    pub fn reach(&self, bytes: usize) {
        self.shared.wanted_bytes.fetch_max(bytes, Relaxed);
        self.wake();
    }

    /// There is nothing that it could do.
    #[cfg(test)]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn wake(&self) {
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }
}

impl Drop for Populator {
    fn drop(&mut self) {
        self.shared.ends.store(true, Relaxed);
        self.wake();
        // It panics nowhere.
        self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn run(&self, base: usize) {
        process::wake_in_turn();
        let mut populated = 0;
        while !self.ends.load(Relaxed) {
            let left = self.wanted_bytes.load(Relaxed).saturating_sub(populated);
            if left == 0 {
                thread::park();
                continue;
            }
            let step = left.min(STEP_BYTES);
            // SAFETY: mapped until this thread has ended, says who started it. What is there stays what it is.
            let failed = unsafe {
                let at = (base as *mut libc::c_void).byte_add(populated);
                libc::madvise(at, step, libc::MADV_POPULATE_WRITE) != 0
            };
            match failed.then(|| io::Error::last_os_error().kind()) {
                None => populated += step,
                Some(io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                // Linux before 5.14 does not know how, or there is no memory: workers get it as they need it.
                Some(_) => return,
            }
        }
    }
}
