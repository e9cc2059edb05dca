//! Ends a process in which a thread does not go on that others wait for: a server that is started again serves, one that hangs does not.
//!
//! ```text
//!   event loop, migrator, linker, ...                     mbal-watchdog, once a second
//!     │ beat() each time around ──────────► Pulse ◄──────── has it moved since the last tick?
//!     │ rests(..) while it waits for something bounded ──►│  no: ring its bell, so that an idle one goes around
//!     │◄──────────────────── bell ────────────────────────│  no, in ten ticks: every thread's state to stderr, exit code 70
//! ```
//! Ticks are counted by the watchdog itself, and a tick that took long has all counts begin anew: a process that was stopped, or a machine that
//! slept, is not ended for it. A thread that the kernel lets wait for a disk, or that a debugger has stopped, is no fault of ours either.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use mbal_locks::{Mutex, Waiting, ranks, waiting};

/// The exit code of a process that was ended since a thread did not go on: `EX_SOFTWARE`.
pub const EXIT_CODE: i32 = 70;

const TICK: Duration = Duration::from_secs(1);
const TICKS_MAX: u32 = 10;
/// After a tick this long all begins anew: the process did not run.
const GAP: Duration = Duration::from_secs(4);
/// Whoever reads stderr may hang too.
const TELLS_WITHIN: Duration = Duration::from_secs(2);

static WATCHED: Mutex<ranks::Watched, Vec<Arc<Thread>>> = Mutex::new(Vec::new());

struct Thread {
    name: String,
    task: i32,
    beats: AtomicU64,
    rests: AtomicBool,
    waiting: Waiting,
    ring: Box<dyn Fn() + Send + Sync>,
}

/// Of one thread, for as long as it is to be watched.
pub struct Pulse {
    thread: Arc<Thread>,
    #[cfg(debug_assertions)]
    stops_at: Option<Instant>,
}

/// Has this thread watched. `ring` makes it go around if it is idle; it is called by another thread, and must not wait.
pub fn watch(ring: impl Fn() + Send + Sync + 'static) -> Pulse {
    let current = thread::current();
    let name = current.name().unwrap_or("?").to_owned();
    // SAFETY: it takes nothing and cannot fail.
    let task = unsafe { libc::gettid() };
    #[cfg(debug_assertions)]
    let stops_at = stops_at(&name);
    let thread = Arc::new(Thread {
        name,
        task,
        beats: AtomicU64::new(0),
        rests: AtomicBool::new(false),
        waiting: waiting(),
        ring: Box::new(ring),
    });
    WATCHED.lock().push(Arc::clone(&thread));
    Pulse {
        thread,
        #[cfg(debug_assertions)]
        stops_at,
    }
}

/// For tests, in builds with debug assertions: the thread that this variable names stands still a second after it began.
#[cfg(debug_assertions)]
fn stops_at(name: &str) -> Option<Instant> {
    let stopped = std::env::var("MBAL_STOPPED_THREAD").ok()?;
    (stopped == name).then(|| Instant::now() + TICK)
}

impl Pulse {
    /// It goes around.
    #[inline]
    pub fn beat(&self) {
        let beats = &self.thread.beats;
        // One thread counts.
        beats.store(beats.load(Relaxed) + 1, Relaxed);
        #[cfg(debug_assertions)]
        if self.stops_at.is_some_and(|at| at <= Instant::now()) {
            loop {
                thread::sleep(TICK);
            }
        }
    }

    /// Waits for something that has a bound of its own, as a call with a timeout: it is not watched meanwhile.
    pub fn rests<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.thread.rests.store(true, Relaxed);
        let waited = wait();
        self.thread.rests.store(false, Relaxed);
        self.beat();
        waited
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        WATCHED.lock().retain(|thread| !Arc::ptr_eq(thread, &self.thread));
    }
}

/// Starts the watchdog of this process, unless it runs. Before it does, nobody is watched.
pub fn start() -> std::io::Result<()> {
    static STARTED: Once = Once::new();
    let mut started = Ok(());
    STARTED.call_once(|| {
        let thread = thread::Builder::new().name("mbal-watchdog".into());
        started = thread.spawn(watch_all).map(drop);
    });
    started
}

/// What the watchdog knows of a thread.
struct Known {
    thread: Arc<Thread>,
    beats: u64,
    ticks: u32,
}

fn watch_all() {
    let mut all: Vec<Known> = Vec::new();
    loop {
        let begin = Instant::now();
        thread::sleep(TICK);
        let has_run = begin.elapsed() < GAP;
        let watched = WATCHED.lock().clone();
        all.retain(|known| watched.iter().any(|thread| Arc::ptr_eq(thread, &known.thread)));
        for thread in &watched {
            let at = all.iter().position(|known| Arc::ptr_eq(&known.thread, thread));
            let beats = thread.beats.load(Relaxed);
            let at = at.unwrap_or_else(|| {
                all.push(Known { thread: Arc::clone(thread), beats, ticks: 0 });
                all.len() - 1
            });
            let known = &mut all[at];
            let stands = known.beats == beats && !thread.rests.load(Relaxed);
            known.ticks = if stands && has_run { known.ticks + 1 } else { 0 };
            known.beats = beats;
            if known.ticks >= TICKS_MAX && !is_the_kernels(thread.task) {
                end(&all, at);
            }
            (thread.ring)();
        }
    }
}

/// It waits for a disk or for memory, which signals do not interrupt; or it is stopped.
fn is_the_kernels(task: i32) -> bool {
    matches!(state_of(task), Some('D' | 'T' | 't'))
}

fn state_of(task: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/self/task/{task}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn end(all: &[Known], at: usize) -> ! {
    let text = told(all, at);
    let tells = thread::Builder::new().spawn(move || {
        drop(std::io::stderr().write_all(text.as_bytes()));
    });
    let deadline = Instant::now() + TELLS_WITHIN;
    while tells.as_ref().is_ok_and(|tells| !tells.is_finished()) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    // SAFETY: it does not return, and runs nothing that could wait for a lock.
    unsafe { libc::_exit(EXIT_CODE) }
}

/// What is known of all threads.
fn told(all: &[Known], at: usize) -> String {
    let mut text = format!(
        "mbal: {} has not moved in {TICKS_MAX} s: this process ends, so that it is started again. Its threads:\n",
        all[at].thread.name
    );
    let mut tasks: Vec<i32> = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    tasks.sort_unstable();
    for task in tasks {
        let read = |name: &str| {
            let read = fs::read_to_string(format!("/proc/self/task/{task}/{name}"));
            read.map_or("?".into(), |text| text.trim().to_owned())
        };
        let (comm, wchan, syscall) = (read("comm"), read("wchan"), read("syscall"));
        let state = state_of(task).unwrap_or('?');
        let _ = write!(text, "mbal:   {task} {comm}: {state}, in {wchan}, syscall {syscall}");
        if let Some(known) = all.iter().find(|known| known.thread.task == task) {
            let (beats, ticks) = (known.beats, known.ticks);
            let _ = write!(text, "; {beats} times around, not in {ticks} s");
            if let Some(rank) = known.thread.waiting.rank() {
                let _ = write!(text, ", waits for the lock {rank:?}: {}", rank.guards());
            }
        }
        text.push('\n');
    }
    text
}
