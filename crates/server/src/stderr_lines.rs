//! Lines of workers for standard error (`-vv`), written by a thread of its own: a terminal that is stopped, or a pipe
//! that nobody reads, keeps no worker waiting. Any client may switch them on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use mbal_reactor::Said;

use crate::log;

/// What workers said in so many events waits to be written. Further lines are left out, and counted.
const EVENTS_MAX: usize = 256;
/// At the end of the server standard error gets so long to take what waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// What workers say is written until all of them have ended.
pub(crate) struct Saying {
    over: Receiver<()>,
}

impl Saying {
    pub(crate) fn start() -> io::Result<(Arc<Said>, Saying)> {
        let (events, inbox) = sync_channel::<Vec<u8>>(EVENTS_MAX);
        let (end, over) = channel();
        thread::Builder::new().name("mbal-verbose".into()).spawn(move || {
            inbox.iter().for_each(|lines| log::verbose(&lines));
            // Nobody waits any longer if standard error took too long.
            end.send(()).unwrap_or_default();
        })?;
        Ok((said_to(events), Saying { over }))
    }

    /// Waits, after the workers' end, until all is written.
    pub(crate) fn finish(self) {
        self.over.recv_timeout(PATIENCE).unwrap_or_default();
    }
}

fn said_to(events: SyncSender<Vec<u8>>) -> Arc<Said> {
    let skipped = AtomicU64::new(0);
    Arc::new(move |lines: &[u8]| {
        let missed = skipped.swap(0, Relaxed);
        let told = if missed > 0 { format!("skipped={missed}\n") } else { String::new() };
        if events.try_send([told.as_bytes(), lines].concat()).is_err() {
            let count = lines.iter().filter(|byte| **byte == b'\n').count();
            skipped.fetch_add(missed + count as u64, Relaxed);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_counted_and_told() {
        let (events, inbox) = sync_channel(1);
        let said = said_to(events);
        for lines in [&b"first\n"[..], b"lost\nlost\n", b"lost\n"] {
            said(lines);
        }
        assert_eq!(inbox.recv().unwrap(), b"first\n");
        said(b"last\n");
        assert_eq!(inbox.recv().unwrap(), b"skipped=3\nlast\n");
    }
}
