//! A session of the benchmark's own, so that other work on the machine disturbs it less.
//!
//! The scheduler shares a core between sessions before it shares it between their threads (autogroups), and
//! root may raise a session. A process that leads a group cannot found a session, so a second copy of this one
//! does; the first waits, passes signals on, and in the end kills whatever the session left behind.

use std::fs;
use std::io;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, getuid, kill_process, kill_process_group, setsid};
use signal_hook::consts::{SIGINT, SIGTERM};

const MARK: &str = "MBAL_BENCH_SESSION";
/// Of -20 to 19, as with nice.
const AUTOGROUP_NICE: &str = "-15";

pub fn is_own() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Set by SIGINT and SIGTERM.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// Runs this process's command line again, to found a session.
pub fn supervise() -> io::Result<ExitCode> {
    let stop = stop_flag()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .spawn()?;
    let pid = Pid::from_child(&child);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if stop.swap(false, Ordering::Relaxed) {
            kill_process(pid, Signal::TERM)?;
        }
        sleep(Duration::from_millis(20));
    };
    // Only a benchmark that died leaves members; usually there is no such group any more.
    if kill_process_group(pid, Signal::KILL).is_ok() {
        eprintln!("killed servers that the benchmark left behind");
    }
    Ok(code(status))
}

fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Founds the session and raises it; tells what came of it.
pub fn found() -> String {
    if let Err(error) = setsid() {
        return format!("no session of its own: {error}");
    }
    if !getuid().is_root() {
        return "own session, not raised (only root may)".into();
    }
    match fs::write("/proc/self/autogroup", AUTOGROUP_NICE) {
        Ok(()) => format!("own session, its autogroup raised to nice {AUTOGROUP_NICE}"),
        Err(error) => format!("own session, not raised: /proc/self/autogroup: {error}"),
    }
}
