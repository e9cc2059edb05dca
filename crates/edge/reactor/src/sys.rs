//! System calls, made safe. Nothing here decides anything.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// What a system call returned, or why it failed.
pub(crate) fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// Not now, but the next wake-up may know more.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn own(returned: libc::c_int) -> io::Result<OwnedFd> {
    let fd: RawFd = check(returned)?;
    // SAFETY: the system call that returned `fd` has just opened it, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[inline]
/// As the monotonic clock, and goes on while the machine sleeps.
pub(crate) fn boot_ns() -> u64 {
    clock_ns(libc::CLOCK_BOOTTIME)
}

#[inline]
fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is valid for one timespec, which the call fills in when it returns 0.
    let time = unsafe {
        let returned = libc::clock_gettime(clock, time.as_mut_ptr());
        assert_eq!(returned, 0, "every Linux has this clock");
        time.assume_init()
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A wait that is shorter is not rounded to milliseconds.
const SHORT_NS: u64 = 5_000_000;

pub(crate) const READABLE: u32 = libc::EPOLLIN as u32;
pub(crate) const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// The peer will send no more; told with [`READABLE`], never without it.
pub(crate) const HUNG_UP: u32 = libc::EPOLLRDHUP as u32;

/// Told once, and again only when more has happened: a descriptor's state is not asked for twice for one event.
pub(crate) const EDGE: u32 = libc::EPOLLET as u32;

/// One thing that happened to a descriptor, named by the token that it was added with.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Ready(libc::epoll_event);

impl Ready {
    pub(crate) const NONE: Ready = Ready(libc::epoll_event { events: 0, u64: 0 });

    #[inline]
    pub(crate) fn token(&self) -> u64 {
        self.0.u64
    }

    pub(crate) fn is_hung_up(&self) -> bool {
        self.0.events & HUNG_UP != 0
    }

    /// The connection is at its end, or at one of its ends.
    pub(crate) fn is_ending(&self) -> bool {
        self.0.events & (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
    }
}

/// An epoll, level-triggered where [`EDGE`] is not asked for; descriptors leave it by being closed, or handed to another.
///
/// Level-triggered also means that a second thread may look: what it was told is told again to the thread that serves.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        // SAFETY: takes no pointer.
        own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Epoll)
    }

    pub(crate) fn add(&self, fd: BorrowedFd, interest: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, interest, token)
    }

    pub(crate) fn modify(&self, fd: BorrowedFd, interest: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest, token)
    }

    pub(crate) fn remove(&self, fd: BorrowedFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(
        &self,
        what: libc::c_int,
        fd: BorrowedFd,
        interest: u32,
        token: u64,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest, u64: token };
        // SAFETY: both descriptors are open for the time of the borrow, and the kernel only reads
        // `event`, which outlives the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd.as_raw_fd(), &mut event) })?;
        Ok(())
    }

    /// [`Epoll::wait`] to the microsecond where that matters, and the kernel knows how (Linux 5.11).
    #[inline]
    pub(crate) fn wait_ns(&self, ready: &mut [Ready], timeout_ns: u64) -> io::Result<usize> {
        if 0 < timeout_ns && timeout_ns < SHORT_NS {
            if let Some(count) = self.wait_short(ready, timeout_ns) {
                return count;
            }
        }
        let ms = timeout_ns.div_ceil(1_000_000);
        self.wait(ready, i32::try_from(ms).unwrap_or(i32::MAX))
    }

    /// `None`: the kernel does not know this call.
    fn wait_short(&self, ready: &mut [Ready], timeout_ns: u64) -> Option<io::Result<usize>> {
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: timeout_ns as libc::c_long };
        // SAFETY: `Ready` is a transparent epoll_event, of which the kernel writes at most `len`; it reads `timeout`, which
        // outlives the call, and no mask of signals.
        let returned = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.0.as_raw_fd(),
                ready.as_mut_ptr().cast::<libc::epoll_event>(),
                ready.len() as libc::c_int,
                &raw const timeout,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        match check(returned as libc::c_int) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => None,
            result => Some(counted(result)),
        }
    }

    /// Fills the front of `ready`; how many. An interrupted wait is a wait with no result. Not by `libc::epoll_wait`, for the
    /// reason that [`recv`] has.
    #[inline]
    pub(crate) fn wait(&self, ready: &mut [Ready], timeout_ms: i32) -> io::Result<usize> {
        // SAFETY: `Ready` is a transparent epoll_event, and the kernel writes at most `len` of them; it reads no mask of signals.
        let returned = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait,
                self.0.as_raw_fd(),
                ready.as_mut_ptr().cast::<libc::epoll_event>(),
                ready.len() as libc::c_int,
                timeout_ms,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        counted(check(returned as libc::c_int))
    }
}

#[inline]
fn counted(returned: io::Result<libc::c_int>) -> io::Result<usize> {
    match returned {
        Ok(count) => Ok(count as usize),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

/// Not by `libc::recv`, and [`send`] not by `libc::send`: they are points of cancellation, which two atomic operations make them
/// where a process has threads.
#[inline]
pub(crate) fn recv(fd: BorrowedFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `len` bytes into `buffer`, and no address through the null pointers.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            fd.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
            0,
            std::ptr::null_mut::<libc::sockaddr>(),
            std::ptr::null_mut::<libc::socklen_t>(),
        )
    };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned as usize) }
}

/// Whether the connection still stands, and has bytes; they stay where they are.
pub(crate) fn peek(fd: BorrowedFd) -> io::Result<bool> {
    let mut byte = 0u8;
    // SAFETY: the kernel writes at most one byte, into `byte`.
    let returned = unsafe { libc::recv(fd.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned > 0) }
}

#[inline]
pub(crate) fn send(fd: BorrowedFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads at most `len` bytes of `bytes`, and no address through the null pointer.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            fd.as_raw_fd(),
            bytes.as_ptr(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
            std::ptr::null::<libc::sockaddr>(),
            0,
        )
    };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned as usize) }
}

/// The next waiting connection, non-blocking and closed on exec.
pub(crate) fn accept(listening: BorrowedFd) -> io::Result<OwnedFd> {
    // SAFETY: null address and length say that the peer's address is not wanted.
    own(unsafe {
        libc::accept4(
            listening.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        )
    })
}

/// A new non-blocking socket of a `kind` such as `SOCK_STREAM`.
pub(crate) fn socket(family: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointer.
    own(unsafe { libc::socket(family, kind, 0) })
}

pub(crate) fn switch_on(fd: BorrowedFd, level: libc::c_int, option: libc::c_int) -> io::Result<()> {
    set_option(fd, level, option, &1)
}

/// `T` is `c_int`, or the struct that the option takes.
pub(crate) fn set_option<T: Copy>(
    fd: BorrowedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes from a pointer to a `T`.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (value as *const T).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// What has not left when this socket is closed, or its process ends, never does: the other side gets a reset.
pub(crate) fn reset_when_closed(fd: BorrowedFd) -> io::Result<()> {
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &at_once)
}

/// Bytes that the other end's kernel has not said to have.
pub(crate) fn unacknowledged(fd: BorrowedFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one c_int through a pointer to one.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(bytes as usize)
}

/// This end sends no more, and still receives.
pub(crate) fn shut_down_writes(fd: BorrowedFd) -> io::Result<()> {
    // SAFETY: it takes no pointers.
    check(unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) })?;
    Ok(())
}

/// Binds to `address`, which must be one of the kernel's sockaddr structs.
///
/// # Safety
/// `T` is a `sockaddr_in`, `sockaddr_in6` or `sockaddr_un`, whose first `length` bytes are set.
pub(crate) unsafe fn bind<T>(fd: BorrowedFd, address: &T, length: usize) -> io::Result<()> {
    let (address, length) = raw(address, length);
    // SAFETY: the kernel reads `length` bytes, all within `address`, and the caller vouches for
    // their being an address.
    check(unsafe { libc::bind(fd.as_raw_fd(), address, length) })?;
    Ok(())
}

/// Connects to `address`, likewise.
///
/// # Safety
/// As that of [`bind`].
pub(crate) unsafe fn connect<T>(fd: BorrowedFd, address: &T, length: usize) -> io::Result<()> {
    let (address, length) = raw(address, length);
    // SAFETY: as in `bind`.
    check(unsafe { libc::connect(fd.as_raw_fd(), address, length) })?;
    Ok(())
}

fn raw<T>(address: &T, length: usize) -> (*const libc::sockaddr, libc::socklen_t) {
    assert!(length <= size_of::<T>());
    (std::ptr::from_ref(address).cast(), length as libc::socklen_t)
}

pub(crate) fn listen(fd: BorrowedFd, backlog: i32) -> io::Result<()> {
    // SAFETY: takes no pointer.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) })?;
    Ok(())
}

pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    own(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
}

pub(crate) fn eventfd_ring(bell: BorrowedFd) {
    let one = 1u64;
    // SAFETY: the kernel reads the eight bytes of `one`. It can only fail when 2^64 rings are
    // pending, and then the bell rings anyway.
    unsafe { libc::write(bell.as_raw_fd(), (&raw const one).cast(), 8) };
}

pub(crate) fn eventfd_silence(bell: BorrowedFd) {
    let mut rings = 0u64;
    // SAFETY: the kernel writes eight bytes into `rings`. It fails only when the bell is silent.
    unsafe { libc::read(bell.as_raw_fd(), (&raw mut rings).cast(), 8) };
}

pub(crate) fn umask(mask: u32) -> u32 {
    // SAFETY: takes no pointer and cannot fail.
    unsafe { libc::umask(mask as libc::mode_t) as u32 }
}

/// The name of one end of a socket.
pub(crate) enum SocketName {
    Ip(SocketAddr),
    /// A path, or nothing.
    Unix(Vec<u8>),
}

pub(crate) fn name_of(fd: BorrowedFd) -> io::Result<SocketName> {
    // SAFETY: the kernel fills in at most the length that it is told.
    ask_name(|to, length| unsafe { libc::getsockname(fd.as_raw_fd(), to, length) })
}

pub(crate) fn peer_of(fd: BorrowedFd) -> io::Result<SocketName> {
    // SAFETY: as above.
    ask_name(|to, length| unsafe { libc::getpeername(fd.as_raw_fd(), to, length) })
}

fn ask_name(
    ask: impl FnOnce(*mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int,
) -> io::Result<SocketName> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    check(ask(storage.as_mut_ptr().cast(), &mut length))?;
    // SAFETY: zeroed, a storage is a valid one of no family; the kernel has set its front.
    let storage = unsafe { storage.assume_init() };
    let at = &raw const storage;
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is this struct, which fits into the storage and has its alignment.
            let name = unsafe { &*at.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Ok(SocketName::Ip((ip, u16::from_be(name.sin_port)).into()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            let (ip, port) = (Ipv6Addr::from(name.sin6_addr.s6_addr), u16::from_be(name.sin6_port));
            Ok(SocketName::Ip(SocketAddrV6::new(ip, port, 0, 0).into()))
        }
        _ => {
            // SAFETY: as above; a path ends with a zero, or with the struct.
            let name = unsafe { &*at.cast::<libc::sockaddr_un>() };
            let path = name.sun_path.iter().map(|byte| *byte as u8);
            Ok(SocketName::Unix(path.take_while(|byte| *byte != 0).collect()))
        }
    }
}
