//! Connections beside the clients' (metrics, operators), each on a thread of its own: one that says nothing delays nobody.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mbal_locks::{Condvar, Mutex, ranks};

/// Enough for a page of metrics, and for a question with its answer.
const STACK_BYTES: usize = 512 << 10;
/// Out of descriptors, most likely: later there may be one.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves what `next` accepts, `most` at a time, for the life of the process. One more waits in the kernel until another has ended, which
/// each does in a bounded time.
pub(crate) fn serve<S: Send + 'static>(
    name: &'static str,
    most: usize,
    next: impl Fn() -> io::Result<S> + Send + 'static,
    answer: impl Fn(S) + Clone + Send + 'static,
) -> io::Result<()> {
    let places: Places = Arc::new((Mutex::new(most), Condvar::new()));
    let accept = move || {
        loop {
            let place = Place::take(&places);
            let Ok(connection) = next() else {
                thread::sleep(PAUSE);
                continue;
            };
            let answer = answer.clone();
            let work = move || {
                let _place = place;
                answer(connection);
            };
            let thread = thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
            if thread.spawn(work).is_err() {
                // The connection is closed with what would have served it.
                thread::sleep(PAUSE);
            }
        }
    };
    thread::Builder::new().name(name.into()).spawn(accept)?;
    Ok(())
}

type Places = Arc<(Mutex<ranks::SideDoors, usize>, Condvar)>;

/// Given back when it is dropped.
struct Place(Places);

impl Place {
    fn take(places: &Places) -> Place {
        let (free, changed) = &**places;
        let mut free = free.lock();
        while *free == 0 {
            free = changed.wait_timeout(free, PAUSE);
        }
        *free -= 1;
        Place(Arc::clone(places))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (free, changed) = &*self.0;
        *free.lock() += 1;
        changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn one_more_than_there_is_room_for_waits_for_the_first_to_end() {
        let (knocks, heard) = channel::<u32>();
        let (say, said) = channel();
        let (go, gone) = channel::<()>();
        let gone = Arc::new(std::sync::Mutex::new(gone));
        let next = move || heard.recv().map_err(io::Error::other);
        let answer = move |number| {
            say.send(number).expect("it listens");
            gone.lock().expect("nothing panics with it held").recv().unwrap_or_default();
        };
        serve("test", 2, next, answer).expect("a thread can be had");
        for number in [1, 2, 3] {
            knocks.send(number).expect("it listens");
        }
        let mut first: Vec<u32> =
            (0..2).map(|_| said.recv_timeout(PATIENCE).expect("two at a time")).collect();
        first.sort();
        assert_eq!(first, [1, 2]);
        assert!(said.recv_timeout(Duration::from_millis(100)).is_err(), "there are two already");
        go.send(()).expect("it listens");
        assert_eq!(said.recv_timeout(PATIENCE), Ok(3));
    }
}
