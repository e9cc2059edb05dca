//! What a server asks of its process: signals, limits, cores, user, background.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::sys::check;

/// Larger pieces of memory are the kernel's again as soon as they are free.
const PIECE_BYTES: libc::c_int = 128 << 10;

/// What is free at a heap's end, and stays with it: who takes it next need not wait for the kernel to find and zero it.
const KEPT_BYTES: libc::c_int = 1 << 20;

/// Buffers of slow readers go back when those have gone. By default the C library keeps pieces of any length that was freed once, in heaps whose
/// ends small pieces hold. Call it first.
pub fn give_memory_back() {
    // SAFETY: they set numbers of the allocator, and take any.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, PIECE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Interrupt,
    Terminate,
    HangUp,
    User1,
}

/// INT, TERM, HUP and USR1, read from a descriptor instead of interrupting anybody.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks them for the calling thread and all threads that it starts: call it first.
    /// SIGPIPE is ignored already: Rust's runtime does that before `main`.
    pub fn take() -> io::Result<Signals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set before the others read it, and the signal
        // numbers are valid; the old mask is not asked for.
        unsafe {
            check(libc::sigemptyset(set.as_mut_ptr()))?;
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1] {
                check(libc::sigaddset(set.as_mut_ptr(), signal))?;
            }
            let failed = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            if failed != 0 {
                return Err(io::Error::from_raw_os_error(failed));
            }
            let flags = libc::SFD_NONBLOCK | libc::SFD_CLOEXEC;
            let fd = check(libc::signalfd(-1, set.as_ptr(), flags))?;
            Ok(Signals(OwnedFd::from_raw_fd(fd)))
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The next pending signal, if any.
    pub fn next(&self) -> io::Result<Option<Signal>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes into `info`.
        let count = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: it was zeroed, which is a valid value of a struct of integers.
        let info = unsafe { info.assume_init() };
        Ok(Some(match info.ssi_signo as i32 {
            libc::SIGINT => Signal::Interrupt,
            libc::SIGTERM => Signal::Terminate,
            libc::SIGHUP => Signal::HangUp,
            libc::SIGUSR1 => Signal::User1,
            other => panic!("signal {other} is not in the set"),
        }))
    }
}

/// Lets the process open `descriptors` files, raising the hard limit too where it may. How many it may
/// open now: fewer where it may not.
pub fn raise_descriptor_limit(descriptors: u64) -> io::Result<u64> {
    let limit = limit_of(libc::RLIMIT_NOFILE)?;
    if descriptors <= limit.rlim_cur {
        return Ok(limit.rlim_cur);
    }
    let raised = libc::rlimit { rlim_cur: descriptors, rlim_max: limit.rlim_max.max(descriptors) };
    // SAFETY: the kernel only reads the struct.
    if check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) }).is_ok() {
        return Ok(descriptors);
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: as above.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) })?;
    Ok(limit.rlim_max)
}

/// How many files the process may open: now, and if it asks for more.
pub fn descriptor_limits() -> io::Result<(u64, u64)> {
    limit_of(libc::RLIMIT_NOFILE).map(|limit| (limit.rlim_cur, limit.rlim_max))
}

/// Whether something keeps the system's clock right, if the system tells.
pub fn clock_is_synchronized() -> Option<bool> {
    let mut clock = MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: all zeros is a timex that asks for no change; adjtimex fills it in when it succeeds.
    let state = unsafe { libc::adjtimex(clock.as_mut_ptr()) };
    if state < 0 {
        return None;
    }
    // SAFETY: it succeeded.
    let status = unsafe { clock.assume_init() }.status;
    Some(status & libc::STA_UNSYNC == 0)
}

/// Bytes of memory that the process may have by its own limits (`ulimit -v`, `ulimit -d`), if there are any.
pub fn memory_limit() -> Option<u64> {
    let limits = [limit_of(libc::RLIMIT_AS), limit_of(libc::RLIMIT_DATA)];
    let limits = limits.into_iter().flatten().map(|limit| limit.rlim_cur);
    limits.filter(|&bytes| bytes != libc::RLIM_INFINITY).min()
}

fn limit_of(resource: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: getrlimit fills in the struct when it succeeds.
    unsafe {
        check(libc::getrlimit(resource, limit.as_mut_ptr()))?;
        Ok(limit.assume_init())
    }
}

/// `-r`: core files as large as the hard limit, or without limit where the process may.
pub fn raise_core_limit() -> io::Result<()> {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel only reads the struct.
    if check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &unlimited) }).is_ok() {
        return Ok(());
    }
    let mut limit = limit_of(libc::RLIMIT_CORE)?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) })?;
    Ok(())
}

/// `-k`: keeps all memory, present and future, from being paged out.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: takes no pointer.
    check(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) })?;
    Ok(())
}

/// Binds the calling thread to the `index`-th of the cores that it may use.
pub fn pin_to_core(index: usize) -> io::Result<()> {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: a zeroed cpu_set_t is the empty set; the kernel writes, then reads, at most `size`
    // bytes of it, and the macros stay within CPU_SETSIZE.
    unsafe {
        let mut allowed = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        check(libc::sched_getaffinity(0, size, &mut allowed))?;
        let cores: Vec<usize> = (0..libc::CPU_SETSIZE as usize)
            .filter(|&core| libc::CPU_ISSET(core, &allowed))
            .collect();
        let mut one = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        libc::CPU_SET(cores[index % cores.len()], &mut one);
        check(libc::sched_setaffinity(0, size, &one))?;
    }
    Ok(())
}

/// Makes the calling thread one that gives way to the others of the process, as far as the kernel lets it.
pub fn give_way() {
    const NICER: i32 = 10;
    // SAFETY: take no pointers; on Linux 0 is the calling thread. Without the lower priority all works the same.
    unsafe {
        let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::setpriority(libc::PRIO_PROCESS, 0, nice + NICER);
    }
}

/// The calling thread takes no core from another when it wakes up: it waits until that rests, or its turn comes. As far as the kernel lets it.
pub fn wake_in_turn() {
    // SAFETY: the kernel reads a whole `sched_param`; on Linux 0 is the calling thread. Otherwise all works the same.
    unsafe {
        let priority = libc::sched_param { sched_priority: 0 };
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &priority);
    }
}

/// Whose rights the process has.
pub fn user_id() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() }
}

pub fn is_root() -> bool {
    // SAFETY: cannot fail.
    unsafe { libc::getuid() == 0 || libc::geteuid() == 0 }
}

/// The numbers of a user and of his group. Call it before there are threads.
pub fn user_named(user: &str) -> io::Result<(u32, u32)> {
    let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("no user {user}"));
    let name = CString::new(user).map_err(|_| unknown())?;
    // SAFETY: the name is a C string; the entry is read before anything else could look up a user,
    // since there are no other threads yet.
    unsafe {
        let entry = libc::getpwnam(name.as_ptr());
        if entry.is_null() {
            return Err(unknown());
        }
        Ok(((*entry).pw_uid, (*entry).pw_gid))
    }
}

/// `-u`: becomes a user, for good. Call it before there are threads.
pub fn become_user((uid, gid): (u32, u32)) -> io::Result<()> {
    // SAFETY: no groups are read through the null pointer when their count is 0.
    let dropped = check(unsafe { libc::setgroups(0, std::ptr::null()) });
    match dropped {
        // EPERM: a process that may not drop its groups has little to drop.
        Err(error) if error.raw_os_error() != Some(libc::EPERM) => return Err(error),
        _ => {}
    }
    // SAFETY: take no pointers. The group goes first: without root it could not be changed.
    unsafe {
        check(libc::setgid(gid))?;
        check(libc::setuid(uid))?;
    }
    Ok(())
}

/// `-d`: a process whose parent waits in the foreground until it serves, or has ended.
///
/// ```text
///   parent  fork ─► waits ···················► exits: 0, or as the child did
///   child           setsid ─► starts ─► ready ─► serves
/// ```
pub struct Background {
    parent: File,
    keep_output: bool,
}

impl Background {
    /// Goes on in a child without terminal, in `/` unless `stay`. What the child says meanwhile is said in the
    /// foreground. Call it before there are threads.
    pub fn enter(stay: bool, keep_output: bool) -> io::Result<Background> {
        let mut ends = [0; 2];
        // SAFETY: the kernel writes two descriptors, which are nobody else's.
        let [child, parent] = unsafe {
            check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
            ends.map(|end| File::from_raw_fd(end))
        };
        // SAFETY: there is one thread, so the child may go on with everything that the parent had.
        let forked = check(unsafe { libc::fork() })?;
        if forked != 0 {
            drop(parent);
            let code = watch_start(child, forked);
            // SAFETY: ends the process, and leaves what is open to the child: no destructor runs here.
            unsafe { libc::_exit(code) }
        }
        // SAFETY: takes no pointer.
        check(unsafe { libc::setsid() })?;
        if !stay {
            std::env::set_current_dir("/")?;
        }
        Ok(Background { parent, keep_output })
    }

    /// The parent exits with 0; from now on nothing is said in the foreground, unless it is to be kept.
    pub fn ready(mut self) -> io::Result<()> {
        if !self.keep_output {
            let nowhere = File::options().read(true).write(true).open("/dev/null")?;
            for standard in 0..=2 {
                // SAFETY: takes no pointer; the standard streams are owned by nobody.
                check(unsafe { libc::dup2(nowhere.as_raw_fd(), standard) })?;
            }
        }
        // A parent that has been killed does not want to know.
        drop(self.parent.write_all(&[1]));
        Ok(())
    }
}

/// The parent's exit code, once it is known what has become of the child.
fn watch_start(mut child: File, pid: libc::pid_t) -> libc::c_int {
    const EX_OSERR: libc::c_int = 71;
    let mut told = Vec::new();
    if child.read_to_end(&mut told).is_ok() && !told.is_empty() {
        return 0;
    }
    let mut status = 0;
    // SAFETY: the kernel writes one c_int.
    while unsafe { libc::waitpid(pid, &mut status, 0) } != pid {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return EX_OSERR;
        }
    }
    if libc::WIFEXITED(status) {
        return libc::WEXITSTATUS(status);
    }
    eprintln!("the server was ended by signal {} while it started", libc::WTERMSIG(status));
    EX_OSERR
}

/// Locks a file or folder against others who lock it, until it is closed; false if another has the lock.
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: takes no pointer.
    match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// A file to lock, made if it is not there. A link is refused: it may lead to somebody else's file.
pub fn lock_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags(libc::O_NOFOLLOW).open(path)
}

/// CPU time that the process has used so far, in user mode and in the kernel, in microseconds.
pub fn cpu_time_us() -> (u64, u64) {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: getrusage fills in the struct when it succeeds, as it does for RUSAGE_SELF.
    let usage = unsafe {
        let returned = libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        assert_eq!(returned, 0, "a process may always ask about itself");
        usage.assume_init()
    };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (us(usage.ru_utime), us(usage.ru_stime))
}

/// Has a child that is still to be started end when the calling thread does, however that happens: by SIGINT, as by
/// [`interrupt`].
pub fn end_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call, which allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGINT)).map(drop));
    }
}

/// Ends a process at once, as a fault would: it can do nothing about it.
pub fn kill(process: u32) {
    send(process, libc::SIGKILL);
}

/// Asks a child to end at once. One that has ended, and was not waited for, hears nothing.
pub fn interrupt(child: u32) {
    send(child, libc::SIGINT);
}

/// Asks a child to end when others have taken what it has.
pub fn terminate(child: u32) {
    send(child, libc::SIGTERM);
}

fn send(child: u32, signal: libc::c_int) {
    // SAFETY: takes no pointer.
    unsafe { libc::kill(child as libc::pid_t, signal) };
}
