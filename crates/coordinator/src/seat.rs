//! A coordinator's place among several: a thread asks etcd who leads, and campaigns; whoever answers asks here whether it may.
//!
//! ```text
//!   mbal-election ── look, campaign, renew ──► etcd ◄── save ── whoever has the driver
//!        │                                                         │
//!        └──► mbal_election::Election ◄── may I answer? ───────────┘
//! ```
//! `docs/design/cluster.md`, *Several coordinators*, has the rules.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mbal_election::{
    Election, News, Next, Request, Response, SaveResponse, Stored, Term, UNUSABLE_PAUSE, Verdict,
};
use mbal_etcd::Leadership;
use mbal_locks::{Condvar, Mutex, MutexGuard, ranks};
use mbal_model::Instant;
use mbal_reactor::LeaseClock;

use crate::driver::Say;

/// Before a save that was not answered is asked again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The first of each line that renews no lease which it has revoked.
const SOUND_VERSIONS: [[u32; 3]; 3] = [[3, 4, 38], [3, 5, 23], [3, 6, 5]];

pub struct Seat {
    shared: Mutex<ranks::Seat, Shared>,
    /// There is something to do sooner than was thought.
    changed: Condvar,
    etcd: Leadership,
    clock: LeaseClock,
    say: Arc<Say>,
}

#[derive(Default)]
struct Shared {
    election: Election,
    /// What this coordinator leads by, until somebody takes it.
    elected: Option<(Term, Option<Stored>)>,
    /// Why etcd did not answer the last question.
    trouble: Option<String>,
    /// Why this coordinator could not use the state that it found.
    unusable: Option<String>,
    ends: bool,
}

/// What came of a save.
pub enum Saved {
    Yes,
    /// It did not happen.
    No(String),
    /// Nobody knows, and this coordinator leads no more.
    Unknown(String),
}

/// Why this coordinator does not answer.
pub struct NotLeading {
    pub leader: Option<String>,
    pub why: String,
}

impl Seat {
    pub fn new(etcd: Leadership, say: Arc<Say>) -> Arc<Seat> {
        let (shared, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Seat { shared, changed, etcd, clock: LeaseClock::start(), say })
    }

    /// Starts the thread that looks who leads.
    pub fn take(self: &Arc<Seat>) -> std::io::Result<JoinHandle<()>> {
        let seat = Arc::clone(self);
        thread::Builder::new().name("mbal-election".into()).spawn(move || seat.run())
    }

    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    fn shared(&self) -> MutexGuard<'_, ranks::Seat, Shared> {
        self.shared.lock()
    }

    fn run(&self) {
        let mut knows_version = false;
        loop {
            let mut shared = self.shared();
            let next = shared.election.next(self.now());
            self.hear(&mut shared);
            match next {
                Next::Wait(_) if shared.ends => return,
                Next::Ask(question) if shared.ends && !is_farewell(question) => return,
                Next::Wait(until) => {
                    let pause = until - self.now();
                    drop(self.changed.wait_timeout(shared, pause));
                }
                Next::Ask(question) => {
                    drop(shared);
                    let asked = self.etcd.ask(question);
                    let mut shared = self.shared();
                    let answer = asked.unwrap_or_else(|failed| {
                        self.trouble(&mut shared, Some(failed.why));
                        Response::Nothing
                    });
                    let is_of_use = answer != Response::Nothing;
                    if is_of_use {
                        self.trouble(&mut shared, None);
                    }
                    shared.election.answered(self.now(), answer);
                    self.hear(&mut shared);
                    drop(shared);
                    if is_of_use && !knows_version {
                        knows_version = self.look_at_version();
                    }
                }
            }
        }
    }

    /// The log has the first failure, and that it is over.
    fn trouble(&self, shared: &mut Shared, why: Option<String>) {
        match (&shared.trouble, &why) {
            (None, Some(why)) => (self.say)(&format!("etcd cannot be used: {why}")),
            (Some(_), None) => (self.say)("etcd can be used again"),
            _ => {}
        }
        shared.trouble = why;
    }

    fn hear(&self, shared: &mut Shared) {
        for news in shared.election.take_news() {
            match news {
                News::Elected { term, state } => {
                    let what = match &state {
                        Some(state) => format!("the state of revision {}", state.revision),
                        None => "no state: this is a new cluster".into(),
                    };
                    (self.say)(&format!("leads in term {term}, by {what}"));
                    shared.elected = Some((term, state));
                }
                News::Deposed { term, why } => {
                    (self.say)(&format!("leads no more in term {term}: {why}"));
                    shared.elected = None;
                    shared.unusable = match why {
                        mbal_election::Why::StateMissing => Some(why.to_string()),
                        _ => shared.unusable.take(),
                    };
                }
            }
        }
    }

    fn look_at_version(&self) -> bool {
        let Some(version) = self.etcd.etcd().version() else { return false };
        if !is_sound(&version) {
            (self.say)(&format!(
                "etcd {version} may renew a lease that it has revoked (3.4.38, 3.5.23 and 3.6.5 do not): each renewal is checked"
            ));
        }
        true
    }

    /// The term in which this coordinator leads now, or who does.
    pub fn leads(&self) -> Result<Term, NotLeading> {
        let shared = self.shared();
        shared.election.leads(self.now()).ok_or_else(|| {
            let leader = shared.election.leader();
            let leader = leader.filter(|_| shared.trouble.is_none()).map(str::to_owned);
            let why = match (&shared.trouble, &leader, &shared.unusable) {
                (Some(trouble), ..) => {
                    format!("this coordinator does not lead, and etcd cannot be used: {trouble}")
                }
                (None, Some(leader), _) => format!("this coordinator does not lead; {leader} does"),
                (None, None, Some(why)) => format!("this coordinator does not lead: {why}"),
                (None, None, None) => "no coordinator leads yet".into(),
            };
            NotLeading { leader, why }
        })
    }

    /// The state that it was elected with, once.
    pub fn take_elected(&self, term: Term) -> Option<Option<Stored>> {
        let mut shared = self.shared();
        let (_, state) = shared.elected.take_if(|(elected, _)| *elected == term)?;
        shared.unusable = None;
        Some(state)
    }

    /// The state that it found is of no use: others may have one that is.
    pub fn refuse(&self, why: String) {
        (self.say)(&why);
        let mut shared = self.shared();
        shared.unusable = Some(why);
        shared.election.resign(self.now(), UNUSABLE_PAUSE);
        self.hear(&mut shared);
        self.changed.notify_all();
    }

    /// Written under this leadership, or not, or nobody knows. Takes some seconds at most.
    /// What was decided in another term is not saved: it was decided on another state.
    pub fn save(&self, term: Option<Term>, state: &[u8]) -> Saved {
        let mut shared = self.shared();
        let now = self.now();
        if shared.election.leads(now) != term {
            return Saved::No("this coordinator leads no more".into());
        }
        let Some(fence) = shared.election.begin_save(now) else {
            return Saved::No("this coordinator leads no more".into());
        };
        drop(shared);
        let mut doubt = None;
        loop {
            let (answer, failed) = self.etcd.save(fence, state);
            let why = failed.unwrap_or_else(|| match answer {
                SaveResponse::Refused { leader, .. } if leader == Some(fence.term) => {
                    "the state in etcd was changed by somebody who does not lead".into()
                }
                _ => "another coordinator leads".into(),
            });
            let mut shared = self.shared();
            let verdict = shared.election.settle(self.now(), answer);
            self.hear(&mut shared);
            drop(shared);
            self.changed.notify_all();
            match verdict {
                Verdict::Saved => return Saved::Yes,
                Verdict::NotSaved => return Saved::No(why),
                Verdict::Unknown => return Saved::Unknown(doubt.unwrap_or(why)),
                Verdict::Again => {
                    doubt.get_or_insert(why);
                    thread::sleep(AGAIN_AFTER);
                }
            }
        }
    }

    /// Leads no more, and lets others know by revoking its lease; the thread ends.
    pub fn leave(&self) {
        let mut shared = self.shared();
        shared.ends = true;
        shared.election.resign(self.now(), Duration::MAX / 2);
        self.hear(&mut shared);
        self.changed.notify_all();
    }
}

fn is_farewell(question: Request) -> bool {
    matches!(question, Request::Revoke { .. })
}

/// True of versions of which nothing is known.
fn is_sound(version: &str) -> bool {
    let parts: Option<Vec<u32>> = version.split('.').map(|part| part.parse().ok()).collect();
    let Some(parts) = parts else { return true };
    let line = SOUND_VERSIONS.iter().find(|first| parts[..2.min(parts.len())] == first[..2]);
    match line {
        Some(first) => parts[..] >= first[..],
        None => parts[..] > SOUND_VERSIONS[0][..],
    }
}

#[cfg(test)]
mod tests {
    use super::is_sound;

    #[test]
    fn versions_that_renew_what_they_revoked_are_known() {
        for version in ["3.4.23", "3.4.37", "3.5.22", "3.6.0", "3.3.27"] {
            assert!(!is_sound(version), "{version}");
        }
        for version in ["3.4.38", "3.5.23", "3.6.5", "3.7.0", "4.0.0", "3.6.0-rc.1"] {
            assert!(is_sound(version), "{version}");
        }
    }
}
