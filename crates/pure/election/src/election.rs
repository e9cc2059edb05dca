//! Following, campaigning, leading, leaving: one question to etcd at a time.

use std::time::Duration;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};

use crate::lease::{Renewal, held_until};
use crate::saving::Saving;
use crate::{
    LOOK_EVERY, LeaseId, News, Next, RENEW_EVERY, RETRY_AFTER, Request, Response, Revision, Sight,
    Stored, Term, UNUSABLE_PAUSE, Why,
};

/// What one coordinator knows of who leads.
#[derive(Debug, Default)]
pub struct Election {
    pub(crate) phase: Phase,
    /// The question that waits for its answer, and when it was asked.
    asked: Option<(Request, Instant)>,
    /// Nothing is asked before.
    due: Instant,
    /// It does not campaign before.
    rests_until: Instant,
    /// Who led when it looked last.
    leader: Option<String>,
    /// There was a state when it looked: one that is missing later is no new cluster.
    has_seen_state: bool,
    pub(crate) saving: Option<Saving>,
    news: Vec<News>,
}

#[derive(Debug, Default)]
pub(crate) enum Phase {
    #[default]
    Following,
    /// Nobody leads, as far as it knows.
    Vacant,
    Granted {
        lease: LeaseId,
        until: Instant,
    },
    Leading(Leading),
    /// Its lease is to be revoked.
    Leaving {
        lease: LeaseId,
    },
}

#[derive(Debug)]
pub(crate) struct Leading {
    pub lease: LeaseId,
    pub term: Term,
    /// It answers as leader before, and never then.
    pub until: Instant,
    /// Of the state that it knows to be in etcd.
    pub state: Option<Revision>,
    /// A renewal that counts when a look has shown its key.
    renewed: Option<Renewal>,
}

impl Election {
    pub fn new() -> Election {
        Election::default()
    }

    /// The term in which it leads at this moment.
    pub fn leads(&self, now: Instant) -> Option<Term> {
        match &self.phase {
            Phase::Leading(leading) if now < leading.until => Some(leading.term),
            _ => None,
        }
    }

    /// The URL of whoever led when it looked last.
    pub fn leader(&self) -> Option<&str> {
        self.leader.as_deref()
    }

    /// What has become of it since it was asked last, in order.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// What to ask etcd now. It is asked nothing else before [`Election::answered`].
    ///
    /// # Panics
    /// If a question waits for its answer.
    pub fn next(&mut self, now: Instant) -> Next {
        assert!(self.asked.is_none(), "one question at a time");
        let over = match &self.phase {
            Phase::Leading(leading) if now < leading.until => Some(leading.until),
            Phase::Leading(_) => {
                self.depose(now, Why::LeaseOver);
                None
            }
            Phase::Granted { lease, until } if *until <= now => {
                self.phase = Phase::Leaving { lease: *lease };
                None
            }
            _ => None,
        };
        if now < self.due {
            return Next::Wait(over.map_or(self.due, |over| over.min(self.due)));
        }
        let question = match &self.phase {
            Phase::Vacant if self.rests_until <= now => Request::Grant,
            Phase::Following | Phase::Vacant => Request::Look,
            Phase::Granted { lease, .. } => Request::Campaign { lease: *lease },
            Phase::Leading(Leading { renewed: Some(_), .. }) => Request::Look,
            Phase::Leading(leading) => Request::Renew { lease: leading.lease },
            Phase::Leaving { lease } => Request::Revoke { lease: *lease },
        };
        self.asked = Some((question, now));
        Next::Ask(question)
    }

    /// What etcd answered. An answer that does not fit the question is none.
    ///
    /// # Panics
    /// If nothing was asked.
    pub fn answered(&mut self, now: Instant, answer: Response) {
        let (question, sent) = self.asked.take().expect("it has asked");
        self.due = now;
        // A save may have ended the leadership while this question was under way.
        match (question, answer) {
            (Request::Look, Response::Seen(sight)) => self.seen(now, sight),
            (Request::Grant, Response::Granted { lease, lasts }) => {
                let until = held_until(now, sent, lasts);
                self.phase = Phase::Granted { lease, until };
            }
            (Request::Campaign { lease }, Response::Won { term, state }) => {
                self.won(now, lease, term, state);
            }
            (Request::Campaign { lease }, Response::Lost(sight)) => {
                self.remember(&sight);
                self.phase = Phase::Leaving { lease };
            }
            // It may lead, and know nothing of it: without the lease there is no such key.
            (Request::Campaign { lease }, _) => self.phase = Phase::Leaving { lease },
            (Request::Renew { lease }, Response::Renewed { lasts, raft_term }) => {
                self.renewed(now, sent, lease, lasts, raft_term);
            }
            (Request::Revoke { .. }, _) => {
                // Once: it ends by itself.
                self.phase = Phase::Following;
                self.due = now + LOOK_EVERY;
            }
            _ => self.due = now + self.pause(),
        }
    }

    fn pause(&self) -> Duration {
        match &self.phase {
            Phase::Leading(_) => RETRY_AFTER,
            Phase::Leaving { .. } => Duration::ZERO,
            _ => LOOK_EVERY,
        }
    }

    fn remember(&mut self, sight: &Sight) {
        self.has_seen_state |= sight.state.is_some();
        self.leader = sight.leader.as_ref().map(|leader| leader.address.clone());
    }

    fn seen(&mut self, now: Instant, sight: Sight) {
        self.remember(&sight);
        let there = sight.leader.map(|leader| leader.term);
        match &mut self.phase {
            Phase::Leading(leading) => {
                let Some(renewed) = leading.renewed.take() else { return };
                if there != Some(leading.term) {
                    return self.depose(now, Why::Replaced);
                }
                if renewed.counts(sight.raft_term) {
                    leading.until = leading.until.max(renewed.until);
                    self.due = now + RENEW_EVERY;
                }
            }
            Phase::Following | Phase::Vacant if there.is_none() && self.rests_until <= now => {
                self.phase = Phase::Vacant;
            }
            Phase::Following | Phase::Vacant => {
                self.phase = Phase::Following;
                self.due = now + LOOK_EVERY;
            }
            Phase::Granted { .. } | Phase::Leaving { .. } => {}
        }
    }

    fn won(&mut self, now: Instant, lease: LeaseId, term: Term, state: Option<Stored>) {
        let Phase::Granted { until, .. } = self.phase else { return };
        let revision = state.as_ref().map(|state| state.revision);
        let leading = Leading { lease, term, until, state: revision, renewed: None };
        self.phase = Phase::Leading(leading);
        if revision.is_none() && self.has_seen_state {
            self.rests_until = now + UNUSABLE_PAUSE;
            return self.depose(now, Why::StateMissing);
        }
        self.has_seen_state |= revision.is_some();
        self.news.push(News::Elected { term, state });
    }

    fn renewed(
        &mut self,
        now: Instant,
        sent: Instant,
        lease: LeaseId,
        lasts: Duration,
        raft_term: u64,
    ) {
        let Phase::Leading(leading) = &mut self.phase else { return };
        if leading.lease != lease {
            return;
        }
        if lasts.is_zero() {
            return self.depose(now, Why::Replaced);
        }
        let until = held_until(now, sent, lasts);
        if is_planted(Fault::RenewedUnseen) {
            leading.until = until;
            self.due = now + RENEW_EVERY;
            return;
        }
        leading.renewed = Some(Renewal { until, raft_term });
    }

    /// It leads no more, at once. What is in etcd of it goes next.
    pub(crate) fn depose(&mut self, now: Instant, why: Why) {
        let Phase::Leading(Leading { lease, term, .. }) = self.phase else { return };
        self.phase = Phase::Leaving { lease };
        self.due = now;
        // That it was this one itself is of use to nobody.
        self.leader = None;
        self.news.push(News::Deposed { term, why });
    }

    /// The process ends, or cannot use the state: others may lead, and this one campaigns no sooner than after `rest`.
    pub fn resign(&mut self, now: Instant, rest: Duration) {
        self.rests_until = now + rest;
        self.depose(now, Why::Resigned);
    }

    /// A state was written, by whatever leadership: one that is missing later is no new cluster.
    pub(crate) fn has_written(&mut self, term: Term, revision: Revision) {
        self.has_seen_state = true;
        if let Phase::Leading(leading) = &mut self.phase {
            if leading.term == term {
                leading.state = Some(revision);
            }
        }
    }
}
