//! One save at a time: what it is fenced by, and what is known of it.

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};

use crate::election::{Election, Phase};
use crate::{Condition, Revision, SETTLE_WITHIN, Term, Why};

/// What a save is executed under: this leader's key, and the state that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    pub term: Term,
    pub state: Option<Revision>,
}

impl Fence {
    /// All of them, or the save is not executed (rule 3).
    pub fn conditions(&self) -> Vec<Condition> {
        let mut conditions = Vec::new();
        if !is_planted(Fault::SavedWithoutTerm) {
            conditions.push(Condition::LeaderCreatedAt(self.term));
        }
        if !is_planted(Fault::SavedWithoutRevision) {
            conditions.push(Condition::StateModifiedAt(self.state.unwrap_or(0)));
        }
        conditions
    }
}

/// What etcd said to a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveResponse {
    /// Executed: the revision of the state is this one.
    Written(Revision),
    /// A condition did not hold. Who leads, and the revision of the state if it is the very one that was to be saved.
    Refused { leader: Option<Term>, ours: Option<Revision> },
    /// Certainly neither executed nor to be executed: no connection, or too large.
    NotExecuted,
    /// Executed, or not, or to be executed yet.
    Unknown,
}

/// What is to be done about a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Saved,
    /// It did not happen, and will not.
    NotSaved,
    /// Ask the same again, under the same fence.
    Again,
    /// Nobody knows. This coordinator leads no more; whoever leads next reads what is there.
    Unknown,
}

#[derive(Debug)]
pub(crate) struct Saving {
    fence: Fence,
    begun: Instant,
    /// It may have been executed.
    is_uncertain: bool,
}

impl Election {
    /// The fence of a save; none if this coordinator does not lead.
    ///
    /// # Panics
    /// If another save is not settled.
    pub fn begin_save(&mut self, now: Instant) -> Option<Fence> {
        assert!(self.saving.is_none(), "one save at a time");
        let term = self.leads(now)?;
        let Phase::Leading(leading) = &self.phase else { unreachable!("it leads") };
        let fence = Fence { term, state: leading.state };
        self.saving = Some(Saving { fence, begun: now, is_uncertain: false });
        Some(fence)
    }

    /// What etcd said to the save, and what that means (rules 4 to 6).
    ///
    /// # Panics
    /// If none was begun.
    pub fn settle(&mut self, now: Instant, answer: SaveResponse) -> Verdict {
        let saving = self.saving.as_mut().expect("a save was begun");
        let fence = saving.fence;
        let verdict = match answer {
            SaveResponse::Written(revision) => {
                self.has_written(fence.term, revision);
                Verdict::Saved
            }
            SaveResponse::Refused { leader, ours } => {
                let was_uncertain = saving.is_uncertain;
                if let Some(revision) = ours {
                    self.has_written(fence.term, revision);
                }
                match (leader == Some(fence.term), ours) {
                    (true, Some(_)) => {}
                    (true, None) => self.end(now, fence, Why::StateChanged),
                    (false, _) => self.end(now, fence, Why::Replaced),
                }
                match ours {
                    Some(_) => Verdict::Saved,
                    None if was_uncertain => Verdict::Unknown,
                    None => Verdict::NotSaved,
                }
            }
            SaveResponse::NotExecuted if !saving.is_uncertain => Verdict::NotSaved,
            SaveResponse::Unknown if is_planted(Fault::UnansweredIsSaved) => Verdict::Saved,
            SaveResponse::Unknown if is_planted(Fault::UnansweredIsUnsaved) => Verdict::NotSaved,
            SaveResponse::NotExecuted | SaveResponse::Unknown => {
                saving.is_uncertain = true;
                let has_time =
                    now < saving.begun + SETTLE_WITHIN || is_planted(Fault::SettledForEver);
                if has_time && self.leads(now) == Some(fence.term) {
                    Verdict::Again
                } else {
                    self.end(now, fence, Why::Unsettled);
                    Verdict::Unknown
                }
            }
        };
        if verdict != Verdict::Again {
            self.saving = None;
        }
        verdict
    }

    /// The leadership under which a save was begun, if it is this one still.
    fn end(&mut self, now: Instant, fence: Fence, why: Why) {
        if matches!(&self.phase, Phase::Leading(leading) if leading.term == fence.term) {
            self.depose(now, why);
        }
    }
}
