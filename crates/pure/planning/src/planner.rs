//! What a coordinator's planner does in an epoch: which questions it asks one after the other, and what it makes of the answers.
//!
//! ```text
//!   Epoch ──► Outlook ──► plan ──► Planned ──► Inventory ──► choose ──► Resized ──► Rates ──► Threshold
//! ```

use mbal_balance::hot::threshold;
use mbal_balance::{ClusterPlanner, Thresholds};
use mbal_control::{Rates, Request, Response, choose};
use mbal_model::planted::{Fault, is_planted};

pub struct Planning {
    thresholds: Thresholds,
    planner: ClusterPlanner,
    epochs: u64,
    /// T is worked out in one epoch of so many.
    threshold_every: u64,
    asked: Asked,
}

/// What the answer is to that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Outlook,
    Planned,
    Inventory,
    Resized,
    Rates,
}

impl Planning {
    pub fn new(thresholds: Thresholds, threshold_every: u64) -> Planning {
        let planner = ClusterPlanner::new(thresholds);
        Planning { thresholds, planner, epochs: 0, threshold_every, asked: Asked::Nothing }
    }

    /// An epoch is over. What was asked in the last one is waited for no more.
    pub fn epoch(&mut self) -> Request {
        self.epochs += 1;
        self.asked = Asked::Outlook;
        Request::Outlook(self.epochs)
    }

    /// Forgets what it has seen: whoever has the say has seen other epochs, or planning has failed.
    pub fn begin_anew(&mut self) {
        self.planner = ClusterPlanner::new(self.thresholds);
        self.asked = Asked::Nothing;
    }

    /// What to ask next, if anything in this epoch. `None` is an answer that did not come, or refuses: what cannot be saved has not begun, and the
    /// next outlook shows it.
    pub fn answered(&mut self, answer: Option<Response>) -> Option<Request> {
        let (asked, ask) = match (self.asked, answer) {
            (Asked::Outlook, Some(Response::Outlook(outlook))) => {
                (Asked::Planned, Request::Planned(self.planner.plan(&outlook)))
            }
            (Asked::Outlook, _) => {
                self.begin_anew();
                return None;
            }
            (Asked::Planned, _) if is_planted(Fault::NobodyIsChosen) => return None,
            (Asked::Planned, _) => (Asked::Inventory, Request::Inventory),
            (Asked::Inventory, Some(Response::Inventory(Some(inventory)))) => {
                (Asked::Resized, Request::Resized(inventory.number, choose(&inventory)))
            }
            (Asked::Inventory | Asked::Resized, _) if self.epochs % self.threshold_every == 0 => {
                (Asked::Rates, Request::Rates)
            }
            (Asked::Rates, Some(Response::Rates(Some(rates)))) => {
                let Rates { servers, requests, hottest, target } = &rates;
                let threshold = threshold(*servers, *requests, hottest, *target);
                (Asked::Nothing, Request::Threshold(threshold))
            }
            _ => {
                self.asked = Asked::Nothing;
                return None;
            }
        };
        self.asked = asked;
        Some(ask)
    }
}

#[cfg(test)]
mod tests {
    use mbal_model::Outlook;

    use super::*;

    fn name(ask: Option<Request>) -> String {
        let text = format!("{:?}", ask.expect("something is asked"));
        text.split(['(', ' ']).next().unwrap_or_default().to_owned()
    }

    #[test]
    fn an_epoch_asks_one_thing_after_the_other() {
        let mut planning = Planning::new(Thresholds::default(), 2);
        for epoch in 1..=4 {
            assert_eq!(name(Some(planning.epoch())), "Outlook");
            let outlook = Response::Outlook(Outlook::default());
            assert_eq!(name(planning.answered(Some(outlook))), "Planned");
            assert_eq!(name(planning.answered(None)), "Inventory", "be it saved or not");
            if epoch % 2 == 1 {
                assert_eq!(planning.answered(Some(Response::Inventory(None))), None);
                continue;
            }
            assert_eq!(name(planning.answered(Some(Response::Inventory(None)))), "Rates");
            let rates = Rates { servers: 4, requests: 1e6, hottest: vec![0.0], target: 1.05 };
            let asked = planning.answered(Some(Response::Rates(Some(rates))));
            let Some(Request::Threshold(threshold)) = asked else { panic!("{asked:?}") };
            assert!(threshold >= 5_000.0, "a copy is to answer a part of what a server does");
            assert_eq!(planning.answered(Some(Response::Done)), None);
        }
    }

    #[test]
    fn without_an_outlook_it_begins_anew_and_late_answers_are_of_no_account() {
        let mut planning = Planning::new(Thresholds::default(), 1);
        planning.epoch();
        assert_eq!(planning.answered(None), None);
        assert_eq!(planning.answered(Some(Response::Inventory(None))), None);
        planning.epoch();
        assert_eq!(planning.answered(Some(Response::Done)), None);
    }
}
