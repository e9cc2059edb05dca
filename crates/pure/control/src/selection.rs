//! What was chosen to travel and to stay, while servers retire.

use std::collections::BTreeMap;

use mbal_model::ServerId;

use crate::api::{ClassSelected, ScaleCut, ScalePlan, Scaling, Selected};
use crate::state::State;

impl ScalePlan {
    /// It is to retire.
    pub(crate) fn has(&self, server: ServerId) -> bool {
        self.retiring.iter().any(|one| one.server == server.0)
    }
}

fn under_way(state: &State) -> Option<(&Scaling, &ScalePlan)> {
    let scaling = state.scaling.as_ref().filter(|scaling| !scaling.done)?;
    Some((scaling, scaling.plan.as_ref()?))
}

/// What a move between these two servers carries; none is everything.
pub(crate) fn selected(state: &State, from: ServerId, to: ServerId) -> Option<Selected> {
    let (scaling, plan) = under_way(state)?;
    let of_both = |cut: &&ScaleCut| (cut.from, cut.server) == (from.0, to.0);
    let class = |cut: &ScaleCut| ClassSelected {
        class: cut.class,
        younger_than: cut.carried_younger_than,
        tied: cut.carried_tied,
    };
    let classes: Vec<ClassSelected> = plan.cuts.iter().filter(of_both).map(class).collect();
    (!classes.is_empty()).then_some(Selected { number: scaling.number, classes })
}

/// What stays at this server.
pub(crate) fn kept(state: &State, server: ServerId) -> Option<Selected> {
    let (scaling, plan) = under_way(state)?;
    let own = plan.cuts.iter().filter(|cut| cut.server == server.0);
    let classes: BTreeMap<u8, (u32, u16)> =
        own.map(|cut| (cut.class, (cut.kept_younger_than, cut.kept_tied))).collect();
    let class = |(class, (younger_than, tied))| ClassSelected { class, younger_than, tied };
    let classes: Vec<ClassSelected> = classes.into_iter().map(class).collect();
    (!classes.is_empty()).then_some(Selected { number: scaling.number, classes })
}
