//! How long a thread wanted its core: the time that it ran, and the time that it waited to run.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// By the kernel's account of the thread that opened it. A thread that waits for its core inside of a system call, or
/// that a CPU quota has stopped there, has no other way to know.
pub(crate) struct Wish {
    /// `None`: this kernel keeps no such account.
    account: Option<File>,
    told: CoreTime,
}

/// Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CoreTime {
    pub ran: u64,
    pub waited: u64,
}

impl Wish {
    /// Of the calling thread, from now on.
    pub fn begin() -> Wish {
        let account = File::open("/proc/thread-self/schedstat").ok();
        let mut wish = Wish { account, told: CoreTime::default() };
        wish.since();
        wish
    }

    /// Since the last call. Some microseconds' work.
    pub fn since(&mut self) -> Option<CoreTime> {
        let mut text = [0; 64];
        let read = self.account.as_ref()?.read_at(&mut text, 0).ok()?;
        let now = ran_and_waited(std::str::from_utf8(&text[..read]).ok()?)?;
        let then = std::mem::replace(&mut self.told, now);
        let (ran, waited) =
            (now.ran.saturating_sub(then.ran), now.waited.saturating_sub(then.waited));
        Some(CoreTime { ran, waited })
    }
}

/// `RAN WAITED TIMES`, in nanoseconds.
fn ran_and_waited(account: &str) -> Option<CoreTime> {
    let mut numbers = account.split_ascii_whitespace().map(str::parse::<u64>);
    let (ran, waited) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    ran.checked_add(waited)?;
    Some(CoreTime { ran, waited })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_was_run_and_time_that_was_waited_are_told_apart() {
        assert_eq!(ran_and_waited("100 23 4\n"), Some(CoreTime { ran: 100, waited: 23 }));
        assert_eq!(ran_and_waited("0 0 0"), Some(CoreTime::default()));
        for odd in ["", "1", "x 1 2", "18446744073709551615 1 1"] {
            assert_eq!(ran_and_waited(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_thread_that_computes_is_seen_to() {
        let mut wish = Wish::begin();
        if wish.account.is_none() {
            return;
        }
        while wish.since().is_some_and(|wanted| wanted.ran == 0) {}
    }
}
