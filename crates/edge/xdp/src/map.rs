//! The only value of an array map, mapped into this process.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

use aya::maps::MapData;

use crate::Error;

/// Memory that the packet program reads at any time: nothing here makes a reference to more than an atomic.
pub struct Mapped<T> {
    start: NonNull<T>,
}

// SAFETY: the memory is shared with the kernel anyway, and is not tied to a thread.
unsafe impl<T> Send for Mapped<T> {}

impl<T> Mapped<T> {
    /// Of a map whose values have the type `T` in the packet program. Fails if their size is another one.
    pub fn new(map: &MapData) -> Result<Mapped<T>, Error> {
        let bytes = map.info()?.value_size() as usize;
        assert_eq!(bytes, size_of::<T>(), "bpf/plane.h and layout.rs differ");
        // SAFETY: the kernel chooses the place, which nothing else uses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.fd().as_fd().as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Error::Io(io::Error::last_os_error()));
        }
        Ok(Mapped { start: NonNull::new(start.cast()).expect("mmap does not return null") })
    }

    /// Valid while `self` is.
    pub fn get(&self) -> *mut T {
        self.start.as_ptr()
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: `new` mapped as much there, and pointers from `get` end with `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), size_of::<T>()) };
    }
}
