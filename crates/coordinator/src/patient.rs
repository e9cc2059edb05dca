//! A connection whose other side has to read: one that takes no byte for a while is broken, as if its network were.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// As long as a byte is taken now and then, it may take as long as it likes.
pub(crate) struct Patient<S> {
    stream: S,
    patience: Duration,
    /// While nothing is taken.
    waits: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(crate) fn new(stream: S, patience: Duration) -> Patient<S> {
        Patient { stream, patience, waits: None }
    }

    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = None;
            return written;
        }
        let patience = self.patience;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(waits.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::net::UnixStream;

    use super::*;

    async fn write(stream: &mut Patient<UnixStream>) -> io::Result<usize> {
        poll_fn(|context| Pin::new(&mut *stream).poll_write(context, &[0; 4096])).await
    }

    #[test]
    fn who_takes_nothing_is_let_go_and_who_takes_a_little_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("threads and clocks can be had").block_on(async {
            let (ours, theirs) = UnixStream::pair().expect("there are sockets");
            let mut ours = Patient::new(ours, Duration::from_secs(2));
            // A little at a time, for longer than anybody is waited for.
            let reading = tokio::spawn(async move {
                for _ in 0..30 {
                    theirs.readable().await.expect("there is more");
                    theirs.try_read(&mut [0; 8192]).expect("it can be read");
                    sleep(Duration::from_millis(100)).await;
                }
                theirs
            });
            let begun = tokio::time::Instant::now();
            let stuck = loop {
                if let Err(stuck) = write(&mut ours).await {
                    break stuck;
                }
            };
            let _theirs = reading.await.expect("it has read");
            assert!(begun.elapsed() > Duration::from_secs(3), "it was read still");
            assert_eq!(stuck.kind(), io::ErrorKind::TimedOut);
        });
    }
}
