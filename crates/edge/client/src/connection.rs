//! One connection: jobs go in, leave together, and are answered in their order.
//!
//! ```text
//!   Connection::ask ──► jobs (bounded) ──► writer: all that waits, in one write ──► socket
//!                                             │ who waits for which replies
//!                                             ▼
//!   Outcome ◄──────────────────────────── reader ◄───────────────────────────────── socket
//! ```
//! Writer and reader are one task, which ends with the connection. Then every job has an outcome: what was handed to the socket
//! is lost, what was not is unsent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::dial::Stream;
use crate::reply::{Form, Reply, parse};
use mbal_wire::NotAReply;

/// Jobs that wait to be written; as many again may wait for their replies, and one more is not written.
const JOBS_MAX: usize = 1024;
/// One write takes no more jobs after so many bytes.
const WRITE_BYTES: usize = 64 << 10;
/// Read at a time, at least.
const READ_BYTES: usize = 16 << 10;

/// What became of a job.
#[derive(Debug)]
pub enum Outcome {
    Replies(Vec<Reply>),
    /// It was not sent: it may be asked again.
    Unsent,
    /// It may have been sent, and its replies will not come.
    Lost,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nobody needs it any more.
    Dropped,
    /// The server closed it, or the network did.
    Broken,
    /// Nothing was heard for as long as a request may take, though something was asked.
    Silent,
    /// What was heard is no reply to what was asked.
    NotAReply,
}

/// Requests that are sent together, and how they are answered.
#[derive(Debug)]
pub struct Requests {
    pub bytes: Vec<u8>,
    pub form: Form,
    pub replies: usize,
    /// The server may be silent for so long.
    pub patience: Duration,
}

struct Job {
    requests: Requests,
    done: oneshot::Sender<Outcome>,
    _counted: Counted,
}

/// Who waits for the next replies.
struct InFlight {
    form: Form,
    replies: usize,
    got: Vec<Reply>,
    since: Instant,
    patience: Duration,
    done: oneshot::Sender<Outcome>,
    _counted: Counted,
}

/// One of the jobs of a connection that have no outcome yet.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, SeqCst);
        Counted(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

pub struct Connection {
    jobs: mpsc::Sender<Job>,
    unanswered: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
}

impl Connection {
    /// Serves jobs over `stream`, until that breaks or the connection is dropped; then `ended` is told why.
    pub fn new(stream: Stream, ended: impl FnOnce(End) + Send + 'static) -> Connection {
        let (sender, mut jobs) = mpsc::channel(JOBS_MAX);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        tokio::spawn(async move {
            let (reader, writer) = split(stream);
            let (sent, mut asked) = mpsc::channel(JOBS_MAX);
            // Whichever ends first ends the other.
            let end = tokio::select! {
                end = write(writer, &mut jobs, sent) => end,
                end = read(reader, &mut asked) => end,
            };
            over.store(true, SeqCst);
            ended(end);
            jobs.close();
            while let Ok(job) = jobs.try_recv() {
                // Who no longer waits does not want to know.
                drop(job.done.send(Outcome::Unsent));
            }
        });
        Connection { jobs: sender, unanswered: Arc::default(), ended: is_over }
    }

    /// Sends requests, and waits for all their replies.
    pub async fn ask(&self, requests: Requests) -> Outcome {
        let (done, outcome) = oneshot::channel();
        let counted = Counted::new(&self.unanswered);
        let job = Job { requests, done, _counted: counted };
        if self.jobs.send(job).await.is_err() {
            return Outcome::Unsent;
        }
        outcome.await.unwrap_or(Outcome::Lost)
    }

    /// Jobs without an outcome.
    pub fn unanswered(&self) -> usize {
        self.unanswered.load(SeqCst)
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }
}

async fn write(
    mut socket: WriteHalf<Stream>,
    jobs: &mut mpsc::Receiver<Job>,
    sent: mpsc::Sender<InFlight>,
) -> End {
    let mut bytes = Vec::new();
    loop {
        let Some(mut job) = jobs.recv().await else { return End::Dropped };
        bytes.clear();
        loop {
            bytes.append(&mut job.requests.bytes);
            let Job { requests: Requests { form, replies, patience, .. }, done, _counted } = job;
            let (got, since) = (Vec::with_capacity(replies), Instant::now());
            let asked = InFlight { form, replies, got, since, patience, done, _counted };
            // Before the bytes leave: no reply comes to nobody. Where too many wait, the reader has to go on first.
            if sent.send(asked).await.is_err() {
                return End::Broken;
            }
            match jobs.try_recv() {
                Ok(next) if bytes.len() < WRITE_BYTES => job = next,
                Ok(next) => {
                    if socket.write_all(&bytes).await.is_err() {
                        drop(next.done.send(Outcome::Unsent));
                        return End::Broken;
                    }
                    bytes.clear();
                    job = next;
                }
                Err(_) => break,
            }
        }
        if socket.write_all(&bytes).await.is_err() || socket.flush().await.is_err() {
            return End::Broken;
        }
    }
}

async fn read(mut socket: ReadHalf<Stream>, asked: &mut mpsc::Receiver<InFlight>) -> End {
    let mut input = Vec::new();
    let mut waiting: VecDeque<InFlight> = VecDeque::new();
    let mut heard = Instant::now();
    loop {
        input.reserve(READ_BYTES);
        let silent_at =
            waiting.front().map_or(heard, |front| heard.max(front.since) + front.patience);
        tokio::select! {
            next = asked.recv(), if waiting.len() < JOBS_MAX => match next {
                Some(next) => waiting.push_back(next),
                None => return End::Broken,
            },
            read = socket.read_buf(&mut input) => match read {
                Ok(0) | Err(_) => return End::Broken,
                Ok(_) => heard = Instant::now(),
            },
            () = sleep_until(silent_at), if !waiting.is_empty() => return End::Silent,
        }
        while let Some(next) = (waiting.len() < JOBS_MAX).then(|| asked.try_recv().ok()).flatten() {
            waiting.push_back(next);
        }
        match answer(&mut waiting, &input) {
            Ok(used) => drop(input.drain(..used)),
            Err(NotAReply) => return End::NotAReply,
        }
    }
}

/// Gives replies to those who wait for them; the bytes that these had.
fn answer(waiting: &mut VecDeque<InFlight>, input: &[u8]) -> Result<usize, NotAReply> {
    let mut at = 0;
    while at < input.len() {
        let front = waiting.front_mut().ok_or(NotAReply)?;
        let Some((reply, used)) = parse(front.form, &input[at..])? else { break };
        at += used;
        front.got.push(reply);
        if front.got.len() == front.replies {
            let InFlight { got, done, .. } = waiting.pop_front().expect("it is the front");
            // Who has stopped waiting does not want it.
            drop(done.send(Outcome::Replies(got)));
        }
    }
    Ok(at)
}
